//! Which worker looks next at groups that wait for events per second, and when the others look.

use std::time::Duration;

use seriatim::control::By;
use seriatim::control::shares::Share;
use seriatim::keys::Keys;
use seriatim::wire::{self, Advance, Advanced, Attach, Bounds, ClaimFirst, Suspects};

use crate::state::State;
use crate::support::{Redis, control};
use crate::{BOUNDS, LEASE};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The workers of a scene.
const NAMES: [&str; 3] = ["a", "b", "c"];

async fn attach(state: &mut State, name: &str) {
    let (token, suspects) = (&format!("token-{name}"), Suspects::NONE);
    let args = Attach {
        name,
        token,
        holder: "host 1 1",
        lease: LEASE,
        slots: 2,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects,
    };
    let keys = state.keys.clone();
    wire::attach(&mut state.conn, &keys, &args)
        .await
        .expect("attached");
}

/// Makes a call of this worker. `claims`: the number of its slots without a batch. Returns the number
/// of claimed objects, and the time to the next look.
async fn call(state: &mut State, name: &str, claims: usize) -> (usize, Option<Duration>) {
    let (keys, token) = (state.keys.clone(), format!("token-{name}"));
    let mut call = Advance::new(
        &keys,
        name,
        &token,
        Bounds { claims, ..BOUNDS },
        ClaimFirst::Markers,
    );
    call.free(0);
    call.free(1);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok {
        next_due, batches, ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    (batches.len(), next_due)
}

async fn look(state: &mut State) -> Option<String> {
    redis::cmd("GET")
        .arg(state.keys.event_groups_look())
        .query_async(&mut state.conn)
        .await
        .expect("a look")
}

async fn put(state: &mut State, at: u64, name: &str) {
    let key = state.keys.event_groups_look();
    state.run("SET", &[&key, &format!("{at} {name}")]).await;
}

async fn now_ms(state: &State) -> u64 {
    control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time")
}

/// Asserts that a worker looks so many ms after `due`.
async fn assert_looks(
    state: &mut State,
    name: &str,
    due: u64,
    after: std::ops::RangeInclusive<u64>,
) {
    let before = now_ms(state).await;
    let (_, next) = call(state, name, 2).await;
    let next = u64::try_from(next.expect("a time").as_millis()).expect("a time");
    let (least, most) = (before + next, now_ms(state).await + next);
    assert!(
        due + after.end() + 1 >= least && due + after.start() <= most,
        "{name}: {least} to {most}, due {due}, {after:?}"
    );
}

/// Returns a state with three workers and a share of 0.2 events per second. One of three objects is
/// claimed. Also returns the time, in ms, at which the rate allows the next one.
async fn scene() -> (Redis, State, Keys, u64) {
    let (redis, selector) = (Redis::start(), "r:*".parse().expect("a selector"));
    let (mut state, keys) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.keys().clone(),
    );
    for name in NAMES {
        attach(&mut state, name).await;
    }
    control(&state.conn, &keys)
        .set_share(BY, &selector, Share::new().rate(0.2))
        .await
        .expect("set");
    for object in ["r:1", "r:2", "r:3"] {
        state.emit(object, "{}").await;
    }
    assert_eq!(call(&mut state, "a", 2).await.0, 1);
    let mut blocked = redis::cmd("ZRANGE");
    blocked
        .arg(keys.event_groups_blocked())
        .arg("0")
        .arg("-1")
        .arg("WITHSCORES");
    let blocked: Vec<(String, u64)> = blocked.query_async(&mut state.conn).await.expect("scores");
    let [(_, due)] = &blocked[..] else {
        panic!("{blocked:?}")
    };
    let due = *due;
    assert_eq!(look(&mut state).await, Some(format!("{due} a")));
    (redis, state, keys, due)
}

