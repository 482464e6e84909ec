//! Commit: each result reaches Redis once, several results in one call, and an event that is
//! emitted meanwhile is not lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{retrying, start, start_at};
use crate::support::{Redis, until};

async fn calls(console: &Console) -> u64 {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    // A commit is a call of a function or of a script.
    let counts = ["cmdstat_evalsha:calls=", "cmdstat_fcall:calls="]
        .into_iter()
        .filter_map(|start| stats.lines().find_map(|line| line.strip_prefix(start)))
        .map(|rest| rest.split(',').next().expect("a number"));
    let counts: Vec<u64> = counts.map(|n| n.parse().expect("a number")).collect();
    assert!(!counts.is_empty(), "scripts ran");
    counts.into_iter().sum()
}

#[tokio::test]
async fn many_slots_commit_in_one_call() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    // With these settings, almost only commits call scripts during the test.
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 64;
        config.block = Duration::from_secs(1);
        config.sweep = Duration::from_secs(60);
    });
    for n in 0..64 {
        console.emit(&format!("work:{n}"), "1").await;
    }
    gate.until_reached(64).await;
    let before = calls(&console).await;
    gate.open();
    console.until_at_rest().await;
    let calls = calls(&console).await - before;
    assert!(calls <= 32, "{calls} calls for 64 slots");
    worker.finish().await;
}

#[tokio::test]
async fn a_commit_moves_the_last_id_and_releases_the_object_in_one_step() {
    let (redis, console) = Redis::start().with_console().await;
    let (first, second) = (Gate::closed(), Gate::closed());
    let gates = [first.clone(), second.clone()];
    let sink = Recorder::with(move |offer| {
        Act::SendThenWait(gates[usize::from(offer.text() == "2")].clone())
    });
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1);
    let keys = &console.keys;
    console.emit("work:1", "1").await;
    first.until_reached(1).await;
    assert_eq!(console.text(&keys.last_event_id("work:1")).await, None);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1"]);
    assert_eq!(console.tag("w.0").await.as_deref(), Some("1"));
    assert_eq!(console.list(&keys.worker_object("w.0")).await, ["work:1"]);
    console.emit("work:1", "2").await;
    first.open();
    // The slot goes on with the next event of its object.
    second.until_reached(1).await;
    assert_eq!(
        console.text(&keys.last_event_id("work:1")).await.as_deref(),
        Some("1")
    );
    assert_eq!(console.tag("w.0").await.as_deref(), Some("2"));
    assert_eq!(console.owner("work:1").await.as_deref(), Some("w.0"));
    second.open();
    console.until_at_rest().await;
    assert_eq!(
        console.text(&keys.last_event_id("work:1")).await.as_deref(),
        Some("2")
    );
    worker.finish().await;
}

/// The worker finds the queue of an object empty, and a producer pushes before the worker releases
/// the object. The plain algorithm needs an extra read for this case. Each round emits an event
/// when the object's last event is being committed.
#[tokio::test]
async fn an_event_pushed_during_the_last_empty_take_is_not_lost() {
    const OBJECTS: usize = 8;
    const ROUNDS: usize = 400;
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let workers = ["a", "b"].map(|name| {
        start(&redis, name, &sink, |config| {
            config.block = Duration::from_secs(1)
        })
    });
    let producers = (0..OBJECTS).map(async |object| {
        let object = format!("work:{object}");
        let key = console.keys.last_event_id(&object);
        let mut last = 0;
        for round in 0..ROUNDS {
            console.emit(&object, round.to_string()).await;
            // Before the next emit, a round waits until the commit is visible, or only for the
            // delivery, or not at all.
            match round % 3 {
                0 => {
                    until("it is committed", PATIENCE, async || {
                        (console.number(&key).await > last).then_some(())
                    })
                    .await
                }
                1 => {
                    while sink.sent_of(&object).len() <= round {
                        tokio::task::yield_now().await;
                    }
                }
                _ => {}
            }
            last = console.number(&key).await;
        }
    });
    join_all(producers).await;
    sink.until_sent(OBJECTS * ROUNDS).await;
    for worker in workers {
        worker.finish().await;
    }
    assert_eq!(
        (sink.sent().len(), sink.overlaps().len()),
        (OBJECTS * ROUNDS, 0)
    );
    for object in 0..OBJECTS {
        assert!(
            sink.applied_of(&format!("work:{object}"))
                .into_iter()
                .eq((0..ROUNDS).map(|n| n.to_string()))
        );
    }
    console.until_at_rest().await;
}

