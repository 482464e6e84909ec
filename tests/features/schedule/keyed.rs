//! Events with keys after their due time: in the queue, in flight, and while they wait for a retry.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::Emitter;
use seriatim::control::rules::{Kind, Selector};
use seriatim::emit::{Cancelled, Change};
use seriatim::event::Json;
use seriatim::sink::Stop;
use seriatim::wire;

use crate::scene::Scene;
use crate::support::console::{Console, PATIENCE};
use crate::support::operator::Reads;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{Running, policy, start};
use crate::support::{Redis, assert_matches, until};

const OBJECT: &str = "user:1";

/// Schedules an event with the key `renew`, due at once.
async fn schedule(emitter: &Emitter, event: &str) -> Change {
    let schedule = emitter.schedule(OBJECT, Json::new(event.to_owned()));
    schedule
        .key("renew")
        .send()
        .await
        .expect("scheduled")
        .change
}

async fn cancel(emitter: &Emitter, key: &str) -> Cancelled {
    emitter.cancel(OBJECT, key).await.expect("an answer")
}

/// A worker whose delivery of the object's event `first` hangs, so that later events of the object
/// stay queued.
struct Busy {
    redis: Redis,
    emitter: Emitter,
    console: Console,
    worker: Running,
    sink: Recorder,
    gate: Gate,
}

impl Busy {
    async fn begin() -> Self {
        let redis = Redis::start();
        let gate = Gate::closed();
        let waits = gate.clone();
        let sink = Recorder::with(move |offer| {
            if offer.text() == "\"first\"" {
                Act::Wait(waits.clone())
            } else {
                Act::Send
            }
        });
        let worker = start(&redis, "w", &sink, |_| {});
        let emitter = redis.emitter().await;
        let console = redis.console().await;
        emitter
            .emit(OBJECT, Json::new("\"first\""))
            .await
            .expect("emitted");
        gate.until_reached(1).await;
        Self {
            redis,
            emitter,
            console,
            worker,
            sink,
            gate,
        }
    }

    /// Schedules an event that is due at once. Waits until at least this many events are queued.
    async fn queue(&self, key: &str, event: &str, queued: usize) {
        let change = self
            .emitter
            .schedule(OBJECT, Json::new(event.to_owned()))
            .key(key)
            .send()
            .await
            .expect("scheduled")
            .change;
        assert_ne!(change, Change::Running);
        let queue = self.redis.keys().events(OBJECT);
        until("it is queued", PATIENCE, async || {
            (self.console.list(&queue).await.len() >= queued).then_some(())
        })
        .await;
    }

    /// Lets the worker go on. Returns the events that were delivered after the event `first`.
    async fn sent(self, events: usize) -> Vec<String> {
        self.gate.open();
        self.sink.until_sent(1 + events).await;
        self.console.until_at_rest().await;
        self.worker.finish().await;
        self.console.check().await;
        let left = self.console.left().await;
        let key = self.redis.keys().event_key(OBJECT);
        assert!(
            !left.contains(&key)
                && !left
                    .iter()
                    .any(|key| key.contains("scheduled") && !key.contains("lateness")),
            "{left:?}"
        );
        self.sink.sent_of(OBJECT)[1..].to_vec()
    }
}

#[tokio::test]
async fn a_queued_event_is_replaced_at_a_new_time_and_never_comes() {
    let busy = Busy::begin().await;
    busy.queue("renew", "1", 1).await;
    busy.console.emit(OBJECT, "2").await;
    let later = busy
        .emitter
        .schedule(OBJECT, Json::new("3"))
        .key("renew")
        .after(Duration::from_millis(100));
    assert_eq!(
        later.send().await.expect("scheduled").change,
        Change::Replaced
    );
    assert_eq!(busy.sent(2).await, ["2", "3"]);
}

