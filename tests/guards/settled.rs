//! `advance`: results about parts of a batch, batches that are given again, and held objects that
//! are due.

use seriatim::wire::{
    self, Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, Report, Tag,
};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, LEASE, attached, done};

const NO_CLAIM: Bounds = Bounds {
    claims: 0,
    ..BOUNDS
};

/// Returns a call that prefers held objects.
fn call(state: &State, bounds: Bounds) -> Advance {
    Advance::new(&state.keys, "w", "token-1", bounds, ClaimFirst::Held)
}

/// Makes a call. Returns its batches, the objects that were put aside, and whether another call is
/// of use.
async fn made(state: &mut State, call: Advance) -> (Vec<BatchReply>, Vec<(String, String)>, bool) {
    match wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
    {
        Advanced::Ok {
            batches,
            quarantined,
            more,
            ..
        } => (batches, quarantined, more),
        other => panic!("{other:?}"),
    }
}

/// Returns the slot, the object and the number of events of each batch.
fn shown(batches: &[BatchReply]) -> Vec<(usize, &str, usize)> {
    batches
        .iter()
        .map(|batch| {
            (
                batch.slot,
                std::str::from_utf8(&batch.object).expect("a name"),
                batch.events.len(),
            )
        })
        .collect()
}

fn tag(first: u64) -> Tag {
    Tag {
        first,
        ..Tag::default()
    }
}

fn held(first: u64) -> Report {
    let then = BatchResult::Hold {
        rest: tag(first).failed(),
        delay: Some(LEASE),
        reason: "retry: down".into(),
    };
    Report {
        object: "work:1".into(),
        tag: tag(first),
        count: 0,
        last: None,
        then,
    }
}

/// Handlers have finished for the first event of all. The event is held, so their progress stays.
/// Progress of an event before the batch ends: that event was lost with a key.
#[tokio::test]
async fn the_progress_of_a_held_event_stays() {
    for (report, first, of, is_kept) in [
        (held(1), 1, "1", true),
        (done("work:1", 1), 1, "1", false),
        (held(7), 7, "6", false),
    ] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        state.own("w.0", "work:1", first, &["1"]).await;
        let key = state.keys.event_handled("work:1");
        state.run("HSET", &[&key, "id", of]).await;
        let mut call = call(&state, BOUNDS);
        call.handled(0);
        call.report(0, &report);
        made(&mut state, call).await;
        assert_eq!(
            redis.console().await.run::<bool>(&["EXISTS", &key]).await,
            is_kept
        );
    }
}

/// The last event of a batch becomes a dead letter. Its errors and its key are deleted. The slot
/// goes on with its object, even in a call that claims nothing.
#[tokio::test]
async fn a_slot_goes_on_after_a_dead_letter() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("LPUSH", &[&keys.events("work:1"), "2"]).await;
    state
        .run("SET", &[&keys.worker_event_id("w.0"), "1 1 1"])
        .await;
    state
        .run("LPUSH", &[&keys.event_errors("work:1"), "1 1 no"])
        .await;
    state
        .run("SET", &[&keys.event_key("work:1"), "1 key"])
        .await;
    let mut call = call(&state, NO_CLAIM);
    let then = BatchResult::Reject {
        next: None,
        id: 1,
        error: "no".to_owned(),
        attempts: 1,
    };
    call.report(
        0,
        &Report {
            tag: Tag {
                handouts: 1,
                attempts: 1,
                ..tag(1)
            },
            then,
            ..held(1)
        },
    );
    let (batches, _, _) = made(&mut state, call).await;
    assert_eq!(shown(&batches), [(0, "work:1", 1)]);
    assert_eq!((batches[0].tag, batches[0].prev), (tag(2), 0));
    assert_eq!(console.dead().await.len(), 1);
    let left = [keys.event_errors("work:1"), keys.event_key("work:1")];
    assert_eq!(console.run::<u64>(&["EXISTS", &left[0], &left[1]]).await, 0);
    console.check().await;
}

