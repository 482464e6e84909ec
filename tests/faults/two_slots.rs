//! Two slots own the same object. No worker leaves this state, but keys may be lost or written by
//! hand.

use std::time::Duration;

use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Report, Suspects, Tag,
};

use crate::state::State;
use crate::support::Redis;

/// Story: a call quarantined the object for one slot, and held it, due at once, for the other slot.
/// The search for the next due object found this object again and again, without end. Redis stood
/// still, and only a shutdown without saving helped.
#[tokio::test]
async fn an_object_quarantined_and_let_go_in_one_call_does_not_stop_redis() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    state.register("w", 3).await;
    state.lease("w").await;
    state.own("w.0", "a", 1, &["1"]).await;
    state.own("w.1", "a", 11, &["11"]).await;
    state.add("LPUSH a:events 12").await;
    state
        .add("HSET a:event.handled id 1 emit:h '0 1 2 9999 1 x'")
        .await;
    let bounds = Bounds {
        batch: 10,
        batch_bytes: 1 << 20,
        reply_bytes: 1 << 20,
        claims: 3,
        markers: 100,
        forget_after: None,
        group_depth: 0,
        suspects: Suspects::NONE,
    };
    let mut call = Advance::new(&keys, "w", "token-of-w", bounds, ClaimFirst::Held);
    call.handled(0);
    for (slot, first, then) in [(0, 1, BatchResult::Done), (1, 11, BatchResult::Yield)] {
        let tag = Tag {
            first,
            ..Tag::default()
        };
        call.report(
            slot,
            &Report {
                object: "a".into(),
                tag,
                count: 1,
                last: Some(first),
                then,
            },
        );
    }
    call.free(2);
    let call = wire::advance(&mut state.conn, &call);
    let answer = tokio::time::timeout(Duration::from_secs(20), call)
        .await
        .expect("the call ends")
        .expect("an answer");
    let Advanced::Ok {
        batches,
        more,
        quarantined,
        ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (batches.len(), more, quarantined.len()),
        // One text is of the object, one of its owner key.
        (0, true, 2),
        "{quarantined:?}"
    );
}
