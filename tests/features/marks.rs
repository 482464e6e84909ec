//! Tests of marks, which tell the age of the oldest marker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seriatim::control::rules::Kind;
use seriatim::control::{By, Control};
use tokio::time::sleep;

use crate::support::console::{Console, PATIENCE};
use crate::support::operator::Reads;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// The times at which a test has pushed objects.
#[derive(Clone, Default)]
struct Pushed(Arc<Mutex<HashMap<String, Instant>>>);

impl Pushed {
    async fn push(&self, console: &Console, object: &str) {
        self.0
            .lock()
            .expect("no panic")
            .insert(object.to_owned(), Instant::now());
        console.emit(object, "1").await;
    }

    /// Returns the age of the oldest marker. The oldest marker is the last name of the list that is
    /// not a mark.
    async fn age(&self, console: &Console, list: &str) -> Duration {
        let names: Vec<Vec<u8>> = console.run(&["LRANGE", list, "-50", "-1"]).await;
        let pushed = self.0.lock().expect("no panic");
        let oldest = names
            .iter()
            .rev()
            .find_map(|name| pushed.get(std::str::from_utf8(name).ok()?));
        oldest.map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Compares the age in `stats` with the true age.
    async fn compare(
        &self,
        console: &Console,
        control: &Control,
        list: &str,
        worst: &mut Duration,
    ) {
        let before = self.age(console, list).await;
        let stats = control.stats().await.expect("stats");
        let after = self.age(console, list).await;
        // The age falls when workers take markers, and grows in between. So the true age lies
        // between both.
        let (least, most) = (before.min(after), before.max(after));
        let Some(ms) = stats.oldest_waiting_ms else {
            panic!("the age is unknown, it is {before:?}")
        };
        let shown = Duration::from_millis(ms);
        let off = least.saturating_sub(shown).max(shown.saturating_sub(most));
        assert!(
            off <= Duration::from_secs(2).max(most.mul_f64(0.05)),
            "{shown:?} is shown, it is {before:?} to {after:?}"
        );
        *worst = off.max(*worst);
    }
}

/// Tests that the age in `stats` is exact to 2 s or 5 %: while the number of markers grows, while
/// no worker runs for 30 s, after a kill of Redis, and while the number of markers falls.
#[tokio::test]
async fn the_age_of_the_oldest_marker_is_shown() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let console = redis.console().await;
    let list = redis.keys().objects_with_events();
    let (pushed, mut worst) = (Pushed::default(), Duration::ZERO);
    let slow = || {
        Recorder::with(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Act::Send
        })
    };
    let with_marks = |config: &mut seriatim::worker::WorkerConfig| {
        config.concurrency = 1;
        config.sweep = Duration::from_secs(1);
    };
    let watching = redis.control().await;
    let worker = start(&redis, "w", &slow(), with_marks);
    let began = Instant::now();
    for n in 0..600 {
        pushed.push(&console, &format!("work:{n}")).await;
        if n > 100 && n % 10 == 0 {
            pushed.compare(&console, &watching, &list, &mut worst).await;
        }
        sleep((began + Duration::from_millis(10) * n).saturating_duration_since(Instant::now()))
            .await;
    }
    // No worker runs now, so only this test pushes marks.
    worker.crash().await;
    for n in 0..30 {
        watching.mark().await.expect("marked");
        pushed.push(&console, &format!("late:{n}")).await;
        sleep(Duration::from_secs(1)).await;
        pushed.compare(&console, &watching, &list, &mut worst).await;
    }
    redis.server().kill();
    redis.server().restart();
    let (console, watching) = (redis.console().await, redis.control().await);
    pushed.compare(&console, &watching, &list, &mut worst).await;
    console.end_lease("w").await;
    let fast = Recorder::with(|_| {
        std::thread::sleep(Duration::from_millis(8));
        Act::Send
    });
    let worker = start(&redis, "v", &fast, with_marks);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        pushed.compare(&console, &watching, &list, &mut worst).await;
        let stats = watching.stats().await.expect("stats");
        if stats.markers == 0 && stats.oldest_waiting_ms == Some(0) {
            break;
        }
        assert!(Instant::now() < deadline, "the backlog drains: {stats:?}");
        sleep(Duration::from_millis(50)).await;
    }
    println!("the shown age was wrong by at most {worst:?}");
    worker.finish().await;
    console.check().await;
}

