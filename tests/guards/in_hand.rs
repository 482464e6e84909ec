//! Objects in hand: how they are counted, and how a limit bounds them.

use seriatim::control::shares::Share;
use seriatim::wire::operator::{By, InHand, count_in_hand, in_hand};
use seriatim::wire::{self, Advance, Bounds, ClaimFirst, Report};

use crate::cancel::dump;
use crate::limits::{LATER, block, limit, park, set};
use crate::support::Redis;
use crate::{BOUNDS, ask, attached, done, objects};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// A call claims as many objects as the limit allows, and no more.
#[tokio::test]
async fn a_call_claims_what_a_limit_allows() {
    for (limit, claimed) in [(1, &["a:1"][..]), (2, &["a:1", "a:2"])] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        set(&state, "a:*", Share::new().in_flight(limit)).await;
        for object in ["a:1", "a:2", "a:3"] {
            state.emit(object, "1").await;
        }
        assert_eq!(
            objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
            claimed
        );
        let members: Vec<String> = redis
            .console()
            .await
            .run(&["ZRANGE", &state.keys.objects_in_hand(), "0", "-1"])
            .await;
        assert_eq!(
            members,
            claimed
                .iter()
                .map(|object| format!("{object}:"))
                .collect::<Vec<_>>()
        );
    }
}

/// Two groups may each have a name in hand by their own limits, but only one by the limit of both.
#[tokio::test]
async fn groups_with_a_common_limit_share_it_within_a_call() {
    for all in ["*", "p:*"] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        for (selector, share) in [
            ("p:a:*", Share::new().weight(1)),
            ("p:b:*", Share::new().weight(1)),
            (all, Share::new().in_flight(1)),
        ] {
            set(&state, selector, share).await;
        }
        for object in ["p:a:1", "p:b:1"] {
            state.emit(object, "1").await;
        }
        assert_eq!(
            objects(&ask(&mut state, BOUNDS).await.expect("an answer")),
            ["p:a:1"],
            "{all}"
        );
    }
}

/// Objects leave their slots in a call. The same call claims the objects that waited for their limits.
#[tokio::test]
async fn objects_that_leave_their_slots_open_the_way_in_the_same_call() {
    for groups in [&["a"][..], &["a", "b"]] {
        let redis = Redis::start();
        let (mut state, console) = (attached(&redis).await, redis.console().await);
        let keys = state.keys.clone();
        limit(&state, groups).await;
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
        for (slot, group) in groups.iter().enumerate() {
            let (object, id) = (format!("{group}:9"), 5 + slot as u64);
            state.own(&format!("w.{slot}"), &object, id, &["1"]).await;
            state
                .run(
                    "ZADD",
                    &[&keys.objects_in_hand(), "0", &format!("{object}:")],
                )
                .await;
            park(&mut state, group, 2.0).await;
            block(&mut state, group, 2 * LATER - 1).await;
            call.report(
                slot,
                &Report {
                    object: object.into(),
                    ..done("", id)
                },
            );
        }
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(
            objects(&answer),
            groups
                .iter()
                .map(|group| format!("{group}:1"))
                .collect::<Vec<_>>()
        );
        let in_hand: Vec<String> = console
            .run(&["ZRANGE", &keys.objects_in_hand(), "0", "-1"])
            .await;
        assert_eq!(
            in_hand,
            groups
                .iter()
                .map(|group| format!("{group}:1:"))
                .collect::<Vec<_>>()
        );
    }
}

/// One command writes at most 1,000 items. The groups behind each prefix of each object that a call lets
/// go are due.
#[tokio::test]
async fn many_objects_open_the_way_for_all_their_prefixes() {
    let redis = Redis::start();
    let (mut state, console) = (attached(&redis).await, redis.console().await);
    let keys = state.keys.clone();
    limit(&state, &["x"]).await;
    let objects: Vec<String> = (0..40).map(|n| format!("a{n}:b:c:d:e:f:g:h")).collect();
    let mut call = Advance::new(
        &keys,
        "w",
        "token-1",
        Bounds {
            claims: 0,
            ..BOUNDS
        },
        ClaimFirst::Markers,
    );
    for (slot, object) in objects.iter().enumerate() {
        let id = 5 + slot as u64;
        state.own(&format!("w.{slot}"), object, id, &["1"]).await;
        for at in object
            .match_indices(':')
            .map(|(at, _)| at)
            .chain([object.len()])
        {
            block(&mut state, &object[..at], 2 * LATER - 1).await;
            block(&mut state, &format!("{}\n", &object[..at]), 2 * LATER - 1).await;
        }
        call.report(
            slot,
            &Report {
                object: object.clone().into(),
                ..done("", id)
            },
        );
    }
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let due = ["ZCOUNT", &keys.event_groups_blocked(), "0", "0"];
    assert_eq!(console.run::<usize>(&due).await, 40 * 8 * 2);
}

