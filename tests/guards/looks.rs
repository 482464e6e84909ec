//! The times at which workers with a free slot look at groups that wait for events per second.

use std::time::Duration;

use seriatim::control::By;
use seriatim::control::shares::Share;
use seriatim::keys::Keys;
use seriatim::wire::{self, Advance, Advanced, Attach, Bounds, ClaimFirst, Suspects};

use crate::state::State;
use crate::support::{Redis, control};
use crate::{BOUNDS, LEASE};

const BY: By<'static> = By { who: "ada", why: "a test" };
/// The time between the looks of two workers, ms.
const APART: f64 = 20.0;
/// A worker waits at most this time longer than until a look is of use, ms.
const LATER_MAX: f64 = 10_000.0;

async fn attach(state: &mut State, name: &str) {
    let (token, suspects) = (&format!("token-{name}"), Suspects::NONE);
    let args =
        Attach { name, token, holder: "host 1 1", lease: LEASE, slots: 2, displace: "", before: "", crashes_max: 5, suspects };
    let keys = state.keys.clone();
    wire::attach(&mut state.conn, &keys, &args).await.expect("attached");
}

/// Makes a call of this worker. `claims`: the number of its slots without a batch. Returns the number
/// of claimed objects, and the time to the next look.
async fn call(state: &mut State, name: &str, claims: usize) -> (usize, Option<Duration>) {
    let (keys, token) = (state.keys.clone(), format!("token-{name}"));
    let mut call = Advance::new(&keys, name, &token, Bounds { claims, ..BOUNDS }, ClaimFirst::Markers);
    call.free(0);
    call.free(1);
    let answer = wire::advance(&mut state.conn, &call).await.expect("an answer");
    let Advanced::Ok { next_due, batches, .. } = answer else { panic!("{answer:?}") };
    (batches.len(), next_due)
}

async fn scores(state: &mut State, key: String) -> Vec<(String, f64)> {
    redis::cmd("ZRANGE").arg(key).arg("0").arg("-1").arg("WITHSCORES").query_async(&mut state.conn).await.expect("scores")
}

/// Returns the looks, the next one first, each with the time from `due` on.
async fn looks(state: &mut State, due: f64) -> Vec<(String, f64)> {
    let key = state.keys.event_groups_looks();
    scores(state, key).await.into_iter().map(|(name, at)| (name, at - due)).collect()
}

fn pairs(expected: &[(&str, f64)]) -> Vec<(String, f64)> {
    expected.iter().map(|(name, after)| ((*name).to_owned(), *after)).collect()
}

async fn put(state: &mut State, name: &str, at: f64) {
    let key = state.keys.event_groups_looks();
    state.run("ZADD", &[&key, &at.to_string(), name]).await;
}

/// Returns a state with three workers and a share of 0.2 events per second. One of three objects is
/// claimed. Also returns the time, in ms, at which the rate allows the next one.
async fn scene() -> (Redis, State, Keys, f64) {
    let (redis, selector) = (Redis::start(), "r:*".parse().expect("a selector"));
    let (mut state, keys) = (State::new(redis.connect().await, redis.keys().clone()), redis.keys().clone());
    for name in ["a", "b", "c"] {
        attach(&mut state, name).await;
    }
    control(&state.conn, &keys).set_share(BY, &selector, Share::new().rate(0.2)).await.expect("set");
    for object in ["r:1", "r:2", "r:3"] {
        state.emit(object, "{}").await;
    }
    assert_eq!(call(&mut state, "a", 2).await.0, 1);
    state.run("DEL", &[&keys.event_groups_looks()]).await;
    let blocked = scores(&mut state, keys.event_groups_blocked()).await;
    let [(_, due)] = &blocked[..] else { panic!("{blocked:?}") };
    let due = *due;
    (redis, state, keys, due)
}

