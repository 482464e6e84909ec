//! The turns of groups within a call, and the names that lead to no claim.

use super::{GROUPED, all_grouped, claim, counts, grouped, hold};
use crate::scene::Scene;

/// A call takes names from 64 groups, and reads further groups only if none of these has a name.
#[tokio::test]
async fn a_call_reads_so_many_groups() {
    for (slots, left) in [(64, 70), (65, 6)] {
        let scene = Scene::new().await;
        for n in 10..80 {
            scene.add(&format!("queue g{n} 5 g{n}:1")).await;
        }
        assert_eq!(claim(&scene, slots, GROUPED).await.len(), slots);
        let groups: usize = scene.run(&["ZCARD", &scene.keys.event_groups()]).await;
        assert_eq!((groups, counts(&scene).await.0), (left, 70 - slots as u64));
    }
}

/// The number of names that a group gives per turn: a part of the claims of the call for each group,
/// or up to 4 if the call claims many objects.
#[tokio::test]
async fn a_group_gives_so_many_names_per_turn() {
    let cases = [
        (100, 7, 1),
        (100, 15, 1),
        (100, 16, 2),
        (100, 31, 3),
        (100, 32, 4),
        (100, 64, 4),
        (3, 7, 3),
        (2, 40, 20),
    ];
    for (groups, slots, per_turn) in cases {
        let scene = Scene::new().await;
        for n in 100..100 + groups {
            scene.add(&format!("queue {n} 5 {n}:1..41")).await;
        }
        let claimed = claim(&scene, slots, GROUPED).await;
        let of_first = claimed
            .iter()
            .take_while(|object| object.starts_with("100:"))
            .count();
        assert_eq!(
            (claimed.len(), of_first),
            (slots, per_turn),
            "{groups} groups, {slots} slots"
        );
        let pass: u64 = scene
            .run(&["ZSCORE", &scene.keys.event_groups(), "100"])
            .await;
        assert_eq!(pass, 5 + per_turn as u64);
    }
}

/// The group with the lowest pass is next. A group that has had a turn goes behind all groups with
/// the same pass. Within a group the oldest name is first.
#[tokio::test]
async fn the_group_with_the_lowest_pass_is_next() {
    let given = "queue a 2 a:1..4; queue b 1 b:1..4; queue c 3 c:1..2";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["b:1"]);
    assert_eq!(
        all_grouped(&scene).await,
        "a 2: a:1 a:2 a:3 a:4; b 2: b:2 b:3 b:4; c 3: c:1 c:2; 9"
    );
    // Each group gives up to 3 names per turn.
    let answer = scene.free(1..8, GROUPED).await;
    assert_eq!(
        answer.objects(),
        ["a:1", "a:2", "a:3", "b:2", "b:3", "b:4", "c:1"]
    );
    assert_eq!(all_grouped(&scene).await, "c 4: c:2; a 5: a:4; b 5: ; 2");
    // A group without names leaves at its turn, even if it is the turn of the last call.
    let answer = scene.free(8..12, GROUPED).await;
    assert_eq!(answer.summary(), "c:2 a:4");
    assert_eq!(all_grouped(&scene).await, "none");
}

/// A group that has had a turn goes before all groups with a higher pass.
#[tokio::test]
async fn a_group_with_a_higher_pass_stays_behind() {
    let scene = Scene::new().await;
    for (group, pass) in [("a", 0), ("b", 9)] {
        scene
            .add(&format!("queue {group} {pass} {group}:1..2"))
            .await;
    }
    assert_eq!(claim(&scene, 2, GROUPED).await, ["a:1", "a:2"]);
    assert_eq!(all_grouped(&scene).await, "a 2: ; b 9: b:1 b:2; 2");
    let scene = Scene::new().await;
    for (group, pass) in [("a", 0), ("b", 1), ("c", 5), ("d", 6)] {
        scene
            .add(&format!("queue {group} {pass} {group}:1..2"))
            .await;
    }
    assert_eq!(claim(&scene, 3, GROUPED).await, ["a:1", "b:1", "a:2"]);
    assert_eq!(
        all_grouped(&scene).await,
        "a 2: ; b 2: b:2; c 5: c:1 c:2; d 6: d:1 d:2; 5"
    );
}

