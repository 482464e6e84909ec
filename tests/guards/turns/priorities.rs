//! The turns of priorities, of which each has a range of scores in `event.groups`, and of weights.

use seriatim::control::shares::Share;

use super::{GROUPED, claim, counts, grouped};
use crate::limits::set;
use crate::scene::Scene;

/// The size of the range of scores that each priority has.
const CLASS: i64 = 1_099_511_627_776;
/// The first scores of the priorities high, normal and low, each with the name of a group.
const CLASSES: [(&str, i64); 3] = [("h", -CLASS), ("n", 0), ("l", CLASS)];

/// Returns a scene in which scores say priorities, because there is a share.
async fn with_share() -> Scene {
    let scene = Scene::new().await;
    set(&scene, "other:*", Share::new().weight(1)).await;
    scene
}

/// Makes a call. Returns the first letters of the objects that it claims.
async fn claim_letters(scene: &Scene, count: usize) -> String {
    let claimed = claim(scene, count, GROUPED).await;
    claimed
        .iter()
        .map(|object| object[..1].to_owned())
        .collect()
}

/// Makes groups of these priorities wait, with 40 names each. Returns the scores of the groups after a
/// call that claims so many objects, relative to the first scores, and the groups that it claimed from.
async fn claim_from(scene: &Scene, waiting: &str, count: usize) -> (String, Vec<i64>) {
    let classes = CLASSES
        .into_iter()
        .filter(|(group, _)| waiting.contains(group));
    for (group, first) in classes.clone() {
        scene
            .add(&format!("queue {group} {} {group}:1..40", first + 5))
            .await;
    }
    let claimed = claim_letters(scene, count).await;
    let mut passes = Vec::new();
    for (group, first) in classes {
        let words = ["ZSCORE", &scene.keys.event_groups(), group];
        passes.push(scene.run::<f64>(&words).await as i64 - first);
    }
    (claimed, passes)
}

/// Of 16 claims, the lowest priority that waits gets the last one. The priority between two others gets
/// the eighth one. The next call goes on at the place of the round where this one has ended.
#[tokio::test]
async fn a_round_goes_on_in_the_next_call() {
    for waiting in ["hnl", "hn", "hl", "nl"] {
        for start in [0, 1, 6, 7, 8, 14, 15] {
            let scene = with_share().await;
            scene
                .add(&format!("SET event.groups.turns '{start}'"))
                .await;
            let (claimed, passes) = claim_from(&scene, waiting, 19).await;
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
            let place = scene.text(&scene.keys.event_groups_turns()).await;
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
    for (stored, start) in [
        ("16", 0),
        ("-1", 0),
        ("x", 0),
        ("", 0),
        ("nan", 0),
        ("15.5", 15),
        ("15", 15),
    ] {
        let scene = with_share().await;
        scene
            .add(&format!("SET event.groups.turns '{stored}'"))
            .await;
        let (claimed, _) = claim_from(&scene, "nl", 2).await;
        assert_eq!(claimed, if start == 15 { "ln" } else { "nn" }, "{stored}");
        let place = scene.text(&scene.keys.event_groups_turns()).await;
        assert_eq!(place, Some(((start + 2) % 16).to_string()), "{stored}");
    }
    let scene = with_share().await;
    scene.add("LPUSH event.groups.turns 15").await;
    assert_eq!(claim_from(&scene, "nl", 2).await.0, "nn");
    assert_eq!(scene.at("event.groups.turns").await, "2");
}

/// While one priority waits, there are no rounds, and the place stays. The scores at both ends of each
/// range belong to it, and those of further groups are behind.
#[tokio::test]
async fn one_priority_has_all_turns() {
    for (group, first) in CLASSES {
        let scene = with_share().await;
        let last = first + CLASS - 8;
        let given =
            format!("queue {group}z {last} {group}z:1..9; queue {group} {first} {group}:1..3");
        scene
            .add(&format!("SET event.groups.turns 15; {given}"))
            .await;
        let claimed = claim(&scene, 4, GROUPED).await.join(" ");
        assert_eq!(claimed, format!("{group}:1 {group}:2 {group}:3 {group}z:1"));
        assert_eq!(scene.at("event.groups.turns").await, "15");
        let passes = format!("<{group}z: {}>", last + 1);
        assert_eq!(scene.at("event.groups").await, passes);
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
            let scene = if has_shares {
                with_share().await
            } else {
                Scene::new().await
            };
            for (group, score) in [("a", a), ("b", b)] {
                scene
                    .add(&format!("queue {group} {score} {group}:1..20"))
                    .await;
            }
            let claimed = claim_letters(&scene, 16).await;
            assert_eq!(claimed, expected, "{a} {b} {has_shares}");
        }
    }
}

/// A priority whose names come to an end leaves the rest of the round to the others. Names that lead
/// nowhere use up places of the round, and names that are given back use up none.
#[tokio::test]
async fn a_priority_without_names_leaves_the_round_to_the_others() {
    let scene = with_share().await;
    scene
        .add(&format!("names h -{CLASS} h:no; queue h -{CLASS} h:1"))
        .await;
    scene
        .add(&format!("queue n 0 n:1..3; queue l {CLASS} l:1..20"))
        .await;
    let answer = scene.free(0..9, grouped(|b| b.reply_bytes = 2)).await;
    assert_eq!(answer.summary(), "h:1 n:1, more");
    assert_eq!(counts(&scene).await.0, 22);
    assert_eq!(scene.at("event.groups.turns").await, "3");
    let answer = scene.free(10..16, GROUPED).await;
    assert_eq!(answer.objects(), ["n:2", "n:3", "l:1", "l:2", "l:3", "l:4"]);
}

/// A group with the weight 4 gets four times as many claims, and its pass rises by a quarter of them.
#[tokio::test]
async fn a_weight_divides_the_steps_of_a_pass() {
    let scene = Scene::new().await;
    set(&scene, "a:*", Share::new().weight(4)).await;
    for group in ["a", "b", "c", "d"] {
        scene.add(&format!("queue {group} 0 {group}:1..20")).await;
    }
    let claimed = claim_letters(&scene, 14).await;
    assert_eq!(claimed, "aaaabbbbccccdd");
    let passes = scene.scores("event.groups").await;
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
        let scene = Scene::new().await;
        set(&scene, &format!("{group}:*"), Share::new().weight(4)).await;
        for group in ["a", "b", "c"] {
            scene.add(&format!("queue {group} 0 {group}:1..20")).await;
        }
        assert_eq!(
            claim(&scene, 6, GROUPED).await,
            ["a:1", "a:2", "b:1", "b:2", "c:1", "c:2"]
        );
        let passes = scene.scores("event.groups").await;
        assert_eq!(
            passes,
            expected.map(|(group, pass)| (group.to_owned(), pass))
        );
    }
}
