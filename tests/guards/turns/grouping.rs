//! The names that a call groups, and their lists.

use std::time::Duration;

use seriatim::control::shares::{Priority, Share};
use seriatim::keys::Keys;
use seriatim::wire::{BatchResult, ClaimFirst};

use super::{GROUPED, NO_SLOT, all_grouped, claim, counts, emit, grouped, hold, numbered};
use crate::limits::set;
use crate::scene::{BOUNDS, Scene, reject, result, slots};
use crate::support::Redis;

/// A call groups 2,048 markers. If more are left, another call is of use even without a slot.
#[tokio::test]
async fn a_call_groups_so_many_markers() {
    for (markers, left) in [(2048, 0), (2049, 1), (2600, 552)] {
        let scene = Scene::new().await;
        scene.add(&format!("each a:1..{markers}")).await;
        let answer = scene.free(0..1, GROUPED).await;
        assert_eq!(answer.objects(), ["a:1"]);
        assert_eq!(counts(&scene).await, (2047, left, 0));
        let names = scene.list(&scene.keys.group_waiting("a")).await;
        assert_eq!(names[..], numbered("a", 2048)[1..]);
        assert_eq!(answer.of_use(), (true, left > 0));
    }
}

/// A call stops grouping markers after 64 KiB of names. Each group counts as 100 bytes more, and each
/// prefix whose share is read as 32 bytes.
///
/// Story: names that had the same group as the name before them did not count. So a call copied any
/// number of bytes.
#[tokio::test]
async fn a_call_groups_so_many_bytes_of_names() {
    for (has_shares, groups, most) in [(false, 1, 12), (false, 7, 12), (true, 4, 16)] {
        // Each group counts as 100 bytes, and a prefix whose share is read as 32 bytes. So this number of
        // names of this length has exactly the most bytes.
        let bytes = (65_536 - if has_shares { 132 } else { 100 } * groups) / most;
        for (short, names) in [(0, most), (1, most + 1)] {
            let scene = Scene::new().await;
            if has_shares {
                set(&scene, "other:*", Share::new().weight(1)).await;
            }
            let name = |n: usize| {
                format!(
                    "{}:{n:0>1$}",
                    n % groups,
                    bytes - 2 - if n == 9 { short } else { 0 }
                )
            };
            emit(&scene, (0..30).map(name)).await;
            claim(&scene, 1, GROUPED).await;
            assert_eq!(
                counts(&scene).await,
                (names as u64 - 1, 30 - names, 0),
                "{groups} groups, {short} bytes less"
            );
        }
    }
}

/// Short names are followed by long ones. A call stops after the name with which the bytes are used up.
#[tokio::test]
async fn a_call_stops_at_the_name_that_uses_up_the_bytes() {
    let scene = Scene::given("each a:1..8").await;
    emit(&scene, (0..20).map(|n| format!("a:{n:020000}"))).await;
    claim(&scene, 1, GROUPED).await;
    assert_eq!(counts(&scene).await, (11, 16, 0));
    // There is room for less than one name of the same length. But the further ones are short.
    let scene = Scene::new().await;
    emit(&scene, (0..8).map(|n| format!("a:{n:08000}"))).await;
    scene.add("each a:1..5").await;
    claim(&scene, 1, GROUPED).await;
    assert_eq!(counts(&scene).await, (12, 0, 0));
}

/// While more markers are to be grouped, a call claims 16 objects at most.
#[tokio::test]
async fn a_call_that_leaves_markers_claims_so_many_objects() {
    for (markers, claimed) in [(2048, 20), (2049, 16)] {
        let scene = Scene::new().await;
        scene.add(&format!("each a:1..{markers}")).await;
        assert_eq!(claim(&scene, 20, GROUPED).await.len(), claimed);
        assert_eq!(
            counts(&scene).await,
            (2048 - claimed as u64, markers - 2048, 0)
        );
    }
}

