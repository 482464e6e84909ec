//! Tests the options and variables that all commands share, and the errors if Redis refuses a
//! command.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

/// One way to call each command that talks to Redis.
const COMMANDS: [&[&str]; 14] = [
    &["check"],
    &["stats"],
    &["inspect", "x"],
    &["dead", "list"],
    &["dead", "list", "--object", "x"],
    &["forget", "x"],
    &["dead", "retry", "1-1"],
    &["held", "list"],
    &["held", "release", "x"],
    &["actions"],
    &["log"],
    &["emit", "x", "1"],
    &["worker", "--sink", "null", "--connect-timeout", "0s"],
    &["bench"],
];

fn program(args: &[&str]) -> Command {
    let mut program = Command::new(crate::support::program());
    program.args(args).env("SERIATIM_FIRST_ID", "1");
    for name in [
        "SERIATIM_REDIS",
        "SERIATIM_NAMESPACE",
        "SERIATIM_LOG",
        "SERIATIM_NAME",
        "SERIATIM_EVENT_LOG",
    ] {
        program.env_remove(name);
    }
    program
}

fn run(url: &str, args: &[&str]) -> Output {
    program(&["--redis", url, "--log", "off"])
        .args(args)
        .output()
        .expect("the program runs")
}

/// Checks the exit code, and returns the one line on standard error.
#[track_caller]
fn stderr(output: &Output, exit: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(exit), "{text}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    text
}

#[test]
fn each_command_says_what_to_do_when_redis_does_not_let_it_in() {
    let redis = Redis::own(&[]);
    let client = redis::Client::open(redis.url()).expect("a Redis URL");
    let mut connection = client.get_connection().expect("Redis answers");
    let mut acl = |rules: &[&str]| {
        redis::cmd("ACL")
            .arg("SETUSER")
            .arg(rules)
            .exec(&mut connection)
            .expect("ACL SETUSER")
    };
    acl(&["low", "on", ">hush", "~*", "+ping", "+multi", "+exec"]);
    acl(&["default", "off"]);
    let url = redis.url();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let nobody = format!("unix://{}", dir.path().join("nobody.sock").display());
    let wrong = format!("{url}?user=low&pass=hushed");
    let low = format!("{url}?user=low&pass=hush");
    for (url, advice) in [
        (
            &nobody,
            "is it running? --redis or SERIATIM_REDIS names another",
        ),
        (&wrong, "check user and password in --redis"),
        (&url.to_owned(), "check user and password in --redis"),
        (&low, "the user lacks +"),
    ] {
        for command in COMMANDS {
            let message = stderr(&run(url, command), 3);
            assert!(
                message.contains(advice) && !message.contains("hush"),
                "{command:?} with {url}: {message}"
            );
        }
    }
}

#[test]
fn a_url_that_cannot_be_used_is_not_repeated() {
    for (url, why) in [
        ("redis://u:12?hush@host", "%3F"),
        ("redis://u:12#hush@host", "%23"),
        ("redis://u:12/hush@host", "%2F"),
        ("redis-sentinel://u:hush@host", "SERVICE"),
        ("rediss://u:hush@host/#insecure", "#insecure"),
        ("hush:hush", "redis[s]://"),
    ] {
        for command in COMMANDS {
            let message = stderr(&run(url, command), 2);
            assert!(
                message.contains(why) && !message.contains("hush"),
                "{command:?} with {url}: {message}"
            );
        }
    }
}

#[test]
fn nothing_is_opened_for_a_worker_that_cannot_start() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("out");
    let sink = format!("file:{}", file.display());
    for (url, option, why) in [
        ("redis-sentinel://host", "--retry=minute", "SERVICE"),
        ("redis://host", "--turn-max=0", "--turn-max is 0; "),
    ] {
        let message = stderr(&run(url, &["worker", "--sink", &sink, option]), 2);
        assert!(message.contains(why), "{message}");
        assert!(!Path::new(&file).exists(), "{message}");
    }
}

#[test]
fn a_retry_policy_that_is_none_is_refused_with_the_reason() {
    for (options, why) in [
        (&["--retry=fixed:0s"][..], "a wait must be 1 ms to 24 h"),
        (&["--retry=hourly"], "is no retry policy"),
        (&["--retry-type=moved"], "write TYPE=POLICY"),
        (&["--retry-type=moved=fixed:1s,attempts=3"], "go together"),
        (
            &["--retry-type=moved=minute", "--retry-type=moved=scheduler"],
            "--retry-type moved is given twice",
        ),
    ] {
        let output = run(
            "redis://host",
            &[&["worker", "--sink", "null"], options].concat(),
        );
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && message.contains(why),
            "{options:?}: {message}"
        );
    }
}

