//! The proofs: the test programs of this crate. Each is run to see whether it fails on a changed
//! script.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

/// The test program of the package `seriatim-cli`. Cargo builds the program `seriatim` for it.
const PROGRAM: &str = "program";
/// Test programs that are not run, because they run no script.
const NOT_ASKED: [&str; 3] = ["model", "mutants", PROGRAM];
/// Slow modules of the other programs that are not run, and modules whose tests fail on a busy
/// machine. Other tests catch the same mutants.
const SKIPPED: [(&str, &[&str]); 3] = [
    ("cli", &["bench::", "examples::"]),
    ("proofs", &["failpoints::", "fuzz_inputs::", "fuzz_redis::"]),
    (
        "scale",
        &[
            "dashboard::",
            "exporter::",
            "groups::",
            "looks::",
            "pages::",
            "repair::",
            "rules_million::",
            "searches::",
            "shares::",
        ],
    ),
];

/// A test program.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) name: String,
    program: PathBuf,
    /// The program `seriatim`, which the tests start.
    seriatim: PathBuf,
}

/// The result of a proof.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Content,
    /// A test failed, and failed again when run alone.
    Failed(String),
    /// The program did not end, twice, e.g. because the change makes it wait for ever.
    NoEnd(Duration),
    /// Redis refused to compile the script, which any test would notice.
    NoScript,
}

/// A directory for one run of a proof: a copy of the scripts, and room for its files.
#[derive(Debug)]
pub(crate) struct Workdir {
    dir: PathBuf,
    /// Further variables of the environment.
    variables: Vec<(&'static str, OsString)>,
}

impl Workdir {
    /// Creates the directory with a copy of the scripts.
    pub(crate) fn new(dir: PathBuf) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir.join("tmp"))?;
        copy_lua(Path::new("lua"), &dir.join("lua"))?;
        Ok(Self {
            dir,
            variables: Vec::new(),
        })
    }

    /// Sets a variable of the environment of all runs.
    pub(crate) fn set(&mut self, name: &'static str, value: OsString) {
        self.variables.push((name, value));
    }

    /// Replaces the text of a script, e.g. of `lua/renew.lua`.
    pub(crate) fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        std::fs::write(self.dir.join(file), text).with_context(|| file.to_owned())
    }

    /// Returns the output of the last run.
    pub(crate) fn said(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.out())?).into_owned())
    }

    fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    pub(crate) fn remove(self) {
        // A test may still write into the directory. Its files are deleted with the rest later.
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

/// Returns the command `program`, without the variables that cargo sets for this program. The build
/// script of `ring` depends on them, so with other values cargo would build `ring` and its dependents
/// again.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let is_ours =
        |name: &String| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    std::env::vars()
        .map(|(name, _)| name)
        .filter(is_ours)
        .for_each(|name| _ = command.env_remove(name));
    command
}

/// Builds the test programs in `tree`, with its own target directory if `target` is given. Builds
/// the programs in `named`, or all except [`NOT_ASKED`].
pub(crate) fn build(
    tree: &Path,
    target: Option<&Path>,
    work: &Path,
    named: &[&str],
) -> anyhow::Result<Vec<Proof>> {
    let mut cargo = command("cargo");
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
    cargo.args(["--test", PROGRAM]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let programs = work.join("programs");
    std::fs::create_dir_all(&programs)?;
    let keep = |program: &str, name: &str| -> anyhow::Result<PathBuf> {
        // Copied, because a later build of the tree replaces the file.
        let kept = programs.join(name);
        let _ = std::fs::remove_file(&kept);
        if std::fs::hard_link(program, &kept).is_err() {
            std::fs::copy(program, &kept)?;
        }
        Ok(kept)
    };
    let (mut proofs, mut seriatim) = (Vec::new(), None);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("what cargo says")?;
        let (Some(program), Some(name)) = (
            message["executable"].as_str(),
            message["target"]["name"].as_str(),
        ) else {
            continue;
        };
        match message["target"]["kind"][0].as_str() {
            Some("test") => proofs.push((name.to_owned(), keep(program, name)?)),
            Some("bin") if name == "seriatim" => seriatim = Some(keep(program, name)?),
            _ => {}
        }
    }
    let seriatim =
        std::path::absolute(seriatim.context("cargo has not built the program seriatim")?)?;
    let mut proofs: Vec<_> = proofs
        .into_iter()
        .map(|(name, program)| Proof {
            name,
            program,
            seriatim: seriatim.clone(),
        })
        .collect();
    if named.is_empty() {
        let there: HashSet<_> = proofs.iter().map(|proof| proof.name.as_str()).collect();
        if let Some(gone) = NOT_ASKED.iter().find(|name| !there.contains(**name)) {
            bail!("crates/lab/benches/mutants/proofs.rs: there is no test program {gone}");
        }
    }
    proofs.retain(|proof| !NOT_ASKED.contains(&proof.name.as_str()));
    Ok(proofs)
}

