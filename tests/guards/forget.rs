//! The expiry of last ids: `advance` sets it, and `forget` keeps some.

use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Forgot, Report, Tag,
};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, LEASE, ask, attached, objects, pop};

/// Returns the time to live of the last id of `work:1`, in ms; -1: no expiry.
async fn fades(state: &State) -> i64 {
    let key = state.keys.last_event_id("work:1");
    redis::cmd("PTTL")
        .arg(key)
        .query_async(&mut state.conn.clone())
        .await
        .expect("PTTL")
}

const FORGET: Bounds = Bounds {
    forget_after: Some(LEASE),
    ..BOUNDS
};

/// Maximum number of objects that one call claims.
const CLAIMS_MAX: usize = 512;

/// Reports the batch of `work:1` in slot 0, ids `first` to `last`, as delivered.
async fn reported(state: &mut State, bounds: Bounds, first: u64, count: usize) -> Advanced {
    let keys = state.keys.clone();
    let tag = Tag {
        first,
        ..Tag::default()
    };
    let last = Some(first + count as u64 - 1);
    let report = Report {
        object: "work:1".into(),
        tag,
        count,
        last,
        then: BatchResult::Done,
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    call.report(0, &report);
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
}

/// The last id of a released object expires. The last id of an owned object does not: neither if
/// the slot goes on, nor if the object is claimed again in time.
#[tokio::test]
async fn only_what_is_released_is_forgotten() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for event in ["1", "2"] {
        state.emit("work:1", event).await;
    }
    let one = Bounds { batch: 1, ..FORGET };
    assert_eq!(
        objects(&ask(&mut state, one).await.expect("an answer")),
        ["work:1"]
    );
    assert_eq!(objects(&reported(&mut state, one, 1, 1).await), ["work:1"]);
    assert_eq!(fades(&state).await, -1, "it goes on");
    assert!(objects(&reported(&mut state, one, 2, 1).await).is_empty());
    let left = fades(&state).await;
    assert!((1..=600_000).contains(&left), "released: {left}");
    state.emit("work:1", "3").await;
    assert_eq!(
        objects(&ask(&mut state, one).await.expect("an answer")),
        ["work:1"]
    );
    assert_eq!(fades(&state).await, -1, "claimed by a marker");
    assert!(objects(&reported(&mut state, one, 3, 1).await).is_empty());
    assert!(
        fades(&state).await > 0,
        "released while another call goes on with nothing"
    );
    // A claim of a popped name also removes the expiry.
    state.emit("work:1", "4").await;
    pop(&mut state, "w.0").await;
    assert_eq!(
        objects(&ask(&mut state, one).await.expect("an answer")),
        ["work:1"]
    );
    assert_eq!(fades(&state).await, -1, "claimed by a pop");
    // Without the setting `forget_after`, the last id does not expire.
    assert!(objects(&reported(&mut state, BOUNDS, 4, 1).await).is_empty());
    assert_eq!(fades(&state).await, -1, "nobody forgets");
}

/// An object is released while another slot of the same call goes on with its object. The last id
/// of the released object expires all the same.
#[tokio::test]
async fn what_is_released_beside_another_object_is_forgotten() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for object in ["work:1", "work:2", "work:2"] {
        state.emit(object, "1").await;
    }
    let bounds = Bounds { batch: 1, ..FORGET };
    assert_eq!(
        objects(&ask(&mut state, bounds).await.expect("an answer")),
        ["work:1", "work:2"]
    );
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    for (slot, object) in ["work:1", "work:2"].into_iter().enumerate() {
        let first = slot as u64 + 1;
        let tag = Tag {
            first,
            ..Tag::default()
        };
        call.report(
            slot,
            &Report {
                object: object.into(),
                tag,
                count: 1,
                last: Some(first),
                then: BatchResult::Done,
            },
        );
    }
    assert_eq!(
        objects(
            &wire::advance(&mut state.conn, &call)
                .await
                .expect("an answer")
        ),
        ["work:2"]
    );
    assert!(fades(&state).await > 0);
    let other: i64 = redis::cmd("PTTL")
        .arg(keys.last_event_id("work:2"))
        .query_async(&mut state.conn)
        .await
        .expect("PTTL");
    assert_eq!(other, -1);
}

