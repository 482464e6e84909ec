//! `slots.txt`: the guards of the slots' state machine. Each is removed in a copy of
//! the tree with its own target directory.
//!
//! The list is written by hand, because no Rust mutants are generated.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::changed;
use super::proofs::{self, Verdict, Workdir};
use super::trials::{Limits, Outcome};

const TABLE: &str = "crates/lab/benches/mutants/slots.txt";

/// The proofs besides the library's own tests, run only if those catch nothing.
const PROOFS: [&str; 1] = ["steps"];

/// Time limit of the library's own tests, which wait for nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit of a run of a proof.
const PATIENCE_PROOF: Duration = Duration::from_secs(120);

/// A guard, and its replacement.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    pub(crate) name: String,
    pub(crate) file: String,
    old: String,
    new: String,
}

impl Guard {
    fn applied(&self, source: &str) -> anyhow::Result<String> {
        let Self {
            name,
            file,
            old,
            new,
        } = self;
        ensure!(
            !old.is_empty() && source.matches(old).count() == 1,
            "{TABLE}: the old text of '{name}' is not exactly once in {file}"
        );
        Ok(source.replace(old, new))
    }
}

fn add(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

/// Reads all guards of the table, and checks that each is in its file.
pub(crate) fn guards() -> anyhow::Result<Vec<Guard>> {
    let mut guards: Vec<Guard> = Vec::new();
    for line in std::fs::read_to_string(TABLE).context(TABLE)?.lines() {
        if line.is_empty() || line == "+" || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("== ") {
            guards.push(Guard {
                name: name.to_owned(),
                ..Guard::default()
            });
            continue;
        }
        match (guards.last_mut(), line.split_at_checked(2)) {
            (Some(guard), Some(("@ ", file))) => file.clone_into(&mut guard.file),
            (Some(guard), Some(("- ", old))) => add(&mut guard.old, old),
            (Some(guard), Some(("+ ", new))) => add(&mut guard.new, new),
            _ => bail!("{TABLE}: not a line of the table: {line}"),
        }
    }
    for guard in &guards {
        guard
            .applied(&std::fs::read_to_string(&guard.file).with_context(|| guard.file.clone())?)?;
    }
    Ok(guards)
}

/// A copy of the tree.
struct Tree {
    dir: PathBuf,
    target: PathBuf,
    work: PathBuf,
}

impl Tree {
    fn new(work: &Path) -> anyhow::Result<Self> {
        let dir = work.join("tree");
        for file in changed::files()? {
            let to = dir.join(&file);
            std::fs::create_dir_all(to.parent().unwrap_or(&dir))?;
            // A file known to git may have been deleted.
            if Path::new(&file).is_file() {
                std::fs::copy(&file, to)?;
            }
        }
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from("target"), PathBuf::from);
        Ok(Self {
            dir,
            target: std::path::absolute(target)?.join("mutants"),
            work: work.join("slots"),
        })
    }

    /// Returns the library's own test that catches the removal; none if no test does.
    fn own_tests(&self) -> anyhow::Result<Option<String>> {
        let mut cargo = proofs::command("cargo");
        cargo
            .current_dir(&self.dir)
            .env("CARGO_TARGET_DIR", &self.target)
            .stdin(Stdio::null());
        cargo.args([
            "test",
            "--locked",
            "--package",
            "seriatim",
            "--all-features",
            "--lib",
        ]);
        let built = cargo.arg("--no-run").output()?;
        if !built.status.success() {
            bail!(
                "what is left does not compile: {}",
                String::from_utf8_lossy(&built.stderr).trim_end()
            );
        }
        let mut cargo = proofs::command("timeout");
        cargo
            .current_dir(&self.dir)
            .env("CARGO_TARGET_DIR", &self.target)
            .stdin(Stdio::null());
        cargo.arg(PATIENCE.as_secs().to_string());
        let output = cargo
            .args([
                "cargo",
                "test",
                "--locked",
                "--package",
                "seriatim",
                "--all-features",
                "--lib",
                "--",
                "worker::",
                "wire::",
            ])
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(None);
        }
        let failed = said
            .lines()
            .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(Some(
            failed.unwrap_or("its own tests did not end").to_owned(),
        ))
    }

    /// Returns the test that catches the removal; none if no test does.
    fn caught(&self) -> anyhow::Result<Option<String>> {
        if let Some(test) = self.own_tests()? {
            return Ok(Some(test));
        }
        let place = Workdir::new(self.work.clone())?;
        for proof in proofs::build(&self.dir, Some(&self.target), &self.work, &PROOFS)? {
            match proof.ask(&place, &[], PATIENCE_PROOF)? {
                Verdict::Content => {}
                Verdict::Failed(test) => return Ok(Some(format!("{}: {test}", proof.name))),
                Verdict::NoEnd(patience) => {
                    return Ok(Some(format!(
                        "{}: it did not end in {} s",
                        proof.name,
                        patience.as_secs()
                    )));
                }
                Verdict::NoScript => bail!("the scripts do not compile"),
            }
        }
        Ok(None)
    }
}

/// Removes the guards one after the other, as far as there is time.
pub(crate) fn try_all(guards: &[&Guard], work: &Path, limits: Limits) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    if guards.is_empty() || !limits.has_time() {
        return Ok(outcome);
    }
    let tree = Tree::new(work)?;
    for guard in guards {
        if !limits.has_time() {
            break;
        }
        let source = std::fs::read_to_string(&guard.file)?;
        std::fs::write(tree.dir.join(&guard.file), guard.applied(&source)?)?;
        let by = tree.caught().with_context(|| guard.name.clone())?;
        outcome.note(guard.name.clone(), by);
        std::fs::write(tree.dir.join(&guard.file), source)?;
    }
    Ok(outcome)
}
