//! Refusals of all scripts of operators: a key of a wrong type, and a missing right.

use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, CronStep, LimitStep, Record, RuleStep, Settle, ShareStep};

use super::{BY, wrong_type};
use crate::scene::Scene;
use crate::support::{Redis, jobs};

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

/// Makes a call of a script that changes the state of [`state`].
async fn call(scene: &Scene, script: &str) -> Result<(), ScriptError> {
    let (conn, keys) = (&mut scene.conn().await, &scene.keys);
    let record = Record {
        selected: b"*",
        row: "",
    };
    let many = operator::ReleaseMany {
        until_released: false,
        text: "",
        over: std::time::Duration::ZERO,
    };
    let (lift, remove) = (RuleStep::Lift, LimitStep::Remove);
    match script {
        "cancel" => operator::cancel(conn, keys, BY, b"a", "k").await.map(drop),
        "cron" => {
            let done = operator::cron(conn, keys, BY, "job", CronStep::Pause).await;
            done.map(drop)
        }
        "dead" => {
            let done = operator::dead(conn, keys, BY, Settle::Retry, &["1-0"]).await;
            done.map(drop)
        }
        "forget" => operator::forget(conn, keys, BY, b"idle").await.map(drop),
        "limit" => operator::limit(conn, keys, BY, "a:*", remove)
            .await
            .map(drop),
        "release" => operator::release(conn, keys, BY, b"a").await.map(drop),
        "release_many" => {
            let done = operator::release_many(conn, keys, BY, many, record, &["a"]).await;
            done.map(drop)
        }
        "rule" => {
            let done = operator::rule(conn, keys, BY, lift, "pause", b"a:*", 9).await;
            done.map(drop)
        }
        "share" => {
            let done = operator::share(conn, keys, BY, "a:*", ShareStep::Remove).await;
            done.map(drop)
        }
        _ => operator::skip(conn, keys, BY, b"a", None).await.map(drop),
    }
}

/// Returns the commands of a state that each of the calls changes.
fn state() -> String {
    let job = jobs::value("id 0", "work:1", "1");
    format!(
        "
        hold a inf '7 0 1 0 retry: x' 1; HSET a:events.scheduled k 1
        ZADD events.scheduled 5 'a\nk'; HSET events.cron job '{job}'
        XADD events.dead 1-0 object b event 1; SET idle:last.event.id 9
        HSET event.limits a:* {{}}; HSET event.rules 'pause a:*' '5 0 0 0 0 '
        HSET event.shares a:* '5 - - - - 7 0 '
        "
    )
}

/// A key of a wrong type is named, and nothing changes. Without it, the call changes something.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    let (scene, state) = (Scene::bare(Redis::start()).await, state());
    for (script, keys) in SCRIPTS {
        for key in keys
            .iter()
            .chain(&["operator.actions", "objects.with.events"])
        {
            let is_text = ["event.shares.summary", "event.groups.turns"].contains(key);
            let (push, found) = if is_text {
                ("RPUSH", "list")
            } else {
                ("SET", "string")
            };
            scene
                .again(&format!("{state}\nDEL {key}; {push} {key} wrong"))
                .await;
            let refused = wrong_type(&scene, call(&scene, script).await);
            assert_eq!(refused, format!("@{key} is a {found}"), "{script}");
            scene.changed("").await;
        }
        scene.again(&state).await;
        call(&scene, script).await.expect("a reply");
        assert!(!scene.changes().await.is_empty(), "{script}");
    }
}

/// A command that the user may not use is named, and nothing changes.
#[tokio::test]
async fn a_missing_right_is_named() {
    let scene = Scene::bare(Redis::own(&[])).await;
    scene.add(&state()).await;
    scene.login("~* +@all -xadd").await;
    for (script, _) in SCRIPTS {
        let refused = call(&scene, script).await.expect_err("no right");
        assert!(
            matches!(&refused, ScriptError::Denied(command) if command == "XADD"),
            "{script}: {refused}"
        );
        scene.changed("").await;
    }
}
