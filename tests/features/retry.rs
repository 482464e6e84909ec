//! Retry policies: the effect of failures, and the cases in which failed attempts stay counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seriatim::sink::Stop;
use seriatim::worker::RetryPolicy;

use crate::support::Redis;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{policy, retrying, start};
use crate::support::until;

/// Returns a sink that fails transiently if the event contains `bad`, and delivers all other
/// events.
fn failing() -> Recorder {
    Recorder::with(|offer| match offer.text() {
        text if text.contains("bad") => {
            Act::Stop(Stop::transient(format!("no {}", offer.before + 1)))
        }
        _ => Act::Send,
    })
}

/// Waits until the object is held with this many failed attempts. Returns the seconds until the
/// object is due.
async fn wait_after(console: &Console, object: &str, attempts: usize) -> f64 {
    until(
        &format!("{object} has failed {attempts} times"),
        PATIENCE,
        async || {
            let held = console.held_id(object).await?;
            (held.split(' ').nth(2) == Some(attempts.to_string().as_str())).then_some(())
        },
    )
    .await;
    let (now_s, _): (f64, f64) = console.run(&["TIME"]).await;
    console.due(object).await.expect("held") / 1000.0 - now_s
}

fn is_about(wait: f64, most: f64) -> bool {
    wait > most - 40.0 && wait < most + 2.0
}

/// Returns the entries of a stream as fields and values.
async fn entries(console: &Console, key: &str) -> Vec<Vec<(String, String)>> {
    let entries: Vec<(String, Vec<(String, String)>)> =
        console.run(&["XRANGE", key, "-", "+"]).await;
    entries.into_iter().map(|(_, fields)| fields).collect()
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> Vec<(String, String)> {
    fields
        .into_iter()
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

/// The policy allows two retries, five minutes apart. After them the event is a dead letter with
/// its error, and the chain continues without it.
#[tokio::test]
async fn three_failures_under_fixed_5m_2_leave_it_in_the_dead_letters_and_the_next_event_runs_with_the_right_prev()
 {
    let (redis, console) = Redis::start().with_console().await;
    let sink = failing();
    console.emit_all("work:1", ["1", "\"bad\"", "3", "4"]).await;
    let worker = start(&redis, "w", &sink, retrying("fixed-5m-2,jitter=0"));
    for attempt in 1..=2 {
        let wait = wait_after(&console, "work:1", attempt).await;
        assert!(is_about(wait, 300.0), "{wait} s");
        console.release("work:1").await;
    }
    sink.until_sent(3).await;
    worker.finish().await;
    let expected = [
        ("id", "2"),
        ("prev", "1"),
        ("object", "work:1"),
        ("event", "\"bad\""),
        ("error", "no 3"),
        ("attempts", "3"),
    ];
    assert_eq!(
        entries(&console, &console.keys.events_dead()).await,
        [fields(expected)]
    );
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.id, offer.prev))
        .collect();
    assert_eq!(
        sent,
        [
            ("1".to_owned(), 1, 0),
            ("3".to_owned(), 3, 1),
            ("4".to_owned(), 4, 3)
        ]
    );
    assert_eq!(sink.applied_of("work:1"), ["1", "3", "4"]);
    console.until_at_rest().await;
    console.check().await;
}

/// The event is completed with errors. The log has the event with its error, and the chain
/// continues without it. No receiver has seen its id.
#[tokio::test]
async fn attempts_used_up_complete_with_errors_and_the_log_says_so() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = failing();
    console.emit_all("work:1", ["1", "\"bad\"", "3"]).await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=3,then=complete-with-errors"),
    );
    sink.until_sent(2).await;
    worker.finish().await;
    let expected = fields([
        ("status", "completed_with_errors"),
        ("id", "2"),
        ("prev", "1"),
        ("object", "work:1"),
        ("event", "\"bad\""),
        ("error", "no 3"),
        ("attempts", "3"),
    ]);
    assert_eq!(
        entries(&console, &console.keys.event_log()).await,
        [expected]
    );
    assert_eq!(console.dead().await.len(), 0);
    assert_eq!(
        sink.offered()
            .iter()
            .filter(|offer| offer.text().contains("bad"))
            .count(),
        3
    );
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev))
        .collect();
    assert_eq!(sent, [(1, 0), (3, 1)]);
    console.until_at_rest().await;
    console.check().await;
}

