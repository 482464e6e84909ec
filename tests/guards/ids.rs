//! `advance`: the counter jumps before an id could be given twice.

use std::sync::Arc;

use rstest::rstest;
use seriatim::wire::{self, Advance, Advanced, BatchReply, ClaimFirst, ScriptError};

use crate::scene::{BOUNDS, Scene, done, slots};
use crate::support::Redis;

/// Lower bound of ids that come from the time. No test gives so many ids.
const TIME_US: u64 = 1_000_000_000_000_000;

/// Makes a call of a process that has seen this id. Slot 0 has delivered `work:1` up to the id
/// `delivered`, if any; slot 1 is free.
async fn try_call(
    scene: &Scene,
    highest: u64,
    delivered: Option<u64>,
) -> Result<Vec<BatchReply>, ScriptError> {
    let (keys, from, ways) = (&scene.keys, ClaimFirst::Markers, Arc::default());
    let mut call = Advance::beyond(keys, "w", "token-1", BOUNDS, from, highest, &ways);
    match delivered {
        Some(id) => call.report(0, &done("work:1", id)),
        None => call.free(0),
    }
    call.free(1);
    match wire::advance(&mut scene.conn().await, &call).await? {
        Advanced::Ok { batches, .. } => Ok(batches),
        other => panic!("{other:?}"),
    }
}

async fn call(scene: &Scene, highest: u64, delivered: Option<u64>) -> Vec<BatchReply> {
    let batches = try_call(scene, highest, delivered).await;
    batches.expect("an answer")
}

async fn counter(scene: &Scene) -> u64 {
    scene.number(&scene.keys.next_event_id()).await
}

/// Fails unless the counter has jumped to a time since this one, in ms.
async fn assert_jumped(scene: &Scene, began_ms: u64, counter: u64) {
    let now_us = (scene.now_ms().await + 1) * 1000;
    assert!((began_ms * 1000..=now_us).contains(&counter), "{counter}");
}

/// The counter was evicted, or Redis went back to an earlier counter, while the connections stayed
/// open. Even a call that gives no id repairs the counter.
#[rstest]
#[case::absent("DEL next.event.id", 0)]
#[case::absent_and_known("DEL next.event.id", 40)]
#[case::below_what_was_seen("SET next.event.id 39", 40)]
#[tokio::test]
async fn a_lost_counter_jumps_to_the_time(#[case] left: &str, #[case] highest: u64) {
    let scene = Scene::given(left).await;
    let began_ms = scene.now_ms().await;
    assert_eq!(call(&scene, highest, None).await.len(), 0);
    let jumped = counter(&scene).await;
    assert_jumped(&scene, began_ms, jumped).await;
    scene.add("emit work:1 1").await;
    let batches = call(&scene, jumped, None).await;
    assert_eq!(batches[0].tag.first, jumped + 1, "it jumps once");
}

/// A call that gives no id leaves a sound counter as it is, and writes nothing at all. So it needs no
/// memory, and replicas get nothing.
#[tokio::test]
async fn a_call_that_gives_no_id_writes_nothing() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("SET next.event.id 40").await;
    call(&scene, 40, None).await;
    scene.count_calls().await;
    assert_eq!(call(&scene, 40, None).await.len(), 0);
    for command in ["set", "mset", "del"] {
        assert_eq!(scene.calls_of(command).await, 0, "{command}");
    }
}

/// Two losses in a row: the second jump leads beyond the first one, which no process remembers.
#[tokio::test]
async fn a_counter_ahead_of_the_time_jumps_by_a_distance_that_grows() {
    let scene = Scene::new().await;
    let ahead = 5_000_000_000_000_000;
    let mut jumps = Vec::new();
    for _ in 0..3 {
        scene.add("SET next.event.id 7").await;
        call(&scene, ahead, None).await;
        jumps.push(counter(&scene).await - ahead);
    }
    assert!(jumps.iter().all(|jump| *jump >= 1_000_000), "{jumps:?}");
    // The distance wraps around every 18 minutes.
    let has_wrapped = jumps.iter().any(|jump| *jump < 100_000_000);
    assert!(jumps.is_sorted_by(|a, b| a < b) || has_wrapped, "{jumps:?}");
}

#[tokio::test]
async fn what_was_seen_may_not_be_so_high_that_no_id_is_left() {
    let scene = Scene::new().await;
    let refused = try_call(&scene, (1 << 53) - 1_000_000, None).await;
    assert!(
        matches!(refused, Err(ScriptError::Counter(_))),
        "{refused:?}"
    );
    scene.changed("").await;
}

/// A counter that leaves no room for 1,024 full batches is at its end. A text of 17 digits is no
/// counter, even if its number is small.
#[tokio::test]
async fn a_counter_at_its_end_gives_no_id() {
    let last = (1_u64 << 53) - 1 - 1024 * BOUNDS.batch as u64;
    for counter in [(last + 1).to_string(), "00000000000000001".to_owned()] {
        let scene = Scene::given(&format!("SET next.event.id {counter}")).await;
        match try_call(&scene, 0, None).await {
            Err(ScriptError::Counter(refused)) => assert_eq!(refused, counter),
            other => panic!("{other:?}"),
        }
    }
    let scene = Scene::given(&format!("SET next.event.id {last}; emit work:1 1")).await;
    assert_eq!(call(&scene, 0, None).await[0].tag.first, last + 1);
}

