//! Emits of handlers. They are pushed once, in the step that finalizes the event, and not earlier.

mod failures;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::control::By;
use seriatim::event::{EVENT_BYTES_MAX, EventError, Json, NameError};
use seriatim::handlers::{
    EMITS_MAX, Failure, Handler, HandlerContext, HandlerEmitError, HandlerResult, Handlers,
};
use seriatim::sink::{self, Stop};
use seriatim::worker::Worker;

use super::{Journal, handled};
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::Gate;
use crate::support::running::{config, retrying, start};
use crate::support::{Redis, assert_matches, until};

/// Returns a handler for emitted events. It records the object, the id, the `prev` and the
/// number of each event.
fn takes(journal: &Journal) -> impl Handler<Value> {
    let journal = journal.clone();
    move |event: Value, cx: HandlerContext| {
        let journal = journal.clone();
        async move {
            journal.note(format!(
                "{} {} after {}: {}",
                cx.object(),
                cx.id(),
                cx.prev(),
                event["n"]
            ));
            Ok(())
        }
    }
}

/// Returns an event for the handler that `takes` returns.
fn made(n: u64) -> Value {
    json!({"type": "made", "n": n})
}

const MOVED: &str = r#"{"type":"moved"}"#;

/// Returns a function that emits one event for each of these objects, numbered from 1.
fn emits(
    objects: &'static [&'static str],
) -> impl Fn(&HandlerContext) -> HandlerResult + Clone + Send + Sync {
    move |cx| {
        for (object, n) in objects.iter().zip(1..) {
            cx.emit(object, &made(n))?;
        }
        Ok(())
    }
}

/// Returns two handlers: one emits events for these objects, and one takes them.
fn emitting(journal: &Journal, objects: &'static [&'static str]) -> Handlers {
    Handlers::builder()
        .register_type("moved", "emits", journal.answers("emits", emits(objects)))
        .register_type("made", "takes", takes(journal))
        .build()
        .expect("a set")
}

async fn is_queued(console: &Console, object: &str) -> bool {
    console.run(&["EXISTS", &console.keys.events(object)]).await
}

/// As long as another handler of the event is retried, no emit is pushed. When the event is
/// finalized, each emit is pushed once.
#[tokio::test]
async fn what_is_emitted_is_pushed_with_the_end_of_the_event_and_not_before() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let fails = |cx: &HandlerContext| {
        if cx.attempt() < 3 {
            Err(Failure::transient("busy"))
        } else {
            Ok(())
        }
    };
    let handlers = Handlers::builder()
        .register_type(
            "moved",
            "emits",
            journal.answers("emits", emits(&["work:2", "work:2"])),
        )
        .register_type("moved", "fails", journal.answers("fails", fails))
        .register_type("made", "takes", takes(&journal))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", MOVED).await;
    for numbers in ["1 0 1 0", "1 1 2 0"] {
        let held = format!("{numbers} retry: fails: busy");
        until(&held, PATIENCE, async || {
            console
                .held_id("work:1")
                .await
                .filter(|found| *found == held)
        })
        .await;
        assert_eq!(
            handled(&console, "work:1").await,
            ["emit:emits", "handler:emits", "id"]
        );
        assert!(!is_queued(&console, "work:2").await);
        console.check().await;
        console.release("work:1").await;
    }
    console.until_at_rest_after(3).await;
    worker.finish().await;
    let mut lines = journal.lines();
    assert_eq!(
        lines.split_off(4),
        ["work:2 2 after 0: 1", "work:2 3 after 2: 2"]
    );
    lines.sort();
    assert_eq!(lines, ["emits 1", "fails 1", "fails 1", "fails 1"]);
}

