//! `advance`: events that slots take, and objects that they leave, in cases that real processes
//! reach only after a fault.

use seriatim::wire::{Advance, BatchResult, Bounds, ClaimFirst, ScriptError, Tag};

use crate::scene::{BOUNDS, Scene, bounds, done, result};
use crate::support::Redis;

/// A slot would go on with its object, but the next event is a reference, and the schedules of the
/// object have a wrong type. The object is held for an operator, and the slot does not leave it:
/// `held` stays the owner.
#[tokio::test]
async fn an_object_whose_next_event_cannot_be_read_stays_held() {
    let given = "
        own w.0 work:1 1 1; LPUSH work:1:events '\0queued 5 key'
        SET work:1:events.scheduled wrong
    ";
    let scene = Scene::given(given).await;
    let answer = scene
        .report(0, &done("work:1", 1), bounds(|b| b.claims = 0))
        .await;
    assert_eq!(answer.objects(), [""; 0]);
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = nil
        objects.held = <work:1: inf>
        work:1: event.worker = held; events.held.id = 0 0 0 0 quarantine: work:1:events.scheduled is a string; last.event.id = 1
    ";
    scene.changed(changes).await;
}

/// The call has deleted the keys of a delivered batch when it meets an object without events that
/// another slot owns. The owner of this object is deleted, too.
#[tokio::test]
async fn an_owned_object_without_events_is_let_go_of_after_a_commit() {
    let given = "
        own w.0 work:1 1 1; SET work:2:event.worker w.1; LPUSH event.worker:w.1:object work:2
    ";
    let scene = Scene::given(given).await;
    let fill = |call: &mut Advance| {
        call.report(0, &done("work:1", 1));
        call.free(1);
    };
    scene.advance(BOUNDS, fill).await;
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = nil
        event.worker:w.1: object = nil
        work:1: event.worker = nil; last.event.id = 1
        work:2: event.worker = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// The owner key of a held object has a wrong type, and the marker after it leads to an object with
/// an owner. No slot may claim the held object, because a claim would pass over its held batch.
#[tokio::test]
async fn a_held_object_with_an_owner_of_a_wrong_type_is_not_claimed_beside_an_owned_one() {
    let given = "
        hold work:1 inf '1 0 1 0 retry: soon' 1; emit work:1 2; DEL work:1:event.worker
        LPUSH work:1:event.worker wrong; own other.0 work:2 2 1; emit work:2 2
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), [""; 0]);
    let changes = "
        objects.with.events = nil
        work:1: event.worker = held
    ";
    scene.changed(changes).await;
}

/// Makes objects with these events each, of which the first is short, and one marker each.
async fn queue(scene: &Scene, events: impl Iterator<Item = (usize, usize)>) {
    for (n, (length, count)) in events.enumerate() {
        scene.emit(&format!("work:{n}"), "1").await;
        let (queue, event) = (scene.keys.events(&format!("work:{n}")), "2".repeat(length));
        let words = [&["LPUSH", &queue], &vec![event.as_str(); count][..]].concat();
        scene.run::<()>(&words).await;
    }
}

/// The first event of each queue is short, and all others are long. A call may put 2,048 events
/// back that do not fit into their batch. It assumes that the next events are as long as the
/// longest so far, so it puts back only few, and every slot gets a full batch.
#[tokio::test]
async fn events_longer_than_the_first_use_up_no_room_of_later_slots() {
    const SLOTS: usize = 6;
    let scene = Scene::new().await;
    queue(&scene, [(100, 800); SLOTS].into_iter()).await;
    let within = bounds(|b| (b.batch, b.batch_bytes) = (1000, 15_000));
    assert_eq!(scene.free(0..SLOTS, within).await.lengths(), [151; SLOTS]);
}

