//! `attach`, `renew`, `detach` and `adopt`: the keys that they must not change.

use seriatim::wire::{self, Adopted, Attach, Attached, Detached, Renewed, Sweep};

use crate::scene::{ATTACH, BOUNDS, LEASE, Scene};
use crate::support::Redis;
use crate::support::sweep::sweep;

const RENEWED: Renewed = Renewed::Renewed {
    strays: 0,
    lost: Vec::new(),
};

/// Attaches another process, which displaces this lease.
async fn attach(scene: &Scene, token: &str, displace: &str) -> Attached {
    let args = Attach {
        token,
        displace,
        ..ATTACH
    };
    scene.attach(&args).await
}

/// Sweeps as the process `own`.
async fn swept(scene: &Scene, own: &str) -> Adopted {
    let adopted = sweep(&mut scene.conn().await, &scene.keys, own, 5, LEASE).await;
    adopted.expect("an answer")
}

/// Adopts with the time to the next look at a name.
async fn adopt(scene: &Scene) -> Adopted {
    let call = Sweep {
        own: "other",
        crashes_max: 5,
        look: LEASE,
        forget: LEASE,
        since: None,
        notice: LEASE,
    };
    let adopted = wire::adopt(&mut scene.conn().await, &scene.keys, &call).await;
    adopted.expect("an answer")
}

/// Another process took the name over, and then the lease of that process ended, too. The first
/// process is still fenced: for it this is no lapse.
#[tokio::test]
async fn a_process_that_was_taken_over_is_fenced_even_when_its_successor_is_gone() {
    let scene = Scene::new().await;
    let attached = attach(&scene, "token-2", "token-1 host 1 1").await;
    assert!(
        matches!(attached, Attached::Attached { .. }),
        "{attached:?}"
    );
    scene.end_lease("w").await;
    let lease = String::new();
    assert_eq!(scene.renew("token-1").await, Renewed::Fenced { lease });
    assert_eq!(scene.renew("token-2").await, Renewed::Lapsed);
}

/// Without a registration, no other process is known to have taken the name. The process attaches
/// again, and its batches count no crash.
#[tokio::test]
async fn a_process_without_lease_and_registration_has_lapsed() {
    for registration in ["", "HSET event.workers w '1024 - 1'"] {
        let given = "DEL event.workers; DEL event.worker:w:lease";
        let scene = Scene::given(given).await;
        scene.add(registration).await;
        assert_eq!(
            scene.renew("token-1").await,
            Renewed::Lapsed,
            "{registration}"
        );
        let detached = scene.detach("token-1").await.expect("an answer");
        assert_eq!(detached, Detached::Lapsed, "{registration}");
    }
    for (before, tag) in [("token-1", "12"), ("", "12 0 0 1")] {
        let given = "DEL event.workers; DEL event.worker:w:lease";
        let scene = Scene::given(given).await;
        scene.add("own w.0 work:1 12 {}").await;
        let args = Attach {
            token: "token-9",
            before,
            ..ATTACH
        };
        scene.attach(&args).await;
        assert_eq!(scene.at("event.worker:w.0:event.id").await, tag, "{before}");
    }
}

/// Attach replaces only the lease that its caller has read, because another process may have
/// attached meanwhile.
#[tokio::test]
async fn a_lease_that_was_not_seen_is_not_displaced() {
    let scene = Scene::new().await;
    let third = attach(&scene, "token-3", "token-0 host 1 1").await;
    let is_seen = |lease: &str| lease == "token-1 host 1 1";
    assert!(
        matches!(&third, Attached::InUse { lease, .. } if is_seen(lease)),
        "{third:?}"
    );
    scene.changed("").await;
}

/// A process whose name was taken over gives back nothing when it stops.
#[tokio::test]
async fn a_fenced_process_gives_back_nothing() {
    let scene = Scene::new().await;
    attach(&scene, "token-2", "token-1 host 1 1").await;
    scene.changes().await;
    let lease = "token-2 host 1 1".to_owned();
    let detached = scene.detach("token-1").await.expect("an answer");
    assert_eq!(detached, Detached::Fenced { lease });
    scene.changed("").await;
}

