//! Keys that are deleted by hand, or evicted by Redis, while real workers run. Each key that exists is
//! deleted in turn, so a new key is covered by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;
use seriatim::control::rules::Kind;
use seriatim::control::{By, Repair};
use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{Running, start};
use crate::support::{Redis, control, until};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "test",
};
/// The time for which events are waited for that may never come, because the lost key led to them.
const LOST_PATIENCE: Duration = Duration::from_secs(3);
/// The time for which a repair, and the workers after it, may take.
const REPAIR_PATIENCE: Duration = Duration::from_secs(20);
/// The objects: in hand, queued, held, paused, and with a schedule.
const OBJECTS: [(&str, u32); 7] = [
    ("hand:1", 3),
    ("hand:2", 3),
    ("queued:1", 2),
    ("queued:2", 2),
    ("held:1", 2),
    ("paused:1", 2),
    ("later:1", 1),
];

fn event(object: &str, n: u32) -> String {
    format!("{{\"object\":\"{object}\",\"n\":{n}}}")
}

/// A Redis with a worker, and objects in every state.
struct Scene {
    redis: Redis,
    console: Console,
    sink: Recorder,
    gate: Gate,
    worker: Option<Running>,
}

impl Scene {
    async fn new() -> Self {
        let (redis, console) = Redis::start().with_console().await;
        let gate = Gate::closed();
        let at_gate = gate.clone();
        let sink = Recorder::with(move |offer| match offer.object.as_str() {
            "held:1" if offer.before == 0 => Act::Stop(Stop::transient("down")),
            "hand:1" | "hand:2" => Act::Wait(at_gate.clone()),
            _ => Act::Send,
        });
        let mut scene = Self {
            redis,
            console,
            sink,
            gate,
            worker: None,
        };
        scene.start().await;
        let keys = scene.console.keys.clone();
        let selector = "paused:1".parse().expect("a selector");
        control(&scene.redis.connect().await, &keys)
            .set_rule(ADA, Kind::Pause, &selector, None)
            .await
            .expect("a rule");
        for (object, count) in [("held:1", 2), ("paused:1", 2)] {
            scene
                .console
                .emit_all(object, (0..count).map(|n| event(object, n)))
                .await;
        }
        scene.console.until_held("held:1", "retry").await;
        until("it is paused", PATIENCE, async || {
            scene
                .console
                .run::<Option<f64>>(&["ZSCORE", &keys.objects_paused(), "paused:1"])
                .await
        })
        .await;
        scene
            .console
            .run::<u64>(&[
                "HSET",
                &keys.events_scheduled_of("later:1"),
                "k",
                &event("later:1", 0),
            ])
            .await;
        scene
            .console
            .add("ZADD events.scheduled 99999999999999 'later:1\nk'")
            .await;
        for object in ["hand:1", "hand:2"] {
            scene
                .console
                .emit_all(object, (0..3).map(|n| event(object, n)))
                .await;
        }
        scene.gate.until_reached(2).await;
        for object in ["queued:1", "queued:2"] {
            scene
                .console
                .emit_all(object, (0..2).map(|n| event(object, n)))
                .await;
        }
        scene
    }

    async fn start(&mut self) {
        let worker = start(&self.redis, "w", &self.sink, |config| {
            config.concurrency = 2;
            config.lease = Duration::from_secs(2);
            // A failed event waits until the test releases its object.
            config.retry.backoff = seriatim::worker::Backoff::Fixed(Duration::from_secs(3600));
        });
        self.console.until_lease("w").await;
        self.worker = Some(worker);
    }

    /// Returns the present keys without the prefix, without the statuses of processes.
    async fn keys(&self) -> Vec<String> {
        let mut keys = self.console.left().await;
        keys.retain(|key| !key.ends_with(":status"));
        keys.sort();
        keys
    }

    /// Returns all texts of a key.
    async fn values(&self, key: &str) -> Vec<String> {
        let key = format!("{}{key}", self.console.keys.prefix());
        let kind: String = self.console.run(&["TYPE", &key]).await;
        match kind.as_str() {
            "list" => self.console.run(&["LRANGE", &key, "0", "-1"]).await,
            "hash" => self.console.run(&["HVALS", &key]).await,
            "stream" => vec![format!(
                "{:?}",
                self.console.run::<Value>(&["XRANGE", &key, "-", "+"]).await
            )],
            _ => Vec::new(),
        }
    }

    /// Returns the events that Redis has.
    async fn in_redis(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for key in self.console.left().await {
            found.extend(self.values(&key).await);
        }
        found
    }

    /// Returns the events that the sink has got.
    fn sent(&self) -> BTreeSet<String> {
        self.sink.sent().iter().map(|offer| offer.text()).collect()
    }

