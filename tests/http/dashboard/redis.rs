//! A Redis user with few rights, and a Redis that is away, hangs, is full, or has foreign keys.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::rig::{Dash, Reply, Scene, USERS, path, reply, users};
use crate::support::{Redis, free_port};

/// The longest time in which every page must answer.
const ANSWER_MAX: Duration = Duration::from_secs(6);

const PAGES: [&str; 14] = [
    "/",
    "/object?name=work:held",
    "/object?name=work:done",
    "/held",
    "/paused",
    "/dead",
    "/workers",
    "/worker?name=w",
    "/rules",
    "/schedules",
    "/cron",
    "/log",
    "/actions",
    "/check",
];

const ROUTES: [&str; 17] = [
    "/v1/objects/work:held",
    "/v1/objects/work:done/chain",
    "/v1/objects/work:later/schedule",
    "/v1/stats",
    "/v1/schedule",
    "/v1/held",
    "/v1/paused",
    "/v1/dead?object=work:dead",
    "/v1/rules",
    "/v1/shares",
    "/v1/actions",
    "/v1/log",
    "/v1/cron",
    "/v1/workers",
    "/v1/queues",
    "/v1/depth",
    "/v1/check",
];

/// The actions, and the text of their result if they are done.
const ACTS: [(&[(&str, &str)], &str); 14] = [
    (
        &[("act", "skip"), ("row", "7 work:held")],
        "is now the dead letter",
    ),
    (&[("act", "release"), ("row", "- work:retry")], "released"),
    (
        &[("act", "release-all"), ("prefix", "user:")],
        "<b>2</b> done",
    ),
    (&[("act", "retry"), ("row", "LETTER-0")], "queued again"),
    (&[("act", "drop"), ("row", "LETTER-1")], "dropped"),
    (
        &[("act", "retry-all"), ("object", "other:dead")],
        "<b>1</b> done",
    ),
    (
        &[("act", "pause"), ("selector", "a:*")],
        "set; workers obey",
    ),
    (&[("act", "resume"), ("selector", "a:*")], "lifted"),
    (
        &[("act", "block"), ("selector", "b"), ("for", "1h")],
        "set; workers obey",
    ),
    (&[("act", "unblock"), ("selector", "b")], "lifted"),
    (&[("act", "forget"), ("object", "work:idle")], "forgotten"),
    (
        &[
            ("act", "cancel"),
            ("object", "work:later"),
            ("key", "later"),
        ],
        "cancelled",
    ),
    (
        &[("act", "run-cron"), ("name", "work-nightly")],
        "its event is queued",
    ),
    (&[("act", "pause-cron"), ("name", "work-nightly")], "paused"),
];

async fn page(dash: &Dash, target: &str) -> Reply {
    let begun = Instant::now();
    let found = dash.page_as("operator", target).await;
    assert!(
        begun.elapsed() < ANSWER_MAX,
        "{target}: {:?}",
        begun.elapsed()
    );
    assert!(!dash.log().contains("panicked"), "{target}: {}", dash.log());
    found
}

/// Does an action. Returns the page with its result.
async fn act(dash: &Dash, scene: &Scene, fields: &[(&str, &str)]) -> Reply {
    let filled = |value: &str| {
        value
            .replace("LETTER-0", &scene.dead[0])
            .replace("LETTER-1", &scene.dead[1])
    };
    let filled: Vec<(&str, String)> = fields
        .iter()
        .map(|(name, value)| (*name, filled(value)))
        .collect();
    let mut form: Vec<(&str, &str)> = filled
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    form.push(("reason", "because"));
    let begun = Instant::now();
    let answer = dash.post_as("operator", "/act", &form).await;
    assert!(
        begun.elapsed() < ANSWER_MAX && answer.status == 303,
        "{fields:?}: {:?} {answer:?}",
        begun.elapsed()
    );
    page(dash, answer.header("location")).await
}

