//! The event log: each finalized event has one row, written in the step that finalizes the event.
//! Also tests how the log is read.

use std::process::{Command, Output};
use std::time::Duration;

use seriatim::control::log::PER_CALL_MAX;
use seriatim::control::{By, ControlError, Cursor, LogEntry, LogStatus};
use seriatim::sink::Stop;
use seriatim::wire::values::HeldId;
use seriatim::wire::{
    self, Advance, Advanced, Attach, Attached, BatchResult, Bounds, ClaimFirst, Connect, EventLog,
    Report, ScriptError, Suspects, Tag,
};
use seriatim::worker::WorkerConfig;

use crate::state::State;
use crate::support::recorder::{Act, Recorder};
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
    why: "enough",
};

/// Attaches a process `w` with two slots.
async fn attached(redis: &Redis) -> State {
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let lease = Duration::from_secs(600);
    let args = Attach {
        name: "w",
        token: "token-1",
        holder: "host 1 1",
        lease,
        slots: 2,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    let attached = wire::attach(&mut conn, &keys, &args)
        .await
        .expect("an answer");
    assert!(
        matches!(attached, Attached::Attached { .. }),
        "{attached:?}"
    );
    State::new(conn, keys)
}

fn tag(first: u64) -> Tag {
    Tag {
        first,
        ..Tag::default()
    }
}

fn report(object: &'static str, first: u64, count: usize, then: BatchResult) -> Report {
    let last = (count > 0).then(|| first + count as u64 - 1);
    Report {
        object: object.into(),
        tag: tag(first),
        count,
        last,
        then,
    }
}

/// Reports a result for slot 0. Returns the quarantined objects with their reasons.
async fn tell(state: &mut State, keep: Option<EventLog>, report: &Report) -> Vec<(String, String)> {
    let mut call = Advance::new(&state.keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    if let Some(keep) = keep {
        call.log(keep);
    }
    call.report_taken(0, report, Duration::from_secs(60));
    match wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
    {
        Advanced::Ok { quarantined, .. } => quarantined,
        other => panic!("{other:?}"),
    }
}

fn on() -> Option<EventLog> {
    Some(EventLog::default())
}

async fn rows(state: &mut State) -> Vec<LogEntry> {
    let keys = state.keys.clone();
    control(&state.conn, &keys)
        .log(None, PER_CALL_MAX)
        .await
        .expect("the log")
        .entries
}

/// Formats a row as one line: status, id, prev, object, event, error, attempts.
fn short(row: &LogEntry) -> String {
    let LogEntry {
        status,
        id,
        prev,
        object,
        event,
        error,
        attempts,
        ..
    } = row;
    let number = |number: &Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let event = String::from_utf8_lossy(event.bytes());
    let error = error.as_deref().unwrap_or("-");
    format!(
        "{status} {} {} {object} {event} {error} {}",
        number(id),
        number(prev),
        number(attempts)
    )
}

fn shorts(rows: &[LogEntry]) -> Vec<String> {
    rows.iter().map(short).collect()
}

fn logging(config: &mut WorkerConfig) {
    config.event_log = on();
    config.retry = "fixed:1ms,attempts=2,then=dead-letter"
        .parse()
        .expect("a policy");
    config.retry_types.insert(
        "soft".to_owned(),
        "fixed:1ms,attempts=2,then=complete-with-errors"
            .parse()
            .expect("a policy"),
    );
}

/// Returns a sink that rejects an event or fails, if the text of the event says so. It delivers all
/// other events.
fn sink() -> Recorder {
    Recorder::with(|offer| match offer.text() {
        text if text.contains("reject") => Act::Stop(Stop::rejected("never")),
        text if text.contains("fail") => {
            Act::Stop(Stop::transient(format!("no {}", offer.before + 1)))
        }
        _ => Act::Send,
    })
}

/// Each finalized event has one row, whatever its result. The rows are in the order in which the
/// events were finalized.
#[tokio::test]
async fn every_event_that_is_finalized_has_one_row() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = sink();
    console
        .emit_all(
            "work:1",
            [
                "1",
                "\"reject\"",
                "3",
                "{\"type\":\"soft\",\"a\":\"fail\"}",
                "\"fail\"",
                "6",
            ],
        )
        .await;
    let worker = start(&redis, "w", &sink, logging);
    sink.until_sent(3).await;
    worker.finish().await;
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let rows = rows(&mut state).await;
    let expected = [
        "completed 1 0 work:1 1 - 0",
        "dead 2 1 work:1 \"reject\" never 0",
        "completed 3 1 work:1 3 - 0",
        "completed_with_errors 4 3 work:1 {\"type\":\"soft\",\"a\":\"fail\"} no 2 2",
        "dead 5 3 work:1 \"fail\" no 2 2",
        "completed 6 3 work:1 6 - 0",
    ];
    assert_eq!(shorts(&rows), expected);
    assert!(
        rows.iter().all(|row| row
            .taken_ms
            .is_some_and(|taken_ms| taken_ms <= row.finalized_ms)),
        "{rows:?}"
    );
    console.until_at_rest().await;
    console.check().await;
}

/// A call is repeated after its reply was lost, and repeated again much later. The log has each
/// event once.
#[tokio::test]
async fn finalizing_twice_leaves_one_row() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.delivered("work:1", 4).await;
    state.own("w.0", "work:1", 5, &["5", "6", "7"]).await;
    let part = report("work:1", 5, 1, BatchResult::Part { next: tag(6) });
    let reject = report(
        "work:1",
        6,
        0,
        BatchResult::Reject {
            next: Some(tag(7)),
            id: 6,
            error: "no".to_owned(),
            attempts: 1,
        },
    );
    let done = report("work:1", 7, 1, BatchResult::Done);
    for told in [
        &part, &part, &reject, &reject, &part, &done, &done, &reject, &part,
    ] {
        tell(&mut state, on(), told).await;
    }
    let rows = rows(&mut state).await;
    assert_eq!(
        shorts(&rows),
        [
            "completed 5 4 work:1 5 - 0",
            "dead 6 5 work:1 6 no 1",
            "completed 7 5 work:1 7 - 0"
        ]
    );
    assert_eq!(redis.console().await.dead().await.len(), 1);
}

