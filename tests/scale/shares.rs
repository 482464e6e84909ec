//! Shares at size: waiting groups get claims by their weights, a low priority gets its turn, and a rate
//! is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seriatim::async_trait;
use seriatim::control::By;
use seriatim::control::shares::{Priority, SHARES_MAX, Share};
use seriatim::sink::{Batch, Context, Delivered, Sink};

use super::groups::{Counter, fill, record};
use crate::support::console::{Console, PATIENCE};
use crate::support::running::start;
use crate::support::{Redis, control, until};

const BY: By<'static> = By {
    who: "ada",
    why: "",
};
/// The numbers of objects of ten groups, and the weights of the groups.
const BACKLOGS: [usize; 10] = [
    1, 10, 100, 1000, 20_000, 40_000, 60_000, 100_000, 200_000, 1_000_000,
];
const WEIGHTS: [u64; 10] = [1, 1, 1, 1, 1, 2, 3, 5, 10, 4];
const WINDOW: Duration = Duration::from_secs(10);
/// The largest difference of a group's claims from those of its weight.
const OFF_MAX: f64 = 0.1;

async fn set(redis: &Redis, selector: &str, share: Share) {
    let conn = redis.connect().await;
    control(&conn, redis.keys())
        .set_share(BY, &selector.parse().expect("a selector"), share)
        .await
        .expect("set");
}

async fn until_grouped(redis: &Redis, console: &Console) {
    until("all markers are grouped", PATIENCE, async || {
        let markers: u64 = console
            .run(&["LLEN", &redis.keys().objects_with_events()])
            .await;
        (markers < 100).then_some(())
    })
    .await;
}

/// Tests that each group that waits gets the part of the claims of 10 s that its weight says.
#[tokio::test(flavor = "multi_thread")]
async fn groups_that_wait_get_claims_by_their_weights() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    // The largest group comes first, so that all others wait behind it.
    for (n, backlog) in BACKLOGS.iter().enumerate().rev() {
        fill(&redis, &format!("g{n}"), *backlog, "markers").await;
        if WEIGHTS[n] > 1 {
            set(&redis, &format!("g{n}:*"), Share::new().weight(WEIGHTS[n])).await;
        }
    }
    let recording = record(&console).await;
    let sink = Counter {
        takes: Duration::from_millis(20),
        ..Counter::default()
    };
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 64;
        config.group_depth = 1;
    });
    until_grouped(&redis, &console).await;
    let before = sink.counts().clone();
    tokio::time::sleep(WINDOW).await;
    let after = sink.counts().clone();
    worker.stop().await;
    recording.assert_short_calls(&console, "weights").await;
    let count = |counts: &HashMap<String, usize>, n: usize| {
        counts.get(&format!("g{n}")).copied().unwrap_or(0)
    };
    let claims = |n: usize| (count(&after, n) - count(&before, n)) as f64;
    let waited: Vec<usize> = (0..10)
        .filter(|n| count(&after, *n) < BACKLOGS[*n])
        .collect();
    let (sum, weights) = waited.iter().fold((0.0, 0.0), |(sum, weights), n| {
        (sum + claims(*n), weights + WEIGHTS[*n] as f64)
    });
    assert!(
        waited.len() >= 5 && sum > 2000.0,
        "too few groups or claims to compare: {waited:?}, {sum}"
    );
    for n in waited {
        let off = claims(n) / (sum * WEIGHTS[n] as f64 / weights) - 1.0;
        println!(
            "weight {}: {} claims, off by {off:.3}",
            WEIGHTS[n],
            claims(n)
        );
        assert!(off.abs() <= OFF_MAX, "g{n}: {off}");
    }
}

/// Tests that a group of high priority gets nearly all claims, and that of 16 claims each lower
/// priority gets one.
#[tokio::test(flavor = "multi_thread")]
async fn a_low_priority_gets_its_turn() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    for group in ["low", "normal", "high"] {
        fill(&redis, group, 100_000, "markers").await;
    }
    set(&redis, "low:*", Share::new().priority(Priority::Low)).await;
    set(&redis, "high:*", Share::new().priority(Priority::High)).await;
    let sink = Counter {
        takes: Duration::from_millis(10),
        ..Counter::default()
    };
    // Few slots, so that most calls claim one object.
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 4);
    until_grouped(&redis, &console).await;
    let before = sink.counts().clone();
    until("the groups had 1,600 claims", PATIENCE, async || {
        let claims: usize = sink
            .counts()
            .iter()
            .map(|(group, count)| count - before.get(group).copied().unwrap_or(0))
            .sum();
        (claims >= 1600).then_some(())
    })
    .await;
    let after = sink.counts().clone();
    worker.stop().await;
    let claims = |group: &str| (after[group] - before.get(group).copied().unwrap_or(0)) as f64;
    let sum = claims("low") + claims("normal") + claims("high");
    println!(
        "of {sum} claims: high {}, normal {}, low {}",
        claims("high"),
        claims("normal"),
        claims("low")
    );
    for group in ["low", "normal"] {
        assert!(
            (claims(group) / sum * 16.0 - 1.0).abs() <= OFF_MAX,
            "{group}: {}",
            claims(group)
        );
    }
}