/// The emits of a handler that fails are discarded, for every kind of failure.
#[tokio::test]
async fn a_handler_that_fails_has_emitted_nothing() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let after = |ends: fn() -> HandlerResult| {
        move |cx: &HandlerContext| {
            emits(&["work:9"])(cx)?;
            ends()
        }
    };
    let slow = |_: Value, cx: HandlerContext| async move {
        cx.emit("work:9", &made(1))?;
        pending::<()>().await;
        Ok(())
    };
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(50))
        .register_type(
            "transient",
            "a",
            journal.answers("a", after(|| Err(Failure::transient("later")))),
        )
        .register_type(
            "unrecoverable",
            "b",
            journal.answers("b", after(|| Err(Failure::unrecoverable("never")))),
        )
        .register_type("panic", "c", journal.answers("c", after(|| panic!("boom"))))
        .register_type("timeout", "d", slow)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    for (object, kind) in [
        ("work:1", "transient"),
        ("work:2", "unrecoverable"),
        ("work:3", "panic"),
        ("work:4", "timeout"),
    ] {
        console
            .emit(object, format!(r#"{{"type":"{kind}"}}"#))
            .await;
    }
    for object in ["work:1", "work:3", "work:4"] {
        console.until_held(object, "retry: ").await;
        assert_eq!(handled(&console, object).await, [""; 0]);
    }
    until("one is dead", PATIENCE, async || {
        (console.dead().await.len() == 1).then_some(())
    })
    .await;
    assert!(!is_queued(&console, "work:9").await);
    assert_eq!(console.last_id("work:9").await, 0);
    console.check().await;
    worker.finish().await;
}

/// An event becomes a dead letter, or is completed with errors. The emits of its successful
/// handlers are pushed all the same.
#[tokio::test]
async fn what_is_emitted_follows_on_a_dead_letter_too() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_type("bad", "never", journal.unrecoverable("never", "no"))
        .register_type("busy", "later", journal.transient("later", "busy"))
        .register_type("made", "takes", takes(&journal))
        .register_type("bad", "emits", journal.answers("emits", emits(&["work:1"])))
        .register_type("busy", "also", journal.answers("also", emits(&["work:1"])))
        .build()
        .expect("a set");
    let worker = start(
        &redis,
        "w",
        &handlers,
        retrying("fixed:1ms,attempts=2,then=complete-with-errors"),
    );
    console
        .emit_all("work:1", [r#"{"type":"bad"}"#, r#"{"type":"busy"}"#])
        .await;
    console.until_at_rest_after(4).await;
    worker.finish().await;
    let mut lines = journal.lines();
    assert_eq!(
        lines.split_off(5),
        ["work:1 3 after 0: 1", "work:1 4 after 3: 1"]
    );
    lines.sort();
    assert_eq!(
        lines,
        ["also 2", "emits 1", "later 2", "later 2", "never 1"]
    );
    assert_eq!(console.dead().await.len(), 1);
}

/// An operator skips an event. The emits of its successful handlers are pushed all the same.
#[tokio::test]
async fn what_is_emitted_follows_on_a_skip_too() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_type(
            "moved",
            "emits",
            journal.answers("emits", emits(&["work:1", "work:2"])),
        )
        .register_type("moved", "down", journal.transient("down", "down"))
        .register_type("made", "takes", takes(&journal))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", MOVED).await;
    console.until_held("work:1", "retry: down").await;
    let by = By {
        who: "ada",
        why: "because",
    };
    let skipped = console.control().skip(by, "work:1", Some(1)).await;
    skipped.expect("skipped");
    console.until_at_rest_after(3).await;
    worker.finish().await;
    let mut made = journal.lines().split_off(2);
    made.iter_mut()
        .for_each(|line| *line = line.replace(" 3 ", " 2 "));
    made.sort();
    assert_eq!(made, ["work:1 2 after 0: 1", "work:2 2 after 0: 2"]);
}

/// The emits of a handler for its own object come behind the queued events, with the next ids. Each
/// event of a batch is committed separately.
#[tokio::test]
async fn what_is_emitted_for_the_object_itself_follows_in_order() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = emitting(&journal, &["work:1", "work:1"]);
    console.emit_all("work:1", [MOVED, MOVED]).await;
    let worker = start(&redis, "w", &handlers, |_| {});
    console.until_at_rest_after(6).await;
    worker.finish().await;
    let made = [
        "work:1 3 after 2: 1",
        "work:1 4 after 3: 2",
        "work:1 5 after 4: 1",
        "work:1 6 after 5: 2",
    ];
    assert_eq!(
        journal.lines(),
        [&["emits 1", "emits 2"][..], &made].concat()
    );
}

