//! The owner key of an object in hand is lost, so a second slot claims the object.

use std::time::Duration;

use seriatim::wire::{Advance, BatchResult, Bounds};

use crate::scene::{BOUNDS, Scene, done, hold, reject, result};
use crate::support::sweep::sweep;

const LOST: &str = "work:1:event.worker: lost: the owner of an object in hand was absent, and it was \
                    claimed a second time";
const MENDED: &str = "work:1:event.worker: mended: the owner of an object in hand was absent";

/// Slot 1 has claimed the object that slot 0 has in hand.
const TWICE: &str = "own w.0 work:1 7 1; own w.1 work:1 8 2; SET next.event.id 8";

/// Story: the second hold overwrote the batch of the first one, without a word.
#[tokio::test]
async fn an_object_that_two_slots_hold_keeps_both_batches() {
    let retry = |n: u64| {
        let rest = format!("{n} 1 1");
        let again = hold(&rest, Some(Duration::from_secs(9)), "down");
        result("work:1", &n.to_string(), 0, again)
    };
    let why = "quarantine: work:1:event.worker is absent";
    let given = "
        own w.0 work:1 7 1 2; own w.1 work:1 9 3 4; SET next.event.id 10
        SET work:1:event.key '7 k'; RPUSH work:1:event.errors '1 1 down'
    ";
    for order in [[(0, 7), (1, 9)], [(1, 9), (0, 7)]] {
        let scene = Scene::given(given).await;
        let [first, second] = order;
        scene.report(first.0, &retry(first.1), BOUNDS).await;
        let answer = scene.report(second.0, &retry(second.1), BOUNDS).await;
        let text = format!("work:1: {why}");
        assert!(answer.texts().contains(&text), "{answer:?}");
        assert_eq!(scene.at("objects.held").await, "<work:1: inf>");
        assert_eq!(scene.at("work:1:event.worker").await, "held");
        assert_eq!(scene.at("work:1:events.held").await, "[1, 2, 3, 4]");
        let numbers = scene.at("work:1:events.held.id").await;
        assert_eq!(numbers, format!("0 0 0 0 {why}"), "{order:?}");
        for key in [
            "event.worker:w.0:event",
            "event.worker:w.0:object",
            "event.worker:w.1:event",
            "event.worker:w.1:object",
            "work:1:event.errors",
            "work:1:event.key",
        ] {
            assert_eq!(scene.at(key).await, "nil", "{key}");
        }
    }
}

/// The key of the held batch has a wrong type. The batch of the slot takes its place, as ever.
#[tokio::test]
async fn a_held_batch_of_a_wrong_type_is_no_batch() {
    let scene = Scene::given("own w.0 work:1 7 1; SET work:1:events.held x").await;
    let again = hold("7 1 1", Some(Duration::from_secs(9)), "down");
    let report = result("work:1", "7", 0, again);
    let answer = scene.report(0, &report, BOUNDS).await;
    assert_eq!(answer.texts(), [""; 0]);
    assert_eq!(scene.at("work:1:events.held").await, "[1]");
}

/// Story: each of two slots went on with the object, and deleted the owner key of the other one. So it
/// was in two hands for its whole backlog, and the last id fell.
#[tokio::test]
async fn a_slot_leaves_an_object_that_another_one_owns() {
    for (word, then) in [
        ("done", BatchResult::Done),
        ("yield", BatchResult::Yield),
        ("reject", reject(None, 7, 1)),
    ] {
        let is_done = word != "reject";
        let scene = Scene::given(&format!("{TWICE}; LPUSH work:1:events 3; emit work:2 4")).await;
        let count = usize::from(is_done);
        let answer = scene
            .report(0, &result("work:1", "7", count, then), BOUNDS)
            .await;
        assert_eq!(answer.texts(), [LOST], "{word}");
        assert_eq!(answer.objects(), ["work:2"], "{word}");
        assert_eq!(scene.at("work:1:event.worker").await, "w.1", "{word}");
        let last = if is_done { "7" } else { "nil" };
        assert_eq!(scene.at("work:1:last.event.id").await, last, "{word}");
        assert_eq!(scene.at("event.worker:w.0:object").await, "[work:2]");
        // The owner goes on.
        let answer = scene.report(1, &done("work:1", 8), BOUNDS).await;
        assert_eq!(answer.batches(), ["1 work:1 10 after 8: 3"], "{word}");
        scene.check().await;
    }
}