/// The last id of a claimed object is above the counter. Another slot has gone on with its object
/// in the same call. The ids that it got were already given, so they stay.
#[tokio::test]
async fn a_counter_below_an_objects_last_id_jumps_before_ids_are_given() {
    let given = "
        own w.0 work:1 3 1; LPUSH work:1:events 2; delivered work:2 30; emit work:2 3
        SET next.event.id 3
    ";
    let scene = Scene::given(given).await;
    let began_ms = scene.now_ms().await;
    let batches = call(&scene, 3, Some(3)).await;
    assert_eq!(format!("{:?}", batches[0]), "0 work:1 4 after 3 x1");
    assert_eq!(
        (&batches[1].object[..], batches[1].prev),
        (&b"work:2"[..], 30)
    );
    assert_jumped(&scene, began_ms, batches[1].tag.first - 1).await;
    assert_eq!(counter(&scene).await, batches[1].tag.first);
}

/// The last id of an object may be equal to the counter. Then the counter does not jump.
#[tokio::test]
async fn a_counter_that_is_an_objects_last_id_goes_on() {
    let scene = Scene::given("delivered work:1 30; emit work:1 1").await;
    let batches = call(&scene, 30, None).await;
    assert_eq!(format!("{batches:?}"), "[0 work:1 31 after 30 x1]");
}

/// A last id with no valid id after it quarantines only its own object. So does a held batch with
/// such ids.
#[tokio::test]
async fn ids_at_the_end_put_their_object_aside() {
    const NO_ROOM: &str = " leaves no room for new ids";
    let end = (1_u64 << 53) - 2;
    let scene = Scene::given(&format!("delivered work:1 {end}; emit work:1 1")).await;
    scene
        .add(&format!(
            "hold work:2 1 '{end} 0 1 0 retry: no' 2; emit work:3 3"
        ))
        .await;
    scene.add("SET next.event.id 5").await;
    let batches = call(&scene, 5, None).await;
    assert_eq!(format!("{batches:?}"), "[0 work:3 6 after 0 x1]");
    scene
        .until_held(
            "work:1",
            &format!("quarantine: work:1:last.event.id{NO_ROOM}"),
        )
        .await;
    scene
        .until_held(
            "work:2",
            &format!("quarantine: work:2:events.held.id{NO_ROOM}"),
        )
        .await;
}

/// After a lost reply, a slot gets the batch that it has. Other slots that claim in this call must
/// not get the ids of this batch.
#[tokio::test]
async fn a_batch_that_is_given_again_lifts_the_counter() {
    let given = "own w.0 work:1 8 1 2; emit work:2 3; SET next.event.id 8";
    let scene = Scene::given(given).await;
    let batches = call(&scene, 0, None).await;
    assert_eq!(format!("{:?}", batches[0]), "0 work:1 8 after 0 x2");
    assert!(batches[1].tag.first > TIME_US, "{batches:?}");
}

/// Redis went back to an earlier counter, and the process no longer knows the highest id that it
/// has seen. The last id of a delivered batch is above the counter, so the counter jumps.
#[tokio::test]
async fn a_counter_below_a_delivered_id_jumps() {
    let given = "own w.0 work:1 30 1; emit work:2 2; SET next.event.id 7";
    let scene = Scene::given(given).await;
    let began_ms = scene.now_ms().await;
    let batches = call(&scene, 0, Some(30)).await;
    assert_eq!(&batches[0].object[..], b"work:2");
    assert_jumped(&scene, began_ms, batches[0].tag.first - 1).await;
    assert_eq!(counter(&scene).await, batches[0].tag.first);
    assert_eq!(scene.at("work:1:last.event.id").await, "30");
}

/// No id has more than 16 digits. A longer text is no id, even if its number is small, so the object
/// waits for an operator.
#[tokio::test]
async fn a_last_id_of_17_digits_is_no_id() {
    let given = "emit work:1 1; SET work:1:last.event.id 00000000000000001";
    let scene = Scene::given(given).await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    assert_eq!(scene.at("objects.held").await, "<work:1: inf>");
}

/// The counter has a wrong type. The call fails before it writes anything, so that no object gets an
/// id below the ids before.
#[tokio::test]
async fn a_counter_of_a_wrong_type_ends_the_call() {
    let given = "emit work:1 1; DEL next.event.id; HSET next.event.id wrong type";
    let scene = Scene::given(given).await;
    let refused = scene.fails(BOUNDS, slots(&[], 0..2)).await.to_string();
    assert!(refused.contains("WRONGTYPE"), "{refused}");
    scene.changed("").await;
}