/// Several handlers of an event emit for one object. The emits are pushed in the order in which the
/// handlers are registered, whichever handler ends first.
#[tokio::test]
async fn handlers_emit_in_the_order_in_which_they_are_registered() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let gate = Gate::closed();
    let opens = gate.clone();
    let slow = move |_: Value, cx: HandlerContext| {
        let gate = opens.clone();
        async move {
            gate.pass().await;
            cx.emit("work:2", &made(1))?;
            Ok(())
        }
    };
    let quick = |_: Value, cx: HandlerContext| async move {
        cx.emit("work:2", Json::new(r#"{"type": "made", "n": 2}"#))?;
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_type("made", "takes", takes(&journal))
        .register_type("moved", "z", slow)
        .register_type("moved", "a", quick)
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("work:1", MOVED).await;
    until("the quick one has finished", PATIENCE, async || {
        (handled(&console, "work:1").await.len() == 3).then_some(())
    })
    .await;
    gate.open();
    console.until_at_rest_after(3).await;
    worker.finish().await;
    assert_eq!(
        journal.lines(),
        ["work:2 2 after 0: 1", "work:2 3 after 2: 2"]
    );
}

/// A worker with a sink other than `Handlers` finalizes the event. The emits of the event's
/// handlers are pushed all the same.
#[tokio::test]
async fn another_sink_pushes_what_was_emitted() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = Handlers::builder()
        .register_all("emits", journal.answers("emits", emits(&["work:2"])))
        .register_all("down", journal.transient("down", "down"))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    console.emit("work:1", MOVED).await;
    console.until_held("work:1", "retry").await;
    worker.finish().await;
    console.release("work:1").await;
    let also = journal.clone();
    let sink = Arc::new(sink::each(move |event| {
        also.note(format!("{} {}", event.object, event.id));
        async { Ok::<(), Stop>(()) }
    }));
    let other = start(&redis, "other", &sink, |_| {});
    console.until_at_rest_after(2).await;
    other.finish().await;
    assert_eq!(journal.lines().split_off(2), ["work:1 1", "work:2 2"]);
}

/// A program that claims by hand finalizes the event, by a commit or a rejection. In both cases the
/// emits of the event's handlers are pushed.
#[tokio::test]
async fn an_event_claimed_by_hand_pushes_what_was_emitted() {
    for reject in [false, true] {
        let (redis, console) = Redis::start().with_console().await;
        let journal = Journal::default();
        let handlers = Handlers::builder()
            .register_all("emits", journal.answers("emits", emits(&["work:2"])))
            .register_all("down", journal.transient("down", "down"))
            .build()
            .expect("a set");
        let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
        console.emit("work:1", MOVED).await;
        console.until_held("work:1", "retry").await;
        worker.finish().await;
        console.release("work:1").await;
        let claims = Worker::builder(redis.url())
            .config(config(&redis, "by-hand"))
            .claims()
            .await
            .expect("the name is free");
        let mut claimed = claims.next().await.expect("claimed");
        // A retry does not finalize the event, so no emit is pushed.
        claimed
            .retry("later", Some(Duration::ZERO))
            .await
            .expect("taken");
        assert!(!is_queued(&console, "work:2").await);
        let mut claimed = claims.next().await.expect("claimed");
        assert_eq!(
            (claimed.event().object.as_str(), claimed.event().id),
            ("work:1", 1)
        );
        match reject {
            true => claimed.reject("no").await.expect("taken"),
            false => claimed.commit().await.expect("taken"),
        }
        let mut emitted = claims.next().await.expect("claimed");
        assert_eq!(
            (emitted.event().object.as_str(), emitted.event().id),
            ("work:2", 2)
        );
        emitted.commit().await.expect("taken");
        claims.close().await;
        assert_eq!(handled(&console, "work:1").await, [""; 0]);
        console.check().await;
    }
}

/// An invalid emit is refused at once, with an error that says why. A handler that has ended can
/// emit no more events.
#[tokio::test]
async fn what_cannot_be_emitted_is_refused() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let left: Arc<Mutex<Option<HandlerContext>>> = Arc::default();
    let keeps = Arc::clone(&left);
    let tries = move |cx: &HandlerContext| {
        assert_matches!(
            cx.emit("", &made(1)),
            Err(HandlerEmitError::Name(NameError::Empty))
        );
        let bad = cx.emit("work:2", Json::new("{"));
        assert_matches!(bad, Err(HandlerEmitError::Event(EventError::NotJson(_))));
        let large = cx.emit("work:2", &"x".repeat(EVENT_BYTES_MAX));
        assert_matches!(
            large,
            Err(HandlerEmitError::Event(EventError::TooLarge { .. }))
        );
        for n in 0..EMITS_MAX as u64 {
            cx.emit("work:2", &made(n))?;
        }
        assert_matches!(cx.emit("work:2", &made(0)), Err(HandlerEmitError::Full));
        *keeps.lock().expect("no panic") = Some(cx.clone());
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_type("moved", "tries", journal.answers("tries", tries))
        .register_type("made", "takes", takes(&journal))
        .build()
        .expect("a set");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("work:1", MOVED).await;
    console.until_at_rest_after(1 + EMITS_MAX as u64).await;
    worker.finish().await;
    assert_eq!(console.dead().await.len(), 0);
    let numbers: Vec<u64> = journal
        .lines()
        .iter()
        .skip(1)
        .filter_map(|line| line.split(": ").nth(1)?.parse().ok())
        .collect();
    assert_eq!(numbers, (0..EMITS_MAX as u64).collect::<Vec<_>>());
    let cx = left.lock().expect("no panic").take().expect("it ran");
    assert_matches!(cx.emit("work:2", &made(1)), Err(HandlerEmitError::Ended));
}