/// A call groups 256 due held objects, those that are due longest. Their due times become
/// negative. If there were as many, more may wait.
#[tokio::test]
async fn a_call_groups_so_many_held_objects() {
    for (held, is_unsorted) in [(255, false), (256, true), (300, true)] {
        let scene = Scene::new().await;
        hold(&scene, 10, (0..held).map(|n| format!("a:{n}"))).await;
        let answer = scene.free(0..1, GROUPED).await;
        assert_eq!(answer.objects(), ["a:0"]);
        let sorted = held.min(256) - 1;
        assert_eq!(counts(&scene).await, (sorted as u64, 0, sorted));
        assert_eq!(answer.of_use(), (true, is_unsorted), "{held} held objects");
        assert_eq!(scene.due("a:7").await, Some(-17.0));
        assert_eq!(scene.due("a:260").await, (held > 260).then_some(270.0));
    }
}

/// Held objects that are grouped stay due, also if they were due at time 0. They are not grouped
/// a second time. Held objects that are not due are not grouped.
#[tokio::test]
async fn a_held_object_is_grouped_once() {
    let given = "due 0 a:1 a:2 b:1; due 9999999999999 later; hold never inf '1 0 1 0 dead' 1";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:1"]);
    assert_eq!(all_grouped(&scene).await, "b 0: b:1; a 1: a:2; 2");
    let due = [
        scene.due("a:2").await,
        scene.due("b:1").await,
        scene.due("later").await,
    ];
    assert_eq!(due, [Some(-1.0), Some(-2.0), Some(9_999_999_999_999.0)]);
    let answer = scene.free(0..0, NO_SLOT).await;
    assert_eq!(
        (answer.next_due, answer.more),
        (Some(Duration::ZERO), false)
    );
    assert_eq!(all_grouped(&scene).await, "b 0: b:1; a 1: a:2; 2");
    let answer = scene.free(1..3, GROUPED).await;
    assert_eq!(answer.objects(), ["b:1", "a:2"]);
    assert_eq!(counts(&scene).await, (0, 0, 0));
}

/// The groups take turns if more markers wait than the call can claim, or more due held objects.
#[tokio::test]
async fn groups_take_turns_if_more_waits_than_a_call_can_claim() {
    for (markers, held, is_grouped) in [
        (2, 0, false),
        (3, 0, true),
        (0, 2, false),
        (0, 3, true),
        (2, 2, false),
    ] {
        for claims_of_call in [2, 1024] {
            let scene = Scene::new().await;
            let given = format!("each a:1..{markers}; due 1 b:1..{held}");
            scene.add(&given).await;
            let slots = if claims_of_call == 2 { 3 } else { 2 };
            claim(&scene, slots, grouped(|b| b.claims = claims_of_call)).await;
            let groups: usize = scene.run(&["ZCARD", &scene.keys.event_groups()]).await;
            assert_eq!(
                groups > 0,
                is_grouped,
                "{markers} markers, {held} held objects"
            );
        }
    }
}

/// Without groups nothing is grouped, however much waits.
#[tokio::test]
async fn without_groups_nothing_is_grouped() {
    let scene = Scene::given("each a:1..5; due 1 b:1..5").await;
    let bounds = grouped(|b| b.group_depth = 0);
    assert_eq!(claim(&scene, 2, bounds).await, ["a:1", "b:1"]);
    assert_eq!(
        (all_grouped(&scene).await, counts(&scene).await),
        ("none".to_owned(), (0, 4, 0))
    );
}

/// A call without a free slot groups markers or due held objects if names are grouped already,
/// and if objects have groups.
#[tokio::test]
async fn a_call_without_a_slot_groups_what_comes_later() {
    for held in [false, true] {
        let scene = Scene::new().await;
        scene
            .add(if held {
                "due 1 b:1 b:2"
            } else {
                "each b:1 b:2"
            })
            .await;
        let before = counts(&scene).await;
        scene.free(0..0, NO_SLOT).await;
        assert_eq!(counts(&scene).await, before, "no group waits");
        scene.add("queue a 3 a:1").await;
        scene.free(0..0, BOUNDS).await;
        assert_eq!(all_grouped(&scene).await, "a 3: a:1; 1", "without groups");
        let answer = scene.free(0..0, NO_SLOT).await;
        assert_eq!(answer.summary(), "");
        assert_eq!(all_grouped(&scene).await, "a 3: a:1; b 4: b:1 b:2; 3");
        assert_eq!(counts(&scene).await, (3, 0, if held { 2 } else { 0 }));
    }
}

