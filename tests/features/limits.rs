//! Limits of the queues: an emit above a limit is refused as a whole.

use std::num::NonZeroU64;

use seriatim::control::limits::{LIMITS_MAX, LimitDone};
use seriatim::control::rules::Selector;
use seriatim::control::{By, Control, ControlError};
use seriatim::emit::Full;
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::console::PATIENCE;
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, control, until};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

async fn set(
    control: &Control,
    selector: &str,
    queued: u64,
    markers: u64,
) -> Result<LimitDone, ControlError> {
    let selector: Selector = selector.parse().expect("a selector");
    control
        .set_limit(
            BY,
            &selector,
            NonZeroU64::new(queued),
            NonZeroU64::new(markers),
        )
        .await
}

async fn emitter(redis: &Redis) -> Emitter {
    Emitter::builder(redis.url())
        .keys(redis.keys().clone())
        .connect()
        .await
        .expect("a connection")
}

fn event(n: u32) -> Json {
    Json::new(n.to_string())
}

#[tokio::test]
async fn a_full_queue_refuses_an_emit_and_nothing_is_half_done() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    assert_eq!(set(&control, "*", 3, 0).await.expect("set"), LimitDone::New);
    assert_eq!(
        set(&control, "vip:*", 5, 0).await.expect("set"),
        LimitDone::New
    );
    let emitter = emitter(&redis).await;
    for n in 1..=2 {
        assert_eq!(
            emitter
                .emit("work:1", event(n))
                .await
                .expect("queued")
                .queued,
            u64::from(n)
        );
    }
    let two = emitter
        .event("work:1", event(3))
        .sub(event(4))
        .data(event(9))
        .send()
        .await
        .expect_err("two too many");
    assert!(
        matches!(
            two,
            EmitError::Full {
                full: Full::Queue {
                    queued: 2,
                    events: 2,
                    limit: 3
                },
                ..
            }
        ),
        "{two}"
    );
    emitter.emit("work:1", event(3)).await.expect("queued");
    assert!(matches!(
        emitter.emit("work:1", event(4)).await,
        Err(EmitError::Full { .. })
    ));
    let keyed = emitter
        .event("work:1", event(4))
        .idempotency_key("k")
        .send()
        .await;
    assert!(matches!(keyed, Err(EmitError::Full { .. })), "{keyed:?}");
    for n in 1..=5 {
        emitter.emit("vip:1", event(n)).await.expect("queued");
    }
    assert!(emitter.emit("vip:1", event(6)).await.is_err());
    assert_eq!(console.text(&redis.keys().data("work:1")).await, None);
    assert_eq!(
        console.list(&redis.keys().events("work:1")).await,
        ["1", "2", "3"]
    );
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(8).await;
    emitter
        .event("work:1", event(4))
        .idempotency_key("k")
        .send()
        .await
        .expect("queued: there is room again");
    sink.until_sent(9).await;
    worker.finish().await;
    console.check().await;
}

#[tokio::test]
async fn too_many_markers_refuse_emits_of_all_objects() {
    let redis = Redis::start();
    let control = control(&redis.connect().await, redis.keys());
    set(&control, "*", 0, 4).await.expect("set");
    let emitter = emitter(&redis).await;
    for n in 0..4 {
        emitter
            .emit(format!("work:{n}"), event(1))
            .await
            .expect("queued");
    }
    let error = emitter.emit("other:1", event(1)).await.expect_err("full");
    assert!(
        matches!(
            error,
            EmitError::Full {
                full: Full::Markers {
                    markers: 4,
                    limit: 4
                },
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("there are 4 markers, the limit is 4"),
        "{error}"
    );
}

/// If one call emits for many objects, only the objects above their limit fail. Each failure has
/// the position of the first refused event.
#[tokio::test]
async fn many_events_at_once_stop_only_the_objects_above_the_limit() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "small:*", 150, 0).await.expect("set");
    let emitter = emitter(&redis).await;
    let events = (0..900_u32).map(|n| {
        (
            format!("{}:{}", if n % 3 == 0 { "small" } else { "large" }, n % 2),
            event(n),
        )
    });
    let error = emitter
        .emit_many(events.clone())
        .await
        .map(|done| done.events);
    assert_eq!(error.expect("150 of each small one fit"), 900);
    let error = emitter
        .emit_many(events)
        .await
        .expect_err("the small ones are full");
    let failed: Vec<_> = error
        .failed
        .iter()
        .map(|failed| (failed.object.as_str(), failed.first))
        .collect();
    assert_eq!(
        (failed, error.acknowledged, error.stopped),
        (vec![("small:0", 0), ("small:1", 3)], 600, None)
    );
    let (small, large) = (
        console.list(&redis.keys().events("small:0")).await,
        console.list(&redis.keys().events("large:1")).await,
    );
    assert_eq!((small.len(), large.len()), (150, 600));
    assert!(
        large[..300]
            .iter()
            .map(|text| text.parse::<u32>().expect("a number"))
            .is_sorted()
    );
    console.check().await;
}

