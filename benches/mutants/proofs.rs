//! The proofs: the test programs of this crate. Each proof is run with a changed script, to see
//! whether it fails.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

/// Test programs that are not run on mutants, because they use no Lua script.
const NOT_ASKED: [&str; 2] = ["model", "mutants"];
/// For each test program, its slow modules that are not run. Other tests catch the same mutants.
const SKIPPED: [(&str, &[&str]); 3] = [
    ("cli", &["bench::", "examples::"]),
    ("proofs", &["failpoints::", "fuzz_inputs::", "fuzz_redis::"]),
    ("scale", &["rules_million::"]),
];

/// Time limit of a single test that runs alone. No test takes more than a few seconds.
const ALONE: Duration = Duration::from_secs(20);

/// A test program.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) name: String,
    program: PathBuf,
    /// Duration of the whole program with unchanged scripts.
    pub(crate) takes: Duration,
}

/// The result of a proof.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Content,
    /// A test failed, and failed again when run alone.
    Failed(String),
    /// The program did not end, e.g. because the change makes it wait for ever.
    NoEnd(Duration),
    /// Redis could not compile the changed script. Such a mutant does not count, because any test
    /// would notice it.
    NoScript,
}

/// A directory for one run of a proof. It has a copy of the scripts, and the temporary files of the
/// tests.
#[derive(Debug)]
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    /// Creates the directory with a copy of the scripts.
    pub(crate) fn new(dir: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir.join("tmp"))?;
        copy_lua(Path::new("lua"), &dir.join("lua"))?;
        Ok(Self { dir })
    }

    /// Replaces the text of a script, e.g. of `lua/renew.lua`.
    pub(crate) fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        std::fs::write(self.dir.join(file), text).with_context(|| file.to_owned())
    }

    pub(crate) fn remove(self) {
        // This may fail, because a test may still write into the directory. The files that are left
        // are deleted with the work directory at the end.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn copy_lua(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_lua(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Builds the test programs of the crate in `tree`, into the directory `target` if given. Returns
/// the programs in `named`. If `named` is empty, returns all programs except [`NOT_ASKED`].
pub(crate) fn build(tree: &Path, target: Option<&Path>, work: &Path, named: &[&str]) -> anyhow::Result<Vec<Proof>> {
    let mut cargo = Command::new("cargo");
    cargo.envs(target.map(|target| ("CARGO_TARGET_DIR", target)));
    cargo.current_dir(tree).args([
        "test",
        "--locked",
        "--all-features",
        "--no-run",
        "--message-format=json-render-diagnostics",
        "--quiet",
    ]);
    for name in if named.is_empty() { &["*"] } else { named } {
        cargo.args(["--test", name]);
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let programs = work.join("programs");
    std::fs::create_dir_all(&programs)?;
    let mut proofs = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("what cargo says")?;
        let is_test = message["target"]["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "test"));
        let (Some(program), Some(name), true) = (message["executable"].as_str(), message["target"]["name"].as_str(), is_test)
        else {
            continue;
        };
        // The program is linked or copied to a directory of this run, because a later build
        // replaces cargo's file.
        let kept = programs.join(name);
        let _ = std::fs::remove_file(&kept);
        if std::fs::hard_link(program, &kept).is_err() {
            std::fs::copy(program, &kept)?;
        }
        proofs.push(Proof { name: name.to_owned(), program: kept, takes: Duration::ZERO });
    }
    if named.is_empty() {
        let there: HashSet<_> = proofs.iter().map(|proof| proof.name.as_str()).collect();
        if let Some(gone) = NOT_ASKED.iter().find(|name| !there.contains(**name)) {
            bail!("benches/mutants/proofs.rs: there is no test program {gone}");
        }
        proofs.retain(|proof| !NOT_ASKED.contains(&proof.name.as_str()));
    }
    Ok(proofs)
}

/// A running test program, with all processes that it started.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, out: &Path) -> anyhow::Result<Self> {
        let out = File::create(out)?;
        let child = command.process_group(0).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn()?;
        Ok(Self(child))
    }

    /// Waits until the program has ended, `is_enough` returns true, or the time is over. Returns
    /// `None` if the program still runs.
    fn wait(&mut self, patience: Duration, is_enough: impl Fn() -> bool) -> anyhow::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if is_enough() || begin.elapsed() > patience {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Running {
    /// Kills the process group. This ends all processes that the tests have started, even if the
    /// test program itself has ended.
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn first_failure(out: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&std::fs::read(out).ok()?).into_owned();
    text.lines().find_map(|line| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned()))
}

impl Proof {
    fn command(&self, place: &Place, tests: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--test-threads=8").env("TMPDIR", place.dir.join("tmp")).env("SERIATIM_LUA_DIR", place.dir.join("lua"));
        // The tests run no random schedules here, because these would catch a mutant only by
        // chance.
        for (name, value) in [("SERIATIM_CASES", "0"), ("SERIATIM_MACHINE_STEPS", "0")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        if tests.is_empty() {
            let skipped = SKIPPED.iter().filter(|(program, _)| *program == self.name).flat_map(|(_, modules)| *modules);
            command.args(skipped.flat_map(|module| ["--skip", module]));
        } else {
            command.arg("--exact").args(tests);
        }
        command
    }

    /// Runs only these tests, or the whole proof if `tests` is empty, until the first failure. The
    /// failed test is then run alone, because on a busy machine a test may just be too slow. Only a
    /// second failure counts. If the test passes alone, the proof is run again without it.
    pub(crate) fn ask(&self, place: &Place, tests: &[String], patience: Duration) -> anyhow::Result<Verdict> {
        let out = place.dir.join("out");
        let mut without: Vec<String> = Vec::new();
        loop {
            let mut command = self.command(place, tests);
            for test in &without {
                command.args(["--skip", test]);
            }
            let mut running = Running::start(&mut command, &out).with_context(|| self.name.clone())?;
            let status = running.wait(patience, || first_failure(&out).is_some())?;
            drop(running);
            let failed = match (first_failure(&out), status) {
                (Some(failed), _) => failed,
                (None, None) => return Ok(Verdict::NoEnd(patience)),
                (None, Some(status)) if status.success() => return Ok(Verdict::Content),
                // The program died without naming a test.
                (None, Some(status)) => return Ok(Verdict::Failed(status.to_string())),
            };
            let mut running = Running::start(&mut self.command(place, std::slice::from_ref(&failed)), &out)?;
            let status = running.wait(ALONE, || false)?;
            drop(running);
            match status {
                Some(status) if status.success() && without.len() < 3 => without.push(failed),
                Some(status) if status.success() => return Ok(Verdict::Content),
                _ if is_no_script(&out)? => return Ok(Verdict::NoScript),
                _ => return Ok(Verdict::Failed(failed)),
            }
        }
    }

    /// Runs the proof on unchanged scripts, and stores its duration. If the proof fails, that is an
    /// error: a proof that fails without a mutant shows nothing.
    pub(crate) fn measure(&mut self, place: &Place, patience: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        let verdict = self.ask(place, &[], patience)?;
        self.takes = begin.elapsed();
        if verdict != Verdict::Content {
            eprintln!("{}", String::from_utf8_lossy(&std::fs::read(place.dir.join("out"))?));
            bail!("{} fails where nothing is changed: {verdict:?}", self.name);
        }
        Ok(())
    }
}

fn is_no_script(out: &Path) -> anyhow::Result<bool> {
    Ok(String::from_utf8_lossy(&std::fs::read(out)?).contains("Error compiling script"))
}
