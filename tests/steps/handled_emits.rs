//! Emits of handlers. They are stored in the record of finished handlers, and pushed in the step
//! that finalizes their event. The tests call the scripts directly.
#![cfg(feature = "worker")]

use std::time::Duration;

use seriatim::control::By;
use seriatim::control::held::Skipped;
use seriatim::wire::values::{Due, Later, LaterMode};
use seriatim::wire::{
    self, Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, Emits, EventLog,
    FINISHED, Finished, Forgot, Handled, Report, ScriptError, SlotBatch, Suspects, Tag,
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
/// A name and an event that look like other parts of the stored format.
const ODD: (&[u8], &[u8]) = (b"3 4 a\0\r\n:\xff", b"1 1 \0\xff{}\n");

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

/// Formats the emits of a handler as they are stored: the handler's place in the order of
/// registration, and for each event the object and the event.
fn emits(place: usize, events: &[(&str, &str)]) -> Vec<u8> {
    let mut emits = Emits::default();
    events
        .iter()
        .for_each(|(object, event)| emits.push(object.as_bytes(), event.as_bytes()));
    emits.value(place)
}

async fn asked(state: &mut State, finished: Option<Finished<'_>>) -> Handled {
    let batch = SlotBatch {
        name: "w",
        token: "t",
        slot: 0,
        object: b"work:1",
        tag: tag(5),
    };
    wire::handled(&mut state.conn, &state.keys, &batch, finished)
        .await
        .expect("an answer")
}

fn nothing_told() -> Handled {
    Handled::Kept {
        id: 0,
        finished: [].into(),
        emitted: (0, 0),
        results: 0,
    }
}

/// Records that the handlers `a` and `b` of an event have finished and emitted. `a` finishes first,
/// but `b` is registered first.
async fn finish(state: &mut State, id: u64, by_a: &[(&str, &str)], by_b: &[(&str, &str)]) {
    for (field, emit, value) in [
        ("handler:a", "emit:a", emits(11, by_a)),
        ("handler:b", "emit:b", emits(2, by_b)),
    ] {
        let done = asked(
            state,
            Some(Finished {
                id,
                field,
                value: FINISHED,
                emits: Some((emit, &value)),
                result: None,
            }),
        )
        .await;
        assert_eq!(done, nothing_told());
    }
}

async fn hash(console: &Console) -> Vec<String> {
    let mut fields: Vec<String> = console
        .run(&["HKEYS", &console.keys.event_handled("work:1")])
        .await;
    fields.sort();
    fields
}

async fn queued(console: &Console, object: &str) -> Vec<String> {
    console.list(&console.keys.events(object)).await
}

async fn markers(console: &Console) -> Vec<String> {
    console.list(&console.keys.objects_with_events()).await
}

fn report(count: usize, then: BatchResult) -> Report {
    let last = count.checked_sub(1).map(|at| 5 + at as u64);
    Report {
        object: "work:1".into(),
        tag: tag(5),
        count,
        last,
        then,
    }
}

fn reject(id: u64) -> BatchResult {
    BatchResult::Reject {
        next: (id < 7).then(|| tag(id + 1)),
        id,
        error: "bad".to_owned(),
        attempts: 0,
    }
}

fn complete(id: u64) -> BatchResult {
    BatchResult::Complete {
        next: (id < 7).then(|| tag(id + 1)),
        id,
        error: "bad".to_owned(),
        attempts: 0,
    }
}

fn hold(count: usize) -> BatchResult {
    BatchResult::Hold {
        rest: tag(5).after(count, 1).failed(),
        delay: None,
        reason: "retry: no".into(),
    }
}

/// Reports a result for slot 0, and states that it may end an event with a record. Slot 1 is free.
/// Returns the batches and the quarantined objects.
async fn advance(
    state: &mut State,
    report: &Report,
    bounds: Bounds,
    log: bool,
) -> (Vec<BatchReply>, Vec<(String, String)>) {
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "t", bounds, ClaimFirst::Held);
    if log {
        call.log(EventLog::default());
    }
    call.handled(0);
    call.report_taken(0, report, Duration::ZERO);
    call.free(1);
    match wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer")
    {
        Advanced::Ok {
            batches,
            quarantined,
            ..
        } => (batches, quarantined),
        other => panic!("{other:?}"),
    }
}

