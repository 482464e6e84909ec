//! The marks in the lists of groups, and the times in `event.groups.times`.

use std::collections::BTreeMap;

use super::{GROUPED, NO_SLOT, all_grouped, emit, grouped};
use crate::scene::Scene;

/// Returns a time in the past, in ms.
async fn past(scene: &Scene) -> u64 {
    scene.now_ms().await - 100_000
}

/// Returns the fields of `event.groups.times`, each part relative to this time.
async fn times(scene: &Scene, base: u64) -> String {
    let words = ["HGETALL", &scene.keys.event_groups_times()];
    let fields: BTreeMap<String, String> = scene.run(&words).await;
    let relative = |field: &str| {
        let parts: Vec<i64> = field
            .split(' ')
            .map(|part| part.parse().expect("a number"))
            .collect();
        format!(
            "{} {} {}",
            parts[0] - base as i64,
            parts[1] - base as i64,
            parts[2]
        )
    };
    let shown = fields
        .iter()
        .map(|(group, field)| format!("{group}: {}; ", relative(field)));
    shown.collect()
}

/// Sets the times of the mark that was met last, and of the next one.
async fn between(scene: &Scene, met: u64, next: u64) {
    scene
        .add(&format!(
            "DEL event.marks; ZADD event.marks {met} met {next} next"
        ))
        .await;
}

/// Returns all that is grouped, with the times of marks relative to this time.
async fn marked(scene: &Scene, base: u64) -> String {
    let words = all_grouped(scene).await;
    let relative = |word: &str| match word.strip_prefix("\0t") {
        Some(ms) => format!("@{}", ms.parse::<i64>().expect("a time") - base as i64),
        None => word.to_owned(),
    };
    words.split(' ').map(relative).collect::<Vec<_>>().join(" ")
}

/// Names, and marks with the times between them, of which the first was met.
async fn push(scene: &Scene, base: u64, names: &str) {
    for name in names.split(' ') {
        match name.strip_prefix('@') {
            Some(ms) => {
                let at = base as i64 + ms.parse::<i64>().expect("a time");
                scene
                    .add(&format!("ZADD event.marks {at} {at}; each \0t{at}"))
                    .await;
            }
            None => scene.add(&format!("each {name}")).await,
        }
    }
}

/// The names of a group have marks between them, with the times that are known. A mark that is older than
/// the one before it, or from a later time, is left out.
#[tokio::test]
async fn the_names_of_a_group_have_marks_between_them() {
    let scene = Scene::new().await;
    let base = past(&scene).await;
    scene.add("queue z 0 z:1").await;
    scene.add(&format!("ZADD event.marks {base} met")).await;
    let names = "a:1 @800 a:2 b:1 @5000 a:3 @5000 @700 a:4 @150000 a:5";
    push(&scene, base, names).await;
    scene.free(0..0, NO_SLOT).await;
    let first = "z 0: z:1; a 1: @0 a:1 @800 a:2 @5000 a:3 a:4 a:5; b 1: @800 b:1; 7";
    assert_eq!(marked(&scene, base).await, first);
    assert_eq!(times(&scene, base).await, "a: 5000 0 3; b: 800 800 1; ");
    let names = "b:2 @5600 a:6 @7000 b:3 c:1";
    push(&scene, base, names).await;
    scene.free(0..0, NO_SLOT).await;
    let then = "z 0: z:1; a 1: @0 a:1 @800 a:2 @5000 a:3 a:4 a:5 a:6; b 1: @800 b:1 @4600 b:2 @7000 b:3; c 1: @7000 c:1; 11";
    assert_eq!(marked(&scene, base).await, then);
    assert_eq!(
        times(&scene, base).await,
        "a: 5000 0 3; b: 7000 800 3; c: 7000 7000 1; "
    );
    // The oldest name is younger than the mark before it, which is taken with this name or the one before.
    for (slots, claimed, left) in [
        (
            0..3,
            &["z:1", "a:1", "b:1"][..],
            "a: 5000 0 2; b: 7000 800 2; c: 7000 7000 1; ",
        ),
        (
            3..5,
            &["c:1", "a:2"],
            "a: 5000 800 1; b: 7000 800 2; c: 7000 7000 0; ",
        ),
        (
            5..8,
            &["b:2", "a:3", "b:3"],
            "a: 5000 5000 0; b: 7000 7000 0; ",
        ),
        (8..10, &["a:4", "a:5"], "a: 5000 5000 0; "),
        (10..11, &["a:6"], ""),
    ] {
        let answer = scene.free(slots, GROUPED).await;
        assert_eq!(
            (answer.objects(), times(&scene, base).await.as_str()),
            (claimed.to_vec(), left)
        );
    }
}

