//! `advance`: events that slots take, and objects that they leave, in cases that real processes
//! reach only after a fault.

use seriatim::wire::{
    self, Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, Report, Tag,
};

use crate::state::State;
use crate::support::Redis;
use crate::{BOUNDS, ask, attached, done, objects, pop};

/// Makes a call with these results; all other slots up to `slots` are free.
async fn advance(
    state: &mut State,
    bounds: Bounds,
    results: &[(usize, Report)],
    slots: usize,
) -> Advanced {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    for (slot, report) in results {
        call.report(*slot, report);
    }
    for slot in results.len()..slots {
        call.free(slot);
    }
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
}

/// Returns the number of events of each batch.
fn lengths(answer: &Advanced) -> Vec<usize> {
    let Advanced::Ok { batches, .. } = answer else {
        panic!("{answer:?}")
    };
    batches
        .iter()
        .map(|batch: &BatchReply| batch.events.len())
        .collect()
}

/// A slot would go on with its object, but the next event is a reference, and the schedules of the
/// object have a wrong type. The object is held for an operator, and the slot does not leave it:
/// `held` stays the owner.
#[tokio::test]
async fn an_object_whose_next_event_cannot_be_read_stays_held() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state
        .run("LPUSH", &[&keys.events("work:1"), "\0queued 5 key"])
        .await;
    state
        .run("SET", &[&keys.events_scheduled_of("work:1"), "wrong"])
        .await;
    let answer = advance(
        &mut state,
        Bounds {
            claims: 0,
            ..BOUNDS
        },
        &[(0, done("work:1", 1))],
        1,
    )
    .await;
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("held")
    );
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(
        console.list(&keys.events("work:1")).await,
        ["\0queued 5 key"]
    );
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
}

/// The call has deleted the keys of a delivered batch when it meets an object without events that
/// another slot owns. The owner of this object is deleted, too.
#[tokio::test]
async fn an_owned_object_without_events_is_let_go_of_after_a_commit() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state
        .run("SET", &[&keys.event_worker("work:2"), "w.1"])
        .await;
    state
        .run("LPUSH", &[&keys.worker_object("w.1"), "work:2"])
        .await;
    advance(&mut state, BOUNDS, &[(0, done("work:1", 1))], 2).await;
    assert_eq!(console.text(&keys.event_worker("work:2")).await, None);
    assert_eq!(
        console.list(&keys.worker_object("w.1")).await,
        Vec::<String>::new()
    );
    console.check().await;
}

/// The owner key of a held object has a wrong type, and the marker after it leads to an object with
/// an owner. No slot may claim the held object, because a claim would pass over its held batch.
#[tokio::test]
async fn a_held_object_with_an_owner_of_a_wrong_type_is_not_claimed_beside_an_owned_one() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state
        .hold("work:1", "inf", &["1"], "1 0 1 0 retry: soon")
        .await;
    state.emit("work:1", "2").await;
    state.run("DEL", &[&keys.event_worker("work:1")]).await;
    state
        .run("LPUSH", &[&keys.event_worker("work:1"), "wrong"])
        .await;
    state.own("other.0", "work:2", 2, &["1"]).await;
    state.emit("work:2", "2").await;
    let answer = advance(&mut state, BOUNDS, &[], 2).await;
    assert_eq!(objects(&answer), Vec::<&str>::new());
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("held")
    );
    assert_eq!(console.list(&keys.events_held("work:1")).await, ["1"]);
}

/// The first event of each queue is short, and all others are long. A call may put 2,048 events
/// back that do not fit into their batch. It assumes that the next events are as long as the
/// longest so far, so it puts back only few, and every slot gets a full batch.
#[tokio::test]
async fn events_longer_than_the_first_use_up_no_room_of_later_slots() {
    const SLOTS: usize = 6;
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let long = "2".repeat(100);
    for slot in 0..SLOTS {
        let object = format!("work:{slot}");
        state.emit(&object, "1").await;
        let queue = state.keys.events(&object);
        state
            .run(
                "LPUSH",
                &[&[queue.as_str()], &vec![long.as_str(); 800][..]].concat(),
            )
            .await;
    }
    let bounds = Bounds {
        batch: 1000,
        batch_bytes: 15_000,
        ..BOUNDS
    };
    let answer = advance(&mut state, bounds, &[], SLOTS).await;
    assert_eq!(lengths(&answer), [151; SLOTS]);
}

