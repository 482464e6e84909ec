//! What `adopt` takes over, and how much in one call.

use std::time::Duration;

use seriatim::wire::Adopted;

use super::{AGES, DAY, LOOK, NOTHING, ROUND, SWEPT, given, strays, sweep};

/// Returns the commands for watched names with so many slots, due in this order.
fn watched(names: &[(&str, u32)]) -> String {
    let name = |(due, (name, slots)): (u32, &(&str, u32))| {
        let workers = format!("HSET event.workers {name} '{slots} t 7'");
        format!("{workers}; ZADD event.workers.watched {due} {name}; ")
    };
    (1..).zip(names).map(name).collect()
}

/// Returns the command that puts an object in each slot of a name. The objects have the name, too.
fn one_in_each(name: &str, slots: u32) -> String {
    let push = |slot| format!("LPUSH event.worker:{name}.{slot}:object {name}:{slot}; ");
    (0..slots).map(push).collect()
}

/// Returns the changes to such slots, and to the markers, for these slots.
fn emptied(slots: &[String]) -> String {
    let slot = |slot: &String| format!("event.worker:{slot}: object = nil\n");
    slots.iter().map(slot).collect()
}

/// Objects with a batch and without one are held, and all other names go back to the markers. A
/// batch in flight counts one crash more, and at the limit of crashes it waits for an operator.
#[tokio::test]
async fn a_takeover_empties_the_slots_of_a_name() {
    // Two pops have moved the name `a:3`. The name `dead` never had a fifth slot. A share counts two
    // objects of the slots. An empty name only wakes a worker, so it does not go back.
    let keys = "
        HSET event.workers other '1 t 7'; ZADD event.workers.watched 3000000000000 other
        own dead.0 a:1 7 1 2; SET event.worker:dead.0:event.id '7 1 2 4'
        own dead.1 a:2 9 3; LPUSH event.worker:dead.1:object a:4
        SET a:3:event.worker dead.2; LPUSH event.worker:dead.2:object a:3 a:3
        LPUSH event.worker:dead.4:object a:5; LPUSH event.worker:dead.4:event.id wrong
        ZADD objects.in.hand 0 a:1: 0 a:3: 0 a:9:; LPUSH event.worker:dead.3:object ''
    ";
    let scene = given(&(watched(&[("dead", 4)]) + keys)).await;
    let far = Duration::from_secs(1_000_000_000);
    let why = "crashes: died 5 times with this event in hand";
    let expected = Adopted {
        held: 3,
        lost: vec![("a:1".to_owned(), why.to_owned())],
        ..strays(2, &["dead"])
    };
    assert_eq!(sweep(&scene, far, AGES).await, expected);
    let changes = "
        a:1: event.worker = held; events.held = [1, 2]; events.held.id = 7 1 2 5 crashes: died 5 times with this event in hand
        a:2: event.worker = held; events.held = [3]; events.held.id = 9 0 0 1 takeover
        a:3: event.worker = held
        event.worker:dead.0: event = nil; event.id = nil; object = nil
        event.worker:dead.1: event = nil; event.id = nil; object = nil
        event.worker:dead.2: object = nil
        event.worker:dead.3: object = nil
        event.workers = {dead: 4 t NOW, other: 1 t 7}
        event.workers.watched = <dead: NOW, other: 3000000000000>
        objects.held = <a:2: NOW, a:3: NOW, a:1: inf>
        objects.in.hand = <a:9:: 0>
        objects.with.events = [a:4]
    ";
    scene.changed(&(changes.to_owned() + SWEPT)).await;
}

/// A key of a slot has a wrong type. The name waits, and the other names are taken over.
#[tokio::test]
async fn a_key_of_a_wrong_type_stops_only_its_name() {
    let keys = "
        LPUSH event.worker:bad.0:object bad:1; LPUSH event.worker:dead.0:object dead:1
        LPUSH event.worker:bad.1:event.id wrong
    ";
    let scene = given(&(watched(&[("bad", 2), ("dead", 2)]) + keys)).await;
    assert_eq!(sweep(&scene, LOOK, AGES).await, strays(1, &["dead"]));
    let changes = "
        event.worker:dead.0: object = nil
        event.workers = {bad: 2 t 7, dead: 2 t NOW}
        event.workers.watched = <dead: NOW, bad: NOW+10m>
        objects.with.events = [dead:1]
    ";
    scene.changed(&(changes.to_owned() + SWEPT)).await;
}

