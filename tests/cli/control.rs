//! `control::{stats, depth, inspect, dead_letters}` and the commands that print them.

use std::process::Command;

use serde_json::{Value, json};
use seriatim::control::ended::{EVENTS_MAX, ROWS_MAX};
use seriatim::control::inspect::{EventState, Location, Standing, Tries};
use seriatim::control::{ControlError, EventStatus, RowId};

use crate::state::State;
use crate::support::operator::Reads;
use crate::support::output::command_at;
use crate::support::{Redis, assert_matches};

fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "over 80 columns: {line}");
    }
}

#[tokio::test]
async fn stats_count_what_is_there() {
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    state.dead_letter("1700-0", "work:1", b"{}").await;
    let seen = state.control().stats().await.expect("stats");
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
    assert_eq!((a.name.as_str(), a.slots, a.alive), ("a", 3, true));
    assert_eq!((a.slots_busy, a.events_in_flight), (1, 2));
    assert_eq!(
        (a.host.as_deref(), a.pid.as_deref()),
        (Some("host-1"), Some("4711"))
    );
    assert_matches!(a.lease_ttl_ms, Some(1..=600_000));
    assert_eq!(
        (gone.alive, gone.lease_ttl_ms, gone.events_in_flight),
        (false, None, 1)
    );
}

#[tokio::test]
async fn stats_go_on_beside_wrong_types() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
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
    let seen = control.stats().await.expect("stats");
    assert_eq!(
        (seen.markers, seen.unreadable),
        (1, vec![keys.objects_held(), keys.event_rules()])
    );
    assert_eq!(control.depth(1).await.expect("depth").events_queued, 1);
}

#[tokio::test]
async fn depth_is_exact_and_finds_the_longest() {
    let (_redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    for (object, events) in [("work:1", 3), ("work:2", 5), ("post:1", 4), ("bare", 1)] {
        for n in 0..events {
            state.emit(object, &n.to_string()).await;
        }
    }
    let seen = control.depth(2).await.expect("depth");
    assert_eq!((seen.events_queued, seen.objects_with_events), (13, 4));
    let top = seen.top.iter().map(|top| (&top.object[..], top.events));
    assert!(top.eq([("work:2", 5), ("post:1", 4)]), "{seen:?}");
    let sums = seen.by_prefix.iter();
    let sums = sums.map(|sum| (&sum.prefix[..], sum.objects, sum.events));
    let expected = [("work", 2, 8), ("post", 1, 4), ("bare", 1, 1)];
    assert!(sums.eq(expected), "{seen:?}");
    assert_eq!(control.depth(0).await.expect("depth").top, []);
}

#[tokio::test]
async fn inspect_says_where_an_object_stands_and_why() {
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
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
        let seen = control.inspection_of(object).await;
        assert_eq!(seen.standing, standing, "{seen:#?}");
        assert!(seen.why.contains(why), "{object}: {} lacks {why}", seen.why);
    }
}

/// Tests that `inspect` finds an object in the list of a departed name, among many departed names
/// without objects.
#[tokio::test]
async fn departed_names_are_looked_through() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    for n in 0..8 {
        state.register(&format!("departed-{n}"), 1000).await;
    }
    state
        .add("LPUSH event.worker:departed-7.999:object far; LPUSH far:events {}")
        .await;
    let seen = state.control().inspection_of("far").await;
    assert_eq!(
        (seen.standing, seen.taken_by),
        (Standing::Taken, vec!["departed-7.999".to_owned()])
    );
    redis.prints("check");
}

#[tokio::test]
async fn inspect_shows_the_next_event_and_its_tries() {
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
    let queued = control.inspection_of("work:1").await;
    assert_eq!(
        (queued.events_queued, queued.last_event_id, queued.tries),
        (2, Some(7), None)
    );
    let next = queued.next_event.expect("a next event");
    assert_eq!(
        (next.place, next.id, next.bytes, next.text.as_str()),
        (Location::Queue, None, 7, "{\"n\":1}")
    );

    let owned = control.inspection_of("work:2").await;
    assert_eq!((owned.events_queued, owned.events_in_flight), (1, 2));
    let next = owned.next_event.map(|next| (next.place, next.id));
    assert_eq!(next, Some((Location::Batch, Some(12))));

    let held = control.inspection_of("work:5").await;
    let next = held.next_event.map(|next| (next.place, next.id));
    assert_eq!(next, Some((Location::HeldBatch, Some(15))));
    let tries = held.tries.expect("tries");
    assert_eq!((tries.handouts, tries.attempts, tries.crashes), (1, 3, 0));
    assert_ne!(tries, Tries::default());
    assert_eq!(
        (held.held_why.as_deref(), held.due_ms),
        (Some("retry: connection refused"), Some(1))
    );

    let long = format!("\"{}\"", "x".repeat(100_000));
    state.emit("long", &long).await;
    let long = control.inspection_of("long").await;
    let next = long.next_event.expect("a next event");
    assert_eq!((next.bytes, next.text.len()), (100_002, 4096));
}

