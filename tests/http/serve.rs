//! `seriatim serve`: its routes.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::control::By;
use seriatim::sink::Stop;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::requests::retry;
use crate::serving::{Serving, answer, client_of};
use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

#[tokio::test]
async fn an_event_is_emitted_and_reaches_its_sink_byte_for_byte() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let events = [
        "{\"n\": 1.50,\"n\":90071992547409931}",
        "7",
        "\"é\"",
        "[ ]",
        "null",
    ];
    for (at, event) in events.iter().enumerate() {
        let answer = serving.post("/v1/objects/work:1/events", event).await;
        assert_eq!(
            (answer.status, answer.json()),
            (202, json!({ "events": 1, "queued": at + 1 }))
        );
    }
    let parts = "{\"event\":\"main\",\"subevents\":[1,{\"a\":2}],\"data\":{\"x\": 1}}";
    let answer = serving
        .post("/v1/objects/work:2/events?parts=true", parts)
        .await;
    assert_eq!(
        (answer.status, answer.json()),
        (202, json!({ "events": 3, "queued": 3 }))
    );
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(8).await;
    worker.finish().await;
    assert_eq!(sink.applied_of("work:1"), events);
    assert_eq!(sink.applied_of("work:2"), ["\"main\"", "1", "{\"a\":2}"]);
    let console = redis.console().await;
    let data = console.text(&console.keys.data("work:2")).await;
    assert_eq!(data.as_deref(), Some("{\"x\": 1}"));
}

/// Tests objects whose names a path cannot contain, or can contain only with an escape.
#[tokio::test]
async fn every_object_is_reachable() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let console = redis.console().await;
    let cases = [
        ("/v1/objects/a%2Fb/events", "a/b"),
        ("/v1/object/events?object=a/b", "a/b"),
        ("/v1/object/events?object=..", ".."),
        ("/v1/object/events?object=.", "."),
        ("/v1/objects/events/events", "events"),
        ("/v1/objects/%E6%97%A5%20%25/events", "日 %"),
        ("/v1/object/events?object=%E6%97%A5+%25%26%2B", "日 %&+"),
        ("/v1/objects/a+b/events", "a+b"),
        ("/v1/object/events?parts=false&object=objects", "objects"),
    ];
    for (target, object) in cases {
        let queued = async || console.list(&console.keys.events(object)).await.len();
        let before = queued().await;
        assert_eq!(serving.post(target, "1").await.status, 202, "{target}");
        assert_eq!(queued().await, before + 1, "{target}");
        let view = target
            .replace("/events?parts=false&", "?")
            .replace("/events?", "?");
        let view = view.strip_suffix("/events").unwrap_or(&view);
        assert_eq!(serving.get(view).await.json()["object"], object, "{view}");
    }
    for target in [
        "/v1/object/events",
        "/v1/object/events?object=",
        "/v1/objects/%00/events",
        "/v1/objects/%FF/events",
    ] {
        assert_eq!(serving.post(target, "1").await.problem().0, 400, "{target}");
    }
}

