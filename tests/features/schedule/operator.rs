//! Cancelling by an operator: in each state of an event with a key, and the record of the action.

use std::time::Duration;

use seriatim::Emitter;
use seriatim::control::{Action, By, CancelledSchedule, Control, ControlError};
use seriatim::emit::Change;
use seriatim::event::Json;
use seriatim::sink::Stop;

use crate::state::State;
use crate::support::console::{Console, PATIENCE};
use crate::support::operator::{Reads, assert_denied, assert_wrong_type};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{policy, start};
use crate::support::{Redis, assert_matches, control, until};

const OBJECT: &str = "user:1";
const HOUR: Duration = Duration::from_secs(3600);
const ADA: By<'static> = By {
    who: "ada@host",
    why: "moved away",
};
const ONLY_SCHEDULED: CancelledSchedule = CancelledSchedule::Cancelled { id: None };

struct Setup {
    redis: Redis,
    emitter: Emitter,
    console: Console,
    control: Control,
}

impl Setup {
    async fn new() -> Self {
        Self::of(Redis::start()).await
    }

    async fn of(redis: Redis) -> Self {
        let emitter = redis.emitter().await;
        let control = redis.control().await;
        Self {
            console: redis.console().await,
            redis,
            emitter,
            control,
        }
    }

    async fn cancel(&self, object: impl AsRef<[u8]>, key: &str) -> CancelledSchedule {
        self.control
            .cancel_schedule(ADA, object, key)
            .await
            .expect("an answer")
    }

    async fn schedule(&self, event: &str, key: &str, after: Duration) -> Change {
        let schedule = self
            .emitter
            .schedule(OBJECT, Json::new(event.to_owned()))
            .key(key)
            .after(after);
        schedule.send().await.expect("scheduled").change
    }

    /// Returns the id and the key of each recorded action, the oldest first. Asserts that each of
    /// them is a cancelling of this object by Ada.
    async fn recorded(&self) -> Vec<(Option<u64>, String)> {
        let mut actions = self.control.recorded(32).await;
        actions.reverse();
        let one = |action: Action| {
            assert_eq!(
                (&*action.action, &*action.who, &*action.why),
                ("cancel", ADA.who, ADA.why)
            );
            assert_eq!(action.object, OBJECT);
            (action.id, action.key.expect("a key"))
        };
        actions.into_iter().map(one).collect()
    }

    /// Returns all keys with their contents.
    async fn dump(&self) -> Vec<(String, redis::Value)> {
        let mut all = Vec::new();
        for key in self.console.left().await {
            let value = self
                .console
                .run(&["DUMP", &format!("{}{key}", self.redis.keys().prefix())])
                .await;
            all.push((key, value));
        }
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }
}

#[tokio::test]
async fn a_schedule_is_cancelled_with_a_record() {
    let place = Setup::new().await;
    for key in ["trial", "other"] {
        place.schedule("1", key, HOUR).await;
    }
    assert_eq!(
        place.cancel(OBJECT, "tria").await,
        CancelledSchedule::NotFound
    );
    assert_eq!(
        place.cancel("user:2", "trial").await,
        CancelledSchedule::NotFound
    );
    assert_eq!(place.cancel(OBJECT, "trial").await, ONLY_SCHEDULED);
    assert_eq!(
        place.cancel(OBJECT, "trial").await,
        CancelledSchedule::NotFound
    );
    assert_eq!(place.recorded().await, [(None, "trial".to_owned())]);
    let left = place
        .control
        .schedules_of(OBJECT, None, 100)
        .await
        .expect("schedules")
        .schedules;
    assert_eq!(
        left.iter().map(|one| &*one.key).collect::<Vec<_>>(),
        ["other"]
    );
    for invalid in [
        place.control.cancel_schedule(ADA, "", "other").await,
        place.control.cancel_schedule(ADA, OBJECT, "a\nb").await,
    ] {
        assert_matches!(
            invalid,
            Err(ControlError::Name(_) | ControlError::ScheduleKey(_))
        );
    }
    // Of a broken schedule there is only a member without an event, or an event without a member.
    place
        .console
        .run::<()>(&["DEL", &place.redis.keys().events_scheduled_of(OBJECT)])
        .await;
    assert_eq!(place.cancel(OBJECT, "other").await, ONLY_SCHEDULED);
    place
        .console
        .run::<()>(&[
            "HSET",
            &place.redis.keys().events_scheduled_of(OBJECT),
            "half",
            "1",
        ])
        .await;
    assert_eq!(place.cancel(OBJECT, "half").await, ONLY_SCHEDULED);
    place.console.check().await;
}

