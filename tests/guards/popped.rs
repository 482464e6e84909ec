//! `advance`: the name that a pop has moved to the only free slot of a call.

use seriatim::wire::{self, Advance, Advanced, BatchReply, Bounds, ClaimFirst, ScriptError};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, ask, attached, done, pop};

/// Makes a call for slot 0, whose list has a name. Returns the batches, and what was put aside.
async fn called(state: &mut State) -> (Vec<BatchReply>, Vec<(String, String)>) {
    let mut call = Advance::new(&state.keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.free(0);
    match wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
    {
        Advanced::Ok {
            batches,
            quarantined,
            ..
        } => (batches, quarantined),
        other => panic!("{other:?}"),
    }
}

/// The slot takes all events of the object.
#[tokio::test]
async fn a_popped_object_with_more_events_fills_its_batch() {
    for last in [None, Some(5)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let keys = state.keys.clone();
        if let Some(id) = last {
            state.delivered("work:1", id).await;
        }
        for event in ["1", "2", "3"] {
            state.run("LPUSH", &[&keys.events("work:1"), event]).await;
        }
        state
            .run("LPUSH", &[&keys.worker_object("w.0"), "work:1"])
            .await;
        let (batches, _) = called(&mut state).await;
        assert_eq!(
            batches
                .iter()
                .map(|batch| batch.events.len())
                .collect::<Vec<_>>(),
            [3]
        );
        assert_eq!(batches[0].prev, last.unwrap_or(0));
        redis.console().await.check().await;
    }
}

/// A key of the object has a wrong type. The object is held for an operator.
#[tokio::test]
async fn a_popped_object_with_a_damaged_key_is_put_aside() {
    for wrong in ["events", "last.event.id", "event.worker"] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.emit("work:1", "1").await;
        pop(&mut state, "w.0").await;
        let key = format!("{}work:1:{wrong}", keys.prefix());
        state.run("DEL", &[&key]).await;
        state.run("HSET", &[&key, "wrong", "type"]).await;
        if wrong == "event.worker" {
            state
                .run("ZADD", &[&keys.objects_held(), "9999999999999", "work:1"])
                .await;
        }
        let (batches, quarantined) = called(&mut state).await;
        assert!(batches.is_empty(), "{wrong}: {batches:?}");
        assert_eq!(
            quarantined,
            [(
                "work:1".to_owned(),
                format!("quarantine: work:1:{wrong} is a hash")
            )]
        );
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
        assert_eq!(
            console.text(&keys.event_worker("work:1")).await.as_deref(),
            Some("held")
        );
        assert_eq!(
            console.list(&keys.worker_object("w.0")).await,
            Vec::<String>::new()
        );
    }
}

/// Another slot has the object in hand. The name is only removed.
#[tokio::test]
async fn a_popped_object_of_another_slot_stays_there() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.1", "work:1", 1, &["1"]).await;
    state.emit("work:1", "2").await;
    pop(&mut state, "w.0").await;
    assert!(called(&mut state).await.0.is_empty());
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("w.1")
    );
    assert_eq!(console.list(&keys.events("work:1")).await, ["2"]);
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
    console.check().await;
}

/// Slots leave their objects and claim none. Each name leaves the list of its slot. If a list has a
/// wrong type, the call fails with this error, after the results of its slots are committed.
#[tokio::test]
async fn the_names_of_released_objects_leave_their_lists() {
    for is_damaged in [false, true] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        let mut call = Advance::new(
            &keys,
            "w",
            "token-1",
            Bounds {
                claims: 0,
                ..BOUNDS
            },
            ClaimFirst::Markers,
        );
        for (slot, object, id) in [(0, "work:1", 11), (1, "work:2", 12)] {
            state.own(&format!("w.{slot}"), object, id, &["1"]).await;
            call.report(slot, &done(object, id));
        }
        if is_damaged {
            state
                .run("SET", &[&keys.worker_object("w.1"), "wrong"])
                .await;
        }
        let answer = wire::advance(&mut state.conn, &call).await;
        match answer {
            Err(ScriptError::Redis(error)) => {
                assert_eq!((is_damaged, error.code()), (true, Some("WRONGTYPE")))
            }
            Err(error) => panic!("{error}"),
            Ok(_) => {
                assert!(!is_damaged);
                assert_eq!(
                    console.list(&keys.worker_object("w.1")).await,
                    Vec::<String>::new()
                );
            }
        }
        assert_eq!(
            console.list(&keys.worker_object("w.0")).await,
            Vec::<String>::new()
        );
        let last = [
            console.number(&keys.last_event_id("work:1")).await,
            console.number(&keys.last_event_id("work:2")).await,
        ];
        assert_eq!(last, [11, 12]);
    }
}

/// If there are rules, the key of paused objects is read before the first write. If it has a wrong
/// type, the call fails and changes nothing.
#[tokio::test]
async fn a_damaged_key_of_paused_objects_ends_a_call_before_its_first_write() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.rule("pause a:1", "1 0 0 3 0 ada", "never").await;
    state.run("SET", &[&keys.objects_paused(), "wrong"]).await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.report(0, &done("work:1", 1));
    wire::advance(&mut state.conn, &call)
        .await
        .expect_err("a wrong type");
    assert_eq!(console.text(&keys.last_event_id("work:1")).await, None);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1"]);
}

/// The list of a free slot has a wrong type. The caller learns the whole error of Redis.
#[tokio::test]
async fn a_list_of_a_wrong_type_ends_the_call() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.worker_object("w.0"), "x"]).await;
    let refused = ask(&mut state, BOUNDS).await.expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
    assert!(
        refused.to_string().contains("wrong kind of value"),
        "{refused}"
    );
}
