//! The age of the oldest marker, with and without those that wait for a limit.

use std::time::Duration;

use seriatim::control::By;
use seriatim::control::shares::Share;

use crate::support::console::PATIENCE;
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, until};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// With a rate of one event per second, the age of the oldest marker grew, and the alert said that
/// the workers were too few, with 254 of 256 slots free. Now a marker that waits for a limit has an
/// age of its own.
#[tokio::test]
async fn what_waits_for_a_rate_waits_for_no_worker() {
    let redis = Redis::start();
    let (console, sink) = (redis.console().await, Recorder::new());
    let control = redis.control().await;
    control
        .set_share(
            BY,
            &"mail:*".parse().expect("a selector"),
            Share::new().rate(1.0),
        )
        .await
        .expect("set");
    let worker = start(&redis, "w", &sink, |config| {
        (config.concurrency, config.sweep) = (64, Duration::from_millis(200))
    });
    console.until_idle(1).await;
    for n in 0..40 {
        console.emit(&format!("mail:{n}"), "1").await;
    }
    let stats = until("markers have waited for the rate", PATIENCE, async || {
        let stats = control.stats().await.expect("stats");
        stats
            .oldest_limited_ms
            .is_some_and(|ms| ms >= 5000)
            .then_some(stats)
    })
    .await;
    assert!(
        stats.oldest_waiting_ms.is_some_and(|ms| ms <= 3000) && stats.held.overdue_ms <= 3000,
        "{stats:?}"
    );
    // Without a worker, a marker that may be taken waits for one.
    worker.stop().await;
    console.emit("other:1", "1").await;
    let stats = until("a marker has waited for a worker", PATIENCE, async || {
        control.mark().await.expect("marked");
        let stats = control.stats().await.expect("stats");
        stats
            .oldest_waiting_ms
            .is_some_and(|ms| ms >= 4000)
            .then_some(stats)
    })
    .await;
    assert!(
        stats.oldest_limited_ms > stats.oldest_waiting_ms,
        "{stats:?}"
    );
    control
        .remove_share(BY, &"mail:*".parse().expect("a selector"))
        .await
        .expect("removed");
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(41).await;
    console.until_at_rest().await;
    worker.finish().await;
}
