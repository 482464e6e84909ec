//! The errors of the failed attempts of an object's first event: when they are written, kept and
//! deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use seriatim::control::By;
use seriatim::control::held::Skipped;
use seriatim::control::inspect::Inspection;
use seriatim::sink::Stop;
use seriatim::wire::{self, BatchResult, ClaimFirst, Report, Tag};

use crate::in_hand::IN_HAND;
use crate::scene::{Answer, Scene, bounds, hold, reject, result};
use crate::support::console::Console;
use crate::support::operator::Reads;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{policy, retrying, start};
use crate::support::{Redis, control};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "known",
};
/// The worker `w.0` owns `work:1`, with its events 5, 6 and 7 in flight. Event 5 has failed twice.
const FAILED_TWICE: &str = "
    own w.0 work:1 5 1 2 3; SET event.worker:w.0:event.id '5 2 2'
    RPUSH work:1:event.errors '17 2 no 2' '16 1 no 1'
";

fn tag(text: &str) -> Tag {
    text.parse().expect("a tag")
}

fn report(tag: &str, count: usize, then: BatchResult) -> Report {
    result("work:1", tag, count, then)
}

fn part(next: &str) -> BatchResult {
    BatchResult::Part { next: tag(next) }
}

fn complete(next: &str, attempts: u32) -> BatchResult {
    BatchResult::Complete {
        next: Some(tag(next)),
        id: 5,
        error: "bad".to_owned(),
        attempts,
    }
}

/// Reports a result for slot 0, which may claim so many objects.
async fn advance(scene: &Scene, report: &Report, claims: usize) -> Answer {
    let bounds = bounds(|b| b.claims = claims);
    let fill = |call: &mut wire::Advance| call.report(0, report);
    scene.advance_from(ClaimFirst::Held, bounds, fill).await
}

/// Returns the stored errors of `work:1`, newest first, without their times.
async fn kept(console: &Console) -> Vec<String> {
    let all = console.list(&console.keys.event_errors("work:1")).await;
    let all = all.iter().rev().map(|entry| entry.split_once(' '));
    all.map(|entry| entry.expect("a time").1.to_owned())
        .collect()
}

async fn inspect(scene: &Scene) -> Inspection {
    let control = control(&scene.conn().await, &scene.keys);
    control.inspection_of("work:1").await
}

/// Redis stores the time, the number and the error of each failed attempt, for the last 20
/// attempts. A repeated call stores no error twice.
#[tokio::test]
async fn the_errors_of_the_last_20_attempts_are_kept() {
    let scene = Scene::given(IN_HAND).await;
    let mut of_batch = "5".to_owned();
    for attempt in 1..=25 {
        let rest = tag(&of_batch).failed().to_string();
        let why = format!("retry: no {attempt}");
        let failed = report(&of_batch, 0, hold(&rest, Some(Duration::ZERO), &why));
        let answer = advance(&scene, &failed, 1).await;
        let [batch] = &answer.batches[..] else {
            panic!("{answer:?}")
        };
        assert_eq!((batch.tag.attempts, batch.events.len()), (attempt, 3));
        // The repeated result names another batch than the one in flight, so it is ignored.
        advance(&scene, &failed, 0).await;
        of_batch = batch.tag.to_string();
        assert_eq!(kept(&scene).await.len(), attempt.min(20) as usize);
    }
    let expected = (6..=25)
        .rev()
        .map(|attempt| format!("{attempt} no {attempt}"));
    assert_eq!(kept(&scene).await, expected.collect::<Vec<_>>());
    let errors = inspect(&scene).await.errors;
    assert_eq!((errors.len(), errors[0].attempt), (20, 25));
    assert_eq!(errors[0].error.as_str(), "no 25");
    let are_now = errors.iter().all(|failed| scene.is_now(failed.at_ms));
    let are_sorted = errors.is_sorted_by(|later, earlier| later.at_ms >= earlier.at_ms);
    assert!(are_now && are_sorted, "{errors:?}");
    scene.check().await;
    advance(&scene, &report(&of_batch, 3, BatchResult::Done), 0).await;
    assert_eq!(kept(&scene).await, [""; 0]);
}