#[tokio::test]
async fn a_queued_event_is_shown_as_queued() {
    let busy = Busy::begin().await;
    busy.queue("renew", "1", 1).await;
    let control = crate::support::control(&busy.redis.connect().await, busy.redis.keys());
    let of_object = control
        .schedules_of(OBJECT, None, 100)
        .await
        .expect("schedules")
        .schedules;
    let shown: Vec<_> = of_object
        .iter()
        .map(|one| (one.key.as_str(), one.queued, one.event.bytes()))
        .collect();
    assert_eq!(shown, [("renew", true, &b"1"[..])]);
    let (seconds, _): (u64, u64) = busy.console.run(&["TIME"]).await;
    let at = of_object[0].due_ms.expect("a time") / 1000;
    assert!(
        (seconds - 60..=seconds).contains(&at),
        "it was queued at {at}, now it is {seconds}"
    );
    assert_eq!(
        control
            .schedules(None, None, None, 100)
            .await
            .expect("schedules")
            .schedules,
        []
    );
    let stats = control.stats().await.expect("stats").schedules;
    assert_eq!((stats.total, stats.due, stats.next_ms), (0, 0, None));
    let seen = control.inspection_of(OBJECT).await;
    let next: Vec<_> = seen
        .next_schedules
        .iter()
        .map(|one| (one.key.as_str(), one.queued))
        .collect();
    assert_eq!(next, [("renew", true)]);
    busy.console.check().await;
    assert_eq!(busy.sent(1).await, ["1"]);
}

#[tokio::test]
async fn a_queue_that_was_lost_is_found_and_the_key_can_be_scheduled_again() {
    let busy = Busy::begin().await;
    busy.queue("renew", "1", 1).await;
    busy.console
        .run::<()>(&["DEL", &busy.redis.keys().events(OBJECT)])
        .await;
    let report = crate::support::control(&busy.redis.connect().await, busy.redis.keys())
        .check()
        .await
        .expect("a report");
    let findings: Vec<_> = report
        .violations
        .iter()
        .map(|found| found.what.clone())
        .collect();
    assert!(
        findings.len() == 1 && findings[0].contains("is queued, but user:1:events is empty"),
        "{findings:?}"
    );
    assert_eq!(schedule(&busy.emitter, "2").await, Change::Replaced);
    assert_eq!(busy.sent(1).await, ["2"]);
}

#[tokio::test]
async fn a_queued_event_is_cancelled() {
    let busy = Busy::begin().await;
    busy.queue("renew", "1", 1).await;
    busy.queue("other", "2", 2).await;
    assert_eq!(cancel(&busy.emitter, "renew").await, Cancelled::Cancelled);
    assert_eq!(cancel(&busy.emitter, "renew").await, Cancelled::NotFound);
    assert_eq!(busy.sent(1).await, ["2"]);
}

#[tokio::test]
async fn a_queued_event_keeps_its_place_with_its_time() {
    let busy = Busy::begin().await;
    busy.queue("a", "1", 1).await;
    busy.queue("b", "2", 2).await;
    busy.console.emit(OBJECT, "3").await;
    let kept = busy
        .emitter
        .schedule(OBJECT, Json::new("10"))
        .key("a")
        .after(Duration::from_secs(3600))
        .keep_time();
    let kept = kept.send().await.expect("scheduled");
    assert_eq!(kept.change, Change::Replaced);
    let (seconds, _): (u64, u64) = busy.console.run(&["TIME"]).await;
    assert!(
        (seconds - 60..=seconds).contains(&(kept.due_ms / 1000)),
        "it was queued at {}",
        kept.due_ms
    );
    let first = busy
        .emitter
        .schedule(OBJECT, Json::new("20"))
        .key("b")
        .after(Duration::from_secs(3600))
        .keep_first();
    assert_eq!(first.send().await.expect("scheduled").change, Change::Kept);
    assert_eq!(busy.sent(3).await, ["10", "2", "3"]);
}

/// A schedule is replaced or cancelled and comes due again, many times. Each time a reference stays
/// in the queue. The event comes once, and overtakes no event that was queued in between.
#[tokio::test]
async fn a_key_that_comes_due_again_and_again_comes_once_and_overtakes_nothing() {
    let busy = Busy::begin().await;
    for n in 0..20 {
        busy.queue("renew", &n.to_string(), 2 * n + 1).await;
        busy.console.emit(OBJECT, format!("\"emitted {n}\"")).await;
        if n % 2 == 1 {
            assert_eq!(cancel(&busy.emitter, "renew").await, Cancelled::Cancelled);
        }
    }
    busy.queue("renew", "20", 41).await;
    let mut expected: Vec<_> = (0..20).map(|n| format!("\"emitted {n}\"")).collect();
    expected.push("20".to_owned());
    assert_eq!(busy.sent(21).await, expected);
}