/// Makes objects with one short event, then `later` long events each. A batch has room for one long
/// event. Returns the number of events of each batch. All other events stay queued.
async fn lengths_after_put_backs(long: usize, later: &[usize]) -> Vec<usize> {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let event = "2".repeat(long);
    for (n, later) in later.iter().enumerate() {
        let object = format!("work:{n}");
        state.emit(&object, "1").await;
        let queue = state.keys.events(&object);
        state
            .run(
                "LPUSH",
                &[&[queue.as_str()], &vec![event.as_str(); *later][..]].concat(),
            )
            .await;
    }
    let bounds = Bounds {
        batch: 1000,
        batch_bytes: long + 1,
        reply_bytes: 1 << 30,
        claims: later.len(),
        ..BOUNDS
    };
    let taken = lengths(
        &advance(
            &mut state,
            Bounds {
                markers: 4096,
                ..bounds
            },
            &[],
            later.len(),
        )
        .await,
    );
    let console = redis.console().await;
    for (n, (later, taken)) in later.iter().zip(&taken).enumerate() {
        let queued: usize = console
            .run(&["LLEN", &state.keys.events(&format!("work:{n}"))])
            .await;
        assert_eq!(queued + taken, later + 1, "work:{n}");
    }
    taken
}

/// A slot takes up to 20 further events of its object at once, and puts those back that do not fit
/// into its batch. After 2,048 events that were put back, or 4 MiB of them, each later slot of the
/// call gets the first event of its object only.
#[tokio::test]
async fn a_call_puts_back_so_many_events_and_no_more() {
    // 107 slots put back 19 events each. One slot fewer gets more events if the next slot puts back
    // the last event that it may.
    for (later, full) in [(15, 109), (16, 108)] {
        let later = [vec![30; 107], vec![later], vec![30; 22]].concat();
        assert_eq!(
            lengths_after_put_backs(100, &later).await,
            [vec![2; full], vec![1; 130 - full]].concat()
        );
    }
    // Three events of the first size are one byte less than 4 MiB. Four of the second are 4 MiB.
    assert_eq!(
        lengths_after_put_backs(1_398_101, &[4; 4]).await,
        [2, 2, 1, 1]
    );
    assert_eq!(
        lengths_after_put_backs(1 << 20, &[5; 4]).await,
        [2, 1, 1, 1]
    );
    assert_eq!(lengths_after_put_backs(100, &[2]).await, [2]);
}

/// Story: the slot of an object with 121 short events read 500 further ones at once, because all had
/// been short. If each of these has 1 MiB, one call took Redis 4 s. Now a slot reads 32 events at
/// once, and leaves most of the 4 MiB that the call may put back to the next slot.
#[tokio::test]
async fn many_short_events_do_not_let_a_slot_read_many_long_ones() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let long = "2".repeat(100_000);
    for (object, short, later) in [("work:0", 121, 60), ("work:1", 1, 4)] {
        state.emit(object, "1").await;
        let queue = state.keys.events(object);
        let events = [vec!["1"; short - 1], vec![long.as_str(); later]].concat();
        state
            .run("LPUSH", &[&[queue.as_str()], &events[..]].concat())
            .await;
    }
    let bounds = Bounds {
        batch: 1000,
        batch_bytes: long.len(),
        reply_bytes: 1 << 30,
        ..BOUNDS
    };
    let answer = advance(&mut state, bounds, &[], 2).await;
    assert_eq!(lengths(&answer), [122, 2]);
}