    /// Repairs as an operator does: a dry run, then the repair, until nothing is left to do. `is_alone`: no
    /// worker runs, so a dry run and its repair make the same steps, and a reason to leave something
    /// may stay. Adds the steps to `told`.
    async fn repair(&self, is_alone: bool, steps: &mut Vec<String>, what: &str) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a clock after 1970")
            .as_millis();
        let plan = Repair {
            schedules_due_ms: Some(u64::try_from(now).expect("a time")),
            share: 1.0,
            ..Repair::default()
        };
        let control = control(&self.redis.connect().await, &self.console.keys);
        let since = Instant::now();
        loop {
            let planned = control.repair(ADA, &plan).await.expect("a report");
            let done = control
                .repair(
                    ADA,
                    &Repair {
                        dry_run: false,
                        ..plan.clone()
                    },
                )
                .await
                .expect("a report");
            assert!(
                !is_alone || planned.kinds == done.kinds,
                "{what}: {:?}, then {:?}",
                planned.steps,
                done.steps
            );
            let lines = done.steps.iter().chain(&done.left);
            steps
                .extend(lines.map(|step| format!("{} {}: {}", step.kind, step.subject, step.what)));
            if planned.steps_total + done.steps_total == 0 && (is_alone || done.left_total == 0) {
                return;
            }
            assert!(
                since.elapsed() < REPAIR_PATIENCE,
                "{what}: the repair goes on and on: {steps:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Releases what waits. Then every event of `wanted` is delivered, and `check` finds nothing.
    async fn until_delivered(&self, wanted: &BTreeSet<String>, steps: &[String], what: &str) {
        let since = Instant::now();
        loop {
            self.release_all().await;
            let missing: BTreeSet<String> = wanted.difference(&self.sent()).cloned().collect();
            let report = control(&self.redis.connect().await, &self.console.keys)
                .check()
                .await
                .expect("checked");
            if missing.is_empty() && report.is_clean() {
                return;
            }
            let found = &report.violations;
            let is_late = since.elapsed() > REPAIR_PATIENCE;
            assert!(
                !is_late,
                "{what}: after {steps:#?} {missing:?} stay, check finds {found:#?}, {:?}",
                self.keys().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks names, ids and order. `has_new_ids`: a repair gave new ids to events that had lost theirs,
    /// so these events may come a second time.
    fn judge(&self, has_new_ids: bool, what: &str) {
        let mut ids: BTreeMap<u64, String> = BTreeMap::new();
        let mut id_of: BTreeMap<String, u64> = BTreeMap::new();
        for offer in self.sink.offered() {
            let text = offer.text();
            assert!(
                text.contains(&format!("\"{}\"", offer.object)),
                "{what}: {offer:?} has the name of another object"
            );
            let other = ids.entry(offer.id).or_insert_with(|| text.clone());
            assert_eq!(*other, text, "{what}: one id");
            let id = *id_of.entry(text).or_insert(offer.id);
            assert!(
                id == offer.id || has_new_ids,
                "{what}: one event, two ids: {offer:?}, {id}"
            );
        }
        for (object, applied) in self.sink.applied() {
            let mut seen = BTreeSet::new();
            let first: Vec<_> = applied
                .into_iter()
                .map(|(_, text)| text)
                .filter(|text| seen.insert(text.clone()))
                .collect();
            assert!(first.is_sorted(), "{what}: {object} {first:?}");
        }
    }

    /// Lifts the rule, and makes everything due that waits.
    async fn release_all(&self) {
        let (keys, conn) = (self.console.keys.clone(), self.redis.connect().await);
        let selector = "paused:1".parse().expect("a selector");
        control(&conn, &keys)
            .lift_rule(ADA, Kind::Pause, &selector)
            .await
            .expect("an answer");
        for (key, due) in [(keys.objects_held(), "0"), (keys.events_scheduled(), "1")] {
            for member in self
                .console
                .run::<Vec<String>>(&["ZRANGE", &key, "0", "-1"])
                .await
            {
                self.console
                    .run::<u64>(&["ZADD", &key, "XX", due, &member])
                    .await;
            }
        }
        self.console.add("ZADD events.scheduled.wake 0 wake").await;
    }
}

/// The time of the loss, and of the first repair.
#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    /// Workers run. The operator repairs when they are at rest.
    Running,
    /// Workers start again after the loss. The operator repairs when they are at rest.
    Restart,
    /// The operator repairs before workers start again.
    Repaired,
}

/// Deletes the key, and checks the promises. Then repairs. Returns whether events stayed in Redis until
/// the repair.
async fn lose(key: &str, when: When) -> bool {
    let mut scene = Scene::new().await;
    let what = format!("{when:?}, after the loss of {key}");
    let lost: BTreeSet<String> = scene.values(key).await.into_iter().collect();
    let full = format!("{}{key}", scene.console.keys.prefix());
    let mut steps = Vec::new();
    if when != When::Running {
        scene.worker.take().expect("a worker").crash().await;
    }
    scene.console.run::<u64>(&["DEL", &full]).await;
    if when != When::Running {
        scene.console.end_lease("w").await;
        if when == When::Repaired {
            scene.repair(true, &mut steps, &what).await;
        }
        scene.start().await;
    }
    scene.gate.open();
    let all: BTreeSet<String> = OBJECTS
        .iter()
        .flat_map(|(object, count)| (0..*count).map(|n| event(object, n)))
        .collect();
    let wanted: BTreeSet<String> = all.difference(&lost).cloned().collect();
    let since = Instant::now();
    let missing = loop {
        scene.release_all().await;
        let missing: BTreeSet<String> = wanted.difference(&scene.sent()).cloned().collect();
        if missing.is_empty() || since.elapsed() > LOST_PATIENCE {
            break missing;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let has_new_ids = |steps: &[String]| {
        steps
            .iter()
            .any(|line| line.contains("new ids") || line.contains("new ones"))
    };
    scene.judge(has_new_ids(&steps), &what);
    if !missing.is_empty() {
        let there = scene.in_redis().await;
        assert!(
            missing.is_subset(&there),
            "{what}: lost {:?}",
            missing.difference(&there)
        );
        let report = control(&scene.redis.connect().await, &scene.console.keys)
            .check()
            .await
            .expect("checked");
        assert!(
            !report.is_clean(),
            "{what}: {missing:?} stay, and check is clean: {:?}",
            scene.keys().await
        );
    }
    scene.repair(false, &mut steps, &what).await;
    scene.until_delivered(&wanted, &steps, &what).await;
    scene.judge(has_new_ids(&steps), &what);
    scene.worker.take().expect("a worker").crash().await;
    println!(
        "{what}: {} events stayed until the repair; {steps:#?}",
        missing.len()
    );
    !missing.is_empty()
}

/// Story: a slot lost its tag, and 12 of 48 events came under the name of another object, 10 ids came
/// twice, and `check` was clean.
async fn each_key(when: When) {
    let scene = Scene::new().await;
    let keys = scene.keys().await;
    scene.worker.expect("a worker").crash().await;
    assert!(keys.len() > 20, "{keys:?}");
    for key in keys {
        let stays = lose(&key, when).await;
        assert!(
            when != When::Repaired || !stays,
            "after the repair, events stay without {key}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_lost_under_a_running_worker_harms_no_other_event() {
    each_key(When::Running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_lost_before_a_restart_harms_no_other_event() {
    each_key(When::Restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_lost_is_repaired_before_a_restart() {
    each_key(When::Repaired).await;
}

/// Story: slots lost their tags while their batches were in hand, and went on with other objects. After
/// a crash, the events of the first batches came again under the names of these objects, and with
/// their ids.
#[tokio::test]
async fn a_lost_tag_before_a_crash_gives_no_event_another_name() {
    let (redis, before, after) = (Redis::start(), Gate::closed(), Gate::closed());
    let console = redis.console().await;
    let (first, second) = (before.clone(), after.clone());
    let sink = Recorder::with(move |offer| {
        let is_first = offer.object.starts_with("first");
        Act::Wait(if is_first { &first } else { &second }.clone())
    });
    let mut scene = Scene {
        redis,
        console,
        sink,
        gate: before,
        worker: None,
    };
    scene.start().await;
    let emit = async |object: &str| {
        let events = (0..3).map(|n| event(object, n));
        scene.console.emit_all(object, events).await;
    };
    emit("first:1").await;
    emit("first:2").await;
    scene.gate.until_reached(2).await;
    for slot in ["w.0", "w.1"] {
        let tag = scene.console.keys.worker_event_id(slot);
        assert_eq!(scene.console.run::<u64>(&["DEL", &tag]).await, 1);
    }
    emit("second:1").await;
    emit("second:2").await;
    scene.gate.open();
    after.until_reached(2).await;
    scene.worker.take().expect("a worker").crash().await;
    scene.console.end_lease("w").await;
    after.open();
    scene.start().await;
    until("all events are sent", PATIENCE, async || {
        (scene.sent().len() == 12).then_some(())
    })
    .await;
    scene.console.until_at_rest().await;
    scene.judge(false, "after a crash");
    scene.worker.take().expect("a worker").finish().await;
}
