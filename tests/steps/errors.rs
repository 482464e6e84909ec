//! The errors of the failed attempts of an object's first event: when they are written, kept and
//! deleted.
#![cfg(feature = "worker")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use seriatim::control::By;
use seriatim::control::held::Skipped;
use seriatim::sink::Stop;
use seriatim::wire::{
    self, Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, Report, Suspects, Tag,
};

use crate::attached;
use crate::state::State;
use crate::support::console::Console;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, control};

const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 0,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};
const ADA: By<'static> = By {
    who: "ada@host",
    why: "known",
};

/// Attaches a worker that owns no object.
async fn attached(redis: &Redis) -> (State, Console) {
    (attached::process(redis).await, redis.console().await)
}

/// Makes a worker `w.0` that owns `work:1`, with its events 5, 6 and 7 in flight.
async fn in_hand(redis: &Redis) -> (State, Console) {
    let (mut state, console) = attached(redis).await;
    state.own("w.0", "work:1", 5, &["1", "2", "3"]).await;
    (state, console)
}

/// Makes a worker `w.0` that owns `work:1`, with its events 5, 6 and 7 in flight. Event 5 has
/// failed twice.
async fn failed_twice(redis: &Redis) -> (State, Console) {
    let (mut state, console) = in_hand(redis).await;
    let keys = state.keys.clone();
    state
        .run("SET", &[&keys.worker_event_id("w.0"), "5 2 2"])
        .await;
    state
        .run(
            "RPUSH",
            &[&keys.event_errors("work:1"), "17 2 no 2", "16 1 no 1"],
        )
        .await;
    console.check().await;
    (state, console)
}

const FAILED: Tag = Tag {
    first: 5,
    handouts: 2,
    attempts: 2,
    crashes: 0,
    is_keyed: false,
};

fn report(tag: Tag, count: usize, then: BatchResult) -> Report {
    let last = count.checked_sub(1).map(|at| tag.first + at as u64);
    Report {
        object: "work:1".into(),
        tag,
        count,
        last,
        then,
    }
}

fn hold(rest: Tag, why: &str) -> BatchResult {
    BatchResult::Hold {
        rest,
        delay: None,
        reason: why.into(),
    }
}

/// Reports a result for slot 0. Returns the batch that the slot gets, if it may claim and gets one.
async fn told(state: &mut State, report: &Report, claims: usize) -> Option<BatchReply> {
    let mut call = Advance::new(
        &state.keys,
        "w",
        "t",
        Bounds { claims, ..BOUNDS },
        ClaimFirst::Held,
    );
    call.report(0, report);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok { batches, .. } = answer else {
        panic!("{answer:?}")
    };
    batches.into_iter().next()
}

/// Returns the stored errors of `work:1`, newest first, without their times.
async fn kept(console: &Console) -> Vec<String> {
    let mut all = console.list(&console.keys.event_errors("work:1")).await;
    all.reverse();
    all.iter()
        .map(|entry| entry.split_once(' ').expect("a time").1.to_owned())
        .collect()
}