#[tokio::test]
async fn a_repeat_has_the_first_answer_and_pushes_nothing() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let post = |key: &'static str, body: &'static str| {
        let request = serving.posted("/v1/objects/work:1/events", body);
        answer(request.header("idempotency-key", key))
    };
    let first = post("\"k 1\"", "1").await;
    assert_eq!((first.status, first.replayed), (202, false));
    assert_eq!(
        serving.post("/v1/objects/work:1/events", "2").await.json()["queued"],
        2
    );
    let again = post("k 1", "1").await;
    assert_eq!(
        (again.status, &again.text, again.replayed),
        (202, &first.text, true)
    );
    assert_eq!(
        post("k 1", "other").await.problem().0,
        400,
        "it is not JSON"
    );
    assert_eq!(
        post("k 1", "3").await.problem(),
        (422, "key-reused".to_owned())
    );
    assert_eq!(post("", "3").await.problem().0, 400);
    let console = redis.console().await;
    assert_eq!(console.list(&console.keys.events("work:1")).await.len(), 2);
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let redis = Redis::start();
    let console = redis.console().await;
    let control = crate::support::control(&redis.connect().await, redis.keys());
    let (who, why) = ("test", "");
    let (work, two) = ("work:*".parse().expect("a selector"), NonZero::new(2));
    let set = control.set_limit(By { who, why }, &work, two, None).await;
    set.expect("set");
    let serving = Serving::start(&redis, &[]).await;
    for _ in 0..2 {
        let answer = serving.post("/v1/objects/work:1/events", "1").await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    // Clients that are refused together do not come back together.
    let mut waits = BTreeSet::new();
    for _ in 0..200 {
        let answer = serving.post("/v1/objects/work:1/events", "1").await;
        assert_eq!(answer.problem(), (429, "full".to_owned()));
        waits.extend(answer.retry_after);
    }
    assert_eq!(Vec::from_iter(waits), ["1", "2", "3", "4", "5"]);
    // In a stream, all lines of the full object fail, even a line that would fit.
    let lines = serving
        .lines("{\"object\":\"work:1\",\"event\":1}\n{\"object\":\"other\",\"event\":2}\n{\"object\":\"work:1\",\"event\":3}\n")
        .await;
    assert_eq!(answered(&lines), [(1, 429), (2, 202), (3, 429)]);
    assert_eq!(console.list(&console.keys.events("work:1")).await.len(), 2);
}

#[tokio::test]
async fn each_line_has_its_answer() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let lines = "{\"object\":\"a\",\"event\":{\"n\":1}}\n\n  \r\n{\"object\":\"\",\"event\":1}\n{\"object\":\"a\",\"event\":2}";
    assert_eq!(
        answered(&serving.lines(lines).await),
        [(1, 202), (4, 400), (5, 202)]
    );
    let console = redis.console().await;
    let queue = console.list(&console.keys.events("a")).await;
    assert_eq!(queue, ["{\"n\":1}", "2"]);
}

/// Returns the line and the status of each answer.
fn answered(answers: &[serde_json::Value]) -> Vec<(u64, u64)> {
    let number = |line: &serde_json::Value, name: &str| line[name].as_u64().unwrap_or(0);
    answers
        .iter()
        .map(|line| (number(line, "line"), number(line, "status")))
        .collect()
}

/// Tests that a line whose object is unknown ends the stream: a later line may be of the same
/// object.
#[tokio::test]
async fn a_line_that_cannot_be_read_ends_the_lines() {
    let redis = Redis::start();
    let console = redis.console().await;
    let serving = Serving::start(&redis, &["--body-bytes", "1KiB"]).await;
    let long = format!("{{\"object\":\"a\",\"event\":\"{}\"}}", "x".repeat(1100));
    let cases = [
        ("{\"object\":\"a\",\"event\":2", 400),
        ("{\"object\":\"a\",\"event\":2,\"subevents\":[3]}", 400),
        (&long, 413),
    ];
    for (number, (line, status)) in cases.into_iter().enumerate() {
        let lines = format!(
            "{{\"object\":\"a\",\"event\":{number}}}\n\n{line}\n{{\"object\":\"a\",\"event\":\"later\"}}\n"
        );
        assert_eq!(
            answered(&serving.lines(&lines).await),
            [(1, 202), (3, status)],
            "{line}"
        );
    }
    let queue = console.list(&console.keys.events("a")).await;
    assert_eq!(queue, ["0", "1", "2"]);
}

/// Tests that empty lines, which keep a connection alive, do not end a stream, however many.
#[tokio::test]
async fn empty_lines_do_not_end_a_stream() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let lines = format!("{}{{\"object\":\"a\",\"event\":1}}", "\n".repeat(3 << 20));
    assert_eq!(
        answered(&serving.lines(&lines).await),
        [((3 << 20) + 1, 202)]
    );
}

