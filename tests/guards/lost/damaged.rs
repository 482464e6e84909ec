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