/// Story: `SERIATIM_EVENT_LOG=1` was once refused; only `true` and `false` were accepted.
#[test]
fn a_flag_in_the_environment_takes_the_usual_words_for_true_and_false() {
    let worker = |value: &str, code: i32| {
        // The sink cannot be opened. The program reports this error only after it has accepted the
        // options.
        let mut program = program(&[
            "worker",
            "--sink",
            "file:/no/such/directory/out",
            "--redis",
            "redis://127.0.0.1:1",
        ]);
        stderr(
            &program
                .env("SERIATIM_EVENT_LOG", value)
                .output()
                .expect("the program runs"),
            code,
        )
    };
    for value in [
        "1", "true", "TRUE", "yes", "on", "0", "false", "no", "off", "",
    ] {
        assert!(worker(value, 1).contains("/no/such/directory"), "{value}");
    }
    let mut program = program(&["worker", "--sink", "null", "--redis", "redis://127.0.0.1:1"]);
    let refused = program
        .env("SERIATIM_EVENT_LOG", "perhaps")
        .output()
        .expect("the program runs");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && message.contains("'perhaps' for '--event-log'"),
        "{refused:?}"
    );
}

/// Tests that the variable turns the event log on or off: the worker writes a row only if the log
/// is on.
#[tokio::test]
async fn a_flag_in_the_environment_means_what_it_says() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    for (value, is_on) in [("1", true), ("off", false)] {
        let sink = [
            "worker",
            "--sink",
            "null",
            "--name",
            "w",
            "--redis",
            redis.url(),
        ];
        let mut worker = program(&sink)
            .env("SERIATIM_EVENT_LOG", value)
            .spawn()
            .expect("the program runs");
        let rows = console.run::<u64>(&["XLEN", "event.log"]).await;
        let client = redis::Client::open(redis.url()).expect("a URL");
        let mut emit = client.get_connection().expect("Redis answers");
        redis::pipe()
            .atomic()
            .lpush("x:events", "1")
            .lpush("objects.with.events", "x")
            .exec(&mut emit)
            .expect("emitted");
        until("it is delivered", PATIENCE, async || {
            let (queued, owner): (u64, u64) = redis::pipe()
                .cmd("EXISTS")
                .arg("x:events")
                .cmd("EXISTS")
                .arg("x:event.worker")
                .query_async(&mut redis.connect().await)
                .await
                .expect("Redis answers");
            (queued + owner == 0).then_some(())
        })
        .await;
        assert_eq!(
            console.run::<u64>(&["XLEN", "event.log"]).await > rows,
            is_on,
            "{value}"
        );
        let stop = Command::new("kill")
            .args(["-TERM", &worker.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(stop.success() && worker.wait().expect("it ends").success());
    }
}

/// Story: with `--log-format json`, the last line, which has the reason of the end, was once plain
/// text. Programs that collect JSON lines lost it.
#[test]
fn with_json_logs_the_fatal_error_is_a_json_line() {
    for (arguments, exit, why) in [
        (
            &[
                "stats",
                "--redis",
                "redis://127.0.0.1:1",
                "--log-format",
                "json",
            ][..],
            3,
            "cannot connect to Redis",
        ),
        (
            &[
                "worker",
                "--sink",
                "null",
                "--turn-max",
                "0",
                "--log-format=json",
            ],
            2,
            "--turn-max is 0",
        ),
        (
            &[
                "worker",
                "--sink",
                "null",
                "--group-depth",
                "9",
                "--log-format=json",
            ],
            2,
            "--group-depth is 9; it must be 0 to 8 parts",
        ),
        // The error is in the command line, before any option takes effect.
        (
            &[
                "worker",
                "--sink",
                "null",
                "--lease",
                "soon",
                "--log-format=json",
            ],
            2,
            "'soon' for '--lease <TIME>'",
        ),
    ] {
        let line = stderr(
            &program(arguments).output().expect("the program runs"),
            exit,
        );
        let line: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(
            line["fields"]["message"]
                .as_str()
                .is_some_and(|message| message.contains(why)),
            "{line}"
        );
        assert_eq!(
            (&line["level"], &line["target"]),
            (&"ERROR".into(), &"seriatim".into())
        );
        assert!(
            line["timestamp"]
                .as_str()
                .is_some_and(|at| at.ends_with('Z')),
            "{line}"
        );
    }
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let redis = Redis::start();
    let output = program(&["stats", "--redis", redis.url()])
        .env("SERIATIM_NAMESPACE", "")
        .env("SERIATIM_LOG", "")
        .output();
    let output = output.expect("the program runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let worker = program(&["worker", "--sink", "file:/no/such/directory/out"])
        .env("SERIATIM_REDIS", "")
        .env("SERIATIM_NAME", "")
        .output();
    let message = stderr(&worker.expect("the program runs"), 1);
    assert!(message.contains("/no/such/directory"), "{message}");
    // An empty value on the command line is an error, unlike an empty variable.
    stderr(&run(redis.url(), &["stats", "--namespace", ""]), 2);
}

#[test]
fn a_log_filter_that_is_none_is_refused() {
    for bad in ["verbose", "foo=bar=baz"] {
        let output = program(&["stats", "--log", bad])
            .output()
            .expect("the program runs");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("--log"),
            "{output:?}"
        );
    }
}

/// Returns the `ACL SETUSER` lines of docs/protocol.md, "Permissions", for this namespace. Each
/// line is split into the words after `SETUSER`.
fn permissions(prefix: &str) -> Vec<Vec<String>> {
    let lines = include_str!("../../docs/protocol.md").lines();
    let rules = lines.filter_map(|line| line.strip_prefix("    ACL SETUSER "));
    rules
        .map(|rules| {
            rules
                .replace("{shop:0}:", prefix)
                .split(' ')
                .map(str::to_owned)
                .collect()
        })
        .collect()
}

#[test]
fn the_permissions_in_the_document_name_every_command_of_the_scripts() {
    let rules = permissions("");
    let worker = rules
        .iter()
        .find(|rules| rules[0] == "worker")
        .expect("a line for the worker");
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let files = ["", "values", "objects", "turns", "advance"]
        .into_iter()
        .flat_map(|dir| std::fs::read_dir(lua.join(dir)).expect("scripts"));
    let mut commands = 0;
    for path in files.map(|file| file.expect("a script").path()) {
        // These scripts are for operators, who may run all reading commands.
        let is_for_operators = ["check.lua", "inspect.lua", "taken.lua"]
            .iter()
            .any(|file| path.ends_with(file));
        if path.extension().is_none_or(|end| end != "lua") || is_for_operators {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        for rest in ["call('", "try('"]
            .into_iter()
            .flat_map(|call| text.split(call).skip(1))
        {
            let command = rest.split('\'').next().unwrap_or_default().to_lowercase();
            assert!(
                worker.contains(&format!("+{command}")),
                "{} uses {command}",
                path.display()
            );
            commands += 1;
        }
    }
    assert!(commands > 50, "only {commands} were found");
    let operator = rules
        .iter()
        .find(|rules| rules[0] == "operator")
        .expect("a line for the operator");
    // The category `+@read` contains these commands.
    let reads = "exists get hexists hget hgetall hlen hmget hscan hstrlen lindex llen mget type xinfo xrange xrevrange zcard zcount zmscore zrange zrank zscore";
    let reads: Vec<&str> = reads.split(' ').collect();
    for file in std::fs::read_dir(lua.join("operator")).expect("scripts") {
        let path = file.expect("a script").path();
        let text = std::fs::read_to_string(&path).expect("text");
        for rest in text.split("call('").skip(1) {
            let command = rest.split('\'').next().unwrap_or_default().to_lowercase();
            let allowed =
                reads.contains(&command.as_str()) || operator.contains(&format!("+{command}"));
            assert!(allowed, "{} uses {command}", path.display());
        }
    }
}

#[tokio::test]
async fn the_permissions_in_the_document_are_enough() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    for rules in permissions(redis.keys().prefix()) {
        let words: Vec<&str> = ["ACL", "SETUSER"]
            .into_iter()
            .chain(rules.iter().map(String::as_str))
            .collect();
        console.run::<String>(&words).await;
    }
    let url = |user: &str| format!("{}?user={user}&pass=PASSWORD", redis.url());
    let namespace = ["--namespace", redis.namespace()];
    let emit = run(
        &url("producer"),
        &[&namespace[..], &["emit", "x", "1", "2", "--data", "{}"]].concat(),
    );
    assert_eq!(emit.status.code(), Some(0), "{emit:?}");
    // The producer may write only the keys of an emit. If it could write `objects.held`, a `SET` on
    // this key would stop every worker.
    let producer = redis::Client::open(url("producer")).expect("a URL");
    let mut producer = producer
        .get_multiplexed_async_connection_with_config(&crate::support::patient())
        .await
        .expect("it may connect");
    let keys = redis.keys();
    for words in [
        ["SET", &keys.objects_held(), "x"],
        ["SET", &keys.next_event_id(), "x"],
        ["SET", &keys.events("x"), "x"],
        ["LPUSH", &keys.data("x"), "x"],
        ["LPUSH", &keys.objects_held(), "x"],
        ["LPUSH", &keys.worker_object("w.0"), "x"],
        ["GET", &keys.data("x"), ""],
    ] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let denied = redis::cmd(words[0])
            .arg(&words[1..])
            .query_async::<redis::Value>(&mut producer)
            .await;
        assert_eq!(
            denied.expect_err("no right").code(),
            Some("NOPERM"),
            "{words:?}"
        );
    }
    let mut worker = program(&["--redis", &url("worker"), "--log", "off"]);
    let mut worker = worker
        .args(namespace)
        .args(["worker", "--sink", "null", "--name", "w"])
        .spawn()
        .expect("the program runs");
    let delivered = redis.keys().last_event_id("x");
    until("both events are delivered", PATIENCE, async || {
        (console.number(&delivered).await == 2).then_some(())
    })
    .await;
    for command in [
        &["check"][..],
        &["stats", "--scan"],
        &["inspect", "x"],
        &["dead", "list"],
    ] {
        let output = run(&url("operator"), &[&namespace[..], command].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    for n in 1..=3 {
        let dead = [
            &redis.keys().events_dead(),
            &format!("1-{n}"),
            "object",
            "x",
            "event",
            "3",
            "id",
            "1",
        ];
        console
            .run::<String>(&[&["XADD"], &dead[..]].concat())
            .await;
    }
    for words in [
        ["ZADD", &redis.keys().objects_held(), "inf", "held"],
        ["MSET", &redis.keys().event_worker("held"), "held", ""],
        ["RPUSH", &redis.keys().events_held("held"), "1", "2"],
        [
            "MSET",
            &redis.keys().events_held_id("held"),
            "1 0 1 0 attempts: x",
            "",
        ],
    ] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        console.run::<redis::Value>(&words).await;
    }
    for command in [
        &["dead", "show", "1-1"][..],
        &["dead", "retry", "1-1"],
        &["dead", "drop", "1-2", "--reason", "no"],
        &["dead", "retry", "--all"],
        &["held", "list"],
        &["held", "skip", "held"],
        &["pause", "other:*"],
        &["resume", "other:*"],
        &["rules"],
        &["actions"],
        &["log"],
    ] {
        let output = run(&url("operator"), &[&namespace[..], command].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
    }
    let stop = Command::new("kill")
        .args(["-TERM", &worker.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(stop.success() && worker.wait().expect("it ends").success());
}

/// Story: as the documented operator, who may push but has no right to MULTI, `emit` queued the event
/// outside of a transaction, and `schedule cancel` told of an emit. A debug build panicked.
#[tokio::test]
async fn an_operator_who_may_not_emit_is_told_the_missing_right() {
    let redis = Redis::own(&[]);
    redis.set_documented_user("operator", "operator").await;
    let url = format!("{}?user=operator&pass=PASSWORD", redis.url());
    let namespace = ["--namespace", redis.namespace()];
    for command in [
        &["emit", "x", "1"][..],
        &["emit", "x", "1", "--in", "1h"],
        &["schedule", "add", "x", "1", "--in", "1h", "--key", "k"],
        &["schedule", "cancel", "x", "k"],
    ] {
        let message = stderr(&run(&url, &[&namespace[..], command].concat()), 3);
        assert!(
            message.contains("nothing was applied: NOPERM")
                && message.contains("the user lacks +multi")
                && !message.contains("emit"),
            "{command:?}: {message}"
        );
    }
    let keys: Vec<String> = redis.console().await.run(&["KEYS", "*"]).await;
    // The console of the tests sets the counter.
    assert_eq!(keys, [redis.keys().next_event_id()]);
}

/// Story: with `SERIATIM_NAMESPCE=shop` a command read the keys without a namespace, without a word.
#[test]
fn a_misspelled_variable_is_named_with_the_one_that_was_meant() {
    let redis = Redis::start();
    let warning_of = |name: &str| {
        let mut program = program(&["--redis", redis.url(), "rules"]);
        let output = program
            .env(name, "shop")
            .output()
            .expect("the program runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let line = "seriatim: the environment variable SERIATIM_NAMESPCE is unknown and has no effect; did you mean SERIATIM_NAMESPACE?\n";
    assert_eq!(warning_of("SERIATIM_NAMESPCE"), line);
    // Story: these had no effect, without a word.
    for (name, option) in [("SERIATIM_LEESE", "--lease"), ("SERIATIM_BATHC", "--batch")] {
        let line = format!(
            "seriatim: the environment variable {name} is unknown and has no effect; the option {option} has no \
             variable: write it on the command line, or in the file of --config\n"
        );
        assert_eq!(warning_of(name), line);
    }
    // The tests of the project use these.
    for name in [
        "SERIATIM_SEED",
        "SERIATIM_MODEL",
        "SERIATIM_FAILPOINTS",
        "SERIATIM_MACHINE_STEPS",
        "SERIATIM_LUA_DIR",
    ] {
        assert_eq!(warning_of(name), "", "{name}");
    }
    for other in [
        "SERIATIM_PORT_8080_TCP_ADDR",
        "SERIATIM_SERVICE_HOST",
        "SERIATIM_NAMESPACE",
    ] {
        assert_eq!(warning_of(other), "", "{other}");
    }
}
