//! Reports: the progress and the log lines of handlers.

use std::sync::Arc;

use serde_json::{Value, json};
use seriatim::event::EventError;
use seriatim::handlers::{HandlerContext, HandlerProgressError, Handlers};
use seriatim::testing::{HandlerTest, TestEvent};
use tokio::sync::Semaphore;

use crate::support::console::PATIENCE;
use crate::support::running::start;
use crate::support::{Redis, until};

/// `inspect` shows the report on the event in hand. A new event of the same slot has none, although it
/// is delivered at once.
#[tokio::test]
async fn a_report_ends_with_its_event() {
    let (redis, console) = Redis::start().with_console().await;
    let go = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go);
    let handler = move |event: Value, cx: HandlerContext| {
        let gate = Arc::clone(&gate);
        async move {
            if event["reports"] == json!(true) {
                cx.progress(&json!({"of": event["n"]}))?;
                cx.log("begun\nat once");
            }
            gate.acquire().await?.forget();
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register_all("one", handler)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| config.concurrency = 2);
    let control = redis.control().await;
    console
        .emit_all("a", [r#"{"n":1,"reports":true}"#, r#"{"n":2}"#])
        .await;
    console.emit("b", r#"{"n":3,"reports":true}"#).await;
    let report_of = async |object: &str| control.inspect(object).await.expect("read").report;
    for (object, progress) in [("a", r#"{"of":1}"#), ("b", r#"{"of":3}"#)] {
        // The report may be written between the progress and the log line.
        let report = until("its report is there", PATIENCE, async || {
            report_of(object)
                .await
                .filter(|report| !report.log.is_empty())
        })
        .await;
        assert_eq!(report.progress.as_deref(), Some(progress));
        assert_eq!(report.log[0].text, "begun at once");
    }
    go.add_permits(2);
    until("the reports are over", PATIENCE, async || {
        let key = console.keys.worker_reports("w");
        let left: u64 = console.run(&["EXISTS", &key]).await;
        (left == 0).then_some(())
    })
    .await;
    let seen = control.inspect("a").await.expect("read");
    let owner = seen.owner.expect("an owner");
    assert_eq!(seen.report, None);
    // The slot may have another object after the first look of `inspect`.
    let slot = owner.strip_prefix("w.").expect("a slot");
    let id = console.last_id("b").await + 100;
    let key = console.keys.worker_reports("w");
    let of_another = format!(r#"{{"id":{id},"at_ms":1,"progress":1}}"#);
    let _: u64 = console.run(&["HSET", &key, slot, &of_another]).await;
    assert_eq!(report_of("a").await, None);
    let deleted: u64 = console.run(&["DEL", &key]).await;
    assert_eq!(deleted, 1);
    go.add_permits(1);
    console.until_at_rest().await;
    worker.finish().await;
}

/// Redis loses the key of the reports, or has another type in it. The worker goes on, and writes
/// later reports.
#[tokio::test]
async fn a_lost_key_of_reports_stops_nothing() {
    let (redis, console) = Redis::start().with_console().await;
    let handler = async |event: Value, cx: HandlerContext| {
        cx.progress(&event)?;
        if event == json!(2) {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_all("one", handler)
        .build()
        .expect("a set");
    let key = console.keys.worker_reports("w");
    let _: String = console.run(&["SET", &key, "x"]).await;
    let worker = start(&redis, "w", &handlers, |_| {});
    let control = redis.control().await;
    console.emit_all("a", ["1", "2"]).await;
    until("the report of event 2 is there", PATIENCE, async || {
        let report = control.inspect("a").await.expect("read").report;
        report.filter(|report| report.progress.as_deref() == Some("2"))
    })
    .await;
    worker.crash().await;
}

#[tokio::test]
async fn the_test_kit_has_the_report() {
    let handler = async |event: Value, cx: HandlerContext| {
        let large = "a".repeat(1023);
        let refused = cx.progress(&large);
        assert!(
            matches!(
                refused,
                Err(HandlerProgressError::Value(EventError::TooLarge {
                    bytes: 1025,
                    bytes_max: 1024
                }))
            ),
            "{refused:?}"
        );
        cx.progress(&event)?;
        cx.log(format_args!("done {event}"));
        Ok(())
    };
    let test = HandlerTest::one("one", handler).expect("a set");
    let ran = test
        .run(TestEvent::new("a", &json!([1])).expect("an event"))
        .await;
    let report = ran.assert_delivered().report().expect("a report");
    assert_eq!(report.progress.as_deref(), Some("[1]"));
    assert_eq!(report.log[0].text, "done [1]");
}
