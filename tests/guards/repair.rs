//! `repair`: what it does after the loss of keys. `cases.txt` has most cases.

mod bounds;
mod cases;
mod lost;
mod plain;
mod progress;

use seriatim::control::{By, ControlError, Repair, RepairReport};
use seriatim::wire::operator::{self, RepairCall};

use crate::check::{broken_by, findings_of, scene};
use crate::scene::Scene;
use crate::support::{Redis, control};

const BY: By<'_> = By {
    who: "ada",
    why: "lost",
};

async fn try_repair(scene: &Scene, with: &Repair) -> Result<RepairReport, ControlError> {
    let control = control(&scene.conn().await, &scene.keys);
    control.repair(BY, with).await
}

async fn repair(scene: &Scene, with: &Repair) -> RepairReport {
    try_repair(scene, with).await.expect("a report")
}

fn doing() -> Repair {
    Repair {
        dry_run: false,
        share: 1.0,
        ..Repair::default()
    }
}

/// Returns the steps, and then what was left, as lines.
fn lines(report: &RepairReport) -> Vec<String> {
    let steps = report.steps.iter().chain(&report.left);
    let steps = steps.map(|step| format!("{} {}: {}", step.kind, step.subject, step.what));
    let mut lines: Vec<_> = steps.collect();
    lines.sort();
    lines
}

/// Makes one call for these subjects, as at the last look. Owners that are no slot of a registered name
/// are dead. Returns the position and the word of each text.
async fn call(scene: &Scene, subjects: &[(&str, &str)]) -> Vec<(usize, String)> {
    call_with(scene, subjects, "searched").await
}

/// Makes one call for these subjects with this hint.
async fn call_with(
    scene: &Scene,
    subjects: &[(&str, &str)],
    hint: &'static str,
) -> Vec<(usize, String)> {
    let with = RepairCall {
        doing: true,
        dead_owners: vec!["*".to_owned()],
        ..RepairCall::default()
    };
    let by = operator::By {
        who: BY.who,
        why: BY.why,
    };
    let subjects = subjects.iter();
    let subjects = subjects.map(|(kind, name)| (*kind, name.as_bytes(), hint));
    let mut conn = scene.conn().await;
    let done = operator::repair(&mut conn, &scene.keys, by, &with, subjects).await;
    let rows = done.expect("an answer").0.into_iter();
    rows.map(|row| (row.position, row.word)).collect()
}

/// An object whose name is grouped has a score below 0. No list of a group has the name, so the object is
/// due again. A score from 0 on is a due time, as it was.
#[tokio::test]
async fn only_a_grouped_object_is_due_again() {
    let scene = scene().await;
    for (score, words) in [("-1", &["held"][..]), ("0", &[]), ("1", &[])] {
        let given = format!("ZADD objects.held {score} work:5; SET event.groups.waiting 1");
        broken_by(&scene, &given).await;
        let found = call(&scene, &[("object", "work:5")]).await;
        let found: Vec<_> = found.iter().map(|(_, word)| word.as_str()).collect();
        assert_eq!(found, words, "{score}");
    }
}

/// The script looks at each subject itself: a suspicion of the walk may be over by then.
#[tokio::test]
async fn a_sound_subject_needs_no_step() {
    let commands = "
        SET event.worker:gone.0:event.id 16; ZADD event.workers.watched 1 a
        ZADD event.workers.departed 1 gone; LPUSH event.group:g:waiting work:1
        ZADD event.groups 1 g; SET event.groups.waiting 1; HSET events.emitted k v
        ZADD events.emitted.ends 1 k; HSET x:events.scheduled k 1
        ZADD events.scheduled 9007199254740991 'x\nk'
    ";
    let scene = scene().await;
    broken_by(&scene, commands).await;
    let objects = [
        "work:2", "work:4", "work:5", "work:6", "work:7", "work:8", "work:9", "none",
    ];
    let others = [
        ("worker", "a.0"),
        ("worker", "a.1"),
        ("worker", "gone.0"),
        ("worker", "none.0"),
        ("name", "a"),
        ("name", "gone"),
        ("name", "none"),
        ("group", "g"),
        ("group", "none"),
        ("schedule", "x\nk"),
        ("schedule", "none\nk"),
        ("cron", "none"),
        ("emitted", "k"),
        ("emitted", "none"),
        ("shared", ""),
    ];
    let objects = objects.map(|name| ("object", name));
    for subject in objects.into_iter().chain(others) {
        assert_eq!(call(&scene, &[subject]).await, [], "{subject:?}");
    }
    scene.changed("").await;
}

