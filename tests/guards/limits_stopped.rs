//! Limits of shares with a clock that stands still: the time of the next look at groups that wait,
//! to the ms, and their scores.

use std::time::Duration;

use seriatim::control::shares::Share;
use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use crate::limits::{LATER, block, blocked, limit, pair, park, set};
use crate::state::State;
use crate::stopped::{NOW, NOW_US, scene};
use crate::support::Redis;
use crate::support::clock::Clock;
use crate::{BOUNDS, ask, attach, objects};

/// Returns a state with a share of all objects, and a worker with two slots.
async fn limited() -> (Clock, Redis, State) {
    let (clock, redis, mut state) = scene().await;
    let keys = state.keys.clone();
    attach(&mut state.conn, &keys, "token-1", "").await;
    set(&state, "*", Share::new().in_flight(1000)).await;
    (clock, redis, state)
}

/// Makes a call. Returns its objects, and the time after which the next call is due.
async fn call(state: &mut State) -> (Vec<String>, Option<Duration>) {
    let answer = ask(state, BOUNDS).await.expect("an answer");
    let Advanced::Ok { next_due, .. } = &answer else {
        panic!("{answer:?}")
    };
    (
        objects(&answer).into_iter().map(str::to_owned).collect(),
        *next_due,
    )
}

async fn look(state: &mut State) -> Option<String> {
    redis::cmd("GET")
        .arg(state.keys.event_groups_look())
        .query_async(&mut state.conn)
        .await
        .expect("a look")
}

async fn passes(state: &mut State) -> Vec<(String, f64)> {
    let key = state.keys.event_groups();
    redis::cmd("ZRANGE")
        .arg(key)
        .arg("0")
        .arg("-1")
        .arg("WITHSCORES")
        .query_async(&mut state.conn)
        .await
        .expect("scores")
}

/// One worker looks when a look is of use. Another one takes its place if it is more than 10 ms
/// late, or looks more than 2 ms after that time. Otherwise the other one looks later, by a time
/// that depends on its name and on the number of workers.
#[tokio::test]
async fn the_next_look_is_exact() {
    let (_clock, _redis, mut state) = limited().await;
    set(&state, "r:*", Share::new().rate(0.2)).await;
    park(&mut state, "r", 2.0).await;
    let key = state.keys.event_groups_look();
    for (due, told, after, by) in [
        (5000, None, 5000, "w"),
        (20, None, 20, "w"),
        (19, None, 20, "w"),
        (5000, Some((NOW - 10, "a")), 5016, "a"),
        (5000, Some((NOW - 11, "a")), 5000, "w"),
        (5000, Some((NOW + 5002, "a")), 5016, "a"),
        (5000, Some((NOW + 5003, "a")), 5000, "w"),
        (5000, Some((NOW + 4000, "w")), 5000, "w"),
        (5000, Some((0, "")), 5000, "w"),
    ] {
        state.run("DEL", &[&key]).await;
        block(&mut state, "r", NOW + due).await;
        if let Some((at, name)) = told {
            state.run("SET", &[&key, &format!("{at} {name}")]).await;
        }
        assert_eq!(
            call(&mut state).await,
            (vec![], Some(Duration::from_millis(after))),
            "{due} {told:?}"
        );
        let at = told
            .filter(|(_, name)| *name == by && by != "w")
            .map_or(NOW + after, |(at, _)| at);
        assert_eq!(
            look(&mut state).await,
            Some(format!("{at} {by}")),
            "{due} {told:?}"
        );
    }
}

/// Each other worker looks up to 20 ms later for each worker name, up to 400 ms later at the most:
/// by the first half of this time, and by a part of the other half that its name decides.
#[tokio::test]
async fn the_looks_of_other_workers_are_exact() {
    // The first digits of the SHA-1 of these names are aff0 and 8000.
    for (name, names, later) in [
        ("w", 1, 16),
        ("w", 19, 320),
        ("w", 20, 337),
        ("w", 21, 337),
        ("w13926", 20, 300),
    ] {
        let (_clock, _redis, mut state) = limited().await;
        set(&state, "r:*", Share::new().rate(0.2)).await;
        park(&mut state, "r", 2.0).await;
        block(&mut state, "r", NOW + 5000).await;
        let keys = state.keys.clone();
        state
            .run(
                "SET",
                &[&keys.event_groups_look(), &format!("{} a", NOW + 5000)],
            )
            .await;
        state.run("DEL", &[&keys.event_workers_watched()]).await;
        for n in 0..names {
            state
                .run(
                    "ZADD",
                    &[&keys.event_workers_watched(), "1", &n.to_string()],
                )
                .await;
        }
        state
            .run(
                "SET",
                &[&keys.worker_lease(name), "token-1 host 1 1", "PX", "600000"],
            )
            .await;
        let mut call = Advance::new(&keys, name, "token-1", BOUNDS, ClaimFirst::Markers);
        call.free(0);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok { next_due, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            next_due,
            Some(Duration::from_millis(5000 + later)),
            "{name} {names}"
        );
    }
}

