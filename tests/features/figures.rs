//! The figures of a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim::sink::Stop;
use seriatim::worker::{ErrorFigures, SlotFigures};

use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{retrying, start};
use crate::support::{Redis, until};

/// Tests the counts of each outcome, the attempts, the times, and the slots.
#[tokio::test]
async fn a_worker_counts_what_it_does() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| match (offer.text().as_str(), offer.before) {
        ("\"bad\"", _) => Act::Stop(Stop::rejected("bad")),
        ("\"down\"", _) => Act::Stop(Stop::transient("down")),
        ("\"busy\"", 0..2) => Act::Stop(Stop::transient("busy")),
        ("\"slow\"", 0) => Act::Stop(Stop::Postponed {
            reason: "slow".to_owned(),
            after: Duration::from_millis(1),
        }),
        ("\"long\"", _) => Act::Wait(waits.clone()),
        _ => Act::Send,
    });
    console
        .emit_all("many:1", (0..20).map(|n| n.to_string()))
        .await;
    for event in ["bad", "down", "busy", "slow"] {
        console
            .emit(&format!("{event}:1"), format!("\"{event}\""))
            .await;
    }
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=3,then=complete-with-errors"),
    );
    sink.until_sent(22).await;
    console.until_at_rest().await;
    let seen = until("the last commit is counted", PATIENCE, async || {
        let seen = worker.vitals.figures();
        (seen.delivered == 22
            && seen.completed_with_errors == 1
            && seen.slots.free + seen.slots.asked == 4)
            .then_some(seen)
    })
    .await;
    assert_eq!((seen.rejected, seen.delivery.rejected.count()), (1, 1));
    assert_eq!(
        (
            seen.delivery.transient.count(),
            seen.delivery.postponed.count()
        ),
        (3 + 2, 1)
    );
    // Held for a retry: `down` twice, `busy` twice, `slow` once.
    assert_eq!(
        (seen.holds.retry, seen.holds.attempts, seen.holds.stop),
        (5, 0, 0)
    );
    assert_eq!(
        (
            seen.attaches.fresh,
            seen.attaches.resumed,
            seen.takeovers,
            seen.is_attached
        ),
        (1, 0, 0, true)
    );
    assert_eq!(seen.errors, ErrorFigures::default());
    // 24 events are finalized: 22 delivered, 1 rejected, 1 completed with errors.
    assert_eq!(
        (seen.attempts.count(), seen.attempts.sum),
        (24, 22.0 + 3.0 + 3.0)
    );
    assert!(
        seen.batch.count() >= 3 && (seen.batch.sum - 22.0).abs() < 0.5,
        "{seen:?}"
    );
    for times in [&seen.delivery.delivered, &seen.commit, &seen.calls.advance] {
        assert!(
            times.count() >= 3 && times.sum > 0.0 && times.quantile(0.5).is_some(),
            "{times:?}"
        );
    }
    console.emit("long:1", "\"long\"").await;
    gate.until_reached(1).await;
    let seen = until("a slot delivers", PATIENCE, async || {
        let seen = worker.vitals.figures();
        (seen.slots.delivering == 1).then_some(seen)
    })
    .await;
    let longest = seen.longest.expect("a delivery is under way");
    assert_eq!(
        (longest.object.as_str(), longest.since < PATIENCE),
        ("long:1", true)
    );
    gate.open();
    let idle = |slots: SlotFigures| slots.free + slots.asked == 4;
    until("all slots are idle", PATIENCE, async || {
        idle(worker.vitals.figures().slots).then_some(())
    })
    .await;
    assert_eq!(worker.vitals.figures().longest, None);
    let vitals = worker.vitals.clone();
    worker.finish().await;
    assert!(!vitals.figures().is_attached);
}

/// A rejection is a try, but no failed attempt. So an event that fails twice, and then is rejected, had
/// three tries, and its dead letter has two attempts.
#[tokio::test]
async fn a_rejection_after_failures_is_a_try() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match offer.before {
        0..2 => Act::Stop(Stop::transient("busy")),
        _ => Act::Stop(Stop::rejected("bad")),
    });
    let worker = start(&redis, "w", &sink, retrying("fixed:1ms"));
    console.emit("work:1", "1").await;
    let seen = until("it is rejected", PATIENCE, async || {
        let seen = worker.vitals.figures();
        (seen.rejected == 1).then_some(seen)
    })
    .await;
    assert_eq!((seen.attempts.count(), seen.attempts.sum), (1, 3.0));
    console.until_at_rest().await;
    worker.finish().await;
    let dead = console.dead().await;
    let attempts = dead[0]
        .iter()
        .find(|(field, _)| field == "attempts")
        .map(|(_, value)| value.as_slice());
    assert_eq!(attempts, Some(&b"2"[..]));
}

