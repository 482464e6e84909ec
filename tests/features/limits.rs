//! Limits of the queues: an emit above a limit is refused as a whole.

use std::fmt::Debug;
use std::num::NonZeroU64;

use seriatim::control::limits::{LIMITS_MAX, LimitDone};
use seriatim::control::rules::Selector;
use seriatim::control::{By, Control, ControlError};
use seriatim::emit::Full;
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::console::{Console, PATIENCE};
use crate::support::operator::{Reads, assert_wrong_type};
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, assert_matches, until};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

async fn setup() -> (Redis, Console, Control) {
    let (redis, console) = Redis::start().with_console().await;
    let control = console.control();
    (redis, console, control)
}

async fn try_set(
    control: &Control,
    selector: &str,
    queued: u64,
    markers: u64,
) -> Result<LimitDone, ControlError> {
    let selector: Selector = selector.parse().expect("a selector");
    let [queued, markers] = [queued, markers].map(NonZeroU64::new);
    control.set_limit(BY, &selector, queued, markers).await
}

async fn set(control: &Control, selector: &str, queued: u64, markers: u64) -> LimitDone {
    let done = try_set(control, selector, queued, markers).await;
    done.expect("set")
}

/// Removes the limit of `work:*`, and then finds none.
async fn remove(control: &Control) {
    let selector: Selector = "work:*".parse().expect("a selector");
    for expected in [LimitDone::Removed, LimitDone::NotSet] {
        let done = control.remove_limit(BY, &selector).await;
        assert_eq!(done.expect("no error"), expected);
    }
}

/// Emits an event, which is queued.
async fn emit(emitter: &Emitter, object: &str, n: u32) -> u64 {
    let emitted = emitter.emit(object, event(n)).await;
    emitted.expect("queued").queued
}

/// Emits an event, which does not fit. Returns what is full.
async fn full(emitter: &Emitter, object: &str, n: u32) -> Full {
    of_full(emitter.emit(object, event(n)).await)
}

fn of_full<T: Debug>(emitted: Result<T, EmitError>) -> Full {
    match emitted {
        Err(EmitError::Full { full, .. }) => full,
        other => panic!("{other:?}"),
    }
}

/// Fails unless an emit is refused because there are as many markers as the limit.
async fn assert_markers_full(emitter: &Emitter, object: &str, limit: u64) {
    let markers = limit;
    let full = full(emitter, object, 1).await;
    assert_eq!(full, Full::Markers { markers, limit });
}

fn event(n: u32) -> Json {
    Json::new(n.to_string())
}

#[tokio::test]
async fn a_full_queue_refuses_an_emit_and_nothing_is_half_done() {
    let (redis, console, control) = setup().await;
    assert_eq!(set(&control, "*", 3, 0).await, LimitDone::New);
    assert_eq!(set(&control, "vip:*", 5, 0).await, LimitDone::New);
    let emitter = redis.built_emitter().await;
    for n in 1..=2 {
        assert_eq!(emit(&emitter, "work:1", n).await, u64::from(n));
    }
    let two = emitter
        .event("work:1", event(3))
        .sub(event(4))
        .data(event(9));
    let (queued, events, limit) = (2, 2, 3);
    let expected = Full::Queue {
        queued,
        events,
        limit,
    };
    assert_eq!(of_full(two.send().await), expected);
    emit(&emitter, "work:1", 3).await;
    full(&emitter, "work:1", 4).await;
    let keyed = || emitter.event("work:1", event(4)).idempotency_key("k");
    of_full(keyed().send().await);
    for n in 1..=5 {
        emit(&emitter, "vip:1", n).await;
    }
    assert!(emitter.emit("vip:1", event(6)).await.is_err());
    assert_eq!(console.text(&redis.keys().data("work:1")).await, None);
    assert_eq!(console.queue("work:1").await, ["1", "2", "3"]);
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(8).await;
    let again = keyed().send().await;
    again.expect("queued: there is room again");
    sink.until_sent(9).await;
    worker.finish().await;
    console.check().await;
}

#[tokio::test]
async fn too_many_markers_refuse_emits_of_all_objects() {
    let (redis, _console, control) = setup().await;
    set(&control, "*", 0, 4).await;
    let emitter = redis.built_emitter().await;
    for n in 0..4 {
        emit(&emitter, &format!("work:{n}"), 1).await;
    }
    assert_markers_full(&emitter, "other:1", 4).await;
    let error = emitter.emit("other:1", event(1)).await.expect_err("full");
    let text = error.to_string();
    assert!(
        text.contains("there are 4 markers, the limit is 4"),
        "{text}"
    );
}