/// Tests that paused objects do not count as waiting.
#[tokio::test]
async fn paused_objects_have_no_age() {
    let (redis, console) = Redis::start().with_console().await;
    let control = redis.control().await;
    let ada = By {
        who: "ada",
        why: "a test",
    };
    control
        .set_rule(ada, Kind::Pause, &"*".parse().expect("a selector"), None)
        .await
        .expect("paused");
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    for n in 0..30 {
        console.emit(&format!("work:{n}"), "1").await;
    }
    until("all are paused", PATIENCE, async || {
        let stats = control.stats().await.expect("stats");
        (stats.paused == 30).then_some(())
    })
    .await;
    until("nothing waits", PATIENCE, async || {
        let stats = control.stats().await.expect("stats");
        (stats.markers == 0 && stats.oldest_waiting_ms == Some(0)).then_some(())
    })
    .await;
    let paused: Vec<String> = console
        .run(&["ZRANGE", &redis.keys().objects_paused(), "0", "-1"])
        .await;
    assert!(
        paused.iter().all(|name| name.starts_with("work:")),
        "{paused:?}"
    );
    worker.finish().await;
}

/// Tests that the age is unknown if markers wait and no process has pushed a mark. Without markers
/// the age is 0.
#[tokio::test]
async fn without_a_mark_the_age_is_unknown() {
    let (redis, console) = Redis::start().with_console().await;
    let control = redis.control().await;
    assert_eq!(
        control.stats().await.expect("stats").oldest_waiting_ms,
        Some(0)
    );
    console.emit("work:1", "1").await;
    assert_eq!(
        control.stats().await.expect("stats").oldest_waiting_ms,
        None
    );
    control.mark().await.expect("marked");
    let stats = control.stats().await.expect("stats");
    assert_eq!(stats.markers, 1, "a mark is no marker");
    assert!(
        stats.oldest_waiting_ms.is_some_and(|ms| ms < 20_000),
        "{stats:?}"
    );
    console.check().await;
}

/// Tests that there are few marks. Many calls together push at most one mark per second. The older
/// the oldest marker is, the farther apart are the marks.
#[tokio::test]
async fn marks_are_few() {
    let (redis, console) = Redis::start().with_console().await;
    let (control, keys) = (redis.control().await, redis.keys());
    console.emit("work:1", "1").await;
    let marks = async || console.run::<u64>(&["ZCARD", &keys.event_marks()]).await;
    for _ in 0..20 {
        control.mark().await.expect("marked");
    }
    assert_eq!(marks().await, 1);
    // Makes each mark look more than 11 hours older. So the next mark is due 10 s after the one
    // before.
    let hours = 40_960_000_u64;
    let age = async |ms: u64| {
        // The name of a mark is its time in ms, so two marks need different times.
        sleep(Duration::from_millis(5)).await;
        let all: Vec<(String, u64)> = console
            .run(&["ZRANGE", &keys.event_marks(), "0", "-1", "WITHSCORES"])
            .await;
        for (member, score) in all {
            let _: () = console
                .run(&[
                    "ZADD",
                    &keys.event_marks(),
                    &(score - ms).to_string(),
                    &member,
                ])
                .await;
        }
    };
    age(hours).await;
    control.mark().await.expect("marked");
    assert_eq!(marks().await, 2);
    age(9000).await;
    control.mark().await.expect("marked");
    assert_eq!(
        marks().await,
        2,
        "the newest mark is 9 s old, the oldest 11 h"
    );
    age(2000).await;
    control.mark().await.expect("marked");
    assert_eq!(marks().await, 3);
    let list: Vec<Vec<u8>> = console
        .run(&["LRANGE", &keys.objects_with_events(), "0", "-1"])
        .await;
    assert_eq!(
        list.iter().filter(|name| name.starts_with(b"\0t")).count(),
        3
    );
}

