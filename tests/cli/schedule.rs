//! `seriatim schedule`, `emit --in`, `emit --at` and `emit --tasks`.

use std::time::UNIX_EPOCH;

use serde_json::Value;

use crate::support::Redis;
use crate::support::output::json_lines;

/// Returns the schedules as the list prints them in JSON.
#[track_caller]
fn list(redis: &Redis, options: &str) -> Vec<Value> {
    json_lines(&redis.stdout(&format!("schedule list --json {options}")))
}

fn now_ms() -> u64 {
    let since = UNIX_EPOCH.elapsed().expect("a time");
    u64::try_from(since.as_millis()).expect("a time")
}

#[test]
fn a_schedule_is_added_replaced_listed_and_cancelled() {
    let redis = Redis::start();
    let before = now_ms();
    let added = redis.prints("schedule add user:1 '{\"n\":1}' --in 10m --key renew");
    assert!(added.contains("user:1  renew  (new)"), "{added}");
    let json = redis
        .json("schedule add user:1 '{\"n\":2}' --at 2126-12-24T18:00:00+01:00 --key renew --json");
    assert_eq!(json["change"], "replaced");
    assert_eq!(json["due_ms"], 4_953_805_200_000_u64);
    let kept = redis.prints("schedule add user:1 3 --in 1s --key renew --keep-first");
    assert!(
        kept.contains("2126-12-24T17:00:00") && kept.contains("(kept)"),
        "{kept}"
    );
    redis.prints("schedule add user:2 4 --in 1h");
    let all = list(&redis, "");
    assert_eq!(
        all.iter()
            .map(|one| one["object"].as_str())
            .collect::<Vec<_>>(),
        [Some("user:2"), Some("user:1")]
    );
    assert_eq!(
        (&all[1]["key"], &all[1]["event"]["n"]),
        (&Value::from("renew"), &Value::from(2))
    );
    let due = all[0]["due_ms"].as_u64().expect("a time");
    assert!(
        (before + 3_600_000..now_ms() + 3_600_000).contains(&due),
        "{due}"
    );
    assert_eq!(list(&redis, "--object user:2"), all[..1]);
    assert_eq!(list(&redis, "--from 4000000000"), all[1..]);
    assert_eq!(list(&redis, "--to 4000000000 --limit 5"), all[..1]);
    assert_eq!(list(&redis, "--limit 1").len(), 1);
    let people = redis.prints("schedule list");
    assert!(
        people.contains("user:1  renew\n  due    2126-12-24T17:00:00.000Z, in ")
            && people.contains("event  {\"n\":2}"),
        "{people}"
    );
    let stats = redis.prints("stats");
    assert!(
        stats.contains("schedules     2: 0 due, the first in 59 min"),
        "{stats}"
    );
    let inspected = redis.prints("inspect user:1");
    assert!(
        inspected.contains("scheduled  1 event\n") && inspected.contains("d: renew"),
        "{inspected}"
    );
    assert!(redis.prints("check").contains("2 schedules"));
    redis.prints("schedule cancel user:1 renew");
    let gone = redis.refuses("schedule cancel user:1 renew");
    assert!(gone.contains("user:1 has no schedule \"renew\""), "{gone}");
    let key = all[0]["key"].as_str().expect("a key");
    redis.prints(&["schedule", "cancel", "user:2", key]);
    assert_eq!(list(&redis, ""), Vec::<Value>::new());
}

#[test]
fn one_event_is_emitted_later() {
    let redis = Redis::start();
    assert_eq!(redis.stdout("emit work:1 1 --in 1h"), "");
    assert_eq!(redis.stdout("emit work:1 2 --at 4953805200"), "");
    let events: Vec<_> = list(&redis, "")
        .iter()
        .map(|one| one["event"].clone())
        .collect();
    assert_eq!(events, [1, 2]);
    for (args, what) in [
        ("emit work:1 1 2 --in 1h", "without subevents"),
        ("emit work:1 1 --in soon", "--in"),
        ("emit work:1 1 --at tomorrow", "2026-12-24T18:00:00Z"),
        ("emit work:1 1 --in 1h --at 1", "cannot be used with"),
        ("schedule add work:1 1", "--in"),
        ("schedule add work:1 1 --in 1h --keep-time", "--key"),
        ("schedule add work:1 { --in 1h", "not JSON"),
        (
            "schedule add work:1 1 --in 1h --key 'a\nb'",
            "control characters",
        ),
    ] {
        let why = redis.refuses(args);
        assert!(why.contains(what), "{args}: {why}");
    }
}

