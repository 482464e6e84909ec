//! `testing::drain` runs a worker until no work is left, and returns the results.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::control::By;
use seriatim::control::held::WaitsFor;
use seriatim::control::rules::{Kind, Selector};
use seriatim::handlers::{Failure, HandlerContext, Handlers};
use seriatim::testing::{DrainError, Fate, drain};
use seriatim::worker::{Worker, WorkerBuilder};

use crate::support::console::PATIENCE;
use crate::support::running::{config, policy};
use crate::support::{Redis, assert_matches};

fn worker(redis: &Redis, handlers: &Handlers) -> WorkerBuilder {
    Worker::builder(redis.url())
        .config(config(redis, "w"))
        .sink(handlers.clone())
}

/// `drain` handles every event that it can, including emitted ones. It does not wait for held and
/// paused objects, but returns them.
#[tokio::test]
async fn what_happened_and_what_is_left_is_returned() {
    let (redis, console) = Redis::start().with_console().await;
    let handlers = Handlers::builder()
        .register_type(
            "placed",
            "pay",
            |order: Value, cx: HandlerContext| async move {
                cx.emit(
                    "ledger:1",
                    &json!({"type": "paid", "cents": order["cents"]}),
                )?;
                cx.result(&json!({"attempt": cx.attempt()}))?;
                Ok(())
            },
        )
        .register_type("paid", "book", |_: Value, _| async { Ok(()) })
        .register_type("bad", "never", |_: Value, _| async {
            Err(Failure::unrecoverable("no"))
        })
        .register_type("later", "busy", |_: Value, _| async {
            Err(Failure::transient("busy"))
        })
        .register_type("soon", "twice", |_: Value, cx: HandlerContext| async move {
            if cx.attempt() < 2 {
                Err(Failure::retry_after("again", Duration::from_millis(1)))
            } else {
                Ok(())
            }
        })
        .register_type("soft", "gives up", |_: Value, _| async {
            Err(Failure::transient("soft"))
        })
        .register_type("hold", "waits", |_: Value, _| async {
            Err(Failure::transient("hold"))
        })
        .build()
        .expect("a set");
    let event = |kind: &str| json!({"type": kind, "cents": 5}).to_string();
    console
        .emit_all("order:1", [event("placed"), event("bad"), event("placed")])
        .await;
    for (object, kind) in [
        ("order:2", "later"),
        ("order:4", "soft"),
        ("order:5", "hold"),
    ] {
        console.emit(object, event(kind)).await;
    }
    console.emit("order:6", "no JSON").await;
    let selector: Selector = "paused:*".parse().expect("a selector");
    let by = By {
        who: "ada",
        why: "",
    };
    redis
        .control()
        .await
        .set_rule(by, Kind::Pause, &selector, None)
        .await
        .expect("set");
    console.emit("paused:1", event("placed")).await;

    let worker = worker(&redis, &handlers)
        .retry(policy("fixed:1h"))
        .retry_type(
            "soft",
            policy("fixed:1h,attempts=1,then=complete-with-errors"),
        )
        .retry_type("hold", policy("fixed:1h,attempts=1,then=hold"));
    let drained = drain(worker, PATIENCE).await.expect("drained");

    let fates = |object: &str| {
        drained
            .of(object)
            .map(|seen| seen.fate.clone())
            .collect::<Vec<_>>()
    };
    let error = |error: &str| error.to_owned();
    assert_eq!(
        fates("order:1"),
        [
            Fate::Delivered,
            Fate::DeadLetter {
                error: error("never: no")
            },
            Fate::Delivered
        ]
    );
    assert_eq!(fates("ledger:1"), [Fate::Delivered, Fate::Delivered]);
    assert_eq!(
        fates("order:2"),
        [Fate::Retry {
            error: error("busy: busy")
        }]
    );
    assert_eq!(
        fates("order:4"),
        [Fate::CompletedWithErrors {
            error: error("gives up: soft")
        }]
    );
    assert_eq!(
        fates("order:5"),
        [Fate::Held {
            error: error("waits: hold")
        }]
    );
    assert_matches!(
        fates("order:6")[..],
        [Fate::DeadLetter { error }] if error.starts_with("not JSON")
    );
    assert_eq!(
        (
            drained.delivered(),
            drained.events.len(),
            drained.events_not_kept
        ),
        (4, 9, 0)
    );
    let held: Vec<_> = drained
        .held
        .iter()
        .map(|object| (object.object.as_str(), object.waits_for))
        .collect();
    assert_eq!(
        held,
        [
            ("order:2", WaitsFor::Retry),
            ("order:5", WaitsFor::Operator)
        ]
    );
    let paused: Vec<_> = drained
        .paused
        .iter()
        .map(|object| object.object.as_str())
        .collect();
    assert_eq!(paused, ["paused:1"]);
    drained.assert_emitted("ledger:1", json!({"type": "paid", "cents": 5}));
    assert_eq!(drained.emitted().len(), 2);
    let first = drained.of("order:1").next().expect("an event");
    assert_eq!(
        (
            first.deliveries,
            first.failures,
            first.json()["type"].as_str()
        ),
        (1, 0, Some("placed"))
    );
    assert_eq!(first.result("pay"), Some(json!({"attempt": 1})));
    console.check().await;

    // A second drain finds no work. A later drain, when a retry is due, continues.
    let again = drain(self::worker(&redis, &handlers), PATIENCE)
        .await
        .expect("drained");
    assert_eq!(
        (again.events.len(), again.held.len(), again.paused.len()),
        (0, 2, 1)
    );
    console.emit("order:7", event("soon")).await;
    let soon = drain(self::worker(&redis, &handlers), PATIENCE)
        .await
        .expect("drained");
    let seen = soon.of("order:7").next().expect("an event");
    assert!(
        seen.failures == 1 && matches!(seen.fate, Fate::Retry { .. } | Fate::Delivered),
        "{seen:?}"
    );
}