/// Returns the rights of a user in the protocol.
fn rights(user: &str, prefix: &str) -> Vec<String> {
    let begin = format!("    ACL SETUSER {user} on >PASSWORD ");
    let protocol = include_str!("../../../docs/protocol.md");
    let line = protocol
        .lines()
        .find_map(|line| line.strip_prefix(begin.as_str()))
        .expect(user);
    line.replace("{shop:0}:", prefix)
        .split(' ')
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn the_rights_of_a_viewer_show_every_page_and_those_of_an_operator_do_every_action() {
    let port = free_port().to_string();
    let redis = Redis::own(&["--port", &port]);
    let prefix = redis.keys().prefix().to_owned();
    let console = redis.console().await;
    let (scene, file) = (Scene::over(redis, "payload").await, users(&USERS));
    let set = async |user: &str| {
        let mut words: Vec<String> = ["ACL", "SETUSER", "dash", "on", ">p"]
            .map(str::to_owned)
            .to_vec();
        words.extend(rights(user, &prefix));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _: String = console.run(&words).await;
    };
    set("viewer").await;
    let url = format!("redis://dash:p@127.0.0.1:{port}");
    let dash = Dash::start_to(&url, &scene.redis, &["--users", path(&file)]).await;
    let before = scene.dump().await;
    for target in PAGES.into_iter().chain(ROUTES) {
        let found = page(&dash, target).await;
        assert!(
            found.status == 200
                && !found.text.contains("NOPERM")
                && !found.text.contains("role=\"alert\""),
            "{target}: {found:?}"
        );
    }
    for (fields, _) in ACTS {
        let found = act(&dash, &scene, fields).await;
        let says = found.text.contains("the Redis user may not use")
            && found.text.contains("nothing was done");
        assert!(says, "{fields:?}: {}", found.text);
    }
    assert_eq!(dash.post_as("operator", "/check", &[]).await.status, 303);
    assert_eq!(scene.dump().await, before, "a viewer changes nothing");
    set("operator").await;
    for (fields, done) in ACTS {
        let found = act(&dash, &scene, fields).await;
        assert!(found.text.contains(done), "{fields:?}: {}", found.text);
    }
}

/// Tests each page and each action while Redis is away.
async fn all_say_that_redis_is_away(dash: &Dash, scene: &Scene) {
    for target in PAGES.into_iter().chain(ROUTES) {
        let found = page(dash, target).await;
        let says = found.text.contains("Redis")
            && (found.text.contains("role=\"alert\"") || found.text.contains("urn:seriatim:redis"));
        // The page of the check shows the last check, which is in memory.
        assert!(
            target == "/check" || says && [200, 503].contains(&found.status),
            "{target}: {found:?}"
        );
        assert!(
            found.status == 503 || ["/", "/check"].contains(&target),
            "{target}: {found:?}"
        );
        // The page has all parts, because the live updates fill them when Redis is back.
        for part in ["figures", "needs", "charts", "queues", "prefixes"]
            .iter()
            .filter(|_| target == "/")
        {
            assert!(
                found.text.contains(&format!("data-part=\"{part}\"")),
                "{part}: {found:?}"
            );
        }
        assert!(!found.text.contains("Nothing."), "{target}: {found:?}");
    }
    for (fields, _) in ACTS {
        let found = act(dash, scene, fields).await;
        let says = [
            "the outcome is unknown",
            "Redis refused",
            "under way",
            "cannot connect",
        ]
        .iter()
        .any(|text| found.text.contains(text));
        assert!(says, "{fields:?}: {}", found.text);
    }
    assert_eq!(reply(dash.page("/healthz")).await.status, 200);
}

#[tokio::test]
async fn pages_say_that_redis_is_gone() {
    let (mut scene, file) = (Scene::start().await, users(&USERS));
    let dash = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    assert_eq!(page(&dash, "/held").await.status, 200);
    scene.redis.server().kill();
    all_say_that_redis_is_away(&dash, &scene).await;
    // A dashboard that starts now also serves its pages.
    let late = Dash::start(&scene.redis, &["--users", path(&file)]).await;
    assert_eq!(page(&late, "/held").await.status, 503);
    scene.redis.server().restart();
    for dash in [&dash, &late] {
        for target in PAGES
            .into_iter()
            .filter(|target| !target.starts_with("/worker?"))
        {
            assert_eq!(page(dash, target).await.status, 200, "{target}");
        }
    }
}

#[tokio::test]
async fn pages_answer_while_redis_hangs() {
    let (mut scene, dash) = Scene::with_dash().await;
    assert_eq!(page(&dash, "/held").await.status, 200);
    let pid =
        Pid::from_raw(i32::try_from(scene.redis.server().pid()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::STOP).expect("stopped");
    let asked = [
        "/",
        "/object?name=work:held",
        "/held",
        "/log",
        "/workers",
        "/v1/stats",
    ]
    .map(|target| page(&dash, target));
    let found = futures_util::future::join_all(asked).await;
    kill_process(pid, Signal::CONT).expect("continued");
    for found in found {
        assert!(
            found.text.contains("Redis") && [200, 503].contains(&found.status),
            "{found:?}"
        );
    }
    assert_eq!(page(&dash, "/held").await.status, 200);
}

#[tokio::test]
async fn scripts_that_are_gone_are_loaded_again() {
    let (scene, dash) = Scene::with_dash().await;
    let console = scene.redis.console().await;
    for target in PAGES.into_iter().chain(ROUTES) {
        let _: String = console.run(&["SCRIPT", "FLUSH"]).await;
        let found = page(&dash, target).await;
        assert!(
            found.status == 200 && !found.text.contains("role=\"alert\""),
            "{target}: {found:?}"
        );
    }
    for (fields, done) in ACTS {
        let _: String = console.run(&["SCRIPT", "FLUSH"]).await;
        let found = act(&dash, &scene, fields).await;
        assert!(found.text.contains(done), "{fields:?}: {}", found.text);
    }
}

/// Tests that an operator can act at `maxmemory`: the scripts may write then, because most actions free
/// memory or keep order.
#[tokio::test]
async fn a_full_redis_shows_pages_and_does_actions() {
    let (scene, dash) = Scene::with_dash().await;
    let console = scene.redis.console().await;
    for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "1")] {
        let _: String = console.run(&["CONFIG", "SET", name, value]).await;
    }
    for target in PAGES.into_iter().chain(ROUTES) {
        let found = page(&dash, target).await;
        assert_eq!(found.status, 200, "{target}: {found:?}");
    }
    // Redis really refuses writes of others, before and after the actions.
    let mut conn = scene.redis.connect().await;
    for fields in [None].into_iter().chain(ACTS.map(Some)).chain([None]) {
        let Some((fields, done)) = fields else {
            let refused = ::redis::cmd("SET")
                .arg("more")
                .arg("1")
                .query_async::<()>(&mut conn)
                .await;
            assert_eq!(refused.expect_err("no memory").code(), Some("OOM"));
            continue;
        };
        let found = act(&dash, &scene, fields).await;
        assert!(
            found.text.contains(done) && found.text.contains("<b>0</b> not done"),
            "{fields:?}: {}",
            found.text
        );
    }
    let _: String = console.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(page(&dash, "/held").await.status, 200);
}

