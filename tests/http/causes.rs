//! The cause of a failure: an answer for one event is not taken for the state of the receiver, a
//! statement about the receiver is not kept with one object, and no event is charged for a request
//! that was not made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim_http::{Allowed, EventUrl};
use tokio::time::Instant;

use crate::receiver::{Got, Receiver, Reply};
use crate::requests::{retry, sink};
use crate::support::Redis;
use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::running::start;
use crate::support::until;

fn event_sink(receivers: &[&Receiver]) -> Arc<EventUrl> {
    let allowed = Allowed::new(
        receivers
            .iter()
            .map(|receiver| receiver.url("/").parse().expect("a prefix")),
    );
    Arc::new(
        EventUrl::at("/url".parse().expect("a pointer"), allowed)
            .open()
            .expect("valid settings"),
    )
}

fn event(url: &str) -> String {
    serde_json::json!({ "url": url }).to_string()
}

fn object(got: &Got) -> &str {
    got.header("seriatim-object")
}

async fn until_dead(console: &Console, count: usize) {
    until("the dead letters", PATIENCE, async || {
        (console.dead().await.len() >= count).then_some(())
    })
    .await;
}

/// Story: one object of 10,000 was answered with 404. The worker took this for a wrong URL, and
/// tried the receiver again and again with this object. Of 9,990 other events, 7,440 waited.
#[tokio::test]
async fn an_object_that_is_refused_waits_alone() {
    for (status, slots) in [
        (401, 4),
        (403, 1),
        (404, 4),
        (405, 4),
        (407, 4),
        (502, 4),
        (503, 1),
    ] {
        let receiver = Receiver::with(move |got| {
            Reply::Status(if object(got) == "bad" { status } else { 200 })
        })
        .await;
        let redis = Redis::start();
        let console = redis.console().await;
        console.emit_all("bad", ["1", "2"]).await;
        for object in 0..100 {
            console
                .emit_all(&format!("good:{object}"), ["1", "2"])
                .await;
        }
        let worker = start(&redis, "w", &receiver.sink("/"), |config| {
            config.concurrency = slots;
            retry("fixed:10ms,attempts=3,then=dead-letter")(config);
        });
        receiver.until_accepted(200).await;
        until_dead(&console, 2).await;
        console.until_at_rest().await;
        worker.finish().await;
        let attempts: Vec<_> = receiver
            .got()
            .iter()
            .filter(|got| got.body.contains("\"id\":1,"))
            .map(|got| got.header("seriatim-attempt").to_owned())
            .collect();
        assert_eq!(
            attempts.last().map(String::as_str),
            Some("3"),
            "{status}: {attempts:?}"
        );
        assert_eq!(console.dead().await.len(), 2);
    }
}

/// Tests that the objects of a shard that fails wait, and that all others go on meanwhile. No event
/// is lost when the shard is back.
#[tokio::test]
async fn a_shard_that_fails_holds_its_own_objects() {
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let is_bad = |got: &Got| object(got).ends_with('7') || object(got).ends_with('3');
    let receiver = Receiver::with(move |got| {
        Reply::Status(if is_bad(got) && down.load(Ordering::Relaxed) {
            503
        } else {
            200
        })
    })
    .await;
    let redis = Redis::start();
    let console = redis.console().await;
    for object in 0..300 {
        console.emit_all(&object.to_string(), ["1", "2"]).await;
    }
    let worker = start(&redis, "w", &receiver.sink("/"), |config| {
        config.concurrency = 16
    });
    receiver.until_accepted(480).await;
    is_down.store(false, Ordering::Relaxed);
    receiver.until_accepted(600).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert!(console.dead().await.is_empty());
}

/// Tests the same for receivers that events name: an object that is refused with 503, or whose
/// request breaks off, does not open the circuit for others.
#[tokio::test]
async fn a_503_of_one_object_does_not_open_the_circuit() {
    let receiver =
        Receiver::with(|got| Reply::Status(if object(got) == "bad" { 503 } else { 200 })).await;
    let redis = Redis::start();
    let console = redis.console().await;
    let worker = start(&redis, "w", &event_sink(&[&receiver]), retry("fixed:10ms"));
    console.emit("bad", event(&receiver.url("/"))).await;
    for object in 0..300 {
        console
            .emit(&format!("good:{object}"), event(&receiver.url("/")))
            .await;
    }
    receiver.until_accepted(300).await;
    let bad = receiver
        .got()
        .iter()
        .filter(|got| object(got) == "bad")
        .count();
    // With an open circuit, there would be one request per second.
    let began = Instant::now();
    receiver.until_got(300 + bad + 5).await;
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "5 requests took {:?}",
        began.elapsed()
    );
    receiver.behave(|_| Reply::Status(200));
    console.until_at_rest().await;
    worker.finish().await;
}

