//! What `attach`, `renew` and `detach` leave of the slots of a name.

use seriatim::wire::{self, Attach, Attached, Detached, Renewed, ScriptError, Suspects};

use super::given;
use crate::scene::{LEASE, Scene};

const ATTACH: Attach<'static> = Attach {
    token: "t2",
    holder: "host 1 1 600000ms",
    ..crate::scene::ATTACH
};
/// A lease of the process before.
const LEASED: &str = "SET event.worker:w:lease 't host 1 1' PX 1000000\n";

/// Returns the commands for a name with this many slots in its registration. Its slots have three
/// batches, one of them with four crashes, and an object without a batch. The lists of the slots also
/// have two names that no slot owns, and a second copy of a name.
fn filled(slots: u32) -> String {
    let name = format!("HSET event.workers w '{slots} t 7'");
    name + "
        ZADD event.workers.watched 1 w; ZADD event.workers.departed 9000000000000 w
        own w.0 a:1 1 e; own w.1 a:2 2 e; SET event.worker:w.1:event.id '2 3 2 4'
        own w.2 a:3 3 e; SET event.worker:w.2:event.id '3 1'; SET a:4:event.worker w.3
        LPUSH event.worker:w.3:object a:4 a:6; LPUSH event.worker:w.0:object a:1 a:5
    "
}

/// The same, with the object of `w.3` in this slot instead, and without the registration. The lease is
/// there.
fn filled_without_registration(slot: u32) -> String {
    let lost = "DEL event.workers\n".to_owned() + LEASED;
    filled(4).replace("w.3", &format!("w.{slot}")) + &lost
}

/// Checks that so many objects are held, that the slot has nothing, and that the registration names
/// all slots up to it.
async fn assert_none_left(scene: &Scene, slot: u32, held: usize) {
    let left = scene.left().await;
    let of_slot = format!("event.worker:w.{slot}:");
    assert!(
        !left.iter().any(|key| key.starts_with(&of_slot)),
        "{left:?}"
    );
    let objects = ["a:1", "a:2", "a:3", "a:4"];
    let mut owners = Vec::new();
    for object in objects {
        owners.push(scene.at(&format!("{object}:event.worker")).await);
    }
    let found = owners.iter().filter(|owner| *owner == "held").count();
    assert_eq!(found, held, "{owners:?}");
    let workers = scene.at("event.workers").await;
    let registered = format!("{{w: {} ", slot + 1);
    assert!(workers.starts_with(&registered), "{workers}");
}

fn attached(kept: u64, held: u64) -> Attached {
    let lost = Vec::new();
    Attached::Attached { kept, held, lost }
}

/// Returns the reply that also names an object that was held after so many crashes.
fn attached_after(kept: u64, held: u64, object: &str, crashes: u64) -> Attached {
    let why = format!("crashes: died {crashes} times with this event in hand");
    let lost = vec![(object.to_owned(), why)];
    Attached::Attached { kept, held, lost }
}

fn renewed(strays: u64) -> Renewed {
    let lost = Vec::new();
    Renewed::Renewed { strays, lost }
}

fn detached(held: u64) -> Detached {
    let lost = Vec::new();
    Detached::Detached { held, lost }
}

/// Detaches the process before.
async fn detach(scene: &Scene) -> Detached {
    scene.detach("t").await.expect("a reply")
}

/// Attaches a process. Returns the lost batches, of which the reply tells.
async fn lost(scene: &Scene) -> usize {
    match scene.attach(&ATTACH).await {
        Attached::Attached {
            kept: 0,
            held: 0,
            lost,
        } => lost.len(),
        other => panic!("{other:?}"),
    }
}

/// Returns the time that the lease has left, ms.
async fn lease_ms(scene: &Scene) -> u64 {
    scene.run(&["PTTL", &scene.keys.worker_lease("w")]).await
}

