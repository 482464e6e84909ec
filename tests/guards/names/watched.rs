//! The looks of `adopt` at watched names.

use std::time::Duration;

use seriatim::wire::{self, Adopted, Sweep};

use super::{AGES, DAY, LOOK, NOTHING, ROUND, SWEPT, given, strays, sweep};
use crate::scene::Scene;

/// Returns the time that the lease of the name has left, ms. It is negative if the lease has no end.
async fn left_ms(scene: &Scene, name: &str) -> i64 {
    scene.run(&["PTTL", &scene.keys.worker_lease(name)]).await
}

/// A name with a lease is looked at again after the time between two looks. Its lease is cut to the
/// length that it has. If a look is farther ahead than any process sets it, it comes at once. The
/// caller's own name stays.
#[tokio::test]
async fn a_name_with_a_lease_is_looked_at_again() {
    let scene = given(
        "
        ZADD event.workers.watched 1 due 2 bare NOW+30s soon NOW+600900ms near NOW+630s far 3 own
        ZADD event.workers.departed 9000000000000 due; LPUSH event.worker:own.0:object a:1
        HSET event.workers due '1 t 7' bare '1 t 7' soon '1 t 7' near '1 t 7' far '1 t 7' own '1 t 7'
        SET event.worker:bare:lease 't host 1 1' PX 3600000
        ",
    )
    .await;
    for name in ["due", "soon", "near", "far"] {
        let lease = format!("SET event.worker:{name}:lease 't host 1 1 120000ms' PX 3600000");
        scene.add(&lease).await;
    }
    assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING);
    let changes = "
        event.workers.departed = nil
        event.workers.watched = <own: 3, soon: NOW+30s, bare: NOW+1m, due: NOW+1m, far: NOW+1m, near: NOW+600900ms>
    ";
    scene.changed(&(changes.to_owned() + ROUND)).await;
    for (name, left) in [
        ("due", 120_000),
        ("far", 120_000),
        ("bare", 3_600_000),
        ("soon", 3_600_000),
        ("near", 3_600_000),
    ] {
        assert_eq!(left_ms(&scene, name).await, left, "{name}");
    }
}

/// Story: a lease without an end, as a copy of a key or PERSIST leaves it, was cut by no look. Its name
/// was never taken over, an inspection said that the lease lasts 0 s, and the check was clean.
#[tokio::test]
async fn a_lease_without_an_end_gets_one() {
    let keys = "
        HSET event.workers endless '1 t 7' bare '1 t 7' long '1 t 7' odd '1 t 7'
        ZADD event.workers.watched 1 endless 1 bare 1 long 1 odd
        SET event.worker:long:lease 't host 1 1 99999999999999999999999ms'; LPUSH event.worker:odd:lease x
        SET event.worker:endless:lease 't host 1 1 120000ms'
        SET event.worker:bare:lease 't host 1 1'
    ";
    let scene = given(keys).await;
    assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING);
    assert_eq!(left_ms(&scene, "endless").await, 120_000);
    // The value does not tell the length.
    assert_eq!(left_ms(&scene, "bare").await, 600_000);
    assert_eq!(left_ms(&scene, "long").await, 600_000);
    // A key of a wrong type counts as a lease.
    let watched = "<bare: NOW+1m, endless: NOW+1m, long: NOW+1m, odd: NOW+1m>";
    assert_eq!(scene.at("event.workers.watched").await, watched);
    scene.add("PERSIST event.worker:bare:lease").await;
    scene.add("own bare.0 a:1 7 1").await;
    let control = crate::support::control(&scene.conn().await, &scene.keys);
    let seen = control.inspect("a:1").await.expect("an inspection");
    let why = "whose lease has no end until a worker process looks at it";
    assert!(seen.why.contains(why), "{seen:?}");
}

