//! Tests of guards inside the scripts. Real processes never reach these guards, because other
//! guards stop them earlier. So the tests call the scripts directly.
#![cfg(feature = "worker")]

mod batches;
mod bounds;
mod cancel;
mod check;
mod claims;
mod clock;
mod connect;
mod cron;
mod damage;
mod dead;
mod foreign;
mod forget;
mod groups;
mod ids;
mod in_hand;
mod inspect;
mod leases;
mod library;
mod limits;
mod limits_stopped;
mod lists;
mod log;
mod looks;
mod lost;
mod marks;
mod moments;
mod names;
mod operators;
mod paused;
mod popped;
mod promote;
mod rates;
mod references;
mod repair;
mod reports;
mod rooms;
#[path = "../support/scene.rs"]
mod scene;
mod settled;
#[path = "../support/state.rs"]
mod state;
mod stopped;
#[path = "../support/mod.rs"]
mod support;
mod suspects;
mod turns;
mod values;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{self, Advance, Advanced, Attach, Attached, Bounds, ClaimFirst, Suspects};
use state::State;
use support::Redis;

const LEASE: Duration = Duration::from_secs(600);
const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 10,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};

async fn attach(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    token: &str,
    displace: &str,
) -> Attached {
    let args = Attach {
        name: "w",
        token,
        holder: "host 1 1",
        lease: LEASE,
        slots: 2,
        displace,
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    wire::attach(conn, keys, &args).await.expect("an answer")
}

/// Attaches a process with two slots. Returns a state, with which a test can change Redis before
/// the process makes a call.
async fn attached(redis: &Redis) -> State {
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    attach(&mut conn, keys, "token-1", "").await;
    State::new(conn, keys.clone())
}

/// Makes a call for the free slots 0 and 1 within these bounds.
async fn ask(state: &mut State, bounds: Bounds) -> Result<Advanced, wire::ScriptError> {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    call.free(0);
    call.free(1);
    wire::advance(&mut state.conn, &call).await
}

/// Returns the objects of the batches that a call gave.
fn objects(answer: &Advanced) -> Vec<&str> {
    let Advanced::Ok { batches, .. } = answer else {
        panic!("{answer:?}")
    };
    batches
        .iter()
        .map(|batch| std::str::from_utf8(&batch.object).expect("a name"))
        .collect()
}

/// Moves the oldest marker into the slot's list, as a pop does.
async fn pop(state: &mut State, worker: &str) {
    let (markers, taken) = (
        state.keys.objects_with_events(),
        state.keys.worker_object(worker),
    );
    state
        .run("LMOVE", &[&markers, &taken, "RIGHT", "LEFT"])
        .await;
}
