//! `advance`: events completed with errors are in the log, which is bounded.

use std::time::Duration;

use seriatim::wire::{self, Advance, BatchResult, ClaimFirst, Connect, EventLog, Report};

use crate::scene::{ATTACH, BOUNDS, Scene, bounds, done, result};
use crate::stopped::{NOW, NOW_US};

/// Returns the result of a batch whose first event is completed with errors after two attempts.
fn complete(object: &str, tag: &str, id: u64, next: Option<&str>) -> Report {
    let then = BatchResult::Complete {
        next: next.map(|next| next.parse().expect("a tag")),
        id,
        error: "no".to_owned(),
        attempts: 2,
    };
    result(object, tag, 0, then)
}

/// An event is completed with errors. It is in the log and not in the dead letters, and the next
/// event has the last delivered id as `prev`. If the log cannot be written, the event is held with
/// its numbers.
#[tokio::test]
async fn what_completes_with_errors_is_in_the_log() {
    let given = "
        delivered work:1 4; own w.0 work:1 5 5 6; own w.1 work:2 7 7
        SET event.worker:w.1:event.id '7 3 1 2'
    ";
    let scene = Scene::given(given).await;
    let no_claim = bounds(|b| b.claims = 0);
    let answer = scene
        .report(0, &complete("work:1", "5", 5, Some("6")), no_claim)
        .await;
    assert_eq!(answer.batches(), ["0 work:1 6 after 4: 6"]);
    let log = scene.keys.event_log();
    let kept: Vec<(String, Vec<String>)> = scene.run(&["XRANGE", &log, "-", "+"]).await;
    let fields =
        "status completed_with_errors id 5 prev 4 object work:1 event 5 error no attempts 2";
    assert_eq!((kept.len(), kept[0].1.join(" ").as_str()), (1, fields));
    assert_eq!(scene.at("events.dead").await, "nil");

    scene.add("DEL event.log; SET event.log wrong").await;
    scene
        .report(1, &complete("work:2", "7 3 1 2", 7, None), no_claim)
        .await;
    let held = scene.at("work:2:events.held.id").await;
    assert!(
        held.starts_with("7 3 2 2 quarantine: event.log: WRONGTYPE "),
        "{held}"
    );
}

/// Adds rows to the log, then completes an event with errors in a worker whose log is off. Returns
/// the number of rows.
async fn rows_after_completion(scene: &Scene, rows: usize) -> usize {
    scene.add(&"XADD event.log * a b; ".repeat(rows)).await;
    scene.add("own w.0 work:1 1 1").await;
    scene
        .report(0, &complete("work:1", "1", 1, None), BOUNDS)
        .await;
    scene.run(&["XLEN", &scene.keys.event_log()]).await
}

/// After any number of events completed with errors, the log keeps about a thousand rows.
#[tokio::test]
async fn the_log_is_bounded() {
    let scene = Scene::new().await;
    let kept = rows_after_completion(&scene, 1500).await;
    assert!((1000..1200).contains(&kept), "{kept}");
    // If the stored number of rows to keep cannot be read, it counts as absent.
    scene.add("HSET seriatim.meta event.log.keep many").await;
    let kept = rows_after_completion(&scene, 500).await;
    assert!((1000..1200).contains(&kept), "{kept}");
}

/// Story: during a rolling change to the event log, a worker without the log completed an event
/// with errors. It trimmed the rows of the other workers to 1,000. Now it keeps as many rows as
/// they do, even if it connected last.
#[tokio::test]
async fn a_worker_without_the_log_keeps_the_rows_of_those_with_it() {
    let scene = Scene::new().await;
    let mut log = EventLog::default();
    log.keep = 2000;
    for event_log in [Some(log), None] {
        let seen = Connect {
            event_log,
            ..Connect::default()
        };
        let connected = wire::connect(&mut scene.conn().await, &scene.keys, "", seen).await;
        connected.expect("connected");
    }
    assert_eq!(rows_after_completion(&scene, 1500).await, 1501);
    // The worker without the log trims rows above that number.
    let kept = rows_after_completion(&scene, 1000).await;
    assert!((2000..2200).contains(&kept), "{kept}");
}

