//! Handlers: which run, which run again, and what becomes of the event.
#![cfg(feature = "worker")]

mod answers;
mod emit;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::Gate;
use crate::support::running::start;
use crate::support::{Redis, until};
use seriatim::sink::{
    self, EventType, Failure, Handler, HandlerContext, HandlerResult, Handlers, HandlersError, Stop, Unhandled,
};
use seriatim::worker::{Backoff, Limit, RetryPolicy, UsedUp};

#[derive(serde::Deserialize)]
struct Moved {
    to: String,
}

impl EventType for Moved {
    const TYPE: &'static str = "moved";
}

/// What handlers have done, in the order in which they did it.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn note(&self, line: impl Into<String>) {
        self.0.lock().expect("no panic").push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }

    /// What was noted, sorted: handlers of one event run at the same time.
    fn sorted(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.sort();
        lines
    }

    fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|noted| *noted == line).count()
    }

    async fn until(&self, count: usize, line: &str) {
        until(&format!("{count} times {line:?}"), PATIENCE, async || (self.count(line) >= count).then_some(())).await;
    }

    /// A handler that notes that it ran, and succeeds.
    fn notes(&self, name: &'static str) -> impl Handler<serde_json::Value> {
        let journal = self.clone();
        move |_: serde_json::Value, cx: HandlerContext| {
            let journal = journal.clone();
            async move {
                journal.note(format!("{name} {}", cx.id()));
                Ok(())
            }
        }
    }

    /// One that notes that it ran, and answers what `answer` makes of it.
    fn answers(
        &self,
        name: &'static str,
        answer: impl Fn(&HandlerContext) -> HandlerResult + Clone + Send + Sync + 'static,
    ) -> impl Handler<serde_json::Value> {
        let journal = self.clone();
        move |_: serde_json::Value, cx: HandlerContext| {
            let (journal, answer) = (journal.clone(), answer.clone());
            async move {
                journal.note(format!("{name} {}", cx.id()));
                answer(&cx)
            }
        }
    }
}

fn moved(to: &str) -> String {
    format!(r#"{{"type":"moved","to":"{to}"}}"#)
}

async fn handled(console: &Console, object: &str) -> Vec<String> {
    let mut fields: Vec<String> = console.run(&["HKEYS", &console.keys.event_handled(object)]).await;
    fields.sort();
    fields
}

/// What is finished of an event stays finished while the others of it are tried again, and is gone with the event.
#[tokio::test]
async fn two_handlers_succeed_and_one_is_transient_only_that_one_runs_again() {
    let redis = Redis::start();
    let console = redis.console().await;
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
    console.emit_all("work:1", [moved("here"), moved("there")]).await;
    journal.until(1, "first 2").await;
    console.until_at_rest_after(2).await;
    worker.finish().await;
    let mut expected = vec!["first 1", "second 1", "third 1", "third 1", "third 1", "third 1"];
    expected.extend(["first 2", "second 2", "third 2", "third 2", "third 2", "third 2"]);
    expected.sort_unstable();
    assert_eq!(journal.sorted(), expected);
    // In order: the second event waits until all handlers of the first one have succeeded.
    assert_eq!(journal.lines().iter().position(|line| line.ends_with(" 2")), Some(6));
    assert_eq!(console.number(&console.keys.last_event_id("work:1")).await, 2);
}

/// One that never will succeed ends the event, with the errors of all; nothing of it runs again.
#[tokio::test]
async fn an_unrecoverable_beside_a_transient_the_transient_never_runs_again() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("down", journal.answers("down", |_| Err(Failure::transient("no route"))))
        .register_all("bad", journal.answers("bad", |_| Err(Failure::unrecoverable("no such place"))))
        .register_all("good", journal.notes("good"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("work:1", moved("nowhere")).await;
    until("it is dead", PATIENCE, async || (console.dead().await.len() == 1).then_some(())).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.sorted(), ["bad 1", "down 1", "good 1"]);
    let dead = console.dead().await;
    let error = dead[0].iter().find(|(field, _)| field == "error").map(|(_, error)| String::from_utf8_lossy(error).into_owned());
    assert_eq!(error.as_deref(), Some("down: no route; bad: no such place"));
}

/// Whoever claims the object runs the handlers; all others have nothing to do.
#[tokio::test]
async fn ten_worker_processes_one_event_one_run() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder().register_all("one", journal.notes("one")).build().expect("a set");
    let names = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];
    let workers: Vec<_> = names.iter().map(|name| start(&redis, name, &handlers, |_| {})).collect();
    console.until_idle(names.len()).await;
    console.emit("work:1", moved("here")).await;
    console.until_at_rest_after(1).await;
    for worker in workers {
        worker.finish().await;
    }
    assert_eq!(journal.lines(), ["one 1"]);
}