/// Calls and replies are lost. The worker repeats every such call, and a repeated call changes
/// nothing.
#[tokio::test]
async fn lost_requests_and_replies_change_nothing() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::with(|offer| match (offer.id % 7, offer.before) {
        (3, 0) => Act::Stop(Stop::transient("down")),
        (5, 0) if offer.id % 35 == 5 => Act::Stop(Stop::rejected("never")),
        _ => Act::Send,
    });
    let proxy = Proxy::before(&redis);
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| config.batch = 3);
    console.emit("warm:up", "0").await;
    sink.until_sent(1).await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    proxy.lose(move |request| {
        let advance = request.windows(6).any(|part| part == b"held\r\n")
            || request.windows(9).any(|part| part == b"markers\r\n");
        let count = if advance {
            counted.fetch_add(1, Ordering::SeqCst)
        } else {
            0
        };
        match count % 8 {
            3 => Some(Lose::Reply),
            6 => Some(Lose::Request),
            _ => None,
        }
    });
    for n in 0..400 {
        console
            .emit(&format!("work:{}", n % 10), n.to_string())
            .await;
    }
    until("everything is delivered", PATIENCE, async || {
        (sink.sent().len() + console.dead().await.len() >= 401).then_some(())
    })
    .await;
    assert!(
        proxy.lost() >= 10,
        "only {} calls were disturbed",
        proxy.lost()
    );
    proxy.lose(|_| None);
    worker.finish().await;
    // A lost call delays a commit, but no batch is delivered twice.
    assert_eq!(
        (
            sink.sent().len() + console.dead().await.len(),
            sink.overlaps().len()
        ),
        (401, 0)
    );
    let dead: Vec<_> = console
        .dead()
        .await
        .into_iter()
        .map(|fields| String::from_utf8(fields[3].1.clone()).expect("text"))
        .collect();
    for object in 0..10 {
        let pushed = (object..400)
            .step_by(10)
            .map(|n: usize| n.to_string())
            .filter(|event| !dead.contains(event));
        assert!(
            sink.applied_of(&format!("work:{object}"))
                .into_iter()
                .eq(pushed)
        );
    }
    console.until_at_rest().await;
}

/// An object was held, released, and handed out again. A late duplicate of the first call must not
/// hold it again.
#[tokio::test]
async fn a_repeated_result_of_an_earlier_hand_out_is_ignored() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let first = Recorder::with(|_| Act::Stop(Stop::transient("down")));
    let second = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let proxy = Proxy::before(&redis);
    let away = start_at(proxy.url(), &redis, "away", &first, retrying("fixed:1h"));
    console.emit("warm:up", "0").await;
    console.until_held("warm:up", "retry").await;
    // The object is held, but the reply is lost. The closed proxy keeps the process from repeating
    // the call.
    proxy.lose_next(&["hold"], Lose::Reply, true);
    console.emit("work:1", "1").await;
    console.until_held("work:1", "retry").await;
    proxy.until_lost(1).await;
    let here = start(&redis, "here", &second, |_| {});
    console.release("work:1").await;
    gate.until_reached(1).await;
    // At most two calls are under way at a time. So when the third call after the repeated one is
    // sent, the repeated one has its reply.
    let behind = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&behind);
    proxy.lose(move |request| {
        let has = |needle: &[u8]| request.windows(needle.len()).any(|part| part == needle);
        let before = counted.load(Ordering::SeqCst);
        if has(b"\nhold\r\n") || before > 0 && has(b"\nfree\r\n") {
            counted.store(before + 1, Ordering::SeqCst);
        }
        None
    });
    proxy.open();
    until("the call is repeated", PATIENCE, async || {
        (behind.load(Ordering::SeqCst) >= 4).then_some(())
    })
    .await;
    let owner = console.owner("work:1").await.expect("an owner");
    assert!(owner.starts_with("here."), "{owner}");
    gate.open();
    second.until_sent(1).await;
    here.stop().await;
    away.stop().await;
    let offer = &second.sent()[0];
    assert_eq!(
        (offer.object.as_str(), offer.attempts, offer.before),
        ("work:1", 1, 0)
    );
}