/// A process has died, so each batch that it had in flight counts one crash more. Objects of slots
/// that the next process does not run are held, and so is an object at the limit of crashes.
#[tokio::test]
async fn an_attach_counts_a_crash_for_each_batch() {
    let scene = given(&filled(4)).await;
    let found = scene.attach(&ATTACH).await;
    assert_eq!(found, attached_after(1, 3, "a:2", 5));
    let changes = "
        a:2: event.worker = held; events.held = [e]; events.held.id = 2 3 2 5 crashes: died 5 times with this event in hand
        a:3: event.worker = held; events.held = [e]; events.held.id = 3 1 0 1 slots
        a:4: event.worker = held
        event.worker:w.0: event.id = 1 0 0 1; object = [a:1]
        event.worker:w.1: event = nil; event.id = nil; object = nil
        event.worker:w.2: event = nil; event.id = nil; object = nil
        event.worker:w.3: object = nil
        event.worker:w: lease = t2 host 1 1 600000ms expires
        event.workers = {w: 4 t2 NOW}
        event.workers.departed = nil
        event.workers.watched = <w: NOW>
        objects.held = <a:3: NOW, a:4: NOW, a:2: inf>
        objects.with.events = [a:6, a:5]
    ";
    scene.changed(changes).await;
    assert_eq!(lease_ms(&scene).await, 600_000);
}

/// A call that repeats an attach counts no crash, and neither does a process that had the batches
/// itself. An object without a batch stays with its slot.
#[tokio::test]
async fn an_attach_of_the_same_process_counts_no_crash() {
    const CRASHED: &str = "
        event.worker:w.0: event.id = 1 0 0 1; object = [a:1]
        event.worker:w.1: event.id = 2 3 2 5
        event.worker:w.2: event.id = 3 1 0 1
    ";
    const SAME: &str = "event.worker:w.0: object = [a:1]";
    let scene = given("").await;
    for (lease, token, before, slots) in [
        ("SET event.worker:w:lease 't host 1 1'", "t", "", SAME),
        ("", "t", "", SAME),
        ("", "t2", "t", SAME),
        ("", "t2", "other", CRASHED),
    ] {
        scene.again(&(filled(1) + lease)).await;
        let args = Attach {
            token,
            before,
            slots: 5,
            crashes_max: 6,
            ..ATTACH
        };
        assert_eq!(scene.attach(&args).await, attached(3, 0));
        let changes = format!(
            "
            {slots}
            event.worker:w.3: object = [a:4]
            event.worker:w: lease = {token} host 1 1 600000ms expires
            event.workers = {{w: 5 {token} NOW}}
            event.workers.departed = nil
            event.workers.watched = <w: NOW>
            objects.with.events = [a:6, a:5]
            "
        );
        scene.changed(&changes).await;
    }
}

/// The limit of crashes may be 1. With 0 there is no limit.
#[tokio::test]
async fn an_attach_knows_any_limit_of_crashes() {
    let scene = given("").await;
    for (crashes_max, tag, held, due) in [
        (1, "1", 1, "<a:1: inf>"),
        (2, "1", 0, "nil"),
        (0, "1 0 0 99", 0, "nil"),
    ] {
        let given = "HSET event.workers w '1 t 7'; own w.0 a:1 1 e; SET event.worker:w.0:event.id ";
        scene.again(&format!("{given}'{tag}'")).await;
        let args = Attach {
            crashes_max,
            ..ATTACH
        };
        let expected = match held {
            0 => attached(1, 0),
            _ => attached_after(0, 1, "a:1", 1),
        };
        assert_eq!(scene.attach(&args).await, expected, "{crashes_max}");
        assert_eq!(scene.at("objects.held").await, due, "{crashes_max}");
    }
}

/// A batch without a crash needs no room for suspects, and a call that counts no crash adds none.
#[tokio::test]
async fn a_batch_without_a_crash_needs_no_room() {
    let keys = "
        HSET event.workers w '2 t 7'; own w.0 a:1 1 e; own w.1 a:2 2 e
        SET event.worker:w.1:event.id '2 0 0 1'
    ";
    let scene = given(keys).await;
    let args = Attach {
        before: "t",
        suspects: Suspects::of(2, false).full(),
        ..ATTACH
    };
    assert_eq!(scene.attach(&args).await, attached(1, 1));
    let changes = "
        a:2: event.worker = held; events.held = [e]; events.held.id = 2 0 0 1 slots
        event.worker:w.1: event = nil; event.id = nil; object = nil
        event.worker:w: lease = t2 host 1 1 600000ms expires
        event.workers = {w: 2 t2 NOW}
        event.workers.watched = <w: NOW>
        objects.held = <a:2: NOW>
    ";
    scene.changed(changes).await;
}

