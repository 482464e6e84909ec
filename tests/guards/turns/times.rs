//! The marks in the lists of groups, and the times in `event.groups.times`.

use std::collections::BTreeMap;

use seriatim::wire::Bounds;

use super::{GROUPED, NO_SLOT, aside, ask, ask_for, emit, queue_aside, rig};
use crate::objects;
use crate::state::State;
use crate::support::console::Console;
use crate::support::{Redis, control};

/// Returns a time in the past, in ms.
async fn past(state: &State) -> u64 {
    control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time")
        - 100_000
}

/// Returns the fields of `event.groups.times`, each part relative to this time.
async fn times(console: &Console, base: u64) -> String {
    let fields: BTreeMap<String, String> = console
        .run(&["HGETALL", &console.keys.event_groups_times()])
        .await;
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
    fields
        .iter()
        .map(|(group, field)| format!("{group}: {}; ", relative(field)))
        .collect()
}

/// Returns all that is set aside, with the times of marks relative to this time.
async fn marked(console: &Console, base: u64) -> String {
    let words = aside(console).await;
    let relative = |word: &str| match word.strip_prefix("\0t") {
        Some(ms) => format!("@{}", ms.parse::<i64>().expect("a time") - base as i64),
        None => word.to_owned(),
    };
    words.split(' ').map(relative).collect::<Vec<_>>().join(" ")
}

/// Names, and marks with the times between them, of which the first was met.
async fn push(state: &mut State, base: u64, names: &[&str]) {
    let key = state.keys.event_marks();
    for name in names {
        match name.strip_prefix('@') {
            Some(ms) => {
                let at = (base as i64 + ms.parse::<i64>().expect("a time")).to_string();
                state.run("ZADD", &[&key, &at, &at]).await;
                emit(state, [format!("\0t{at}")]).await;
            }
            None => emit(state, [name]).await,
        }
    }
}

/// The names of a group have marks between them, with the times that are known. A mark that is older than
/// the one before it, or from a later time, is left out.
#[tokio::test]
async fn the_names_of_a_group_have_marks_between_them() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let base = past(&state).await;
    queue_aside(&mut state, "z", 0, &["z:1"]).await;
    state
        .run(
            "ZADD",
            &[&state.keys.event_marks(), &base.to_string(), "met"],
        )
        .await;
    push(
        &mut state,
        base,
        &[
            "a:1", "@800", "a:2", "b:1", "@5000", "a:3", "@5000", "@700", "a:4", "@150000", "a:5",
        ],
    )
    .await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    let first = "z 0: z:1; a 1: @0 a:1 @800 a:2 @5000 a:3 a:4 a:5; b 1: @800 b:1; 7";
    assert_eq!(marked(&console, base).await, first);
    assert_eq!(times(&console, base).await, "a: 5000 0 3; b: 800 800 1; ");
    push(
        &mut state,
        base,
        &["b:2", "@5600", "a:6", "@7000", "b:3", "c:1"],
    )
    .await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    let then = "z 0: z:1; a 1: @0 a:1 @800 a:2 @5000 a:3 a:4 a:5 a:6; b 1: @800 b:1 @4600 b:2 @7000 b:3; c 1: @7000 c:1; 11";
    assert_eq!(marked(&console, base).await, then);
    assert_eq!(
        times(&console, base).await,
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
        let answer = ask_for(&mut state, slots, GROUPED)
            .await
            .expect("an answer");
        assert_eq!(
            (objects(&answer), times(&console, base).await.as_str()),
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
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let base = past(&state).await;
        let key = state.keys.event_marks();
        if met.is_some() {
            state.run("ZADD", &[&key, &base.to_string(), "met"]).await;
        }
        if let Some(ms) = next {
            state
                .run(
                    "ZADD",
                    &[&key, &(base + ms).to_string(), &(base + ms).to_string()],
                )
                .await;
        }
        queue_aside(&mut state, "z", 0, &["z:1"]).await;
        emit(&mut state, ["a:1"]).await;
        ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        let (mark, time) = match first {
            Some(ms) => (format!("@{ms} "), format!("a: {ms} {ms} 1; ")),
            None => (String::new(), String::new()),
        };
        assert_eq!(
            marked(&console, base).await,
            format!("z 0: z:1; a 1: {mark}a:1; 2")
        );
        assert_eq!(times(&console, base).await, time);
    }
    // No later mark is known, or its time is still to come. So the present is the limit.
    for (score, back) in [(None, 1000), (Some(150_000), 0)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let base = past(&state).await;
        state
            .run(
                "ZADD",
                &[
                    &state.keys.event_marks(),
                    &(base + score.unwrap_or(0)).to_string(),
                    "met",
                ],
            )
            .await;
        queue_aside(&mut state, "z", 0, &["z:1"]).await;
        emit(&mut state, ["a:1"]).await;
        let before = past(&state).await;
        ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        let after = past(&state).await;
        let field: String = console
            .run(&["HGET", &state.keys.event_groups_times(), "a"])
            .await;
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
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let base = past(&state).await;
    let key = state.keys.event_marks();
    queue_aside(&mut state, "z", 90, &["z:1"]).await;
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
        state.run("DEL", &[&key]).await;
        state
            .run(
                "ZADD",
                &[
                    &key,
                    &(base + met).to_string(),
                    "met",
                    &(base + met + 500).to_string(),
                    "next",
                ],
            )
            .await;
        emit(&mut state, [format!("a:{number}")]).await;
        ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        assert_eq!(marked(&console, base).await, format!("z 90: z:1; {left}"));
        assert_eq!(times(&console, base).await, shown);
    }
    // The list is used up, but the group keeps its times until its next turn.
    let group = state.keys.event_groups();
    state.run("ZADD", &[&group, "0", "a"]).await;
    let answer = ask_for(&mut state, 0..4, GROUPED).await.expect("an answer");
    assert_eq!(objects(&answer), ["a:1", "a:2", "a:3", "a:4"]);
    assert_eq!(times(&console, base).await, "a: 900 900 0; ");
    for (met, names, shown) in [
        (1200, "a:5", "a: 1200 1200 0; "),
        (1300, "a:5 a:6", "a: 1200 1200 0; "),
    ] {
        state.run("DEL", &[&key]).await;
        state
            .run(
                "ZADD",
                &[
                    &key,
                    &(base + met).to_string(),
                    "met",
                    &(base + met + 500).to_string(),
                    "next",
                ],
            )
            .await;
        emit(&mut state, [&names[names.len() - 3..]]).await;
        ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        assert_eq!(
            console.list(&state.keys.group_waiting("a")).await.join(" "),
            names
        );
        assert_eq!(times(&console, base).await, shown);
    }
    // The times of the other group are unknown until a name comes behind those in its list.
    emit(&mut state, ["z:2"]).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert_eq!(
        marked(&console, base).await,
        "a 4: a:5 a:6; z 90: z:1 @1300 z:2; 4"
    );
    assert_eq!(
        times(&console, base).await,
        "a: 1200 1200 0; z: 1300 1300 1; "
    );
}

