//! The first start of a worker in a database with keys of other programs.

use std::process::Command;

use crate::support::Redis;
use crate::support::process::Process;

const FOREIGN: &str = "this database has keys of other programs";

/// Story: a user's own list `user:77:events` was delivered as events after one emit for `user:77`.
#[tokio::test]
async fn a_database_with_keys_of_others_is_told_at_the_first_start() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let _: String = console.run(&["SET", "{other:0}:seriatim.meta", "x"]).await;
    let _: i64 = console.run(&["LPUSH", "user:77:events", "mine"]).await;
    let _: String = console.run(&["SET", "cart:1", "x"]).await;
    let within = Process::start(&redis, "a", "null", &[]);
    within.until_logged("recover: attached").await;
    assert!(!within.log().contains(FOREIGN), "{}", within.log());
    let first = Process::start_in(&redis, None, "b", "null", &[]);
    first.until_logged("recover: attached").await;
    let log = first.log();
    assert!(
        log.matches(FOREIGN).count() == 1 && log.contains("cart:1") && log.contains("--namespace"),
        "{log}"
    );
    let second = Process::start_in(&redis, None, "c", "null", &[]);
    second.until_logged("recover: attached").await;
    assert!(!second.log().contains(FOREIGN), "{}", second.log());
    let doctor = Command::new(crate::support::program())
        .args(["--redis", redis.url(), "doctor"])
        .output()
        .expect("run");
    let printed = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        printed.contains("namespace") && printed.contains("cart:1"),
        "{printed}"
    );
}

/// Producers may emit before the first worker starts. Their keys are no keys of others.
#[tokio::test]
async fn keys_of_producers_give_no_warning() {
    let redis = Redis::own(&[]);
    let emit = |arguments: &[&str]| {
        let mut command = Command::new(crate::support::program());
        let output = command
            .args(["--redis", redis.url()])
            .args(arguments)
            .output()
            .expect("run");
        assert!(output.status.success(), "{output:?}");
    };
    emit(&["emit", "work:1", "1", "--data", "{}"]);
    emit(&["emit", "work:2", "1", "--idempotency-key", "k"]);
    emit(&["emit", "work:3", "1", "--in", "1h"]);
    let worker = Process::start_in(&redis, None, "a", "null", &[]);
    worker.until_logged("recover: attached").await;
    assert!(!worker.log().contains(FOREIGN), "{}", worker.log());
}
