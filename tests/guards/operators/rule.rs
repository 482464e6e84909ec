//! `rule`, `limit`, `release` and `forget`: what each change writes, and what stays.

use std::time::Duration;

use seriatim::wire::operator::{self, LimitDone, LimitStep, Released, RuleStep, Ruled};
use seriatim::wire::{Forgot, values::RuleValue};

use super::{BY, acted, given, row, wrong_type};
use crate::scene::Scene;

async fn rule(scene: &Scene, step: RuleStep, kind: &str, rules_max: u64) -> Ruled {
    let (mut conn, keys) = (scene.conn().await, &scene.keys);
    let ruled = operator::rule(&mut conn, keys, BY, step, kind, b"a:*", rules_max).await;
    ruled.expect("a reply")
}

/// A rule that is set again has the actor, the reason and the end of the last call. The time at
/// which workers must wake objects follows from all rules.
#[tokio::test]
async fn a_rule_is_set_in_place_of_the_one_before() {
    let scene = given("").await;
    for (before, done) in [
        (None, Ruled::New),
        (Some("odd"), Ruled::New),
        (Some("5 0 0 3 1 bobxwhy"), Ruled::Again),
        (Some("5 99999999999999 0 3 1 bobxwhy"), Ruled::Again),
        (Some("5 1 0 3 1 bobxwhy"), Ruled::Revived),
        (Some("5 0 1 3 1 bobxwhy"), Ruled::Revived),
    ] {
        for (other, next) in [
            ("6 0 0 3 0 bob", "never"),
            ("6 1 0 3 0 bob", "1"),
            ("6 99 0 3 0 bob", "99"),
            ("6 99 1 3 0 bob", "0"),
            ("odd", "never"),
        ] {
            let before = before.map(|before| format!(" 'pause a:*' '{before}'"));
            let given = format!("HSET event.rules 'block b' '{other}'");
            scene.again(&(given + &before.unwrap_or_default())).await;
            assert_eq!(rule(&scene, RuleStep::Set(None), "pause", 9).await, done);
            let new = "pause a:*: NOW 0 0 3 0 adaa test";
            let rules = format!("event.rules = {{block b: {other}, next: {next}, {new}}}\n");
            scene.changed(&(rules + &acted("pause", "a:* id "))).await;
        }
    }
    scene.again("").await;
    let step = RuleStep::Set(Some(Duration::from_millis(1)));
    assert_eq!(rule(&scene, step, "block", 9).await, Ruled::New);
    let key = scene.keys.event_rules();
    let value: Vec<u8> = scene.run(&["HGET", &key, "block a:*"]).await;
    let rule = RuleValue::read(&value).expect("a rule");
    assert_eq!(rule.end_ms, Some(rule.set_ms + 1));
    let next: u64 = scene.run(&["HGET", &key, "next"]).await;
    assert_eq!(next, rule.set_ms + 1);
    let rules = "event.rules = {block a:*: NOW NOW 0 3 0 adaa test, next: NOW}\n";
    let changes = rules.to_owned() + &acted("block", "a:* id ");
    scene.changed(&changes).await;
}

/// There are so many rules at most, and the time at which objects are woken is no rule. A rule that
/// exists can be set even then.
#[tokio::test]
async fn there_are_so_many_rules() {
    let scene = given("HSET event.rules 'block b' odd next never").await;
    let set = RuleStep::Set(None);
    assert_eq!(rule(&scene, set, "pause", 1).await, Ruled::TooMany(1));
    scene.changed("").await;
    assert_eq!(rule(&scene, set, "pause", 2).await, Ruled::New);
    assert_eq!(rule(&scene, set, "pause", 2).await, Ruled::Again);
    assert_eq!(rule(&scene, set, "block", 2).await, Ruled::TooMany(2));
}

/// A lifted rule keeps its texts and its end, and workers wake its objects at once.
#[tokio::test]
async fn a_rule_is_lifted() {
    let scene = given("").await;
    for (kind, word) in [("pause", "resume"), ("block", "unblock")] {
        for (before, after) in [
            ("5 7 0 3 1 bobxwhy", "5 7 1 3 1 bobxwhy"),
            ("odd", "0 0 1 0 0 "),
        ] {
            scene.again("").await;
            let lift = RuleStep::Lift;
            assert_eq!(rule(&scene, lift, kind, 9).await, Ruled::NotSet);
            scene.changed("").await;
            let given = format!("HSET event.rules '{kind} a:*' '{before}'");
            scene.add(&given).await;
            assert_eq!(rule(&scene, lift, kind, 9).await, Ruled::Lifted);
            let mut rules = ["next: 0".to_owned(), format!("{kind} a:*: {after}")];
            rules.sort();
            let rules = format!("event.rules = {{{}}}\n", rules.join(", "));
            let marker = "objects.with.events = []\n";
            scene
                .changed(&(rules + marker + &acted(word, "a:* id ")))
                .await;
            assert_eq!(rule(&scene, lift, kind, 9).await, Ruled::Lifting);
            scene.changed("").await;
        }
    }
}

