//! The configuration file, `seriatim config check` and `seriatim completions`.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rstest::rstest;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::support::console::{Console, PATIENCE};
use crate::support::{Redis, until};

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("it is written");
    file
}

/// Returns the program. It does not inherit the `SERIATIM_` variables of the test process.
fn program(config: Option<&Path>, args: &[&str]) -> Command {
    let mut program = Command::new(crate::support::program());
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SERIATIM_"))
    {
        program.env_remove(name);
    }
    if let Some(config) = config {
        program.arg("--config").arg(config);
    }
    program.args(args);
    program
}

#[track_caller]
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Checks for exit code 2 and one line on standard error. Returns the part of this line that
/// follows the name of the configuration file.
#[track_caller]
fn refused(output: &Output, config: &Path) -> String {
    let message = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert!(
        output.status.code() == Some(2) && message.lines().count() == 1,
        "{output:?}"
    );
    let (_, rest) = message
        .split_once(&config.display().to_string())
        .unwrap_or_else(|| panic!("no file in {message}"));
    rest.trim_end().to_owned()
}

async fn queued(console: &Console, namespace: &str) -> u64 {
    console
        .run(&["LLEN", &format!("{{{namespace}:0}}:work:1:events")])
        .await
}

/// Tests the order of the sources: the command line, the environment, the file, the default.
#[tokio::test]
async fn the_command_line_beats_the_environment_and_that_the_file() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let config = file(&format!(
        "redis = {:?}\nnamespace = 'by-file'\n",
        redis.url()
    ));
    let emit = ["emit", "work:1", "1"];
    done(
        &program(Some(config.path()), &emit)
            .output()
            .expect("it runs"),
    );
    done(
        &program(Some(config.path()), &emit)
            .env("SERIATIM_NAMESPACE", "by-env")
            .output()
            .expect("it runs"),
    );
    let by_flag = ["--namespace", "by-flag", "emit", "work:1", "1"];
    done(
        &program(Some(config.path()), &by_flag)
            .env("SERIATIM_NAMESPACE", "by-env")
            .output()
            .expect("it runs"),
    );
    done(
        &program(None, &by_flag)
            .env("SERIATIM_CONFIG", config.path())
            .output()
            .expect("it runs"),
    );
    // An empty variable counts as unset.
    done(
        &program(Some(config.path()), &emit)
            .env("SERIATIM_NAMESPACE", "")
            .output()
            .expect("it runs"),
    );
    let counts = [
        queued(&console, "by-file").await,
        queued(&console, "by-env").await,
        queued(&console, "by-flag").await,
    ];
    assert_eq!(counts, [2, 1, 2]);
}

/// Tests a worker whose settings all come from the configuration file.
#[tokio::test]
async fn a_worker_takes_its_flags_from_its_table() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let (console, out) = (redis.console().await, dir.path().join("out.ndjson"));
    let config = file(&format!(
        "redis = {:?}\nnamespace = {:?}\n\n[worker]\nname = 'from-file'\nsink = 'file:{}'\nconcurrency = 2\nevent-log = true\n\
         retry = 'fixed:1s,attempts=2,then=dead-letter'\nretry-type = ['a=fixed:2s', 'b=fixed:3s']\n\n[emit]\nin = '1h'\n",
        redis.url(),
        redis.namespace(),
        out.display()
    ));
    console.emit("work:1", "7").await;
    let mut worker = program(Some(config.path()), &["worker"])
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    until("it is delivered", PATIENCE, async || {
        std::fs::read_to_string(&out)
            .ok()
            .filter(|text| text.contains("\"event\":7"))
            .map(drop)
    })
    .await;
    until("the log has it", PATIENCE, async || {
        (console
            .run::<u64>(&["XLEN", &console.keys.event_log()])
            .await
            == 1)
            .then_some(())
    })
    .await;
    worker.kill().expect("it runs");
    worker.wait().expect("it ends");
}

