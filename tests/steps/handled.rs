//! The record of finished handlers of an event: who may write it, and when it is deleted. The tests
//! call the scripts directly.

use seriatim::control::By;
use seriatim::control::held::Skipped;
use seriatim::wire::{BatchResult, ClaimFirst, Handled, Report, ScriptError, SlotBatch};

use crate::in_hand::{self, IN_HAND, asked, batch, try_asked};
use crate::scene::{Scene, bounds, done, hold, reject, result};
use crate::support::control;

const RECORD: &str = "work:1:event.handled";

/// Records that a handler has finished.
async fn finish(scene: &Scene, id: u64, field: &str) -> Handled {
    asked(scene, Some(in_hand::finished(id, field, None))).await
}

fn kept(id: u64, finished: &[&str]) -> Handled {
    let finished = finished.iter();
    Handled::Kept {
        id,
        finished: finished
            .map(|field| ((*field).to_owned(), "1".to_owned()))
            .collect(),
        emitted: (0, 0),
        results: 0,
    }
}

async fn is_kept(scene: &Scene) -> bool {
    scene.at(RECORD).await != "nil"
}

/// The owner of the batch can read the record. A record of a later event replaces it.
#[tokio::test]
async fn what_is_finished_is_told_until_the_next_event() {
    let scene = Scene::given(IN_HAND).await;
    assert_eq!(asked(&scene, None).await, kept(0, &[]));
    for field in ["handler:a", "once:b", "handler:a"] {
        assert_eq!(finish(&scene, 5, field).await, kept(0, &[]));
    }
    let both = kept(5, &["handler:a", "once:b"]);
    assert_eq!(asked(&scene, None).await, both);
    assert_eq!(finish(&scene, 7, "handler:c").await, kept(0, &[]));
    assert_eq!(asked(&scene, None).await, kept(7, &["handler:c"]));
    // A late success of an earlier event of the batch is refused. A leftover record of an event
    // outside the batch is overwritten.
    assert_eq!(finish(&scene, 6, "handler:a").await, Handled::Other);
    assert_eq!(asked(&scene, None).await, kept(7, &["handler:c"]));
    for left_behind in ["4", "8", "1000", "nan"] {
        scene.add(&format!("HSET {RECORD} id {left_behind}")).await;
        let reply = finish(&scene, 6, "handler:d").await;
        assert_eq!(reply, kept(0, &[]), "{left_behind}");
        let reply = asked(&scene, None).await;
        assert_eq!(reply, kept(6, &["handler:d"]), "{left_behind}");
    }
    scene.check().await;
}

/// Only the owner of the batch may write or read the record.
#[tokio::test]
async fn only_the_owner_of_the_batch_is_heard() {
    let scene = Scene::given(IN_HAND).await;
    scene.add("own w.1 work:2 8 4").await;
    finish(&scene, 5, "handler:a").await;
    scene.changes().await;
    let (token, slot, object) = ("other", 1, &b"work:2"[..]);
    let lease = "token-1 host 1 1".to_owned();
    let tag = |tag: &str| tag.parse().expect("a tag");
    let of = |text: &str| SlotBatch {
        tag: tag(text),
        ..batch()
    };
    let more = || in_hand::finished(5, "handler:b", None);
    for (other, refused) in [
        (SlotBatch { token, ..batch() }, Handled::Fenced { lease }),
        (SlotBatch { slot, ..batch() }, Handled::Other),
        (SlotBatch { slot, ..of("8") }, Handled::Other),
        (SlotBatch { object, ..batch() }, Handled::Other),
        (of("5 1"), Handled::Other),
        (of("6"), Handled::Other),
    ] {
        for finished in [None, Some(more())] {
            let reply = try_asked(&scene, other, finished).await;
            assert_eq!(reply.expect("an answer"), refused, "{other:?} {finished:?}");
            scene.changed("").await;
        }
    }
    assert_eq!(asked(&scene, None).await, kept(5, &["handler:a"]));
    scene.end_lease("w").await;
    assert_eq!(finish(&scene, 5, "handler:b").await, Handled::Lapsed);
    // A record key of a wrong type is reported and stays unchanged.
    scene
        .add(&format!("DEL {RECORD}; SET {RECORD} wrong"))
        .await;
    scene
        .add("SET event.worker:w:lease 'token-1 host 1 1'")
        .await;
    for finished in [None, Some(more())] {
        let failed = try_asked(&scene, batch(), finished).await;
        let is_wrong_type = failed.as_ref().is_err_and(ScriptError::is_wrong_type);
        assert!(is_wrong_type, "{failed:?}");
        scene.changed("").await;
    }
}

