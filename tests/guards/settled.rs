//! `advance`: results about parts of a batch, batches that are given again, and held objects that
//! are due.

use seriatim::wire::{Advance, BatchResult, Bounds, ClaimFirst, Report};

use crate::scene::{Answer, BOUNDS, LEASE, Scene, bounds, done, hold, reject, result, slots};
use crate::support::Redis;

/// Makes a call that prefers held objects.
async fn call(scene: &Scene, bounds: Bounds, fill: impl FnOnce(&mut Advance)) -> Answer {
    scene.advance_from(ClaimFirst::Held, bounds, fill).await
}

/// Returns the result that holds `work:1` with its whole batch.
fn held(first: u64) -> Report {
    let then = hold(&format!("{first} 0 1"), Some(LEASE), "retry: down");
    result("work:1", &first.to_string(), 0, then)
}

fn no_claim() -> Bounds {
    bounds(|b| b.claims = 0)
}

/// Handlers have finished for the first event of all. The event is held, so their progress stays.
/// Progress of an event before the batch ends: that event was lost with a key.
#[tokio::test]
async fn the_progress_of_a_held_event_stays() {
    for (report, first, of, left) in [
        (held(1), 1, 1, "{id: 1}"),
        (done("work:1", 1), 1, 1, "nil"),
        (held(7), 7, 6, "nil"),
    ] {
        let scene = Scene::given(&format!("own w.0 work:1 {first} 1")).await;
        scene
            .add(&format!("HSET work:1:event.handled id {of}"))
            .await;
        let fill = |slots: &mut Advance| {
            slots.handled(0);
            slots.report(0, &report);
        };
        call(&scene, BOUNDS, fill).await;
        assert_eq!(scene.at("work:1:event.handled").await, left);
    }
}

/// Of two slots, only the first one has told that its result may end an event with handler progress. The
/// progress of the other slot's event stays.
#[tokio::test]
async fn the_progress_of_a_slot_that_has_told_none_stays() {
    let next = "8".parse().expect("a tag");
    let part = result("work:2", "7", 1, BatchResult::Part { next });
    for report in [result("work:2", "7", 2, BatchResult::Done), part] {
        let given = "
            own w.0 work:1 1 1; own w.1 work:2 7 1 2
            HSET work:1:event.handled id 1; HSET work:2:event.handled id 7
        ";
        let scene = Scene::given(given).await;
        let fill = |slots: &mut Advance| {
            slots.handled(0);
            slots.report(0, &done("work:1", 1));
            slots.report(1, &report);
        };
        call(&scene, no_claim(), fill).await;
        assert_eq!(scene.at("work:1:event.handled").await, "nil");
        assert_eq!(scene.at("work:2:event.handled").await, "{id: 7}");
        let last = report.last.expect("an id").to_string();
        assert_eq!(scene.at("work:2:last.event.id").await, last);
    }
}

