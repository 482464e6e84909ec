//! Names in the lists of other groups, and groups that begin to wait, while a share has a limit.

use seriatim::control::shares::Share;
use seriatim::wire::Bounds;

use super::{GROUPED, aside, ask, ask_for, claim, more, numbered, queue_aside, rig, set_aside};
use crate::limits::{blocked, set};
use crate::objects;
use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

/// Returns a state with a share of all objects, so that names wait in the lists of groups.
async fn scene(redis: &Redis) -> (State, Console) {
    let (state, console) = rig(redis).await;
    set(&state, "*", Share::new().in_flight(1000)).await;
    (state, console)
}

/// Makes objects count as in hand.
async fn in_hand(state: &mut State, object: &str) {
    let key = state.keys.objects_in_hand();
    state.run("ZADD", &[&key, "0", &format!("{object}:")]).await;
}

/// A call claims 128 objects at most.
#[tokio::test]
async fn a_call_with_limits_claims_so_many_objects() {
    let redis = Redis::start();
    let (mut state, _) = scene(&redis).await;
    queue_aside(&mut state, "a", 0, &numbered("a", 140)).await;
    let answer = ask(&mut state, 140, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer).len(), more(&answer)),
        (128, (true, false))
    );
}

/// 128 groups begin to wait in a call. Another call is of use after it, because it may look at others.
#[tokio::test]
async fn so_many_groups_begin_to_wait_in_a_call() {
    for (groups, waiting, is_of_use) in [(127, 127, false), (128, 128, true), (129, 128, true)] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        set(&state, "p:*", Share::new().in_flight(1)).await;
        in_hand(&mut state, "p:9").await;
        for n in 0..groups {
            queue_aside(&mut state, &format!("p:{n}"), n, &[format!("p:{n}:1")]).await;
        }
        let answer = ask(&mut state, 2, GROUPED).await.expect("an answer");
        assert_eq!(
            (objects(&answer), more(&answer)),
            (vec![], (is_of_use, false)),
            "{groups}"
        );
        let count = [
            "ZCOUNT",
            &console.keys.event_groups(),
            "4000000000000",
            "+inf",
        ];
        assert_eq!(console.run::<usize>(&count).await, waiting, "{groups}");
        let answer = ask(&mut state, 2, GROUPED).await.expect("an answer");
        assert_eq!(
            (objects(&answer), more(&answer)),
            (vec![], (false, false)),
            "{groups}"
        );
        assert_eq!(console.run::<usize>(&count).await, groups, "{groups}");
        assert_eq!(blocked(&mut state).await.len(), 1);
    }
}

/// A name whose group has a share of its own is moved to the list of this group, and claimed in its
/// turn, in the same call. Other names are claimed from the list where they are.
#[tokio::test]
async fn a_name_of_a_new_group_is_moved_and_claimed() {
    for was_there in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        set(&state, "a:x:*", Share::new().weight(1)).await;
        if was_there {
            // The group has no name left, and gives its turn up first.
            state
                .run("ZADD", &[&console.keys.event_groups(), "0", "a:x"])
                .await;
        }
        queue_aside(&mut state, "a", 0, &["a:x:1", "a:2", "b:1", "a:x:2", "a:3"]).await;
        let (first, then, left) = if was_there {
            (
                ["a:2", "a:x:1"],
                vec!["b:1", "a:3", "a:x:2"],
                "a 1: b:1 a:x:2 a:3; 3",
            )
        } else {
            (
                ["a:2", "b:1"],
                vec!["a:x:1", "a:3", "a:x:2"],
                "a:x 1: a:x:1; a 2: a:x:2 a:3; 3",
            )
        };
        assert_eq!(claim(&mut state, 2, GROUPED).await, first);
        assert_eq!(aside(&console).await, left);
        let answer = ask_for(&mut state, 2..8, GROUPED).await.expect("an answer");
        assert_eq!((objects(&answer), more(&answer)), (then, (false, false)));
        assert_eq!(aside(&console).await, "none");
    }
}