/// Tests that `inspect` names the state of the first event of an object, wherever this event is. If
/// a rule covers the object, the event is paused or blocked, even before a worker has looked at it.
#[tokio::test]
async fn inspect_says_what_state_the_head_event_is_in() {
    use EventState::{Blocked, InFlight, Paused, Queued, Waiting};
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
    state
        .add("LPUSH work:8:events {}; LPUSH objects.with.events empty")
        .await;
    let none = [
        ("work:1", Some(Queued)),
        ("work:2", Some(InFlight)),
        ("work:3", Some(Queued)),
        ("work:4", Some(InFlight)),
        ("work:5", Some(Waiting)),
        ("work:6", Some(Waiting)),
        ("work:7", Some(Waiting)),
        ("work:8", Some(Queued)),
        ("work:9", Some(Paused)),
        ("bare", None),
        ("never", None),
        ("empty", None),
    ];
    let under = |state: EventState| {
        let mut under = none;
        // A rule does not change the state of an event in flight, because its delivery finishes. An
        // event that is not due yet, or waits for an operator, also keeps its state.
        for at in [0, 2, 4, 7, 8] {
            under[at].1 = Some(state);
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
            let (field, value) = (format!("{kind} *"), format!("17 0 {lifted} 3 0 ada"));
            state.rule(&field, &value, "0").await;
        }
        for (object, expected) in expected {
            let seen = control.inspection_of(object).await;
            assert_eq!(seen.state, expected, "{rule}: {seen:#?}");
        }
    }
}

/// Adds a row to the event log. The text has the other fields and their values.
async fn logged(state: &mut State, row_id: &str, object: &str, fields: &str) {
    let row = format!("XADD event.log {row_id} object {object} {fields}");
    state.add(&row).await;
}

/// Tests that the last finalized events of an object come from the event log and from the dead
/// letters. Each event is returned once, the latest first.
#[tokio::test]
async fn what_became_of_the_last_events_is_told() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
    let keys = state.keys.clone();
    let none = control.ended("work:1").await.expect("an answer");
    assert_eq!((none.events.len(), none.complete), (0, true));
    assert_eq!((none.log_rows, none.dead_letters), (0, 0));
    let printed = redis.prints("inspect bare");
    assert!(printed.ends_with("ended      none found in 0 rows of the log, 0 dead letters\n"));
    state.dead_letter("1600-0", "work:1", b"{}").await;
    for (row, fields) in [
        ("1500-0", "status completed id 5 error '' attempts 0"),
        ("1600-1", "status dead id 12 error 'no\nway' attempts 3"),
        (
            "1700-0",
            "status completed_with_errors id 13 error late attempts 2",
        ),
        (
            "1800-0",
            "status dead id 14 error 'dropped since' attempts 0",
        ),
        ("1900-0", "status new foo bar"),
    ] {
        logged(&mut state, row, "work:1", fields).await;
        logged(&mut state, &row.replace("00-", "50-"), "work:2", fields).await;
    }
    let seen = control.ended("work:1").await.expect("an answer");
    let shown = seen.events.iter();
    let shown = shown.map(|event| (event.id, event.status.as_str(), event.at_ms));
    let expected = [
        (Some(14), "dead", 1800),
        (Some(13), "completed_with_errors", 1700),
        (Some(12), "dead", 1600),
        (Some(5), "completed", 1500),
        (None, "new", 1900),
    ];
    assert!(shown.eq(expected), "{seen:?}");
    let [dropped, _, dead, completed, _] = &seen.events[..] else {
        panic!("{seen:?}")
    };
    let dead_id = dead.dead_id.as_ref().map(RowId::as_str);
    assert_eq!((dropped.dead_id.as_ref(), dead_id), (None, Some("1600-0")));
    assert_eq!(
        (dead.attempts, dead.error.as_deref()),
        (Some(3), Some("no\nway"))
    );
    assert_eq!(completed.error, None);
    // If the event log is off, the events come from the dead letters. The search ends when it has
    // found `EVENTS_MAX` events.
    state.add("DEL event.log").await;
    state.dead_letters("2000", 1..=7, "work:3").await;
    let seen = control.ended("work:3").await.expect("an answer");
    let dead = seen.events.iter();
    let dead = dead.filter(|event| event.status == EventStatus::Dead);
    let ids: Vec<_> = dead.filter_map(|event| event.dead_id.as_ref()).collect();
    let ids: Vec<_> = ids.into_iter().map(RowId::as_str).collect();
    assert_eq!((seen.dead_letters, seen.complete), (5, false));
    assert_eq!((ids.len(), seen.events.len()), (EVENTS_MAX, EVENTS_MAX));
    assert!(ids.contains(&"2000-7") && ids.contains(&"2000-3"));

    let printed = redis.prints("inspect work:1");
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
    let parsed = redis.json("inspect work:1 --json");
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
    let seen = control.ended("work:1").await.expect("an answer");
    assert_eq!(
        (seen.unreadable, seen.events.len()),
        (vec![keys.event_log()], 1)
    );
}