/// However slow a rate is, a group is looked at again after 10 s. A call that takes no event
/// changes nothing at the figures of a share.
#[tokio::test]
async fn a_slow_rate_is_looked_at_after_10_seconds() {
    let (_clock, redis, mut state) = limited().await;
    set(&state, "a:*", Share::new().rate(0.001).burst(1)).await;
    let (keys, used) = (
        state.keys.clone(),
        format!("9 {} 3 4 5", NOW_US + 1_000_000_000),
    );
    state
        .run("HSET", &[&keys.event_shares_used(), "a:*", &used])
        .await;
    state.emit("a:1", "1").await;
    // A part of a ms counts as a whole one.
    assert_eq!(
        call(&mut state).await,
        (vec![], Some(Duration::from_millis(10_001)))
    );
    assert_eq!(
        blocked(&mut state).await,
        [pair("a", (NOW + 10_001) as f64)]
    );
    assert_eq!(
        redis
            .console()
            .await
            .run::<String>(&["HGET", &keys.event_shares_used(), "a:*"])
            .await,
        used
    );
}

/// A call looks at groups that are due, and at those that have waited for an object in hand for a
/// second. It also looks at those whose time is 20 s ahead or more, because such a time comes from
/// another clock.
#[tokio::test]
async fn a_call_looks_at_groups_by_their_times() {
    let times = [
        ("due", NOW, true),
        ("soon", NOW + 1, false),
        ("near", NOW + 19_999, false),
        ("far", NOW + 20_000, true),
        ("last", LATER - 1, true),
        ("long", LATER + NOW - 1000, true),
        ("fresh", LATER + NOW - 999, false),
    ];
    let (_clock, _redis, mut state) = limited().await;
    limit(&state, &times.map(|(group, ..)| group)).await;
    for (group, score, _) in times {
        park(&mut state, group, 2.0).await;
        block(&mut state, group, score).await;
    }
    ask(
        &mut state,
        Bounds {
            claims: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    let left: Vec<_> = times
        .iter()
        .filter(|(.., looked)| !looked)
        .map(|(group, score, _)| pair(group, *score as f64))
        .collect();
    assert_eq!(blocked(&mut state).await, left);
}

/// The groups of a prefix have one time. A group that waits for the rate only lowers it. A group
/// that waits for an object in hand replaces it.
#[tokio::test]
async fn the_time_of_a_prefix_is_the_soonest_for_its_rate() {
    for (before, in_hand, after) in [
        (NOW + 1000, &["a:8:"][..], NOW + 1000),
        (NOW + 9500, &["a:8:"], NOW + 9001),
        (LATER + NOW - 1, &["a:8:"], NOW + 9001),
        (NOW + 1000, &["a:8:", "a:9:"], LATER + NOW),
    ] {
        let (_clock, _redis, mut state) = limited().await;
        set(&state, "a:*", Share::new().rate(0.01).burst(1).in_flight(2)).await;
        set(&state, "a:x:*", Share::new().weight(1)).await;
        let keys = state.keys.clone();
        state
            .run(
                "HSET",
                &[
                    &keys.event_shares_used(),
                    "a:*",
                    &format!("9 {} 0 0 0", NOW_US + 9_000_000),
                ],
            )
            .await;
        for member in in_hand {
            state
                .run("ZADD", &[&keys.objects_in_hand(), "0", member])
                .await;
        }
        block(&mut state, "a\n", before).await;
        state.emit("a:x:1", "1").await;
        assert_eq!(call(&mut state).await.0, [""; 0], "{before}");
        assert_eq!(
            blocked(&mut state).await,
            [pair("a\n", after as f64)],
            "{before}"
        );
    }
}

/// A group waits for two limits, and one of them is due. The group has no turn before the other one
/// is.
#[tokio::test]
async fn a_group_that_also_waits_for_another_prefix_is_left_out() {
    for other in [false, true] {
        let (_clock, _redis, mut state) = limited().await;
        set(&state, "p:*", Share::new().in_flight(9)).await;
        set(&state, "p:x:*", Share::new().in_flight(9)).await;
        set(&state, "p:x:y:*", Share::new().weight(1)).await;
        park(&mut state, "p:x:y", 2.0).await;
        block(&mut state, "p\n", 0).await;
        block(
            &mut state,
            if other { "p:x\n" } else { "p:z\n" },
            LATER + NOW,
        )
        .await;
        let expected: &[&str] = if other { &[] } else { &["p:x:y:1"] };
        assert_eq!(call(&mut state).await.0, expected, "{other}");
    }
}

/// Of two limits that are exceeded by the same number of objects, a group waits for that of the
/// shorter prefix.
#[tokio::test]
async fn of_equal_limits_a_group_waits_for_that_of_the_shorter_prefix() {
    let (_clock, _redis, mut state) = limited().await;
    set(&state, "a:*", Share::new().in_flight(1)).await;
    set(&state, "a:x:*", Share::new().in_flight(1)).await;
    let in_hand = state.keys.objects_in_hand();
    state.run("ZADD", &[&in_hand, "0", "a:x:9:"]).await;
    state.emit("a:x:1", "1").await;
    assert_eq!(call(&mut state).await, (vec![], None));
    assert_eq!(
        blocked(&mut state).await,
        [pair("a\n", (LATER + NOW) as f64)]
    );
}

/// A group that has waited with a higher pass than the others keeps its pass.
#[tokio::test]
async fn a_group_does_not_come_back_with_a_higher_pass() {
    let (_clock, _redis, mut state) = limited().await;
    limit(&state, &["a", "b"]).await;
    for (group, pass) in [("a", 5.0), ("b", 50.0)] {
        park(&mut state, group, pass).await;
    }
    let key = state.keys.event_groups();
    state.run("ZADD", &[&key, "20", "a"]).await;
    block(&mut state, "b", 0).await;
    ask(
        &mut state,
        Bounds {
            claims: 1,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    assert_eq!(passes(&mut state).await, [pair("a", 21.0), pair("b", 50.0)]);
}
