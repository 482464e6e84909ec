//! Emits of handlers. They are stored in the record of finished handlers, and pushed in the step
//! that finalizes their event. The tests call the scripts directly.

use std::time::Duration;

use seriatim::control::By;
use seriatim::control::held::Skipped;
use seriatim::wire::values::{Due, Later, LaterMode};
use seriatim::wire::{
    self, Advance, BatchResult, Bounds, ClaimFirst, Emits, EventLog, Forgot, Handled, Report,
    ScriptError, Tag,
};

use crate::in_hand::{IN_HAND, asked, batch, finished, try_asked};
use crate::scene::{Answer, BOUNDS, Scene, bounds, reject, result};
use crate::support::{Redis, assert_matches, control};

const BY: By<'_> = By {
    who: "ada",
    why: "because",
};
/// A name and an event that look like other parts of the stored format.
const ODD: (&[u8], &[u8]) = (b"3 4 a\0\r\n:\xff", b"1 1 \0\xff{}\n");
const RECORD: &str = "work:1:event.handled";

/// Formats the emits of a handler as they are stored: the handler's place in the order of
/// registration, and for each event the object and the event.
fn emits(place: usize, events: &[(&str, &str)]) -> Vec<u8> {
    let mut emits = Emits::default();
    for (object, event) in events {
        emits.push(object.as_bytes(), event.as_bytes());
    }
    emits.value(place)
}

/// Records that a handler of an event has finished and emitted.
async fn finish_one(scene: &Scene, id: u64, handler: &str, emits: &[u8]) {
    let (field, emit) = (format!("handler:{handler}"), format!("emit:{handler}"));
    let finished = finished(id, &field, Some((&emit, emits)));
    let nothing_told = Handled::Kept {
        id: 0,
        finished: [].into(),
        emitted: (0, 0),
        results: 0,
    };
    assert_eq!(asked(scene, Some(finished)).await, nothing_told);
}

/// Records that the handlers `a` and `b` of an event have finished and emitted. `a` finishes first,
/// but `b` is registered first.
async fn finish(scene: &Scene, id: u64, by_a: &[(&str, &str)], by_b: &[(&str, &str)]) {
    finish_one(scene, id, "a", &emits(11, by_a)).await;
    finish_one(scene, id, "b", &emits(2, by_b)).await;
}

/// Returns the number of fields of the record.
async fn fields(scene: &Scene) -> usize {
    let key = scene.keys.event_handled("work:1");
    scene.run(&["HLEN", &key]).await
}

async fn queued(scene: &Scene, object: &str) -> String {
    scene.at(&format!("{object}:events")).await
}

fn report(count: usize, then: BatchResult) -> Report {
    result("work:1", "5", count, then)
}

/// Returns the result that makes the event with this id a dead letter.
fn rejected(id: u64) -> BatchResult {
    let next = (id < 7).then(|| (id + 1).to_string());
    reject(next.as_deref(), id, 0)
}

fn complete(id: u64) -> BatchResult {
    let next = (id < 7).then(|| (id + 1).to_string());
    BatchResult::Complete {
        next: next.map(|next| next.parse().expect("a tag")),
        id,
        error: "bad".to_owned(),
        attempts: 0,
    }
}

fn hold(count: usize) -> BatchResult {
    let rest: Tag = "5".parse().expect("a tag");
    BatchResult::Hold {
        rest: rest.after(count, 1).failed(),
        delay: None,
        reason: "retry: no".into(),
    }
}

/// Reports a result for slot 0, and states that it may end an event with a record. Slot 1 is free.
async fn advance(scene: &Scene, report: &Report, bounds: Bounds, log: bool) -> Answer {
    let fill = |call: &mut Advance| {
        if log {
            call.log(EventLog::default());
        }
        call.handled(0);
        call.report_taken(0, report, Duration::ZERO);
        call.free(1);
    };
    scene.advance_from(ClaimFirst::Held, bounds, fill).await
}