/// A call takes at most 4,096 events. Batches that a call gives again count, too, with all their
/// events. As long as one event is left, a slot may claim: the first event of its batch counts as
/// four.
#[tokio::test]
async fn events_that_are_given_again_count() {
    for (last, claimed) in [(91, 2), (92, 1), (95, 1), (96, 0)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let old = [1000, 1000, 1000, 1000, last];
        let mut first = 1;
        for (slot, count) in old.into_iter().enumerate() {
            state
                .own(
                    &format!("w.{slot}"),
                    &format!("old:{slot}"),
                    first,
                    &vec!["1"; count],
                )
                .await;
            state.emit(&format!("new:{slot}"), "2").await;
            first += count as u64;
        }
        let answer = advance(&mut state, BOUNDS, &[], 10).await;
        assert_eq!(lengths(&answer), [&old[..], &vec![1; claimed][..]].concat());
        let Advanced::Ok { batches, more, .. } = answer else {
            panic!("{answer:?}")
        };
        assert!(more, "other objects wait");
        // The next ids follow on the ids of the batches in hand.
        let ids: Vec<u64> = batches[old.len()..]
            .iter()
            .map(|batch| batch.tag.first)
            .collect();
        assert_eq!(ids, (first..first + claimed as u64).collect::<Vec<_>>());
    }
}

/// The list of a free slot has a wrong type, so the call fails. The other free slot claims nothing
/// in this call.
#[tokio::test]
async fn a_call_that_fails_claims_nothing_more() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state
        .run("SET", &[&keys.worker_object("w.1"), "wrong"])
        .await;
    state.emit("work:1", "1").await;
    ask(&mut state, BOUNDS).await.expect_err("a wrong type");
    assert_eq!(console.text(&keys.event_worker("work:1")).await, None);
    assert_eq!(console.list(&keys.events("work:1")).await, ["1"]);
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:1"]);
}

/// A call asks once for all objects of new markers whether they have an owner or a last id, even if
/// another slot owns one of them. A question for each object would add a command to each claim. The
/// call also asks once whether any object has a second event.
#[tokio::test]
async fn objects_of_markers_are_claimed_without_a_question_for_each() {
    const OBJECTS: usize = 20;
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let console = redis.console().await;
    for has_owned in [false, true] {
        if has_owned {
            state.own("other.0", "owned", 1000, &["1"]).await;
            state.emit("owned", "2").await;
        }
        for n in 0..OBJECTS {
            state.emit(&format!("work:{has_owned}:{n}"), "1").await;
        }
        console.run::<()>(&["CONFIG", "RESETSTAT"]).await;
        let from = if has_owned { OBJECTS } else { 0 };
        let keys = state.keys.clone();
        let bounds = Bounds {
            claims: OBJECTS + 1,
            ..BOUNDS
        };
        let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
        (from..=from + OBJECTS).for_each(|slot| call.free(slot));
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(objects(&answer).len(), OBJECTS);
        let stats: String = console.run(&["INFO", "commandstats"]).await;
        assert!(
            !stats.contains("cmdstat_rpop:"),
            "no object has a second event"
        );
        let asked = stats.lines().find_map(|line| {
            line.strip_prefix("cmdstat_exists:calls=")?
                .split(',')
                .next()
        });
        let asked: usize = asked
            .and_then(|calls| calls.parse().ok())
            .expect("a number of calls");
        assert!(asked < OBJECTS / 2, "EXISTS was called {asked} times");
    }
}

/// Held objects have the next turn, and the only marker leads to an object that another slot owns.
/// A marker that leads nowhere does not use up the turn of the markers, so markers keep the turn.
#[tokio::test]
async fn a_marker_that_leads_nowhere_keeps_the_turn() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("other.0", "work:1", 1, &["1"]).await;
    state.emit("work:1", "2").await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Held);
    call.free(0);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert!(
        matches!(
            answer,
            Advanced::Ok {
                from: ClaimFirst::Markers,
                ..
            }
        ),
        "{answer:?}"
    );
}

/// Held objects have the next turn after a claim by a marker, even if a free slot finds no further
/// marker. If the markers after that claim lead nowhere, or if the call may not look at them,
/// markers keep the turn.
#[tokio::test]
async fn markers_after_the_last_claim_decide_about_the_turn() {
    let cases = [
        ("none", ClaimFirst::Held),
        ("owned", ClaimFirst::Markers),
        ("not seen", ClaimFirst::Markers),
    ];
    for (second, next) in cases {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        state.emit("work:1", "1").await;
        if second == "owned" {
            state.own("other.0", "work:2", 1, &["1"]).await;
        }
        if second != "none" {
            state.emit("work:2", "2").await;
        }
        let markers = if second == "not seen" { 1 } else { 100 };
        let answer = ask(&mut state, Bounds { markers, ..BOUNDS })
            .await
            .expect("an answer");
        assert_eq!(objects(&answer), ["work:1"]);
        assert!(
            matches!(answer, Advanced::Ok { from, .. } if from == next),
            "{answer:?}"
        );
    }
}

