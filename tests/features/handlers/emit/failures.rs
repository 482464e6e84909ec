//! Emits of handlers during failures: workers die, a lease lapses, a target queue is not a list, or
//! memory is full.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use seriatim::handlers::{HandlerContext, Handlers};

use super::{Journal, MOVED, emits, emitting, handled, is_queued, made, takes};
use crate::support::console::PATIENCE;
use crate::support::recorder::Gate;
use crate::support::running::{retrying, start};
use crate::support::{Redis, until};

/// One handler has finished and emitted. Then the worker dies, or its lease lapses. This handler
/// does not run again, and its emit is pushed once.
#[tokio::test]
async fn what_is_emitted_survives_a_crash_and_a_lapse() {
    for crashes in [true, false] {
        let (redis, console) = Redis::start().with_console().await;
        let journal = Journal::default();
        let gate = Gate::closed();
        let (also, opens) = (journal.clone(), gate.clone());
        let slow = move |_: Value, cx: HandlerContext| {
            let (journal, gate) = (also.clone(), opens.clone());
            async move {
                journal.note(format!("slow {}", cx.id()));
                gate.pass().await;
                Ok(())
            }
        };
        let handlers = Handlers::builder()
            .register_type(
                "moved",
                "emits",
                journal.answers("emits", emits(&["work:1"])),
            )
            .register_type("moved", "slow", slow)
            .register_type("made", "takes", takes(&journal))
            .build()
            .expect("a set");
        let worker = start(&redis, "w", &handlers, |config| {
            config.lease = Duration::from_millis(600)
        });
        console.emit("work:1", MOVED).await;
        until("one has finished", PATIENCE, async || {
            (handled(&console, "work:1").await.len() == 3).then_some(())
        })
        .await;
        let worker = if crashes {
            worker.crash().await;
            console.end_lease("w").await;
            start(&redis, "other", &handlers, |_| {})
        } else {
            console.end_lease("w").await;
            worker
        };
        until("it runs again", PATIENCE, async || {
            (journal
                .lines()
                .iter()
                .filter(|line| *line == "slow 1")
                .count()
                > 1)
            .then_some(())
        })
        .await;
        gate.open();
        console.until_at_rest_after(2).await;
        worker.finish().await;
        let lines = journal.lines();
        let made: Vec<_> = lines
            .iter()
            .filter(|line| line.starts_with("work:1"))
            .collect();
        assert_eq!(
            (made.len(), made[0].ends_with(" after 1: 1")),
            (1, true),
            "{lines:?}"
        );
        assert_eq!(
            lines.iter().filter(|line| *line == "emits 1").count(),
            1,
            "{lines:?}"
        );
    }
}

