//! `seriatim bench --against`: its errors, and the check of the order. Programs of these tests stand in
//! for node, npm and python, so that no test needs the network.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, test_kill_process};
use serde_json::Value;

use crate::support::console::PATIENCE;
use crate::support::{redis_server, until};

const NODE: &str = "[ \"$1\" = --version ] && echo v20.9.0 && exit\n";
/// An npm that installs an empty folder.
const NPM: &str = "[ \"$1\" = --version ] && echo 10.0.0 && exit\nmkdir -p node_modules\n";

/// Programs in a folder of their own, and a folder for the tools.
struct Fakes(tempfile::TempDir);

impl Fakes {
    fn new(programs: &[(&str, &str)]) -> Self {
        let fakes = Self(tempfile::tempdir().expect("a folder"));
        std::fs::create_dir(fakes.bin()).expect("a folder");
        for (name, script) in programs {
            let path = fakes.bin().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}")).expect("a program");
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, executable).expect("an executable");
        }
        fakes
    }

    fn bin(&self) -> PathBuf {
        self.0.path().join("bin")
    }

    /// Runs the bench with these programs before all others; `alone`: with no others.
    fn bench(&self, alone: bool, args: &[&str]) -> Output {
        let server = Command::new("/bin/sh")
            .args(["-c", "command -v \"$0\"", &redis_server()])
            .output()
            .expect("a shell");
        let others = if alone { "" } else { ":/usr/bin:/bin" };
        let mut command = Command::new(crate::support::program());
        for (name, _) in std::env::vars() {
            if name.starts_with("SERIATIM_") || name == "PYTHON" {
                command.env_remove(name);
            }
        }
        command
            .env("PATH", format!("{}{others}", self.bin().display()))
            .env(
                "SERIATIM_REDIS_SERVER",
                String::from_utf8_lossy(&server.stdout).trim(),
            )
            .args(["bench", "--repetitions", "1", "--warm-up", "0"])
            .args(["--events", "2000", "--rate", "2000", "--against-dir"])
            .arg(self.0.path().join("tools"))
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("the program runs")
    }

    /// Runs a bench that fails, and returns the last line on standard error.
    #[track_caller]
    fn failure(&self, alone: bool, args: &[&str]) -> String {
        let output = self.bench(alone, args);
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(output.stdout.is_empty(), "a table of a run that fails");
        stderr.lines().last().unwrap_or_default().to_owned()
    }
}

#[test]
fn a_bad_list_of_tools_is_invalid_usage() {
    let fakes = Fakes::new(&[]);
    for (args, why) in [
        (
            &["--against", "sidekiq"][..],
            "possible values: bullmq, celery, groupmq",
        ),
        (
            &["--against", "celery,bullmq,celery"],
            "--against has celery twice",
        ),
        (&["--time-limit", "5"], "--against"),
        (
            &["--against", "celery", "--time-limit", "0"],
            "--time-limit is 0; it must be 1 to 3600 seconds",
        ),
        (&["--against", "celery", "--groups", "3"], "--groups"),
    ] {
        let output = fakes.bench(true, args);
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(why), "{args:?}: {stderr}");
    }
}

#[test]
fn an_absent_language_is_named() {
    for (programs, tool, why) in [
        (
            &[][..],
            "bullmq",
            "seriatim: node is not on the PATH; install Node 20.9 or newer, or leave bullmq and groupmq out of --against",
        ),
        (
            &[("node", NODE)],
            "groupmq",
            "seriatim: npm is not on the PATH; install npm, or leave bullmq and groupmq out of --against",
        ),
        (
            &[],
            "celery",
            "seriatim: python3 is not on the PATH; install Python 3.10 or newer, or leave celery out of --against",
        ),
    ] {
        assert_eq!(
            Fakes::new(programs).failure(true, &["--against", tool]),
            why
        );
    }
}

