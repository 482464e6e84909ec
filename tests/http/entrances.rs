//! Tests that the commands and the HTTP server refuse the same things with the same words, and accept
//! the same things.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::serving::{Answer, Serving};
use crate::support::Redis;

/// Runs a command. Returns its exit code and its messages.
fn run(redis: &Redis, args: &[&str], input: &str) -> (Option<i32>, String) {
    let mut program = Command::new(crate::support::program());
    program
        .args(["--redis", redis.url(), "--namespace", redis.namespace()])
        .args(args);
    program
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = program.spawn().expect("it starts");
    // The command may end before it has read its input.
    let _ = child
        .stdin
        .take()
        .expect("an input")
        .write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[track_caller]
fn refused(found: &(Option<i32>, String), words: &str) {
    assert!(
        found.0 == Some(2) && found.1.contains(words),
        "{words}: {found:?}"
    );
}

#[track_caller]
fn refused_by_http(found: &Answer, words: &str) {
    let detail = found.json()["detail"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        found.status == 400 && detail.contains(words),
        "{words}: {found:?}"
    );
}

/// Story: `--in` and `--at` took the year 9998, while `after_ms` ended after 100 years. 9999-12-31 was
/// no date for `--at`, but its number was taken.
#[tokio::test]
async fn due_times_have_one_bound() {
    const FAR: &str = "at most 100 years from now";
    const LATEST: &str = "after 9999-12-30T22:00:00Z, the latest time";
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let add = |args: &[&str]| run(&redis, &[&["schedule", "add", "a", "1"], args].concat(), "");
    let post = async |body: Value| {
        serving
            .post("/v1/objects/a/schedule", &body.to_string())
            .await
    };
    let task = async |time: Value| {
        let body = json!({ "key": "a", "id": "x", "time": time, "url": "https://x/" }).to_string();
        (
            run(&redis, &["emit", "--tasks", "-"], &body),
            serving.post("/v1/objects/a/tasks", &body).await,
        )
    };
    for (time, words) in [
        (json!("9998-01-01T00:00:00Z"), FAR),
        (json!(253_339_228_800_u64), FAR),
        (json!("9999-12-31T00:00:00Z"), LATEST),
        (json!(253_402_214_400_u64), LATEST),
        (json!("253402214400"), LATEST),
    ] {
        let text = time
            .as_str()
            .map_or_else(|| time.to_string(), str::to_owned);
        refused(&add(&["--at", &text]), words);
        refused(&run(&redis, &["emit", "a", "1", "--at", &text], ""), words);
        refused_by_http(&post(json!({ "event": 1, "time": time })).await, words);
        let (command, http) = task(time).await;
        refused(&command, words);
        refused_by_http(&http, words);
    }
    // Story: `10M` was read as ten months.
    let minutes = "write 30m for minutes";
    refused(&add(&["--in", "10M"]), minutes);
    refused(
        &run(&redis, &["emit", "a", "1", "--in", "1h 10M"], ""),
        minutes,
    );
    refused(&add(&["--in", "8000y"]), FAR);
    refused(&run(&redis, &["emit", "a", "1", "--in", "8000y"], ""), FAR);
    refused_by_http(
        &post(json!({ "event": 1, "after_ms": 252_000_000_000_000_u64 })).await,
        FAR,
    );
    assert_eq!(
        serving.get("/v1/objects/a/schedule").await.json()["rows"],
        json!([])
    );

    // Story: `time.time()` of Python has a fraction. `--tasks` and the route refused it.
    let (command, http) = task(json!(4_102_444_800.25)).await;
    assert_eq!(
        (command.0, http.status),
        (Some(0), 202),
        "{command:?} {http:?}"
    );
    assert_eq!(http.json()["due_ms"], 4_102_444_800_250_u64);
    assert_eq!(
        post(json!({ "event": 1, "time": 4_102_444_800.5 }))
            .await
            .json()["due_ms"],
        4_102_444_800_500_u64
    );
    assert_eq!(add(&["--at", "4102444800.5"]).0, Some(0));
}

/// Story: a task without a URL was accepted with 202, and became a dead letter when it was due.
#[tokio::test]
async fn a_task_that_cannot_be_delivered_is_refused_at_once() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    for (task, words) in [
        (
            json!({ "key": "a", "id": "x", "time": 4_102_444_800_u64 }),
            "the task has no url",
        ),
        (
            json!({ "key": "a", "id": "x", "time": 4_102_444_800_u64, "url": 7 }),
            "the url is no string",
        ),
        (
            json!({ "key": "a", "id": "x", "time": 4_102_444_800_u64, "url": "ftp://x/" }),
            "must begin with http:// or https://",
        ),
        (
            json!({ "key": "a", "time": 4_102_444_800_u64, "url": "https://x/" }),
            "the task has no id",
        ),
        (
            json!({ "key": "a", "id": "x", "url": "https://x/" }),
            "the task has no time",
        ),
        (
            json!({ "key": "a", "id": "x", "time": "soon", "url": "https://x/" }),
            "the time is \"soon\": write ",
        ),
        (
            json!({ "key": "a", "id": "x\ny", "time": 1, "url": "https://x/" }),
            "control characters",
        ),
    ] {
        let body = task.to_string();
        refused(&run(&redis, &["emit", "--tasks", "-"], &body), words);
        refused_by_http(&serving.post("/v1/objects/a/tasks", &body).await, words);
    }
    assert_eq!(
        serving.get("/v1/objects/a/schedule").await.json()["rows"],
        json!([])
    );
}

