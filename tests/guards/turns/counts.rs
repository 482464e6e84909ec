//! The number of names that are set aside, also if it is wrong, and after a failure.

use seriatim::wire::Bounds;

use super::{GROUPED, aside, ask, ask_for, claim, counts, emit, more, numbered, queue_aside, rig};
use crate::objects;
use crate::support::Redis;

/// A worker without groups takes names before markers. Another call is of use while markers are
/// left, but only with a free slot.
#[tokio::test]
async fn a_call_without_groups_takes_names_first() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 3, &["a:1"]).await;
    emit(&mut state, ["b:1"]).await;
    let bounds = Bounds {
        group_depth: 0,
        ..GROUPED
    };
    let answer = ask(&mut state, 2, bounds).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:1"], (true, false))
    );
    assert_eq!(
        (aside(&console).await, counts(&console).await),
        ("none".to_owned(), (0, 1, 0))
    );
    let answer = ask(&mut state, 0, bounds).await.expect("an answer");
    assert_eq!(more(&answer), (false, false));
    let answer = ask_for(&mut state, 2..3, bounds).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["b:1"], (false, false))
    );
    queue_aside(&mut state, "a", 3, &["a:2"]).await;
    let answer = ask_for(&mut state, 3..4, bounds).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:2"], (false, false)),
        "no marker is left"
    );
}

/// A number of names that is too high ends with the last group. If the number is too low, the names
/// that are left are still taken.
#[tokio::test]
async fn a_wrong_number_of_names_is_corrected() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 0, &numbered("a", 3)).await;
    state
        .run("SET", &[&state.keys.event_groups_waiting(), "1"])
        .await;
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:1"]);
    assert_eq!(aside(&console).await, "a 1: a:2 a:3; 1");
    for (number, left) in [("9", "8"), ("1", "2"), ("2", "1")] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        queue_aside(&mut state, "a", 0, &["a:1", "a:2"]).await;
        queue_aside(&mut state, "b", 0, &["b:1"]).await;
        state
            .run("SET", &[&state.keys.event_groups_waiting(), number])
            .await;
        assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:1"]);
        assert_eq!(aside(&console).await, format!("b 0: b:1; a 1: a:2; {left}"));
        for slot in 1..4 {
            ask_for(&mut state, slot..slot + 1, GROUPED)
                .await
                .expect("an answer");
        }
        assert_eq!(aside(&console).await, "none", "{number}");
    }
}

/// A number of names without a group lasts for one call. The next call claims held objects, also those
/// whose names were set aside and are lost.
#[tokio::test]
async fn a_number_without_names_lasts_for_one_call() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    state.hold("a:1", "-1", &["1"], "1 0 1 0 retry: down").await;
    state
        .run("SET", &[&state.keys.event_groups_waiting(), "1"])
        .await;
    for expected in [&[][..], &["a:1"]] {
        let answer = ask(
            &mut state,
            1,
            Bounds {
                group_depth: 0,
                ..GROUPED
            },
        )
        .await
        .expect("an answer");
        assert_eq!(
            (objects(&answer), more(&answer)),
            (expected.to_vec(), (false, false))
        );
        assert_eq!(aside(&console).await, "none");
    }
}

/// If the number of names is no number, the names are still there after a call, and are taken.
///
/// Story: a call with the number `nan` deleted event.groups, so that no worker took the names.
#[tokio::test]
async fn a_number_of_names_that_is_none_loses_no_name() {
    for number in ["nan", "-nan", "-7", "inf", "x", ""] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        queue_aside(&mut state, "a", 0, &["a:1", "a:2"]).await;
        state
            .run("SET", &[&state.keys.event_groups_waiting(), number])
            .await;
        emit(&mut state, ["b:1", "b:2"]).await;
        let mut claimed = Vec::new();
        for slot in 0..6 {
            let answer = ask_for(&mut state, slot..slot + 1, GROUPED)
                .await
                .expect("an answer");
            claimed.extend(objects(&answer).into_iter().map(str::to_owned));
        }
        claimed.sort();
        assert_eq!(claimed, ["a:1", "a:2", "b:1", "b:2"], "{number}");
        assert_eq!(aside(&console).await, "none", "{number}");
    }
}

/// A call that fails gives back the names that it has not used, and counts them.
#[tokio::test]
async fn a_call_that_fails_loses_no_name() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    queue_aside(&mut state, "a", 0, &numbered("a", 3)).await;
    queue_aside(&mut state, "b", 0, &numbered("b", 3)).await;
    state.run("SET", &[&keys.worker_event("w.1"), "x"]).await;
    ask(&mut state, 4, GROUPED).await.expect_err("a wrong type");
    assert_eq!(aside(&console).await, "b 0: b:1 b:2 b:3; a 1: a:2 a:3; 5");
}
