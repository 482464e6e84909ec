//! `advance`: the names that a slot claims, and the treatment of all other names.

use std::time::Duration;

use seriatim::wire::{Bounds, ClaimFirst};

use crate::scene::{BOUNDS, Scene, bounds, done, slots};
use crate::support::Redis;

/// A call failed after it had removed a batch, and no event has come since: the slot owns an object
/// without events. The next call releases it; otherwise later events would wait behind an idle
/// owner.
#[tokio::test]
async fn an_owned_object_without_events_is_let_go_of() {
    let given = "SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1";
    let scene = Scene::given(given).await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    let changes = "
        event.worker:w.0: object = nil
        work:1: event.worker = nil
    ";
    scene.changed(changes).await;
    scene.add("emit work:1 1").await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), ["work:1"]);
    scene.check().await;
}

/// A reply was lost, and a pop has moved another name into the slot's list since. The slot gets the
/// lost batch again, as a batch of the object that the slot owns.
#[tokio::test]
async fn a_lost_batch_is_of_the_object_the_slot_owns() {
    let given = "own w.0 work:1 1 1; emit work:2 1; pop w.0";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, bounds(|b| b.claims = 0)).await;
    assert_eq!(answer.objects(), ["work:1"]);
}

/// The empty name only wakes a worker. It is not an object, even if a program has pushed events
/// under it.
#[tokio::test]
async fn the_empty_name_is_no_object() {
    let scene = Scene::given("emit '' 1 2; pop w.0").await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    let changes = "
        event.worker:w.0: object = nil
        objects.with.events = nil
    ";
    scene.changed(changes).await;
}