/// A held object whose queue is empty is released when it is due, and its last id then expires. The
/// same holds for an owned object without events.
#[tokio::test]
async fn what_is_let_go_of_without_events_is_forgotten() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.delivered("work:1", 7).await;
    state.hold("work:1", "1", &[], "0 0 0 0 yield").await;
    assert!(objects(&ask(&mut state, FORGET).await.expect("an answer")).is_empty());
    assert!(fades(&state).await > 0, "held");
    state.delivered("work:1", 7).await;
    let keys = state.keys.clone();
    state
        .run("SET", &[&keys.event_worker("work:1"), "w.0"])
        .await;
    state
        .run("LPUSH", &[&keys.worker_object("w.0"), "work:1"])
        .await;
    assert!(objects(&ask(&mut state, FORGET).await.expect("an answer")).is_empty());
    assert!(fades(&state).await > 0, "owned");
}

/// The maximum number of slots claim in one call, each with a last id to keep. One command writes
/// all of them.
#[tokio::test]
async fn a_call_of_all_slots_keeps_all_last_ids() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for n in 0..1024 {
        state.delivered(&format!("work:{n}"), n + 1).await;
        state.emit(&format!("work:{n}"), "1").await;
    }
    let keys = state.keys.clone();
    let bounds = Bounds {
        batch: 1,
        claims: 1024,
        markers: 4096,
        ..FORGET
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    (0..1024).for_each(|slot| call.free(slot));
    assert_eq!(
        objects(
            &wire::advance(&mut state.conn, &call)
                .await
                .expect("an answer")
        )
        .len(),
        CLAIMS_MAX
    );
}

/// The maximum number of slots claim in one call, which also pauses the maximum number of objects.
/// No command exceeds the limit of arguments in a script.
#[tokio::test]
async fn a_call_of_all_slots_pauses_others_too() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for n in 0..1024 {
        for prefix in ["held", "b"] {
            state.delivered(&format!("{prefix}:{n}"), n + 1).await;
            state.emit(&format!("{prefix}:{n}"), "1").await;
        }
        state
            .hold(&format!("held:{n}"), "1", &[], "0 0 0 0 yield")
            .await;
        state
            .run("DEL", &[&state.keys.events_held_id(&format!("held:{n}"))])
            .await;
    }
    // Markers of held objects lead to no event.
    state
        .run("LTRIM", &[&state.keys.objects_with_events(), "1", "0"])
        .await;
    for n in 0..255 {
        state
            .run(
                "LPUSH",
                &[&state.keys.objects_with_events(), &format!("b:{n}")],
            )
            .await;
    }
    state
        .rule("pause b:*", "1 0 0 3 0 adanot yet", "never")
        .await;
    let keys = state.keys.clone();
    let bounds = Bounds {
        batch: 1,
        claims: 1024,
        markers: 4096,
        ..FORGET
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    (0..1024).for_each(|slot| call.free(slot));
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let paused: u64 = redis::cmd("ZCARD")
        .arg(keys.objects_paused())
        .query_async(&mut state.conn)
        .await
        .expect("ZCARD");
    assert_eq!((objects(&answer).len(), paused), (CLAIMS_MAX, 255));
}

