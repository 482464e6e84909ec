//! `control::{stats, depth, inspect, dead_letters}` and the commands that print them.

use std::process::{Command, Output};

use serde_json::{Value, json};
use seriatim::control::ended::{EVENTS_MAX, ROWS_MAX};
use seriatim::control::inspect::{EventState, Location, Standing, Tries};
use seriatim::control::{ControlError, LogStatus, RowId};

use crate::state::State;
use crate::support::{Redis, control};

async fn clean() -> (Redis, State) {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.clean().await;
    (redis, state)
}

/// Runs the program against this Redis.
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

fn text(output: &Output) -> String {
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "over 80 columns: {line}");
    }
}

#[tokio::test]
async fn stats_count_what_is_there() {
    let (_redis, mut state) = clean().await;
    state.dead_letter("1700-0", "work:1", b"{}").await;
    let keys = state.keys.clone();
    let seen = control(&state.conn, &keys).stats().await.expect("stats");
    assert_eq!(
        (
            seen.markers,
            seen.events_in_flight,
            seen.paused,
            seen.dead_letters,
            seen.last_id
        ),
        (3, 3, 1, 1, 16)
    );
    assert_eq!((seen.rules.in_force, seen.rules.lifting), (1, 0));
    let held = seen.held;
    assert_eq!(
        (held.total, held.due, held.waiting, held.until_released),
        (4, 2, 1, 1)
    );
    let [a, gone] = &seen.workers[..] else {
        panic!("two names: {:?}", seen.workers)
    };
    assert_eq!(
        (
            a.name.as_str(),
            a.slots,
            a.alive,
            a.slots_busy,
            a.events_in_flight
        ),
        ("a", 3, true, 1, 2)
    );
    assert_eq!(
        (a.host.as_deref(), a.pid.as_deref()),
        (Some("host-1"), Some("4711"))
    );
    assert!(
        a.lease_ttl_ms
            .is_some_and(|ttl| (1..=600_000).contains(&ttl)),
        "{a:?}"
    );
    assert_eq!(
        (gone.alive, gone.lease_ttl_ms, gone.events_in_flight),
        (false, None, 1)
    );
}

#[tokio::test]
async fn stats_go_on_beside_wrong_types() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for key in [
        keys.objects_held(),
        keys.event_workers(),
        keys.events("x"),
        keys.event_rules(),
    ] {
        state.run("SET", &[&key, "1"]).await;
    }
    state.emit("work:1", "{}").await;
    let seen = control(&state.conn, &keys).stats().await.expect("stats");
    assert_eq!(
        (seen.markers, seen.unreadable),
        (1, vec![keys.objects_held(), keys.event_rules()])
    );
    assert_eq!(
        control(&state.conn, &keys)
            .depth(1)
            .await
            .expect("depth")
            .events_queued,
        1
    );
}

#[tokio::test]
async fn depth_is_exact_and_finds_the_longest() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (object, events) in [("work:1", 3), ("work:2", 5), ("post:1", 4), ("bare", 1)] {
        for n in 0..events {
            state.emit(object, &n.to_string()).await;
        }
    }
    let keys = state.keys.clone();
    let seen = control(&state.conn, &keys).depth(2).await.expect("depth");
    assert_eq!((seen.events_queued, seen.objects_with_events), (13, 4));
    let top: Vec<_> = seen
        .top
        .iter()
        .map(|top| (top.object.as_str(), top.events))
        .collect();
    assert_eq!(top, [("work:2", 5), ("post:1", 4)]);
    let by_prefix: Vec<_> = seen
        .by_prefix
        .iter()
        .map(|sum| (sum.prefix.as_str(), sum.objects, sum.events))
        .collect();
    assert_eq!(by_prefix, [("work", 2, 8), ("post", 1, 4), ("bare", 1, 1)]);
    assert_eq!(
        control(&state.conn, &keys)
            .depth(0)
            .await
            .expect("depth")
            .top,
        []
    );
}