/// Tests that an idempotency key is refused if it would not help.
#[tokio::test]
async fn an_idempotency_key_is_for_single_events() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let schedule = |body: &str| {
        serving
            .posted("/v1/objects/a/schedule", body)
            .header("idempotency-key", "k")
    };
    let without_key = answer(schedule("{\"event\":1,\"after_ms\":60000}")).await;
    assert_eq!(without_key.problem().0, 400);
    let with_key = answer(schedule("{\"event\":1,\"after_ms\":60000,\"key\":\"k\"}")).await;
    assert_eq!(with_key.status, 202);
    let lines = serving
        .posted("/v1/events", "{\"object\":\"a\",\"event\":1}")
        .header("idempotency-key", "k");
    assert_eq!(answer(lines).await.problem().0, 400);
    for (target, body) in [
        (
            "objects/a/schedule",
            "{\"event\":1,\"after_ms\":18446744073709551615}",
        ),
        ("object/events?object=a&object=b", "1"),
    ] {
        let refused = serving.post(&format!("/v1/{target}"), body).await;
        assert_eq!(refused.problem().0, 400, "{target}");
    }
}

/// Tests that the events of many lines are queued in order, and that each line is answered.
#[tokio::test]
async fn a_long_stream_keeps_the_order() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let lines: String = (0..20_000)
        .map(|n| format!("{{\"object\":\"work:{}\",\"event\":{n}}}\n", n % 7))
        .collect();
    let answers = serving.lines(&lines).await;
    assert_eq!(answers.len(), 20_000);
    let expected: Vec<_> = (1..=20_000).map(|line| (line, 202)).collect();
    assert!(answered(&answers) == expected, "each line has its answer");
    let console = redis.console().await;
    for object in 0..7 {
        let queue = console.keys.events(&format!("work:{object}"));
        let numbers = (0..20_000).filter(|n| n % 7 == object);
        let expected: Vec<_> = numbers.map(|n| n.to_string()).collect();
        assert!(console.list(&queue).await == expected, "work:{object}");
    }
}

#[tokio::test]
async fn events_are_scheduled_listed_and_cancelled() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let post = async |body: Value| {
        serving
            .post("/v1/objects/user:1/schedule", &body.to_string())
            .await
    };
    let first =
        post(json!({ "key": "a/b", "time": "2100-01-01T00:00:00Z", "event": { "n": 1 } })).await;
    assert_eq!(
        (first.status, first.json()),
        (
            202,
            json!({ "key": "a/b", "due_ms": 4_102_444_800_000u64, "change": "new" })
        )
    );
    let moved = post(json!({ "key": "a/b", "time": 4_102_444_801u64, "event": 2 })).await;
    assert_eq!(moved.json()["change"], "replaced");
    let kept = post(json!({ "key": "a/b", "after_ms": 5, "event": 3, "mode": "keep_first" })).await;
    assert_eq!(kept.json()["change"], "kept");
    let task = serving
        .post(
            "/v1/object/tasks?object=user:1",
            "{\"id\":7,\"time\":\"4102444802\",\"url\":\"http://x/\"}",
        )
        .await;
    assert_eq!(
        task.json(),
        json!({ "key": "7", "due_ms": 4_102_444_802_000u64, "change": "new" })
    );
    let rows = serving.get("/v1/objects/user:1/schedule").await.json()["rows"].clone();
    let rows = rows.as_array().expect("rows");
    let keys: BTreeSet<_> = rows.iter().filter_map(|row| row["key"].as_str()).collect();
    assert_eq!((rows.len(), keys), (2, BTreeSet::from(["7", "a/b"])));
    let page = serving.get("/v1/schedule?limit=1&from=4102444800").await;
    let page = page.json();
    assert_eq!(
        (&page["rows"][0]["key"], page["next"].is_string()),
        (&json!("a/b"), true)
    );
    for body in [
        json!({ "event": 1 }),
        json!({ "event": 1, "time": 1, "after_ms": 1 }),
        json!({ "event": 1, "time": "soon" }),
        json!({ "event": 1, "time": -1.5 }),
        json!({ "event": 1, "time": 1, "kex": "a" }),
        json!({ "event": 1, "time": 1, "key": "" }),
        json!({ "time": 1 }),
    ] {
        assert_eq!(post(body.clone()).await.problem().0, 400, "{body}");
    }
    for (target, status) in [
        ("objects/user:1/schedule/a%2Fb", 204),
        ("objects/user:1/schedule/a%2Fb", 404),
        ("object/schedule?object=user:1&key=7", 204),
        ("object/schedule?object=user:1", 400),
    ] {
        let deleted = serving.delete(&format!("/v1/{target}")).await;
        assert_eq!(deleted.status, status, "{target}");
        assert!(status == 204 || deleted.problem().0 == status, "{target}");
    }
}

