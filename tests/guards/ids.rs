//! `advance`: the counter jumps before an id could be given twice.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rstest::rstest;
use seriatim::wire::{self, Advance, Advanced, BatchReply, ClaimFirst, ScriptError, Tag};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, ask, attached, done, objects};

/// Lower bound of ids that come from the time. No test gives so many ids.
const TIME_US: u64 = 1_000_000_000_000_000;

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros() as u64
}

/// Makes a call of a process that has seen this id. Slot 0 has delivered `work:1` up to the id
/// `delivered`, if any; slot 1 is free.
async fn call(
    state: &mut State,
    highest: u64,
    delivered: Option<u64>,
) -> Result<Vec<BatchReply>, ScriptError> {
    let keys = state.keys.clone();
    let mut call = Advance::beyond(
        &keys,
        "w",
        "token-1",
        BOUNDS,
        ClaimFirst::Markers,
        highest,
        &Arc::default(),
    );
    match delivered {
        Some(id) => call.report(0, &done("work:1", id)),
        None => call.free(0),
    }
    call.free(1);
    match wire::advance(&mut state.conn, &call).await? {
        Advanced::Ok { batches, .. } => Ok(batches),
        other => panic!("{other:?}"),
    }
}

async fn counter(state: &mut State) -> u64 {
    let key = state.keys.next_event_id();
    redis::cmd("GET")
        .arg(key)
        .query_async(&mut state.conn)
        .await
        .expect("a counter")
}

async fn set_counter(state: &mut State, counter: Option<u64>) {
    let key = state.keys.next_event_id();
    match counter {
        Some(counter) => state.run("SET", &[&key, &counter.to_string()]).await,
        None => state.run("DEL", &[&key]).await,
    }
}

/// The counter was evicted, or Redis went back to an earlier counter, while the connections stayed
/// open. Even a call that gives no id repairs the counter.
#[rstest]
#[case::absent(None, 0)]
#[case::absent_and_known(None, 40)]
#[case::below_what_was_seen(Some(39), 40)]
#[tokio::test]
async fn a_lost_counter_jumps_to_the_time(#[case] left: Option<u64>, #[case] highest: u64) {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    set_counter(&mut state, left).await;
    let began = now_us();
    assert!(
        call(&mut state, highest, None)
            .await
            .expect("an answer")
            .is_empty()
    );
    let jumped = counter(&mut state).await;
    assert!((began..=now_us()).contains(&jumped), "{jumped}");
    state.emit("work:1", "1").await;
    let batches = call(&mut state, jumped, None).await.expect("an answer");
    assert_eq!(batches[0].tag.first, jumped + 1, "it jumps once");
}

/// Two losses in a row: the second jump leads beyond the first one, which no process remembers.
#[tokio::test]
async fn a_counter_ahead_of_the_time_jumps_by_a_distance_that_grows() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let ahead = 5_000_000_000_000_000;
    let mut jumps = Vec::new();
    for _ in 0..3 {
        set_counter(&mut state, Some(7)).await;
        call(&mut state, ahead, None).await.expect("an answer");
        jumps.push(counter(&mut state).await - ahead);
    }
    assert!(jumps.iter().all(|jump| *jump >= 1_000_000), "{jumps:?}");
    // The distance wraps around every 18 minutes.
    assert!(
        jumps.is_sorted_by(|a, b| a < b) || jumps.iter().any(|jump| *jump < 100_000_000),
        "{jumps:?}"
    );
}

#[tokio::test]
async fn what_was_seen_may_not_be_so_high_that_no_id_is_left() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let error = call(&mut state, (1 << 53) - 1_000_000, None)
        .await
        .expect_err("no room");
    assert!(matches!(error, ScriptError::Counter(_)), "{error:?}");
    assert_eq!(counter(&mut state).await, 0);
}

/// A counter that leaves no room for 1,024 full batches is at its end. A text of 17 digits is no
/// counter, even if its number is small.
#[tokio::test]
async fn a_counter_at_its_end_gives_no_id() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let key = state.keys.next_event_id();
    let last = (1_u64 << 53) - 1 - 1024 * BOUNDS.batch as u64;
    for refused in [(last + 1).to_string(), "00000000000000001".to_owned()] {
        state.run("SET", &[&key, &refused]).await;
        let error = call(&mut state, 0, None).await.expect_err("no counter");
        assert!(
            matches!(&error, ScriptError::Counter(counter) if *counter == refused),
            "{error:?}"
        );
    }
    state.run("SET", &[&key, &last.to_string()]).await;
    state.emit("work:1", "1").await;
    assert_eq!(
        call(&mut state, 0, None).await.expect("an answer")[0]
            .tag
            .first,
        last + 1
    );
}