/// The search for the last events of an object is bounded. It does not find older events, and the
/// result says how far it has searched.
#[tokio::test]
async fn the_look_for_the_last_events_is_bounded() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    let fields = "status completed id 1 error '' attempts 0";
    logged(&mut state, "1-0", "far", fields).await;
    logged(&mut state, "1-1", "near", fields).await;
    for n in 1..ROWS_MAX {
        logged(&mut state, &format!("2-{n}"), "other", fields).await;
    }
    let near = control.ended("near").await.expect("an answer");
    assert_eq!(
        (near.events.len(), near.log_rows, near.complete),
        (1, ROWS_MAX, false)
    );
    let far = control.ended("far").await.expect("an answer");
    assert_eq!((far.events.len(), far.complete), (0, false));
    assert_eq!((far.log_rows, far.dead_letters), (ROWS_MAX, 0));
    let printed = redis.prints("inspect far");
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
    let (_redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
    state.add("SET x:events 1; LPUSH x:last.event.id 1").await;
    let seen = control.inspection_of("x").await;
    assert_eq!(seen.wrong_types.len(), 2, "{seen:?}");
    // The library emits no event for a name with a line break, but another program may have pushed
    // one.
    let seen = control.inspection_of("a\nb").await;
    assert_eq!(
        (seen.standing, seen.object_escaped.as_deref()),
        (Standing::Unknown, Some(r"a\nb"))
    );
    let refused = control.inspect("").await.expect_err("no name");
    assert_matches!(refused, ControlError::Name(_));
}

#[tokio::test]
async fn dead_letters_are_lossless_json_lines() {
    let (redis, mut state) = Redis::start().with_state().await;
    state
        .dead_letter("1700-0", "work:1", b"{\"b\" : 1.0,\r\n\"a\":1e400}")
        .await;
    state
        .dead_letter("1700-1", "work:2", "not JSON: \u{e9}\n".as_bytes())
        .await;
    state.dead_letter("1701-0", "work:1", b"\xff\x00").await;
    state.add("XADD events.dead 1702-0 foo bar").await;
    let output = redis.prints("dead list --json");
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

    let only = redis.prints("dead list --json --object work:1 --limit 1");
    assert_eq!(only.lines().count(), 1);
    let people = redis.prints("dead list");
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
    let (redis, mut state) = Redis::start().with_state().await;
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
    let some = redis.prints("dead retry 1700-0 1700-1");
    assert_eq!(
        some,
        "1700-0  retried; newer events of its object were delivered since\n1700-1  retried\n"
    );
    let all = redis.prints("dead retry --all");
    assert_eq!(
        all,
        "2 retried; for 1 of them, newer events of the object were delivered since\n"
    );
    for (dead_id, object) in [("1702-0", "late:1"), ("1702-1", "soon:3")] {
        state.dead_letter(dead_id, object, b"1").await;
    }
    let one = redis.json("dead retry 1702-0 --json");
    assert_eq!(one["newer_delivered"], true);
    let all = redis.json("dead retry --all --json");
    assert_eq!(
        (&all["done"], &all["newer_delivered"]),
        (&1.into(), &0.into())
    );
}

