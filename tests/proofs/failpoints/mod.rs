//! A scripted run of real worker processes, with a fault before or after every Redis command and
//! every delivery.
//!
//! By default the test runs each single fault. `SERIATIM_FAILPOINTS_PAIRS=1` runs all pairs of
//! faults. `SERIATIM_FAILPOINTS='advance.after=abort'` repeats one plan. A fault has the form
//! `POINT=ACTION[@N]`: N hits of the point pass before the action. A comma joins two faults to a
//! pair. Spaces separate plans.
#![cfg(feature = "failpoints")]
#![allow(unreachable_pub)]

mod child;
mod fault;
mod scene;

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fault::Fault;
use scene::{Figures, Scene};

/// The number of concurrent runs, each with its own Redis. A run mostly waits for the end of a
/// lease or for a timeout.
const LANES: usize = 6;

/// The worker process of the scene. Without `SERIATIM_CHILD` it does nothing.
#[test]
fn worker_process() {
    child::run();
}

#[test]
fn no_fault_loses_reorders_or_forks_anything() {
    let plans = match (
        std::env::var("SERIATIM_FAILPOINTS"),
        std::env::var("SERIATIM_FAILPOINTS_PAIRS"),
    ) {
        (Ok(plans), _) => plans
            .split_whitespace()
            .map(|plan| {
                plan.split(',')
                    .map(|fault| fault.parse().expect("POINT=ACTION[@N]"))
                    .collect()
            })
            .collect(),
        (_, Ok(_)) => pairs(),
        _ => Fault::all().into_iter().map(|fault| vec![fault]).collect(),
    };
    let (began, runs) = (Instant::now(), plans.len());
    let queue = Arc::new(Mutex::new(VecDeque::from(plans)));
    let lanes: Vec<_> = (0..LANES.min(runs))
        .map(|_| {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || lane(&queue))
        })
        .collect();
    let (mut total, mut failures) = (Figures::default(), Vec::new());
    for lane in lanes {
        let (figures, failed) = lane.join().expect("a lane does not panic");
        total.add(&figures);
        failures.extend(failed);
    }
    println!(
        "{runs} runs in {:.1} s, {total}, {} failed",
        began.elapsed().as_secs_f64(),
        failures.len()
    );
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
}

/// Returns all pairs of faults at different fail points.
fn pairs() -> Vec<Vec<Fault>> {
    let all = Fault::firsts();
    let mut pairs = Vec::new();
    for (at, one) in all.iter().enumerate() {
        pairs.extend(
            all[at + 1..]
                .iter()
                .filter(|other| other.point != one.point)
                .map(|other| vec![one.clone(), other.clone()]),
        );
    }
    pairs
}

/// Runs the plans of the queue one after another. Returns the counts and the failures.
fn lane(queue: &Mutex<VecDeque<Vec<Fault>>>) -> (Figures, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let redis = crate::support::Redis::own(&[]);
    let (mut total, mut failures) = (Figures::default(), Vec::new());
    let mut seconds: HashMap<String, f64> = HashMap::new();
    loop {
        let Some(plan) = queue.lock().expect("no lane panics").pop_front() else {
            break;
        };
        let name: Vec<_> = plan.iter().map(ToString::to_string).collect();
        let (name, began) = (name.join(","), Instant::now());
        let result = runtime.block_on(async { Scene::new(&redis, plan).await.play().await });
        match result {
            Ok(figures) => total.add(&figures),
            Err(what) => failures.push(format!(
                "{name}: {what}\nto see it again: SERIATIM_FAILPOINTS='{name}'"
            )),
        }
        seconds.insert(name, began.elapsed().as_secs_f64());
    }
    if std::env::var_os("SERIATIM_FAILPOINTS_TIMES").is_some() {
        println!("{seconds:.1?}");
    }
    (total, failures)
}
