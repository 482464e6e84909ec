//! Rules with real workers.

use std::time::Duration;

use seriatim::control::rules::{Kind, Ruled};
use seriatim::sink::Stop;

use super::{lift, set, set_for};
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{Running, policy, retrying, start};
use crate::support::{Redis, assert_matches, until};

/// Starts a worker. Returns it with its Redis, a console and a connection.
async fn running(sink: &Recorder) -> (Redis, Running, Console, redis::aio::MultiplexedConnection) {
    let redis = Redis::start();
    let worker = start(&redis, "w", sink, |_| ());
    let (console, conn) = (redis.console().await, redis.connect().await);
    (redis, worker, console, conn)
}

async fn until_paused(console: &Console, object: &str) {
    let paused = console.keys.objects_paused();
    let score = async || {
        console
            .run::<Option<f64>>(&["ZSCORE", &paused, object])
            .await
            .map(drop)
    };
    until(&format!("{object} is paused"), PATIENCE, score).await;
}

async fn until_no_rule(console: &Console) {
    let rules = console.keys.event_rules();
    until("the rules are gone", PATIENCE, async || {
        (console.run::<u64>(&["EXISTS", &rules]).await == 0).then_some(())
    })
    .await;
}

/// Returns the other kind of rule.
fn other(kind: Kind) -> Kind {
    match kind {
        Kind::Pause => Kind::Block,
        Kind::Block => Kind::Pause,
    }
}

/// Waits until one rule is left. Returns its kind.
async fn until_one_rule(console: &Console) -> Kind {
    let control = console.control();
    until("one rule is left", PATIENCE, async || {
        let rules = control.rules().await.expect("rules").rules;
        (rules.len() == 1).then(|| rules[0].kind)
    })
    .await
}

/// A pause and a block are set for the same objects, in either order. One of the two is lifted, and
/// the other one still holds the objects.
#[tokio::test]
async fn of_a_pause_and_a_block_the_one_that_is_left_holds_on() {
    for first in [Kind::Pause, Kind::Block] {
        for lifted in [Kind::Pause, Kind::Block] {
            let sink = Recorder::new();
            let (redis, worker, console, conn) = running(&sink).await;
            let second = other(first);
            let left = other(lifted);
            assert_eq!(set(&conn, redis.keys(), first, "work:*").await, Ruled::New);
            console.emit("work:1", "1").await;
            until_paused(&console, "work:1").await;
            assert_eq!(set(&conn, redis.keys(), second, "work:*").await, Ruled::New);
            let done = lift(&conn, redis.keys(), lifted, "work:*").await;
            assert_eq!(done, Ruled::Lifted);
            // Workers delete a lifted rule after they have woken its objects, except objects under
            // another rule. So an object that is still paused after the deletion stays paused.
            assert_eq!(until_one_rule(&console).await, left);
            console.emit("other", "2").await;
            sink.until_sent(1).await;
            until_paused(&console, "work:1").await;
            assert_eq!(sink.sent_of("work:1"), [""; 0]);
            console.check().await;
            lift(&conn, redis.keys(), left, "work:*").await;
            sink.until_sent(2).await;
            worker.finish().await;
            console.until_at_rest().await;
        }
    }
}

/// After nine resumes in a row, each event is delivered once.
#[tokio::test]
async fn nine_resumes_in_a_row_run_the_event_once() {
    let sink = Recorder::new();
    let (redis, worker, console, conn) = running(&sink).await;
    set(&conn, redis.keys(), Kind::Pause, "work:1").await;
    console.emit("work:1", "1").await;
    until_paused(&console, "work:1").await;
    let done = lift(&conn, redis.keys(), Kind::Pause, "work:1").await;
    assert_eq!(done, Ruled::Lifted);
    for _ in 1..9 {
        let again = lift(&conn, redis.keys(), Kind::Pause, "work:1").await;
        assert_matches!(again, Ruled::Lifting | Ruled::NotSet);
    }
    sink.until_sent(1).await;
    until_no_rule(&console).await;
    worker.finish().await;
    assert_eq!(sink.offered().len(), 1);
    console.until_at_rest().await;
}