/// If any other key of an object exists, the object is not forgotten, and its last id stays. A
/// marker does not prevent forgetting.
#[tokio::test]
async fn only_an_idle_object_is_forgotten() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    let key = |suffix: &str| Forgot::Wrong {
        key: format!("work:1{suffix}"),
    };
    for (command, args, expected) in [
        (
            "LPUSH",
            [keys.events("work:1"), "1".into(), "2".into()],
            Forgot::Queued { events: 2 },
        ),
        (
            "SET",
            [keys.event_worker("work:1"), "w.0".into(), String::new()],
            Forgot::Owned {
                owner: "w.0".into(),
            },
        ),
        (
            "SET",
            [keys.event_worker("work:1"), "held".into(), String::new()],
            Forgot::Held,
        ),
        (
            "LPUSH",
            [keys.events_held("work:1"), "1".into(), String::new()],
            Forgot::Held,
        ),
        (
            "SET",
            [
                keys.events_held_id("work:1"),
                "7 0 0 0 stop".into(),
                String::new(),
            ],
            Forgot::Held,
        ),
        (
            "ZADD",
            [keys.objects_held(), "1".into(), "work:1".into()],
            Forgot::Held,
        ),
        (
            "ZADD",
            [keys.objects_paused(), "0".into(), "work:1".into()],
            Forgot::Held,
        ),
        (
            "HSET",
            [keys.events_scheduled_of("work:1"), "a".into(), "b".into()],
            Forgot::Scheduled { events: 1 },
        ),
        (
            "SET",
            [
                keys.events_scheduled_of("work:1"),
                "a".into(),
                String::new(),
            ],
            key(":events.scheduled"),
        ),
        (
            "HSET",
            [
                keys.event_handled("work:1"),
                "emit:a".into(),
                "0 1 9 ".into(),
            ],
            Forgot::Reserved {
                key: "work:1:event.handled".into(),
            },
        ),
        (
            "HSET",
            [keys.events("work:1"), "a".into(), "b".into()],
            key(":events"),
        ),
        (
            "HSET",
            [keys.event_worker("work:1"), "a".into(), "b".into()],
            key(":event.worker"),
        ),
        (
            "HSET",
            [keys.last_event_id("work:1"), "a".into(), "b".into()],
            key(":last.event.id"),
        ),
    ] {
        state.delivered("work:1", 7).await;
        if args[0] == keys.last_event_id("work:1") {
            state.run("DEL", &[&args[0]]).await;
        }
        let given: Vec<&str> = args
            .iter()
            .map(String::as_str)
            .filter(|arg| !arg.is_empty())
            .collect();
        state.run(command, &given).await;
        let forgot = wire::forget(&mut state.conn, &keys, &["work:1"])
            .await
            .expect("an answer");
        assert_eq!(forgot, [expected], "{command} {given:?}");
        let left: u64 = redis::cmd("EXISTS")
            .arg(keys.last_event_id("work:1"))
            .query_async(&mut state.conn)
            .await
            .expect("EXISTS");
        assert_eq!(left, 1, "{command} {given:?}");
        state
            .run("DEL", &[&args[0], &keys.last_event_id("work:1")])
            .await;
    }
    state.delivered("work:1", 7).await;
    state
        .run("LPUSH", &[&keys.objects_with_events(), "work:1"])
        .await;
    state
        .run("LPUSH", &[&keys.worker_object("w.0"), "work:1"])
        .await;
    state
        .run("HSET", &[&keys.event_handled("work:1"), "id", "6"])
        .await;
    let forgot = wire::forget(&mut state.conn, &keys, &["other", "work:1", "work:1"])
        .await
        .expect("an answer");
    assert_eq!(
        forgot,
        [
            Forgot::Unknown,
            Forgot::Forgotten {
                last_event_id: "7".into()
            },
            Forgot::Unknown
        ]
    );
    // The record of finished handlers, of an event that is in no batch, is deleted as well.
    let left: u64 = redis::cmd("EXISTS")
        .arg(keys.event_handled("work:1"))
        .query_async(&mut state.conn)
        .await
        .expect("EXISTS");
    assert_eq!(left, 0);
}

/// A shared key of a wrong type is found before anything is forgotten.
#[tokio::test]
async fn nothing_is_forgotten_beside_a_wrong_type() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for shared in [keys.objects_held(), keys.objects_paused()] {
        state.delivered("work:1", 7).await;
        state.run("SET", &[&shared, "1"]).await;
        let forgot = wire::forget(&mut state.conn, &keys, &["work:1", "work:2"]).await;
        assert!(
            forgot.as_ref().is_err_and(wire::ScriptError::is_wrong_type),
            "{forgot:?}"
        );
        assert_eq!(
            redis
                .console()
                .await
                .text(&keys.last_event_id("work:1"))
                .await
                .as_deref(),
            Some("7")
        );
        state.run("DEL", &[&shared]).await;
    }
}
