//! The record of finished handlers of an event: who may write it, and when it is deleted. The tests
//! call the scripts directly.
#![cfg(feature = "worker")]

use seriatim::control::By;
use seriatim::control::held::Skipped;
use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, FINISHED, Finished, Handled, Report,
    SlotBatch, Suspects, Tag,
};

use crate::attached;
use crate::state::State;
use crate::support::console::Console;
use crate::support::{Redis, control};

const BOUNDS: Bounds = Bounds {
    batch: 10,
    batch_bytes: 1 << 20,
    reply_bytes: 1 << 20,
    claims: 0,
    markers: 100,
    forget_after: None,
    group_depth: 0,
    suspects: Suspects::NONE,
};

/// Makes a worker `w.0` that owns `work:1`, with its events 5, 6 and 7 in flight.
async fn in_hand(redis: &Redis) -> (State, Console) {
    let mut state = attached::process(redis).await;
    state.own("w.0", "work:1", 5, &["1", "2", "3"]).await;
    (state, redis.console().await)
}

fn tag(first: u64) -> Tag {
    Tag {
        first,
        ..Tag::default()
    }
}

fn batch() -> SlotBatch<'static> {
    SlotBatch {
        name: "w",
        token: "t",
        slot: 0,
        object: b"work:1",
        tag: tag(5),
    }
}

async fn told(state: &mut State, batch: SlotBatch<'_>, finished: Option<(u64, &str)>) -> Handled {
    wire::handled(&mut state.conn, &state.keys, &batch, finished.map(plain))
        .await
        .expect("an answer")
}

fn plain((id, field): (u64, &str)) -> Finished<'_> {
    Finished {
        id,
        field,
        value: FINISHED,
        emits: None,
        result: None,
    }
}

fn kept(id: u64, finished: &[&str]) -> Handled {
    Handled::Kept {
        id,
        finished: finished
            .iter()
            .map(|field| ((*field).to_owned(), "1".to_owned()))
            .collect(),
        emitted: (0, 0),
        results: 0,
    }
}

async fn is_kept(state: &mut State) -> bool {
    let key = state.keys.event_handled("work:1");
    redis::cmd("EXISTS")
        .arg(key)
        .query_async(&mut state.conn)
        .await
        .expect("an answer")
}

/// The owner of the batch can read the record. A record of a later event replaces it.
#[tokio::test]
async fn what_is_finished_is_told_until_the_next_event() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    assert_eq!(told(&mut state, batch(), None).await, kept(0, &[]));
    for field in ["handler:a", "once:b", "handler:a"] {
        assert_eq!(
            told(&mut state, batch(), Some((5, field))).await,
            kept(0, &[])
        );
    }
    assert_eq!(
        told(&mut state, batch(), None).await,
        kept(5, &["handler:a", "once:b"])
    );
    assert_eq!(
        told(&mut state, batch(), Some((7, "handler:c"))).await,
        kept(0, &[])
    );
    assert_eq!(
        told(&mut state, batch(), None).await,
        kept(7, &["handler:c"])
    );
    // A late success of an earlier event of the batch is refused. A leftover record of an event
    // outside the batch is overwritten.
    assert_eq!(
        told(&mut state, batch(), Some((6, "handler:a"))).await,
        Handled::Other
    );
    assert_eq!(
        told(&mut state, batch(), None).await,
        kept(7, &["handler:c"])
    );
    for left_behind in ["4", "8", "1000", "nan"] {
        let _: u64 = console
            .run(&[
                "HSET",
                &state.keys.event_handled("work:1"),
                "id",
                left_behind,
            ])
            .await;
        assert_eq!(
            told(&mut state, batch(), Some((6, "handler:d"))).await,
            kept(0, &[]),
            "{left_behind}"
        );
        assert_eq!(
            told(&mut state, batch(), None).await,
            kept(6, &["handler:d"]),
            "{left_behind}"
        );
    }
    console.check().await;
}

