//! Names that stay, move or go to the end while a share has a limit, and the calls that are of use
//! after them.

use seriatim::control::shares::{Priority, Share};
use seriatim::wire::{Advanced, Bounds};

use super::{GROUPED, aside, ask, claim, emit, more, numbered, queue_aside, rig, set_aside};
use crate::limits::{block, blocked, limit, park, set};
use crate::objects;
use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

/// The size of the range of scores that each priority has.
const CLASS: i64 = 1_099_511_627_776;

/// Returns a state with a share of all objects, so that names wait in the lists of groups.
async fn scene(redis: &Redis) -> (State, Console) {
    let (state, console) = rig(redis).await;
    set(&state, "*", Share::new().in_flight(1000)).await;
    (state, console)
}

/// Makes objects count as in hand.
async fn in_hand(state: &mut State, objects: &[&str]) {
    let key = state.keys.objects_in_hand();
    for object in objects {
        state.run("ZADD", &[&key, "0", &format!("{object}:")]).await;
    }
}

/// Makes a group wait for its limit in the next call: another object of it is in hand.
async fn at_its_limit(state: &mut State, group: &str, pass: i64) {
    limit(state, &[group]).await;
    in_hand(state, &[&format!("{group}:0")]).await;
    queue_aside(state, group, pass, &[format!("{group}:1")]).await;
}

/// A name moves to a new group, before a group whose turns the call has read. The call reads that
/// one only once.
#[tokio::test]
async fn a_call_reads_the_turns_of_a_group_once() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:x:*", Share::new().weight(1)).await;
    set(&state, "z:*", Share::new().in_flight(1)).await;
    queue_aside(&mut state, "a", 0, &["a:x:1"]).await;
    set_aside(&mut state, "z", 5, &["z:no"]).await;
    queue_aside(&mut state, "z", 5, &numbered("z", 3)).await;
    let answer = ask(&mut state, 1, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["z:1"], (true, false))
    );
    assert_eq!(aside(&console).await, "a:x 1: a:x:1; z 6: z:2 z:3; 3");
}

/// A name moves to a group that has already left, because it had no name. The call does not read
/// the turns of this group again, so another call is of use.
#[tokio::test]
async fn a_name_that_moves_to_a_group_that_has_left_asks_for_another_call() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:x:*", Share::new().weight(1)).await;
    at_its_limit(&mut state, "q", 2).await;
    state
        .run("ZADD", &[&console.keys.event_groups(), "0", "a:x"])
        .await;
    queue_aside(&mut state, "a", 1, &["a:x:1"]).await;
    let answer = ask(&mut state, 2, GROUPED).await.expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert_eq!(
        aside(&console).await,
        "a:x 3: a:x:1; q 4398046511106: q:1; 2"
    );
}

/// The list of a new group has a wrong type, so its name does not move, and is claimed where it is.
/// The only other group is at its limit. So another call is of no use.
#[tokio::test]
async fn a_name_that_cannot_move_asks_for_no_other_call() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:*", Share::new().weight(1)).await;
    state
        .run("SET", &[&console.keys.group_waiting("a"), "x"])
        .await;
    at_its_limit(&mut state, "q", 0).await;
    queue_aside(&mut state, "\0rest", 0, &["a:1"]).await;
    let answer = ask(&mut state, 2, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:1"], (false, false))
    );
    let names = [
        console.list(&console.keys.group_waiting("q")).await,
        console.list(&console.keys.group_waiting("\0rest")).await,
    ];
    assert_eq!(names, [vec!["q:1".to_owned()], vec![]]);
    assert_eq!(
        console.number(&console.keys.event_groups_waiting()).await,
        1
    );
}

/// A call may look at one name only, and moves it. Another call is of use.
#[tokio::test]
async fn a_call_that_only_moves_a_name_asks_for_another_one() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:x:*", Share::new().weight(1)).await;
    queue_aside(&mut state, "a", 0, &["a:x:1"]).await;
    let answer = ask(
        &mut state,
        2,
        Bounds {
            markers: 1,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert_eq!(aside(&console).await, "a 0: ; a:x 1: a:x:1; 1");
}

/// While the limit of all objects allows no claim, a name that cannot move stays where it is.
#[tokio::test]
async fn a_name_that_cannot_move_stays_while_all_objects_wait() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set(&state, "*", Share::new().in_flight(1)).await;
    set(&state, "a:*", Share::new().weight(1)).await;
    state
        .run("SET", &[&console.keys.group_waiting("a"), "x"])
        .await;
    set_aside(&mut state, "\0rest", 0, &["b:no"]).await;
    queue_aside(&mut state, "\0rest", 0, &["b:1", "a:1", "c:1"]).await;
    let answer = ask(&mut state, 3, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["b:1"], (false, false))
    );
    assert_eq!(
        console.list(&console.keys.group_waiting("\0rest")).await,
        ["a:1", "c:1"]
    );
    assert_eq!(
        console.number(&console.keys.event_groups_waiting()).await,
        2
    );
}

