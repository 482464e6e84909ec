//! `skip`: what becomes of the event, of the rest of its batch, and of the progress of its
//! handlers.

use seriatim::wire::ScriptError;
use seriatim::wire::operator::{self, Skipped};

use super::{BY, acted, given, wrong_type};
use crate::scene::Scene;

/// Returns the commands for a held object with a row of its errors. `batch`: its events.
fn held(held_id: &str, batch: &str) -> String {
    let held = format!("hold work:1 inf '{held_id}' {batch}");
    held + "; RPUSH work:1:event.errors down; SET work:1:event.key '12 k'\n"
}

/// Such an object, whose last event was delivered with the id 9.
fn two_events() -> String {
    held("12 4 3 5 retry: down", "1 2")
}

async fn skip(scene: &Scene, id: Option<u64>) -> Result<Skipped, ScriptError> {
    operator::skip(&mut scene.conn().await, &scene.keys, BY, b"work:1", id).await
}

/// Skips the event with the id 12. Returns the number of events that are left.
async fn skipped(scene: &Scene) -> u64 {
    match skip(scene, Some(12)).await.expect("a reply") {
        Skipped::Skipped { id: 12, left, .. } => left,
        other => panic!("{other:?}"),
    }
}

/// Returns the fields of the dead letter.
fn dead(prev: &str) -> String {
    format!("id 12 prev {prev} object work:1 event 1 error skipped: retry: down attempts 3")
}

/// Returns the changes of each call that skips the event.
fn record(prev: &str) -> String {
    let letter = format!(
        "events.dead = {{NOW {}}}\nobjects.held = <work:1: 0>\n",
        dead(prev)
    );
    letter + &acted("skip", "work:1 id 12 dead_id NOW error retry: down")
}

/// With the event log on, the row has the results of the handlers of this event, and of no other.
/// The progress of this event ends, and so does what is left of an earlier one. The progress of a
/// later event stays.
#[tokio::test]
async fn the_progress_of_the_event_ends_with_it() {
    let keys = "
        SET work:1:last.event.id 9; HSET seriatim.meta event.log on
        HSET work:1:event.handled emit:h '0 1 1 7 1 other:11' handler:h 1 result:h '\"h\":1'
        HSET work:1:event.handled result:g '\"g\":2' id
    ";
    let scene = given("").await;
    for (id, results, markers, emitted, progress) in [
        (
            "11",
            "",
            "[, other:1]",
            "other:1: events = [1]",
            "event.handled = nil; ",
        ),
        (
            "12",
            r#" results {\"g\":2,\"h\":1}"#,
            "[, other:1]",
            "other:1: events = [1]",
            "event.handled = nil; ",
        ),
        ("13", "", "[]", "", ""),
    ] {
        scene
            .again(&format!("{}{} {id}", two_events(), keys.trim_end()))
            .await;
        assert_eq!(skipped(&scene).await, 1, "{id}");
        let changes = format!(
            "
            event.log = {{NOW status dead {}{results}}}
            objects.with.events = {markers}
            {emitted}
            work:1: event.errors = nil; {progress}event.key = nil; events.held = [2]; events.held.id = 13 4 0 1 skip
            ",
            dead("9")
        );
        scene.changed(&(changes + &record("9"))).await;
    }
}

/// The log is off. The rest of the batch keeps its hand-outs, and at most one crash. Nothing is
/// kept of the last event of a batch.
#[tokio::test]
async fn the_rest_of_the_batch_keeps_its_numbers() {
    let scene = given("").await;
    for (held_id, batch, last, prev, left, rest) in [
        (
            "12 4 3 0 retry: down",
            "1 2 3",
            "9",
            "9",
            2,
            "[2, 3]; events.held.id = 13 4 0 0 skip",
        ),
        (
            "12 0 3 1 retry: down",
            "1 2",
            "",
            "0",
            1,
            "[2]; events.held.id = 13 0 0 1 skip",
        ),
        (
            "12 4 3 2 retry: down",
            "1 2",
            "odd",
            "0",
            1,
            "[2]; events.held.id = 13 4 0 1 skip",
        ),
        (
            "12 4 3 2 retry: down",
            "1",
            "9",
            "9",
            0,
            "nil; events.held.id = nil",
        ),
    ] {
        scene.again(&held(held_id, batch)).await;
        if !last.is_empty() {
            scene.add(&format!("SET work:1:last.event.id {last}")).await;
        }
        assert_eq!(skipped(&scene).await, left, "{held_id}");
        let object = format!("event.errors = nil; event.key = nil; events.held = {rest}");
        let changes = format!("objects.with.events = []\nwork:1: {object}\n");
        scene.changed(&(changes + &record(prev))).await;
    }
}

