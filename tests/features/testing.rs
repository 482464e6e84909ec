//! The test kit, which needs no Redis. It runs handlers as a worker does, and returns their
//! results. The example's handlers are tested with this kit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::event::{EventError, Json, NameError};
use seriatim::handlers::{Failure, HandlerContext, HandlerEmitError, Handlers};
use seriatim::sink::Stop;
use seriatim::testing::{HandlerOutcome, HandlerTest, TestEvent, TestEventError};
use seriatim::worker::Shutdown;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::support::assert_matches;

fn event(value: &Value) -> TestEvent {
    TestEvent::new("order:1", value).expect("an event")
}

fn moved() -> TestEvent {
    event(&json!({"type": "moved"}))
}

/// Returns the panic message of an `assert_…` function that must fail.
fn refused<T>(assertion: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(assertion))
        .map(drop)
        .expect_err("the assertion fails");
    panic.downcast_ref::<String>().expect("a text").clone()
}

/// Tests that the next run of a test gets the stored value of a subtask, as in a worker.
#[tokio::test]
async fn a_stored_value_is_returned_again() {
    let test = HandlerTest::one("charge", |_: Value, cx: HandlerContext| async move {
        let attempt: u32 = cx
            .once("card", || async { Ok::<_, Failure>(cx.attempt()) })
            .await?;
        Err(Failure::transient(format!("charged at attempt {attempt}")))
    });
    let test = test.expect("a handler");
    for attempt in 1..=3 {
        test.run(moved().attempt(attempt))
            .await
            .assert_failed("charge", "charged at attempt 1");
    }
}

/// Tests the example's handlers. An order is paid at the second attempt and charged once. Too large
/// an amount becomes a dead letter. A closed order is archived.
#[tokio::test]
async fn the_example_is_tested_with_the_kit() {
    let test = HandlerTest::new(crate::example::handlers(&Shutdown::new()).expect("a set"));
    let placed = event(&json!({"type": "placed", "cents": 1200})).id(1_767_225_600_000_000);
    let first = test.run(placed.clone()).await;
    first.assert_failed("payment", "the bank has not confirmed");
    let retry_after = Some(Duration::from_millis(100));
    assert_matches!(
        first.stop(),
        Some(Stop::Transient { retry_after: wait, .. }) if *wait == retry_after
    );
    test.run(placed.attempt(2))
        .await
        .assert_delivered()
        .assert_succeeded("payment");

    let too_much = test
        .run(event(&json!({"type": "placed", "cents": 990_000})).id(2))
        .await;
    assert_eq!(
        too_much.stop(),
        Some(&Stop::rejected("payment: 990000 cents are too many"))
    );

    let closed = test
        .run(event(&json!({"type": "closed"})).id(3).prev(1))
        .await;
    closed
        .assert_delivered()
        .assert_emitted("archive:1", json!({"order": "order:1"}));
    let archived = TestEvent::new("archive:1", Json::new(closed.emitted()[0].payload.clone()))
        .expect("an event");
    test.run(archived)
        .await
        .assert_delivered()
        .assert_succeeded("stop");
}

/// If an event is run again, the kit treats the run as a retry: successful handlers and subtasks do
/// not run again. For another event, or after `forget`, all of them run.
#[tokio::test]
async fn a_second_run_does_what_a_retry_does() {
    let (mail, charged) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counted = |count: &Arc<AtomicU32>| {
        let count = Arc::clone(count);
        move || {
            count.fetch_add(1, Relaxed);
        }
    };
    let (sends, charges) = (counted(&mail), counted(&charged));
    let handlers = Handlers::builder()
        .register_type("moved", "mail", move |_: Value, cx: HandlerContext| {
            sends();
            async move { Ok(cx.emit("mail:1", &json!({"n": 1}))?) }
        })
        .register_type("moved", "charge", move |_: Value, cx: HandlerContext| {
            let charge = charges.clone();
            async move {
                cx.emit("charge:1", &json!({"attempt": cx.attempt()}))?;
                cx.once("card", || async move {
                    charge();
                    Ok::<(), Failure>(())
                })
                .await?;
                if cx.attempt() < 2 {
                    Err(Failure::transient("declined"))
                } else {
                    Ok(())
                }
            }
        })
        .build()
        .expect("a set");
    let test = HandlerTest::new(handlers);
    let counts = || (mail.load(Relaxed), charged.load(Relaxed));

    let first = test.run(moved()).await;
    first
        .assert_succeeded("mail")
        .assert_failed("charge", "declined");
    assert!(!first.is_delivered() && !first.is_cancelled());
    first.assert_emitted("mail:1", json!({}));
    first.assert_not_emitted("charge:1", json!({}));
    assert_eq!(counts(), (1, 1));

    let second = test.run(moved().attempt(2)).await;
    second.assert_delivered().assert_succeeded("charge");
    assert_eq!(
        second.outcome("mail"),
        Some(&HandlerOutcome::SucceededBefore)
    );
    let objects: Vec<_> = second
        .emitted()
        .iter()
        .map(|event| event.object.as_str())
        .collect();
    assert_eq!(objects, ["mail:1", "charge:1"]);
    second.assert_emitted("charge:1", |event: &Value| event["attempt"] == 2);
    assert_eq!(counts(), (2 - 1, 1));

    test.run(moved().attempt(2)).await.assert_delivered();
    assert_eq!(counts(), (1, 1));
    test.run(moved().id(2).attempt(2)).await.assert_delivered();
    assert_eq!(counts(), (2, 2));
    test.forget();
    test.run(moved().attempt(2)).await.assert_delivered();
    assert_eq!(counts(), (3, 3));
}

