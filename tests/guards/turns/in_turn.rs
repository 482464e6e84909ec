//! Held objects and markers in turn, while no name is set aside.

use seriatim::wire::{Advanced, Bounds, ClaimFirst};

use super::{GROUPED, aside, ask, claim, emit, hold, more, queue_aside, rig, set_aside};
use crate::support::Redis;
use crate::{BOUNDS, objects};

/// Returns the source that the next call tries first.
fn from(answer: &Advanced) -> ClaimFirst {
    let Advanced::Ok { from, .. } = answer else {
        panic!("{answer:?}")
    };
    *from
}

/// The owner key of a held object without a batch was evicted. The marker of the object seems to
/// lead to an object without an owner, before or after the held object has its turn. One slot gets
/// the object.
#[tokio::test]
async fn a_held_object_without_an_owner_key_has_one_slot() {
    for (first, expected) in [("x:1", &["x:1", "a:1"]), ("a:1", &["x:1", "a:1"])] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state.hold("a:1", "1", &[], "0 0 0 0 yield").await;
        state.run("DEL", &[&keys.event_worker("a:1")]).await;
        emit(
            &mut state,
            [first, if first == "a:1" { "x:1" } else { "a:1" }],
        )
        .await;
        state.run("LPUSH", &[&keys.events("a:1"), "2", "3"]).await;
        assert_eq!(
            claim(&mut state, 4, Bounds { batch: 1, ..BOUNDS }).await,
            expected
        );
        assert_eq!(console.list(&keys.events("a:1")).await, ["2", "3"]);
        assert_eq!(console.due("a:1").await, None);
    }
}

/// The owner key of a held object was evicted, and its name is set aside. The held batch is claimed
/// before later events if its due time is over; else the object is held again.
#[tokio::test]
async fn a_held_object_that_is_set_aside_needs_no_owner_key() {
    for (score, claimed) in [("-1", true), ("99999999999999", false)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state
            .hold("a:1", score, &["1"], "7 0 1 0 retry: down")
            .await;
        state.run("DEL", &[&keys.event_worker("a:1")]).await;
        state.run("LPUSH", &[&keys.events("a:1"), "2"]).await;
        set_aside(&mut state, "a", 0, &["a:1"]).await;
        let expected: &[&str] = if claimed { &["a:1"] } else { &[] };
        assert_eq!(claim(&mut state, 1, GROUPED).await, expected);
        assert_eq!(console.list(&keys.events("a:1")).await, ["2"]);
        let (owner, batch) = match claimed {
            true => ("w.0", keys.worker_event("w.0")),
            false => ("held", keys.events_held("a:1")),
        };
        assert_eq!(console.list(&batch).await, ["1"]);
        let found = console.text(&keys.event_worker("a:1")).await;
        assert_eq!(found.as_deref(), Some(owner));
    }
}

/// The owner key of a held object was evicted. The marker of the object leads to no event, and the
/// held batch is claimed after it.
#[tokio::test]
async fn a_marker_without_events_hides_no_held_batch() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.hold("a:1", "1", &["1"], "7 0 1 0 retry: down").await;
    state.run("DEL", &[&keys.event_worker("a:1")]).await;
    state
        .run("LPUSH", &[&keys.objects_with_events(), "a:1"])
        .await;
    assert_eq!(claim(&mut state, 1, BOUNDS).await, ["a:1"]);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1"]);
    assert_eq!(
        console.text(&keys.worker_event_id("w.0")).await.as_deref(),
        Some("7 1 1")
    );
}

/// A held object without a batch and without events leads to no claim, so its group does not pay
/// for it.
#[tokio::test]
async fn a_held_object_without_events_counts_for_no_group() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    state.hold("a:1", "-1", &[], "0 0 0 0 yield").await;
    set_aside(&mut state, "a", 0, &["a:1"]).await;
    queue_aside(&mut state, "a", 0, &["a:2", "a:3"]).await;
    assert_eq!(
        claim(
            &mut state,
            2,
            Bounds {
                reply_bytes: 1,
                ..GROUPED
            }
        )
        .await,
        ["a:2"]
    );
    assert_eq!(aside(&console).await, "a 1: a:3; 1");
    assert_eq!(console.text(&state.keys.event_worker("a:1")).await, None);
}

/// The owner key of a held object has a wrong type. Its marker leads to no claim, because its held
/// batch comes first.
#[tokio::test]
async fn a_marker_of_a_held_object_with_a_wrong_owner_key_leads_to_no_claim() {
    for has_last in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        hold(&mut state, 1, ["b:1"]).await;
        state
            .hold("a:1", "9999999999999", &["1"], "7 0 1 0 retry: down")
            .await;
        state.run("DEL", &[&keys.event_worker("a:1")]).await;
        state
            .run("LPUSH", &[&keys.event_worker("a:1"), "wrong"])
            .await;
        if has_last {
            state.delivered("a:1", 6).await;
        }
        emit(&mut state, ["a:1"]).await;
        assert_eq!(claim(&mut state, 2, BOUNDS).await, ["b:1"], "{has_last}");
        assert_eq!(console.due("a:1").await, Some(f64::INFINITY));
        assert_eq!(
            console.text(&keys.event_worker("a:1")).await.as_deref(),
            Some("held")
        );
        assert_eq!(console.list(&keys.events("a:1")).await, ["1"]);
    }
}

