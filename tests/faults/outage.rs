//! Redis is away, or is loading its data, when a worker starts or while it works. The worker waits,
//! and logs few lines.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::console::PATIENCE;
use crate::support::process::Process;
use crate::support::{Redis, until};

/// The log target of an outage at level WARN: a line at its beginning, and one each minute. Each
/// single attempt is logged at level DEBUG.
const TOLD: &str = "WARN seriatim::worker::watch::outage";
const TRIED: &str = "DEBUG seriatim::worker::watch::outage";

/// Returns the number of log lines with this text.
fn lines(worker: &Process, text: &str) -> usize {
    worker
        .log()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

async fn delivers(redis: &Redis, worker: &mut Process) {
    let console = redis.console().await;
    console.emit("work:1", "1").await;
    let last = console.keys.last_event_id("work:1");
    until("the event is delivered", PATIENCE, async || {
        (console.number(&last).await > 0).then_some(())
    })
    .await;
    worker.terminate();
    assert!(worker.ended().await.success(), "{}", worker.log());
}

/// Story: a worker was started together with its Redis, and Redis did not listen yet. The worker
/// ended at once.
#[tokio::test]
async fn a_start_waits_for_a_redis_that_is_not_there_yet() {
    let mut redis = Redis::own(&[]);
    redis.server().kill();
    let mut worker = Process::start(&redis, "w", "null", &[]);
    worker.until_logged("waiting for Redis").await;
    redis.server().restart();
    worker.until_logged("Redis answers again").await;
    delivers(&redis, &mut worker).await;
    assert_eq!(lines(&worker, TOLD), 1, "{}", worker.log());
}

/// A starting worker also waits for a Redis that loads its data and returns `-LOADING` to every
/// script.
#[tokio::test]
async fn a_start_waits_for_a_redis_that_is_loading() {
    let slow = [
        "--key-load-delay",
        "100000",
        "--loading-process-events-interval-bytes",
        "1024",
        "--rdbcompression",
        "no",
    ];
    let mut redis = Redis::own(&slow);
    let console = redis.console().await;
    for n in 0..20 {
        let _: () = console
            .run(&["SET", &format!("other:{n}"), &"x".repeat(2000)])
            .await;
    }
    let _: () = console.run(&["SAVE"]).await;
    redis.server().kill();
    let mut worker = Process::start(&redis, "w", "null", &[]);
    worker.until_logged("waiting for Redis").await;
    let redis = tokio::task::spawn_blocking(move || {
        redis.server().restart();
        redis
    });
    worker.until_logged("LOADING").await;
    let redis = redis.await.expect("it starts");
    worker.until_logged("Redis answers again").await;
    delivers(&redis, &mut worker).await;
}

/// A worker with a wrong password ends at once with the reason, because time does not repair a
/// password. In any other case a starting worker waits no longer than `connect_timeout`.
#[tokio::test]
async fn a_start_waits_for_nothing_else_and_not_for_ever() {
    let mut redis = Redis::own(&[]);
    let _: () = redis
        .console()
        .await
        .run(&["CONFIG", "SET", "requirepass", "right"])
        .await;
    let began = Instant::now();
    let run = |url: &str, wait: &str| {
        let mut program = Command::new(crate::support::program());
        let output = program
            .args([
                "--redis",
                url,
                "worker",
                "--sink",
                "null",
                "--connect-timeout",
                wait,
            ])
            .output();
        let output = output.expect("the program runs");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    for url in [
        redis.url().to_owned(),
        format!("{}?pass=wrong", redis.url()),
    ] {
        let message = run(&url, "1h");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    redis.server().kill();
    let message = run(redis.url(), "300ms");
    assert!(
        message.contains("waiting for Redis") && message.contains("cannot connect to Redis"),
        "{message}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

/// Story: each connection of the worker logged a line at every attempt, up to fifty lines a second.
#[tokio::test]
async fn an_outage_is_told_when_it_begins_and_when_it_ends() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut worker = Process::start(&redis, "w", "null", &["--lease", "600ms"]);
    let console = redis.console().await;
    console.until_idle(1).await;
    for outage in 1..=2 {
        redis.server().kill();
        until("it begins", PATIENCE, async || {
            (lines(&worker, TOLD) == outage).then_some(())
        })
        .await;
        let before = lines(&worker, TRIED);
        until("its parts try", PATIENCE, async || {
            (lines(&worker, TRIED) > before + 5).then_some(())
        })
        .await;
        redis.server().restart();
        until("it ends", PATIENCE, async || {
            (lines(&worker, "Redis answers again") == outage).then_some(())
        })
        .await;
    }
    delivers(&redis, &mut worker).await;
    assert_eq!(lines(&worker, TOLD), 2, "{}", worker.log());
}