/// One call records that a handler has finished, together with its emits. A repeated call changes
/// nothing. A call that reads the record gets the number and the bytes of the emits.
#[tokio::test]
async fn what_is_emitted_is_kept_with_what_is_finished() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    for _ in 0..2 {
        finish(
            &mut state,
            5,
            &[("work:2", "{}"), ("work:1", "[1]")],
            &[("é", "7")],
        )
        .await;
        asked(
            &mut state,
            Some(Finished {
                id: 5,
                field: "once:c",
                value: FINISHED,
                emits: None,
                result: None,
            }),
        )
        .await;
        assert_eq!(
            hash(&console).await,
            ["emit:a", "emit:b", "handler:a", "handler:b", "id", "once:c"]
        );
    }
    let finished = ["handler:a", "handler:b", "once:c"]
        .map(|field| (field.to_owned(), "1".to_owned()))
        .into();
    assert_eq!(
        asked(&mut state, None).await,
        Handled::Kept {
            id: 5,
            finished,
            emitted: (3, 8 + 9 + 3),
            results: 0
        }
    );
    assert!(markers(&console).await.is_empty() && queued(&console, "work:2").await.is_empty());
    console.check().await;
}

/// As long as a record has emits that are not pushed yet, no record of another event can replace
/// it. Otherwise the emits would be lost.
#[tokio::test]
async fn what_is_still_to_be_pushed_is_not_written_over() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    finish(&mut state, 5, &[("work:2", "{}")], &[("work:2", "{}")]).await;
    let next = Finished {
        id: 6,
        field: "handler:a",
        value: FINISHED,
        emits: None,
        result: None,
    };
    for id in ["5", "4", "1000", "nan"] {
        let _: u64 = console
            .run(&["HSET", &console.keys.event_handled("work:1"), "id", id])
            .await;
        assert_eq!(
            asked(&mut state, Some(next)).await,
            Handled::Unpushed { id: id.to_owned() }
        );
        assert_eq!(
            hash(&console).await,
            ["emit:a", "emit:b", "handler:a", "handler:b", "id"]
        );
    }
    // If the record is of a later event of the batch, the success is refused for this reason first.
    let _: u64 = console
        .run(&["HSET", &console.keys.event_handled("work:1"), "id", "7"])
        .await;
    assert_eq!(asked(&mut state, Some(next)).await, Handled::Other);
}

/// In whatever way the event ends, its emits are pushed: in the order in which the handlers are
/// registered, with one marker per object.
#[tokio::test]
async fn what_is_emitted_is_pushed_with_the_result_that_ends_the_event() {
    let by_a = [("work:2", "a1"), ("work:3", "a2"), ("work:2", "a3")];
    let by_b = [("work:3", "b1"), ("work:2", "b2")];
    // For each case: the event of the record, the report, and whether the report ends this event.
    let cases = [
        (5, report(3, BatchResult::Done), true),
        (7, report(3, BatchResult::Done), true),
        (5, report(3, BatchResult::Yield), true),
        (5, report(1, BatchResult::Part { next: tag(6) }), true),
        (6, report(1, BatchResult::Part { next: tag(6) }), false),
        (5, report(0, reject(5)), true),
        (6, report(0, reject(5)), false),
        (6, report(1, reject(6)), true),
        (7, report(2, reject(7)), true),
        (5, report(0, complete(5)), true),
        (7, report(1, complete(6)), false),
        (5, report(0, hold(0)), false),
        (5, report(1, hold(1)), true),
        (6, report(1, hold(1)), false),
    ];
    for (id, report, is_over) in cases {
        for log in [false, true] {
            let redis = Redis::start();
            let (mut state, console) = in_hand(&redis).await;
            finish(&mut state, id, &by_a, &by_b).await;
            let (_, quarantined) = advance(&mut state, &report, BOUNDS, log).await;
            assert_eq!(quarantined, []);
            let found = (
                queued(&console, "work:2").await,
                queued(&console, "work:3").await,
                markers(&console).await,
            );
            let of = |words: &[&str]| {
                words
                    .iter()
                    .map(|word| (*word).to_owned())
                    .collect::<Vec<_>>()
            };
            let pushed = (
                of(&["b2", "a1", "a3"]),
                of(&["b1", "a2"]),
                of(&["work:3", "work:2"]),
            );
            assert_eq!(
                found,
                if is_over { pushed } else { Default::default() },
                "{id} {report:?} {log}"
            );
            assert_eq!(
                hash(&console).await.is_empty(),
                is_over,
                "{id} {report:?} {log}"
            );
            // The call is repeated, as after a lost reply. The emits are not pushed again.
            advance(&mut state, &report, BOUNDS, log).await;
            assert_eq!(
                queued(&console, "work:2").await.len(),
                if is_over { 3 } else { 0 }
            );
        }
    }
}