/// Two slots claim the object of a marker and a held object. The marker is trimmed in the same
/// call.
#[tokio::test]
async fn a_marker_is_trimmed_beside_a_held_object() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    state
        .hold("work:2", "1", &["2"], "1 0 1 0 retry: down")
        .await;
    let answer = ask(&mut state, BOUNDS).await.expect("an answer");
    assert_eq!(objects(&answer), ["work:1", "work:2"]);
    assert_eq!(
        redis
            .console()
            .await
            .list(&state.keys.objects_with_events())
            .await,
        Vec::<String>::new()
    );
}

/// A marker waits, but the call names no free slot, and has nothing to return to the markers.
/// Another such call would do no more, so the reply does not ask for it. A name that the call
/// returns is claimed by the next call; the empty name leads to nothing.
#[tokio::test]
async fn a_call_that_leaves_nothing_to_do_asks_for_no_other() {
    for (popped, expected) in [(None, false), (Some(""), false), (Some("work:1"), true)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let keys = state.keys.clone();
        state.emit(popped.unwrap_or("work:1"), "1").await;
        if popped.is_some() {
            pop(&mut state, "w.0").await;
        }
        let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
        call.look(0);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert!(
            matches!(answer, Advanced::Ok { more, .. } if more == expected),
            "{popped:?}: {answer:?}"
        );
    }
}

/// The batch of a slot was deleted, but not its tag. The object waits for an operator, whatever the
/// slot reports. The slot is free, and claims another object. After the release the object goes on
/// with its next event.
#[tokio::test]
async fn a_deleted_batch_puts_its_object_aside() {
    let tag = Tag {
        first: 1,
        ..Tag::default()
    };
    let held = BatchResult::Hold {
        rest: tag.failed(),
        delay: None,
        reason: "retry: no".into(),
    };
    let reject = BatchResult::Reject {
        next: None,
        id: 1,
        error: "no".to_owned(),
        attempts: 0,
    };
    let part = BatchResult::Part { next: tag };
    for then in [None, Some(held), Some(reject), Some(part)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        state.own("w.0", "work:1", 1, &["1"]).await;
        state.run("DEL", &[&keys.worker_event("w.0")]).await;
        console.emit("work:1", "2").await;
        console.emit("work:2", "3").await;
        let report = |then| Report {
            object: "work:1".into(),
            tag,
            count: 0,
            last: None,
            then,
        };
        let results: Vec<_> = then
            .clone()
            .map(|then| (0, report(then)))
            .into_iter()
            .collect();
        let answer = advance(&mut state, BOUNDS, &results, 1).await;
        assert_eq!(objects(&answer), ["work:2"], "{then:?}");
        let Advanced::Ok { quarantined, .. } = answer else {
            panic!("{answer:?}")
        };
        let why = "quarantine: event.worker:w.0:event is absent";
        assert_eq!(
            quarantined,
            [("work:1".to_owned(), why.to_owned())],
            "{then:?}"
        );
        let held = console.text(&keys.events_held_id("work:1")).await;
        assert_eq!(held, Some(format!("0 0 0 0 {why}")), "{then:?}");
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY), "{then:?}");
        assert_eq!(
            console.text(&keys.event_worker("work:1")).await.as_deref(),
            Some("held"),
            "{then:?}"
        );
        assert_eq!(
            console.list(&keys.worker_object("w.0")).await,
            ["work:2"],
            "{then:?}"
        );
        console.release("work:1").await;
        let bounds = Bounds {
            claims: 1,
            ..BOUNDS
        };
        let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Held);
        call.free(1);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(
            (objects(&answer), lengths(&answer)),
            (vec!["work:1"], vec![1]),
            "{then:?}"
        );
    }
}

/// Makes objects with so many events of 10 bytes each. Returns the number of events of each batch.
async fn lengths_within(bounds: Bounds, queued: &[usize]) -> Vec<usize> {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    for (n, events) in queued.iter().enumerate() {
        let object = format!("work:{n}");
        let queue = state.keys.events(&object);
        state
            .run(
                "LPUSH",
                &[&[queue.as_str()], &vec!["1234567890"; *events][..]].concat(),
            )
            .await;
        state
            .run("LPUSH", &[&state.keys.objects_with_events(), &object])
            .await;
    }
    lengths(&advance(&mut state, bounds, &[], queued.len()).await)
}

