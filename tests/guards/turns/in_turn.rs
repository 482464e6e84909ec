//! Held objects and markers in turn, while no name is grouped.

use seriatim::wire::ClaimFirst;

use super::{GROUPED, all_grouped, claim, grouped};
use crate::scene::{BOUNDS, Scene, bounds};

/// The owner key of a held object without a batch was evicted. The marker of the object seems to
/// lead to an object without an owner, before or after the held object has its turn. One slot gets
/// the object.
#[tokio::test]
async fn a_held_object_without_an_owner_key_has_one_slot() {
    for (first, expected) in [("x:1", &["x:1", "a:1"]), ("a:1", &["x:1", "a:1"])] {
        let given = "hold a:1 1 '0 0 0 0 yield'; DEL a:1:event.worker";
        let scene = Scene::given(given).await;
        let second = if first == "a:1" { "x:1" } else { "a:1" };
        scene.add(&format!("each {first} {second}")).await;
        scene.add("LPUSH a:1:events 2 3").await;
        assert_eq!(claim(&scene, 4, bounds(|b| b.batch = 1)).await, expected);
        assert_eq!(scene.at("a:1:events").await, "[2, 3]");
        assert_eq!(scene.due("a:1").await, None);
    }
}

/// The owner key of a held object was evicted, and its name is grouped. The held batch is claimed
/// before later events if its due time is over; else the object is held again.
#[tokio::test]
async fn a_held_object_that_is_grouped_needs_no_owner_key() {
    for (score, claimed) in [("-1", true), ("99999999999999", false)] {
        let scene = Scene::new().await;
        let given = format!("hold a:1 {score} '7 0 1 0 retry: down' 1");
        scene.add(&given).await;
        let given = "DEL a:1:event.worker; LPUSH a:1:events 2; names a 0 a:1";
        scene.add(given).await;
        let expected: &[&str] = if claimed { &["a:1"] } else { &[] };
        assert_eq!(claim(&scene, 1, GROUPED).await, expected);
        assert_eq!(scene.at("a:1:events").await, "[2]");
        let (owner, batch) = match claimed {
            true => ("w.0", scene.keys.worker_event("w.0")),
            false => ("held", scene.keys.events_held("a:1")),
        };
        assert_eq!(scene.list(&batch).await, ["1"]);
        let found = scene.text(&scene.keys.event_worker("a:1")).await;
        assert_eq!(found.as_deref(), Some(owner));
    }
}

/// More released objects are due than a call groups. The name of one of the others is grouped from
/// before, and its owner key was evicted. The object is held again, and waits for its turn.
#[tokio::test]
async fn a_released_object_without_an_owner_key_waits_for_its_turn() {
    let scene = Scene::new().await;
    let released: Vec<_> = (0..256).map(|n| format!("a:{n}")).collect();
    let released = released.join(" ");
    scene.add(&format!("due 0 {released}")).await;
    let scores = released.replace("a:", "0 a:");
    scene.add(&format!("ZADD objects.held {scores}")).await;
    let given = "hold z:1 0 '7 0 1 0 retry: down' 1; DEL z:1:event.worker; names z -5 z:1";
    scene.add(given).await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:0"]);
    assert_eq!(scene.at("z:1:event.worker").await, "held");
    assert_eq!(scene.at("z:1:events.held").await, "[1]");
}

/// The owner key of a held object was evicted. The marker of the object leads to no event, and the
/// held batch is claimed after it.
#[tokio::test]
async fn a_marker_without_events_hides_no_held_batch() {
    let given = "
        hold a:1 1 '7 0 1 0 retry: down' 1; DEL a:1:event.worker; LPUSH objects.with.events a:1
    ";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, BOUNDS).await, ["a:1"]);
    assert_eq!(scene.at("event.worker:w.0:event").await, "[1]");
    assert_eq!(scene.at("event.worker:w.0:event.id").await, "7 1 1");
}

/// A held object without a batch and without events leads to no claim, so its group does not pay
/// for it.
#[tokio::test]
async fn a_held_object_without_events_counts_for_no_group() {
    let given = "hold a:1 -1 '0 0 0 0 yield'; names a 0 a:1; queue a 0 a:2 a:3";
    let scene = Scene::given(given).await;
    assert_eq!(
        claim(&scene, 2, grouped(|b| b.reply_bytes = 1)).await,
        ["a:2"]
    );
    assert_eq!(all_grouped(&scene).await, "a 1: a:3; 1");
    assert_eq!(scene.at("a:1:event.worker").await, "nil");
}

