//! Tests that CI runs every job, and that .ci/paths has the jobs of every file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Runs a program in the folder of the project, and returns the words that it prints.
fn words_of(program: &str, args: &[&str]) -> Vec<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect(program);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .expect("UTF-8")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// Returns the jobs of each prefix in .ci/paths.
fn jobs_of_prefixes() -> BTreeMap<String, Vec<String>> {
    let lines = file(".ci/paths");
    let lines = lines
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            (
                words.next().expect("a prefix"),
                words.filter(|word| word != "-").collect(),
            )
        })
        .collect()
}

#[test]
fn every_file_has_a_line_in_the_table_of_paths() {
    let table = jobs_of_prefixes();
    let files = words_of("git", &["ls-files"]);
    assert!(files.len() > 500, "{} files", files.len());
    for file in &files {
        assert!(
            table.keys().any(|prefix| file.starts_with(prefix)),
            ".ci/paths has no line for {file}"
        );
    }
    for prefix in table.keys() {
        assert!(
            files.iter().any(|file| file.starts_with(prefix)),
            ".ci/paths: no file begins with {prefix}"
        );
    }
}

#[test]
fn every_job_runs_after_a_change_or_in_turn_and_on_a_public_host() {
    let jobs: BTreeSet<_> = words_of("scripts/job", &["--list"]).into_iter().collect();
    let of_paths: BTreeSet<_> = jobs_of_prefixes().into_values().flatten().collect();
    assert!(of_paths.is_subset(&jobs), "{of_paths:?} {jobs:?}");

    let turns: BTreeSet<_> = (0..jobs.len())
        .flat_map(|turn| words_of("scripts/job", &["--turn", &turn.to_string()]))
        .collect();
    assert_eq!(&turns | &of_paths, jobs);

    let workflow = file(".github/workflows/ci.yml");
    let (_, matrix) = workflow.split_once("job: [").expect("a matrix");
    let (matrix, _) = matrix.split_once(']').expect("its end");
    assert_eq!(
        matrix
            .split(", ")
            .map(str::to_owned)
            .collect::<BTreeSet<_>>(),
        jobs
    );
}

/// The longest prefix counts, and a job is named once.
#[test]
fn the_jobs_of_a_change_are_those_of_its_paths() {
    let empty = words_of("git", &["hash-object", "-t", "tree", "/dev/null"]).remove(0);
    let jobs = words_of("scripts/job", &["--changed", &empty]);
    let expected: BTreeSet<_> = jobs_of_prefixes().into_values().flatten().collect();
    assert_eq!(jobs.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(jobs.len(), expected.len());
}
