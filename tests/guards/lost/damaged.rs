//! Lost batches beside keys that are damaged.

use super::*;

/// An event of the batch that was put away may have the text of its tag. It stays.
#[tokio::test]
async fn an_event_with_the_text_of_the_tag_is_no_tag() {
    let given = "
        SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1
        RPUSH event.worker:w.0:lost 7 7; SET next.event.id 7
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.batches(), ["0 work:1 7 1 after 0: 7"]);
    scene.check().await;
}

/// The key of the slot's batch has a wrong type. The call fails, and the batch that was put away stays
/// where it is.
#[tokio::test]
async fn a_batch_that_was_put_away_stays_while_the_slot_is_damaged() {
    let given = "
        SET work:1:event.worker w.0; RPUSH event.worker:w.0:lost 7 1; emit work:1 2; pop w.0
        SET event.worker:w.0:event wrong
    ";
    let scene = Scene::given(given).await;
    let failed = scene.fails(BOUNDS, slots(&[], 0..1)).await;
    assert!(failed.is_wrong_type(), "{failed}");
    scene.changed("").await;
}

/// The owner key of an object in hand is lost, and the tag names no object. The last name in the list
/// is the object. A renewal writes the key again.
#[tokio::test]
async fn a_lost_owner_is_written_again_although_the_tag_names_no_object() {
    let given = "
        own w.0 work:1 7 1; SET event.worker:w.0:event.id 7; DEL work:1:event.worker
    ";
    let scene = Scene::given(given).await;
    let text = "mended: the owner of an object in hand was absent";
    assert_eq!(
        renew(&scene).await,
        (0, one_text("work:1:event.worker", text))
    );
    scene.changed("work:1: event.worker = w.0").await;
}

/// The batch of an object is lost, and its tag is no tag any more. A result of the batch takes this text
/// away.
#[tokio::test]
async fn a_text_that_is_no_tag_goes_with_a_lost_batch() {
    let given = "
        own w.0 work:1 7 1; DEL event.worker:w.0:event; SET event.worker:w.0:event.id x
    ";
    let scene = Scene::given(given).await;
    let no_claim = bounds(|b| b.claims = 0);
    scene.report(0, &done("work:1", 7), no_claim).await;
    let changes = "
        event.worker:w.0: event.id = nil; object = nil
        objects.held = <work:1: NOW>
        work:1: event.worker = held
    ";
    scene.changed(changes).await;
}

/// A text that is no tag goes, too, if the batch has to stay, because its object is not known, and the
/// slot has put another batch away.
#[tokio::test]
async fn a_text_that_is_no_tag_goes_although_the_batch_stays() {
    let given = "
        batch w.0 7 1; SET event.worker:w.0:event.id x; RPUSH event.worker:w.0:lost 0 2
    ";
    let scene = Scene::given(given).await;
    let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
    assert_eq!(answer.texts(), [format!("event.worker:w.0: {STUCK}")]);
    scene.changed("event.worker:w.0: event.id = nil").await;
}

/// A slot gets its batch again, with which the reply is full. Another one has lost its tag, so its
/// object waits for an operator. Another call is of use, because this slot is free.
#[tokio::test]
async fn a_full_reply_asks_for_another_call_beside_a_lost_tag() {
    let given = "own w.0 work:1 1 1; own w.1 work:2 2 2; DEL event.worker:w.1:event.id";
    let scene = Scene::given(given).await;
    let one_byte = bounds(|b| b.reply_bytes = 1);
    let answer = scene.free(0..2, one_byte).await;
    assert_eq!(answer.summary(), "work:1, more");
    assert_eq!(scene.at("objects.held").await, "<work:2: inf>");
}

/// The tag is lost, and the process has a result of a part of the batch. The result counts, with any
/// number of delivered events.
#[tokio::test]
async fn a_lost_tag_is_written_again_for_a_part_of_its_batch() {
    for (count, rest, last) in [(0, "7 1 1", "nil"), (1, "8 1 1", "7")] {
        let scene = Scene::given("own w.0 work:1 7 1 2; DEL event.worker:w.0:event.id").await;
        let then = hold(rest, Some(Duration::from_secs(9)), "down");
        let report = result("work:1", "7", count, then);
        let answer = scene.report(0, &report, BOUNDS).await;
        let text = "event.worker:w.0:event.id: mended: the tag was absent";
        assert_eq!(answer.texts(), [text], "{count}");
        assert_eq!(scene.at("work:1:last.event.id").await, last);
        let held = scene.at("work:1:events.held.id").await;
        assert!(held.starts_with(&format!("{rest} 0 ")), "{held}");
        scene.check().await;
    }
}

/// The list of a slot is lost, and the text in the place of its tag has only the object. A restart
/// holds this object with the batch.
#[tokio::test]
async fn a_text_without_a_tag_still_names_the_object() {
    let given = "own w.0 work:1 7 1; DEL event.worker:w.0:object";
    let scene = Scene::given(given).await;
    lose_tag(&scene, Some("\nwork:1")).await;
    let why = "quarantine: event.worker:w.0:event.id is absent";
    assert_eq!(restart(&scene).await, (0, 1, one_text("work:1", why)));
    assert_eq!(scene.at("work:1:events.held").await, "[1]");
    assert_eq!(scene.at("event.worker:w.0:lost").await, "nil");
}

/// Another slot owns the object of a batch. The batch leaves its slot, and the text names the object.
#[tokio::test]
async fn a_lost_batch_is_told_with_the_object_that_it_names() {
    let given = "own w.0 work:1 7 1; SET work:1:event.worker x.0";
    let scene = Scene::given(given).await;
    let key = "event.worker:w.0";
    let text =
        format!("{key}: lost: {key}:lost has a batch of work:1, which the slot does not own");
    assert_eq!(scene.free(0..1, BOUNDS).await.texts(), [text]);
    assert_eq!(scene.at("event.worker:w.0:event").await, "nil");
}