/// Tests each page with each key of a wrong type in turn.
#[tokio::test]
async fn keys_of_wrong_types_are_shown_as_errors() {
    let (scene, dash) = Scene::with_dash().await;
    let console = scene.redis.console().await;
    let keys: Vec<String> = console.run(&["KEYS", "*"]).await;
    assert!(keys.len() >= 30, "{keys:?}");
    for key in keys {
        let kind: String = console.run(&["TYPE", &key]).await;
        let _: u64 = console.run(&["COPY", &key, "kept", "REPLACE"]).await;
        let _: i64 = console.run(&["DEL", &key]).await;
        let _: redis::Value = match kind.as_str() {
            "string" => console.run(&["LPUSH", &key, "x"]).await,
            _ => console.run(&["SET", &key, "\u{1}x"]).await,
        };
        for target in PAGES.into_iter().chain(ROUTES) {
            let found = page(&dash, target).await;
            let is_ok = [200, 404].contains(&found.status);
            assert!(
                is_ok || found.text.contains("WRONGTYPE") || found.text.contains("type"),
                "{target} with {key}: {found:?}"
            );
        }
        let _: u64 = console.run(&["COPY", "kept", &key, "REPLACE"]).await;
        let _: i64 = console.run(&["DEL", "kept"]).await;
    }
    for target in PAGES {
        assert_eq!(page(&dash, target).await.status, 200, "{target}");
    }
}
