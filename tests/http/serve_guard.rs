//! `seriatim serve`: the rights of its users, and hostile clients.

use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::serving::{Serving, answer, client_of, command, resident};
use crate::support::console::PATIENCE;
use crate::support::{Redis, free_port, until};

/// The SHA-256 of `hunter2`, and of `password`.
const HUNTER2: &str = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";
const PASSWORD: &str = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";

fn users(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    file
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
    let post = |token: &str, target: &str, body: &str| {
        answer(serving.posted(target, body).bearer_auth(token))
    };
    assert_eq!(
        serving.post(target, "1").await.problem(),
        (401, "unauthorized".to_owned())
    );
    assert_eq!(post("hunter3", target, "1").await.problem().0, 401);
    let basic = serving
        .posted(target, "1")
        .basic_auth("ada", Some("hunter2"));
    assert_eq!(answer(basic).await.problem().0, 401);
    assert_eq!(post("hunter2", target, "1").await.status, 202);
    assert_eq!(
        post("hunter2", "/v1/objects/user:1/events", "1")
            .await
            .problem(),
        (403, "forbidden".to_owned())
    );
    assert_eq!(post("password", target, "1").await.problem().0, 403);
    assert_eq!(
        post("hunter2", target, &"1".repeat(1025)).await.problem(),
        (413, "too-large".to_owned())
    );
    assert_eq!(
        post("hunter2", target, "{").await.problem(),
        (400, "invalid".to_owned())
    );
    let plain = serving
        .posted(target, "1")
        .header("content-type", "text/plain")
        .bearer_auth("hunter2");
    assert_eq!(answer(plain).await.problem().0, 415);
    let typed = serving
        .request(Method::POST, target)
        .header("content-type", "text/plain")
        .body("1")
        .bearer_auth("hunter2");
    assert_eq!(
        answer(typed).await.problem(),
        (415, "content-type".to_owned())
    );
    let host = |host: &'static str| {
        answer(
            serving
                .posted(target, "1")
                .bearer_auth("hunter2")
                .header("host", host),
        )
    };
    assert_eq!(
        host("evil.example").await.problem(),
        (421, "unknown-host".to_owned())
    );
    assert_eq!(host("Events.Example:80").await.status, 202);
    assert_eq!(post("hunter2", "/v1/nothing", "1").await.problem().0, 404);
    assert_eq!(
        answer(
            serving
                .request(Method::PUT, "/v1/stats")
                .bearer_auth("password")
        )
        .await
        .problem()
        .0,
        415
    );
    assert_eq!(
        answer(
            serving
                .request(Method::DELETE, "/v1/stats")
                .bearer_auth("password")
        )
        .await
        .problem(),
        (405, "method".to_owned())
    );
    assert!(!serving.log().contains("hunter2"));
}

/// Tests that only probes need neither a token nor a known host. `seriatim serve` has no metrics, so
/// `/metrics` is checked as every other path.
#[tokio::test]
async fn only_probes_need_neither_token_nor_host() {
    let redis = Redis::start();
    let file = users(&format!("bob {PASSWORD} view\n"));
    let serving = Serving::start(&redis, &["--users", file.path().to_str().expect("a path")]).await;
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
    assert_eq!(
        answer(serving.request(Method::POST, "/healthz"))
            .await
            .status,
        401
    );
}

/// Returns a query with the parameters of an operation that its right depends on.
fn query_of(document: &serde_json::Value, operation: &serde_json::Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let name = |one: &serde_json::Value| {
        let whole = one["$ref"]
            .as_str()
            .map_or(Some(one), |reference| document.pointer(&reference[1..]));
        whole
            .filter(|one| one["in"] == "query")
            .and_then(|one| Some(one["name"].as_str()?.to_owned()))
    };
    let values = [
        ("object", "a"),
        ("key", "k"),
        ("kind", "pause"),
        ("selector", "a"),
        ("name", "w"),
    ];
    let value = |name: String| {
        values
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| format!("{name}={value}"))
    };
    parameters
        .filter_map(name)
        .filter_map(value)
        .collect::<Vec<_>>()
        .join("&")
}

