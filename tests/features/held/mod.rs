//! Held objects and operators: listing, releasing, skipping the first event.

mod list;
mod many;
mod skip;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use seriatim::control::By;
use seriatim::control::held::{Released, Skipped};
use seriatim::sink::Stop;

use crate::support::console::PATIENCE;
use crate::support::operator::{Reads, assert_wrong_type};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::{retrying, start};
use crate::support::{Redis, until};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "known",
};

/// A released object is due at once, whatever the reason of its hold, and keeps its numbers. The
/// release wakes an idle worker.
#[tokio::test]
async fn a_released_object_is_tried_at_once_and_stays_counted() {
    let (redis, state) = Redis::start().with_state().await;
    let control = state.control();
    let console = redis.console().await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let sink = Recorder::with(move |_| match is_down.load(Ordering::SeqCst) {
        true => Act::Stop(Stop::transient("down")),
        false => Act::Send,
    });
    let worker = start(&redis, "w", &sink, retrying("fixed:1h"));
    console.emit("work:1", "1").await;
    console.until_held("work:1", "retry: down").await;
    down.store(false, Ordering::SeqCst);
    let released = control.release(ADA, "work:1").await.expect("an answer");
    assert_eq!(released, Released::Released("retry: down".to_owned()));
    sink.until_sent(1).await;
    assert_eq!((sink.sent()[0].attempts, sink.sent()[0].id), (1, 1));
    worker.finish().await;
    let kept = control.recorded(1).await.remove(0);
    assert_eq!(
        (kept.action.as_str(), kept.who.as_str(), kept.why.as_str()),
        ("release", "ada@host", "known")
    );
    assert_eq!(
        (kept.object.as_str(), kept.id, kept.error.as_deref()),
        ("work:1", Some(1), Some("retry: down"))
    );
    console.until_at_rest().await;
}

/// A release pushes an empty marker, which wakes a worker that waits for markers.
#[tokio::test]
async fn a_release_wakes_a_worker() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let (console, control) = (state.console(), state.control());
    let why = "1 0 1 0 attempts: failed 1 times, at last: x";
    state.hold("work:1", "inf", &["1"], why).await;
    control.release(ADA, "work:1").await.expect("released");
    assert_eq!(console.due("work:1").await, Some(0.0));
    assert_eq!(console.markers().await, [""]);
    assert_eq!(console.held_id("work:1").await.as_deref(), Some(why));
    console.check().await;
}

/// Only held objects can be released or skipped. A refused call changes no object and records no
/// action.
#[tokio::test]
async fn what_is_not_held_is_not_released() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
    let keys = redis.keys().clone();
    state.add("LPUSH work:9:events.held {}").await;
    state.add("SET work:9:events.held.id '16 0 0 0 rule'").await;
    for (object, owner) in [("work:2", "a.0"), ("work:1", ""), ("never", "")] {
        let refused = control.release(ADA, object).await.expect("an answer");
        assert_eq!(refused, Released::NotHeld(owner.to_owned()));
        let refused = control.skip(ADA, object, None).await.expect("an answer");
        assert_eq!(refused, Skipped::NotHeld(owner.to_owned()));
    }
    // The object `work:9` waits for a rule, not for a time.
    assert_eq!(
        control.release(ADA, "work:9").await.expect("an answer"),
        Released::Paused
    );
    assert_eq!(
        control.skip(ADA, "work:9", None).await.expect("an answer"),
        Skipped::Paused
    );
    let console = redis.console().await;
    assert_eq!(
        (console.due("work:2").await, console.due("work:9").await),
        (None, None)
    );
    assert_eq!(console.list(&keys.worker_event("a.0")).await.len(), 2);
    assert_eq!(control.recorded(1).await, []);
    console.check().await;
}

/// A key of a wrong type is reported before the first write. Half a skip would lose or duplicate
/// the event.
#[tokio::test]
async fn a_key_of_a_wrong_type_leaves_everything_as_it_is() {
    let (redis, mut state) = Redis::start().with_state().await;
    let (console, control, keys) = (state.console(), state.control(), redis.keys());
    let why = "1 0 1 0 attempts: failed 1 times, at last: x";
    state.hold("work:1", "inf", &["1", "2"], why).await;
    state.add("SET work:1:last.event.id 0").await;
    let both = [
        keys.objects_held(),
        keys.objects_with_events(),
        keys.operator_actions(),
        keys.objects_paused(),
    ];
    let [batch, numbers] = [keys.events_held("work:1"), keys.events_held_id("work:1")];
    let skips = [
        keys.events_dead(),
        batch,
        numbers,
        keys.last_event_id("work:1"),
        keys.event_handled("work:1"),
    ];
    for (at, key) in both.iter().chain(&skips).enumerate() {
        let was: bool = console.run(&["EXISTS", key]).await;
        if was {
            state.run("RENAME", &[key, "aside"]).await;
        }
        state.run("SADD", &[key, "wrong"]).await;
        assert_wrong_type(&control.skip(ADA, "work:1", None).await, key);
        if at < both.len() {
            assert_wrong_type(&control.release(ADA, "work:1").await, key);
        }
        state.run("DEL", &[key]).await;
        if was {
            state.run("RENAME", &["aside", key]).await;
        }
        let batch = console.list(&keys.events_held("work:1")).await;
        assert_eq!(batch, ["1", "2"], "{key}");
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY), "{key}");
    }
    assert_eq!(
        (console.dead().await.len(), console.markers().await.len()),
        (0, 0)
    );
    // An owner key of a wrong type counts as an absent owner.
    state
        .add("DEL work:1:event.worker; SADD work:1:event.worker wrong")
        .await;
    let refused = control.skip(ADA, "work:1", None).await.expect("an answer");
    assert_eq!(refused, Skipped::NotHeld(String::new()));
}