/// A slot finds no held object, then a marker of another worker's object, and then nothing more.
/// The markers have the next turn.
#[tokio::test]
async fn a_marker_that_leads_nowhere_keeps_the_turn() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.event_worker("c:1"), "x.0"]).await;
    hold(&mut state, 1, ["h:1"]).await;
    emit(&mut state, ["a:1", "b:1", "c:1"]).await;
    let answer = ask(&mut state, 4, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["a:1", "h:1", "b:1"]);
    assert!(matches!(from(&answer), ClaimFirst::Markers), "{answer:?}");
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        Vec::<String>::new()
    );
}

/// A call may look at no further marker, but one is left. So the turn stays with the markers,
/// although held objects are due.
#[tokio::test]
async fn a_marker_that_is_left_has_the_next_turn() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    hold(&mut state, 1, ["h:1", "h:2"]).await;
    for object in ["a:1", "b:1"] {
        state.run("SET", &[&keys.event_worker(object), "x.0"]).await;
    }
    emit(&mut state, ["a:1", "b:1", "c:1"]).await;
    let answer = ask(
        &mut state,
        2,
        Bounds {
            markers: 2,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert!(matches!(from(&answer), ClaimFirst::Markers), "{answer:?}");
    assert_eq!(console.list(&keys.objects_with_events()).await, ["c:1"]);
    let answer = ask(&mut state, 2, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["c:1", "h:1"]);
}

/// A name in `objects.held` belongs to an object of another worker, and a reason is left from an
/// earlier hold. The name is dropped, and the other worker keeps its object.
#[tokio::test]
async fn a_due_name_with_a_reason_takes_no_object_from_a_worker() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.hold("a:1", "1", &[], "0 0 0 0 yield").await;
    state.run("SET", &[&keys.event_worker("a:1"), "x.0"]).await;
    state.run("LPUSH", &[&keys.events("a:1"), "1"]).await;
    assert_eq!(claim(&mut state, 1, BOUNDS).await, Vec::<String>::new());
    assert_eq!(
        console.text(&keys.event_worker("a:1")).await.as_deref(),
        Some("x.0")
    );
    assert_eq!(console.due("a:1").await, None);
}

/// A call with room for one byte claims a held object. The counter of ids rises only if it is below
/// the last id of the batch.
#[tokio::test]
async fn the_counter_rises_above_a_held_batch() {
    for (counter, rises) in [(8, true), (9, false)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let key = state.keys.next_event_id();
        state
            .hold("a:1", "1", &["1", "2", "3"], "7 0 1 0 retry: down")
            .await;
        state.run("SET", &[&key, &counter.to_string()]).await;
        assert_eq!(
            claim(
                &mut state,
                1,
                Bounds {
                    reply_bytes: 1,
                    ..BOUNDS
                }
            )
            .await,
            ["a:1"]
        );
        assert_eq!(console.number(&key).await > 9, rises, "{counter}");
    }
}

/// The last id of a held object has a wrong type or is no id, or its batch has a wrong type. The
/// object waits for an operator.
#[tokio::test]
async fn a_held_batch_with_a_wrong_key_is_not_claimed() {
    for wrong in ["last type", "last id", "batch type"] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let keys = state.keys.clone();
        state.hold("a:1", "1", &["1"], "7 0 1 0 retry: down").await;
        let (key, kind) = if wrong == "batch type" {
            (keys.events_held("a:1"), "string")
        } else {
            (keys.last_event_id("a:1"), "list")
        };
        state.run("DEL", &[&key]).await;
        match wrong {
            "last type" => state.run("LPUSH", &[&key, "6"]).await,
            _ => state.run("SET", &[&key, "wrong"]).await,
        }
        let kind = if wrong == "last id" { "string" } else { kind };
        assert_eq!(
            claim(&mut state, 1, BOUNDS).await,
            Vec::<String>::new(),
            "{wrong}"
        );
        assert_eq!(console.due("a:1").await, Some(f64::INFINITY), "{wrong}");
        let why = console.held_id("a:1").await.expect("a reason");
        assert!(
            why.starts_with("7 0 1 0 quarantine: ") && why.ends_with(&format!(" is a {kind}")),
            "{why}"
        );
        assert_eq!(
            why.contains("last.event.id"),
            wrong != "batch type",
            "{why}"
        );
    }
}
