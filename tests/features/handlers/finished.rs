//! Finished handlers of an event. They stay finished while the other handlers run again. The record
//! of finished handlers is deleted when the event is finalized.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use seriatim::handlers::{Failure, HandlerContext, Handlers};
use seriatim::sink::{self, Stop};

use super::{Journal, handled, moved};
use crate::support::console::PATIENCE;
use crate::support::recorder::Gate;
use crate::support::running::{retrying, start};
use crate::support::{Redis, until};

/// Finished handlers of an event stay finished while the other handlers are retried. When the event
/// is finalized, the record of finished handlers is deleted.
#[tokio::test]
async fn two_handlers_succeed_and_one_is_transient_only_that_one_runs_again() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let third = journal.answers("third", |cx| match cx.attempt() {
        1..4 => Err(Failure::transient("busy")),
        _ => Ok(()),
    });
    let handlers = Handlers::builder()
        .register_type("moved", "first", journal.notes("first"))
        .register_all("second", journal.notes("second"))
        .register_type("moved", "third", third)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console
        .emit_all("work:1", [moved("here"), moved("there")])
        .await;
    journal.until(1, "first 2").await;
    console.until_at_rest_after(2).await;
    worker.finish().await;
    let mut expected = vec![
        "first 1", "second 1", "third 1", "third 1", "third 1", "third 1",
    ];
    expected.extend([
        "first 2", "second 2", "third 2", "third 2", "third 2", "third 2",
    ]);
    expected.sort_unstable();
    assert_eq!(journal.sorted(), expected);
    // The second event runs only after all handlers of the first event have succeeded.
    assert_eq!(
        journal.lines().iter().position(|line| line.ends_with(" 2")),
        Some(6)
    );
    assert_eq!(console.last_id("work:1").await, 2);
}

