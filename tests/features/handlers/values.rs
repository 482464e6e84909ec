//! The values that subtasks return: they are stored, and the next run gets them.

use serde_json::Value;
use seriatim::handlers::{Failure, HandlerContext, Handlers, SUBTASK_VALUE_BYTES_MAX};

use super::Journal;
use crate::support::Redis;
use crate::support::running::{policy, retrying, start};

/// A stored value has the type of an earlier deploy. The handler fails with a clear error, and the
/// subtask does not run again. A handler that can read the value finishes the event.
#[tokio::test]
async fn a_value_that_cannot_be_read_is_a_clear_error() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let (also, last) = (journal.clone(), journal.clone());
    let old = move |_: Value, cx: HandlerContext| {
        let journal = also.clone();
        async move {
            let run = || async {
                journal.note("charged");
                Ok::<_, Failure>("receipt 17".to_owned())
            };
            cx.once("charge", run).await?;
            Err(Failure::transient("the old version fails"))
        }
    };
    let new = |_: Value, cx: HandlerContext| async move {
        let number: u64 = cx.once("charge", || async { Ok::<_, Failure>(1) }).await?;
        assert_eq!(number, 0, "not reached");
        Ok(())
    };
    let repaired = move |_: Value, cx: HandlerContext| {
        let journal = last.clone();
        async move {
            journal.note(
                cx.once("charge", || async {
                    Ok::<String, Failure>("again".to_owned())
                })
                .await?,
            );
            Ok(())
        }
    };
    console.emit("work:1", "{}").await;
    let retry = |config: &mut seriatim::worker::WorkerConfig| config.retry = policy("fixed:1h");
    let old = Handlers::builder()
        .register_all("order", old)
        .build()
        .expect("a set");
    let worker = start(&redis, "old", &old, retry);
    console
        .until_held("work:1", "retry: order: the old version fails")
        .await;
    worker.finish().await;
    console.release("work:1").await;
    let new = Handlers::builder()
        .register_all("order", new)
        .build()
        .expect("a set");
    let worker = start(&redis, "new", &new, retry);
    let why = r#"retry: order: the subtask "charge" is done, but its stored value cannot be read as u64: invalid type"#;
    console.until_held("work:1", why).await;
    worker.finish().await;
    console.release("work:1").await;
    let repaired = Handlers::builder()
        .register_all("order", repaired)
        .build()
        .expect("a set");
    let worker = start(&redis, "repaired", &repaired, retry);
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.lines(), ["charged", "receipt 17"]);
}

/// An earlier version stored no value. A subtask without a value of its own (`()` or an `Option`)
/// goes on; for any other type the handler fails with a clear error.
#[tokio::test]
async fn a_subtask_that_an_earlier_version_has_finished_has_no_value() {
    let (redis, console) = Redis::start().with_console().await;
    let handler = |_: Value, cx: HandlerContext| async move {
        if cx.attempt() == 1 {
            cx.once("plain", || async { Ok::<_, Failure>(()) }).await?;
            return Err(Failure::transient("first"));
        }
        cx.once("plain", || async {
            Err::<(), _>(Failure::transient("it runs again"))
        })
        .await?;
        let none: Option<u64> = cx
            .once("plain", || async {
                Err::<_, Failure>(Failure::transient("it runs again"))
            })
            .await?;
        assert_eq!(none, None);
        cx.once("plain", || async { Ok::<u64, Failure>(1) }).await?;
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_all("order", handler)
        .build()
        .expect("a set");
    console.emit("work:1", "{}").await;
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.until_held("work:1", "retry: order: first").await;
    console.add("HSET work:1:event.handled once:plain 1").await;
    console.release("work:1").await;
    console.until_held("work:1", "retry: order: the subtask \"plain\" is done, but its stored value cannot be read as u64").await;
    worker.finish().await;
}

/// A value above the limits ends the event as a dead letter that names the subtask. The limit of
/// one value is 64 KiB, and the values of an event share the room of its emits.
#[tokio::test]
async fn a_value_that_is_too_large_is_refused() {
    let (redis, console) = Redis::start().with_console().await;
    let handler = |event: Value, cx: HandlerContext| async move {
        let bytes = usize::try_from(event["bytes"].as_u64().unwrap_or(0)).unwrap_or(0);
        for n in 0..event["values"].as_u64().unwrap_or(0) {
            cx.once(&format!("step:{n}"), || async {
                Ok::<_, Failure>("x".repeat(bytes))
            })
            .await?;
        }
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_all("order", handler)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    // A string has two quotation marks as JSON.
    let most = SUBTASK_VALUE_BYTES_MAX - 2;
    console
        .emit("work:1", format!(r#"{{"values":1,"bytes":{most}}}"#))
        .await;
    console
        .emit("work:2", format!(r#"{{"values":1,"bytes":{}}}"#, most + 1))
        .await;
    console
        .emit("work:3", format!(r#"{{"values":32,"bytes":{most}}}"#))
        .await;
    console
        .emit("work:4", format!(r#"{{"values":33,"bytes":{most}}}"#))
        .await;
    console.until_at_rest().await;
    worker.finish().await;
    let dead = console.dead().await;
    let dead: Vec<_> = dead
        .iter()
        .flatten()
        .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        .collect();
    let has = |text: &str| dead.iter().filter(|value| value.contains(text)).count();
    assert_eq!(
        has("\"step:0\" has run, but its value has 65537 bytes of JSON"),
        1,
        "{dead:?}"
    );
    assert_eq!(
        has("\"step:32\" has run, but its value does not fit"),
        1,
        "{dead:?}"
    );
    assert_eq!(has("has run, but"), 2, "{dead:?}");
}
