//! The turns of groups within a call, and the names that lead to no claim.

use seriatim::wire::Bounds;

use super::{
    GROUPED, aside, ask, ask_for, claim, counts, emit, hold, more, numbered, queue_aside, rig,
    run_all, set_aside, words,
};
use crate::support::Redis;
use crate::{objects, pop};

/// A call takes names from 64 groups, and reads further groups only if none of these has a name.
#[tokio::test]
async fn a_call_reads_so_many_groups() {
    for (slots, left) in [(64, 70), (65, 6)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        for n in 10..80 {
            queue_aside(&mut state, &format!("g{n}"), 5, &[format!("g{n}:1")]).await;
        }
        assert_eq!(claim(&mut state, slots, GROUPED).await.len(), slots);
        let groups: usize = console.run(&["ZCARD", &state.keys.event_groups()]).await;
        assert_eq!(
            (groups, counts(&console).await.0),
            (left, 70 - slots as u64)
        );
    }
}

/// The number of names that a group gives per turn: a part of the claims of the call for each group,
/// or up to 4 if the call claims many objects.
#[tokio::test]
async fn a_group_gives_so_many_names_per_turn() {
    let cases = [
        (100, 7, 1),
        (100, 15, 1),
        (100, 16, 2),
        (100, 31, 3),
        (100, 32, 4),
        (100, 64, 4),
        (3, 7, 3),
        (2, 40, 20),
    ];
    for (groups, slots, per_turn) in cases {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        for n in 100..100 + groups {
            queue_aside(&mut state, &n.to_string(), 5, &numbered(&n.to_string(), 41)).await;
        }
        let claimed = claim(&mut state, slots, GROUPED).await;
        let of_first = claimed
            .iter()
            .take_while(|object| object.starts_with("100:"))
            .count();
        assert_eq!(
            (claimed.len(), of_first),
            (slots, per_turn),
            "{groups} groups, {slots} slots"
        );
        let pass: u64 = console
            .run(&["ZSCORE", &state.keys.event_groups(), "100"])
            .await;
        assert_eq!(pass, 5 + per_turn as u64);
    }
}

/// The group with the lowest pass is next. A group that has had a turn goes behind all groups with
/// the same pass. Within a group the oldest name is first.
#[tokio::test]
async fn the_group_with_the_lowest_pass_is_next() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 2, &numbered("a", 4)).await;
    queue_aside(&mut state, "b", 1, &numbered("b", 4)).await;
    queue_aside(&mut state, "c", 3, &numbered("c", 2)).await;
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["b:1"]);
    assert_eq!(
        aside(&console).await,
        "a 2: a:1 a:2 a:3 a:4; b 2: b:2 b:3 b:4; c 3: c:1 c:2; 9"
    );
    // Each group gives up to 3 names per turn.
    let answer = ask_for(&mut state, 1..8, GROUPED).await.expect("an answer");
    assert_eq!(
        objects(&answer),
        ["a:1", "a:2", "a:3", "b:2", "b:3", "b:4", "c:1"]
    );
    assert_eq!(aside(&console).await, "c 4: c:2; a 5: a:4; b 5: ; 2");
    // A group without names leaves at its turn, even if it is the turn of the last call.
    let answer = ask_for(&mut state, 8..12, GROUPED)
        .await
        .expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["c:2", "a:4"], (false, false))
    );
    assert_eq!(aside(&console).await, "none");
}

/// A group that has had a turn goes before all groups with a higher pass.
#[tokio::test]
async fn a_group_with_a_higher_pass_stays_behind() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    for (group, pass) in [("a", 0), ("b", 9)] {
        queue_aside(&mut state, group, pass, &numbered(group, 2)).await;
    }
    assert_eq!(claim(&mut state, 2, GROUPED).await, ["a:1", "a:2"]);
    assert_eq!(aside(&console).await, "a 2: ; b 9: b:1 b:2; 2");
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    for (group, pass) in [("a", 0), ("b", 1), ("c", 5), ("d", 6)] {
        queue_aside(&mut state, group, pass, &numbered(group, 2)).await;
    }
    assert_eq!(claim(&mut state, 3, GROUPED).await, ["a:1", "b:1", "a:2"]);
    assert_eq!(
        aside(&console).await,
        "a 2: ; b 2: b:2; c 5: c:1 c:2; d 6: d:1 d:2; 5"
    );
}

/// A group without names leaves at its turn. The other groups keep their turns.
#[tokio::test]
async fn a_group_without_names_leaves() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set_aside(&mut state, "a", 0, &[""; 0]).await;
    queue_aside(&mut state, "b", 0, &numbered("b", 4)).await;
    assert_eq!(claim(&mut state, 2, GROUPED).await, ["b:1", "b:2"]);
    assert_eq!(aside(&console).await, "b 2: b:3 b:4; 2");
}

