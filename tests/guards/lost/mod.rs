//! Keys that belong together, one of which was deleted by hand or evicted. Real processes reach most of
//! these states only after such a loss.

mod damaged;

use std::time::Duration;

use seriatim::wire::{self, Attach, Attached, BatchResult, Detached, Renewed, Suspects};

use crate::scene::{ATTACH, BOUNDS, Scene, bounds, done, hold, result, slots};
use crate::support::sweep::sweep;

/// Attaches as another process, as after a restart. Returns the batches kept, the objects held, and
/// what was told.
pub(crate) async fn restart(scene: &Scene) -> (u64, u64, Vec<(String, String)>) {
    let args = Attach {
        token: "token-2",
        displace: &scene
            .at("event.worker:w:lease")
            .await
            .replace(" expires", ""),
        suspects: Suspects::of(5, false),
        ..ATTACH
    };
    match scene.attach(&args).await {
        Attached::Attached { kept, held, lost } => (kept, held, lost),
        Attached::InUse { lease, .. } => panic!("{lease}"),
    }
}

/// Renews the lease. Returns the number of names that were no objects of the slots, and what was told.
pub(crate) async fn renew(scene: &Scene) -> (u64, Vec<(String, String)>) {
    let (mut conn, lease) = (scene.conn().await, Duration::from_secs(600));
    let renewed = wire::renew(&mut conn, &scene.keys, "w", "token-1", lease, 2).await;
    match renewed.expect("an answer") {
        Renewed::Renewed { strays, lost } => (strays, lost),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn one_text(name: &str, text: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), text.to_owned())]
}

const LOST: &str = "lost: the object of the batch in event.worker:w.0:lost is not known";
const STUCK: &str = "stuck: the slot has a batch of an object that is not known, and \
                     event.worker:w.0:lost has another one";

/// Story: the tag of a slot was deleted. The next object's batch got the events that were in the slot:
/// 12 of 48 events came under another object's name, and 10 ids came twice. Now a process that has a
/// result of the batch writes the tag again.
#[tokio::test]
async fn a_lost_tag_is_written_again_for_the_result_of_its_batch() {
    for text in NO_TAGS {
        let scene = Scene::given("own w.0 work:1 7 1; emit work:2 2").await;
        lose_tag(&scene, text).await;
        let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
        assert_eq!(
            answer.texts(),
            ["event.worker:w.0:event.id: mended: the tag was absent"],
            "{text:?}"
        );
        assert_eq!(answer.objects(), ["work:2"]);
        let changes = "
            event.worker:w.0: event = [2]; event.id = 8; object = [work:2]
            next.event.id = 8
            objects.with.events = nil
            work:1: event.worker = nil; last.event.id = 7
            work:2: event.worker = w.0; events = nil
        ";
        scene.changed(changes).await;
        scene.check().await;
    }
}

/// Texts in the place of a lost tag: none, and texts that are no tag.
const NO_TAGS: [Option<&str>; 3] = [None, Some("x"), Some("")];

/// Deletes the tag of the slot 0, or writes this text in its place.
async fn lose_tag(scene: &Scene, text: Option<&str>) {
    let key = scene.keys.worker_event_id("w.0");
    match text {
        Some(text) => scene.run::<()>(&["SET", &key, text]).await,
        None => scene.run(&["DEL", &key]).await,
    }
}