#[tokio::test]
async fn dead_letters_held_objects_and_rules_are_as_the_commands_have_them() {
    let redis = Redis::start();
    let console = redis.console().await;
    let serving = Serving::start(&redis, &[]).await;
    let sink = Recorder::with(|offer| match offer.text().as_str() {
        "1" => Act::Stop(Stop::rejected("no")),
        "2" => Act::Stop(Stop::transient("busy")),
        _ => Act::Send,
    });
    console.emit_all("dead", ["1", "3"]).await;
    console.emit_all("held", ["2", "4"]).await;
    let worker = start(&redis, "w", &sink, retry("fixed:1h"));
    console.until_held("held", "retry").await;
    sink.until_sent(1).await;
    worker.stop().await;
    let letter = serving.get("/v1/dead").await.json()["rows"][0].clone();
    assert_eq!(
        (&letter["object"], &letter["error"], &letter["event"]),
        (&json!("dead"), &json!("no"), &json!(1))
    );
    let id = letter["dead_id"].as_str().expect("an id");
    assert_eq!(serving.get(&format!("/v1/dead/{id}")).await.json(), letter);
    assert_eq!(
        serving.get("/v1/dead?object=held").await.json(),
        json!({ "rows": [] })
    );
    let (drop, retry) = (
        format!("/v1/dead/{id}/drop"),
        format!("/v1/dead/{id}/retry"),
    );
    let refused = serving.post(&drop, "").await.problem();
    assert_eq!(refused.0, 400, "a drop needs a reason");
    let retried = serving.post(&retry, "{\"reason\":\"open again\"}").await;
    // The event 3 of the object was delivered meanwhile.
    let expected = json!({ "retried": id, "newer_delivered": true });
    assert_eq!(retried.json(), expected);
    assert_eq!(serving.post(&retry, "").await.problem().0, 404);
    assert_eq!(console.list(&console.keys.events("dead")).await, ["1"]);
    let held = serving.get("/v1/held").await.json();
    assert_eq!(
        (&held["rows"][0]["object"], &held["rows"][0]["waits_for"]),
        (&json!("held"), &json!("retry"))
    );
    let skipped = serving.post("/v1/objects/held/skip", "{\"id\":9}").await;
    assert_eq!(skipped.problem(), (409, "conflict".to_owned()));
    let now = "{\"reason\":\"now\"}";
    let released = serving.post("/v1/objects/held/release", now).await;
    assert_eq!(released.json()["released"], true);
    let other = serving.post("/v1/objects/other/release", "").await;
    assert_eq!(other.problem().0, 409);
    let rule = json!({ "kind": "pause", "selector": "work:*", "for_ms": 60_000, "reason": "move" });
    let set = serving.post("/v1/rules", &rule.to_string()).await;
    assert_eq!(set.json()["was_set"], false);
    let rules = serving.get("/v1/rules").await.json();
    assert_eq!(
        (&rules["rules"][0]["selector"], &rules["rules"][0]["reason"]),
        (&json!("work:*"), &json!("move"))
    );
    let lift = async |kind: &str| {
        let target = format!("/v1/rules?kind={kind}&selector=work:*");
        serving.delete(&target).await
    };
    assert_eq!(lift("pause").await.json()["lifted"], true);
    assert_eq!(lift("block").await.problem().0, 404);
    let actions = serving.get("/v1/actions").await.json();
    let rows = actions["rows"].as_array().expect("rows").iter();
    let seen: Vec<_> = rows.map(|row| (&row["action"], &row["who"])).collect();
    let expected = ["resume", "pause", "release", "retry"].map(|action| json!(action));
    let http = json!("http");
    assert_eq!(seen, expected.each_ref().map(|action| (action, &http)));
    assert_eq!(serving.get("/v1/stats").await.json()["dead_letters"], 0);
}