/// Makes such a call that claims nothing, for the whole batch. Returns what is quarantined.
async fn done(scene: &Scene) -> Vec<String> {
    let report = report(3, BatchResult::Done);
    advance(scene, &report, no_claim(), false).await.texts()
}

fn no_claim() -> Bounds {
    bounds(|b| b.claims = 0)
}

/// One call records that a handler has finished, together with its emits. A repeated call changes
/// nothing. A call that reads the record gets the number and the bytes of the emits.
#[tokio::test]
async fn what_is_emitted_is_kept_with_what_is_finished() {
    let scene = Scene::given(IN_HAND).await;
    let record = "work:1: event.handled = {emit:a: 11 2 17 6 2 work:2{}6 3 work:1[1], emit:b: 2 1 3 2 1 é7, handler:a: 1, handler:b: 1, id: 5, once:c: 1}";
    for changes in [record, ""] {
        finish(
            &scene,
            5,
            &[("work:2", "{}"), ("work:1", "[1]")],
            &[("é", "7")],
        )
        .await;
        asked(&scene, Some(finished(5, "once:c", None))).await;
        scene.changed(changes).await;
    }
    let fields = ["handler:a", "handler:b", "once:c"];
    let kept = Handled::Kept {
        id: 5,
        finished: fields
            .map(|field| (field.to_owned(), "1".to_owned()))
            .into(),
        emitted: (3, 8 + 9 + 3),
        results: 0,
    };
    assert_eq!(asked(&scene, None).await, kept);
    scene.check().await;
}

/// As long as a record has emits that are not pushed yet, no record of another event can replace
/// it. Otherwise the emits would be lost.
#[tokio::test]
async fn what_is_still_to_be_pushed_is_not_written_over() {
    let scene = Scene::given(IN_HAND).await;
    finish(&scene, 5, &[("work:2", "{}")], &[("work:2", "{}")]).await;
    let next = finished(6, "handler:a", None);
    for id in ["5", "4", "1000", "nan"] {
        scene.add(&format!("HSET {RECORD} id {id}")).await;
        let id = id.to_owned();
        assert_eq!(asked(&scene, Some(next)).await, Handled::Unpushed { id });
        scene.changed("").await;
    }
    // If the record is of a later event of the batch, the success is refused for this reason first.
    scene.add(&format!("HSET {RECORD} id 7")).await;
    assert_eq!(asked(&scene, Some(next)).await, Handled::Other);
}

/// In whatever way the event ends, its emits are pushed: in the order in which the handlers are
/// registered, with one marker per object.
#[tokio::test]
async fn what_is_emitted_is_pushed_with_the_result_that_ends_the_event() {
    let by_a = [("work:2", "a1"), ("work:3", "a2"), ("work:2", "a3")];
    let by_b = [("work:3", "b1"), ("work:2", "b2")];
    let part = || BatchResult::Part {
        next: "6".parse().expect("a tag"),
    };
    let scene = Scene::new().await;
    // For each case: the event of the record, the report, and whether the report ends this event.
    for (id, report, is_over) in [
        (5, report(3, BatchResult::Done), true),
        (7, report(3, BatchResult::Done), true),
        (5, report(3, BatchResult::Yield), true),
        (5, report(1, part()), true),
        (6, report(1, part()), false),
        (5, report(0, rejected(5)), true),
        (6, report(0, rejected(5)), false),
        (6, report(1, rejected(6)), true),
        (7, report(2, rejected(7)), true),
        (5, report(0, complete(5)), true),
        (7, report(1, complete(6)), false),
        (5, report(0, hold(0)), false),
        (5, report(1, hold(1)), true),
        (6, report(1, hold(1)), false),
    ] {
        for log in [false, true] {
            scene.again(IN_HAND).await;
            finish(&scene, id, &by_a, &by_b).await;
            let [two, three, markers] = match is_over {
                true => ["[b2, a1, a3]", "[b1, a2]", "[work:3, work:2]"],
                false => ["nil"; 3],
            };
            // The call is repeated, as after a lost reply. The emits are not pushed again.
            for _ in 0..2 {
                let answer = advance(&scene, &report, no_claim(), log).await;
                assert_eq!(answer.texts(), [""; 0]);
                let case = format!("{id} {report:?} {log}");
                assert_eq!(queued(&scene, "work:2").await, two, "{case}");
                assert_eq!(queued(&scene, "work:3").await, three, "{case}");
                assert_eq!(scene.at("objects.with.events").await, markers, "{case}");
                assert_eq!(scene.at(RECORD).await == "nil", is_over, "{case}");
            }
        }
    }
}