/// The attempts are used up, and the object waits for an operator. The last error is stored like
/// all others. Each release allows one more attempt.
#[tokio::test]
async fn attempts_used_up_are_kept_too() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("1", 0..3) => Act::Stop(Stop::transient(format!(
            "attempts: no: {}",
            offer.before + 1
        ))),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let worker = start(
        &redis,
        "w",
        &sink,
        retrying("fixed:1ms,attempts=2,then=hold"),
    );
    console
        .until_held("work:1", "attempts: failed 2 times")
        .await;
    assert_eq!(
        kept(&console).await,
        ["2 attempts: no: 2", "1 attempts: no: 1"]
    );
    console.check().await;
    let control = console.control();
    control.release(ADA, "work:1").await.expect("released");
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
    const WRONG: &str = "SET events.dead wrong; SET event.log wrong";
    let failed = |count, then| report("5 2 2", count, then);
    let reject_first = || reject(Some("6 2"), 5, 2);
    let reject_second = reject(Some("7 2"), 6, 1);
    let third = |why| hold("5 2 3", None, why);
    let scene = Scene::new().await;
    // For each case: the result, whether the keys `events.dead` and `event.log` have a wrong type,
    // and the remaining errors.
    for (report, broken, left) in [
        (failed(3, BatchResult::Done), "", &[][..]),
        (failed(3, BatchResult::Yield), "", &[]),
        (failed(1, part("6 2")), "", &[]),
        (failed(0, reject_first()), "", &[]),
        (failed(0, complete("6 2", 3)), "", &[]),
        // Event 5 is delivered, and the next event has failed or is held for another reason.
        (
            failed(1, hold("6 2 1", None, "retry: other")),
            "",
            &["1 other"],
        ),
        (failed(1, hold("6 2", None, "stop")), "", &[]),
        // Event 5 has failed again, or is held for another reason.
        (
            failed(0, third("retry: retry: it")),
            "",
            &["3 retry: it", "2 no 2", "1 no 1"],
        ),
        (
            failed(0, third("down")),
            "",
            &["3 down", "2 no 2", "1 no 1"],
        ),
        (
            failed(0, hold("5 2 2", None, "stop")),
            "",
            &["2 no 2", "1 no 1"],
        ),
        (failed(0, part("5 2 2")), "", &["2 no 2", "1 no 1"]),
        // A late result of an earlier hand-out.
        (
            report("5 1 2", 3, BatchResult::Done),
            "",
            &["2 no 2", "1 no 1"],
        ),
        // An event that cannot become a dead letter stays in its place. A rejection counts no
        // attempt. If the attempts are used up, the last failure counts one.
        (failed(0, reject_first()), WRONG, &["2 no 2", "1 no 1"]),
        (
            failed(0, complete("6 2", 3)),
            WRONG,
            &["3 bad", "2 no 2", "1 no 1"],
        ),
        (failed(1, reject_second), WRONG, &["1 no"]),
    ] {
        scene.again(&format!("{FAILED_TWICE}{broken}")).await;
        advance(&scene, &report, 0).await;
        assert_eq!(kept(&scene).await, left, "{report:?}");
    }
}

/// An event without failed attempts has no errors, so the script runs no command for them. Leftover
/// errors stay, and `check` reports them.
#[tokio::test]
async fn what_has_not_failed_costs_nothing() {
    let scene = Scene::new().await;
    for (of_batch, next) in [("5", "6"), ("5 10 0 10", "6 10 0 1")] {
        for (count, then) in [
            (3, BatchResult::Done),
            (1, part(next)),
            (1, hold(next, None, "stop")),
        ] {
            let keys = format!(
                "{IN_HAND}; SET event.worker:w.0:event.id '{of_batch}'
                LPUSH work:1:event.errors '1 1 of another'"
            );
            scene.again(&keys).await;
            advance(&scene, &report(of_batch, count, then), 0).await;
            assert_eq!(kept(&scene).await, ["1 of another"], "{of_batch} {count}");
        }
    }
}

/// An event keeps its errors when another process gets it, after a death, a stop, or a release.
#[tokio::test]
async fn they_survive_deaths_stops_and_releases() {
    let (redis, console) = Redis::start().with_console().await;
    let failing_now = Arc::new(AtomicBool::new(true));
    let (gate, fails) = (Gate::closed(), Arc::clone(&failing_now));
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| match fails.load(Ordering::SeqCst) {
        true => Act::Stop(Stop::transient("down")),
        false => Act::Wait(held_up.clone()),
    });
    console.emit_all("work:1", ["1", "2"]).await;
    let hour = |config: &mut seriatim::worker::WorkerConfig| config.retry = policy("fixed:1h");
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
    let scene = Scene::new().await;
    for (error, expected) in [
        ("x".repeat(500), "x".repeat(500)),
        ("x".repeat(501), "x".repeat(500)),
        ("x".repeat(499) + "é", "x".repeat(499)),
        ("x".repeat(498) + "é!", "x".repeat(498) + "é"),
        ("é".repeat(500), "é".repeat(250)),
        ("x".repeat(497) + "😀", "x".repeat(497)),
        ("a\nb \u{0}c".to_owned(), "a\nb \u{0}c".to_owned()),
    ] {
        scene.again(IN_HAND).await;
        let then = hold("5 0 1", None, &format!("retry: {error}"));
        advance(&scene, &report("5", 0, then), 0).await;
        assert_eq!(kept(&scene).await, [format!("1 {expected}")]);
    }
}