/// A row has the time at which the worker took the event, by Redis' clock. It also has the number
/// of failed attempts; only the first event of a batch can have any.
#[tokio::test]
async fn a_row_says_when_the_event_was_taken_and_how_often_it_failed() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    state.add("SET event.worker:w.0:event.id '5 2 3'").await;
    let told = Report {
        tag: Tag {
            handouts: 2,
            attempts: 3,
            ..tag(5)
        },
        ..report("work:1", 5, 2, BatchResult::Yield)
    };
    tell(&mut state, on(), &told).await;
    let rows = rows(&mut state).await;
    assert_eq!(
        shorts(&rows),
        ["completed 5 0 work:1 5 - 3", "completed 6 5 work:1 6 - 0"]
    );
    for row in rows {
        let ago = row.finalized_ms - row.taken_ms.expect("a time");
        assert!((59_000..=60_500).contains(&ago), "{ago}");
    }
}

/// An event that was not finalized has no row: it waits, is held, or was given back.
#[tokio::test]
async fn what_is_not_finalized_has_no_row() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    let rest = Tag {
        attempts: 1,
        ..tag(5)
    };
    tell(
        &mut state,
        on(),
        &report(
            "work:1",
            5,
            0,
            BatchResult::Hold {
                rest,
                delay: None,
                reason: "retry: no".into(),
            },
        ),
    )
    .await;
    assert_eq!(rows(&mut state).await, []);
    state.own("w.1", "work:2", 7, &["7", "8"]).await;
    let mut call = Advance::new(&state.keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.log(EventLog::default());
    let then = BatchResult::Hold {
        rest: Tag {
            attempts: 1,
            ..tag(8)
        },
        delay: None,
        reason: "retry: no".into(),
    };
    call.report(1, &report("work:2", 7, 1, then));
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(
        shorts(&rows(&mut state).await),
        ["completed 7 0 work:2 7 - 0"]
    );
}