/// Story: a slow producer saw that the event of its key was in flight, and wanted to end this
/// event. Meanwhile a new event with the key had failed once. The late call of the producer ended
/// the new event.
#[tokio::test]
async fn only_the_event_that_was_seen_is_ended() {
    let redis = Redis::start();
    let (worker, _sink) = failing(&redis, false).await;
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let emitter = redis.emitter().await;
    emitter.emit(OBJECT, Json::new("1")).await.expect("emitted");
    schedule(&emitter, "\"bad\"").await;
    console.until_held(OBJECT, "retry").await;
    let before = kept(&console).await;
    let cancel = wire::cancel(&keys, OBJECT.as_bytes(), "renew", "1", true);
    let reply = cancel
        .query_async(&mut redis.connect().await)
        .await
        .expect("a reply");
    assert_eq!(
        wire::CancelReply::read(&reply).expect("a reply"),
        wire::CancelReply::Absent
    );
    assert_eq!(kept(&console).await, before);
    let first = emitter
        .schedule(OBJECT, Json::new("2"))
        .key("renew")
        .after(Duration::from_secs(3600))
        .keep_first();
    assert_eq!(
        first.send().await.expect("scheduled").change,
        Change::Running,
        "it waits for a retry, and goes on"
    );
    worker.finish().await;
}

/// Returns the present keys in order, without `events.scheduled.wake`: the worker deletes this key
/// at some time after the producer has scheduled the event.
async fn kept(console: &Console) -> Vec<String> {
    let mut left = console.left().await;
    left.retain(|key| key != "events.scheduled.wake");
    left.sort();
    left
}

/// Starts a worker that fails the event `"bad"` once, and then waits an hour for the retry.
async fn failing(redis: &Redis, log: bool) -> (Running, Recorder) {
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("\"bad\"", 0) => Act::Stop(Stop::transient("not yet")),
        _ => Act::Send,
    });
    let worker = start(redis, "w", &sink, |config| {
        config.retry = policy("fixed:1h");
        config.event_log = log.then(Default::default);
    });
    (worker, sink)
}

#[tokio::test]
async fn an_event_that_waits_for_a_retry_is_replaced_or_cancelled() {
    for cancels in [false, true] {
        let redis = Redis::start();
        let (worker, sink) = failing(&redis, true).await;
        let (console, keys) = (redis.console().await, redis.keys().clone());
        let emitter = redis.emitter().await;
        schedule(&emitter, "\"bad\"").await;
        console.until_held(OBJECT, "retry").await;
        console.emit(OBJECT, "2").await;
        let expected = if cancels {
            assert_eq!(cancel(&emitter, "other").await, Cancelled::NotFound);
            assert_eq!(cancel(&emitter, "renew").await, Cancelled::Cancelled);
            assert_eq!(cancel(&emitter, "renew").await, Cancelled::NotFound);
            vec!["2"]
        } else {
            let again = emitter
                .schedule(OBJECT, Json::new("3"))
                .key("renew")
                .after(Duration::from_millis(300));
            assert_eq!(
                again.send().await.expect("an answer").change,
                Change::Replaced
            );
            vec!["2", "3"]
        };
        sink.until_sent(expected.len()).await;
        console.until_at_rest().await;
        worker.finish().await;
        assert_eq!(sink.sent_of(OBJECT), expected);
        let prevs: Vec<_> = sink
            .sent()
            .iter()
            .map(|offer| (offer.id, offer.prev))
            .collect();
        assert_eq!(
            prevs[0],
            (2, 0),
            "the id of the cancelled event is over, and was never delivered"
        );
        console.check().await;
        let rows: Vec<(String, Vec<String>)> = console
            .run(&["XRANGE", &keys.event_log(), "-", "+", "COUNT", "1"])
            .await;
        let row = rows[0].1.join(" ");
        assert!(
            row.starts_with("status cancelled id 1 prev 0 object user:1 event \"bad\" error cancelled: retry: not yet"),
            "{row}"
        );
        assert!(!console.left().await.contains(&keys.event_key(OBJECT)));
    }
}