/// The second slot is quicker. The last id does not fall, and the object stays free.
#[tokio::test]
async fn a_last_id_does_not_fall() {
    for (word, count) in [("done", 1), ("part", 1)] {
        let given = format!("{TWICE}; LPUSH event.worker:w.0:event x");
        let given = if word == "part" { &given } else { TWICE };
        let scene = Scene::given(given).await;
        scene.report(1, &done("work:1", 8), BOUNDS).await;
        assert_eq!(scene.at("work:1:event.worker").await, "nil");
        let then = match word {
            "done" => BatchResult::Done,
            _ => hold("8", None, "down"),
        };
        let answer = scene
            .report(0, &result("work:1", "7", count, then), BOUNDS)
            .await;
        assert_eq!(answer.texts(), [MENDED], "{word}");
        assert_eq!(scene.at("work:1:last.event.id").await, "8", "{word}");
    }
}

/// Slot 1 has delivered the next event before slot 0 ends its batch. The slot goes on behind that event.
#[tokio::test]
async fn a_slot_goes_on_behind_the_last_id() {
    let given = "own w.0 work:1 7 1 2; own w.1 work:1 9 3; SET next.event.id 9";
    let scene = Scene::given(given).await;
    scene.report(1, &done("work:1", 9), BOUNDS).await;
    scene.add("LPUSH work:1:events 4").await;
    let report = result("work:1", "7", 1, reject(None, 8, 1));
    let answer = scene.report(0, &report, BOUNDS).await;
    assert_eq!(answer.texts(), [MENDED]);
    assert_eq!(answer.batches(), ["0 work:1 10 after 9: 4"]);
    assert_eq!(scene.at("work:1:last.event.id").await, "9");
}

/// Nothing was delivered, and the owner key is absent. The object is held as usual.
#[tokio::test]
async fn a_hold_writes_the_owner_again() {
    let given = "own w.0 work:1 7 1; DEL work:1:event.worker; delivered work:1 6";
    let scene = Scene::given(given).await;
    let again = hold("7 1 1", Some(Duration::from_secs(9)), "down");
    let answer = scene
        .report(0, &result("work:1", "7", 0, again), BOUNDS)
        .await;
    assert_eq!(answer.texts(), [MENDED]);
    assert_eq!(scene.at("work:1:event.worker").await, "held");
    assert_eq!(scene.at("work:1:last.event.id").await, "6");
    scene.check().await;
}

/// A key of a wrong type is no lost owner. It goes with the object, as ever.
#[tokio::test]
async fn an_owner_of_a_wrong_type_is_not_lost() {
    let given = "own w.0 work:1 7 1; DEL work:1:event.worker; LPUSH work:1:event.worker x";
    let scene = Scene::given(given).await;
    let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
    assert_eq!(answer.texts(), [""; 0]);
    assert_eq!(scene.at("work:1:event.worker").await, "nil");
}

/// A slot that leaves an object of another one does so also if it may claim nothing.
#[tokio::test]
async fn a_slot_that_leaves_an_object_is_free() {
    let scene = Scene::given(TWICE).await;
    let bounds = Bounds {
        claims: 0,
        ..BOUNDS
    };
    scene.report(0, &done("work:1", 7), bounds).await;
    assert_eq!(scene.at("event.worker:w.0:object").await, "nil");
    assert_eq!(scene.at("event.worker:w.0:event.id").await, "nil");
}

