//! The object that the tag of a batch names. It tells the object if the list of the slot, or the owner of
//! the object, is lost.

use std::time::Duration;

use seriatim::wire::{Attach, Attached, BatchResult, Detached, Suspects};

use crate::lost::{one_text, renew, restart};
use crate::scene::{ATTACH, BOUNDS, Scene, done, result, slots};
use crate::support::sweep::sweep;

const LIST: &str = "event.worker:w.0:object";
const MENDED: &str = "mended: the list of a slot with a batch was absent";
const OWNER: &str = "quarantine: work:1:event.worker is absent";

/// A pop of the process before moves the marker of an object without an owner into the slot, whose list
/// is lost.
///
/// Story: the list looked as if only the owner of this object were lost. A renewal made the slot its
/// owner, and after a restart the batch of `work:1` came under the name of `work:2`.
const LATE_POP: &str = "
    own w.0 work:1 7 1; DEL event.worker:w.0:object; emit work:2 2; pop w.0
";

/// After a restart the slot still has the batch of its object. A name that a late pop has moved is a
/// marker again.
#[tokio::test]
async fn a_lost_list_is_mended_at_a_restart() {
    for (given, renews) in [
        ("own w.0 work:1 7 1; DEL event.worker:w.0:object", false),
        (LATE_POP, false),
        (LATE_POP, true),
    ] {
        let scene = Scene::given(given).await;
        if renews {
            assert_eq!(renew(&scene).await, (1, vec![]));
            let changes = "
                event.worker:w.0: object = nil
                objects.with.events = [work:2]
            ";
            scene.changed(changes).await;
        }
        assert_eq!(restart(&scene).await, (1, 0, one_text(LIST, MENDED)));
        assert_eq!(scene.at(LIST).await, "[work:1]");
        assert_eq!(scene.at("work:2:event.worker").await, "nil");
        assert_eq!(scene.at("event.worker:w.0:event").await, "[1]");
        scene.check().await;
    }
}

/// Calls, sweeps and a stop give the batch to its object, too, although the list is lost.
#[tokio::test]
async fn a_batch_without_a_list_is_that_of_its_object() {
    let scene = Scene::given(LATE_POP).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:1"]);
    assert_eq!(answer.texts(), [format!("{LIST}: {MENDED}")]);
    assert_eq!(scene.at(LIST).await, "[work:1, work:2]");
    scene.check().await;

    let scene = Scene::given(LATE_POP).await;
    let detached = scene.detach("token-1").await.expect("detached");
    let lost = one_text(LIST, MENDED);
    assert_eq!(detached, Detached::Detached { held: 1, lost });
    assert_eq!(scene.at("work:1:events.held.id").await, "7 0 0 0 stop");
    assert_eq!(scene.at("objects.with.events").await, "[, work:2]");

    let scene = Scene::given(LATE_POP).await;
    scene.add("DEL event.worker:w:lease").await;
    let (mut conn, forget) = (scene.conn().await, Duration::from_secs(600));
    let swept = sweep(&mut conn, &scene.keys, "other", 5, forget).await;
    let swept = swept.expect("an answer");
    assert_eq!((swept.held, swept.strays), (1, 1));
    assert_eq!(swept.lost, one_text(LIST, MENDED));
    assert_eq!(scene.at("work:1:events.held.id").await, "7 0 0 1 takeover");
}

/// The owner of the object is lost, too, or only its owner: it is held with its batch for an operator, and
/// another name in the list is not.
#[tokio::test]
async fn a_batch_whose_object_nobody_owns_is_held_under_its_name() {
    for list in [
        "",
        "DEL event.worker:w.0:object",
        "RPUSH event.worker:w.0:object work:2",
    ] {
        for restarts in [false, true] {
            let given = format!("own w.0 work:1 7 1; DEL work:1:event.worker; {list}");
            let scene = Scene::given(&given).await;
            if restarts {
                assert_eq!(restart(&scene).await.2, one_text("work:1", OWNER));
            } else {
                // The slot is free for another object.
                scene.add("emit work:9 9").await;
                let answer = scene.free(0..1, BOUNDS).await;
                assert_eq!(answer.texts(), [format!("work:1: {OWNER}")]);
                assert_eq!(answer.objects(), ["work:9"]);
            }
            let numbers = format!("7 0 0 0 {OWNER}");
            assert_eq!(scene.at("work:1:events.held.id").await, numbers, "{given}");
            assert_eq!(scene.at("work:1:events.held").await, "[1]", "{given}");
            assert_eq!(scene.due("work:1").await, Some(f64::INFINITY), "{given}");
            assert_eq!(scene.at("work:2:events.held").await, "nil", "{given}");
            assert_eq!(scene.at("work:2:event.worker").await, "nil", "{given}");
        }
    }
}

