//! Handlers: which handlers of an event run, which run again, and the result of the event.

mod answers;
mod emit;
mod finished;
mod journal;
mod report;
mod schedule;
mod values;

use std::future::pending;
use std::time::Duration;

use seriatim::handlers::{
    EventType, Failure, Handler, HandlerContext, HandlerResult, Handlers, HandlersError, Unhandled,
};
use seriatim::worker::{Backoff, Limit, RetryPolicy, UsedUp};

use self::journal::Journal;
use crate::support::console::{Console, PATIENCE};
use crate::support::running::{retrying, start};
use crate::support::{Redis, until};

#[derive(serde::Deserialize)]
struct Moved {
    to: String,
}

impl EventType for Moved {
    const TYPE: &'static str = "moved";
}

fn moved(to: &str) -> String {
    format!(r#"{{"type":"moved","to":"{to}"}}"#)
}

async fn handled(console: &Console, object: &str) -> Vec<String> {
    let mut fields: Vec<String> = console
        .run(&["HKEYS", &console.keys.event_handled(object)])
        .await;
    fields.sort();
    fields
}

/// If one handler fails as unrecoverable, the event ends with the errors of all handlers. No
/// handler runs again.
#[tokio::test]
async fn an_unrecoverable_beside_a_transient_the_transient_never_runs_again() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("down", journal.transient("down", "no route"))
        .register_all("bad", journal.unrecoverable("bad", "no such place"))
        .register_all("good", journal.notes("good"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("work:1", moved("nowhere")).await;
    until("it is dead", PATIENCE, async || {
        (console.dead().await.len() == 1).then_some(())
    })
    .await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.sorted(), ["bad 1", "down 1", "good 1"]);
    let dead = console.dead().await;
    let error = dead[0]
        .iter()
        .find(|(field, _)| field == "error")
        .map(|(_, error)| String::from_utf8_lossy(error).into_owned());
    assert_eq!(error.as_deref(), Some("down: no route; bad: no such place"));
}

/// Ten processes run, but only the process that claims the object runs the handler.
#[tokio::test]
async fn ten_worker_processes_one_event_one_run() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("one", journal.notes("one"))
        .build()
        .expect("a set");
    let names = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];
    let workers: Vec<_> = names
        .iter()
        .map(|name| start(&redis, name, &handlers, |_| {}))
        .collect();
    console.until_idle(names.len()).await;
    console.emit("work:1", moved("here")).await;
    console.until_at_rest_after(1).await;
    for worker in workers {
        worker.finish().await;
    }
    assert_eq!(journal.lines(), ["one 1"]);
}

