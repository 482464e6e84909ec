//! A worker process as a whole: events on their whole path, and the stop of the process.

use std::collections::HashMap;
use std::time::Duration;

use seriatim::sink::Stop;
use seriatim::worker::{StopReason, Worker, WorkerError};

use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{config, start};
use crate::support::{Redis, assert_matches};

#[tokio::test]
async fn events_come_out_in_order_with_ids_and_prevs() {
    let (redis, console) = Redis::start().with_console().await;
    let mut pushed: HashMap<String, Vec<String>> = HashMap::new();
    for n in 0..300 {
        let object = format!("work:{}", n * n % 7);
        console.emit(&object, n.to_string()).await;
        pushed.entry(object).or_default().push(n.to_string());
    }
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| config.batch = 8);
    sink.until_sent(300).await;
    let stopped = worker.stop().await;
    assert_eq!(
        (stopped.reason, stopped.delivered),
        (StopReason::Graceful { held: 0 }, 300)
    );

    assert_eq!(sink.sent().len(), 300, "nothing is sent twice");
    assert_eq!(sink.overlaps(), [""; 0]);
    let mut last: HashMap<String, u64> = HashMap::new();
    for offer in sink.sent() {
        let before = last.insert(offer.object.clone(), offer.id).unwrap_or(0);
        assert!(
            offer.prev == before && before < offer.id,
            "after {before}: {offer:?}"
        );
    }
    for (object, events) in pushed {
        assert_eq!(sink.applied_of(&object), events);
        assert_eq!(console.last_id(&object).await, last[&object]);
    }
    console.until_at_rest().await;
    assert_eq!(console.number(&console.keys.next_event_id()).await, 300);
}

#[tokio::test]
async fn many_processes_share_the_objects() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let workers = ["a", "b", "c"].map(|name| start(&redis, name, &sink, |config| config.batch = 3));
    for n in 0..200 {
        console
            .emit_all(
                &format!("work:{}", n % 20),
                [n.to_string(), format!("{n}.5")],
            )
            .await;
    }
    sink.until_sent(400).await;
    for worker in workers {
        worker.finish().await;
    }
    assert_eq!((sink.sent().len(), sink.overlaps().len()), (400, 0));
    for object in 0..20 {
        let pushed: Vec<String> = (object..200)
            .step_by(20)
            .flat_map(|n: usize| [n.to_string(), format!("{n}.5")])
            .collect();
        assert_eq!(sink.applied_of(&format!("work:{object}")), pushed);
    }
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_graceful_stop_finishes_what_is_in_hand_and_takes_nothing_more() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let worker = start(&redis, "w", &sink, |config| config.batch = 2);
    console.emit_all("work:1", ["1", "2", "3"]).await;
    gate.until_reached(1).await;
    // Waits until the stopping worker has given up its pop. Until then the pop would take the next
    // marker.
    console.until_idle(1).await;
    worker.shutdown.stop();
    console.until_idle(0).await;
    console.emit("work:2", "1").await;
    gate.open();
    let stopped = worker.ended().await.expect("a graceful stop");
    assert_eq!(stopped.reason, StopReason::Graceful { held: 0 });
    assert_eq!(sink.sent_of("work:2"), [""; 0]);
    assert_eq!(console.text(&console.keys.worker_lease("w")).await, None);

    // Another process continues with the rest at once, although no marker of the object is left.
    let other = Recorder::new();
    let worker = start(&redis, "other", &other, |_| {});
    other.until_sent(4 - stopped.delivered as usize).await;
    worker.finish().await;
    assert_eq!(
        [sink.sent_of("work:1"), other.sent_of("work:1")].concat(),
        ["1", "2", "3"]
    );
    assert_eq!(other.sent_of("work:2"), ["1"]);
    console.until_at_rest().await;
}

#[tokio::test]
async fn what_the_grace_does_not_suffice_for_is_held_and_not_counted() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|_| Act::Wait(Gate::closed()));
    let worker = start(&redis, "w", &sink, |config| {
        config.grace = Duration::from_millis(30)
    });
    console.emit_all("work:1", ["1", "2"]).await;
    sink.until_offered(1).await;
    let stopped = worker.stop().await;
    assert_eq!(
        (stopped.reason, stopped.delivered),
        (StopReason::Graceful { held: 1 }, 0)
    );
    let held = console.held_id("work:1").await.expect("it is held");
    assert_eq!(held, "1 0 0 0 stop");
    assert_eq!(console.owner("work:1").await.as_deref(), Some("held"));

    let other = Recorder::new();
    let worker = start(&redis, "other", &other, |_| {});
    other.until_sent(1).await;
    worker.finish().await;
    let first = &other.sent()[0];
    assert_eq!(
        (first.id, first.prev, first.attempts, first.crashes),
        (1, 0, 0, 0)
    );
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_stop_at_once_holds_everything_in_hand() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|_| Act::SendThenWait(Gate::closed()));
    let worker = start(&redis, "w", &sink, |_| {});
    for object in ["work:1", "work:2"] {
        console.emit(object, "1").await;
    }
    sink.until_sent(2).await;
    // The second signal comes during a graceful stop.
    worker.shutdown.stop();
    worker.shutdown.stop_at_once();
    let stopped = worker.ended().await.expect("a stop");
    assert_eq!((stopped.reason, stopped.delivered), (StopReason::AtOnce, 0));

    let again = Recorder::new();
    let worker = start(&redis, "w", &again, |_| {});
    again.until_sent(2).await;
    worker.finish().await;
    let ids = |sink: &Recorder| {
        let mut ids: Vec<_> = sink
            .sent()
            .into_iter()
            .map(|offer| (offer.object, offer.id, offer.prev, offer.crashes))
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(
        ids(&sink),
        ids(&again),
        "the same ids and prevs, and no crash is counted"
    );
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_failing_sink_does_not_keep_a_process_from_stopping() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|_| Act::Stop(Stop::unavailable("down")));
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_offered(1).await;
    assert_eq!(worker.stop().await.reason, StopReason::Graceful { held: 1 });
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("1 0 0 0 stop")
    );
}

#[tokio::test]
async fn a_worker_says_what_it_cannot_start_with() {
    let redis = Redis::start();
    let no_sink = Worker::builder(redis.url()).build().err();
    assert_eq!(
        no_sink.map(|error| error.to_string()).as_deref(),
        Some("a worker needs a sink")
    );
    let no_url = Worker::builder("nonsense:secret")
        .sink(Recorder::new())
        .build()
        .err()
        .expect("no URL");
    assert!(
        matches!(no_url, WorkerError::Url(_)) && !no_url.to_string().contains("secret"),
        "{no_url}"
    );
    let bad = config(&redis, "a b");
    let bad = Worker::builder(redis.url())
        .config(bad)
        .sink(Recorder::new())
        .build()
        .err();
    assert_matches!(bad, Some(WorkerError::Config(_)));

    let mut impatient = config(&redis, "w");
    impatient.connect_timeout = std::time::Duration::ZERO;
    let nobody = Worker::builder("unix:///nowhere/redis.sock")
        .config(impatient)
        .sink(Recorder::new())
        .build()
        .expect("valid");
    let error = tokio::time::timeout(PATIENCE, nobody.run(seriatim::worker::Shutdown::new()))
        .await
        .expect("it answers");
    let error = error.expect_err("no Redis").to_string();
    assert!(
        error.starts_with("cannot connect to Redis at /nowhere/redis.sock: "),
        "{error}"
    );
}