/// Makes objects with one short event, then `later` long events each. A batch has room for one long
/// event. Returns the number of events of each batch. All other events stay queued.
async fn lengths_after_put_backs(long: usize, later: &[usize]) -> Vec<usize> {
    let scene = Scene::new().await;
    queue(&scene, later.iter().map(|count| (long, *count))).await;
    let within = Bounds {
        batch: 1000,
        batch_bytes: long + 1,
        reply_bytes: 1 << 30,
        claims: later.len(),
        markers: 4096,
        ..BOUNDS
    };
    let taken = scene.free(0..later.len(), within).await.lengths();
    for (n, (later, taken)) in later.iter().zip(&taken).enumerate() {
        let queue = scene.keys.events(&format!("work:{n}"));
        let queued: usize = scene.run(&["LLEN", &queue]).await;
        assert_eq!(queued + taken, later + 1, "work:{n}");
    }
    taken
}

/// A slot takes up to 32 further events of its object at once, and puts those back that do not fit
/// into its batch. After 2,048 events that were put back, or 4 MiB of them, each later slot of the
/// call gets the first event of its object only.
#[tokio::test]
async fn a_call_puts_back_so_many_events_and_no_more() {
    // 66 slots put back 31 events each. One slot fewer gets more events if the next slot puts back
    // the last event that it may.
    for (later, full) in [(2, 68), (3, 67)] {
        let later = [vec![40; 66], vec![later], vec![40; 63]].concat();
        let expected = [vec![2; full], vec![1; 130 - full]].concat();
        assert_eq!(lengths_after_put_backs(100, &later).await, expected);
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
    let (scene, long) = (Scene::new().await, "2".repeat(100_000));
    for (object, short, later) in [("work:0", 121, 60), ("work:1", 1, 4)] {
        let queue = scene.keys.events(object);
        scene.add(&format!("emit {object} 1")).await;
        let events = [vec!["1"; short - 1], vec![long.as_str(); later]].concat();
        let push = [&["LPUSH", &queue], &events[..]].concat();
        scene.run::<()>(&push).await;
    }
    let bounds = Bounds {
        batch: 1000,
        batch_bytes: long.len(),
        reply_bytes: 1 << 30,
        ..BOUNDS
    };
    assert_eq!(scene.free(0..2, bounds).await.lengths(), [122, 2]);
}

/// A call takes at most 4,096 events. Batches that a call gives again count, too, with all their
/// events. As long as one event is left, a slot may claim: the first event of its batch counts as
/// four.
#[tokio::test]
async fn events_that_are_given_again_count() {
    for (last, claimed) in [(91, 2), (92, 1), (95, 1), (96, 0)] {
        let scene = Scene::new().await;
        let old = [1000, 1000, 1000, 1000, last];
        let mut first = 1;
        for (slot, count) in old.into_iter().enumerate() {
            let events = " 1".repeat(count);
            let own = format!("own w.{slot} old:{slot} {first}{events}; emit new:{slot} 2");
            scene.add(&own).await;
            first += count as u64;
        }
        let answer = scene.free(0..10, BOUNDS).await;
        assert_eq!(answer.lengths(), [&old[..], &vec![1; claimed][..]].concat());
        assert!(answer.more, "other objects wait");
        // The next ids follow on the ids of the batches in hand.
        let new = answer.batches[old.len()..].iter();
        let ids: Vec<u64> = new.map(|batch| batch.tag.first).collect();
        assert_eq!(ids, (first..first + claimed as u64).collect::<Vec<_>>());
    }
}

/// The list of a free slot has a wrong type, so the call fails. The other free slot claims nothing
/// in this call.
#[tokio::test]
async fn a_call_that_fails_claims_nothing_more() {
    let given = "SET event.worker:w.1:object wrong; emit work:1 1";
    let scene = Scene::given(given).await;
    let fill = |call: &mut Advance| (0..2).for_each(|slot| call.free(slot));
    scene.fails(BOUNDS, fill).await;
    scene.changed("").await;
}

/// A call asks once for all objects of new markers whether they have an owner or a last id, even if
/// another slot owns one of them. A question for each object would add a command to each claim. The
/// call also asks once whether any object has a second event.
#[tokio::test]
async fn objects_of_markers_are_claimed_without_a_question_for_each() {
    const OBJECTS: usize = 20;
    let scene = Scene::on(Redis::own(&[])).await;
    for has_owned in [false, true] {
        if has_owned {
            scene.add("own other.0 owned 1000 1; emit owned 2").await;
        }
        for n in 0..OBJECTS {
            scene.emit(&format!("work:{has_owned}:{n}"), "1").await;
        }
        scene.count_calls().await;
        let from = if has_owned { OBJECTS } else { 0 };
        let within = bounds(|b| b.claims = OBJECTS + 1);
        let answer = scene.free(from..from + OBJECTS + 1, within).await;
        assert_eq!(answer.objects().len(), OBJECTS);
        assert_eq!(
            scene.calls_of("rpop").await,
            0,
            "no object has a second event"
        );
        let asked = scene.calls_of("exists").await;
        assert!(
            (1..OBJECTS / 2).contains(&asked),
            "EXISTS was called {asked} times"
        );
    }
}

/// Held objects have the next turn, and the only marker leads to an object that another slot owns.
/// A marker that leads nowhere does not use up the turn of the markers, so markers keep the turn.
#[tokio::test]
async fn a_marker_that_leads_nowhere_keeps_the_turn() {
    let scene = Scene::given("own other.0 work:1 1 1; emit work:1 2").await;
    let answer = scene
        .advance_from(ClaimFirst::Held, BOUNDS, |call| call.free(0))
        .await;
    assert_eq!(answer.from, ClaimFirst::Markers);
}

/// Held objects have the next turn after a claim by a marker, even if a free slot finds no further
/// marker. If the markers after that claim lead nowhere, or if the call may not look at them,
/// markers keep the turn.
#[tokio::test]
async fn markers_after_the_last_claim_decide_about_the_turn() {
    for (second, markers, next) in [
        ("", 100, ClaimFirst::Held),
        (
            "own other.0 work:2 1 1; emit work:2 2",
            100,
            ClaimFirst::Markers,
        ),
        ("emit work:2 2", 1, ClaimFirst::Markers),
    ] {
        let scene = Scene::new().await;
        scene.add(&format!("emit work:1 1; {second}")).await;
        let answer = scene.free(0..2, bounds(|b| b.markers = markers)).await;
        assert_eq!(
            (answer.objects(), answer.from),
            (vec!["work:1"], next),
            "{second}"
        );
    }
}

/// Two slots claim the object of a marker and a held object. The marker is trimmed in the same
/// call.
#[tokio::test]
async fn a_marker_is_trimmed_beside_a_held_object() {
    let given = "emit work:1 1; hold work:2 1 '1 0 1 0 retry: down' 2";
    let scene = Scene::given(given).await;
    assert_eq!(
        scene.free(0..2, BOUNDS).await.objects(),
        ["work:1", "work:2"]
    );
    let changes = "
        event.worker:w.0: event = [1]; event.id = 2; object = [work:1]
        event.worker:w.1: event = [2]; event.id = 1 1 1; object = [work:2]
        next.event.id = 2
        objects.held = nil
        objects.with.events = nil
        work:1: event.worker = w.0; events = nil
        work:2: event.worker = w.1; events.held = nil; events.held.id = nil
    ";
    scene.changed(changes).await;
}

/// A marker waits, but the call names no free slot, and has nothing to return to the markers.
/// Another such call would do no more, so the reply does not ask for it. A name that the call
/// returns is claimed by the next call; the empty name leads to nothing.
#[tokio::test]
async fn a_call_that_leaves_nothing_to_do_asks_for_no_other() {
    for (given, more) in [
        ("emit work:1 1", false),
        ("emit '' 1; pop w.0", false),
        ("emit work:1 1; pop w.0", true),
    ] {
        let scene = Scene::new().await;
        scene.add(given).await;
        let answer = scene.advance(BOUNDS, |call| call.look(0)).await;
        assert_eq!(answer.more, more, "{given}");
    }
}

/// The batch of a slot was deleted, but not its tag. The object waits for an operator, whatever the
/// slot reports. The slot is free, and claims another object. After the release the object goes on
/// with its next event.
#[tokio::test]
async fn a_deleted_batch_quarantines_its_object() {
    let tag: Tag = "1".parse().expect("a tag");
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
        let given = "
            own w.0 work:1 1 1; DEL event.worker:w.0:event; emit work:1 2; emit work:2 3
        ";
        let scene = Scene::given(given).await;
        let fill = |call: &mut Advance| match &then {
            Some(then) => call.report(0, &result("work:1", "1", 0, then.clone())),
            None => call.free(0),
        };
        let answer = scene.advance(BOUNDS, fill).await;
        assert_eq!(answer.objects(), ["work:2"], "{then:?}");
        let why = "quarantine: event.worker:w.0:event is absent";
        assert_eq!(answer.texts(), [format!("work:1: {why}")], "{then:?}");
        let changes = "
            event.worker:w.0: event = [3]; event.id = 2; object = [work:2]
            next.event.id = 2
            objects.held = <work:1: inf>
            objects.with.events = nil
            work:1: event.worker = held; events.held.id = 0 0 0 0 quarantine: event.worker:w.0:event is absent
            work:2: event.worker = w.0; events = nil
        ";
        scene.changed(changes).await;
        scene.release("work:1").await;
        let within = bounds(|b| b.claims = 1);
        let answer = scene
            .advance_from(ClaimFirst::Held, within, |call| call.free(1))
            .await;
        assert_eq!(answer.batches(), ["1 work:1 3 after 0: 2"], "{then:?}");
    }
}