/// The object is held for an operator, with the error. Each release allows one more attempt.
#[tokio::test]
async fn attempts_used_up_hold_the_object_until_an_operator_releases_it() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("1", 0..3) => Act::Stop(Stop::transient(format!("no {}", offer.before + 1))),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=2,then=hold"),
    );
    let held = console.until_held("work:1", "attempts: ").await;
    assert_eq!(held, "1 1 2 0 attempts: failed 2 times, at last: no 2");
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(
        console.list(&console.keys.events_held("work:1")).await,
        ["1", "2"]
    );
    console.check().await;
    console.release("work:1").await;
    let held = console
        .until_held("work:1", "attempts: failed 3 times")
        .await;
    assert_eq!(held, "1 2 3 0 attempts: failed 3 times, at last: no 3");
    console.release("work:1").await;
    sink.until_sent(2).await;
    worker.finish().await;
    assert_eq!(sink.applied_of("work:1"), ["1", "2"]);
    console.until_at_rest().await;
}

/// Redis has nothing else to do, so without a nudge it would end the pop of the only slot up to 100
/// ms late. The medians of rounds in turn count: a busy machine delays each attempt as it delays an
/// event that has no attempt before it.
#[tokio::test]
async fn the_only_slot_of_an_idle_redis_retries_in_time() {
    const RETRIES: usize = 3;
    let (redis, console) = Redis::own(&[]).with_console().await;
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let of_rule = Arc::clone(&times);
    let sink = Recorder::with(move |offer| {
        of_rule.lock().expect("the times").push(Instant::now());
        if offer.text().contains("retry") && offer.before < RETRIES {
            Act::Stop(Stop::transient("no"))
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        config.retry = policy("fixed:55ms");
    });
    let (mut waits, mut delays) = (Vec::new(), Vec::new());
    for round in 0..7 {
        times.lock().expect("the times").clear();
        console.emit("work:1", "\"retry\"").await;
        sink.until_sent(2 * round + 1).await;
        let began = Instant::now();
        console.emit("work:1", "1").await;
        sink.until_sent(2 * round + 2).await;
        let times = times.lock().expect("the times");
        let (plain, attempts) = times.split_last().expect("an event");
        assert_eq!(attempts.len(), 1 + RETRIES);
        waits.extend(attempts.windows(2).map(|pair| pair[1] - pair[0]));
        delays.push(plain.duration_since(began));
    }
    worker.finish().await;
    waits.sort();
    delays.sort();
    println!("{waits:?}; without a retry {delays:?}");
    let most = Duration::from_millis(80) + 2 * delays[delays.len() / 2];
    assert!(waits[waits.len() / 2] < most, "{waits:?} {delays:?}");
}

/// One process has two retry policies: one for a type of event, and one for all other events.
#[tokio::test]
async fn a_type_has_a_policy_of_its_own() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = failing();
    let worker = start(&redis, "w", &sink, |config| {
        config.retry = policy("fixed:1h,jitter=0");
        config
            .retry_types
            .insert("moved".to_owned(), policy("fixed:2h,jitter=0"));
        config.retry_types.insert(
            "gone".to_owned(),
            policy("fixed:1s,attempts=1,then=dead-letter"),
        );
    });
    for (object, event, wait) in [
        ("other", r#"{"bad":{"type":"moved"}}"#, 3600.0),
        ("named", r#"{"bad":1,"type":"moved"}"#, 7200.0),
        ("number", r#"{"bad":1,"type":7}"#, 3600.0),
    ] {
        console.emit(object, event).await;
        let waited = wait_after(&console, object, 1).await;
        assert!(is_about(waited, wait), "{object}: {waited} s");
    }
    console
        .emit_all("gone", [r#"{"bad":1,"type":"gone"}"#, "2"])
        .await;
    sink.until_sent(1).await;
    assert_eq!(console.dead().await.len(), 1);
    worker.stop().await;
}

/// A sink may name the wait before the retry. This changes only the wait, not the number of
/// attempts.
#[tokio::test]
async fn a_wait_that_the_sink_names_is_no_attempt_more() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match offer.text().as_str() {
        "1" => Act::Stop(Stop::Transient {
            error: "busy".to_owned(),
            retry_after: Some(Duration::from_secs(5000)),
        }),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,jitter=0,attempts=2,then=dead-letter"),
    );
    let wait = wait_after(&console, "work:1", 1).await;
    assert!(is_about(wait, 5000.0), "{wait} s");
    console.release("work:1").await;
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!(console.dead().await.len(), 1);
    assert_eq!((sink.sent()[0].id, sink.sent()[0].prev), (2, 0));
}

/// If the sink postpones an event, no attempt is counted, and the earlier failed attempts stay
/// counted. No event of the object overtakes the postponed event.
#[tokio::test]
async fn a_postponed_event_costs_no_attempt() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("2", 0) => Act::Stop(Stop::transient("down")),
        ("2", 1..=9) => Act::Stop(Stop::Postponed {
            reason: "it is slow".to_owned(),
            after: Duration::from_millis(10),
        }),
        ("2", 10) => Act::Stop(Stop::Postponed {
            reason: "it is slow".to_owned(),
            after: Duration::from_secs(5000),
        }),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2", "3"]).await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=2,then=dead-letter"),
    );
    let (now_s, _): (f64, f64) = console.run(&["TIME"]).await;
    until("it is postponed for long", PATIENCE, async || {
        console
            .due("work:1")
            .await
            .filter(|due| due / 1000.0 - now_s > 1000.0)
            .map(drop)
    })
    .await;
    let wait = wait_after(&console, "work:1", 1).await;
    assert!(is_about(wait, 5000.0), "{wait} s");
    console.release("work:1").await;
    sink.until_sent(3).await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .iter()
        .map(|event| (event.id, event.prev))
        .collect();
    assert_eq!(
        (sent, console.dead().await.len()),
        (vec![(1, 0), (2, 1), (3, 2)], 0)
    );
}

/// Failed attempts stay counted in whatever way the event comes back: after a restart under the
/// same name, a takeover, a graceful stop, or a pause of the process beyond its lease.
#[tokio::test]
async fn attempts_survive_restarts_takeovers_stops_and_pauses() {
    let (redis, console) = Redis::start().with_console().await;
    let failing_now = Arc::new(AtomicBool::new(true));
    let (gate, fails) = (Gate::closed(), Arc::clone(&failing_now));
    let (held_up, hour) = (gate.clone(), "fixed:1h,attempts=3,then=dead-letter");
    let sink = Recorder::with(move |_| match fails.load(Ordering::SeqCst) {
        true => Act::Stop(Stop::transient("down")),
        false => Act::Wait(held_up.clone()),
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let first = start(&redis, "first", &sink, retrying(hour));
    wait_after(&console, "work:1", 1).await;
    console.release("work:1").await;
    wait_after(&console, "work:1", 2).await;
    // From now on deliveries hang. So later hand-outs count deaths, and no failures.
    failing_now.store(false, Ordering::SeqCst);
    console.release("work:1").await;
    gate.until_reached(1).await;
    // The process dies and is restarted under its name.
    first.crash().await;
    console.end_lease("first").await;
    let first = start(&redis, "first", &sink, retrying(hour));
    gate.until_reached(2).await;
    // The lease ends, as if the process had been paused, and the process attaches again.
    console.end_lease("first").await;
    gate.until_reached(3).await;
    // The process dies and is not restarted. Another process takes over its name.
    let second = start(&redis, "second", &sink, retrying(hour));
    first.crash().await;
    console.end_lease("first").await;
    gate.until_reached(4).await;
    // The process is stopped without grace while the delivery hangs, so the event is given back.
    second.shutdown.stop_at_once();
    second.ended().await.expect("a stop");
    let third = start(&redis, "third", &sink, retrying(hour));
    gate.until_reached(5).await;
    let seen: Vec<_> = sink
        .offered()
        .iter()
        .map(|offer| (offer.id, offer.attempts, offer.crashes))
        .collect();
    // For each hand-out: id, failed attempts, crashes. Only the two deaths count as crashes.
    assert_eq!(
        seen,
        [
            (1, 0, 0),
            (1, 1, 0),
            (1, 2, 0),
            (1, 2, 1),
            (1, 2, 1),
            (1, 2, 2),
            (1, 2, 2)
        ]
    );
    failing_now.store(true, Ordering::SeqCst);
    gate.open();
    sink.until_sent(1).await;
    third.stop().await;
    assert_eq!(sink.applied_of("work:1")[0], "1");
}

/// Deaths are counted apart from failed attempts. After five deaths the event is held for an
/// operator, even if its policy allows fewer attempts.
#[tokio::test]
async fn five_deaths_hold_the_event_and_are_no_attempts() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    console.emit_all("work:1", ["1", "2"]).await;
    for deaths in 1..=5 {
        let worker = start(
            &redis,
            "w",
            &sink,
            retrying("fixed:1ms,attempts=1,then=dead-letter"),
        );
        gate.until_reached(deaths).await;
        worker.crash().await;
        console.end_lease("w").await;
    }
    let other = start(
        &redis,
        "other",
        &sink,
        retrying("fixed:1ms,attempts=1,then=dead-letter"),
    );
    let held = console.until_held("work:1", "crashes: ").await;
    assert_eq!(
        held.split(' ').take(4).collect::<Vec<_>>()[2..],
        ["0", "5"],
        "{held}"
    );
    assert!(
        held.ends_with("crashes: died 5 times with this event in hand"),
        "{held}"
    );
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(console.dead().await.len(), 0);
    other.stop().await;
}

/// A graceful stop, a pause of the process and an unavailable sink count no failed attempt. The
/// policy allows only one attempt here, and the event is still delivered.
#[tokio::test]
async fn a_stop_a_pause_and_an_unavailable_sink_count_nothing() {
    let (redis, console) = Redis::start().with_console().await;
    let down = Arc::new(AtomicBool::new(true));
    let (gate, is_down) = (Gate::closed(), Arc::clone(&down));
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| match is_down.load(Ordering::SeqCst) {
        true => Act::Stop(Stop::unavailable("down")),
        false => Act::Wait(held_up.clone()),
    });
    let once = || retrying("fixed:1ms,attempts=1,then=dead-letter");
    console.emit("work:1", "1").await;
    let worker = start(&redis, "w", &sink, once());
    sink.until_offered(3).await;
    // The process stops while the sink is unavailable, so the batch is held for other workers.
    worker.stop().await;
    down.store(false, Ordering::SeqCst);
    let worker = start(&redis, "w", &sink, once());
    gate.until_reached(1).await;
    console.end_lease("w").await;
    gate.until_reached(2).await;
    gate.open();
    sink.until_sent(1).await;
    worker.finish().await;
    assert!(
        sink.offered()
            .iter()
            .all(|offer| (offer.attempts, offer.crashes) == (0, 0)),
        "{:?}",
        sink.offered()
    );
    assert_eq!(console.dead().await.len(), 0);
    console.until_at_rest().await;
}

/// Tests that a waiting object occupies no slot. The worker has one slot. Ten objects wait for a
/// retry, and the ten other objects continue.
#[tokio::test]
async fn waiting_occupies_no_slot() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = failing();
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        config.retry = policy("fixed:1h");
    });
    for n in 0..10 {
        console.emit(&format!("waits:{n}"), "\"bad\"").await;
        console.emit(&format!("goes:{n}"), "1").await;
    }
    sink.until_sent(10).await;
    for n in 0..10 {
        console
            .until_held(&format!("waits:{n}"), "retry: no 1")
            .await;
    }
    assert_eq!(
        console.list(&console.keys.worker_object("w.0")).await,
        [""; 0]
    );
    console.emit_all("goes:0", ["2", "3"]).await;
    sink.until_sent(12).await;
    assert_eq!(
        sink.offered().len(),
        22,
        "no failed event is tried before its time"
    );
    worker.finish().await;
}

