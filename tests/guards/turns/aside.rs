//! The names that a call sets aside, and their lists.

use seriatim::control::shares::{Priority, Share};
use seriatim::keys::Keys;
use seriatim::wire::{Advanced, Bounds};

use super::{
    GROUPED, NO_SLOT, aside, ask, ask_for, claim, counts, emit, hold, more, numbered, queue_aside,
    rig, run_all, words,
};
use crate::limits::set;
use crate::objects;
use crate::state::State;
use crate::support::Redis;

/// A call sets aside 2,048 markers. If more are left, another call is of use even without a slot.
#[tokio::test]
async fn a_call_sets_aside_so_many_markers() {
    for (markers, left) in [(2048, 0), (2049, 1), (2600, 552)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        emit(&mut state, numbered("a", markers)).await;
        let answer = ask(&mut state, 1, GROUPED).await.expect("an answer");
        assert_eq!(objects(&answer), ["a:1"]);
        assert_eq!(counts(&console).await, (2047, left, 0));
        let names = console.list(&state.keys.group_waiting("a")).await;
        assert_eq!(names[..], numbered("a", 2048)[1..]);
        assert_eq!(more(&answer), (true, left > 0));
    }
}

/// A call stops setting markers aside after 64 KiB of names. Each group counts as 100 bytes more, and each
/// prefix whose share is read as 32 bytes.
///
/// Story: names that had the same group as the name before them did not count. So a call copied any
/// number of bytes.
#[tokio::test]
async fn a_call_sets_aside_so_many_bytes_of_names() {
    for (has_shares, groups, most) in [(false, 1, 12), (false, 7, 12), (true, 4, 16)] {
        // Each group counts as 100 bytes, and a prefix whose share is read as 32 bytes. So this number of
        // names of this length has exactly the most bytes.
        let bytes = (65_536 - if has_shares { 132 } else { 100 } * groups) / most;
        for (short, names) in [(0, most), (1, most + 1)] {
            let redis = Redis::start();
            let (mut state, console) = rig(&redis).await;
            if has_shares {
                set(&state, "other:*", Share::new().weight(1)).await;
            }
            let name = |n: usize| {
                format!(
                    "{}:{n:0>1$}",
                    n % groups,
                    bytes - 2 - if n == 9 { short } else { 0 }
                )
            };
            emit(&mut state, (0..30).map(name)).await;
            claim(&mut state, 1, GROUPED).await;
            assert_eq!(
                counts(&console).await,
                (names as u64 - 1, 30 - names, 0),
                "{groups} groups, {short} bytes less"
            );
        }
    }
}

/// Short names are followed by long ones. A call stops after the name with which the bytes are used up.
#[tokio::test]
async fn a_call_stops_at_the_name_that_uses_up_the_bytes() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, numbered("a", 8)).await;
    emit(&mut state, (0..20).map(|n| format!("a:{n:020000}"))).await;
    claim(&mut state, 1, GROUPED).await;
    assert_eq!(counts(&console).await, (11, 16, 0));
    // There is room for less than one name of the same length. But the further ones are short.
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, (0..8).map(|n| format!("a:{n:08000}"))).await;
    emit(&mut state, numbered("a", 5)).await;
    claim(&mut state, 1, GROUPED).await;
    assert_eq!(counts(&console).await, (12, 0, 0));
}

/// While more markers are to be set aside, a call claims 16 objects at most.
#[tokio::test]
async fn a_call_that_leaves_markers_claims_so_many_objects() {
    for (markers, claimed) in [(2048, 20), (2049, 16)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        emit(&mut state, numbered("a", markers)).await;
        assert_eq!(claim(&mut state, 20, GROUPED).await.len(), claimed);
        assert_eq!(
            counts(&console).await,
            (2048 - claimed as u64, markers - 2048, 0)
        );
    }
}

