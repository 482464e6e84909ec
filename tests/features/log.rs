//! The event log: each finalized event has one row, written in the step that finalizes the event.
//! Also tests how the log is read.

use std::process::Stdio;
use std::time::Duration;

use seriatim::control::log::PER_CALL_MAX;
use seriatim::control::{By, ControlError, Cursor, EventStatus, LogEntry};
use seriatim::sink::Stop;
use seriatim::wire::{
    self, Advance, Advanced, Attached, BatchResult, ClaimFirst, Connect, EventLog, Report,
    ScriptError, Tag,
};
use seriatim::worker::WorkerConfig;

use crate::scene::{ATTACH, bounds, hold, reject, result};
use crate::state::State;
use crate::support::console::PATIENCE;
use crate::support::operator::{Reads, assert_wrong_type};
use crate::support::output::{json_lines, printed};
use crate::support::recorder::{Act, Recorder};
use crate::support::running::{policy, start};
use crate::support::{Redis, assert_matches, until};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "enough",
};

/// Returns a Redis with a process `w` that has two slots.
async fn attached() -> (Redis, State) {
    attached_in(Redis::start()).await
}

async fn attached_in(redis: Redis) -> (Redis, State) {
    let (redis, mut state) = redis.with_state().await;
    let attached = wire::attach(&mut state.conn, redis.keys(), &ATTACH).await;
    assert_matches!(attached, Ok(Attached::Attached { .. }));
    (redis, state)
}

fn tag(first: u64) -> Tag {
    Tag {
        first,
        ..Tag::default()
    }
}

fn report(object: &str, first: u64, count: usize, then: BatchResult) -> Report {
    result(object, &first.to_string(), count, then)
}

/// Reports a result for slot 0. Returns the quarantined objects with their reasons.
async fn tell(state: &mut State, keep: Option<EventLog>, report: &Report) -> Vec<(String, String)> {
    advance(state, keep, |call| {
        call.report_taken(0, report, Duration::from_secs(60));
    })
    .await
}

/// Makes a call that claims nothing. Returns the quarantined objects with their reasons.
async fn advance(
    state: &mut State,
    keep: Option<EventLog>,
    fill: impl FnOnce(&mut Advance),
) -> Vec<(String, String)> {
    let bounds = bounds(|bounds| bounds.claims = 0);
    let mut call = Advance::new(&state.keys, "w", "token-1", bounds, ClaimFirst::Held);
    if let Some(keep) = keep {
        call.log(keep);
    }
    fill(&mut call);
    match wire::advance(&mut state.conn, &call).await {
        Ok(Advanced::Ok { quarantined, .. }) => quarantined,
        other => panic!("{other:?}"),
    }
}

/// Gives the slot 0 a batch with these events from the id `first` on, which are delivered.
async fn deliver(state: &mut State, keep: Option<EventLog>, first: u64, events: &[&str]) {
    state.own("w.0", "work:1", first, events).await;
    let done = report("work:1", first, events.len(), BatchResult::Done);
    tell(state, keep, &done).await;
}

fn on() -> Option<EventLog> {
    Some(EventLog::default())
}

