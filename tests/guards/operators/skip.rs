//! `skip`: what becomes of the event, of the rest of its batch, and of the progress of its
//! handlers.

use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, Skipped};

use super::{BY, Scene};

const OBJECT: &str = "work:1";
/// The progress of handlers: one of them has emitted for `other:1`, and both have results.
const HANDLED: [&str; 8] = [
    "emit:h",
    "0 1 1 7 1 other:11",
    "handler:h",
    "1",
    "result:h",
    "\"h\":1",
    "result:g",
    "\"g\":2",
];

/// Builds a state with a held object and a row of its errors. Its batch has these events.
async fn scene(held_id: &str, batch: &[&str]) -> Scene {
    let mut scene = Scene::new().await;
    scene.state.hold(OBJECT, "inf", batch, held_id).await;
    scene.put("RPUSH", "work:1:event.errors", &["down"]).await;
    scene.put("SET", "work:1:event.key", &["12 k"]).await;
    scene
}

async fn skip(scene: &mut Scene, id: Option<u64>) -> Result<Skipped, ScriptError> {
    let keys = scene.state.keys.clone();
    operator::skip(&mut scene.state.conn, &keys, BY, OBJECT.as_bytes(), id).await
}

async fn skipped(scene: &mut Scene) -> (u64, u64) {
    let done = skip(scene, Some(12)).await.expect("a reply");
    let Skipped::Skipped { id, left, .. } = done else {
        panic!("{done:?}")
    };
    (id, left)
}

const DEAD: &str = "id 12 prev 9 object work:1 event 1 error skipped: retry: down attempts 3";
const ACTION: &str = "operator.actions: NOW action skip who ada why a test object work:1 id 12 dead_id NOW error retry: down";

/// With the event log on, the row has the results of the handlers of this event, and of no other.
/// The progress of this event ends, and so does what is left of an earlier one. The progress of a
/// later event stays.
#[tokio::test]
async fn the_progress_of_the_event_ends_with_it() {
    for id in ["11", "12", "13"] {
        let mut scene = scene("12 4 3 5 retry: down", &["1", "2"]).await;
        scene.put("SET", "work:1:last.event.id", &["9"]).await;
        scene
            .put("HSET", "seriatim.meta", &["event.log", "on"])
            .await;
        scene
            .put(
                "HSET",
                "work:1:event.handled",
                &[&["id", id][..], &HANDLED].concat(),
            )
            .await;
        assert_eq!(skipped(&mut scene).await, (12, 1), "{id}");
        let mut expected = vec![
            format!(
                "event.log: NOW status dead {DEAD}{}",
                if id == "12" {
                    " results {\"g\":2,\"h\":1}"
                } else {
                    ""
                }
            ),
            format!("events.dead: NOW {DEAD}"),
            "objects.held: work:1 0".to_owned(),
        ];
        if id != "13" {
            expected.push("objects.with.events: other:1".to_owned());
        }
        expected.extend(["objects.with.events: ".to_owned(), ACTION.to_owned()]);
        if id != "13" {
            expected.push("other:1:events: 1".to_owned());
        }
        expected.push("seriatim.meta: event.log = on".to_owned());
        if id == "13" {
            let mut fields: Vec<_> = HANDLED
                .chunks(2)
                .map(|pair| (pair[0], pair[1]))
                .chain([("id", id)])
                .collect();
            fields.sort_unstable();
            expected.extend(
                fields
                    .iter()
                    .map(|(field, value)| format!("work:1:event.handled: {field} = {value}")),
            );
        }
        expected.extend(
            [
                "event.worker: held",
                "events.held: 2",
                "events.held.id: 13 4 0 1 skip",
                "last.event.id: 9",
            ]
            .map(|line| format!("work:1:{line}")),
        );
        assert_eq!(scene.shown().await, expected, "{id}");
    }
}

/// The log is off. The rest of the batch keeps its hand-outs, and at most one crash. Nothing is
/// kept of the last event of a batch.
#[tokio::test]
async fn the_rest_of_the_batch_keeps_its_numbers() {
    for (held_id, batch, last, prev, rest) in [
        (
            "12 4 3 0 retry: down",
            &["1", "2", "3"][..],
            Some("9"),
            "9",
            Some("13 4 0 0 skip"),
        ),
        (
            "12 0 3 1 retry: down",
            &["1", "2"],
            None,
            "0",
            Some("13 0 0 1 skip"),
        ),
        (
            "12 4 3 2 retry: down",
            &["1", "2"],
            Some("odd"),
            "0",
            Some("13 4 0 1 skip"),
        ),
        ("12 4 3 2 retry: down", &["1"], Some("9"), "9", None),
    ] {
        let mut scene = scene(held_id, batch).await;
        if let Some(last) = last {
            scene.put("SET", "work:1:last.event.id", &[last]).await;
        }
        assert_eq!(
            skipped(&mut scene).await,
            (12, batch.len() as u64 - 1),
            "{held_id}"
        );
        let mut expected = vec![
            format!(
                "events.dead: NOW {}",
                DEAD.replace("prev 9", &format!("prev {prev}"))
            ),
            "objects.held: work:1 0".to_owned(),
            "objects.with.events: ".to_owned(),
            ACTION.to_owned(),
            "work:1:event.worker: held".to_owned(),
        ];
        expected.extend(
            batch[1..]
                .iter()
                .rev()
                .map(|event| format!("work:1:events.held: {event}")),
        );
        expected.extend(rest.map(|rest| format!("work:1:events.held.id: {rest}")));
        expected.extend(last.map(|last| format!("work:1:last.event.id: {last}")));
        assert_eq!(scene.shown().await, expected, "{held_id}");
    }
}

