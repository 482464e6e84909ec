//! The rights of users, as the users file gives them, and the rights of the Redis user.

use std::num::NonZero;
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use seriatim::control::By;

use super::users;
use crate::serving::{Serving, answer};
use crate::support::console::PATIENCE;
use crate::support::{Redis, free_port, until};

/// The SHA-256 of `hunter2`, and of `password`.
const HUNTER2: &str = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";
const PASSWORD: &str = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";

/// Starts a server with these users. Returns it and the file of the users.
async fn with_users(redis: &Redis, text: &str) -> (tempfile::NamedTempFile, Serving) {
    let file = users(text);
    let options = ["--users", file.path().to_str().expect("a path")];
    let serving = Serving::start(redis, &options).await;
    (file, serving)
}

#[tokio::test]
async fn each_refusal_is_a_problem_document() {
    let redis = Redis::start();
    let file = users(&format!(
        "ada {HUNTER2} emit work:\nbob {PASSWORD} view,pause\n"
    ));
    let options = [
        "--users",
        file.path().to_str().expect("a path"),
        "--body-bytes",
        "1KiB",
        "--host",
        "events.example",
    ];
    let serving = Serving::start(&redis, &options).await;
    let target = "/v1/objects/work:1/events";
    let problem = async |request: RequestBuilder| {
        let (status, word) = answer(request).await.problem();
        format!("{status} {word}")
    };
    let by =
        |token: &str, target: &str, body: &str| serving.posted(target, body).bearer_auth(token);
    let ok = || by("hunter2", target, "1");
    let basic = serving
        .posted(target, "1")
        .basic_auth("ada", Some("hunter2"));
    let text = |request: RequestBuilder| request.header("content-type", "text/plain");
    let bare = |method: Method, target: &str, token: &str| {
        serving.request(method, target).bearer_auth(token)
    };
    for (request, expected) in [
        (serving.posted(target, "1"), "401 unauthorized"),
        (by("hunter3", target, "1"), "401 "),
        (basic, "401 "),
        (
            by("hunter2", "/v1/objects/user:1/events", "1"),
            "403 forbidden",
        ),
        (by("password", target, "1"), "403 "),
        (by("hunter2", target, &"1".repeat(1025)), "413 too-large"),
        (by("hunter2", target, "{"), "400 invalid"),
        (text(ok()), "415 "),
        (
            text(bare(Method::POST, target, "hunter2").body("1")),
            "415 content-type",
        ),
        (ok().header("host", "evil.example"), "421 unknown-host"),
        (by("hunter2", "/v1/nothing", "1"), "404 "),
        (bare(Method::PUT, "/v1/stats", "password"), "415 "),
        (bare(Method::DELETE, "/v1/stats", "password"), "405 method"),
    ] {
        let what = format!("{request:?}");
        let found = problem(request).await;
        assert!(found.starts_with(expected), "{found}: {what}");
    }
    for accepted in [ok(), ok().header("host", "Events.Example:80")] {
        assert_eq!(answer(accepted).await.status, 202);
    }
    assert!(!serving.log().contains("hunter2"));
}

/// Tests that only probes need neither a token nor a known host. `seriatim serve` has no metrics, so
/// `/metrics` is checked as every other path.
#[tokio::test]
async fn only_probes_need_neither_token_nor_host() {
    let redis = Redis::start();
    let (_file, serving) = with_users(&redis, &format!("bob {PASSWORD} view\n")).await;
    for (path, host, status) in [
        ("/healthz", "pod.example", 200),
        ("/readyz", "pod.example", 200),
        ("/v1/rules", "pod.example", 421),
        ("/v1/rules", "localhost", 401),
        ("/metrics", "pod.example", 421),
        ("/metrics", "localhost", 401),
    ] {
        let found = answer(serving.request(Method::GET, path).header("host", host)).await;
        assert_eq!(found.status, status, "{path} {host}: {found:?}");
    }
    let posted = answer(serving.request(Method::POST, "/healthz")).await;
    assert_eq!(posted.status, 401);
}

