//! Each example runs as its header says, against a Redis of its own, and its output is checked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use seriatim::keys::Keys;
use seriatim::wire::{self, Connect};

use crate::support::Redis;

/// Returns the command `cargo run --example NAME -- ARGUMENTS`.
///
/// It does not have the variables that cargo sets for a test. The build script of `ring` depends on
/// them, so with other values cargo would build `ring` and its dependents again.
fn example(redis: &Redis, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_tests =
        |name: &String| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_");
    std::env::vars()
        .map(|(name, _)| name)
        .filter(of_tests)
        .for_each(|name| _ = command.env_remove(name));
    command
        .args([
            "run",
            "--quiet",
            "--locked",
            "--all-features",
            "--example",
            name,
            "--",
        ])
        .args(arguments);
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("SERIATIM_REDIS", redis.url());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(redis: &Redis, name: &str, arguments: &[&str]) -> String {
    printed(&example(redis, name, arguments).output().expect("it runs"))
}

/// Runs the example with this standard input.
fn run_with(redis: &Redis, name: &str, input: &str) -> Output {
    let mut child = example(redis, name, &[])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("an input");
    let input = input.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writing
        .join()
        .expect("no panic")
        .expect("all of it is read");
    output
}

/// The events that the example `emit` emits for `work:1`, in order.
const OF_WORK_1: [&str; 6] = [
    r#"{"type":"renamed","title":"Seriatim"}"#,
    r#"{"type":"touched"}"#,
    r#"{"type":"split"}"#,
    r#"{"part":1}"#,
    r#"{"part":2}"#,
    "{}",
];

/// Tests the example `schedule`: it moves one reminder, cancels one, and gets the others in the
/// order of their times.
#[test]
fn schedule() {
    let redis = Redis::own(&[]);
    let printed = run(&redis, "schedule", &[redis.url()]);
    let lines: Vec<_> = printed.lines().skip(3).collect();
    let expected = [
        "cart:1: a reminder of 2 is due 2s from now",
        "cart:1: moved",
        "cart:2: cancelled",
        r#"cart:3: {"items":1,"type":"reminder"}"#,
        r#"cart:1: {"items":2,"type":"reminder"}"#,
    ];
    assert_eq!(lines, expected, "{printed}");
}

/// Tests that the example `emit` prints the number of queued events. The example `worker` prints
/// all events in order, and then the reason of its stop.
#[tokio::test]
async fn emit_and_worker() {
    let redis = Redis::own(&[]);
    let emitted = run(&redis, "emit", &[redis.url()]);
    let lines: Vec<_> = emitted.lines().collect();
    assert_eq!(lines[0], "3 events emitted, 5 are queued for work:1");
    assert!(
        lines[1].starts_with("1000 events emitted in ") && lines[1].ends_with(" transactions"),
        "{emitted}"
    );
    assert!(
        lines[2].starts_with("the transaction has ") && lines[3] == "queued" && lines.len() == 4,
        "{emitted}"
    );

    let mut worker = example(&redis, "worker", &[]).spawn().expect("it runs");
    let mut output = BufReader::new(worker.stdout.take().expect("an output"));
    let mut lines = Vec::new();
    while lines.len() < 1000 + OF_WORK_1.len() {
        let mut line = String::new();
        assert!(
            output.read_line(&mut line).expect("UTF-8") > 0,
            "it ended: {lines:?}"
        );
        lines.push(line.trim_end().to_owned());
    }
    terminate(&worker);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("UTF-8");
    assert!(worker.wait().expect("it ends").success());
    assert_eq!(rest, "Graceful { held: 0 }: 1006 events delivered\n");
    let of = |object: &str| -> Vec<&str> {
        let object = format!("  {object}  ");
        lines
            .iter()
            .filter_map(|line| line.split_once(&object))
            .map(|(_, event)| event)
            .collect()
    };
    assert_eq!(of("work:1"), OF_WORK_1);
    let of_page_7: Vec<_> = (0..100)
        .map(|n| format!(r#"{{"n":{}}}"#, 10 * n + 7))
        .collect();
    assert_eq!(of("page:7"), of_page_7);
}

/// Tests the program of the README, which the example `start` repeats: it emits an event, handles it,
/// and stops gracefully.
#[test]
fn start() {
    let redis = Redis::own(&[]);
    let mut program = example(&redis, "start", &[redis.url()])
        .spawn()
        .expect("it runs");
    let mut output = BufReader::new(program.stdout.take().expect("an output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("UTF-8");
    let words: Vec<_> = line.split_whitespace().collect();
    assert!(
        words.len() == 3
            && words[0] == "customer:1"
            && words[1].parse::<u64>().is_ok()
            && words[2] == "1200",
        "{line:?}"
    );
    terminate(&program);
    assert!(program.wait().expect("it ends").success());
}

/// Sends SIGTERM to the example. `cargo run` replaces its own process with the example, so the
/// signal reaches the example. Story: the worker example died of SIGTERM and left its lease, so a
/// restart had to wait.
fn terminate(child: &Child) {
    kill_process(Pid::from_child(child), Signal::TERM).expect("the signal is sent");
}

/// Tests the example `consume`. It applies each event once and in order, despite duplicates and
/// early events. At its end it prints how many events are still early.
#[tokio::test]
async fn consume() {
    let redis = Redis::own(&[]);
    let line = |id: u64, prev: u64, object: &str| {
        format!(r#"{{"id":{id},"prev":{prev},"object":"{object}","event":{{"n":{id}}}}}"#) + "\n"
    };
    let input = [
        line(2, 1, "work:1"),
        line(3, 0, "work:2"),
        line(1, 0, "work:1"),
        line(2, 1, "work:1"),
    ]
    .concat();
    let output = run_with(&redis, "consume", &input);
    assert_eq!(
        printed(&output),
        "work:2 3 {\"n\":3}\nwork:1 1 {\"n\":1}\nwork:1 2 {\"n\":2}\n"
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "3 applied, 1 duplicates, 0 still early\n"
    );
    let output = run_with(&redis, "consume", &line(2, 1, "work:1"));
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(1), &b""[..])
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "0 applied, 0 duplicates, 1 still early\n"
    );
}

/// Tests the example `handlers`. It charges once although the handler runs twice. One event becomes
/// a dead letter, and the next event is delivered. A handler that succeeds emits an event. The
/// example ends by itself.
#[tokio::test]
async fn handlers() {
    let redis = Redis::own(&[]);
    let expected = [
        "1 charged 1200 cents",
        "1 confirmed at attempt 2: receipt of attempt 1",
        "2 follows 1: on its way to Brno",
        "4 follows 2: closed",
        r#"5 of archive:1: "order:1" is archived"#,
        "4 events delivered",
    ];
    // Ids begin with 1 if an earlier process has chosen that first id.
    let chosen = Connect {
        first_id: 1,
        ..Connect::default()
    };
    wire::connect(
        &mut redis.connect().await,
        &Keys::with_namespace("handlers-example").expect("a namespace"),
        "",
        chosen,
    )
    .await
    .expect("connected");
    assert_eq!(
        run(&redis, "handlers", &[redis.url()])
            .lines()
            .collect::<Vec<_>>(),
        expected
    );
}

/// Tests the example `projection` with the steps in its header. Story: these steps once showed 0
/// rows, because the worker example wrote no event log. The projection counts events per type and
/// day, shows the latest event of each object, and continues at its saved position. After a rebuild
/// it shows the same rows.
#[tokio::test]
async fn projection() {
    let redis = Redis::own(&[]);
    let mut worker = example(&redis, "worker", &[])
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let conn = redis.connect().await;
    let delivered = async |events: u64| {
        crate::support::until(
            "all is delivered",
            crate::support::console::PATIENCE,
            async || {
                let rows: u64 = redis::cmd("XLEN")
                    .arg("event.log")
                    .query_async(&mut conn.clone())
                    .await
                    .expect("a length");
                (rows == events).then_some(())
            },
        )
        .await;
    };
    for round in 1..=2 {
        run(&redis, "emit", &[redis.url()]);
        delivered(1006 * round).await;
        let shown = run(&redis, "projection", &[]);
        let rows = 1006 * round;
        for line in [
            format!("per-day: {rows} rows, 0 of them trimmed away unseen"),
            format!("latest: {rows} rows, 0 of them trimmed away unseen"),
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{shown}");
        }
        let counted = |name: &str| -> u64 {
            let days = shown.lines().filter(|line| line.starts_with("  day "));
            let counts = days.filter_map(|line| {
                line.split_once(&format!("\"completed {name}\": "))?
                    .1
                    .split([',', '}'])
                    .next()?
                    .parse::<u64>()
                    .ok()
            });
            counts.sum()
        };
        assert_eq!(
            ["renamed", "touched", "split", "none"].map(counted),
            [round, round, round, 1003 * round],
            "{shown}"
        );
        assert!(
            shown
                .lines()
                .any(|line| line.starts_with("  work:1 ") && line.ends_with(" {}")),
            "{shown}"
        );
        assert!(
            shown
                .lines()
                .any(|line| line.starts_with("  page:7 ") && line.ends_with(r#" {"n":997}"#)),
            "{shown}"
        );
        assert_eq!(run(&redis, "projection", &[]), shown);
        assert_eq!(run(&redis, "projection", &["--rebuild"]), shown);
    }
    terminate(&worker);
    assert!(worker.wait().expect("it ends").success());
}