/// A file as a job scheduler may write it. A later line with the same key and id replaces the
/// earlier line.
#[test]
fn a_file_of_tasks_is_scheduled() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let tasks = file(
        "tasks.ndjson",
        r#"{"key":"user:1234","id":"renew-subscription","time":4953805200,"url":"https://renewal/1234"}

{"key":"user:1234","id":7,"time":"4953805201","url":"https://renewal/7"}
{"key":"user:1","id":"x","time":"2126-12-24T18:00:02+01:00", "n" : 1.0, "url":"http://x/"}
{"key":"user:1234","id":"renew-subscription","time":"4953805203","url":"https://renewal/1234/year"}
"#,
    );
    let output = redis.run(&["emit", "--tasks", &tasks]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(
        message.contains("4 events") && message.contains("all lines up to 5 are done"),
        "{message}"
    );
    let found = list(&redis, "");
    let shown: Vec<_> = found
        .iter()
        .map(|one| format!("{} {} {}", one["object"], one["key"], one["due_ms"]))
        .collect();
    let expected = [
        "\"user:1234\" \"7\" 4953805201000",
        "\"user:1\" \"x\" 4953805202000",
        "\"user:1234\" \"renew-subscription\" 4953805203000",
    ];
    assert_eq!(shown, expected);
    assert_eq!(found[2]["event"]["url"], "https://renewal/1234/year");
    for (line, what) in [
        (r#"{"id":"x","time":1}"#, "no object at /key"),
        (r#"{"key":"a","time":1}"#, "no id"),
        (r#"{"key":"a","id":"","time":1}"#, "must not be empty"),
        (
            r#"{"key":"a","id":{},"time":1}"#,
            "no string and no whole number",
        ),
        (r#"{"key":"a","id":"x"}"#, "no time"),
        (r#"{"key":"a","id":"x","time":1.5}"#, "the task has no url"),
        (r#"{"key":"a","id":"x","time":1,"url":"x"}"#, "the url: "),
        (r#"{"key":"a","id":"x","time":"soon"}"#, "Unix seconds"),
        (r#"{"key":"a","id":"x","time":1798131600000}"#, "not ms"),
        (r#"{"key":"a","id":"x","time":-5}"#, "the time is -5: write"),
    ] {
        let bad = file(
            "bad.ndjson",
            &format!(
                "{{\"key\":\"a\",\"id\":\"first\",\"time\":4953805200.5,\"url\":\"http://x/\"}}\n{line}\n"
            ),
        );
        let why = redis.refuses(&["emit", "--tasks", &bad]);
        assert!(
            why.contains("bad.ndjson:2: ") && why.contains(what) && why.contains("--skip 1"),
            "{line}: {why}"
        );
    }
    assert_eq!(list(&redis, "--object a").len(), 1);
    let both = redis.refuses(&["emit", "--tasks", &tasks, "--from", &tasks]);
    assert!(both.contains("cannot be used with"), "{both}");
}

/// An operator's cancelling through the library is an action, which `actions` shows with its key.
#[tokio::test]
async fn the_list_of_actions_shows_the_key_of_a_cancelled_schedule() {
    let redis = Redis::start();
    redis.prints("schedule add user:1 1 --in 1h --key 'trial\u{202e}'");
    let control = redis.control().await;
    let by = seriatim::control::By {
        who: "ada",
        why: "moved away",
    };
    control
        .cancel_schedule(by, "user:1", "trial\u{202e}")
        .await
        .expect("cancelled");
    let shown = redis.prints("actions");
    assert!(
        shown.starts_with("cancel  user:1  key trial\\u{202e}\n  by     ada, "),
        "{shown}"
    );
    let line = redis.json("actions --json");
    assert_eq!(
        (&line["action"], &line["key"]),
        (&"cancel".into(), &"trial\u{202e}".into())
    );
    assert_eq!(line["key_escaped"], "trial\\u{202e}");
}