/// Makes objects with so many events of 10 bytes each. Returns the number of events of each batch.
async fn lengths_within(bounds: Bounds, queued: &[usize]) -> Vec<usize> {
    let scene = Scene::new().await;
    for (n, events) in queued.iter().enumerate() {
        let events = " 1234567890".repeat(*events);
        let marker = format!("LPUSH objects.with.events work:{n}");
        scene
            .add(&format!("LPUSH work:{n}:events{events}; {marker}"))
            .await;
    }
    scene.free(0..queued.len(), bounds).await.lengths()
}

/// Further events of a batch use up the reply's bytes, and the events that a call may take.
#[tokio::test]
async fn further_events_of_a_batch_leave_less_for_the_next_slot() {
    for (bytes, taken) in [(40, [3, 1]), (41, [3, 3])] {
        let within = bounds(|b| b.reply_bytes = bytes);
        assert_eq!(
            lengths_within(within, &[3, 3]).await,
            taken,
            "{bytes} bytes"
        );
    }
    let within = bounds(|b| b.batch = 1000);
    for (queued, last) in [(76, 3), (77, 1)] {
        let taken = lengths_within(within, &[1000, 1000, 1000, 1000, queued, 3]).await;
        assert_eq!(taken, [1000, 1000, 1000, 1000, queued, last]);
    }
}