/// The names of objects are any bytes. The records show the escaped name, and the key.
#[tokio::test]
async fn an_object_with_any_name_is_found() {
    let place = Setup::new().await;
    let (keys, mut conn) = (place.redis.keys(), place.redis.connect().await);
    let odd = b"odd\xff\n<b>";
    let hash = [keys.prefix().as_bytes(), odd, b":events.scheduled"].concat();
    let member = [&odd[..], b"\n\"k\""].concat();
    redis::cmd("HSET")
        .arg(hash)
        .arg("\"k\"")
        .arg("1")
        .exec_async(&mut conn)
        .await
        .expect("set");
    redis::cmd("ZADD")
        .arg(keys.events_scheduled())
        .arg(9e12)
        .arg(member)
        .exec_async(&mut conn)
        .await
        .expect("set");
    assert_eq!(place.cancel(odd, "\"k\"").await, ONLY_SCHEDULED);
    let actions = place.control.recorded(32).await;
    assert_eq!(actions[0].object_escaped.as_deref(), Some("odd\\xff\\n<b>"));
    let line = serde_json::to_value(&actions[0]).expect("JSON");
    assert_eq!(
        (&line["action"], &line["key"], &line["id"]),
        (&"cancel".into(), &"\"k\"".into(), &serde_json::Value::Null)
    );
    assert!(
        !place
            .console
            .left()
            .await
            .iter()
            .any(|key| key.contains("scheduled"))
    );
}

