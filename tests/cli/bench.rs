//! `seriatim bench`, the command: the measured figures, the cleanup, and the errors for bad
//! options.

use std::process::{Command, Output, Stdio};

use redis::Commands as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::console::PATIENCE;
use crate::support::{Redis, until};

const SYSTEMS: [&str; 3] = ["seriatim", "streams", "raw"];
/// Options of `seriatim bench` that make the run short enough for a test.
const TINY: [&str; 12] = [
    "--events",
    "2000",
    "--objects",
    "50",
    "--rate",
    "2000",
    "--repetitions",
    "1",
    "--warm-up",
    "0",
    "--producers",
    "8",
];

/// Returns a Redis server without any key. It has no id counter either.
fn empty() -> Redis {
    let redis = Redis::own(&[]);
    let () = redis::cmd("FLUSHALL")
        .query(&mut connection(&redis))
        .expect("FLUSHALL");
    redis
}

fn command(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(crate::support::program());
    command.args(["bench", "--redis", url]).args(args);
    for name in ["SERIATIM_REDIS", "SERIATIM_NAMESPACE", "SERIATIM_LOG"] {
        command.env_remove(name);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn bench(url: &str, args: &[&str]) -> Output {
    command(url, args).output().expect("the program runs")
}

fn connection(redis: &Redis) -> redis::Connection {
    redis::Client::open(redis.url())
        .and_then(|client| client.get_connection())
        .expect("Redis answers")
}

/// Returns all keys. The Redis must belong to the test alone.
fn keys(connection: &mut redis::Connection) -> Vec<String> {
    let mut keys: Vec<String> = connection.keys("*").expect("KEYS");
    keys.sort();
    keys
}

/// Returns the JSON on standard output.
#[track_caller]
fn json(output: &Output) -> Value {
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[track_caller]
fn assert_measured(report: &Value, figure: &str, systems: &[&str]) {
    for system in systems {
        let one = &report["figures"][figure][system];
        let samples = one["repetitions"]
            .as_array()
            .unwrap_or_else(|| panic!("{figure} of {system} in {report}"));
        let repetitions = report["settings"]["repetitions"]
            .as_u64()
            .expect("a number");
        assert_eq!(samples.len() as u64, repetitions, "{figure} of {system}");
        let [median, min, max] =
            ["median", "min", "max"].map(|name| one[name].as_f64().expect("a number"));
        assert!(
            0.0 < min && min <= median && median <= max,
            "{figure} of {system}: {one}"
        );
    }
}

#[test]
fn every_figure_is_measured_and_no_key_is_left() {
    let redis = empty();
    let mut connection = connection(&redis);
    let () = connection
        .set("{other:0}:work:1:events", "not ours")
        .expect("SET");
    let report = json(&bench(
        redis.url(),
        &[&TINY[..], &["--json", "--workers", "2", "--seed", "7"]].concat(),
    ));
    for figure in [
        "enqueue_bulk",
        "enqueue_single",
        "drain_bulk",
        "drain_single",
        "both",
        "latency_p50",
        "latency_p99",
    ] {
        assert_measured(&report, figure, &SYSTEMS);
        let ratio = report["figures"][figure]["seriatim_to_streams"]
            .as_f64()
            .expect("a ratio");
        assert!(ratio > 0.0, "{figure}: {ratio}");
    }
    assert_measured(&report, "memory_queued", &SYSTEMS);
    assert_measured(&report, "memory_idle", &["seriatim"]);
    assert_measured(&report, "drain_bulk_redis_cpu", &SYSTEMS);
    let queued = report["figures"]["memory_queued"]["raw"]["median"]
        .as_f64()
        .expect("a number");
    // The run queues few events, so a few kilobytes of Redis' own memory change the bytes per
    // event.
    assert!((150.0..400.0).contains(&queued), "200 bytes need {queued}");
    assert_eq!(
        (&report["settings"]["seed"], &report["settings"]["skew"]),
        (&7.into(), &"zipf:1.0".into())
    );
    assert_eq!(
        (&report["objects_used"], &report["redis"]["private"]),
        (&50.into(), &false.into())
    );
    assert_eq!(keys(&mut connection), ["{other:0}:work:1:events"]);
}

#[test]
fn the_table_fits_a_terminal_and_only_what_is_asked_for_is_measured() {
    let options = [
        "--private",
        "--phases",
        "enqueue,drain",
        "--skew",
        "single",
        "--repetitions",
        "2",
    ];
    let output = bench("redis://127.0.0.1:1", &[&TINY[..6], &options].concat());
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    for (word, is_there) in [
        ("enqueue, bulk", true),
        ("drain after single", true),
        ("latency", false),
        ("memory", false),
    ] {
        assert_eq!(text.contains(word), is_there, "{word} in {text}");
    }
    assert!(text.contains("redis-benchmark"), "{text}");
}

/// The workers of a run with groups deliver every event, also if there are more groups than lists.
#[test]
fn groups_are_measured() {
    for groups in ["1", "7", "2000"] {
        let options = [
            "--private",
            "--phases",
            "drain",
            "--skew",
            "distinct",
            "--groups",
            groups,
            "--json",
        ];
        let report = json(&bench(
            "redis://127.0.0.1:1",
            &[&TINY[..], &options].concat(),
        ));
        assert_measured(&report, "drain_bulk", &["seriatim"]);
        assert_eq!(report["settings"]["groups"].to_string(), groups);
    }
}

/// The workers of a run with limits deliver every event.
#[test]
fn limits_are_measured() {
    let options = [
        "--private",
        "--phases",
        "drain",
        "--skew",
        "distinct",
        "--groups",
        "7",
        "--in-flight",
        "2",
        "--json",
    ];
    let report = json(&bench(
        "redis://127.0.0.1:1",
        &[&TINY[..], &options].concat(),
    ));
    assert_measured(&report, "drain_bulk", &["seriatim"]);
    assert_eq!(report["settings"]["in_flight"], 2);
}

#[tokio::test]
async fn a_signal_ends_it_and_no_key_is_left() {
    let redis = empty();
    let mut connection = connection(&redis);
    let child = command(redis.url(), &["--events", "20000", "--repetitions", "1000"])
        .spawn()
        .expect("the program runs");
    let asked = redis.connect().await;
    until("there are keys", PATIENCE, async || {
        let size: u64 = redis::cmd("DBSIZE")
            .query_async(&mut asked.clone())
            .await
            .expect("DBSIZE");
        (size > 0).then_some(())
    })
    .await;
    kill_process(Pid::from_child(&child), Signal::INT).expect("the signal is sent");
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last();
    assert_eq!(
        last,
        Some("seriatim: stopped by a signal; all written keys are deleted"),
        "{stderr}"
    );
    assert_eq!(keys(&mut connection), [""; 0]);
}

#[test]
fn keys_of_others_are_left_alone() {
    let redis = empty();
    let mut connection = connection(&redis);
    let () = connection
        .lpush("{shop:0}:work:1:events", "1")
        .expect("LPUSH");
    let output = bench(redis.url(), &["--namespace", "shop"]);
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("{shop:0}:work:1:events") && stderr.contains("choose another"),
        "{stderr}"
    );
    assert_eq!(keys(&mut connection), ["{shop:0}:work:1:events"]);
}

#[test]
fn a_bad_option_is_told_before_anything_is_begun() {
    for (option, why) in [
        ("--skew=zipf:x", "zipf:EXPONENT"),
        ("--skew=normal", "uniform, distinct, single"),
        (
            "--objects=0",
            "--objects is 0; it must be 1 to 10000000 objects",
        ),
        (
            "--events=100000001",
            "--events is 100000001; it must be 1 to 100000000 events",
        ),
        (
            "--payload=31",
            "--payload is 31; it must be 32 to 1048576 bytes",
        ),
        (
            "--concurrency=1025",
            "--concurrency is 1025; it must be 1 to 1024 slots",
        ),
        (
            "--groups=100001",
            "--groups is 100001; it must be 0 to 100000 groups",
        ),
        ("--in-flight=5", "--groups"),
        (
            "--rate=0",
            "--rate is 0; it must be 1 to 100000 events per second",
        ),
        ("--phases=all", "enqueue, drain, both, latency, memory"),
    ] {
        let output = bench("redis://127.0.0.1:1", &[option]);
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(why), "{option}: {stderr}");
    }
}