/// A call sets aside 256 due held objects, those that are due longest. Their due times become
/// negative. If there were as many, more may wait.
#[tokio::test]
async fn a_call_sets_aside_so_many_held_objects() {
    for (held, is_unsorted) in [(255, false), (256, true), (300, true)] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        hold(&mut state, 10, (0..held).map(|n| format!("a:{n}"))).await;
        let answer = ask(&mut state, 1, GROUPED).await.expect("an answer");
        assert_eq!(objects(&answer), ["a:0"]);
        let aside = held.min(256) - 1;
        assert_eq!(counts(&console).await, (aside as u64, 0, aside));
        assert_eq!(more(&answer), (true, is_unsorted), "{held} held objects");
        assert_eq!(console.due("a:7").await, Some(-17.0));
        assert_eq!(console.due("a:260").await, (held > 260).then_some(270.0));
    }
}

/// Held objects that are set aside stay due, also if they were due at time 0. They are not set aside
/// a second time. Held objects that are not due are not set aside.
#[tokio::test]
async fn a_held_object_is_set_aside_once() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    hold(&mut state, 0, ["a:1", "a:2", "b:1"]).await;
    hold(&mut state, 9_999_999_999_999, ["later"]).await;
    state.hold("never", "inf", &["1"], "1 0 1 0 dead").await;
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:1"]);
    assert_eq!(aside(&console).await, "b 0: b:1; a 1: a:2; 2");
    let due = [
        console.due("a:2").await,
        console.due("b:1").await,
        console.due("later").await,
    ];
    assert_eq!(due, [Some(-1.0), Some(-2.0), Some(9_999_999_999_999.0)]);
    let answer = ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert!(
        matches!(answer, Advanced::Ok { next_due: Some(due), more: false, .. } if due.is_zero()),
        "{answer:?}"
    );
    assert_eq!(aside(&console).await, "b 0: b:1; a 1: a:2; 2");
    let answer = ask_for(&mut state, 1..3, GROUPED).await.expect("an answer");
    assert_eq!(objects(&answer), ["b:1", "a:2"]);
    assert_eq!(counts(&console).await, (0, 0, 0));
}

/// The groups take turns if more markers wait than the call can claim, or more due held objects.
#[tokio::test]
async fn groups_take_turns_if_more_waits_than_a_call_can_claim() {
    for (markers, held, is_grouped) in [
        (2, 0, false),
        (3, 0, true),
        (0, 2, false),
        (0, 3, true),
        (2, 2, false),
    ] {
        for claims_of_call in [2, 1024] {
            let redis = Redis::start();
            let (mut state, console) = rig(&redis).await;
            emit(&mut state, numbered("a", markers)).await;
            hold(&mut state, 1, numbered("b", held)).await;
            let slots = if claims_of_call == 2 { 3 } else { 2 };
            claim(
                &mut state,
                slots,
                Bounds {
                    claims: claims_of_call,
                    ..GROUPED
                },
            )
            .await;
            let groups: usize = console.run(&["ZCARD", &state.keys.event_groups()]).await;
            assert_eq!(
                groups > 0,
                is_grouped,
                "{markers} markers, {held} held objects"
            );
        }
    }
}

/// Without groups nothing is set aside, however much waits.
#[tokio::test]
async fn without_groups_nothing_is_set_aside() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, numbered("a", 5)).await;
    hold(&mut state, 1, numbered("b", 5)).await;
    let bounds = Bounds {
        group_depth: 0,
        ..GROUPED
    };
    assert_eq!(claim(&mut state, 2, bounds).await, ["a:1", "b:1"]);
    assert_eq!(
        (aside(&console).await, counts(&console).await),
        ("none".to_owned(), (0, 4, 0))
    );
}

