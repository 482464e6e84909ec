//! `advance`: objects that a rule pauses, and objects that wake.

use std::time::Duration;

use crate::scene::{BOUNDS, Scene, bounds};

/// The values of a rule in force, and of a lifted one.
const IN_FORCE: &str = "'1 0 0 3 0 adanot yet'";
const LIFTED: &str = "'1 0 1 3 0 adanot yet'";

/// Makes paused objects.
async fn pause(scene: &Scene, objects: &[impl AsRef<str>]) {
    for object in objects {
        let object = object.as_ref();
        let owner = format!("SET {object}:event.worker held");
        scene
            .add(&format!("{owner}; ZADD objects.paused 0 {object}"))
            .await;
    }
}

async fn paused(scene: &Scene) -> Vec<String> {
    let all = scene.scores("objects.paused").await.into_iter();
    all.map(|(object, _)| object).collect()
}

/// A rule pauses an object that has events. It does not pause another object, an object without
/// events, or one in the set of held objects. The last id of a paused object does not expire.
#[tokio::test]
async fn a_rule_pauses_its_objects_that_have_events() {
    let old = "delivered work:1 5; PEXPIRE work:1:last.event.id 100000";
    for forget_after in [None, Some(Duration::from_secs(100))] {
        for last in ["", old] {
            let scene = Scene::given("SET next.event.id 5; each work:1..4").await;
            scene.add(last).await;
            for object in ["work:1", "work:3", "work:4"] {
                let rule = format!("HSET event.rules 'pause {object}' {IN_FORCE} next never");
                scene.add(&rule).await;
            }
            let given = "DEL work:3:events; ZADD objects.held inf work:4";
            scene.add(given).await;
            let answer = scene
                .free(0..10, bounds(|b| b.forget_after = forget_after))
                .await;
            assert_eq!(answer.objects(), ["work:2"]);
            assert_eq!(paused(&scene).await, ["work:1"]);
            // The owner key of a held object was lost.
            assert_eq!(scene.at("work:4:event.worker").await, "held");
            assert_eq!(scene.at("work:1:events").await, "[1]");
            assert_eq!(scene.at("work:1:event.worker").await, "held");
            assert_eq!(scene.at("work:3:event.worker").await, "nil");
            let kept = match (last, forget_after) {
                ("", _) => "nil",
                (_, None) => "5 expires",
                (_, Some(_)) => "5",
            };
            assert_eq!(scene.at("work:1:last.event.id").await, kept);
        }
    }
}

/// Two pops have moved the same name, of an object without events. A call that reads the rules of
/// this object for one slot does not read them again for the other.
#[tokio::test]
async fn a_call_reads_the_rules_of_an_object_once() {
    let given = "
        LPUSH event.worker:w.0:object work:1; LPUSH event.worker:w.1:object work:1; emit work:3 1
    ";
    let scene = Scene::given(given).await;
    scene
        .add(&format!(
            "HSET event.rules 'pause work:2' {IN_FORCE} next never"
        ))
        .await;
    assert_eq!(scene.free(0..10, BOUNDS).await.objects(), ["work:3"]);
}

/// A call wakes 64 objects of a lifted rule, and later calls go on behind them. The last call
/// deletes the rule.
#[tokio::test]
async fn a_lifted_rule_wakes_so_many_objects_in_a_call() {
    for count in [1, 63, 64, 130] {
        let scene = Scene::new().await;
        let names: Vec<_> = (0..count).map(|n| format!("work:{n:03}")).collect();
        pause(&scene, &names).await;
        scene
            .add(&format!("HSET event.rules 'pause work:*' {LIFTED} next 0"))
            .await;
        for from in (0..=count).step_by(64) {
            scene.free(0..10, bounds(|b| b.claims = 0)).await;
            let until = count.min(from + 64);
            assert_eq!(paused(&scene).await, names[until..]);
            assert_eq!(scene.scores("objects.held").await.len(), until);
            let rule = match until - from {
                64 => {
                    let last = &names[until - 1];
                    format!("{{next: 0, pause work:*: 1 0 1 3 8 ada{last}not yet}}")
                }
                _ => "nil".to_owned(),
            };
            assert_eq!(scene.at("event.rules").await, rule, "{count} objects");
        }
    }
}

/// An object stays paused as long as another rule in force applies to it.
#[tokio::test]
async fn an_object_of_two_rules_wakes_with_the_last_one() {
    let scene = Scene::new().await;
    pause(&scene, &["a:1", "b:1", "b:2"]).await;
    let rules = format!("'pause *' {LIFTED} 'block b:*' {IN_FORCE} next 0");
    scene.add(&format!("HSET event.rules {rules}")).await;
    scene.free(0..10, bounds(|b| b.claims = 0)).await;
    let changes = "
        event.rules = {block b:*: 1 0 0 3 0 adanot yet, next: never}
        objects.held = <a:1: NOW>
        objects.paused = <b:1: 0, b:2: 0>
    ";
    scene.changed(changes).await;
}

