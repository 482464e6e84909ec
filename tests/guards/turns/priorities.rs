//! The turns of priorities, of which each has a range of scores in `event.groups`, and of weights.

use seriatim::control::shares::Share;
use seriatim::wire::Bounds;

use super::{GROUPED, ask, ask_for, claim, counts, more, numbered, queue_aside, rig, set_aside};
use crate::limits::set;
use crate::objects;
use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

/// The size of the range of scores that each priority has.
const CLASS: i64 = 1_099_511_627_776;
/// The first scores of the priorities high, normal and low, each with the name of a group.
const CLASSES: [(&str, i64); 3] = [("h", -CLASS), ("n", 0), ("l", CLASS)];

/// Returns a state in which scores say priorities, because there is a share.
async fn scene(redis: &Redis) -> (State, Console) {
    let (state, console) = rig(redis).await;
    set(&state, "other:*", Share::new().weight(1)).await;
    (state, console)
}

/// Makes groups of these priorities wait, with 40 names each. Returns the scores of the groups after a
/// call that claims so many objects, relative to the first scores, and the groups that it claimed from.
async fn claim_from(
    state: &mut State,
    console: &Console,
    waiting: &str,
    count: usize,
) -> (String, Vec<i64>) {
    let classes: Vec<_> = CLASSES
        .into_iter()
        .filter(|(group, _)| waiting.contains(group))
        .collect();
    for (group, first) in &classes {
        queue_aside(state, group, first + 5, &numbered(group, 40)).await;
    }
    let claimed = claim(state, count, GROUPED)
        .await
        .iter()
        .map(|object| object[..1].to_owned())
        .collect();
    let mut passes = Vec::new();
    for (group, first) in &classes {
        passes.push(
            console
                .run::<f64>(&["ZSCORE", &console.keys.event_groups(), group])
                .await as i64
                - first,
        );
    }
    (claimed, passes)
}

/// Of 16 claims, the lowest priority that waits gets the last one. The priority between two others gets
/// the eighth one. The next call goes on at the place of the round where this one has ended.
#[tokio::test]
async fn a_round_goes_on_in_the_next_call() {
    for waiting in ["hnl", "hn", "hl", "nl"] {
        for start in [0, 1, 6, 7, 8, 14, 15] {
            let redis = Redis::start();
            let (mut state, console) = scene(&redis).await;
            state
                .run(
                    "SET",
                    &[&state.keys.event_groups_turns(), &start.to_string()],
                )
                .await;
            let (claimed, passes) = claim_from(&mut state, &console, waiting, 19).await;
            let group_at = |place: usize| match place % 16 {
                15 => &waiting[waiting.len() - 1..],
                7 if waiting.len() == 3 => "n",
                _ => &waiting[..1],
            };
            let expected: String = (start..start + 19).map(group_at).collect();
            assert_eq!(claimed, expected, "{waiting} from {start}");
            let counted: Vec<i64> = waiting
                .chars()
                .map(|group| 5 + expected.matches(group).count() as i64)
                .collect();
            assert_eq!(passes, counted, "{waiting} from {start}");
            let place = console.text(&state.keys.event_groups_turns()).await;
            assert_eq!(
                place,
                Some(((start + 19) % 16).to_string()),
                "{waiting} from {start}"
            );
        }
    }
}

/// A place that is no place of a round is the first one. A fraction counts as the place before it.
#[tokio::test]
async fn a_wrong_place_of_a_round_is_the_first_one() {
    for (told, start) in [
        ("16", 0),
        ("-1", 0),
        ("x", 0),
        ("", 0),
        ("nan", 0),
        ("15.5", 15),
        ("15", 15),
    ] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        state
            .run("SET", &[&state.keys.event_groups_turns(), told])
            .await;
        let (claimed, _) = claim_from(&mut state, &console, "nl", 2).await;
        assert_eq!(claimed, if start == 15 { "ln" } else { "nn" }, "{told}");
        let place = console.text(&state.keys.event_groups_turns()).await;
        assert_eq!(place, Some(((start + 2) % 16).to_string()), "{told}");
    }
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    state
        .run("LPUSH", &[&state.keys.event_groups_turns(), "15"])
        .await;
    assert_eq!(claim_from(&mut state, &console, "nl", 2).await.0, "nn");
    assert_eq!(
        console
            .text(&state.keys.event_groups_turns())
            .await
            .as_deref(),
        Some("2")
    );
}

/// While one priority waits, there are no rounds, and the place stays. The scores at both ends of each
/// range belong to it, and those of further groups are behind.
#[tokio::test]
async fn one_priority_has_all_turns() {
    for (group, first) in CLASSES {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        state
            .run("SET", &[&state.keys.event_groups_turns(), "15"])
            .await;
        queue_aside(
            &mut state,
            &format!("{group}z"),
            first + CLASS - 8,
            &numbered(&format!("{group}z"), 9),
        )
        .await;
        queue_aside(&mut state, group, first, &numbered(group, 3)).await;
        let claimed = claim(&mut state, 4, GROUPED).await;
        assert_eq!(
            claimed,
            [
                format!("{group}:1"),
                format!("{group}:2"),
                format!("{group}:3"),
                format!("{group}z:1")
            ]
        );
        assert_eq!(
            console
                .text(&state.keys.event_groups_turns())
                .await
                .as_deref(),
            Some("15")
        );
        let passes: Vec<(String, f64)> = console
            .run(&[
                "ZRANGE",
                &state.keys.event_groups(),
                "0",
                "-1",
                "WITHSCORES",
            ])
            .await;
        assert_eq!(passes, [(format!("{group}z"), (first + CLASS - 7) as f64)]);
    }
}