#[rstest]
#[case("nope = 1", ":1: nope is no option of every command")]
#[case(
    "\nnamespce = 'a'",
    ":2: namespce is no option of every command; did you mean namespace?"
)]
#[case(
    "[wroker]\nsink = 'null'",
    ":1: [wroker] is no command; did you mean worker?"
)]
#[case(
    "[worker]\nconcurency = 5",
    ":2: concurency is no flag of `seriatim worker`; did you mean concurrency?"
)]
#[case(
    "[worker]\nstall_max = '5s'",
    ":2: stall_max is no flag of `seriatim worker`; did you mean stall-max?"
)]
#[case(
    "[dead.list]\nobjct = 'a'",
    ":2: objct is no flag of `seriatim dead list`; did you mean object?"
)]
#[case(
    "[worker]\nredis = 'a'",
    ":2: redis is an option of every command; write it above the first [table]"
)]
#[case(
    "worker = 1",
    ":1: worker is a command; write its flags in a table [worker]"
)]
#[case("config = 'other'", ":1: config cannot be in a file")]
#[case(
    "[worker]\nconcurrency = [1, 2]",
    ":2: concurrency: write one value, not a list"
)]
#[case(
    "[worker]\nconcurrency = 0x10",
    ":2: concurrency: write the number in decimal"
)]
#[case("[worker]\nevent-log = 'yes'", ":2: event-log: write true or false")]
#[case(
    "[worker]\nretry-type = [{ a = 1 }]",
    ":2: retry-type: write a text, a number, true or false"
)]
#[case("namespace = 'a'\nnamespace = 'b'", ":2: duplicate key")]
#[case("namespace = ", ":1: ")]
fn a_wrong_key_is_named_with_its_line(#[case] text: &str, #[case] expected: &str) {
    let config = file(text);
    // Every command reads the configuration file. If the file has a wrong key, no command starts
    // its work.
    for args in [
        &["config", "check"][..],
        &["worker", "--sink", "null"],
        &["--redis", "localhost:1", "stats"],
    ] {
        let refused = refused(
            &program(Some(config.path()), args)
                .output()
                .expect("it runs"),
            config.path(),
        );
        assert!(refused.starts_with(expected), "{refused}");
    }
}

#[rstest]
#[case(
    "[worker]\nsink = 'null'\nconcurrency = 'many'",
    ":3: invalid value 'many' for '--concurrency"
)]
#[case(
    "[worker]\nsink = 'null'\nlease = '5 parsecs'",
    ":3: invalid value '5 parsecs' for '--lease"
)]
#[case("[worker]\nsink = 'null'\nstall-max = '1ms'", ":3: --stall-max is 1ms")]
#[case(
    "log-format = 'xml'\n[worker]\nsink = 'null'",
    ":1: invalid value 'xml' for '--log-format"
)]
fn a_wrong_value_is_named_with_its_line(#[case] text: &str, #[case] expected: &str) {
    let config = file(text);
    let checked = program(None, &["config", "check"])
        .arg(config.path())
        .output()
        .expect("it runs");
    let refused = refused(&checked, config.path());
    assert!(refused.starts_with(expected), "{refused}");
}

/// Tests that `config check` also finds the wrong values that a command itself finds only when it
/// starts.
#[rstest]
#[case("redis = 'foo://x'", ":1: --redis: ")]
#[case("namespace = 'a b{}'", ":1: --namespace: ")]
#[case("log = 'verbose'", ":1: invalid value 'verbose' for '--log")]
#[case("redis = 'foo://x'\n[stats]\njson = true", ":1: --redis: ")]
#[case(
    "[worker]\nsink = 'http://x/'\nsink-timeout = '1ms'",
    ":3: --sink-timeout is 1ms; it must be 10 ms to 1 h"
)]
#[case(
    "[worker]\nsink = 'http://x/'\nsink-status = ['99=reject']",
    ":3: invalid value '99=reject' for '--sink-status"
)]
#[case(
    "[worker]\nsink = 'http://x/'\nsink-header = ['a']",
    ":3: --sink-header: a header is invalid"
)]
#[case(
    "[worker]\nsink = 'http://x/'\nsink-header-file = '/nonexistent'",
    ":3: --sink-header-file: /nonexistent: "
)]
#[case(
    "[worker]\nsink = 'null'\nsink-header = ['a: b']",
    ":3: --sink-header is only for an HTTP sink"
)]
#[case(
    "[worker]\nsink = 'null'\nsink-exclusive = true",
    ":3: --sink-exclusive is only for an HTTP sink"
)]
#[case(
    "[worker]\nsink = 'http://x/'\nsink-exclusive = ['http://x/']",
    ":3: --sink-exclusive with a prefix is only for --sink event-url"
)]
#[case(
    "[worker]\nsink = 'event-url'\nallow = ['http://x/']\nsink-exclusive = ['true', 'false']",
    ":4: --sink-exclusive: give it alone, or with prefixes only"
)]
#[case(
    "[worker]\nsink = 'event-url'\nallow = ['http://x/']\nsink-exclusive = ['x']",
    ":4: --sink-exclusive, number 1: "
)]
#[case(
    "[worker]\nsink = 'event-url'\nallow = ['http://x/a']\nsink-exclusive = ['http://x/a/b', 'http://x/b']",
    ":4: --sink-exclusive, number 2: no prefix of --allow fits it"
)]
#[case(
    "[worker]\nsink = 'event-url'\nallow = ['http://']\nsink-exclusive = ['http://y/', 'https://y/']",
    ":4: --sink-exclusive, number 2: no prefix of --allow fits it"
)]
#[case("[serve]\ngrace = '5h'", ":2: invalid value '5h' for '--grace")]
#[case("[stats]\nwatch = true", ":2: invalid value 'true' for '--watch")]
fn check_finds_wrong_values_of_each_command(#[case] text: &str, #[case] expected: &str) {
    let config = file(text);
    let checked = program(None, &["config", "check"])
        .arg(config.path())
        .output()
        .expect("it runs");
    let refused = refused(&checked, config.path());
    assert!(
        refused.starts_with(expected) && !refused.contains("--help"),
        "{refused}"
    );
}