/// While the first event is in flight, a queued event is cancelled, and an event in flight is not.
#[tokio::test]
async fn a_queued_event_is_cancelled_and_one_in_flight_goes_on() {
    let place = Setup::new().await;
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "1" {
            Act::Wait(waits.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&place.redis, "w", &sink, |_| {});
    place.schedule("1", "first", Duration::ZERO).await;
    gate.until_reached(1).await;
    place.schedule("2", "second", Duration::ZERO).await;
    let queue = place.redis.keys().events(OBJECT);
    until("it is queued", PATIENCE, async || {
        (!place.console.list(&queue).await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(place.cancel(OBJECT, "second").await, ONLY_SCHEDULED);

    assert_eq!(
        place.cancel(OBJECT, "first").await,
        CancelledSchedule::Running {
            id: 1,
            rescheduled: false
        }
    );
    assert_eq!(place.recorded().await, [(None, "second".to_owned())]);
    assert_eq!(place.schedule("3", "first", HOUR).await, Change::Running);
    assert_eq!(
        place.cancel(OBJECT, "first").await,
        CancelledSchedule::Running {
            id: 1,
            rescheduled: true
        }
    );
    assert_eq!(
        place.cancel(OBJECT, "first").await,
        CancelledSchedule::Running {
            id: 1,
            rescheduled: false
        }
    );
    assert_eq!(
        place.recorded().await,
        [(None, "second".to_owned()), (None, "first".to_owned())]
    );
    gate.open();
    sink.until_sent(1).await;
    place.console.until_at_rest().await;
    assert_eq!(
        place.cancel(OBJECT, "first").await,
        CancelledSchedule::NotFound
    );
    worker.finish().await;
    assert_eq!(sink.sent_of(OBJECT), ["1"]);
    place.console.check().await;
}

/// An event that waits for a retry is ended in the step that also deletes a later schedule with its
/// key. The object goes on with its next event.
#[tokio::test]
async fn an_event_that_waits_for_a_retry_is_ended_with_its_schedule() {
    let place = Setup::new().await;
    let sink = Recorder::with(|offer| match offer.text().as_str() {
        "\"bad\"" => Act::Stop(Stop::transient("not yet")),
        _ => Act::Send,
    });
    let worker = start(&place.redis, "w", &sink, |config| {
        config.retry = policy("fixed:1h");
        config.event_log = Some(Default::default());
    });
    place.schedule("\"bad\"", "renew", Duration::ZERO).await;
    place.console.until_held(OBJECT, "retry").await;
    place.console.emit(OBJECT, "2").await;
    let again = place
        .emitter
        .schedule(OBJECT, Json::new("3"))
        .key("renew")
        .after(HOUR)
        .keep_first();
    assert_eq!(
        again.send().await.expect("scheduled").change,
        Change::Running
    );
    assert_eq!(
        place.cancel(OBJECT, "other").await,
        CancelledSchedule::NotFound
    );
    assert_eq!(
        place.cancel(OBJECT, "renew").await,
        CancelledSchedule::Cancelled { id: Some(1) }
    );
    assert_eq!(
        place.cancel(OBJECT, "renew").await,
        CancelledSchedule::NotFound
    );
    assert_eq!(place.recorded().await, [(Some(1), "renew".to_owned())]);
    sink.until_sent(1).await;
    place.console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(sink.sent_of(OBJECT), ["2"]);
    let rows: Vec<(String, Vec<String>)> = place
        .console
        .run(&[
            "XRANGE",
            &place.redis.keys().event_log(),
            "-",
            "+",
            "COUNT",
            "1",
        ])
        .await;
    let row = rows[0].1.join(" ");
    assert!(row.starts_with("status cancelled id 1 prev 0 object user:1 event \"bad\" error cancelled: retry: not yet"), "{row}");
    assert!(
        !place
            .console
            .left()
            .await
            .iter()
            .any(|key| key.starts_with("user:1:") && key != "user:1:last.event.id")
    );
    place.console.check().await;
}

/// Makes an object whose event 7 with the key `k` waits for a retry, and is scheduled again. Its
/// handlers have emitted for `other:1`, and have scheduled for the object under the same key.
async fn waiting(place: &Setup) -> State {
    let keys = place.redis.keys();
    let mut state = State::new(place.redis.connect().await, keys.clone());
    state
        .hold(OBJECT, "9999999999999", &["\"bad\""], "7 0 1 0 retry: no")
        .await;
    let emits = "0 2 12 7 1 other:11s6 1 1 r+5 user:12k";
    for (command, arguments) in [
        ("SET", [&*keys.event_key(OBJECT), "7 k", "", "", ""]),
        (
            "HSET",
            [&*keys.event_handled(OBJECT), "id", "7", "emit:h", emits],
        ),
        (
            "HSET",
            [&*keys.events_scheduled_of(OBJECT), "k", "\"again\"", "", ""],
        ),
        (
            "ZADD",
            [
                &*keys.events_scheduled(),
                "9999999999999",
                "user:1\nk",
                "",
                "",
            ],
        ),
        ("HSET", [&*keys.meta(), "event.log", "on", "", ""]),
    ] {
        state
            .run(
                command,
                &arguments
                    .into_iter()
                    .filter(|argument| !argument.is_empty())
                    .collect::<Vec<_>>(),
            )
            .await;
    }
    state
}

/// A schedule that a handler of the ended event has emitted stays, even with the same key.
#[tokio::test]
async fn emits_of_the_ended_event_are_queued() {
    let place = Setup::new().await;
    waiting(&place).await;
    assert_eq!(
        place.cancel(OBJECT, "k").await,
        CancelledSchedule::Cancelled { id: Some(7) }
    );
    assert_eq!(place.recorded().await, [(Some(7), "k".to_owned())]);
    assert_eq!(place.console.queue("other:1").await, ["1"]);
    // The empty marker wakes a worker for the object, which is due now.
    assert_eq!(place.console.markers().await, ["", "other:1"]);
    assert_eq!(place.console.due(OBJECT).await, Some(0.0));
    let left = place
        .control
        .schedules_of(OBJECT, None, 100)
        .await
        .expect("schedules")
        .schedules;
    assert_eq!(
        left.iter()
            .map(|one| (&*one.key, one.event.bytes()))
            .collect::<Vec<_>>(),
        [("k", &b"2"[..])]
    );
}

/// A missing right, or a key of a wrong type, is found before the first write.
#[tokio::test]
async fn an_operator_cancels_all_or_nothing() {
    let place = Setup::of(Redis::own(&[])).await;
    let keys = place.redis.keys().clone();
    for key in [
        keys.events_scheduled(),
        keys.events_scheduled_of(OBJECT),
        keys.objects_with_events(),
        keys.operator_actions(),
        keys.objects_held(),
        keys.event_handled(OBJECT),
        keys.events("other:1"),
    ] {
        place.console.run::<()>(&["FLUSHDB"]).await;
        let mut state = waiting(&place).await;
        state.run("DEL", &[&key]).await;
        state.run("SET", &[&key, "wrong"]).await;
        let before = place.dump().await;
        let refused = place.control.cancel_schedule(ADA, OBJECT, "k").await;
        assert_wrong_type(&refused, &key);
        assert_eq!(place.dump().await, before, "{key}");
    }
    place.console.run::<()>(&["FLUSHDB"]).await;
    waiting(&place).await;
    let before = place.dump().await;
    for command in ["hdel", "zrem", "xadd", "hgetall"] {
        let weak = place.redis.control_without(command).await;
        assert_denied(&weak.cancel_schedule(ADA, OBJECT, "k").await, command);
    }
    // The user may not write to the queue for which a handler has emitted.
    let prefix = keys.prefix();
    let own = "user:* event* objects* operator* seriatim* next*".split(' ');
    let own: Vec<_> = own.map(|name| format!("~{prefix}{name}")).collect();
    let rules = format!(
        "reset on >PASSWORD +@all %R~{prefix}other:1:events {}",
        own.join(" ")
    );
    place.redis.set_user("weak", &rules).await;
    let weak = control(&place.redis.connect_as("weak").await, &keys);
    let refused = weak.cancel_schedule(ADA, OBJECT, "k").await;
    assert_matches!(refused, Err(ControlError::Denied(denied)) if denied == "LPUSH");
    assert_eq!(place.dump().await, before);
    assert_eq!(
        place.cancel(OBJECT, "k").await,
        CancelledSchedule::Cancelled { id: Some(7) }
    );
}

/// The rights of an operator in the protocol are enough.
#[tokio::test]
async fn the_rights_of_an_operator_are_enough() {
    let place = Setup::of(Redis::own(&[])).await;
    let mut state = waiting(&place).await;
    let operator = place.redis.documented_control().await;
    let cancelled = operator.cancel_schedule(ADA, OBJECT, "k").await;
    let expected = CancelledSchedule::Cancelled { id: Some(7) };
    assert_eq!(cancelled.expect("an answer"), expected);
    state.delivered("idle", 3).await;
    let forgot = operator.forget_as(ADA, "idle").await.expect("an answer");
    assert!(forgot.is_gone());
}