/// A call without a free slot tells that more markers are to be grouped.
#[tokio::test]
async fn a_call_without_a_slot_asks_for_another_one() {
    let scene = Scene::given("queue a 3 a:1; each b:1..2049").await;
    let answer = scene.free(0..0, NO_SLOT).await;
    assert!(answer.of_use().1, "{answer:?}");
    assert_eq!(counts(&scene).await, (2049, 1, 0));
    let answer = scene.free(0..0, NO_SLOT).await;
    assert!(!answer.of_use().1, "{answer:?}");
    assert_eq!(counts(&scene).await, (2050, 0, 0));
}

/// New groups begin one above the lowest pass. Known groups keep theirs, and their names go behind the
/// names that are there. Held objects go before markers.
#[tokio::test]
async fn new_groups_begin_above_the_lowest_pass() {
    let given = "queue a 7 a:1; queue b 9 b:1; each b:2 c:1 d a:2 c:2; due 1 c:3";
    let scene = Scene::given(given).await;
    scene.free(0..0, NO_SLOT).await;
    assert_eq!(
        all_grouped(&scene).await,
        "a 7: a:1 a:2; c 8: c:3 c:1 c:2; d 8: d; b 9: b:1 b:2; 8"
    );
    assert_eq!(counts(&scene).await, (8, 0, 1));
}

/// The group is the first parts of a name, up to the depth; a name with fewer colons is its own
/// group. Names whose group is the beginning of another one are in their own group.
#[tokio::test]
async fn the_depth_says_which_parts_are_the_group() {
    let names = [
        "a", "a:", "a:b", "a:b:c", "a:b:d", "ab:c:d", "ab", ":", "::x", "a:b",
    ];
    for (depth, expected) in [
        (
            1,
            "z 7: z;  8: : ::x; a 8: a a: a:b a:b:c a:b:d a:b; ab 8: ab:c:d ab; 11",
        ),
        (
            2,
            "z 7: z; : 8: : ::x; a 8: a; a: 8: a:; a:b 8: a:b a:b:c a:b:d a:b; ab 8: ab; ab:c 8: ab:c:d; 11",
        ),
        (
            3,
            "z 7: z; : 8: :; ::x 8: ::x; a 8: a; a: 8: a:; a:b 8: a:b a:b; a:b:c 8: a:b:c; a:b:d 8: a:b:d; ab 8: ab; ab:c:d 8: ab:c:d; 11",
        ),
    ] {
        let scene = Scene::given("queue z 7 z").await;
        emit(&scene, names).await;
        scene
            .free(0..0, grouped(|b| (b.claims, b.group_depth) = (0, depth)))
            .await;
        assert_eq!(all_grouped(&scene).await, expected, "depth {depth}");
    }
}

/// At most 1,024 groups have a list. The names of further groups, also of several, share one list,
/// which begins like a new group.
#[tokio::test]
async fn so_many_groups_have_a_list() {
    for (there, rest, groups) in [
        (1021, 0, 1023),
        (1022, 0, 1025),
        (1023, 1, 1025),
        (1024, 2, 1025),
    ] {
        let scene = Scene::given("queue g0 6 g0:1").await;
        let key = scene.keys.event_groups();
        let groups_there = (1..there).map(|n| format!(" 8 g{n}"));
        scene
            .add(&format!(
                "ZADD event.groups{}",
                groups_there.collect::<String>()
            ))
            .await;
        scene.add("each g0:2 x:1 y:1").await;
        scene.free(0..0, NO_SLOT).await;
        let shared = scene.list(&scene.keys.group_waiting("\0rest")).await;
        assert_eq!(shared.len(), rest, "{there} groups: {shared:?}");
        assert_eq!(
            scene.run::<usize>(&["ZCARD", &key]).await,
            groups,
            "{there} groups"
        );
        let pass: Option<f64> = scene.run(&["ZSCORE", &key, "\0rest"]).await;
        assert_eq!(pass, (groups == 1025).then_some(7.0));
        assert_eq!(scene.at("event.group:g0:waiting").await, "[g0:1, g0:2]");
    }
}

