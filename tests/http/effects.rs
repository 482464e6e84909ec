//! Answers with effects: what a receiver asks for with the success of an event.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::worker::EventLog;
use seriatim_http::{Allowed, EventUrl};

use crate::receiver::{Got, Receiver, Reply};
use crate::requests::{dead_errors, retry};
use crate::support::Redis;
use crate::support::console::Console;
use crate::support::running::start;

const TYPE: &str = "Content-Type: application/vnd.seriatim+json; charset=utf-8";

fn effects(value: &Value) -> Reply {
    Reply::With(200, vec![TYPE.to_owned()], value.to_string())
}

/// Answers events of the object `a` with these effects.
fn of_a(reply: Reply) -> impl Fn(&Got) -> Reply + Send + Sync + 'static {
    move |got| match got.header("seriatim-object") {
        "a" => reply.clone(),
        _ => Reply::Status(204),
    }
}

fn targets(receiver: &Receiver, object: &str) -> Vec<String> {
    let got = receiver.got();
    let events = got.iter().flat_map(Got::events);
    events
        .filter(|event| event.2 == object)
        .map(|event| event.3)
        .collect()
}

#[tokio::test]
async fn a_receiver_can_emit_schedule_and_return_a_result() {
    let asked = json!({
        "emit": [{"object": "b", "event": {"n": 12345678901234567890_u64}}, {"object": "b", "event": 2}],
        "schedule": [{"object": "b", "event": 3, "key": "k", "after_ms": 4_000_000_000_000_u64 / 4}],
        "result": {"receipt": 7},
    });
    let receiver = Receiver::with(of_a(effects(&asked))).await;
    let redis = Redis::start();
    let console = redis.console().await;
    console.emit_all("a", ["1", "2"]).await;
    let worker = start(&redis, "w", &receiver.sink("/"), |config| {
        config.event_log = Some(EventLog::default());
    });
    receiver.until_accepted(6).await;
    worker.finish().await;
    let sent = ["{\"n\":12345678901234567890}", "2"];
    assert_eq!(targets(&receiver, "b"), [sent, sent].concat());
    assert_eq!(targets(&receiver, "a"), ["1", "2"]);
    let scheduled: HashMap<String, String> = console
        .run(&["HGETALL", &console.keys.events_scheduled_of("b")])
        .await;
    assert_eq!(scheduled, HashMap::from([("k".to_owned(), "3".to_owned())]));
    type Row = (String, HashMap<String, String>);
    let log: Vec<Row> = console
        .run(&["XRANGE", &console.keys.event_log(), "-", "+"])
        .await;
    let results = log.iter().filter_map(|(_, row)| row.get("results"));
    assert_eq!(
        results.collect::<Vec<_>>(),
        vec![r#"{"answer":{"receipt":7}}"#; 2]
    );
    console.check().await;
}

/// The answer to a list stands for all its events, and its effects are carried out once.
#[tokio::test]
async fn the_effects_of_a_list_are_those_of_its_last_event() {
    let asked = json!({"emit": [{"object": "b", "event": 0}]});
    let receiver = Receiver::with(of_a(effects(&asked))).await;
    let redis = Redis::start();
    let console = redis.console().await;
    console.emit_all("a", (1..=7).map(|n| n.to_string())).await;
    let worker = start(&redis, "w", &receiver.sink("/?batch=5"), |_| {});
    console.until_at_rest_after(8).await;
    worker.finish().await;
    let lists = receiver
        .got()
        .iter()
        .filter(|got| got.header("seriatim-object") == "a")
        .count();
    assert_eq!(lists, 2);
    assert_eq!(targets(&receiver, "a").len(), 7);
    assert_eq!(targets(&receiver, "b"), ["0", "0"]);
    console.check().await;
}

/// Effects that are not valid fail the event with the reason. Other bodies are ignored, as ever.
#[tokio::test]
async fn wrong_effects_fail_the_event_and_other_bodies_are_ignored() {
    let invalid = |text: &str| Reply::With(200, vec![TYPE.to_owned()], text.to_owned());
    let other = |text: &str| {
        Reply::With(
            200,
            vec!["Content-Type: application/json".to_owned()],
            text.to_owned(),
        )
    };
    let wrong = "answered 200 OK, but the answer is not valid: ";
    for (reply, why) in [
        (invalid("{"), Some(format!("{wrong}EOF while parsing"))),
        (
            invalid(r#"{"emits":[]}"#),
            Some(format!("{wrong}unknown field `emits`")),
        ),
        (
            invalid(&format!("\"{}\"", "x".repeat(5 << 20))),
            Some(format!("{wrong}it has more than 4194304 bytes")),
        ),
        (
            effects(&json!({"emit": [{"object": "\n", "event": 1}]})),
            Some(
                "the answer has a wrong emit[0]: an object name has no control characters"
                    .to_owned(),
            ),
        ),
        (effects(&json!({})), None),
        (other("{"), None),
        (other(r#"{"emit":[{"object":"b","event":1}]}"#), None),
    ] {
        let receiver = Receiver::with(of_a(reply.clone())).await;
        let redis = Redis::start();
        let console = redis.console().await;
        console.emit("a", "1").await;
        let worker = start(&redis, "w", &receiver.sink("/"), |config| {
            retry("fixed:10ms,attempts=2,then=dead-letter")(config);
        });
        console.until_at_rest_after(1).await;
        worker.finish().await;
        let dead = dead_errors(&console).await;
        match why {
            Some(why) => {
                assert!(dead.len() == 1 && dead[0].contains(&why), "{dead:?}");
                assert_eq!(receiver.got().len(), 2);
            }
            None => assert_eq!(dead, [""; 0]),
        }
        assert_eq!(targets(&receiver, "b"), [""; 0]);
    }
}

/// The URL of an event may be that of a stranger. So its answers have effects only if an operator has
/// allowed them.
#[tokio::test]
async fn a_stranger_has_no_effects() {
    let asked = json!({"emit": [{"object": "b", "event": {"url": "http://127.0.0.1/"}}]});
    let receiver = Receiver::with(of_a(effects(&asked))).await;
    for (from, emitted) in [(None, 0), (Some("/one/"), 1)] {
        let redis = Redis::start();
        let console: Console = redis.console().await;
        for path in ["/one/x", "/two/x"] {
            console
                .emit("a", json!({"url": receiver.url(path)}).to_string())
                .await;
        }
        let allowed = Allowed::new([receiver.url("/").parse().expect("a prefix")]);
        let from = from.map(|path| receiver.url(path).parse().expect("a prefix"));
        let sink = EventUrl::at("/url".parse().expect("a pointer"), allowed)
            .effects_from(from.into_iter().collect());
        let worker = start(
            &redis,
            "w",
            &Arc::new(sink.open().expect("valid settings")),
            |_| {},
        );
        console.until_at_rest_after(2 + emitted).await;
        worker.finish().await;
        // The URL of the emitted event is not allowed.
        assert_eq!(dead_errors(&console).await.len() as u64, emitted);
    }
}

/// A receiver that does not end its answer has done the work, but nobody knows what it asks for. So
/// the event comes again.
#[tokio::test]
async fn an_answer_without_an_end_is_no_answer() {
    let receiver = Receiver::with(|got| match got.number {
        0 => Reply::Unfinished(TYPE),
        _ => Reply::Status(200),
    })
    .await;
    let redis = Redis::start();
    let console = redis.console().await;
    console.emit("a", "1").await;
    let sink = crate::requests::sink(&receiver.url("/"), |options| {
        options.timeout = Duration::from_millis(300);
    });
    let worker = start(&redis, "w", &sink, retry("fixed:10ms"));
    console.until_at_rest_after(1).await;
    worker.finish().await;
    let attempts: Vec<_> = receiver
        .got()
        .iter()
        .map(|got| got.header("seriatim-attempt").to_owned())
        .collect();
    assert_eq!(attempts, ["1", "2"]);
}
