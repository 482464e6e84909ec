//! The coverage: the spots of the scripts that each test runs, and how long the test takes.
//!
//! Each test runs alone with marked scripts. On its PATH, a small script stands before each server.
//! It starts the real server with a log file, to which the marks go.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::generate::Sources;
use super::proofs::{Proof, Workdir};
use super::spots::Spots;
use super::trials::{in_threads, lock, next};

/// Number of tests at the same time for each job, because most tests wait most of the time.
const TESTS: usize = 2;
/// Time limit of a test with unchanged scripts.
const PATIENCE: Duration = Duration::from_secs(120);
/// Names the server of the tests, if it is not the first one on the PATH.
const NAMED: &str = "SERIATIM_REDIS_SERVER";

/// A test, measured with unchanged scripts.
#[derive(Debug)]
pub(crate) struct Test {
    /// Index of its program.
    pub(crate) proof: usize,
    pub(crate) name: String,
    pub(crate) takes: Duration,
    /// Numbers of the spots that it runs.
    pub(crate) spots: HashSet<usize>,
}

/// Runs every test of the proofs alone. Returns the tests, and the number of those that were left
/// out because they fail with the scripts as they are: such a test shows nothing.
pub(crate) fn measure(
    proofs: &[Proof],
    sources: &Sources,
    spots: &Spots,
    work: &Path,
    jobs: usize,
) -> anyhow::Result<(Vec<Test>, usize)> {
    let mut names = Vec::new();
    for (at, proof) in proofs.iter().enumerate() {
        names.extend(proof.tests()?.into_iter().map(|name| (at, name)));
    }
    let asked = names.len();
    let queue = Mutex::new(names.into_iter());
    let tests = Mutex::new(Vec::new());
    in_threads(jobs * TESTS, |thread| {
        let unmarked = Workdir::new(work.join(format!("unmarked.{thread}")))?;
        let marked = Marked::new(work.join(format!("marked.{thread}")), sources, spots)?;
        while let Some((at, name)) = next(&queue) {
            let test = marked.measure(at, &proofs[at], name, &unmarked)?;
            lock(&tests).extend(test);
        }
        Ok(())
    })?;
    let tests = tests.into_inner().unwrap_or_else(PoisonError::into_inner);
    let left_out = asked - tests.len();
    Ok((tests, left_out))
}

/// A place with marked scripts.
struct Marked {
    place: Workdir,
    /// The folder of the servers' log files.
    logs: PathBuf,
}

impl Marked {
    fn new(dir: PathBuf, sources: &Sources, spots: &Spots) -> anyhow::Result<Self> {
        let (bin, logs) = (dir.join("bin"), dir.join("logs"));
        let mut place = Workdir::new(dir)?;
        for (file, source) in sources {
            place.write(file, &spots.marked(file, source))?;
        }
        // A function has no `ARGV`, which the marks need.
        place.set("SERIATIM_SCRIPTS", "eval".into());
        std::fs::create_dir_all(&bin)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        for name in ["redis-server", "valkey-server"] {
            if let Some(server) = std::env::split_paths(&path)
                .map(|dir| dir.join(name))
                .find(|file| file.is_file())
            {
                stand_before(&server, &bin.join(name), &logs)?;
            }
        }
        if let Some(server) = std::env::var_os(NAMED).filter(|server| !server.is_empty()) {
            stand_before(Path::new(&server), &bin.join("named"), &logs)?;
            place.set(NAMED, bin.join("named").into());
        }
        let with_bin = std::iter::once(bin).chain(std::env::split_paths(&path));
        place.set("PATH", std::env::join_paths(with_bin).context("PATH")?);
        Ok(Self { place, logs })
    }

    /// Returns the test; `None` if it fails with the scripts as they are.
    fn measure(
        &self,
        at: usize,
        proof: &Proof,
        name: String,
        unmarked: &Workdir,
    ) -> anyhow::Result<Option<Test>> {
        let _ = std::fs::remove_dir_all(&self.logs);
        std::fs::create_dir_all(&self.logs)?;
        let begin = Instant::now();
        // On a busy machine a test may just be too slow, so that it gets another chance.
        let passes = proof.passes(&self.place, &name, PATIENCE)?
            || proof.passes(&self.place, &name, PATIENCE)?;
        let takes = begin.elapsed();
        if !passes {
            if !proof.passes(unmarked, &name, PATIENCE)? {
                eprintln!(
                    "{}: {name} fails with the scripts as they are:\n{}",
                    proof.name,
                    unmarked.said()?
                );
                return Ok(None);
            }
            eprintln!(
                "{}: {name} fails with marks only, so some lines that it runs may be unknown",
                proof.name
            );
        }
        let spots = self.spots()?;
        Ok(Some(Test {
            proof: at,
            name,
            takes,
            spots,
        }))
    }

    /// Returns the spots in the logs.
    fn spots(&self) -> anyhow::Result<HashSet<usize>> {
        let mut spots = HashSet::new();
        for log in std::fs::read_dir(&self.logs)? {
            let log = std::fs::read(log?.path())?;
            spots.extend(
                String::from_utf8_lossy(&log)
                    .lines()
                    .filter_map(Spots::in_log),
            );
        }
        Ok(spots)
    }
}

/// Writes a shell script that starts the server with a log file of its own.
fn stand_before(server: &Path, script: &Path, logs: &Path) -> anyhow::Result<()> {
    let quoted = |path: &Path| -> OsString {
        let mut quoted = OsString::from("'");
        quoted.push(path);
        quoted.push("'");
        quoted
    };
    let mut text = OsString::from("#!/bin/sh\nexec ");
    text.push(quoted(server));
    text.push(" \"$@\" --loglevel warning --logfile ");
    text.push(quoted(logs));
    text.push("/$$.log\n");
    std::fs::write(script, text.as_encoded_bytes())?;
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
