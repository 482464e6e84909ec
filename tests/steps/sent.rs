//! The record of a request that may be open at a receiver. The tests call the script directly.
#![cfg(feature = "worker")]

use std::time::Duration;

use seriatim::wire::{self, SENT_MARGIN, Sent, SlotBatch, Tag};

use crate::attached;
use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

const LIMIT: Duration = Duration::from_secs(30);

/// Makes a worker `w.0` that owns `work:1`, with its events 5 and 6 in flight.
async fn in_hand(redis: &Redis) -> (State, Console) {
    let mut state = attached::process(redis).await;
    state.own("w.0", "work:1", 5, &["1", "2"]).await;
    (state, redis.console().await)
}

fn batch() -> SlotBatch<'static> {
    SlotBatch {
        name: "w",
        token: "t",
        slot: 0,
        object: b"work:1",
        tag: Tag {
            first: 5,
            ..Tag::default()
        },
    }
}

async fn sent(state: &mut State, batch: SlotBatch<'_>, request: &str) -> Sent {
    wire::sent(&mut state.conn, &state.keys, &batch, request, LIMIT, 0)
        .await
        .expect("an answer")
}

async fn over(state: &mut State, request: &str) {
    wire::request_over(&mut state.conn, &state.keys, b"work:1", request)
        .await
        .expect("an answer");
}

fn number(sent: Sent) -> u64 {
    match sent {
        Sent::Sent { number, .. } => number,
        other => panic!("{other:?}"),
    }
}

/// A second request waits until the first one is over. Only its own delivery says that it is, and a
/// repeated call of this delivery gets a higher number.
#[tokio::test]
async fn a_request_excludes_others_until_it_is_over() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    let first = number(sent(&mut state, batch(), "one").await);
    assert!(
        matches!(sent(&mut state, batch(), "two").await, Sent::Earlier(left) if left <= LIMIT + SENT_MARGIN && left > LIMIT)
    );
    over(&mut state, "two").await;
    over(&mut state, "on").await;
    assert!(matches!(
        sent(&mut state, batch(), "two").await,
        Sent::Earlier(_)
    ));
    let again = number(sent(&mut state, batch(), "one").await);
    over(&mut state, "one").await;
    let second = number(sent(&mut state, batch(), "two").await);
    assert!(first < again && again < second, "{first} {again} {second}");
    assert_eq!(console.number(&state.keys.next_event_id()).await, second);
    console.check().await;
}

/// Only the owner of the batch may send, but every process may say that its request is over.
#[tokio::test]
async fn only_the_owner_of_the_batch_may_send() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    number(sent(&mut state, batch(), "one").await);
    let others = [
        (
            SlotBatch {
                token: "other",
                ..batch()
            },
            Sent::Fenced {
                lease: "t h 1 1".to_owned(),
            },
        ),
        (SlotBatch { slot: 1, ..batch() }, Sent::Other),
        (
            SlotBatch {
                object: b"work:2",
                ..batch()
            },
            Sent::Other,
        ),
        (
            SlotBatch {
                tag: Tag {
                    first: 5,
                    handouts: 1,
                    ..Tag::default()
                },
                ..batch()
            },
            Sent::Other,
        ),
    ];
    for (other, refused) in others {
        let reply = sent(&mut state, other, "one").await;
        let agree = match (&reply, &refused) {
            (Sent::Fenced { lease }, Sent::Fenced { lease: holder }) => {
                lease.starts_with(holder.as_str())
            }
            (reply, refused) => reply == refused,
        };
        assert!(agree, "{reply:?}, not {refused:?}");
    }
    console.end_lease("w").await;
    assert_eq!(sent(&mut state, batch(), "one").await, Sent::Lapsed);
    over(&mut state, "one").await;
    assert_eq!(console.text(&state.keys.event_sent("work:1")).await, None);
}

/// A record ends by itself. If the clock was set back, or another program has written the key without
/// an end, the next look gives it one.
#[tokio::test]
async fn a_record_always_ends() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    let key = state.keys.event_sent("work:1");
    let most = i64::try_from((LIMIT + SENT_MARGIN).as_millis()).expect("small");
    number(sent(&mut state, batch(), "one").await);
    let () = console.run(&["PEXPIRE", &key, "3600000"]).await;
    assert!(
        matches!(sent(&mut state, batch(), "two").await, Sent::Earlier(left) if left == LIMIT + SENT_MARGIN)
    );
    let () = console.run(&["SET", &key, "something else"]).await;
    assert!(
        matches!(sent(&mut state, batch(), "two").await, Sent::Earlier(left) if left == LIMIT + SENT_MARGIN)
    );
    let left: i64 = console.run(&["PTTL", &key]).await;
    assert!((1..=most).contains(&left), "{left}");
    let () = console.run(&["PEXPIRE", &key, "1"]).await;
    crate::support::until(
        "it has ended",
        crate::support::console::PATIENCE,
        async || console.text(&key).await.is_none().then_some(()),
    )
    .await;
    number(sent(&mut state, batch(), "two").await);
}

/// The number is above the counter, and above the highest id that the caller has seen, also if Redis
/// has lost the counter.
#[tokio::test]
async fn numbers_are_ids_that_no_event_gets() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    let counter = state.keys.next_event_id();
    let () = console.run(&["SET", &counter, "100"]).await;
    assert_eq!(number(sent(&mut state, batch(), "one").await), 101);
    // The caller has seen this number, and the counter has it, too.
    let next = wire::sent(&mut state.conn, &state.keys, &batch(), "one", LIMIT, 101).await;
    assert_eq!(number(next.expect("an answer")), 102);
    let () = console.run(&["DEL", &counter]).await;
    let jumped = number(
        wire::sent(&mut state.conn, &state.keys, &batch(), "one", LIMIT, 102)
            .await
            .expect("an answer"),
    );
    assert!(jumped > 1_000_000_000_000_000, "{jumped}");
    for wrong in ["nan", "9007199254740991"] {
        let () = console.run(&["SET", &counter, wrong]).await;
        let refused = wire::sent(&mut state.conn, &state.keys, &batch(), "one", LIMIT, 0).await;
        assert!(matches!(refused, Err(wire::ScriptError::Counter(text)) if text == wrong));
    }
    let () = console
        .run(&["DEL", &counter, &state.keys.event_sent("work:1")])
        .await;
    let () = console
        .run(&["RPUSH", &state.keys.event_sent("work:1"), "x"])
        .await;
    let refused = wire::sent(&mut state.conn, &state.keys, &batch(), "one", LIMIT, 0)
        .await
        .expect_err("a wrong type");
    assert!(refused.is_wrong_type(), "{refused}");
}