/// Another slot has claimed the object since then, or it is held, or its owner key has a wrong type. The
/// batch leaves the slot, and no object gets it.
#[tokio::test]
async fn a_batch_whose_object_another_slot_has_is_put_away() {
    for owner in ["SET work:1:event.worker w.1", "RPUSH work:1:event.worker x"] {
        let given =
            format!("own w.0 work:1 7 1; DEL event.worker:w.0:object work:1:event.worker; {owner}");
        let scene = Scene::given(&given).await;
        scene.free(0..1, BOUNDS).await;
        let lost = scene.at("event.worker:w.0:lost").await;
        assert_eq!(lost, "[1, 7\\nwork:1]", "{owner}");
        assert_eq!(scene.at("event.worker:w.0:event.id").await, "nil");
        let scene = Scene::given(&given).await;
        restart(&scene).await;
        let lost = scene.at("event.worker:w.0:lost").await;
        assert_eq!(lost, "[1, 7\\nwork:1]", "{owner}");
    }
}

/// A tag that names no object, or one of another namespace, is as good as one without a name.
#[tokio::test]
async fn a_name_that_no_object_can_have_is_none() {
    for name in ["", "{shop:0}:work:1"] {
        let scene = Scene::under(seriatim::keys::Keys::new()).await;
        let given = format!(
            "own w.0 work:1 7 1; DEL event.worker:w.0:object; SET event.worker:w.0:event.id '7\n{name}'"
        );
        scene.add(&given).await;
        let texts = scene.free(0..1, BOUNDS).await.texts();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].starts_with("event.worker:w.0: lost:"), "{texts:?}");
    }
}

/// The reply has no room for the second rest. Its tag has the name nevertheless.
#[tokio::test]
async fn a_rest_that_is_not_in_the_reply_has_its_name() {
    let scene = Scene::given("own w.0 work:1 7 1 2; own w.1 work:2 9 3 4").await;
    let part = |object: &str, tag: u64| {
        let next = (tag + 1).to_string().parse().expect("a tag");
        result(object, &tag.to_string(), 1, BatchResult::Part { next })
    };
    let results = [part("work:1", 7), part("work:2", 9)];
    let bounds = seriatim::wire::Bounds {
        reply_bytes: 1,
        ..BOUNDS
    };
    let answer = scene.advance(bounds, slots(&results, 2..2)).await;
    assert_eq!(answer.objects(), ["work:1"]);
    let value = scene.text(&scene.keys.worker_event_id("w.1")).await;
    assert_eq!(value.as_deref(), Some("10\nwork:2"));
}

/// A failed call has left the slot an object without a batch. Its list was lost while it had the batch of
/// another object, and a pop moved a marker of the first object. Each has its own batch, and no crash counts
/// twice.
///
/// Story: the name in the list counted before the name in the tag, so `work:1` got the batch of `work:2`.
#[tokio::test]
async fn the_tag_counts_before_the_list() {
    let given = "own w.0 work:2 8 1; SET work:1:event.worker w.0; emit work:1 2; pop w.0";
    for order in ["", "DEL event.worker:w.0:object; emit work:1 2; pop w.0"] {
        for crashes_max in [0, 2] {
            let scene = Scene::given(&format!("{given}; {order}")).await;
            let args = Attach {
                token: "token-2",
                crashes_max,
                displace: &lease(&scene).await,
                suspects: Suspects::of(5, false),
                ..ATTACH
            };
            let Attached::Attached { kept, .. } = scene.attach(&args).await else {
                panic!("in use");
            };
            assert_eq!(kept, 1);
            assert_eq!(tag(&scene).await, "8 0 0 1\nwork:2");
            assert_eq!(scene.at("work:1:events.held").await, "nil");
            scene.check().await;

            let scene = Scene::given(&format!("{given}; {order}")).await;
            let answer = scene.free(0..1, BOUNDS).await;
            assert_eq!(answer.objects(), ["work:2"]);
            let report = scene.report_of_check().await;
            let lines: Vec<_> = report.violations.iter().map(|one| &one.what).collect();
            assert!(
                lines.iter().all(|line| !line.contains("has a batch of")),
                "{lines:?}"
            );
        }
    }
    let scene = Scene::given(&format!("{given}; DEL work:2:event.worker")).await;
    let report = scene.report_of_check().await;
    let is_named = |one: &str| one.contains("has a batch of work:2, but owns work:1");
    assert!(report.violations.iter().any(|one| is_named(&one.what)));
}