/// Tests every route with users that lack its right. No such request changes anything.
#[tokio::test]
async fn every_route_needs_its_right() {
    let redis = Redis::start();
    let file = users(&format!("emitter {HUNTER2} emit\nviewer {PASSWORD} view\n"));
    let serving = Serving::start(&redis, &["--users", file.path().to_str().expect("a path")]).await;
    let document: serde_json::Value =
        serde_json::from_str(include_str!("../../crates/web/src/serve/openapi.json"))
            .expect("JSON");
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
                let request = if method == Method::POST {
                    request
                        .header("content-type", "application/json")
                        .body(body)
                } else {
                    request
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
    let file = users(&format!("ada {HUNTER2} emit,view,pause,operate work:\n"));
    let serving = Serving::start(&redis, &["--users", file.path().to_str().expect("a path")]).await;
    let get = |target: &str| answer(serving.request(Method::GET, target).bearer_auth("hunter2"));
    let post =
        |target: &str, body: &str| answer(serving.posted(target, body).bearer_auth("hunter2"));
    let mut conn = redis.connect().await;
    for object in ["work:1", "user:1"] {
        redis::pipe()
            .cmd("XADD")
            .arg(console.keys.events_dead())
            .arg("*")
            .arg(&[
                "id", "1", "prev", "0", "object", object, "event", "1", "error", "no", "attempts",
                "1",
            ])
            .exec_async(&mut conn)
            .await
            .expect("added");
    }
    let control = crate::support::control(&conn, redis.keys());
    let page = control.dead_letters(None, 10).await.expect("letters");
    let (own, foreign) = (&page.letters[0].dead_id, &page.letters[1].dead_id);
    let rows = get("/v1/dead").await.json()["rows"].clone();
    assert_eq!(
        (rows.as_array().map(Vec::len), &rows[0]["object"]),
        (Some(1), &serde_json::json!("work:1"))
    );
    assert_eq!(get(&format!("/v1/dead/{foreign}")).await.problem().0, 404);
    assert_eq!(
        post(&format!("/v1/dead/{foreign}/retry"), "")
            .await
            .problem()
            .0,
        404
    );
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
    let lines = answer(
        serving
            .posted(
                "/v1/events",
                "{\"object\":\"work:2\",\"event\":1}\n{\"object\":\"user:2\",\"event\":1}\n",
            )
            .bearer_auth("hunter2"),
    );
    let statuses: Vec<_> = lines
        .await
        .text
        .lines()
        .map(|line| line.contains("\"status\":403"))
        .collect();
    assert_eq!(statuses, [false, true]);
    assert!(
        console
            .list(&console.keys.events("user:1"))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn users_are_read_again_at_sighup() {
    let redis = Redis::start();
    let file = users(&format!("ada {HUNTER2} view\n"));
    let serving = Serving::start(&redis, &["--users", file.path().to_str().expect("a path")]).await;
    let stats =
        |token: &'static str| answer(serving.request(Method::GET, "/v1/stats").bearer_auth(token));
    assert_eq!(
        (
            stats("hunter2").await.status,
            stats("password").await.status
        ),
        (200, 401)
    );
    std::fs::write(file.path(), format!("bob {PASSWORD} view\n")).expect("written");
    serving.signal(rustix::process::Signal::HUP);
    serving.until_logged("read again").await;
    assert_eq!(
        (
            stats("hunter2").await.status,
            stats("password").await.status
        ),
        (401, 200)
    );
    std::fs::write(file.path(), "bob\n").expect("written");
    serving.signal(rustix::process::Signal::HUP);
    serving.until_logged("not read again").await;
    assert_eq!(stats("password").await.status, 200, "the users before stay");
}

/// Story: a revoked token was removed from the users file, and was accepted until somebody thought of
/// SIGHUP. Tests that a change is noticed, and that a file with a mistake has one line in the log.
#[tokio::test]
async fn users_are_read_again_when_they_change() {
    let redis = Redis::start();
    let file = users(&format!("ada {HUNTER2} view\n"));
    let serving = Serving::start(&redis, &["--users", file.path().to_str().expect("a path")]).await;
    let status = async |token: &'static str| {
        answer(serving.request(Method::GET, "/v1/stats").bearer_auth(token))
            .await
            .status
    };
    assert_eq!(
        (status("hunter2").await, status("password").await),
        (200, 401)
    );
    std::fs::write(file.path(), format!("bob {PASSWORD} view\n")).expect("written");
    serving.until_logged(" read again what=\"users\"").await;
    assert_eq!(
        (status("hunter2").await, status("password").await),
        (401, 200)
    );
    let replace = |text: &str| {
        let new = file.path().with_extension("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(&new, file.path()).expect("renamed");
    };
    replace("bob\n");
    serving.until_logged("not read again").await;
    // The file is read again in this time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        serving.log().matches("not read again").count(),
        1,
        "{}",
        serving.log()
    );
    assert_eq!(status("password").await, 200, "the users before stay");
    // A secret of Kubernetes is a link to another file.
    let other = users(&format!("ada {HUNTER2} view\n"));
    let link = file.path().with_extension("link");
    std::os::unix::fs::symlink(other.path(), &link).expect("linked");
    std::fs::rename(&link, file.path()).expect("renamed");
    until("ada is known", PATIENCE, async || {
        (status("hunter2").await == 200).then_some(())
    })
    .await;
    assert_eq!(status("password").await, 401);
}

#[tokio::test]
async fn what_cannot_be_served_is_told_at_the_start() {
    let redis = Redis::start();
    let empty = users("# nobody\n");
    let empty = empty.path().to_str().expect("a path");
    for (options, code, why) in [
        (
            vec!["--listen", "0.0.0.0:0"],
            2,
            "can be reached from other machines",
        ),
        (vec!["--listen", "127.0.0.1"], 2, "write HOST:PORT"),
        (vec!["--users", "/nonexistent"], 2, "No such file"),
        (vec!["--users", empty], 2, "it has no user"),
        (
            vec!["--tls-cert", empty, "--tls-key", empty],
            2,
            "cannot be used",
        ),
        // The directory may be made later, so this is no error of usage.
        (
            vec!["--listen", "unix:/nonexistent/socket"],
            1,
            "cannot listen on unix:/nonexistent/socket",
        ),
    ] {
        let output = command(&redis, &options)
            .stdout(Stdio::null())
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), text.contains(why)),
            (Some(code), true),
            "{options:?}: {text}"
        );
    }
}

