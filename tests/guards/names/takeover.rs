//! What `adopt` takes over, and how much in one call.

use std::time::Duration;

use seriatim::wire::Adopted;

use super::{AGES, NOTHING, Scene};

const LOOK: Duration = Duration::from_secs(60);

/// Objects with a batch and without one are held, and all other names go back to the markers. A
/// batch in flight counts one crash more, and at the limit of crashes it waits for an operator.
#[tokio::test]
async fn a_takeover_empties_the_slots_of_a_name() {
    let mut scene = Scene::new().await;
    let keys = scene.keys.clone();
    scene.register("dead", 4, 7).await;
    scene.watch("dead", 1).await;
    scene.register("other", 1, 7).await;
    scene.watch("other", 3_000_000_000_000).await;
    scene.state.own("dead.0", "a:1", 7, &["1", "2"]).await;
    scene
        .state
        .run("SET", &[&keys.worker_event_id("dead.0"), "7 1 2 4"])
        .await;
    scene.state.own("dead.1", "a:2", 9, &["3"]).await;
    scene.push("dead.1", "a:4").await;
    scene
        .state
        .run("SET", &[&keys.event_worker("a:3"), "dead.2"])
        .await;
    // Two pops have moved the same name.
    for object in ["a:3", "a:3"] {
        scene.push("dead.2", object).await;
    }
    // The name never had a fifth slot.
    scene.push("dead.4", "a:5").await;
    scene
        .state
        .run("LPUSH", &[&keys.worker_event_id("dead.4"), "wrong"])
        .await;
    // A share counts two objects of the slots.
    let in_hand = keys.objects_in_hand();
    scene
        .state
        .run("ZADD", &[&in_hand, "0", "a:1:", "0", "a:3:", "0", "a:9:"])
        .await;
    // An empty name only wakes a worker, so it does not go back.
    scene.push("dead.3", "").await;
    let far = Duration::from_secs(1_000_000_000);
    let (adopted, now) = scene.sweep(far, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            held: 3,
            strays: 2,
            names: vec!["dead".to_owned()],
            ..NOTHING
        }
    );
    let expected = [
        "a:1:event.worker = held".to_owned(),
        "a:1:events.held = 2 1".to_owned(),
        "a:1:events.held.id = 7 1 2 5 crashes: died 5 times with this event in hand".to_owned(),
        "a:2:event.worker = held".to_owned(),
        "a:2:events.held = 3".to_owned(),
        "a:2:events.held.id = 9 0 0 1 takeover".to_owned(),
        "a:3:event.worker = held".to_owned(),
        "event.worker:dead.4:event.id = wrong".to_owned(),
        "event.worker:dead.4:object = a:5".to_owned(),
        format!("event.workers = dead 4 t {now} other 1 t 7"),
        format!("event.workers.watched = dead {now} other 3000000000000"),
        format!("objects.held = a:2 {now} a:3 {now} a:1 inf"),
        "objects.in.hand = a:9: 0".to_owned(),
        "objects.with.events = a:4".to_owned(),
        format!("seriatim.meta = clock {now}"),
    ];
    assert_eq!(scene.all().await, expected);
}

/// A key of a slot has a wrong type. The name waits, and the other names are taken over.
#[tokio::test]
async fn a_key_of_a_wrong_type_stops_only_its_name() {
    let mut scene = Scene::new().await;
    let keys = scene.keys.clone();
    for (name, look_ms) in [("bad", 1), ("dead", 2)] {
        scene.register(name, 2, 7).await;
        scene.watch(name, look_ms).await;
        scene.push(&format!("{name}.0"), &format!("{name}:1")).await;
    }
    scene
        .state
        .run("LPUSH", &[&keys.worker_event_id("bad.1"), "wrong"])
        .await;
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            strays: 1,
            names: vec!["dead".to_owned()],
            ..NOTHING
        }
    );
    let expected = [
        "event.worker:bad.0:object = bad:1".to_owned(),
        "event.worker:bad.1:event.id = wrong".to_owned(),
        format!("event.workers = bad 2 t 7 dead 2 t {now}"),
        format!("event.workers.watched = dead {now} bad {}", now + 600_000),
        "objects.with.events = dead:1".to_owned(),
        format!("seriatim.meta = clock {now}"),
    ];
    assert_eq!(scene.all().await, expected);
}

