//! Schedules that handlers make. They are set once, in the step that finalizes the event, and not
//! earlier.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use seriatim::control::{By, Control, RowEvent};
use seriatim::event::Json;
use seriatim::handlers::{Failure, HandlerContext, HandlerEmitError, Handlers};
use seriatim::testing::{HandlerTest, TestEvent};

use crate::support::console::PATIENCE;
use crate::support::recorder::Gate;
use crate::support::running::start;
use crate::support::{Redis, assert_matches, until};

const MOVED: &str = r#"{"type":"moved"}"#;
const HOUR: Duration = Duration::from_secs(3600);
const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

/// Returns the schedules of an object: key, due time and event.
async fn schedules(control: &Control, object: &str) -> Vec<(String, u64, String)> {
    let page = control
        .schedules_of(object, None, 100)
        .await
        .expect("a page");
    let text = |event: RowEvent| String::from_utf8(event.into_bytes()).expect("text");
    let mut all: Vec<_> = page
        .schedules
        .into_iter()
        .map(|one| (one.key, one.due_ms.expect("a time"), text(one.event)))
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn what_is_scheduled_is_set_with_the_end_of_the_event_and_not_before() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, redis.control().await);
    let gate = Gate::closed();
    let waits = gate.clone();
    let handlers = Handlers::builder()
        .register_type(
            "moved",
            "remind",
            |_: Value, cx: HandlerContext| async move {
                cx.schedule(cx.object(), &json!({"type": "remind"}))
                    .after(HOUR)
                    .key("reminder")
                    .add()?;
                let key = cx
                    .schedule("other:1", &json!({"n": 1}))
                    .at(UNIX_EPOCH + Duration::from_secs(4_000_000_000))
                    .add()?;
                assert!(key.as_str().starts_with('-'), "{key}");
                cx.emit("now:1", &json!({"type": "now"}))?;
                Ok(())
            },
        )
        .register_type("moved", "slow", move |_: Value, _: HandlerContext| {
            let gate = waits.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
        .register_type("now", "nothing", |_: Value, _: HandlerContext| async {
            Ok(())
        })
        .build()
        .expect("handlers");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("user:1", MOVED).await;
    gate.until_reached(1).await;
    until("the first handler is done", PATIENCE, async || {
        let fields: Vec<String> = console
            .run(&["HKEYS", &redis.keys().event_handled("user:1")])
            .await;
        fields.contains(&"emit:remind".to_owned()).then_some(())
    })
    .await;
    assert!(schedules(&control, "user:1").await.is_empty());
    gate.open();
    until("the event is over", PATIENCE, async || {
        (!schedules(&control, "user:1").await.is_empty()).then_some(())
    })
    .await;
    let now = control.now_ms().await.expect("a time");
    let (key, due, event) = schedules(&control, "user:1").await.remove(0);
    assert_eq!(
        (key.as_str(), event.as_str()),
        ("reminder", r#"{"type":"remind"}"#)
    );
    assert!(
        (now + 3_500_000..=now + 3_600_000).contains(&due),
        "{due} {now}"
    );
    assert_eq!(schedules(&control, "other:1").await[0].1, 4_000_000_000_000);
    worker.finish().await;
    console.check().await;
}

/// A handler schedules an event in each run, fails twice, and succeeds in its third run. Only the
/// schedule of the third run is set.
#[tokio::test]
async fn a_failed_handler_schedules_nothing_and_its_rerun_once() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, redis.control().await);
    let handlers = Handlers::builder()
        .register_type(
            "moved",
            "remind",
            |_: Value, cx: HandlerContext| async move {
                let attempt = cx.attempt();
                cx.schedule("user:2", &json!({ "attempt": attempt }))
                    .after(HOUR)
                    .add()?;
                if attempt < 3 {
                    Err(Failure::transient("not yet"))
                } else {
                    Ok(())
                }
            },
        )
        .build()
        .expect("handlers");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("user:1", MOVED).await;
    until("the event is over", PATIENCE, async || {
        (!schedules(&control, "user:2").await.is_empty()).then_some(())
    })
    .await;
    worker.finish().await;
    let all = schedules(&control, "user:2").await;
    assert_eq!((all.len(), all[0].2.as_str()), (1, r#"{"attempt":3}"#));
}

#[tokio::test]
async fn a_key_replaces_keeps_its_time_or_keeps_the_first() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, redis.control().await);
    let emitter = redis.emitter().await;
    let far = UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    for key in ["r", "t", "f"] {
        emitter
            .schedule("user:1", Json::new("\"before\""))
            .at(far)
            .key(key)
            .send()
            .await
            .expect("scheduled");
    }
    let handlers = Handlers::builder()
        .register_type(
            "moved",
            "h",
            move |_: Value, cx: HandlerContext| async move {
                let at = far + Duration::from_secs(1);
                cx.schedule("user:1", Json::new("\"after\""))
                    .at(at)
                    .key("r")
                    .add()?;
                cx.schedule("user:1", Json::new("\"after\""))
                    .at(at)
                    .key("t")
                    .keep_time()
                    .add()?;
                cx.schedule("user:1", Json::new("\"after\""))
                    .at(at)
                    .key("f")
                    .keep_first()
                    .add()?;
                cx.schedule("user:1", Json::new("\"after\""))
                    .at(at)
                    .key("new")
                    .keep_first()
                    .add()?;
                // A schedule without a due time is due at once.
                cx.schedule("user:2", &json!({"type": "due"})).add()?;
                Ok(())
            },
        )
        .register_type("due", "h2", |_: Value, cx: HandlerContext| async move {
            Ok(cx.emit("done:1", &1)?)
        })
        .build()
        .expect("handlers");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("user:3", MOVED).await;
    let last = redis.keys().last_event_id("user:2");
    until("the due one is delivered", PATIENCE, async || {
        console.text(&last).await
    })
    .await;
    worker.finish().await;
    let all = schedules(&control, "user:1").await;
    let all: Vec<_> = all
        .iter()
        .map(|(key, due, event)| (key.as_str(), due - 4_000_000_000_000, event.as_str()))
        .collect();
    assert_eq!(
        all,
        [
            ("f", 0, "\"before\""),
            ("new", 1000, "\"after\""),
            ("r", 1000, "\"after\""),
            ("t", 0, "\"after\"")
        ]
    );
    console.check().await;
}

