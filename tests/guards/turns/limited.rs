//! The names that groups give within a call, while a share has a limit.

use seriatim::control::shares::Share;

use super::{
    GROUPED, NO_SLOT, aside, ask, claim, counts, emit, more, numbered, queue_aside, rig, set_aside,
};
use crate::limits::{block, blocked, limit, pair, park, set};
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

/// Without limits, a call claims as many objects as it has slots.
#[tokio::test]
async fn a_call_without_limits_claims_more_objects() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 0, &numbered("a", 140)).await;
    assert_eq!(claim(&mut state, 135, GROUPED).await.len(), 135);
    assert_eq!(counts(&console).await, (5, 0, 0));
}

/// A call without a free slot sets names aside, but lets no group have turns again.
#[tokio::test]
async fn a_call_without_a_slot_leaves_waiting_groups() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    limit(&state, &["a"]).await;
    park(&mut state, "a", 2.0).await;
    block(&mut state, "a", 0).await;
    emit(&mut state, ["b:1"]).await;
    let answer = ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (false, false)));
    assert_eq!(blocked(&mut state).await, [pair("a", 0.0)]);
    assert_eq!(aside(&console).await, "b 3: b:1; a 4398046511106: a:1; 2");
}

/// While the limit of all objects allows no claim, no round begins.
#[tokio::test]
async fn no_round_begins_while_all_objects_wait() {
    for in_hand in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        set(&state, "*", Share::new().in_flight(1)).await;
        set(&state, "other:*", Share::new().weight(1)).await;
        if in_hand {
            state
                .run("ZADD", &[&console.keys.objects_in_hand(), "0", "x:1:"])
                .await;
        }
        queue_aside(&mut state, "a", 0, &numbered("a", 2)).await;
        queue_aside(&mut state, "b", 1_099_511_627_776_u64, &numbered("b", 2)).await;
        let answer = ask(&mut state, 2, GROUPED).await.expect("an answer");
        let place = console.text(&console.keys.event_groups_turns()).await;
        let left = if in_hand {
            "a 0: a:1 a:2; b 1099511627776: b:1 b:2; 4"
        } else {
            "a 1: a:2; b 1099511627776: b:1 b:2; 3"
        };
        assert_eq!(aside(&console).await, left);
        assert_eq!(
            (objects(&answer), more(&answer)),
            (if in_hand { vec![] } else { vec!["a:1"] }, (false, false))
        );
        assert_eq!(place.as_deref(), (!in_hand).then_some("1"));
    }
}

/// A group gives no name for which its limit has no room. So it does not begin to wait while the
/// names of other groups use the slots.
#[tokio::test]
async fn a_group_gives_names_while_its_limit_has_room() {
    for (room, slots, others, claimed, left) in [
        (
            1,
            4,
            &[("b", 4)][..],
            "a:1 b:1 b:2 b:3",
            "a 1: a:2 a:3 a:4 a:5; b 3: b:4; 5",
        ),
        (
            2,
            4,
            &[("b", 2)],
            "a:1 a:2 b:1 b:2",
            "a 2: a:3 a:4 a:5; b 2: ; 3",
        ),
        (
            3,
            8,
            &[("b", 3), ("c", 1), ("d", 1)],
            "a:1 a:2 b:1 b:2 c:1 d:1 a:3 b:3",
            "a 3: a:4 a:5; b 3: ; 2",
        ),
    ] {
        let redis = Redis::start();
        let (mut state, console) = scene(&redis).await;
        set(&state, "a:*", Share::new().in_flight(room)).await;
        queue_aside(&mut state, "a", 0, &numbered("a", 5)).await;
        for (group, names) in others {
            queue_aside(&mut state, group, 0, &numbered(group, *names)).await;
        }
        assert_eq!(claim(&mut state, slots, GROUPED).await.join(" "), claimed);
        assert_eq!(aside(&console).await, left);
        assert_eq!(blocked(&mut state).await, []);
    }
}

/// A group whose names have led to a claim gives no more names to the next chunk than its limit
/// allows.
#[tokio::test]
async fn a_group_gives_as_many_names_after_a_claim() {
    let redis = Redis::start();
    let (mut state, console) = scene(&redis).await;
    set(&state, "a:*", Share::new().in_flight(2)).await;
    for (group, pass) in [("a", 0), ("b", 9)] {
        let names = numbered(group, 5);
        let nowhere = format!("{group}:no");
        if group == "a" {
            queue_aside(&mut state, group, pass, &names[..1]).await;
            set_aside(&mut state, group, pass, &[&nowhere]).await;
            queue_aside(&mut state, group, pass, &names[1..]).await;
        } else {
            set_aside(&mut state, group, pass, &[&nowhere]).await;
            queue_aside(&mut state, group, pass, &names).await;
        }
    }
    assert_eq!(
        claim(&mut state, 4, GROUPED).await,
        ["a:1", "b:1", "a:2", "b:2"]
    );
    assert_eq!(
        aside(&console).await,
        "a 2: a:3 a:4 a:5; b 11: b:3 b:4 b:5; 6"
    );
    assert_eq!(blocked(&mut state).await, []);
}
