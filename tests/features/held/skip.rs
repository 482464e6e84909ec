//! Skipping the first event of a held object: it becomes a dead letter, and the rest continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use seriatim::control::held::{Released, Skipped};
use seriatim::sink::Stop;
use seriatim::wire::{Advance, BatchResult, ClaimFirst};

use super::ADA;
use crate::scene::{Scene, bounds, hold, result};
use crate::support::operator::Reads;
use crate::support::recorder::{Act, Recorder};
use crate::support::running::{retrying, start};
use crate::support::{Redis, assert_matches};

/// The first event becomes a dead letter with its error. The rest of the batch keeps its ids, has
/// the last delivered event as `prev`, and has no failed attempts. It keeps one crash, because the
/// event that kills may be in the rest.
#[tokio::test]
async fn a_skipped_event_is_a_dead_letter_and_the_rest_goes_on() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state.delivered("work:1", 9).await;
    state
        .hold(
            "work:1",
            "inf",
            &["{\"n\":1}", "2", "3"],
            "12 4 3 5 crashes: died 5 times with this event in hand",
        )
        .await;
    state.add("LPUSH work:1:events 4").await;
    let skipped = control
        .skip(ADA, "work:1", Some(12))
        .await
        .expect("an answer");
    let Skipped::Skipped {
        id: 12,
        dead_id,
        left: 2,
    } = skipped
    else {
        panic!("{skipped:?}")
    };
    let dead = control
        .dead_letter(&dead_id)
        .await
        .expect("asked")
        .expect("it is there");
    assert_eq!(
        (dead.id, dead.prev, dead.object.as_str(), dead.event.bytes()),
        (Some(12), Some(9), "work:1", &b"{\"n\":1}"[..])
    );
    let error = "skipped: crashes: died 5 times with this event in hand";
    assert_eq!((dead.error.as_str(), dead.attempts), (error, Some(3)));
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("13 4 0 1 skip")
    );
    assert_eq!(
        (
            console.list(&keys.events_held("work:1")).await,
            console.due("work:1").await
        ),
        (vec!["2".to_owned(), "3".to_owned()], Some(0.0))
    );
    assert_eq!(console.markers().await, [""]);
    console.check().await;
    // A repeated skip names event 12, but the first event is now event 13. So the skip is refused.
    let again = control
        .skip(ADA, "work:1", Some(12))
        .await
        .expect("an answer");
    assert_eq!(again, Skipped::Other(13));
    let kept = state.control().recorded(1).await.remove(0);
    assert_eq!(
        (kept.action.as_str(), kept.id, kept.dead_id.as_ref()),
        ("skip", Some(12), Some(&dead_id))
    );

    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.prev, offer.attempts, offer.crashes))
        .collect();
    assert_eq!(
        sent,
        [
            ("2".to_owned(), 9, 0, 1),
            ("3".to_owned(), 13, 0, 1),
            ("4".to_owned(), 14, 0, 0)
        ]
    );
    let ids: Vec<_> = sink.sent().into_iter().map(|offer| offer.id).collect();
    assert_eq!(ids, [13, 14, 15]);
    console.until_at_rest().await;
}

/// If an operator skips the last event of a batch, the queued events continue. If no event is
/// queued, the object becomes idle.
#[tokio::test]
async fn skipping_the_last_event_of_a_batch_leaves_no_batch() {
    let (redis, mut state) = Redis::start().with_state().await;
    let control = state.control();
    let console = redis.console().await;
    for (object, first) in [("more", 1), ("none", 2)] {
        state
            .hold(
                object,
                "inf",
                &["1"],
                &format!("{first} 0 1 0 attempts: failed 1 times, at last: x"),
            )
            .await;
    }
    state.add("LPUSH more:events 2").await;
    for object in ["more", "none"] {
        let skipped = control.skip(ADA, object, None).await.expect("an answer");
        assert_matches!(skipped, Skipped::Skipped { left: 0, .. });
        assert_eq!(
            (console.held_id(object).await, console.due(object).await),
            (None, Some(0.0))
        );
        // The object has no batch any more.
        let again = control.skip(ADA, object, None).await.expect("an answer");
        assert_eq!(again, Skipped::NoBatch(String::new()));
    }
    console.check().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    worker.finish().await;
    assert_eq!(
        (
            sink.sent()[0].text(),
            sink.sent()[0].id,
            sink.sent()[0].prev
        ),
        ("2".to_owned(), 3, 0)
    );
    assert_eq!(console.dead().await.len(), 2);
    console.until_at_rest().await;
    console.check().await;
}

