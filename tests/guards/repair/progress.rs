//! Handler progress of an event that was lost with a key: emits of its handlers are queued, and nothing
//! stays that stops the next event of the object.

use std::time::Duration;

use seriatim::wire::{self, Advance, Advanced, BatchResult, ClaimFirst, Report, Tag};

use super::{doing, each, lines, repair};
use crate::check::{broken_by, told};
use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, attached};

const QUEUED: &str = "the progress of handlers without an event is deleted, and 1 events that they have emitted are queued";

#[tokio::test]
async fn progress_ends_with_a_lost_batch() {
    let (five, four) = (format!("progress object work:5: {QUEUED}"), format!("progress worker gone.0: {QUEUED}"));
    each(
        &[
            (
                "DEL @work:5:events.held; HSET @work:5:event.handled id 15 h 1 emit:h 0~1~7~6~1~work:1x",
                &["batch object work:5: its batch, from id 15 on, is lost: the object goes on with its queue", &five],
            ),
            (
                "SET @work:5:last.event.id 16; HSET @work:5:event.handled id 15 h 1 emit:h 0~1~7~6~1~work:1x",
                &["dead object work:5: 1 events of its held batch, from id 15 on, become dead letters: event 16 was delivered before", &five],
            ),
            (
                "DEL @event.worker:gone.0:event; HSET @work:4:event.handled id 14 h 1 emit:h 0~1~7~6~1~work:1x",
                &["batch worker gone.0: its batch is lost: its object work:4 goes on with its queue", &four],
            ),
            (
                "DEL @work:5:events.held; HSET @work:5:event.handled id 15 emit:h x",
                &["left object work:5: work:5:event.handled cannot be read: look at it, and delete it"],
            ),
            (
                "DEL @event.worker:gone.0:event; HSET @work:4:event.handled id 14 emit:h x",
                &["left worker gone.0: work:4:event.handled cannot be read: look at it, and delete it"],
            ),
        ],
        &doing(),
    )
    .await;
}

/// A slot has a batch of an object that also has a held one. Progress, errors and key belong to the event
/// in hand, so they stay.
#[tokio::test]
async fn progress_of_an_event_in_hand_stays() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = redis.keys().clone();
    let in_hand = "SET @event.worker:a.0:event.id 12~0~1; HSET @work:2:event.handled id 12 h 1; LPUSH @work:2:event.errors e; \
                   SET @work:2:event.key 12~k; RPUSH @work:2:events.held x";
    let (held, numbers) = (keys.events_held("work:2"), keys.events_held_id("work:2"));
    for with_ids in [false, true] {
        broken_by(&mut state, in_hand).await;
        if with_ids {
            state.run("SET", &[&numbers, "9 0 0 0 stop"]).await;
        }
        let line = match with_ids {
            false => {
                "requeued object work:2: 1 events of a held batch have lost their ids: they get new ids, before all queued events"
            }
            true => {
                "dead object work:2: 1 events of its held batch, from id 9 on, become dead letters: event a later one was delivered before"
            }
        };
        assert_eq!(lines(&repair(&state, &doing()).await), [line]);
        for key in [keys.event_handled("work:2"), keys.event_errors("work:2"), keys.event_key("work:2")] {
            let there: u64 = redis::cmd("EXISTS").arg(&key).query_async(&mut state.conn).await.expect("EXISTS");
            assert_eq!(there, 1, "{key}");
        }
        let there: u64 = redis::cmd("EXISTS").arg(&[&held, &numbers]).query_async(&mut state.conn).await.expect("EXISTS");
        assert_eq!((there, told(&mut state).await), (0, Vec::new()));
    }
}

/// Story: a batch was lost, and the emits of a handler of its first event stayed. Each attempt of the
/// object's next event failed, because it could not keep emits of its own. Now the first failed
/// attempt pushes what was left.
#[tokio::test]
async fn a_failed_attempt_ends_the_progress_of_a_lost_event() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 7, &["1"]).await;
    state.run("HSET", &[&keys.event_handled("work:1"), "id", "5", "h", "1", "emit:h", "0 1 7 6 1 work:2x"]).await;
    let rest = Tag { first: 7, attempts: 1, ..Tag::default() };
    let then = BatchResult::Hold { rest, delay: Some(Duration::from_secs(60)), reason: "retry: no".into() };
    let report = Report { object: "work:1".into(), tag: Tag { first: 7, ..Tag::default() }, count: 0, last: None, then };
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.handled(0);
    call.report(0, &report);
    let answer = wire::advance(&mut state.conn, &call).await.expect("an answer");
    assert!(matches!(answer, Advanced::Ok { .. }), "{answer:?}");
    assert_eq!(console.run::<u64>(&["EXISTS", &keys.event_handled("work:1")]).await, 0);
    assert_eq!(console.held_id("work:1").await.as_deref(), Some("7 0 1 0 retry: no"));
    let queued = console.list(&keys.events("work:2")).await.len() + console.list(&keys.worker_event("w.0")).await.len();
    assert_eq!(queued, 1);
    console.check().await;
}