/// An emitter that is already connected notices when a limit is set and when it is removed.
#[tokio::test]
async fn a_connected_emitter_learns_of_limits() {
    let redis = Redis::start();
    let control = control(&redis.connect().await, redis.keys());
    let emitter = emitter(&redis).await;
    emitter.emit("work:1", event(1)).await.expect("queued");
    set(&control, "work:*", 1, 0).await.expect("set");
    until("the limit is known", PATIENCE, async || {
        let refused = emitter.emit("work:1", event(1)).await.is_err();
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        refused.then_some(())
    })
    .await;
    let selector: Selector = "work:*".parse().expect("a selector");
    assert_eq!(
        control.remove_limit(BY, &selector).await.expect("removed"),
        LimitDone::Removed
    );
    assert_eq!(
        control.remove_limit(BY, &selector).await.expect("no error"),
        LimitDone::NotSet
    );
    until("the limit is over", PATIENCE, async || {
        emitter.emit("work:1", event(1)).await.ok()
    })
    .await;
    assert!(control.limits().await.expect("read").is_empty());
}

/// A key of a wrong type is named, and stays as it is.
#[tokio::test]
async fn a_key_of_a_wrong_type_takes_no_limit() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    let key = redis.keys().event_limits();
    let () = console.run(&["SET", &key, "mine"]).await;
    let error = set(&control, "work:*", 1, 0).await.expect_err("no limit");
    assert!(
        error.to_string().contains(&key) && !error.to_string().contains("WRONGTYPE"),
        "{error}"
    );
    assert_eq!(console.text(&key).await.as_deref(), Some("mine"));
}

#[tokio::test]
async fn limits_bind_no_promotion_and_no_plain_transaction() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "*", 1, 1).await.expect("set");
    console.emit("work:1", "1").await;
    console.emit("work:1", "2").await;
    let emitter = emitter(&redis).await;
    emitter
        .schedule("work:1", event(3))
        .send()
        .await
        .expect("scheduled");
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
}

#[tokio::test]
async fn a_limit_is_for_all_objects_or_a_prefix() {
    let redis = Redis::start();
    let control = control(&redis.connect().await, redis.keys());
    for (selector, markers) in [("work:1", 0), ("work:*", 5)] {
        assert!(
            matches!(
                set(&control, selector, 5, markers).await,
                Err(ControlError::LimitSelector(_))
            ),
            "{selector}"
        );
    }
    assert_eq!(
        set(&control, "work:*", 5, 0).await.expect("set"),
        LimitDone::New
    );
    assert_eq!(
        set(&control, "work:*", 6, 0).await.expect("set"),
        LimitDone::Again
    );
    let limits = control.limits().await.expect("read");
    assert_eq!(
        (limits.len(), limits[0].queued_max, limits[0].actor.as_str()),
        (1, Some(6), "ada")
    );
    let selector: Selector = "work:*".parse().expect("a selector");
    assert_eq!(
        control.remove_limit(BY, &selector).await.expect("removed"),
        LimitDone::Removed
    );
    assert_eq!(
        control.remove_limit(BY, &selector).await.expect("no error"),
        LimitDone::NotSet
    );
    let actions = control.actions(None, 9).await.expect("a page").actions;
    let kept: Vec<_> = actions
        .iter()
        .map(|kept| {
            (
                kept.action.as_str(),
                kept.object.as_str(),
                kept.who.as_str(),
            )
        })
        .collect();
    let expected =
        ["limit-remove", "limit-set", "limit-set"].map(|action| (action, "work:*", "ada"));
    assert_eq!(kept, expected);
}