/// A call without a free slot sets aside markers or due held objects if names are set aside already,
/// and if objects have groups.
#[tokio::test]
async fn a_call_without_a_slot_sets_aside_what_comes_later() {
    for held in [false, true] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        let new = ["b:1", "b:2"];
        if held {
            hold(&mut state, 1, new).await
        } else {
            emit(&mut state, new).await
        }
        let before = counts(&console).await;
        ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        assert_eq!(counts(&console).await, before, "no group waits");
        queue_aside(&mut state, "a", 3, &["a:1"]).await;
        ask(
            &mut state,
            0,
            Bounds {
                group_depth: 0,
                ..NO_SLOT
            },
        )
        .await
        .expect("an answer");
        assert_eq!(aside(&console).await, "a 3: a:1; 1", "without groups");
        let answer = ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        assert_eq!(
            (more(&answer), objects(&answer)),
            ((false, false), Vec::new())
        );
        assert_eq!(aside(&console).await, "a 3: a:1; b 4: b:1 b:2; 3");
        assert_eq!(counts(&console).await, (3, 0, if held { 2 } else { 0 }));
    }
}

/// A call without a free slot tells that more markers are to be set aside.
#[tokio::test]
async fn a_call_without_a_slot_asks_for_another_one() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 3, &["a:1"]).await;
    emit(&mut state, numbered("b", 2049)).await;
    let answer = ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert!(more(&answer).1, "{answer:?}");
    assert_eq!(counts(&console).await, (2049, 1, 0));
    let answer = ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert!(!more(&answer).1, "{answer:?}");
    assert_eq!(counts(&console).await, (2050, 0, 0));
}

/// New groups begin one above the lowest pass. Known groups keep theirs, and their names go behind the
/// names that are there. Held objects go before markers.
#[tokio::test]
async fn new_groups_begin_above_the_lowest_pass() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    queue_aside(&mut state, "a", 7, &["a:1"]).await;
    queue_aside(&mut state, "b", 9, &["b:1"]).await;
    emit(&mut state, ["b:2", "c:1", "d", "a:2", "c:2"]).await;
    hold(&mut state, 1, ["c:3"]).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert_eq!(
        aside(&console).await,
        "a 7: a:1 a:2; c 8: c:3 c:1 c:2; d 8: d; b 9: b:1 b:2; 8"
    );
    assert_eq!(counts(&console).await, (8, 0, 1));
}

/// The group is the first parts of a name, up to the depth; a name with fewer colons is its own
/// group. Names whose group is the beginning of another one are in their own group.
#[tokio::test]
async fn the_depth_says_which_parts_are_the_group() {
    let names = [
        "a", "a:", "a:b", "a:b:c", "a:b:d", "ab:c:d", "ab", ":", "::x", "a:b",
    ];
    for (depth, expected) in [
        (
            1,
            "z 7: z;  8: : ::x; a 8: a a: a:b a:b:c a:b:d a:b; ab 8: ab:c:d ab; 11",
        ),
        (
            2,
            "z 7: z; : 8: : ::x; a 8: a; a: 8: a:; a:b 8: a:b a:b:c a:b:d a:b; ab 8: ab; ab:c 8: ab:c:d; 11",
        ),
        (
            3,
            "z 7: z; : 8: :; ::x 8: ::x; a 8: a; a: 8: a:; a:b 8: a:b a:b; a:b:c 8: a:b:c; a:b:d 8: a:b:d; ab 8: ab; ab:c:d 8: ab:c:d; 11",
        ),
    ] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        queue_aside(&mut state, "z", 7, &["z"]).await;
        emit(&mut state, names).await;
        ask(
            &mut state,
            0,
            Bounds {
                group_depth: depth,
                ..NO_SLOT
            },
        )
        .await
        .expect("an answer");
        assert_eq!(aside(&console).await, expected, "depth {depth}");
    }
}