/// Story: the refusal of `--sink-timeout 2h` did not name the option.
#[tokio::test]
async fn times_of_rules_prefixes_shares_and_reasons_have_one_check() {
    let redis = Redis::start();
    let sink = ["worker", "--sink", "http://x/", "--sink-timeout", "2h"];
    refused(
        &run(&redis, &sink, ""),
        "--sink-timeout is 7200s; it must be 10 ms to 1 h",
    );
    let serving = Serving::start(&redis, &[]).await;
    for (text, ms) in [("0s", 0_u64), ("101y", 101 * 366 * 86_400_000)] {
        refused(
            &run(&redis, &["pause", "a", "--for", text], ""),
            "1 ms to 100 years",
        );
        let rule = json!({ "kind": "pause", "selector": "a", "for_ms": ms }).to_string();
        refused_by_http(&serving.post("/v1/rules", &rule).await, "1 ms to 100 years");
    }
    const STAR: &str = "a prefix has no star at its end; write \"work:\"";
    refused(
        &run(&redis, &["held", "release", "--prefix", "work:*"], ""),
        STAR,
    );
    refused(
        &run(&redis, &["token", "new", "ada", "--prefix", "work:*"], ""),
        STAR,
    );
    refused_by_http(
        &serving
            .post("/v1/held/release", "{\"prefix\":\"work:*\"}")
            .await,
        STAR,
    );
    refused_by_http(&serving.get("/v1/held?prefix=work:*").await, STAR);
    refused_by_http(&serving.get("/v1/paused?prefix=work:*").await, STAR);
    for (option, member, value) in [
        ("--weight", "weight", 0),
        ("--weight", "weight", 101),
        ("--in-flight", "in_flight", 0),
    ] {
        const WORDS: &str = "of a share must be a whole number from 1 to 100";
        let words = if member == "weight" {
            WORDS
        } else {
            "the number of objects in hand of a share must be"
        };
        refused(
            &run(
                &redis,
                &["share", "set", "work:*", option, &value.to_string()],
                "",
            ),
            words,
        );
        refused_by_http(
            &serving
                .post(
                    "/v1/shares",
                    &json!({ "selector": "work:*", member: value }).to_string(),
                )
                .await,
            words,
        );
    }
    for reason in ["", "  "] {
        const WORDS: &str = "a drop of dead letters needs a reason";
        refused(
            &run(&redis, &["dead", "drop", "1-1", "--reason", reason], ""),
            WORDS,
        );
        refused(
            &run(&redis, &["dead", "drop", "--all", "--reason", reason], ""),
            WORDS,
        );
        refused_by_http(
            &serving
                .post(
                    "/v1/dead/drop",
                    &json!({ "all": true, "reason": reason }).to_string(),
                )
                .await,
            WORDS,
        );
    }
}
