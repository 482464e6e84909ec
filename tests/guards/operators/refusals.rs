//! Refusals of all scripts of operators: a key of a wrong type, and a missing right.

use redis::aio::MultiplexedConnection;
use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, CronStep, LimitStep, Record, RuleStep, Settle, ShareStep};

use super::{BY, Scene};
use crate::support::jobs;

/// The shared keys whose types each script checks, besides the record of actions and the markers.
const SCRIPTS: [(&str, &[&str]); 10] = [
    ("cancel", &["events.scheduled", "a:events.scheduled"]),
    (
        "cron",
        &[
            "events.cron",
            "events.cron.next",
            "events.cron.last",
            "events.scheduled.wake",
        ],
    ),
    ("dead", &["events.dead"]),
    ("forget", &["objects.held", "objects.paused"]),
    ("limit", &["event.limits"]),
    ("release", &["objects.held", "objects.paused"]),
    ("release_many", &["objects.held", "objects.paused"]),
    ("rule", &["event.rules"]),
    (
        "share",
        &[
            "event.shares",
            "event.groups",
            "event.shares.summary",
            "event.groups.turns",
            "event.shares.used",
            "event.groups.blocked",
            "objects.in.hand",
        ],
    ),
    ("skip", &["objects.held"]),
];

/// Makes a call of a script that changes the state of [`scene`].
async fn call(
    scene: &Scene,
    conn: &mut MultiplexedConnection,
    script: &str,
) -> Result<(), ScriptError> {
    let (keys, record) = (
        &scene.state.keys,
        Record {
            selected: b"*",
            row: "",
        },
    );
    match script {
        "cancel" => operator::cancel(conn, keys, BY, b"a", "k").await.map(drop),
        "cron" => operator::cron(conn, keys, BY, "job", CronStep::Pause)
            .await
            .map(drop),
        "dead" => operator::dead(conn, keys, BY, Settle::Retry, &["1-0"])
            .await
            .map(drop),
        "forget" => operator::forget(conn, keys, BY, b"idle").await.map(drop),
        "limit" => operator::limit(conn, keys, BY, "a:*", LimitStep::Remove)
            .await
            .map(drop),
        "release" => operator::release(conn, keys, BY, b"a").await.map(drop),
        "release_many" => {
            let which = operator::ReleaseMany {
                until_released: false,
                text: "",
                over: std::time::Duration::ZERO,
            };
            operator::release_many(conn, keys, BY, which, record, &["a"])
                .await
                .map(drop)
        }
        "rule" => operator::rule(conn, keys, BY, RuleStep::Lift, "pause", b"a:*", 9)
            .await
            .map(drop),
        "share" => operator::share(conn, keys, BY, "a:*", ShareStep::Remove)
            .await
            .map(drop),
        _ => operator::skip(conn, keys, BY, b"a", None).await.map(drop),
    }
}

/// Builds a state that each of the calls changes.
async fn scene() -> Scene {
    let mut scene = Scene::new().await;
    scene
        .state
        .hold("a", "inf", &["1"], "7 0 1 0 retry: x")
        .await;
    for (command, key, arguments) in [
        ("HSET", "a:events.scheduled", &["k", "1"][..]),
        ("ZADD", "events.scheduled", &["5", "a\nk"]),
        (
            "HSET",
            "events.cron",
            &["job", &jobs::value("id 0", "work:1", "1")],
        ),
        ("XADD", "events.dead", &["1-0", "object", "b", "event", "1"]),
        ("SET", "idle:last.event.id", &["9"]),
        ("HSET", "event.limits", &["a:*", "{}"]),
        ("HSET", "event.rules", &["pause a:*", "5 0 0 0 0 "]),
        ("HSET", "event.shares", &["a:*", "5 - - - - 7 0 "]),
    ] {
        scene.put(command, key, arguments).await;
    }
    scene
}

/// A key of a wrong type is named, and nothing changes. Without it, the call changes something.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    for (script, keys) in SCRIPTS {
        for key in keys
            .iter()
            .chain(&["operator.actions", "objects.with.events"])
        {
            let mut scene = scene().await;
            scene.put("DEL", key, &[]).await;
            let is_text = ["event.shares.summary", "event.groups.turns"].contains(key);
            scene
                .put(if is_text { "RPUSH" } else { "SET" }, key, &["wrong"])
                .await;
            let before = scene.shown().await;
            let mut conn = scene.state.conn.clone();
            let refused = call(&scene, &mut conn, script)
                .await
                .expect_err("a wrong type");
            let named = format!("{}{key}", scene.state.keys.prefix());
            let found = if is_text { "list" } else { "string" };
            let is_named = matches!(&refused, ScriptError::WrongType { key, found: told } if *key == named && told == found);
            assert!(is_named, "{script}: {refused}");
            assert_eq!(scene.shown().await, before, "{script}: {key}");
        }
        let scene = scene().await;
        let (before, mut conn) = (scene.shown().await, scene.state.conn.clone());
        call(&scene, &mut conn, script).await.expect("a reply");
        assert_ne!(scene.shown().await, before, "{script}");
    }
}

/// A command that the user may not use is named, and nothing changes.
#[tokio::test]
async fn a_missing_right_is_named() {
    let mut scene = scene().await;
    scene
        .state
        .run(
            "ACL",
            &[
                "SETUSER", "weak", "reset", "on", ">weak", "~*", "+@all", "-xadd",
            ],
        )
        .await;
    let mut weak = scene.redis.connect().await;
    redis::cmd("AUTH")
        .arg("weak")
        .arg("weak")
        .query_async::<()>(&mut weak)
        .await
        .expect("logged in");
    let before = scene.shown().await;
    for (script, _) in SCRIPTS {
        let refused = call(&scene, &mut weak, script).await.expect_err("no right");
        assert!(
            matches!(&refused, ScriptError::Denied(command) if command == "XADD"),
            "{script}: {refused}"
        );
        assert_eq!(scene.shown().await, before, "{script}");
    }
}