/// The batch of a slot was deleted, but not its tag. The object waits for an operator, nothing is
/// left of its lost event, and the other names are taken over.
#[tokio::test]
async fn a_deleted_batch_stops_no_takeover() {
    let mut scene = Scene::new().await;
    let keys = scene.keys.clone();
    for (name, look_ms) in [("a", 1), ("b", 2)] {
        scene.register(name, 1, 7).await;
        scene.watch(name, look_ms).await;
        scene
            .state
            .own(&format!("{name}.0"), &format!("{name}:1"), look_ms, &["e"])
            .await;
    }
    scene
        .state
        .run("SET", &[&keys.worker_event_id("a.0"), "1 0 0 9"])
        .await;
    scene.state.run("DEL", &[&keys.worker_event("a.0")]).await;
    scene
        .state
        .run("LPUSH", &[&keys.event_errors("a:1"), "1 1 no"])
        .await;
    scene
        .state
        .run("SET", &[&keys.event_key("a:1"), "1 key"])
        .await;
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    let lost = vec![(
        "a:1".to_owned(),
        "quarantine: event.worker:a.0:event is absent".to_owned(),
    )];
    assert_eq!(
        adopted,
        Adopted {
            held: 2,
            lost,
            names: vec!["a".to_owned(), "b".to_owned()],
            ..NOTHING
        }
    );
    let expected = [
        "a:1:event.worker = held".to_owned(),
        "a:1:events.held.id = 0 0 0 0 quarantine: event.worker:a.0:event is absent".to_owned(),
        "b:1:event.worker = held".to_owned(),
        "b:1:events.held = e".to_owned(),
        "b:1:events.held.id = 2 0 0 1 takeover".to_owned(),
        format!("event.workers = a 1 t {now} b 1 t {now}"),
        format!("event.workers.watched = a {now} b {now}"),
        format!("objects.held = b:1 {now} a:1 inf"),
        format!("seriatim.meta = clock {now}"),
    ];
    assert_eq!(scene.all().await, expected);
}

/// One name has more than a call takes over. Another call is of use at once.
#[tokio::test]
async fn another_call_takes_over_the_rest_of_a_name() {
    let mut scene = Scene::new().await;
    scene.register("dead", 300, 7).await;
    scene.watch("dead", 1).await;
    for slot in 0..300 {
        scene
            .push(&format!("dead.{slot}"), &format!("a:{slot}"))
            .await;
    }
    let names = vec!["dead".to_owned()];
    let (adopted, _) = scene.sweep(LOOK, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            more: true,
            strays: 256,
            names: names.clone(),
            ..NOTHING
        }
    );
    let (adopted, _) = scene.sweep(LOOK, AGES).await;
    assert_eq!(
        adopted,
        Adopted {
            strays: 44,
            names,
            ..NOTHING
        }
    );
}

/// A call takes over 256 objects and names, although they belong to several worker names.
#[tokio::test]
async fn the_bound_of_a_takeover_counts_all_names_together() {
    let mut scene = Scene::new().await;
    for (name, look_ms) in [("a", 1), ("b", 2), ("c", 3)] {
        scene.register(name, 200, 7).await;
        scene.watch(name, look_ms).await;
        for slot in 0..200 {
            scene
                .push(&format!("{name}.{slot}"), &format!("{name}:{slot}"))
                .await;
        }
    }
    let (adopted, now) = scene.sweep(LOOK, AGES).await;
    let names = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(
        adopted,
        Adopted {
            more: true,
            strays: 256,
            names,
            ..NOTHING
        }
    );
    let all = scene.all().await;
    assert!(
        all.contains(&format!("event.workers.watched = c 3 a {now} b {now}")),
        "{all:?}"
    );
    for (line, is_left) in [
        ("b.55:object = b:55", false),
        ("b.56:object = b:56", true),
        ("c.0:object = c:0", true),
    ] {
        assert_eq!(
            all.contains(&format!("event.worker:{line}")),
            is_left,
            "{line}"
        );
    }
}

/// No process has more than 1,024 slots. If a registration says more, the others are not looked at.
#[tokio::test]
async fn a_sweep_looks_at_1024_slots_of_a_name() {
    for (slot, is_found) in [(1023, true), (1024, false)] {
        let mut scene = Scene::new().await;
        let at = scene.now_ms().await - 2000;
        scene.register("dead", 1030, at).await;
        scene.watch("dead", 1).await;
        scene.push(&format!("dead.{slot}"), "a:1").await;
        let (adopted, now) = scene.sweep(LOOK, AGES).await;
        let all = scene.all().await;
        if is_found {
            assert_eq!(
                adopted,
                Adopted {
                    strays: 1,
                    names: vec!["dead".to_owned()],
                    ..NOTHING
                }
            );
            let expected = [
                format!("event.workers = dead 1024 t {now}"),
                format!("event.workers.watched = dead {now}"),
                "objects.with.events = a:1".to_owned(),
                format!("seriatim.meta = clock {now}"),
            ];
            assert_eq!(all, expected);
        } else {
            assert_eq!(adopted, NOTHING);
            let expected = [
                "event.worker:dead.1024:object = a:1".to_owned(),
                format!("event.workers = dead 1030 t {at}"),
                format!("event.workers.departed = dead {}", at + 10_000),
                format!(
                    "seriatim.meta = clock {now} names.next {} names.indexed {now}",
                    now + 1000
                ),
            ];
            assert_eq!(all, expected);
        }
    }
}

