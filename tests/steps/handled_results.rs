//! Results of handlers. A result is stored together with the success of the handler. The step that
//! finalizes the event writes its results into the log row of the event.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::control::{By, LogEntry};
use seriatim::event::Json;
use seriatim::handlers::{Failure, HandlerContext, HandlerResultError, Handlers, RESULT_BYTES_MAX};
use seriatim::wire::{
    self, Advance, BatchResult, ClaimFirst, Connect, EventLog, Finished, Handled,
};
use seriatim::worker::WorkerConfig;

use crate::in_hand::{IN_HAND, asked, finished};
use crate::scene::{Scene, bounds, hold, reject, result};
use crate::support::console::PATIENCE;
use crate::support::operator::Reads;
use crate::support::recorder::{Act, Recorder};
use crate::support::running::{policy, start};
use crate::support::{Redis, assert_matches, control, until};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "enough",
};
const RECORD: &str = "work:1:event.handled";

/// Records that the handlers `b` and `a` of an event have finished, each with a result.
async fn finish(scene: &Scene, id: u64) {
    for (field, result, value) in [
        ("handler:b", "result:b", r#""b":[2]"#),
        ("handler:a", "result:a", r#""a":1"#),
    ] {
        let finished = Finished {
            result: Some((result, value.as_bytes())),
            ..finished(id, field, None)
        };
        asked(scene, Some(finished)).await;
    }
}

/// Reports a result for slot 0, and states that it may end an event with a record.
async fn advance(scene: &Scene, count: usize, then: BatchResult, is_on: bool) {
    let fill = |call: &mut Advance| {
        if is_on {
            call.log(EventLog::default());
        }
        call.handled(0);
        call.report_taken(0, &result("work:1", "5", count, then), Duration::ZERO);
    };
    let none = bounds(|b| b.claims = 0);
    let answer = scene.advance_from(ClaimFirst::Held, none, fill).await;
    assert_eq!(answer.texts(), [""; 0]);
}

async fn rows(redis: &Redis) -> Vec<LogEntry> {
    let control = redis.control().await;
    control.logged(100).await
}

/// Returns the status, the id and the handlers' results of each log row.
async fn shorts(scene: &Scene) -> Vec<String> {
    let short = |row: LogEntry| {
        let (id, results) = (row.id.unwrap_or(0), row.results.as_deref());
        format!("{} {id} {}", row.status, results.unwrap_or("-"))
    };
    rows(&scene.redis).await.into_iter().map(short).collect()
}

fn complete(id: u64) -> BatchResult {
    BatchResult::Complete {
        next: Some("6".parse().expect("a tag")),
        id,
        error: "bad".to_owned(),
        attempts: 0,
    }
}

const BOTH: &str = r#"{"a":1,"b":[2]}"#;

/// The results of handlers are stored with their success, and returned unchanged. Only the log row
/// of their own event has them, in whatever way the event ends.
#[tokio::test]
async fn results_are_written_into_the_row_of_their_event() {
    let (first, second) = ("completed 5 -", format!("completed 6 {BOTH}"));
    let (dead, with_errors) = (
        format!("dead 6 {BOTH}"),
        format!("completed_with_errors 5 {BOTH}"),
    );
    let part = BatchResult::Part {
        next: "7".parse().expect("a tag"),
    };
    let scene = Scene::new().await;
    for (id, count, then, expected) in [
        (
            6,
            3,
            BatchResult::Done,
            &[first, &second, "completed 7 -"][..],
        ),
        (6, 2, part, &[first, &second]),
        (6, 2, hold("7 0 1", None, "retry: no"), &[first, &second]),
        (6, 1, reject(Some("7"), 6, 0), &[first, &dead]),
        (5, 0, complete(5), &[&with_errors]),
        (7, 1, reject(Some("7"), 6, 0), &[first, "dead 6 -"]),
    ] {
        scene.again(IN_HAND).await;
        finish(&scene, id).await;
        let fields = ["handler:a", "handler:b"];
        let kept = Handled::Kept {
            id,
            finished: fields
                .map(|field| (field.to_owned(), "1".to_owned()))
                .into(),
            emitted: (0, 0),
            results: 5 + 7,
        };
        assert_eq!(asked(&scene, None).await, kept);
        advance(&scene, count, then, true).await;
        assert_eq!(shorts(&scene).await, expected);
        assert_eq!(scene.at(RECORD).await != "nil", id == 7);
    }
}

/// With the log off, the handlers' results are deleted with their event, even if the errors of the
/// event are logged.
#[tokio::test]
async fn without_the_log_results_go_with_their_event() {
    let scene = Scene::given(IN_HAND).await;
    finish(&scene, 5).await;
    advance(&scene, 0, complete(5), false).await;
    assert_eq!(shorts(&scene).await, ["completed_with_errors 5 -"]);
    assert_eq!(scene.at(RECORD).await, "nil");
}

/// If an operator skips an event, its log row has the results of its successful handlers. The
/// results of a later event stay in its record.
#[tokio::test]
async fn a_skipped_event_has_its_results() {
    let scene = Scene::new().await;
    for (id, results) in [(5, BOTH), (6, "-")] {
        scene.again(IN_HAND).await;
        let seen = Connect {
            event_log: Some(EventLog::default()),
            ..Connect::default()
        };
        let (mut conn, keys) = (scene.conn().await, &scene.keys);
        let connected = wire::connect(&mut conn, keys, "", seen).await;
        connected.expect("connected");
        finish(&scene, id).await;
        advance(&scene, 0, hold("5 0 1", None, "retry: no"), true).await;
        let skipped = control(&conn, keys).skip(ADA, "work:1", None).await;
        skipped.expect("skipped");
        assert_eq!(shorts(&scene).await, [format!("dead 5 {results}")]);
        assert_eq!(scene.at(RECORD).await != "nil", id == 6);
    }
}

fn logging(config: &mut WorkerConfig) {
    config.event_log = Some(EventLog::default());
    config.retry = policy("fixed:1h");
}

/// The result of a successful handler is kept when another handler fails and when the process dies.
/// Until the event is finalized, `inspect` shows the result. A worker with a sink other than
/// `Handlers` writes it to the log. A failed handler has no result.
#[tokio::test]
async fn a_result_outlives_a_retry_and_the_process() {
    let (redis, console) = Redis::start().with_console().await;
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(50))
        .register_all("mail", |_: Value, cx: HandlerContext| async move {
            cx.result("replaced")?;
            cx.result(&json!({"to": "Brno", "attempt": cx.attempt()}))?;
            Ok(())
        })
        .register_all("fails", |_: Value, cx: HandlerContext| async move {
            cx.result(&1)?;
            Err(Failure::transient("busy"))
        })
        .register_all("panics", |event: Value, cx: HandlerContext| async move {
            cx.result(&2)?;
            assert!(event.is_string(), "boom");
            Ok(())
        })
        .register_all("slow", |_: Value, cx: HandlerContext| async move {
            cx.result(&3)?;
            std::future::pending().await
        })
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, logging);
    console.emit("work:1", "{}").await;
    console.until_held("work:1", "retry: ").await;
    worker.crash().await;
    let seen = redis.control().await.inspection_of("work:1").await;
    let kept = seen.kept_results.expect("results");
    let id = seen.next_event.and_then(|event| event.id);
    assert_eq!(
        (kept.id, kept.results.as_deref()),
        (id, Some(r#"{"mail":{"attempt":1,"to":"Brno"}}"#))
    );
    let shown = redis.prints("inspect work:1");
    assert!(
        shown.contains(&format!(
            "results    id {}: mail {{\"attempt\":1,\"to\":\"Brno\"}}\n",
            id.expect("an id")
        )),
        "{shown}"
    );

    console.end_lease("w").await;
    let sink = Recorder::with(|_| Act::Send);
    let other = start(&redis, "v", &sink, logging);
    console.release("work:1").await;
    sink.until_sent(1).await;
    other.finish().await;
    let row = rows(&redis).await.pop().expect("a row");
    assert_eq!(
        row.result("mail").as_deref(),
        Some(r#"{"attempt":1,"to":"Brno"}"#)
    );
    assert_eq!((row.results().len(), row.attempts), (1, Some(1)));
    let event = redis
        .control()
        .await
        .ended("work:1")
        .await
        .expect("an answer")
        .events
        .remove(0);
    assert_eq!(event.results(), row.results());
    console.check().await;
}

/// Each event of a batch has its own log row, with the results of its handlers.
#[tokio::test]
async fn each_event_of_a_batch_has_its_own_results() {
    let (redis, console) = Redis::start().with_console().await;
    let handlers = Handlers::builder()
        .register_all("twice \"é\"", |n: u64, cx: HandlerContext| async move {
            if n != 2 {
                cx.result(&(2 * n))?;
            }
            Ok(())
        })
        .register_all("text", |n: u64, cx: HandlerContext| async move {
            if n < 3 {
                cx.result(Json::new(format!("[{n},\n 0]")))?;
            }
            Ok(())
        })
        .build()
        .expect("a set");
    console.emit_all("work:1", ["1", "2", "3", "4"]).await;
    let worker = start(&redis, "w", &handlers, logging);
    until("all is logged", PATIENCE, async || {
        (rows(&redis).await.len() == 4).then_some(())
    })
    .await;
    worker.finish().await;
    let results = rows(&redis)
        .await
        .into_iter()
        .map(|row| row.results.unwrap_or_default());
    let expected = [
        "{\"text\":[1,\n 0],\"twice \\\"é\\\"\":2}",
        "{\"text\":[2,\n 0]}",
        "{\"twice \\\"é\\\"\":6}",
        "{\"twice \\\"é\\\"\":8}",
    ];
    assert_eq!(results.collect::<Vec<_>>(), expected);

    let shown = redis.prints("log --limit 1");
    assert!(
        shown.contains("  result text [1,  0]\n  result twice \"é\" 2\n"),
        "{shown}"
    );
    let line: Value =
        serde_json::from_str(&redis.prints("log --json --limit 1")).expect("one line of JSON");
    assert_eq!(line["results"], json!({"text": [1, 0], "twice \"é\"": 2}));
    let shown = redis.prints("inspect work:1");
    assert!(
        shown.contains("           result twice \"é\" 8\n"),
        "{shown}"
    );
    let object: Value = redis.json("inspect --json work:1");
    assert_eq!(
        object["ended"]["events"][0]["results"],
        json!({"twice \"é\"": 8})
    );
}

/// A result may have up to 64 KiB of JSON. If a result is refused, the handler's earlier result
/// stays unchanged.
#[tokio::test]
async fn a_result_that_is_too_large_is_refused() {
    let (redis, console) = Redis::start().with_console().await;
    let handlers = Handlers::builder()
        .register_all("large", |_: Value, cx: HandlerContext| async move {
            let text = "x".repeat(RESULT_BYTES_MAX - 2);
            cx.result(&text)?;
            let refused = cx.result(&format!("{text}x"));
            assert_matches!(
                refused,
                Err(HandlerResultError::TooLarge {
                    bytes: 65_537,
                    bytes_max: 65_536
                })
            );
            assert_matches!(
                cx.result(Json::new("{")),
                Err(HandlerResultError::NotJson(_))
            );
            Ok(())
        })
        .build()
        .expect("a set");
    console.emit("work:1", "{}").await;
    let worker = start(&redis, "w", &handlers, logging);
    until("it is logged", PATIENCE, async || {
        (rows(&redis).await.len() == 1).then_some(())
    })
    .await;
    worker.finish().await;
    let result = rows(&redis).await[0].result("large").expect("a result");
    assert_eq!(result.len(), RESULT_BYTES_MAX);
    // The results shown with an object's last events are limited. This result is too large to be
    // shown.
    let event = redis
        .control()
        .await
        .ended("work:1")
        .await
        .expect("an answer")
        .events
        .remove(0);
    assert_eq!(event.results, None);
}