/// If the list of a group has a wrong type, its names go to the shared list, and a call takes no
/// names from it. If the shared list has a wrong type, the call fails, and the markers stay.
#[tokio::test]
async fn a_list_of_a_wrong_type_is_passed_over() {
    let given = "SET event.group:a:waiting x; queue b 4 b:1 b:2; each a:1 a:2";
    let scene = Scene::given(given).await;
    scene.free(0..0, NO_SLOT).await;
    assert_eq!(scene.at("event.group:\0rest:waiting").await, "[a:1, a:2]");
    assert_eq!(scene.at("event.groups").await, "<b: 4, \\0rest: 5, a: 5>");
    assert_eq!(claim(&scene, 3, GROUPED).await, ["b:1", "a:1", "b:2"]);
    assert_eq!(scene.at("event.groups").await, "<\\0rest: 6, b: 6>");
    let given = "DEL event.group:\0rest:waiting; HSET event.group:\0rest:waiting x y; each a:3";
    scene.add(given).await;
    let failed = scene
        .try_advance(ClaimFirst::Markers, NO_SLOT, |_| ())
        .await;
    let failed = failed.expect_err("a wrong type");
    assert!(failed.to_string().contains("WRONGTYPE"), "{failed}");
    assert_eq!(counts(&scene).await, (1, 1, 0));
}

/// Names that may belong to another namespace are dropped and reported. Empty names are dropped.
/// Marks are dropped, and count as met.
#[tokio::test]
async fn names_that_are_no_objects_are_not_grouped() {
    let scene = Scene::under(Keys::new()).await;
    let given = "
        queue a 0 a:1; ZADD event.marks 5 5 7 7 9 9; each '' {x} \0t5 \0t7 \0b {; due 1 {y}:1 b:1
    ";
    scene.add(given).await;
    let answer = scene.free(0..0, NO_SLOT).await;
    assert_eq!(
        all_grouped(&scene).await,
        "a 0: a:1; \\u{0}b 1: \0t7 \0b; b 1: \0t0 b:1; 3"
    );
    assert_eq!(
        answer.texts(),
        [
            "{y}:1: foreign: it may be an object of another namespace, so its marker is dropped",
            "{x}: foreign: it may be an object of another namespace, so its marker is dropped",
            "{: foreign: it may be an object of another namespace, so its marker is dropped"
        ]
    );
    assert_eq!(scene.due("{y}:1").await, None);
    assert_eq!(scene.at("event.marks").await, "<met: 7, 9: 9>");
    assert_eq!(scene.at("objects.with.events").await, "nil");
}

/// With a prefix, a name that begins with a brace is an object like any other.
#[tokio::test]
async fn a_brace_behind_a_prefix_is_no_namespace() {
    let scene = Scene::under(Keys::with_namespace("p").expect("a namespace")).await;
    scene.add("each {x}:1 {x}:2 {x}:3; due 1 {x}:0").await;
    assert_eq!(claim(&scene, 2, GROUPED).await, ["{x}:0", "{x}:1"]);
}

/// A group with a share of its own has a list, even if there are 1,024 groups already, but not if there
/// are 2,048. The shared list begins with the pass of a new group of normal priority.
#[tokio::test]
async fn a_group_with_a_share_has_a_list_of_its_own() {
    const LOW: f64 = 1_099_511_627_776.0;
    for (there, own, shared, pass) in [
        (1024, "[s:1]", "[t:1]", Some(LOW)),
        (2047, "[s:1]", "[t:1]", Some(LOW)),
        (2048, "nil", "[s:1, t:1]", None),
    ] {
        let scene = Scene::new().await;
        set(&scene, "s:*", Share::new().priority(Priority::Low)).await;
        let key = scene.keys.event_groups();
        let groups_there = (0..there).map(|n| format!(" 8 g{n}"));
        scene
            .add(&format!(
                "ZADD event.groups{}",
                groups_there.collect::<String>()
            ))
            .await;
        scene.add("queue g0 6 g0:1; each s:1 t:1").await;
        scene.free(0..0, NO_SLOT).await;
        let lists = [
            scene.at("event.group:s:waiting").await,
            scene.at("event.group:\0rest:waiting").await,
        ];
        assert_eq!(lists, [own, shared], "{there} groups");
        let passes: Vec<Option<f64>> = scene.run(&["ZMSCORE", &key, "s", "\0rest"]).await;
        assert_eq!(passes, [pass, Some(7.0)], "{there} groups");
    }
}

/// No name is grouped any more, so the names of held objects were lost. They are grouped again.
#[tokio::test]
async fn lost_names_of_held_objects_are_grouped_again() {
    let given = "due 1 a:1 a:2 b:1; ZADD objects.held -7 a:1 -6 a:2 -5 b:1";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:1"]);
    assert_eq!(all_grouped(&scene).await, "b 0: b:1; a 1: a:2; 2");
    // With one name that is grouped, none is lost.
    let answer = scene.free(1..2, GROUPED).await;
    assert_eq!(answer.objects(), ["b:1"]);
    scene.add("due 1 c:1").await;
    scene.free(0..0, NO_SLOT).await;
    assert_eq!(all_grouped(&scene).await, "a 1: a:2; b 1: ; c 2: c:1; 2");
}

/// Shares that are only counted make no groups. A call claims from more markers than it has slots.
#[tokio::test]
async fn counted_shares_make_no_groups() {
    let given = "SET event.shares.summary '0 0 1'; each a:1..3";
    let scene = Scene::given(given).await;
    assert_eq!(
        claim(&scene, 1, grouped(|b| b.group_depth = 0)).await,
        ["a:1"]
    );
    assert_eq!(
        (all_grouped(&scene).await, counts(&scene).await),
        ("none".to_owned(), (0, 2, 0))
    );
}

/// A call reads short names in few commands.
#[tokio::test]
async fn a_call_reads_many_markers_in_few_commands() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("each a:1..2048").await;
    scene.count_calls().await;
    claim(&scene, 1, GROUPED).await;
    let reads = scene.calls_of("lrange").await;
    assert!((1..20).contains(&reads), "LRANGE was called {reads} times");
}