/// If the log's key has a wrong type, no event leaves its batch. The batch is held unchanged. After
/// an operator has repaired the key and released the object, the batch comes again with the same
/// ids.
#[tokio::test]
async fn what_the_log_cannot_take_is_held() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let console = redis.console().await;
    let (event_log, why) = (state.keys.event_log(), "quarantine: event.log is a string");
    state.run("SET", &[&event_log, "wrong"]).await;
    let reject = |id| BatchResult::Reject {
        next: None,
        id,
        error: "no".to_owned(),
        attempts: 2,
    };
    let complete = |id| BatchResult::Complete {
        next: None,
        id,
        error: "no".to_owned(),
        attempts: 2,
    };
    let all = [
        (
            "a",
            Tag {
                crashes: 1,
                ..tag(1)
            },
            1,
            BatchResult::Done,
        ),
        (
            "b",
            Tag {
                handouts: 3,
                attempts: 1,
                ..tag(2)
            },
            1,
            BatchResult::Yield,
        ),
        ("c", tag(3), 0, reject(3)),
        ("d", tag(4), 0, complete(4)),
    ];
    for (object, tag, count, then) in all {
        state.own("w.0", object, tag.first, &["1"]).await;
        state
            .run(
                "SET",
                &[&state.keys.worker_event_id("w.0"), &tag.to_string()],
            )
            .await;
        let told = Report {
            tag,
            ..report(object, tag.first, count, then)
        };
        assert_eq!(
            tell(&mut state, on(), &told).await,
            [(object.to_owned(), why.to_owned())]
        );
        let held = console.held_id(object).await.expect("held");
        assert_eq!(
            held,
            HeldId {
                tag: Some(tag),
                reason: why.into()
            }
            .to_string()
        );
        assert_eq!(console.due(object).await, Some(f64::INFINITY));
        assert_eq!(console.list(&state.keys.events_held(object)).await, ["1"]);
    }
    // A hold for a retry writes no row, so it works.
    state.own("w.0", "e", 5, &["1"]).await;
    let (rest, delay) = (
        Tag {
            attempts: 1,
            ..tag(5)
        },
        Some(Duration::from_secs(600)),
    );
    tell(
        &mut state,
        on(),
        &report(
            "e",
            5,
            0,
            BatchResult::Hold {
                rest,
                delay,
                reason: "retry: no".into(),
            },
        ),
    )
    .await;
    assert_eq!(
        console.held_id("e").await.as_deref(),
        Some("5 0 1 0 retry: no")
    );
    assert_eq!(console.dead().await.len(), 0);
    assert!(rows_error(&mut state).await.is_some());
    state.run("DEL", &[&event_log]).await;
    console.check().await;
    for object in ["a", "b", "c", "d", "e"] {
        console.release(object).await;
    }
    let sink = Recorder::new();
    console.end_lease("w").await;
    let worker = start(&redis, "other", &sink, logging);
    sink.until_sent(5).await;
    worker.finish().await;
    let mut ids: Vec<_> = rows(&mut state)
        .await
        .iter()
        .filter_map(|row| row.id)
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    console.until_at_rest().await;
}

async fn rows_error(state: &mut State) -> Option<ControlError> {
    let keys = state.keys.clone();
    control(&state.conn, &keys).log(None, 1).await.err()
}

/// If an event cannot become a dead letter, it stays in its batch and has no row. The events
/// delivered before it have rows.
#[tokio::test]
async fn an_event_that_cannot_be_a_dead_letter_has_no_row() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.add("SET events.dead wrong").await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    let then = BatchResult::Reject {
        next: None,
        id: 6,
        error: "no".to_owned(),
        attempts: 0,
    };
    tell(&mut state, on(), &report("work:1", 5, 1, then)).await;
    assert_eq!(
        shorts(&rows(&mut state).await),
        ["completed 5 0 work:1 5 - 0"]
    );
    let held = redis.console().await.held_id("work:1").await.expect("held");
    assert!(
        held.starts_with("6 0 0 0 quarantine: events.dead: WRONGTYPE "),
        "{held}"
    );
}