/// A group without names leaves at its turn. The other groups keep their turns.
#[tokio::test]
async fn a_group_without_names_leaves() {
    let scene = Scene::given("names a 0; queue b 0 b:1..4").await;
    assert_eq!(claim(&scene, 2, GROUPED).await, ["b:1", "b:2"]);
    assert_eq!(all_grouped(&scene).await, "b 2: b:3 b:4; 2");
}

/// Another call is of use after a call that has only grouped a name or passed over one, but not
/// after a call that has done nothing.
#[tokio::test]
async fn a_call_that_does_nothing_asks_for_no_other_one() {
    for held in [false, true] {
        let scene = Scene::new().await;
        assert_eq!(scene.free(0..1, GROUPED).await.of_use(), (false, false));
        scene.add("queue a 0 a:1").await;
        scene.add(if held { "due 1 b:1" } else { "each b:1" }).await;
        assert_eq!(scene.free(0..0, GROUPED).await.of_use(), (true, false));
        assert_eq!(scene.free(0..0, GROUPED).await.of_use(), (false, false));
        assert_eq!(all_grouped(&scene).await, "a 0: a:1; b 1: b:1; 2");
    }
    let scene = Scene::given("names a 0 a:no a:neither a:nor").await;
    let answer = scene.free(0..1, grouped(|b| b.markers = 1)).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(all_grouped(&scene).await, "a 0: a:neither a:nor; 2");
}

/// A slot takes an object from a pop, and no further slot is free. Another call is of use while one
/// name is grouped.
#[tokio::test]
async fn a_name_that_waits_asks_for_another_call() {
    let scene = Scene::given("each a:9; pop w.0; queue a 0 a:1").await;
    let answer = scene.free(0..1, GROUPED).await;
    assert_eq!(answer.summary(), "a:9, more");
    assert_eq!(all_grouped(&scene).await, "a 0: a:1; 1");
}

/// A call whose reply is full gives the names that it has not used back to their lists, in order.
/// Only claimed objects count for the pass.
#[tokio::test]
async fn unused_names_go_back_in_order() {
    let given = "names a 0 a:no; queue a 0 a:1..5; queue b 0 b:1..5";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..8, grouped(|b| b.reply_bytes = 2)).await;
    assert_eq!(answer.summary(), "a:1 a:2, more");
    assert_eq!(
        all_grouped(&scene).await,
        "b 0: b:1 b:2 b:3 b:4 b:5; a 2: a:3 a:4 a:5; 8"
    );
}

/// A group whose last name goes back keeps its turn, although its list was empty in the meantime.
#[tokio::test]
async fn a_group_whose_last_name_goes_back_keeps_its_turn() {
    let given = "queue a 0 a:1; queue b 1 b:1; queue c 9 c:1..3";
    let scene = Scene::given(given).await;
    assert_eq!(
        claim(&scene, 4, grouped(|b| b.reply_bytes = 1)).await,
        ["a:1"]
    );
    assert_eq!(all_grouped(&scene).await, "b 1: b:1; c 9: c:1 c:2 c:3; 4");
}

/// After names that lead nowhere, the number of names per turn is a part of those that are left.
#[tokio::test]
async fn names_per_turn_are_a_part_of_those_that_are_left() {
    let given = "
        names a 0 a:no a:neither; names b 0 b:no b:neither; queue a 0 a:1..3; queue b 0 b:1
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..4, GROUPED).await;
    assert_eq!(answer.summary(), "a:1 a:2 b:1 a:3");
    assert_eq!(all_grouped(&scene).await, "none");
}

/// A name that is grouped twice counts once. An object that a slot of this call has taken from a
/// pop does not count.
#[tokio::test]
async fn an_object_counts_once() {
    let given = "each a:9; pop w.0; queue a 0 a:1 a:2; names a 0 a:1 a:9 a:2; queue a 0 a:3 a:4";
    let scene = Scene::given(given).await;
    assert_eq!(
        claim(&scene, 4, GROUPED).await,
        ["a:9", "a:1", "a:2", "a:3"]
    );
    assert_eq!(all_grouped(&scene).await, "a 3: a:4; 1");
}

