//! `advance`: events completed with errors are in the log, which is bounded.

use std::time::Duration;

use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Connect, EventLog, Report, Tag,
};

use crate::state::State;
use crate::stopped::{NOW, scene};
use crate::support::Redis;
use crate::{BOUNDS, attach, attached, done};

/// An event is completed with errors. It is in the log and not in the dead letters, and the next
/// event has the last delivered id as `prev`. If the log cannot be written, the event is held with
/// its numbers.
#[tokio::test]
async fn what_completes_with_errors_is_in_the_log() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.delivered("work:1", 4).await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    state.own("w.1", "work:2", 7, &["7"]).await;
    state
        .run("SET", &[&keys.worker_event_id("w.1"), "7 3 1 2"])
        .await;
    let complete = |object: &str, tag: Tag, next| {
        let then = BatchResult::Complete {
            next,
            id: tag.first,
            error: "no".to_owned(),
            attempts: 2,
        };
        Report {
            object: object.to_owned().into(),
            tag,
            count: 0,
            last: None,
            then,
        }
    };
    let console = redis.console().await;
    let mut call = Advance::new(
        &keys,
        "w",
        "token-1",
        Bounds {
            claims: 0,
            ..BOUNDS
        },
        ClaimFirst::Held,
    );
    call.report(
        0,
        &complete(
            "work:1",
            Tag {
                first: 5,
                ..Tag::default()
            },
            Some(Tag {
                first: 6,
                ..Tag::default()
            }),
        ),
    );
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok { batches, .. } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (batches[0].tag.to_string().as_str(), batches[0].prev),
        ("6", 4)
    );
    let kept: Vec<(String, Vec<String>)> =
        console.run(&["XRANGE", &keys.event_log(), "-", "+"]).await;
    let fields =
        "status completed_with_errors id 5 prev 4 object work:1 event 5 error no attempts 2";
    assert_eq!(
        (kept[0].1.join(" ").as_str(), console.dead().await.len()),
        (fields, 0)
    );

    state.run("DEL", &[&keys.event_log()]).await;
    state.run("SET", &[&keys.event_log(), "wrong"]).await;
    let mut call = Advance::new(
        &keys,
        "w",
        "token-1",
        Bounds {
            claims: 0,
            ..BOUNDS
        },
        ClaimFirst::Held,
    );
    call.report(
        1,
        &complete(
            "work:2",
            Tag {
                first: 7,
                handouts: 3,
                attempts: 1,
                crashes: 2,
                is_keyed: false,
            },
            None,
        ),
    );
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let held = console.held_id("work:2").await.expect("held");
    assert!(
        held.starts_with("7 3 2 2 quarantine: event.log: WRONGTYPE "),
        "{held}"
    );
}

/// Adds rows to the log, then completes an event with errors in a worker whose log is off. Returns
/// the number of rows.
async fn rows_after_completion(state: &mut State, rows: usize) -> usize {
    let keys = state.keys.clone();
    let mut fill = redis::pipe();
    for _ in 0..rows {
        fill.cmd("XADD")
            .arg(keys.event_log())
            .arg(&["*", "a", "b"])
            .ignore();
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("filled");
    state.own("w.0", "work:1", 1, &["1"]).await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    let then = BatchResult::Complete {
        next: None,
        id: 1,
        error: "no".to_owned(),
        attempts: 1,
    };
    call.report(
        0,
        &Report {
            object: "work:1".into(),
            tag: Tag {
                first: 1,
                ..Tag::default()
            },
            count: 0,
            last: None,
            then,
        },
    );
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    redis::cmd("XLEN")
        .arg(keys.event_log())
        .query_async(&mut state.conn)
        .await
        .expect("XLEN")
}

/// After any number of events completed with errors, the log keeps about a thousand rows.
#[tokio::test]
async fn the_log_is_bounded() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let kept = rows_after_completion(&mut state, 1500).await;
    assert!((1000..1200).contains(&kept), "{kept}");
    // If the stored number of rows to keep cannot be read, it counts as absent.
    let keys = state.keys.clone();
    state
        .run("HSET", &[&keys.meta(), "event.log.keep", "many"])
        .await;
    let kept = rows_after_completion(&mut state, 500).await;
    assert!((1000..1200).contains(&kept), "{kept}");
}

