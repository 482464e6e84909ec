//! A sink becomes unavailable while one of its deliveries hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use seriatim::sink::Stop;

use crate::support::Redis;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;

/// Story: the sink hung with the events of one object, and was unavailable for another object. The
/// worker tried the sink again only if no delivery was under way. So it never tried, and no object
/// continued. The fail point `deliver.after=unavailable` found this error.
#[tokio::test]
async fn a_delivery_that_stands_still_keeps_no_probe_away() {
    let (redis, console) = Redis::start().with_console().await;
    let (gate, up) = (Gate::closed(), Arc::new(AtomicBool::new(false)));
    let (held_up, answers) = (gate.clone(), Arc::clone(&up));
    let sink = Recorder::with(move |offer| match offer.object.as_str() {
        "stuck" => Act::Wait(held_up.clone()),
        _ if answers.load(Ordering::SeqCst) => Act::Send,
        _ => Act::Stop(Stop::unavailable("down")),
    });
    console.emit("stuck", "1").await;
    let worker = start(&redis, "w", &sink, |_| {});
    gate.until_reached(1).await;
    for n in 0..6 {
        console.emit_all(&format!("work:{n}"), ["1", "2"]).await;
    }
    // Four deliveries: the one that hangs, one of another slot with the result unavailable, and two
    // that try the sink again.
    sink.until_offered(1 + 3).await;
    up.store(true, Ordering::SeqCst);
    sink.until_sent(12).await;
    gate.open();
    worker.finish().await;
    console.until_at_rest().await;
}

/// The delivery that tries the sink again may hang, too. Then the worker tries the sink with the
/// batch of another slot.
#[tokio::test]
async fn a_probe_that_stands_still_is_followed_by_another() {
    let (redis, console) = Redis::start().with_console().await;
    let (gate, up) = (Gate::closed(), Arc::new(AtomicBool::new(false)));
    let (held_up, answers) = (gate.clone(), Arc::clone(&up));
    let sink = Recorder::with(move |offer| match offer.object.as_str() {
        // The sink is unavailable for the first delivery of every object. Then the first delivery
        // that tries the sink again hangs.
        _ if offer.before == 0 => Act::Stop(Stop::unavailable("down")),
        _ if !answers.swap(true, Ordering::SeqCst) => Act::Wait(held_up.clone()),
        _ => Act::Send,
    });
    for n in 0..4 {
        console.emit(&format!("work:{n}"), "1").await;
    }
    let worker = start(&redis, "w", &sink, |_| {});
    gate.until_reached(1).await;
    sink.until_sent(3).await;
    gate.open();
    sink.until_sent(4).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// Story: the sink was unavailable for one object only, and the worker tried it again and again with
/// this object. No other object was tried, because the only slot kept the batch.
#[tokio::test]
async fn each_probe_is_for_another_object() {
    let (redis, console) = Redis::start().with_console().await;
    let others = AtomicUsize::new(0);
    let sink = Recorder::with(move |offer| match offer.object.as_str() {
        // It is unavailable until the three other objects had their turn.
        "stuck" if others.load(Ordering::SeqCst) < 3 => Act::Stop(Stop::unavailable("down")),
        "stuck" => Act::Send,
        _ => {
            others.fetch_add(1, Ordering::SeqCst);
            Act::Send
        }
    });
    for object in ["stuck", "work:1", "work:2", "work:3"] {
        console.emit(object, "1").await;
    }
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1);
    sink.until_sent(4).await;
    worker.finish().await;
    console.until_at_rest().await;
    assert!(sink.sent().iter().all(|offer| offer.attempts == 0));
}