/// A panic and a timeout of a handler are transient failures, and the worker continues. The token
/// of a handler also cancels the tasks that the handler has started.
#[tokio::test]
async fn a_panic_and_a_timeout_are_transient() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let also = journal.clone();
    let slow = move |_: serde_json::Value, cx: HandlerContext| {
        let journal = also.clone();
        async move {
            if cx.attempt() > 1 {
                return Ok(());
            }
            let cancelled = cx.cancelled().clone();
            let notes = journal.clone();
            tokio::spawn(async move {
                cancelled.cancelled().await;
                notes.note("cancelled");
            });
            pending().await
        }
    };
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(50))
        .register_type("moved", "slow", slow)
        .register_type(
            "crashed",
            "panics",
            |_: serde_json::Value, cx: HandlerContext| async move {
                assert!(cx.attempt() > 1, "boom {}", cx.object());
                Ok(())
            },
        )
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", moved("here")).await;
    console.emit("work:2", r#"{"type":"crashed"}"#).await;
    assert_eq!(
        console.until_held("work:1", "").await,
        "1 0 1 0 retry: slow: it took longer than 50ms"
    );
    assert_eq!(
        console.until_held("work:2", "").await,
        "2 0 1 0 retry: panics: it panicked: boom work:2"
    );
    journal.until(1, "cancelled").await;
    console.release("work:1").await;
    console.release("work:2").await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// If a handler cannot deserialize an event, the handler fails as unrecoverable.
#[tokio::test]
async fn an_event_that_does_not_deserialize_is_unrecoverable() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let also = journal.clone();
    let mail = move |event: Moved, _: HandlerContext| {
        let journal = also.clone();
        async move {
            journal.note(event.to);
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register::<Moved>("mail", mail)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console
        .emit_all(
            "work:1",
            [
                r#"{"type":"moved","to":7}"#,
                r#"{"type":"moved","to":"here"}"#,
            ],
        )
        .await;
    journal.until(1, "here").await;
    console.until_at_rest().await;
    worker.finish().await;
    let dead = console.dead().await;
    let error = String::from_utf8_lossy(&dead[0][4].1).into_owned();
    assert!(
        error.starts_with(
            "mail: the event does not fit the type of this handler: invalid type: integer `7`"
        ),
        "{error}"
    );
    assert_eq!(journal.lines(), ["here"]);
}

/// Tests three policies for an event without a handler, and a catch-all handler, which takes
/// such an event.
#[tokio::test]
async fn an_event_without_a_handler_goes_as_the_policy_says() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let set = |unhandled: Unhandled| {
        Handlers::builder()
            .register_type("moved", "moved", journal.notes("moved"))
            .unhandled(unhandled)
            .build()
            .expect("a set")
    };
    let worker = start(&redis, "w", &set(Unhandled::DeadLetter), |_| {});
    console
        .emit_all("work:1", [r#"{"type":"sold"}"#, "7"])
        .await;
    until("both are dead", PATIENCE, async || {
        (console.dead().await.len() == 2).then_some(())
    })
    .await;
    console.until_at_rest().await;
    worker.finish().await;
    let errors: Vec<_> = console
        .dead()
        .await
        .iter()
        .map(|dead| String::from_utf8_lossy(&dead[4].1).into_owned())
        .collect();
    assert_eq!(
        errors,
        [
            r#"no handler is registered for events of type "sold""#,
            "no handler is registered for events without a type"
        ]
    );
    let worker = start(&redis, "w", &set(Unhandled::Retry), retrying("fixed:1h"));
    console.emit("work:1", r#"{"type":"sold"}"#).await;
    console
        .until_held("work:1", "retry: no handler is registered")
        .await;
    worker.finish().await;
    let worker = start(&redis, "w", &set(Unhandled::Complete), |_| {});
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(console.last_id("work:1").await, 3);
    let others = Handlers::builder()
        .register_type("moved", "moved", journal.notes("moved"))
        .register_other("other", journal.notes("other"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &others, |_| {});
    console
        .emit_all("work:1", [r#"{"type":"sold"}"#, r#"{"type":"moved"}"#])
        .await;
    journal.until(1, "moved 5").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.lines(), ["other 4", "moved 5"]);
}

/// If several handlers request a wait before the retry, the longest wait is used. When the attempts
/// are used up, the retry policy ends the event.
#[tokio::test]
async fn the_longest_wait_asked_for_counts_and_attempts_end() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let waits = |s: u64| {
        move |_: &HandlerContext| Err(Failure::retry_after("busy", Duration::from_secs(s)))
    };
    let handlers = Handlers::builder()
        .register_all("a", journal.answers("a", waits(1000)))
        .register_all("b", journal.answers("b", waits(5000)))
        .register_all("c", journal.transient("c", "down"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| {
        let limit = Some(Limit {
            attempts: 2,
            then: UsedUp::CompleteWithErrors,
        });
        config.retry = RetryPolicy {
            backoff: Backoff::Fixed(Duration::from_millis(1)),
            limit,
            jitter: 0,
            ..RetryPolicy::default()
        };
    });
    console.emit("work:1", moved("a")).await;
    assert_eq!(
        console.until_held("work:1", "").await,
        "1 0 1 0 retry: a: busy; b: busy; c: down"
    );
    let (now_s, _): (f64, f64) = console.run(&["TIME"]).await;
    let wait_s = console.due("work:1").await.expect("held") / 1000.0 - now_s;
    assert!(wait_s > 4900.0 && wait_s < 5002.0, "{wait_s} s");
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
    let log: u64 = console.run(&["XLEN", &console.keys.event_log()]).await;
    assert_eq!((log, console.dead().await.len()), (1, 0));
}

/// A handler that is a type with a timeout of its own. Its context has the object, the id, the type
/// and the attempt of the event.
#[tokio::test]
async fn a_handler_is_told_what_it_handles() {
    struct Store(Journal);

    #[seriatim::async_trait]
    impl Handler<Moved> for Store {
        async fn handle(&self, event: Moved, cx: HandlerContext) -> HandlerResult {
            let fence = cx.fence();
            assert_eq!(
                (fence.id, fence.token.len(), cx.worker().split('.').next()),
                (cx.id(), 36, Some("w"))
            );
            let kind = cx.event_type().unwrap_or_default();
            self.0.note(format!(
                "{} {} {} {kind} {} {}",
                cx.object(),
                cx.id(),
                cx.prev(),
                event.to,
                cx.attempt()
            ));
            std::str::from_utf8(cx.payload())?;
            Ok(())
        }

        fn timeout(&self) -> Option<Duration> {
            Some(Duration::from_secs(30))
        }
    }

    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(1))
        .register::<Moved>("store", Store(journal.clone()))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console
        .emit_all("work:1", [moved("here"), moved("there")])
        .await;
    console.until_at_rest_after(2).await;
    worker.finish().await;
    assert_eq!(
        journal.lines(),
        ["work:1 1 0 moved here 1", "work:1 2 1 moved there 1"]
    );
}

/// An invalid set of handlers is refused when it is built. The error names the mistake.
#[test]
fn a_set_that_cannot_be_used_is_refused() {
    let journal = Journal::default();
    let twice = Handlers::builder()
        .register_all("mail", journal.notes("a"))
        .register_type("moved", "mail", journal.notes("b"))
        .build();
    assert_eq!(
        twice.err(),
        Some(HandlersError::Duplicate("mail".to_owned()))
    );
    for id in ["", "a\nb", &"x".repeat(129)] {
        let refused = Handlers::builder()
            .register_all(id, journal.notes("a"))
            .build();
        assert_eq!(refused.err(), Some(HandlersError::Id(id.to_owned())));
    }
    for timeout in [Duration::ZERO, Duration::from_secs(24 * 3600 + 1)] {
        let refused = Handlers::builder()
            .timeout(timeout)
            .register_all("a", journal.notes("a"))
            .build();
        assert_eq!(refused.err(), Some(HandlersError::Timeout(timeout)));
    }
}

/// Runs the example `handlers`. One event becomes a dead letter. All other events are delivered,
/// including the emitted one.
#[tokio::test]
async fn the_example_runs() {
    let redis = Redis::start();
    let delivered = crate::example::run(redis.url(), redis.namespace())
        .await
        .expect("it runs");
    let console = redis.console().await;
    console.until_at_rest().await;
    assert_eq!((delivered, console.dead().await.len()), (4, 1));
}