/// A name without a lease and with empty slots departs. It goes if it was without a sign of life
/// for too long.
#[tokio::test]
async fn a_name_without_a_lease_and_with_empty_slots_departs() {
    let names = ["gone", "last", "left", "soon", "ahead", "odd"];
    let watched = names.map(|name| format!(" 1 {name}")).concat();
    let departed = names.map(|name| format!(" 9000000000000 {name}")).concat();
    let scene = given(&format!(
        "
        HSET event.workers gone '2 t NOW-86405s' last '2 t NOW-86340s' left '2 t NOW-2s'
        HSET event.workers soon '2 t NOW+900ms' ahead '3 t NOW+60m' odd '4 t 7 x'
        ZADD event.workers.watched{watched}; ZADD event.workers.departed{departed}
        "
    ))
    .await;
    assert_eq!(sweep(&scene, LOOK, DAY).await, NOTHING);
    let changes = "
        event.workers = {ahead: 3 t NOW, last: 2 t NOW-1439m, left: 2 t NOW-2s, odd: 4 t 7 x, soon: 2 t NOW+900ms}
        event.workers.departed = <ahead: NOW+1s, soon: NOW+1900ms, left: NOW+8s, last: NOW+60001ms, odd: NOW+86400001ms>
        event.workers.watched = nil
    ";
    scene.changed(&(changes.to_owned() + ROUND)).await;
}

/// The time of the next look depends on the last sign of life. The last look comes when the name is
/// forgotten, so no other look comes then.
#[tokio::test]
async fn a_departed_name_is_looked_at_at_its_times() {
    const DAY: &str = "<2s: NOW+8s, 30s: NOW+30s, 5m: NOW+5m, 30m: NOW+30m, 120m: NOW+79200001ms>";
    let scene = given("").await;
    for (forget_s, ages, looks) in [
        (86_400, &["2s", "30s", "5m", "30m", "120m"][..], DAY),
        (60, &["2s", "30s"], "<2s: NOW+8s, 30s: NOW+30001ms>"),
    ] {
        let name = |age| {
            let workers = format!("HSET event.workers {age} '2 t NOW-{age}'");
            format!("{workers}; ZADD event.workers.watched 1 {age}; ")
        };
        scene
            .again(&ages.iter().map(name).collect::<String>())
            .await;
        let forget = Duration::from_secs(forget_s);
        assert_eq!(sweep(&scene, LOOK, forget).await, NOTHING);
        let sets = format!("event.workers.departed = {looks}\nevent.workers.watched = nil\n");
        scene.changed(&(sets + ROUND)).await;
    }
}

/// A look at a name without a lease costs 24 keys, and two for each slot. After 1,024 keys the call
/// ends.
#[tokio::test]
async fn a_call_looks_at_1024_keys() {
    let scene = given("").await;
    for (slots, departed, watched) in [
        (500, "a: NOW+8s", "b: 2, c: 3, d: 4"),
        (499, "a: NOW+8s, b: NOW+8s", "c: 3, d: 4"),
        (244, "a: NOW+8s, b: NOW+8s", "c: 3, d: 4"),
        (243, "a: NOW+8s, b: NOW+8s, c: NOW+8s", "d: 4"),
    ] {
        let names = ["a", "b", "c", "d"].map(|name| format!(" {name} '{slots} t NOW-2s'"));
        let watch = "ZADD event.workers.watched 1 a 2 b 3 c 4 d";
        scene
            .again(&format!("HSET event.workers{}; {watch}", names.concat()))
            .await;
        let expected = Adopted {
            more: true,
            ..NOTHING
        };
        assert_eq!(sweep(&scene, LOOK, AGES).await, expected, "{slots}");
        let sets =
            format!("event.workers.departed = <{departed}>\nevent.workers.watched = <{watched}>\n");
        scene.changed(&(sets + SWEPT)).await;
    }
}

/// A call goes on as long as a single key is left. A name with an object in a slot costs no keys of
/// batches.
#[tokio::test]
async fn a_call_goes_on_with_one_key_left() {
    let scene = given("").await;
    for (slots, more, sets) in [
        (
            999,
            false,
            "event.workers.departed = <b: NOW+8s>\nevent.workers.watched = <a: NOW>\n",
        ),
        (1000, true, "event.workers.watched = <b: 2, a: NOW>\n"),
    ] {
        let names = format!("HSET event.workers a '{slots} t NOW-2s' b '1 t NOW-2s'");
        let watch = "ZADD event.workers.watched 1 a 2 b; LPUSH event.worker:a.7:object a:1";
        scene.again(&format!("{names}; {watch}")).await;
        let expected = Adopted {
            more,
            ..strays(1, &["a"])
        };
        assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
        let changes = format!(
            "
            event.worker:a.7: object = nil
            event.workers = {{a: {slots} t NOW, b: 1 t NOW-2s}}
            objects.with.events = [a:1]
            "
        );
        scene.changed(&[&changes, sets, SWEPT].concat()).await;
    }
}