/// Returns a query with the parameters of an operation that its right depends on.
fn query_of(document: &serde_json::Value, operation: &serde_json::Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let name = |one: &serde_json::Value| {
        let reference = one["$ref"].as_str();
        let whole = reference.map_or(Some(one), |reference| document.pointer(&reference[1..]));
        let of_query = whole.filter(|one| one["in"] == "query")?;
        Some(of_query["name"].as_str()?.to_owned())
    };
    let known = ["object=a", "key=k", "kind=pause", "selector=a", "name=w"];
    let value = |name: String| {
        let mut known = known.into_iter();
        known.find(|known| known.starts_with(&format!("{name}=")))
    };
    let values: Vec<_> = parameters.filter_map(name).filter_map(value).collect();
    values.join("&")
}

/// Tests every route with users that lack its right. No such request changes anything.
#[tokio::test]
async fn every_route_needs_its_right() {
    let redis = Redis::start();
    let (_file, serving) = with_users(
        &redis,
        &format!("emitter {HUNTER2} emit\nviewer {PASSWORD} view\n"),
    )
    .await;
    let document = include_str!("../../../crates/web/src/serve/openapi.json");
    let document: serde_json::Value = serde_json::from_str(document).expect("JSON");
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let description = operation["description"].as_str().expect("a description");
            let Some(right) = description.strip_prefix("Needs the right ") else {
                continue;
            };
            let right = right.split(['.', ',', ';', ' ']).next().expect("a right");
            let target = path
                .replace("{object}", "a")
                .replace("{key}", "k")
                .replace("{id}", "1-1");
            let target = format!("{target}?{}", query_of(&document, operation));
            let method: Method = method.to_uppercase().parse().expect("a method");
            let body = if path == "/v1/rules" {
                "{\"kind\":\"pause\",\"selector\":\"a\"}"
            } else {
                "{\"reason\":\"\"}"
            };
            for (token, has) in [("hunter2", "emit"), ("password", "view")] {
                let request = serving.request(method.clone(), &target).bearer_auth(token);
                let request = match method {
                    Method::POST => request
                        .header("content-type", "application/json")
                        .body(body),
                    _ => request,
                };
                let answer = answer(request).await;
                assert_eq!(
                    answer.status == 403,
                    right != has,
                    "{method} {target} as {token}: {answer:?}"
                );
                assert!(
                    answer.status != 404 || !answer.text.contains("no such route"),
                    "{method} {target}: {answer:?}"
                );
                assert_ne!(answer.status, 405, "{method} {target}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 50, "{tried}");
}

/// Tests that a user with prefixes sees and changes only objects whose names begin with one of
/// them.
#[tokio::test]
async fn prefixes_bind_looks_and_actions() {
    let redis = Redis::start();
    let console = redis.console().await;
    let (_file, serving) = with_users(
        &redis,
        &format!("ada {HUNTER2} emit,view,pause,operate work:\n"),
    )
    .await;
    let get = |target: &str| answer(serving.request(Method::GET, target).bearer_auth("hunter2"));
    let post =
        |target: &str, body: &str| answer(serving.posted(target, body).bearer_auth("hunter2"));
    for object in ["work:1", "user:1"] {
        let letter = format!("id 1 prev 0 object {object} event 1 error no attempts 1");
        console.add(&format!("XADD events.dead * {letter}")).await;
    }
    let control = crate::support::control(&console.conn(), redis.keys());
    let page = control.dead_letters(None, 10).await.expect("letters");
    let (own, foreign) = (&page.letters[0].dead_id, &page.letters[1].dead_id);
    let rows = get("/v1/dead").await.json()["rows"].clone();
    assert_eq!(
        (rows.as_array().map(Vec::len), &rows[0]["object"]),
        (Some(1), &serde_json::json!("work:1"))
    );
    assert_eq!(get(&format!("/v1/dead/{foreign}")).await.problem().0, 404);
    let retried = post(&format!("/v1/dead/{foreign}/retry"), "").await;
    assert_eq!(retried.problem().0, 404);
    assert_eq!(post(&format!("/v1/dead/{own}/retry"), "").await.status, 200);
    for target in [
        "/v1/stats",
        "/v1/actions",
        "/v1/objects/user:1",
        "/v1/dead?object=user:1",
        "/v1/objects/user:1/schedule",
    ] {
        assert_eq!(get(target).await.problem().0, 403, "{target}");
    }
    for (selector, status) in [
        ("work:*", 200),
        ("work:1", 200),
        ("work*", 400),
        ("*", 403),
        ("user:*", 403),
        ("wor:*", 403),
    ] {
        let rule = serde_json::json!({ "kind": "pause", "selector": selector }).to_string();
        assert_eq!(post("/v1/rules", &rule).await.status, status, "{selector}");
    }
    let lines = "{\"object\":\"work:2\",\"event\":1}\n{\"object\":\"user:2\",\"event\":1}\n";
    let replies = post("/v1/events", lines).await.text;
    let replies = replies.lines();
    let is_refused: Vec<_> = replies
        .map(|line| line.contains("\"status\":403"))
        .collect();
    assert_eq!(is_refused, [false, true]);
    let events = console.list(&console.keys.events("user:1")).await;
    assert!(events.is_empty(), "{events:?}");
}

/// Returns the statuses of a look with the token `hunter2`, and with the token `password`.
async fn statuses(serving: &Serving) -> (u16, u16) {
    let look = |token: &str| {
        let request = serving.request(Method::GET, "/v1/stats");
        answer(request.bearer_auth(token))
    };
    (look("hunter2").await.status, look("password").await.status)
}

#[tokio::test]
async fn users_are_read_again_at_sighup() {
    let redis = Redis::start();
    let (file, serving) = with_users(&redis, &format!("ada {HUNTER2} view\n")).await;
    assert_eq!(statuses(&serving).await, (200, 401));
    std::fs::write(file.path(), format!("bob {PASSWORD} view\n")).expect("written");
    serving.signal(rustix::process::Signal::HUP);
    serving.until_logged("read again").await;
    assert_eq!(statuses(&serving).await, (401, 200));
    std::fs::write(file.path(), "bob\n").expect("written");
    serving.signal(rustix::process::Signal::HUP);
    serving.until_logged("not read again").await;
    assert_eq!(statuses(&serving).await.1, 200, "the users before stay");
}

/// Story: a revoked token was removed from the users file, and was accepted until somebody thought of
/// SIGHUP. Tests that a change is noticed, and that a file with a mistake has one line in the log.
#[tokio::test]
async fn users_are_read_again_when_they_change() {
    let redis = Redis::start();
    let (file, serving) = with_users(&redis, &format!("ada {HUNTER2} view\n")).await;
    assert_eq!(statuses(&serving).await, (200, 401));
    std::fs::write(file.path(), format!("bob {PASSWORD} view\n")).expect("written");
    serving.until_logged(" read again what=\"users\"").await;
    assert_eq!(statuses(&serving).await, (401, 200));
    let replace = |text: &str| {
        let new = file.path().with_extension("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(&new, file.path()).expect("renamed");
    };
    replace("bob\n");
    serving.until_logged("not read again").await;
    // The file is read again in this time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let log = serving.log();
    assert_eq!(log.matches("not read again").count(), 1, "{log}");
    assert_eq!(statuses(&serving).await.1, 200, "the users before stay");
    // A secret of Kubernetes is a link to another file.
    let other = users(&format!("ada {HUNTER2} view\n"));
    let link = file.path().with_extension("link");
    std::os::unix::fs::symlink(other.path(), &link).expect("linked");
    std::fs::rename(&link, file.path()).expect("renamed");
    until("ada is known", PATIENCE, async || {
        (statuses(&serving).await.0 == 200).then_some(())
    })
    .await;
    assert_eq!(statuses(&serving).await.1, 401);
}

#[tokio::test]
async fn a_token_is_made_with_its_line() {
    let words = "token new ada --rights emit,view --prefix work:";
    let output = std::process::Command::new(crate::support::program())
        .args(words.split(' '))
        .output()
        .expect("it runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let (token, line) = text.trim().split_once('\n').expect("two lines");
    let token = token.strip_prefix("token  ").expect("a token");
    let line = line.strip_prefix("line   ").expect("a line");
    assert!(
        line.starts_with("ada ") && line.ends_with(" emit,view work:"),
        "{line}"
    );
    let redis = Redis::start();
    let (_file, serving) = with_users(&redis, &format!("{line}\n")).await;
    let look = serving.request(Method::GET, "/v1/objects/work:1");
    let get = answer(look.bearer_auth(token)).await;
    assert_eq!(get.status, 200, "{get:?}");
}

/// Tests each route with the Redis user of the protocol.
#[tokio::test]
async fn the_rights_of_the_protocol_are_enough() {
    let port = free_port().to_string();
    let redis = Redis::own(&["--port", &port]);
    let prefix = redis.keys().prefix().to_owned();
    let protocol = include_str!("../../../docs/protocol.md");
    let mut words = rights("ACL SETUSER serve on >p");
    for user in ["producer", "scripted", "scheduler", "canceller", "operator"] {
        let begin = format!("    ACL SETUSER {user} on >PASSWORD ");
        let mut lines = protocol.lines();
        let line = lines.find_map(|line| line.strip_prefix(begin.as_str()));
        let line = line.expect(user);
        words.extend(rights(&line.replace("{shop:0}:", &prefix)));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _: String = redis.console().await.run(&words).await;
    let control = crate::support::control(&redis.connect().await, redis.keys());
    let (who, why) = ("test", "");
    let (full, one) = ("full:*".parse().expect("a selector"), NonZero::new(1));
    let set = control.set_limit(By { who, why }, &full, one, None).await;
    set.expect("set");
    // The option `--redis` after `serve` replaces the one before `serve`.
    let url = format!("redis://serve:p@127.0.0.1:{port}");
    let serving = Serving::start(&redis, &["--redis", &url]).await;
    let schedule = "{\"key\":\"k\",\"time\":4102444800,\"event\":1}";
    for (target, body, status) in [
        ("/v1/objects/a/events", "1", 202),
        (
            "/v1/objects/a/events?parts=true",
            "{\"event\":1,\"data\":2}",
            202,
        ),
        ("/v1/objects/full:1/events", "1", 202),
        ("/v1/objects/full:1/events", "1", 429),
        ("/v1/objects/a/schedule", schedule, 202),
        ("/v1/objects/a/schedule", schedule, 202),
        (
            "/v1/objects/a/tasks",
            "{\"id\":1,\"time\":4102444800,\"url\":\"http://x/\"}",
            202,
        ),
        ("/v1/objects/a/release", "", 409),
        ("/v1/objects/a/skip", "", 409),
        ("/v1/dead/1-1/retry", "", 404),
        ("/v1/rules", "{\"kind\":\"block\",\"selector\":\"a\"}", 200),
        (
            "/v1/shares",
            "{\"selector\":\"a:*\",\"in_flight\":5,\"rate\":5}",
            200,
        ),
    ] {
        let answer = serving.post(target, body).await;
        assert_eq!(answer.status, status, "{target}: {answer:?}");
    }
    let keyed = serving
        .posted("/v1/objects/a/events", "1")
        .header("idempotency-key", "k");
    assert_eq!(answer(keyed).await.status, 202);
    let lines = serving
        .lines("{\"object\":\"full:1\",\"event\":1}\n{\"object\":\"b\",\"event\":1}\n")
        .await;
    assert_eq!(
        (&lines[0]["status"], &lines[1]["status"]),
        (&serde_json::json!(429), &serde_json::json!(202))
    );
    let targets = "objects/a objects/a/schedule stats schedule held paused dead dead?object=a rules \
                   shares actions";
    for target in targets.split_whitespace() {
        let answer = serving.get(&format!("/v1/{target}")).await;
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
    }
    for (target, status) in [
        ("objects/a/schedule/k", 204),
        ("rules?kind=block&selector=a", 200),
        ("shares?selector=a:*", 200),
    ] {
        let answer = serving.delete(&format!("/v1/{target}")).await;
        assert_eq!(answer.status, status, "{target}: {answer:?}");
    }
}

/// Splits the rights of an ACL line. A selector in parentheses counts as one right.
fn rights(line: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let last = found.last_mut();
        match last.filter(|last| last.starts_with('(') && !last.ends_with(')')) {
            Some(selector) => *selector = format!("{selector} {word}"),
            None => found.push(word.to_owned()),
        }
    }
    found
}
