//! The effect of each answer on the event and on the other objects.

use crate::receiver::{Got, Receiver, Reply};
use crate::requests::{ONCE, dead_errors, retry, sink};
use crate::support::Redis;
use crate::support::running::start;

fn has(got: &Got, text: &str) -> bool {
    got.body.contains(text)
}

/// Tests that these answers hold the event's object alone, with the answer's text as the reason.
#[tokio::test]
async fn a_transient_answer_holds_one_object() {
    for status in [301, 408, 425, 429, 500, 504, 599] {
        let redis = Redis::start();
        let receiver = Receiver::with(move |got| match has(got, "bad") {
            true => Reply::With(
                status,
                vec!["location: /other".to_owned()],
                " no\u{1b}[31m luck ".to_owned(),
            ),
            false => Reply::Status(200),
        })
        .await;
        let console = redis.console().await;
        console.emit_all("a", ["\"bad\"", "2"]).await;
        console.emit_all("b", ["1", "2"]).await;
        let worker = start(&redis, "w", &receiver.sink("/"), retry("fixed:1h"));
        console.until_held("a", "retry").await;
        receiver.until_accepted(2).await;
        worker.finish().await;
        assert_eq!(
            receiver.got().iter().filter(|got| has(got, "bad")).count(),
            1,
            "{status} is sent once"
        );
        let held = console.held_id("a").await.expect("held");
        assert!(held.starts_with("1 "), "{held}");
        receiver.behave(|_| Reply::Status(200));
        console.release("a").await;
        let worker = start(&redis, "w", &receiver.sink("/"), |_| {});
        console.until_at_rest().await;
        worker.finish().await;
        assert_eq!(receiver.applied()["a"], ["\"bad\"", "2"]);
    }
}

/// Story: `Retry-After: 0` made the worker send thousands of requests per second.
#[tokio::test]
async fn a_retry_after_of_0_does_not_count() {
    let redis = Redis::start();
    let receiver =
        Receiver::with(|_| Reply::With(500, vec!["retry-after: 0".to_owned()], String::new()))
            .await;
    let console = redis.console().await;
    console.emit("a", "1").await;
    let worker = start(&redis, "w", &receiver.sink("/"), retry("fixed:1h"));
    console.until_held("a", "retry").await;
    worker.finish().await;
    assert_eq!(receiver.got().len(), 1);
}

/// Tests that `Retry-After` of an answer about one event replaces the backoff. The failure counts as
/// an attempt.
#[tokio::test]
async fn retry_after_is_honoured() {
    let redis = Redis::start();
    let receiver = Receiver::with(|got| match got.number {
        0 | 1 => Reply::With(500, vec!["retry-after: 1".to_owned()], String::new()),
        _ => Reply::Status(200),
    })
    .await;
    let console = redis.console().await;
    console.emit("a", "1").await;
    let worker = start(
        &redis,
        "w",
        &receiver.sink("/"),
        retry("fixed:1h,attempts=3,then=dead-letter"),
    );
    receiver.until_accepted(1).await;
    worker.finish().await;
    let got = receiver.got();
    let waits: Vec<_> = got
        .windows(2)
        .map(|pair| (pair[1].at - pair[0].at).as_secs_f64())
        .collect();
    assert!(
        waits.iter().all(|wait| (1.0..3.0).contains(wait)),
        "{waits:?}"
    );
    assert_eq!(
        got.iter()
            .map(|got| got.header("seriatim-attempt"))
            .collect::<Vec<_>>(),
        ["1", "2", "3"]
    );
    assert!(dead_errors(&console).await.is_empty());
}