/// The batch of a slot was deleted, but not its tag. The object waits for an operator, nothing is
/// left of its lost event, and the other names are taken over.
#[tokio::test]
async fn a_deleted_batch_stops_no_takeover() {
    const WHAT: &str = "quarantine: event.worker:a.0:event is absent";
    let keys = "
        own a.0 a:1 1 e; own b.0 b:1 2 e; SET event.worker:a.0:event.id '1 0 0 9'
        DEL event.worker:a.0:event; LPUSH a:1:event.errors '1 1 no'; SET a:1:event.key '1 key'
    ";
    let scene = given(&(watched(&[("a", 1), ("b", 1)]) + keys)).await;
    let expected = Adopted {
        held: 2,
        lost: vec![("a:1".to_owned(), WHAT.to_owned())],
        ..strays(0, &["a", "b"])
    };
    assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
    let changes = format!(
        "
        a:1: event.errors = nil; event.key = nil; event.worker = held; events.held.id = 0 0 0 0 {WHAT}
        b:1: event.worker = held; events.held = [e]; events.held.id = 2 0 0 1 takeover
        event.worker:a.0: event.id = nil; object = nil
        event.worker:b.0: event = nil; event.id = nil; object = nil
        event.workers = {{a: 1 t NOW, b: 1 t NOW}}
        event.workers.watched = <a: NOW, b: NOW>
        objects.held = <b:1: NOW, a:1: inf>
        "
    );
    scene.changed(&(changes + SWEPT)).await;
}

/// One name has more than a call takes over. Another call is of use at once.
#[tokio::test]
async fn another_call_takes_over_the_rest_of_a_name() {
    let scene = given(&(watched(&[("dead", 300)]) + &one_in_each("dead", 300))).await;
    let expected = Adopted {
        more: true,
        ..strays(256, &["dead"])
    };
    assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
    assert_eq!(sweep(&scene, LOOK, AGES).await, strays(44, &["dead"]));
}

/// A call takes over 256 objects and names, although they belong to several worker names.
#[tokio::test]
async fn the_bound_of_a_takeover_counts_all_names_together() {
    let names = ["a", "b", "c"];
    let slots = names.map(|name| one_in_each(name, 200)).concat();
    let scene = given(&(watched(&names.map(|name| (name, 200))) + &slots)).await;
    let expected = Adopted {
        more: true,
        ..strays(256, &["a", "b"])
    };
    assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
    let moved: Vec<_> = (0..200).map(|n| format!("a:{n}")).collect();
    let moved = [moved, (0..56).map(|n| format!("b:{n}")).collect()].concat();
    let slots: Vec<_> = moved.iter().map(|name| name.replace(':', ".")).collect();
    let changes = "
        event.workers = {a: 200 t NOW, b: 200 t NOW, c: 200 t 7}
        event.workers.watched = <c: 3, a: NOW, b: NOW>
    ";
    let markers: Vec<_> = moved.into_iter().rev().collect();
    let markers = format!("objects.with.events = [{}]\n", markers.join(", "));
    let changes = [changes, &markers, &emptied(&slots), SWEPT].concat();
    scene.changed(&changes).await;
}

/// No process has more than 1,024 slots. If a registration says more, the others are not looked at.
#[tokio::test]
async fn a_sweep_looks_at_1024_slots_of_a_name() {
    const FOUND: &str = "
        event.worker:dead.1023: object = nil
        event.workers = {dead: 1024 t NOW}
        event.workers.watched = <dead: NOW>
        objects.with.events = [a:1]
        seriatim.meta = {clock: NOW}
    ";
    const NOT_FOUND: &str = "
        event.workers.departed = <dead: NOW+8s>
        event.workers.watched = nil
        seriatim.meta = {clock: NOW, names.indexed: NOW, names.next: NOW+1s}
    ";
    let scene = given("").await;
    for (slot, expected, changes) in [
        (1023, strays(1, &["dead"]), FOUND),
        (1024, NOTHING, NOT_FOUND),
    ] {
        let name = "HSET event.workers dead '1030 t NOW-2s'; ZADD event.workers.watched 1 dead";
        scene
            .again(&format!(
                "{name}; LPUSH event.worker:dead.{slot}:object a:1"
            ))
            .await;
        assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
        scene.changed(changes).await;
    }
}

