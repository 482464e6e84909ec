//! Tests the status that a process writes about itself, and the lines of `stats` that show it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use seriatim::control::stats::NameStats;
use seriatim::sink::{self, Stop};

use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// Returns the statistics of the only worker name.
async fn name(redis: &Redis) -> NameStats {
    let stats = redis.control().await.stats().await.expect("stats");
    stats.workers.into_iter().next().expect("a name")
}

/// Tests the values of a status and its time to live, which is as long as a lease. A worker writes
/// its status again, even if another program has overwritten the key.
#[tokio::test]
async fn a_process_writes_its_status_again_and_again() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = start(&redis, "w", &Arc::new(sink::Null), |_| {});
    console
        .emit_all("work:1", (0..20).map(|n| n.to_string()))
        .await;
    let key = console.keys.worker_status("w");
    let status = until("20 events are in the status", PATIENCE, async || {
        name(&redis)
            .await
            .status
            .filter(|status| status.delivered == 20)
    })
    .await;
    assert_eq!(
        (status.sink.as_str(), status.sink_down_ms, status.longest),
        ("null", None, None)
    );
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    let later = until("a later status", PATIENCE, async || {
        name(&redis)
            .await
            .status
            .filter(|later| later.sink_up_ms > status.sink_up_ms && later.redis_rtt_us.is_some())
    })
    .await;
    assert!(
        status.sink_up_ms.is_some() && later.redis_rtt_us > Some(0),
        "{later:?}"
    );
    let slots = status.slots;
    assert_eq!(
        slots.free + slots.asked + slots.delivering + slots.reported + slots.parked,
        4
    );
    let left: i64 = console.run(&["PTTL", &key]).await;
    assert!((1..=60_000).contains(&left), "{left}");
    let _: () = console.run(&["DEL", &key]).await;
    let _: u64 = console.run(&["LPUSH", &key, "another type"]).await;
    until("the status is written again", PATIENCE, async || {
        name(&redis).await.status
    })
    .await;
    let _: () = console.run(&["SET", &key, "{\"sink\":7}"]).await;
    assert_eq!(name(&redis).await.status, None, "of an unknown version");
    until("the status is written again", PATIENCE, async || {
        name(&redis).await.status
    })
    .await;
    worker.finish().await;
}

/// Tests that a status that is gone is written again within 3 s, and that its time to live begins
/// at the length of the lease.
#[tokio::test]
async fn a_status_is_as_old_as_3_s_at_most() {
    let (redis, console) = Redis::start().with_console().await;
    let lease = Duration::from_secs(41);
    let worker = start(&redis, "w", &Arc::new(sink::Null), |config| {
        config.lease = lease
    });
    let key = console.keys.worker_status("w");
    let mut times = Vec::new();
    let look = Duration::from_millis(5);
    for _ in 0..5 {
        let (began, _) = (Instant::now(), console.run::<u64>(&["DEL", &key]).await);
        let left = until("the status is there", PATIENCE, async || {
            let left: i64 = console.run(&["PTTL", &key]).await;
            tokio::time::sleep(look).await;
            u64::try_from(left).ok()
        })
        .await;
        let left = Duration::from_millis(left);
        assert!(left <= lease, "{left:?}");
        times.push((began.elapsed(), lease - left));
    }
    worker.finish().await;
    // On a busy machine, two of the five rounds may be slow.
    times.sort();
    let (again, since) = times[2];
    println!("a status is written again after {again:?}");
    assert!(
        again <= Duration::from_secs(3) && since <= Duration::from_secs(3),
        "{times:?}"
    );
}

/// Tests the lines of `stats` about an unavailable sink and about a delivery that hangs.
#[tokio::test]
async fn stats_show_a_sink_that_is_down_and_the_longest_delivery() {
    let (redis, console) = Redis::start().with_console().await;
    let (is_down, gate) = (Arc::new(AtomicBool::new(false)), Gate::closed());
    let (down, waits) = (Arc::clone(&is_down), gate.clone());
    let sink = Recorder::with(move |offer| match offer.object.as_str() {
        "hangs:1" => Act::Wait(waits.clone()),
        _ if down.load(Ordering::SeqCst) => {
            Act::Stop(Stop::unavailable("no route to \u{1b}[2J the receiver"))
        }
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    console.emit("hangs:1", "2").await;
    gate.until_reached(1).await;
    is_down.store(true, Ordering::SeqCst);
    console.emit("work:1", "3").await;
    let wanted = ["longest       hangs:1, event 2, in", "sink down     w, for"];
    let printed = until("both are shown", PATIENCE, async || {
        let printed = redis.prints("stats");
        wanted
            .iter()
            .all(|line| printed.contains(line))
            .then_some(printed)
    })
    .await;
    assert!(
        printed.contains("no route to \\u{1b}[2J the receiver") && printed.contains("last minute"),
        "{printed}"
    );
    assert!(
        printed.lines().all(|line| line.chars().count() <= 80),
        "{printed}"
    );
    let json: Value = redis.json("stats --json");
    let status = &json["workers"][0]["status"];
    assert_eq!(status["longest"]["object"], "hangs:1");
    assert!(
        status["sink_down_ms"].is_u64() && status["sink_up_ms"].is_null(),
        "{status}"
    );
    is_down.store(false, Ordering::SeqCst);
    gate.open();
    sink.until_sent(3).await;
    worker.finish().await;
}
