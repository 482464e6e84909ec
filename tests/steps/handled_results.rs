//! Results of handlers. A result is stored together with the success of the handler. The step that
//! finalizes the event writes its results into the log row of the event.
#![cfg(feature = "worker")]

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::control::{By, LogEntry};
use seriatim::event::Json;
use seriatim::handlers::{Failure, HandlerContext, HandlerResultError, Handlers, RESULT_BYTES_MAX};
use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Connect, EventLog, FINISHED,
    Finished, Handled, Report, SlotBatch, Suspects, Tag,
};
use seriatim::worker::WorkerConfig;

use crate::attached;
use crate::state::State;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::start;
use crate::support::{Redis, control, until};

const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 0,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};
const ADA: By<'static> = By {
    who: "ada@host",
    why: "enough",
};

/// Makes a worker `w.0` that owns `work:1`, with its events 5, 6 and 7 in flight.
async fn in_hand(redis: &Redis) -> (State, Console) {
    let mut state = attached::process(redis).await;
    state.own("w.0", "work:1", 5, &["1", "2", "3"]).await;
    (state, redis.console().await)
}

fn tag(first: u64) -> Tag {
    Tag {
        first,
        ..Tag::default()
    }
}

async fn asked(state: &mut State, finished: Option<Finished<'_>>) -> Handled {
    let batch = SlotBatch {
        name: "w",
        token: "t",
        slot: 0,
        object: b"work:1",
        tag: tag(5),
    };
    wire::handled(&mut state.conn, &state.keys, &batch, finished)
        .await
        .expect("an answer")
}

/// Records that the handlers `b` and `a` of an event have finished, each with a result.
async fn finish(state: &mut State, id: u64) {
    for (field, result, value) in [
        ("handler:b", "result:b", r#""b":[2]"#),
        ("handler:a", "result:a", r#""a":1"#),
    ] {
        let result = Some((result, value.as_bytes()));
        asked(
            state,
            Some(Finished {
                id,
                field,
                value: FINISHED,
                emits: None,
                result,
            }),
        )
        .await;
    }
}

/// Reports a result for slot 0, and states that it may end an event with a record.
async fn advance(state: &mut State, count: usize, then: BatchResult, is_on: bool) {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "t", BOUNDS, ClaimFirst::Held);
    if is_on {
        call.log(EventLog::default());
    }
    call.handled(0);
    let last = count.checked_sub(1).map(|at| 5 + at as u64);
    call.report_taken(
        0,
        &Report {
            object: "work:1".into(),
            tag: tag(5),
            count,
            last,
            then,
        },
        Duration::ZERO,
    );
    match wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
    {
        Advanced::Ok { quarantined, .. } => assert_eq!(quarantined, []),
        other => panic!("{other:?}"),
    }
}

async fn rows(redis: &Redis) -> Vec<LogEntry> {
    control(&redis.connect().await, redis.keys())
        .log(None, 100)
        .await
        .expect("the log")
        .entries
}

/// Returns the status, the id and the handlers' results of each log row.
async fn shorts(redis: &Redis) -> Vec<String> {
    let short = |row: LogEntry| {
        format!(
            "{} {} {}",
            row.status,
            row.id.unwrap_or(0),
            row.results.as_deref().unwrap_or("-")
        )
    };
    rows(redis).await.into_iter().map(short).collect()
}

fn reject(id: u64) -> BatchResult {
    BatchResult::Reject {
        next: (id < 7).then(|| tag(id + 1)),
        id,
        error: "bad".to_owned(),
        attempts: 0,
    }
}

fn complete(id: u64) -> BatchResult {
    BatchResult::Complete {
        next: (id < 7).then(|| tag(id + 1)),
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
    let hold = BatchResult::Hold {
        rest: tag(5).after(2, 1).failed(),
        delay: None,
        reason: "retry: no".into(),
    };
    for (id, count, then, expected) in [
        (
            6,
            3,
            BatchResult::Done,
            vec![
                "completed 5 -".to_owned(),
                format!("completed 6 {BOTH}"),
                "completed 7 -".to_owned(),
            ],
        ),
        (
            6,
            2,
            BatchResult::Part { next: tag(7) },
            vec!["completed 5 -".to_owned(), format!("completed 6 {BOTH}")],
        ),
        (
            6,
            2,
            hold,
            vec!["completed 5 -".to_owned(), format!("completed 6 {BOTH}")],
        ),
        (
            6,
            1,
            reject(6),
            vec!["completed 5 -".to_owned(), format!("dead 6 {BOTH}")],
        ),
        (
            5,
            0,
            complete(5),
            vec![format!("completed_with_errors 5 {BOTH}")],
        ),
        (
            7,
            1,
            reject(6),
            vec!["completed 5 -".to_owned(), "dead 6 -".to_owned()],
        ),
    ] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        finish(&mut state, id).await;
        let finished = ["handler:a", "handler:b"]
            .map(|field| (field.to_owned(), "1".to_owned()))
            .into();
        let kept = asked(&mut state, None).await;
        assert_eq!(
            kept,
            Handled::Kept {
                id,
                finished,
                emitted: (0, 0),
                results: 5 + 7
            }
        );
        advance(&mut state, count, then.clone(), true).await;
        assert_eq!(shorts(&redis).await, expected, "{then:?}");
        let is_left: bool = console
            .run(&["EXISTS", &console.keys.event_handled("work:1")])
            .await;
        assert_eq!(is_left, id == 7);
    }
}

/// With the log off, the handlers' results are deleted with their event, even if the errors of the
/// event are logged.
#[tokio::test]
async fn without_the_log_results_go_with_their_event() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    finish(&mut state, 5).await;
    advance(&mut state, 0, complete(5), false).await;
    assert_eq!(shorts(&redis).await, ["completed_with_errors 5 -"]);
    let is_left: bool = console
        .run(&["EXISTS", &console.keys.event_handled("work:1")])
        .await;
    assert!(!is_left);
}