/// The last id of a claimed object is above the counter. Another slot has gone on with its object
/// in the same call. The ids that it got were already given, so they stay.
#[tokio::test]
async fn a_counter_below_an_objects_last_id_jumps_before_ids_are_given() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 3, &["1"]).await;
    state
        .run("LPUSH", &[&state.keys.events("work:1"), "2"])
        .await;
    state.delivered("work:2", 30).await;
    state.emit("work:2", "3").await;
    set_counter(&mut state, Some(3)).await;
    let began = now_us();
    let batches = call(&mut state, 3, Some(3)).await.expect("an answer");
    assert_eq!(
        (
            &batches[0].object[..],
            batches[0].tag.first,
            batches[0].prev
        ),
        (&b"work:1"[..], 4, 3)
    );
    assert_eq!(
        (&batches[1].object[..], batches[1].prev),
        (&b"work:2"[..], 30)
    );
    assert!(
        (began..=now_us()).contains(&(batches[1].tag.first - 1)),
        "{batches:?}"
    );
    assert_eq!(counter(&mut state).await, batches[1].tag.first);
}

/// The last id of an object may be equal to the counter. Then the counter does not jump.
#[tokio::test]
async fn a_counter_that_is_an_objects_last_id_goes_on() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.delivered("work:1", 30).await;
    state.emit("work:1", "1").await;
    let batches = call(&mut state, 30, None).await.expect("an answer");
    assert_eq!((batches[0].tag.first, batches[0].prev), (31, 30));
}

/// A last id with no valid id after it quarantines only its own object. So does a held batch with
/// such ids.
#[tokio::test]
async fn ids_at_the_end_put_their_object_aside() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let end = (1_u64 << 53) - 2;
    state.delivered("work:1", end).await;
    state.emit("work:1", "1").await;
    state
        .hold("work:2", "1", &["2"], &format!("{end} 0 1 0 retry: no"))
        .await;
    state.emit("work:3", "3").await;
    set_counter(&mut state, Some(5)).await;
    let batches = call(&mut state, 5, None).await.expect("an answer");
    assert_eq!(batches.len(), 1, "{batches:?}");
    assert_eq!(
        (&batches[0].object[..], batches[0].tag.first),
        (&b"work:3"[..], 6)
    );
    let console = redis.console().await;
    console
        .until_held("work:1", "quarantine: work:1:last.event.id")
        .await;
    console
        .until_held("work:2", "quarantine: work:2:events.held.id")
        .await;
}

/// After a lost reply, a slot gets the batch that it has. Other slots that claim in this call must
/// not get the ids of this batch.
#[tokio::test]
async fn a_batch_that_is_given_again_lifts_the_counter() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 8, &["1", "2"]).await;
    state.emit("work:2", "3").await;
    set_counter(&mut state, Some(8)).await;
    let batches = call(&mut state, 0, None).await.expect("an answer");
    assert_eq!(
        batches[0].tag,
        Tag {
            first: 8,
            ..Tag::default()
        }
    );
    assert!(batches[1].tag.first > TIME_US, "{batches:?}");
}

/// Redis went back to an earlier counter, and the process no longer knows the highest id that it
/// has seen. The last id of a delivered batch is above the counter, so the counter jumps.
#[tokio::test]
async fn a_counter_below_a_delivered_id_jumps() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 30, &["1"]).await;
    state.emit("work:2", "2").await;
    set_counter(&mut state, Some(7)).await;
    let began = now_us();
    let batches = call(&mut state, 0, Some(30)).await.expect("an answer");
    assert_eq!(&batches[0].object[..], b"work:2");
    assert!(
        (began..=now_us()).contains(&(batches[0].tag.first - 1)),
        "{batches:?}"
    );
    assert_eq!(counter(&mut state).await, batches[0].tag.first);
    assert_eq!(
        redis
            .console()
            .await
            .number(&state.keys.last_event_id("work:1"))
            .await,
        30
    );
}

/// No id has more than 16 digits. A longer text is no id, even if its number is small, so the object
/// waits for an operator.
#[tokio::test]
async fn a_last_id_of_17_digits_is_no_id() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.emit("work:1", "1").await;
    state
        .run("SET", &[&keys.last_event_id("work:1"), "00000000000000001"])
        .await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
}

/// The counter has a wrong type. The call fails before it writes anything, so that no object gets an
/// id below the ids before.
#[tokio::test]
async fn a_counter_of_a_wrong_type_ends_the_call() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    let counter = state.keys.next_event_id();
    state.run("DEL", &[&counter]).await;
    state.run("HSET", &[&counter, "wrong", "type"]).await;
    let refused = ask(&mut state, BOUNDS).await.expect_err("a wrong type");
    assert!(refused.to_string().contains("WRONGTYPE"), "{refused}");
    assert_eq!(
        redis
            .console()
            .await
            .list(&state.keys.objects_with_events())
            .await,
        ["work:1"]
    );
}
