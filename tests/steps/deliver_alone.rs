//! Deliver: if the last deliveries were short, the loop of a worker itself polls a delivery that is
//! the only one. Every other delivery gets a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim::sink::{self, Stop};
use seriatim::worker::{Shutdown, Worker};
use tokio::sync::mpsc;
use tokio::task::Id;

use crate::support::Redis;
use crate::support::running::config;

/// The number of short deliveries in a row after which the loop polls a delivery itself.
const SHORT_RUN: usize = 8;

#[tokio::test]
async fn a_short_lone_delivery_has_no_task_of_its_own() {
    let (redis, console) = Redis::start().with_console().await;
    let (sends, mut delivered) = mpsc::unbounded_channel();
    let (sends, panicked) = (Arc::new(sends), Arc::new(AtomicBool::new(false)));
    let handler = sink::each(move |event| {
        let (sends, panicked) = (Arc::clone(&sends), Arc::clone(&panicked));
        async move {
            match &event.payload[..] {
                // This delivery does not end at its first poll.
                b"\"slow\"" => tokio::time::sleep(Duration::from_millis(20)).await,
                b"\"panics\"" if !panicked.swap(true, Ordering::SeqCst) => panic!("once"),
                _ => {}
            }
            sends
                .send(tokio::task::id())
                .map_err(|error| Stop::transient(error.to_string()))
        }
    });
    let shutdown = Shutdown::new();
    let worker = Worker::builder(redis.url())
        .config(config(&redis, "w"))
        .sink(handler)
        .build()
        .expect("valid");
    let running = tokio::spawn(worker.run(shutdown.clone()));
    let of_the_loop = running.id();
    let mut deliver = async |event: &str| -> Id {
        console.emit("work:1", event).await;
        delivered.recv().await.expect("a worker")
    };

    for _ in 0..SHORT_RUN {
        assert_ne!(
            deliver("1").await,
            of_the_loop,
            "before the loop knows that deliveries are short"
        );
    }
    // On a busy machine a short delivery may take longer, so the test repeats it.
    let mut tries = 0;
    while deliver("1").await != of_the_loop {
        tries += 1;
        assert!(tries < 2000, "no delivery was polled by the loop");
    }
    // A delivery that does not end at its first poll gets a task. So do the next deliveries.
    assert_ne!(deliver("\"slow\"").await, of_the_loop);
    for _ in 0..SHORT_RUN {
        assert_ne!(deliver("1").await, of_the_loop, "after a long delivery");
    }
    // A panic in a delivery that the loop polls is a failure, as in a task.
    while deliver("1").await != of_the_loop {}
    deliver("\"panics\"").await;
    deliver("1").await;
    shutdown.stop();
    running.await.expect("no panic").expect("a graceful stop");
    console.until_at_rest().await;
}
