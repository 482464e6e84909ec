//! Handler progress of an event that was lost with a key: emits of its handlers are queued, and nothing
//! stays that stops the next event of the object.

use std::time::Duration;

use seriatim::wire::{self, Advance, Advanced, BatchResult, ClaimFirst, Report, Tag};

use crate::support::Redis;
use crate::{BOUNDS, attached};

/// Story: a batch was lost, and the emits of a handler of its first event stayed. Each attempt of the
/// object's next event failed, because it could not keep emits of its own. Now the first failed
/// attempt pushes what was left.
#[tokio::test]
async fn a_failed_attempt_ends_the_progress_of_a_lost_event() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state
        .run(
            "HSET",
            &[
                &keys.event_handled("work:1"),
                "id",
                "5",
                "h",
                "1",
                "emit:h",
                "0 1 7 6 1 work:2x",
            ],
        )
        .await;
    let rest = Tag {
        first: 7,
        attempts: 1,
        ..Tag::default()
    };
    let then = BatchResult::Hold {
        rest,
        delay: Some(Duration::from_secs(60)),
        reason: "retry: no".into(),
    };
    let report = Report {
        object: "work:1".into(),
        tag: Tag {
            first: 7,
            ..Tag::default()
        },
        count: 0,
        last: None,
        then,
    };
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.handled(0);
    call.report(0, &report);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert!(matches!(answer, Advanced::Ok { .. }), "{answer:?}");
    assert_eq!(
        console
            .run::<u64>(&["EXISTS", &keys.event_handled("work:1")])
            .await,
        0
    );
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("7 0 1 0 retry: no")
    );
    let queued = console.list(&keys.events("work:2")).await.len()
        + console.list(&keys.worker_event("w.0")).await.len();
    assert_eq!(queued, 1);
    console.check().await;
}
