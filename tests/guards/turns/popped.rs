//! Names in the lists of free slots, to which pops have moved markers.

use seriatim::control::shares::Share;
use seriatim::wire::{Advance, ClaimFirst};

use super::{GROUPED, all_grouped, claim};
use crate::limits::set;
use crate::scene::{BOUNDS, Scene, bounds};

/// Adds names to the list of a slot, as pops do. The first one is the oldest.
async fn popped(scene: &Scene, slot: &str, names: &[&str]) {
    let names = names.join(" ");
    scene
        .add(&format!("LPUSH event.worker:{slot}:object {names}"))
        .await;
}

/// A pop has moved a mark. The slot removes it, and the mark counts as met.
#[tokio::test]
async fn a_mark_that_was_popped_is_met() {
    let scene = Scene::given("ZADD event.marks 5 5 7 7").await;
    popped(&scene, "w.0", &["\0t5"]).await;
    assert_eq!(claim(&scene, 2, BOUNDS).await, [""; 0]);
    assert_eq!(scene.at("event.marks").await, "<met: 5, 7: 7>");
    assert_eq!(scene.at("event.worker:w.0:object").await, "nil");
}

/// Two pops have moved the same name into one list. The second copy becomes no marker.
#[tokio::test]
async fn a_name_that_was_popped_twice_is_claimed_once() {
    let scene = Scene::given("LPUSH a:1:events 1 2").await;
    popped(&scene, "w.0", &["a:1", "a:1"]).await;
    assert_eq!(claim(&scene, 1, bounds(|b| b.batch = 1)).await, ["a:1"]);
    assert_eq!(scene.at("objects.with.events").await, "nil");
    assert_eq!(scene.at("event.worker:w.0:object").await, "[a:1]");
    assert_eq!(scene.at("a:1:events").await, "[2]");
}

/// A pop has moved the name of an object that another worker has, and that has no last id yet. The
/// slot removes the name.
#[tokio::test]
async fn the_name_of_anothers_object_is_removed() {
    let given = "SET a:1:event.worker x.0; LPUSH a:1:events 1";
    let scene = Scene::given(given).await;
    popped(&scene, "w.0", &["a:1"]).await;
    assert_eq!(claim(&scene, 1, BOUNDS).await, [""; 0]);
    assert_eq!(scene.at("event.worker:w.0:object").await, "nil");
    assert_eq!(scene.at("objects.with.events").await, "nil");
    assert_eq!(scene.at("a:1:event.worker").await, "x.0");
}

/// A call with room for one claim, or for one byte, claims the oldest of two names that pops have
/// moved. The other one becomes a marker.
#[tokio::test]
async fn the_oldest_name_that_was_popped_is_claimed() {
    for reply_bytes in [1, 1 << 20] {
        let scene = Scene::new().await;
        for object in ["a:1", "b:1"] {
            scene.add(&format!("LPUSH {object}:events 1")).await;
        }
        popped(&scene, "w.0", &["a:1", "b:1"]).await;
        assert_eq!(
            claim(&scene, 1, bounds(|b| b.reply_bytes = reply_bytes)).await,
            ["a:1"]
        );
        assert_eq!(scene.at("objects.with.events").await, "[b:1]");
    }
}

/// A name that goes back is one marker. So as many markers wait as the call can claim, and the
/// groups take no turns.
#[tokio::test]
async fn a_name_that_goes_back_is_one_marker() {
    for looks in [false, true] {
        let scene = Scene::given("LPUSH b:1:events 1").await;
        if looks {
            scene.add("own w.0 a:1 1 1").await;
            popped(&scene, "w.0", &["b:1"]).await;
        } else {
            scene.add("LPUSH a:1:events 1").await;
            popped(&scene, "w.0", &["a:1", "b:1"]).await;
        }
        let fill = |call: &mut Advance| {
            if looks {
                call.look(0)
            } else {
                call.free(0)
            }
            call.free(1);
        };
        let answer = scene.advance(GROUPED, fill).await;
        assert_eq!(answer.objects().last(), Some(&"b:1"));
        assert_eq!((answer.from, answer.more), (ClaimFirst::Held, false));
        assert_eq!(scene.at("event.worker:w.0:object").await, "[a:1]");
        assert_eq!(scene.at("objects.with.events").await, "nil");
    }
}

/// One slot has a batch whose reply was lost, and the list of another one has a name. This one
/// claims the object, although a third one is free.
#[tokio::test]
async fn the_slot_whose_list_has_the_name_claims_it() {
    let scene = Scene::given("own w.2 c:1 1 1; LPUSH a:1:events 1").await;
    popped(&scene, "w.0", &["a:1"]).await;
    let answer = scene.free(0..3, BOUNDS).await;
    assert_eq!(answer.objects(), ["c:1", "a:1"]);
    assert_eq!(scene.at("a:1:event.worker").await, "w.0");
}