async fn rows(state: &mut State) -> Vec<LogEntry> {
    state.control().logged(PER_CALL_MAX).await
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

/// Fails unless these are all rows of the log.
async fn assert_rows(state: &mut State, expected: &[&str]) {
    assert_eq!(shorts(&rows(state).await), expected);
}

fn logging(config: &mut WorkerConfig) {
    config.event_log = on();
    config.retry = policy("fixed:1ms,attempts=2,then=dead-letter");
    config.retry_types.insert(
        "soft".to_owned(),
        policy("fixed:1ms,attempts=2,then=complete-with-errors"),
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
    let soft = r#"{"type":"soft","a":"fail"}"#;
    let events = ["1", "\"reject\"", "3", soft, "\"fail\"", "6"];
    console.emit_all("work:1", events).await;
    let worker = start(&redis, "w", &sink, logging);
    sink.until_sent(3).await;
    worker.finish().await;
    let rows = console.control().logged(PER_CALL_MAX).await;
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
    let (_redis, mut state) = attached().await;
    state.delivered("work:1", 4).await;
    state.own("w.0", "work:1", 5, &["5", "6", "7"]).await;
    let part = report("work:1", 5, 1, BatchResult::Part { next: tag(6) });
    let reject = report("work:1", 6, 0, reject(Some("7"), 6, 1));
    let done = report("work:1", 7, 1, BatchResult::Done);
    for ended in [
        &part, &part, &reject, &reject, &part, &done, &done, &reject, &part,
    ] {
        tell(&mut state, on(), ended).await;
    }
    let expected = [
        "completed 5 4 work:1 5 - 0",
        "dead 6 5 work:1 6 no 1",
        "completed 7 5 work:1 7 - 0",
    ];
    assert_rows(&mut state, &expected).await;
    assert_eq!(state.console().dead().await.len(), 1);
}

/// A row has the time at which the worker took the event, by Redis' clock. It also has the number
/// of failed attempts; only the first event of a batch can have any.
#[tokio::test]
async fn a_row_says_when_the_event_was_taken_and_how_often_it_failed() {
    let (_redis, mut state) = attached().await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    state.add("SET event.worker:w.0:event.id '5 2 3'").await;
    let ended = result("work:1", "5 2 3", 2, BatchResult::Yield);
    tell(&mut state, on(), &ended).await;
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
    let (_redis, mut state) = attached().await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    let held = report("work:1", 5, 0, hold("5 0 1 0", None, "retry: no"));
    tell(&mut state, on(), &held).await;
    assert_eq!(rows(&mut state).await, []);
    state.own("w.1", "work:2", 7, &["7", "8"]).await;
    let held = report("work:2", 7, 1, hold("8 0 1 0", None, "retry: no"));
    advance(&mut state, on(), |call| call.report(1, &held)).await;
    assert_rows(&mut state, &["completed 7 0 work:2 7 - 0"]).await;
}

/// If the log's key has a wrong type, no event leaves its batch. The batch is held unchanged. After
/// an operator has repaired the key and released the object, the batch comes again with the same
/// ids.
#[tokio::test]
async fn what_the_log_cannot_take_is_held() {
    let (redis, mut state) = attached().await;
    let console = redis.console().await;
    let why = "quarantine: event.log is a string";
    state.add("SET event.log wrong").await;
    let complete = |id| BatchResult::Complete {
        next: None,
        id,
        error: "no".to_owned(),
        attempts: 2,
    };
    let all = [
        ("a", "1 0 0 1", 1, BatchResult::Done),
        ("b", "2 3 1 0", 1, BatchResult::Yield),
        ("c", "3 0 0 0", 0, reject(None, 3, 2)),
        ("d", "4 0 0 0", 0, complete(4)),
    ];
    for (object, tag, count, then) in all {
        let ended = result(object, tag, count, then);
        state.own("w.0", object, ended.tag.first, &["1"]).await;
        let batch_id = state.keys.worker_event_id("w.0");
        state.run("SET", &[&batch_id, &ended.tag.to_string()]).await;
        let quarantined = tell(&mut state, on(), &ended).await;
        assert_eq!(quarantined, [(object.to_owned(), why.to_owned())]);
        let held = console.held_id(object).await;
        assert_eq!(held, Some(format!("{tag} {why}")));
        assert_eq!(console.due(object).await, Some(f64::INFINITY));
        assert_eq!(console.list(&state.keys.events_held(object)).await, ["1"]);
    }
    // A hold for a retry writes no row, so it works.
    state.own("w.0", "e", 5, &["1"]).await;
    let retry = hold("5 0 1 0", Some(Duration::from_secs(600)), "retry: no");
    tell(&mut state, on(), &report("e", 5, 0, retry)).await;
    assert_eq!(
        console.held_id("e").await.as_deref(),
        Some("5 0 1 0 retry: no")
    );
    assert_eq!(console.dead().await.len(), 0);
    assert!(state.control().log(None, 1).await.is_err());
    state.add("DEL event.log").await;
    console.check().await;
    for object in ["a", "b", "c", "d", "e"] {
        console.release(object).await;
    }
    let sink = Recorder::new();
    console.end_lease("w").await;
    let worker = start(&redis, "other", &sink, logging);
    sink.until_sent(5).await;
    worker.finish().await;
    let rows = rows(&mut state).await;
    let mut ids: Vec<_> = rows.iter().filter_map(|row| row.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    console.until_at_rest().await;
}

/// If an event cannot become a dead letter, it stays in its batch and has no row. The events
/// delivered before it have rows.
#[tokio::test]
async fn an_event_that_cannot_be_a_dead_letter_has_no_row() {
    let (_redis, mut state) = attached().await;
    state.add("SET events.dead wrong").await;
    state.own("w.0", "work:1", 5, &["5", "6"]).await;
    let rejected = report("work:1", 5, 1, reject(None, 6, 0));
    tell(&mut state, on(), &rejected).await;
    assert_rows(&mut state, &["completed 5 0 work:1 5 - 0"]).await;
    let held = state.console().held_id("work:1").await.expect("held");
    assert!(
        held.starts_with("6 0 0 0 quarantine: events.dead: WRONGTYPE "),
        "{held}"
    );
}

/// With the log off, delivered events and dead letters have no row, and the script runs no command
/// for the log.
#[tokio::test]
async fn a_log_that_is_off_costs_nothing() {
    let (_redis, mut state) = attached_in(Redis::own(&[])).await;
    let console = state.console();
    let mut commands = Vec::new();
    for keep in [None, on()] {
        let first = console.number(&state.keys.next_event_id()).await + 1;
        state.own("w.0", "work:1", first, &["1", "2"]).await;
        let _: () = console.run(&["CONFIG", "RESETSTAT"]).await;
        let done = report("work:1", first, 2, BatchResult::Done);
        tell(&mut state, keep, &done).await;
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
    fill.exec_async(&mut state.conn).await.expect("filled");
}

/// The log is trimmed by number of rows, and also by age if configured. It may keep slightly more
/// rows.
#[tokio::test]
async fn the_log_is_trimmed_by_count_and_by_age() {
    let (_redis, mut state) = attached().await;
    let mut keep = EventLog::default();
    (keep.keep, keep.keep_for) = (500, None);
    let mut kept = Vec::new();
    for (id, keep_for, ms) in [(1, None, 1000), (2, Some(Duration::from_secs(60)), 2000)] {
        filled(&mut state, 1000, ms).await;
        keep.keep_for = keep_for;
        keep.keep = if keep_for.is_some() { 100_000 } else { 500 };
        deliver(&mut state, Some(keep), id, &["1"]).await;
        let page = state.control().log(None, 1).await.expect("the log");
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
    let (_redis, mut state) = attached().await;
    let mut keep = EventLog::default();
    for (id, keep_for) in [(1, None), (2, Some(Duration::from_secs(60)))] {
        (keep.keep, keep.keep_for) = (if keep_for.is_some() { 1_000_000 } else { 1 }, keep_for);
        filled(&mut state, 25_000, 1000).await;
        deliver(&mut state, Some(keep), id, &["1"]).await;
        let kept = state.control().log(None, 1).await.expect("the log").kept;
        assert!((23_900..=24_100).contains(&kept), "{kept}");
        state.add("DEL event.log").await;
    }
}

async fn connect(state: &mut State, event_log: bool) {
    let connect = Connect {
        event_log: event_log.then(EventLog::default),
        ..Connect::default()
    };
    let connected = wire::connect(&mut state.conn, &state.keys, "", connect).await;
    connected.expect("connected");
}

/// An operator's skip finalizes an event, too. The event has a row only if the worker that
/// connected last has its log on.
#[tokio::test]
async fn a_skipped_event_is_dead_in_the_log_where_it_is_on() {
    let (_redis, mut state) = attached().await;
    let (console, control, keys) = (state.console(), state.control(), state.keys.clone());

    for (event_log, expected) in [(false, 0), (true, 1), (true, 2), (false, 2)] {
        connect(&mut state, event_log).await;
        state.delivered("work:1", 3).await;
        state
            .hold("work:1", "inf", &["4"], "4 1 3 0 retry: no")
            .await;
        control.skip(ADA, "work:1", Some(4)).await.expect("skipped");
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
        let skipped = control.skip(ADA, "work:1", None).await;
        assert_wrong_type(&skipped, &key);
        let held = console.list(&keys.events_held("work:1")).await;
        assert_eq!(held.len(), if value == "log" { 1 } else { 2 });
        state.run("DEL", &[&key]).await;
    }
}

/// A worker without the right to trim the log is refused when it starts.
#[tokio::test]
async fn the_right_to_trim_is_asked_for() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let _: () = console.run(&["ACL", "SETUSER", "default", "-xtrim"]).await;
    let conn = &mut console.conn();
    let connected = wire::connect(conn, redis.keys(), "", Connect::default()).await;
    assert_matches!(connected, Err(ScriptError::Denied(command)) if command == "XTRIM");
}

/// Without free memory, events are still finalized and logged, because delivered events must leave
/// Redis.
#[tokio::test]
async fn events_are_finalized_and_logged_when_memory_has_run_out() {
    let (_redis, mut state) = attached_in(Redis::own(&[])).await;
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("CONFIG", &["SET", "maxmemory", "1"]).await;
    tell(&mut state, on(), &report("work:1", 1, 1, BatchResult::Done)).await;
    state.run("CONFIG", &["SET", "maxmemory", "0"]).await;
    assert_rows(&mut state, &["completed 1 0 work:1 1 - 0"]).await;
}

/// The log is read in pages, in both directions. A page can begin at a row or at a time, and is
/// bounded. An invalid row id is refused.
#[tokio::test]
async fn the_log_is_read_in_pages() {
    let (_redis, mut state) = attached().await;
    let control = state.control();
    let page = control.log(None, 5).await.expect("a page");
    assert_eq!(
        (page.entries.len(), page.written, page.end.as_str()),
        (0, 0, "0-0")
    );
    filled(&mut state, 150, 1000).await;
    filled(&mut state, 1, 2000).await;
    let page = control.log(None, 1000).await.expect("a page");
    assert_eq!(
        (page.entries.len(), page.written, page.kept),
        (PER_CALL_MAX, 151, 151)
    );
    let last = page.next.expect("more rows");
    let rest = control.log(Some(&last), 1000).await.expect("a page");
    let ids: Vec<_> = rest.entries.iter().map(|row| row.log_id.as_str()).collect();
    assert_eq!((ids.len(), ids[0], ids[50]), (51, "1000-101", "2000-1"));
    let late = control.log(Cursor::since(2000).as_ref(), 10).await;
    let late = late.expect("a page").entries;
    assert_eq!(
        (late.len(), late[0].finalized_ms, &late[0].status),
        (1, 2000, &EventStatus::Completed)
    );
    let newest = control.newest_log(Some(&"2000-1".into()), 2).await;
    let newest = newest.expect("a page").entries;
    let ids: Vec<_> = newest.iter().map(|row| row.log_id.as_str()).collect();
    assert_eq!(ids, ["1000-150", "1000-149"]);
    for wrong in ["1000", "-", "1-+2"] {
        let refused = control.log(Some(&wrong.into()), 1).await;
        assert_matches!(refused, Err(ControlError::LogId(_)));
    }
}

/// The command shows the rows of all objects or of one object, as text or as JSON lines. If a
/// member of the event is named as its time, the output shows this time.
#[tokio::test]
async fn the_command_shows_the_log() {
    let (redis, mut state) = attached().await;
    deliver(&mut state, on(), 1, &["{\"at\":\n \"noon\"}", "2"]).await;
    state.own("w.0", "work:2", 3, &["3"]).await;
    let rejected = report("work:2", 3, 0, reject(None, 3, 0));
    tell(&mut state, on(), &rejected).await;
    let shown = redis.prints("log --object work:2");
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
    let rows = redis.json_lines("log --json --time-field at --limit 2");
    assert_eq!(
        (&rows[0]["time"], &rows[0]["event"]["at"], &rows[1]["time"]),
        (&"noon".into(), &"noon".into(), &().into())
    );
    assert_eq!(
        (&rows[0]["id"], &rows[1]["prev"], rows.len()),
        (&1.into(), &1.into(), 2)
    );
    for (options, expected) in [
        ("--newest", &[3, 2, 1][..]),
        ("--since 1h", &[1, 2, 3]),
        ("--limit 0", &[]),
        ("--since 2100-01-01T00:00:00Z", &[]),
    ] {
        let rows = json_lines(&redis.stdout(&format!("log --json {options}")));
        let ids: Vec<_> = rows.iter().filter_map(|row| row["id"].as_u64()).collect();
        assert_eq!(ids, expected, "{options}");
    }
    assert_eq!(redis.exits("log --since yesterday"), Some(2));
}

/// With `--follow`, the command shows the events that are finalized from then on, up to its limit.
#[tokio::test]
async fn the_command_follows_the_log() {
    let (redis, mut state) = attached().await;
    deliver(&mut state, on(), 1, &["1"]).await;
    // Loads the script into Redis, so that the command's first call succeeds.
    assert_eq!(rows(&mut state).await.len(), 1);
    let mut follow = redis.command("log --follow --limit 2 --json");
    let follow = follow.stdout(Stdio::piped()).spawn();
    let follow = follow.expect("the program runs");
    let console = redis.console().await;
    until("it reads the log", PATIENCE, async || {
        let clients: String = console.run(&["CLIENT", "LIST"]).await;
        (clients.matches(" cmd=evalsha ").count() >= 2).then_some(())
    })
    .await;
    deliver(&mut state, on(), 2, &["2", "3"]).await;
    let rows = json_lines(&printed(&follow.wait_with_output().expect("it ends")));
    let ids: Vec<_> = rows.iter().map(|row| row["id"].clone()).collect();
    assert_eq!(ids, [2, 3]);
}