/// At most 1,024 groups have a list. The names of further groups, also of several, share one list,
/// which begins like a new group.
#[tokio::test]
async fn so_many_groups_have_a_list() {
    for (there, rest, groups) in [
        (1021, 0, 1023),
        (1022, 0, 1025),
        (1023, 1, 1025),
        (1024, 2, 1025),
    ] {
        let redis = Redis::start();
        let (mut state, console) = rig(&redis).await;
        queue_aside(&mut state, "g0", 6, &["g0:1"]).await;
        let key = state.keys.event_groups();
        run_all(
            &mut state,
            (1..there).map(|n| words(&["ZADD", &key, "8", &format!("g{n}")])),
        )
        .await;
        emit(&mut state, ["g0:2", "x:1", "y:1"]).await;
        ask(&mut state, 0, NO_SLOT).await.expect("an answer");
        let shared = console.list(&state.keys.group_waiting("\0rest")).await;
        assert_eq!(shared.len(), rest, "{there} groups: {shared:?}");
        assert_eq!(
            console.run::<usize>(&["ZCARD", &key]).await,
            groups,
            "{there} groups"
        );
        let pass: Option<f64> = console.run(&["ZSCORE", &key, "\0rest"]).await;
        assert_eq!(pass, (groups == 1025).then_some(7.0));
        assert_eq!(
            console.list(&state.keys.group_waiting("g0")).await,
            ["g0:1", "g0:2"]
        );
    }
}

/// If the list of a group has a wrong type, its names go to the shared list, and a call takes no
/// names from it. If the shared list has a wrong type, the call fails, and the markers stay.
#[tokio::test]
async fn a_list_of_a_wrong_type_is_passed_over() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    let keys = state.keys.clone();
    state.run("SET", &[&keys.group_waiting("a"), "x"]).await;
    queue_aside(&mut state, "b", 4, &["b:1", "b:2"]).await;
    emit(&mut state, ["a:1", "a:2"]).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert_eq!(
        console.list(&keys.group_waiting("\0rest")).await,
        ["a:1", "a:2"]
    );
    let passes: Vec<(String, u64)> = console
        .run(&["ZRANGE", &keys.event_groups(), "0", "-1", "WITHSCORES"])
        .await;
    assert_eq!(
        passes,
        [
            ("b".to_owned(), 4),
            ("\0rest".to_owned(), 5),
            ("a".to_owned(), 5)
        ]
    );
    assert_eq!(claim(&mut state, 3, GROUPED).await, ["b:1", "a:1", "b:2"]);
    let passes: Vec<(String, u64)> = console
        .run(&["ZRANGE", &keys.event_groups(), "0", "-1", "WITHSCORES"])
        .await;
    assert_eq!(passes, [("\0rest".to_owned(), 6), ("b".to_owned(), 6)]);
    state.run("DEL", &[&keys.group_waiting("\0rest")]).await;
    state
        .run("HSET", &[&keys.group_waiting("\0rest"), "x", "y"])
        .await;
    emit(&mut state, ["a:3"]).await;
    let failed = ask(&mut state, 0, NO_SLOT).await.expect_err("a wrong type");
    assert!(failed.to_string().contains("WRONGTYPE"), "{failed}");
    assert_eq!(counts(&console).await, (1, 1, 0));
}

/// Names that may belong to another namespace are dropped and reported. Empty names are dropped.
/// Marks are dropped, and count as met.
#[tokio::test]
async fn names_that_are_no_objects_are_not_set_aside() {
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (redis.connect().await, Keys::new());
    crate::attach(&mut conn, &keys, "token-1", "").await;
    let mut state = State::new(conn, keys.clone());
    let mut console = redis.console().await;
    console.keys = keys.clone();
    queue_aside(&mut state, "a", 0, &["a:1"]).await;
    state
        .run("ZADD", &[&keys.event_marks(), "5", "5", "7", "7", "9", "9"])
        .await;
    emit(&mut state, ["", "{x}", "\0t5", "\0t7", "\0b", "{"]).await;
    hold(&mut state, 1, ["{y}:1", "b:1"]).await;
    let answer = ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert_eq!(
        aside(&console).await,
        "a 0: a:1; \\u{0}b 1: \0t7 \0b; b 1: \0t0 b:1; 3"
    );
    let Advanced::Ok { quarantined, .. } = answer else {
        panic!("{answer:?}")
    };
    let foreign: Vec<_> = quarantined.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(foreign, ["{y}:1", "{x}", "{"]);
    assert_eq!(console.due("{y}:1").await, None);
    let marks: Vec<(String, u64)> = console
        .run(&["ZRANGE", &keys.event_marks(), "0", "-1", "WITHSCORES"])
        .await;
    assert_eq!(marks, [("met".to_owned(), 7), ("9".to_owned(), 9)]);
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        Vec::<String>::new()
    );
}