/// The tag is lost, and the process has no result of the batch, or one that cannot be of this batch:
/// it has another number of events, the object is not that of the slot, or has a last id that is not
/// below the ids. The object is held with the batch, without ids, and `check` names it.
#[tokio::test]
async fn a_batch_without_a_tag_is_held_without_ids() {
    let why = "quarantine: event.worker:w.0:event.id is absent";
    let cases = [
        "free", "count", "yield", "object", "last", "restart", "sweep",
    ];
    for (case, text) in cases
        .iter()
        .flat_map(|case| NO_TAGS.map(|text| (*case, text)))
    {
        let scene = Scene::given("own w.0 work:1 7 1; emit work:2 2").await;
        lose_tag(&scene, text).await;
        let report = match case {
            "count" => result("work:1", "7", 2, BatchResult::Done),
            "yield" => result("work:1", "7", 2, BatchResult::Yield),
            "object" => done("work:3", 7),
            _ => done("work:1", 7),
        };
        if case == "last" {
            scene.add("delivered work:1 7").await;
        }
        if case == "restart" {
            assert_eq!(restart(&scene).await, (0, 1, one_text("work:1", why)));
        } else if case == "sweep" {
            let (mut conn, forget) = (scene.conn().await, Duration::from_secs(600));
            scene
                .run::<()>(&["DEL", &scene.keys.worker_lease("w")])
                .await;
            let swept = sweep(&mut conn, &scene.keys, "other", 5, forget).await;
            assert_eq!(swept.expect("an answer").held, 1, "{text:?}");
        } else {
            let results = if case == "free" { vec![] } else { vec![report] };
            let free = results.len()..1;
            let answer = scene.advance(BOUNDS, slots(&results, free)).await;
            assert_eq!(answer.texts(), [format!("work:1: {why}")], "{case}");
            assert_eq!(answer.objects(), ["work:2"], "{case}");
            assert_eq!(scene.at("event.worker:w.0:event").await, "[2]", "{case}");
        }
        assert_eq!(scene.at("work:1:events.held").await, "[1]", "{case}");
        let held = scene.at("work:1:events.held.id").await;
        assert_eq!(held, format!("0 0 0 0 {why}"), "{case}");
        assert_eq!(scene.at("objects.held").await, "<work:1: inf>", "{case}");
        assert!(!scene.report_of_check().await.is_clean(), "{case}");
    }
}