/// Another call is of use after a call that has only set aside a name or passed over one, but not
/// after a call that has done nothing.
#[tokio::test]
async fn a_call_that_does_nothing_asks_for_no_other_one() {
    for held in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        assert_eq!(
            more(&ask(&mut state, 1, GROUPED).await.expect("an answer")),
            (false, false)
        );
        queue_aside(&mut state, "a", 0, &["a:1"]).await;
        if held {
            hold(&mut state, 1, ["b:1"]).await
        } else {
            emit(&mut state, ["b:1"]).await
        }
        assert_eq!(
            more(&ask(&mut state, 0, GROUPED).await.expect("an answer")),
            (true, false)
        );
        assert_eq!(
            more(&ask(&mut state, 0, GROUPED).await.expect("an answer")),
            (false, false)
        );
        assert_eq!(aside(&console).await, "a 0: a:1; b 1: b:1; 2");
    }
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set_aside(&mut state, "a", 0, &["a:no", "a:neither", "a:nor"]).await;
    let answer = ask(
        &mut state,
        1,
        Bounds {
            markers: 1,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert_eq!(aside(&console).await, "a 0: a:neither a:nor; 2");
}

/// A slot takes an object from a pop, and no further slot is free. Another call is of use while one
/// name is set aside.
#[tokio::test]
async fn a_name_that_waits_asks_for_another_call() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, ["a:9"]).await;
    pop(&mut state, "w.0").await;
    queue_aside(&mut state, "a", 0, &["a:1"]).await;
    let answer = ask(&mut state, 1, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:9"], (true, false))
    );
    assert_eq!(aside(&console).await, "a 0: a:1; 1");
}

/// A call whose reply is full gives the names that it has not used back to their lists, in order.
/// Only claimed objects count for the pass.
#[tokio::test]
async fn unused_names_go_back_in_order() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set_aside(&mut state, "a", 0, &["a:no"]).await;
    queue_aside(&mut state, "a", 0, &numbered("a", 5)).await;
    queue_aside(&mut state, "b", 0, &numbered("b", 5)).await;
    let answer = ask(
        &mut state,
        8,
        Bounds {
            reply_bytes: 2,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:1", "a:2"], (true, false))
    );
    assert_eq!(
        aside(&console).await,
        "b 0: b:1 b:2 b:3 b:4 b:5; a 2: a:3 a:4 a:5; 8"
    );
}

/// A group whose last name goes back keeps its turn, although its list was empty in the meantime.
#[tokio::test]
async fn a_group_whose_last_name_goes_back_keeps_its_turn() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 0, &["a:1"]).await;
    queue_aside(&mut state, "b", 1, &["b:1"]).await;
    queue_aside(&mut state, "c", 9, &numbered("c", 3)).await;
    assert_eq!(
        claim(
            &mut state,
            4,
            Bounds {
                reply_bytes: 1,
                ..GROUPED
            }
        )
        .await,
        ["a:1"]
    );
    assert_eq!(aside(&console).await, "b 1: b:1; c 9: c:1 c:2 c:3; 4");
}

/// After names that lead nowhere, the number of names per turn is a part of those that are left.
#[tokio::test]
async fn names_per_turn_are_a_part_of_those_that_are_left() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set_aside(&mut state, "a", 0, &["a:no", "a:neither"]).await;
    set_aside(&mut state, "b", 0, &["b:no", "b:neither"]).await;
    queue_aside(&mut state, "a", 0, &numbered("a", 3)).await;
    queue_aside(&mut state, "b", 0, &["b:1"]).await;
    let answer = ask(&mut state, 4, GROUPED).await.expect("an answer");
    assert_eq!(
        (objects(&answer), more(&answer)),
        (vec!["a:1", "a:2", "b:1", "a:3"], (false, false))
    );
    assert_eq!(aside(&console).await, "none");
}

/// A name that is set aside twice counts once. An object that a slot of this call has taken from a
/// pop does not count.
#[tokio::test]
async fn an_object_counts_once() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, ["a:9"]).await;
    pop(&mut state, "w.0").await;
    queue_aside(&mut state, "a", 0, &["a:1", "a:2"]).await;
    set_aside(&mut state, "a", 0, &["a:1", "a:9", "a:2"]).await;
    queue_aside(&mut state, "a", 0, &["a:3", "a:4"]).await;
    assert_eq!(
        claim(&mut state, 4, GROUPED).await,
        ["a:9", "a:1", "a:2", "a:3"]
    );
    assert_eq!(aside(&console).await, "a 3: a:4; 1");
}