/// A held object whose name was grouped is passed over if it is not due any more, or not held. It
/// is claimed with its batch, or with its queue if it has no batch.
#[tokio::test]
async fn a_held_object_is_claimed_only_while_it_is_due() {
    let given = "
        due 9999999999999 a:later; hold a:never inf '1 0 1 0 dead' 1
        SET a:paused:event.worker held; ZADD objects.paused 0 a:paused; due 1 a:batch
        SET a:queue:event.worker held; ZADD objects.held -5 a:queue; LPUSH a:queue:events 1
        names a 0 a:later a:never a:paused a:batch a:queue a:queue
    ";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 3, GROUPED).await, ["a:batch", "a:queue"]);
    assert_eq!(all_grouped(&scene).await, "none");
    let held: Vec<String> = scene
        .run(&["ZRANGE", &scene.keys.objects_held(), "0", "-1"])
        .await;
    assert_eq!(held, ["a:later", "a:never"]);
    assert_eq!(scene.at("a:queue:event.worker").await, "w.1");
}

/// A chunk that is larger than the claims of the call is looked at if it has a held object, even if
/// no object of the chunk has queued events.
#[tokio::test]
async fn a_held_object_behind_names_that_lead_nowhere_is_claimed() {
    let given = "due 1 a:held; names a 0 a:1 a:2 a:held a:4";
    let scene = Scene::given(given).await;
    assert_eq!(
        claim(&scene, 1, grouped(|b| b.group_depth = 0)).await,
        ["a:held"]
    );
    assert_eq!(all_grouped(&scene).await, "a 1: a:4; 1");
}

/// A call passes over 256 held objects that cannot be claimed. Then the other names go back.
#[tokio::test]
async fn a_call_passes_over_so_many_held_objects() {
    let given = "due 9999999000000 a:1..300; names a 0 a:1..300; queue a 0 a:0";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, GROUPED).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(scene.at("event.groups.waiting").await, "45");
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:0"]);
}

/// Objects that belong to other workers do not count as passed over.
#[tokio::test]
async fn a_call_passes_over_any_number_of_owned_objects() {
    let owned = (1..=300).map(|n| format!("SET a:{n}:event.worker x.0; "));
    let scene = Scene::given(&owned.collect::<String>()).await;
    scene.add("names a 0 a:1..300; queue a 0 a:0").await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:0"]);
    assert_eq!(all_grouped(&scene).await, "none");
}

/// A call looks at no more names than it may look at markers.
#[tokio::test]
async fn a_call_looks_at_so_many_names() {
    let scene = Scene::new().await;
    for group in ["a", "b", "c"] {
        scene.add(&format!("names {group} 0 {group}:1..3")).await;
    }
    let answer = scene.free(0..9, grouped(|b| b.markers = 7)).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(all_grouped(&scene).await, "a 0: ; b 0: ; c 0: c:2 c:3; 2");
}

/// Rules for many objects fill the reply. The held object at which this happens stays due, and its
/// name is grouped as before.
#[tokio::test]
async fn a_held_object_for_which_the_reply_has_no_room_stays() {
    let scene = Scene::new().await;
    let names: Vec<String> = (0..130).map(|n| format!("{n}:1:2:3:4:5:6:7:8")).collect();
    hold(&scene, 1, &names).await;
    scene.add(&format!("names a 0 {}", names.join(" "))).await;
    let given = "HSET event.rules 'pause other:*' '1 0 0 3 0 ada' next never";
    scene.add(given).await;
    let claimed = claim(&scene, 130, grouped(|b| b.group_depth = 0)).await;
    assert_eq!(claimed[..], names[..113]);
    let left = scene.list(&scene.keys.group_waiting("a")).await;
    assert_eq!(left[..], names[113..]);
    assert_eq!(scene.due(&names[113]).await, Some(114.0));
    assert_eq!(all_grouped(&scene).await.split(':').next(), Some("a 113"));
}

/// The call that takes the last name deletes the keys of the groups, and writes all keys of the
/// batch.
#[tokio::test]
async fn the_call_that_takes_the_last_name_writes_the_batch() {
    let scene = Scene::given("SET next.event.id 7; queue a 0 a:1").await;
    assert_eq!(claim(&scene, 2, GROUPED).await, ["a:1"]);
    let changes = "
        a:1: event.worker = w.0; events = nil
        event.group:a: waiting = nil
        event.groups = nil
        event.groups.waiting = nil
        event.worker:w.0: event = [1]; event.id = 8; object = [a:1]
        next.event.id = 8
    ";
    scene.changed(changes).await;
}