/// A name goes to the end of the shared list if its group has no list, and its limit allows no claim.
/// Another call is of use only if this one has claimed an object.
#[tokio::test]
async fn a_name_that_cannot_be_moved_goes_to_the_end() {
    for others in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        set(&state, "a:*", Share::new().in_flight(1)).await;
        in_hand(&mut state, "a:9").await;
        state
            .run("SET", &[&console.keys.group_waiting("a"), "x"])
            .await;
        queue_aside(&mut state, "\0rest", 0, &["a:1", "a:2"]).await;
        if others {
            queue_aside(&mut state, "\0rest", 0, &["b:1", "b:2"]).await;
        }
        let answer = ask(&mut state, 1, GROUPED).await.expect("an answer");
        let names = console.list(&console.keys.group_waiting("\0rest")).await;
        let passes: Vec<(String, f64)> = console
            .run(&[
                "ZRANGE",
                &console.keys.event_groups(),
                "0",
                "-1",
                "WITHSCORES",
            ])
            .await;
        let expected = if others {
            (vec!["b:1"], (true, false))
        } else {
            (vec![], (false, false))
        };
        assert_eq!((objects(&answer), more(&answer)), expected);
        assert_eq!(
            names,
            if others {
                &["b:2", "a:1", "a:2"][..]
            } else {
                &["a:1", "a:2"]
            }
        );
        assert_eq!(
            passes[0],
            ("\0rest".to_owned(), if others { 1.0 } else { 0.0 })
        );
        assert_eq!(blocked(&mut state).await, []);
    }
}

/// A group gives a chunk no more names than its limit allows. So the names of other groups follow, and the
/// group does not begin to wait before its next turn.
#[tokio::test]
async fn a_group_gives_no_more_names_than_its_limit_allows() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:*", Share::new().in_flight(2)).await;
    queue_aside(&mut state, "a", 0, &numbered("a", 6)).await;
    queue_aside(&mut state, "b", 9, &numbered("b", 4)).await;
    assert_eq!(
        claim(&mut state, 4, GROUPED).await,
        ["a:1", "a:2", "b:1", "b:2"]
    );
    assert_eq!(
        aside(&console).await,
        "a 2: a:3 a:4 a:5 a:6; b 11: b:3 b:4; 6"
    );
    assert_eq!(blocked(&mut state).await, []);
    let answer = ask_for(&mut state, 4..8, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["b:3", "b:4"], (false, false))
    );
    assert_eq!(aside(&console).await, "a 4398046511106: a:3 a:4 a:5 a:6; 4");
}

/// After a group whose limit is used up, the turns go on with groups that were not among the first 64.
#[tokio::test]
async fn groups_at_their_limits_leave_their_turns_to_further_groups() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    let groups: Vec<String> = (10..76).map(|n| format!("g{n}")).collect();
    for group in &groups {
        set(&state, &format!("{group}:*"), Share::new().in_flight(1)).await;
    }
    for group in &groups {
        queue_aside(&mut state, group, 5, &numbered(group, 2)).await;
    }
    let expected: Vec<String> = groups.iter().map(|group| format!("{group}:1")).collect();
    assert_eq!(claim(&mut state, 66, GROUPED).await, expected);
    assert_eq!(console.number(&state.keys.event_groups_waiting()).await, 66);
}