/// The last event of a batch becomes a dead letter. Its errors and its key are deleted. The slot
/// goes on with its object, even in a call that claims nothing.
#[tokio::test]
async fn a_slot_goes_on_after_a_dead_letter() {
    let given = "
        own w.0 work:1 1 1; SET event.worker:w.0:event.id '1 1 1'; LPUSH work:1:events 2
        LPUSH work:1:event.errors '1 1 no'; SET work:1:event.key '1 key'
    ";
    let scene = Scene::given(given).await;
    let report = result("work:1", "1 1 1", 0, reject(None, 1, 1));
    let answer = call(&scene, no_claim(), |slots| slots.report(0, &report)).await;
    assert_eq!(answer.batches(), ["0 work:1 2 after 0: 2"]);
    assert_eq!(scene.dead().await.len(), 1);
    scene.run::<()>(&["DEL", &scene.keys.events_dead()]).await;
    let changes = "
        event.worker:w.0: event = [2]; event.id = 2
        next.event.id = 2
        work:1: event.errors = nil; event.key = nil; events = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A batch that had failed is delivered. Its errors and its key are deleted, also if a later slot
/// commits a usual batch in the same call.
#[tokio::test]
async fn errors_and_a_key_are_deleted_with_their_event() {
    for slots in [1, 2] {
        let given = "
            own w.0 work:1 1 1; own w.1 work:2 2 2; SET event.worker:w.0:event.id '1 1 1'
            LPUSH work:1:event.errors '1 1 no'; SET work:1:event.key '1 key'
        ";
        let scene = Scene::given(given).await;
        let reports = [
            result("work:1", "1 1 1", 1, BatchResult::Done),
            done("work:2", 2),
        ];
        let fill = crate::scene::slots(&reports[..slots], 0..0);
        assert_eq!(call(&scene, no_claim(), fill).await.objects(), [""; 0]);
        let changes = "
            event.worker:w.0: event = nil; event.id = nil; object = nil
            event.worker:w.1: event = nil; event.id = nil; object = nil
            work:1: event.errors = nil; event.key = nil; event.worker = nil; last.event.id = 1
            work:2: event.worker = nil; last.event.id = 2
        ";
        let of_second = |line: &&str| line.contains("w.1") || line.contains("work:2");
        let changes = changes
            .lines()
            .filter(|line| slots == 2 || !of_second(line));
        scene.changed(&changes.collect::<Vec<_>>().join("\n")).await;
        scene.check().await;
    }
}

/// A late result about a part of a batch is of an earlier hand-out. The slot gets its whole batch
/// again.
#[tokio::test]
async fn a_part_of_an_earlier_hand_out_is_ignored() {
    let given = "own w.0 work:1 1 1 2; SET event.worker:w.0:event.id '1 1'";
    let scene = Scene::given(given).await;
    let part = BatchResult::Part {
        next: "2".parse().expect("a tag"),
    };
    let report = result("work:1", "1", 1, part);
    let answer = call(&scene, no_claim(), |slots| slots.report(0, &report)).await;
    assert_eq!(answer.batches(), ["0 work:1 1 1 after 0: 1 2"]);
    scene.changed("").await;
    scene.check().await;
}

/// The counter must not be below the last id of a batch that is held. It jumps only then. The same
/// holds for a held batch that a slot claims.
#[tokio::test]
async fn the_counter_is_not_below_a_held_batch() {
    for (counter, jumps) in [(3, false), (2, true)] {
        for is_claimed in [false, true] {
            let given = match is_claimed {
                true => "hold work:1 1 '1 1 2 0 retry: down' 1 2 3",
                false => "own w.0 work:1 1 1 2 3",
            };
            let scene = Scene::given(given).await;
            scene.add(&format!("SET next.event.id {counter}")).await;
            let fill = |slots: &mut Advance| match is_claimed {
                true => slots.free(0),
                false => slots.report(0, &held(1)),
            };
            let answer = call(&scene, BOUNDS, fill).await;
            let then = scene.number(&scene.keys.next_event_id()).await;
            assert_eq!(then > 1_000_000_000_000_000, jumps, "{then}");
            assert!(jumps || then == counter, "{then}");
            let batches = &["0 work:1 1 2 2 after 0: 1 2 3"][..usize::from(is_claimed)];
            assert_eq!(answer.batches(), batches);
        }
    }
}

/// A batch that is given again uses up the reply's bytes.
#[tokio::test]
async fn a_batch_that_is_given_again_uses_up_the_reply() {
    for (bytes, batches) in [(10, &["work:1"][..]), (11, &["work:1", "work:2"])] {
        let given = "own w.0 work:1 1 1234567890; emit work:2 2";
        let scene = Scene::given(given).await;
        let fill = |slots: &mut Advance| (0..2).for_each(|slot| slots.free(slot));
        let answer = call(&scene, bounds(|b| b.reply_bytes = bytes), fill).await;
        assert_eq!(answer.objects(), batches, "{bytes} bytes");
    }
}

/// Two slots keep the rest of their batches, and the first rest fills the reply. Another call gives
/// the second one.
#[tokio::test]
async fn a_rest_behind_a_full_reply_comes_with_the_next_call() {
    let scene = Scene::given("own w.0 work:1 11 1 2; own w.1 work:2 21 3 4").await;
    let part = |object, first: u64| {
        let next = (first + 1).to_string().parse().expect("a tag");
        result(object, &first.to_string(), 1, BatchResult::Part { next })
    };
    let reports = [part("work:1", 11), part("work:2", 21)];
    let within = bounds(|b| b.reply_bytes = 1);
    let answer = scene.advance(within, slots(&reports, 0..0)).await;
    assert_eq!(answer.batches(), ["0 work:1 12 after 11: 2"]);
    assert!(answer.more);
    let answer = scene.free(1..2, BOUNDS).await;
    assert_eq!(answer.batches(), ["1 work:2 22 after 21: 4"]);
}

/// The room for ids is counted in events per batch. Bytes per batch may be any number.
#[tokio::test]
async fn any_number_of_bytes_per_batch_leaves_room_for_ids() {
    let given = "delivered work:1 30; emit work:1 1; SET next.event.id 3";
    let scene = Scene::given(given).await;
    let within = bounds(|b| b.batch_bytes = 1 << 43);
    let answer = call(&scene, within, |slots| slots.free(0)).await;
    assert_eq!(
        (answer.objects(), answer.lengths()),
        (vec!["work:1"], vec![1])
    );
}

/// The last id of a due object is invalid. The object waits for an operator, with its batch, or
/// with its events.
#[tokio::test]
async fn a_held_batch_without_a_valid_last_id_waits_for_an_operator() {
    for (command, what) in [("SET", "no id"), ("LPUSH", "a list")] {
        let given = "hold work:1 1 '1 1 2 0 retry: down' 1 2";
        let scene = Scene::given(given).await;
        scene
            .add(&format!("{command} work:1:last.event.id none"))
            .await;
        let answer = call(&scene, BOUNDS, |slots| slots.free(0)).await;
        assert_eq!(answer.objects(), [""; 0]);
        let why = format!("quarantine: work:1:last.event.id is {what}");
        assert_eq!(answer.texts(), [format!("work:1: {why}")]);
        let changes = "objects.held = <work:1: inf>\nwork:1: events.held.id = 1 1 2 0 ";
        scene.changed(&format!("{changes}{why}")).await;
    }
}

/// A due object without a batch has a queue of a wrong type. The object stays held, for an
/// operator.
#[tokio::test]
async fn a_due_object_whose_queue_has_a_wrong_type_stays_held() {
    let given = "hold work:1 1 '0 0 0 0 yield'; SET work:1:events wrong";
    let scene = Scene::given(given).await;
    let answer = call(&scene, BOUNDS, |slots| slots.free(0)).await;
    assert_eq!(answer.objects(), [""; 0]);
    assert_eq!(
        answer.texts(),
        ["work:1: quarantine: work:1:events is a string"]
    );
    let changes = "
        objects.held = <work:1: inf>
        work:1: events.held.id = 0 0 0 0 quarantine: work:1:events is a string
    ";
    scene.changed(changes).await;
}

/// A due object without a batch also has a marker. Only one of two free slots gets the object.
#[tokio::test]
async fn a_due_object_with_a_marker_has_one_slot() {
    let given = "hold work:1 1 '0 0 0 0 yield'; emit work:1 1 2";
    let scene = Scene::given(given).await;
    let fill = |slots: &mut Advance| (0..2).for_each(|slot| slots.free(slot));
    let answer = call(&scene, bounds(|b| b.batch = 1), fill).await;
    assert_eq!(answer.batches(), ["0 work:1 1 after 0: 1"]);
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1; object = [work:1]
        next.event.id = 1
        objects.held = nil
        objects.with.events = nil
        work:1: event.worker = w.0; events = [2]; events.held.id = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A call reads the due objects in pages, not once for each slot.
#[tokio::test]
async fn due_objects_are_read_in_pages() {
    let scene = Scene::on(Redis::own(&[])).await;
    for n in 0..10 {
        scene
            .add(&format!("hold work:{n} 1 '{} 0 1 0 retry: down' 1", n + 1))
            .await;
    }
    scene.count_calls().await;
    let fill = |slots: &mut Advance| (0..10).for_each(|slot| slots.free(slot));
    assert_eq!(call(&scene, BOUNDS, fill).await.batches.len(), 10);
    let read = scene.calls_of("zrange").await;
    assert!((1..=4).contains(&read), "{read}");
}

/// A call passes over at most 256 objects, but claims more.
#[tokio::test]
async fn a_call_claims_300_due_objects() {
    let scene = Scene::given("due 1 work:0..299").await;
    let fill = |slots: &mut Advance| (0..300).for_each(|slot| slots.free(slot));
    let answer = call(&scene, bounds(|b| b.claims = 300), fill).await;
    assert_eq!(answer.batches.len(), 300);
}

/// Two slots have the same object in hand. The progress of the first one's event cannot be read, so
/// the object is quarantined. Then the second slot yields the object, so it is due. The call does not
/// claim the object again, and it ends.
#[tokio::test]
async fn an_object_that_was_quarantined_is_not_claimed_in_the_same_call() {
    let given = "
        own w.0 work:1 1 1; own w.1 work:1 2 2; LPUSH work:1:events 3
        HSET work:1:event.handled id 1 emit:a wrong
    ";
    let scene = Scene::given(given).await;
    let yields = result("work:1", "2", 1, BatchResult::Yield);
    let fill = |slots: &mut Advance| {
        slots.handled(0);
        slots.report(0, &done("work:1", 1));
        slots.report(1, &yields);
    };
    let answer = call(&scene, BOUNDS, fill).await;
    assert_eq!(answer.objects(), [""; 0]);
    let lost = "work:1:event.worker: lost: the owner of an object in hand was absent, and it was claimed a second time";
    let text = "work:1: quarantine: work:1:event.handled is a hash that cannot be read";
    assert_eq!(answer.texts(), [lost, text]);
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = nil
        event.worker:w.1: event = nil; event.id = nil; object = nil
        objects.held = <work:1: NOW>
        work:1: event.worker = held; events.held = [1]; events.held.id = 1 0 0 0 quarantine: work:1:event.handled is a hash that cannot be read; last.event.id = 2
    ";
    scene.changed(changes).await;
}

/// The Redis user may not push the emits of a handler. The call fails before it ends the event, so
/// the emits stay, and takes no result of a later slot. When the user has the right again, both events
/// end and the emits are pushed.
#[tokio::test]
async fn emits_that_may_not_be_pushed_stay() {
    for (missing, emits) in [
        ("-lpush", "0 1 1 7 1 other:15"),
        ("-hset", "0 1 1 s7 1 1 r@5 other:15k"),
    ] {
        let scene = Scene::on(Redis::own(&[])).await;
        let handled = format!("HSET work:1:event.handled id 1 emit:a '{emits}'");
        let given = format!("own w.0 work:1 1 1; own w.1 work:2 2 1; {handled}");
        scene.add(&given).await;
        let fill = |slots: &mut Advance| {
            slots.handled(0);
            slots.report(0, &done("work:1", 1));
            slots.report(1, &done("work:2", 2));
        };
        scene.login(&format!("~* +@all {missing}")).await;
        let error = scene.fails(no_claim(), fill).await.to_string();
        assert!(error.contains("for the emits of a handler"), "{error}");
        scene.changed("").await;
        scene.login("+@all").await;
        scene.advance(no_claim(), fill).await;
        assert_eq!(scene.at("work:1:event.handled").await, "nil", "{missing}");
        assert_eq!(scene.at("work:2:last.event.id").await, "2", "{missing}");
        let (queue, later) = (
            scene.at("other:1:events").await,
            scene.at("other:1:events.scheduled").await,
        );
        assert_ne!(
            (queue.as_str(), later.as_str()),
            ("nil", "nil"),
            "{missing}"
        );
        scene.check().await;
    }
}

/// The Redis user may not read the progress of handlers. The call fails before it ends the event, so
/// the emits stay.
#[tokio::test]
async fn emits_that_may_not_be_read_stay() {
    let scene = Scene::on(Redis::own(&[])).await;
    let given = "own w.0 work:1 1 1; HSET work:1:event.handled id 1 emit:a '0 1 1 7 1 other:15'";
    scene.add(given).await;
    let fill = |slots: &mut Advance| {
        slots.handled(0);
        slots.report(0, &done("work:1", 1));
    };
    scene.login("~* +@all -hgetall").await;
    scene.fails(no_claim(), fill).await;
    scene.login("+@all").await;
    scene.changed("").await;
}

/// A handler has cancelled a schedule, but the Redis user may not delete it. The call fails before it
/// ends the event, so the cancel stays. When the user has the right again, the schedule goes.
#[tokio::test]
async fn a_cancel_that_is_not_allowed_stays() {
    for missing in ["-hdel", "-zrem"] {
        let scene = Scene::on(Redis::own(&[])).await;
        let given = "
            own w.0 work:1 1 1; HSET work:1:event.handled id 1 emit:a '0 1 0 s7 0 1 c@0 other:1k'
            HSET other:1:events.scheduled k 2; ZADD events.scheduled 9e12 'other:1\nk'
        ";
        scene.add(given).await;
        let fill = |slots: &mut Advance| {
            slots.handled(0);
            slots.report(0, &done("work:1", 1));
        };
        scene.login(&format!("~* +@all {missing}")).await;
        let error = scene.fails(no_claim(), fill).await.to_string();
        assert!(error.contains("for the emits of a handler"), "{error}");
        scene.changed("").await;
        scene.login("+@all").await;
        scene.advance(no_claim(), fill).await;
        assert_eq!(
            scene.at("other:1:events.scheduled").await,
            "nil",
            "{missing}"
        );
        assert_eq!(scene.at("events.scheduled").await, "nil", "{missing}");
    }
}

/// The Redis user may not replace the name of the object that a slot has left. The call fails with this
/// error, and the event of the next object is in the queue again.
#[tokio::test]
async fn an_event_goes_back_if_the_name_cannot_be_replaced() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("own w.0 work:1 7 1; emit work:2 2").await;
    scene.login("~* +@all -lset").await;
    let report = done("work:1", 7);
    let fill = |slots: &mut Advance| slots.report(0, &report);
    let error = scene.fails(BOUNDS, fill).await.to_string();
    assert!(
        error.contains("lset") || error.contains("can't run"),
        "{error}"
    );
    assert_eq!(scene.at("work:2:events").await, "[2]");
    assert_eq!(scene.at("event.worker:w.0:object").await, "nil");
    scene.login("+@all").await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:2"]);
    scene.check().await;
}