/// The lists of the first and of the last of three slots have names. Both slots claim their objects.
#[tokio::test]
async fn each_slot_whose_list_has_a_name_claims_it() {
    let given = "LPUSH a:1:events 1; LPUSH c:1:events 1; emit b:1 1";
    let scene = Scene::given(given).await;
    popped(&scene, "w.0", &["a:1"]).await;
    popped(&scene, "w.2", &["c:1"]).await;
    assert_eq!(claim(&scene, 3, BOUNDS).await, ["a:1", "c:1", "b:1"]);
    for (slot, list) in [("w.0", "[a:1]"), ("w.1", "[b:1]"), ("w.2", "[c:1]")] {
        let key = format!("event.worker:{slot}:object");
        assert_eq!(scene.at(&key).await, list, "{slot}");
    }
}

/// A slot without a tag keeps its batch, because it has lost another one, so it is busy. Two objects
/// wait for the one free slot, so the groups take turns.
#[tokio::test]
async fn a_slot_that_keeps_its_lost_batch_claims_nothing() {
    let given = "
        LPUSH event.worker:w.1:event 1; RPUSH event.worker:w.1:lost 0 2; emit a:1 1; emit b:1 1
    ";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 2, GROUPED).await, ["a:1"]);
    assert_eq!(all_grouped(&scene).await, "b 0: b:1; a 1: ; 1");
}

/// A batch that is given again fills the reply, and another slot keeps its lost batch. A third slot is
/// free, so another call is of use.
#[tokio::test]
async fn a_slot_that_keeps_its_lost_batch_hides_no_free_slot() {
    let given = "
        own w.0 a:1 1 1; LPUSH event.worker:w.1:event 1; RPUSH event.worker:w.1:lost 0 2
        emit b:1 1
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..3, bounds(|b| b.reply_bytes = 1)).await;
    assert_eq!(answer.summary(), "a:1, more");
    let answer = scene.free(1..3, BOUNDS).await;
    assert_eq!(answer.summary(), "b:1");
}

/// The owner key of a held object has a wrong type, and a pop has moved its name. The object is put
/// aside, and the next name in the list is claimed.
#[tokio::test]
async fn a_popped_object_with_a_wrong_owner_key_is_quarantined() {
    let given = "
        hold a:1 9999999999999 '7 0 1 0 retry: soon' 1; delivered a:1 6; DEL a:1:event.worker
        LPUSH a:1:event.worker wrong
    ";
    let scene = Scene::given(given).await;
    for object in ["a:1", "b:1"] {
        scene.add(&format!("LPUSH {object}:events 2")).await;
    }
    popped(&scene, "w.0", &["a:1", "b:1"]).await;
    assert_eq!(claim(&scene, 1, BOUNDS).await, ["b:1"]);
    assert_eq!(scene.due("a:1").await, Some(f64::INFINITY));
    assert_eq!(scene.at("event.worker:w.0:object").await, "[b:1]");
}

/// A share has a limit. The reply to the claim of an object was lost, and its events are gone. It counts
/// as in hand no longer.
#[tokio::test]
async fn an_object_without_events_is_no_longer_in_hand() {
    let scene = Scene::new().await;
    set(&scene, "*", Share::new().in_flight(1000)).await;
    scene
        .add("SET a:1:event.worker w.0; ZADD objects.in.hand 0 a:1:")
        .await;
    popped(&scene, "w.0", &["a:1"]).await;
    assert_eq!(claim(&scene, 1, BOUNDS).await, [""; 0]);
    for key in [
        "objects.in.hand",
        "a:1:event.worker",
        "event.worker:w.0:object",
    ] {
        assert_eq!(scene.at(key).await, "nil", "{key}");
    }
}

/// A share has a limit, and the reply to the claim of an object was lost before its batch was
/// taken. The slot goes on with its object, although another group has the next turn.
#[tokio::test]
async fn a_slot_goes_on_with_its_object_at_a_limit() {
    let scene = Scene::new().await;
    set(&scene, "*", Share::new().in_flight(1000)).await;
    let given = "SET a:1:event.worker w.0; LPUSH a:1:events 1";
    scene.add(given).await;
    popped(&scene, "w.0", &["a:1"]).await;
    scene.add("queue b 0 b:1").await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:1"]);
    assert_eq!(all_grouped(&scene).await, "b 0: b:1; 1");
}