/// Emits are checked before the first write. They may be unreadable, have no id, or go to a key of
/// a wrong type. Those of a later event are not looked at.
#[tokio::test]
async fn emits_that_cannot_be_pushed_change_nothing() {
    const HANDLED: &str = "@work:1:event.handled is a hash that cannot be read";
    let scene = given("").await;
    for (emit, wrong) in [
        ("0 1 1 7 1 other", HANDLED),
        ("0 1 1 7 1 other:11", "@other:1:events is a string"),
    ] {
        for (id, wrong) in [
            ("id 11", Some(wrong)),
            ("id 12", Some(wrong)),
            ("id 13", None),
            ("id odd", Some(HANDLED)),
            ("", Some(HANDLED)),
        ] {
            let handled = format!("HSET work:1:event.handled {id} emit:h '{emit}'; ");
            let keys = two_events() + &handled + "SET other:1:events wrong";
            scene.again(&keys).await;
            match wrong {
                None => assert_eq!(skipped(&scene).await, 1, "{emit}"),
                Some(wrong) => {
                    assert_eq!(wrong_type(&scene, skip(&scene, None).await), wrong);
                    scene.changed("").await;
                }
            }
        }
    }
}

/// A key of a wrong type is named, and nothing changes.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named() {
    let scene = given("").await;
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
        let is_text = key.ends_with("id") || key == "seriatim.meta";
        let (push, found) = if is_text {
            ("RPUSH", "list")
        } else {
            ("SET", "string")
        };
        scene
            .again(&format!("{}DEL {key}; {push} {key} wrong", two_events()))
            .await;
        let refused = wrong_type(&scene, skip(&scene, None).await);
        assert_eq!(refused, format!("@{key} is a {found}"));
        scene.changed("").await;
    }
}

/// An object that is not held, that a rule holds, or whose first event is another one, stays as it
/// is.
#[tokio::test]
async fn an_object_that_cannot_skip_its_event_stays() {
    let not_held = |owner: &str| Skipped::NotHeld(owner.to_owned());
    let no_batch = |why: &str| Skipped::NoBatch(why.to_owned());
    let no_ids = |why: &str| Skipped::NoIds(why.to_owned());
    let scene = given("").await;
    for (keys, reply) in [
        ("SET work:1:event.worker w.0", not_held("w.0")),
        ("DEL work:1:event.worker", not_held("")),
        ("DEL objects.held", not_held("held")),
        ("ZADD objects.paused 0 work:1", Skipped::Paused),
        ("DEL work:1:events.held", no_batch("retry: down")),
        (
            "SET work:1:events.held.id '0 0 0 0 retry: down'",
            no_ids("retry: down"),
        ),
        (
            "SET work:1:events.held.id '9007199254740992 0 0 0 x'",
            no_ids("x"),
        ),
        ("SET work:1:events.held.id odd", no_ids("")),
        ("DEL work:1:events.held.id", no_ids("")),
        ("SET work:1:events.held.id '11 0 0 0 x'", Skipped::Other(11)),
        ("SET work:1:events.held.id '13 0 0 0 x'", Skipped::Other(13)),
    ] {
        scene.again(&(two_events() + keys)).await;
        let found = skip(&scene, Some(12)).await.expect("a reply");
        assert_eq!(found, reply, "{keys}");
        scene.changed("").await;
    }
}