/// Only the owner of the batch may write or read the record.
#[tokio::test]
async fn only_the_owner_of_the_batch_is_heard() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    state.own("w.1", "work:2", 8, &["4"]).await;
    told(&mut state, batch(), Some((5, "handler:a"))).await;
    let lease = "t h 1 1".to_owned();
    let again = Tag {
        handouts: 1,
        ..tag(5)
    };
    let others = [
        (
            SlotBatch {
                token: "other",
                ..batch()
            },
            Handled::Fenced { lease },
        ),
        (SlotBatch { slot: 1, ..batch() }, Handled::Other),
        (
            SlotBatch {
                slot: 1,
                tag: tag(8),
                ..batch()
            },
            Handled::Other,
        ),
        (
            SlotBatch {
                object: b"work:2",
                ..batch()
            },
            Handled::Other,
        ),
        (
            SlotBatch {
                tag: again,
                ..batch()
            },
            Handled::Other,
        ),
        (
            SlotBatch {
                tag: tag(6),
                ..batch()
            },
            Handled::Other,
        ),
    ];
    for (other, refused) in others {
        for finished in [None, Some((5, "handler:b"))] {
            assert_eq!(
                told(&mut state, other, finished).await,
                refused,
                "{other:?} {finished:?}"
            );
        }
    }
    assert_eq!(
        told(&mut state, batch(), None).await,
        kept(5, &["handler:a"])
    );
    assert!(
        !console
            .left()
            .await
            .contains(&"work:2:event.handled".to_owned())
    );
    console.end_lease("w").await;
    assert_eq!(
        told(&mut state, batch(), Some((5, "handler:b"))).await,
        Handled::Lapsed
    );
    // A record key of a wrong type is reported and stays unchanged.
    let key = state.keys.event_handled("work:1");
    let _: u64 = console.run(&["DEL", &key]).await;
    let _: String = console.run(&["SET", &key, "wrong"]).await;
    let _: String = console
        .run(&["SET", &state.keys.worker_lease("w"), "t h 1 1"])
        .await;
    for finished in [None, Some((5, "handler:b"))] {
        let failed =
            wire::handled(&mut state.conn, &state.keys, &batch(), finished.map(plain)).await;
        assert!(
            failed.as_ref().is_err_and(wire::ScriptError::is_wrong_type),
            "{failed:?}"
        );
    }
    assert_eq!(console.text(&key).await.as_deref(), Some("wrong"));
}

/// The result that finalizes an event deletes the record of the event in the same step. Any other
/// result, and an ignored result, keeps the record.
#[tokio::test]
async fn what_is_finished_goes_with_the_result_that_ends_the_event() {
    let all = |then| Report {
        object: "work:1".into(),
        tag: tag(5),
        count: 3,
        last: Some(7),
        then,
    };
    let none = |then| Report {
        object: "work:1".into(),
        tag: tag(5),
        count: 0,
        last: None,
        then,
    };
    let reject = BatchResult::Reject {
        next: Some(tag(6)),
        id: 5,
        error: "bad".to_owned(),
        attempts: 0,
    };
    let complete = BatchResult::Complete {
        next: Some(tag(6)),
        id: 5,
        error: "bad".to_owned(),
        attempts: 0,
    };
    let hold = BatchResult::Hold {
        rest: tag(5).failed(),
        delay: None,
        reason: "retry: no".into(),
    };
    let part = Report {
        count: 1,
        last: Some(5),
        ..none(BatchResult::Part { next: tag(6) })
    };
    let late = Report {
        tag: tag(6),
        ..all(BatchResult::Done)
    };
    // For each case: the result, whether the call states that it may end the event, whether
    // `events.dead` has a wrong type, and whether the record is kept.
    let cases = [
        (all(BatchResult::Done), true, false, false),
        (all(BatchResult::Yield), true, false, false),
        (part, true, false, false),
        (none(reject.clone()), true, false, false),
        (none(complete), true, false, false),
        (all(BatchResult::Done), false, false, true),
        (none(hold), false, false, true),
        (late, true, false, true),
        // The event cannot become a dead letter, so it is held in its place and keeps its record.
        (none(reject), true, true, true),
    ];
    for (report, over, broken, left) in cases {
        let redis = Redis::start();
        let (mut state, _) = in_hand(&redis).await;
        told(&mut state, batch(), Some((5, "handler:a"))).await;
        let keys = state.keys.clone();
        if broken {
            state.run("SET", &[&keys.events_dead(), "wrong"]).await;
        }
        let mut call = Advance::new(&keys, "w", "t", BOUNDS, ClaimFirst::Held);
        if over {
            call.handled(0);
        }
        call.report(0, &report);
        // For the second slot the call makes no such statement.
        call.free(1);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert!(matches!(answer, Advanced::Ok { .. }), "{answer:?}");
        assert_eq!(is_kept(&mut state).await, left, "{report:?} {over}");
    }
}