/// A held object whose name was set aside is passed over if it is not due any more, or not held. It
/// is claimed with its batch, or with its queue if it has no batch.
#[tokio::test]
async fn a_held_object_is_claimed_only_while_it_is_due() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    hold(&mut state, 9_999_999_999_999, ["a:later"]).await;
    state.hold("a:never", "inf", &["1"], "1 0 1 0 dead").await;
    state
        .run("SET", &[&keys.event_worker("a:paused"), "held"])
        .await;
    state
        .run("ZADD", &[&keys.objects_paused(), "0", "a:paused"])
        .await;
    hold(&mut state, 1, ["a:batch"]).await;
    state
        .run("SET", &[&keys.event_worker("a:queue"), "held"])
        .await;
    state
        .run("ZADD", &[&keys.objects_held(), "-5", "a:queue"])
        .await;
    state.run("LPUSH", &[&keys.events("a:queue"), "1"]).await;
    set_aside(
        &mut state,
        "a",
        0,
        &[
            "a:later", "a:never", "a:paused", "a:batch", "a:queue", "a:queue",
        ],
    )
    .await;
    assert_eq!(claim(&mut state, 3, GROUPED).await, ["a:batch", "a:queue"]);
    assert_eq!(aside(&console).await, "none");
    let held: Vec<String> = console
        .run(&["ZRANGE", &keys.objects_held(), "0", "-1"])
        .await;
    assert_eq!(held, ["a:later", "a:never"]);
    assert_eq!(
        console.text(&keys.event_worker("a:queue")).await.as_deref(),
        Some("w.1")
    );
}

/// A chunk that is larger than the claims of the call is looked at if it has a held object, even if
/// no object of the chunk has queued events.
#[tokio::test]
async fn a_held_object_behind_names_that_lead_nowhere_is_claimed() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    hold(&mut state, 1, ["a:held"]).await;
    set_aside(&mut state, "a", 0, &["a:1", "a:2", "a:held", "a:4"]).await;
    assert_eq!(
        claim(
            &mut state,
            1,
            Bounds {
                group_depth: 0,
                ..GROUPED
            }
        )
        .await,
        ["a:held"]
    );
    assert_eq!(aside(&console).await, "a 1: a:4; 1");
}

/// A call passes over 256 held objects that cannot be claimed. Then the other names go back.
#[tokio::test]
async fn a_call_passes_over_so_many_held_objects() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    hold(&mut state, 9_999_999_000_000, numbered("a", 300)).await;
    set_aside(&mut state, "a", 0, &numbered("a", 300)).await;
    queue_aside(&mut state, "a", 0, &["a:0"]).await;
    let answer = ask(&mut state, 1, GROUPED).await.expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert_eq!(console.number(&state.keys.event_groups_waiting()).await, 45);
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:0"]);
}

/// Objects that belong to other workers do not count as passed over.
#[tokio::test]
async fn a_call_passes_over_any_number_of_owned_objects() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    let owned = numbered("a", 300);
    run_all(
        &mut state,
        owned
            .iter()
            .map(|object| words(&["SET", &keys.event_worker(object), "x.0"])),
    )
    .await;
    set_aside(&mut state, "a", 0, &owned).await;
    queue_aside(&mut state, "a", 0, &["a:0"]).await;
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:0"]);
    assert_eq!(aside(&console).await, "none");
}

/// A call looks at no more names than it may look at markers.
#[tokio::test]
async fn a_call_looks_at_so_many_names() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    for group in ["a", "b", "c"] {
        set_aside(&mut state, group, 0, &numbered(group, 3)).await;
    }
    let answer = ask(
        &mut state,
        9,
        Bounds {
            markers: 7,
            ..GROUPED
        },
    )
    .await
    .expect("an answer");
    assert_eq!((objects(&answer), more(&answer)), (vec![], (true, false)));
    assert_eq!(aside(&console).await, "a 0: ; b 0: ; c 0: c:2 c:3; 2");
}

/// Rules for many objects fill the reply. The held object at which this happens stays due, and its
/// name is set aside as before.
#[tokio::test]
async fn a_held_object_for_which_the_reply_has_no_room_stays() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let names: Vec<String> = (0..130).map(|n| format!("{n}:1:2:3:4:5:6:7:8")).collect();
    hold(&mut state, 1, &names).await;
    set_aside(&mut state, "a", 0, &names).await;
    state.rule("pause other:*", "1 0 0 3 0 ada", "never").await;
    let bounds = Bounds {
        group_depth: 0,
        ..GROUPED
    };
    let claimed = claim(&mut state, 130, bounds).await;
    assert_eq!(claimed[..], names[..113]);
    let left = console.list(&state.keys.group_waiting("a")).await;
    assert_eq!(left[..], names[113..]);
    assert_eq!(console.due(&names[113]).await, Some(114.0));
    assert_eq!(aside(&console).await.split(':').next(), Some("a 113"));
}

/// The call that takes the last name deletes the keys of the groups, and writes all keys of the
/// batch.
#[tokio::test]
async fn the_call_that_takes_the_last_name_writes_the_batch() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.given(7).await;
    queue_aside(&mut state, "a", 0, &["a:1"]).await;
    assert_eq!(claim(&mut state, 2, GROUPED).await, ["a:1"]);
    assert_eq!(aside(&console).await, "none");
    let written = [
        keys.event_worker("a:1"),
        keys.worker_event_id("w.0"),
        keys.next_event_id(),
    ];
    let written = [
        console.text(&written[0]).await,
        console.text(&written[1]).await,
        console.text(&written[2]).await,
    ];
    assert_eq!(written.map(Option::unwrap_or_default), ["w.0", "8", "8"]);
}