/// A batch that had failed is delivered. Its errors and its key are deleted, also if a later slot
/// commits a usual batch in the same call.
#[tokio::test]
async fn errors_and_a_key_are_deleted_with_their_event() {
    for slots in [1, 2] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "work:1", 1, &["1"]).await;
        state.own("w.1", "work:2", 2, &["2"]).await;
        state
            .run("SET", &[&keys.worker_event_id("w.0"), "1 1 1"])
            .await;
        let both = [keys.event_errors("work:1"), keys.event_key("work:1")];
        state.run("LPUSH", &[&both[0], "1 1 no"]).await;
        state.run("SET", &[&both[1], "1 key"]).await;
        let mut call = call(&state, NO_CLAIM);
        call.report(
            0,
            &Report {
                tag: Tag {
                    handouts: 1,
                    attempts: 1,
                    ..tag(1)
                },
                ..done("work:1", 1)
            },
        );
        if slots == 2 {
            call.report(1, &done("work:2", 2));
        }
        assert_eq!(shown(&made(&mut state, call).await.0), []);
        assert_eq!(
            console.run::<u64>(&["EXISTS", &both[0], &both[1]]).await,
            0,
            "{slots} slots"
        );
        let batches = [keys.worker_event("w.0"), keys.worker_event("w.1")];
        assert_eq!(
            console
                .run::<usize>(&["EXISTS", &batches[0], &batches[1]])
                .await,
            2 - slots
        );
        assert_eq!(console.number(&keys.last_event_id("work:1")).await, 1);
        console.check().await;
    }
}

/// A late result about a part of a batch is of an earlier hand-out. The slot gets its whole batch
/// again.
#[tokio::test]
async fn a_part_of_an_earlier_hand_out_is_ignored() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1", "2"]).await;
    state
        .run("SET", &[&keys.worker_event_id("w.0"), "1 1"])
        .await;
    let mut call = call(&state, NO_CLAIM);
    call.report(
        0,
        &Report {
            count: 1,
            last: Some(1),
            then: BatchResult::Part { next: tag(2) },
            ..held(1)
        },
    );
    let (batches, _, _) = made(&mut state, call).await;
    assert_eq!(shown(&batches), [(0, "work:1", 2)]);
    assert_eq!(
        batches[0].tag,
        Tag {
            handouts: 1,
            ..tag(1)
        }
    );
    assert_eq!(console.text(&keys.last_event_id("work:1")).await, None);
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["1", "2"]);
    console.check().await;
}

/// The counter must not be below the last id of a batch that is held. It jumps only then. The same
/// holds for a held batch that a slot claims.
#[tokio::test]
async fn the_counter_is_not_below_a_held_batch() {
    for (counter, jumps, is_claimed) in [
        (3, false, false),
        (2, true, false),
        (3, false, true),
        (2, true, true),
    ] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let key = state.keys.next_event_id();
        let mut call = call(&state, BOUNDS);
        if is_claimed {
            state
                .hold("work:1", "1", &["1", "2", "3"], "1 1 2 0 retry: down")
                .await;
            call.free(0);
        } else {
            state.own("w.0", "work:1", 1, &["1", "2", "3"]).await;
            call.report(0, &held(1));
        }
        state.run("SET", &[&key, &counter.to_string()]).await;
        let (batches, _, _) = made(&mut state, call).await;
        let then = redis.console().await.number(&key).await;
        assert_eq!(then > 1_000_000_000_000_000, jumps, "{then}");
        assert!(jumps || then == counter, "{then}");
        let tags: Vec<_> = batches.iter().map(|batch| batch.tag).collect();
        assert_eq!(
            tags,
            [Tag {
                handouts: 2,
                attempts: 2,
                ..tag(1)
            }][..usize::from(is_claimed)]
        );
    }
}

/// A batch that is given again uses up the reply's bytes.
#[tokio::test]
async fn a_batch_that_is_given_again_uses_up_the_reply() {
    for (reply_bytes, batches) in [
        (10, &[(0, "work:1", 1)][..]),
        (11, &[(0, "work:1", 1), (1, "work:2", 1)]),
    ] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        state.own("w.0", "work:1", 1, &["1234567890"]).await;
        state.emit("work:2", "2").await;
        let mut call = call(
            &state,
            Bounds {
                reply_bytes,
                ..BOUNDS
            },
        );
        call.free(0);
        call.free(1);
        assert_eq!(
            shown(&made(&mut state, call).await.0),
            batches,
            "{reply_bytes} bytes"
        );
    }
}

/// The room for ids is counted in events per batch. Bytes per batch may be any number.
#[tokio::test]
async fn any_number_of_bytes_per_batch_leaves_room_for_ids() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.delivered("work:1", 30).await;
    state.emit("work:1", "1").await;
    state.run("SET", &[&state.keys.next_event_id(), "3"]).await;
    let mut call = call(
        &state,
        Bounds {
            batch_bytes: 1 << 43,
            ..BOUNDS
        },
    );
    call.free(0);
    assert_eq!(shown(&made(&mut state, call).await.0), [(0, "work:1", 1)]);
}