/// If a row cannot be written to the log, the event is held. The event and its error are not lost.
#[tokio::test]
async fn an_event_that_the_log_cannot_take_is_held() {
    let (redis, console) = Redis::start().with_console().await;
    console.add("SET event.log wrong").await;
    let sink = failing();
    console.emit_all("work:1", ["1", "\"bad\"", "3"]).await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=1,then=complete-with-errors"),
    );
    let held = console
        .until_held("work:1", "quarantine: event.log: WRONGTYPE")
        .await;
    assert!(held.starts_with("2 0 1 0 "), "{held}");
    console.add("DEL event.log").await;
    console.release("work:1").await;
    sink.until_sent(2).await;
    worker.finish().await;
    assert_eq!(entries(&console, &console.keys.event_log()).await.len(), 1);
}

/// The number of kept events that were completed with errors is bounded.
#[tokio::test]
async fn the_log_keeps_about_the_last_thousand() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = failing();
    console
        .emit_all("work:1", (0..1500).map(|_| "\"bad\"").chain(["1"]))
        .await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=1,then=complete-with-errors"),
    );
    sink.until_sent(1).await;
    worker.finish().await;
    let kept: usize = console.run(&["XLEN", &console.keys.event_log()]).await;
    assert!((1000..1200).contains(&kept), "{kept}");
}

