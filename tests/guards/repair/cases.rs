//! The cases of `cases.txt`: a clean state is broken by commands, and a repair puts it right. A case
//! has the commands, the steps of the repair, and all keys that the repair changes, as
//! [`Scene::changed`] describes them.
//!
//! [`Scene::changed`]: crate::scene::Scene::changed
//!
//! With `SERIATIM_WRITE_CASES=1` the tests write what they have found into the file. Read the
//! difference before you commit it.

use std::path::{Path, PathBuf};

use rstest::rstest;
use seriatim::control::Repair;

use super::{doing, lines, repair};
use crate::check::{broken_by, findings_of, scene};

/// The option of a case in which the tag of a worker may be removed before the repair of its object does
/// so. That depends on the order in which Redis returns keys.
const ANY_ORDER: &str = "any-order";

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guards/repair/cases.txt")
}

/// One case of the file.
struct Case<'a> {
    /// The line with the commands, as for [`broken_by`]. `|` and options of the repair may follow.
    given: &'a str,
    /// The other lines.
    expected: Vec<&'a str>,
}

/// Returns the text of a section, without its heading.
fn section<'a>(text: &'a str, name: &str) -> &'a str {
    let heading = format!("## {name}\n");
    let from = text
        .find(&heading)
        .unwrap_or_else(|| panic!("cases.txt has no section {name}"))
        + heading.len();
    text[from..].split("\n## ").next().unwrap_or_default()
}

fn cases(section: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for line in section.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("> "), cases.last_mut()) {
            (Some(given), _) => cases.push(Case {
                given,
                expected: Vec::new(),
            }),
            (None, Some(case)) => case.expected.push(line),
            (None, None) => panic!("cases.txt: {line:?} comes before the first case"),
        }
    }
    cases
}

/// Returns the repair that the words after `|` ask for.
fn with(words: &str) -> Repair {
    let mut repair = doing();
    for word in words.split_whitespace() {
        match word.split_once('=') {
            Some(("dead", owner)) => repair.dead_owners.push(owner.to_owned()),
            None if word == ANY_ORDER => {}
            Some(("due", ms)) => repair.schedules_due_ms = Some(ms.parse().expect("ms")),
            _ => panic!("cases.txt: unknown option {word}"),
        }
    }
    repair
}

/// A repair makes the steps and the changes of the case, and a dry run changes nothing. Further lines
/// have what is not as usual: `planned`, the steps that a dry run tells, if they are others; `check`,
/// what the check finds after the repair; `again`, the steps of a second repair.
#[rstest]
#[tokio::test]
async fn a_repair_makes_these_changes(
    #[values(
        "held",
        "batches",
        "owners",
        "slots",
        "lost",
        "progress",
        "schedules",
        "indexes",
        "types"
    )]
    name: &str,
) {
    let text = std::fs::read_to_string(file()).expect("cases.txt");
    let scene = scene().await;
    let (mut found, mut wrong) = (format!("## {name}\n"), Vec::new());
    let cases = cases(section(&text, name));
    assert!(!cases.is_empty(), "{name}");
    let steady = |lines: Vec<String>| {
        let lines = lines.iter().map(|line| scene.steady(line));
        lines.collect::<Vec<_>>()
    };
    let named = |word: &'static str, lines: Vec<String>| {
        let lines = lines.into_iter();
        lines.map(move |line| format!("{word}: {line}"))
    };
    for case in &cases {
        let (commands, options) = case.given.split_once(" | ").unwrap_or((case.given, ""));
        let with = with(options);
        let commands = commands.replace("\\n", "\n").replace("\\0", "\0");
        broken_by(&scene, &commands).await;
        let dry = Repair {
            dry_run: true,
            ..with.clone()
        };
        let planned = steady(lines(&repair(&scene, &dry).await));
        scene.changed("").await;
        let mut lines_found = steady(lines(&repair(&scene, &with).await));
        if planned != lines_found {
            lines_found.extend(named("planned", planned));
        }
        // The record of the repair has a test of its own.
        let changes = scene.changes().await.into_iter();
        lines_found.extend(changes.filter(|line| !line.starts_with("operator.actions")));
        lines_found.extend(named("check", steady(findings_of(&scene).await)));
        let again = steady(lines(&repair(&scene, &with).await));
        let again = again.into_iter().filter(|line| !line.starts_with("left "));
        lines_found.extend(named("again", again.collect()));
        if options.contains(ANY_ORDER) {
            lines_found
                .retain(|line| !line.starts_with("removed worker") && !line.starts_with("planned"));
        }
        if lines_found != case.expected {
            wrong.push(format!("> {}\n{}", case.given, lines_found.join("\n")));
        }
        found += &format!("> {}\n{}\n\n", case.given, lines_found.join("\n"));
    }
    if std::env::var_os("SERIATIM_WRITE_CASES").is_some() {
        // The sections run one after the other with --test-threads 1.
        let text = std::fs::read_to_string(file()).expect("cases.txt");
        let old = format!("## {name}\n{}", section(&text, name));
        std::fs::write(file(), text.replace(old.trim_end(), found.trim_end()))
            .expect("cases.txt is written");
    }
    assert!(
        wrong.is_empty(),
        "cases.txt, section {name}, differs:\n{}",
        wrong.join("\n\n")
    );
}