/// Further events of a batch use up the reply's bytes, and the events that a call may take.
#[tokio::test]
async fn further_events_of_a_batch_leave_less_for_the_next_slot() {
    for (reply_bytes, taken) in [(40, [3, 1]), (41, [3, 3])] {
        assert_eq!(
            lengths_within(
                Bounds {
                    reply_bytes,
                    ..BOUNDS
                },
                &[3, 3]
            )
            .await,
            taken,
            "{reply_bytes} bytes"
        );
    }
    let bounds = Bounds {
        batch: 1000,
        ..BOUNDS
    };
    for (queued, last) in [(76, 3), (77, 1)] {
        let taken = lengths_within(bounds, &[1000, 1000, 1000, 1000, queued, 3]).await;
        assert_eq!(taken, [1000, 1000, 1000, 1000, queued, last]);
    }
}

/// Slots go on with their objects. The first events use up the reply's bytes, and count as four of
/// the events that a call may take. Without room, an object is held, due now.
#[tokio::test]
async fn slots_go_on_as_far_as_the_reply_has_room() {
    let full = [1000, 1000, 1000, 1000];
    for (reply_bytes, batch, queued, taken) in [
        (10, 1, vec![1, 1], vec![1]),
        (11, 1, vec![1, 1], vec![1, 1]),
        (
            1 << 20,
            1000,
            [&full[..], &[80, 1]].concat(),
            [&full[..], &[80, 1]].concat(),
        ),
        (
            1 << 20,
            1000,
            [&full[..], &[81, 1]].concat(),
            [&full[..], &[81]].concat(),
        ),
    ] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        let mut call = Advance::new(
            &keys,
            "w",
            "token-1",
            Bounds {
                batch,
                reply_bytes,
                ..BOUNDS
            },
            ClaimFirst::Markers,
        );
        for (n, events) in queued.iter().enumerate() {
            let (object, id) = (format!("work:{n}"), n as u64 + 11);
            state.own(&format!("w.{n}"), &object, id, &["1"]).await;
            state
                .run(
                    "LPUSH",
                    &[
                        &[keys.events(&object).as_str()],
                        &vec!["1234567890"; *events][..],
                    ]
                    .concat(),
                )
                .await;
            call.report(
                n,
                &Report {
                    object: object.into(),
                    ..done("", id)
                },
            );
        }
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        assert_eq!(lengths(&answer), taken);
        let Advanced::Ok { batches, more, .. } = answer else {
            panic!("{answer:?}")
        };
        let mut next = queued.len() as u64 + 11;
        for (n, batch) in batches.iter().enumerate() {
            assert_eq!(
                (batch.slot, batch.prev, batch.tag.first),
                (n, n as u64 + 11, next)
            );
            next += batch.events.len() as u64;
        }
        assert_eq!(console.number(&keys.next_event_id()).await, next - 1);
        let is_held = taken.len() < queued.len();
        assert!(!is_held || more, "a held object is due");
        let last = keys.event_worker(&format!("work:{}", queued.len() - 1));
        assert_eq!(
            console.text(&last).await.as_deref() == Some("held"),
            is_held
        );
    }
}

/// Further events are at least as long as the first one. So a slot takes as many as fit into its
/// batch, and puts none back.
#[tokio::test]
async fn a_slot_takes_only_what_fits_if_the_events_have_one_length() {
    for (batch_bytes, taken) in [(15, 2), (30, 3)] {
        let redis = Redis::own(&[]);
        let mut state = attached(&redis).await;
        for _ in 0..6 {
            state.emit("work:1", "1234567890").await;
        }
        assert_eq!(
            lengths(
                &advance(
                    &mut state,
                    Bounds {
                        batch_bytes,
                        ..BOUNDS
                    },
                    &[],
                    1
                )
                .await
            ),
            [taken]
        );
        let stats: String = redis.console().await.run(&["INFO", "commandstats"]).await;
        assert!(
            !stats.contains("cmdstat_rpush:"),
            "{batch_bytes} bytes: {stats}"
        );
    }
}

