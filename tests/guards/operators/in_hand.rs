//! `in_hand`: which objects of slots count, and which leave the count.

use seriatim::control::shares::Share;
use seriatim::keys::Keys;
use seriatim::wire::operator::{self, InHand};

use super::{BY, given};
use crate::scene::Scene;
use crate::support::control;

/// The time since when objects in hand are counted, and the key that says so.
const SINCE: u64 = 1700;
const COUNTED: &str = "SET event.shares.summary '0 0 1700'\n";

async fn look(scene: &Scene, since: u64, look: InHand<'_>) -> Option<String> {
    let mut conn = scene.conn().await;
    let last = operator::in_hand(&mut conn, &scene.keys, since, look).await;
    let last = last.expect("a reply");
    last.map(|last| String::from_utf8_lossy(&last).into_owned())
}

/// The objects that a slot owns count, if they are among the last 16 names of its list. A key of a
/// wrong type has none.
#[tokio::test]
async fn the_objects_of_slots_count() {
    let given_keys = "
        RPUSH event.worker:w.0:object late:0 other:1..15 a:1
        RPUSH event.worker:w.1:object late:1 other:1..14 b:1
        RPUSH event.worker:w.2:object a:2 d:1; SET event.worker:w.3:object wrong
        SET late:0:event.worker w.0; SET a:1:event.worker w.0; SET late:1:event.worker w.1
        SET b:1:event.worker w.1; SET a:2:event.worker w.0; RPUSH d:1:event.worker wrong
    ";
    let scene = given(&(COUNTED.to_owned() + given_keys)).await;
    let slots: Vec<String> = (0..5).map(|n| format!("w.{n}")).collect();
    let last = look(&scene, SINCE, InHand::Slots(&slots)).await;
    assert_eq!(last.as_deref(), Some(""));
    scene
        .changed("objects.in.hand = <a:1:: 0, b:1:: 0, late:1:: 0>")
        .await;
    // A slot without an object adds none, and an owned object in the list of another slot neither.
    let last = look(&scene, SINCE, InHand::Slots(&slots[2..])).await;
    assert_eq!(last.as_deref(), Some(""));
    scene.changed("").await;
}

/// An object leaves the count if it has no owner, if it is held, or if its owner is no slot.
#[tokio::test]
async fn objects_that_no_slot_owns_leave_the_count() {
    let given_keys = "
        ZADD objects.in.hand 0 a: 0 b: 0 c: 0 d: 0 e:f: 0 g:; SET a:event.worker w.0
        SET b:event.worker held; SET d:event.worker w.x; SET e:f:event.worker w-v.12
        RPUSH g:event.worker wrong
    ";
    let scene = given(&(COUNTED.to_owned() + given_keys)).await;
    for (since, changes) in [
        (SINCE + 1, ""),
        (SINCE, "objects.in.hand = <a:: 0, e:f:: 0>"),
    ] {
        for (after, last) in [("", "c:"), ("c:", "g:"), ("g:", "")] {
            let members = InHand::Members {
                after: after.as_bytes(),
                count: 3,
            };
            let found = look(&scene, since, members).await;
            let last = (since == SINCE).then_some(last);
            assert_eq!(found.as_deref(), last, "after {after:?}");
        }
        scene.changed(changes).await;
    }
}

/// If objects in hand are counted since another time, no object of a slot counts. Without a
/// namespace, a name that begins with a brace belongs to another one.
#[tokio::test]
async fn an_object_of_another_count_or_namespace_does_not_count() {
    let slots = ["w.0".to_owned()];
    let scene = given(&format!("{COUNTED}own w.0 a 5 1")).await;
    let last = look(&scene, SINCE + 1, InHand::Slots(&slots)).await;
    assert_eq!(last, None);
    scene.changed("").await;

    let scene = Scene::under(Keys::new()).await;
    let keys = "own w.0 {x 5 1; own w.0 x 6 1";
    scene.add(&(COUNTED.to_owned() + keys)).await;
    look(&scene, SINCE, InHand::Slots(&slots)).await;
    scene.changed("objects.in.hand = <x:: 0>").await;
}

/// When a share is set, the objects of all slots of each name count. A list behind the last slot of a
/// name does not.
#[tokio::test]
async fn the_objects_of_all_slots_of_a_name_count() {
    let names = "HSET event.workers w '1 t 0' v '2 t 0'; own w.0 a:1 5 1; own w.1 b:1 5 1";
    let given_keys = format!("{names}; own w.2 b:2 5 1; own v.1 c:1 5 1; own v.2 d:1 5 1");
    let scene = given(&given_keys).await;
    let selector = "x:*".parse().expect("a selector");
    let control = control(&scene.conn().await, &scene.keys);
    let share = Share::new().weight(2);
    control.set_share(BY, &selector, share).await.expect("set");
    assert_eq!(scene.at("objects.in.hand").await, "<a:1:: 0, c:1:: 0>");
}