/// The worker dies in the first of three events, after one of the event's handlers has succeeded.
/// Another worker runs the other handler again, and after it the two later events.
#[tokio::test]
async fn an_event_whose_worker_dies_runs_again_ahead_of_its_objects_later_events() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let set = |stuck: bool| {
        let also = journal.clone();
        let slow = move |_: serde_json::Value, cx: HandlerContext| {
            let journal = also.clone();
            async move {
                journal.note(format!("slow {}", cx.id()));
                if stuck { pending().await } else { Ok(()) }
            }
        };
        Handlers::builder()
            .register_all("quick", journal.notes("quick"))
            .register_all("slow", slow)
            .build()
            .expect("a set")
    };
    console
        .emit_all("work:1", [moved("a"), moved("b"), moved("c")])
        .await;
    let worker = start(&redis, "w", &set(true), |_| {});
    until("one has finished", PATIENCE, async || {
        (handled(&console, "work:1").await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(handled(&console, "work:1").await, ["handler:quick", "id"]);
    console.check().await;
    worker.crash().await;
    console.end_lease("w").await;
    let other = start(&redis, "other", &set(false), |_| {});
    journal.until(1, "slow 3").await;
    console.until_at_rest().await;
    other.finish().await;
    let expected = [
        "quick 1", "slow 1", "slow 1", "quick 2", "slow 2", "quick 3", "slow 3",
    ];
    assert_eq!(journal.lines(), expected);
}

/// The worker dies in the second event of a batch. The record of finished handlers is for this
/// event. So the first event is finished and does not run again.
#[tokio::test]
async fn the_events_before_the_one_under_way_do_not_run_again() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let set = |stuck: u64| {
        let also = journal.clone();
        let slow = move |_: serde_json::Value, cx: HandlerContext| {
            let journal = also.clone();
            async move {
                journal.note(format!("slow {}", cx.id()));
                if cx.id() == stuck {
                    pending().await
                } else {
                    Ok(())
                }
            }
        };
        Handlers::builder()
            .register_all("quick", journal.notes("quick"))
            .register_all("slow", slow)
            .build()
            .expect("a set")
    };
    console
        .emit_all("work:1", [moved("a"), moved("b"), moved("c")])
        .await;
    let worker = start(&redis, "w", &set(2), |_| {});
    journal.until(1, "slow 2").await;
    until("one has finished", PATIENCE, async || {
        let id: Option<String> = console
            .run(&["HGET", &console.keys.event_handled("work:1"), "id"])
            .await;
        (id.as_deref() == Some("2")
            && handled(&console, "work:1")
                .await
                .contains(&"handler:quick".to_owned()))
        .then_some(())
    })
    .await;
    worker.crash().await;
    console.end_lease("w").await;
    let other = start(&redis, "other", &set(0), |_| {});
    journal.until(1, "slow 3").await;
    console.until_at_rest().await;
    other.finish().await;
    let runs: Vec<_> = [
        "quick 1", "slow 1", "quick 2", "slow 2", "quick 3", "slow 3",
    ]
    .map(|line| journal.count(line))
    .into();
    assert_eq!(runs, [1, 1, 1, 2, 1, 1], "{:?}", journal.lines());
}

/// If a handler runs again, its successful subtasks do not run again, not even in another worker:
/// the handler gets their stored values. Its failed subtasks run again.
#[tokio::test]
async fn a_subtask_succeeds_once() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let set = || {
        let journal = journal.clone();
        let handler = move |_: serde_json::Value, cx: HandlerContext| {
            let journal = journal.clone();
            async move {
                let first = cx
                    .once("charge", || async {
                        journal.note("charge");
                        Ok::<_, Failure>(17)
                    })
                    .await?;
                journal.note(format!("charged {first:?}"));
                cx.once("mail", || async {
                    journal.note("mail");
                    if cx.attempt() < 3 {
                        Err(Failure::transient("no mail today"))
                    } else {
                        Ok(())
                    }
                })
                .await?;
                Ok(())
            }
        };
        Handlers::builder()
            .register_all("order", handler)
            .build()
            .expect("a set")
    };
    console.emit("work:1", moved("a")).await;
    let worker = start(&redis, "w", &set(), retrying("fixed:1h"));
    console
        .until_held("work:1", "retry: order: no mail today")
        .await;
    assert_eq!(handled(&console, "work:1").await, ["id", "once:charge"]);
    worker.finish().await;
    let other = start(&redis, "other", &set(), |_| {});
    console.release("work:1").await;
    console.until_at_rest().await;
    other.finish().await;
    let expected = [
        "charge",
        "charged 17",
        "mail",
        "charged 17",
        "mail",
        "charged 17",
        "mail",
    ]
    .map(str::to_owned);
    assert_eq!(journal.lines(), expected);
}

/// Two handlers of an event name the same subtask. One handler runs the subtask, and the other
/// handler finds it done.
#[tokio::test]
async fn a_subtask_is_one_for_all_handlers_of_an_event() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handler = || {
        let journal = journal.clone();
        move |_: serde_json::Value, cx: HandlerContext| {
            let journal = journal.clone();
            async move {
                let runs = journal.clone();
                let value = cx
                    .once("charge", || async {
                        tokio::task::yield_now().await;
                        runs.note(format!("{} runs", cx.id()));
                        Ok::<_, Failure>(format!("of {}", cx.id()))
                    })
                    .await?;
                journal.note(value);
                Ok(())
            }
        }
    };
    let handlers = Handlers::builder()
        .register_all("a", handler())
        .register_all("b", handler())
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit_all("work:1", [moved("a"), moved("b")]).await;
    journal.until(2, "of 2").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(
        journal.sorted(),
        ["1 runs", "2 runs", "of 1", "of 1", "of 2", "of 2"]
    );
}

/// The lease lapses while a handler runs. The process attaches again and gets the batch under the
/// same tag, so finished handlers stay finished.
#[tokio::test]
async fn what_is_finished_stays_finished_after_a_lapse() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let gate = Gate::closed();
    let (also, opens) = (journal.clone(), gate.clone());
    let slow = move |_: serde_json::Value, _: HandlerContext| {
        let (journal, gate) = (also.clone(), opens.clone());
        async move {
            journal.note("slow");
            gate.pass().await;
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register_all("quick", journal.notes("quick"))
        .register_all("slow", slow)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| {
        config.lease = Duration::from_millis(600)
    });
    console.emit("work:1", moved("a")).await;
    until("one has finished", PATIENCE, async || {
        (handled(&console, "work:1").await.len() == 2).then_some(())
    })
    .await;
    console.end_lease("w").await;
    journal.until(2, "slow").await;
    gate.open();
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.count("quick 1"), 1, "{:?}", journal.lines());
}