/// Another process has the lease. The caller learns the time that the lease has left, which is at
/// most the length of the lease.
#[tokio::test]
async fn a_lease_in_use_is_cut_to_its_length() {
    let scene = given("").await;
    for (lease, left_ms, most_ms) in [
        ("t host 1 1 120000ms", 3_600_000, 120_000),
        ("t host 1 1 120000ms", 60_000, 60_000),
        ("t host 1 1", 3_600_000, 3_600_000),
    ] {
        let given = format!("SET event.worker:w:lease '{lease}' PX {left_ms}");
        scene.again(&given).await;
        for displace in ["", "t host 1 2"] {
            let found = scene.attach(&Attach { displace, ..ATTACH }).await;
            let (lease, left) = (lease.to_owned(), std::time::Duration::from_millis(most_ms));
            assert_eq!(found, Attached::InUse { lease, left });
            assert_eq!(lease_ms(&scene).await, most_ms);
        }
        scene.changed("").await;
    }
}

/// A renewal moves back every name that a slot does not own, in all slots that the name ever had.
#[tokio::test]
async fn a_renewal_looks_at_all_slots_that_the_name_ever_had() {
    let scene = given("").await;
    for (registered, slots) in [(4, 2), (1, 4)] {
        scene.again(&(filled(registered) + LEASED)).await;
        let (mut conn, keys) = (scene.conn().await, &scene.keys);
        let found = wire::renew(&mut conn, keys, "w", "t", LEASE, slots).await;
        assert_eq!(found.expect("a reply"), renewed(2));
        let changes = "
            event.worker:w.0: object = [a:1]
            event.worker:w.3: object = [a:4]
            event.workers = {w: 4 t NOW}
            event.workers.departed = nil
            event.workers.watched = <w: NOW>
            objects.with.events = [a:6, a:5]
        ";
        scene.changed(changes).await;
        assert_eq!(lease_ms(&scene).await, 600_000);
    }
}

/// The renewal of a name that was watched says nothing of the other names. If the name was in no
/// set, the sets are lost, so a new pass over all names begins.
#[tokio::test]
async fn a_renewal_of_a_name_in_no_set_begins_a_pass() {
    let scene = given("").await;
    for (watched, indexed) in [
        ("ZADD event.workers.watched 1 w", "{names.indexed: 5}"),
        ("", "nil"),
    ] {
        let given = "HSET event.workers w '2 t 7'; HSET seriatim.meta names.indexed 5\n";
        scene.again(&(given.to_owned() + LEASED + watched)).await;
        assert_eq!(scene.renew("t").await, renewed(0));
        assert_eq!(scene.at("seriatim.meta").await, indexed);
    }
}

/// A detach counts no crash, and each object is due at once.
#[tokio::test]
async fn a_detach_holds_the_objects_of_all_slots() {
    let scene = given(&(filled(4) + LEASED)).await;
    assert_eq!(detach(&scene).await, detached(4));
    let changes = "
        a:1: event.worker = held; events.held = [e]; events.held.id = 1 0 0 0 stop
        a:2: event.worker = held; events.held = [e]; events.held.id = 2 3 2 4 stop
        a:3: event.worker = held; events.held = [e]; events.held.id = 3 1 0 0 stop
        a:4: event.worker = held
        event.worker:w.0: event = nil; event.id = nil; object = nil
        event.worker:w.1: event = nil; event.id = nil; object = nil
        event.worker:w.2: event = nil; event.id = nil; object = nil
        event.worker:w.3: object = nil
        event.worker:w: lease = nil
        event.workers = {w: 4 t NOW}
        event.workers.departed = <w: NOW+1s>
        event.workers.watched = nil
        objects.held = <a:1: NOW, a:2: NOW, a:3: NOW, a:4: NOW>
        objects.with.events = [, a:6, a:5]
    ";
    scene.changed(changes).await;
}

/// The registration of the name is lost, so any slot may have something of an earlier process. A
/// start with fewer slots, a renewal and a detach all find it.
#[tokio::test]
async fn a_lost_registration_hides_no_slot() {
    let scene = given("").await;
    for slot in [3, 4, 1023] {
        let keys = filled_without_registration(slot);
        scene.again(&keys).await;
        let displace = "t host 1 1";
        let found = scene.attach(&Attach { displace, ..ATTACH }).await;
        assert_eq!(found, attached_after(1, 3, "a:2", 5), "{slot}");
        assert_none_left(&scene, slot, 3).await;

        let stray = format!("LPUSH event.worker:w.{slot}:object a:7");
        scene.again(&(keys.clone() + &stray)).await;
        assert_eq!(scene.renew("t").await, renewed(3), "{slot}");
        assert_eq!(detach(&scene).await, detached(4), "{slot}");
        assert_none_left(&scene, slot, 4).await;

        scene.again(&keys).await;
        assert_eq!(detach(&scene).await, detached(4), "{slot}");
        assert_none_left(&scene, slot, 4).await;
    }
}

