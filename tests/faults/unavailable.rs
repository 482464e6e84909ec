//! A sink that is unavailable only in one of several processes.

use std::time::Duration;

use seriatim::sink::Stop;

use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// Story: the disk of one node was full. Its worker kept all of its batches, although healthy
/// workers were idle. Now after a while the worker holds these objects for other workers, and
/// counts no attempt. From then on the worker has at most one batch, with which it tries its sink.
#[tokio::test]
async fn what_an_unavailable_sink_keeps_goes_to_others() {
    let (redis, console) = Redis::start().with_console().await;
    let broken = Recorder::with(|_| Act::Stop(Stop::unavailable("disk full")));
    let sick = start(&redis, "sick", &broken, |config| {
        config.concurrency = 4;
        config.unavailable_max = Duration::from_millis(200);
    });
    for object in ["work:1", "work:2", "work:3", "work:4"] {
        console.emit(object, "1").await;
    }
    broken.until_offered(1).await;
    let sink = Recorder::new();
    let healthy = start(&redis, "healthy", &sink, |_| {});
    sink.until_sent(4).await;
    assert!(
        sink.sent()
            .iter()
            .all(|offer| (offer.attempts, offer.crashes) == (0, 0)),
        "nothing is counted"
    );
    console.until_at_rest().await;
    healthy.finish().await;
    // Without other workers, the worker claims the event again only to try its sink. It does not
    // claim in a tight loop.
    console.emit("work:5", "1").await;
    let offered = || {
        broken
            .offered()
            .iter()
            .filter(|offer| offer.object == "work:5")
            .count()
    };
    until("it is tried", PATIENCE, async || {
        (offered() >= 3).then_some(())
    })
    .await;
    let id = broken
        .offered()
        .iter()
        .rfind(|offer| offer.object == "work:5")
        .map(|offer| offer.attempts);
    assert_eq!(id, Some(0));
    sick.stop().await;
}

/// Story: every sink was down, and `inspect` said of an object that a free worker takes it.
#[tokio::test]
async fn an_inspection_says_that_every_sink_is_down() {
    let (redis, console) = Redis::start().with_console().await;
    let broken = Recorder::with(|_| Act::Stop(Stop::unavailable("disk full")));
    let sick = start(&redis, "sick", &broken, |config| {
        config.concurrency = 1;
        config.lease = Duration::from_millis(600);
    });
    console.emit_all("work:1", ["1"]).await;
    broken.until_offered(1).await;
    console.emit_all("work:2", ["1"]).await;
    let why = async |object: &str| {
        let inspection = console.control().inspect(object).await;
        inspection.expect("an inspection").why
    };
    const DOWN: &str = "but the sinks of all worker processes are down: disk full";
    until("it says so", PATIENCE, async || {
        let why = why("work:2").await;
        why.contains(DOWN).then_some(())
    })
    .await;
    // One sink that does not fail is enough. Its worker and the other one are both busy then.
    let hangs = Recorder::with(|_| Act::Wait(Gate::closed()));
    let healthy = start(&redis, "healthy", &hangs, |config| config.concurrency = 1);
    hangs.until_offered(1).await;
    console.emit("work:3", "1").await;
    until("it no longer says so", PATIENCE, async || {
        let why = why("work:3").await;
        (why.contains("a free worker") && !why.contains(DOWN)).then_some(())
    })
    .await;
    healthy.crash().await;
    sick.crash().await;
}