/// An object with a held batch is taken from its slot for another reason, too: its progress cannot be
/// read, or its process is gone. If the numbers of the held batch are lost, its events come first, even
/// before the first id of all.
#[tokio::test]
async fn a_held_batch_is_never_overwritten() {
    let why = "quarantine: work:1:event.worker is absent";
    let given = "
        own w.0 work:1 7 2; RPUSH work:1:events.held 1; SET work:1:events.held.id '6 0 0 0 '
        HSET work:1:event.handled id 7 emit:a wrong
    ";
    let fill = |id| {
        move |call: &mut Advance| {
            call.handled(0);
            call.report(0, &done("work:1", id));
        }
    };
    for (id, damage) in [(7, ""), (1, "DEL work:1:events.held.id")] {
        let scene = Scene::given(&given.replace('7', &id.to_string())).await;
        scene.add(damage).await;
        let answer = scene.advance(BOUNDS, fill(id)).await;
        assert_eq!(answer.texts(), [format!("work:1: {why}")]);
        assert_eq!(scene.at("work:1:events.held").await, "[1, 2]", "{damage}");
    }

    let scene = Scene::given(given).await;
    scene
        .run::<()>(&["DEL", &scene.keys.worker_lease("w")])
        .await;
    let (mut conn, forget) = (scene.conn().await, Duration::from_secs(600));
    let swept = sweep(&mut conn, &scene.keys, "other", 0, forget).await;
    let lost = swept.expect("an answer").lost;
    assert_eq!(lost, [("work:1".to_owned(), why.to_owned())]);
    assert_eq!(scene.at("work:1:events.held").await, "[1, 2]");
}

/// Nobody has claimed the object since then. The slot goes on with it, and owns it again.
#[tokio::test]
async fn an_owner_that_was_lost_is_written_again() {
    let scene =
        Scene::given("own w.0 work:1 7 1; DEL work:1:event.worker; LPUSH work:1:events 2").await;
    let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
    assert_eq!(answer.texts(), [MENDED]);
    assert_eq!(answer.objects(), ["work:1"]);
    assert_eq!(scene.at("work:1:event.worker").await, "w.0");
    scene.check().await;
}

/// Story: the reply to a result with a dead letter was lost, and then the tag. The repeated result wrote
/// the old tag for the rest of the batch. So an event that was never offered became a dead letter.
#[tokio::test]
async fn a_repeated_dead_letter_writes_no_tag() {
    let complete = BatchResult::Complete {
        next: Some("8".parse().expect("a tag")),
        id: 7,
        error: "no".to_owned(),
        attempts: 1,
    };
    for then in [reject(Some("8"), 7, 1), complete] {
        no_tag_is_written(then).await;
    }
}

async fn no_tag_is_written(then: BatchResult) {
    let scene = Scene::given("own w.0 work:1 7 1 2; SET next.event.id 8").await;
    let report = result("work:1", "7", 0, then);
    scene.report(0, &report, BOUNDS).await;
    scene.add("DEL event.worker:w.0:event.id").await;
    let fill = |call: &mut Advance| call.report(0, &report);
    let answer = scene.advance(BOUNDS, fill).await;
    let why = "quarantine: event.worker:w.0:event.id is absent";
    assert_eq!(answer.texts(), [format!("work:1: {why}")]);
    assert_eq!(scene.at("work:1:events.held").await, "[2]");
    assert_eq!(
        scene.at("work:1:events.held.id").await,
        format!("0 0 0 0 {why}")
    );
}

/// The slot also goes on with the object if the call may claim nothing.
#[tokio::test]
async fn an_owner_that_was_lost_is_written_again_without_a_claim() {
    let given = "own w.0 work:1 7 1; DEL work:1:event.worker; LPUSH work:1:events 2";
    let scene = Scene::given(given).await;
    let bounds = Bounds {
        claims: 0,
        ..BOUNDS
    };
    let answer = scene.report(0, &done("work:1", 7), bounds).await;
    assert_eq!(answer.batches(), ["0 work:1 8 after 7: 2"]);
    scene.check().await;
}

/// The batch is lost, too, and a pop has moved the name of another object into the list of the slot.
/// The event of this object stays in the slot, although the call deletes the batch that it commits.
#[tokio::test]
async fn a_commit_without_a_batch_deletes_no_other_batch() {
    let given = "
        own w.0 work:1 7 1; SET work:1:event.worker w.1; DEL event.worker:w.0:event; emit work:2 2
        pop w.0
    ";
    let scene = Scene::given(given).await;
    let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
    assert_eq!(answer.texts(), [LOST]);
    assert_eq!(answer.objects(), ["work:2"]);
    let changes = "
        event.worker:w.0: event = [2]; event.id = 8; object = [work:2]
        next.event.id = 8
        work:1: last.event.id = 7
        work:2: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}