/// Slots go on with their objects. The first events use up the reply's bytes, and count as four of
/// the events that a call may take. Without room, an object is held, due now.
#[tokio::test]
async fn slots_go_on_as_far_as_the_reply_has_room() {
    for (reply_bytes, batch, queued, is_held) in [
        (10, 1, vec![1, 1], true),
        (11, 1, vec![1, 1], false),
        (1 << 20, 1000, vec![1000, 1000, 1000, 1000, 80, 1], false),
        (1 << 20, 1000, vec![1000, 1000, 1000, 1000, 81, 1], true),
    ] {
        let scene = Scene::new().await;
        let mut reports = Vec::new();
        for (n, events) in queued.iter().enumerate() {
            let (id, events) = (n as u64 + 11, " 1234567890".repeat(*events));
            let own = format!("own w.{n} work:{n} {id} 1; LPUSH work:{n}:events{events}");
            scene.add(&own).await;
            reports.push(done(&format!("work:{n}"), id));
        }
        let fill = |call: &mut Advance| {
            (0..)
                .zip(&reports)
                .for_each(|(slot, report)| call.report(slot, report));
        };
        let within = bounds(|b| (b.batch, b.reply_bytes) = (batch, reply_bytes));
        let answer = scene.advance(within, fill).await;
        let taken = &queued[..queued.len() - usize::from(is_held)];
        assert_eq!(answer.lengths(), taken);
        let mut next = queued.len() as u64 + 11;
        for (n, batch) in answer.batches.iter().enumerate() {
            let expected = (n, n as u64 + 11, next);
            assert_eq!((batch.slot, batch.prev, batch.tag.first), expected);
            next += batch.events.len() as u64;
        }
        assert_eq!(scene.at("next.event.id").await, (next - 1).to_string());
        assert!(!is_held || answer.more, "a held object is due");
        let owner = scene
            .at(&format!("work:{}:event.worker", queued.len() - 1))
            .await;
        assert_eq!(owner == "held", is_held);
    }
}