/// Redis stores the time, the number and the error of each failed attempt, for the last 20
/// attempts. A repeated call stores no error twice.
#[tokio::test]
async fn the_errors_of_the_last_20_attempts_are_kept() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    let mut tag = Tag {
        first: 5,
        ..Tag::default()
    };
    let (before, _): (u64, u64) = console.run(&["TIME"]).await;
    for attempt in 1..=25 {
        let then = BatchResult::Hold {
            rest: tag.failed(),
            delay: Some(Duration::ZERO),
            reason: format!("retry: no {attempt}").into(),
        };
        let failed = report(tag, 0, then);
        let batch = told(&mut state, &failed, 1).await.expect("the batch again");
        assert_eq!((batch.tag.attempts, batch.events.len()), (attempt, 3));
        // The repeated result names another batch than the one in flight, so it is ignored.
        told(&mut state, &failed, 0).await;
        tag = batch.tag;
        assert_eq!(kept(&console).await.len(), attempt.min(20) as usize);
    }
    let expected: Vec<_> = (6..=25)
        .rev()
        .map(|attempt| format!("{attempt} no {attempt}"))
        .collect();
    assert_eq!(kept(&console).await, expected);
    let (after, _): (u64, u64) = console.run(&["TIME"]).await;
    let seen = control(&state.conn, &console.keys)
        .inspect("work:1")
        .await
        .expect("an inspection");
    assert_eq!(
        (
            seen.errors.len(),
            seen.errors[0].attempt,
            seen.errors[0].error.as_str()
        ),
        (20, 25, "no 25")
    );
    assert!(
        seen.errors
            .iter()
            .all(|failed| (before * 1000..(after + 1) * 1000).contains(&failed.at_ms)),
        "{:?}",
        seen.errors
    );
    assert!(
        seen.errors
            .is_sorted_by(|later, earlier| later.at_ms >= earlier.at_ms),
        "{:?}",
        seen.errors
    );
    console.check().await;
    let end = report(tag, 3, BatchResult::Done);
    told(&mut state, &end, 0).await;
    assert_eq!(kept(&console).await, Vec::<String>::new());
}

/// The attempts are used up, and the object waits for an operator. The last error is stored like
/// all others. Each release allows one more attempt.
#[tokio::test]
async fn attempts_used_up_are_kept_too() {
    let redis = Redis::start();
    let console = redis.console().await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("1", 0..3) => Act::Stop(Stop::transient(format!(
            "attempts: no: {}",
            offer.before + 1
        ))),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let worker = start(&redis, "w", &sink, |config| {
        config.retry = "fixed:1ms,attempts=2,then=hold".parse().expect("a policy")
    });
    console
        .until_held("work:1", "attempts: failed 2 times")
        .await;
    assert_eq!(
        kept(&console).await,
        ["2 attempts: no: 2", "1 attempts: no: 1"]
    );
    console.check().await;
    let state = State::new(redis.connect().await, redis.keys().clone());
    control(&state.conn, redis.keys())
        .release(ADA, "work:1")
        .await
        .expect("released");
    console
        .until_held("work:1", "attempts: failed 3 times")
        .await;
    assert_eq!(
        kept(&console).await,
        [
            "3 attempts: no: 3",
            "2 attempts: no: 2",
            "1 attempts: no: 1"
        ]
    );
    console.release("work:1").await;
    sink.until_sent(2).await;
    worker.finish().await;
    console.until_at_rest().await;
}

/// The errors of an event are deleted in the step that finalizes the event, for whatever reason.
/// Every other step keeps them.
#[tokio::test]
async fn they_go_with_the_event() {
    let next = Tag {
        first: 6,
        handouts: 2,
        ..Tag::default()
    };
    let reject = |attempts| BatchResult::Reject {
        next: Some(next),
        id: 5,
        error: "bad".to_owned(),
        attempts,
    };
    let complete = |attempts| BatchResult::Complete {
        next: Some(next),
        id: 5,
        error: "bad".to_owned(),
        attempts,
    };
    let second = || BatchResult::Reject {
        next: Some(Tag { first: 7, ..next }),
        id: 6,
        error: "bad".to_owned(),
        attempts: 1,
    };
    let both = ["2 no 2", "1 no 1"];
    let third = |error: &'static str| vec![error, "2 no 2", "1 no 1"];
    // For each case: the result, whether the keys `events.dead` and `event.log` have a wrong type,
    // and the remaining errors.
    let cases = [
        (report(FAILED, 3, BatchResult::Done), false, vec![]),
        (report(FAILED, 3, BatchResult::Yield), false, vec![]),
        (report(FAILED, 1, BatchResult::Part { next }), false, vec![]),
        (report(FAILED, 0, reject(2)), false, vec![]),
        (report(FAILED, 0, complete(3)), false, vec![]),
        // Event 5 is delivered, and the next event has failed or is held for another reason.
        (
            report(FAILED, 1, hold(next.failed(), "retry: other")),
            false,
            vec!["1 other"],
        ),
        (report(FAILED, 1, hold(next, "stop")), false, vec![]),
        // Event 5 has failed again, or is held for another reason.
        (
            report(FAILED, 0, hold(FAILED.failed(), "retry: retry: it")),
            false,
            third("3 retry: it"),
        ),
        (
            report(FAILED, 0, hold(FAILED.failed(), "down")),
            false,
            third("3 down"),
        ),
        (
            report(FAILED, 0, hold(FAILED, "stop")),
            false,
            both.to_vec(),
        ),
        (
            report(FAILED, 0, BatchResult::Part { next: FAILED }),
            false,
            both.to_vec(),
        ),
        // A late result of an earlier hand-out.
        (
            report(
                Tag {
                    handouts: 1,
                    ..FAILED
                },
                3,
                BatchResult::Done,
            ),
            false,
            both.to_vec(),
        ),
        // An event that cannot become a dead letter stays in its place. A rejection counts no
        // attempt. If the attempts are used up, the last failure counts one.
        (report(FAILED, 0, reject(2)), true, both.to_vec()),
        (report(FAILED, 0, complete(3)), true, third("3 bad")),
        (report(FAILED, 1, second()), true, vec!["1 bad"]),
    ];
    for (report, broken, left) in cases {
        let redis = Redis::start();
        let (mut state, console) = failed_twice(&redis).await;
        if broken {
            for key in [state.keys.events_dead(), state.keys.event_log()] {
                state.run("SET", &[&key, "wrong"]).await;
            }
        }
        told(&mut state, &report, 0).await;
        assert_eq!(kept(&console).await, left, "{report:?}");
    }
}

