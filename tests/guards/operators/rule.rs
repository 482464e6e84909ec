//! `rule`, `limit`, `release` and `forget`: what each change writes, and what stays.

use std::time::Duration;

use seriatim::wire::operator::{self, LimitDone, LimitStep, Released, RuleStep, Ruled};
use seriatim::wire::{Forgot, ScriptError, values::RuleValue};

use super::{BY, Scene};

const NEW: &str = "event.rules: pause a:* = NOW 0 0 3 0 adaa test";

async fn rule(scene: &mut Scene, step: RuleStep, kind: &str, rules_max: u64) -> Ruled {
    let keys = scene.state.keys.clone();
    operator::rule(
        &mut scene.state.conn,
        &keys,
        BY,
        step,
        kind,
        b"a:*",
        rules_max,
    )
    .await
    .expect("a reply")
}

fn action(action: &str) -> String {
    format!("operator.actions: NOW action {action} who ada why a test object a:* id ")
}

/// A rule that is set again has the actor, the reason and the end of the last call. The time at
/// which workers must wake objects follows from all rules.
#[tokio::test]
async fn a_rule_is_set_in_place_of_the_one_before() {
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
            let mut scene = Scene::new().await;
            scene.put("HSET", "event.rules", &["block b", other]).await;
            if let Some(before) = before {
                scene
                    .put("HSET", "event.rules", &["pause a:*", before])
                    .await;
            }
            assert_eq!(
                rule(&mut scene, RuleStep::Set(None), "pause", 9).await,
                done,
                "{before:?}"
            );
            let rules = [
                format!("event.rules: block b = {other}"),
                format!("event.rules: next = {next}"),
                NEW.to_owned(),
            ];
            assert_eq!(
                scene.shown().await,
                [&rules[..], &[action("pause")]].concat(),
                "{before:?} {other}"
            );
        }
    }
    let mut scene = Scene::new().await;
    assert_eq!(
        rule(
            &mut scene,
            RuleStep::Set(Some(Duration::from_millis(1))),
            "block",
            9
        )
        .await,
        Ruled::New
    );
    let (key, console) = (scene.state.keys.event_rules(), scene.console.clone());
    let value: Vec<u8> = console.run(&["HGET", &key, "block a:*"]).await;
    let rule = RuleValue::read(&value).expect("a rule");
    assert_eq!(rule.end_ms, Some(rule.set_ms + 1));
    assert_eq!(
        console.run::<u64>(&["HGET", &key, "next"]).await,
        rule.set_ms + 1
    );
    assert_eq!(scene.items("operator.actions").await.len(), 1);
}

/// There are so many rules at most, and the time at which objects are woken is no rule. A rule that
/// exists can be set even then.
#[tokio::test]
async fn there_are_so_many_rules() {
    let mut scene = Scene::new().await;
    scene
        .put("HSET", "event.rules", &["block b", "odd", "next", "never"])
        .await;
    let before = scene.shown().await;
    assert_eq!(
        rule(&mut scene, RuleStep::Set(None), "pause", 1).await,
        Ruled::TooMany(1)
    );
    assert_eq!(scene.shown().await, before);
    assert_eq!(
        rule(&mut scene, RuleStep::Set(None), "pause", 2).await,
        Ruled::New
    );
    assert_eq!(
        rule(&mut scene, RuleStep::Set(None), "pause", 2).await,
        Ruled::Again
    );
    assert_eq!(
        rule(&mut scene, RuleStep::Set(None), "block", 2).await,
        Ruled::TooMany(2)
    );
}

/// A lifted rule keeps its texts and its end, and workers wake its objects at once.
#[tokio::test]
async fn a_rule_is_lifted() {
    for (kind, word) in [("pause", "resume"), ("block", "unblock")] {
        for (before, after) in [
            ("5 7 0 3 1 bobxwhy", "5 7 1 3 1 bobxwhy"),
            ("odd", "0 0 1 0 0 "),
        ] {
            let mut scene = Scene::new().await;
            assert_eq!(
                rule(&mut scene, RuleStep::Lift, kind, 9).await,
                Ruled::NotSet
            );
            assert_eq!(scene.shown().await, [""; 0]);
            scene
                .put("HSET", "event.rules", &[&format!("{kind} a:*"), before])
                .await;
            assert_eq!(
                rule(&mut scene, RuleStep::Lift, kind, 9).await,
                Ruled::Lifted
            );
            let mut expected = vec![
                "event.rules: next = 0".to_owned(),
                format!("event.rules: {kind} a:* = {after}"),
                "objects.with.events: ".to_owned(),
            ];
            expected.sort();
            expected.push(action(word));
            assert_eq!(scene.shown().await, expected, "{kind} {before}");
            assert_eq!(
                rule(&mut scene, RuleStep::Lift, kind, 9).await,
                Ruled::Lifting
            );
            assert_eq!(scene.shown().await, expected, "{kind} {before}");
        }
    }
}

