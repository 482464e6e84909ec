//! Handlers: the effect of their results, the events they receive, and their cancellation.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use seriatim::handlers::{
    Failure, Handler, HandlerContext, HandlerResult, Handlers, SUBTASK_BYTES_MAX, SUBTASKS_MAX,
};
use seriatim::worker::EventLog;
use tokio::sync::Notify;

use super::Journal;
use crate::support::console::{Console, PATIENCE};
use crate::support::running::{policy, retrying, start};
use crate::support::{Redis, assert_matches, until};

/// A value that adds a line to the journal when it is dropped.
struct Dropped(Journal);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

/// A handler that never ends, except that run `ends_at` and later runs succeed. It records each
/// attempt, the drop of its future, and the cancellation by its token.
struct Endless {
    journal: Journal,
    ends_at: usize,
    timeout: Option<Duration>,
}

#[seriatim::async_trait]
impl Handler<Value> for Endless {
    async fn handle(&self, _: Value, cx: HandlerContext) -> HandlerResult {
        self.journal.note(format!("attempt {}", cx.attempt()));
        let runs = self
            .journal
            .lines()
            .iter()
            .filter(|line| line.starts_with("attempt "))
            .count();
        if runs >= self.ends_at {
            return Ok(());
        }
        let (journal, cancelled) = (self.journal.clone(), cx.cancelled().clone());
        tokio::spawn(async move {
            cancelled.cancelled().await;
            journal.note("asked");
        });
        let _dropped = Dropped(self.journal.clone());
        pending().await
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

async fn finished(console: &Console, object: &str) -> Vec<String> {
    let mut fields: Vec<String> = console
        .run(&["HKEYS", &console.keys.event_handled(object)])
        .await;
    fields.sort();
    fields
}

/// A handler for all events also receives events without a type. It runs beside the handlers
/// registered for a type.
#[tokio::test]
async fn a_catch_all_runs_for_every_event_beside_the_handlers_for_its_type() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("all", journal.notes("all"))
        .register_type("moved", "moved", journal.notes("moved"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console
        .emit_all(
            "work:1",
            [
                r#"{"type":"moved"}"#,
                r#"{"type":"sold"}"#,
                "7",
                r#"{"type":7}"#,
                "null",
            ],
        )
        .await;
    console.until_at_rest_after(5).await;
    worker.finish().await;
    let mut lines = journal.lines();
    lines[..2].sort();
    assert_eq!(
        lines,
        ["all 1", "moved 1", "all 2", "all 3", "all 4", "all 5"]
    );
    assert_eq!(console.dead().await.len(), 0);
}

/// After the timeout of a handler, its future is dropped and its token is cancelled. A timeout is a
/// transient failure. The successes of the event's other handlers are kept, and the worker
/// continues with other objects. A handler's own timeout takes precedence over the timeout of the
/// set.
#[tokio::test]
async fn what_takes_too_long_is_cut_off_and_what_others_have_finished_is_kept() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let endless = Endless {
        journal: journal.clone(),
        ends_at: 2,
        timeout: Some(Duration::from_millis(50)),
    };
    let handlers = Handlers::builder()
        .timeout(Duration::from_secs(3600))
        .register_type("slow", "endless", endless)
        .register_all("quick", journal.notes("quick"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| {
        config.retry = policy("fixed:1h");
        config.concurrency = 1;
    });
    console
        .emit_all("work:1", [r#"{"type":"slow"}"#, "2"])
        .await;
    console.emit("work:2", "3").await;
    assert_eq!(
        console.until_held("work:1", "retry").await,
        "1 0 1 0 retry: endless: it took longer than 50ms"
    );
    journal.until(1, "asked").await;
    assert_eq!(journal.count("dropped"), 1);
    assert_eq!(finished(&console, "work:1").await, ["handler:quick", "id"]);
    until("the other object is done", PATIENCE, async || {
        (console.last_id("work:2").await > 0).then_some(())
    })
    .await;
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(
        (
            journal.count("quick 1"),
            journal.count("attempt 1"),
            journal.count("attempt 2")
        ),
        (1, 1, 1)
    );
    assert_eq!(
        (journal.count("dropped"), console.dead().await.len()),
        (1, 0)
    );
}

/// A handler is cancelled if the lease is lost, by a lapse or to another process. It is also
/// cancelled if the worker is stopped at once. To cancel a handler, the worker cancels its token
/// and drops its future. None of these cases counts an attempt: the event runs again with the same
/// attempt number.
#[tokio::test]
async fn a_handler_is_cut_off_where_the_lease_is_lost_or_the_worker_stops_at_once() {
    for how in ["lapse", "takeover", "stop"] {
        let (redis, console) = Redis::start().with_console().await;
        let journal = Journal::default();
        let set = || {
            let endless = Endless {
                journal: journal.clone(),
                ends_at: 2,
                timeout: None,
            };
            Handlers::builder()
                .register_all("endless", endless)
                .build()
                .expect("a set")
        };
        let worker = start(&redis, "w", &set(), |config| {
            config.lease = Duration::from_millis(900)
        });
        console.emit("work:1", "1").await;
        journal.until(1, "attempt 1").await;
        let worker = match how {
            "lapse" => {
                console.end_lease("w").await;
                worker
            }
            "takeover" => {
                let other = start(&redis, "w", &set(), |config| config.takeover = true);
                journal.until(1, "dropped").await;
                assert!(worker.ended().await.is_err(), "the name was taken");
                other
            }
            _ => {
                worker.shutdown.stop_at_once();
                worker.ended().await.expect("it ends");
                start(&redis, "w", &set(), |_| {})
            }
        };
        journal.until(1, "dropped").await;
        journal.until(1, "asked").await;
        journal.until(2, "attempt 1").await;
        console.until_at_rest().await;
        worker.finish().await;
        assert_eq!(console.dead().await.len(), 0, "{how}");
    }
}

/// If a handler returns `Ok`, the event is completed, even if the result of its work is negative.
/// If a handler fails as unrecoverable, the event ends with the errors of all handlers. If the
/// attempts are used up, the retry policy ends the event. The event log has one row for each of
/// these events.
#[tokio::test]
async fn what_becomes_of_an_event_is_logged_with_the_errors_of_its_handlers() {
    /// The possible results of a payment.
    enum Payment {
        Declined,
    }
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let also = journal.clone();
    let pay = move |_: Value, cx: HandlerContext| {
        let journal = also.clone();
        async move {
            let Payment::Declined = Payment::Declined;
            journal.note(format!("declined {}", cx.id()));
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register_type("pay", "pay", pay)
        .register_type("bad", "bad", |_: Value, _| async {
            Err(Failure::unrecoverable("no such place"))
        })
        .register_type("bad", "busy", |_: Value, _| async {
            Err(Failure::transient("no route"))
        })
        .register_type("down", "down", |_: Value, _| async {
            Err(Failure::transient("down"))
        })
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| {
        config.retry = policy("fixed:1ms,attempts=3,then=complete-with-errors");
        config.event_log = Some(EventLog::default());
    });
    console
        .emit_all(
            "work:1",
            ["pay", "bad", "down", "pay"].map(|name| format!(r#"{{"type":"{name}"}}"#)),
        )
        .await;
    journal.until(1, "declined 4").await;
    console.until_at_rest().await;
    worker.finish().await;
    let page = redis.control().await.log(None, 100).await.expect("the log");
    let rows = page.entries.iter().map(|row| {
        let error = row.error.as_deref().unwrap_or_default();
        format!(
            "{} {} after {}, attempts {}: {error}",
            row.status,
            row.id.unwrap_or(0),
            row.prev.unwrap_or(0),
            row.attempts.unwrap_or(0)
        )
    });
    let expected = [
        "completed 1 after 0, attempts 0: ",
        "dead 2 after 1, attempts 0: bad: no such place; busy: no route",
        "completed_with_errors 3 after 1, attempts 3: down: down",
        "completed 4 after 1, attempts 0: ",
    ];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    assert_eq!(journal.lines(), ["declined 1", "declined 4"]);
    assert_eq!(console.dead().await.len(), 1);
}

/// Story: the handlers of an event could name any number of subtasks, and the call that ended the
/// event read all of them. For 100,000 subtasks Redis took 121 ms, and did nothing else in this
/// time. Now the first name above the limit is refused, and its subtask does not run. Finished
/// subtasks stay finished, even for a retry.
#[tokio::test]
async fn one_subtask_above_the_limit_is_refused() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let all_named = Arc::new(Notify::new());
    let name = |n: usize| format!("{n:0SUBTASK_BYTES_MAX$}");
    let (done, names_all) = (journal.clone(), Arc::clone(&all_named));
    let names = move |_: Value, cx: HandlerContext| {
        let (journal, all_named) = (done.clone(), Arc::clone(&names_all));
        async move {
            for n in 0..SUBTASKS_MAX {
                cx.once(&name(n), || async {
                    journal.note("subtask");
                    Ok::<_, Failure>(())
                })
                .await?;
            }
            all_named.notify_one();
            Ok(())
        }
    };
    let done = journal.clone();
    let names_one_more = move |_: Value, cx: HandlerContext| {
        let (journal, all_named) = (done.clone(), Arc::clone(&all_named));
        async move {
            if cx.attempt() == 1 {
                all_named.notified().await;
            }
            let run = || async {
                journal.note("too many");
                Ok::<_, Failure>(())
            };
            assert_eq!(cx.once(&name(7), run).await, Ok(()));
            let too_long = cx.once(&"x".repeat(SUBTASK_BYTES_MAX + 1), run).await;
            assert_matches!(too_long, Err(Failure::Unrecoverable { .. }));
            let refused = cx
                .once("one more", run)
                .await
                .expect_err("it is above the limit");
            if cx.attempt() == 1 {
                Err(refused)
            } else {
                Ok(())
            }
        }
    };
    let handlers = Handlers::builder()
        .register_all("names", names)
        .register_all("names_one_more", names_one_more)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", "{}").await;
    let why = "retry: names_one_more: the handlers of one event name at most 1000 subtasks";
    assert!(
        console
            .until_held("work:1", why)
            .await
            .ends_with(r#"refused: "one more""#)
    );
    // Besides the subtasks, the record has the event's id and the handler that succeeded.
    assert_eq!(finished(&console, "work:1").await.len(), SUBTASKS_MAX + 2);
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(
        (journal.count("subtask"), journal.lines().len()),
        (SUBTASKS_MAX, SUBTASKS_MAX)
    );
    assert_eq!(console.dead().await.len(), 0);
}