/// The result that finalizes an event deletes the record of the event in the same step. Any other
/// result, and an ignored result, keeps the record.
#[tokio::test]
async fn what_is_finished_goes_with_the_result_that_ends_the_event() {
    let all = |then| result("work:1", "5", 3, then);
    let none = |then| result("work:1", "5", 0, then);
    let six = || "6".parse().expect("a tag");
    let complete = BatchResult::Complete {
        next: Some(six()),
        id: 5,
        error: "bad".to_owned(),
        attempts: 0,
    };
    let part = result("work:1", "5", 1, BatchResult::Part { next: six() });
    let late = Report {
        tag: six(),
        ..all(BatchResult::Done)
    };
    let scene = Scene::new().await;
    // For each case: the result, whether the call states that it may end the event, whether
    // `events.dead` has a wrong type, and whether the record is kept.
    for (report, over, broken, left) in [
        (all(BatchResult::Done), true, "", false),
        (all(BatchResult::Yield), true, "", false),
        (part, true, "", false),
        (none(reject(Some("6"), 5, 0)), true, "", false),
        (none(complete), true, "", false),
        (all(BatchResult::Done), false, "", true),
        (none(hold("5 0 1", None, "retry: no")), false, "", true),
        (late, true, "", true),
        // The event cannot become a dead letter, so it is held in its place and keeps its record.
        (
            none(reject(Some("6"), 5, 0)),
            true,
            "SET events.dead wrong",
            true,
        ),
    ] {
        scene.again(&format!("{IN_HAND}; {broken}")).await;
        finish(&scene, 5, "handler:a").await;
        let fill = |call: &mut seriatim::wire::Advance| {
            if over {
                call.handled(0);
            }
            call.report(0, &report);
            // For the second slot the call makes no such statement.
            call.free(1);
        };
        let none = bounds(|b| b.claims = 0);
        scene.advance_from(ClaimFirst::Held, none, fill).await;
        assert_eq!(is_kept(&scene).await, left, "{report:?} {over}");
    }
}

/// Two slots report results, and the call states only for one that an event with a record may end.
/// The statement does not apply to the other slot.
#[tokio::test]
async fn what_one_slot_says_is_not_said_of_another() {
    let scene = Scene::given(IN_HAND).await;
    scene.add("own w.1 work:2 8 4").await;
    finish(&scene, 5, "handler:a").await;
    let other = SlotBatch {
        slot: 1,
        object: b"work:2",
        tag: "8".parse().expect("a tag"),
        ..batch()
    };
    let finished = in_hand::finished(8, "handler:a", None);
    let reply = try_asked(&scene, other, Some(finished)).await;
    reply.expect("an answer");
    let none = bounds(|b| b.claims = 0);
    let fill = |call: &mut seriatim::wire::Advance| {
        call.handled(1);
        call.report(1, &done("work:2", 8));
        call.report(0, &result("work:1", "5", 3, BatchResult::Done));
    };
    scene.advance_from(ClaimFirst::Held, none, fill).await;
    assert!(is_kept(&scene).await);
    assert_eq!(scene.at("work:2:event.handled").await, "nil");
}

/// A skip deletes the record of the skipped event. It keeps the record of a later event, because
/// this record shows that all events before it are finished.
#[tokio::test]
async fn a_skip_takes_along_what_is_finished_of_the_event() {
    let by = By {
        who: "ada",
        why: "because",
    };
    let scene = Scene::new().await;
    for (id, left) in [("4", false), ("5", false), ("nan", false), ("6", true)] {
        let held = "hold work:1 inf '5 0 1 0 retry: no' 1 2";
        scene
            .again(&format!("{held}; HSET {RECORD} id {id} handler:a 1"))
            .await;
        let control = control(&scene.conn().await, &scene.keys);
        let skipped = control.skip(by, "work:1", None).await.expect("an answer");
        let is_skipped = matches!(skipped, Skipped::Skipped { id: 5, .. });
        assert!(is_skipped, "{skipped:?}");
        assert_eq!(is_kept(&scene).await, left, "{id}");
    }
}

/// `check` reports a leftover record of an object without an owner.
#[tokio::test]
async fn what_is_left_behind_is_found() {
    let scene = Scene::given(&format!("delivered work:1 7; HSET {RECORD} id 7")).await;
    let found = scene.report_of_check().await.violations;
    let found: Vec<_> = found.iter().map(|found| format!("{found:?}")).collect();
    let text = "tells what handlers have finished";
    assert!(found.len() == 1 && found[0].contains(text), "{found:?}");
}

/// The script returns a record completely, whatever its size.
#[tokio::test]
async fn much_that_is_finished_is_told() {
    let fields: String = (0..5000).map(|n| format!(" once:{n} 1")).collect();
    let scene = Scene::given(&format!("{IN_HAND}; HSET {RECORD} id 5{fields}")).await;
    let Handled::Kept { id, finished, .. } = asked(&scene, None).await else {
        panic!("it is not told")
    };
    assert_eq!((id, finished.len()), (5, 5000));
}