#[tokio::test]
async fn a_limit_is_set_and_removed() {
    let mut scene = Scene::new().await;
    let keys = scene.state.keys.clone();
    let step = |queued_max, markers_max| LimitStep::Set {
        queued_max,
        markers_max,
        limits_max: 1,
    };
    let mut rows = Vec::new();
    for (step, selector, done, limit, action) in [
        (LimitStep::Remove, "a:*", LimitDone::NotSet, None, None),
        (
            step(Some(5), None),
            "a:*",
            LimitDone::New,
            Some(("5", "null")),
            Some("limit-set"),
        ),
        (
            step(Some(5), Some(6)),
            "b:*",
            LimitDone::TooMany(1),
            Some(("5", "null")),
            None,
        ),
        (
            step(None, Some(7)),
            "a:*",
            LimitDone::Again,
            Some(("null", "7")),
            Some("limit-set"),
        ),
        (
            LimitStep::Remove,
            "b:*",
            LimitDone::NotSet,
            Some(("null", "7")),
            None,
        ),
        (
            LimitStep::Remove,
            "a:*",
            LimitDone::Removed,
            None,
            Some("limit-remove"),
        ),
    ] {
        let told = operator::limit(&mut scene.state.conn, &keys, BY, selector, step)
            .await
            .expect("a reply");
        assert_eq!(told, done, "{step:?} {selector}");
        rows.extend(action.map(self::action));
        let limit = limit.map(|(queued_max, markers_max)| {
            format!(
                r#"event.limits: a:* = {{"queued_max":{queued_max},"markers_max":{markers_max},"set_ms":NOW,"actor":"ada","reason":"a test"}}"#
            )
        });
        assert_eq!(
            scene.shown().await,
            limit.into_iter().chain(rows.clone()).collect::<Vec<_>>(),
            "{step:?} {selector}"
        );
    }
}

/// A held object is due now, and so is one that is held only by its owner key.
#[tokio::test]
async fn a_held_object_is_released() {
    for (due, owner, held_id, paused, done, id) in [
        (
            Some("inf"),
            Some("held"),
            Some("7 0 1 0 attempts: x"),
            false,
            Released::Released("attempts: x".into()),
            "7",
        ),
        (
            None,
            Some("held"),
            None,
            false,
            Released::Released(String::new()),
            "",
        ),
        (
            Some("9"),
            None,
            Some("odd"),
            false,
            Released::Released(String::new()),
            "",
        ),
        (
            None,
            Some("w.0"),
            None,
            false,
            Released::NotHeld("w.0".into()),
            "",
        ),
        (
            None,
            None,
            None,
            false,
            Released::NotHeld(String::new()),
            "",
        ),
        (Some("9"), Some("held"), None, true, Released::Paused, ""),
    ] {
        let mut scene = Scene::new().await;
        let keys = scene.state.keys.clone();
        for (command, key, arguments) in [
            ("ZADD", "objects.held", due.map(|due| vec![due, "a"])),
            ("ZADD", "objects.paused", paused.then(|| vec!["0", "a"])),
            ("SET", "a:event.worker", owner.map(|owner| vec![owner])),
            (
                "SET",
                "a:events.held.id",
                held_id.map(|held_id| vec![held_id]),
            ),
        ] {
            if let Some(arguments) = arguments {
                scene.put(command, key, &arguments).await;
            }
        }
        let mut expected = scene.shown().await;
        assert_eq!(
            operator::release(&mut scene.state.conn, &keys, BY, b"a")
                .await
                .expect("a reply"),
            done
        );
        if let Released::Released(why) = &done {
            expected.retain(|line| !line.starts_with("objects.held"));
            expected.extend(["objects.held: a 0", "objects.with.events: "].map(str::to_owned));
            expected.push(format!("operator.actions: NOW action release who ada why a test object a id {id} error {why}"));
            expected.sort();
        }
        assert_eq!(scene.shown().await, expected, "{done:?}");
    }
}

/// An idle object is forgotten, with a record. An object that is not idle, or has no last id, stays
/// without one. A last id that is no number is not in the record.
#[tokio::test]
async fn an_idle_object_is_forgotten_with_a_record() {
    for (last, queued, done, id) in [
        (
            Some("9"),
            false,
            Forgot::Forgotten {
                last_event_id: "9".into(),
            },
            Some("9"),
        ),
        (
            Some("odd"),
            false,
            Forgot::Forgotten {
                last_event_id: "odd".into(),
            },
            Some(""),
        ),
        (Some("9"), true, Forgot::Queued { events: 1 }, None),
        (None, false, Forgot::Unknown, None),
    ] {
        let mut scene = Scene::new().await;
        let keys = scene.state.keys.clone();
        if let Some(last) = last {
            scene.put("SET", "a:last.event.id", &[last]).await;
        }
        for key in ["a:event.errors", "a:events"]
            .into_iter()
            .take(if queued { 2 } else { 1 })
        {
            scene.put("RPUSH", key, &["x"]).await;
        }
        scene.put("SET", "a:event.key", &["9 k"]).await;
        scene.put("HSET", "a:event.handled", &["id", "9"]).await;
        let before = scene.shown().await;
        assert_eq!(
            operator::forget(&mut scene.state.conn, &keys, BY, b"a")
                .await
                .expect("a reply"),
            done
        );
        let row = id.map(|id| {
            format!("operator.actions: NOW action forget who ada why a test object a id {id}")
        });
        let expected = if queued {
            before
        } else {
            row.into_iter().collect()
        };
        assert_eq!(scene.shown().await, expected, "{last:?}");
    }
    let mut scene = Scene::new().await;
    let keys = scene.state.keys.clone();
    scene.put("SET", "objects.paused", &["wrong"]).await;
    let refused = operator::forget(&mut scene.state.conn, &keys, BY, b"a")
        .await
        .expect_err("a wrong type");
    assert!(
        matches!(&refused, ScriptError::WrongType { key, .. } if *key == keys.objects_paused()),
        "{refused}"
    );
}