/// A running test program, with all processes that it started.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, out: &Path) -> anyhow::Result<Self> {
        let out = File::create(out)?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()?;
        Ok(Self(child))
    }

    /// Waits until `is_enough`, its end, or the time limit. Returns none if it still runs.
    fn wait(
        &mut self,
        patience: Duration,
        is_enough: impl Fn() -> bool,
    ) -> anyhow::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if is_enough() || begin.elapsed() > patience {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    /// Kills the process group: all processes that the tests have started, even if the program has
    /// ended.
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Returns the first failed test in the output of a run.
fn first_failure(said: &str) -> Option<&str> {
    said.lines()
        .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
}

impl Proof {
    /// Returns the names of all tests, except those of the [`SKIPPED`] modules.
    pub(crate) fn tests(&self) -> anyhow::Result<Vec<String>> {
        let output = Command::new(&self.program)
            .args(["--list", "--format", "terse"])
            .args(self.skips())
            .output()?;
        ensure!(output.status.success(), "{}: --list failed", self.name);
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(list
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect())
    }

    fn skips(&self) -> impl Iterator<Item = &'static str> {
        let skipped = SKIPPED
            .iter()
            .filter(|(program, _)| *program == self.name)
            .flat_map(|(_, modules)| *modules);
        skipped.flat_map(|module| ["--skip", module])
    }

    fn command(&self, place: &Workdir, tests: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--test-threads=8")
            .env("TMPDIR", place.dir.join("tmp"))
            .env("SERIATIM_LUA_DIR", place.dir.join("lua"));
        command.env("SERIATIM_PROGRAM", &self.seriatim);
        // Each test has its own server, whose log has the marks.
        command
            .envs(place.variables.iter().cloned())
            .env_remove("SERIATIM_TEST_REDIS");
        // No random schedules: they would catch a mutant only by chance.
        for (name, value) in [("SERIATIM_CASES", "0"), ("SERIATIM_MACHINE_STEPS", "0")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        if tests.is_empty() {
            command.args(self.skips());
        } else {
            command.arg("--exact").args(tests);
        }
        command
    }

    /// Runs one test alone, and returns whether it passes in this time.
    pub(crate) fn passes(
        &self,
        place: &Workdir,
        test: &str,
        patience: Duration,
    ) -> anyhow::Result<bool> {
        let mut running =
            Running::start(&mut self.command(place, &[test.to_owned()]), &place.out())?;
        Ok(running
            .wait(patience, || false)?
            .is_some_and(|status| status.success()))
    }

    /// Runs these tests, or all if none is given, until the first failure. A failed test must fail
    /// again when run alone, because on a busy machine a test may just be too slow. If it then
    /// passes, the other tests run without it. A run that does not end is repeated once, too.
    pub(crate) fn ask(
        &self,
        place: &Workdir,
        tests: &[String],
        patience: Duration,
    ) -> anyhow::Result<Verdict> {
        let mut without: Vec<String> = Vec::new();
        let mut is_late = false;
        let failure = || first_failure(&place.said().unwrap_or_default()).map(str::to_owned);
        loop {
            let mut command = self.command(place, tests);
            for test in &without {
                command.args(["--skip", test]);
            }
            let mut running =
                Running::start(&mut command, &place.out()).with_context(|| self.name.clone())?;
            let status = running.wait(patience, || failure().is_some())?;
            drop(running);
            let failed = match (failure(), status) {
                (Some(failed), _) => failed,
                (None, None) if is_late => return Ok(Verdict::NoEnd(patience)),
                (None, None) => {
                    is_late = true;
                    continue;
                }
                (None, Some(status)) if status.success() => return Ok(Verdict::Content),
                // The program died without naming a test.
                (None, Some(status)) => return Ok(Verdict::Failed(status.to_string())),
            };
            if !self.passes(place, &failed, patience)? {
                let is_no_script = place.said()?.contains("Error compiling script");
                return Ok(if is_no_script {
                    Verdict::NoScript
                } else {
                    Verdict::Failed(failed)
                });
            }
            if without.len() == 3 {
                return Ok(Verdict::Content);
            }
            without.push(failed);
        }
    }
}