/// The worker dies in the middle of the first of three events, of which one handler has succeeded: another worker runs the other one again, and only
/// then the events that follow.
#[tokio::test]
async fn an_event_whose_worker_dies_runs_again_ahead_of_its_objects_later_events() {
    let redis = Redis::start();
    let console = redis.console().await;
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
        Handlers::builder().register_all("quick", journal.notes("quick")).register_all("slow", slow).build().expect("a set")
    };
    console.emit_all("work:1", [moved("a"), moved("b"), moved("c")]).await;
    let worker = start(&redis, "w", &set(true), |_| {});
    until("one has finished", PATIENCE, async || (handled(&console, "work:1").await.len() == 2).then_some(())).await;
    assert_eq!(handled(&console, "work:1").await, ["handler:quick", "id"]);
    console.check().await;
    worker.crash().await;
    console.end_lease("w").await;
    let other = start(&redis, "other", &set(false), |_| {});
    journal.until(1, "slow 3").await;
    console.until_at_rest().await;
    other.finish().await;
    let expected = ["quick 1", "slow 1", "slow 1", "quick 2", "slow 2", "quick 3", "slow 3"];
    assert_eq!(journal.lines(), expected);
}

/// The worker dies in the middle of the second event of a batch, of which something is kept: the first one is finished and does not run again.
#[tokio::test]
async fn the_events_before_the_one_under_way_do_not_run_again() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let set = |stuck: u64| {
        let also = journal.clone();
        let slow = move |_: serde_json::Value, cx: HandlerContext| {
            let journal = also.clone();
            async move {
                journal.note(format!("slow {}", cx.id()));
                if cx.id() == stuck { pending().await } else { Ok(()) }
            }
        };
        Handlers::builder().register_all("quick", journal.notes("quick")).register_all("slow", slow).build().expect("a set")
    };
    console.emit_all("work:1", [moved("a"), moved("b"), moved("c")]).await;
    let worker = start(&redis, "w", &set(2), |_| {});
    journal.until(1, "slow 2").await;
    until("one has finished", PATIENCE, async || {
        let id: Option<String> = console.run(&["HGET", &console.keys.event_handled("work:1"), "id"]).await;
        (id.as_deref() == Some("2") && handled(&console, "work:1").await.contains(&"handler:quick".to_owned())).then_some(())
    })
    .await;
    worker.crash().await;
    console.end_lease("w").await;
    let other = start(&redis, "other", &set(0), |_| {});
    journal.until(1, "slow 3").await;
    console.until_at_rest().await;
    other.finish().await;
    let runs: Vec<_> = ["quick 1", "slow 1", "quick 2", "slow 2", "quick 3", "slow 3"].map(|line| journal.count(line)).into();
    assert_eq!(runs, [1, 1, 1, 2, 1, 1], "{:?}", journal.lines());
}