#[tokio::test]
async fn a_token_is_made_with_its_line() {
    let output = std::process::Command::new(crate::support::program())
        .args([
            "token",
            "new",
            "ada",
            "--rights",
            "emit,view",
            "--prefix",
            "work:",
        ])
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
    let file = users(&format!("{line}\n"));
    let serving = Serving::start(&redis, &["--users", file.path().to_str().expect("a path")]).await;
    let get = answer(
        serving
            .request(Method::GET, "/v1/objects/work:1")
            .bearer_auth(token),
    )
    .await;
    assert_eq!(get.status, 200, "{get:?}");
}

/// Tests each route with the Redis user of the protocol.
#[tokio::test]
async fn the_rights_of_the_protocol_are_enough() {
    let port = free_port().to_string();
    let redis = Redis::own(&["--port", &port]);
    let (prefix, protocol) = (
        redis.keys().prefix().to_owned(),
        include_str!("../../docs/protocol.md"),
    );
    let mut words = ["ACL", "SETUSER", "serve", "on", ">p"]
        .map(str::to_owned)
        .to_vec();
    for user in ["producer", "scripted", "scheduler", "canceller", "operator"] {
        let begin = format!("    ACL SETUSER {user} on >PASSWORD ");
        let line = protocol
            .lines()
            .find_map(|line| line.strip_prefix(begin.as_str()))
            .expect(user);
        words.extend(rights(&line.replace("{shop:0}:", &prefix)));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _: String = redis.console().await.run(&words).await;
    let control = crate::support::control(&redis.connect().await, redis.keys());
    let by = seriatim::control::By {
        who: "test",
        why: "",
    };
    control
        .set_limit(
            by,
            &"full:*".parse().expect("a selector"),
            std::num::NonZero::new(1),
            None,
        )
        .await
        .expect("set");
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
    for target in [
        "objects/a",
        "objects/a/schedule",
        "stats",
        "schedule",
        "held",
        "paused",
        "dead",
        "dead?object=a",
        "rules",
        "shares",
        "actions",
    ] {
        let answer = serving.get(&format!("/v1/{target}")).await;
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
    }
    assert_eq!(serving.delete("/v1/objects/a/schedule/k").await.status, 204);
    assert_eq!(
        serving
            .delete("/v1/rules?kind=block&selector=a")
            .await
            .status,
        200
    );
    assert_eq!(serving.delete("/v1/shares?selector=a:*").await.status, 200);
}

/// Splits the rights of an ACL line. A selector in parentheses counts as one right.
fn rights(line: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match found
            .last_mut()
            .filter(|last| last.starts_with('(') && !last.ends_with(')'))
        {
            Some(selector) => *selector = format!("{selector} {word}"),
            None => found.push(word.to_owned()),
        }
    }
    found
}

/// Tests that 10,000 connections that send nothing, or a byte now and then, do not stop the server,
/// and that its memory stays bounded.
#[tokio::test]
async fn ten_thousand_idle_and_dribbling_connections_do_not_stop_it() {
    const CONNECTIONS: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("raised");
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let address = serving
        .url
        .strip_prefix("http://")
        .expect("http")
        .to_owned();
    assert_eq!(serving.post("/v1/objects/a/events", "1").await.status, 202);
    let before = resident(serving.pid());
    let mut streams = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(&address).await.expect("connected");
        let part: &[u8] = match number % 4 {
            0 => b"",
            1 => b"POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\nx-",
            2 => b"POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n\"",
            _ => b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"obj\r\n",
        };
        stream.write_all(part).await.expect("sent");
        streams.push(stream);
    }
    for stream in streams.iter_mut().step_by(7) {
        let _ = stream.write_all(b"a").await;
    }
    assert_eq!(serving.post("/v1/objects/a/events", "2").await.status, 202);
    let after = resident(serving.pid());
    println!(
        "{} KiB before, {} KiB with {CONNECTIONS} connections",
        before / 1024,
        after / 1024
    );
    assert!(
        after - before < CONNECTIONS as u64 * 48 * 1024,
        "{before} {after}"
    );
    drop(streams);
    assert_eq!(serving.post("/v1/objects/a/events", "3").await.status, 202);
}