/// Emits are checked before the first write. They may be unreadable, have no id, or go to a key of
/// a wrong type. Those of a later event are not looked at.
#[tokio::test]
async fn emits_that_cannot_be_pushed_change_nothing() {
    for (emit, wrong) in [
        ("0 1 1 7 1 other", "work:1:event.handled"),
        ("0 1 1 7 1 other:11", "other:1:events"),
    ] {
        for id in ["11", "12", "13", "odd", ""] {
            let mut scene = scene("12 4 3 5 retry: down", &["1", "2"]).await;
            scene
                .put("HSET", "work:1:event.handled", &["id", id, "emit:h", emit])
                .await;
            if id.is_empty() {
                scene.put("HDEL", "work:1:event.handled", &["id"]).await;
            }
            if !["odd", ""].contains(&id) {
                scene.put("SET", "other:1:events", &["wrong"]).await;
            }
            let before = scene.shown().await;
            if id == "13" {
                assert_eq!(skipped(&mut scene).await, (12, 1), "{emit}");
                continue;
            }
            let refused = skip(&mut scene, None).await.expect_err("a wrong type");
            let wrong = if ["odd", ""].contains(&id) {
                "work:1:event.handled"
            } else {
                wrong
            };
            let key = format!("{}{wrong}", scene.state.keys.prefix());
            assert!(
                matches!(&refused, ScriptError::WrongType { key: told, .. } if *told == key),
                "{refused}"
            );
            assert_eq!(scene.shown().await, before, "{emit}");
        }
    }
}

/// A key of a wrong type is named, and nothing changes.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    for key in [
        "objects.held",
        "objects.paused",
        "event.log",
        "seriatim.meta",
        "events.dead",
        "objects.with.events",
        "operator.actions",
        "work:1:events.held",
        "work:1:events.held.id",
        "work:1:last.event.id",
        "work:1:event.handled",
    ] {
        let mut scene = scene("12 4 3 5 retry: down", &["1", "2"]).await;
        scene.put("DEL", key, &[]).await;
        if key.ends_with("id") || key == "seriatim.meta" {
            scene.put("RPUSH", key, &["wrong"]).await;
        } else {
            scene.put("SET", key, &["wrong"]).await;
        }
        let before = scene.shown().await;
        let refused = skip(&mut scene, None).await.expect_err("a wrong type");
        let named = format!("{}{key}", scene.state.keys.prefix());
        assert!(
            matches!(&refused, ScriptError::WrongType { key: told, .. } if *told == named),
            "{key}: {refused}"
        );
        assert_eq!(scene.shown().await, before, "{key}");
    }
}

/// An object that is not held, that a rule holds, or whose first event is another one, stays as it
/// is.
#[tokio::test]
async fn an_object_that_cannot_skip_its_event_stays() {
    let held_id = "12 4 3 5 retry: down";
    for (command, key, arguments, reply) in [
        (
            "SET",
            "work:1:event.worker",
            &["w.0"][..],
            Skipped::NotHeld("w.0".to_owned()),
        ),
        (
            "DEL",
            "work:1:event.worker",
            &[],
            Skipped::NotHeld(String::new()),
        ),
        (
            "DEL",
            "objects.held",
            &[],
            Skipped::NotHeld("held".to_owned()),
        ),
        ("ZADD", "objects.paused", &["0", OBJECT], Skipped::Paused),
        (
            "DEL",
            "work:1:events.held",
            &[],
            Skipped::NoBatch("retry: down".to_owned()),
        ),
        (
            "SET",
            "work:1:events.held.id",
            &["0 0 0 0 retry: down"],
            Skipped::NoBatch("retry: down".to_owned()),
        ),
        (
            "SET",
            "work:1:events.held.id",
            &["9007199254740992 0 0 0 x"],
            Skipped::NoBatch("x".to_owned()),
        ),
        (
            "SET",
            "work:1:events.held.id",
            &["odd"],
            Skipped::NoBatch(String::new()),
        ),
        (
            "DEL",
            "work:1:events.held.id",
            &[],
            Skipped::NoBatch(String::new()),
        ),
        (
            "SET",
            "work:1:events.held.id",
            &["11 0 0 0 x"],
            Skipped::Other(11),
        ),
        (
            "SET",
            "work:1:events.held.id",
            &["13 0 0 0 x"],
            Skipped::Other(13),
        ),
    ] {
        let mut scene = scene(held_id, &["1", "2"]).await;
        scene.put(command, key, arguments).await;
        let before = scene.shown().await;
        assert_eq!(
            skip(&mut scene, Some(12)).await.expect("a reply"),
            reply,
            "{key} {arguments:?}"
        );
        assert_eq!(scene.shown().await, before, "{key} {arguments:?}");
    }
}