/// A group begins to wait while its names are looked at. The turns go on with the group to which
/// one of these names has moved.
#[tokio::test]
async fn a_group_that_waits_leaves_its_turn_to_a_new_group() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    limit(&state, &["p"]).await;
    set(&state, "q:*", Share::new().weight(1)).await;
    set_aside(&mut state, "p", 0, &["p:no"]).await;
    queue_aside(&mut state, "p", 0, &["p:1", "q:1", "p:2"]).await;
    let answer = ask(&mut state, 4, GROUPED).await.expect("an answer");
    assert_eq!(objects(&answer), ["p:1", "q:1"]);
    assert_eq!(aside(&console).await, "p 4398046511105: p:2; 1");
}

/// A group at its limit gives no name, so a call looks at as many names of the others.
#[tokio::test]
async fn a_group_at_its_limit_gives_no_name() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    at_its_limit(&mut state, "a", 0).await;
    queue_aside(&mut state, "b", 0, &numbered("b", 2)).await;
    assert_eq!(
        claim(
            &mut state,
            2,
            Bounds {
                markers: 2,
                ..GROUPED
            }
        )
        .await,
        ["b:1", "b:2"]
    );
    assert_eq!(aside(&console).await, "b 2: ; a 4398046511104: a:1; 1");
}

/// Sets aside `a:1` in the group `a`, whose rate allows fewer events than the held batch of `a:1`
/// has.
async fn set_aside_above_the_rate(state: &mut State) {
    set(state, "a:*", Share::new().rate(0.001).burst(3)).await;
    let at_us = 1000
        * crate::support::control(&state.conn, &state.keys)
            .now_ms()
            .await
            .expect("a time")
        + 1_000_000_000;
    let used = format!("1 {at_us} 0 0 0");
    state
        .run("HSET", &[&state.keys.event_shares_used(), "a:*", &used])
        .await;
    state
        .hold("a:1", "-1", &["1", "2", "3"], "1 0 1 0 retry: down")
        .await;
    set_aside(state, "a", 0, &["a:1"]).await;
}

/// The rate of a group allows fewer events than a held batch has. So the first name of the group
/// stays, and the others behind it.
#[tokio::test]
async fn the_first_name_of_a_call_may_stay() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set_aside_above_the_rate(&mut state).await;
    queue_aside(&mut state, "a", 0, &["a:2"]).await;
    queue_aside(&mut state, "b", 9, &["b:1"]).await;
    assert_eq!(claim(&mut state, 6, GROUPED).await, ["b:1"]);
    assert_eq!(aside(&console).await, "a 4398046511104: a:1 a:2; 2");
}

/// A group has left, because its last name is in the chunk, and then waits for its limit. The turns
/// go on with a group to which a name has moved meanwhile.
#[tokio::test]
async fn a_group_that_has_left_may_wait() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set_aside_above_the_rate(&mut state).await;
    limit(&state, &["b"]).await;
    set(&state, "c:*", Share::new().weight(1)).await;
    set_aside(&mut state, "b", 0, &["b:no"]).await;
    queue_aside(&mut state, "b", 0, &["c:1"]).await;
    assert_eq!(claim(&mut state, 6, GROUPED).await, ["c:1"]);
    assert_eq!(aside(&console).await, "a 4398046511104: a:1; 1");
}

/// Groups of all priorities have turns while a share has a limit. Places of the round of names that
/// stay are given back.
#[tokio::test]
async fn priorities_have_turns_with_limits() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    for (selector, priority) in [("h:*", Priority::High), ("l:*", Priority::Low)] {
        set(&state, selector, Share::new().priority(priority)).await;
    }
    for (group, pass) in [("h", -CLASS), ("n", 0), ("l", CLASS)] {
        queue_aside(&mut state, group, pass, &numbered(group, 1)).await;
    }
    assert_eq!(claim(&mut state, 3, GROUPED).await, ["h:1", "n:1", "l:1"]);
    assert_eq!(aside(&console).await, "none");
    // The limit of both groups with the prefix `p` has room for one object.
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    for (selector, share) in [
        ("p:a:*", Share::new().priority(Priority::High)),
        ("p:b:*", Share::new().weight(1)),
        ("p:*", Share::new().in_flight(1)),
    ] {
        set(&state, selector, share).await;
    }
    queue_aside(&mut state, "p:a", -CLASS, &numbered("p:a", 1)).await;
    queue_aside(&mut state, "p:b", 0, &numbered("p:b", 1)).await;
    queue_aside(&mut state, "c", 1, &numbered("c", 1)).await;
    let answer = ask(&mut state, 3, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["p:a:1", "c:1"], (false, false))
    );
    assert_eq!(
        aside(&console).await,
        "p:a 3298534883329: ; p:b 4398046511104: p:b:1; 1"
    );
    assert_eq!(
        console
            .text(&console.keys.event_groups_turns())
            .await
            .as_deref(),
        Some("2")
    );
}