/// With the log off, delivered events and dead letters have no row, and the script runs no command
/// for the log.
#[tokio::test]
async fn a_log_that_is_off_costs_nothing() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let console = redis.console().await;
    let mut commands = Vec::new();
    for keep in [None, on()] {
        let first = console.number(&state.keys.next_event_id()).await + 1;
        state.own("w.0", "work:1", first, &["1", "2"]).await;
        let _: () = console.run(&["CONFIG", "RESETSTAT"]).await;
        tell(
            &mut state,
            keep,
            &report("work:1", first, 2, BatchResult::Done),
        )
        .await;
        let stats: String = console.run(&["INFO", "commandstats"]).await;
        let name = |line: &str| Some(line.strip_prefix("cmdstat_")?.split(':').next()?.to_owned());
        let mut names: Vec<String> = stats.lines().filter_map(name).collect();
        names.sort();
        commands.push(names);
    }
    let added: Vec<_> = commands[1]
        .iter()
        .filter(|name| !commands[0].contains(name))
        .collect();
    assert_eq!(added, ["lrange", "time", "type", "xadd", "xtrim"]);
    assert_eq!(rows(&mut state).await.len(), 2);
}

async fn filled(state: &mut State, rows: usize, from_ms: u64) {
    let mut fill = redis::pipe();
    for row in 0..rows {
        fill.cmd("XADD")
            .arg(state.keys.event_log())
            .arg(format!("{from_ms}-{}", row + 1))
            .arg(&["status", "completed"])
            .ignore();
    }
    fill.query_async::<()>(&mut state.conn)
        .await
        .expect("filled");
}

/// The log is trimmed by number of rows, and also by age if configured. It may keep slightly more
/// rows.
#[tokio::test]
async fn the_log_is_trimmed_by_count_and_by_age() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let mut keep = EventLog::default();
    (keep.keep, keep.keep_for) = (500, None);
    let mut kept = Vec::new();
    for (id, keep_for, ms) in [(1, None, 1000), (2, Some(Duration::from_secs(60)), 2000)] {
        filled(&mut state, 1000, ms).await;
        keep.keep_for = keep_for;
        keep.keep = if keep_for.is_some() { 100_000 } else { 500 };
        state.own("w.0", "work:1", id, &["1"]).await;
        tell(
            &mut state,
            Some(keep),
            &report("work:1", id, 1, BatchResult::Done),
        )
        .await;
        let keys = state.keys.clone();
        let page = control(&state.conn, &keys)
            .log(None, 1)
            .await
            .expect("the log");
        kept.push((page.kept, page.written));
        state.add("DEL event.log").await;
    }
    assert!(
        (500..600).contains(&kept[0].0) && kept[0].1 == 1001,
        "{kept:?}"
    );
    assert!(
        (1..100).contains(&kept[1].0) && kept[1].1 == 1001,
        "{kept:?}"
    );
}

/// One call trims only a bounded number of rows.
#[tokio::test]
async fn a_call_trims_a_bounded_number_of_rows() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let mut keep = EventLog::default();
    for (id, keep_for) in [(1, None), (2, Some(Duration::from_secs(60)))] {
        (keep.keep, keep.keep_for) = (if keep_for.is_some() { 1_000_000 } else { 1 }, keep_for);
        filled(&mut state, 25_000, 1000).await;
        state.own("w.0", "work:1", id, &["1"]).await;
        tell(
            &mut state,
            Some(keep),
            &report("work:1", id, 1, BatchResult::Done),
        )
        .await;
        let keys = state.keys.clone();
        let kept = control(&state.conn, &keys)
            .log(None, 1)
            .await
            .expect("the log")
            .kept;
        assert!((23_900..=24_100).contains(&kept), "{kept}");
        state.add("DEL event.log").await;
    }
}

