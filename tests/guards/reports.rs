//! `advance`: the results of a slot, and the object that it leaves.

use seriatim::wire::{Advance, BatchResult, ClaimFirst, Report};

use crate::scene::{BOUNDS, LEASE, Scene, bounds, done, hold, reject, result, slots};

/// A worker owns `work:1`. Behind `work:1`, its list has the name of an object that it does not own.
/// Usually new names come first in a list, so the keys are set by hand. The slot must release the
/// object of its report all the same.
const NAME_BEHIND: &str =
    "own w.0 work:1 1 1; LPUSH work:2:events 2; RPUSH event.worker:w.0:object work:2";

/// Reports for slot 0.
async fn report(scene: &Scene, report: Report) {
    let fill = |call: &mut Advance| call.report(0, &report);
    scene.advance_from(ClaimFirst::Held, BOUNDS, fill).await;
    scene.check().await;
}

#[tokio::test]
async fn an_object_is_released_by_its_name() {
    let scene = Scene::given(NAME_BEHIND).await;
    report(&scene, done("work:1", 1)).await;
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = [work:2]
        work:1: event.worker = nil; last.event.id = 1
    ";
    scene.changed(changes).await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["work:2"]);
}

/// A slot leaves its object and claims another one. In the slot's list, the name of the new object
/// replaces the former name, at the end. Names that pops have moved there stay before it, for the
/// next look.
#[tokio::test]
async fn the_next_object_takes_the_place_of_the_one_that_was_left() {
    let given = "own w.0 work:1 1 1; emit work:2 1; pop w.0; emit work:3 1";
    let scene = Scene::given(given).await;
    let answer = scene.report(0, &done("work:1", 1), BOUNDS).await;
    assert_eq!(answer.objects(), ["work:3"]);
    let changes = "
        event.worker:w.0: event.id = 2; object = [work:3, work:2]
        next.event.id = 2
        objects.with.events = nil
        work:1: event.worker = nil; last.event.id = 1
        work:3: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
    scene.advance(BOUNDS, |call| call.look(0)).await;
    let changes = "
        event.worker:w.0: object = [work:3]
        objects.with.events = [work:2]
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A slot reports after a pop for it has ended. The popped name becomes a marker again; the object
/// just left does not.
#[tokio::test]
async fn a_look_at_a_slot_that_reports_returns_only_what_was_popped() {
    let given = "own w.0 work:1 1 1; emit work:2 1; pop w.0";
    let scene = Scene::given(given).await;
    let fill = |call: &mut Advance| {
        call.report(0, &done("work:1", 1));
        call.look(0);
    };
    scene.advance(bounds(|b| b.claims = 0), fill).await;
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = nil
        objects.with.events = [work:2]
        work:1: event.worker = nil; last.event.id = 1
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A slot releases its object, although another name is behind it in the list. Another slot of the
/// same call goes on with its object.
#[tokio::test]
async fn an_object_is_released_by_its_name_while_another_one_goes_on() {
    let scene = Scene::given(NAME_BEHIND).await;
    scene.add("own w.1 work:3 2 3; LPUSH work:3:events 4").await;
    let results = [done("work:1", 1), done("work:3", 2)];
    let answer = scene
        .advance_from(ClaimFirst::Held, BOUNDS, slots(&results, 0..0))
        .await;
    assert_eq!(answer.objects(), ["work:3"]);
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = [work:2]
        event.worker:w.1: event = [4]; event.id = 3
        next.event.id = 3
        work:1: event.worker = nil; last.event.id = 1
        work:3: events = nil; last.event.id = 2
    ";
    scene.changed(changes).await;
    scene.check().await;
}

#[tokio::test]
async fn an_object_is_held_by_its_name() {
    let scene = Scene::given(NAME_BEHIND).await;
    let held = hold("1 0 1", Some(LEASE), "retry: down");
    report(&scene, result("work:1", "1", 0, held)).await;
    let changes = "
        event.worker:w.0: event = [2]; event.id = 2; object = [work:2]
        next.event.id = 2
        objects.held = <work:1: NOW+10m>
        work:1: event.errors = [NOW 1 down]; event.worker = held; events.held = [1]; events.held.id = 1 0 1 0 retry: down
        work:2: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// A late result is about an earlier hand-out. The batch in flight begins with the same id, but it
/// is not the delivered batch.
#[tokio::test]
async fn a_result_of_an_earlier_hand_out_is_ignored() {
    let scene = Scene::given(NAME_BEHIND).await;
    scene.add("SET event.worker:w.0:event.id '1 1'").await;
    report(&scene, done("work:1", 1)).await;
    scene.changed("").await;
}

/// The slot's list has a wrong type. The call fails, and the object that the slot should claim next
/// stays unchanged.
#[tokio::test]
async fn what_cannot_be_listed_is_as_it_was() {
    for next in ["emit work:2 2", "hold work:2 1 '2 0 1 0 retry: down' 2"] {
        let given = "own w.0 work:1 1 1; SET event.worker:w.0:object wrong";
        let scene = Scene::given(given).await;
        scene.add(next).await;
        scene.fails(BOUNDS, slots(&[done("work:1", 1)], 0..0)).await;
        let changes = "
            event.worker:w.0: event = nil; event.id = nil
            work:1: event.worker = nil; last.event.id = 1
        ";
        scene.changed(changes).await;
    }
}

/// The second slot's batch key has a wrong type. The call fails, but the first slot keeps the batch
/// that the call has already given to it.
#[tokio::test]
async fn a_call_that_fails_half_way_writes_down_what_it_did() {
    let given = "each work:1..3; SET event.worker:w.1:event wrong";
    let scene = Scene::given(given).await;
    scene.fails(BOUNDS, slots(&[], 0..2)).await;
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1; object = [work:1]
        next.event.id = 1
        objects.with.events = [work:2, work:3]
        work:1: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// The second slot's batch has a wrong type, so the call fails before any slot takes more events. The
/// first slot keeps its object, because the object has more events. Without an owner and a marker,
/// no slot would take these events.
#[tokio::test]
async fn a_call_that_fails_leaves_objects_with_events_to_their_slots() {
    let given = "
        own w.0 work:1 1 1; LPUSH work:1:events 2; own w.1 work:2 2 1; DEL event.worker:w.1:event
        SET event.worker:w.1:event wrong
    ";
    let scene = Scene::given(given).await;
    let part = BatchResult::Part {
        next: "3".parse().expect("a tag"),
    };
    let results = [done("work:1", 1), result("work:2", "2", 1, part)];
    scene.fails(BOUNDS, slots(&results, 0..0)).await;
    let changes = "
        event.worker:w.0: event = nil; event.id = nil
        work:1: last.event.id = 1
    ";
    scene.changed(changes).await;
    let answer = scene
        .advance_from(ClaimFirst::Held, BOUNDS, |call| call.free(0))
        .await;
    assert_eq!(answer.objects(), ["work:1"]);
}

/// The last event of a batch becomes a dead letter, and then the call fails on a key of another
/// slot. The first slot then has no batch and no tag.
#[tokio::test]
async fn a_call_that_fails_behind_a_dead_letter_leaves_no_tag() {
    let given = "
        own w.0 work:1 1 1; own w.1 work:2 2 2; DEL event.worker:w.1:event
        SET event.worker:w.1:event wrong
    ";
    let scene = Scene::given(given).await;
    let part = BatchResult::Part {
        next: "3".parse().expect("a tag"),
    };
    let results = [
        result("work:1", "1", 0, reject(None, 1, 1)),
        result("work:2", "2", 1, part),
    ];
    scene.fails(BOUNDS, slots(&results, 0..0)).await;
    assert_eq!(scene.dead().await.len(), 1);
    assert_eq!(scene.at("event.worker:w.0:event.id").await, "nil");
}