/// Further events are at least as long as the first one. So a slot takes as many as fit into its
/// batch, and puts none back.
#[tokio::test]
async fn a_slot_takes_only_what_fits_if_the_events_have_one_length() {
    for (batch_bytes, taken) in [(15, 2), (30, 3)] {
        let scene = Scene::on(Redis::own(&[])).await;
        scene.emit_all("work:1", ["1234567890"; 6]).await;
        let answer = scene
            .free(0..1, bounds(|b| b.batch_bytes = batch_bytes))
            .await;
        assert_eq!(answer.lengths(), [taken]);
        assert_eq!(scene.calls_of("rpush").await, 0, "{batch_bytes} bytes");
    }
}

/// A reference is the only event of its batch. So a batch ends before a reference, and the
/// reference stays in the queue, before the events after it.
#[tokio::test]
async fn a_batch_ends_before_a_reference() {
    for before in 1..=3 {
        let scene = Scene::new().await;
        let first = &["1", "2", "3"][..before];
        // More than a slot takes at once.
        let events = [first, &["\0queued 5 key"], &["4"; 40]].concat();
        scene.emit_all("work:1", &events).await;
        let answer = scene.free(0..1, BOUNDS).await;
        assert_eq!(answer.lengths(), [before]);
        assert_eq!(
            scene.list(&scene.keys.worker_event("w.0")).await,
            events[..before]
        );
        assert_eq!(
            scene.list(&scene.keys.events("work:1")).await,
            events[before..]
        );
        assert_eq!(scene.at("next.event.id").await, before.to_string());
    }
}

/// A slot would go on with its object, but the object's queue has a wrong type. The object is held
/// for an operator, and another slot still goes on.
#[tokio::test]
async fn an_object_whose_queue_has_a_wrong_type_leaves_its_slot() {
    let given = "
        own w.0 work:1 1 1; SET work:1:events wrong; own w.1 work:2 2 2; LPUSH work:2:events 3
    ";
    let scene = Scene::given(given).await;
    let fill = |call: &mut Advance| {
        call.report(0, &done("work:1", 1));
        call.report(1, &done("work:2", 2));
    };
    let answer = scene.advance(bounds(|b| b.claims = 0), fill).await;
    assert_eq!(answer.batches(), ["1 work:2 3 after 2: 3"]);
    assert_eq!(
        answer.texts(),
        ["work:1: quarantine: work:1:events is a string"]
    );
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = nil
        event.worker:w.1: event = [3]; event.id = 3
        next.event.id = 3
        objects.held = <work:1: inf>
        work:1: event.worker = held; events.held.id = 0 0 0 0 quarantine: work:1:events is a string; last.event.id = 1
        work:2: events = nil; last.event.id = 2
    ";
    scene.changed(changes).await;
}

/// The Redis user has lost the right to LPUSH since the last call, alone or together with RPUSH. The call
/// fails with that reason. The further events are still in the queue, and the batch has the first event
/// only.
#[tokio::test]
async fn no_further_event_is_taken_if_the_batch_cannot_get_it() {
    for rules in ["~* +@all -lpush", "~* +@all -lpush -rpush"] {
        let scene = Scene::on(Redis::own(&[])).await;
        scene
            .add("own w.0 work:1 1 1; LPUSH work:1:events 2 3 4; emit work:2 5 6")
            .await;
        assert_eq!(scene.free(1..2, BOUNDS).await.lengths(), [2]);
        scene.changes().await;
        scene.login(rules).await;
        let fill = |call: &mut Advance| call.report(0, &done("work:1", 1));
        match scene.fails(BOUNDS, fill).await {
            ScriptError::Redis(error) => assert_eq!(error.code(), Some("NOPERM")),
            other => panic!("{other}"),
        }
        let changes = "
            event.worker:w.0: event = [2]; event.id = 4
            next.event.id = 4
            work:1: events = [3, 4]; last.event.id = 1
        ";
        scene.changed(changes).await;
        scene.check().await;
    }
}