/// Notes the time of each event.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<Instant>>>);

#[async_trait]
impl Sink for Times {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        let now = Instant::now();
        self.0
            .lock()
            .expect("the sink does not panic")
            .extend(batch.events().map(|_| now));
        Delivered::all()
    }
}

/// Runs these processes under a rate, until 15 s have passed. Every window of 10 s must have the
/// events of its rate. No window may have more than the rate and the burst allow, apart from events
/// that a busy machine delivers late.
async fn keeps_rate(names: &[&str], objects: usize, events: usize, rate: f64, burst: u64) {
    const LENGTH: Duration = Duration::from_secs(15);
    const LATE: f64 = 0.1;
    let (redis, console) = Redis::own(&[]).with_console().await;
    set(&redis, "r:*", Share::new().rate(rate).burst(burst)).await;
    for n in 0..objects {
        console
            .emit_all(
                &format!("r:{n}"),
                (0..events).map(|event| event.to_string()),
            )
            .await;
    }
    let sink = Times::default();
    let workers: Vec<_> = names
        .iter()
        .map(|name| start(&redis, name, &sink, |config| config.concurrency = 16))
        .collect();
    tokio::time::sleep(LENGTH).await;
    for worker in workers {
        worker.stop().await;
    }
    let times = sink.0.lock().expect("the sink does not panic").clone();
    let (mut least, mut most, mut beyond) = (f64::MAX, 0.0f64, 0.0f64);
    for (from, time) in times.iter().enumerate() {
        let end = *time + WINDOW;
        if end <= *times.last().expect("an event") {
            let count = times.partition_point(|other| *other < end) - from;
            (least, most) = (
                least.min(count as f64 / 10.0),
                most.max(count as f64 / 10.0),
            );
        }
    }
    for (from, first) in times.iter().enumerate().step_by(7) {
        for (at, last) in times.iter().enumerate().skip(from) {
            beyond = beyond
                .max((at - from + 1) as f64 - (*last - *first).as_secs_f64() * rate - burst as f64);
        }
    }
    println!(
        "rate {rate}/s, burst {burst}: {} events; any 10 s had {least:.2}/s to {most:.2}/s; {beyond:.1} beyond the burst",
        times.len()
    );
    assert!(
        least >= rate * 0.95 && most <= rate * 1.05,
        "{least}/s to {most}/s"
    );
    assert!(
        beyond <= 1.0 + rate * LATE,
        "{beyond} events beyond the burst"
    );
    console.check().await;
}

/// Tests a rate with many objects, which have one event each.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_of_many_objects_is_kept() {
    keeps_rate(&["a", "b", "c"], 6000, 1, 200.0, 20).await;
}

/// Tests a rate with few objects, which have many events each.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_of_few_objects_is_kept() {
    keeps_rate(&["a", "b", "c"], 4, 1500, 200.0, 20).await;
}

/// Tests the smallest burst of a rate, with one process.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_with_a_small_burst_is_kept() {
    keeps_rate(&["a"], 1000, 1, 20.0, 2).await;
}

/// Tests the smallest burst of a rate, with many processes that have free slots.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_by_many_processes() {
    keeps_rate(
        &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
        2000,
        1,
        50.0,
        5,
    )
    .await;
}

/// Tests that the calls stay short if all shares but one are part of a share that has little room.
#[tokio::test(flavor = "multi_thread")]
async fn calls_stay_short_with_nested_limits() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    set(&redis, "p:*", Share::new().in_flight(5)).await;
    for n in 1..SHARES_MAX {
        set(&redis, &format!("p:g{n}:*"), Share::new().in_flight(1)).await;
    }
    for n in 1..SHARES_MAX {
        console.emit(&format!("p:g{n}:1"), "1").await;
    }
    let recording = record(&console).await;
    let sink = Counter {
        takes: Duration::from_millis(5),
        ..Counter::default()
    };
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 16);
    until("all is delivered", PATIENCE, async || {
        (sink.counts().values().sum::<usize>() >= SHARES_MAX as usize - 1).then_some(())
    })
    .await;
    worker.stop().await;
    recording
        .assert_short_calls(&console, "nested limits")
        .await;
    console.check().await;
}

/// Tests that the calls stay short with the most shares, all with limits, and many objects of each.
#[tokio::test(flavor = "multi_thread")]
async fn calls_stay_short_with_a_thousand_limits() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    for n in 0..SHARES_MAX {
        set(
            &redis,
            &format!("g{n}:*"),
            Share::new().in_flight(1).rate(1000.0),
        )
        .await;
    }
    for round in 0..5 {
        for n in 0..SHARES_MAX as usize {
            console.emit(&format!("g{n}:{round}"), "1").await;
        }
    }
    let recording = record(&console).await;
    let sink = Counter {
        takes: Duration::from_millis(20),
        ..Counter::default()
    };
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1024);
    until("all is delivered", PATIENCE, async || {
        (sink.counts().values().sum::<usize>() >= 5 * SHARES_MAX as usize).then_some(())
    })
    .await;
    worker.stop().await;
    recording.assert_short_calls(&console, "1,024 limits").await;
    console.check().await;
}