/// With a prefix, a name that begins with a brace is an object like any other.
#[tokio::test]
async fn a_brace_behind_a_prefix_is_no_namespace() {
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (
        redis.connect().await,
        Keys::with_namespace("p").expect("a namespace"),
    );
    crate::attach(&mut conn, &keys, "token-1", "").await;
    let mut state = State::new(conn, keys);
    emit(&mut state, ["{x}:1", "{x}:2", "{x}:3"]).await;
    hold(&mut state, 1, ["{x}:0"]).await;
    assert_eq!(claim(&mut state, 2, GROUPED).await, ["{x}:0", "{x}:1"]);
}

/// A group with a share of its own has a list, even if there are 1,024 groups already. The shared
/// list begins with the pass of a new group of normal priority.
#[tokio::test]
async fn a_group_with_a_share_has_a_list_of_its_own() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    set(&state, "s:*", Share::new().priority(Priority::Low)).await;
    let key = state.keys.event_groups();
    run_all(
        &mut state,
        (0..1024).map(|n| words(&["ZADD", &key, "8", &format!("g{n}")])),
    )
    .await;
    queue_aside(&mut state, "g0", 6, &["g0:1"]).await;
    emit(&mut state, ["s:1", "t:1"]).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    let lists = [
        console.list(&state.keys.group_waiting("s")).await,
        console.list(&state.keys.group_waiting("\0rest")).await,
    ];
    assert_eq!(lists, [["s:1"], ["t:1"]]);
    let passes: Vec<f64> = console.run(&["ZMSCORE", &key, "s", "\0rest"]).await;
    assert_eq!(passes, [1_099_511_627_776.0, 7.0]);
}

/// No name is set aside any more, so the names of held objects were lost. They are set aside again.
#[tokio::test]
async fn lost_names_of_held_objects_are_set_aside_again() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    for (object, score) in [("a:1", "-7"), ("a:2", "-6"), ("b:1", "-5")] {
        state
            .hold(object, score, &["1"], "1 0 1 0 retry: down")
            .await;
    }
    assert_eq!(claim(&mut state, 1, GROUPED).await, ["a:1"]);
    assert_eq!(aside(&console).await, "b 0: b:1; a 1: a:2; 2");
    // With one name that is set aside, none is lost.
    let answer = ask_for(&mut state, 1..2, GROUPED).await.expect("an answer");
    assert_eq!(objects(&answer), ["b:1"]);
    hold(&mut state, 1, ["c:1"]).await;
    ask(&mut state, 0, NO_SLOT).await.expect("an answer");
    assert_eq!(aside(&console).await, "a 1: a:2; b 1: ; c 2: c:1; 2");
}

/// Shares that are only counted make no groups. A call claims from more markers than it has slots.
#[tokio::test]
async fn counted_shares_make_no_groups() {
    let redis = Redis::start();
    let (mut state, console) = rig(&redis).await;
    state
        .run("SET", &[&state.keys.event_shares_summary(), "0 0 1"])
        .await;
    emit(&mut state, numbered("a", 3)).await;
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
        ["a:1"]
    );
    assert_eq!(
        (aside(&console).await, counts(&console).await),
        ("none".to_owned(), (0, 2, 0))
    );
}

/// A call reads short names in few commands.
#[tokio::test]
async fn a_call_reads_many_markers_in_few_commands() {
    let redis = Redis::own(&[]);
    let (mut state, console) = rig(&redis).await;
    emit(&mut state, numbered("a", 2048)).await;
    console.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    claim(&mut state, 1, GROUPED).await;
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let reads = stats.lines().find_map(|line| {
        line.strip_prefix("cmdstat_lrange:calls=")?
            .split(',')
            .next()
    });
    let reads: usize = reads
        .and_then(|calls| calls.parse().ok())
        .expect("a number of calls");
    assert!(reads < 20, "LRANGE was called {reads} times");
}