/// The object of a batch is not known, because the slot's list is lost. So the batch leaves the slot:
/// no other object may get its events. Only two kinds of names are looked at for batches: watched
/// ones, and departed ones at their last look.
#[tokio::test]
async fn a_batch_without_an_object_leaves_its_slot() {
    const KEPT: &str = "event.worker:dead.2: event = nil; lost = [1, 0]\n";
    // The time of the last sign of life, and that of the next look after it.
    let (now, over) = (("NOW-2s", "NOW+8s"), ("NOW-86405s", ""));
    let scene = given("").await;
    for (set, (at, next), is_kept) in [
        ("watched", now, true),
        ("watched", over, true),
        ("departed", over, true),
        ("departed", now, false),
    ] {
        // The names before and behind have more slots, and fewer.
        let names = [("a", 5), ("dead", 3), ("z", 1)];
        let name = |(name, slots)| {
            let workers = format!("HSET event.workers {name} '{slots} t {at}'");
            format!("{workers}; ZADD event.workers.{set} 1 {name}; ")
        };
        let names = names.map(name).concat();
        scene
            .again(&(names + "LPUSH event.worker:dead.2:event 1"))
            .await;
        let what = "lost: the object of the batch in event.worker:dead.2:lost is not known";
        let found = Adopted {
            lost: vec![("event.worker:dead.2".to_owned(), what.to_owned())],
            ..strays(0, &["dead"])
        };
        let expected = if is_kept { found } else { NOTHING };
        assert_eq!(sweep(&scene, LOOK, DAY).await, expected);
        let workers = match next {
            "" => "event.workers = {dead: 3 t NOW}\n".to_owned(),
            _ if !is_kept => String::new(),
            _ => format!("event.workers = {{a: 5 t {at}, dead: 3 t NOW, z: 1 t {at}}}\n"),
        };
        let departed = match (set, next) {
            (_, "") if set == "watched" => "",
            (_, "") => "event.workers.departed = nil\n",
            _ if is_kept => "event.workers.departed = <a: NOW+8s, z: NOW+8s>\n",
            _ => "event.workers.departed = <a: NOW+8s, dead: NOW+8s, z: NOW+8s>\n",
        };
        let (kept, watched) = match is_kept {
            true => (KEPT, "event.workers.watched = <dead: NOW>\n"),
            false => ("", ""),
        };
        // After a takeover of a watched name there is no round.
        let meta = if set == "watched" { SWEPT } else { ROUND };
        let changes = [kept, &workers, departed, watched, meta].concat();
        scene.changed(&changes).await;
    }
}

/// The lists of all slots of two names are lost. A call moves at most 256 batches out of their
/// slots, and tells of 64 per name. The name is due at once, so that the next call moves the rest.
#[tokio::test]
async fn a_call_moves_256_batches_without_an_object() {
    let batch = |slot| format!("LPUSH event.worker:dead.{slot}:event 1; ");
    let batches: String = (0..300).map(batch).collect();
    let names = watched(&[("dead", 300), ("other", 1)]);
    let other = "LPUSH event.worker:other.0:event 1";
    let scene = given(&[&names, &batches, other].concat()).await;
    let mut moved = 0;
    for (moved_then, told_max) in [(256, 64), (301, 45)] {
        let adopted = sweep(&scene, LOOK, AGES).await;
        assert_eq!(adopted.lost.len(), told_max);
        let changes = scene.changes().await;
        let is_lost = |line: &&String| line.ends_with(": event = nil; lost = [1, 0]");
        moved += changes.iter().filter(is_lost).count();
        assert_eq!(moved, moved_then);
    }
}

/// Story: `event.workers` was deleted after a worker had died, and nobody adopted what it had in its
/// slots. A watched or departed name always has a registration. If it has none, all slots are looked
/// at that a name can have. A name with empty slots goes.
#[tokio::test]
async fn a_name_without_a_registration_is_adopted() {
    // The list of the slot `alone.5` is lost, too.
    let keys = "
        own dead.2 work:1 1 e; own left.1023 work:2 2 f; batch alone.5 3 g
        ZADD event.workers.watched 1 dead 2 empty
        ZADD event.workers.departed 1 left 2 alone 1 empty-too
    ";
    let scene = given(keys).await;
    let mut held = 0;
    for _ in 0..4 {
        held += sweep(&scene, LOOK, DAY).await.held;
    }
    assert_eq!(held, 2);
    let changes = "
        event.worker:alone.5: event = nil; event.id = nil; lost = [g, 3]
        event.worker:dead.2: event = nil; event.id = nil; object = nil
        event.worker:left.1023: event = nil; event.id = nil; object = nil
        event.workers = {alone: 1024 - NOW, dead: 1024 - NOW, left: 1024 - NOW}
        event.workers.departed = <alone: NOW+1s, dead: NOW+1s>
        event.workers.watched = <left: NOW>
        objects.held = <work:1: NOW, work:2: NOW>
        work:1: event.worker = held; events.held = [e]; events.held.id = 1 0 0 1 takeover
        work:2: event.worker = held; events.held = [f]; events.held.id = 2 0 0 1 takeover
    ";
    scene.changed(&(changes.to_owned() + ROUND)).await;
}

/// A reply has at most 64 texts about lost keys, of all names together. All names are taken over.
#[tokio::test]
async fn a_sweep_reports_64_lost_keys() {
    let lost = |name: &str| {
        let slot = |n| {
            let own = format!("own {name}.{n} {name}:{n} 1 1");
            format!("{own}; DEL event.worker:{name}.{n}:event.id; ")
        };
        (0..40).map(slot).collect::<String>()
    };
    let scene = given(&(watched(&[("a", 40), ("b", 40)]) + &lost("a") + &lost("b"))).await;
    let swept = sweep(&scene, LOOK, AGES).await;
    assert_eq!((swept.held, swept.names.len()), (80, 2));
    let keys: Vec<_> = swept.lost.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys.len(), 64);
    assert!(
        keys[40..].iter().all(|key| key.starts_with("b:")),
        "{keys:?}"
    );
}