/// Tests that a connection above the limit takes the place of the one that was unused for longest.
#[tokio::test]
async fn a_connection_above_the_limit_takes_the_place_of_an_unused_one() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &["--connections", "4"]).await;
    let address = serving
        .url
        .strip_prefix("http://")
        .expect("http")
        .to_owned();
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(&address).await.expect("connected");
        stream
            .write_all(b"GET /v1/rules HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .expect("sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
        kept.push(stream);
    }
    // One of the four places is for new connections.
    for (at, stream) in kept.iter_mut().enumerate() {
        let mut rest = Vec::new();
        let read = timeout(
            if at == 0 {
                PATIENCE
            } else {
                Duration::from_millis(50)
            },
            stream.read_to_end(&mut rest),
        )
        .await;
        assert_eq!(read.is_ok(), at == 0, "{at}");
    }
}

/// Tests that bodies that never end take a bounded part of the memory, and that requests work
/// afterwards.
#[tokio::test]
async fn bodies_have_a_bounded_part_of_the_memory() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let address = serving
        .url
        .strip_prefix("http://")
        .expect("a URL")
        .to_owned();
    let part = vec![b' '; 2_000_000];
    let head = "POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2000001\r\n\r\n";
    let (mut waiting, mut refused) = (Vec::new(), 0);
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        stream.write_all(head.as_bytes()).await.expect("written");
        // The server may close a refused connection before the whole part is written.
        let _ = stream.write_all(&part).await;
        let mut answer = [0; 12];
        match timeout(Duration::from_millis(20), stream.read_exact(&mut answer)).await {
            Ok(_) => {
                assert_eq!(&answer, b"HTTP/1.1 503");
                refused += 1;
            }
            Err(_) => waiting.push(stream),
        }
    }
    // On a busy machine an answer may come later.
    let mut late = Vec::new();
    for mut stream in waiting {
        let mut answer = [0; 12];
        match timeout(Duration::from_millis(20), stream.read_exact(&mut answer)).await {
            Ok(_) => refused += 1,
            Err(_) => late.push(stream),
        }
    }
    let waiting = late;
    assert!(
        refused >= 40 && waiting.len() >= 100,
        "{refused} refused, {} waiting",
        waiting.len()
    );
    let bytes = resident(serving.pid());
    assert!(bytes < 700 << 20, "{bytes}");
    drop(waiting);
    until("a request has room", PATIENCE, async || {
        (serving.post("/v1/objects/a/events", "1").await.status == 202).then_some(())
    })
    .await;
}

/// Tests that a client that sends a large body before it reads gets the answer all the same.
#[tokio::test]
async fn a_refused_body_does_not_hide_the_answer() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    let address = serving
        .url
        .strip_prefix("http://")
        .expect("a URL")
        .to_owned();
    for (kind, status) in [("text/plain", "415"), ("application/json", "413")] {
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        let head = format!(
            "POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 20000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        for _ in 0..200 {
            stream
                .write_all(&[b' '; 100_000])
                .await
                .expect("it is read");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
}

/// Tests a listener in the file system, and that its file is gone after the stop.
#[tokio::test]
async fn a_socket_in_the_file_system_is_served() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().expect("a directory"));
    let path = dir.path().join("serve.sock");
    let client = client_of(|client| client.unix_socket(path.clone()));
    let address = format!("unix:{}", path.display());
    let mut serving = Serving::start_at(&redis, &address, &[], client.clone()).await;
    let request = client
        .post("http://localhost/v1/objects/a/events")
        .header("content-type", "application/json")
        .body("1");
    assert_eq!(crate::serving::answer(request).await.status, 202);
    serving.signal(rustix::process::Signal::TERM);
    assert!(serving.ended().await.success() && !path.exists());
}

/// Tests that a body in another coding is refused: its bytes are not the event.
#[tokio::test]
async fn a_transfer_coding_other_than_chunked_is_refused() {
    let redis = Redis::start();
    let serving = Serving::start(&redis, &[]).await;
    for coding in ["gzip, chunked", "gzip\r\ntransfer-encoding: chunked"] {
        let mut stream = TcpStream::connect(serving.url.strip_prefix("http://").expect("a URL"))
            .await
            .expect("a connection");
        let head = format!(
            "POST /v1/objects/a/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: {coding}\r\n\r\n1\r\n1\r\n0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 501", "{coding}");
    }
}