#[tokio::test]
async fn inspect_says_where_an_object_stands_and_why() {
    let (_redis, mut state) = clean().await;
    let keys = state.keys.clone();
    state.add("LPUSH lost:events {}").await;
    for (object, standing, why) in [
        (
            "work:1",
            Standing::Marked,
            "waits for a free worker, after 0 other markers",
        ),
        (
            "work:2",
            Standing::Owned,
            "worker a.0 has it: process 4711 on host-1",
        ),
        ("work:3", Standing::Taken, "worker a.0 has taken its marker"),
        ("work:4", Standing::OwnerGone, "owner gone.0 has no lease"),
        (
            "work:5",
            Standing::Held,
            "(retry: connection refused), and due now",
        ),
        ("work:6", Standing::Held, "(retry: soon), due in "),
        (
            "work:7",
            Standing::Held,
            "`seriatim held release 'work:7'` does",
        ),
        ("work:8", Standing::Held, "(yield), and due now"),
        (
            "work:9",
            Standing::Paused,
            "paused by the rule for work:9 (set by ada: not yet); `seriatim resume 'work:9'` lifts it",
        ),
        ("bare", Standing::Idle, "all its events are delivered"),
        ("lost", Standing::Uncovered, "I1 is broken"),
        ("never", Standing::Unknown, "nothing is known of it"),
    ] {
        let seen = control(&state.conn, &keys)
            .inspect(object)
            .await
            .expect("an inspection");
        assert_eq!(seen.standing, standing, "{seen:#?}");
        assert!(seen.why.contains(why), "{object}: {} lacks {why}", seen.why);
    }
}

