//! The record of a request that may be open at a receiver. The tests call the script directly.

use std::time::Duration;

use seriatim::wire::{self, SENT_MARGIN, ScriptError, Sent, SlotBatch};

use crate::in_hand::{IN_HAND, batch};
use crate::scene::Scene;
use crate::support::console::PATIENCE;
use crate::support::{assert_matches, until};

const LIMIT: Duration = Duration::from_secs(30);

/// Sends the batch. `seen`: the highest id that the caller has seen.
async fn try_sent(
    scene: &Scene,
    batch: SlotBatch<'_>,
    request: &str,
    seen: u64,
) -> Result<Sent, ScriptError> {
    let mut conn = scene.conn().await;
    wire::sent(&mut conn, &scene.keys, &batch, request, LIMIT, seen).await
}

async fn sent(scene: &Scene, request: &str) -> Sent {
    let sent = try_sent(scene, batch(), request, 0).await;
    sent.expect("an answer")
}

/// Sends the batch. Returns the number of the request.
async fn number(scene: &Scene, request: &str) -> u64 {
    number_after(scene, request, 0).await
}

async fn number_after(scene: &Scene, request: &str, seen: u64) -> u64 {
    match try_sent(scene, batch(), request, seen).await {
        Ok(Sent::Sent { number, .. }) => number,
        other => panic!("{other:?}"),
    }
}

async fn over(scene: &Scene, request: &str) {
    let mut conn = scene.conn().await;
    let over = wire::request_over(&mut conn, &scene.keys, b"work:1", request).await;
    over.expect("an answer");
}

/// A second request waits until the first one is over. Only its own delivery says that it is, and a
/// repeated call of this delivery gets a higher number.
#[tokio::test]
async fn a_request_excludes_others_until_it_is_over() {
    let scene = Scene::given(IN_HAND).await;
    let first = number(&scene, "one").await;
    let Sent::Earlier(left) = sent(&scene, "two").await else {
        panic!("another request is open")
    };
    assert!(left <= LIMIT + SENT_MARGIN && left > LIMIT, "{left:?}");
    over(&scene, "two").await;
    over(&scene, "on").await;
    let waits = sent(&scene, "two").await;
    assert_matches!(waits, Sent::Earlier(_));
    let again = number(&scene, "one").await;
    over(&scene, "one").await;
    let second = number(&scene, "two").await;
    assert!(first < again && again < second, "{first} {again} {second}");
    let counter = scene.number(&scene.keys.next_event_id()).await;
    assert_eq!(counter, second);
    scene.check().await;
}

/// Only the owner of the batch may send, but every process may say that its request is over.
#[tokio::test]
async fn only_the_owner_of_the_batch_may_send() {
    let scene = Scene::given(IN_HAND).await;
    number(&scene, "one").await;
    scene.changes().await;
    let (token, object) = ("other", &b"work:2"[..]);
    let tag = "5 1".parse().expect("a tag");
    let lease = "token-1 host 1 1".to_owned();
    for (other, refused) in [
        (SlotBatch { token, ..batch() }, Sent::Fenced { lease }),
        (SlotBatch { slot: 1, ..batch() }, Sent::Other),
        (SlotBatch { object, ..batch() }, Sent::Other),
        (SlotBatch { tag, ..batch() }, Sent::Other),
    ] {
        let reply = try_sent(&scene, other, "one", 0).await;
        assert_eq!(reply.expect("an answer"), refused);
        scene.changed("").await;
    }
    scene.end_lease("w").await;
    assert_eq!(sent(&scene, "one").await, Sent::Lapsed);
    over(&scene, "one").await;
    assert_eq!(scene.at("work:1:event.sent").await, "nil");
}

/// A record ends by itself. If the clock was set back, or another program has written the key without
/// an end, the next look gives it one.
#[tokio::test]
async fn a_record_always_ends() {
    let scene = Scene::given(IN_HAND).await;
    let key = scene.keys.event_sent("work:1");
    let most = i64::try_from((LIMIT + SENT_MARGIN).as_millis()).expect("small");
    number(&scene, "one").await;
    for odd in [
        "PEXPIRE work:1:event.sent 3600000",
        "SET work:1:event.sent 'something else'",
    ] {
        scene.add(odd).await;
        let waits = sent(&scene, "two").await;
        assert_eq!(waits, Sent::Earlier(LIMIT + SENT_MARGIN), "{odd}");
    }
    let left: i64 = scene.run(&["PTTL", &key]).await;
    assert!((1..=most).contains(&left), "{left}");
    scene.add("PEXPIRE work:1:event.sent 1").await;
    until("it has ended", PATIENCE, async || {
        scene.text(&key).await.is_none().then_some(())
    })
    .await;
    number(&scene, "two").await;
}

/// The number is above the counter, and above the highest id that the caller has seen, also if Redis
/// has lost the counter.
#[tokio::test]
async fn numbers_are_ids_that_no_event_gets() {
    let scene = Scene::given(IN_HAND).await;
    scene.add("SET next.event.id 100").await;
    assert_eq!(number(&scene, "one").await, 101);
    // The caller has seen this number, and the counter has it, too.
    assert_eq!(number_after(&scene, "one", 101).await, 102);
    scene.add("DEL next.event.id").await;
    let jumped = number_after(&scene, "one", 102).await;
    assert!(jumped > 1_000_000_000_000_000, "{jumped}");
    for wrong in ["nan", "9007199254740991"] {
        scene.add(&format!("SET next.event.id {wrong}")).await;
        let refused = try_sent(&scene, batch(), "one", 0).await;
        assert_matches!(refused, Err(ScriptError::Counter(text)) if text == wrong);
    }
    let wrong = "DEL next.event.id work:1:event.sent; RPUSH work:1:event.sent x";
    scene.add(wrong).await;
    let refused = try_sent(&scene, batch(), "one", 0).await;
    let refused = refused.expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
}