/// Several handlers have the same place, because processes registered them in different orders.
/// Their emits are pushed in the order of the handlers' ids, in whatever order they finished.
#[tokio::test]
async fn emits_of_handlers_with_the_same_place_are_pushed_in_the_order_of_their_ids() {
    let scene = Scene::given(IN_HAND).await;
    for handler in ["d", "c", "b", "a"] {
        finish_one(&scene, 5, handler, &emits(1, &[("work:2", handler)])).await;
    }
    assert_eq!(done(&scene).await, [""; 0]);
    assert_eq!(queued(&scene, "work:2").await, "[a, b, c, d]");
}

/// If a handler schedules an event that is due soon, a worker is woken, as for a producer's
/// schedule. A schedule for much later wakes no worker. Neither does one that changes no due time.
#[tokio::test]
async fn what_is_scheduled_for_soon_wakes_a_worker() {
    // A schedule with the key exists, due much later.
    let later = "HSET work:2:events.scheduled k 0; ZADD events.scheduled 9e12 'work:2\nk'";
    let kept = "<work:2\\nk: 9000000000000>";
    let scene = Scene::new().await;
    for (keys, due, mode, scheduled, wake) in [
        (
            "",
            Due::After(1000),
            LaterMode::Replace,
            "<work:2\\nk: NOW>",
            "<wake: 0>",
        ),
        (
            "",
            Due::At(1),
            LaterMode::KeepFirst,
            "<work:2\\nk: 1>",
            "<wake: 0>",
        ),
        (
            "",
            Due::After(3_600_000),
            LaterMode::Replace,
            "<work:2\\nk: NOW+60m>",
            "nil",
        ),
        (later, Due::After(1000), LaterMode::KeepTime, kept, "nil"),
        (later, Due::After(1000), LaterMode::KeepFirst, kept, "nil"),
    ] {
        scene.again(&format!("{IN_HAND}; {keys}")).await;
        let (mut emits, key) = (Emits::default(), &b"k"[..]);
        emits.push_later(b"work:2", b"1", Later { key, mode, due });
        finish_one(&scene, 5, "a", &emits.value(1)).await;
        assert_eq!(done(&scene).await, [""; 0]);
        assert_eq!(scene.at("events.scheduled").await, scheduled, "{mode:?}");
        assert_eq!(
            scene.at("events.scheduled.wake").await,
            wake,
            "{due:?} {mode:?}"
        );
    }
}