/// Each handler has its own outcome, and the event gets the result that it would get in a worker.
#[tokio::test]
async fn every_way_to_end_is_told() {
    let handlers = Handlers::builder()
        .timeout(Duration::from_millis(20))
        .register_all("ok", |_: Value, _| async { Ok(()) })
        .register_all("panics", |event: Value, cx: HandlerContext| async move {
            cx.emit("a", &json!({}))?;
            assert!(event.is_null(), "no null");
            Ok(())
        })
        .register_all("slow", |_: Value, cx: HandlerContext| async move {
            cx.emit("a", &json!({}))?;
            std::future::pending().await
        })
        .build()
        .expect("a set");
    let test = HandlerTest::new(handlers.clone());
    let ran = test.run(moved()).await;
    let outcomes: Vec<_> = ran
        .outcomes()
        .map(|(id, outcome)| (id, outcome.clone()))
        .collect();
    let panicked = HandlerOutcome::Panicked("no null".to_owned());
    let expected = [
        ("ok", HandlerOutcome::Succeeded),
        ("panics", panicked),
        ("slow", HandlerOutcome::TimedOut(Duration::from_millis(20))),
    ];
    assert_eq!(outcomes, expected);
    ran.assert_failed("panics", "it panicked: no null")
        .assert_failed("slow", "it took longer than 20ms")
        .assert_nothing_emitted();
    assert_eq!(
        ran.stop(),
        Some(&Stop::transient(
            "panics: it panicked: no null; slow: it took longer than 20ms"
        ))
    );
    assert_eq!(ran.outcome("other"), None);

    let ran = HandlerTest::new(handlers)
        .timeout(Duration::from_millis(5))
        .run(moved())
        .await;
    assert_eq!(
        ran.outcome("slow"),
        Some(&HandlerOutcome::TimedOut(Duration::from_millis(5)))
    );
}

/// The context of a handler has the values that the test chose. An event that the handler cannot
/// deserialize becomes a dead letter, and so does an event without a handler.
#[tokio::test]
async fn a_handler_is_told_what_the_test_chose() {
    let seen = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&seen);
    let test = HandlerTest::one("note", move |n: u32, cx: HandlerContext| {
        *noted.lock().expect("no panic") = format!(
            "{n} {} {} {} {} {:?}",
            cx.id(),
            cx.prev(),
            cx.object(),
            cx.attempt(),
            cx.payload()
        );
        async { Ok(()) }
    });
    let test = test.expect("a handler");
    let seven = TestEvent::new("work:7", Json::new(" 7")).expect("an event");
    test.run(seven.id(12).prev(9).attempt(3))
        .await
        .assert_delivered();
    assert_eq!(*seen.lock().expect("no panic"), "7 12 9 work:7 3 [32, 55]");

    let ran = test.run(moved()).await;
    ran.assert_failed("note", "the event does not fit the type of this handler");
    assert_matches!(ran.stop(), Some(Stop::Rejected { .. }));
    let none = HandlerTest::new(Handlers::builder().build().expect("a set"))
        .run(moved())
        .await;
    assert_eq!(none.outcomes().len(), 0);
    assert_eq!(
        none.stop(),
        Some(&Stop::unknown(
            "no handler is registered for events of type \"moved\""
        ))
    );

    assert_matches!(
        TestEvent::new("", &1),
        Err(TestEventError::Name(NameError::Empty))
    );
    assert_matches!(
        TestEvent::new("a", Json::new("{")),
        Err(TestEventError::Event(EventError::NotJson(_)))
    );
    assert!(HandlerTest::one("", |_: Value, _| async { Ok(()) }).is_err());
}

