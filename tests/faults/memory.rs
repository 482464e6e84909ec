//! At `maxmemory` no producer can emit. Workers must still deliver the waiting events, because only
//! this frees memory.

use std::time::Duration;

use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// Makes Redis refuse writes for lack of memory: it uses more than `maxmemory`, and evicts no key.
async fn full(console: &Console) {
    let _: () = console
        .run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    let _: () = console.run(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    let error = console
        .try_emit_all("work:1", ["0"])
        .await
        .expect_err("no room");
    assert!(error.to_string().contains("OOM"), "{error}");
}

async fn refused(console: &Console) -> u64 {
    let stats: String = console.run(&["INFO", "errorstats"]).await;
    let line = stats
        .lines()
        .find(|line| line.starts_with("errorstat_OOM:"))
        .unwrap_or("errorstat_OOM:count=0");
    line.split('=')
        .nth(1)
        .expect("count=N")
        .parse()
        .expect("a number")
}

#[tokio::test]
async fn the_backlog_drains() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    for n in 0..400 {
        console
            .emit(&format!("work:{}", n % 10), n.to_string())
            .await;
    }
    full(&console).await;
    // The sink gives each kind of result: most events are delivered, some are held and handed out
    // again, some become dead letters.
    let sink = Recorder::with(|offer| match (offer.id % 10, offer.before) {
        (3, 0) => Act::Stop(Stop::transient("down")),
        (7, _) => Act::Stop(Stop::rejected("never")),
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.batch = 8;
        config.turn_max = 16;
    });
    until("everything is delivered or dead", PATIENCE, async || {
        (sink.sent().len() + console.dead().await.len() == 400).then_some(())
    })
    .await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(console.dead().await.len(), 40);
    sink.applied();
}

/// At `maxmemory`, a process takes over the batches of a killed process. It can start, stop, and
/// keep its lease.
#[tokio::test]
async fn leases_are_taken_renewed_and_given_back() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    console.emit_all("work:1", ["1", "2"]).await;
    let before = Recorder::with(|_| Act::Wait(crate::support::recorder::Gate::closed()));
    let worker = start(&redis, "w", &before, |_| {});
    before.until_offered(1).await;
    full(&console).await;
    worker.crash().await;
    console.end_lease("w").await;
    let sink = Recorder::new();
    let other = start(&redis, "other", &sink, |config| {
        config.lease = Duration::from_secs(2)
    });
    sink.until_sent(2).await;
    let key = console.keys.worker_lease("other");
    let mut left: i64 = console.run(&["PTTL", &key]).await;
    let mut renewals = 0;
    while renewals < 2 {
        let now: i64 = console.run(&["PTTL", &key]).await;
        assert!(now > 0, "the lease is there all the time");
        renewals += usize::from(now > left);
        left = now;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    other.finish().await;
    console.until_at_rest().await;
}

/// As long as Redis refuses the blocking pop, the worker looks for markers without it.
#[tokio::test]
async fn while_pops_are_refused_markers_are_found_all_the_same() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.sweep = Duration::from_secs(60)
    });
    console.until_idle(1).await;
    full(&console).await;
    let before = refused(&console).await;
    until("a pop was refused", PATIENCE, async || {
        (refused(&console).await > before).then_some(())
    })
    .await;
    // A script with `allow-oom` may push, although Redis refuses the emits of producers.
    let push = "#!lua flags=allow-oom\nredis.call('LPUSH', KEYS[1], ARGV[1]) redis.call('LPUSH', KEYS[2], ARGV[2])";
    for n in 1..=3 {
        let (queue, markers) = (
            console.keys.events("work:1"),
            console.keys.objects_with_events(),
        );
        let () = console
            .run(&[
                "EVAL",
                push,
                "2",
                &queue,
                &markers,
                &n.to_string(),
                "work:1",
            ])
            .await;
        sink.until_sent(n).await;
    }
    // The worker must not repeat its refused pops without a pause. It tries ten times a second.
    let (from, began) = (refused(&console).await, std::time::Instant::now());
    until("more pops are refused", PATIENCE, async || {
        (refused(&console).await >= from + 3).then_some(())
    })
    .await;
    assert!(
        began.elapsed() >= Duration::from_millis(150),
        "{:?}",
        began.elapsed()
    );
    let _: () = console.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    console.until_idle(1).await;
    console.emit("work:1", "4").await;
    sink.until_sent(4).await;
    worker.finish().await;
}