/// A call that looks at 255 due names and at 256 names with looks far ahead has looked at all due
/// names, so it says that no more are due.
#[tokio::test]
async fn names_with_looks_far_ahead_are_not_due_names() {
    let name = |n| {
        let due = if n < 255 { 1 } else { 9_000_000_000_000_u64 };
        let lease = format!("SET event.worker:live-{n}:lease 't host 1 1' PX 3600000");
        format!("{lease}; ZADD event.workers.watched {due} live-{n}; ")
    };
    let scene = given(&(0..511).map(name).collect::<String>()).await;
    assert_eq!(sweep(&scene, LOOK, AGES).await, NOTHING);
    let (watched, next) = (
        scene.keys.event_workers_watched(),
        scene.now_ms().await + 60_000,
    );
    let next = next.to_string();
    let moved: u64 = scene.run(&["ZCOUNT", &watched, &next, &next]).await;
    assert_eq!(moved, 511);
}

/// After a step of the clock ahead, nothing is taken over. Names with something in their slots are
/// watched, and looked at again like names with a lease. All others depart.
#[tokio::test]
async fn a_name_waits_after_a_step_of_the_clock_ahead() {
    let keys = "
        HSET event.workers dead '2 t NOW-2s' empty '2 t NOW-2s' late '2 t NOW-2s'
        ZADD event.workers.watched 1 dead 1 empty; ZADD event.workers.departed 1 late
        LPUSH event.worker:dead.1:object a:1; LPUSH event.worker:late.1:object a:1
        HSET seriatim.meta clock.ahead NOW
    ";
    let scene = given(keys).await;
    let expected = Adopted {
        is_ahead: true,
        ..NOTHING
    };
    assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
    let changes = "
        event.workers.departed = <empty: NOW+8s>
        event.workers.watched = <dead: NOW+1m, late: NOW+1m>
        seriatim.meta = {clock.ahead: NOW, clock: NOW, names.indexed: NOW, names.next: NOW+1s}
    ";
    scene.changed(changes).await;
}

/// The clock has gone on by a second less than the caller's own clock since its sweep before. This
/// is no step ahead.
#[tokio::test]
async fn a_clock_that_goes_on_has_not_stepped_ahead() {
    let sweep = Sweep {
        own: "own",
        crashes_max: 5,
        look: LOOK,
        forget: AGES,
        since: Some(Duration::from_secs(60)),
        notice: LOOK,
    };
    let scene = given("HSET seriatim.meta clock NOW-59s").await;
    let adopted = wire::adopt(&mut scene.conn().await, &scene.keys, &sweep).await;
    assert_eq!(adopted.expect("a reply"), NOTHING);
    scene.changed(ROUND).await;
}

/// After a step back of the clock, some calls only move times. They say how many held objects they
/// have moved, and look at no name.
#[tokio::test]
async fn a_call_that_moves_times_looks_at_no_name() {
    let keys = "
        HSET event.workers dead '1 t 7'; ZADD event.workers.watched 1 dead
        LPUSH event.worker:dead.0:object a:1; ZADD objects.held NOW+60m b:1 NOW+3700s b:2
        HSET seriatim.meta clock.step '60000 held 0'
    ";
    let scene = given(keys).await;
    let expected = Adopted {
        more: true,
        moved: 2,
        mark: false,
        ..NOTHING
    };
    assert_eq!(sweep(&scene, LOOK, AGES).await, expected);
    let changes = "
        objects.held = <b:1: NOW+59m, b:2: NOW+3640s>
        seriatim.meta = {clock.step: 60000 departed 0, clock: NOW}
    ";
    scene.changed(changes).await;
}