/// Several handlers have the same place, because processes registered them in different orders.
/// Their emits are pushed in the order of the handlers' ids, in whatever order they finished.
#[tokio::test]
async fn emits_of_handlers_with_the_same_place_are_pushed_in_the_order_of_their_ids() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    for (field, emit, event) in [
        ("handler:d", "emit:d", "d"),
        ("handler:c", "emit:c", "c"),
        ("handler:b", "emit:b", "b"),
        ("handler:a", "emit:a", "a"),
    ] {
        let value = emits(1, &[("work:2", event)]);
        asked(
            &mut state,
            Some(Finished {
                id: 5,
                field,
                value: FINISHED,
                emits: Some((emit, &value)),
                result: None,
            }),
        )
        .await;
    }
    advance(&mut state, &report(3, BatchResult::Done), BOUNDS, false).await;
    assert_eq!(queued(&console, "work:2").await, ["a", "b", "c", "d"]);
}

/// If a handler schedules an event that is due soon, a worker is woken, as for a producer's
/// schedule. A schedule for much later wakes no worker. Neither does one that changes no due time.
#[tokio::test]
async fn what_is_scheduled_for_soon_wakes_a_worker() {
    const HOUR_MS: u64 = 3_600_000;
    for (due, mode, wakes) in [
        (Due::After(1000), LaterMode::Replace, true),
        (Due::At(1), LaterMode::KeepFirst, true),
        (Due::After(HOUR_MS), LaterMode::Replace, false),
        (Due::After(1000), LaterMode::KeepTime, false),
        (Due::After(1000), LaterMode::KeepFirst, false),
    ] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        let keys = state.keys.clone();
        if !wakes && due == Due::After(1000) {
            // A schedule with this key exists, due much later.
            let _: u64 = console
                .run(&["HSET", &keys.events_scheduled_of("work:2"), "k", "0"])
                .await;
            let _: u64 = console
                .run(&["ZADD", &keys.events_scheduled(), "9e12", "work:2\nk"])
                .await;
        }
        let mut emits = Emits::default();
        emits.push_later(
            b"work:2",
            b"1",
            Later {
                key: b"k",
                mode,
                due,
            },
        );
        let value = emits.value(1);
        asked(
            &mut state,
            Some(Finished {
                id: 5,
                field: "handler:a",
                value: FINISHED,
                emits: Some(("emit:a", &value)),
                result: None,
            }),
        )
        .await;
        advance(&mut state, &report(3, BatchResult::Done), BOUNDS, false).await;
        let woken: u64 = console.run(&["ZCARD", &keys.events_scheduled_wake()]).await;
        assert_eq!(woken, u64::from(wakes), "{due:?} {mode:?}");
        let scheduled: u64 = console.run(&["ZCARD", &keys.events_scheduled()]).await;
        assert_eq!(scheduled, 1);
    }
}

/// A result that is ignored pushes no emits. Neither does a result without the statement that it
/// may end the event.
#[tokio::test]
async fn nothing_is_pushed_for_a_result_that_is_not_taken_in() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    finish(&mut state, 5, &[("work:2", "{}")], &[("work:2", "{}")]).await;
    let late = Report {
        tag: tag(4),
        ..report(3, BatchResult::Done)
    };
    advance(&mut state, &late, BOUNDS, false).await;
    let keys = state.keys.clone();
    let mut call = Advance::new(&keys, "w", "t", BOUNDS, ClaimFirst::Held);
    call.report(0, &report(0, hold(0)));
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(hash(&console).await.len(), 5);
    assert!(markers(&console).await.is_empty());
}

/// If an event cannot become a dead letter, its emits stay in its record. If the record is of a
/// delivered event before it, the emits are pushed.
#[tokio::test]
async fn what_is_emitted_stays_with_an_event_that_cannot_be_buried() {
    for (id, count, rejected, pushed) in [(5, 0, 5, 0), (6, 1, 6, 0), (5, 1, 6, 2)] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        finish(&mut state, id, &[("work:2", "{}")], &[("work:2", "{}")]).await;
        state
            .run("SET", &[&console.keys.events_dead(), "wrong"])
            .await;
        advance(&mut state, &report(count, reject(rejected)), BOUNDS, false).await;
        assert_eq!(
            queued(&console, "work:2").await.len(),
            pushed,
            "{id} {count} {rejected}"
        );
        assert_eq!(
            hash(&console).await.is_empty(),
            pushed > 0,
            "{id} {count} {rejected}"
        );
    }
}