/// If one call emits for many objects, only the objects above their limit fail. Each failure has
/// the position of the first refused event.
#[tokio::test]
async fn many_events_at_once_stop_only_the_objects_above_the_limit() {
    let (redis, console, control) = setup().await;
    set(&control, "small:*", 150, 0).await;
    let emitter = redis.built_emitter().await;
    let events = (0..900_u32).map(|n| {
        let kind = if n % 3 == 0 { "small" } else { "large" };
        (format!("{kind}:{}", n % 2), event(n))
    });
    let done = emitter.emit_many(events.clone()).await;
    assert_eq!(done.expect("150 of each small one fit").events, 900);
    let error = emitter.emit_many(events).await;
    let error = error.expect_err("the small ones are full");
    let failed = error.failed.iter();
    let failed = failed.map(|failed| (failed.object.as_str(), failed.first));
    assert!(failed.eq([("small:0", 0), ("small:1", 3)]), "{error:?}");
    assert_eq!((error.acknowledged, error.stopped), (600, None));
    assert_eq!(console.queue("small:0").await.len(), 150);
    let large = console.queue("large:1").await;
    assert_eq!(large.len(), 600);
    let number = |text: &String| text.parse::<u32>().expect("a number");
    assert!(large[..300].iter().map(number).is_sorted());
    console.check().await;
}

/// An emitter that is already connected notices when a limit is set and when it is removed.
#[tokio::test]
async fn a_connected_emitter_learns_of_limits() {
    let (redis, _console, control) = setup().await;
    let emitter = redis.built_emitter().await;
    emit(&emitter, "work:1", 1).await;
    set(&control, "work:*", 1, 0).await;
    until("the limit is known", PATIENCE, async || {
        let refused = emitter.emit("work:1", event(1)).await.is_err();
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        refused.then_some(())
    })
    .await;
    remove(&control).await;
    until("the limit is over", PATIENCE, async || {
        emitter.emit("work:1", event(1)).await.ok()
    })
    .await;
    assert!(control.limits().await.expect("read").is_empty());
}

/// A key of a wrong type is named, and stays as it is.
#[tokio::test]
async fn a_key_of_a_wrong_type_takes_no_limit() {
    let (redis, console, control) = setup().await;
    let key = redis.keys().event_limits();
    let () = console.run(&["SET", &key, "mine"]).await;
    let error = try_set(&control, "work:*", 1, 0).await;
    let text = error.expect_err("no limit").to_string();
    assert!(text.contains(&key) && !text.contains("WRONGTYPE"), "{text}");
    assert_eq!(console.text(&key).await.as_deref(), Some("mine"));
}

#[tokio::test]
async fn limits_bind_no_promotion_and_no_plain_transaction() {
    let (redis, console, control) = setup().await;
    set(&control, "*", 1, 1).await;
    console.emit("work:1", "1").await;
    console.emit("work:1", "2").await;
    let emitter = redis.built_emitter().await;
    let scheduled = emitter.schedule("work:1", event(3)).send().await;
    scheduled.expect("scheduled");
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
}

#[tokio::test]
async fn a_limit_is_for_all_objects_or_a_prefix() {
    let (_redis, _console, control) = setup().await;
    for (selector, markers) in [("work:1", 0), ("work:*", 5)] {
        let refused = try_set(&control, selector, 5, markers).await;
        assert_matches!(refused, Err(ControlError::LimitSelector(_)), "{selector}");
    }
    assert_eq!(set(&control, "work:*", 5, 0).await, LimitDone::New);
    assert_eq!(set(&control, "work:*", 6, 0).await, LimitDone::Again);
    let limits = control.limits().await.expect("read");
    assert_eq!(
        (limits.len(), limits[0].queued_max, limits[0].actor.as_str()),
        (1, Some(6), "ada")
    );
    remove(&control).await;
    let kept = control.recorded(9).await.into_iter();
    let kept = kept.map(|kept| format!("{} {} {}", kept.action, kept.object, kept.who));
    let kept: Vec<_> = kept.collect();
    let expected = ["limit-remove", "limit-set", "limit-set"];
    assert_eq!(kept, expected.map(|action| format!("{action} work:* ada")));
}