#[tokio::test]
async fn dead_letters_come_in_pages() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    state.dead_letters("1700", 0..100, "work:1").await;
    assert_eq!(redis.prints("dead list --json").lines().count(), 100);
    let page = control.dead_letters(Some(&"1700-97".into()), 32).await;
    let letters = page.expect("a page").letters;
    let ids: Vec<_> = letters.iter().map(|letter| &letter.dead_id).collect();
    assert_eq!(ids, ["1700-98", "1700-99"]);
    state.add("DEL events.dead; SET events.dead 1").await;
    assert_eq!(redis.exits("dead list"), Some(3));
}

#[tokio::test]
async fn check_ends_with_0_or_1() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    let printed = redis.prints("check");
    assert!(printed.ends_with("clean: every invariant holds, as far as Redis can show it\n"));

    let hostile = state.keys.events("x\u{202e}[31m");
    state.run("LPUSH", &[&hostile, "{}"]).await;
    state.add("LPUSH y:events {}").await;
    let broken = |arguments: &str| {
        let output = redis.run(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let printed = broken("check --limit 1");
    assert!(
        printed.starts_with("I1     object ") && printed.contains("and 1 more (--limit)"),
        "{printed}"
    );
    assert!(
        printed.ends_with("broken: 2 violations\n") && !printed.contains('\u{202e}'),
        "{printed}"
    );

    let report: Value = serde_json::from_str(&broken("check --json")).expect("JSON");
    assert_eq!(report["violations_total"], 2);
    assert_eq!(report["violations"][0]["invariant"], "I1");
    let mut violations = report["violations"].as_array().expect("a list").iter();
    assert!(violations.any(|v| v["subject"] == json!({"object": "y"})));
}

#[tokio::test]
async fn stats_print_tables_that_fit_and_stable_json() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    let names = state.keys.event_workers();
    state
        .run("HSET", &[&names, &"n".repeat(64), "100 token 1"])
        .await;
    state.emit(&"long-".repeat(100), "{}").await;
    state.add("ZADD objects.held 0 work:5 0 work:8").await;
    let printed = redis.prints("stats --scan");
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
    let parsed = redis.json("stats --json --scan --top 1");
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
    state.add(&format!("ZADD objects.held {ago} work:8")).await;
    let again = redis.json("stats --json");
    assert!((90..150).contains(&first(&again)), "{again}");
    let printed = redis.prints("stats");
    assert!(printed.contains("overdue       1 min since the first due object became due"));
    state.add("ZADD objects.held inf work:5 inf work:8").await;
    let printed = redis.prints("stats");
    assert!(
        printed.contains(": 0 due,") && !printed.contains("overdue"),
        "{printed}"
    );
    assert_eq!(
        parsed["depth"]["top"],
        json!([{"object": "work:1", "events": 2}])
    );
    let cheap = redis.json("stats --json");
    assert_eq!(cheap.get("depth"), None);
    assert_eq!(cheap["workers"][0]["name"], "a");
}

#[tokio::test]
async fn inspect_prints_lines_and_json() {
    let (redis, _state) = Redis::start().with_clean_state().await;
    let printed = redis.prints("inspect work:5");
    assert!(
        printed.contains("stands     held (retry: connection refused), and due now"),
        "{printed}"
    );
    assert!(
        printed.contains("next       in the held batch, id 15, 7 bytes\n           {\"n\":5}"),
        "{printed}"
    );
    let never = redis.prints("inspect never");
    assert!(never.contains("nothing is known of it"));
    let parsed = redis.json("inspect work:2 --json");
    assert_eq!(
        (&parsed["standing"], &parsed["next_event"]["place"]),
        (&json!("owned"), &json!("batch"))
    );
    let bad = redis.run("inspect ''");
    assert_eq!((bad.status.code(), bad.stdout.is_empty()), (Some(2), true));
}

#[test]
fn without_a_redis_each_command_ends_with_3_and_one_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("unix://{}", dir.path().join("nobody.sock").display());
    for arguments in [
        "check",
        "stats",
        "inspect x",
        "dead list",
        "dead retry 1-1",
        "held skip x",
        "actions",
    ] {
        let output = command_at(&url, arguments).output();
        let output = output.expect("the program runs");
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments}: {line}");
        let lines = (line.lines().count(), output.stdout.len());
        assert_eq!(lines, (1, 0), "{arguments}: {line}");
    }
}

/// `seriatim dead list | head -1` ends without an error.
#[tokio::test]
async fn a_reader_that_leaves_is_no_error() {
    let (redis, mut state) = Redis::start().with_state().await;
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
