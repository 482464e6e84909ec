//! The expiry of last ids: `advance` sets it, and `forget` keeps some.

use seriatim::wire::{self, Bounds, Forgot};

use crate::scene::{Answer, BOUNDS, LEASE, Scene, done, slots};
use crate::support::Redis;

/// Returns the time to live of the last id of `work:1`, in ms; -1: no expiry.
async fn fades(scene: &Scene) -> i64 {
    scene
        .run(&["PTTL", &scene.keys.last_event_id("work:1")])
        .await
}

const FORGET: Bounds = Bounds {
    forget_after: Some(LEASE),
    ..BOUNDS
};
const ONE: Bounds = Bounds { batch: 1, ..FORGET };

/// Maximum number of objects that one call claims.
const CLAIMS_MAX: usize = 512;

/// Reports the batch of `work:1` in slot 0, one event with this id, as delivered.
async fn reported(scene: &Scene, bounds: Bounds, id: u64) -> Answer {
    scene.report(0, &done("work:1", id), bounds).await
}

/// The last id of a released object expires. The last id of an owned object does not: neither if
/// the slot goes on, nor if the object is claimed again in time.
#[tokio::test]
async fn only_what_is_released_is_forgotten() {
    let scene = Scene::given("emit work:1 1 2").await;
    assert_eq!(scene.free(0..2, ONE).await.objects(), ["work:1"]);
    assert_eq!(reported(&scene, ONE, 1).await.objects(), ["work:1"]);
    assert_eq!(fades(&scene).await, -1, "it goes on");
    assert_eq!(reported(&scene, ONE, 2).await.objects(), [""; 0]);
    let left = fades(&scene).await;
    assert!((1..=600_000).contains(&left), "released: {left}");
    scene.add("emit work:1 3").await;
    assert_eq!(scene.free(0..2, ONE).await.objects(), ["work:1"]);
    assert_eq!(fades(&scene).await, -1, "claimed by a marker");
    assert_eq!(reported(&scene, ONE, 3).await.objects(), [""; 0]);
    assert!(fades(&scene).await > 0, "released while nothing goes on");
    // A claim of a popped name also removes the expiry.
    scene.add("emit work:1 4; pop w.0").await;
    assert_eq!(scene.free(0..2, ONE).await.objects(), ["work:1"]);
    assert_eq!(fades(&scene).await, -1, "claimed by a pop");
    // Without the setting `forget_after`, the last id does not expire.
    assert_eq!(reported(&scene, BOUNDS, 4).await.objects(), [""; 0]);
    assert_eq!(fades(&scene).await, -1, "nobody forgets");
}

/// An object is released while another slot of the same call goes on with its object. The last id
/// of the released object expires all the same.
#[tokio::test]
async fn what_is_released_beside_another_object_is_forgotten() {
    let scene = Scene::given("emit work:1 1; emit work:2 1 1").await;
    assert_eq!(scene.free(0..2, ONE).await.objects(), ["work:1", "work:2"]);
    let results = [done("work:1", 1), done("work:2", 2)];
    let answer = scene.advance(ONE, slots(&results, 0..0)).await;
    assert_eq!(answer.objects(), ["work:2"]);
    let changes = "
        event.worker:w.1: event = [1]; event.id = 3; object = [work:2]
        next.event.id = 3
        objects.with.events = nil
        work:1: events = nil; last.event.id = 1 expires
        work:2: event.worker = w.1; events = nil; last.event.id = 2
    ";
    scene.changed(changes).await;
}

/// A held object whose queue is empty is released when it is due, and its last id then expires. The
/// same holds for an owned object without events.
#[tokio::test]
async fn what_is_let_go_of_without_events_is_forgotten() {
    let given = "delivered work:1 7; hold work:1 1 '0 0 0 0 yield'";
    let scene = Scene::given(given).await;
    assert_eq!(scene.free(0..2, FORGET).await.objects(), [""; 0]);
    assert!(fades(&scene).await > 0, "held");
    let given = "SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1";
    scene.add(&format!("delivered work:1 7; {given}")).await;
    assert_eq!(scene.free(0..2, FORGET).await.objects(), [""; 0]);
    assert!(fades(&scene).await > 0, "owned");
}

/// Limits of a call of the maximum number of slots.
const ALL: Bounds = Bounds {
    claims: 1024,
    markers: 4096,
    ..ONE
};

/// The maximum number of slots claim in one call, each with a last id to keep. One command writes
/// all of them.
#[tokio::test]
async fn a_call_of_all_slots_keeps_all_last_ids() {
    let object = |n| format!("delivered work:{n} {}; emit work:{n} 1; ", n + 1);
    let scene = Scene::given(&(0..1024).map(object).collect::<String>()).await;
    let answer = scene.free(0..1024, ALL).await;
    assert_eq!(answer.objects().len(), CLAIMS_MAX);
}