#[tokio::test]
async fn a_rejected_event_is_a_dead_letter_with_the_answer() {
    let redis = Redis::start();
    let receiver = Receiver::with(|got| match has(got, "bad") {
        true => Reply::With(
            422,
            Vec::new(),
            format!("no such field in {} by Bearer hunter3\n", &got.target[6..]),
        ),
        false => Reply::Status(200),
    })
    .await;
    let console = redis.console().await;
    console.emit_all("a", ["1", "\"bad\"", "3"]).await;
    let sink = sink(&receiver.url("/hook?token=hunter2"), |options| {
        options.header("X-Key", "Bearer hunter3").expect("a header")
    });
    let worker = start(&redis, "w", &sink, |_| {});
    receiver.until_accepted(2).await;
    console.until_at_rest().await;
    worker.finish().await;
    let expected = format!(
        "{} answered 422 Unprocessable Entity: no such field in *** by ***",
        receiver.url("/hook")
    );
    assert_eq!(dead_errors(&console).await, [expected]);
}

/// Tests that only the bad event of a rejected list becomes a dead letter, and that the other
/// events of the list are sent one by one, in order.
#[tokio::test]
async fn a_rejected_list_is_sent_again_one_by_one() {
    let redis = Redis::start();
    let receiver =
        Receiver::with(|got| Reply::Status(if has(got, "bad") { 413 } else { 200 })).await;
    let console = redis.console().await;
    console
        .emit_all(
            "a",
            (0..20).map(|n| {
                if n == 7 {
                    "\"bad\"".to_owned()
                } else {
                    n.to_string()
                }
            }),
        )
        .await;
    let worker = start(&redis, "w", &receiver.sink("/?batch=10"), |_| {});
    console.until_at_rest().await;
    worker.finish().await;
    let sizes: Vec<_> = receiver
        .got()
        .iter()
        .map(|got| got.events().len())
        .collect();
    assert_eq!(sizes[..9], [10, 1, 1, 1, 1, 1, 1, 1, 1]);
    let expected: Vec<_> = (0..20).filter(|n| *n != 7).map(|n| n.to_string()).collect();
    assert_eq!(receiver.applied()["a"], expected);
    assert_eq!(dead_errors(&console).await.len(), 1);
}

/// Story: a wrong token would empty the queue into the dead letters, one event after another.
#[tokio::test]
async fn a_wrong_token_stops_everything_and_loses_nothing() {
    for status in [401, 403, 404, 405, 407, 502, 503] {
        let (redis, receiver) = (
            Redis::start(),
            Receiver::with(move |_| Reply::Status(status)).await,
        );
        let console = redis.console().await;
        for object in 0..20 {
            console.emit(&object.to_string(), "1").await;
        }
        let worker = start(&redis, "w", &receiver.sink("/"), retry(ONCE));
        receiver.until_got(2).await;
        receiver.behave(|_| Reply::Status(200));
        receiver.until_accepted(20).await;
        console.until_at_rest().await;
        worker.finish().await;
        assert!(dead_errors(&console).await.is_empty());
    }
}

/// Tests that an idle connection that the server has closed costs no attempt. Most servers close
/// idle connections.
#[tokio::test]
async fn a_closed_idle_connection_costs_no_attempt() {
    let (redis, receiver) = (
        Redis::start(),
        Receiver::with(|_| Reply::ThenClose(200)).await,
    );
    let console = redis.console().await;
    console.emit_all("a", (0..100).map(|n| n.to_string())).await;
    let worker = start(&redis, "w", &receiver.sink("/"), retry(ONCE));
    receiver.until_accepted(100).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert!(dead_errors(&console).await.is_empty());
}

/// Tests that a large answer, or one that never ends, neither fails nor delays the delivery.
#[tokio::test]
async fn an_endless_answer_is_not_read() {
    let endless = |got: &Got| Reply::Endless(if got.number == 0 { 1 << 20 } else { 10 });
    let (redis, receiver) = (Redis::start(), Receiver::with(endless).await);
    let console = redis.console().await;
    console.emit_all("a", ["1", "2"]).await;
    let worker = start(&redis, "w", &receiver.sink("/"), |_| {});
    receiver.until_accepted(2).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(receiver.got().len(), 2);
}