/// Tests that a worker that meets a mark removes the older marks from `event.marks`. It ignores a
/// mark that `event.marks` does not have. A wrong type of `event.marks` stops no worker.
#[tokio::test]
async fn a_mark_that_is_met_ends_older_ones() {
    let (redis, console) = Redis::start().with_console().await;
    let (control, keys) = (redis.control().await, redis.keys());
    let (list, marks) = (keys.objects_with_events(), keys.event_marks());
    for ms in ["1700000000001", "1700000000002", "1700000000003"] {
        let _: u64 = console.run(&["ZADD", &marks, ms, ms]).await;
    }
    // The list lacks the first mark, as if an older version of the worker had dropped it.
    let _: u64 = console
        .run(&[
            "LPUSH",
            &list,
            "\0t1700000000002",
            "\0t1799999999999",
            "\0t",
            "\0tx",
        ])
        .await;
    console.emit("work:1", "1").await;
    let _: u64 = console.run(&["LPUSH", &list, "\0t1700000000003"]).await;
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(waits.clone()));
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        config.sweep = Duration::from_secs(60);
    });
    gate.until_reached(1).await;
    let left: Vec<(String, u64)> = console
        .run(&["ZRANGE", &marks, "0", "-1", "WITHSCORES"])
        .await;
    // The first sweep may also have met the last mark, because no marker is before it any more.
    assert_eq!(left[0].0, "met", "{left:?}");
    assert!(
        left.iter().all(|(_, ms)| *ms >= 1_700_000_000_002),
        "{left:?}"
    );
    gate.open();
    sink.until_sent(1).await;
    until("the last mark is met", PATIENCE, async || {
        let left: Vec<(String, u64)> = console
            .run(&["ZRANGE", &marks, "0", "-1", "WITHSCORES"])
            .await;
        (left[0].0 == "met" && left.iter().all(|(_, ms)| *ms >= 1_700_000_000_003)).then_some(())
    })
    .await;
    worker.finish().await;
    console.until_at_rest().await;
    console.check().await;

    let _: u64 = console.run(&["DEL", &marks]).await;
    let _: u64 = console.run(&["SADD", &marks, "wrong"]).await;
    let _: u64 = console.run(&["LPUSH", &list, "\0t1700000000003"]).await;
    console.emit("work:1", "2").await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
    let stats = control.stats().await.expect("stats");
    assert_eq!(stats.unreadable, std::slice::from_ref(&marks));
    let report = control.check().await.expect("checked");
    assert!(
        report
            .violations
            .iter()
            .any(|violation| format!("{violation:?}").contains("event.marks")),
        "{report:#?}"
    );
}

/// Tests that `inspect` shows since when an object waits, and that it does not count marks as
/// markers.
#[tokio::test]
async fn an_inspection_tells_since_when_an_object_waits() {
    let (redis, console) = Redis::start().with_console().await;
    let (control, keys) = (redis.control().await, redis.keys());
    let now: (u64, u64) = console.run(&["TIME"]).await;
    let now = now.0 * 1000;
    let _: u64 = console
        .run(&[
            "ZADD",
            &keys.event_marks(),
            &(now - 99_000).to_string(),
            "met",
        ])
        .await;
    for (object, mark) in [
        ("a", now - 90_000),
        ("b", now - 60_000),
        ("c", now - 30_000),
    ] {
        console.emit(object, "1").await;
        let _: u64 = console
            .run(&["LPUSH", &keys.objects_with_events(), &format!("\0t{mark}")])
            .await;
        let _: u64 = console
            .run(&[
                "ZADD",
                &keys.event_marks(),
                &mark.to_string(),
                &mark.to_string(),
            ])
            .await;
    }
    console.emit("d", "1").await;
    for (object, before, waits) in [
        ("a", 0, Some(90)),
        ("b", 1, Some(60)),
        ("c", 2, Some(30)),
        ("d", 3, None),
    ] {
        let seen = control.inspection_of(object).await;
        assert_eq!(seen.markers_before, Some(before), "{seen:?}");
        let waited = seen.waits_ms.map(|ms| ms / 5000 * 5);
        assert_eq!(waited, waits, "{seen:?}");
        assert_eq!(
            seen.why.contains("worker for "),
            waits.is_some(),
            "{}",
            seen.why
        );
    }
}

/// Tests that a mark whose time is ahead of Redis' clock gets the present time. When no marker is
/// left, `event.marks` keeps no mark, only the member `met`.
#[tokio::test]
async fn a_step_of_the_clock_moves_the_marks_back() {
    let (redis, console) = Redis::start().with_console().await;
    let (control, keys) = (redis.control().await, redis.keys());
    let marks = keys.event_marks();
    let now: (u64, u64) = console.run(&["TIME"]).await;
    let (now, hour) = (now.0 * 1000, 3_600_000);
    console.emit("work:1", "1").await;
    for ms in [now - 6000, now + hour] {
        let _: u64 = console
            .run(&["ZADD", &marks, &ms.to_string(), &ms.to_string()])
            .await;
        let _: u64 = console
            .run(&["LPUSH", &keys.objects_with_events(), &format!("\0t{ms}")])
            .await;
    }
    control.mark().await.expect("moved");
    let stats = control.stats().await.expect("stats");
    assert!(
        stats
            .oldest_waiting_ms
            .is_some_and(|ms| (5000..8000).contains(&ms)),
        "{stats:?}"
    );
    console.add("DEL objects.with.events").await;
    sleep(Duration::from_millis(1100)).await;
    control.mark().await.expect("noted");
    let left: Vec<String> = console.run(&["ZRANGE", &marks, "0", "-1"]).await;
    assert_eq!(left, ["met"]);
}