/// The last id of a due object is invalid. The object waits for an operator, with its batch, or
/// with its events.
#[tokio::test]
async fn a_held_batch_without_a_valid_last_id_waits_for_an_operator() {
    for (command, kind) in [("SET", "string"), ("LPUSH", "list")] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state
            .hold("work:1", "1", &["1", "2"], "1 1 2 0 retry: down")
            .await;
        state
            .run(command, &[&keys.last_event_id("work:1"), "none"])
            .await;
        let mut call = call(&state, BOUNDS);
        call.free(0);
        let (batches, quarantined, _) = made(&mut state, call).await;
        let why = format!("quarantine: work:1:last.event.id is a {kind}");
        assert_eq!(
            (shown(&batches), &quarantined[..]),
            (Vec::new(), &[("work:1".to_owned(), why.clone())][..])
        );
        assert_eq!(
            console.held_id("work:1").await,
            Some(format!("1 1 2 0 {why}"))
        );
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
        assert_eq!(console.list(&keys.events_held("work:1")).await, ["1", "2"]);
        assert_eq!(
            console.list(&keys.worker_object("w.0")).await,
            Vec::<String>::new()
        );
    }
}

/// A due object without a batch has a queue of a wrong type. The object stays held, for an
/// operator.
#[tokio::test]
async fn a_due_object_whose_queue_has_a_wrong_type_stays_held() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.hold("work:1", "1", &[], "0 0 0 0 yield").await;
    state.run("SET", &[&keys.events("work:1"), "wrong"]).await;
    let mut call = call(&state, BOUNDS);
    call.free(0);
    let (batches, quarantined, _) = made(&mut state, call).await;
    let why = "quarantine: work:1:events is a string";
    assert_eq!(
        (shown(&batches), &quarantined[..]),
        (Vec::new(), &[("work:1".to_owned(), why.to_owned())][..])
    );
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(
        console.held_id("work:1").await,
        Some(format!("0 0 0 0 {why}"))
    );
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("held")
    );
}

/// A due object without a batch also has a marker. Only one of two free slots gets the object.
#[tokio::test]
async fn a_due_object_with_a_marker_has_one_slot() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.hold("work:1", "1", &[], "0 0 0 0 yield").await;
    state.emit("work:1", "1").await;
    state.emit("work:1", "2").await;
    let mut call = call(&state, Bounds { batch: 1, ..BOUNDS });
    call.free(0);
    call.free(1);
    assert_eq!(shown(&made(&mut state, call).await.0), [(0, "work:1", 1)]);
    assert_eq!(console.list(&keys.events("work:1")).await, ["2"]);
    assert_eq!(console.due("work:1").await, None);
    console.check().await;
}

/// A call reads the due objects in pages, not once for each slot.
#[tokio::test]
async fn due_objects_are_read_in_pages() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let console = redis.console().await;
    let mut call = call(&state, BOUNDS);
    for n in 0..10 {
        state
            .hold(
                &format!("work:{n}"),
                "1",
                &["1"],
                &format!("{} 0 1 0 retry: down", n + 1),
            )
            .await;
        call.free(n);
    }
    console.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(made(&mut state, call).await.0.len(), 10);
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let read = stats.lines().find_map(|line| {
        line.strip_prefix("cmdstat_zrange:calls=")?
            .split(',')
            .next()
    });
    assert!(
        read.and_then(|calls| calls.parse::<u32>().ok())
            .is_some_and(|calls| calls <= 4),
        "{read:?}"
    );
}

/// Two slots have the same object in hand. The progress of the first one's event cannot be read, so
/// the object is put aside. Then the second slot yields the object, so it is due. The call does not
/// claim the object again, and it ends.
#[tokio::test]
async fn an_object_that_was_put_aside_is_not_claimed_in_the_same_call() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.own("w.1", "work:1", 2, &["2"]).await;
    state.run("LPUSH", &[&keys.events("work:1"), "3"]).await;
    state
        .run(
            "HSET",
            &[&keys.event_handled("work:1"), "id", "1", "emit:a", "wrong"],
        )
        .await;
    let mut call = call(&state, BOUNDS);
    call.handled(0);
    call.report(0, &done("work:1", 1));
    call.report(
        1,
        &Report {
            then: BatchResult::Yield,
            ..done("work:1", 2)
        },
    );
    let (batches, quarantined, _) = made(&mut state, call).await;
    assert_eq!(shown(&batches), []);
    let why = "quarantine: work:1:event.handled is a hash that cannot be read";
    assert_eq!(quarantined, [("work:1".to_owned(), why.to_owned())]);
    assert_eq!(console.list(&keys.events_held("work:1")).await, ["1"]);
    assert_eq!(console.list(&keys.events("work:1")).await, ["3"]);
    assert!(console.due("work:1").await.is_some_and(f64::is_finite));
    let lists = [
        console.list(&keys.worker_object("w.0")).await,
        console.list(&keys.worker_object("w.1")).await,
    ];
    assert_eq!(lists, [Vec::<String>::new(), Vec::new()]);
}
