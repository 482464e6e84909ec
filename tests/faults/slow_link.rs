//! Slow links and dead links. A worker gives up a connection if no byte moves on it, but never
//! because a reply is large.

use std::time::{Duration, Instant};

use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::Redis;
use crate::support::console::{Console, PATIENCE};
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::Recorder;
use crate::support::running::start_at;

/// Speed of the link in bytes per second: 10 Mbit/s.
const SLOW: usize = 1_250_000;

/// Emits events of this many KiB for several objects. Returns the number of events.
async fn fill(console: &Console, objects: usize, events: usize, kib: usize) -> usize {
    for object in 0..objects {
        let events = (0..events).map(|n| format!("\"{n} {}\"", "x".repeat(kib * 1024)));
        console.emit_all(&format!("work:{object}"), events).await;
    }
    objects * events
}

fn assert_in_order(sink: &Recorder, objects: usize, events: usize) {
    for object in 0..objects {
        let applied = sink.applied_of(&format!("work:{object}"));
        let numbers = applied.iter().map(|event| {
            event
                .trim_matches('"')
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        assert!(
            numbers.eq((0..events).map(|n| n.to_string())),
            "work:{object}"
        );
    }
}

/// Story: a reply of 8 MiB at 1.25 MB/s took 6.7 s, but a whole reply was allowed only 5 s. The
/// worker reconnected, got the same batches, and repeated this for ever. It delivered nothing, and
/// kept its lease. Now a worker gives up a link only if no byte moves.
#[tokio::test]
async fn a_reply_takes_as_long_as_a_slow_link_needs() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let total = fill(&console, 8, 16, 48).await;
    let proxy = Proxy::before(&redis);
    proxy.slow_down(SLOW);
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| {
        config.concurrency = 16;
        config.response_timeout = Duration::from_secs(1);
    });
    sink.until_sent(total).await;
    assert_in_order(&sink, 8, 16);
    assert!(
        sink.offered().iter().all(|offer| offer.before == 0),
        "no batch had to come twice"
    );
    worker.finish().await;
    console.until_at_rest().await;
}

/// The reply to the commit of the last batch is late. The worker already waits for markers by then, and
/// delivers an event of another object.
#[tokio::test]
async fn a_late_reply_to_a_commit_delays_no_other_object() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| {
        config.response_timeout = 2 * PATIENCE
    });
    // After some short deliveries, the loop of the worker itself delivers a lone event. Only then does
    // the commit come before the next pop.
    for n in 1..=20 {
        console.until_idle(1).await;
        console.emit("work:1", n.to_string()).await;
        sink.until_sent(n).await;
    }
    console.until_idle(1).await;
    proxy.lose_next(&["done"], Lose::Late, false);
    console.emit("work:1", "21").await;
    proxy.until_lost(1).await;
    console.emit("work:2", "1").await;
    sink.until_sent(22).await;
    proxy.release();
    worker.finish().await;
    assert_eq!((sink.sent().len(), sink.overlaps().len()), (22, 0));
    console.until_at_rest().await;
}

/// The link passes some bytes of a reply, and then none. The worker gives up the connection after
/// the timeout. It asks for smaller replies until one passes. A batch taken before, and an event
/// larger than the limit, are still delivered.
#[tokio::test]
async fn after_a_timeout_the_worker_asks_for_less() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let total = fill(&console, 8, 8, 32).await;
    console
        .emit("large", format!("\"{}\"", "x".repeat(400 * 1024)))
        .await;
    let proxy = Proxy::before(&redis);
    proxy.get_stuck_after(600 * 1024);
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| {
        config.concurrency = 16;
        config.response_timeout = Duration::from_millis(200);
    });
    sink.until_sent(total + 1).await;
    assert_in_order(&sink, 8, 8);
    assert!(
        proxy.stuck() >= 2,
        "{} replies were too large",
        proxy.stuck()
    );
    worker.finish().await;
    console.until_at_rest().await;
}

/// The existing connections pass no byte, but new connections work. The worker gives up each dead
/// connection after the timeout.
#[tokio::test]
async fn a_link_that_stands_still_is_given_up() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let sink = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| {
        config.response_timeout = Duration::from_millis(500)
    });
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    console.until_idle(1).await;
    proxy.get_stuck_after(0);
    console.emit("work:1", "2").await;
    crate::support::until(
        "a connection stands still",
        Duration::from_secs(20),
        async || (proxy.stuck() > 0).then_some(()),
    )
    .await;
    proxy.get_stuck_after(usize::MAX);
    let began = Instant::now();
    console.emit("work:1", "3").await;
    sink.until_sent(3).await;
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "given up after {:?}",
        began.elapsed()
    );
    assert_eq!(sink.applied_of("work:1"), ["1", "2", "3"]);
    worker.finish().await;
}

/// A producer also gets its replies over a slow link. Story: many large emits at once waited for
/// one another on the link. All but the first ended with an unknown outcome.
#[tokio::test]
async fn large_emits_take_as_long_as_a_slow_link_needs() {
    let redis = Redis::own(&[]);
    let proxy = Proxy::before(&redis);
    let emitter = Emitter::builder(proxy.url())
        .keys(redis.keys().clone())
        .response_timeout(Duration::from_secs(1));
    let emitter = emitter.connect().await.expect("Redis answers");
    proxy.slow_down(SLOW);
    let event = format!("\"{}\"", "x".repeat(500 * 1024));
    let emits: Vec<_> = (0..8)
        .map(|n| {
            let (emitter, event) = (emitter.clone(), event.clone());
            tokio::spawn(async move { emitter.emit(format!("work:{n}"), Json::new(event)).await })
        })
        .collect();
    for emit in emits {
        assert_eq!(
            emit.await.expect("no panic").expect("acknowledged").events,
            1
        );
    }
}

/// A producer on a dead link gets an error after the timeout, even if it continues to send. Bytes
/// that only fill the send buffer do not count as progress.
#[tokio::test]
async fn an_emit_over_a_link_that_stands_still_is_unknown() {
    let redis = Redis::own(&[]);
    let proxy = Proxy::before(&redis);
    let emitter = Emitter::builder(proxy.url())
        .keys(redis.keys().clone())
        .response_timeout(Duration::from_millis(500));
    let emitter = emitter.connect().await.expect("Redis answers");
    emitter
        .emit("work:1", Json::new("1"))
        .await
        .expect("acknowledged");
    proxy.get_stuck_after(0);
    let first = tokio::spawn({
        let emitter = emitter.clone();
        async move { emitter.emit("work:1", Json::new("2")).await }
    });
    crate::support::until(
        "the connection stands still",
        Duration::from_secs(20),
        async || (proxy.stuck() > 0).then_some(()),
    )
    .await;
    let mut others = tokio::task::JoinSet::new();
    while !first.is_finished() {
        let emitter = emitter.clone();
        others.spawn(async move { emitter.emit("work:2", Json::new("3")).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(others.len() < 500, "the first emit waits for ever");
    }
    let answer = first.await.expect("no panic");
    assert!(
        matches!(&answer, Err(EmitError::Unknown { .. })),
        "{answer:?}"
    );
}
