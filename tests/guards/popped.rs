//! `advance`: the name that a pop has moved to the only free slot of a call.

use seriatim::wire::Advance;

use crate::scene::{BOUNDS, Scene, bounds, done, slots};

/// The slot takes all events of the object.
#[tokio::test]
async fn a_popped_object_with_more_events_fills_its_batch() {
    for (last, batch) in [
        ("", "0 work:1 1 after 0: 1 2 3"),
        ("delivered work:1 5", "0 work:1 6 after 5: 1 2 3"),
    ] {
        let scene = Scene::given(last).await;
        let given = "LPUSH work:1:events 1 2 3; LPUSH event.worker:w.0:object work:1";
        scene.add(given).await;
        assert_eq!(scene.free(0..1, BOUNDS).await.batches(), [batch]);
        scene.check().await;
    }
}

/// A key of the object has a wrong type. The object is held for an operator.
#[tokio::test]
async fn a_popped_object_with_a_damaged_key_is_quarantined() {
    for wrong in ["events", "last.event.id", "event.worker"] {
        let scene = Scene::given("emit work:1 1; pop w.0").await;
        scene
            .add(&format!(
                "DEL work:1:{wrong}; HSET work:1:{wrong} wrong type"
            ))
            .await;
        if wrong == "event.worker" {
            scene.add("ZADD objects.held 9999999999999 work:1").await;
        }
        let answer = scene.free(0..1, BOUNDS).await;
        assert_eq!(answer.objects(), [""; 0], "{wrong}");
        let why = format!("work:1: quarantine: work:1:{wrong} is a hash");
        assert_eq!(answer.texts(), [why]);
        assert_eq!(scene.at("objects.held").await, "<work:1: inf>");
        assert_eq!(scene.at("work:1:event.worker").await, "held");
        assert_eq!(scene.at("event.worker:w.0:object").await, "nil");
    }
}

/// The owner key of a paused object has a wrong type, and its rule is lost. Nothing is held. The object is
/// held for an operator, because a claim would pass over a batch that it may have.
#[tokio::test]
async fn a_popped_object_that_is_paused_is_quarantined_with_its_owner() {
    let given = "
        emit work:1 1; pop w.0; ZADD objects.paused 0 work:1; HSET work:1:event.worker wrong type
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), [""; 0]);
    let why = "work:1: quarantine: work:1:event.worker is a hash";
    assert_eq!(answer.texts(), [why]);
    let changes = "
        event.worker:w.0: object = nil
        objects.held = <work:1: inf>
        objects.paused = nil
        work:1: event.worker = held
    ";
    scene.changed(changes).await;
}

/// Another slot has the object in hand. The name is only removed.
#[tokio::test]
async fn a_popped_object_of_another_slot_stays_there() {
    let given = "own w.1 work:1 1 1; emit work:1 2; pop w.0";
    let scene = Scene::given(given).await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), [""; 0]);
    scene.changed("event.worker:w.0: object = nil").await;
    scene.check().await;
}

/// Slots leave their objects and claim none. Each name leaves the list of its slot. If a list has a
/// wrong type, the call fails with this error, after the results of its slots are committed.
#[tokio::test]
async fn the_names_of_released_objects_leave_their_lists() {
    let reports = [done("work:1", 11), done("work:2", 12)];
    for damage in ["", "SET event.worker:w.1:object wrong"] {
        let given = "own w.0 work:1 11 1; own w.1 work:2 12 1";
        let scene = Scene::given(given).await;
        scene.add(damage).await;
        if damage.is_empty() {
            scene
                .advance(bounds(|b| b.claims = 0), slots(&reports, 0..0))
                .await;
            assert_eq!(scene.at("event.worker:w.1:object").await, "nil");
        } else {
            let failed = scene
                .fails(bounds(|b| b.claims = 0), slots(&reports, 0..0))
                .await;
            assert!(failed.is_wrong_type(), "{failed}");
        }
        assert_eq!(scene.at("event.worker:w.0:object").await, "nil");
        assert_eq!(scene.at("work:1:last.event.id").await, "11");
        assert_eq!(scene.at("work:2:last.event.id").await, "12");
    }
}

/// If there are rules, the key of paused objects is read before the first write. If it has a wrong
/// type, the call fails and changes nothing.
#[tokio::test]
async fn a_damaged_key_of_paused_objects_ends_a_call_before_its_first_write() {
    let given = "
        own w.0 work:1 1 1; HSET event.rules 'pause a:1' '1 0 0 3 0 ada' next never
        SET objects.paused wrong
    ";
    let scene = Scene::given(given).await;
    let report = done("work:1", 1);
    scene
        .fails(BOUNDS, |call: &mut Advance| call.report(0, &report))
        .await;
    scene.changed("").await;
}

/// The list of a free slot has a wrong type. The caller learns the whole error of Redis.
#[tokio::test]
async fn a_list_of_a_wrong_type_ends_the_call() {
    let scene = Scene::given("SET event.worker:w.0:object x").await;
    let failed = scene.fails(BOUNDS, slots(&[], 0..2)).await;
    assert!(failed.is_wrong_type(), "{failed}");
    assert!(
        failed.to_string().contains("wrong kind of value"),
        "{failed}"
    );
}