/// If the list of errors has a wrong type, no event is delayed and the key is not overwritten. The
/// key is deleted when the event is finalized.
#[tokio::test]
async fn a_wrong_type_holds_up_nothing() {
    let scene = Scene::given(FAILED_TWICE).await;
    scene.add("SET work:1:event.errors wrong").await;
    let then = hold("5 2 3", Some(Duration::ZERO), "retry: no 3");
    let answer = advance(&scene, &report("5 2 2", 0, then), 1).await;
    assert_eq!(answer.batches(), ["0 work:1 5 3 3 after 0: 1 2 3"]);
    assert_eq!(scene.at("work:1:event.errors").await, "wrong");
    let seen = inspect(&scene).await;
    let is_named = seen.errors.is_empty() && seen.wrong_types.len() == 1;
    assert!(is_named, "{seen:?}");
    advance(&scene, &report("5 3 3", 1, part("6 3")), 0).await;
    assert_eq!(scene.at("work:1:event.errors").await, "nil");
    scene.check().await;
}

/// The errors are deleted even with the longest possible batch. Its last id has three more digits
/// than its first id.
#[tokio::test]
async fn they_go_with_the_longest_batch() {
    let events = " 1".repeat(1000);
    let scene = Scene::given(&format!(
        "
        own w.0 work:1 9{events}; SET event.worker:w.0:event.id '9 0 1'
        LPUSH work:1:event.errors '17 1 no'
        "
    ))
    .await;
    scene.check().await;
    let answer = advance(&scene, &report("9 0 1", 1000, BatchResult::Done), 0).await;
    assert_eq!(answer.objects(), [""; 0]);
    scene.check().await;
    assert_eq!(scene.at("work:1:last.event.id").await, "1008");
    assert_eq!(scene.at("work:1:event.errors").await, "nil");
}

/// A skip deletes the errors of its event. Forgetting an idle object deletes leftover errors.
#[tokio::test]
async fn a_skip_and_a_forgetting_take_them_along() {
    let held = "hold work:1 inf '5 0 1 0 retry: no' 1 2; LPUSH work:1:event.errors '17 1 no'";
    let scene = Scene::given(held).await;
    scene.check().await;
    let (mut conn, keys) = (scene.conn().await, &scene.keys);
    let skipped = control(&conn, keys).skip(ADA, "work:1", None).await;
    let skipped = skipped.expect("an answer");
    let is_skipped = matches!(skipped, Skipped::Skipped { id: 5, left: 1, .. });
    assert!(is_skipped, "{skipped:?}");
    assert_eq!(scene.at("work:1:event.errors").await, "nil");
    let idle = "delivered work:2 4; LPUSH work:2:event.errors '17 1 no'";
    scene.add(idle).await;
    let forgot = wire::forget(&mut conn, keys, &["work:2"]).await;
    forgot.expect("an answer");
    assert_eq!(scene.at("work:2:event.errors").await, "nil");
}

/// If an object has leftover errors of another event, `check` reports them. `inspect` does not show
/// them for the first event.
#[tokio::test]
async fn what_is_left_behind_is_found() {
    let scene = Scene::new().await;
    for keys in [
        "delivered work:1 7",
        "own w.0 work:1 5 1",
        "own w.0 work:1 5 1; SET event.worker:w.0:event.id '5 1 0 1'",
        "hold work:1 inf '5 3 0 1 stop' 1",
        "hold work:1 inf '0 0 0 0 yield'",
    ] {
        let errors = "LPUSH work:1:event.errors '17 1 no'";
        scene.again(&format!("{keys}; {errors}")).await;
        let found = scene.report_of_check().await.violations;
        let found: Vec<_> = found.iter().map(|found| found.what.as_str()).collect();
        let text = "tells how an event has failed";
        assert!(
            found.len() == 1 && found[0].contains(text),
            "{keys}: {found:?}"
        );
        assert_eq!(inspect(&scene).await.errors, [], "{keys}");
    }
}

/// `inspect` shows the errors, newest first, in lines that fit the terminal. With `--json` it shows
/// them unchanged.
#[tokio::test]
async fn the_command_shows_them() {
    let long = "x".repeat(300);
    let scene = Scene::bare(Redis::start()).await;
    let keys = format!(
        "
        hold work:1 99999999999999 '5 1 2 0 retry: no 2' 1
        LPUSH work:1:event.errors 'NOW-60m 1 {long}' 'NOW-1m 2 no\n2'
        "
    );
    scene.again(&keys).await;
    let (redis, key) = (&scene.redis, scene.keys.event_errors("work:1"));
    let newest: String = scene.run(&["LINDEX", &key, "0"]).await;
    let at_ms: u64 = newest
        .split(' ')
        .next()
        .and_then(|ms| ms.parse().ok())
        .expect("a time");
    let printed = redis.prints("inspect work:1");
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
    let json: Value = redis.json("inspect work:1 --json");
    assert_eq!(
        json["errors"][0],
        serde_json::json!({"attempt": 2, "at_ms": at_ms, "error": "no\n2"})
    );
    assert_eq!(
        (
            json["errors"][1]["error"].as_str().map(str::len),
            &json["state"]
        ),
        (Some(300), &"waiting".into())
    );
}