/// A result comes again after the commit, because the reply was lost. The slot has no batch, so no tag
/// is written.
#[tokio::test]
async fn a_repeated_result_writes_no_tag() {
    let scene = Scene::given("own w.0 work:1 7 1").await;
    for _ in 0..2 {
        let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
        assert_eq!(answer.texts(), [""; 0]);
    }
    let changes = "
        event.worker:w.0: event = nil; event.id = nil; object = nil
        work:1: event.worker = nil; last.event.id = 7
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// The slot's list is lost. The result of the batch in hand counts, and the next object's name
/// begins a new list, whether it comes from a marker or from the held objects. The object that the
/// slot has left may be the next one, if it also has a held batch. Then the list keeps its name, also
/// if the list is there.
#[tokio::test]
async fn a_slot_without_its_list_goes_on() {
    const LOST: &str = "DEL event.worker:w.0:object";
    for (next, given, damage) in [
        ("work:2", "emit work:2 2", LOST),
        ("work:2", "hold work:2 1 '8 0 1 0 retry: down' 2", LOST),
        ("work:1", "hold work:1 1 '8 0 1 0 retry: down' 2", LOST),
        ("work:1", "hold work:1 1 '8 0 1 0 retry: down' 2", ""),
    ] {
        let scene = Scene::given(given).await;
        scene.add("own w.0 work:1 7 1").await;
        scene.add(damage).await;
        let answer = scene.report(0, &done("work:1", 7), BOUNDS).await;
        assert_eq!(answer.objects(), [next]);
        assert_eq!(
            scene.at("event.worker:w.0:object").await,
            format!("[{next}]")
        );
        assert_eq!(scene.at("work:1:last.event.id").await, "7");
        scene.check().await;
    }
}

const NAMELESS: &str =
    "own w.0 work:1 7 1; DEL event.worker:w.0:object; SET event.worker:w.0:event.id 7";

/// The slot's list is lost, and the tag names no object. The process starts again. Nothing tells the
/// object of the batch. So the batch leaves the slot, and no other object gets its
/// events. `check` names it. A second batch of the same slot stays there, and the slot is busy.
#[tokio::test]
async fn a_batch_of_an_unknown_object_is_kept() {
    let given = NAMELESS;
    let scene = Scene::given(given).await;
    assert_eq!(
        restart(&scene).await,
        (0, 0, one_text("event.worker:w.0", LOST))
    );
    let changes = "
        event.worker:w: lease = token-2 host 1 1 expires
        event.worker:w.0: event = nil; event.id = nil; lost = [1, 7]
        event.workers = {w: 2 token-2 NOW}
    ";
    scene.changed(changes).await;
    let violations = scene.report_of_check().await.violations;
    assert!(
        violations
            .iter()
            .any(|found| format!("{found:?}").contains(":lost")),
        "{violations:?}"
    );
    // A pop has moved the name of another object to the list of this slot.
    let given = "
        SET event.worker:w:lease 'token-1 host 1 1'; LPUSH event.worker:w.0:event 2
        SET event.worker:w.0:event.id 8; SET next.event.id 8; emit work:2 3; pop w.0
    ";
    scene.add(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.texts(), [format!("event.worker:w.0: {STUCK}")]);
    assert_eq!(answer.objects(), [""; 0]);
    let changes = "
        event.worker:w.0: object = nil
        objects.with.events = [work:2]
    ";
    scene.changed(changes).await;
    // The next call can do no more, so a further one is of no use.
    assert!(!scene.free(0..1, BOUNDS).await.more);
}

/// The owner key of an object in hand was evicted, the reply to its claim was lost, and its tag names no
/// object. The batch leaves the slot, and no event of another object gets
/// into it.
#[tokio::test]
async fn a_batch_of_no_object_leaves_its_slot() {
    let given = "
        own w.0 work:1 1 1; DEL work:1:event.worker; SET event.worker:w.0:event.id 1; emit work:2 2
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:2"]);
    assert_eq!(answer.texts(), [format!("event.worker:w.0: {LOST}")]);
    let changes = "
        event.worker:w.0: event = [2]; event.id = 2; lost = [1, 1]; object = [work:2]
        next.event.id = 2
        objects.with.events = nil
        work:2: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// The owner key of an object in hand is lost, and the tag of its slot, too. The batch leaves the slot without ids, and the slot is free for the next object. A name that a pop has moved to
/// another slot is claimed there.
#[tokio::test]
async fn a_batch_without_a_tag_and_an_object_leaves_its_slot() {
    let given = "
        own w.0 work:1 7 1; DEL event.worker:w.0:event.id; DEL work:1:event.worker; emit work:2 2
        pop w.1; emit work:3 3
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(answer.texts(), [format!("event.worker:w.0: {LOST}")]);
    assert_eq!(answer.objects(), ["work:2", "work:3"]);
    let changes = "
        event.worker:w.0: event = [3]; event.id = 9; lost = [1, 0]; object = [work:3]
        event.worker:w.1: event = [2]; event.id = 8
        next.event.id = 9
        objects.with.events = nil
        work:2: event.worker = w.1; events = nil
        work:3: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// The slot behind a free one has lost its tag and its object, and cannot give its batch away,
/// because it has lost another one. The name that a pop has moved to the free slot is claimed
/// there.
#[tokio::test]
async fn a_slot_that_keeps_its_lost_batch_is_busy() {
    let given = "
        LPUSH event.worker:w.1:event 1; RPUSH event.worker:w.1:lost 0 2; emit work:2 3; pop w.0
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..2, BOUNDS).await;
    assert_eq!(
        answer.texts(),
        [format!("event.worker:w.1: {}", STUCK.replace("w.0", "w.1"))]
    );
    assert_eq!(answer.objects(), ["work:2"]);
    let changes = "
        event.worker:w.0: event = [3]; event.id = 1
        next.event.id = 1
        work:2: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// One slot has lost its tag and its object, while another one yields. Only the lost batch is told.
#[tokio::test]
async fn a_batch_that_is_over_is_not_lost() {
    let given = "own w.0 work:1 7 1; LPUSH work:1:events 2; LPUSH event.worker:w.1:event 3";
    let scene = Scene::given(given).await;
    let yields = result("work:1", "7", 1, BatchResult::Yield);
    let answer = scene.advance(BOUNDS, slots(&[yields], 1..2)).await;
    let lost = LOST.replace("w.0", "w.1");
    assert_eq!(answer.texts(), [format!("event.worker:w.1: {lost}")]);
    assert_eq!(answer.objects(), ["work:1"]);
    assert_eq!(scene.at("event.worker:w.1:lost").await, "[3, 0]");
}

/// Tag and batch are gone, or the tag is alone: the slot is free.
#[tokio::test]
async fn a_tag_without_a_batch_and_an_object_goes() {
    let given = "SET next.event.id 7; SET event.worker:w.0:event.id 7";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!((answer.objects(), answer.texts()), (vec![], vec![]));
    scene.changed("event.worker:w.0: event.id = nil").await;
    let given = "SET event.worker:w.0:event.id 7; emit work:2 2";
    scene.add(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!((answer.objects(), answer.texts()), (vec!["work:2"], vec![]));
    let changes = "
        event.worker:w.0: event = [2]; event.id = 8; object = [work:2]
        next.event.id = 8
        objects.with.events = nil
        work:2: event.worker = w.0; events = nil
    ";
    scene.changed(changes).await;
}

/// The batch of an object in hand is lost. The object waits for an operator, and nothing is left of
/// its event.
#[tokio::test]
async fn nothing_is_left_of_a_lost_batch() {
    let given = "
        own w.0 work:1 7 1; LPUSH work:1:event.errors '1 1 down'; SET work:1:event.key '7 k'
        DEL event.worker:w.0:event
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(
        answer.texts(),
        ["work:1: quarantine: event.worker:w.0:event is absent"]
    );
    let changes = "
        event.worker:w.0: event.id = nil; object = nil
        objects.held = <work:1: inf>
        work:1: event.errors = nil; event.key = nil; event.worker = held; events.held.id = 0 0 0 0 quarantine: event.worker:w.0:event is absent
    ";
    scene.changed(changes).await;
}

/// The owner key of an object in hand is lost. A renewal writes it again, before another slot takes
/// later events of the object. After a restart the object is held with its batch for an operator. A
/// second copy of the name, which two pops have moved, goes.
#[tokio::test]
async fn a_lost_owner_of_an_object_in_hand() {
    // Late pops have added another name, and a second copy.
    let given =
        "own w.0 work:1 7 1; LPUSH event.worker:w.0:object work:1 work:3; DEL work:1:event.worker";
    let scene = Scene::given(given).await;
    let text = "mended: the owner of an object in hand was absent";
    assert_eq!(
        renew(&scene).await,
        (1, one_text("work:1:event.worker", text))
    );
    let changes = "
        event.worker:w.0: object = [work:1]
        objects.with.events = [work:3]
        work:1: event.worker = w.0
    ";
    scene.changed(changes).await;
    scene.check().await;
    let scene = Scene::given(given).await;
    let text = "quarantine: work:1:event.worker is absent";
    assert_eq!(restart(&scene).await, (0, 0, one_text("work:1", text)));
    let changes = "
        event.worker:w: lease = token-2 host 1 1 expires
        event.worker:w.0: event = nil; event.id = nil; object = nil
        event.workers = {w: 2 token-2 NOW}
        objects.held = <work:1: inf>
        objects.with.events = [work:3]
        work:1: event.worker = held; events.held = [1]; events.held.id = 7 0 0 0 quarantine: work:1:event.worker is absent
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// A name is not the object of the slot's batch if it has an owner or an owner key of a wrong type,
/// if the list has the owned object, if the slot has no batch, or if it is a mark or the empty
/// name.
#[tokio::test]
async fn only_the_object_of_a_batch_gets_its_owner_again() {
    let batch =
        "LPUSH event.worker:w.0:event 1; SET event.worker:w.0:event.id 7; SET next.event.id 7";
    for (name, given, owner) in [
        (
            "work:2",
            &format!("{batch}; LPUSH event.worker:w.0:object work:1; SET work:1:event.worker w.0")
                [..],
            "nil",
        ),
        ("work:2", "SET event.worker:w.0:event.id 7", "nil"),
        ("work:2", "LPUSH event.worker:w.0:event 1", "nil"),
        ("\0t5", batch, "nil"),
        ("", batch, "nil"),
        (
            "work:2",
            &format!("{batch}; SET work:2:event.worker w.1"),
            "w.1",
        ),
        (
            "work:2",
            &format!("{batch}; LPUSH work:2:event.worker w.0"),
            "[w.0]",
        ),
    ] {
        let list = format!("LPUSH event.worker:w.0:object '{name}'");
        let scene = Scene::given(&format!("{list}; {given}")).await;
        assert_eq!(renew(&scene).await, (1, vec![]), "{name} {given}");
        let key = format!("{name}:event.worker");
        assert_eq!(scene.at(&key).await, owner, "{name} {given}");
    }
}

/// The owner key of a held object is lost. A marker, or a name that a pop has moved, leads to its queue.
/// Story: later events overtook the held batch, and the next hold overwrote it.
#[tokio::test]
async fn a_held_object_without_an_owner_key_stays_held() {
    for pop in ["", "pop w.0"] {
        let given = "
            delivered work:1 6; hold work:1 99999999999999 '7 0 1 0 retry: down' 1
            DEL work:1:event.worker; emit work:1 2
        ";
        let scene = Scene::given(given).await;
        scene.add(pop).await;
        let answer = scene.free(0..1, BOUNDS).await;
        assert_eq!(answer.objects(), [""; 0]);
        let text = "work:1:event.worker: mended: the owner of a held object was absent";
        assert_eq!(answer.texts(), [text]);
        assert_eq!(scene.at("work:1:events").await, "[2]");
        scene.check().await;
    }
}

/// Held objects without owner keys stand among the markers. The markers of one chunk are all used,
/// and the reply tells of at most 64 lost keys.
#[tokio::test]
async fn held_objects_without_owner_keys_are_passed_over() {
    let held = |n| {
        let hold = format!("hold held:{n} 99999999999999 '7 0 1 0 retry: down' 1");
        format!("{hold}; DEL held:{n}:event.worker; emit held:{n} 2; ")
    };
    let scene = Scene::given(&(1..=65).map(held).collect::<String>()).await;
    scene.add("emit work:1 3").await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:1"]);
    assert_eq!(answer.texts().len(), 64);
    assert_eq!(scene.at("work:1:event.worker").await, "w.0");
    assert_eq!(scene.at("objects.with.events").await, "nil");
}

/// The held batch is lost, but not its numbers. After a release the object goes on with its queue, and
/// nothing is left of the lost event.
#[tokio::test]
async fn an_object_whose_held_batch_is_lost_goes_on_after_a_release() {
    let given = "
        hold work:1 1 '7 1 1 0 retry: down' 1; LPUSH work:1:event.errors '1 1 down'
        SET work:1:event.key '7 k'; DEL work:1:events.held; LPUSH work:1:events 2
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(
        answer.texts(),
        ["work:1: quarantine: work:1:events.held is absent"]
    );
    let changes = "
        objects.held = <work:1: inf>
        work:1: event.errors = nil; event.key = nil; events.held.id = 0 0 0 0 quarantine: work:1:events.held is absent
    ";
    scene.changed(changes).await;
    scene.check().await;
    scene.release("work:1").await;
    assert_eq!(scene.free(0..1, BOUNDS).await.objects(), ["work:1"]);
    let changes = "
        event.worker:w.0: event = [2]; event.id = 8; object = [work:1]
        next.event.id = 8
        objects.held = nil
        work:1: event.worker = w.0; events = nil; events.held.id = nil
    ";
    scene.changed(changes).await;
    scene.check().await;
}

/// The list is lost while a part of the batch stays in hand, or the rest is held.
#[tokio::test]
async fn a_part_of_a_batch_counts_without_the_list() {
    let part = BatchResult::Part {
        next: "8".parse().expect("a tag"),
    };
    for (then, left) in [
        (part, "nil"),
        (hold("8", Some(Duration::ZERO), "retry: no"), "[2]"),
    ] {
        let given = "own w.0 work:1 7 1 2; DEL event.worker:w.0:object";
        let scene = Scene::given(given).await;
        let answer = scene
            .report(0, &result("work:1", "7", 1, then), BOUNDS)
            .await;
        assert_eq!(answer.objects(), ["work:1"]);
        assert_eq!(scene.at("work:1:last.event.id").await, "7");
        scene.report(0, &done("work:1", 8), BOUNDS).await;
        assert_eq!(scene.at("event.worker:w.0:event").await, left);
    }
}

/// A slot has lost its list, so its batch was put away. Then a pop moves a marker of the object into
/// the list. The later events of the object do not overtake the batch, whoever looks at the name.
///
/// Story: the slot took the later events, and a repair made the batch dead letters without an object.
#[tokio::test]
async fn later_events_do_not_overtake_a_batch_that_was_put_away() {
    for (last, tag, numbers, is_due) in [
        (None, "7 1", "7 1 0 0 takeover", true),
        (
            Some(7),
            "7",
            "0 0 0 0 quarantine: event.worker:w.0:object is absent",
            false,
        ),
        (
            None,
            "x",
            "0 0 0 0 quarantine: event.worker:w.0:object is absent",
            false,
        ),
    ] {
        for restarts in [false, true] {
            let scene = Scene::given(NAMELESS).await;
            scene
                .add(&format!("SET event.worker:w.0:event.id '{tag}'"))
                .await;
            scene.attach(&ATTACH).await;
            if let Some(last) = last {
                scene.add(&format!("SET work:1:last.event.id {last}")).await;
            }
            scene.add("emit work:1 2; pop w.0").await;
            let why = "quarantine: event.worker:w.0:object is absent";
            let waits = one_text("work:1", why);
            if restarts {
                let detached = scene.detach("t").await.expect("detached");
                let lost = if is_due { Vec::new() } else { waits };
                assert_eq!(detached, Detached::Detached { held: 1, lost });
            } else {
                let answer = scene.free(0..1, BOUNDS).await;
                let waits = if is_due {
                    vec![]
                } else {
                    vec![format!("work:1: {why}")]
                };
                assert_eq!(answer.texts(), waits, "{tag}");
            }
            assert_eq!(scene.at("event.worker:w.0:lost").await, "nil", "{tag}");
            assert_eq!(scene.at("work:1:events").await, "[2]", "{tag}");
            if is_due && !restarts {
                // The slot has claimed the held object already.
                assert_eq!(scene.at("event.worker:w.0:event").await, "[1]");
                assert_eq!(scene.at("event.worker:w.0:event.id").await, "7 2");
                continue;
            }
            assert_eq!(scene.at("work:1:events.held.id").await, numbers, "{tag}");
            assert_eq!(scene.at("work:1:events.held").await, "[1]", "{tag}");
            let due = scene.due("work:1").await.expect("it is held");
            assert_eq!(due.is_finite(), is_due, "{tag}: {due}");
        }
    }
}

/// A slot has put the batch of an object away, and has another object in hand. Then a pop moves a
/// marker of the first object into its list. Each object keeps its own batch, whoever looks at the slot,
/// also if the tag is lost.
#[tokio::test]
async fn each_of_two_owned_objects_keeps_its_own_batch() {
    let given = "
        own w.0 work:2 8 2; SET work:1:event.worker w.0; LPUSH event.worker:w.0:object work:1
        RPUSH event.worker:w.0:lost 7 1
    ";
    let scene = Scene::given(given).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:2"]);
    scene.report(0, &done("work:2", 8), BOUNDS).await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(scene.at("work:1:event.worker").await, "w.0");
    assert_eq!(scene.at("event.worker:w.0:event.id").await, "7 1");

    for (lose, numbers) in [
        ("", "8 0 0 0 stop"),
        (
            "DEL event.worker:w.0:event.id",
            "0 0 0 0 quarantine: event.worker:w.0:event.id is absent",
        ),
    ] {
        let scene = Scene::given(given).await;
        scene.attach(&ATTACH).await;
        scene.add(lose).await;
        scene.detach("t").await.expect("detached");
        let changes = [
            ("work:1:events.held", "[1]"),
            ("work:1:events.held.id", "7 0 0 0 takeover"),
            ("work:2:events.held", "[2]"),
            ("work:2:events.held.id", numbers),
        ];
        for (key, value) in changes {
            assert_eq!(scene.at(key).await, value, "{key}");
        }
    }

    let scene = Scene::given(given).await;
    scene.add("DEL event.worker:w.0:event.id").await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(scene.at("work:2:events.held").await, "[2]");
    assert_eq!(scene.at("work:1:events.held").await, "nil");
}

/// A slot has put a batch away, and pops move markers of two other objects into its list. No other object
/// gets the batch. What has only a tag is no batch.
#[tokio::test]
async fn a_batch_that_was_put_away_is_of_no_other_object() {
    let lost = "SET work:1:event.worker w.0; RPUSH event.worker:w.0:lost 7 1";
    let scene = Scene::given(&format!(
        "{lost}; emit work:2 2; pop w.0; emit work:3 3; pop w.0"
    ))
    .await;
    scene.free(0..1, BOUNDS).await;
    assert_eq!(scene.at("event.worker:w.0:lost").await, "[1, 7]");
    for other in ["work:2", "work:3"] {
        assert_eq!(scene.at(&format!("{other}:events.held")).await, "nil");
    }

    let lost = "SET work:1:event.worker w.0; RPUSH event.worker:w.0:lost 7";
    let scene = Scene::given(&format!("{lost}; emit work:1 2; pop w.0")).await;
    let answer = scene.free(0..1, BOUNDS).await;
    assert_eq!(answer.objects(), ["work:1"]);
}
