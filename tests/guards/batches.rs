//! `advance`: events that slots take, and objects that they leave, in cases that real processes
//! reach only after a fault.

use seriatim::wire::{self, Advance, Advanced, BatchReply, Bounds, ClaimFirst, Report};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, attached, done, objects};

/// Makes a call with these results; all other slots up to `slots` are free.
async fn advance(state: &mut State, bounds: Bounds, results: &[(usize, Report)], slots: usize) -> Advanced {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    for (slot, report) in results {
        call.report(*slot, report);
    }
    for slot in results.len()..slots {
        call.free(slot);
    }
    wire::advance(&mut state.conn, &call).await.expect("an answer")
}

/// A slot would go on with its object, but the next event is a reference, and the schedules of the
/// object have a wrong type. The object is held for an operator, and the slot does not leave it:
/// `held` stays the owner.
#[tokio::test]
async fn an_object_whose_next_event_cannot_be_read_stays_held() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("LPUSH", &[&keys.events("work:1"), "\0queued 5 key"]).await;
    state.run("SET", &[&keys.events_scheduled_of("work:1"), "wrong"]).await;
    let answer = advance(&mut state, Bounds { claims: 0, ..BOUNDS }, &[(0, done("work:1", 1))], 1).await;
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(console.text(&keys.event_worker("work:1")).await.as_deref(), Some("held"));
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(console.list(&keys.events("work:1")).await, ["\0queued 5 key"]);
    assert_eq!(console.list(&keys.worker_object("w.0")).await, Vec::<String>::new());
}

/// The call has deleted the keys of a delivered batch when it meets an object without events that
/// another slot owns. The owner of this object is deleted, too.
#[tokio::test]
async fn an_owned_object_without_events_is_let_go_of_after_a_commit() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("SET", &[&keys.event_worker("work:2"), "w.1"]).await;
    state.run("LPUSH", &[&keys.worker_object("w.1"), "work:2"]).await;
    advance(&mut state, BOUNDS, &[(0, done("work:1", 1))], 2).await;
    assert_eq!(console.text(&keys.event_worker("work:2")).await, None);
    assert_eq!(console.list(&keys.worker_object("w.1")).await, Vec::<String>::new());
    console.check().await;
}

/// The owner key of a held object has a wrong type, and the marker after it leads to an object with
/// an owner. No slot may claim the held object, because a claim would pass over its held batch.
#[tokio::test]
async fn a_held_object_with_an_owner_of_a_wrong_type_is_not_claimed_beside_an_owned_one() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.hold("work:1", "inf", &["1"], "1 0 1 0 retry: soon").await;
    state.emit("work:1", "2").await;
    state.run("DEL", &[&keys.event_worker("work:1")]).await;
    state.run("LPUSH", &[&keys.event_worker("work:1"), "wrong"]).await;
    state.own("other.0", "work:2", 2, &["1"]).await;
    state.emit("work:2", "2").await;
    let answer = advance(&mut state, BOUNDS, &[], 2).await;
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(console.text(&keys.event_worker("work:1")).await.as_deref(), Some("held"));
    assert_eq!(console.list(&keys.events_held("work:1")).await, ["1"]);
}

/// The first event of each queue is short, and all others are long. A call may put 2,048 events
/// back that do not fit into their batch. It assumes that the next events are as long as the
/// longest so far, so it puts back only few, and every slot gets a full batch.
#[tokio::test]
async fn events_longer_than_the_first_use_up_no_room_of_later_slots() {
    const SLOTS: usize = 6;
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let long = "2".repeat(100);
    for slot in 0..SLOTS {
        let object = format!("work:{slot}");
        state.emit(&object, "1").await;
        let queue = state.keys.events(&object);
        state.run("LPUSH", &[&[queue.as_str()], &vec![long.as_str(); 800][..]].concat()).await;
    }
    let bounds = Bounds { batch: 1000, batch_bytes: 15_000, ..BOUNDS };
    let answer = advance(&mut state, bounds, &[], SLOTS).await;
    let Advanced::Ok { batches, .. } = &answer else { panic!("{answer:?}") };
    let events: Vec<_> = batches.iter().map(|batch: &BatchReply| batch.events.len()).collect();
    assert_eq!(events, [151; SLOTS]);
}

/// A call asks once for all objects of new markers whether they have an owner or a last id, even if
/// another slot owns one of them. A question for each object would add a command to each claim.
#[tokio::test]
async fn objects_of_markers_are_claimed_without_a_question_for_each() {
    const OBJECTS: usize = 20;
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let console = redis.console().await;
    for has_owned in [false, true] {
        if has_owned {
            state.own("other.0", "owned", 1000, &["1"]).await;
            state.emit("owned", "2").await;
        }
        for n in 0..OBJECTS {
            state.emit(&format!("work:{has_owned}:{n}"), "1").await;
        }
        console.run::<()>(&["CONFIG", "RESETSTAT"]).await;
        let from = if has_owned { OBJECTS } else { 0 };
        let keys = state.keys.clone();
        let bounds = Bounds { claims: OBJECTS + 1, ..BOUNDS };
        let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
        (from..=from + OBJECTS).for_each(|slot| call.free(slot));
        let answer = wire::advance(&mut state.conn, &call).await.expect("an answer");
        assert_eq!(objects(&answer).len(), OBJECTS);
        let stats: String = console.run(&["INFO", "commandstats"]).await;
        let asked = stats.lines().find_map(|line| line.strip_prefix("cmdstat_exists:calls=")?.split(',').next());
        let asked: usize = asked.and_then(|calls| calls.parse().ok()).expect("a number of calls");
        assert!(asked < OBJECTS / 2, "EXISTS was called {asked} times");
    }
}

/// Held objects have the next turn, and the only marker leads to an object that another slot owns.
/// A marker that leads nowhere does not use up the turn of the markers, so markers keep the turn.
#[tokio::test]
async fn a_marker_that_leads_nowhere_keeps_the_turn() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("other.0", "work:1", 1, &["1"]).await;
    state.emit("work:1", "2").await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.free(0);
    let answer = wire::advance(&mut state.conn, &call).await.expect("an answer");
    assert!(matches!(answer, Advanced::Ok { from: ClaimFirst::Markers, .. }), "{answer:?}");
}
