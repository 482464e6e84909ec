//! Rolling deploys: workers of two versions, and events that only the new version knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use seriatim::control::held::WaitsFor;
use seriatim::handlers::{HandlerContext, Handlers};

use crate::support::console::{Console, PATIENCE};
use crate::support::running::start;
use crate::support::{Redis, until};

/// Returns handlers for these types, and the number of events that they have handled.
fn version(types: &[&'static str]) -> (Handlers, Arc<AtomicUsize>) {
    let handled = Arc::new(AtomicUsize::new(0));
    let mut set = Handlers::builder();
    for name in types {
        let handled = Arc::clone(&handled);
        set = set.register_type(*name, *name, move |_: Value, _: HandlerContext| {
            handled.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        });
    }
    (set.build().expect("a set"), handled)
}

/// In a rolling deploy, old workers made dead letters of 99 of 200 events of a new type. Now the
/// objects wait for the new worker, and no event overtakes another.
#[tokio::test]
async fn old_workers_leave_new_types_to_new_workers() {
    let (redis, console) = Redis::start().with_console().await;
    let ((old, by_old), (new, by_new)) = (version(&["created"]), version(&["created", "titled"]));
    let workers = [
        start(&redis, "old-1", &old, |_| {}),
        start(&redis, "old-2", &old, |_| {}),
    ];
    for object in 0..200 {
        let events = [
            r#"{"type":"created"}"#,
            r#"{"type":"titled"}"#,
            r#"{"type":"created"}"#,
        ];
        console.emit_all(&format!("work:{object}"), events).await;
    }
    let control = redis.control().await;
    until("all new events are held", PATIENCE, async || {
        let page = control.held(false, None, 250).await.expect("a page");
        let unknown = page
            .objects
            .iter()
            .filter(|held| held.waits_for == WaitsFor::Unknown);
        (unknown.count() == 200).then_some(())
    })
    .await;
    assert_eq!(
        (by_old.load(Ordering::SeqCst), console.dead().await.len()),
        (200, 0)
    );
    let held = console
        .until_held(
            "work:7",
            "unknown: no handler is registered for events of type \"titled\"",
        )
        .await;
    assert!(
        held.split(' ').nth(2) == Some("0"),
        "an unknown event has no failed attempt: {held}"
    );
    let status = until("the status of a worker tells it", PATIENCE, async || {
        let stats = control.stats().await.expect("stats");
        let mut statuses = stats.workers.into_iter().filter_map(|worker| worker.status);
        statuses.find(|status| status.minute.unknown > 0)
    })
    .await;
    assert!(status.unknown_error.contains("titled"), "{status:?}");
    let third = start(&redis, "new", &new, |_| {});
    until("the new worker has handled them", PATIENCE, async || {
        (by_new.load(Ordering::SeqCst) >= 200).then_some(())
    })
    .await;
    for worker in workers {
        worker.stop().await;
    }
    console.until_at_rest().await;
    third.finish().await;
    let handled = by_old.load(Ordering::SeqCst) + by_new.load(Ordering::SeqCst);
    assert_eq!((handled, console.dead().await.len()), (600, 0));
}

/// Waits until the object is held as unknown, with more hand-outs than these. Returns the hand-outs.
async fn met_more_than(console: &Console, handouts: u32) -> u32 {
    until("a worker has met the event", PATIENCE, async || {
        let held = console
            .held_id("work:1")
            .await
            .filter(|held| held.contains(" unknown: "))?;
        // The first hold of the event may have 0 hand-outs.
        held.split(' ')
            .nth(1)?
            .parse::<u32>()
            .ok()
            .map(|met| met + 1)
            .filter(|met| *met > handouts)
    })
    .await
}

/// The time of the first meeting is kept with the event. So a worker that starts later knows how
/// long the event has waited, and rejects it after the longest wait.
#[tokio::test]
async fn the_longest_wait_goes_on_over_restarts() {
    let (redis, console) = Redis::start().with_console().await;
    let (old, _) = version(&["created"]);
    let worker = start(&redis, "w", &old, |_| {});
    console
        .emit_all(
            "work:1",
            [
                r#"{"type":"created"}"#,
                r#"{"type":"titled"}"#,
                r#"{"type":"created"}"#,
            ],
        )
        .await;
    met_more_than(&console, 0).await;
    worker.stop().await;
    let kept = console.keys.event_handled("work:1");
    let met = async || {
        let fields: Vec<String> = console.run(&["HKEYS", &kept]).await;
        fields
            .into_iter()
            .find(|field| field.starts_with("unknown:"))
            .expect("the time of the first meeting")
    };
    let first = met().await;
    let before = met_more_than(&console, 0).await;
    let worker = start(&redis, "other", &old, |_| {});
    met_more_than(&console, before).await;
    worker.stop().await;
    assert_eq!(met().await, first);
    // The event was first met 25 hours ago.
    let ms: u64 = first.trim_start_matches("unknown:").parse().expect("ms");
    let before = format!("unknown:{}", ms - 25 * 3_600_000);
    let _: u64 = console.run(&["HDEL", &kept, &first]).await;
    let _: u64 = console.run(&["HSET", &kept, &before, "1"]).await;
    let worker = start(&redis, "w", &old, |_| {});
    console.until_at_rest().await;
    worker.finish().await;
    let dead = console.dead().await;
    let error = String::from_utf8_lossy(&dead[0][4].1).into_owned();
    assert_eq!(
        error,
        "no handler is registered for events of type \"titled\"; no worker knew the event for 1d"
    );
    assert_eq!((dead.len(), console.last_id("work:1").await), (1, 3));
}
