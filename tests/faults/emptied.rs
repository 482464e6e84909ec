//! Redis comes back empty, or has lost its counter: no id is given to a second event, and receivers
//! apply every new event.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rstest::rstest;
use seriatim::consume::{Gate, Start, Verdict};

use crate::support::console::{Console, PATIENCE};
use crate::support::process::{Process, Sent, sent_to};
use crate::support::recorder::Recorder;
use crate::support::running::{config, start};
use crate::support::{Redis, until};

/// Worker options without a chosen first id.
const PLAIN: [&str; 2] = ["--first-id", "0"];

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros() as u64
}

fn file_sink(dir: &Path, name: &str) -> (PathBuf, String) {
    let file = dir.join(name);
    let sink = format!("file:{}", file.display());
    (file, sink)
}

async fn until_written(file: &Path, events: usize) -> Vec<Sent> {
    until(
        &format!("{events} events are written"),
        PATIENCE,
        async || {
            let sent = sent_to(file);
            (sent.len() >= events).then_some(sent)
        },
    )
    .await
}

/// Asserts that every event passes the receiver's gate, and applies it.
async fn take(gate: &mut Gate, sent: &[Sent]) {
    for Sent {
        object, id, prev, ..
    } in sent
    {
        assert_eq!(
            gate.check(object, *id, *prev).await.expect("sound numbers"),
            Verdict::Apply,
            "{id} after {prev}"
        );
        gate.applied(object, *id, *prev).await.expect("applied");
    }
}

/// Story: a worker delivered two events, and then stood still or was killed. A Redis without
/// persistence was killed and restarted. Another worker began again with id 1. Receivers dropped
/// the new events as duplicates.
#[rstest]
#[case::while_a_process_stands_still(true)]
#[case::while_no_process_is_left(false)]
#[tokio::test]
async fn a_redis_that_comes_back_empty_gives_no_id_again(#[case] stands_still: bool) {
    let mut redis = Redis::own(&[]);
    let dir = tempfile::tempdir().expect("a directory");
    let began = now_us();
    let (a_file, a_sink) = file_sink(dir.path(), "a");
    let mut a = Process::start(&redis, "a", &a_sink, &PLAIN);
    redis.console().await.emit_all("work:1", ["1", "2"]).await;
    let before = until_written(&a_file, 2).await;
    assert!(
        before[0].id > began,
        "a new namespace begins at the time: {before:?}"
    );
    if stands_still {
        a.pause();
    } else {
        a.kill();
    }
    redis.server().restart();

    let (b_file, b_sink) = file_sink(dir.path(), "b");
    let mut b = Process::start(&redis, "b", &b_sink, &PLAIN);
    redis.console().await.emit_all("work:1", ["3", "4"]).await;
    let after = until_written(&b_file, 2).await;
    assert!(
        after[0].id > before[1].id && after[0].prev == 0,
        "{before:?}, {after:?}"
    );
    for start in [Start::Origin, Start::FirstSeen] {
        let mut remembers = Gate::new(start);
        take(&mut remembers, &before).await;
        take(&mut remembers, &after).await;
        take(&mut Gate::new(start), &after).await;
    }
    b.terminate();
    assert!(b.ended().await.success());
    if stands_still {
        a.go_on();
        redis.console().await.emit("work:1", "5").await;
        let last = until_written(&a_file, 3).await.remove(2);
        assert!(
            last.id > after[1].id && last.prev == after[1].id,
            "{after:?}, {last:?}"
        );
    }
}

/// Deletes the counter under a running worker, as eviction does, or sets it to a lower value.
async fn lose_counter(console: &Console, counter: Option<&str>) {
    let key = console.keys.next_event_id();
    match counter {
        Some(counter) => console.run::<()>(&["SET", &key, counter]).await,
        None => drop(console.run::<u64>(&["DEL", &key]).await),
    }
}

/// Story: Redis lost only the counter, and the connections lived. The worker that had given the ids
/// 1 and 2 gave these ids again.
#[rstest]
#[case::evicted(None)]
#[case::set_back(Some("1"))]
#[tokio::test]
async fn a_counter_that_is_lost_under_a_running_worker_gives_no_id_again(
    #[case] counter: Option<&str>,
) {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit_all("work:1", ["1", "2"]).await;
    console.until_at_rest_after(2).await;
    console.until_idle(1).await;
    let began = now_us();
    lose_counter(&console, counter).await;
    console.emit_all("work:2", ["3", "4"]).await;
    sink.until_sent(4).await;
    console.until_at_rest().await;
    worker.finish().await;
    let ids: Vec<_> = sink.sent().into_iter().map(|offer| offer.id).collect();
    assert_eq!(ids[..2], [1, 2]);
    assert!(ids[2] > began && ids[3] > ids[2], "{ids:?}");
    console.check().await;
}

/// The counter is from an earlier state, but the object's last id is not. No living process has
/// seen the ids between the two.
#[tokio::test]
async fn a_counter_below_the_last_id_of_an_object_gives_no_id_again() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "a", &sink, |_| {});
    console
        .emit_all("work:1", (0..50).map(|n| n.to_string()))
        .await;
    console.until_at_rest_after(50).await;
    worker.finish().await;
    lose_counter(&console, Some("10")).await;
    let began = now_us();
    console.emit_all("work:1", ["50"]).await;
    let worker = start(&redis, "b", &sink, |_| {});
    sink.until_sent(51).await;
    console.until_at_rest().await;
    worker.finish().await;
    let last = sink.sent().pop().expect("an event");
    assert!(last.id > began && last.prev == 50, "{last:?}");
    assert_eq!(sink.applied_of("work:1").len(), 51, "a receiver takes it");
    console.check().await;
}

/// A new namespace begins at the chosen first id. A namespace with data keeps its counter.
#[tokio::test]
async fn a_chosen_first_id_is_where_a_new_namespace_begins() {
    let (redis, console) = Redis::start().with_console().await;
    for (first_id, expected) in [(7, 7), (0, 8), (7, 9)] {
        let sink = Recorder::new();
        console.emit("work:1", "1").await;
        let worker = start(&redis, "w", &sink, |config| config.first_id = first_id);
        sink.until_sent(1).await;
        worker.finish().await;
        assert_eq!(sink.sent()[0].id, expected);
    }
    assert_eq!(
        seriatim::worker::WorkerConfig::default().first_id,
        0,
        "nobody has chosen"
    );
    assert_eq!(config(&redis, "w").first_id, 1, "tests have");
}