/// The maximum number of slots claim in one call, which also pauses the maximum number of objects.
/// No command exceeds the limit of arguments in a script.
#[tokio::test]
async fn a_call_of_all_slots_pauses_others_too() {
    let objects = |n| {
        let queued = |object| format!("delivered {object}:{n} {}; emit {object}:{n} 1; ", n + 1);
        let hold = format!("hold held:{n} 1 '0 0 0 0 yield'; DEL held:{n}:events.held.id; ");
        queued("held") + &queued("b") + &hold
    };
    let scene = Scene::given(&(0..1024).map(objects).collect::<String>()).await;
    // Markers of held objects lead to no event.
    let given = "DEL objects.with.events; LPUSH objects.with.events b:0..254";
    scene.add(given).await;
    let given = "HSET event.rules 'pause b:*' '1 0 0 3 0 adanot yet' next never";
    scene.add(given).await;
    let answer = scene.free(0..1024, ALL).await;
    let paused = scene.scores("objects.paused").await.len();
    assert_eq!((answer.objects().len(), paused), (CLAIMS_MAX, 255));
}

async fn forget(scene: &Scene, objects: &[&str]) -> Vec<Forgot> {
    let forgot = wire::forget(&mut scene.conn().await, &scene.keys, objects).await;
    forgot.expect("an answer")
}

/// If any other key of an object exists, the object is not forgotten, and its last id stays. A
/// marker does not prevent forgetting.
#[tokio::test]
async fn only_an_idle_object_is_forgotten() {
    let wrong = |suffix: &str| Forgot::Wrong {
        key: format!("work:1{suffix}"),
    };
    let owner = || "w.0".into();
    let reserved = || "work:1:event.handled".into();
    for (given, expected) in [
        ("LPUSH work:1:events 1 2", Forgot::Queued { events: 2 }),
        (
            "SET work:1:event.worker w.0",
            Forgot::Owned { owner: owner() },
        ),
        ("SET work:1:event.worker held", Forgot::Held),
        ("LPUSH work:1:events.held 1", Forgot::Held),
        ("SET work:1:events.held.id '7 0 0 0 stop'", Forgot::Held),
        ("ZADD objects.held 1 work:1", Forgot::Held),
        ("ZADD objects.paused 0 work:1", Forgot::Held),
        (
            "HSET work:1:events.scheduled a b",
            Forgot::Scheduled { events: 1 },
        ),
        ("SET work:1:events.scheduled a", wrong(":events.scheduled")),
        (
            "HSET work:1:event.handled emit:a '0 1 9 '",
            Forgot::Reserved { key: reserved() },
        ),
        ("HSET work:1:events a b", wrong(":events")),
        ("HSET work:1:event.worker a b", wrong(":event.worker")),
        (
            "DEL work:1:last.event.id; HSET work:1:last.event.id a b",
            wrong(":last.event.id"),
        ),
    ] {
        let scene = Scene::bare(Redis::start()).await;
        scene.add(&format!("delivered work:1 7; {given}")).await;
        assert_eq!(forget(&scene, &["work:1"]).await, [expected], "{given}");
        scene.changed("").await;
    }
    let scene = Scene::bare(Redis::start()).await;
    let given = "
        delivered work:1 7; LPUSH objects.with.events work:1; LPUSH event.worker:w.0:object work:1
        HSET work:1:event.handled id 6
    ";
    scene.add(given).await;
    let forgot = forget(&scene, &["other", "work:1", "work:1"]).await;
    let last_event_id = "7".into();
    let expected = [
        Forgot::Unknown,
        Forgot::Forgotten { last_event_id },
        Forgot::Unknown,
    ];
    assert_eq!(forgot, expected);
    // The record of finished handlers, of an event that is in no batch, is deleted as well.
    scene
        .changed("work:1: event.handled = nil; last.event.id = nil")
        .await;
}

/// A shared key of a wrong type is found before anything is forgotten.
#[tokio::test]
async fn nothing_is_forgotten_beside_a_wrong_type() {
    for shared in ["objects.held", "objects.paused"] {
        let scene = Scene::bare(Redis::start()).await;
        scene
            .add(&format!("delivered work:1 7; SET {shared} 1"))
            .await;
        let mut conn = scene.conn().await;
        let forgot = wire::forget(&mut conn, &scene.keys, &["work:1", "work:2"]).await;
        let refused = forgot.expect_err("a wrong type");
        assert!(refused.is_wrong_type(), "{refused}");
        scene.changed("").await;
    }
}