/// Tests the output and exit codes of the commands.
#[tokio::test]
async fn the_commands_list_release_and_skip() {
    let (redis, _state) = Redis::start().with_clean_state().await;
    let printed = redis.prints("held list");
    let expected = "work:5  retry, due now\n  event  id 15, 3 failed attempts, 0 crashes, 1 events in hand\n  why    retry: connection refused\n";
    assert!(printed.starts_with(expected), "{printed}");
    let (operator, ruled) = printed.split_once("work:9  ").expect("the paused one");
    assert!(
        operator.ends_with("work:7  operator, until released\n  why    crashes: died 5 times with this event in hand\n"),
        "{printed}"
    );
    assert!(
        ruled.starts_with("paused, until resumed\n  rule   pause work:9\n         by     ada, "),
        "{printed}"
    );
    assert!(
        ruled.ends_with(" ago, until it is lifted\n         why    not yet\n"),
        "{printed}"
    );
    assert!(
        printed.lines().all(|line| line.chars().count() <= 80),
        "{printed}"
    );
    let one = redis.json("held list --json --limit 1");
    assert_eq!(
        (&one["object"], &one["waits_for"], &one["attempts"]),
        (
            &Value::from("work:5"),
            &Value::from("retry"),
            &Value::from(3)
        )
    );
    let waiting = redis.prints("held list --until-released");
    assert!(
        waiting.starts_with("work:7  operator") && !waiting.contains("work:9"),
        "{waiting}"
    );
    let paused = redis.prints("held list --paused");
    assert_eq!(paused, format!("work:9  {ruled}"));
    let paused = redis.json("held list --paused --json");
    assert_eq!(
        (&paused["waits_for"], &paused["due_ms"]),
        (&Value::from("rule"), &Value::Null)
    );
    assert_eq!(
        (&paused["rules"][0]["kind"], &paused["rules"][0]["selector"]),
        (&Value::from("pause"), &Value::from("work:9"))
    );
    let all = redis.prints("held list --json");
    assert_eq!(
        (
            all.lines().count(),
            all.lines()
                .filter(|line| line.contains(r#""waits_for":"rule""#))
                .count()
        ),
        (5, 1)
    );
    assert_eq!(
        redis.prints("held list --json --limit 4").lines().count(),
        4
    );
    assert_eq!(redis.exits("held list --paused --until-released"), Some(2));
    redis.prints("block *");
    assert!(
        redis
            .prints("held list --paused")
            .starts_with("work:9  blocked, until unblocked\n  rule   block *\n")
    );
    redis.prints("unblock *");

    let released = redis.prints("held release work:6 --reason now --actor bob");
    assert_eq!(released, "released, it was held: retry: soon\n");
    let skipped = redis.prints("held skip work:5 --id 15");
    assert!(
        skipped.starts_with("event 15 is dead letter ")
            && skipped.ends_with("; 0 events of its batch go on\n"),
        "{skipped}"
    );
    for (arguments, why) in [
        (
            "held release work:2",
            "work:2 is not held, worker a.0 has it",
        ),
        ("held release never", "never is not held, it has no owner"),
        (
            "held skip work:8",
            "the object has no event that was in hand",
        ),
        ("held release work:9", "a rule holds work:9"),
        ("held skip work:9", "a rule holds work:9"),
        ("held skip work:6 --id 15", "the id 16"),
        ("held release ''", "must not be empty"),
    ] {
        let output = redis.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2)
                && message.contains(why)
                && message.lines().count() == 1,
            "{arguments}: {message}"
        );
    }
    let kept = redis.prints("actions");
    assert!(
        kept.contains("release  work:6  id 16\n  by     bob, ") && kept.contains("  why    now\n"),
        "{kept}"
    );
    let report = redis.prints("check");
    assert!(
        report.ends_with("as far as Redis can show it\n"),
        "{report}"
    );
}

/// An operator releases an object before its retry is due. The failed attempts stay counted, so the
/// retry policy still ends them.
#[tokio::test]
async fn releases_do_not_lift_the_limit() {
    let (redis, state) = Redis::start().with_state().await;
    let control = state.control();
    let console = redis.console().await;
    let sink = Recorder::with(|_| Act::Stop(Stop::transient("down")));
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1h,attempts=3,then=dead-letter"),
    );
    console.emit("work:1", "1").await;
    for attempts in 1..3 {
        until("it has failed", PATIENCE, async || {
            let held = console.held_id("work:1").await?;
            (held.split(' ').nth(2) == Some(attempts.to_string().as_str())).then_some(())
        })
        .await;
        control.release(ADA, "work:1").await.expect("released");
    }
    until("it is dead", PATIENCE, async || {
        (console.dead().await.len() == 1).then_some(())
    })
    .await;
    worker.finish().await;
    assert_eq!(sink.offered().len(), 3);
}

/// Story: Redis evicted `objects.held`, and the held objects waited for ever. Workers dropped the
/// marker of each emit, because the object was held. No command released such an object.
#[tokio::test]
async fn an_object_that_is_held_and_in_no_set_is_released() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    state
        .hold("work:1", "inf", &["1"], "7 0 1 0 attempts: 5: down")
        .await;
    state.add("DEL objects.held").await;
    let released = control.release(ADA, "work:1").await.expect("an answer");
    assert_eq!(released, Released::Released("attempts: 5: down".to_owned()));
    let sink = Recorder::with(|_| Act::Send);
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
}