#[tokio::test]
async fn a_paused_event_that_waited_for_a_retry_is_cancelled_and_stays_paused() {
    let redis = Redis::start();
    let (worker, sink) = failing(&redis, false).await;
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let emitter = redis.emitter().await;
    let control = crate::support::control(&redis.connect().await, &keys);
    schedule(&emitter, "\"bad\"").await;
    console.until_held(OBJECT, "retry").await;
    let by = seriatim::control::By {
        who: "me",
        why: "test",
    };
    let selector: Selector = OBJECT.parse().expect("a selector");
    control
        .set_rule(by, Kind::Pause, &selector, None)
        .await
        .expect("paused");
    console.release(OBJECT).await;
    until("it is paused", PATIENCE, async || {
        console
            .run::<Option<f64>>(&["ZSCORE", &keys.objects_paused(), OBJECT])
            .await
    })
    .await;
    assert_eq!(cancel(&emitter, "renew").await, Cancelled::Cancelled);
    emitter.emit(OBJECT, Json::new("2")).await.expect("emitted");
    console.until_idle(1).await;
    assert_eq!(sink.sent().len(), 0);
    control
        .lift_rule(by, Kind::Pause, &selector)
        .await
        .expect("resumed");
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!(sink.sent_of(OBJECT), ["2"]);
    console.check().await;
}