/// An event without failed attempts has no errors, so the script runs no command for them. Leftover
/// errors stay, and `check` reports them.
#[tokio::test]
async fn what_has_not_failed_costs_nothing() {
    for tag in [
        Tag {
            first: 5,
            ..Tag::default()
        },
        Tag {
            first: 5,
            handouts: 10,
            crashes: 10,
            ..Tag::default()
        },
    ] {
        for (count, then) in [
            (3, BatchResult::Done),
            (
                1,
                BatchResult::Part {
                    next: tag.after(1, 1),
                },
            ),
            (1, hold(tag.after(1, 1), "stop")),
        ] {
            let redis = Redis::start();
            let (mut state, console) = in_hand(&redis).await;
            let keys = state.keys.clone();
            state
                .run("SET", &[&keys.worker_event_id("w.0"), &tag.to_string()])
                .await;
            state
                .run("LPUSH", &[&keys.event_errors("work:1"), "1 1 of another"])
                .await;
            told(&mut state, &report(tag, count, then), 0).await;
            assert_eq!(kept(&console).await, ["1 of another"], "{tag} {count}");
        }
    }
}

/// An event keeps its errors when another process gets it, after a death, a stop, or a release.
#[tokio::test]
async fn they_survive_deaths_stops_and_releases() {
    let redis = Redis::start();
    let console = redis.console().await;
    let failing_now = Arc::new(AtomicBool::new(true));
    let (gate, fails) = (Gate::closed(), Arc::clone(&failing_now));
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| match fails.load(Ordering::SeqCst) {
        true => Act::Stop(Stop::transient("down")),
        false => Act::Wait(held_up.clone()),
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let hour = |config: &mut seriatim::worker::WorkerConfig| {
        config.retry = "fixed:1h".parse().expect("a policy")
    };
    let first = start(&redis, "first", &sink, hour);
    console.until_held("work:1", "retry: down").await;
    failing_now.store(false, Ordering::SeqCst);
    console.release("work:1").await;
    gate.until_reached(1).await;
    // The process is killed, and another process takes over its name. A death does not count as an
    // attempt.
    let second = start(&redis, "second", &sink, hour);
    first.crash().await;
    console.end_lease("first").await;
    gate.until_reached(2).await;
    assert_eq!(kept(&console).await, ["1 down"]);
    console.check().await;
    second.shutdown.stop_at_once();
    second.ended().await.expect("a stop");
    assert_eq!(kept(&console).await, ["1 down"]);
    console.check().await;
    let third = start(&redis, "third", &sink, hour);
    gate.until_reached(3).await;
    gate.open();
    sink.until_sent(2).await;
    third.finish().await;
    console.until_at_rest().await;
}

/// A long error is cut between two characters. So an object that fails for a long time needs only
/// about 10 KB more.
#[tokio::test]
async fn a_long_error_is_cut() {
    for (error, expected) in [
        ("x".repeat(500), "x".repeat(500)),
        ("x".repeat(501), "x".repeat(500)),
        ("x".repeat(499) + "é", "x".repeat(499)),
        ("x".repeat(498) + "é!", "x".repeat(498) + "é"),
        ("é".repeat(500), "é".repeat(250)),
        ("x".repeat(497) + "😀", "x".repeat(497)),
        ("a\nb \u{0}c".to_owned(), "a\nb \u{0}c".to_owned()),
    ] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        let tag = Tag {
            first: 5,
            ..Tag::default()
        };
        told(
            &mut state,
            &report(tag, 0, hold(tag.failed(), &format!("retry: {error}"))),
            0,
        )
        .await;
        assert_eq!(kept(&console).await, [format!("1 {expected}")]);
    }
}