#[test]
fn a_failed_installation_says_why() {
    let offline = "[ \"$1\" = --version ] && exit\necho 'npm error code ENOTFOUND' >&2\nexit 1";
    let no_venv = "[ \"$1\" = --version ] && exit\necho 'No module named venv' >&2\nexit 1";
    let fakes = Fakes::new(&[("node", NODE), ("npm", offline), ("python3", no_venv)]);
    let line = fakes.failure(false, &["--against", "bullmq"]);
    assert!(line.starts_with("seriatim: npm ci fails in "), "{line}");
    assert!(
        line.contains("npm error code ENOTFOUND; check the network"),
        "{line}"
    );
    let line = fakes.failure(false, &["--against", "celery"]);
    assert!(
        line.starts_with("seriatim: python -m venv fails in "),
        "{line}"
    );
    assert!(line.contains("No module named venv"), "{line}");
}

#[test]
fn a_program_that_dies_is_named_with_the_end_of_its_log() {
    let dies = format!("{NODE}read -r line\necho 'no such module' >&2\nexit 3\n");
    let fakes = Fakes::new(&[("node", &dies), ("npm", NPM)]);
    assert_eq!(
        fakes.failure(false, &["--against", "groupmq"]),
        "seriatim: groupmq: its program has ended with exit code 3 at \"enqueue\"; its log ends: no such module"
    );
}

#[tokio::test]
async fn a_program_that_hangs_is_killed_after_the_time_limit() {
    let hangs = format!("{NODE}echo $$ >\"$0.pid\"\nsleep 600\n");
    let fakes = Fakes::new(&[("node", &hangs), ("npm", NPM)]);
    assert_eq!(
        fakes.failure(false, &["--against", "groupmq", "--time-limit", "1"]),
        "seriatim: groupmq: no reply to \"enqueue\" after 1 s; raise --time-limit, or leave it out of --against"
    );
    let pid = std::fs::read_to_string(fakes.bin().join("node.pid")).expect("the id");
    let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("an id");
    until("the program is gone", PATIENCE, async || {
        test_kill_process(pid).is_err().then_some(())
    })
    .await;
}

/// A program that handles all events in reverse order.
const REVERSED: &str = r#"
while read -r command count file rest; do
    case $command in
        enqueue) echo 100 && continue ;;
        drain) reply=null ;;
        latency) reply="[$(yes 0 | head -n "$count" | paste -s -d , -)]" ;;
    esac
    { echo =0 && awk -v n="$count" 'NR <= n { print "+" NR - 1, $0, NR }' "$3" | tac; } >"$file"
    echo "$reply"
done
"#;

#[test]
fn events_out_of_order_are_counted() {
    let reversed = format!("{NODE}{REVERSED}");
    let fakes = Fakes::new(&[("node", &reversed), ("npm", NPM)]);
    let args = ["--against", "groupmq", "--skew", "single"];
    let output = fakes.bench(false, &[&args[..], &["--json"]].concat());
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("seriatim (Node) is left out"), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |system: &str, figure: &str| {
        report["systems"][system]["figures"][figure]["repetitions"]
            .as_array()
            .map(|values| values.iter().filter_map(Value::as_f64).sum::<f64>())
    };
    // 400 are drained, 2000 measured for latency, 1000 have handlers that take time. Only the last one of
    // each phase, which comes first, is not before its predecessor.
    assert_eq!(of("groupmq", "handled"), Some(3400.0), "{report}");
    assert_eq!(of("groupmq", "out_of_order"), Some(3397.0), "{report}");
    assert_eq!(of("seriatim", "out_of_order"), Some(0.0), "{report}");
    assert_eq!(report["systems"]["groupmq"]["events"], 400);
    assert!(report["versions"]["groupmq"].is_string(), "{report}");
    let output = fakes.bench(false, &args);
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    let row = table.lines().find(|line| line.starts_with("| groupmq"));
    assert!(
        row.is_some_and(|row| row.ends_with("| 3397 of 3400 |")),
        "{table}"
    );
}
