//! Which worker looks next at groups that wait for events per second, and when the others look.

use std::ops::RangeInclusive;
use std::time::Duration;

use seriatim::control::By;
use seriatim::control::shares::Share;
use seriatim::wire::{self, Advance, Advanced, Attach, ClaimFirst};

use crate::limits::set;
use crate::scene::{ATTACH, Scene, bounds};
use crate::support::{Redis, control};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The workers of a scene.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Makes a call of this worker. `claims`: the number of its slots without a batch. Returns the number
/// of claimed objects, and the time to the next look.
async fn call(scene: &Scene, name: &str, claims: usize) -> (usize, Option<Duration>) {
    let (token, within) = (format!("token-{name}"), bounds(|b| b.claims = claims));
    let mut call = Advance::new(&scene.keys, name, &token, within, ClaimFirst::Markers);
    call.free(0);
    call.free(1);
    match wire::advance(&mut scene.conn().await, &call).await {
        Ok(Advanced::Ok {
            next_due, batches, ..
        }) => (batches.len(), next_due),
        other => panic!("{other:?}"),
    }
}

/// Asserts that a worker looks so many ms after `due`.
async fn assert_looks(scene: &Scene, name: &str, due: u64, after: RangeInclusive<u64>) {
    let before = scene.now_ms().await;
    let (_, next) = call(scene, name, 2).await;
    let next = u64::try_from(next.expect("a time").as_millis()).expect("a time");
    let (least, most) = (before + next, scene.now_ms().await + next);
    assert!(
        due + after.end() + 1 >= least && due + after.start() <= most,
        "{name}: {least} to {most}, due {due}, {after:?}"
    );
}

/// Asserts that this worker is to look at this time.
async fn assert_look(scene: &Scene, look: &str) {
    let found = scene.text(&scene.keys.event_groups_look()).await;
    assert_eq!(found.as_deref(), Some(look));
}

/// Returns a scene with three workers and a share of 0.2 events per second. One of three objects is
/// claimed. Also returns the time, in ms, at which the rate allows the next one.
async fn scene() -> (Scene, u64) {
    let scene = Scene::bare(Redis::start()).await;
    for name in NAMES {
        let args = Attach {
            name,
            token: &format!("token-{name}"),
            ..ATTACH
        };
        scene.attach(&args).await;
    }
    set(&scene, "r:*", Share::new().rate(0.2)).await;
    scene.add("each r:1..3").await;
    assert_eq!(call(&scene, "a", 2).await.0, 1);
    let blocked = scene.scores("event.groups.blocked").await;
    let [(_, due)] = blocked[..] else {
        panic!("{blocked:?}")
    };
    assert_look(&scene, &format!("{due} a")).await;
    (scene, due as u64)
}

/// The others look up to 20 ms later for each worker name, up to 400 ms later at the most.
#[tokio::test]
async fn one_worker_looks_when_it_is_of_use_and_the_others_later() {
    let (scene, due) = scene().await;
    assert_looks(&scene, "a", due, 0..=0).await;
    for name in ["b", "c"] {
        assert_looks(&scene, name, due, 30..=60).await;
    }
    let others: String = (0..97).map(|n| format!(" 1 'other {n}'")).collect();
    scene
        .add(&format!("ZADD event.workers.watched{others}"))
        .await;
    for name in ["b", "c"] {
        assert_looks(&scene, name, due, 200..=400).await;
    }
    assert_looks(&scene, "a", due, 0..=0).await;
    assert_look(&scene, &format!("{due} a")).await;
}

#[tokio::test]
async fn a_worker_takes_the_place_of_one_that_looks_too_late() {
    let (scene, due) = scene().await;
    let now = scene.now_ms().await;
    for at in [now - 11, 0, due + 3, due + 3_600_000] {
        scene.add(&format!("SET event.groups.look '{at} a'")).await;
        assert_looks(&scene, "b", due, 0..=0).await;
        assert_look(&scene, &format!("{due} b")).await;
    }
    // A look at a time before it is of use does no harm.
    for at in [now + 3000, due, due + 2] {
        scene.add(&format!("SET event.groups.look '{at} a'")).await;
        assert_looks(&scene, "b", due, 30..=60).await;
        assert_look(&scene, &format!("{at} a")).await;
    }
}

/// A worker without a free slot is to look at no time: its next call follows when a slot becomes free.
#[tokio::test]
async fn a_worker_without_a_free_slot_lets_another_one_look() {
    let (scene, due) = scene().await;
    assert_eq!(call(&scene, "b", 0).await, (0, None));
    // It was not to look.
    assert_look(&scene, &format!("{due} a")).await;
    scene.add("emit other:1 {}").await;
    // The call gives the first object again, and claims one for the last slot.
    assert_eq!(call(&scene, "a", 1).await, (2, None));
    assert_look(&scene, "0 ").await;
    assert_eq!(scene.at("objects.with.events").await, "[]");
    // The empty marker wakes one worker, which may have no free slot either.
    for _ in 0..2 {
        assert_eq!(call(&scene, "a", 0).await.1, None);
        assert_eq!(scene.at("objects.with.events").await, "[]");
    }
    scene.add("DEL objects.with.events").await;
    assert_eq!(call(&scene, "c", 0).await, (0, None));
    assert_look(&scene, "0 ").await;
    assert_eq!(scene.at("objects.with.events").await, "[]");
    assert_looks(&scene, "b", due, 0..=0).await;
    assert_look(&scene, &format!("{due} b")).await;
}

/// A key of a wrong type does not stop a worker, and the key goes with the last name that waits.
#[tokio::test]
async fn the_key_of_the_next_look_may_have_a_wrong_type() {
    let (scene, due) = scene().await;
    let given = "DEL event.groups.look; RPUSH event.groups.look x";
    scene.add(given).await;
    let given = "DEL event.workers.watched; SET event.workers.watched x";
    scene.add(given).await;
    assert_looks(&scene, "b", due, 0..=0).await;
    assert_looks(&scene, "c", due, 10..=20).await;
    let control = control(&scene.conn().await, &scene.keys);
    let selector = "r:*".parse().expect("a selector");
    control.remove_share(BY, &selector).await.expect("removed");
    assert_eq!(call(&scene, "b", 2).await, (2, None));
    assert_eq!(scene.at("event.groups.look").await, "nil");
}