/// There are at most 1,000 limits, because emitters read all of them. An existing limit can be
/// changed even then.
#[tokio::test]
async fn there_are_so_many_limits_and_no_more() {
    let (redis, console, control) = setup().await;
    let mut fields = redis::cmd("HSET");
    fields.arg(redis.keys().event_limits());
    for n in 1..LIMITS_MAX {
        fields
            .arg(format!("work{n}:*"))
            .arg(r#"{"queued_max":1,"set_ms":5,"actor":"","reason":""}"#);
    }
    let done = fields.exec_async(&mut console.conn()).await;
    done.expect("HSET");
    assert_eq!(set(&control, "last:*", 5, 0).await, LimitDone::New);
    let refused = try_set(&control, "more:*", 5, 0).await;
    let refused = refused.expect_err("too many");
    assert_matches!(refused, ControlError::Limits(LIMITS_MAX));
    assert_eq!(set(&control, "last:*", 6, 0).await, LimitDone::Again);
    let limits = control.limits().await.expect("read");
    assert_eq!(limits.len() as u64, LIMITS_MAX);
}

/// The record of actions has a wrong type. So no limit is set or removed.
#[tokio::test]
async fn an_action_that_cannot_be_recorded_changes_no_limit() {
    let (redis, console, control) = setup().await;
    set(&control, "work:*", 5, 0).await;
    let before = control.limits().await.expect("read");
    let actions = redis.keys().operator_actions();
    console
        .add("DEL operator.actions; SET operator.actions wrong")
        .await;
    let selector: Selector = "work:*".parse().expect("a selector");
    for refused in [
        try_set(&control, "work:*", 6, 0).await,
        control.remove_limit(BY, &selector).await,
    ] {
        assert_wrong_type(&refused, &actions);
    }
    assert_eq!(control.limits().await.expect("read"), before);
}

/// Story: if the events of an object in one transaction did not all fit, all of them were once
/// refused.
#[tokio::test]
async fn of_many_events_as_many_are_queued_as_fit() {
    let (redis, console, control) = setup().await;
    set(&control, "small:*", 1500, 0).await;
    let emitter = redis.built_emitter().await;
    let events = (0..3000_u32).map(|n| ("small:1", event(n)));
    let error = emitter.emit_many(events).await.expect_err("full");
    assert_eq!((error.acknowledged, error.failed[0].first), (1500, 1500));
    let text = error.failed[0].error.to_string();
    assert!(text.contains("the object has 1500 events queued"), "{text}");
    let queued = console.queue("small:1").await;
    assert_eq!(queued, (0..1500).map(|n| n.to_string()).collect::<Vec<_>>());
    console.check().await;
}

/// Story: an object waited for a long time. The marks behind its marker used up the limit of
/// markers.
#[tokio::test]
async fn marks_do_not_count_as_markers() {
    let (redis, console, control) = setup().await;
    set(&control, "*", 0, 2).await;
    let emitter = redis.built_emitter().await;
    emit(&emitter, "work:1", 1).await;
    let marks = "
        LPUSH objects.with.events \0t1000 \0t2000 \0t3000
        ZADD event.marks 1000 1000 2000 2000 3000 3000
    ";
    console.add(marks).await;
    emit(&emitter, "work:2", 1).await;
    assert_markers_full(&emitter, "work:3", 2).await;
}

/// With a limit of one, the only marker is a mark at first. Marks do not count.
#[tokio::test]
async fn with_a_limit_of_one_marker_marks_do_not_count() {
    let (redis, console, control) = setup().await;
    set(&control, "*", 0, 1).await;
    let emitter = redis.built_emitter().await;
    console
        .add("LPUSH objects.with.events \0t1000; ZADD event.marks 1000 1000")
        .await;
    emit(&emitter, "work:1", 1).await;
    assert_markers_full(&emitter, "work:2", 1).await;
}

/// The marks cannot be counted, because `event.marks` has a wrong type. So they count as markers.
#[tokio::test]
async fn marks_that_cannot_be_counted_count_as_markers() {
    let (redis, console, control) = setup().await;
    set(&control, "*", 0, 2).await;
    let emitter = redis.built_emitter().await;
    console
        .add("LPUSH objects.with.events \0t1000; SET event.marks wrong")
        .await;
    emit(&emitter, "work:1", 1).await;
    assert_markers_full(&emitter, "work:2", 2).await;
}