/// Tests that `inspect` finds an object in the list of a departed name, among many departed names
/// without objects.
#[tokio::test]
async fn departed_names_are_looked_through() {
    let (redis, mut state) = clean().await;
    for n in 0..8 {
        state.register(&format!("departed-{n}"), 1000).await;
    }
    let keys = state.keys.clone();
    state
        .add("LPUSH event.worker:departed-7.999:object far; LPUSH far:events {}")
        .await;
    let seen = control(&state.conn, &keys)
        .inspect("far")
        .await
        .expect("an inspection");
    assert_eq!(
        (seen.standing, seen.taken_by),
        (Standing::Taken, vec!["departed-7.999".to_owned()])
    );
    let output = seriatim(&redis, &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

#[tokio::test]
async fn inspect_shows_the_next_event_and_its_tries() {
    let (_redis, mut state) = clean().await;
    let keys = state.keys.clone();
    let queued = control(&state.conn, &keys)
        .inspect("work:1")
        .await
        .expect("an inspection");
    assert_eq!(
        (queued.events_queued, queued.last_event_id, queued.tries),
        (2, Some(7), None)
    );
    let next = queued.next_event.expect("a next event");
    assert_eq!(
        (next.place, next.id, next.bytes, next.text.as_str()),
        (Location::Queue, None, 7, "{\"n\":1}")
    );

    let owned = control(&state.conn, &keys)
        .inspect("work:2")
        .await
        .expect("an inspection");
    assert_eq!((owned.events_queued, owned.events_in_flight), (1, 2));
    assert_eq!(
        owned.next_event.map(|next| (next.place, next.id)),
        Some((Location::Batch, Some(12)))
    );

    let held = control(&state.conn, &keys)
        .inspect("work:5")
        .await
        .expect("an inspection");
    assert_eq!(
        held.next_event.map(|next| (next.place, next.id)),
        Some((Location::HeldBatch, Some(15)))
    );
    let tries = held.tries.expect("tries");
    assert_eq!((tries.handouts, tries.attempts, tries.crashes), (1, 3, 0));
    assert_ne!(tries, Tries::default());
    assert_eq!(
        (held.held_why.as_deref(), held.due_ms),
        (Some("retry: connection refused"), Some(1))
    );

    state
        .emit("long", &format!("\"{}\"", "x".repeat(100_000)))
        .await;
    let next = control(&state.conn, &keys)
        .inspect("long")
        .await
        .expect("an inspection")
        .next_event
        .expect("a next event");
    assert_eq!((next.bytes, next.text.len()), (100_002, 4096));
}

/// Tests that `inspect` names the state of the first event of an object, wherever this event is. If
/// a rule covers the object, the event is paused or blocked, even before a worker has looked at it.
#[tokio::test]
async fn inspect_says_what_state_the_head_event_is_in() {
    use EventState::{Blocked, InFlight, Paused, Queued, Waiting};
    let (_redis, mut state) = clean().await;
    let keys = state.keys.clone();
    state
        .add("LPUSH work:8:events {}; LPUSH objects.with.events empty")
        .await;
    let objects = [
        "work:1", "work:2", "work:3", "work:4", "work:5", "work:6", "work:7", "work:8", "work:9",
        "bare", "never", "empty",
    ];
    let mut none = objects.map(|_| None);
    none[..9].copy_from_slice(
        &[
            Queued, InFlight, Queued, InFlight, Waiting, Waiting, Waiting, Queued, Paused,
        ]
        .map(Some),
    );
    let under = |state: EventState| {
        let mut under = none;
        // A rule does not change the state of an event in flight, because its delivery finishes. An
        // event that is not due yet, or waits for an operator, also keeps its state.
        for at in [0, 2, 4, 7, 8] {
            under[at] = Some(state);
        }
        under
    };
    let rules = [
        ("", none),
        ("pause *", under(Paused)),
        ("block *", under(Blocked)),
        ("block * lifted", under(Paused)),
    ];
    for (rule, expected) in rules {
        if let Some((kind, _)) = rule.split_once(' ') {
            let lifted = if rule.ends_with("lifted") { "1" } else { "0" };
            state
                .rule(&format!("{kind} *"), &format!("17 0 {lifted} 3 0 ada"), "0")
                .await;
        }
        for (object, expected) in objects.iter().zip(expected) {
            let seen = control(&state.conn, &keys)
                .inspect(object)
                .await
                .expect("an inspection");
            assert_eq!(seen.state, expected, "{rule}: {seen:#?}");
        }
    }
}

/// Adds a row to the event log.
async fn logged(state: &mut State, row_id: &str, object: &str, fields: &[&str]) {
    let log = state.keys.event_log();
    let arguments = [&[log.as_str(), row_id, "object", object], fields].concat();
    state.run("XADD", &arguments).await;
}

/// Tests that the last finalized events of an object come from the event log and from the dead
/// letters. Each event is returned once, the latest first.
#[tokio::test]
async fn what_became_of_the_last_events_is_told() {
    let (redis, mut state) = clean().await;
    let keys = state.keys.clone();
    let none = control(&state.conn, &keys)
        .ended("work:1")
        .await
        .expect("an answer");
    assert_eq!(
        (
            none.events.len(),
            none.log_rows,
            none.dead_letters,
            none.complete
        ),
        (0, 0, 0, true)
    );
    assert!(
        text(&seriatim(&redis, &["inspect", "bare"]))
            .ends_with("ended      none found in 0 rows of the log, 0 dead letters\n")
    );
    state.dead_letter("1600-0", "work:1", b"{}").await;
    for (row, fields) in [
        (
            "1500-0",
            &[
                "status",
                "completed",
                "id",
                "5",
                "error",
                "",
                "attempts",
                "0",
            ][..],
        ),
        (
            "1600-1",
            &[
                "status", "dead", "id", "12", "error", "no\nway", "attempts", "3",
            ],
        ),
        (
            "1700-0",
            &[
                "status",
                "completed_with_errors",
                "id",
                "13",
                "error",
                "late",
                "attempts",
                "2",
            ],
        ),
        (
            "1800-0",
            &[
                "status",
                "dead",
                "id",
                "14",
                "error",
                "dropped since",
                "attempts",
                "0",
            ],
        ),
        ("1900-0", &["status", "new", "foo", "bar"]),
    ] {
        logged(&mut state, row, "work:1", fields).await;
        logged(&mut state, &row.replace("00-", "50-"), "work:2", fields).await;
    }
    let seen = control(&state.conn, &keys)
        .ended("work:1")
        .await
        .expect("an answer");
    let shown: Vec<_> = seen
        .events
        .iter()
        .map(|event| (event.id, event.status.as_str(), event.at_ms))
        .collect();
    let expected = [
        (Some(14), "dead", 1800),
        (Some(13), "completed_with_errors", 1700),
        (Some(12), "dead", 1600),
        (Some(5), "completed", 1500),
        (None, "new", 1900),
    ];
    assert_eq!(shown, expected);
    let [dropped, _, dead, completed, _] = &seen.events[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(
        (
            dropped.dead_id.as_ref(),
            dead.dead_id.as_ref().map(RowId::as_str)
        ),
        (None, Some("1600-0"))
    );
    assert_eq!(
        (
            dead.attempts,
            dead.error.as_deref(),
            completed.error.as_deref()
        ),
        (Some(3), Some("no\nway"), None)
    );
    // If the event log is off, the events come from the dead letters. The search ends when it has
    // found `EVENTS_MAX` events.
    state.add("DEL event.log").await;
    for n in 1..=7 {
        state
            .dead_letter(&format!("2000-{n}"), "work:3", b"{}")
            .await;
    }
    let seen = control(&state.conn, &keys)
        .ended("work:3")
        .await
        .expect("an answer");
    let ids: Vec<_> = seen
        .events
        .iter()
        .map(|event| event.dead_id.as_ref().map_or("", RowId::as_str))
        .collect();
    assert_eq!(
        (ids.len(), seen.dead_letters, seen.complete),
        (EVENTS_MAX, 5, false)
    );
    assert!(
        ids.contains(&"2000-7")
            && ids.contains(&"2000-3")
            && seen
                .events
                .iter()
                .all(|event| event.status == LogStatus::Dead)
    );

    let printed = text(&seriatim(&redis, &["inspect", "work:1"]));
    assert!(
        printed.contains("\nstate      queued\n") && printed.contains("\nended      id 12, dead, "),
        "{printed}"
    );
    assert!(
        printed.ends_with(
            " ago, 3 failed attempts\n           dead letter 1600-0\n           error  no\\nway\n"
        ),
        "{printed}"
    );
    assert_fits(&printed);
    let parsed: Value =
        serde_json::from_str(&text(&seriatim(&redis, &["inspect", "work:1", "--json"])))
            .expect("JSON");
    assert_eq!(
        (&parsed["state"], &parsed["ended"]["dead_letters"]),
        (&json!("queued"), &json!(8))
    );
    let dead = json!({
        "id": 12, "prev": 7, "status": "dead", "attempts": 3, "error": "no\nway", "taken_ms": null, "at_ms": 1600, "dead_id": "1600-0",
    });
    assert_eq!(parsed["ended"]["events"], json!([dead]));
    // If the event log has a wrong type, the result names its key. The dead letters are still
    // searched.
    state.add("SET event.log 1").await;
    let seen = control(&state.conn, &keys)
        .ended("work:1")
        .await
        .expect("an answer");
    assert_eq!(
        (seen.unreadable, seen.events.len()),
        (vec![keys.event_log()], 1)
    );
}

/// The search for the last events of an object is bounded. It does not find older events, and the
/// result says how far it has searched.
#[tokio::test]
async fn the_look_for_the_last_events_is_bounded() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    let fields = [
        "status",
        "completed",
        "id",
        "1",
        "error",
        "",
        "attempts",
        "0",
    ];
    logged(&mut state, "1-0", "far", &fields).await;
    logged(&mut state, "1-1", "near", &fields).await;
    for n in 1..ROWS_MAX {
        logged(&mut state, &format!("2-{n}"), "other", &fields).await;
    }
    let near = control(&state.conn, &keys)
        .ended("near")
        .await
        .expect("an answer");
    assert_eq!(
        (near.events.len(), near.log_rows, near.complete),
        (1, ROWS_MAX, false)
    );
    let far = control(&state.conn, &keys)
        .ended("far")
        .await
        .expect("an answer");
    assert_eq!(
        (
            far.events.len(),
            far.log_rows,
            far.dead_letters,
            far.complete
        ),
        (0, ROWS_MAX, 0, false)
    );
    let printed = text(&seriatim(&redis, &["inspect", "far"]));
    assert!(
        printed.ends_with(
            "ended      none found in the newest 1000 rows of the log, 0 dead letters\n"
        ),
        "{printed}"
    );
    assert_fits(printed.lines().last().expect("a line"));
}

#[tokio::test]
async fn inspect_goes_on_beside_wrong_types_and_takes_any_name() {
    let (_redis, mut state) = clean().await;
    let keys = state.keys.clone();
    state.add("SET x:events 1; LPUSH x:last.event.id 1").await;
    let seen = control(&state.conn, &keys)
        .inspect("x")
        .await
        .expect("an inspection");
    assert_eq!(seen.wrong_types.len(), 2, "{seen:?}");
    // The library emits no event for a name with a line break, but another program may have pushed
    // one.
    let seen = control(&state.conn, &keys)
        .inspect("a\nb")
        .await
        .expect("an inspection");
    assert_eq!(
        (seen.standing, seen.object_escaped.as_deref()),
        (Standing::Unknown, Some(r"a\nb"))
    );
    let refused = control(&state.conn, &keys)
        .inspect("")
        .await
        .expect_err("no name");
    assert!(matches!(refused, ControlError::Name(_)), "{refused}");
}

#[tokio::test]
async fn dead_letters_are_lossless_json_lines() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state
        .dead_letter("1700-0", "work:1", b"{\"b\" : 1.0,\r\n\"a\":1e400}")
        .await;
    state
        .dead_letter("1700-1", "work:2", "not JSON: \u{e9}\n".as_bytes())
        .await;
    state.dead_letter("1701-0", "work:1", b"\xff\x00").await;
    state.add("XADD events.dead 1702-0 foo bar").await;
    let output = text(&seriatim(&redis, &["dead", "list", "--json"]));
    let lines: Vec<&str> = output.lines().collect();
    // The event is unchanged byte for byte, except for the line break.
    assert_eq!(
        lines[0],
        r#"{"dead_id":"1700-0","id":12,"prev":7,"object":"work:1","event":{"b" : 1.0,  "a":1e400},"error":"no\nway","attempts":3}"#
    );
    let of = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    assert_eq!(of(lines[1])["event_text"], "not JSON: \u{e9}\n");
    assert_eq!(of(lines[2])["event_hex"], "ff00");
    assert_eq!(of(lines[3])["id"], Value::Null);
    assert_eq!(lines.len(), 4);

    let only = text(&seriatim(
        &redis,
        &[
            "dead", "list", "--json", "--object", "work:1", "--limit", "1",
        ],
    ));
    assert_eq!(only.lines().count(), 1);
    let people = text(&seriatim(&redis, &["dead", "list"]));
    assert!(
        people.contains("1700-1  work:2  id 12, prev 7, 3 failed attempts\n  error  no\\nway\n"),
        "{people}"
    );
    assert_fits(&people);
}

/// A retried event comes out of order if newer events of its object were delivered since. The command
/// says so.
#[tokio::test]
async fn a_retry_says_that_newer_events_were_delivered() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (dead_id, object) in [
        ("1700-0", "late:1"),
        ("1700-1", "soon:1"),
        ("1701-0", "late:2"),
        ("1701-1", "soon:2"),
    ] {
        state.dead_letter(dead_id, object, b"1").await;
    }
    // The id of each dead letter is 12.
    state.delivered("late:1", 13).await;
    state.delivered("late:2", 13).await;
    state.delivered("soon:1", 7).await;
    let some = text(&seriatim(&redis, &["dead", "retry", "1700-0", "1700-1"]));
    assert_eq!(
        some,
        "1700-0  retried; newer events of its object were delivered since\n1700-1  retried\n"
    );
    let all = text(&seriatim(&redis, &["dead", "retry", "--all"]));
    assert_eq!(
        all,
        "2 retried; for 1 of them, newer events of the object were delivered since\n"
    );
    for (dead_id, object) in [("1702-0", "late:1"), ("1702-1", "soon:3")] {
        state.dead_letter(dead_id, object, b"1").await;
    }
    let line = text(&seriatim(&redis, &["dead", "retry", "1702-0", "--json"]));
    assert_eq!(
        serde_json::from_str::<Value>(&line).expect("JSON")["newer_delivered"],
        true
    );
    let all = text(&seriatim(&redis, &["dead", "retry", "--all", "--json"]));
    let all: Value = serde_json::from_str(&all).expect("JSON");
    assert_eq!(
        (&all["done"], &all["newer_delivered"]),
        (&1.into(), &0.into())
    );
}