/// Regression: `--config` behind a flag with an optional value was read as the value of this flag.
/// So the configuration file was ignored.
#[test]
fn a_flag_with_an_optional_value_hides_no_file() {
    let config = file("redis = 'localhost:1'\nlog-format = 'json'\n");
    let mut program = program(None, &["stats", "--watch", "--config"]);
    let output = program
        .arg(config.path())
        .env("SERIATIM_CONFIG", "/nonexistent")
        .output()
        .expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(3) && message.starts_with('{'),
        "{message}"
    );
    // A word behind `--` is not a flag, so `-h` does not print the help.
    let output = self::program(Some(config.path()), &["emit", "a:1", "--", "-h"])
        .output()
        .expect("it runs");
    assert!(output.status.code() == Some(3), "{output:?}");
}

/// Tests that `--event-log=false` turns off a switch that the configuration file turns on. Also
/// tests that `--event-log=true` works without a configuration file.
#[test]
fn a_switch_can_be_turned_off() {
    let config = file(
        "redis = 'localhost:1'\n[worker]\nsink = 'null'\nconnect-timeout = '1ms'\nevent-log = true\n",
    );
    let run = |config: Option<&Path>, args: &[&str]| {
        let output = program(config, args).output().expect("it runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    // `--event-log-keep` is accepted only if `--event-log` is on, so the exit code shows the
    // switch.
    let keeps = ["worker", "--event-log-keep", "5"];
    assert_eq!(run(Some(config.path()), &keeps).0, Some(3));
    let (code, message) = run(
        Some(config.path()),
        &[&keeps[..], &["--event-log=false"]].concat(),
    );
    assert!(
        code == Some(2) && message.contains("--event-log"),
        "{message}"
    );
    let plain = [
        "--redis",
        "localhost:1",
        "worker",
        "--sink",
        "null",
        "--connect-timeout",
        "1ms",
    ];
    assert_eq!(
        run(
            None,
            &[&plain[..], &["--event-log=true", "--event-log-keep", "5"]].concat()
        )
        .0,
        Some(3)
    );
    let (code, message) = run(None, &[&plain[..], &["--event-log=perhaps"]].concat());
    assert!(
        code == Some(2) && message.contains("unexpected value 'perhaps'"),
        "{message}"
    );
}

/// Tests that commands without settings do not read the configuration file that `SERIATIM_CONFIG`
/// names.
#[test]
fn commands_without_settings_need_no_file() {
    let config = file("redis = 'localhost:1'\n");
    let check = ["config", "check", config.path().to_str().expect("a path")];
    for args in [&check[..], &["completions", "bash"], &["help", "worker"]] {
        let output = program(None, args)
            .env("SERIATIM_CONFIG", "/nonexistent")
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

/// Tests configuration files that cannot be read.
#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let (absent, long) = (
        dir.path().join("absent.toml"),
        file(&"# long\n".repeat(200_000)),
    );
    for (path, expected) in [
        (absent.as_path(), ": No such file"),
        (long.path(), ": it is longer than 1 MiB"),
        (dir.path(), ": Is a"),
    ] {
        let refused = refused(
            &program(Some(path), &["stats"]).output().expect("it runs"),
            path,
        );
        assert!(refused.starts_with(expected), "{refused}");
    }
    let none = program(None, &["config", "check"])
        .output()
        .expect("it runs");
    assert!(
        none.status.code() == Some(2)
            && String::from_utf8_lossy(&none.stderr).contains("no file is given"),
        "{none:?}"
    );
}

/// Tests that `--help` and `--version` work even if the configuration file is invalid.
#[test]
fn help_needs_no_file() {
    let config = file("nope");
    for args in [&["--help"][..], &["worker", "--help"], &["--version"]] {
        let message = done(
            &program(Some(config.path()), args)
                .output()
                .expect("it runs"),
        );
        assert!(message.contains("seriatim"), "{message}");
    }
}

/// Tests that `config check` prints each value with its source, and prints no password.
#[test]
fn check_shows_each_value_and_its_source() {
    let config = file(
        "redis = 'redis://ada:hush@host:1'\nnamespace = 'shop'\n[worker]\nsink = 'https://ada:hush@host/?token=hush'\n\
         sink-header = ['Authorization: hush']\nretry-type = ['a=fixed:2s']\n",
    );
    let path = config.path().display();
    let check = |args: &[&str]| {
        let mut program = program(Some(config.path()), &["config", "check"]);
        program.args(args).env("SERIATIM_NAMESPACE", "other");
        done(&program.output().expect("it runs"))
    };
    let text = check(&[]);
    assert_eq!(
        text,
        format!(
            "redis = redis://ada:***@host:1\n    {path}:1\n\
             namespace = other\n    environment variable SERIATIM_NAMESPACE, instead of {path}:2\n\
             worker.sink = https://ada:***@host/?token=***\n    {path}:4\n\
             worker.retry-type = a=fixed:2s\n    {path}:6\n\
             worker.sink-header = Authorization: ***\n    {path}:5\n"
        )
    );
    let lines: Vec<Value> = check(&["--json"])
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let retry = json!({ "setting": "worker.retry-type", "value": ["a=fixed:2s"], "from": format!("{path}:6") });
    assert!(lines.len() == 5 && lines.contains(&retry), "{lines:?}");
    let all = check(&["--all"]);
    assert!(
        all.contains("worker.concurrency = 256\n    default\n") && all.contains("log-format = "),
        "{all}"
    );
    assert!(!all.contains("dead") && !all.contains("hush"), "{all}");
}

/// Tests a flag on the command line that excludes a flag of the configuration file. The program
/// ignores the flag of the file.
#[rstest]
#[case("in = '1h'", &["--at", "2100-01-01T00:00:00Z", "a", "1"])]
#[case("at = '2100-01-01T00:00:00Z'", &["--in", "1h", "a", "1"])]
#[case("from = 'absent.ndjson'", &["a", "1"])]
#[case("from = 'absent.ndjson'", &["--", "a", "-1"])]
fn a_flag_replaces_those_that_it_excludes(#[case] setting: &str, #[case] args: &[&str]) {
    let config = file(&format!("redis = 'localhost:1'\n[emit]\n{setting}\n"));
    let output = program(Some(config.path()), &["emit"])
        .args(args)
        .output()
        .expect("it runs");
    // Exit code 3 says that Redis cannot be reached. So the command line was valid.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// Tests that each shell gets a completion script, and that bash can read the script for bash.
#[test]
fn there_are_completions_for_each_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = done(
            &program(None, &["completions", shell])
                .output()
                .expect("it runs"),
        );
        assert!(
            script.contains("seriatim") && script.contains("retry-type"),
            "{shell}"
        );
        if shell == "bash" {
            let script = file(&script);
            let read = Command::new("bash")
                .arg("-n")
                .arg(script.path())
                .output()
                .expect("bash runs");
            assert!(read.status.success() && read.stderr.is_empty(), "{read:?}");
        }
    }
}

/// Tests that each command has a manual page. If `man` is installed, it must read each page without
/// a warning.
#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("UTF-8");
    done(&program(None, &["man", path]).output().expect("it runs"));
    let pages: Vec<_> = std::fs::read_dir(dir.path())
        .expect("pages")
        .map(|page| page.expect("a page").path())
        .collect();
    let has = |name: &str| {
        pages
            .iter()
            .any(|page| page.file_name().is_some_and(|found| found == name))
    };
    for name in [
        "seriatim.1",
        "seriatim-worker.1",
        "seriatim-dead-retry.1",
        "seriatim-cron-run-now.1",
    ] {
        assert!(has(name), "{name} is missing: {pages:?}");
    }
    assert!(
        !pages
            .iter()
            .any(|page| page.to_string_lossy().contains("-help")),
        "{pages:?}"
    );
    for page in pages {
        let read = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
            .arg(&page)
            .output();
        let Ok(read) = read else { return };
        assert!(
            read.status.success() && read.stderr.is_empty(),
            "{}: {read:?}",
            page.display()
        );
    }
    let absent = program(None, &["man", "/nowhere"])
        .output()
        .expect("it runs");
    let message = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(
        !absent.status.success() && message.lines().count() == 1 && message.contains("/nowhere"),
        "{absent:?}"
    );
}

/// Tests the configuration file that is shown in docs/operations.md.
#[test]
fn the_file_of_the_documents_is_valid() {
    let page = include_str!("../../docs/operations.md");
    let (_, rest) = page.split_once("```toml\n").expect("a file");
    let (text, _) = rest.split_once("```").expect("its end");
    let config = file(text);
    let shown = done(
        &program(Some(config.path()), &["config", "check"])
            .output()
            .expect("it runs"),
    );
    assert_eq!(
        shown.lines().count(),
        2 * text.lines().filter(|line| line.contains(" = ")).count(),
        "{shown}"
    );
}