/// A panic and a handler that takes too long are failures for a time; the worker goes on, and what the handler has started elsewhere is told.
#[tokio::test]
async fn a_panic_and_a_timeout_are_transient() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let also = journal.clone();
    let slow = move |_: serde_json::Value, cx: HandlerContext| {
        let journal = also.clone();
        async move {
            if cx.attempt() > 1 {
                return Ok(());
            }
            let cancelled = cx.cancelled().clone();
            let told = journal.clone();
            tokio::spawn(async move {
                cancelled.cancelled().await;
                told.note("cancelled");
            });
            pending().await
        }
    };
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(50))
        .register_type("moved", "slow", slow)
        .register_type("crashed", "panics", |_: serde_json::Value, cx: HandlerContext| async move {
            assert!(cx.attempt() > 1, "boom {}", cx.object());
            Ok(())
        })
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.emit("work:1", moved("here")).await;
    console.emit("work:2", r#"{"type":"crashed"}"#).await;
    assert_eq!(console.until_held("work:1", "").await, "1 0 1 0 retry: slow: it took longer than 50ms");
    assert_eq!(console.until_held("work:2", "").await, "2 0 1 0 retry: panics: it panicked: boom work:2");
    journal.until(1, "cancelled").await;
    console.release("work:1").await;
    console.release("work:2").await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// What a handler cannot read it will never be able to read.
#[tokio::test]
async fn an_event_that_does_not_deserialize_is_unrecoverable() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let also = journal.clone();
    let mail = move |event: Moved, _: HandlerContext| {
        let journal = also.clone();
        async move {
            journal.note(event.to);
            Ok(())
        }
    };
    let handlers = Handlers::builder().register::<Moved>("mail", mail).build().expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit_all("work:1", [r#"{"type":"moved","to":7}"#, r#"{"type":"moved","to":"here"}"#]).await;
    journal.until(1, "here").await;
    console.until_at_rest().await;
    worker.finish().await;
    let dead = console.dead().await;
    let error = String::from_utf8_lossy(&dead[0][4].1).into_owned();
    assert!(error.starts_with("mail: the event is not what this handler takes: invalid type: integer `7`"), "{error}");
    assert_eq!(journal.lines(), ["here"]);
}

/// Three policies for what nobody takes; a handler for all others takes it.
#[tokio::test]
async fn an_event_without_a_handler_goes_as_the_policy_says() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let set = |unhandled: Unhandled| {
        Handlers::builder().register_type("moved", "moved", journal.notes("moved")).unhandled(unhandled).build().expect("a set")
    };
    let worker = start(&redis, "w", &set(Unhandled::default()), |_| {});
    console.emit_all("work:1", [r#"{"type":"sold"}"#, "7"]).await;
    until("both are dead", PATIENCE, async || (console.dead().await.len() == 2).then_some(())).await;
    console.until_at_rest().await;
    worker.finish().await;
    let errors: Vec<_> = console.dead().await.iter().map(|dead| String::from_utf8_lossy(&dead[4].1).into_owned()).collect();
    assert_eq!(
        errors,
        [r#"no handler is registered for events of type "sold""#, "no handler is registered for events without a type"]
    );
    let worker = start(&redis, "w", &set(Unhandled::Retry), |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.emit("work:1", r#"{"type":"sold"}"#).await;
    console.until_held("work:1", "retry: no handler is registered").await;
    worker.finish().await;
    let worker = start(&redis, "w", &set(Unhandled::Complete), |_| {});
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(console.number(&console.keys.last_event_id("work:1")).await, 3);
    let others = Handlers::builder()
        .register_type("moved", "moved", journal.notes("moved"))
        .register_other("other", journal.notes("other"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &others, |_| {});
    console.emit_all("work:1", [r#"{"type":"sold"}"#, r#"{"type":"moved"}"#]).await;
    journal.until(1, "moved 5").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.lines(), ["other 4", "moved 5"]);
}

/// A subtask that has succeeded does not run again where its handler does, nor in another worker; one that has failed does.
#[tokio::test]
async fn a_subtask_succeeds_once() {
    let redis = Redis::start();
    let console = redis.console().await;
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
                    if cx.attempt() < 3 { Err(Failure::transient("no mail today")) } else { Ok(()) }
                })
                .await?;
                Ok(())
            }
        };
        Handlers::builder().register_all("order", handler).build().expect("a set")
    };
    console.emit("work:1", moved("a")).await;
    let worker = start(&redis, "w", &set(), |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.until_held("work:1", "retry: order: no mail today").await;
    assert_eq!(handled(&console, "work:1").await, ["id", "once:charge"]);
    worker.finish().await;
    let other = start(&redis, "other", &set(), |_| {});
    console.release("work:1").await;
    console.until_at_rest().await;
    other.finish().await;
    let expected = ["charge", "charged Some(17)", "mail", "charged None", "mail", "charged None", "mail"].map(str::to_owned);
    assert_eq!(journal.lines(), expected);
}

/// Two handlers of an event name the same subtask: one runs it, and the other one knows that it is done.
#[tokio::test]
async fn a_subtask_is_one_for_all_handlers_of_an_event() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let handler = || {
        let journal = journal.clone();
        move |_: serde_json::Value, cx: HandlerContext| {
            let journal = journal.clone();
            async move {
                let ran = cx
                    .once("charge", || async {
                        tokio::task::yield_now().await;
                        Ok::<_, Failure>(())
                    })
                    .await?;
                journal.note(format!("{} {}", cx.id(), ran.is_some()));
                Ok(())
            }
        }
    };
    let handlers = Handlers::builder().register_all("a", handler()).register_all("b", handler()).build().expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit_all("work:1", [moved("a"), moved("b")]).await;
    journal.until(1, "2 false").await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.sorted(), ["1 false", "1 true", "2 false", "2 true"]);
}

/// The wait that a handler names is the wait; the longest of several. When the attempts are used up, the policy says what becomes of the event.
#[tokio::test]
async fn the_longest_wait_asked_for_counts_and_attempts_end() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let waits = |s: u64| move |_: &HandlerContext| Err(Failure::retry_after("busy", Duration::from_secs(s)));
    let handlers = Handlers::builder()
        .register_all("a", journal.answers("a", waits(1000)))
        .register_all("b", journal.answers("b", waits(5000)))
        .register_all("c", journal.answers("c", |_| Err(Failure::transient("down"))))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| {
        let limit = Some(Limit { attempts: 2, then: UsedUp::CompleteWithErrors });
        config.retry = RetryPolicy { backoff: Backoff::Fixed(Duration::from_millis(1)), limit };
    });
    console.emit("work:1", moved("a")).await;
    assert_eq!(console.until_held("work:1", "").await, "1 0 1 0 retry: a: busy; b: busy; c: down");
    let (now_s, _): (f64, f64) = console.run(&["TIME"]).await;
    let wait_s = console.due("work:1").await.expect("held") / 1000.0 - now_s;
    assert!(wait_s > 4900.0 && wait_s < 5002.0, "{wait_s} s");
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
    let log: u64 = console.run(&["XLEN", &console.keys.event_log()]).await;
    assert_eq!((log, console.dead().await.len()), (1, 0));
}