#[tokio::test]
async fn dead_letters_come_in_pages() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for n in 0..100 {
        state
            .dead_letter(&format!("1700-{n}"), "work:1", b"{}")
            .await;
    }
    assert_eq!(
        text(&seriatim(&redis, &["dead", "list", "--json"]))
            .lines()
            .count(),
        100
    );
    let page = control(&state.conn, &keys)
        .dead_letters(Some(&"1700-97".into()), 32)
        .await
        .expect("a page")
        .letters;
    let ids: Vec<_> = page.iter().map(|letter| letter.dead_id.as_str()).collect();
    assert_eq!(ids, ["1700-98", "1700-99"]);
    state.add("DEL events.dead; SET events.dead 1").await;
    let refused = seriatim(&redis, &["dead", "list"]);
    assert_eq!(refused.status.code(), Some(3));
}

#[tokio::test]
async fn check_ends_with_0_or_1() {
    let (redis, mut state) = clean().await;
    let output = seriatim(&redis, &["check"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output).ends_with("clean: every invariant holds, as far as Redis can show it\n"));

    state
        .run("LPUSH", &[&state.keys.events("x\u{202e}[31m"), "{}"])
        .await;
    state.add("LPUSH y:events {}").await;
    let output = seriatim(&redis, &["check", "--limit", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output);
    assert!(
        printed.starts_with("I1     object ") && printed.contains("and 1 more (--limit)"),
        "{printed}"
    );
    assert!(
        printed.ends_with("broken: 2 violations\n") && !printed.contains('\u{202e}'),
        "{printed}"
    );

    let output = seriatim(&redis, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_str(&text(&output)).expect("JSON");
    assert_eq!(report["violations_total"], 2);
    assert_eq!(report["violations"][0]["invariant"], "I1");
    assert!(
        report["violations"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|v| v["subject"] == json!({"object": "y"}))
    );
}

#[tokio::test]
async fn stats_print_tables_that_fit_and_stable_json() {
    let (redis, mut state) = clean().await;
    let names = state.keys.event_workers();
    state
        .run("HSET", &[&names, &"n".repeat(64), "100 token 1"])
        .await;
    state.emit(&"long-".repeat(100), "{}").await;
    for object in ["work:5", "work:8"] {
        state
            .run("ZADD", &[&state.keys.objects_held(), "0", object])
            .await;
    }
    let printed = text(&seriatim(&redis, &["stats", "--scan"]));
    assert_fits(&printed);
    let names = printed.lines().filter(|line| line.contains("nnnn")).count();
    assert_eq!(names, 1, "a long name stays in one line: {printed}");
    assert!(
        printed.contains("none, last seen ") && printed.contains(" left: 4711 on host-1"),
        "{printed}"
    );
    for line in [
        "markers       4",
        "rules         1 set, 0 being lifted",
        "held          4 objects: 2 due, 1 waiting, 1 until released",
        "queued        6 events of 5 objects",
    ] {
        assert!(printed.contains(line), "{printed} lacks {line}");
    }
    let parsed: Value = serde_json::from_str(&text(&seriatim(
        &redis,
        &["stats", "--json", "--scan", "--top", "1"],
    )))
    .expect("JSON");
    assert_eq!(parsed["rules"], json!({"in_force": 1, "lifting": 0}));
    let held =
        ["total", "due", "waiting", "until_released"].map(|count| parsed["held"][count].as_u64());
    assert_eq!(held, [4, 2, 1, 1].map(Some));
    // Story: the score 0 of a released object was read as a time in 1970: "overdue 20783 d".
    let first = |parsed: &Value| parsed["held"]["overdue_ms"].as_u64().expect("a time") / 1000;
    assert!(
        first(&parsed) == 0 && !printed.contains("overdue"),
        "{printed}"
    );
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let ago = (since.as_millis() - 90_000).to_string();
    state
        .run("ZADD", &[&state.keys.objects_held(), &ago, "work:8"])
        .await;
    let again: Value =
        serde_json::from_str(&text(&seriatim(&redis, &["stats", "--json"]))).expect("JSON");
    assert!((90..150).contains(&first(&again)), "{again}");
    assert!(
        text(&seriatim(&redis, &["stats"]))
            .contains("overdue       1 min since the first due object became due")
    );
    for object in ["work:5", "work:8"] {
        state
            .run("ZADD", &[&state.keys.objects_held(), "inf", object])
            .await;
    }
    let printed = text(&seriatim(&redis, &["stats"]));
    assert!(
        printed.contains(": 0 due,") && !printed.contains("overdue"),
        "{printed}"
    );
    assert_eq!(
        parsed["depth"]["top"],
        json!([{"object": "work:1", "events": 2}])
    );
    let cheap: Value =
        serde_json::from_str(&text(&seriatim(&redis, &["stats", "--json"]))).expect("JSON");
    assert_eq!(cheap.get("depth"), None);
    assert_eq!(cheap["workers"][0]["name"], "a");
}

#[tokio::test]
async fn inspect_prints_lines_and_json() {
    let (redis, _state) = clean().await;
    let printed = text(&seriatim(&redis, &["inspect", "work:5"]));
    assert!(
        printed.contains("stands     held (retry: connection refused), and due now"),
        "{printed}"
    );
    assert!(
        printed.contains("next       in the held batch, id 15, 7 bytes\n           {\"n\":5}"),
        "{printed}"
    );
    let never = seriatim(&redis, &["inspect", "never"]);
    assert_eq!(never.status.code(), Some(0));
    assert!(text(&never).contains("nothing is known of it"));
    let parsed: Value =
        serde_json::from_str(&text(&seriatim(&redis, &["inspect", "work:2", "--json"])))
            .expect("JSON");
    assert_eq!(
        (&parsed["standing"], &parsed["next_event"]["place"]),
        (&json!("owned"), &json!("batch"))
    );
    let bad = seriatim(&redis, &["inspect", ""]);
    assert_eq!((bad.status.code(), bad.stdout.is_empty()), (Some(2), true));
}

#[test]
fn without_a_redis_each_command_ends_with_3_and_one_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("unix://{}", dir.path().join("nobody.sock").display());
    for arguments in [
        &["check"][..],
        &["stats"],
        &["inspect", "x"],
        &["dead", "list"],
        &["dead", "retry", "1-1"],
        &["held", "skip", "x"],
        &["actions"],
    ] {
        let output = Command::new(crate::support::program())
            .args(["--redis", &url])
            .args(arguments)
            .output();
        let output = output.expect("the program runs");
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {line}");
        assert_eq!(
            (line.lines().count(), output.stdout.len()),
            (1, 0),
            "{arguments:?}: {line}"
        );
    }
}

/// `seriatim dead list | head -1` ends without an error.
#[tokio::test]
async fn a_reader_that_leaves_is_no_error() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for n in 0..200 {
        state
            .dead_letter(&format!("1700-{n}"), "work:1", &[b'1'; 20_000])
            .await;
    }
    let line = format!(
        "set -o pipefail; '{}' --redis '{}' --namespace '{}' dead list --json | head -c 10",
        crate::support::program().display(),
        redis.url(),
        redis.namespace()
    );
    let output = Command::new("bash")
        .args(["-c", &line])
        .output()
        .expect("bash runs");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}