/// Two slots report results, and the call states only for one that an event with a record may end.
/// The statement does not apply to the other slot.
#[tokio::test]
async fn what_one_slot_says_is_not_said_of_another() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    state.own("w.1", "work:2", 8, &["4"]).await;
    told(&mut state, batch(), Some((5, "handler:a"))).await;
    told(
        &mut state,
        SlotBatch {
            slot: 1,
            object: b"work:2",
            tag: tag(8),
            ..batch()
        },
        Some((8, "handler:a")),
    )
    .await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "t", BOUNDS, ClaimFirst::Held);
    call.handled(1);
    call.report(
        1,
        &Report {
            object: "work:2".into(),
            tag: tag(8),
            count: 1,
            last: Some(8),
            then: BatchResult::Done,
        },
    );
    call.report(
        0,
        &Report {
            object: "work:1".into(),
            tag: tag(5),
            count: 3,
            last: Some(7),
            then: BatchResult::Done,
        },
    );
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let left: Vec<_> = console
        .left()
        .await
        .into_iter()
        .filter(|key| key.ends_with(":event.handled"))
        .collect();
    assert_eq!(left, ["work:1:event.handled"]);
}

/// A skip deletes the record of the skipped event. It keeps the record of a later event, because
/// this record shows that all events before it are finished.
#[tokio::test]
async fn a_skip_takes_along_what_is_finished_of_the_event() {
    let by = By {
        who: "ada",
        why: "because",
    };
    for (id, left) in [("4", false), ("5", false), ("nan", false), ("6", true)] {
        let redis = Redis::start();
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        state
            .hold("work:1", "inf", &["1", "2"], "5 0 1 0 retry: no")
            .await;
        state
            .run(
                "HSET",
                &[&keys.event_handled("work:1"), "id", id, "handler:a", "1"],
            )
            .await;
        let skipped = control(&state.conn, &keys)
            .skip(by, "work:1", None)
            .await
            .expect("an answer");
        assert!(
            matches!(skipped, Skipped::Skipped { id: 5, .. }),
            "{skipped:?}"
        );
        assert_eq!(is_kept(&mut state).await, left, "{id}");
    }
}

/// `check` reports a leftover record of an object without an owner.
#[tokio::test]
async fn what_is_left_behind_is_found() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    state.delivered("work:1", 7).await;
    state
        .run("HSET", &[&keys.event_handled("work:1"), "id", "7"])
        .await;
    let report = control(&state.conn, &keys).check().await.expect("checked");
    let found: Vec<_> = report
        .violations
        .iter()
        .map(|violation| format!("{violation:?}"))
        .collect();
    assert!(
        found.len() == 1 && found[0].contains("tells what handlers have finished"),
        "{found:?}"
    );
}

/// The script returns a record completely, whatever its size.
#[tokio::test]
async fn much_that_is_finished_is_told() {
    let redis = Redis::start();
    let (mut state, _) = in_hand(&redis).await;
    let key = state.keys.event_handled("work:1");
    let fields: Vec<_> = (0..5000).map(|n| format!("once:{n}")).collect();
    let mut set = redis::cmd("HSET");
    set.arg(&key).arg("id").arg(5);
    fields.iter().for_each(|field| {
        set.arg(field).arg(1);
    });
    set.query_async::<u64>(&mut state.conn).await.expect("HSET");
    let Handled::Kept { id, finished, .. } = told(&mut state, batch(), None).await else {
        panic!("it is not told")
    };
    assert_eq!((id, finished.len()), (5, 5000));
}
