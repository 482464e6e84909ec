//! Random schedules. A failure prints its seed and the shortest failing schedule found.
//! `SERIATIM_SEED=… cargo test --test proofs invariants::random` repeats one schedule.
//! `SERIATIM_CASES=…` sets the number of schedules, by default 256.

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;

use super::run::{Kind, Rng, Run};
use crate::seeds::{self, number};
use crate::support::Redis;

const CASES: u64 = 256;
const STEPS_MIN: u64 = 100;
const STEPS_MAX: u64 = 120;
/// The number of runs that may be used to shorten a failing schedule.
const SHRINKS: usize = 600;

struct Failure {
    at: usize,
    what: String,
    trace: Vec<String>,
}

/// Runs a schedule. A failure has the number of steps made before it.
async fn run(
    conn: &MultiplexedConnection,
    keys: &Keys,
    steps: &[u64],
    kind: Kind,
) -> Result<(), Failure> {
    let mut run = Run::new(conn.clone(), keys.clone(), kind);
    run.clear().await;
    for (at, step) in steps.iter().enumerate() {
        if let Err(what) = run.step(*step).await {
            return Err(Failure {
                at,
                what,
                trace: run.trace,
            });
        }
    }
    run.drain().await.map_err(|what| Failure {
        at: steps.len(),
        what,
        trace: run.trace,
    })
}

/// Shortens a failing schedule: removes groups of steps, smaller and smaller ones, as long as the
/// rest still fails.
async fn shrink(
    conn: &MultiplexedConnection,
    keys: &Keys,
    steps: &[u64],
    kind: Kind,
    failure: Failure,
) -> Failure {
    let (mut steps, mut failure) = (steps[..steps.len().min(failure.at + 1)].to_vec(), failure);
    let (mut chunk, mut budget) = (steps.len().div_ceil(2), SHRINKS);
    while chunk > 0 && budget > 0 {
        let mut at = 0;
        while at < steps.len() && budget > 0 {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(steps.len()));
            budget -= 1;
            match run(conn, keys, &fewer, kind).await {
                Err(again) => {
                    fewer.truncate(again.at + 1);
                    (steps, failure) = (fewer, again);
                }
                Ok(()) => at += chunk,
            }
        }
        chunk /= 2;
    }
    failure
}

#[tokio::test]
async fn random_schedules_keep_the_invariants() {
    // The test empties its Redis before every schedule, so it needs a server of its own.
    let redis = Redis::own(&[]);
    let (conn, keys) = (redis.connect().await, redis.keys());
    let now = seeds::fresh();
    let seeds: Vec<u64> = match number("SERIATIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SERIATIM_CASES").unwrap_or(CASES))
            .map(|case| Rng(now.wrapping_add(case)).next())
            .collect(),
    };
    for seed in seeds {
        let mut rng = Rng(seed);
        let count = STEPS_MIN + rng.below(STEPS_MAX - STEPS_MIN + 1);
        let mut half = || rng.below(2) == 0;
        let (fresh, logs, rules) = (half(), half(), half());
        let kind = Kind {
            fresh,
            logs,
            rules,
            depths: [[0, 0], [1, 1], [0, 1], [2, 1]][rng.at(4)],
        };
        let steps: Vec<u64> = (0..count).map(|_| rng.next()).collect();
        if let Err(failure) = run(&conn, keys, &steps, kind).await {
            let (at, what) = (failure.at, failure.what.clone());
            let short = shrink(&conn, keys, &steps, kind, failure).await;
            panic!(
                "{kind:?}, at step {at} of {count}: {what}\nthe shortest schedule found:\n  {}\n{}\nrun it again: SERIATIM_SEED={seed} cargo test --test proofs invariants::random",
                short.trace.join("\n  "),
                short.what,
            );
        }
    }
}