/// If the list of errors has a wrong type, no event is delayed and the key is not overwritten. The
/// key is deleted when the event is finalized.
#[tokio::test]
async fn a_wrong_type_holds_up_nothing() {
    let redis = Redis::start();
    let (mut state, console) = failed_twice(&redis).await;
    let keys = state.keys.clone();
    state
        .run("SET", &[&keys.event_errors("work:1"), "wrong"])
        .await;
    let then = BatchResult::Hold {
        rest: FAILED.failed(),
        delay: Some(Duration::ZERO),
        reason: "retry: no 3".into(),
    };
    let batch = told(&mut state, &report(FAILED, 0, then), 1)
        .await
        .expect("the batch again");
    assert_eq!(
        (batch.tag.to_string().as_str(), batch.events.len()),
        ("5 3 3", 3)
    );
    assert_eq!(
        console.text(&keys.event_errors("work:1")).await.as_deref(),
        Some("wrong")
    );
    let seen = control(&state.conn, &keys)
        .inspect("work:1")
        .await
        .expect("an inspection");
    assert!(
        seen.errors.is_empty() && seen.wrong_types.len() == 1,
        "{seen:?}"
    );
    told(
        &mut state,
        &report(
            batch.tag,
            1,
            BatchResult::Part {
                next: batch.tag.after(1, 1),
            },
        ),
        0,
    )
    .await;
    assert!(
        !console
            .left()
            .await
            .contains(&"work:1:event.errors".to_owned())
    );
    console.check().await;
}

/// The errors are deleted even with the longest possible batch. Its last id has three more digits
/// than its first id.
#[tokio::test]
async fn they_go_with_the_longest_batch() {
    let redis = Redis::start();
    let (mut state, console) = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("w.0", "work:1", 9, &["1"; 1000]).await;
    state
        .run("SET", &[&keys.worker_event_id("w.0"), "9 0 1"])
        .await;
    state
        .run("LPUSH", &[&keys.event_errors("work:1"), "17 1 no"])
        .await;
    console.check().await;
    let tag = Tag {
        first: 9,
        handouts: 0,
        attempts: 1,
        crashes: 0,
        is_keyed: false,
    };
    assert!(
        told(&mut state, &report(tag, 1000, BatchResult::Done), 0)
            .await
            .is_none()
    );
    console.check().await;
    assert_eq!(
        console.text(&keys.last_event_id("work:1")).await.as_deref(),
        Some("1008")
    );
    assert_eq!(kept(&console).await, Vec::<String>::new());
}

