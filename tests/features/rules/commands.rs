//! Tests the output and exit codes of the commands for rules.

use std::process::{Command, Output};

use serde_json::Value;

use crate::state::State;
use crate::support::{Redis, control};

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

pub(super) fn done(redis: &Redis, arguments: &[&str]) -> String {
    let output = seriatim(redis, arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A rule is set, set again, listed, inspected and lifted, and every action is recorded.
#[tokio::test]
async fn the_commands_set_list_and_lift_rules() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.clean().await;
    assert_eq!(
        done(
            &redis,
            &["pause", "work:*", "--reason", "a look", "--actor", "bob"]
        ),
        "work:* is paused\n"
    );
    let again = done(
        &redis,
        &[
            "pause",
            "work:*",
            "--reason",
            "a longer look",
            "--actor",
            "bob",
            "--for",
            "2h",
        ],
    );
    assert_eq!(
        again,
        "work:* is paused; it already was, and now has this end, actor and reason\n"
    );
    assert_eq!(done(&redis, &["block", "*"]), "* is blocked\n");
    let listed = done(&redis, &["rules"]);
    assert!(listed.starts_with("block *\n  by     "), "{listed}");
    assert!(
        listed.contains("pause work:*\n  by     bob, ")
            && listed.contains(" more\n  why    a longer look\n"),
        "{listed}"
    );
    assert!(
        listed.lines().all(|line| line.chars().count() <= 100),
        "{listed}"
    );
    let json = done(&redis, &["rules", "--json"]);
    let rules: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (
            &rules[0]["kind"],
            &rules[0]["selector"],
            &rules[0]["end_ms"]
        ),
        (&"block".into(), &"*".into(), &Value::Null)
    );
    assert!(
        rules[1]["end_ms"].as_u64() > rules[1]["now_ms"].as_u64() && rules[1]["in_force"] == true,
        "{json}"
    );
    let seen = done(&redis, &["inspect", "work:9"]);
    assert!(
        seen.contains("stands     blocked by the rule for * (set by ")
            && seen.contains("`seriatim unblock '*'`"),
        "{seen}"
    );
    let at = |text: &str| {
        seen.find(text)
            .unwrap_or_else(|| panic!("{seen} lacks {text}"))
    };
    assert!(
        at("rule       block *") < at("rule       pause work:*"),
        "{seen}"
    );
    let seen: Value =
        serde_json::from_str(&done(&redis, &["inspect", "work:5", "--json"])).expect("JSON");
    assert_eq!(
        (&seen["standing"], seen["rules"].as_array().map(Vec::len)),
        (&"held".into(), Some(2))
    );
    assert_eq!(
        done(&redis, &["resume", "work:*", "--actor", "bob"]),
        "work:* is resumed: workers wake its objects\n"
    );
    let again = done(&redis, &["resume", "work:*"]);
    assert_eq!(
        again,
        "work:* is resumed already: workers are waking its objects\n"
    );
    assert!(done(&redis, &["rules"]).contains("ago, lifted, its objects are being woken\n"));
    assert!(done(&redis, &["stats"]).contains("\nrules         2 set, 1 being lifted\n"));
    assert_eq!(
        done(&redis, &["pause", "work:*"]),
        "work:* is paused; it was being lifted\n"
    );
    assert_eq!(
        done(&redis, &["unblock", "*"]),
        "* is unblocked: workers wake its objects\n"
    );
    let keys = redis.keys().clone();
    let kept = control(&state.conn, &keys)
        .actions(None, 32)
        .await
        .expect("the actions")
        .actions;
    let kept: Vec<_> = kept
        .iter()
        .rev()
        .map(|action| (action.action.as_str(), action.object.as_str()))
        .collect();
    let expected = [
        ("pause", "work:*"),
        ("pause", "work:*"),
        ("block", "*"),
        ("resume", "work:*"),
        ("pause", "work:*"),
        ("unblock", "*"),
    ];
    assert_eq!(kept, expected);
    assert!(done(&redis, &["stats"]).contains("paused        1 objects"));
    assert!(done(&redis, &["check"]).ends_with("as far as Redis can show it\n"));
}

/// An impossible request is reported in one line, with exit code 2.
#[tokio::test]
async fn the_commands_say_what_is_wrong() {
    let redis = Redis::start().empty();
    assert_eq!(done(&redis, &["rules"]), "nothing is paused or blocked\n");
    assert_eq!(done(&redis, &["rules", "--json"]), "");
    for (arguments, why) in [
        (&["resume", "work:*"][..], "there is no pause for work:*"),
        (&["unblock", "*"], "there is no block for *"),
        // These selectors were once read as names of objects, and paused no object.
        (
            &["pause", "work*"],
            "write `*` for all, a prefix as in work:*, or --exact",
        ),
        (
            &["pause", "*:1"],
            "\"*:1\" has a star elsewhere than at the end",
        ),
        (&["block", "k:*:x"], "has a star elsewhere than at the end"),
        (&["pause", "work:1 "], "begins or ends with a blank"),
        (&["pause", "--exact", "work:*"], "leave --exact out"),
        (&["pause", ""], "must not be empty"),
        (&["pause", "work:1", "--for", "0s"], "it must not be 0"),
        (
            &["pause", "work:1", "--for", "soon"],
            "write 250ms, 5s or 1m",
        ),
    ] {
        let output = seriatim(&redis, arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && message.contains(why),
            "{arguments:?}: {output:?}"
        );
    }
    assert_eq!(redis.console().await.left().await, Vec::<String>::new());
}

/// An object with a star or a blank in its name can be paused with `--exact`. If an older version
/// has set a rule with such a selector, the rule can be lifted.
#[tokio::test]
async fn an_object_of_a_strange_name_can_be_meant() {
    let redis = Redis::start();
    for name in ["k:*:x", "work:1 "] {
        assert_eq!(
            done(&redis, &["pause", "--exact", name]),
            format!("{name} is paused\n")
        );
        assert_eq!(
            done(&redis, &["resume", name]),
            format!("{name} is resumed: workers wake its objects\n")
        );
    }
}