/// The owner was lost, and another slot has claimed the object since. The batch that was put away keeps the
/// name of its object: no other object of the slot gets it, and a repair gives it back.
#[tokio::test]
async fn a_batch_that_was_put_away_keeps_its_name() {
    let given = "
        SET work:2:event.worker w.0; RPUSH event.worker:w.0:object work:2; LPUSH work:2:events 2
        RPUSH event.worker:w.0:lost '7\nwork:1' 1
    ";
    let scene = Scene::given(given).await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(scene.at("event.worker:w.0:event").await, "[2]");
    assert_eq!(scene.at("event.worker:w.0:lost").await, "[1, 7\\nwork:1]");
    let report = scene.report_of_check().await;
    let lines: Vec<_> = report.violations.iter().map(|one| &one.what).collect();
    assert!(
        lines.iter().any(|line| line.contains("1 events of work:1")),
        "{lines:?}"
    );
}

/// The object that a batch names gets it back as soon as the slot owns the object again, with nothing else.
#[tokio::test]
async fn a_named_batch_comes_back_to_its_object() {
    let given = "
        SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1; LPUSH work:1:events 2
        RPUSH event.worker:w.0:lost '7 1\nwork:1' 1; SET next.event.id 7
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:1"]);
    assert_eq!(scene.at("event.worker:w.0:event").await, "[1]");
    assert_eq!(tag(&scene).await, "7 2\nwork:1");
    assert_eq!(scene.at("event.worker:w.0:lost").await, "nil");
    scene.check().await;

    // A text that is no tag does not stay behind.
    let scene = Scene::given(given).await;
    scene.add("SET event.worker:w.0:event.id odd").await;
    scene.detach("token-1").await.expect("detached");
    assert_eq!(scene.at("work:1:events.held").await, "[1]");
    assert_eq!(scene.at("event.worker:w.0:event.id").await, "nil");
}

/// Another slot has the object that the tag names, and this slot has another object in its list. That one
/// does not get the batch.
#[tokio::test]
async fn no_other_object_gets_a_batch_whose_object_another_slot_has() {
    let given = "
        own w.0 work:1 7 1; SET work:1:event.worker v.0; SET work:2:event.worker w.0
        LPUSH event.worker:w.0:object work:2; LPUSH work:2:events 2
    ";
    for restarts in [false, true] {
        let scene = Scene::given(given).await;
        if restarts {
            restart(&scene).await;
            assert_eq!(scene.at("work:2:events.held").await, "nil");
        } else {
            scene.free(0..1, BOUNDS).await;
            assert_eq!(scene.at("event.worker:w.0:event").await, "[2]");
            assert_eq!(tag(&scene).await, "8\nwork:2");
        }
        assert_eq!(scene.at("event.worker:w.0:lost").await, "[1, 7\\nwork:1]");
        assert_eq!(scene.at("work:1:event.worker").await, "v.0");
    }
}

