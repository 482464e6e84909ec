//! Claim: the ways in which an object comes to a slot.

use std::time::{Duration, Instant};

use crate::support::Redis;
use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::until;

#[tokio::test]
async fn an_idle_worker_gets_the_first_event_without_polling() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.block = Duration::from_secs(1);
        config.sweep = Duration::from_secs(60);
    });
    let began = Instant::now();
    for n in 0..40 {
        console.until_idle(1).await;
        console.emit("work:1", n.to_string()).await;
        sink.until_sent(n + 1).await;
    }
    // A worker that polled once per block time would need half of this time for each event, 20 s in
    // all.
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    worker.finish().await;
    console.until_at_rest().await;
}

#[tokio::test]
async fn due_held_objects_and_markers_take_turns() {
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    for n in 1..=4 {
        let (held, marked) = (format!("held:{n}"), format!("marked:{n}"));
        let _: () = console.run(&["LPUSH", &keys.events_held(&held), "1"]).await;
        let _: () = console
            .run(&[
                "SET",
                &keys.events_held_id(&held),
                &format!("{n} 0 0 0 stop"),
            ])
            .await;
        let _: () = console
            .run(&["SET", &keys.event_worker(&held), "held"])
            .await;
        let _: () = console
            .run(&["ZADD", &keys.objects_held(), &n.to_string(), &held])
            .await;
        console.emit(&marked, "1").await;
    }
    let _: () = console.run(&["SET", &keys.next_event_id(), "4"]).await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1);
    sink.until_sent(8).await;
    worker.finish().await;
    let order: Vec<_> = sink.sent().into_iter().map(|offer| offer.object).collect();
    assert_eq!(
        order,
        [
            "held:1", "marked:1", "held:2", "marked:2", "held:3", "marked:3", "held:4", "marked:4"
        ]
    );
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_held_object_waits_for_its_time() {
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console.until_lease("w").await;
    let now_ms = async || {
        let (now_s, now_us): (u64, u64) = console.run(&["TIME"]).await;
        now_s * 1000 + now_us / 1000
    };
    let later = now_ms().await + 3_600_000;
    let mut pipe = redis::pipe();
    pipe.atomic()
        .cmd("LPUSH")
        .arg(keys.events_held("late"))
        .arg("1")
        .cmd("SET")
        .arg(keys.events_held_id("late"))
        .arg("1 0 0 0 stop");
    pipe.cmd("SET")
        .arg(keys.event_worker("late"))
        .arg("held")
        .cmd("ZADD")
        .arg(keys.objects_held())
        .arg(later)
        .arg("late");
    pipe.cmd("SET").arg(keys.next_event_id()).arg(1);
    let () = pipe
        .query_async(&mut redis.connect().await)
        .await
        .expect("held");
    // A new marker does not make a held object due earlier.
    console.emit("late", "2").await;
    console.emit("other", "1").await;
    sink.until_sent(1).await;
    let due = now_ms().await + 300;
    let added: u64 = console
        .run(&["ZADD", &keys.objects_held(), &due.to_string(), "late"])
        .await;
    assert_eq!(added, 0, "it is still held");
    // Without this event the worker would look again only at the time that it knows.
    console.emit("other", "2").await;
    sink.until_sent(4).await;
    assert!(now_ms().await >= due);
    worker.finish().await;
    assert_eq!(sink.sent()[0].object, "other");
    assert_eq!(sink.applied_of("late"), ["1", "2"]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn markers_that_lead_nowhere_are_dropped() {
    let (redis, console) = Redis::start().with_console().await;
    let keys = &console.keys;
    // There are more markers than one call reads: empty ones, markers of an object without events,
    // and many markers of one object.
    let mut pipe = redis::pipe();
    for n in 0..1500 {
        pipe.cmd("LPUSH")
            .arg(keys.objects_with_events())
            .arg(["", "nothing", "busy"][n % 3])
            .ignore();
    }
    let () = pipe
        .query_async(&mut redis.connect().await)
        .await
        .expect("pushed");
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.object == "busy" {
            Act::Wait(held_up.clone())
        } else {
            Act::Send
        }
    });
    console.emit("busy", "1").await;
    console.emit("last", "1").await;
    let worker = start(&redis, "w", &sink, |_| {});
    until("the last marker is found", PATIENCE, async || {
        (sink.sent_of("last").len() == 1).then_some(())
    })
    .await;
    // Markers of an owned object are dropped, too. The later events of the object are still
    // delivered.
    gate.until_reached(1).await;
    console.emit_all("busy", ["2", "3"]).await;
    until("the markers are gone", PATIENCE, async || {
        (console.markers().await.is_empty()).then_some(())
    })
    .await;
    gate.open();
    sink.until_sent(4).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("busy"), ["1", "2", "3"]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_slow_object_holds_up_only_itself() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.object == "slow" {
            Act::Wait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 2);
    console.emit("slow", "1").await;
    gate.until_reached(1).await;
    for n in 0..50 {
        console.emit_all("slow", [n.to_string()]).await;
        console
            .emit(&format!("quick:{}", n % 5), n.to_string())
            .await;
    }
    sink.until_sent(50).await;
    assert_eq!(sink.sent_of("slow"), [""; 0]);
    gate.open();
    sink.until_sent(101).await;
    worker.finish().await;
    assert_eq!(sink.overlaps().len(), 0);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_busy_object_yields_and_its_markers_buy_it_no_turns() {
    let (redis, console) = Redis::start().with_console().await;
    console
        .emit_all("busy", (0..40).map(|n| n.to_string()))
        .await;
    console.emit("second", "1").await;
    console.emit("third", "1").await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        config.batch = 4;
        config.turn_max = 8;
    });
    sink.until_sent(42).await;
    worker.finish().await;
    let order: Vec<_> = sink.sent().into_iter().map(|offer| offer.object).collect();
    let turns: Vec<(&str, usize)> = order
        .chunk_by(|a, b| a == b)
        .map(|turn| (turn[0].as_str(), turn.len()))
        .collect();
    // The first turn of `busy` came from a marker. So its second turn, as a due held object,
    // follows at once. After that it is the turn of the markers.
    assert_eq!(
        turns,
        [
            ("busy", 16),
            ("second", 1),
            ("busy", 8),
            ("third", 1),
            ("busy", 16)
        ]
    );
    assert_eq!(sink.applied_of("busy").len(), 40);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_batch_is_bounded_by_events_and_by_bytes() {
    let (redis, console) = Redis::start().with_console().await;
    let large = format!("{:?}", "x".repeat(1000));
    console
        .emit_all("many", (0..25).map(|n| n.to_string()))
        .await;
    console.emit_all("large", (0..7).map(|_| &large)).await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.batch = 10;
        config.batch_bytes = 2500;
    });
    sink.until_sent(32).await;
    worker.finish().await;
    let batches = |object: &str| -> Vec<usize> {
        sink.sent()
            .iter()
            .filter(|offer| offer.object == object && offer.at == 0)
            .map(|offer| offer.batch)
            .collect()
    };
    assert_eq!(batches("many"), [10, 10, 5]);
    assert_eq!(batches("large"), [3, 3, 1]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_reply_is_bounded_and_the_rest_follows() {
    let (redis, console) = Redis::start().with_console().await;
    let large = format!("{:?}", "x".repeat(1000));
    for n in 0..30 {
        console
            .emit_all(&format!("work:{n}"), [&large, &large])
            .await;
    }
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 16;
        config.reply_bytes = 3000;
        config.batch = 1;
    });
    sink.until_sent(60).await;
    worker.finish().await;
    assert_eq!((sink.applied().len(), sink.sent().len()), (30, 60));
    console.until_at_rest().await;
}

#[tokio::test]
async fn every_slot_gets_an_object_of_its_own() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 32);
    for n in 0..40 {
        console.emit(&format!("work:{n}"), "1").await;
    }
    gate.until_reached(32).await;
    let mut workers: Vec<_> = sink
        .offered()
        .into_iter()
        .map(|offer| offer.worker)
        .collect();
    workers.sort();
    workers.dedup();
    assert_eq!((workers.len(), sink.offered().len()), (32, 32));
    for offer in sink.offered() {
        assert_eq!(console.owner(&offer.object).await, Some(offer.worker));
    }
    gate.open();
    sink.until_sent(40).await;
    worker.finish().await;
    console.until_at_rest().await;
}