/// If a run is cancelled, the futures of the handlers are dropped and their token is cancelled.
/// Handlers that have succeeded stay successful.
#[tokio::test]
async fn a_run_can_be_cancelled() {
    let (waiting, token) = (
        Arc::new(Notify::new()),
        Arc::new(Mutex::new(CancellationToken::new())),
    );
    let (is_waiting, its_token) = (Arc::clone(&waiting), Arc::clone(&token));
    let handlers = Handlers::builder()
        .register_all("quick", |_: Value, cx: HandlerContext| async move {
            Ok(cx.emit("a", &json!({}))?)
        })
        .register_all("waits", move |_: Value, cx: HandlerContext| {
            *its_token.lock().expect("no panic") = cx.cancelled().clone();
            let is_waiting = Arc::clone(&is_waiting);
            async move {
                // When this future is polled again, the other handler has ended.
                tokio::task::yield_now().await;
                is_waiting.notify_one();
                std::future::pending().await
            }
        })
        .build()
        .expect("a set");
    let test = HandlerTest::new(handlers);
    let ran = test.run_until(moved(), waiting.notified()).await;
    assert!(ran.is_cancelled() && !ran.is_delivered() && ran.stop().is_none());
    assert_eq!(ran.outcome("waits"), Some(&HandlerOutcome::Cancelled));
    ran.assert_succeeded("quick").assert_emitted("a", json!({}));
    assert!(token.lock().expect("no panic").is_cancelled());
    let again = test.run_until(moved(), async {}).await;
    assert_eq!(
        again.outcome("quick"),
        Some(&HandlerOutcome::SucceededBefore)
    );
}

/// The kit has the same limits of emits as a worker.
#[tokio::test]
async fn what_a_worker_refuses_is_refused() {
    let test = HandlerTest::one("emits", |_: Value, cx: HandlerContext| async move {
        assert_matches!(
            cx.emit("{a}", &1),
            Err(HandlerEmitError::Name(NameError::Brace(_)))
        );
        for _ in 0..seriatim::handlers::EMITS_MAX {
            cx.emit("a", &1)?;
        }
        assert_matches!(cx.emit("a", &1), Err(HandlerEmitError::Full));
        Ok(())
    });
    let ran = test.expect("a handler").run(moved()).await;
    assert_eq!(
        ran.assert_delivered().emitted().len(),
        seriatim::handlers::EMITS_MAX
    );
}

/// The kit has the same limit of subtasks as a worker. Subtasks of earlier runs count. One subtask
/// above the limit is refused and does not run.
#[tokio::test]
async fn one_subtask_too_many_is_refused() {
    let runs = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&runs);
    let test = HandlerTest::one("names", move |_: Value, cx: HandlerContext| {
        let counts = Arc::clone(&counts);
        async move {
            // The second run names all subtasks of the first run again, and one more.
            let last = seriatim::handlers::SUBTASKS_MAX + cx.attempt() as usize - 2;
            for n in 0..=last {
                let run = || async { Ok::<_, Failure>(counts.fetch_add(1, Relaxed)) };
                cx.once(&format!("step:{n}"), run).await?;
            }
            Err(Failure::transient("all are done"))
        }
    });
    let test = test.expect("a handler");
    test.run(moved())
        .await
        .assert_failed("names", "all are done");
    let ran = test.run(moved().attempt(2)).await;
    ran.assert_failed("names", "at most 1000 subtasks")
        .assert_failed("names", r#"refused: "step:1000""#);
    assert_matches!(ran.stop(), Some(Stop::Transient { .. }));
    assert_eq!(runs.load(Relaxed), 1000);
}

/// The message of a failed assertion shows all results.
#[tokio::test]
async fn a_failed_assertion_tells_what_happened() {
    let handlers = Handlers::builder()
        .register_all("emits", |_: Value, cx: HandlerContext| async move {
            Ok(cx.emit("a", &json!({"n": 1}))?)
        })
        .register_all("fails", |_: Value, _| async {
            Err(Failure::transient("down"))
        })
        .build()
        .expect("a set");
    let ran = HandlerTest::new(handlers).run(moved()).await;
    let happened = "\nevent 1 of order:1 is tried again: fails: down\nhandlers:\n  emits  Succeeded\n  \
                    fails  Failed(Transient { error: \"down\", retry_after: None })\nemitted:\n  a  {\"n\":1}";
    for (said, expected) in [
        (
            refused(|| ran.assert_delivered().is_delivered()),
            "the event was not delivered",
        ),
        (
            refused(|| ran.assert_succeeded("fails").is_delivered()),
            "the handler \"fails\" did not succeed in this run",
        ),
        (
            refused(|| ran.assert_failed("fails", "up").is_delivered()),
            "the handler \"fails\" did not fail with \"up\"",
        ),
        (
            refused(|| ran.assert_emitted("b", json!({})).object.clone()),
            "no event was emitted for b like {}",
        ),
        (
            refused(|| ran.assert_emitted("a", json!({"n": 2})).object.clone()),
            "no event was emitted for a like {\"n\":2}",
        ),
        (
            refused(|| {
                ran.assert_not_emitted("a", |event: &Value| event["n"] == 1)
                    .is_delivered()
            }),
            "an event was emitted for a like an event of which the predicate is true",
        ),
        (
            refused(|| ran.assert_nothing_emitted().is_delivered()),
            "something was emitted",
        ),
    ] {
        assert_eq!(said, format!("{expected}{happened}"));
    }
}