/// An owner key of a wrong type reads as no owner. The object's name is a stray, and renewal
/// continues.
#[tokio::test]
async fn a_name_whose_owner_has_a_wrong_type_is_a_stray() {
    let given = "LPUSH work:1:event.worker wrong; LPUSH event.worker:w.0:object work:1";
    let scene = Scene::given(given).await;
    let lost = Vec::new();
    assert_eq!(
        scene.renew("token-1").await,
        Renewed::Renewed { strays: 1, lost }
    );
    let changes = "
        event.worker:w.0: object = nil
        objects.with.events = [work:1]
    ";
    scene.changed(changes).await;
}

/// A key of a wrong type is found before anything is given back. Half a detach would hold objects
/// that the process still delivers.
#[tokio::test]
async fn a_detach_that_meets_a_wrong_type_changes_nothing() {
    let given = "own w.0 work:1 1 1; SET event.worker:w.1:object wrong";
    let scene = Scene::given(given).await;
    let refused = scene.detach("token-1").await.expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
    scene.changed("").await;
}

/// Objects given back are due at once, but idle workers wait for markers. The empty name wakes one
/// of them.
#[tokio::test]
async fn a_detach_that_gives_something_back_wakes_a_worker() {
    for (given, held, markers) in [("", 0, "nil"), ("own w.0 work:1 1 1", 1, "[]")] {
        let scene = Scene::given(given).await;
        let detached = scene.detach("token-1").await.expect("an answer");
        let lost = Vec::new();
        assert_eq!(detached, Detached::Detached { held, lost });
        assert_eq!(scene.at("objects.with.events").await, markers);
    }
}

/// A name whose slots were taken over stays registered for a day from then on. A pop of its process
/// may still move a marker.
#[tokio::test]
async fn a_takeover_is_a_sign_of_life() {
    let given = "own w.0 work:1 1 1; DEL event.worker:w:lease";
    let scene = Scene::given(given).await;
    scene.add("HSET event.workers w '2 token-1 7'").await;
    swept(&scene, "other").await;
    assert_eq!(scene.at("event.workers").await, "{w: 2 token-1 NOW}");
}

/// A process whose lease has ended sweeps before it has noticed the end. The sweep does not treat
/// the process's own objects as those of a dead process.
#[tokio::test]
async fn a_sweep_leaves_the_own_name_alone() {
    let given = "own w.0 work:1 1 1; DEL event.worker:w:lease";
    let scene = Scene::given(given).await;
    for (own, held) in [("w", 0), ("other", 1)] {
        assert_eq!(swept(&scene, own).await.held, held, "for {own}");
    }
}

/// The slots of some dead processes have one object of their own, and one name that they do not
/// own. The sweep takes over both, and reports the names of the processes.
#[tokio::test]
async fn a_takeover_of_as_many_objects_as_strays_is_reported() {
    let given = "
        HSET event.workers x '1 t 0' y '1 t 0'; own w.0 work:1 1 1; own x.0 work:2 2 1
        own y.0 work:3 3 1; emit work:4 1; pop x.0; emit work:5 1; pop y.0
        DEL event.worker:w:lease
    ";
    let scene = Scene::given(given).await;
    let adopted = swept(&scene, "other").await;
    assert_eq!((adopted.held, adopted.strays), (3, 2));
    assert_eq!(adopted.names, ["w", "x", "y"]);
}

/// After 256 objects, or 256 names that go back to the markers, a call takes over no further worker
/// name. The next call does.
#[tokio::test]
async fn objects_and_strays_count_alike_in_a_call() {
    for has_owner in [false, true] {
        let scene = Scene::bare(Redis::start()).await;
        let given = "HSET event.workers a '256 t 0' b '256 t 0'";
        scene.add(given).await;
        for (name, first) in [("a", 1), ("b", 257)] {
            let slot = |slot| match has_owner {
                false => format!("LPUSH event.worker:{name}.{slot}:object {name}:{slot}; "),
                true => format!("own {name}.{slot} {name}:{slot} {} 1; ", first + slot),
            };
            scene.add(&(0..256).map(slot).collect::<String>()).await;
        }
        // After so many, a name may have more, so another call is of use.
        for (count, more, names) in [
            (256, true, &["a"][..]),
            (256, true, &["b"]),
            (0, false, &[]),
        ] {
            let adopted = swept(&scene, "other").await;
            let expected = if has_owner { (count, 0) } else { (0, count) };
            assert_eq!((adopted.held, adopted.strays), expected, "{names:?}");
            assert_eq!(adopted.more, more, "{names:?}");
            assert_eq!(adopted.names, names);
        }
    }
}