/// The others look up to 20 ms later for each worker name, up to 400 ms later at the most.
#[tokio::test]
async fn one_worker_looks_when_it_is_of_use_and_the_others_later() {
    let (_redis, mut state, keys, due) = scene().await;
    assert_looks(&mut state, "a", due, 0..=0).await;
    for name in ["b", "c"] {
        assert_looks(&mut state, name, due, 30..=60).await;
    }
    for n in 0..97 {
        state
            .run(
                "ZADD",
                &[&keys.event_workers_watched(), "1", &format!("other {n}")],
            )
            .await;
    }
    for name in ["b", "c"] {
        assert_looks(&mut state, name, due, 200..=400).await;
    }
    assert_looks(&mut state, "a", due, 0..=0).await;
    assert_eq!(look(&mut state).await, Some(format!("{due} a")));
}

#[tokio::test]
async fn a_worker_takes_the_place_of_one_that_looks_too_late() {
    let (_redis, mut state, _, due) = scene().await;
    let now = now_ms(&state).await;
    for at in [now - 11, 0, due + 3, due + 3_600_000] {
        put(&mut state, at, "a").await;
        assert_looks(&mut state, "b", due, 0..=0).await;
        assert_eq!(look(&mut state).await, Some(format!("{due} b")), "{at}");
    }
    // A look at a time before it is of use does no harm.
    for at in [now + 3000, due, due + 2] {
        put(&mut state, at, "a").await;
        assert_looks(&mut state, "b", due, 30..=60).await;
        assert_eq!(look(&mut state).await, Some(format!("{at} a")));
    }
}

/// A worker without a free slot is to look at no time: its next call follows when a slot becomes free.
#[tokio::test]
async fn a_worker_without_a_free_slot_lets_another_one_look() {
    let (_redis, mut state, keys, due) = scene().await;
    assert_eq!(call(&mut state, "b", 0).await, (0, None));
    assert_eq!(
        look(&mut state).await,
        Some(format!("{due} a")),
        "it was not to look"
    );
    state.emit("other:1", "{}").await;
    // The call gives the first object again, and claims one for the last slot.
    assert_eq!(call(&mut state, "a", 1).await, (2, None));
    let markers = async |state: &mut State| -> Vec<String> {
        redis::cmd("LRANGE")
            .arg(keys.objects_with_events())
            .arg("0")
            .arg("-1")
            .query_async(&mut state.conn)
            .await
            .expect("markers")
    };
    assert_eq!(
        (look(&mut state).await, markers(&mut state).await),
        (Some("0 ".to_owned()), vec![String::new()])
    );
    // The empty marker wakes one worker, which may have no free slot either.
    for _ in 0..2 {
        assert_eq!(call(&mut state, "a", 0).await.1, None);
        assert_eq!(markers(&mut state).await.len(), 1);
    }
    state.run("DEL", &[&keys.objects_with_events()]).await;
    assert_eq!(call(&mut state, "c", 0).await, (0, None));
    assert_eq!(
        (look(&mut state).await, markers(&mut state).await),
        (Some("0 ".to_owned()), vec![String::new()])
    );
    assert_looks(&mut state, "b", due, 0..=0).await;
    assert_eq!(look(&mut state).await, Some(format!("{due} b")));
}

/// A key of a wrong type does not stop a worker, and the key goes with the last name that waits.
#[tokio::test]
async fn the_key_of_the_next_look_may_have_a_wrong_type() {
    let (_redis, mut state, keys, due) = scene().await;
    state.run("DEL", &[&keys.event_groups_look()]).await;
    state.run("RPUSH", &[&keys.event_groups_look(), "x"]).await;
    state.run("DEL", &[&keys.event_workers_watched()]).await;
    state
        .run("SET", &[&keys.event_workers_watched(), "x"])
        .await;
    assert_looks(&mut state, "b", due, 0..=0).await;
    assert_looks(&mut state, "c", due, 10..=20).await;
    control(&state.conn, &keys)
        .remove_share(BY, &"r:*".parse().expect("a selector"))
        .await
        .expect("removed");
    assert_eq!(call(&mut state, "b", 2).await, (2, None));
    assert_eq!(look(&mut state).await, None);
}