/// Emits may be any bytes, and are pushed unchanged.
#[tokio::test]
async fn any_bytes_are_pushed_as_they_are() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    let mut all = Emits::default();
    let large = vec![b'7'; 1 << 20];
    for (object, event) in [ODD, (ODD.0, b""), (ODD.0, &large)] {
        all.push(object, event);
    }
    let value = all.value(0);
    asked(
        &mut state,
        Some(Finished {
            id: 5,
            field: "handler:a",
            value: FINISHED,
            emits: Some(("emit:a", &value)),
            result: None,
        }),
    )
    .await;
    advance(&mut state, &report(3, BatchResult::Done), BOUNDS, false).await;
    let key = [console.keys.prefix().as_bytes(), ODD.0, b":events"].concat();
    let queue: Vec<Vec<u8>> = redis::cmd("LRANGE")
        .arg(key)
        .arg(0)
        .arg(-1)
        .query_async(&mut state.conn)
        .await
        .expect("a list");
    assert_eq!(queue, [&large[..], b"", ODD.1]);
    let markers: Vec<Vec<u8>> = console
        .run(&["LRANGE", &console.keys.objects_with_events(), "0", "-1"])
        .await;
    assert_eq!(markers, [ODD.0]);
    assert!(hash(&console).await.is_empty());
}

/// Handlers emit for the object of their own event. The slot goes on with these events, in order
/// and with the right ids. After a yield, the object waits for its next turn.
#[tokio::test]
async fn the_object_itself_goes_on_with_what_is_emitted_for_it() {
    for (then, log) in [
        (BatchResult::Done, false),
        (BatchResult::Done, true),
        (BatchResult::Yield, false),
    ] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        finish(&mut state, 7, &[("work:1", "8")], &[("work:1", "7")]).await;
        let (batches, _) = advance(&mut state, &report(3, then.clone()), BOUNDS, log).await;
        if then == BatchResult::Done {
            let [batch] = &batches[..] else {
                panic!("{batches:?}")
            };
            assert_eq!(
                (batch.slot, batch.tag, batch.prev, &batch.events[..]),
                (0, tag(8), 7, &["7".into(), "8".into()][..])
            );
        } else {
            assert_eq!(
                (batches.len(), queued(&console, "work:1").await.len()),
                (0, 2)
            );
            assert_eq!(console.due("work:1").await.map(f64::is_finite), Some(true));
        }
        console.check().await;
    }
}

/// The call that pushes an emit can also claim its object, through the new marker.
#[tokio::test]
async fn what_is_pushed_is_claimed_in_the_same_call() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    finish(&mut state, 7, &[("work:2", "8")], &[("work:3", "7")]).await;
    let (batches, _) = advance(
        &mut state,
        &report(3, BatchResult::Done),
        Bounds {
            claims: 2,
            ..BOUNDS
        },
        false,
    )
    .await;
    let objects: Vec<_> = batches.iter().map(|batch| batch.object.clone()).collect();
    assert_eq!(objects, ["work:3", "work:2"]);
    console.check().await;
}