/// The first names are younger than the mark that was met last, and at most 1 s older than the next one.
#[tokio::test]
async fn the_first_names_have_the_time_of_the_marks() {
    for (met, next, first) in [
        (Some(0), Some(900), Some(0)),
        (Some(0), Some(5000), Some(4000)),
        (None, Some(900), Some(-100)),
        (None, None, None),
    ] {
        let scene = Scene::new().await;
        let base = past(&scene).await;
        if met.is_some() {
            scene.add(&format!("ZADD event.marks {base} met")).await;
        }
        if let Some(ms) = next {
            scene
                .add(&format!("ZADD event.marks {0} {0}", base + ms))
                .await;
        }
        scene.add("queue z 0 z:1; each a:1").await;
        scene.free(0..0, NO_SLOT).await;
        let (mark, time) = match first {
            Some(ms) => (format!("@{ms} "), format!("a: {ms} {ms} 1; ")),
            None => (String::new(), String::new()),
        };
        assert_eq!(
            marked(&scene, base).await,
            format!("z 0: z:1; a 1: {mark}a:1; 2")
        );
        assert_eq!(times(&scene, base).await, time);
    }
    // No later mark is known, or its time is still to come. So the present is the limit.
    for (score, back) in [(0, 1000), (150_000, 0)] {
        let scene = Scene::new().await;
        let base = past(&scene).await;
        scene
            .add(&format!("ZADD event.marks {} met", base + score))
            .await;
        scene.add("queue z 0 z:1; each a:1").await;
        let before = past(&scene).await;
        scene.free(0..0, NO_SLOT).await;
        let after = past(&scene).await;
        let words = ["HGET", &scene.keys.event_groups_times(), "a"];
        let field: String = scene.run(&words).await;
        let parts: Vec<u64> = field
            .split(' ')
            .map(|part| part.parse().expect("a number"))
            .collect();
        assert!(
            (before + 100_000 - back..=after + 100_000 - back).contains(&parts[0]),
            "{field}"
        );
        assert_eq!(parts[1..], [parts[0], 1]);
    }
}

/// A name that comes less than 1 s after the newest mark in the list of its group needs no mark.
#[tokio::test]
async fn marks_in_a_list_are_a_second_apart() {
    let scene = Scene::new().await;
    let base = past(&scene).await;
    scene.add("queue z 90 z:1").await;
    for (met, left, shown) in [
        (0, "a 91: @0 a:1; 2", "a: 0 0 1; "),
        (999, "a 91: @0 a:1 a:2; 3", "a: 0 0 1; "),
        (1000, "a 91: @0 a:1 a:2 @1000 a:3; 4", "a: 1000 0 2; "),
        (
            900,
            "a 91: @0 a:1 a:2 @1000 a:3 @900 a:4; 5",
            "a: 900 0 3; ",
        ),
    ] {
        let number = left[left.len() - 1..].parse::<u64>().expect("a number") - 1;
        between(&scene, base + met, base + met + 500).await;
        scene.add(&format!("each a:{number}")).await;
        scene.free(0..0, NO_SLOT).await;
        assert_eq!(marked(&scene, base).await, format!("z 90: z:1; {left}"));
        assert_eq!(times(&scene, base).await, shown);
    }
    // The list is used up, but the group keeps its times until its next turn.
    scene.add("ZADD event.groups 0 a").await;
    let answer = scene.free(0..4, GROUPED).await;
    assert_eq!(answer.objects(), ["a:1", "a:2", "a:3", "a:4"]);
    assert_eq!(times(&scene, base).await, "a: 900 900 0; ");
    for (met, names, shown) in [
        (1200, "a:5", "a: 1200 1200 0; "),
        (1300, "a:5 a:6", "a: 1200 1200 0; "),
    ] {
        between(&scene, base + met, base + met + 500).await;
        scene
            .add(&format!("each {}", &names[names.len() - 3..]))
            .await;
        scene.free(0..0, NO_SLOT).await;
        assert_eq!(
            scene.list(&scene.keys.group_waiting("a")).await.join(" "),
            names
        );
        assert_eq!(times(&scene, base).await, shown);
    }
    // The times of the other group are unknown until a name comes behind those in its list.
    scene.add("each z:2").await;
    scene.free(0..0, NO_SLOT).await;
    assert_eq!(
        marked(&scene, base).await,
        "a 4: a:5 a:6; z 90: z:1 @1300 z:2; 4"
    );
    assert_eq!(
        times(&scene, base).await,
        "a: 1200 1200 0; z: 1300 1300 1; "
    );
}