/// Redis closes every connection while handlers run. Their successes are recorded over a new
/// connection.
#[tokio::test]
async fn what_is_finished_is_kept_over_a_new_connection() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let gate = Gate::closed();
    let opens = gate.clone();
    let waits = move |_: serde_json::Value, cx: HandlerContext| {
        let gate = opens.clone();
        async move {
            cx.once("before", || async { Ok::<_, Failure>(()) }).await?;
            gate.pass().await;
            cx.once("after", || async { Ok::<_, Failure>(()) }).await?;
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register_all("waits", waits)
        .register_all(
            "fails",
            journal.answers("fails", |cx| {
                if cx.attempt() == 1 {
                    Err(Failure::transient("down"))
                } else {
                    Ok(())
                }
            }),
        )
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", moved("a")).await;
    until("a subtask is done", PATIENCE, async || {
        (handled(&console, "work:1").await.len() == 2).then_some(())
    })
    .await;
    let _: u64 = console
        .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    gate.open();
    console.until_held("work:1", "retry: fails: down").await;
    assert_eq!(
        handled(&console, "work:1").await,
        ["handler:waits", "id", "once:after", "once:before"]
    );
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// If the key of finished handlers has a wrong type, the event is held, and the reason names the
/// key.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    let (redis, console) = Redis::start().with_console().await;
    let handlers = Handlers::builder()
        .register_all(
            "order",
            |_: serde_json::Value, cx: HandlerContext| async move {
                cx.once("charge", || async { Ok::<_, Failure>(()) }).await?;
                Ok(())
            },
        )
        .build()
        .expect("a set");
    let key = console.keys.event_handled("work:1");
    let _: String = console.run(&["SET", &key, "wrong"]).await;
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", moved("a")).await;
    let held = console.until_held("work:1", "retry: order: ").await;
    assert!(held.contains(&key) && held.contains("WRONGTYPE"), "{held}");
    console.release("work:1").await;
    let held = until("it has failed again", PATIENCE, async || {
        console
            .held_id("work:1")
            .await
            .filter(|held| held.starts_with("1 1 2 0 "))
    })
    .await;
    assert!(held.contains(&format!("retry: {key}: ")), "{held}");
    let _: u64 = console.run(&["DEL", &key]).await;
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// A worker with a sink other than `Handlers` takes over the object. When it finalizes the event,
/// the record of finished handlers is deleted.
#[tokio::test]
async fn another_sink_leaves_nothing_behind() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("good", journal.notes("good"))
        .register_all("down", journal.transient("down", "down"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", moved("a")).await;
    console.until_held("work:1", "retry").await;
    assert_eq!(handled(&console, "work:1").await, ["handler:good", "id"]);
    worker.finish().await;
    console.release("work:1").await;
    let sink = Arc::new(sink::each(|_| async { Ok::<(), Stop>(()) }));
    let other = start(&redis, "other", &sink, |_| {});
    console.until_at_rest().await;
    other.finish().await;
}

/// A slow batch is committed in parts while it continues. So a crash does not repeat all of its
/// finished events.
#[tokio::test]
async fn a_long_batch_is_committed_in_parts() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let opens = gate.clone();
    let handler = move |_: serde_json::Value, cx: HandlerContext| {
        let gate = opens.clone();
        async move {
            match cx.id() {
                // This wait is longer than the time for which a worker keeps finished events
                // uncommitted.
                1 => tokio::time::sleep(Duration::from_millis(120)).await,
                2 => gate.pass().await,
                _ => {}
            }
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register_all("slow", handler)
        .build()
        .expect("a set");
    console
        .emit_all("work:1", [moved("a"), moved("b"), moved("c")])
        .await;
    let worker = start(&redis, "w", &handlers, |_| {});
    let last = console.keys.last_event_id("work:1");
    until("the first is committed", PATIENCE, async || {
        (console.number(&last).await == 1).then_some(())
    })
    .await;
    gate.open();
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(console.number(&last).await, 3);
}