#[tokio::test]
async fn a_setting_says_what_a_status_means() {
    let status = |got: &Got| match object(got) {
        "gone" => 404,
        "forbidden" => 403,
        "known" => 409,
        "odd" => 418,
        _ => 200,
    };
    let receiver = Receiver::with(move |got| Reply::Status(status(got))).await;
    let redis = Redis::start();
    let console = redis.console().await;
    for object in ["gone", "forbidden", "known", "odd"] {
        console.emit(object, "1").await;
    }
    let sink = sink(&receiver.url("/"), |options| {
        options.statuses = "404=reject,403=transient,409=delivered,4xx=transient"
            .parse()
            .expect("valid");
    });
    let worker = start(&redis, "w", &sink, retry("fixed:1h"));
    until_dead(&console, 1).await;
    console.until_held("forbidden", "retry").await;
    console.until_held("odd", "retry").await;
    worker.finish().await;
    let mut objects: Vec<_> = receiver
        .got()
        .iter()
        .map(|got| object(got).to_owned())
        .collect();
    objects.sort_unstable();
    assert_eq!(objects, ["forbidden", "gone", "known", "odd"]);
}

/// A receiver that answers 429 from the 40th request on, until 2 s after its first 429.
async fn throttling() -> Receiver {
    let first = std::sync::Mutex::new(None);
    Receiver::with(move |got| {
        let mut first = first.lock().expect("no panic");
        match got.number {
            0..40 => Reply::Status(200),
            _ if first.get_or_insert(got.at).elapsed() < Duration::from_secs(2) => {
                Reply::With(429, vec!["retry-after: 2".to_owned()], String::new())
            }
            _ => Reply::Status(200),
        }
    })
    .await
}

/// Asserts that a receiver was left alone for 2 s, that no attempt was charged, and that its rate
/// came back slowly.
fn assert_left_alone(receiver: &Receiver) {
    let got = receiver.got();
    let asked = got.iter().find(|got| !got.is_accepted).expect("a 429").at;
    let within = |from: u64, to: u64| {
        let (from, to) = (
            asked + Duration::from_millis(from),
            asked + Duration::from_millis(to),
        );
        got.iter()
            .filter(|got| (from..to).contains(&got.at))
            .count()
    };
    // Requests that were under way come until then.
    assert_eq!(
        within(300, 2000),
        0,
        "requests while it wants to be left alone"
    );
    assert!(got.iter().all(|got| got.header("seriatim-attempt") == "1"));
    let rates = [within(2000, 3000), within(3000, 4000)];
    assert!(
        rates[0] <= 20 && rates[1] <= 40,
        "{rates:?} requests per second"
    );
}

/// Story: a receiver answered 429 with `Retry-After: 30`. Each object waited for itself, so the
/// receiver got 949 further requests in this time. 1,850 attempts were counted. Then 950 requests
/// came in one second.
#[tokio::test]
async fn a_receiver_that_throttles_is_left_alone() {
    let (redis, receiver) = (Redis::start(), throttling().await);
    let console = redis.console().await;
    for object in 0..200 {
        console.emit(&object.to_string(), "1").await;
    }
    let worker = start(&redis, "w", &receiver.sink("/"), |config| {
        config.concurrency = 16;
        retry("fixed:10ms,attempts=1,then=dead-letter")(config);
    });
    receiver.until_accepted(200).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_left_alone(&receiver);
    assert!(console.dead().await.is_empty());
}

/// Tests the same for receivers that events name. Other receivers go on.
#[tokio::test]
async fn a_throttling_receiver_of_events_is_left_alone() {
    let (redis, receiver, other) = (Redis::start(), throttling().await, Receiver::start().await);
    let console = redis.console().await;
    for object in 0..200 {
        console
            .emit(&object.to_string(), event(&receiver.url("/")))
            .await;
    }
    let worker = start(&redis, "w", &event_sink(&[&receiver, &other]), |config| {
        config.concurrency = 16;
        retry("fixed:10ms,attempts=1,then=dead-letter")(config);
    });
    receiver.until_got(41).await;
    let asked = Instant::now();
    for object in 0..100 {
        console
            .emit(&format!("other:{object}"), event(&other.url("/")))
            .await;
    }
    other.until_accepted(100).await;
    println!(
        "the other receiver had its events after {:?}",
        asked.elapsed()
    );
    receiver.until_accepted(200).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_left_alone(&receiver);
    assert!(console.dead().await.is_empty());
}

/// Story: a receiver that refused every event led to 1,600 log lines per second.
#[tokio::test]
async fn a_receiver_that_refuses_all_does_not_flood_the_log() {
    let receiver = Receiver::with(|_| Reply::Status(400)).await;
    let (redis, console) = Redis::start().with_console().await;
    let began = Instant::now();
    let worker = Process::start(&redis, "w", &receiver.url("/"), &[]);
    for object in 0..1000 {
        console.emit(&format!("work:{object}"), "1").await;
    }
    until("all are dead letters", PATIENCE, async || {
        (console.dead().await.len() == 1000).then_some(())
    })
    .await;
    // The log of the test also has the details of level DEBUG.
    let log = worker.log();
    let is_line = |line: &&str| line.contains(" WARN ") && line.contains("deliver: a dead letter");
    let lines = log.lines().filter(is_line).count();
    let lines_max = 20 * (began.elapsed().as_secs() as usize + 2);
    assert!(
        0 < lines && lines <= lines_max,
        "{lines} of at most {lines_max}"
    );
}
