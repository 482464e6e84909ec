//! The form of requests: bodies, headers, signatures, connections.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use seriatim::worker::WorkerConfig;
use seriatim_http::{Format, Http, Options, Secret};

use crate::receiver::{Got, Receiver, Reply};
use crate::support::Redis;
use crate::support::console::Console;
use crate::support::running::start;

/// Returns a sink for the receiver.
pub(crate) fn sink(url: &str, change: impl FnOnce(&mut Options)) -> Arc<Http> {
    let mut options = Options::default();
    change(&mut options);
    Arc::new(
        Http::to(url.parse().expect("a target"))
            .options(options)
            .open()
            .expect("valid settings"),
    )
}

/// Returns a change of a worker's settings: this retry policy.
pub(crate) fn retry(policy: &str) -> impl FnOnce(&mut WorkerConfig) + use<> {
    let policy = policy.parse().expect("a policy");
    move |config: &mut WorkerConfig| config.retry = policy
}

/// A policy that makes an event a dead letter after its first attempt.
pub(crate) const ONCE: &str = "fixed:1ms,attempts=1,then=dead-letter";

/// Returns the errors of the dead letters.
pub(crate) async fn dead_errors(console: &Console) -> Vec<String> {
    let error = |letter: Vec<(String, Vec<u8>)>| {
        let found = letter.into_iter().find(|(field, _)| field == "error");
        String::from_utf8(found.expect("an error").1).expect("UTF-8")
    };
    console.dead().await.into_iter().map(error).collect()
}

#[tokio::test]
async fn each_event_is_one_envelope_and_the_connection_is_kept() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    console
        .emit_all("work/é 1", (0..50).map(|n| n.to_string()))
        .await;
    let sink = sink(&receiver.url("/in?a=b"), |options| {
        options
            .header("Authorization", "Bearer x")
            .expect("a header")
    });
    let worker = start(&redis, "w", &sink, |_| {});
    receiver.until_accepted(50).await;
    worker.finish().await;
    let got = receiver.got();
    assert_eq!((got.len(), receiver.connections()), (50, 1));
    for (at, got) in (1u64..).zip(&got) {
        assert_eq!(
            got.events(),
            [(at, at - 1, "work/é 1".to_owned(), (at - 1).to_string())]
        );
        let names = [
            "seriatim-id",
            "seriatim-prev",
            "seriatim-object",
            "seriatim-attempt",
            "content-type",
            "authorization",
        ];
        let (id, prev) = (at.to_string(), (at - 1).to_string());
        assert_eq!(
            names.map(|name| got.header(name)),
            [
                &id,
                &prev,
                "work/%C3%A9%201",
                "1",
                "application/json",
                "Bearer x"
            ]
        );
        assert_eq!(got.target, "/in?a=b");
        assert!(got.header("user-agent").starts_with("seriatim/"));
    }
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_list_has_at_most_so_many_events_of_one_object() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    for object in ["a", "b", "c"] {
        console
            .emit_all(object, (0..25).map(|n| n.to_string()))
            .await;
    }
    let worker = start(&redis, "w", &receiver.sink("/?batch=10"), |_| {});
    receiver.until_accepted(75).await;
    worker.finish().await;
    let lists: Vec<_> = receiver
        .got()
        .iter()
        .map(|got| (got.events(), got.header("seriatim-events").to_owned()))
        .collect();
    assert_eq!(lists.len(), 9);
    for (events, count) in &lists {
        assert!(
            events.iter().all(|event| event.2 == events[0].2),
            "one object: {events:?}"
        );
        assert_eq!(
            (events.len() <= 10, count),
            (true, &events.len().to_string())
        );
    }
    let is_list = |got: &Got| got.target == "/" && got.body.starts_with('[');
    assert!(receiver.got().iter().all(is_list));
    console.until_at_rest().await;
}

/// Tests that both signatures of a request are valid. Over all attempts the id stays the same; the
/// timestamp is that of the attempt.
#[tokio::test]
async fn requests_are_signed_with_both_secrets() {
    let (redis, receiver) = (
        Redis::start(),
        Receiver::with(|got| Reply::Status(if got.number == 0 { 500 } else { 200 })).await,
    );
    let console = redis.console().await;
    console.emit("a", "{\"type\":\"moved\"}").await;
    let texts = [
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    ];
    let secrets: Vec<Secret> = texts.map(|text| text.parse().expect("a secret")).to_vec();
    let signers = secrets.clone();
    let sink = sink(&receiver.url("/"), |options| options.secrets = signers);
    let worker = start(&redis, "w", &sink, |_| {});
    receiver.until_accepted(1).await;
    worker.finish().await;
    let got = receiver.got();
    let attempts: Vec<_> = got
        .iter()
        .map(|got| got.header("seriatim-attempt"))
        .collect();
    assert_eq!(attempts, ["1", "2"]);
    for got in &got {
        let [id, timestamp, signatures] =
            ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| got.header(name));
        assert_eq!(id, "1");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs();
        let at = timestamp.parse::<u64>();
        assert!(at.is_ok_and(|at| at <= now && now - at < 60), "{timestamp}");
        for secret in &secrets {
            let verified = secret.verify(id, timestamp, signatures, got.body.as_bytes());
            assert_eq!(verified, Ok(()));
        }
        assert!(secrets[0].verify(id, timestamp, signatures, b"{}").is_err());
    }
}

#[tokio::test]
async fn cloud_events_are_binary_or_batched() {
    let (redis, receiver) = (Redis::start(), Receiver::start().await);
    let console = redis.console().await;
    console
        .emit_all("work 1", ["{\"type\":\"moved\"}", "7"])
        .await;
    let cloud = |options: &mut Options| options.format = Format::CloudEvents;
    let worker = start(&redis, "w", &sink(&receiver.url("/"), cloud), |_| {});
    receiver.until_got(2).await;
    worker.finish().await;
    console.emit_all("work 1", ["8", "9"]).await;
    let batched = sink(&receiver.url("/?batch=2"), cloud);
    let worker = start(&redis, "w", &batched, |_| {});
    receiver.until_got(3).await;
    worker.finish().await;
    let got = receiver.got();
    let attributes = |got: &Got| {
        let names = "specversion id prev source type subject";
        let names = names
            .split(' ')
            .map(|name| got.header(&format!("ce-{name}")).to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    for (got, attributes_of, body) in [
        (
            &got[0],
            "1.0 1 0 /seriatim moved work%201",
            "{\"type\":\"moved\"}",
        ),
        (&got[1], "1.0 2 1 /seriatim seriatim.event work%201", "7"),
    ] {
        assert_eq!((&*attributes(got), &*got.body), (attributes_of, body));
        assert_eq!(got.header("content-type"), "application/json");
    }
    assert_eq!(
        got[2].header("content-type"),
        "application/cloudevents-batch+json"
    );
    let list: serde_json::Value = serde_json::from_str(&got[2].body).expect("JSON");
    let event = |id: &str, prev: &str, data: u8| {
        serde_json::json!({
            "specversion": "1.0", "id": id, "prev": prev, "source": "/seriatim", "type": "seriatim.event",
            "subject": "work 1", "datacontenttype": "application/json", "data": data,
        })
    };
    assert_eq!(
        list,
        serde_json::json!([event("3", "2", 8), event("4", "3", 9)])
    );
}