async fn connect(state: &mut State, event_log: bool) {
    let event_log = event_log.then(EventLog::default);
    let keys = state.keys.clone();
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

/// An operator's skip finalizes an event, too. The event has a row only if the worker that
/// connected last has its log on.
#[tokio::test]
async fn a_skipped_event_is_dead_in_the_log_where_it_is_on() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    for (event_log, expected) in [(false, 0), (true, 1), (true, 2), (false, 2)] {
        connect(&mut state, event_log).await;
        state.delivered("work:1", 3).await;
        state
            .hold("work:1", "inf", &["4"], "4 1 3 0 retry: no")
            .await;
        control(&state.conn, &keys)
            .skip(ADA, "work:1", Some(4))
            .await
            .expect("skipped");
        let rows = rows(&mut state).await;
        assert_eq!(rows.len(), expected);
        assert!(
            rows.iter()
                .all(|row| short(row) == "dead 4 3 work:1 4 skipped: retry: no 3"
                    && row.taken_ms.is_none()),
            "{rows:?}"
        );
    }
    for (key, value) in [(keys.event_log(), "log"), (keys.meta(), "meta")] {
        state.run("DEL", &[&key]).await;
        state.run("SET", &[&key, value]).await;
        state
            .hold("work:1", "inf", &["4"], "4 1 3 0 retry: no")
            .await;
        let skipped = control(&state.conn, &keys).skip(ADA, "work:1", None).await;
        assert!(
            matches!(&skipped, Err(ControlError::WrongType { key: wrong, .. }) if *wrong == key),
            "{skipped:?}"
        );
        assert_eq!(
            redis
                .console()
                .await
                .list(&keys.events_held("work:1"))
                .await
                .len(),
            if value == "log" { 1 } else { 2 }
        );
        state.run("DEL", &[&key]).await;
    }
}

/// A worker without the right to trim the log is refused when it starts.
#[tokio::test]
async fn the_right_to_trim_is_asked_for() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let _: () = console.run(&["ACL", "SETUSER", "default", "-xtrim"]).await;
    let connected = wire::connect(
        &mut redis.connect().await,
        redis.keys(),
        "",
        Connect::default(),
    )
    .await;
    assert!(
        matches!(&connected, Err(ScriptError::Denied(command)) if command == "XTRIM"),
        "{connected:?}"
    );
}

/// Without free memory, events are still finalized and logged, because delivered events must leave
/// Redis.
#[tokio::test]
async fn events_are_finalized_and_logged_when_memory_has_run_out() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("CONFIG", &["SET", "maxmemory", "1"]).await;
    tell(&mut state, on(), &report("work:1", 1, 1, BatchResult::Done)).await;
    state.run("CONFIG", &["SET", "maxmemory", "0"]).await;
    assert_eq!(
        shorts(&rows(&mut state).await),
        ["completed 1 0 work:1 1 - 0"]
    );
}

/// The log is read in pages, in both directions. A page can begin at a row or at a time, and is
/// bounded. An invalid row id is refused.
#[tokio::test]
async fn the_log_is_read_in_pages() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    let page = control(&state.conn, &keys)
        .log(None, 5)
        .await
        .expect("a page");
    assert_eq!(
        (page.entries.len(), page.written, page.end.as_str()),
        (0, 0, "0-0")
    );
    filled(&mut state, 150, 1000).await;
    filled(&mut state, 1, 2000).await;
    let page = control(&state.conn, &keys)
        .log(None, 1000)
        .await
        .expect("a page");
    assert_eq!(
        (page.entries.len(), page.written, page.kept),
        (PER_CALL_MAX, 151, 151)
    );
    let last = page.next.expect("more rows");
    let rest = control(&state.conn, &keys)
        .log(Some(&last), 1000)
        .await
        .expect("a page")
        .entries;
    let ids: Vec<_> = rest.iter().map(|row| row.log_id.as_str()).collect();
    assert_eq!((ids.len(), ids[0], ids[50]), (51, "1000-101", "2000-1"));
    let late = control(&state.conn, &keys)
        .log(Cursor::since(2000).as_ref(), 10)
        .await
        .expect("a page")
        .entries;
    assert_eq!(
        (late.len(), late[0].finalized_ms, &late[0].status),
        (1, 2000, &LogStatus::Completed)
    );
    let newest = control(&state.conn, &keys)
        .newest_log(Some(&"2000-1".into()), 2)
        .await
        .expect("a page")
        .entries;
    assert_eq!(
        newest
            .iter()
            .map(|row| row.log_id.as_str())
            .collect::<Vec<_>>(),
        ["1000-150", "1000-149"]
    );
    for wrong in ["1000", "-", "1-+2"] {
        let refused = control(&state.conn, &keys)
            .log(Some(&wrong.into()), 1)
            .await;
        assert!(
            matches!(refused, Err(ControlError::LogId(_))),
            "{refused:?}"
        );
    }
}