/// A handler can cancel a schedule. Cancels and schedules take effect in their order. A cancel wakes
/// no worker, and one without a schedule does nothing.
#[tokio::test]
async fn what_is_cancelled_is_gone_and_its_order_with_schedules_counts() {
    let there = "HSET work:2:events.scheduled k 0 other 9; \
                 ZADD events.scheduled 9e12 'work:2\nk' 9e12 'work:2\nother'";
    let other = "<work:2\\nother: 9000000000000>";
    let scene = Scene::new().await;
    let schedule = |emits: &mut Emits| {
        let (key, mode, due) = (&b"k"[..], LaterMode::Replace, Due::At(8_000_000_000_000));
        emits.push_later(b"work:2", b"1", Later { key, mode, due });
    };
    let cancel = |emits: &mut Emits| emits.push_cancel(b"work:2", b"k");
    type Step<'a> = &'a dyn Fn(&mut Emits);
    let cases: [(&str, &[Step<'_>], &str, &str); 4] = [
        (there, &[&cancel], "{other: 9}", other),
        ("", &[&cancel], "nil", "nil"),
        ("", &[&schedule, &cancel], "nil", "nil"),
        (
            "",
            &[&schedule, &cancel, &schedule],
            "{k: 1}",
            "<work:2\\nk: 8000000000000>",
        ),
    ];
    for (keys, steps, hash, index) in cases {
        scene.again(&format!("{IN_HAND}; {keys}")).await;
        let mut emits = Emits::default();
        for step in steps {
            step(&mut emits);
        }
        finish_one(&scene, 5, "a", &emits.value(1)).await;
        assert_eq!(done(&scene).await, [""; 0]);
        assert_eq!(scene.at("work:2:events.scheduled").await, hash);
        assert_eq!(scene.at("events.scheduled").await, index);
        assert_eq!(scene.at("events.scheduled.wake").await, "nil");
    }
}

/// A result that is ignored pushes no emits. Neither does a result without the statement that it
/// may end the event.
#[tokio::test]
async fn nothing_is_pushed_for_a_result_that_is_not_taken_in() {
    let scene = Scene::given(IN_HAND).await;
    finish(&scene, 5, &[("work:2", "{}")], &[("work:2", "{}")]).await;
    let late = result("work:1", "4", 3, BatchResult::Done);
    advance(&scene, &late, no_claim(), false).await;
    scene.report(0, &report(0, hold(0)), no_claim()).await;
    assert_eq!(fields(&scene).await, 5);
    assert_eq!(scene.at("objects.with.events").await, "nil");
}

/// If an event cannot become a dead letter, its emits stay in its record. If the record is of a
/// delivered event before it, the emits are pushed.
#[tokio::test]
async fn what_is_emitted_stays_with_an_event_that_cannot_be_buried() {
    let scene = Scene::new().await;
    for (id, count, dead, pushed) in [(5, 0, 5, "nil"), (6, 1, 6, "nil"), (5, 1, 6, "[{}, {}]")] {
        scene.again(IN_HAND).await;
        finish(&scene, id, &[("work:2", "{}")], &[("work:2", "{}")]).await;
        scene.add("SET events.dead wrong").await;
        advance(&scene, &report(count, rejected(dead)), no_claim(), false).await;
        assert_eq!(
            queued(&scene, "work:2").await,
            pushed,
            "{id} {count} {dead}"
        );
        let is_gone = scene.at(RECORD).await == "nil";
        assert_eq!(is_gone, pushed != "nil", "{id} {count} {dead}");
    }
}

/// Emits may be any bytes, and are pushed unchanged.
#[tokio::test]
async fn any_bytes_are_pushed_as_they_are() {
    let scene = Scene::given(IN_HAND).await;
    let mut all = Emits::default();
    let large = vec![b'7'; 1 << 20];
    for (object, event) in [ODD, (ODD.0, b""), (ODD.0, &large)] {
        all.push(object, event);
    }
    finish_one(&scene, 5, "a", &all.value(0)).await;
    assert_eq!(done(&scene).await, [""; 0]);
    let key = [scene.keys.prefix().as_bytes(), ODD.0, b":events"].concat();
    let mut list = redis::cmd("LRANGE");
    list.arg(key).arg(0).arg(-1);
    let queue = list.query_async(&mut scene.conn().await).await;
    let queue: Vec<Vec<u8>> = queue.expect("a list");
    assert_eq!(queue, [&large[..], b"", ODD.1]);
    let words = ["LRANGE", &scene.keys.objects_with_events(), "0", "-1"];
    let markers: Vec<Vec<u8>> = scene.run(&words).await;
    assert_eq!(markers, [ODD.0]);
    assert_eq!(scene.at(RECORD).await, "nil");
}

/// Handlers emit for the object of their own event. The slot goes on with these events, in order
/// and with the right ids. After a yield, the object waits for its next turn.
#[tokio::test]
async fn the_object_itself_goes_on_with_what_is_emitted_for_it() {
    let next = "0 work:1 8 after 7: 7 8";
    let scene = Scene::new().await;
    for (then, log, batches, queue, held) in [
        (BatchResult::Done, false, &[next][..], "nil", "nil"),
        (BatchResult::Done, true, &[next], "nil", "nil"),
        (BatchResult::Yield, false, &[], "[7, 8]", "<work:1: NOW>"),
    ] {
        scene.again(IN_HAND).await;
        finish(&scene, 7, &[("work:1", "8")], &[("work:1", "7")]).await;
        let answer = advance(&scene, &report(3, then), no_claim(), log).await;
        assert_eq!(answer.batches(), batches);
        assert_eq!(queued(&scene, "work:1").await, queue);
        assert_eq!(scene.at("objects.held").await, held);
        scene.check().await;
    }
}

/// The call that pushes an emit can also claim its object, through the new marker.
#[tokio::test]
async fn what_is_pushed_is_claimed_in_the_same_call() {
    let scene = Scene::given(IN_HAND).await;
    finish(&scene, 7, &[("work:2", "8")], &[("work:3", "7")]).await;
    let answer = advance(&scene, &report(3, BatchResult::Done), BOUNDS, false).await;
    assert_eq!(answer.objects(), ["work:3", "work:2"]);
    scene.check().await;
}

/// If a target queue is not a list, no emit is pushed, and the event is not finalized. Its batch
/// waits for an operator, and can be committed after the repair.
#[tokio::test]
async fn a_target_of_a_wrong_type_holds_the_batch() {
    const WHY: &str = "quarantine: work:3:events is a string";
    let scene = Scene::new().await;
    for (count, then, log) in [
        (3, BatchResult::Done, false),
        (3, BatchResult::Yield, true),
        (1, rejected(6), false),
        (1, rejected(6), true),
        (1, hold(1), false),
    ] {
        scene.again(IN_HAND).await;
        let by_a = [("work:3", "b"), ("work:2", "c")];
        finish(&scene, 5, &by_a, &[("work:2", "a")]).await;
        scene.add("SET work:3:events wrong").await;
        let report = report(count, then);
        let answer = advance(&scene, &report, no_claim(), log).await;
        assert_eq!(answer.texts(), [format!("work:1: {WHY}")], "{report:?}");
        let changes = format!(
            "
            event.worker:w.0: event = nil; event.id = nil; object = nil
            objects.held = <work:1: inf>
            work:1: event.worker = held; events.held = [1, 2, 3]; events.held.id = 5 0 0 0 {WHY}
            "
        );
        scene.changed(&changes).await;

        scene.release("work:1").await;
        scene.add("DEL work:3:events").await;
        scene.free(0..1, BOUNDS).await;
        let tag = "5 1".parse().expect("a tag");
        let again = Report { tag, ..report };
        let answer = advance(&scene, &again, no_claim(), log).await;
        assert_eq!(answer.texts(), [""; 0]);
        assert_eq!(queued(&scene, "work:2").await, "[a, c]");
        assert_eq!(queued(&scene, "work:3").await, "[b]");
    }
}

/// If the record cannot be read, its batch is held, so that no emit is lost.
#[tokio::test]
async fn what_cannot_be_read_holds_the_batch() {
    const RIGHT: &str = "0 1 8 6 2 work:2{}";
    const WRONG: &str = "hash that cannot be read";
    assert_eq!(emits(0, &[("work:2", "{}")]), RIGHT.as_bytes());
    let scene = Scene::new().await;
    for (id, text) in [
        ("5", ""),
        ("5", "1"),
        ("5", "0 1 8 "),
        ("5", "0 1 8 6 2"),
        ("5", "0 1 8 6 3 work:2{}"),
        ("5", "0 1 8 99999999999999999999 1 a"),
        ("5", "x 1 8 6 2 work:2{}"),
        ("5", "6 2 work:2{}"),
        ("5", "0 1 8 6 2 work:2{}1"),
        ("5", "0 1 8 6 2 work:2{"),
        ("nan", RIGHT),
    ] {
        let record = format!("HSET {RECORD} id {id} emit:a '{RIGHT}' emit:b '{text}'");
        scene.again(&format!("{IN_HAND}; {record}")).await;
        let why = format!("work:1: quarantine: {RECORD} is a {WRONG}");
        assert_eq!(done(&scene).await, [why], "{text:?}");
        assert_eq!(fields(&scene).await, 3, "{text:?}");
        assert_eq!(queued(&scene, "work:2").await, "nil", "{text:?}");
        scene.changes().await;
        let control = control(&scene.conn().await, &scene.keys);
        let refused = control.skip(BY, "work:1", None).await;
        let refused = refused.expect_err("a wrong type").to_string();
        assert!(refused.contains(WRONG), "{text:?}: {refused}");
        scene.changed("").await;
    }
}

/// A record key of a wrong type counts as an absent record. It stops no event.
#[tokio::test]
async fn a_hash_that_is_none_goes_with_the_event() {
    let scene = Scene::given(&format!("{IN_HAND}; SET {RECORD} wrong")).await;
    assert_eq!(done(&scene).await, [""; 0]);
    assert_eq!(scene.at(RECORD).await, "nil");
}

/// A skip finalizes an event, so it pushes the event's emits. If they cannot be pushed, the skip is
/// refused. The emits of a later event stay in its record.
#[tokio::test]
async fn a_skip_pushes_what_is_emitted_of_the_event() {
    let scene = Scene::new().await;
    let control = control(&scene.conn().await, &scene.keys);
    let emits = "0 2 14 6 1 work:2a6 1 work:2b";
    for (id, queue, markers, left) in [(5, "[a, b]", "[, work:2]", 0), (6, "nil", "[]", 3)] {
        let record = format!("HSET {RECORD} id {id} handler:a 1 emit:a '{emits}'");
        let held = "hold work:1 inf '5 0 1 0 retry: no' 1 2";
        scene.again(&format!("{held}; {record}")).await;
        if left == 0 {
            scene.add("SET work:2:events wrong").await;
            scene.changes().await;
            let refused = control.skip(BY, "work:1", None).await;
            assert!(refused.is_err(), "{refused:?}");
            scene.changed("").await;
            scene.add("DEL work:2:events").await;
        }
        let skipped = control.skip(BY, "work:1", None).await;
        let skipped = skipped.expect("an answer");
        let is_skipped = matches!(skipped, Skipped::Skipped { id: 5, .. });
        assert!(is_skipped, "{skipped:?}");
        assert_eq!(queued(&scene, "work:2").await, queue);
        assert_eq!(fields(&scene).await, left);
        assert_eq!(scene.at("objects.with.events").await, markers);
    }
}

/// An object whose record still has emits is not forgotten.
#[tokio::test]
async fn an_object_is_not_forgotten_with_what_is_still_to_be_pushed() {
    let record = format!("HSET {RECORD} id 7 emit:a '0 1 8 6 2 work:2{{}}'");
    let scene = Scene::given(&format!("delivered work:1 7; {record}")).await;
    let forgot = wire::forget(&mut scene.conn().await, &scene.keys, &["work:1"]).await;
    let key = RECORD.to_owned();
    assert_eq!(forgot.expect("an answer"), [Forgot::Reserved { key }]);
    scene.changed("").await;
}

/// At `maxmemory` no further emit of a handler is stored, as the emit of a producer is refused.
/// Stored emits are still pushed, and successes without emits are recorded.
#[tokio::test]
async fn at_maxmemory_nothing_is_emitted_but_what_was_is_pushed() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add(IN_HAND).await;
    finish(&scene, 5, &[("work:2", "a")], &[("work:2", "b")]).await;
    let () = scene.run(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let text = emits(0, &[("work:2", "c")]);
    let more = finished(5, "handler:c", Some(("emit:c", &text)));
    let refused = try_asked(&scene, batch(), Some(more)).await;
    assert_matches!(refused, Err(ScriptError::Redis(error)) if error.code() == Some("OOM"));
    assert_eq!(fields(&scene).await, 5);
    asked(&scene, Some(finished(5, "handler:c", None))).await;
    assert_eq!(fields(&scene).await, 6);
    assert_eq!(done(&scene).await, [""; 0]);
    assert_eq!(queued(&scene, "work:2").await, "[b, a]");
}