/// Two groups have a common limit, which a claim within the call uses up. The name behind it stays in
/// its list, and the group waits. Names of other groups are claimed and removed.
#[tokio::test]
async fn a_name_that_stays_is_counted_and_kept() {
    for (others, markers) in [(false, 100), (true, 100), (true, 3)] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        for (selector, share) in [
            ("p:a:*", Share::new().weight(1)),
            ("p:b:*", Share::new().weight(1)),
            ("p:*", Share::new().in_flight(1)),
        ] {
            set(&state, selector, share).await;
        }
        queue_aside(&mut state, "p:a", 0, &numbered("p:a", 3)).await;
        queue_aside(&mut state, "p:b", 1, &numbered("p:b", 3)).await;
        if others {
            queue_aside(&mut state, "c", 2, &["\0b", "c:2", "c:3"]).await;
        }
        let bounds = Bounds { markers, ..GROUPED };
        let answer = ask(&mut state, 3, bounds).await.expect("an answer");
        let waiting = "p:a 4398046511105: p:a:2 p:a:3; p:b 4398046511105: p:b:1 p:b:2 p:b:3";
        if markers == 3 {
            assert_eq!(
                (objects(&answer), more(&answer)),
                (vec!["p:a:1", "\0b"], (true, false))
            );
            // The first group begins to wait at its next turn.
            let left = "p:a 1: p:a:2 p:a:3; c 3: c:2 c:3; p:b 4398046511105: p:b:1 p:b:2 p:b:3; 7";
            assert_eq!(aside(&console).await, left);
        } else if others {
            assert_eq!(
                (objects(&answer), more(&answer)),
                (vec!["p:a:1", "\0b", "c:2"], (true, false))
            );
            assert_eq!(aside(&console).await, format!("c 4: c:3; {waiting}; 6"));
        } else {
            assert_eq!(
                (objects(&answer), more(&answer)),
                (vec!["p:a:1"], (false, false))
            );
            assert_eq!(aside(&console).await, format!("{waiting}; 5"));
        }
        let members: Vec<_> = blocked(&mut state)
            .await
            .into_iter()
            .map(|(member, _)| member)
            .collect();
        assert_eq!(members, ["p\n"]);
    }
}

/// While the names of a group with a limit lead to no claim, it gives four times as many names to each
/// chunk as to the one before, up to 64.
#[tokio::test]
async fn a_group_gives_more_names_while_they_lead_nowhere() {
    for (markers, of_group) in [(40, 1), (120, 5), (280, 21), (600, 85), (1112, 149)] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        set(&state, "a:*", Share::new().in_flight(1)).await;
        set_aside(&mut state, "a", 0, &numbered("a", 400)).await;
        set_aside(&mut state, "b", 1000, &numbered("b", 1200)).await;
        let answer = ask(&mut state, 40, Bounds { markers, ..GROUPED })
            .await
            .expect("an answer");
        assert_eq!(
            (objects(&answer), more(&answer)),
            (vec![], (true, false)),
            "{markers}"
        );
        let left = ["a", "b"].map(|group| state.keys.group_waiting(group));
        let left: [usize; 2] = [
            console.run(&["LLEN", &left[0]]).await,
            console.run(&["LLEN", &left[1]]).await,
        ];
        assert_eq!(
            left,
            [400 - of_group, 1200 + of_group - markers],
            "{markers}"
        );
    }
}

/// A name moves behind the names that are in the list of its group.
#[tokio::test]
async fn a_name_moves_behind_the_names_of_its_group() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:x:*", Share::new().weight(1)).await;
    queue_aside(&mut state, "a:x", 9, &["a:x:0"]).await;
    queue_aside(&mut state, "a", 0, &["a:x:1", "a:2"]).await;
    assert_eq!(
        claim(
            &mut state,
            1,
            Bounds {
                markers: 2,
                ..GROUPED
            }
        )
        .await,
        ["a:2"]
    );
    assert_eq!(aside(&console).await, "a 1: ; a:x 9: a:x:0 a:x:1; 2");
}

/// Names move to a group that has given its turn up, and the call may look at no further name. The
/// group keeps its place among the groups.
#[tokio::test]
async fn a_group_to_which_names_have_moved_keeps_its_place() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:x:*", Share::new().weight(1)).await;
    state
        .run("ZADD", &[&console.keys.event_groups(), "0", "a:x"])
        .await;
    queue_aside(&mut state, "a", 1, &["a:x:1", "a:x:2"]).await;
    let answer = ask(
        &mut state,
        2,
        Bounds {
            markers: 2,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert_eq!(aside(&console).await, "a:x 0: a:x:1 a:x:2; a 1: ; 2");
}
