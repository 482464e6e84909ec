//! Tests the output and exit codes of the commands for rules.

use serde_json::Value;

use crate::support::Redis;
use crate::support::operator::Reads;

/// A rule is set, set again, listed, inspected and lifted, and every action is recorded.
#[tokio::test]
async fn the_commands_set_list_and_lift_rules() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    state.clean().await;
    assert_eq!(
        redis.prints("pause work:* --reason 'a look' --actor bob"),
        "work:* is paused\n"
    );
    let again = redis.prints("pause work:* --reason 'a longer look' --actor bob --for 2h");
    assert_eq!(
        again,
        "work:* is paused; it already was, and now has this end, actor and reason\n"
    );
    assert_eq!(redis.prints("block *"), "* is blocked\n");
    let listed = redis.prints("rules");
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
    let json = redis.prints("rules --json");
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
    let seen = redis.prints("inspect work:9");
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
    let seen = redis.json("inspect work:5 --json");
    assert_eq!(
        (&seen["standing"], seen["rules"].as_array().map(Vec::len)),
        (&"held".into(), Some(2))
    );
    assert_eq!(
        redis.prints("resume work:* --actor bob"),
        "work:* is resumed: workers wake its objects\n"
    );
    let again = redis.prints("resume work:*");
    assert_eq!(
        again,
        "work:* is resumed already: workers are waking its objects\n"
    );
    assert!(
        redis
            .prints("rules")
            .contains("ago, lifted, its objects are being woken\n")
    );
    assert!(
        redis
            .prints("stats")
            .contains("\nrules         2 set, 1 being lifted\n")
    );
    assert_eq!(
        redis.prints("pause work:*"),
        "work:* is paused; it was being lifted\n"
    );
    assert_eq!(
        redis.prints("unblock *"),
        "* is unblocked: workers wake its objects\n"
    );
    let kept = control.recorded(32).await;
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
    assert!(redis.prints("stats").contains("paused        1 objects"));
    assert!(
        redis
            .prints("check")
            .ends_with("as far as Redis can show it\n")
    );
}

/// An impossible request is reported in one line, with exit code 2.
#[tokio::test]
async fn the_commands_say_what_is_wrong() {
    let redis = Redis::start().empty();
    assert_eq!(redis.prints("rules"), "nothing is paused or blocked\n");
    assert_eq!(redis.stdout("rules --json"), "");
    for (arguments, why) in [
        ("resume work:*", "there is no pause for work:*"),
        ("unblock *", "there is no block for *"),
        // These selectors were once read as names of objects, and paused no object.
        (
            "pause work*",
            "write `*` for all objects, or a prefix as in work:*; --exact takes it",
        ),
        ("pause *:1", "\"*:1\" has a star elsewhere than at the end"),
        ("block k:*:x", "has a star elsewhere than at the end"),
        ("pause 'work:1 '", "begins or ends with a blank"),
        ("pause --exact work:*", "leave --exact out"),
        ("pause ''", "must not be empty"),
        ("pause work:1 --for 0s", "it must not be 0"),
        // This was once a pause of 30 months.
        ("pause work:1 --for 30M", "write 30m for minutes"),
        ("log --since 30M", "M is no unit of time"),
        ("pause work:1 --for soon", "write 250ms, 5s or 1m"),
    ] {
        let output = redis.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && message.contains(why),
            "{arguments}: {output:?}"
        );
    }
    assert_eq!(redis.console().await.left().await, [""; 0]);
}

/// An object with a star or a blank in its name can be paused with `--exact`. If an older version
/// has set a rule with such a selector, the rule can be lifted.
#[tokio::test]
async fn an_object_of_a_strange_name_can_be_meant() {
    let redis = Redis::start();
    for name in ["k:*:x", "work:1 "] {
        assert_eq!(
            redis.prints(&["pause", "--exact", name]),
            format!("{name} is paused\n")
        );
        assert_eq!(
            redis.prints(&["resume", name]),
            format!("{name} is resumed: workers wake its objects\n")
        );
    }
}