/// The lease lapses while a handler runs; the process attaches again and gets the batch under the tag it had: what has finished stays finished.
#[tokio::test]
async fn what_is_finished_stays_finished_after_a_lapse() {
    let redis = Redis::start();
    let console = redis.console().await;
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
    let handlers =
        Handlers::builder().register_all("quick", journal.notes("quick")).register_all("slow", slow).build().expect("a set");
    let worker = start(&redis, "w", &handlers, |config| config.lease = Duration::from_millis(600));
    console.emit("work:1", moved("a")).await;
    until("one has finished", PATIENCE, async || (handled(&console, "work:1").await.len() == 2).then_some(())).await;
    console.end_lease("w").await;
    journal.until(2, "slow").await;
    gate.open();
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(journal.count("quick 1"), 1, "{:?}", journal.lines());
}

/// Redis closes every connection while handlers run: what they finish is kept over a new one.
#[tokio::test]
async fn what_is_finished_is_kept_over_a_new_connection() {
    let redis = Redis::start();
    let console = redis.console().await;
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
            journal.answers("fails", |cx| if cx.attempt() == 1 { Err(Failure::transient("down")) } else { Ok(()) }),
        )
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.emit("work:1", moved("a")).await;
    until("a subtask is done", PATIENCE, async || (handled(&console, "work:1").await.len() == 2).then_some(())).await;
    let _: u64 = console.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    gate.open();
    console.until_held("work:1", "retry: fails: down").await;
    assert_eq!(handled(&console, "work:1").await, ["handler:waits", "id", "once:after", "once:before"]);
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// A key of a wrong type in the place of what is finished holds back the event it belongs to, and says so.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    let redis = Redis::start();
    let console = redis.console().await;
    let handlers = Handlers::builder()
        .register_all("order", |_: serde_json::Value, cx: HandlerContext| async move {
            cx.once("charge", || async { Ok::<_, Failure>(()) }).await?;
            Ok(())
        })
        .build()
        .expect("a set");
    let key = console.keys.event_handled("work:1");
    let _: String = console.run(&["SET", &key, "wrong"]).await;
    let worker = start(&redis, "w", &handlers, |config| config.retry = "fixed:1h".parse().expect("a policy"));
    console.emit("work:1", moved("a")).await;
    let held = console.until_held("work:1", "retry: order: ").await;
    assert!(held.contains(&key) && held.contains("WRONGTYPE"), "{held}");
    console.release("work:1").await;
    let held = until("it has failed again", PATIENCE, async || {
        console.held_id("work:1").await.filter(|held| held.starts_with("1 1 2 0 "))
    })
    .await;
    assert!(held.contains(&format!("retry: {key}: ")), "{held}");
    let _: u64 = console.run(&["DEL", &key]).await;
    console.release("work:1").await;
    console.until_at_rest().await;
    worker.finish().await;
}

