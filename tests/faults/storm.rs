//! Many faults at once, again and again: requests and replies are lost, leases end, processes die,
//! sinks fail. Meanwhile producers emit. `SERIATIM_STORM_SEED` repeats the choices of one run, but
//! not its timing. `SERIATIM_STORMS` sets the number of runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::{Running, start_at};
use crate::support::{Redis, until};

const OBJECTS: u64 = 7;
const EVENTS: u64 = 250;

/// A generator of choices (xorshift) that a seed repeats. It needs no crate.
#[derive(Clone)]
struct Choices(Arc<Mutex<u64>>);

impl Choices {
    fn of(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed | 1)))
    }

    fn below(&self, limit: u64) -> u64 {
        let mut x = self.0.lock().expect("no panic");
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        *x % limit
    }
}

fn run(redis: &Redis, proxy: &Proxy, name: &str, sink: &Recorder, choices: &Choices) -> Running {
    let slots = 1 + choices.below(4) as usize;
    start_at(proxy.url(), redis, name, sink, |config| {
        config.concurrency = slots;
        config.batch = 3;
        config.turn_max = 5;
        config.lease = Duration::from_millis(600);
        config.crashes_max = 1000;
        config.takeover = true;
    })
}

/// Kills processes or ends their leases, until all events are emitted.
async fn disturb(
    redis: &Redis,
    console: &Console,
    sink: &Recorder,
    choices: &Choices,
    emitted: impl Fn() -> bool,
) {
    let names = ["a", "b", "c"];
    let proxies = names.map(|_| Proxy::before(redis));
    let mut workers: HashMap<usize, Running> = HashMap::new();
    while !emitted() {
        let at = choices.below(3) as usize;
        let rate = 4 + choices.below(30);
        match choices.below(6) {
            0 => {
                if let Some(worker) = workers.remove(&at) {
                    worker.crash().await;
                }
            }
            1 => console.end_lease(names[at]).await,
            2 => {
                if let Some(worker) = workers.remove(&at) {
                    worker.shutdown.stop_at_once();
                    let _ = worker.ended().await;
                }
            }
            _ => {
                let choices = choices.clone();
                proxies[at].lose(move |_| match choices.below(rate) {
                    0 => Some(Lose::Request),
                    1 => Some(Lose::Reply),
                    _ => None,
                });
            }
        }
        for (at, name) in names.iter().enumerate() {
            if workers.get(&at).is_none_or(Running::is_over) {
                workers.insert(at, run(redis, &proxies[at], name, sink, choices));
            }
        }
        tokio::time::sleep(Duration::from_millis(choices.below(60))).await;
        console.check().await;
    }
    // The faults end here. The remaining workers and new workers finish the work.
    for proxy in &proxies {
        proxy.lose(|_| None);
    }
    let last = run(redis, &proxies[0], "last", sink, choices);
    until("everything is delivered or dead", PATIENCE, async || {
        let applied: usize = sink.applied().values().map(Vec::len).sum();
        (applied + dead(console).await.len() >= EVENTS as usize).then_some(())
    })
    .await;
    console.until_at_rest().await;
    for worker in workers.into_values() {
        worker.crash().await;
    }
    last.crash().await;
}

/// Returns the dead letters. Asserts that none of them comes twice.
async fn dead(console: &Console) -> Vec<String> {
    let mut dead: Vec<_> = console
        .dead()
        .await
        .iter()
        .map(|fields| String::from_utf8_lossy(&fields[3].1).into_owned())
        .collect();
    let all = dead.len();
    dead.sort();
    dead.dedup();
    assert_eq!(dead.len(), all, "an event is a dead letter once");
    dead
}

async fn storm(seed: u64) {
    println!("SERIATIM_STORM_SEED={seed}");
    let (redis, console) = Redis::own(&[]).with_console().await;
    let choices = Choices::of(seed);
    let failing = choices.clone();
    let sink = Recorder::with(move |offer| match failing.below(40) {
        0 => Act::Stop(Stop::transient("down")),
        1 => Act::Stop(Stop::unavailable("down")),
        2 => Act::Panic,
        3 if offer.before == 0 => Act::Stop(Stop::rejected("never")),
        _ => Act::Send,
    });
    let emitting = {
        let (console, choices) = (console.clone(), choices.clone());
        tokio::spawn(async move {
            for n in 0..EVENTS {
                console
                    .emit(&format!("work:{}", n % OBJECTS), n.to_string())
                    .await;
                tokio::time::sleep(Duration::from_millis(choices.below(8))).await;
            }
        })
    };
    disturb(&redis, &console, &sink, &choices, || emitting.is_finished()).await;
    let dead = dead(&console).await;
    for object in 0..OBJECTS {
        // A dead letter may also have been delivered. Then its delivery was interrupted, the event
        // came again, and the sink rejected it.
        let alive = |events: Vec<String>| {
            events
                .into_iter()
                .filter(|event| !dead.contains(event))
                .collect::<Vec<_>>()
        };
        let pushed = (object..EVENTS)
            .step_by(OBJECTS as usize)
            .map(|n| n.to_string())
            .collect();
        assert_eq!(
            alive(sink.applied_of(&format!("work:{object}"))),
            alive(pushed)
        );
    }
}

#[tokio::test]
async fn nothing_is_lost_or_reordered_in_a_storm() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let random = || {
        u64::from(std::process::id()) << 32
            | u64::from(
                std::time::UNIX_EPOCH
                    .elapsed()
                    .expect("after 1970")
                    .subsec_nanos(),
            )
    };
    for _ in 0..number("SERIATIM_STORMS").unwrap_or(2) {
        storm(number("SERIATIM_STORM_SEED").unwrap_or_else(random)).await;
    }
}