/// Marks between the names do not count as names of a turn.
#[tokio::test]
async fn marks_do_not_count_for_a_turn() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    state
        .run("LPUSH", &[&console.keys.group_waiting("a"), "\0t5"])
        .await;
    queue_aside(&mut state, "a", 0, &["a:1", "a:2", "a:3", "a:4"]).await;
    queue_aside(&mut state, "b", 0, &["b:1", "b:2"]).await;
    let answer = ask(&mut state, 4, GROUPED).await.expect("an answer");
    assert_eq!(objects(&answer), ["a:1", "a:2", "b:1", "b:2"]);
    assert_eq!(aside(&console).await, "a 2: a:3 a:4; b 2: ; 2");
}

/// A mark before a name that goes back is taken, and says that the name is younger.
#[tokio::test]
async fn a_mark_before_a_name_that_goes_back_is_taken() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let (base, list) = (past(&state).await, console.keys.group_waiting("a"));
    for (ms, name) in [(0, "a:1"), (800, "a:2")] {
        state
            .run("LPUSH", &[&list, &format!("\0t{}", base + ms)])
            .await;
        queue_aside(&mut state, "a", 0, &[name]).await;
    }
    state
        .run(
            "HSET",
            &[
                &console.keys.event_groups_times(),
                "a",
                &format!("{} {base} 2", base + 800),
            ],
        )
        .await;
    let answer = ask(
        &mut state,
        2,
        Bounds {
            reply_bytes: 1,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!(objects(&answer), ["a:1"]);
    assert_eq!(aside(&console).await, "a 1: a:2; 1");
    assert_eq!(times(&console, base).await, "a: 800 800 0; ");
}

/// A name that comes as soon as the newest mark in the list of its group needs no mark. This also
/// applies to the shared list, if the list of the group has a wrong type.
#[tokio::test]
async fn a_name_of_the_time_of_a_mark_needs_no_mark() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let (base, keys) = (past(&state).await, console.keys.clone());
    state
        .run(
            "ZADD",
            &[
                &keys.event_marks(),
                &base.to_string(),
                "met",
                &(base + 500).to_string(),
                "next",
            ],
        )
        .await;
    state.run("SET", &[&keys.group_waiting("b"), "wrong"]).await;
    for (group, name) in [("a", "a:1"), ("\0rest", "c:1")] {
        queue_aside(&mut state, group, 5, &[name]).await;
        state
            .run(
                "HSET",
                &[
                    &keys.event_groups_times(),
                    group,
                    &format!("{base} {base} 1"),
                ],
            )
            .await;
    }
    emit(&mut state, ["a:2", "b:2"]).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    let lists = [
        console.list(&keys.group_waiting("a")).await,
        console.list(&keys.group_waiting("\0rest")).await,
    ];
    assert_eq!(lists, [["a:1", "a:2"], ["c:1", "b:2"]]);
    assert_eq!(times(&console, base).await, "\0rest: 0 0 1; a: 0 0 1; ");
}

/// A call sets aside the names of more groups than one command can write times of.
#[tokio::test]
async fn the_times_of_many_groups_are_written() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let base = past(&state).await;
    state
        .run(
            "ZADD",
            &[&state.keys.event_marks(), &base.to_string(), "met"],
        )
        .await;
    queue_aside(&mut state, "z", 0, &["z:1"]).await;
    emit(&mut state, (0..520).map(|n| format!("{n}:1"))).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    let fields: BTreeMap<String, String> = console
        .run(&["HGETALL", &state.keys.event_groups_times()])
        .await;
    let groups: Vec<_> = fields.into_keys().collect();
    let mut expected: Vec<_> = (0..520).map(|n| n.to_string()).collect();
    expected.sort_unstable();
    assert_eq!(groups, expected);
}