/// A reference in the queue counts only if it has the time of the schedule's score. Story: a schedule was
/// queued, and replaced by one of a later day before a slot took it. Then `events.scheduled` was lost. A
/// repair took the void reference for a valid one, so the event of the later day came at once.
#[tokio::test]
async fn a_void_reference_does_not_queue_a_schedule() {
    let queued = "HSET x:events.scheduled k 1; LPUSH x:events '\0queued 1700000000000000 k'";
    let scene = scene().await;
    for (score, word) in [
        ("", Some("left")),
        ("ZADD events.scheduled -2700000000000000 'x\nk'", None),
        (
            "ZADD events.scheduled -2700000000000007 'x\nk'",
            Some("schedule"),
        ),
    ] {
        broken_by(&scene, &format!("{queued}; {score}")).await;
        let words = call(&scene, &[("schedule", "x\nk")]).await;
        let expected: Vec<_> = word.map(|word| (0, word.to_owned())).into_iter().collect();
        assert_eq!(words, expected, "{score}");
        let is_queued = score.is_empty() || word.is_none();
        let left = scene.at("events.scheduled").await;
        assert_eq!(left == "nil" || left.contains("-27"), is_queued, "{left}");
    }
}

/// Limits count each object in hand. Of many that no slot owns, none is left.
#[tokio::test]
async fn every_object_in_hand_is_looked_at() {
    let members: String = (0..3000).map(|n| format!(" 0 left:{n}:")).collect();
    let scene = scene().await;
    broken_by(&scene, &format!("ZADD objects.in.hand{members}")).await;
    let report = scene.report_of_check().await;
    assert_eq!(report.violations_total, 3000);
    assert_eq!(repair(&scene, &doing()).await.steps_total, 3000);
    assert_eq!(findings_of(&scene).await, [""; 0]);
}

/// `event.groups.times` has the number of marks in the lists of groups. If it is lost, marks are not
/// taken for names.
#[tokio::test]
async fn marks_of_lost_times_are_no_names() {
    let marked = "
        LPUSH event.group:g:waiting work:1 '\0t1700' '\0t1800'; ZADD event.groups 1 g
        ZADD event.marks 1 1700 2 1800; SET event.groups.waiting
    ";
    let scene = scene().await;
    for (waiting, steps) in [(1, 0), (3, 0), (4, 1), (0, 1)] {
        broken_by(&scene, &format!("{} {waiting}", marked.trim())).await;
        let kinds = repair(&scene, &doing()).await.kinds;
        assert_eq!(kinds.get("group").copied().unwrap_or(0), steps, "{waiting}");
        assert_eq!(findings_of(&scene).await, [""; 0], "{waiting}");
    }
}

/// A user without a right that a repair needs may only let it describe its steps. Redis does not undo a
/// script that fails halfway.
#[tokio::test]
async fn a_repair_without_a_right_changes_nothing() {
    let scene = Scene::bare(Redis::own(&[])).await;
    broken_by(&scene, "DEL objects.held").await;
    scene.login("~* &* +@all -xadd").await;
    let planned = repair(&scene, &Repair::default()).await;
    assert_eq!(planned.steps_total, 4, "{planned:?}");
    let refused = try_repair(&scene, &doing()).await.expect_err("no right");
    let is_named = matches!(&refused, ControlError::Denied(command) if command == "XADD");
    assert!(is_named, "{refused}");
    scene.changed("").await;
    let again = repair(&scene, &Repair::default()).await;
    assert_eq!(lines(&again), lines(&planned));
}