/// If a target queue is not a list, no emit is pushed, and the event is not finalized. Its batch
/// waits for an operator, and can be committed after the repair.
#[tokio::test]
async fn a_target_of_a_wrong_type_holds_the_batch() {
    for (then, log) in [
        (BatchResult::Done, false),
        (BatchResult::Yield, true),
        (reject(6), false),
        (reject(6), true),
        (hold(1), false),
    ] {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        finish(
            &mut state,
            5,
            &[("work:3", "b"), ("work:2", "c")],
            &[("work:2", "a")],
        )
        .await;
        state
            .run("SET", &[&console.keys.events("work:3"), "wrong"])
            .await;
        let count = if matches!(then, BatchResult::Done | BatchResult::Yield) {
            3
        } else {
            1
        };
        let report = report(count, then);
        let (_, quarantined) = advance(&mut state, &report, BOUNDS, log).await;
        let why = "quarantine: work:3:events is a string";
        assert_eq!(
            quarantined,
            [("work:1".to_owned(), why.to_owned())],
            "{report:?}"
        );
        assert_eq!(
            console.held_id("work:1").await,
            Some(format!("5 0 0 0 {why}"))
        );
        assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
        assert_eq!(
            console.list(&console.keys.events_held("work:1")).await,
            ["1", "2", "3"]
        );
        assert_eq!(hash(&console).await.len(), 5);
        assert!(markers(&console).await.is_empty() && queued(&console, "work:2").await.is_empty());
        let rows: u64 = console.run(&["XLEN", &console.keys.event_log()]).await;
        assert_eq!(
            (
                rows,
                console.dead().await.len(),
                console.number(&console.keys.last_event_id("work:1")).await
            ),
            (0, 0, 0)
        );

        console.release("work:1").await;
        let _: u64 = console.run(&["DEL", &console.keys.events("work:3")]).await;
        let keys = state.keys.clone();
        let mut claim = Advance::new(
            &keys,
            "w",
            "t",
            Bounds {
                claims: 1,
                ..BOUNDS
            },
            ClaimFirst::Held,
        );
        claim.free(0);
        wire::advance(&mut state.conn, &claim)
            .await
            .expect("an answer");
        let again = Report {
            tag: Tag {
                handouts: 1,
                ..tag(5)
            },
            ..report
        };
        let (_, quarantined) = advance(&mut state, &again, BOUNDS, log).await;
        assert_eq!(quarantined, []);
        assert_eq!(
            (
                queued(&console, "work:2").await.len(),
                queued(&console, "work:3").await.len()
            ),
            (2, 1)
        );
    }
}

/// If the record cannot be read, its batch is held, so that no emit is lost.
#[tokio::test]
async fn what_cannot_be_read_holds_the_batch() {
    let right = String::from_utf8(emits(0, &[("work:2", "{}")])).expect("text");
    assert_eq!(right, "0 1 8 6 2 work:2{}");
    let texts = [
        "",
        "1",
        "0 1 8 ",
        "0 1 8 6 2",
        "0 1 8 6 3 work:2{}",
        "0 1 8 99999999999999999999 1 a",
        "x 1 8 6 2 work:2{}",
        "6 2 work:2{}",
    ];
    let cut_and_more = [right.clone() + "1", right[..right.len() - 1].to_owned()];
    let cases = texts
        .iter()
        .map(|text| ("5", (*text).to_owned()))
        .chain(cut_and_more.map(|text| ("5", text)));
    for (id, text) in cases.chain([("nan", right.clone())]) {
        let redis = Redis::start();
        let (mut state, console) = in_hand(&redis).await;
        state
            .run(
                "HSET",
                &[
                    &console.keys.event_handled("work:1"),
                    "id",
                    id,
                    "emit:a",
                    &right,
                    "emit:b",
                    &text,
                ],
            )
            .await;
        let (_, quarantined) =
            advance(&mut state, &report(3, BatchResult::Done), BOUNDS, false).await;
        let why = "quarantine: work:1:event.handled is a hash that cannot be read";
        assert_eq!(
            quarantined,
            [("work:1".to_owned(), why.to_owned())],
            "{text:?}"
        );
        assert_eq!(
            (
                hash(&console).await.len(),
                queued(&console, "work:2").await.len()
            ),
            (3, 0),
            "{text:?}"
        );
        let by = By {
            who: "ada",
            why: "because",
        };
        let refused = control(&state.conn, &console.keys)
            .skip(by, "work:1", None)
            .await
            .map_err(|error| error.to_string());
        assert!(
            refused
                .as_ref()
                .is_err_and(|error| error.contains("hash that cannot be read")),
            "{text:?}: {refused:?}"
        );
        assert_eq!(
            (hash(&console).await.len(), console.dead().await.len()),
            (3, 0),
            "{text:?}"
        );
    }
}

/// A record key of a wrong type counts as an absent record. It stops no event.
#[tokio::test]
async fn a_hash_that_is_none_goes_with_the_event() {
    let redis = Redis::start();
    let (mut state, console) = in_hand(&redis).await;
    state
        .run("SET", &[&console.keys.event_handled("work:1"), "wrong"])
        .await;
    let (_, quarantined) = advance(&mut state, &report(3, BatchResult::Done), BOUNDS, false).await;
    assert_eq!(quarantined, []);
    assert!(
        !console
            .left()
            .await
            .contains(&"work:1:event.handled".to_owned())
    );
}