/// Story: during a rolling change to the event log, a worker without the log completed an event
/// with errors. It trimmed the rows of the other workers to 1,000. Now it keeps as many rows as
/// they do, even if it connected last.
#[tokio::test]
async fn a_worker_without_the_log_keeps_the_rows_of_those_with_it() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    let mut log = EventLog::default();
    log.keep = 2000;
    for event_log in [Some(log), None] {
        wire::connect(
            &mut state.conn,
            &keys,
            "",
            Connect {
                event_log,
                ..Connect::default()
            },
        )
        .await
        .expect("connected");
    }
    assert_eq!(rows_after_completion(&mut state, 1500).await, 1501);
    // The worker without the log trims rows above that number.
    let kept = rows_after_completion(&mut state, 1000).await;
    assert!((2000..2200).contains(&kept), "{kept}");
}

/// Workers may keep rows for any time from 1 ms on. Without such a time, the age of rows does not
/// matter.
#[tokio::test]
async fn rows_above_the_age_limit_are_dropped() {
    for (keep_for, left) in [(Some(Duration::from_millis(1)), 1..=101), (None, 501..=501)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let keys = state.keys.clone();
        let mut fill = redis::pipe();
        for n in 1..=500 {
            fill.cmd("XADD")
                .arg(keys.event_log())
                .arg(format!("1-{n}"))
                .arg(&["a", "b"])
                .ignore();
        }
        fill.query_async::<()>(&mut state.conn)
            .await
            .expect("filled");
        state.own("w.0", "work:1", 1, &["1"]).await;
        let mut log = EventLog::default();
        log.keep_for = keep_for;
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
        call.log(log);
        call.report(0, &done("work:1", 1));
        wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        // Redis drops whole nodes of at most 100 rows.
        let rows: u64 = redis
            .console()
            .await
            .run(&["XLEN", &keys.event_log()])
            .await;
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
        let (_clock, redis, mut state) = scene().await;
        let keys = state.keys.clone();
        attach(&mut state.conn, &keys, "token-1", "").await;
        state
            .run("CONFIG", &["SET", "stream-node-max-entries", "1"])
            .await;
        let mut fill = redis::pipe();
        for id in rows {
            fill.cmd("XADD")
                .arg(keys.event_log())
                .arg(id)
                .arg(&["a", "b"])
                .ignore();
        }
        fill.query_async::<()>(&mut state.conn)
            .await
            .expect("filled");
        let mut log = EventLog::default();
        (log.keep, log.keep_for) = (keep, keep_for);
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
        call.log(log);
        if events > 0 {
            state
                .own("w.0", "work:1", 1, &["1", "2", "3"][..events])
                .await;
            let mut report = done("work:1", 1);
            (report.count, report.last) = (events, Some(events as u64));
            call.report(0, &report);
        }
        wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let rows: u64 = redis
            .console()
            .await
            .run(&["XLEN", &keys.event_log()])
            .await;
        assert_eq!(rows, left, "{events} {keep} {keep_for:?}");
    }
}

/// The call has written a lost tag again, and then ends early, because the log can take no row. The
/// batch stays in its slot with the tag, so that the next process knows its ids.
#[tokio::test]
async fn a_lost_tag_is_there_after_a_call_that_ends_early() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state.run("DEL", &[&keys.worker_event_id("w.0")]).await;
    let last = format!("{0}-{0}", u64::MAX);
    state
        .run("XADD", &[&keys.event_log(), &last, "a", "b"])
        .await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.log(EventLog::default());
    call.report(0, &done("work:1", 7));
    let ended = wire::advance(&mut state.conn, &call)
        .await
        .expect_err("no row");
    assert!(ended.to_string().contains("last possible ID"), "{ended}");
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1"]);
    assert_eq!(
        console.text(&keys.worker_event_id("w.0")).await.as_deref(),
        Some("7")
    );
}
