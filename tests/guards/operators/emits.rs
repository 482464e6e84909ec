//! Events that handlers have emitted and scheduled, when an operator skips or cancels their event.

use seriatim::wire::operator::{self, Skipped};

use super::{BY, acted, given};
use crate::scene::Scene;
use crate::stopped::NOW_US;

/// Skips the event 7 of the object `a`, whose handlers have these emits. Fails unless these are the
/// other changes.
async fn skip(scene: &Scene, keys: &str, emits: &str, changes: &str) {
    let held = "hold a inf '7 0 1 0 retry: x' 1";
    let given = format!("{held}; HSET a:event.handled id 7 {emits}\n{keys}");
    scene.again(&given).await;
    let mut conn = scene.conn().await;
    let skipped = operator::skip(&mut conn, &scene.keys, BY, b"a", Some(7)).await;
    assert!(
        matches!(skipped, Ok(Skipped::Skipped { id: 7, left: 0, .. })),
        "{skipped:?}"
    );
    let skipped = "
        a: event.handled = nil; events.held = nil; events.held.id = nil
        events.dead = {NOW id 7 prev 0 object a event 1 error skipped: retry: x attempts 1}
        objects.held = <a: 0>
    ";
    let record = acted("skip", "a id 7 dead_id NOW error retry: x");
    scene.changed(&[skipped, &record, changes].concat()).await;
}

/// Events are queued in the order of their handlers, and of their emits. Handlers with the same
/// place come in the order of their names. Each object has one marker.
#[tokio::test]
async fn emits_are_queued_in_the_order_of_their_handlers() {
    let emits = "
        emit:a '10 3 12 3 1 o:3D3 2 o:1EE3 0 o:4' emit:c '0 1 4 3 1 o:1C' \
        emit:b '0 2 8 3 1 o:1A3 1 o:2B' emit:d '9 1 4 3 1 o:1F'
    ";
    let changes = "
        o:1: events = [A, C, F, EE]
        o:2: events = [B]
        o:3: events = [D]
        o:4: events = []
        objects.with.events = [, o:1, o:2, o:3, o:4]
    ";
    skip(&given("").await, "", emits.trim(), changes).await;
}

/// A schedule replaces an earlier one with its key, keeps the time of the earlier one, or keeps the
/// earlier one as it is.
#[tokio::test]
async fn schedules_replace_or_keep_earlier_ones() {
    let schedule = |mode| format!("s3 3 3 {mode}@99999999999999 o:1newk-{mode}");
    let emits = format!("emit:h '0 3 9 {}'", ["r", "t", "f"].map(schedule).concat());
    let earlier = "
        ZADD events.scheduled 9999999999999 'o:1\nk-r' 9999999999999 'o:1\nk-t' 9999999999999 'o:1\nk-f'
        HSET o:1:events.scheduled k-r old k-t old k-f old
    ";
    let all_new = r"
        events.scheduled = <o:1\nk-f: 99999999999999, o:1\nk-r: 99999999999999, o:1\nk-t: 99999999999999>
        o:1: events.scheduled = {k-f: new, k-r: new, k-t: new}
        objects.with.events = []
    ";
    let replaced = r"
        events.scheduled = <o:1\nk-f: 9999999999999, o:1\nk-t: 9999999999999, o:1\nk-r: 99999999999999>
        o:1: events.scheduled = {k-f: old, k-r: new, k-t: new}
        objects.with.events = []
    ";
    let scene = given("").await;
    skip(&scene, "", &emits, all_new).await;
    skip(&scene, earlier, &emits, replaced).await;
}

/// A schedule that is due within a minute wakes a worker, but not one that keeps an earlier time.
/// No due time is above the highest id.
#[tokio::test]
async fn a_schedule_that_is_due_soon_wakes_a_worker() {
    const WAKE: &str = "events.scheduled.wake = <wake: 0>\n";
    let others = "o:1: events.scheduled = {k: 1}\nobjects.with.events = []\n";
    let scene = Scene::stopped_at(NOW_US).await;
    for (due, shown, wakes) in [
        ("+0", "NOW", true),
        ("+59999", "NOW+59999ms", true),
        ("+60000", "NOW+1m", false),
        ("@5", "5", true),
        ("@99999999999999999999", "9007199254740991", false),
        ("+99999999999999999999", "9007199254740991", false),
    ] {
        let emit = format!("emit:h '0 1 9 s3 1 1 t{due} o:11k'");
        let due = format!("events.scheduled = <o:1\\nk: {shown}>\n{others}");
        let wake = if wakes { WAKE } else { "" };
        skip(&scene, "", &emit, &(due + wake)).await;
        let earlier = "ZADD events.scheduled 9999999999999 'o:1\nk'";
        skip(&scene, earlier, &emit, others).await;
    }
    // One schedule of several that is due soon is enough.
    let emits = "emit:h '0 2 9 s3 1 1 r@5 o:11ks3 1 1 r+99999 o:11l'";
    let changes = r"
        events.scheduled = <o:1\nk: 5, o:1\nl: NOW+99999ms>
        events.scheduled.wake = <wake: 0>
        o:1: events.scheduled = {k: 1, l: 1}
        objects.with.events = []
    ";
    skip(&scene, "", emits, changes).await;
}

/// The markers of many objects take several commands, and each object has one.
#[tokio::test]
async fn many_objects_have_one_marker_each() {
    let objects: Vec<String> = (0..2001).map(|n| format!("o:{n}")).collect();
    let emit = |object: &String| format!("{} 1 {object}1", object.len());
    let emits: String = objects.iter().map(emit).collect();
    let given_emits = format!(
        "hold a inf '7 0 1 0 retry: x' 1; HSET a:event.handled id 7 emit:h '0 2001 9 {emits}'"
    );
    let scene = given(&given_emits).await;
    let mut conn = scene.conn().await;
    let skipped = operator::skip(&mut conn, &scene.keys, BY, b"a", Some(7)).await;
    skipped.expect("skipped");
    let markers = scene.list(&scene.keys.objects_with_events()).await;
    assert_eq!((markers[0].as_str(), &markers[1..]), ("", &objects[..]));
}