/// If an operator skips an event, its log row has the results of its successful handlers. The
/// results of a later event stay in its record.
#[tokio::test]
async fn a_skipped_event_has_its_results() {
    for (id, results) in [(5, BOTH), (6, "-")] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        let seen = Connect {
            event_log: Some(EventLog::default()),
            ..Connect::default()
        };
        wire::connect(&mut state.conn, &state.keys, "", seen)
            .await
            .expect("connected");
        finish(&mut state, id).await;
        let rest = BatchResult::Hold {
            rest: tag(5).failed(),
            delay: None,
            reason: "retry: no".into(),
        };
        advance(&mut state, 0, rest, true).await;
        control(&state.conn, &state.keys)
            .skip(ADA, "work:1", None)
            .await
            .expect("skipped");
        assert_eq!(shorts(&redis).await, [format!("dead 5 {results}")]);
        let is_left: bool = console
            .run(&["EXISTS", &console.keys.event_handled("work:1")])
            .await;
        assert_eq!(is_left, id == 6);
    }
}

fn logging(config: &mut WorkerConfig) {
    config.event_log = Some(EventLog::default());
    config.retry = "fixed:1h".parse().expect("a policy");
}

/// The result of a successful handler is kept when another handler fails and when the process dies.
/// Until the event is finalized, `inspect` shows the result. A worker with a sink other than
/// `Handlers` writes it to the log. A failed handler has no result.
#[tokio::test]
async fn a_result_outlives_a_retry_and_the_process() {
    let redis = Redis::start();
    let console = redis.console().await;
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
    let seen = control(&redis.connect().await, redis.keys())
        .inspect("work:1")
        .await
        .expect("an answer");
    let kept = seen.kept_results.expect("results");
    let id = seen.next_event.and_then(|event| event.id);
    assert_eq!(
        (kept.id, kept.results.as_deref()),
        (id, Some(r#"{"mail":{"attempt":1,"to":"Brno"}}"#))
    );
    let shown = seriatim(&redis, &["inspect", "work:1"]);
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
    let event = control(&redis.connect().await, redis.keys())
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
    let redis = Redis::start();
    let console = redis.console().await;
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

    let shown = seriatim(&redis, &["log", "--limit", "1"]);
    assert!(
        shown.contains("  result text [1,  0]\n  result twice \"é\" 2\n"),
        "{shown}"
    );
    let line: Value = serde_json::from_str(&seriatim(&redis, &["log", "--json", "--limit", "1"]))
        .expect("one line of JSON");
    assert_eq!(line["results"], json!({"text": [1, 0], "twice \"é\"": 2}));
    let shown = seriatim(&redis, &["inspect", "work:1"]);
    assert!(
        shown.contains("           result twice \"é\" 8\n"),
        "{shown}"
    );
    let object: Value =
        serde_json::from_str(&seriatim(&redis, &["inspect", "--json", "work:1"])).expect("JSON");
    assert_eq!(
        object["ended"]["events"][0]["results"],
        json!({"twice \"é\"": 8})
    );
}

fn seriatim(redis: &Redis, arguments: &[&str]) -> String {
    let mut command = Command::new(crate::support::program());
    let output = command
        .args(arguments)
        .args(["--redis", redis.url(), "--namespace", redis.namespace()])
        .output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A result may have up to 64 KiB of JSON. If a result is refused, the handler's earlier result
/// stays unchanged.
#[tokio::test]
async fn a_result_that_is_too_large_is_refused() {
    let redis = Redis::start();
    let console = redis.console().await;
    let handlers = Handlers::builder()
        .register_all("large", |_: Value, cx: HandlerContext| async move {
            let text = "x".repeat(RESULT_BYTES_MAX - 2);
            cx.result(&text)?;
            let refused = cx.result(&format!("{text}x"));
            assert!(
                matches!(
                    refused,
                    Err(HandlerResultError::TooLarge {
                        bytes: 65_537,
                        bytes_max: 65_536
                    })
                ),
                "{refused:?}"
            );
            assert!(matches!(
                cx.result(Json::new("{")),
                Err(HandlerResultError::NotJson(_))
            ));
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
    let event = control(&redis.connect().await, redis.keys())
        .ended("work:1")
        .await
        .expect("an answer")
        .events
        .remove(0);
    assert_eq!(event.results, None);
}