#[tokio::test]
async fn in_flight_the_calls_say_running_and_after_the_end_the_key_is_free() {
    let redis = Redis::start();
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "1" {
            Act::Wait(waits.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |_| {});
    let (console, keys) = (redis.console().await, redis.keys().clone());
    let emitter = redis.emitter().await;
    schedule(&emitter, "1").await;
    gate.until_reached(1).await;
    assert_eq!(cancel(&emitter, "renew").await, Cancelled::Running);
    assert_eq!(cancel(&emitter, "other").await, Cancelled::NotFound);
    let hour = Duration::from_secs(3600);
    let again = emitter
        .schedule(OBJECT, Json::new("2"))
        .key("renew")
        .after(hour)
        .send()
        .await
        .expect("an answer");
    assert_eq!(again.change, Change::Running);
    let many = ["renew", "other"].map(|key| {
        emitter
            .schedule(OBJECT, Json::new("3"))
            .key(key)
            .after(hour)
    });
    let many = emitter.schedule_many(many).await.expect("an answer");
    assert_eq!(
        many.iter()
            .map(|scheduled| scheduled.change)
            .collect::<Vec<_>>(),
        [Change::Running, Change::New]
    );
    assert_eq!(cancel(&emitter, "renew").await, Cancelled::Running);
    gate.open();
    sink.until_sent(1).await;
    until("the event is over", PATIENCE, async || {
        console
            .text(&keys.event_key(OBJECT))
            .await
            .is_none()
            .then_some(())
    })
    .await;
    assert_eq!(cancel(&emitter, "renew").await, Cancelled::NotFound);
    worker.finish().await;
    assert_eq!(sink.sent_of(OBJECT), ["1"]);
}

/// A worker dies with the event in flight. Afterwards the event can still be cancelled by its key.
#[tokio::test]
async fn an_event_is_known_by_its_key_after_its_worker_died() {
    let redis = Redis::start();
    let gate = Gate::closed();
    let waits = gate.clone();
    let first = Recorder::with(move |_| Act::Wait(waits.clone()));
    let worker = start(&redis, "a", &first, |_| {});
    let console = redis.console().await;
    let emitter = redis.emitter().await;
    schedule(&emitter, "\"bad\"").await;
    gate.until_reached(1).await;
    worker.crash().await;
    assert_eq!(cancel(&emitter, "renew").await, Cancelled::Running);
    let (worker, second) = failing(&redis, false).await;
    console.end_lease("a").await;
    console.until_held(OBJECT, "retry").await;
    assert_eq!(cancel(&emitter, "renew").await, Cancelled::Cancelled);
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(second.sent().len(), 0);
    console.check().await;
}

#[tokio::test]
async fn an_event_that_begins_with_a_nul_is_an_event() {
    let (redis, console) = Redis::start().with_console().await;
    let odd = ["\0", "\0queued", "\0queued x k", "2", "\0x", "\0queued 1"];
    console.emit_all(OBJECT, odd).await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    until("all are over", PATIENCE, async || {
        (console.dead().await.len() == odd.len() - 1).then_some(())
    })
    .await;
    sink.until_sent(1).await;
    worker.finish().await;
    let field = |letter: &[(String, Vec<u8>)], name: &str| {
        let found = letter
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        found.expect("a field")
    };
    let dead: Vec<_> = console
        .dead()
        .await
        .iter()
        .map(|letter| (field(letter, "id"), field(letter, "event")))
        .collect();
    // Only the event `2` is JSON. All other events become dead letters.
    let expected = odd.iter().enumerate().filter(|(_, event)| **event != "2");
    assert_eq!(
        dead,
        expected
            .map(|(at, event)| ((at + 1).to_string(), (*event).to_owned()))
            .collect::<Vec<_>>()
    );
    assert_eq!(
        sink.sent()
            .iter()
            .map(|offer| (offer.id, offer.text()))
            .collect::<Vec<_>>(),
        [(4, "2".to_owned())]
    );
    console.check().await;
}

/// `OBJ:event.key` names an event that is no longer held: the object's held batch begins with
/// another id. A call that cancels the named event does not end the held event.
#[tokio::test]
async fn an_event_with_another_id_is_not_cancelled() {
    let scene = Scene::bare(Redis::start()).await;
    let held = "hold user:1 9999999999999 '7 0 1 0 retry: no' 1; SET user:1:event.key '9 k'";
    scene.add(held).await;
    let reply = cancel_seen(&scene, &mut scene.conn().await, "9").await;
    assert_eq!(reply.expect("a reply"), wire::CancelReply::Absent);
    scene.changed("").await;
}

/// Cancels the event of the key `k` that waits for a retry, if it has this id.
async fn cancel_seen(
    scene: &Scene,
    conn: &mut MultiplexedConnection,
    id: &str,
) -> Result<wire::CancelReply, redis::RedisError> {
    let cancel = wire::cancel(&scene.keys, OBJECT.as_bytes(), "k", id, true);
    let reply = cancel.query_async(conn).await;
    reply.and_then(|reply| wire::CancelReply::read(&reply))
}

/// A producer without the rights of the script cannot cancel an event that waits for a retry. The
/// call returns the error `Refused`, and the event stays.
#[tokio::test]
async fn without_the_rights_of_the_script_a_waiting_event_is_not_cancelled() {
    let redis = Redis::own(&[]);
    let (worker, _sink) = failing(&redis, false).await;
    let console = redis.console().await;
    let emitter = async |role: &str| {
        redis.set_documented_user("scheduler", role).await;
        let conn = redis.connect_as("scheduler").await;
        Emitter::new(conn).with_keys(redis.keys().clone())
    };
    let scheduler = emitter("scheduler").await;
    schedule(&scheduler, "\"bad\"").await;
    console.until_held(OBJECT, "retry").await;
    let refused = scheduler.cancel(OBJECT, "renew").await;
    assert_matches!(refused, Err(seriatim::EmitError::Refused { .. }));
    let canceller = emitter("canceller").await;
    assert_eq!(cancel(&canceller, "renew").await, Cancelled::Cancelled);
    console.until_at_rest().await;
    worker.finish().await;
    console.check().await;
}

/// Redis does not undo a script that fails halfway. So the script checks all its rights before its
/// first write.
#[tokio::test]
async fn without_one_right_the_script_changes_nothing() {
    let scene = Scene::bare(Redis::own(&[])).await;
    let rights = [
        "rpush", "del", "zadd", "zscore", "hset", "hgetall", "lpush", "xadd",
    ];
    // Without the event log, and with emits that are only scheduled, the last two are not needed.
    let later = rights[..6]
        .iter()
        .map(|right| (right, "0 1 9 s7 1 1 r+5 other:22x", "event.log.keep"));
    let both = rights.iter().map(|right| {
        (
            right,
            "0 2 12 7 1 other:11s7 1 1 r+5 other:22x",
            "event.log",
        )
    });
    for (right, emits, log) in later.chain(both) {
        let keys = format!(
            "
            hold user:1 9999999999999 '7 0 1 0 retry: no' 1; SET user:1:event.key '7 k'
            HSET user:1:event.handled id 7 emit:h '{emits}'; HSET seriatim.meta {log} 1
            "
        );
        scene.again(&keys).await;
        let mut conn = scene.redis.connect_without(right).await;
        scene.changes().await;
        let refused = cancel_seen(&scene, &mut conn, "7").await;
        assert!(refused.is_err(), "without {right}: {refused:?}");
        scene.changed("").await;
    }
    let reply = cancel_seen(&scene, &mut scene.conn().await, "7").await;
    assert_eq!(reply.expect("a reply"), wire::CancelReply::Cancelled);
    assert_eq!(scene.at("other:1:events").await, "[1]");
    assert_eq!(scene.at("other:2:events.scheduled").await, "{x: 2}");
}
