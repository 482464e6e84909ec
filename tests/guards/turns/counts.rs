//! The number of names that are grouped, also if it is wrong, and after a failure.

use seriatim::wire::{Advance, ClaimFirst};

use super::{GROUPED, all_grouped, claim, counts, grouped};
use crate::scene::Scene;

/// A worker without groups takes names before markers. Another call is of use while markers are
/// left, but only with a free slot.
#[tokio::test]
async fn a_call_without_groups_takes_names_first() {
    let scene = Scene::given("queue a 3 a:1; each b:1").await;
    let bounds = grouped(|b| b.group_depth = 0);
    let answer = scene.free(0..2, bounds).await;
    assert_eq!(answer.summary(), "a:1, more");
    assert_eq!(
        (all_grouped(&scene).await, counts(&scene).await),
        ("none".to_owned(), (0, 1, 0))
    );
    let answer = scene.free(0..0, bounds).await;
    assert_eq!(answer.of_use(), (false, false));
    let answer = scene.free(2..3, bounds).await;
    assert_eq!(answer.summary(), "b:1");
    scene.add("queue a 3 a:2").await;
    let answer = scene.free(3..4, bounds).await;
    assert_eq!(answer.summary(), "a:2", "no marker is left");
}

/// A call without a free slot groups no markers if no group takes turns: objects have no groups, and no
/// share makes one. With a share of a prefix, it groups them.
#[tokio::test]
async fn a_call_without_a_free_slot_groups_markers_if_there_are_groups() {
    for (summary, is_grouped) in [("", false), ("0 0 1700", false), ("1 1 1700", true)] {
        let scene = Scene::given("queue a 3 a:1; each b:1").await;
        if !summary.is_empty() {
            scene
                .add(&format!("SET event.shares.summary '{summary}'"))
                .await;
        }
        if is_grouped {
            scene
                .add("HSET event.shares b:* '1 - - - - 1700 3 ada'")
                .await;
        }
        let answer = scene.free(0..0, grouped(|b| b.group_depth = 0)).await;
        assert_eq!(answer.of_use(), (is_grouped, false), "{summary}");
        let expected = if is_grouped { (2, 0, 0) } else { (1, 1, 0) };
        assert_eq!(counts(&scene).await, expected, "{summary}");
    }
}

/// A number of names that is too high ends with the last group. If the number is too low, the names
/// that are left are still taken.
#[tokio::test]
async fn a_wrong_number_of_names_is_corrected() {
    let given = "queue a 0 a:1..3; SET event.groups.waiting 1";
    let scene = Scene::given(given).await;
    assert_eq!(claim(&scene, 1, GROUPED).await, ["a:1"]);
    assert_eq!(all_grouped(&scene).await, "a 1: a:2 a:3; 1");
    for (number, left) in [("9", "8"), ("1", "2"), ("2", "1")] {
        let scene = Scene::new().await;
        scene.add("queue a 0 a:1 a:2; queue b 0 b:1").await;
        scene
            .add(&format!("SET event.groups.waiting '{number}'"))
            .await;
        assert_eq!(claim(&scene, 1, GROUPED).await, ["a:1"]);
        assert_eq!(
            all_grouped(&scene).await,
            format!("b 0: b:1; a 1: a:2; {left}")
        );
        for slot in 1..4 {
            scene.free(slot..slot + 1, GROUPED).await;
        }
        assert_eq!(all_grouped(&scene).await, "none", "{number}");
    }
}

/// A number of names without a group lasts for one call. The next call claims held objects, also those
/// whose names were grouped and are lost. A text that is no positive number lasts for no call.
#[tokio::test]
async fn a_number_without_names_lasts_for_one_call() {
    let held = "hold a:1 -1 '1 0 1 0 retry: down' 1";
    for (number, first) in [
        ("1", &[][..]),
        ("0", &["a:1"]),
        ("-1", &["a:1"]),
        ("x", &["a:1"]),
    ] {
        let given = format!("{held}; SET event.groups.waiting '{number}'");
        let scene = Scene::given(&given).await;
        for expected in [first, &["a:1"]] {
            let answer = scene.free(0..1, grouped(|b| b.group_depth = 0)).await;
            assert_eq!(
                (answer.objects(), answer.of_use()),
                (expected.to_vec(), (false, false)),
                "{number}"
            );
        }
        let left = if number == "1" { "none" } else { number };
        assert_eq!(all_grouped(&scene).await, left, "{number}");
    }
}

/// If the number of names is no number, the names are still there after a call, and are taken.
///
/// Story: a call with the number `nan` deleted event.groups, so that no worker took the names.
#[tokio::test]
async fn a_number_of_names_that_is_none_loses_no_name() {
    for number in ["nan", "-nan", "-7", "inf", "x", ""] {
        let scene = Scene::new().await;
        scene.add("queue a 0 a:1 a:2").await;
        scene
            .add(&format!("SET event.groups.waiting '{number}'"))
            .await;
        scene.add("each b:1 b:2").await;
        let mut claimed = Vec::new();
        for slot in 0..6 {
            let answer = scene.free(slot..slot + 1, GROUPED).await;
            claimed.extend(answer.objects().into_iter().map(str::to_owned));
        }
        claimed.sort();
        assert_eq!(claimed, ["a:1", "a:2", "b:1", "b:2"], "{number}");
        assert_eq!(all_grouped(&scene).await, "none", "{number}");
    }
}

/// A call that fails gives back the names that it has not used, and counts them.
#[tokio::test]
async fn a_call_that_fails_loses_no_name() {
    let given = "queue a 0 a:1..3; queue b 0 b:1..3; SET event.worker:w.1:event x";
    let scene = Scene::given(given).await;
    let fill = |call: &mut Advance| (0..4).for_each(|slot| call.free(slot));
    let failed = scene.try_advance(ClaimFirst::Markers, GROUPED, fill).await;
    failed.expect_err("a wrong type");
    assert_eq!(
        all_grouped(&scene).await,
        "b 0: b:1 b:2 b:3; a 1: a:2 a:3; 5"
    );
}