/// A skip deletes the errors of its event. Forgetting an idle object deletes leftover errors.
#[tokio::test]
async fn a_skip_and_a_forgetting_take_them_along() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state
        .hold("work:1", "inf", &["1", "2"], "5 0 1 0 retry: no")
        .await;
    state
        .run("LPUSH", &[&keys.event_errors("work:1"), "17 1 no"])
        .await;
    console.check().await;
    let skipped = control(&state.conn, &keys)
        .skip(ADA, "work:1", None)
        .await
        .expect("an answer");
    assert!(
        matches!(skipped, Skipped::Skipped { id: 5, left: 1, .. }),
        "{skipped:?}"
    );
    assert_eq!(kept(&console).await, Vec::<String>::new());
    state.delivered("work:2", 4).await;
    state
        .run("LPUSH", &[&keys.event_errors("work:2"), "17 1 no"])
        .await;
    wire::forget(&mut state.conn, &keys, &["work:2"])
        .await
        .expect("an answer");
    assert!(
        !console
            .left()
            .await
            .iter()
            .any(|key| key.ends_with(":event.errors"))
    );
}

/// If an object has leftover errors of another event, `check` reports them. `inspect` does not show
/// them for the first event.
#[tokio::test]
async fn what_is_left_behind_is_found() {
    for (at, tag) in [
        ("idle", ""),
        ("hand", "5"),
        ("hand", "5 1 0 1"),
        ("held", "5 3 0 1 stop"),
        ("held", "0 0 0 0 yield"),
    ] {
        let redis = Redis::start();
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        match at {
            "hand" => {
                state.register("w", 1).await;
                state.own("w.0", "work:1", 5, &["1"]).await;
                state.run("SET", &[&keys.worker_event_id("w.0"), tag]).await;
            }
            "held" if tag.starts_with('5') => state.hold("work:1", "inf", &["1"], tag).await,
            "held" => state.hold("work:1", "inf", &[], tag).await,
            _ => state.delivered("work:1", 7).await,
        }
        state
            .run("LPUSH", &[&keys.event_errors("work:1"), "17 1 no"])
            .await;
        let report = control(&state.conn, &keys).check().await.expect("checked");
        let found: Vec<_> = report
            .violations
            .iter()
            .map(|violation| violation.what.as_str())
            .collect();
        assert!(
            found.len() == 1 && found[0].contains("tells how an event has failed"),
            "{at} {tag}: {found:?}"
        );
        let seen = control(&state.conn, &keys)
            .inspect("work:1")
            .await
            .expect("an inspection");
        assert_eq!(seen.errors, [], "{at} {tag}");
    }
}

/// `inspect` shows the errors, newest first, in lines that fit the terminal. With `--json` it shows
/// them unchanged.
#[tokio::test]
async fn the_command_shows_them() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    state
        .hold("work:1", "99999999999999", &["1"], "5 1 2 0 retry: no 2")
        .await;
    let now = control(&state.conn, &state.keys)
        .now_ms()
        .await
        .expect("a time");
    let (first, second) = (
        format!("{} 1 {}", now - 3_600_000, "x".repeat(300)),
        format!("{} 2 no\n2", now - 60_000),
    );
    state
        .run("LPUSH", &[&keys.event_errors("work:1"), &first, &second])
        .await;
    let run = |arguments: &[&str]| {
        let mut program = Command::new(crate::support::program());
        program
            .args(["--redis", redis.url(), "--namespace", redis.namespace()])
            .args(arguments);
        let output = program
            .env_remove("SERIATIM_REDIS")
            .env_remove("SERIATIM_NAMESPACE")
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let printed = run(&["inspect", "work:1"]);
    assert!(
        printed.contains(
            "\nerrors     attempt 2, 1 min ago: no\\n2\n           attempt 1, 1 h ago: xxx"
        ),
        "{printed}"
    );
    assert!(
        printed.contains("\nstate      waiting, retry at 5138-11-16T09:46:39.999Z (in "),
        "{printed}"
    );
    assert!(
        printed.lines().count() > 8 && printed.lines().all(|line| line.chars().count() <= 80),
        "{printed}"
    );
    let json: Value = serde_json::from_str(&run(&["inspect", "work:1", "--json"])).expect("JSON");
    assert_eq!(
        json["errors"][0],
        serde_json::json!({"attempt": 2, "at_ms": now - 60_000, "error": "no\n2"})
    );
    assert_eq!(
        (
            json["errors"][1]["error"].as_str().map(str::len),
            &json["state"]
        ),
        (Some(300), &"waiting".into())
    );
}