/// Tests that a request under way is answered while the server stops, and that a stream ends with
/// the reason.
#[tokio::test]
async fn a_stop_answers_the_requests_under_way() {
    let redis = Redis::start();
    let mut serving = Serving::start(&redis, &[]).await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body = http_body_util::StreamBody::new(futures_util::stream::unfold(
        receiver,
        |mut receiver| async {
            let part = receiver.recv().await?;
            Some((
                part.map(|part| hyper::body::Frame::data(bytes::Bytes::from(part))),
                receiver,
            ))
        },
    ));
    let request = serving
        .request(reqwest::Method::POST, "/v1/events")
        .header("content-type", "application/x-ndjson");
    let line = b"{\"object\":\"a\",\"event\":1}\n".to_vec();
    sender.send(Ok(line)).await.expect("taken");
    let response = request.body(reqwest::Body::wrap(body)).send().await;
    let mut response = response.expect("an answer");
    let first = response.chunk().await.expect("a part").expect("a part");
    assert_eq!(first, "{\"line\":1,\"status\":202}\n");
    serving.signal(rustix::process::Signal::TERM);
    let rest = tokio::time::timeout(Duration::from_secs(20), response.text())
        .await
        .expect("it ends")
        .expect("text");
    assert!(rest.contains("stopping"), "{rest}");
    drop(sender);
    assert!(serving.ended().await.success());
}

/// Tests that a server that stops with a request under way finishes that request, answers probes
/// meanwhile, and refuses other requests.
#[tokio::test]
async fn a_stopping_server_answers_probes() {
    let redis = Redis::start();
    // Each request has its own connection, because a stop closes connections that are kept open.
    let client = client_of(|client| client.pool_max_idle_per_host(0));
    let mut serving = Serving::start_at(&redis, "127.0.0.1:0", &[], client).await;
    let mut under_way = serving.connect().await;
    let head = "POST /v1/objects/work:1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n1";
    under_way.write_all(head.as_bytes()).await.expect("written");
    assert_eq!(serving.get("/readyz").await.status, 200);
    serving.signal(rustix::process::Signal::TERM);
    // A connection that is accepted in the moment of the signal may be closed without an answer.
    let probe = client_of(|client| client.pool_max_idle_per_host(0));
    let ready = format!("{}/readyz", serving.url);
    until("it is not ready", PATIENCE, async || {
        let response = probe.get(&ready).send().await.ok()?;
        (response.status() == 503).then_some(())
    })
    .await;
    assert_eq!(serving.get("/healthz").await.status, 200);
    let refused = serving.post("/v1/objects/work:2/events", "2").await;
    assert_eq!(refused.problem(), (503, "stopping".to_owned()));
    under_way.write_all(b"23").await.expect("written");
    let mut answer = String::new();
    let read = under_way.read_to_string(&mut answer).await;
    read.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert!(serving.ended().await.success());
    let console = redis.console().await;
    let queue = console.list(&redis.keys().events("work:1")).await;
    assert_eq!(queue, ["123"]);
}