/// Two pops have moved two names into one slot's list. The slot takes one object, and the name of
/// the other object becomes a marker.
#[tokio::test]
async fn a_slot_takes_one_of_two_names() {
    let given = "emit work:1 1; emit work:2 1; pop w.0; pop w.0";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(
        answer.batches(),
        ["0 work:1 1 after 0: 1", "1 work:2 2 after 0: 1"]
    );
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1; object = [work:1]
        event.worker:w.1: event = [1]; event.id = 2; object = [work:2]
        next.event.id = 2
        work:1: event.worker = w.0; events = nil
        work:2: event.worker = w.1; events = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// Two pops have moved the same name, for two slots. One slot gets the object.
#[tokio::test]
async fn of_two_slots_with_one_name_the_first_gets_the_object() {
    let scene = Scene::given("emit work:1 1 2; pop w.0; pop w.1").await;
    let answer = scene.free(0..2, bounds(|b| b.batch = 1)).await;
    assert_eq!(answer.objects(), ["work:1"]);
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1
        event.worker:w.1: object = nil
        next.event.id = 1
        work:1: event.worker = w.0; events = [2]
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A pop has moved a marker, but its slot may claim nothing now. The marker goes back to the other
/// markers; otherwise the object's events would wait for a renewal.
#[tokio::test]
async fn a_name_that_may_not_be_claimed_becomes_a_marker_again() {
    let scene = Scene::given("emit work:1 1; pop w.0").await;
    let no_claim = bounds(|b| b.claims = 0);
    let answer = scene
        .advance_from(ClaimFirst::Held, no_claim, |call| call.free(0))
        .await;
    assert_eq!(answer.objects(), [""; 0]);
    let changes = "
        event.worker:w.0: object = nil
        objects.with.events = [work:1]
    ";
    scene.changed(changes).await;
}

/// A call may claim for one slot only. The name in the other slot's list becomes a marker, and
/// another call can claim its object now.
#[tokio::test]
async fn a_name_beyond_the_claims_of_a_call_asks_for_another_call() {
    let given = "emit work:1 1; pop w.0; emit work:2 1; pop w.1";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, bounds(|b| b.claims = 1)).await;
    assert_eq!((answer.objects(), answer.more), (vec!["work:1"], true));
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1
        event.worker:w.1: object = nil
        next.event.id = 1
        objects.with.events = [work:2]
        work:1: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// The reply is full before the second slot's turn. The name in its list becomes a marker.
#[tokio::test]
async fn a_name_for_which_the_reply_has_no_room_becomes_a_marker_again() {
    let given = "emit work:1 1; emit work:2 1; pop w.0; pop w.1";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, bounds(|b| b.reply_bytes = 1)).await;
    assert_eq!(answer.objects(), ["work:1"]);
    let changes = "
        event.worker:w.0: event = [1]; event.id = 1
        event.worker:w.1: object = nil
        next.event.id = 1
        objects.with.events = [work:2]
        work:1: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A call failed after it had removed a batch: its slot owns an object without a batch. If the slot
/// may claim nothing, the object is held. A marker would be dropped, because the object has an
/// owner.
#[tokio::test]
async fn an_owned_object_that_may_not_be_claimed_is_held() {
    let given = "
        SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1; LPUSH work:1:events 1
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, bounds(|b| b.claims = 0)).await;
    assert_eq!(answer.objects(), [""; 0]);
    assert_eq!(answer.next_due, Some(Duration::ZERO));
    let changes = "
        event.worker:w.0: object = nil
        objects.held = <work:1: NOW>
        work:1: event.worker = held
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A name in `objects.held` whose object belongs to a slot, left by hand or by another program, is
/// dropped. Otherwise it would be due for ever. If the object has no owner, its owner key is lost:
/// the object is held, and has no other cover.
#[tokio::test]
async fn a_due_name_of_an_owned_object_is_dropped() {
    let given = "own w.0 work:1 1 1; LPUSH work:2:events 2; ZADD objects.held 0 work:1 0 work:2";
    let scene = Scene::given(given).await;
    let answer = scene
        .advance_from(ClaimFirst::Held, BOUNDS, |call| call.free(1))
        .await;
    assert_eq!(answer.objects(), ["work:2"]);
    let changes = "
        event.worker:w.1: event = [2]; event.id = 2; object = [work:2]
        next.event.id = 2
        objects.held = nil
        work:2: event.worker = w.1; events = nil
    ";
    scene.changed(changes).await;
}

/// Story: the owner key of a held object was evicted. Later events were delivered before the batch,
/// with higher ids, and the batch was never delivered.
#[tokio::test]
async fn a_held_batch_whose_owner_was_evicted_comes_first() {
    let given = "hold work:1 1 '7 0 1 0 retry: down' 1; DEL work:1:event.worker; emit work:1 2";
    let scene = Scene::given(given).await;
    let answer = scene
        .advance_from(ClaimFirst::Held, BOUNDS, |call| call.free(1))
        .await;
    assert_eq!(answer.batches(), ["1 work:1 7 1 1 after 0: 1"]);
    let changes = "
        event.worker:w.1: event = [1]; event.id = 7 1 1; object = [work:1]
        objects.held = nil
        work:1: event.worker = w.1; events.held = nil; events.held.id = nil
    ";
    scene.changed(changes).await;
}

/// The name `work:1` of the group `work` is grouped.
const ASIDE: &str =
    "ZADD event.groups 0 work; SET event.groups.waiting 1; LPUSH event.group:work:waiting work:1";

/// Limits of a call that claims so many objects of groups.
fn grouped(claims: usize) -> Bounds {
    bounds(|b| (b.group_depth, b.claims) = (1, claims))
}

/// The owner key of a held object was evicted after the object's name was grouped, or
/// before that. The held batch still comes first. If the queue is empty, the batch is claimed, too.
///
/// Story: the name led to the queue, as a marker does. Later events were delivered before the batch.
#[tokio::test]
async fn a_held_batch_that_is_grouped_comes_first_without_its_owner_key() {
    for (aside, due, later) in [
        ("", "1", "emit work:1 2"),
        (ASIDE, "-1", "emit work:1 2"),
        (ASIDE, "-1", ""),
    ] {
        let held = format!("hold work:1 {due} '7 0 1 0 retry: down' 1; DEL work:1:event.worker");
        let scene = Scene::given(&format!("{held}; {aside}; {later}; emit work:2 3")).await;
        let answer = scene.free(0..1, grouped(1)).await;
        assert_eq!(answer.batches(), ["0 work:1 7 1 1 after 0: 1"]);
        assert_eq!(scene.at("work:1:event.worker").await, "w.0");
    }
}

/// The owner key of a held object was evicted. Its marker was read before a slot claimed the held
/// batch, so the marker seemed to lead to an object without an owner. It gives no other slot the
/// object.
#[tokio::test]
async fn a_held_batch_whose_owner_was_evicted_has_one_slot() {
    let given = "
        emit work:1 1; hold work:2 1 '7 0 1 0 retry: down' 2; DEL work:2:event.worker
        emit work:2 3
    ";
    let scene = Scene::given(given).await;
    assert_eq!(
        scene.free(0..3, BOUNDS).await.objects(),
        ["work:1", "work:2"]
    );
    let changes = "
        event.worker:w.0: event = [1]; event.id = 8; object = [work:1]
        event.worker:w.1: event = [2]; event.id = 7 1 1; object = [work:2]
        next.event.id = 8
        objects.held = nil
        objects.with.events = nil
        work:1: event.worker = w.0; events = nil
        work:2: event.worker = w.1; events.held = nil; events.held.id = nil
    ";
    scene.changed(changes).await;
}

/// Two pops have moved two names into one slot's list. The first object is held, but its owner key
/// has a wrong type. It is quarantined, and its name leaves the list.
#[tokio::test]
async fn a_name_that_is_quarantined_leaves_the_list() {
    let given = "
        hold work:1 1 '1 0 1 0 retry: soon' 1; DEL work:1:event.worker
        LPUSH work:1:event.worker wrong; emit work:1 2; pop w.0; emit work:2 2; pop w.0
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:2"]);
    assert_eq!(answer.next_due, None, "no object is due any more");
    let changes = "
        event.worker:w.0: event = [2]; event.id = 2; object = [work:2]
        next.event.id = 2
        objects.held = <work:1: inf>
        work:1: event.worker = held
        work:2: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// A paused object lost its owner key, and another key of it has a wrong type. It is held for an
/// operator, and paused no more: an object is in one of the two sets.
#[tokio::test]
async fn a_paused_object_that_is_quarantined_is_held_only() {
    for wrong in ["SET work:1:events wrong", "LPUSH work:1:event.worker wrong"] {
        let given = "ZADD objects.paused 0 work:1; emit work:1 1";
        let scene = Scene::given(given).await;
        scene.add(wrong).await;
        assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
        assert_eq!(scene.at("work:1:event.worker").await, "held", "{wrong}");
        assert_eq!(scene.at("objects.held").await, "<work:1: inf>", "{wrong}");
        assert_eq!(scene.at("objects.paused").await, "nil", "{wrong}");
    }
}

/// An object without events is owned or held. The call that releases it gives its last id a time to
/// live, as after the last event.
#[tokio::test]
async fn the_last_id_of_an_object_without_events_gets_a_time_to_live() {
    let given = "
        SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1
        hold work:2 1 '0 0 0 0 yield'; delivered work:1 7; delivered work:2 7
    ";
    let scene = Scene::given(given).await;
    let forget_after = Some(Duration::from_secs(600));
    let answer = scene
        .free(0..2, bounds(|b| b.forget_after = forget_after))
        .await;
    assert_eq!(answer.objects(), [""; 0]);
    let changes = "
        event.worker:w.0: object = nil
        objects.held = nil
        work:1: event.worker = nil; last.event.id = 7 expires
        work:2: event.worker = nil; events.held.id = nil; last.event.id = 7 expires
    ";
    scene.changed(changes).await;
    for object in ["work:1", "work:2"] {
        let key = scene.keys.last_event_id(object);
        let left_ms: i64 = scene.run(&["PTTL", &key]).await;
        assert!((1..=600_000).contains(&left_ms), "{object}: {left_ms}");
    }
}

/// A due held object is quarantined, because its owner cannot be read. The same call then reads the
/// object's marker. The marker leads to no event and to no second report.
#[tokio::test]
async fn what_was_quarantined_is_told_once() {
    let given = "
        emit work:1 1; hold work:2 1 '2 0 1 0 retry: down' 2; DEL work:2:event.worker
        LPUSH work:2:event.worker wrong; emit work:2 3
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:1"]);
    assert_eq!(
        answer.texts(),
        ["work:2: quarantine: work:2:event.worker is a list"]
    );
}

/// A call takes at most 4,096 events; the first event of each batch counts as four. Otherwise calls
/// with one event per object would take longest. An object whose batch has only the first event
/// gets its other events in later batches.
#[tokio::test]
async fn the_first_event_of_a_batch_counts_as_four() {
    const OBJECTS: usize = 100;
    let events = " 1".repeat(309);
    let queue = |n| format!("LPUSH work:{n}:events{events}; LPUSH objects.with.events work:{n}; ");
    let scene = Scene::given(&(0..OBJECTS).map(queue).collect::<String>()).await;
    let within = bounds(|b| (b.batch, b.claims, b.markers) = (309, OBJECTS, 4096));
    let answer = scene.free(0..OBJECTS, within).await;
    // 100 first events count as 400, and 12 times 308 more are exactly the rest of the limit.
    assert_eq!(
        answer.lengths(),
        [vec![309; 12], vec![1; OBJECTS - 12]].concat()
    );
}

/// Story: thousands of objects were due, but none could be claimed: their owner keys were evicted,
/// or their batches were absent. One call released all of them, and Redis did nothing else
/// meanwhile.
#[tokio::test]
async fn a_call_lets_so_many_due_objects_go_and_no_more() {
    const MOST: usize = 64;
    let evicted = |n| format!("ZADD objects.held 1 work:{n}; ");
    let no_batch = |n| {
        let id = format!("SET work:{n}:events.held.id '7 0 0 0 stop'; ");
        evicted(n) + &format!("SET work:{n}:event.worker held; ") + &id
    };
    for given in [
        (0..1000).map(evicted).collect(),
        (0..1000).map(no_batch).collect::<String>(),
    ] {
        let scene = Scene::given(&given).await;
        let held = scene.keys.objects_held();
        let mut left = 1000;
        while left > 0 {
            let answer = scene.free(0..2, BOUNDS).await;
            let now_left: usize = scene.run(&["ZCOUNT", &held, "-inf", "2"]).await;
            assert_eq!((answer.batches.len(), left - now_left), (0, MOST.min(left)));
            let is_due = (now_left > 0).then_some(Duration::ZERO);
            assert_eq!((answer.more, answer.next_due), (now_left > 0, is_due));
            left = now_left;
        }
    }
}

/// Three objects without owner keys are grouped: one with a held batch, one with a marker only, and
/// one that was held without a batch. The first gets its held batch, the others their queues.
#[tokio::test]
async fn only_a_held_batch_that_is_grouped_comes_before_the_queue() {
    let given = "
        hold work:1 -1 '7 0 1 0 retry: down' 1; DEL work:1:event.worker
        ZADD objects.held -1 work:3; LPUSH work:2:events 2; LPUSH work:3:events 2
    ";
    let scene = Scene::given(given).await;
    scene.add(ASIDE).await;
    let given = "SET event.groups.waiting 3; LPUSH event.group:work:waiting work:2 work:3";
    scene.add(given).await;
    let mut batches = scene.free(0..3, grouped(3)).await.batches();
    batches.sort();
    assert_eq!(
        batches,
        [
            "0 work:1 7 1 1 after 0: 1",
            "1 work:2 8 after 0: 2",
            "2 work:3 9 after 0: 2"
        ]
    );
}

/// The first name that is taken leads to an object of another worker, so no name of the chunk is left.
/// The held object behind it is claimed.
#[tokio::test]
async fn a_name_of_anothers_object_hides_no_held_object_that_is_grouped() {
    let given = "SET work:1:event.worker other.0; hold work:2 -1 '7 0 1 0 retry: down' 1";
    let scene = Scene::given(given).await;
    scene.add(ASIDE).await;
    let given = "SET event.groups.waiting 2; LPUSH event.group:work:waiting work:2";
    scene.add(given).await;
    assert_eq!(scene.free(0..1, grouped(1)).await.objects(), ["work:2"]);
}

/// With each claim, a new group of one object comes. The group that has waited longer still has a turn
/// for each round of the others.
///
/// Story: each new group began with the lowest pass, like the new groups before it. So the large group
/// had no turn as long as new groups came.
#[tokio::test]
async fn a_large_group_has_its_turns_although_new_groups_keep_coming() {
    let scene = Scene::new().await;
    let large = (0..60).map(|n| format!("large:{n}"));
    for object in large.chain((0..5).map(|n| format!("new{n}"))) {
        scene.emit(&object, "1").await;
    }
    let mut claimed = Vec::new();
    for n in 0..60 {
        let answer = scene.free(n..n + 1, grouped(1)).await;
        claimed.extend(answer.objects().into_iter().map(str::to_owned));
        scene.emit(&format!("new{}", 5 + n), "1").await;
    }
    let of_large = claimed.iter().filter(|object| object.starts_with("large"));
    assert_eq!((claimed.len(), of_large.count()), (60, 8), "{claimed:?}");
}

/// The last id of an object is read with its owner. It is a number below the counter, so the claim looks
/// at no further key of the object.
#[tokio::test]
async fn a_usual_claim_asks_for_no_types() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add("delivered work:1 5; emit work:1 1").await;
    scene.count_calls().await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"]);
    assert_eq!(scene.calls_of("type").await, 0);
}

/// One question shows that no free slot has a batch. A call asks for no batch alone, and not for the
/// number of markers if there are none.
#[tokio::test]
async fn free_slots_are_asked_for_a_batch_all_at_once() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.free(0..2, BOUNDS).await;
    scene.count_calls().await;
    assert_eq!(scene.free(0..2, BOUNDS).await.objects(), [""; 0]);
    assert_eq!(scene.calls_of("llen").await, 0);
}

/// A call deletes the keys of all slots with one command, and sets those of all slots with another one.
/// It does so also if a slot is free.
#[tokio::test]
async fn the_keys_of_all_slots_are_written_at_once() {
    let given = "own w.0 work:1 1 1; own w.1 work:2 2 2";
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add(given).await;
    scene.count_calls().await;
    let results = [done("work:1", 1), done("work:2", 2)];
    scene.advance(BOUNDS, slots(&results, 2..3)).await;
    let calls = (scene.calls_of("del").await, scene.calls_of("mset").await);
    assert_eq!(calls, (1, 1));
    assert_eq!(scene.at("work:2:last.event.id").await, "2");
}

/// At low load, nothing is held, no rule or share is set, and a pop has taken the only marker. One
/// question shows all this, for a claim and for a commit.
#[tokio::test]
async fn a_call_at_low_load_asks_once_for_what_is_rarely_there() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene
        .add("delivered work:1 5; emit work:1 1; pop w.0")
        .await;
    scene.count_calls().await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"]);
    let within = bounds(|b| b.claims = 0);
    scene.report(0, &done("work:1", 6), within).await;
    for command in ["zrange", "hget", "llen"] {
        assert_eq!(scene.calls_of(command).await, 0, "{command}");
    }
    assert_eq!(scene.calls_of("mget").await, 2, "one per call");
    // The claim asks for a batch of the slot, an owner, and further events; the commit for further events.
    assert_eq!(scene.calls_of("exists").await, 2 + 4);
    scene.check().await;
}