/// `drain` takes over the batches of a dead process and handles their events.
#[tokio::test]
async fn what_a_dead_process_had_in_hand_is_handled() {
    let (redis, console) = Redis::start().with_console().await;
    let hangs = Handlers::builder()
        .register_all("hangs", |_: Value, _| std::future::pending())
        .build()
        .expect("a set");
    let stuck = crate::support::running::start(&redis, "stuck", &hangs, |_| {});
    console.emit_all("order:1", ["1", "2"]).await;
    let owner = console.keys.event_worker("order:1");
    crate::support::until("it is in hand", PATIENCE, async || {
        console.text(&owner).await.filter(|owner| owner != "held")
    })
    .await;
    stuck.crash().await;
    console.end_lease("stuck").await;
    let handlers = Handlers::builder()
        .register_all("all", |_: Value, _| async { Ok(()) })
        .build()
        .expect("a set");
    let drained = drain(worker(&redis, &handlers), PATIENCE)
        .await
        .expect("drained");
    drained.assert_all_delivered();
    assert_eq!(drained.of("order:1").count(), 2);
}

/// If the work does not end in time, the error has the remaining work and the results so far.
#[tokio::test]
async fn patience_comes_to_an_end() {
    let (redis, console) = Redis::start().with_console().await;
    let handlers = Handlers::builder()
        .register_all("for ever", |n: u64, cx: HandlerContext| async move {
            Ok(cx.emit("order:1", &(n + 1))?)
        })
        .build()
        .expect("a set");
    console.emit("order:1", "1").await;
    let mut patience = Duration::from_millis(300);
    // A busy machine may handle no event in this time.
    let (unfinished, drained) = loop {
        match drain(worker(&redis, &handlers), patience).await {
            Err(DrainError::Patience { drained, .. })
                if drained.of("order:1").count() == 0 && patience < PATIENCE =>
            {
                patience *= 2
            }
            Err(DrainError::Patience {
                unfinished,
                drained,
                ..
            }) => break (unfinished, drained),
            other => panic!("{other:?}"),
        }
    };
    assert!(
        unfinished.busy + unfinished.markers > 0 || unfinished.due,
        "{unfinished}"
    );
    assert!(drained.of("order:1").count() > 0);
    let no_redis = Worker::builder("unix:///no/such.sock").sink(handlers.clone());
    let failed = drain(no_redis, Duration::from_millis(50)).await;
    assert_matches!(failed, Err(DrainError::Patience { .. }));
    let no_sink = drain(Worker::builder(redis.url()), PATIENCE).await;
    assert_matches!(no_sink, Err(DrainError::Worker(_)));
}
