//! `advance`: references to events of schedules, whose keys are damaged or may not be used.

use crate::scene::{ATTACH, BOUNDS, Scene, bounds, slots};
use crate::stopped::{NOW, NOW_US};
use crate::support::Redis;

/// Gives `work:1` a reference as its oldest event.
const REFERENCE: &str = "emit work:1 '\0queued 5 key'";
/// The entry of the schedule to which the reference leads.
const ENTRY: &str = "ZADD events.scheduled -1000000000000005 'work:1\nkey'";

async fn scene() -> Scene {
    Scene::given(REFERENCE).await
}

/// A slot takes the event of a reference. Its key stands beside the object, and the tag of the
/// batch says so. A pop may have moved the name to the slot before the call.
#[tokio::test]
async fn a_slot_takes_the_event_of_a_reference() {
    for (given, slots) in [("pop w.0", 1), ("emit work:2 2", 2)] {
        let scene = scene().await;
        scene
            .add(&format!(
                "{ENTRY}; HSET work:1:events.scheduled key event; {given}"
            ))
            .await;
        let answer = scene.free(0..slots, BOUNDS).await;
        let both = ["0 work:1 1 0 after 0: event", "1 work:2 2 after 0: 2"];
        assert_eq!(answer.batches(), both[..slots]);
        assert!(answer.batches[0].tag.is_keyed);
        assert_eq!(scene.at("work:1:event.key").await, "1 key");
        assert_eq!(scene.at("event.worker:w.0:event.id").await, "1 0");
        assert_eq!(scene.at("event.worker:w.0:event").await, "[event]");
        assert_eq!(scene.at("events.scheduled").await, "nil");
        assert_eq!(scene.at("work:1:events.scheduled").await, "nil");
        scene.check().await;
    }
}

/// The key of all schedules belongs to no single object. So the object is held for a minute, and
/// its event stays queued.
#[tokio::test]
async fn an_object_is_held_for_a_minute_if_the_schedules_cannot_be_read() {
    let scene = scene().await;
    let given = "HSET work:1:events.scheduled key 1; SET events.scheduled wrong";
    scene.add(given).await;
    let began = scene.now_ms().await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!((answer.summary(), answer.texts()), (String::new(), vec![]));
    let due = scene.due("work:1").await.expect("a held object") as u64;
    let latest = scene.now_ms().await + 60_000;
    assert!((began + 60_000..=latest).contains(&due), "{due}");
    let next_due = answer.next_due.expect("a time");
    assert!((1..=60).contains(&next_due.as_secs()), "{next_due:?}");
    let changes = "
        objects.held = <work:1: NOW+1m>
        objects.with.events = nil
        work:1: event.worker = held
    ";
    scene.changed(changes).await;
}

/// The event of a schedule was evicted. Its entry is deleted together with the reference.
#[tokio::test]
async fn a_reference_without_its_event_is_passed_over() {
    let scene = scene().await;
    scene
        .add(&format!("{ENTRY}; ZADD events.scheduled 7 'work:1\nother'"))
        .await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!((answer.objects(), answer.texts()), (vec![], vec![]));
    let changes = "
        events.scheduled = <work:1\\nother: 7>
        objects.with.events = nil
        work:1: events = nil
    ";
    scene.changed(changes).await;
}

/// A call passes over 255 references whose schedules were replaced. At the next one the object is
/// held, due now, and the reply counts as full. The next call goes on.
#[tokio::test]
async fn a_call_passes_over_so_many_references() {
    let all = vec!["work:1", "work:2"];
    for (stale, claimed) in [(255, vec![all.clone()]), (256, vec![vec![], all])] {
        let references = " '\0queued 5 key'".repeat(stale);
        let scene = Scene::stopped_at(NOW_US).await;
        scene.attach(&ATTACH).await;
        scene.add(&format!("LPUSH work:1:events{references}")).await;
        scene.add("emit work:1 1; emit work:2 2").await;
        for expected in claimed {
            let answer = scene.free(0..2, bounds(|b| b.batch = 1)).await;
            let mut taken = answer.objects();
            taken.sort_unstable();
            assert_eq!(taken, expected, "{stale} references");
            if expected.is_empty() {
                assert!(answer.more, "the object is due");
                assert_eq!(scene.at("work:1:events").await, "[1]");
                assert_eq!(scene.at("work:1:event.worker").await, "held");
                assert_eq!(scene.due("work:1").await, Some(NOW as f64));
            }
        }
        scene.check().await;
    }
}

/// The Redis user has lost the right to ZREM. The call fails with this error, and the reference is
/// in the queue again.
#[tokio::test]
async fn a_reference_goes_back_if_its_entry_cannot_be_deleted() {
    let scene = Scene::on(Redis::own(&[])).await;
    scene.add(&format!("{REFERENCE}; {ENTRY}")).await;
    scene.login("~* +@all -zrem").await;
    let error = scene.fails(BOUNDS, slots(&[], 0..2)).await.to_string();
    // The error of Redis, or of Valkey.
    let errors = [
        "can't run this command",
        "no permissions to run the 'zrem' command",
    ];
    assert!(errors.iter().any(|words| error.contains(words)), "{error}");
    scene.changed("").await;
}

/// A held object has a batch, but its numbers were evicted. The object waits for an operator, and
/// keeps its batch. The reason stays with the object, also if the object is due once more. Story:
/// `held list` showed no reason, and `held skip` and `held release` each told to use the other one.
#[tokio::test]
async fn a_held_batch_without_numbers_waits_for_an_operator() {
    for (damage, kind) in [
        ("DEL work:1:events.held.id", "absent"),
        ("SET work:1:events.held.id '0 0 0 0 yield'", "a string"),
    ] {
        let scene = Scene::given("hold work:1 1 '1 0 1 0 retry: down' 1").await;
        scene.add(&format!("{damage}; LPUSH work:1:events 2")).await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!((answer.objects(), answer.next_due), (vec![], None));
        let why = format!("quarantine: work:1:events.held.id is {kind} and tells no ids");
        assert_eq!(answer.texts(), [format!("work:1: {why}")]);
        let stored = match kind {
            "absent" => format!("work:1: events.held.id = 0 0 0 0 {why}\n"),
            _ => String::new(),
        };
        scene
            .changed(&format!("objects.held = <work:1: inf>\n{stored}"))
            .await;
        scene.add("ZADD objects.held 1 work:1").await;
        let answer = scene.free(0..2, BOUNDS).await;
        assert_eq!(answer.texts(), [format!("work:1: {why}")]);
        scene.changed("objects.held = <work:1: inf>").await;
    }
}