/// A renewal leaves a second object of the slot as it is. A restart holds it with the batch that was put
/// away, for an operator if that has no ids.
#[tokio::test]
async fn a_second_object_of_a_slot_waits_with_its_own_batch() {
    let given = "
        own w.0 work:2 8 2; SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1
        RPUSH event.worker:w.0:lost '0\nwork:1' 1
    ";
    let scene = Scene::given(given).await;
    assert_eq!(renew(&scene).await, (0, vec![]));
    scene.changed("").await;
    let why = "quarantine: event.worker:w.0:object is absent";
    assert_eq!(restart(&scene).await, (1, 0, one_text("work:1", why)));
    assert_eq!(scene.at("work:1:events.held").await, "[1]");
    assert_eq!(scene.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(scene.at("event.worker:w.0:event").await, "[2]");
}

/// A look at the list of a busy slot leaves the name of its object there, although its owner is lost, so
/// that a renewal writes the owner again.
#[tokio::test]
async fn a_look_keeps_the_object_of_the_batch() {
    let given = "own w.0 work:1 7 1; LPUSH work:1:events 2; DEL work:1:event.worker; emit work:2 3; pop w.0";
    let scene = Scene::given(given).await;
    scene.advance(BOUNDS, |call| call.look(0)).await;
    assert_eq!(scene.at(LIST).await, "[work:1]");
    renew(&scene).await;
    assert_eq!(scene.at("work:1:event.worker").await, "w.0");
    // A name that no batch has goes back, although the tag of an earlier batch is there.
    let scene =
        Scene::given("own w.0 work:1 7 1; DEL work:1:event.worker event.worker:w.0:event").await;
    scene.advance(BOUNDS, |call| call.look(0)).await;
    assert_eq!(scene.at(LIST).await, "nil");
}

/// Later events of the object were delivered while its owner was lost. The batch has no ids any more, so
/// the last id does not fall.
#[tokio::test]
async fn a_batch_below_the_last_id_is_held_without_ids() {
    for (last, numbers) in [(6, "7 0 0 0"), (7, "0 0 0 0"), (9, "0 0 0 0")] {
        let given = format!("own w.0 work:1 7 1; delivered work:1 {last}; DEL work:1:event.worker");
        let scene = Scene::given(&given).await;
        scene.free(0..1, BOUNDS).await;
        let held = scene.at("work:1:events.held.id").await;
        assert_eq!(held, format!("{numbers} {OWNER}"));
    }
}

/// A result counts only for the object that the tag names. A tag without a name, such as another program
/// may have written, is as good as one with it.
#[tokio::test]
async fn a_result_is_of_the_object_that_the_tag_names() {
    let other = "SET event.worker:w.0:event.id '7\nwork:2'";
    for (tag, commits) in [
        ("", true),
        ("SET event.worker:w.0:event.id 7", true),
        (other, false),
    ] {
        let scene = Scene::given(&format!("own w.0 work:1 7 1; {tag}")).await;
        scene.report(0, &done("work:1", 7), BOUNDS).await;
        let last = if commits { "7" } else { "nil" };
        assert_eq!(scene.at("work:1:last.event.id").await, last, "{tag}");
    }
}

/// Each way to a tag names the object: a claim of a marker and of a held batch, the next event of the same
/// object, the rest of a batch, a batch that is given again, a restart, and a tag that was lost.
#[tokio::test]
async fn every_tag_names_its_object() {
    let scene = Scene::given("emit work:1 1; emit work:2 2").await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(tag(&scene).await, "1\nwork:1");
    scene.report(0, &done("work:1", 1), BOUNDS).await;
    assert_eq!(tag(&scene).await, "2\nwork:2");
    scene.add("emit work:2 3; emit work:2 4").await;
    scene.report(0, &done("work:2", 2), BOUNDS).await;
    assert_eq!(tag(&scene).await, "3\nwork:2");
    let part = BatchResult::Part {
        next: "4".parse().expect("a tag"),
    };
    scene
        .report(0, &result("work:2", "3", 1, part), BOUNDS)
        .await;
    assert_eq!(tag(&scene).await, "4\nwork:2");
    scene.add("DEL event.worker:w.0:event.id").await;
    scene.free(0..0, BOUNDS).await;
    scene
        .report(0, &result("work:2", "4", 1, BatchResult::Yield), BOUNDS)
        .await;
    scene.check().await;

    let scene = Scene::given("own w.0 work:1 7 1").await;
    scene.add("SET event.worker:w.0:event.id 7").await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(tag(&scene).await, "7\nwork:1");
    restart(&scene).await;
    assert_eq!(tag(&scene).await, "7 0 0 1\nwork:1");

    let scene = Scene::given("hold work:1 1 '8 0 1 0 retry: down' 2").await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(tag(&scene).await, "8 1 1\nwork:1");
}

async fn tag(scene: &Scene) -> String {
    let key = scene.keys.worker_event_id("w.0");
    scene.text(&key).await.expect("a tag")
}

/// Returns the lease of the process, which another one displaces.
async fn lease(scene: &Scene) -> String {
    let lease = scene.at("event.worker:w:lease").await;
    lease.replace(" expires", "")
}

/// The list is lost, and the tag has no numbers any more, but names the object. It is held with its
/// batch, and this is told.
#[tokio::test]
async fn an_object_that_only_a_damaged_tag_names_is_told() {
    let given = "
        own w.0 work:1 7 1; DEL event.worker:w.0:object; SET event.worker:w.0:event.id 'x\nwork:1'
    ";
    let scene = Scene::given(given).await;
    let why = "quarantine: event.worker:w.0:event.id is absent";
    assert_eq!(restart(&scene).await, (0, 1, one_text("work:1", why)));
    assert_eq!(scene.at("work:1:events.held").await, "[1]");
    assert_eq!(scene.due("work:1").await, Some(f64::INFINITY));
}
