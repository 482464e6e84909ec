//! `in_hand`: which objects of slots count, and which leave the count.

use seriatim::control::shares::Share;
use seriatim::keys::Keys;
use seriatim::wire::operator::{self, InHand};

use super::{BY, Scene};
use crate::support::control;

/// The time since when objects in hand are counted.
const SINCE: u64 = 1700;

/// Builds a state in which objects in hand are counted.
async fn scene() -> Scene {
    let mut scene = Scene::new().await;
    scene
        .put("SET", "event.shares.summary", &[&format!("0 0 {SINCE}")])
        .await;
    scene
}

async fn look(scene: &mut Scene, since: u64, look: InHand<'_>) -> Option<String> {
    let keys = scene.state.keys.clone();
    let last = operator::in_hand(&mut scene.state.conn, &keys, since, look)
        .await
        .expect("a reply");
    last.map(|last| String::from_utf8_lossy(&last).into_owned())
}

/// The objects that a slot owns count, if they are among the last 16 names of its list. A key of a
/// wrong type has none.
#[tokio::test]
async fn the_objects_of_slots_count() {
    let mut scene = scene().await;
    let names = |first: &str, others: usize, last: &str| -> Vec<String> {
        let others = (0..others).map(|n| format!("other:{n}"));
        [first.to_owned()]
            .into_iter()
            .chain(others)
            .chain([last.to_owned()])
            .collect()
    };
    for (slot, names) in [
        ("w.0", names("late:0", 15, "a:1")),
        ("w.1", names("late:1", 14, "b:1")),
        ("w.2", names("a:2", 0, "d:1")),
    ] {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        scene
            .put("RPUSH", &format!("event.worker:{slot}:object"), &names)
            .await;
    }
    scene
        .put("SET", "event.worker:w.3:object", &["wrong"])
        .await;
    for (object, owner) in [
        ("late:0", "w.0"),
        ("a:1", "w.0"),
        ("late:1", "w.1"),
        ("b:1", "w.1"),
        ("a:2", "w.0"),
    ] {
        scene
            .put("SET", &format!("{object}:event.worker"), &[owner])
            .await;
    }
    scene.put("RPUSH", "d:1:event.worker", &["wrong"]).await;
    let slots: Vec<String> = (0..5).map(|n| format!("w.{n}")).collect();
    assert_eq!(
        look(&mut scene, SINCE, InHand::Slots(&slots))
            .await
            .as_deref(),
        Some("")
    );
    assert_eq!(
        scene.items("objects.in.hand").await,
        ["a:1: 0", "b:1: 0", "late:1: 0"]
    );
    // A slot without an object adds none, and an owned object in the list of another slot neither.
    assert_eq!(
        look(&mut scene, SINCE, InHand::Slots(&slots[2..]))
            .await
            .as_deref(),
        Some("")
    );
    assert_eq!(scene.items("objects.in.hand").await.len(), 3);
}

/// An object leaves the count if it has no owner, if it is held, or if its owner is no slot.
#[tokio::test]
async fn objects_that_no_slot_owns_leave_the_count() {
    let mut scene = scene().await;
    for (object, owner) in [
        ("a", Some("w.0")),
        ("b", Some("held")),
        ("c", None),
        ("d", Some("w.x")),
        ("e:f", Some("w-v.12")),
    ] {
        scene
            .put("ZADD", "objects.in.hand", &["0", &format!("{object}:")])
            .await;
        if let Some(owner) = owner {
            scene
                .put("SET", &format!("{object}:event.worker"), &[owner])
                .await;
        }
    }
    scene.put("RPUSH", "g:event.worker", &["wrong"]).await;
    scene.put("ZADD", "objects.in.hand", &["0", "g:"]).await;
    for since in [SINCE + 1, SINCE] {
        for (after, last) in [("", "c:"), ("c:", "g:"), ("g:", "")] {
            let told = look(
                &mut scene,
                since,
                InHand::Members {
                    after: after.as_bytes(),
                    count: 3,
                },
            )
            .await;
            assert_eq!(
                told.as_deref(),
                (since == SINCE).then_some(last),
                "after {after:?}"
            );
        }
        let left = if since == SINCE {
            &["a: 0", "e:f: 0"][..]
        } else {
            &["a: 0", "b: 0", "c: 0", "d: 0", "e:f: 0", "g: 0"]
        };
        assert_eq!(scene.items("objects.in.hand").await, left);
    }
}

/// If objects in hand are counted since another time, no object of a slot counts. Without a
/// namespace, a name that begins with a brace belongs to another one.
#[tokio::test]
async fn an_object_of_another_count_or_namespace_does_not_count() {
    let mut scene = scene().await;
    scene.state.own("w.0", "a", 5, &["1"]).await;
    let slots = ["w.0".to_owned()];
    assert_eq!(
        look(&mut scene, SINCE + 1, InHand::Slots(&slots)).await,
        None
    );
    assert_eq!(scene.items("objects.in.hand").await, [""; 0]);

    let keys = Keys::new();
    for object in ["{x", "x"] {
        scene
            .state
            .run("RPUSH", &[&keys.worker_object("w.0"), object])
            .await;
        scene
            .state
            .run("SET", &[&keys.event_worker(object), "w.0"])
            .await;
    }
    scene
        .state
        .run("SET", &[&keys.event_shares_summary(), "0 0 1700"])
        .await;
    operator::in_hand(&mut scene.state.conn, &keys, SINCE, InHand::Slots(&slots))
        .await
        .expect("a reply");
    let members: Vec<String> = scene
        .console
        .run(&["ZRANGE", &keys.objects_in_hand(), "0", "-1"])
        .await;
    assert_eq!(members, ["x:"]);
}

/// When a share is set, the objects of all slots of each name count. A list behind the last slot of a
/// name does not.
#[tokio::test]
async fn the_objects_of_all_slots_of_a_name_count() {
    let mut scene = Scene::new().await;
    for (name, slots) in [("w", 1), ("v", 2)] {
        scene.state.register(name, slots).await;
    }
    for (slot, object) in [
        ("w.0", "a:1"),
        ("w.1", "b:1"),
        ("w.2", "b:2"),
        ("v.1", "c:1"),
        ("v.2", "d:1"),
    ] {
        scene.state.own(slot, object, 5, &["1"]).await;
    }
    let selector = "x:*".parse().expect("a selector");
    let control = control(&scene.state.conn, &scene.state.keys);
    control
        .set_share(BY, &selector, Share::new().weight(2))
        .await
        .expect("set");
    assert_eq!(scene.items("objects.in.hand").await, ["a:1: 0", "c:1: 0"]);
}
