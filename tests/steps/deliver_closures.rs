//! Deliver, with closures as sinks, as in a user's program.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use seriatim::sink::{self, Delivered, Stop};
use seriatim::worker::{Shutdown, Worker};

use crate::support::console::PATIENCE;
use crate::support::running::config;
use crate::support::{Redis, until};

#[tokio::test]
async fn a_closure_per_event_stops_at_its_first_error() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit_all("work:1", ["1", "2", "\"bad\"", "3"]).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tries = Arc::new(AtomicUsize::new(0));
    let (sees, counts) = (Arc::clone(&seen), Arc::clone(&tries));
    let handler = sink::each(move |event| {
        let (sees, counts) = (Arc::clone(&sees), Arc::clone(&counts));
        async move {
            match &event.payload[..] {
                b"\"bad\"" => Err(Stop::rejected("no")),
                b"2" if counts.fetch_add(1, Ordering::SeqCst) < 2 => {
                    Err(Stop::transient("not yet"))
                }
                _ => {
                    sees.lock().expect("no panic").push((event.id, event.prev));
                    Ok(())
                }
            }
        }
    });
    let shutdown = Shutdown::new();
    let worker = Worker::builder(redis.url())
        .config(config(&redis, "w"))
        .sink(handler)
        .build()
        .expect("valid");
    let running = tokio::spawn(worker.run(shutdown.clone()));
    until("three events are delivered", PATIENCE, async || {
        (seen.lock().expect("no panic").len() == 3).then_some(())
    })
    .await;
    shutdown.stop();
    let stopped = running.await.expect("no panic").expect("a graceful stop");
    assert_eq!(*seen.lock().expect("no panic"), [(1, 0), (2, 1), (4, 2)]);
    assert_eq!((stopped.delivered, tries.load(Ordering::SeqCst)), (3, 3));
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_closure_per_batch_answers_for_all_of_it() {
    let (redis, console) = Redis::start().with_console().await;
    console
        .emit_all("work:1", (0..10).map(|n| n.to_string()))
        .await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&sizes);
    let handler = sink::batches(move |batch, _| {
        let sees = Arc::clone(&sees);
        async move {
            sees.lock().expect("no panic").push(batch.len());
            // Delivers half of the batch, or the whole batch if it has only one event.
            if batch.len() > 1 {
                Delivered::stopped(batch.len() / 2, Stop::unavailable("full"))
            } else {
                Delivered::all()
            }
        }
    });
    let worker = Worker::builder(redis.url())
        .config(config(&redis, "w"))
        .sink(handler)
        .build()
        .expect("valid");
    let running = tokio::spawn(worker.run(Shutdown::new()));
    let last = console.keys.last_event_id("work:1");
    until("all is delivered", PATIENCE, async || {
        (console.number(&last).await == 10).then_some(())
    })
    .await;
    running.abort();
    assert_eq!(*sizes.lock().expect("no panic"), [10, 5, 3, 2, 1]);
    console.until_at_rest().await;
}