/// The registration of the name is lost, and its slots have nothing. A detach writes a registration
/// that is valid: it has at least one slot.
#[tokio::test]
async fn a_detach_writes_a_valid_registration() {
    let scene = given(LEASED).await;
    detach(&scene).await;
    let changes = "
        event.worker:w: lease = nil
        event.workers = {w: 1 t NOW}
        event.workers.departed = <w: NOW+1s>
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A batch without the name of its object is in a slot that only the lost registration named.
#[tokio::test]
async fn a_lost_registration_hides_no_batch() {
    let keys =
        "own w.900 a:1 1 e; DEL event.worker:w.900:object; SET event.worker:w.900:event.id 1";
    let scene = given(keys).await;
    assert_eq!(lost(&scene).await, 1);
    let changes = "
        event.worker:w.900: event = nil; event.id = nil; lost = [e, 1]
        event.worker:w: lease = t2 host 1 1 600000ms expires
        event.workers = {w: 901 t2 NOW}
        event.workers.watched = <w: NOW>
    ";
    scene.changed(changes).await;
}

/// The lists of many slots are lost. An attach tells of 64 batches without an object, and moves
/// all.
#[tokio::test]
async fn an_attach_tells_of_64_lost_batches() {
    let batches: String = (0..70)
        .map(|slot| format!("batch w.{slot} 1 e; "))
        .collect();
    let scene = given(&(batches + "HSET event.workers w '70 t 7'")).await;
    assert_eq!(lost(&scene).await, 64);
    let moved =
        |slot| format!("event.worker:w.{slot}: event = nil; event.id = nil; lost = [e, 1]\n");
    let changes = "
        event.worker:w: lease = t2 host 1 1 600000ms expires
        event.workers = {w: 70 t2 NOW}
        event.workers.watched = <w: NOW>
    ";
    let moved: String = (0..70).map(moved).collect();
    scene.changed(&(moved + changes)).await;
}

/// A key of a wrong type ends a call before its first write.
#[tokio::test]
async fn a_key_of_a_wrong_type_ends_a_call_before_its_first_write() {
    let shared = [
        "objects.with.events",
        "objects.held",
        "event.workers",
        "event.workers.watched",
        "event.workers.departed",
    ];
    let slots = ["object", "event", "event.id"];
    let slots = ["w.0", "w.1"].map(|w| slots.map(|key| format!("event.worker:{w}:{key}")));
    let of_slots = slots.as_flattened().iter().map(String::as_str);
    let scene = given("").await;
    for (n, key) in shared.into_iter().chain(of_slots).enumerate() {
        let push = if key.ends_with(":event.id") {
            "LPUSH"
        } else {
            "SET"
        };
        let wrong = format!("DEL {key}; {push} {key} wrong");
        scene.again(&(filled(2) + LEASED + &wrong)).await;
        let refused = |refused: Result<(), ScriptError>, call: &str| {
            let refused = refused.expect_err("a wrong type");
            assert!(refused.is_wrong_type(), "{call}, {key}: {refused}");
        };
        let (conn, keys) = (&mut scene.conn().await, &scene.keys);
        let attach = Attach {
            displace: "t host 1 1",
            ..ATTACH
        };
        refused(wire::attach(conn, keys, &attach).await.map(drop), "attach");
        refused(wire::detach(conn, keys, "w", "t").await.map(drop), "detach");
        scene.changed("").await;
        assert_eq!(lease_ms(&scene).await, 1_000_000, "{key}");
        let renewed = wire::renew(conn, keys, "w", "t", LEASE, 2).await;
        if n != 1 && n < shared.len() {
            refused(renewed.map(drop), "renew");
            scene.changed("").await;
            assert_eq!(lease_ms(&scene).await, 1_000_000, "{key}");
        } else {
            // A renewal reads no held objects, and no batches. It leaves out a slot's list of a wrong
            // type, and keeps the name.
            renewed.expect("renewed");
            assert_eq!(lease_ms(&scene).await, 600_000, "{key}");
        }
    }
}