/// Story: while calls woke the objects of a lifted rule, one that was still paused had lost its owner
/// key. A marker, or a name that a pop had moved, led to its queue, and its later events overtook its
/// batch. Now it stays paused until a call wakes it, in this call or in the next one.
#[tokio::test]
async fn a_paused_object_without_an_owner_key_is_woken_with_its_batch() {
    for (pop, others) in [("", 0), ("", 64), ("pop w.0", 0), ("pop w.0", 64)] {
        let scene = Scene::new().await;
        let names: Vec<_> = (0..others).map(|n| format!("work:a{n}")).collect();
        pause(&scene, &names).await;
        let given = "
            delivered work:b 6; hold work:b 1 '7 0 1 0 retry: down' 1; ZREM objects.held work:b
            ZADD objects.paused 0 work:b; DEL work:b:event.worker; emit work:b 2
        ";
        scene.add(given).await;
        scene.add(pop).await;
        scene
            .add(&format!("HSET event.rules 'pause work:*' {LIFTED} next 0"))
            .await;
        let mut answer = scene.free(0..1, BOUNDS).await;
        let kind = if others > 0 { "paused" } else { "held" };
        let text = format!("work:b:event.worker: mended: the owner of a {kind} object was absent");
        assert_eq!(answer.texts(), [text], "{pop} {others}");
        if others > 0 {
            assert_eq!(answer.objects(), [""; 0], "{pop} {others}");
            assert_eq!(paused(&scene).await, ["work:b"]);
            answer = scene.free(0..1, BOUNDS).await;
        }
        assert_eq!(answer.objects(), ["work:b"], "{pop} {others}");
        assert_eq!(scene.at("event.worker:w.0:event").await, "[1]");
        assert_eq!(scene.at("work:b:events").await, "[2]");
        scene.check().await;
    }
}

/// The next call is due when the next held object is due, or when the next rule ends.
#[tokio::test]
async fn the_next_call_is_due_at_the_end_of_a_rule() {
    for (held, expected) in [(None, 50), (Some(20), 20), (Some(90), 50), (Some(-1), 0)] {
        let scene = Scene::new().await;
        let now_ms = scene.now_ms().await;
        let end = now_ms + 50_000;
        scene
            .add(&format!(
                "HSET event.rules 'pause a:1' '1 {end} 0 3 0 ada' next {end}"
            ))
            .await;
        if let Some(seconds) = held {
            let due = now_ms as i64 + seconds * 1000;
            scene
                .add(&format!("hold b:1 {due} '1 0 1 0 retry: down' 1"))
                .await;
        }
        let answer = scene.free(0..1, bounds(|b| b.claims = 0)).await;
        let due = answer.next_due.expect("a time").as_secs();
        assert!(due <= expected && due + 15 > expected, "{held:?}: {due}");
    }
}

/// The time of the next wake was changed by hand. If it is no number, the call looks at all rules and
/// writes the time again. A rule in force still counts, and no call fails.
#[tokio::test]
async fn a_time_of_the_next_wake_that_is_no_number_is_written_again() {
    for next in ["x", "", "nan", "-nan"] {
        let given = "emit work:1 1; emit work:2 2; HSET event.rules 'pause work:1'";
        let scene = Scene::given(&format!("{given} {IN_FORCE} next '{next}'")).await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!(answer.objects(), ["work:2"], "{next:?}");
        assert_eq!(paused(&scene).await, ["work:1"], "{next:?}");
        let written: String = scene
            .run(&["HGET", &scene.keys.event_rules(), "next"])
            .await;
        assert_eq!(written, "never", "{next:?}");
    }
}

/// A reply has room for any time that Redis can store, of a held object or of the end of a rule.
#[tokio::test]
async fn a_time_that_is_no_whole_number_of_ms_is_told_as_a_late_one() {
    for late in ["1e300", "99999999999999999999"] {
        for given in [
            format!("HSET event.rules 'pause work:1' {IN_FORCE} next {late}"),
            format!("hold work:1 {late} '0 0 0 0 stop'"),
        ] {
            let scene = Scene::given(&given).await;
            let due = scene.free(0..0, BOUNDS).await.next_due.expect("a time");
            assert!(due > Duration::from_secs(1 << 30), "{given}: {due:?}");
        }
    }
}

/// A rule is in force. A paused object that has lost its owner key is paused again, whoever finds its
/// name. That writes the key, too, so nothing is told.
#[tokio::test]
async fn a_paused_object_without_an_owner_key_is_paused_again() {
    for found in [
        "",
        "hold work:2 9999999999999 '0 0 0 0 yield'",
        "pop w.0",
        "pop w.0; LPUSH event.worker:w.0:object ''",
    ] {
        let scene = Scene::new().await;
        pause(&scene, &["work:1"]).await;
        let rule = format!("HSET event.rules 'pause work:*' {IN_FORCE} next never");
        scene
            .add(&format!(
                "DEL work:1:event.worker; emit work:1 1; {found}; {rule}"
            ))
            .await;
        let answer = scene.free(0..1, BOUNDS).await;
        assert_eq!((answer.objects(), answer.texts()), (vec![], vec![]));
        assert_eq!(paused(&scene).await, ["work:1"], "{found}");
        assert_eq!(scene.at("work:1:event.worker").await, "held", "{found}");
        assert_eq!(scene.at("event.worker:w.0:object").await, "nil", "{found}");
    }
}