/// Workers may keep rows for any time from 1 ms on. Without such a time, the age of rows does not
/// matter.
#[tokio::test]
async fn rows_above_the_age_limit_are_dropped() {
    for (keep_for, left) in [(Some(Duration::from_millis(1)), 1..=101), (None, 501..=501)] {
        let scene = Scene::given("own w.0 work:1 1 1").await;
        let row = |n| format!("XADD event.log 1-{n} a b; ");
        scene.add(&(1..=500).map(row).collect::<String>()).await;
        let mut log = EventLog::default();
        log.keep_for = keep_for;
        let fill = |call: &mut Advance| {
            call.log(log);
            call.report(0, &done("work:1", 1));
        };
        scene.advance_from(ClaimFirst::Held, BOUNDS, fill).await;
        // Redis drops whole nodes of at most 100 rows.
        let rows: u64 = scene.run(&["XLEN", &scene.keys.event_log()]).await;
        assert!(left.contains(&rows), "{rows} rows, {keep_for:?}");
    }
}

/// Of a log with one row in each node, Redis trims exactly what a call asks for: as many rows as
/// the call has written and 1,000 more, or the rows that are older than the age limit. A call that
/// writes no row trims none.
#[tokio::test]
async fn a_call_trims_as_many_rows_as_it_has_written_and_1000_more() {
    let old: Vec<String> = (1..=3000).map(|n| format!("1-{n}")).collect();
    let aged = [6, 5, 4].map(|ms| format!("{}-0", NOW - ms));
    let five = Some(Duration::from_millis(5));
    for (events, rows, keep, keep_for, left) in [
        (1, &old[..], 10, None, 2000),
        (3, &old, 10, None, 2000),
        (0, &old, 10, five, 3000),
        (1, &aged, 1000, five, 3),
        (1, &aged, 1000, None, 4),
    ] {
        let scene = Scene::stopped_at(NOW_US).await;
        scene.attach(&ATTACH).await;
        let config = ["CONFIG", "SET", "stream-node-max-entries", "1"];
        scene.run::<()>(&config).await;
        let row = |id: &String| format!("XADD event.log {id} a b; ");
        scene.add(&rows.iter().map(row).collect::<String>()).await;
        let mut log = EventLog::default();
        (log.keep, log.keep_for) = (keep, keep_for);
        if events > 0 {
            let batch = &["1", "1 2", "1 2 3"][events - 1];
            scene.add(&format!("own w.0 work:1 1 {batch}")).await;
        }
        let fill = |call: &mut Advance| {
            call.log(log);
            if events > 0 {
                call.report(0, &result("work:1", "1", events, BatchResult::Done));
            }
        };
        scene.advance_from(ClaimFirst::Held, BOUNDS, fill).await;
        let rows: u64 = scene.run(&["XLEN", &scene.keys.event_log()]).await;
        assert_eq!(rows, left, "{events} {keep} {keep_for:?}");
    }
}

/// The call has written a lost tag again, and then ends early, because the log can take no row. The
/// batch stays in its slot with the tag, so that the next process knows its ids.
#[tokio::test]
async fn a_lost_tag_is_there_after_a_call_that_ends_early() {
    let given = "own w.0 work:1 7 1; DEL event.worker:w.0:event.id";
    let scene = Scene::given(given).await;
    scene
        .add(&format!("XADD event.log {0}-{0} a b", u64::MAX))
        .await;
    let fill = |call: &mut Advance| {
        call.log(EventLog::default());
        call.report(0, &done("work:1", 7));
    };
    let ended = scene.fails(BOUNDS, fill).await.to_string();
    assert!(ended.contains("last possible ID"), "{ended}");
    scene.changed("event.worker:w.0: event.id = 7").await;
}