/// Marks between the names do not count as names of a turn.
#[tokio::test]
async fn marks_do_not_count_for_a_turn() {
    let given = "LPUSH event.group:a:waiting \0t5; queue a 0 a:1 a:2 a:3 a:4; queue b 0 b:1 b:2";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..4, GROUPED).await;
    assert_eq!(answer.objects(), ["a:1", "a:2", "b:1", "b:2"]);
    assert_eq!(all_grouped(&scene).await, "a 2: a:3 a:4; b 2: ; 2");
}

/// A mark before a name that goes back is taken, and says that the name is younger.
#[tokio::test]
async fn a_mark_before_a_name_that_goes_back_is_taken() {
    let scene = Scene::new().await;
    let base = past(&scene).await;
    let next = base + 800;
    for (ms, name) in [(base, "a:1"), (next, "a:2")] {
        scene
            .add(&format!(
                "LPUSH event.group:a:waiting \0t{ms}; queue a 0 {name}"
            ))
            .await;
    }
    scene
        .add(&format!("HSET event.groups.times a '{next} {base} 2'"))
        .await;
    let answer = scene.free(0..2, grouped(|b| b.reply_bytes = 1)).await;
    assert_eq!(answer.objects(), ["a:1"]);
    assert_eq!(all_grouped(&scene).await, "a 1: a:2; 1");
    assert_eq!(times(&scene, base).await, "a: 800 800 0; ");
}

/// A name that comes as soon as the newest mark in the list of its group needs no mark. This also
/// applies to the shared list, if the list of the group has a wrong type.
#[tokio::test]
async fn a_name_of_the_time_of_a_mark_needs_no_mark() {
    let scene = Scene::new().await;
    let base = past(&scene).await;
    between(&scene, base, base + 500).await;
    scene.add("SET event.group:b:waiting wrong").await;
    for (group, name) in [("a", "a:1"), ("\0rest", "c:1")] {
        scene.add(&format!("queue {group} 5 {name}")).await;
        let given = format!("HSET event.groups.times {group} '{base} {base} 1'");
        scene.add(&given).await;
    }
    scene.add("each a:2 b:2").await;
    scene.free(0..0, NO_SLOT).await;
    assert_eq!(scene.at("event.group:a:waiting").await, "[a:1, a:2]");
    assert_eq!(scene.at("event.group:\0rest:waiting").await, "[c:1, b:2]");
    assert_eq!(times(&scene, base).await, "\0rest: 0 0 1; a: 0 0 1; ");
}

/// A call groups the names of more groups than one command can write times of.
#[tokio::test]
async fn the_times_of_many_groups_are_written() {
    let scene = Scene::new().await;
    let base = past(&scene).await;
    scene.add(&format!("ZADD event.marks {base} met")).await;
    scene.add("queue z 0 z:1").await;
    emit(&scene, (0..520).map(|n| format!("{n}:1"))).await;
    scene.free(0..0, NO_SLOT).await;
    let fields: BTreeMap<String, String> = scene
        .run(&["HGETALL", &scene.keys.event_groups_times()])
        .await;
    let groups: Vec<_> = fields.into_keys().collect();
    let mut expected: Vec<_> = (0..520).map(|n| n.to_string()).collect();
    expected.sort_unstable();
    assert_eq!(groups, expected);
}