/// The Redis user has lost the right to LRANGE. The call fails, and the group stays. It is not taken for
/// a group without names.
#[tokio::test]
async fn a_group_whose_list_may_not_be_read_stays() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("queue a 0 a:1..3").await;
    scene.login("~* +@all -lrange").await;
    scene.fails(GROUPED, slots(&[], 0..2)).await;
    assert_eq!(scene.scores("event.groups").await, [("a".to_owned(), 0.0)]);
}

/// The Redis user has lost the right to ZADD, with which a group gets its pass. The call fails after it
/// has taken a name from the list of the group. The number of names that are grouped is right.
#[tokio::test]
async fn the_number_of_names_is_right_after_a_call_that_fails() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("queue a 0 a:1..3").await;
    scene.login("~* +@all -zadd").await;
    scene.fails(GROUPED, slots(&[], 0..1)).await;
    assert_eq!(all_grouped(&scene).await, "a 0: a:2 a:3; 2");
}

/// Two slots have had one object. A call quarantines the object for one of them, and the other one lets
/// it go, so it is due again. Its name is grouped. This call does not claim it, but the next one does.
#[tokio::test]
async fn a_grouped_object_that_the_call_has_quarantined_is_left_to_the_next_call() {
    let given = "
        own w.0 a:1 1 1; DEL event.worker:w.0:event; own w.1 a:1 2 2; DEL a:1:event.worker
        LPUSH a:1:events 3; names a 0 a:1
    ";
    let scene = Scene::given(given).await;
    let results = [
        result("a:1", "1", 0, reject(None, 1, 1)),
        result("a:1", "2", 1, BatchResult::Yield),
    ];
    let answer = scene.advance(GROUPED, slots(&results, 0..0)).await;
    assert_eq!(answer.objects(), [""; 0]);
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:1"]);
}

/// A call pauses 256 objects whose names are grouped, and does nothing else. Another call is of use for
/// the other names.
#[tokio::test]
async fn a_call_that_only_pauses_grouped_objects_asks_for_another_one() {
    let rule = "HSET event.rules 'pause a:*' '1 0 0 3 0 ada' next never";
    let scene = Scene::given(&format!("queue a 0 a:1..300; {rule}")).await;
    let answer = scene.free(0..300, GROUPED).await;
    assert_eq!(answer.summary(), ", more");
    assert_eq!(counts(&scene).await, (44, 0, 0));
}