/// Tests that the figures show since when the sink is unavailable, and the error.
#[tokio::test]
async fn an_unavailable_sink_is_shown_with_its_error() {
    let (redis, console) = Redis::start().with_console().await;
    let up = Arc::new(AtomicBool::new(false));
    let is_up = Arc::clone(&up);
    let sink = Recorder::with(move |_| match is_up.load(Ordering::SeqCst) {
        true => Act::Send,
        false => Act::Stop(Stop::unavailable("no route to the receiver")),
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    let seen = until("the sink is down", PATIENCE, async || {
        let seen = worker.vitals.figures();
        seen.sink.down_for.is_some().then_some(seen)
    })
    .await;
    assert_eq!(
        (seen.sink.error.as_str(), seen.sink.outages),
        ("no route to the receiver", 1)
    );
    up.store(true, Ordering::SeqCst);
    sink.until_sent(1).await;
    let seen = until("the sink is up", PATIENCE, async || {
        let seen = worker.vitals.figures();
        seen.sink.down_for.is_none().then_some(seen)
    })
    .await;
    assert_eq!((seen.sink.error.as_str(), seen.sink.outages), ("", 1));
    assert!(seen.delivery.unavailable.count() >= 1);
    worker.finish().await;
}

/// Tests that a process counts how it took its name, the names that it took over, and the errors of
/// Redis.
#[tokio::test]
async fn attaches_takeovers_and_errors_are_counted() {
    let mut redis = Redis::own(&[]);
    let console = redis.console().await;
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.before == 0 {
            Act::Wait(waits.clone())
        } else {
            Act::Send
        }
    });
    let dies = start(&redis, "dies", &sink, |_| {});
    console.emit("work:1", "1").await;
    gate.until_reached(1).await;
    dies.crash().await;
    console.end_lease("dies").await;
    let worker = start(&redis, "w", &sink, |config| {
        config.lease = Duration::from_secs(2)
    });
    let seen = until("the name is taken over", PATIENCE, async || {
        let seen = worker.vitals.figures();
        (seen.takeovers == 1).then_some(seen)
    })
    .await;
    assert_eq!(seen.attaches.fresh, 1);
    sink.until_sent(1).await;
    // Opens the gate for the event of the dead process.
    gate.open();
    redis.server().kill();
    until("the worker meets errors", PATIENCE, async || {
        (worker.vitals.figures().errors.connection > 0).then_some(())
    })
    .await;
    redis.server().restart();
    let console = redis.console().await;
    console.emit("work:2", "2").await;
    sink.until_sent(2).await;
    worker.finish().await;
}

/// Tests that the age of an event counts from the time in the event to its commit. An event without
/// a time is only counted.
#[tokio::test]
async fn events_have_an_age_by_their_own_time() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(
        |offer| match (offer.text().contains("later"), offer.before) {
            (true, 0) => Act::Stop(Stop::transient("later")),
            _ => Act::Send,
        },
    );
    let worker = start(&redis, "w", &sink, |config| {
        config.event_time = Some("/at".parse().expect("a pointer"))
    });
    let now_ms: u64 = console.run::<(u64, u64)>(&["TIME"]).await.0 * 1000;
    let ago = |ms: u64| format!("{{\"at\":{}}}", now_ms - ms);
    console
        .emit_all(
            "work:1",
            [
                ago(50_000),
                ago(60_000),
                "7".to_owned(),
                "{\"at\":\"soon\"}".to_owned(),
            ],
        )
        .await;
    console
        .emit(
            "work:2",
            format!("{{\"at\":{},\"later\":1}}", now_ms - 3_600_000),
        )
        .await;
    sink.until_sent(5).await;
    let seen = until("5 events are counted", PATIENCE, async || {
        let seen = worker.vitals.figures();
        (seen.event_age.count() + seen.without_time == 5).then_some(seen)
    })
    .await;
    assert_eq!((seen.event_age.count(), seen.without_time), (3, 2));
    let sum = seen.event_age.sum;
    assert!((3_710.0..3_710.0 + 60.0).contains(&sum), "{sum}");
    worker.finish().await;
}