/// A rule with an end counts as lifted from its end on. Its objects continue without an emit and
/// without an operator.
#[tokio::test]
async fn a_rule_lifts_itself_at_its_end() {
    let sink = Recorder::new();
    let (redis, worker, console, conn) = running(&sink).await;
    set_for(
        &conn,
        redis.keys(),
        Kind::Block,
        "*",
        Duration::from_secs(3),
    )
    .await;
    console.emit("work:1", "1").await;
    until_paused(&console, "work:1").await;
    sink.until_sent(1).await;
    until_no_rule(&console).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// When a rule is set, events in flight finish and later events are not claimed. Producers can
/// still emit. After the rule is lifted, all events are delivered in order.
#[tokio::test]
async fn what_is_in_flight_finishes_and_emits_go_on() {
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "1" {
            Act::Wait(waits.clone())
        } else {
            Act::Send
        }
    });
    let (redis, worker, console, conn) = running(&sink).await;
    console.emit("work:1", "1").await;
    gate.until_reached(1).await;
    set(&conn, redis.keys(), Kind::Pause, "work:*").await;
    console.emit_all("work:1", ["2", "3"]).await;
    console.emit("work:2", "21").await;
    gate.open();
    until_paused(&console, "work:1").await;
    until_paused(&console, "work:2").await;
    console.emit("work:1", "4").await;
    console.emit("other", "31").await;
    until("the other one is sent", PATIENCE, async || {
        (!sink.sent_of("other").is_empty()).then_some(())
    })
    .await;
    assert_eq!(
        (sink.sent_of("work:1"), sink.sent_of("work:2")),
        (vec!["1".to_owned()], vec![])
    );
    console.check().await;
    lift(&conn, redis.keys(), Kind::Pause, "work:*").await;
    sink.until_sent(6).await;
    worker.finish().await;
    assert_eq!(sink.applied_of("work:1"), ["1", "2", "3", "4"]);
    console.until_at_rest().await;
}

/// An event that waits for a retry also waits for a rule. It keeps its failed attempts and its id.
#[tokio::test]
async fn a_retry_waits_for_the_rule_and_stays_counted() {
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.before == 0 {
            Act::WaitThenStop(waits.clone(), Stop::transient("down"))
        } else {
            Act::Send
        }
    });
    let (redis, worker, console, conn) = running(&sink).await;
    worker.finish().await;
    let worker = start(&redis, "w", &sink, retrying("fixed:200ms"));
    console.emit("work:1", "1").await;
    // The rule is there before the retry is due, however slow the host is.
    gate.until_reached(1).await;
    set(&conn, redis.keys(), Kind::Pause, "work:1").await;
    gate.open();
    until_paused(&console, "work:1").await;
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("1 0 1 0 retry: down")
    );
    assert_eq!(sink.offered().len(), 1);
    console.check().await;
    lift(&conn, redis.keys(), Kind::Pause, "work:1").await;
    sink.until_sent(1).await;
    assert_eq!(
        (
            sink.sent()[0].id,
            sink.sent()[0].attempts,
            sink.sent()[0].crashes
        ),
        (1, 1, 0)
    );
    worker.finish().await;
    console.until_at_rest().await;
}

/// The policy allows only one attempt. Events are paused and blocked again and again, in flight and
/// queued. No pause and no block counts as an attempt.
#[tokio::test]
async fn a_pause_counts_nothing() {
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "1" {
            Act::Wait(waits.clone())
        } else {
            Act::Send
        }
    });
    let (redis, console) = Redis::start().with_console().await;
    let conn = redis.connect().await;
    let worker = start(&redis, "w", &sink, |config| {
        config.retry = policy("fixed:1ms,attempts=1,then=dead-letter");
        config.batch = 1;
    });
    console.emit("work:1", "1").await;
    gate.until_reached(1).await;
    // The event is in flight, and another event is queued behind it.
    set(&conn, redis.keys(), Kind::Pause, "work:1").await;
    console.emit("work:1", "2").await;
    gate.open();
    until_paused(&console, "work:1").await;
    // The event is queued. At any time at least one of the two rules is set.
    for _ in 0..5 {
        set(&conn, redis.keys(), Kind::Block, "*").await;
        lift(&conn, redis.keys(), Kind::Pause, "work:1").await;
        until_one_rule(&console).await;
        set(&conn, redis.keys(), Kind::Pause, "work:1").await;
        lift(&conn, redis.keys(), Kind::Block, "*").await;
        until_one_rule(&console).await;
    }
    lift(&conn, redis.keys(), Kind::Pause, "work:1").await;
    sink.until_sent(2).await;
    worker.finish().await;
    assert!(
        sink.offered()
            .iter()
            .all(|offer| (offer.attempts, offer.crashes, offer.before) == (0, 0, 0)),
        "{:?}",
        sink.offered()
    );
    assert_eq!(
        (sink.applied_of("work:1"), console.dead().await.len()),
        (vec!["1".to_owned(), "2".to_owned()], 0)
    );
    console.until_at_rest().await;
}