/// The Redis user may LPUSH to the batch of one slot only. The batch of another slot gets its first event
/// only, and the further events stay in the queue.
#[tokio::test]
async fn the_right_to_push_is_looked_at_for_each_batch() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene
        .add("LPUSH a:1:events 1 2; LPUSH event.worker:w.0:object a:1")
        .await;
    scene
        .add("LPUSH b:1:events 3 4 5; LPUSH event.worker:w.1:object b:1")
        .await;
    scene.changes().await;
    scene.login("~* +@all -lpush (~*w.0:event +lpush)").await;
    let free = |call: &mut Advance| (0..2).for_each(|slot| call.free(slot));
    match scene.fails(BOUNDS, free).await {
        ScriptError::Redis(error) => assert_eq!(error.code(), Some("NOPERM")),
        other => panic!("{other}"),
    }
    let changes = "
        event.worker:w.0: event = [1, 2]; event.id = 1
        event.worker:w.1: event = [3]; event.id = 3
        next.event.id = 3
        a:1: event.worker = w.0; events = nil
        b:1: event.worker = w.1; events = [4, 5]
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// The Redis user has lost the right to LPUSH, with which a free slot gets the name of its object. The
/// call fails, and the event is in its queue again.
#[tokio::test]
async fn a_claim_whose_name_cannot_be_pushed_puts_its_event_back() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("emit work:1 1 2").await;
    scene.login("~* +@all -lpush").await;
    scene.fails(BOUNDS, |call: &mut Advance| call.free(0)).await;
    scene.changed("").await;
    scene.check().await;
}

/// The Redis user has lost the right to RPUSH, with which a slot puts events back that do not fit
/// into its batch. The call fails, and no event is lost: each is in the batch or in the queue, in
/// order.
#[tokio::test]
async fn events_that_do_not_fit_go_back_without_the_right_to_push_them() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene
        .add("SET next.event.id 1; emit work:1 2 33333 4 5")
        .await;
    scene.login("~* +@all -rpush").await;
    let fill = |call: &mut Advance| call.free(0);
    scene.fails(bounds(|b| b.batch_bytes = 4), fill).await;
    let changes = "
        event.worker:w.0: event = [2, 33333]; event.id = 2; object = [work:1]
        next.event.id = 3
        objects.with.events = [work:1, work:1, work:1]
        work:1: event.worker = w.0; events = [4, 5]
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A call looks at a slot that is busy. The slots after it have their own results.
#[tokio::test]
async fn a_look_hides_no_slot_after_it() {
    let scene = Scene::given("emit work:1 1").await;
    let fill = |call: &mut Advance| {
        call.look(0);
        call.free(1);
    };
    assert_eq!(
        scene.advance(BOUNDS, fill).await.batches(),
        ["1 work:1 1 after 0: 1"]
    );
}

/// An event may be an empty text. A slot claims it as any other one.
#[tokio::test]
async fn an_empty_event_is_claimed() {
    let scene = Scene::given("emit work:1 ''").await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.batches(), ["0 work:1 1 after 0: "]);
    assert_eq!(answer.texts(), [""; 0]);
    scene.check().await;
}

/// The first event of a batch is short, and the later ones are long. The slot reads 32 events at once
/// at most, and no more than fit if each is as long as the longest one. So none goes back to the queue.
#[tokio::test]
async fn a_slot_takes_no_more_long_events_than_fit() {
    let scene = Scene::on(Redis::own(&[])).await;
    let long = format!(" {}", "1".repeat(100)).repeat(60);
    scene.add(&format!("emit work:1 1234567890{long}")).await;
    scene.count_calls().await;
    let within = bounds(|b| (b.batch, b.batch_bytes) = (100, 5400));
    assert_eq!(scene.free(0..1, within).await.lengths(), [55]);
    // After the first event: 32, 21 and 1.
    assert_eq!(scene.calls_of("rpop").await, 3);
    assert_eq!(scene.calls_of("rpush").await, 0);
}