/// A repair writes nothing while a shared key has a wrong type.
#[tokio::test]
async fn a_shared_key_of_a_wrong_type_is_reported() {
    let scene = scene().await;
    broken_by(&scene, "DEL objects.held; SET objects.held 1").await;
    for with in [Repair::default(), doing()] {
        let refused = try_repair(&scene, &with).await.expect_err("a wrong type");
        let held = scene.keys.objects_held();
        let is_named = matches!(&refused, ControlError::WrongType { key, .. } if *key == held);
        assert!(is_named, "{refused}");
        scene.changed("").await;
    }
}

/// The counter of ids is lost, or went back. A repair raises it above each batch, wherever the batch is.
#[tokio::test]
async fn the_counter_rises_above_every_batch() {
    let scene = scene().await;
    for (batch, last) in [
        ("own gone.0 work:1 7 1 2", 8),
        ("own gone.0 work:1 1 1", 1),
        ("hold work:1 1 '7 0 0 0 stop' 1 2", 8),
        ("hold work:1 1 '1 0 0 0 stop' 1", 1),
        ("LPUSH event.worker:gone.0:lost 1 2 7", 8),
        ("LPUSH event.worker:gone.0:lost 1 1", 1),
        (
            "LPUSH event.worker:gone.0:lost 1 2 7; SET work:1:event.worker gone.0",
            8,
        ),
        (
            "LPUSH event.worker:gone.0:lost 1 1; SET work:1:event.worker gone.0",
            1,
        ),
    ] {
        let name = "HSET event.workers gone '1 token-of-gone 0'";
        let counter = format!("SET next.event.id {}", last - 1);
        scene.again(&format!("{name}; {batch}; {counter}")).await;
        let dry = Repair {
            dry_run: true,
            ..doing()
        };
        let planned = repair(&scene, &dry).await.kinds;
        let done = repair(&scene, &doing()).await.kinds;
        assert_eq!((planned["ids"], &planned), (1, &done), "{batch}");
        let given = scene.number(&scene.keys.next_event_id()).await;
        assert!(given > last, "{batch}: {given}");
        assert_eq!(findings_of(&scene).await, [""; 0], "{batch}");
        assert_eq!(lines(&repair(&scene, &doing()).await), [""; 0], "{batch}");
    }
}

/// The batch of a dead worker is held. The repair looks at the object alone here: in a whole repair, the
/// look at the worker may come first.
#[tokio::test]
async fn the_counter_rises_above_the_batch_of_a_dead_worker() {
    let scene = scene().await;
    for (given, rises) in [(8, false), (7, true)] {
        let batch = "own plain work:1 7 1 2; SET next.event.id ";
        scene.again(&format!("{batch}{given}")).await;
        let words = call(&scene, &[("object", "work:1")]).await;
        assert_eq!(words.contains(&(0, "ids".to_owned())), rises, "{words:?}");
        assert_eq!(findings_of(&scene).await, [""; 0]);
    }
    // A batch without ids tells nothing about the counter.
    scene.again("RPUSH event.worker:gone.0:lost 0 2 1").await;
    let words = call(&scene, &[("worker", "gone.0")]).await;
    assert_eq!(words, [(0, "dead".to_owned())]);
    scene
        .again("hold work:1 1 '7 0 0 0 stop' 1 2 3; DEL work:1:events.held.id; SET next.event.id 1")
        .await;
    let words = call(&scene, &[("object", "work:1")]).await;
    assert!(!words.contains(&(0, "ids".to_owned())), "{words:?}");
}