/// The object of a batch is not known, because the slot's list is lost. So the batch leaves the slot:
/// no other object may get its events. Only two kinds of names are looked at for batches: watched
/// ones, and departed ones at their last look.
#[tokio::test]
async fn a_batch_without_an_object_leaves_its_slot() {
    let day = Duration::from_secs(86_400);
    for (is_watched, is_over, is_kept) in [
        (true, false, true),
        (true, true, true),
        (false, true, true),
        (false, false, false),
    ] {
        let mut scene = Scene::new().await;
        let at = scene.now_ms().await - if is_over { 86_405_000 } else { 2000 };
        // The names before and behind have more slots, and fewer.
        for (name, slots) in [("a", 5), ("dead", 3), ("z", 1)] {
            scene.register(name, slots, at).await;
            match is_watched {
                true => scene.watch(name, 1).await,
                false => scene.depart(name, 1).await,
            }
        }
        let list = scene.keys.worker_event("dead.2");
        scene.state.run("LPUSH", &[&list, "1"]).await;
        let (adopted, now) = scene.sweep(LOOK, day).await;
        let what = "lost: the object of the batch in event.worker:dead.2:lost is not known";
        let found = Adopted {
            lost: vec![("event.worker:dead.2".to_owned(), what.to_owned())],
            names: vec!["dead".to_owned()],
            ..NOTHING
        };
        assert_eq!(adopted, if is_kept { found } else { NOTHING });
        let mut expected = vec![
            if is_kept {
                "event.worker:dead.2:lost = 0 1"
            } else {
                "event.worker:dead.2:event = 1"
            }
            .to_owned(),
        ];
        let seen = if is_kept { now } else { at };
        expected.push(match is_over {
            true => format!("event.workers = dead 3 t {seen}"),
            false => format!("event.workers = a 5 t {at} dead 3 t {seen} z 1 t {at}"),
        });
        let next = at + 10_000;
        expected.extend(match (is_over, is_kept) {
            (true, _) => None,
            (false, true) => Some(format!("event.workers.departed = a {next} z {next}")),
            (false, false) => Some(format!(
                "event.workers.departed = a {next} dead {next} z {next}"
            )),
        });
        expected.extend(is_kept.then(|| format!("event.workers.watched = dead {now}")));
        // After a takeover of a watched name there is no round.
        expected.push(match is_watched {
            true => format!("seriatim.meta = clock {now}"),
            false => format!(
                "seriatim.meta = clock {now} names.next {} names.indexed {now}",
                now + 1000
            ),
        });
        assert_eq!(scene.all().await, expected, "{is_watched} {is_over}");
    }
}

/// The lists of all slots of two names are lost. A call moves at most 256 batches out of their
/// slots, and tells of 64 per name. The name is due at once, so that the next call moves the rest.
#[tokio::test]
async fn a_call_moves_256_batches_without_an_object() {
    let mut scene = Scene::new().await;
    for (name, slots, look_ms) in [("dead", 300, 1), ("other", 1, 2)] {
        scene.register(name, slots, 7).await;
        scene.watch(name, look_ms).await;
        for slot in 0..slots {
            let list = scene.keys.worker_event(&format!("{name}.{slot}"));
            scene.state.run("LPUSH", &[&list, "1"]).await;
        }
    }
    for (moved, told) in [(256, 64), (301, 45)] {
        let (adopted, _) = scene.sweep(LOOK, AGES).await;
        assert_eq!(adopted.lost.len(), told);
        let all = scene.all().await;
        let lost = all.iter().filter(|line| line.contains(":lost = ")).count();
        assert_eq!(lost, moved);
    }
}

/// Story: `event.workers` was deleted after a worker had died, and nobody adopted what it had in its
/// slots. A watched or departed name always has a registration. If it has none, all slots are looked
/// at that a name can have. A name with empty slots goes.
#[tokio::test]
async fn a_name_without_a_registration_is_adopted() {
    let mut scene = Scene::new().await;
    scene.state.own("dead.2", "work:1", 1, &["e"]).await;
    scene.state.own("left.1023", "work:2", 2, &["f"]).await;
    // The list of this slot is lost, too.
    scene.state.batch("alone.5", 3, &["g"]).await;
    scene.watch("dead", 1).await;
    scene.watch("empty", 2).await;
    scene.depart("left", 1).await;
    scene.depart("alone", 2).await;
    scene.depart("empty-too", 1).await;
    let mut held = 0;
    for _ in 0..4 {
        let day = Duration::from_secs(86_400);
        let (adopted, _) = scene.sweep(LOOK, day).await;
        held += adopted.held;
    }
    assert_eq!(held, 2);
    let all = scene.all().await;
    assert!(
        all.contains(&"work:1:events.held = e".to_owned()),
        "{all:?}"
    );
    assert!(
        all.contains(&"work:2:events.held = f".to_owned()),
        "{all:?}"
    );
    assert!(
        all.contains(&"event.worker:alone.5:lost = 3 g".to_owned()),
        "{all:?}"
    );
    assert!(!all.iter().any(|key| key.contains("empty")), "{all:?}");
}