/// If a target queue is not a list, the event cannot be finalized although its only handler has
/// finished. The event waits for an operator. Its handler does not run again, and no emit is lost.
#[tokio::test]
async fn a_target_that_is_no_list_holds_the_event_and_nothing_is_lost() {
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let handlers = emitting(&journal, &["work:2", "work:3"]);
    let queue = console.keys.events("work:3");
    let _: String = console.run(&["SET", &queue, "wrong"]).await;
    let worker = start(&redis, "w", &handlers, |_| {});
    console
        .emit_all("work:1", [MOVED, r#"{"type":"made","n":7}"#])
        .await;
    console
        .until_held("work:1", "quarantine: work:3:events is a string")
        .await;
    worker.finish().await;
    assert!(!is_queued(&console, "work:2").await);
    assert_eq!(
        handled(&console, "work:1").await,
        ["emit:emits", "handler:emits", "id"]
    );
    let _: u64 = console.run(&["DEL", &queue]).await;
    // Another process continues, because the finished handlers are recorded in Redis.
    let other = start(&redis, "other", &handlers, |_| {});
    console.release("work:1").await;
    console.until_at_rest_after(4).await;
    other.finish().await;
    let mut lines: Vec<_> = journal
        .lines()
        .iter()
        .map(|line| line.split(" after").next().unwrap_or_default().to_owned())
        .collect();
    lines.sort();
    lines
        .iter_mut()
        .skip(2)
        .for_each(|line| line.truncate("work:2".len()));
    assert_eq!(lines, ["emits 1", "work:1 2", "work:2", "work:3"]);
}

/// If Redis has no memory, a handler that emits fails transiently, and all other handlers continue.
/// When memory is free again, all events are delivered.
#[tokio::test]
async fn at_maxmemory_a_handler_that_emits_fails_for_a_time() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let journal = Journal::default();
    let handlers = emitting(&journal, &["work:3"]);
    console.emit("work:1", MOVED).await;
    console
        .emit_all("work:2", [made(8).to_string(), made(9).to_string()])
        .await;
    let _: String = console.run(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let worker = start(&redis, "w", &handlers, retrying("fixed:1h"));
    let held = console.until_held("work:1", "retry: emits: ").await;
    assert!(held.contains("Redis is out of memory"), "{held}");
    until("others go on", PATIENCE, async || {
        (journal.lines().iter().any(|line| line.ends_with(": 9"))).then_some(())
    })
    .await;
    let _: String = console.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    console.release("work:1").await;
    console.until_at_rest_after(4).await;
    worker.finish().await;
    let count = |begin: &str| {
        journal
            .lines()
            .iter()
            .filter(|line| line.starts_with(begin))
            .count()
    };
    assert_eq!(
        (count("emits 1"), count("work:3")),
        (2, 1),
        "{:?}",
        journal.lines()
    );
}

/// Workers die again and again while handlers emit. Each emit of an event is pushed exactly once
/// and in order, however often the event ran.
#[tokio::test]
async fn workers_that_die_push_each_event_once() {
    const EVENTS: usize = 40;
    let (redis, console) = Redis::start().with_console().await;
    let journal = Journal::default();
    let relays = |_: Value, cx: HandlerContext| async move {
        tokio::task::yield_now().await;
        cx.emit(format!("out:{}", cx.object()), &made(cx.id()))?;
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_type("moved", "one", relays)
        .register_type("moved", "two", relays)
        .register_type("made", "takes", takes(&journal))
        .build()
        .expect("a set");
    let objects = ["work:1", "work:2", "work:3"];
    for object in objects {
        console.emit_all(object, vec![MOVED; EVENTS]).await;
    }
    let names = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];
    for (name, ms) in names.into_iter().zip(3..) {
        let worker = start(&redis, name, &handlers, |config| config.crashes_max = 1000);
        console.until_lease(name).await;
        // A fixed wait, so that the worker dies in the middle of its work.
        tokio::time::sleep(Duration::from_millis(ms)).await;
        worker.crash().await;
        console.end_lease(name).await;
        console.check().await;
    }
    let worker = start(&redis, "last", &handlers, |config| {
        config.crashes_max = 1000
    });
    console.until_at_rest_after(9 * EVENTS as u64).await;
    worker.finish().await;
    // The journal is read by the receiver's rule: an event that ran twice counts once.
    let mut applied: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for line in journal.lines() {
        let (of, n) = line.split_once(": ").expect("a line");
        let words: Vec<_> = of.split(' ').collect();
        applied
            .entry(words[0].to_owned())
            .or_default()
            .insert(words[1].parse().expect("an id"), n.to_owned());
    }
    for object in objects {
        let numbers: Vec<u64> = applied[&format!("out:{object}")]
            .values()
            .map(|n| n.parse().expect("an id"))
            .collect();
        assert_eq!(numbers.len(), 2 * EVENTS, "{object}");
        assert!(
            numbers.chunks(2).all(|both| both[0] == both[1]) && numbers.is_sorted(),
            "{object}: {numbers:?}"
        );
    }
    assert_eq!(console.dead().await.len(), 0);
}