/// The hash of an object's schedules has a wrong type. So the event of the handler is held. After
/// an operator has repaired the key and released the object, the event is finalized.
#[tokio::test]
async fn a_key_of_a_wrong_type_holds_the_event_and_loses_nothing() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, redis.control().await);
    let wrong = redis.keys().events_scheduled_of("user:2");
    console.run::<()>(&["SET", &wrong, "x"]).await;
    let handlers = Handlers::builder()
        .register_type("moved", "h", |_: Value, cx: HandlerContext| async move {
            cx.schedule("user:2", &1).after(HOUR).key("k").add()?;
            Ok(())
        })
        .build()
        .expect("handlers");
    let worker = start(&redis, "w", &handlers, |_| {});
    console.emit("user:1", MOVED).await;
    let why = console.until_held("user:1", "quarantine").await;
    assert!(why.contains("user:2:events.scheduled is a string"), "{why}");
    console.run::<()>(&["DEL", &wrong]).await;
    control.release(BY, "user:1").await.expect("released");
    until("the schedule is set", PATIENCE, async || {
        (schedules(&control, "user:2").await.len() == 1).then_some(())
    })
    .await;
    worker.finish().await;
    console.check().await;
}

/// An operator skips an event after one of its handlers has succeeded. The schedules of this
/// handler are set.
#[tokio::test]
async fn what_is_scheduled_is_set_with_a_skip_too() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, redis.control().await);
    let handlers = Handlers::builder()
        .register_type("moved", "good", |_: Value, cx: HandlerContext| async move {
            cx.schedule("user:2", &1).after(HOUR).key("k").add()?;
            Ok(())
        })
        .register_type("moved", "bad", |_: Value, _: HandlerContext| async {
            Err(Failure::transient("never"))
        })
        .build()
        .expect("handlers");
    let worker = start(&redis, "w", &handlers, |config| {
        config.retry = seriatim::worker::RetryPolicy {
            backoff: seriatim::worker::Backoff::Exponential {
                min: HOUR,
                max: HOUR,
            },
            ..seriatim::worker::RetryPolicy::default()
        };
    });
    console.emit("user:1", MOVED).await;
    console.until_held("user:1", "retry").await;
    assert!(schedules(&control, "user:2").await.is_empty());
    control.skip(BY, "user:1", None).await.expect("skipped");
    assert_eq!(schedules(&control, "user:2").await.len(), 1);
    worker.finish().await;
    console.check().await;
}

#[tokio::test]
async fn a_test_of_handlers_sees_schedules() {
    let handlers = Handlers::builder()
        .register_type("moved", "h", |_: Value, cx: HandlerContext| async move {
            cx.schedule("user:2", &json!({"type": "remind", "n": 1}))
                .after(HOUR)
                .key("k")
                .add()?;
            let at = SystemTime::now() + HOUR;
            assert_matches!(
                cx.schedule("", &1).at(at).add(),
                Err(HandlerEmitError::Name(_))
            );
            assert_matches!(
                cx.schedule("user:2", Json::new("{")).add(),
                Err(HandlerEmitError::Event(_))
            );
            assert_matches!(
                cx.schedule("user:2", &1).key("a\nb").add(),
                Err(HandlerEmitError::Key(_))
            );
            let far = HOUR * (101 * 366 * 24);
            let at = SystemTime::now() + far;
            for schedule in [
                cx.schedule("user:2", &1).after(far),
                cx.schedule("user:2", &1).at(at),
            ] {
                assert_matches!(schedule.add(), Err(HandlerEmitError::Due(_)));
            }
            Ok(())
        })
        .build()
        .expect("handlers");
    let ran = HandlerTest::new(handlers)
        .run(TestEvent::new("user:1", &json!({"type": "moved"})).expect("an event"))
        .await;
    ran.assert_delivered();
    let schedule = ran
        .assert_scheduled("user:2", json!({"type": "remind"}))
        .schedule
        .clone()
        .expect("a schedule");
    assert_eq!(
        (schedule.key.as_str(), schedule.after, schedule.at_ms),
        ("k", Some(HOUR), None)
    );
    ran.assert_not_emitted("user:2", json!({"type": "remind"}));
}