/// The ranges of scores follow each other without a gap. Without shares there are no priorities, so the
/// lowest score goes first.
#[tokio::test]
async fn ranges_of_scores_end_where_the_next_one_begins() {
    let (rounds, turns, first) = ("aaaaaaaaaaaaaaab", "aaaaaaaabbbbbbbb", "aaaaaaaaaaaaaaaa");
    for (a, b, with_shares, without) in [
        (-CLASS - 9, -1, first, first),
        (-1, 0, rounds, turns),
        (0, CLASS - 1, first, first),
        (CLASS - 1, CLASS, rounds, turns),
        (CLASS, 2 * CLASS - 1, first, first),
        (2 * CLASS - 1, 2 * CLASS, first, turns),
    ] {
        for (has_shares, expected) in [(true, with_shares), (false, without)] {
            let redis = Redis::start();
            let (mut state, _) = if has_shares {
                scene(&redis).await
            } else {
                rig(&redis).await
            };
            for (group, score) in [("a", a), ("b", b)] {
                queue_aside(&mut state, group, score, &numbered(group, 20)).await;
            }
            let claimed: String = claim(&mut state, 16, GROUPED)
                .await
                .iter()
                .map(|object| object[..1].to_owned())
                .collect();
            assert_eq!(claimed, expected, "{a} {b} {has_shares}");
        }
    }
}

/// A priority whose names come to an end leaves the rest of the round to the others. Names that lead
/// nowhere use up places of the round, and names that are given back use up none.
#[tokio::test]
async fn a_priority_without_names_leaves_the_round_to_the_others() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set_aside(&mut state, "h", -CLASS, &["h:no"]).await;
    queue_aside(&mut state, "h", -CLASS, &["h:1"]).await;
    queue_aside(&mut state, "n", 0, &numbered("n", 3)).await;
    queue_aside(&mut state, "l", CLASS, &numbered("l", 20)).await;
    let answer = ask(
        &mut state,
        9,
        Bounds {
            reply_bytes: 2,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["h:1", "n:1"], (true, false))
    );
    assert_eq!(counts(&console).await.0, 22);
    assert_eq!(
        console
            .text(&state.keys.event_groups_turns())
            .await
            .as_deref(),
        Some("3")
    );
    let answer = ask_for(&mut state, 10..16, GROUPED)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer), ["n:2", "n:3", "l:1", "l:2", "l:3", "l:4"]);
}

/// A group with the weight 4 gets four times as many claims, and its pass rises by a quarter of them.
#[tokio::test]
async fn a_weight_divides_the_steps_of_a_pass() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set(&state, "a:*", Share::new().weight(4)).await;
    for group in ["a", "b", "c", "d"] {
        queue_aside(&mut state, group, 0, &numbered(group, 20)).await;
    }
    let claimed: String = claim(&mut state, 14, GROUPED)
        .await
        .iter()
        .map(|object| object[..1].to_owned())
        .collect();
    assert_eq!(claimed, "aaaabbbbccccdd");
    let passes: Vec<(String, f64)> = console
        .run(&[
            "ZRANGE",
            &state.keys.event_groups(),
            "0",
            "-1",
            "WITHSCORES",
        ])
        .await;
    let expected = [("a", 1.0), ("d", 2.0), ("b", 4.0), ("c", 4.0)];
    assert_eq!(
        passes,
        expected.map(|(group, pass)| (group.to_owned(), pass))
    );
}

/// The weight of a group counts wherever the group is among the others.
#[tokio::test]
async fn the_weights_of_all_groups_count() {
    for (group, expected) in [
        ("a", [("a", 0.5), ("b", 2.0), ("c", 2.0)]),
        ("b", [("b", 0.5), ("a", 2.0), ("c", 2.0)]),
    ] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        set(&state, &format!("{group}:*"), Share::new().weight(4)).await;
        for group in ["a", "b", "c"] {
            queue_aside(&mut state, group, 0, &numbered(group, 20)).await;
        }
        assert_eq!(
            claim(&mut state, 6, GROUPED).await,
            ["a:1", "a:2", "b:1", "b:2", "c:1", "c:2"]
        );
        let passes: Vec<(String, f64)> = console
            .run(&[
                "ZRANGE",
                &state.keys.event_groups(),
                "0",
                "-1",
                "WITHSCORES",
            ])
            .await;
        assert_eq!(
            passes,
            expected.map(|(group, pass)| (group.to_owned(), pass))
        );
    }
}