/// A sink had applied the skipped event, so one receiver has it. The next event is in order both
/// for this receiver and for a receiver without the skipped event.
#[tokio::test]
async fn a_receiver_that_has_the_skipped_event_applies_the_next() {
    let (redis, state) = Redis::start().with_state().await;
    let control = state.control();
    let console = redis.console().await;
    let applied = Arc::new(AtomicBool::new(false));
    let has = Arc::clone(&applied);
    let sink = Recorder::with(move |offer| match offer.text().as_str() {
        "2" => {
            has.store(true, Ordering::SeqCst);
            Act::Stop(Stop::transient("no answer"))
        }
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, retrying("fixed:1h"));
    console.emit_all("work:1", ["1", "2", "3"]).await;
    console.until_held("work:1", "retry: no answer").await;
    control
        .skip(ADA, "work:1", Some(2))
        .await
        .expect("an answer");
    sink.until_sent(2).await;
    worker.finish().await;
    let third = sink.sent()[1].clone();
    // Applies the receiver's rule for two receivers: one has applied event 2, the other has not.
    for last in [1, 2] {
        assert_eq!(
            seriatim::consume::judge(last, third.id, third.prev),
            Ok(seriatim::consume::Verdict::Apply),
            "{third:?}"
        );
    }
    assert!(applied.load(Ordering::SeqCst));
    console.until_at_rest().await;
}

/// An object may be held without a batch, after a yield or because a key has a wrong type. Such an
/// object has no event to skip.
#[tokio::test]
async fn what_has_no_batch_is_not_skipped() {
    let (redis, mut state) = Redis::start().with_clean_state().await;
    let control = state.control();
    let (console, keys) = (redis.console().await, redis.keys().clone());
    state
        .hold(
            "gone",
            "inf",
            &[],
            "18 0 0 0 quarantine: gone:events.held is absent",
        )
        .await;
    for (object, why) in [
        ("work:8", ""),
        ("work:7", "crashes: died 5 times with this event in hand"),
        ("gone", "quarantine: gone:events.held is absent"),
    ] {
        let refused = control.skip(ADA, object, None).await.expect("an answer");
        assert_eq!(refused, Skipped::NoBatch(why.to_owned()), "{object}");
    }
    // The ids of this batch are unknown, because its numbers are absent or invalid.
    state.hold("lost", "inf", &["1"], "19 0 1 0 retry: x").await;
    for numbers in ["9007199254740993 0 1 0 retry: x", "1 retry: x", ""] {
        state
            .run("SET", &[&keys.events_held_id("lost"), numbers])
            .await;
        let refused = control.skip(ADA, "lost", None).await.expect("an answer");
        assert_matches!(refused, Skipped::NoIds(_), "{numbers:?}: {refused:?}");
    }
    assert_eq!(console.dead().await.len(), 0);
    // An object that is in no set of held objects is not held, even if its owner key is `held`.
    state.hold("astray", "1", &["1"], "20 0 1 0 retry: x").await;
    state.add("ZREM objects.held astray").await;
    let refused = control.skip(ADA, "astray", None).await.expect("an answer");
    assert_eq!(refused, Skipped::NotHeld("held".to_owned()));
    assert_eq!(console.dead().await.len(), 0);
    // An object without a batch can be released.
    assert_eq!(
        control.release(ADA, "work:8").await.expect("an answer"),
        Released::Released(String::new())
    );
}

/// An operator skips an event. A late result of an earlier hand-out of this event does not apply to
/// the next event.
#[tokio::test]
async fn a_late_result_of_a_skipped_event_is_ignored() {
    let scene = Scene::given("own w.0 work:1 1 1 2 3").await;
    let held = result("work:1", "1", 0, hold("1 0 1", None, "attempts: x"));
    let all = result("work:1", "1", 3, BatchResult::Done);
    let tell = async |claims: usize, fill: &dyn Fn(&mut Advance)| {
        let bounds = bounds(|bounds| bounds.claims = claims);
        scene.advance_from(ClaimFirst::Held, bounds, fill).await
    };
    tell(0, &|call| call.report(0, &held)).await;
    let skipped = scene.control().skip(ADA, "work:1", Some(1)).await;
    skipped.expect("skipped");
    let answer = tell(10, &|call| call.free(0)).await;
    assert_eq!(answer.batches(), ["0 work:1 2 1 after 0: 2 3"]);
    // Two late results: the first hold again, and a report that the whole first hand-out was
    // delivered.
    for late in [&held, &all] {
        let answer = tell(0, &|call| call.report(0, late)).await;
        assert_eq!(answer.batches(), ["0 work:1 2 1 after 0: 2 3"]);
    }
    let batch = scene.list(&scene.keys.worker_event("w.0")).await;
    assert_eq!(batch, ["2", "3"]);
    scene.check().await;
}