fn seriatim(redis: &Redis, arguments: &[&str]) -> Output {
    let mut program = Command::new(crate::support::program());
    program
        .args(["--redis", redis.url(), "--namespace", redis.namespace()])
        .args(arguments);
    program
        .env_remove("SERIATIM_REDIS")
        .env_remove("SERIATIM_NAMESPACE")
        .output()
        .expect("the program runs")
}

fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The command shows the rows of all objects or of one object, as text or as JSON lines. If a
/// member of the event is named as its time, the output shows this time.
#[tokio::test]
async fn the_command_shows_the_log() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state
        .own("w.0", "work:1", 1, &["{\"at\":\n \"noon\"}", "2"])
        .await;
    tell(&mut state, on(), &report("work:1", 1, 2, BatchResult::Done)).await;
    state.own("w.0", "work:2", 3, &["3"]).await;
    let then = BatchResult::Reject {
        next: None,
        id: 3,
        error: "no".to_owned(),
        attempts: 0,
    };
    tell(&mut state, on(), &report("work:2", 3, 0, then)).await;
    let shown = done(&seriatim(&redis, &["log", "--object", "work:2"]));
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].ends_with("Z  dead  work:2"), "{shown}");
    assert_eq!(
        lines[1..],
        [
            "  id     3, prev 0, 0 failed attempts, taken 1 min before",
            "  error  no",
            "  event  3"
        ]
    );
    let lines = |arguments: &[&str]| -> Vec<serde_json::Value> {
        let shown = done(&seriatim(&redis, &[&["log", "--json"], arguments].concat()));
        shown
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    };
    let rows = lines(&["--time-field", "at", "--limit", "2"]);
    assert_eq!(
        (&rows[0]["time"], &rows[0]["event"]["at"], &rows[1]["time"]),
        (&"noon".into(), &"noon".into(), &().into())
    );
    assert_eq!(
        (&rows[0]["id"], &rows[1]["prev"], rows.len()),
        (&1.into(), &1.into(), 2)
    );
    let ids = |arguments: &[&str]| -> Vec<u64> {
        lines(arguments)
            .iter()
            .filter_map(|row| row["id"].as_u64())
            .collect()
    };
    assert_eq!(
        (
            ids(&["--newest"]),
            ids(&["--since", "1h"]),
            ids(&["--limit", "0"])
        ),
        (vec![3, 2, 1], vec![1, 2, 3], vec![])
    );
    assert_eq!(ids(&["--since", "2100-01-01T00:00:00Z"]), [0; 0]);
    assert_eq!(
        seriatim(&redis, &["log", "--since", "yesterday"])
            .status
            .code(),
        Some(2)
    );
}

/// With `--follow`, the command shows the events that are finalized from then on, up to its limit.
#[tokio::test]
async fn the_command_follows_the_log() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    tell(&mut state, on(), &report("work:1", 1, 1, BatchResult::Done)).await;
    // Loads the script into Redis, so that the command's first call succeeds.
    assert_eq!(rows(&mut state).await.len(), 1);
    let mut follow = Command::new(crate::support::program());
    follow.args([
        "--redis",
        redis.url(),
        "--namespace",
        redis.namespace(),
        "log",
        "--follow",
        "--limit",
        "2",
        "--json",
    ]);
    let follow = follow
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program runs");
    let console = redis.console().await;
    crate::support::until(
        "it reads the log",
        crate::support::console::PATIENCE,
        async || {
            let clients: String = console.run(&["CLIENT", "LIST"]).await;
            (clients
                .lines()
                .filter(|line| line.contains(" cmd=evalsha "))
                .count()
                >= 2)
                .then_some(())
        },
    )
    .await;
    state.own("w.0", "work:1", 2, &["2", "3"]).await;
    tell(&mut state, on(), &report("work:1", 2, 2, BatchResult::Done)).await;
    let shown = done(&follow.wait_with_output().expect("it ends"));
    let ids: Vec<_> = shown
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["id"].clone())
        .collect();
    assert_eq!(ids, [2, 3]);
}
