//! Recovery with real processes that are killed with SIGKILL or paused with SIGSTOP.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::console::{Console, PATIENCE};
use crate::support::process::{Process, merged, sent_to};
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, until};

/// Returns an event that does not fit into a pipe. If no program reads the standard output of a
/// worker, this event stays in flight.
fn large() -> String {
    format!("{:?}", "x".repeat(200_000))
}

async fn until_owned(console: &Console, object: &str) -> String {
    let key = console.keys.event_worker(object);
    until(&format!("{object} has an owner"), PATIENCE, async || {
        console.text(&key).await
    })
    .await
}

#[tokio::test]
async fn a_killed_process_started_again_under_its_name_goes_on_at_once() {
    let (redis, console) = Redis::start().with_console().await;
    // The lease is longer than any wait of the test.
    let lease = ["--lease", "10m"];
    let mut process = Process::start(&redis, "w", "stdout", &lease);
    console.emit_all("work:1", [large(), "2".to_owned()]).await;
    // The process has written a part of the first event.
    let mut part = [0; 1000];
    let mut out = process.stdout();
    out.read_exact(&mut part).expect("it writes");
    let owner = until_owned(&console, "work:1").await;
    process.kill();
    drop(out);
    console.check().await;
    assert_eq!(
        console.text(&console.keys.event_worker("work:1")).await,
        Some(owner)
    );

    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("out.ndjson");
    let mut again = Process::start(&redis, "w", &format!("file:{}", file.display()), &lease);
    until("both are delivered", PATIENCE, async || {
        (sent_to(&file).len() == 2).then_some(())
    })
    .await;
    let sent: Vec<_> = sent_to(&file)
        .into_iter()
        .map(|sent| (sent.id, sent.prev, sent.event))
        .collect();
    assert_eq!(sent, [(1, 0, large()), (2, 1, "2".to_owned())]);
    again.terminate();
    assert_eq!(again.ended().await.code(), Some(0), "{}", again.log());
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_name_in_use_is_refused_in_one_line() {
    let (redis, console) = Redis::start().with_console().await;
    let owner = Process::start(&redis, "w", "null", &["--lease", "900ms"]);
    console.until_lease("w").await;
    let mut second = Process::start(&redis, "w", "null", &["--lease", "900ms"]);
    assert_eq!(second.ended().await.code(), Some(4));
    let log = second.log();
    let last = log.lines().last().expect("a line");
    assert!(
        last.contains("the name \"w\" is in use by process "),
        "{log}"
    );
    owner.terminate();
}

#[tokio::test]
async fn a_process_that_was_taken_over_ends_and_says_so() {
    let (redis, console) = Redis::start().with_console().await;
    let mut first = Process::start(&redis, "w", "stdout", &[]);
    console.emit("work:1", large()).await;
    until_owned(&console, "work:1").await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("out.ndjson");
    let second = Process::start(
        &redis,
        "w",
        &format!("file:{}", file.display()),
        &["--takeover"],
    );
    until("the other goes on", PATIENCE, async || {
        (sent_to(&file).len() == 1).then_some(())
    })
    .await;
    assert_eq!(first.ended().await.code(), Some(4), "{}", first.log());
    assert!(
        first
            .log()
            .contains("fenced: the name \"w\" was taken over by process "),
        "{}",
        first.log()
    );
    second.terminate();
    console.until_at_rest().await;
}

/// A process is paused while it waits. Redis gives it a batch, whose reply lies in its socket. Its
/// lease ends, and another process delivers the event. Then the paused process reads the reply, and
/// delivers nothing of it.
#[tokio::test]
async fn a_reply_older_than_the_lease_is_not_delivered() {
    let (redis, console) = Redis::start().with_console().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("out.ndjson");
    let sink = format!("file:{}", file.display());
    let paused = Process::start(&redis, "w", &sink, &["--lease", "2s"]);
    console.emit("work:1", "1").await;
    until("it works", PATIENCE, async || {
        (sent_to(&file).len() == 1).then_some(())
    })
    .await;
    console.until_idle(1).await;
    paused.pause();
    console.emit("work:1", "2").await;
    let owner = until_owned(&console, "work:1").await;
    assert!(owner.starts_with("w."), "{owner}");
    let lease = console.keys.worker_lease("w");
    until("its lease is over", PATIENCE, async || {
        console.text(&lease).await.is_none().then_some(())
    })
    .await;
    let recorder = Recorder::new();
    let other = start(&redis, "other", &recorder, |_| {});
    recorder.until_sent(1).await;
    other.finish().await;
    paused.go_on();
    paused.until_logged("attaching again").await;
    console.emit("work:1", "3").await;
    until("it goes on", PATIENCE, async || {
        sent_to(&file)
            .iter()
            .any(|sent| sent.event == "3")
            .then_some(())
    })
    .await;
    let events: Vec<_> = sent_to(&file).into_iter().map(|sent| sent.event).collect();
    assert_eq!(events, ["1", "3"], "{}", paused.log());
    paused.terminate();
    console.until_at_rest().await;
}

/// A process is paused for longer than its lease, and its object continues in another process.
/// After the pause the first process attaches again, and delivers the next event in order.
#[tokio::test]
async fn a_process_paused_for_longer_than_its_lease_goes_on() {
    let (redis, console) = Redis::start().with_console().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("out.ndjson");
    let paused = Process::start(
        &redis,
        "w",
        &format!("file:{}", file.display()),
        &["--lease", "600ms"],
    );
    console.emit_all("work:1", ["1", "2"]).await;
    until("it works", PATIENCE, async || {
        (sent_to(&file).len() == 2).then_some(())
    })
    .await;
    console.until_at_rest().await;
    paused.pause();
    let lease = console.keys.worker_lease("w");
    until("its lease is over", PATIENCE, async || {
        console.text(&lease).await.is_none().then_some(())
    })
    .await;
    let sink = Recorder::new();
    let other = start(&redis, "other", &sink, |_| {});
    for n in 3..20 {
        console.emit("work:1", n.to_string()).await;
    }
    // The pop of the paused process may have moved the marker. The sweep of the other process finds
    // this marker.
    until("the other goes on", PATIENCE, async || {
        (sink.sent().len() == 17).then_some(())
    })
    .await;
    other.finish().await;
    paused.go_on();
    paused.until_logged("the lease lapsed").await;
    console.emit("work:1", "20").await;
    until("it goes on", PATIENCE, async || {
        (sent_to(&file).len() == 3).then_some(())
    })
    .await;
    let last = sent_to(&file).pop().expect("three events");
    assert_eq!((last.event.as_str(), last.prev), ("20", sink.sent()[16].id));
    paused.terminate();
    console.until_at_rest().await;
}

/// Runs three processes. One is killed and replaced, one is killed and not replaced. Every event is
/// in the file of some process, in order.
#[tokio::test]
async fn killed_processes_lose_and_reorder_nothing() {
    const EVENTS: usize = 3000;
    const OBJECTS: usize = 40;
    let (redis, console) = Redis::start().with_console().await;
    for object in 0..OBJECTS {
        let events = (object..EVENTS).step_by(OBJECTS).map(|n| n.to_string());
        console.emit_all(&format!("work:{object}"), events).await;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let files: Vec<PathBuf> = ["a", "b", "c"]
        .iter()
        .map(|name| dir.path().join(name))
        .collect();
    let run = |at: usize| {
        let sink = format!("file:{}", files[at].display());
        Process::start(
            &redis,
            ["a", "b", "c"][at],
            &sink,
            &["--lease", "1s", "--concurrency", "6", "--batch", "4"],
        )
    };
    let mut processes: Vec<_> = (0..3).map(run).collect();
    let wrote = async |at: usize, events: usize| {
        until("it is in the middle of its work", PATIENCE, async || {
            (sent_to(&files[at]).len() >= events || merged_len(&files) == EVENTS).then_some(())
        })
        .await;
    };
    wrote(0, 100).await;
    processes[0].kill();
    console.check().await;
    wrote(1, 200).await;
    processes[1].kill();
    processes[1] = run(1);
    console.check().await;
    until("everything is delivered", PATIENCE, async || {
        (merged_len(&files) == EVENTS).then_some(())
    })
    .await;
    for process in &processes[1..] {
        process.terminate();
    }
    for process in &mut processes[1..] {
        assert_eq!(process.ended().await.code(), Some(0), "{}", process.log());
    }
    let merged = merged(&files);
    for object in 0..OBJECTS {
        let sent = &merged[&format!("work:{object}")];
        assert!(
            sent.iter()
                .map(|sent| sent.event.clone())
                .eq((object..EVENTS).step_by(OBJECTS).map(|n| n.to_string()))
        );
    }
    console.until_at_rest().await;
}

fn merged_len(files: &[PathBuf]) -> usize {
    let mut ids: Vec<_> = files
        .iter()
        .flat_map(|file| sent_to(file))
        .map(|sent| sent.id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

#[tokio::test]
async fn sigterm_finishes_what_is_in_hand() {
    let (redis, console) = Redis::start().with_console().await;
    let mut process = Process::start(&redis, "w", "stdout", &[]);
    console.emit("work:1", large()).await;
    until_owned(&console, "work:1").await;
    process.terminate();
    process.until_logged("finishing what is in hand").await;
    let mut out = String::new();
    process
        .stdout()
        .read_to_string(&mut out)
        .expect("it writes");
    assert!(out.ends_with("x\"}\n"), "all of the event was written");
    assert_eq!(process.ended().await.code(), Some(0));
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    let (redis, console) = Redis::start().with_console().await;
    let mut process = Process::start(&redis, "w", "stdout", &[]);
    console.emit("work:1", large()).await;
    until_owned(&console, "work:1").await;
    let began = Instant::now();
    process.terminate();
    process.until_logged("finishing what is in hand").await;
    process.terminate();
    assert_eq!(process.ended().await.code(), Some(0));
    // The stop must take less than the whole grace time, 25 s.
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("1 0 0 0 stop")
    );
}

/// Tests that a worker warns of a pipe: its reader loses what it has not read when it dies.
#[tokio::test]
async fn a_worker_warns_of_a_pipe() {
    let redis = Redis::start();
    let piped = Process::start(&redis, "piped", "stdout", &[]);
    piped
        .until_logged("it loses the lines that it has not read; the sink file:PATH loses none")
        .await;
    let plain = Process::start(&redis, "plain", "null", &[]);
    plain.until_logged("recover: attached").await;
    assert!(
        !plain.log().contains("it loses the lines"),
        "{}",
        plain.log()
    );
}

/// Story: with `?bacth=100` the receiver got single events, without a word.
#[tokio::test]
async fn a_worker_warns_of_a_misspelled_batch() {
    let redis = Redis::start();
    let url = "http://127.0.0.1:1/?key=hush";
    let wrong = Process::start(&redis, "wrong", &format!("{url}&bacth=100"), &[]);
    wrong.until_logged("did you mean batch?").await;
    let right = Process::start(&redis, "right", &format!("{url}&batch=100"), &[]);
    right.until_logged("recover: attached").await;
    let logs = [wrong.log(), right.log()];
    assert!(logs[0].contains("bacth") && !logs[1].contains("did you mean"));
    assert!(!logs.concat().contains("hush"), "{logs:?}");
}