/// A rejected event was always a dead letter. A policy may also hold its object, or complete the
/// event with errors.
#[tokio::test]
async fn a_policy_decides_the_fate_of_a_rejected_event() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match offer.text() {
        text if text.contains("bad") => Act::Stop(Stop::rejected("no such place")),
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |config| {
        config.retry = policy("minute,rejected=hold");
        config.retry_types.insert(
            "soft".to_owned(),
            policy("minute,rejected=complete-with-errors"),
        );
        config
            .retry_types
            .insert("dead".to_owned(), RetryPolicy::MINUTE);
    });
    let bad = |name: &str| format!(r#"{{"type":"{name}","bad":1}}"#);
    for name in ["soft", "dead", "hard"] {
        console
            .emit_all(
                &format!("{name}:1"),
                ["1".to_owned(), bad(name), "2".to_owned()],
            )
            .await;
    }
    let held = console
        .until_held("hard:1", "rejected: no such place")
        .await;
    assert_eq!(
        held.split(' ').skip(2).collect::<Vec<_>>(),
        ["0", "0", "rejected:", "no", "such", "place"]
    );
    assert_eq!(console.due("hard:1").await, Some(f64::INFINITY));
    sink.until_sent(5).await;
    // A release gives the sink the event once more.
    console.release("hard:1").await;
    console
        .until_held("hard:1", "rejected: no such place")
        .await;
    let by = seriatim::control::By {
        who: "ada",
        why: "",
    };
    redis
        .control()
        .await
        .skip(by, "hard:1", None)
        .await
        .expect("skipped");
    sink.until_sent(6).await;
    console.until_at_rest().await;
    worker.finish().await;
    let completed = entries(&console, &console.keys.event_log()).await;
    assert_eq!(completed.len(), 1);
    assert!(
        completed[0].contains(&("status".to_owned(), "completed_with_errors".to_owned())),
        "{completed:?}"
    );
    let dead = entries(&console, &console.keys.events_dead()).await;
    let mut errors: Vec<_> = dead
        .into_iter()
        .flatten()
        .filter(|(field, _)| field == "error")
        .map(|(_, error)| error)
        .collect();
    errors.sort();
    assert_eq!(
        errors,
        ["no such place", "skipped: rejected: no such place"]
    );
}