/// Members that no slot owns are removed page by page. Only a full page has a page after it.
#[tokio::test]
async fn pages_of_objects_in_hand_follow_each_other() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let since = count_in_hand(&mut state.conn, &keys, BY)
        .await
        .expect("counting");
    state.own("w.0", "a:3", 5, &["1"]).await;
    for object in ["a:1", "a:2", "a:3", "a:4", "a:5"] {
        state
            .run(
                "ZADD",
                &[&keys.objects_in_hand(), "0", &format!("{object}:")],
            )
            .await;
    }
    let mut after = Vec::new();
    for (last, left) in [
        ("a:2:", &["a:3:", "a:4:", "a:5:"][..]),
        ("a:4:", &["a:3:", "a:5:"]),
        ("", &["a:3:"]),
    ] {
        let look = InHand::Members {
            after: &after,
            count: 2,
        };
        after = in_hand(&mut state.conn, &keys, since, look)
            .await
            .expect("a page")
            .expect("still counting");
        assert_eq!(String::from_utf8_lossy(&after), last);
        assert_eq!(
            console
                .run::<Vec<String>>(&["ZRANGE", &keys.objects_in_hand(), "0", "-1"])
                .await,
            left
        );
    }
}

/// An object that no slot owns leaves the objects in hand. The groups that wait for it are due, and
/// those of an object in hand wait on.
#[tokio::test]
async fn an_object_that_leaves_the_count_opens_the_way() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let since = count_in_hand(&mut state.conn, &keys, BY)
        .await
        .expect("counting");
    state.own("w.0", "b:1", 5, &["1"]).await;
    state
        .run("ZADD", &[&keys.objects_in_hand(), "0", "a:1:", "0", "b:1:"])
        .await;
    for member in ["a", "a\n", "b", "b\n"] {
        block(&mut state, member, 2 * LATER - 1).await;
    }
    let look = InHand::Members {
        after: b"",
        count: 9,
    };
    in_hand(&mut state.conn, &keys, since, look)
        .await
        .expect("a page")
        .expect("still counting");
    let due: Vec<String> = console
        .run(&["ZRANGE", &keys.event_groups_blocked(), "0", "0", "BYSCORE"])
        .await;
    assert_eq!(due, ["a", "a\n"]);
    assert_eq!(
        console
            .run::<u64>(&["ZCARD", &keys.event_groups_blocked()])
            .await,
        4
    );
}

/// A key of the shares has a wrong type. The call fails before the first write, so the slot still has
/// its batch.
#[tokio::test]
async fn a_share_key_of_a_wrong_type_ends_a_call_before_its_first_write() {
    // The test dumps its server, so this server is shared with no other test.
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    set(&state, "a:*", Share::new().in_flight(1)).await;
    state.own("w.0", "a:1", 5, &["1"]).await;
    state.emit("a:2", "1").await;
    for key in [
        keys.event_shares(),
        keys.event_shares_used(),
        keys.objects_in_hand(),
        keys.event_groups_blocked(),
    ] {
        let aside = format!("{key}.aside");
        let is_there: bool = console.run(&["EXISTS", &key]).await;
        if is_there {
            state.run("RENAME", &[&key, &aside]).await;
        }
        state.run("SET", &[&key, "wrong"]).await;
        let before = dump(&console).await;
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
        call.report(0, &done("a:1", 5));
        let refused = wire::advance(&mut state.conn, &call)
            .await
            .expect_err("a wrong type");
        assert!(
            refused.to_string().contains("WRONGTYPE"),
            "{key}: {refused}"
        );
        assert_eq!(dump(&console).await, before, "{key}");
        state.run("DEL", &[&key]).await;
        if is_there {
            state.run("RENAME", &[&aside, &key]).await;
        }
    }
}
