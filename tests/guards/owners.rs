//! The owner key of an object in hand is lost, so a second slot claims the object.

use std::time::Duration;

use seriatim::wire::{Advance, BatchResult};

use crate::scene::{BOUNDS, Scene, done, hold, reject, result};

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
    for order in [[(0, 7), (1, 8)], [(1, 8), (0, 7)]] {
        let scene = Scene::given(TWICE).await;
        let [first, second] = order;
        scene.report(first.0, &retry(first.1), BOUNDS).await;
        let answer = scene.report(second.0, &retry(second.1), BOUNDS).await;
        assert!(
            answer.texts().contains(&format!("work:1: {why}")),
            "{answer:?}"
        );
        assert_eq!(scene.at("objects.held").await, "<work:1: inf>");
        assert_eq!(scene.at("work:1:event.worker").await, "held");
        assert_eq!(scene.at("work:1:events.held").await, "[1, 2]", "{order:?}");
        let numbers = scene.at("work:1:events.held.id").await;
        assert_eq!(numbers, format!("0 0 0 0 {why}"), "{order:?}");
        for slot in ["event.worker:w.0", "event.worker:w.1"] {
            assert_eq!(scene.at(&format!("{slot}:event")).await, "nil");
            assert_eq!(scene.at(&format!("{slot}:object")).await, "nil");
        }
    }
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
    let scene = Scene::given("own w.0 work:1 7 1 2; SET next.event.id 8").await;
    let report = result("work:1", "7", 0, reject(Some("8"), 7, 1));
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