/// There are at most 1,000 limits, because emitters read all of them. An existing limit can be
/// changed even then.
#[tokio::test]
async fn there_are_so_many_limits_and_no_more() {
    let redis = Redis::start();
    let mut conn = redis.connect().await;
    let control = control(&conn, redis.keys());
    let mut fields = redis::cmd("HSET");
    fields.arg(redis.keys().event_limits());
    for n in 1..LIMITS_MAX {
        fields
            .arg(format!("work{n}:*"))
            .arg(r#"{"queued_max":1,"set_ms":5,"actor":"","reason":""}"#);
    }
    fields.query_async::<u64>(&mut conn).await.expect("HSET");
    assert_eq!(
        set(&control, "last:*", 5, 0).await.expect("set"),
        LimitDone::New
    );
    let refused = set(&control, "more:*", 5, 0).await.expect_err("too many");
    assert!(
        matches!(refused, ControlError::Limits(LIMITS_MAX)),
        "{refused}"
    );
    assert_eq!(
        set(&control, "last:*", 6, 0).await.expect("set"),
        LimitDone::Again
    );
    assert_eq!(
        control.limits().await.expect("read").len() as u64,
        LIMITS_MAX
    );
}

/// The record of actions has a wrong type. So no limit is set or removed.
#[tokio::test]
async fn an_action_that_cannot_be_recorded_changes_no_limit() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "work:*", 5, 0).await.expect("set");
    let before = control.limits().await.expect("read");
    let actions = redis.keys().operator_actions();
    console.run::<u64>(&["DEL", &actions]).await;
    console.run::<()>(&["SET", &actions, "wrong"]).await;
    let selector: Selector = "work:*".parse().expect("a selector");
    for refused in [
        set(&control, "work:*", 6, 0).await,
        control.remove_limit(BY, &selector).await,
    ] {
        assert!(
            matches!(&refused, Err(ControlError::WrongType { key, .. }) if *key == actions),
            "{refused:?}"
        );
    }
    assert_eq!(control.limits().await.expect("read"), before);
}

/// Story: if the events of an object in one transaction did not all fit, all of them were once
/// refused.
#[tokio::test]
async fn of_many_events_as_many_are_queued_as_fit() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "small:*", 1500, 0).await.expect("set");
    let emitter = emitter(&redis).await;
    let events = (0..3000_u32).map(|n| ("small:1", event(n)));
    let error = emitter.emit_many(events).await.expect_err("full");
    assert_eq!((error.acknowledged, error.failed[0].first), (1500, 1500));
    assert!(
        error.failed[0]
            .error
            .to_string()
            .contains("the object has 1500 events queued"),
        "{error}"
    );
    let queued = console.list(&redis.keys().events("small:1")).await;
    assert_eq!(queued, (0..1500).map(|n| n.to_string()).collect::<Vec<_>>());
    console.check().await;
}

/// Story: an object waited for a long time. The marks behind its marker used up the limit of
/// markers.
#[tokio::test]
async fn marks_do_not_count_as_markers() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "*", 0, 2).await.expect("set");
    let emitter = emitter(&redis).await;
    emitter.emit("work:1", event(1)).await.expect("queued");
    for ms in ["1000", "2000", "3000"] {
        let _: u64 = console
            .run(&[
                "LPUSH",
                &redis.keys().objects_with_events(),
                &format!("\0t{ms}"),
            ])
            .await;
        let _: u64 = console
            .run(&["ZADD", &redis.keys().event_marks(), ms, ms])
            .await;
    }
    emitter
        .emit("work:2", event(1))
        .await
        .expect("queued: there was one marker");
    let refused = emitter
        .emit("work:3", event(1))
        .await
        .expect_err("there are two markers");
    assert!(
        matches!(
            refused,
            EmitError::Full {
                full: Full::Markers {
                    markers: 2,
                    limit: 2
                },
                ..
            }
        ),
        "{refused}"
    );
}

/// With a limit of one, the only marker is a mark at first. Marks do not count.
#[tokio::test]
async fn with_a_limit_of_one_marker_marks_do_not_count() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "*", 0, 1).await.expect("set");
    let emitter = emitter(&redis).await;
    console
        .add("LPUSH objects.with.events \0t1000; ZADD event.marks 1000 1000")
        .await;
    emitter
        .emit("work:1", event(1))
        .await
        .expect("queued: there was no marker");
    let refused = emitter
        .emit("work:2", event(1))
        .await
        .expect_err("there is one marker");
    assert!(
        matches!(
            refused,
            EmitError::Full {
                full: Full::Markers {
                    markers: 1,
                    limit: 1
                },
                ..
            }
        ),
        "{refused}"
    );
}

/// The marks cannot be counted, because `event.marks` has a wrong type. So they count as markers.
#[tokio::test]
async fn marks_that_cannot_be_counted_count_as_markers() {
    let redis = Redis::start();
    let (console, control) = (
        redis.console().await,
        control(&redis.connect().await, redis.keys()),
    );
    set(&control, "*", 0, 2).await.expect("set");
    let emitter = emitter(&redis).await;
    console
        .add("LPUSH objects.with.events \0t1000; SET event.marks wrong")
        .await;
    emitter
        .emit("work:1", event(1))
        .await
        .expect("queued: there was one marker");
    let refused = emitter
        .emit("work:2", event(1))
        .await
        .expect_err("there are two markers");
    assert!(
        matches!(
            refused,
            EmitError::Full {
                full: Full::Markers {
                    markers: 2,
                    limit: 2
                },
                ..
            }
        ),
        "{refused}"
    );
}