/// The owner key of a held object has a wrong type. Its marker leads to no claim, because its held
/// batch comes first.
#[tokio::test]
async fn a_marker_of_a_held_object_with_a_wrong_owner_key_leads_to_no_claim() {
    for has_last in [false, true] {
        let given = "
            due 1 b:1; hold a:1 9999999999999 '7 0 1 0 retry: down' 1; DEL a:1:event.worker
            LPUSH a:1:event.worker wrong
        ";
        let scene = Scene::given(given).await;
        if has_last {
            scene.add("delivered a:1 6").await;
        }
        scene.add("each a:1").await;
        assert_eq!(claim(&scene, 2, BOUNDS).await, ["b:1"], "{has_last}");
        assert_eq!(scene.due("a:1").await, Some(f64::INFINITY));
        assert_eq!(scene.at("a:1:event.worker").await, "held");
        assert_eq!(scene.at("a:1:events").await, "[1]");
    }
}

/// A slot finds no held object, then a marker of another worker's object, and then nothing more.
/// The markers have the next turn.
#[tokio::test]
async fn a_marker_that_leads_nowhere_keeps_the_turn() {
    let given = "SET c:1:event.worker x.0; due 1 h:1; each a:1 b:1 c:1";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..4, BOUNDS).await;
    assert_eq!(answer.objects(), ["a:1", "h:1", "b:1"]);
    assert_eq!(answer.from, ClaimFirst::Markers);
    assert_eq!(scene.at("objects.with.events").await, "nil");
}

/// A call may look at no further marker, but one is left. So the turn stays with the markers,
/// although held objects are due.
#[tokio::test]
async fn a_marker_that_is_left_has_the_next_turn() {
    let scene = Scene::given("due 1 h:1 h:2").await;
    for object in ["a:1", "b:1"] {
        scene.add(&format!("SET {object}:event.worker x.0")).await;
    }
    scene.add("each a:1 b:1 c:1").await;
    let answer = scene.free(0..2, bounds(|b| b.markers = 2)).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(answer.from, ClaimFirst::Markers);
    assert_eq!(scene.at("objects.with.events").await, "[c:1]");
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), ["c:1", "h:1"]);
}

/// A name in `objects.held` belongs to an object of another worker, and a reason is left from an
/// earlier hold. The name is dropped, and the other worker keeps its object.
#[tokio::test]
async fn a_due_name_with_a_reason_takes_no_object_from_a_worker() {
    let given = "hold a:1 1 '0 0 0 0 yield'; SET a:1:event.worker x.0; LPUSH a:1:events 1";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, BOUNDS).await, [""; 0]);
    assert_eq!(scene.at("a:1:event.worker").await, "x.0");
    assert_eq!(scene.due("a:1").await, None);
}

/// A call with room for one byte claims a held object. The counter of ids rises only if it is below
/// the last id of the batch.
#[tokio::test]
async fn the_counter_rises_above_a_held_batch() {
    for (counter, rises) in [(8, true), (9, false)] {
        let scene = Scene::new().await;
        let key = scene.keys.next_event_id();
        scene.add("hold a:1 1 '7 0 1 0 retry: down' 1 2 3").await;
        scene.add(&format!("SET next.event.id {counter}")).await;
        assert_eq!(
            claim(&scene, 1, bounds(|b| b.reply_bytes = 1)).await,
            ["a:1"]
        );
        assert_eq!(scene.number(&key).await > 9, rises, "{counter}");
    }
}

/// The last id of a held object has a wrong type or is no id, or its batch has a wrong type. The
/// object waits for an operator.
#[tokio::test]
async fn a_held_batch_with_a_wrong_key_is_not_claimed() {
    for (wrong, key, what) in [
        ("LPUSH a:1:last.event.id 6", "a:1:last.event.id", "a list"),
        ("SET a:1:last.event.id wrong", "a:1:last.event.id", "no id"),
        (
            "DEL a:1:events.held; SET a:1:events.held wrong",
            "a:1:events.held",
            "a string",
        ),
    ] {
        let scene = Scene::given("hold a:1 1 '7 0 1 0 retry: down' 1").await;
        scene.add(wrong).await;
        assert_eq!(claim(&scene, 1, BOUNDS).await, [""; 0], "{wrong}");
        assert_eq!(scene.due("a:1").await, Some(f64::INFINITY), "{wrong}");
        let why = format!("7 0 1 0 quarantine: {key} is {what}");
        assert_eq!(scene.held_id("a:1").await, Some(why));
    }
}