/// The first worker looks when the rate allows an event, each further one 20 ms after the last.
#[tokio::test]
async fn workers_look_one_after_the_other() {
    let (_redis, mut state, _, due) = scene().await;
    let (_, next) = call(&mut state, "a", 2).await;
    assert!(next.is_some_and(|next| (1..=5001).contains(&next.as_millis())), "{next:?}");
    assert_eq!(looks(&mut state, due).await, pairs(&[("a", 0.0)]));
    for (name, expected) in [
        ("a", &[("a", 0.0)][..]),
        ("b", &[("a", 0.0), ("b", APART)]),
        ("c", &[("a", 0.0), ("b", APART), ("c", 2.0 * APART)]),
        ("a", &[("a", 0.0), ("b", APART), ("c", 2.0 * APART)]),
        ("b", &[("a", 0.0), ("c", 2.0 * APART), ("b", 3.0 * APART)]),
        // The last look is the caller's own.
        ("b", &[("a", 0.0), ("c", 2.0 * APART), ("b", 3.0 * APART)]),
    ] {
        call(&mut state, name, 2).await;
        assert_eq!(looks(&mut state, due).await, pairs(expected), "{name}");
    }
}

/// A look that is past, or was to come before it is of use, does not count.
#[tokio::test]
async fn a_look_that_is_of_no_use_does_not_count() {
    let (_redis, mut state, _, due) = scene().await;
    for (before, expected) in [
        (5.0 - due, &[("b", 0.0)][..]),
        (-1.0, &[("a", -1.0), ("b", 0.0)]),
        (0.0, &[("a", 0.0), ("b", APART)]),
        (2.0, &[("a", 2.0), ("b", 2.0 + APART)]),
        (3.0, &[("b", 0.0), ("a", 3.0)]),
    ] {
        put(&mut state, "a", due + before).await;
        call(&mut state, "b", 2).await;
        assert_eq!(looks(&mut state, due).await, pairs(expected), "{before}");
    }
    // A call removes 64 looks that are past.
    for n in 0..70 {
        put(&mut state, &format!("past {n}"), 5.0).await;
    }
    call(&mut state, "b", 2).await;
    let past = looks(&mut state, due).await.into_iter().filter(|(name, _)| name.starts_with("past")).count();
    assert_eq!(past, 6);
    call(&mut state, "b", 2).await;
    // A time that is too far ahead comes from another clock.
    put(&mut state, "a", due).await;
    put(&mut state, "c", due + 3.0 * LATER_MAX).await;
    call(&mut state, "b", 2).await;
    assert_eq!(looks(&mut state, due).await, pairs(&[("a", 0.0), ("b", LATER_MAX), ("c", 3.0 * LATER_MAX)]));
}

/// A worker without a free slot is to look at no time. Its next call follows when a slot becomes free.
#[tokio::test]
async fn a_worker_without_a_free_slot_does_not_look() {
    let (_redis, mut state, _, due) = scene().await;
    assert_eq!(call(&mut state, "b", 0).await, (0, None));
    state.emit("other:1", "{}").await;
    assert_eq!(call(&mut state, "b", 1).await, (1, None), "its last slot has an object now");
    assert_eq!(looks(&mut state, due).await, []);
}

/// A key of a wrong type does not stop a worker, and the key goes with the last name that waits.
#[tokio::test]
async fn the_key_of_looks_may_have_a_wrong_type() {
    let (_redis, mut state, keys, due) = scene().await;
    state.run("SET", &[&keys.event_groups_looks(), "x"]).await;
    let (_, next) = call(&mut state, "b", 2).await;
    assert!(next.is_some_and(|next| (1..=5001).contains(&next.as_millis())), "{next:?}");
    state.run("DEL", &[&keys.event_groups_looks()]).await;
    call(&mut state, "b", 2).await;
    assert_eq!(looks(&mut state, due).await, pairs(&[("b", 0.0)]));
    control(&state.conn, &keys).remove_share(BY, &"r:*".parse().expect("a selector")).await.expect("removed");
    assert_eq!(call(&mut state, "b", 2).await, (2, None));
    assert_eq!(looks(&mut state, due).await, []);
}