/// A call looks at 256 watched names that are due. If more are due, it says so.
#[tokio::test]
async fn a_call_looks_at_256_names_with_a_lease() {
    let scene = Scene::bare(Redis::start()).await;
    let name = |n| {
        let lease = format!("SET event.worker:l{n}:lease 't h 1 1' PX 600000");
        format!("HSET event.workers l{n} '1 t 0'; {lease}; ZADD event.workers.watched 1 l{n}; ")
    };
    scene.add(&(0..257).map(name).collect::<String>()).await;
    for (more, left) in [(true, 1), (false, 0)] {
        let adopted = adopt(&scene).await;
        let watched = scene.keys.event_workers_watched();
        let due: u64 = scene.run(&["ZCOUNT", &watched, "1", "1"]).await;
        assert_eq!((adopted.more, due), (more, left));
    }
}

/// The sets of names were changed: a live name counts as departed, and would be forgotten. Its
/// renewal is a sign of life, so the name is watched again.
#[tokio::test]
async fn a_departed_name_that_renews_its_lease_is_watched() {
    let given = "DEL event.workers.watched; ZADD event.workers.departed 1 w";
    let scene = Scene::given(given).await;
    assert_eq!(scene.renew("token-1").await, RENEWED);
    let changes = "
        event.workers.departed = nil
        event.workers.watched = <w: NOW>
    ";
    scene.changed(changes).await;
}

/// The registrations have a wrong type. The sweep fails before its first write; otherwise it would
/// write the time, and forget a step of the clock.
#[tokio::test]
async fn a_sweep_that_meets_a_wrong_type_writes_nothing() {
    let scene = Scene::bare(Redis::start()).await;
    scene.add("SET event.workers wrong").await;
    let refused = sweep(&mut scene.conn().await, &scene.keys, "other", 5, LEASE).await;
    assert!(
        refused
            .as_ref()
            .is_err_and(wire::ScriptError::is_wrong_type),
        "{refused:?}"
    );
    scene.changed("").await;
}

/// One half of a round takes the departed names that fell due first, the other half those that fell
/// due last. The names between wait for the next rounds.
#[tokio::test]
async fn a_round_takes_the_oldest_and_the_newest_departed_names() {
    let scene = Scene::bare(Redis::start()).await;
    let name = |n| format!("HSET event.workers {n} '1 t 0'; ZADD event.workers.departed {n} {n}; ");
    scene.add(&(1..=300).map(name).collect::<String>()).await;
    let adopted = adopt(&scene).await;
    assert!(!adopted.more, "{adopted:?}");
    let departed = scene.keys.event_workers_departed();
    let left: Vec<u32> = scene.run(&["ZRANGE", &departed, "0", "-1"]).await;
    assert!(left.iter().all(|n| (101..=200).contains(n)), "{left:?}");
    assert!((125..=176).all(|n| left.contains(&n)), "{left:?}");
    let registered: usize = scene.run(&["HLEN", &scene.keys.event_workers()]).await;
    assert_eq!(registered, left.len(), "the others are forgotten");
}

/// The lease has a wrong type. A call fails with this error. It does not say that the lease is over.
#[tokio::test]
async fn a_lease_of_a_wrong_type_ends_a_call() {
    let given = "DEL event.worker:w:lease; LPUSH event.worker:w:lease wrong";
    let scene = Scene::given(given).await;
    let failed = scene.fails(BOUNDS, |_| ()).await;
    assert!(failed.is_wrong_type(), "{failed}");
    scene.changed("").await;
}