/// A reference is the only event of its batch. So a batch ends before a reference, and the
/// reference stays in the queue, before the events after it.
#[tokio::test]
async fn a_batch_ends_before_a_reference() {
    for before in 1..=3 {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        let (keys, console) = (state.keys.clone(), redis.console().await);
        let events = [&["1", "2", "3"][..before], &["\0queued 5 key", "4"]].concat();
        for event in &events {
            state.emit("work:1", event).await;
        }
        assert_eq!(
            lengths(&advance(&mut state, BOUNDS, &[], 1).await),
            [before]
        );
        assert_eq!(
            console.list(&keys.worker_event("w.0")).await,
            events[..before]
        );
        assert_eq!(console.list(&keys.events("work:1")).await, events[before..]);
        assert_eq!(console.number(&keys.next_event_id()).await, before as u64);
    }
}

/// A slot would go on with its object, but the object's queue has a wrong type. The object is held
/// for an operator, and another slot still goes on.
#[tokio::test]
async fn an_object_whose_queue_has_a_wrong_type_leaves_its_slot() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    state.run("SET", &[&keys.events("work:1"), "wrong"]).await;
    state.own("w.1", "work:2", 2, &["2"]).await;
    state.run("LPUSH", &[&keys.events("work:2"), "3"]).await;
    let reports = [(0, done("work:1", 1)), (1, done("work:2", 2))];
    let answer = advance(
        &mut state,
        Bounds {
            claims: 0,
            ..BOUNDS
        },
        &reports,
        2,
    )
    .await;
    let Advanced::Ok {
        batches,
        quarantined,
        ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert_eq!(
        batches
            .iter()
            .map(|batch| (batch.slot, &batch.object[..]))
            .collect::<Vec<_>>(),
        [(1, &b"work:2"[..])]
    );
    let why = "quarantine: work:1:events is a string";
    assert_eq!(quarantined, [("work:1".to_owned(), why.to_owned())]);
    assert_eq!(
        console.held_id("work:1").await,
        Some(format!("0 0 0 0 {why}"))
    );
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("held")
    );
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(console.number(&keys.last_event_id("work:1")).await, 1);
    assert_eq!(
        console.list(&keys.worker_object("w.0")).await,
        Vec::<String>::new()
    );
}

/// The Redis user has lost the right to LPUSH. The call fails. The further events that it has taken
/// are in the queue again, and the batch has the first event only.
#[tokio::test]
async fn further_events_go_back_if_the_batch_cannot_get_them() {
    let redis = Redis::own(&[]);
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    state.own("w.0", "work:1", 1, &["1"]).await;
    for event in ["2", "3", "4"] {
        state.run("LPUSH", &[&keys.events("work:1"), event]).await;
    }
    console
        .run::<()>(&[
            "ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all", "-lpush",
        ])
        .await;
    state.run("AUTH", &["weak", "weak"]).await;
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.report(0, &done("work:1", 1));
    wire::advance(&mut state.conn, &call)
        .await
        .expect_err("a right is missing");
    assert_eq!(console.list(&keys.worker_event("w.0")).await, ["2"]);
    assert_eq!(console.list(&keys.events("work:1")).await, ["3", "4"]);
    assert_eq!(
        console.text(&keys.worker_event_id("w.0")).await.as_deref(),
        Some("2")
    );
    let numbers = [keys.next_event_id(), keys.last_event_id("work:1")];
    assert_eq!(
        [
            console.number(&numbers[0]).await,
            console.number(&numbers[1]).await
        ],
        [2, 1]
    );
    assert_eq!(
        console.text(&keys.event_worker("work:1")).await.as_deref(),
        Some("w.0")
    );
    console.check().await;
}

/// A call looks at a slot that is busy. The slots after it have their own results.
#[tokio::test]
async fn a_look_hides_no_slot_after_it() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.emit("work:1", "1").await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "token-1", BOUNDS, ClaimFirst::Markers);
    call.look(0);
    call.free(1);
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let Advanced::Ok { batches, .. } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        batches
            .iter()
            .map(|batch| (batch.slot, &batch.object[..]))
            .collect::<Vec<_>>(),
        [(1, &b"work:1"[..])]
    );
}