/// A skip finalizes an event, so it pushes the event's emits. If they cannot be pushed, the skip is
/// refused. The emits of a later event stay in its record.
#[tokio::test]
async fn a_skip_pushes_what_is_emitted_of_the_event() {
    let by = By {
        who: "ada",
        why: "because",
    };
    for (id, pushed) in [("5", 2), ("6", 0)] {
        let redis = Redis::start();
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let console = redis.console().await;
        state
            .hold("work:1", "inf", &["1", "2"], "5 0 1 0 retry: no")
            .await;
        let text = String::from_utf8(emits(0, &[("work:2", "a"), ("work:2", "b")])).expect("text");
        state
            .run(
                "HSET",
                &[
                    &console.keys.event_handled("work:1"),
                    "id",
                    id,
                    "handler:a",
                    "1",
                    "emit:a",
                    &text,
                ],
            )
            .await;
        if pushed > 0 {
            state
                .run("SET", &[&console.keys.events("work:2"), "wrong"])
                .await;
            let refused = control(&state.conn, &console.keys)
                .skip(by, "work:1", None)
                .await;
            assert!(refused.is_err(), "{refused:?}");
            assert_eq!(
                (hash(&console).await.len(), console.dead().await.len()),
                (3, 0)
            );
            state.run("DEL", &[&console.keys.events("work:2")]).await;
        }
        let skipped = control(&state.conn, &console.keys)
            .skip(by, "work:1", None)
            .await
            .expect("an answer");
        assert!(
            matches!(skipped, Skipped::Skipped { id: 5, .. }),
            "{skipped:?}"
        );
        assert_eq!(queued(&console, "work:2").await, &["a", "b"][..pushed]);
        assert_eq!(hash(&console).await.len(), if pushed > 0 { 0 } else { 3 });
        let markers = markers(&console).await;
        assert_eq!(
            markers.iter().filter(|marker| *marker == "work:2").count(),
            pushed.min(1)
        );
    }
}

/// An object whose record still has emits is not forgotten.
#[tokio::test]
async fn an_object_is_not_forgotten_with_what_is_still_to_be_pushed() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let console = redis.console().await;
    state.delivered("work:1", 7).await;
    state
        .run(
            "HSET",
            &[
                &console.keys.event_handled("work:1"),
                "id",
                "7",
                "emit:a",
                "0 1 8 6 2 work:2{}",
            ],
        )
        .await;
    let kept = Forgot::Reserved {
        key: "work:1:event.handled".to_owned(),
    };
    assert_eq!(
        wire::forget(&mut state.conn, &console.keys, &["work:1"])
            .await
            .expect("an answer"),
        [kept]
    );
    assert_eq!(
        (
            hash(&console).await.len(),
            console.number(&console.keys.last_event_id("work:1")).await
        ),
        (2, 7)
    );
}

/// At `maxmemory` no further emit of a handler is stored, as the emit of a producer is refused.
/// Stored emits are still pushed, and successes without emits are recorded.
#[tokio::test]
async fn at_maxmemory_nothing_is_emitted_but_what_was_is_pushed() {
    let redis = Redis::own(&[]);
    let (mut state, console) = in_hand(&redis).await;
    finish(&mut state, 5, &[("work:2", "a")], &[("work:2", "b")]).await;
    let _: String = console.run(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let text = emits(0, &[("work:2", "c")]);
    let batch = SlotBatch {
        name: "w",
        token: "t",
        slot: 0,
        object: b"work:1",
        tag: tag(5),
    };
    let more = Finished {
        id: 5,
        field: "handler:c",
        value: FINISHED,
        emits: Some(("emit:c", &text)),
        result: None,
    };
    let refused = wire::handled(&mut state.conn, &console.keys, &batch, Some(more)).await;
    assert!(
        matches!(&refused, Err(ScriptError::Redis(error)) if error.code() == Some("OOM")),
        "{refused:?}"
    );
    assert_eq!(hash(&console).await.len(), 5);
    asked(
        &mut state,
        Some(Finished {
            id: 5,
            field: "handler:c",
            value: FINISHED,
            emits: None,
            result: None,
        }),
    )
    .await;
    assert_eq!(hash(&console).await.len(), 6);
    advance(&mut state, &report(3, BatchResult::Done), BOUNDS, false).await;
    assert_eq!(queued(&console, "work:2").await, ["b", "a"]);
}