/// The call ends after its last claim, while the only group that is left is at its limit: another
/// call is of use. It is of no use if the call could have claimed one more object.
#[tokio::test]
async fn a_call_that_ends_with_its_last_claim_asks_for_another_one() {
    for (slots, reply_bytes, is_of_use) in [
        (1, 1 << 20, true),
        (2, 1 << 20, false),
        (2, 2, false),
        (2, 1, true),
    ] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        at_its_limit(&mut state, "p", 0).await;
        set_aside(&mut state, "b", 1, &["b:no"]).await;
        queue_aside(&mut state, "b", 1, &["b:1"]).await;
        let answer = ask(
            &mut state,
            slots,
            Bounds {
                reply_bytes,
                ..GROUPED
            },
        )
        .await
        .expect("an answer");
        assert_eq!(
            (objects(&answer), more(&answer)),
            (vec!["b:1"], (is_of_use, false)),
            "{slots} {reply_bytes}"
        );
        assert_eq!(
            console.number(&console.keys.event_groups_waiting()).await,
            1
        );
    }
    // The call may look at one name more, but no further group has a turn.
    let redis = Redis::start();
    let (mut state, _) = scene(&redis).await;
    at_its_limit(&mut state, "p", 0).await;
    set_aside(&mut state, "b", 1, &["b:no"]).await;
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
    assert_eq!((objects(&answer), more(&answer)), (vec![], (false, false)));
}

/// A name has moved to a new group, and then the limit of all objects is used up. Another call is
/// of no use.
#[tokio::test]
async fn a_call_that_uses_up_the_limit_of_all_objects_asks_for_no_other_one() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set(&state, "*", Share::new().in_flight(1)).await;
    set(&state, "a:x:*", Share::new().weight(1)).await;
    queue_aside(&mut state, "a", 0, &["a:x:1", "a:1", "a:2"]).await;
    let answer = ask(&mut state, 3, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:1"], (false, false))
    );
    assert_eq!(aside(&console).await, "a 1: a:2; a:x 1: a:x:1; 2");
}

/// A call looks at the groups of 4 prefixes that are due, and leaves the fifth prefix. All these
/// groups are at their limits again, and so is the group of a new marker. Another call is of use
/// for the fifth prefix.
#[tokio::test]
async fn a_prefix_that_is_left_asks_for_another_call() {
    for prefixes in [4, 5] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        let names: Vec<String> = (1..=prefixes).map(|n| format!("p{n}")).collect();
        for prefix in &names {
            limit(&state, &[prefix]).await;
            set(&state, &format!("{prefix}:a:*"), Share::new().weight(1)).await;
        }
        limit(&state, &["r"]).await;
        in_hand(&mut state, &["r:0"]).await;
        for prefix in &names {
            in_hand(&mut state, &[&format!("{prefix}:0")]).await;
            park(&mut state, &format!("{prefix}:a"), 3.0).await;
            block(&mut state, &format!("{prefix}\n"), 0).await;
        }
        emit(&mut state, ["r:1"]).await;
        let answer = ask(&mut state, 2, GROUPED).await.expect("an answer");
        assert_eq!(
            (objects(&answer), more(&answer)),
            (vec![], (prefixes > 4, false)),
            "{prefixes}"
        );
        assert_eq!(blocked(&mut state).await.len(), prefixes + 1);
        assert_eq!(
            console.number(&console.keys.event_groups_waiting()).await,
            prefixes as u64 + 1
        );
    }
}

/// A call claims an object or none, and 127 groups begin to wait. No other group is left, so
/// another call is of no use. After 128 groups, others may be left.
#[tokio::test]
async fn a_call_that_looks_at_all_groups_asks_for_no_other_one() {
    for (claimed, groups, is_of_use) in [
        (true, 127, false),
        (true, 128, true),
        (false, 127, false),
        (false, 128, true),
    ] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        limit(&state, &["p"]).await;
        in_hand(&mut state, &["p:0"]).await;
        // To look at a marker would be of use, too.
        state
            .run("DEL", &[&console.keys.objects_with_events()])
            .await;
        if claimed {
            queue_aside(&mut state, "b", 0, &["b:1"]).await;
        }
        for n in 1..=groups {
            queue_aside(&mut state, &format!("p:{n}"), n, &[format!("p:{n}:1")]).await;
        }
        let answer = ask(
            &mut state,
            3,
            Bounds {
                group_depth: 2,
                ..GROUPED
            },
        )
        .await
        .expect("an answer");
        let expected = if claimed { vec!["b:1"] } else { vec![] };
        assert_eq!(
            (objects(&answer), more(&answer)),
            (expected, (is_of_use, false)),
            "{claimed} {groups}"
        );
    }
}

/// The rate of all objects still allows a claim after a call, so no time of another call is told.
#[tokio::test]
async fn a_call_that_leaves_room_for_a_claim_tells_no_time() {
    let redis = Redis::start();
    let (mut state, _) = rig(&redis).await;
    set(&state, "*", Share::new().rate(0.001).burst(1)).await;
    set_aside(&mut state, "a", 0, &["a:no", "a:neither"]).await;
    let answer = ask(
        &mut state,
        2,
        Bounds {
            markers: 1,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert!(
        matches!(answer, Advanced::Ok { next_due: None, .. }),
        "{answer:?}"
    );
}