/// A worker with another sink takes the object over: what handlers had finished goes with the event all the same.
#[tokio::test]
async fn another_sink_leaves_nothing_behind() {
    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("good", journal.notes("good"))
        .register_all("down", journal.answers("down", |_| Err(Failure::transient("down"))))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |config| config.retry = "fixed:1h".parse().expect("a policy"));
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

/// What is done of a batch of slow events is committed while it goes on: a crash does not make all of them run again.
#[tokio::test]
async fn a_long_batch_is_committed_in_parts() {
    let redis = Redis::start();
    let console = redis.console().await;
    let gate = Gate::closed();
    let opens = gate.clone();
    let handler = move |_: serde_json::Value, cx: HandlerContext| {
        let gate = opens.clone();
        async move {
            match cx.id() {
                // Longer than what is done is kept back.
                1 => tokio::time::sleep(Duration::from_millis(120)).await,
                2 => gate.pass().await,
                _ => {}
            }
            Ok(())
        }
    };
    let handlers = Handlers::builder().register_all("slow", handler).build().expect("a set");
    console.emit_all("work:1", [moved("a"), moved("b"), moved("c")]).await;
    let worker = start(&redis, "w", &handlers, |_| {});
    let last = console.keys.last_event_id("work:1");
    until("the first is committed", PATIENCE, async || (console.number(&last).await == 1).then_some(())).await;
    gate.open();
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(console.number(&last).await, 3);
}

/// A handler of its own type, with a timeout of its own; what it is told.
#[tokio::test]
async fn a_handler_is_told_what_it_handles() {
    struct Store(Journal);

    #[seriatim::async_trait]
    impl Handler<Moved> for Store {
        async fn handle(&self, event: Moved, cx: HandlerContext) -> HandlerResult {
            let fence = cx.fence();
            assert_eq!((fence.id, fence.token.len(), cx.worker().split('.').next()), (cx.id(), 36, Some("w")));
            let kind = cx.event_type().unwrap_or_default();
            self.0.note(format!("{} {} {} {kind} {} {}", cx.object(), cx.id(), cx.prev(), event.to, cx.attempt()));
            std::str::from_utf8(cx.payload())?;
            Ok(())
        }

        fn timeout(&self) -> Option<Duration> {
            Some(Duration::from_secs(30))
        }
    }

    let redis = Redis::start();
    let console = redis.console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(1))
        .register::<Moved>("store", Store(journal.clone()))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit_all("work:1", [moved("here"), moved("there")]).await;
    console.until_at_rest_after(2).await;
    worker.finish().await;
    assert_eq!(journal.lines(), ["work:1 1 0 moved here 1", "work:1 2 1 moved there 1"]);
}

/// What cannot be used is refused when the set is made, by its name.
#[test]
fn a_set_that_cannot_be_used_is_refused() {
    let journal = Journal::default();
    let twice =
        Handlers::builder().register_all("mail", journal.notes("a")).register_type("moved", "mail", journal.notes("b")).build();
    assert_eq!(twice.err(), Some(HandlersError::Duplicate("mail".to_owned())));
    for id in ["", "a\nb", &"x".repeat(129)] {
        let refused = Handlers::builder().register_all(id, journal.notes("a")).build();
        assert_eq!(refused.err(), Some(HandlersError::Id(id.to_owned())));
    }
    for timeout in [Duration::ZERO, Duration::from_secs(24 * 3600 + 1)] {
        let refused = Handlers::builder().timeout(timeout).register_all("a", journal.notes("a")).build();
        assert_eq!(refused.err(), Some(HandlersError::Timeout(timeout)));
    }
}

/// The example does what it says: one event is a dead letter, all others are delivered, with the one that is emitted.
#[tokio::test]
async fn the_example_runs() {
    let redis = Redis::start();
    let delivered = crate::example::run(redis.url(), redis.namespace()).await.expect("it runs");
    let console = redis.console().await;
    console.until_at_rest().await;
    assert_eq!((delivered, console.dead().await.len()), (4, 1));
}