#[tokio::test]
async fn a_limit_is_set_and_removed() {
    let scene = given("").await;
    let set = |queued_max, markers_max| LimitStep::Set {
        queued_max,
        markers_max,
        limits_max: 1,
    };
    let limit = |most: &str| {
        let set = r#"\"set_ms\":NOW,\"actor\":\"ada\",\"reason\":\"a test\""#;
        format!("event.limits = {{a:*: {{{most},{set}}}}}\n")
    };
    let five = limit(r#"\"queued_max\":5,\"markers_max\":null"#);
    let seven = limit(r#"\"queued_max\":null,\"markers_max\":7"#);
    let none = "event.limits = nil\n".to_owned();
    let mut rows = Vec::new();
    for (step, selector, done, change) in [
        (LimitStep::Remove, "a:*", LimitDone::NotSet, None),
        (
            set(Some(5), None),
            "a:*",
            LimitDone::New,
            Some((five, "limit-set")),
        ),
        (set(Some(5), Some(6)), "b:*", LimitDone::TooMany(1), None),
        (
            set(None, Some(7)),
            "a:*",
            LimitDone::Again,
            Some((seven, "limit-set")),
        ),
        (LimitStep::Remove, "b:*", LimitDone::NotSet, None),
        (
            LimitStep::Remove,
            "a:*",
            LimitDone::Removed,
            Some((none, "limit-remove")),
        ),
    ] {
        let mut conn = scene.conn().await;
        let found = operator::limit(&mut conn, &scene.keys, BY, selector, step).await;
        assert_eq!(found.expect("a reply"), done, "{step:?} {selector}");
        let changes = change.map_or_else(String::new, |(limit, action)| {
            rows.push(row(action, "a:* id "));
            format!("{limit}operator.actions = {{{}}}", rows.join(", "))
        });
        scene.changed(&changes).await;
    }
}

/// A held object is due now, and so is one that is held only by its owner key.
#[tokio::test]
async fn a_held_object_is_released() {
    let released = |why: &str| Released::Released(why.to_owned());
    let not_held = |owner: &str| Released::NotHeld(owner.to_owned());
    let no_ids = |why: &str| Released::NoIds(why.to_owned());
    let scene = given("").await;
    for (keys, done, record) in [
        (
            "ZADD objects.held inf a; SET a:event.worker held; SET a:events.held.id '7 0 1 0 attempts: x'",
            released("attempts: x"),
            Some("7 error attempts: x"),
        ),
        ("SET a:event.worker held", released(""), Some(" error ")),
        (
            "ZADD objects.held 9 a; SET a:events.held.id odd",
            released(""),
            Some(" error "),
        ),
        (
            "ZADD objects.held 9 a; LPUSH a:events.held 1; SET a:events.held.id '7 0 1 0 x'",
            released("x"),
            Some("7 error x"),
        ),
        (
            "ZADD objects.held 9 a; LPUSH a:events.held 1; SET a:events.held.id '0 0 0 0 x'",
            no_ids("x"),
            None,
        ),
        // No id has 17 digits.
        (
            "ZADD objects.held 9 a; LPUSH a:events.held 1; SET a:events.held.id '00000000000000007 0 0 0 x'",
            no_ids("x"),
            None,
        ),
        (
            "ZADD objects.held 9 a; LPUSH a:events.held 1",
            no_ids(""),
            None,
        ),
        (
            "ZADD objects.held 9 a; LPUSH a:events.held 1; SET a:events.held.id odd",
            no_ids(""),
            None,
        ),
        ("SET a:event.worker w.0", not_held("w.0"), None),
        ("", not_held(""), None),
        (
            "ZADD objects.held 9 a; SET a:event.worker held; ZADD objects.paused 0 a",
            Released::Paused,
            None,
        ),
    ] {
        scene.again(keys).await;
        let mut conn = scene.conn().await;
        let found = operator::release(&mut conn, &scene.keys, BY, b"a").await;
        assert_eq!(found.expect("a reply"), done);
        let changes = record.map_or_else(String::new, |record| {
            let due = "objects.held = <a: 0>\nobjects.with.events = []\n";
            due.to_owned() + &acted("release", &format!("a id {record}"))
        });
        scene.changed(&changes).await;
    }
}

/// An idle object is forgotten, with a record. An object that is not idle, or has no last id, stays
/// without one. A last id that is no number is not in the record.
#[tokio::test]
async fn an_idle_object_is_forgotten_with_a_record() {
    let forgotten = |last: &str| Forgot::Forgotten {
        last_event_id: last.into(),
    };
    let scene = given("").await;
    for (keys, done, record) in [
        ("SET a:last.event.id 9", forgotten("9"), Some("9")),
        ("SET a:last.event.id odd", forgotten("odd"), Some("")),
        (
            "SET a:last.event.id 9; RPUSH a:events x",
            Forgot::Queued { events: 1 },
            None,
        ),
        ("", Forgot::Unknown, None),
    ] {
        let remains = "RPUSH a:event.errors x; SET a:event.key '9 k'; HSET a:event.handled id 9; ";
        scene.again(&(remains.to_owned() + keys)).await;
        let mut conn = scene.conn().await;
        let found = operator::forget(&mut conn, &scene.keys, BY, b"a").await;
        assert_eq!(found.expect("a reply"), done);
        let mut changes = String::new();
        if !matches!(done, Forgot::Queued { .. }) {
            changes += "a: event.errors = nil; event.handled = nil; event.key = nil";
        }
        if let Some(id) = record {
            changes += "; last.event.id = nil\n";
            changes += &acted("forget", &format!("a id {id}"));
        }
        scene.changed(&changes).await;
    }
    scene.again("SET objects.paused wrong").await;
    let mut conn = scene.conn().await;
    let refused = operator::forget(&mut conn, &scene.keys, BY, b"a").await;
    assert_eq!(wrong_type(&scene, refused), "@objects.paused is a string");
}
