//! `repair`: what it does after the loss of keys. `cases.txt` has most cases.

mod bounds;
mod cases;
mod lost;
mod plain;
mod progress;

use seriatim::control::{By, ControlError, Repair, RepairReport};
use seriatim::wire::operator::{self, RepairCall};

use crate::check::{broken_by, told};
use crate::state::State;
use crate::support::{Redis, control};

const BY: By<'_> = By {
    who: "ada",
    why: "lost",
};

async fn repair(state: &State, with: &Repair) -> RepairReport {
    control(&state.conn, &state.keys)
        .repair(BY, with)
        .await
        .expect("a report")
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
    let mut lines: Vec<_> = report
        .steps
        .iter()
        .chain(&report.left)
        .map(|step| format!("{} {}: {}", step.kind, step.subject, step.what))
        .collect();
    lines.sort();
    lines
}

/// Makes one call for these subjects, as at the last look. Owners that are no slot of a registered name
/// are dead. Returns the position and the word of each text.
async fn call(state: &mut State, subjects: &[(&str, &str)]) -> Vec<(usize, String)> {
    let keys = state.keys.clone();
    let with = RepairCall {
        doing: true,
        dead_owners: vec!["*".to_owned()],
        ..RepairCall::default()
    };
    let by = operator::By {
        who: BY.who,
        why: BY.why,
    };
    let subjects = subjects
        .iter()
        .map(|(kind, name)| (*kind, name.as_bytes(), "searched"));
    let (told, _) = operator::repair(&mut state.conn, &keys, by, &with, subjects)
        .await
        .expect("an answer");
    told.into_iter()
        .map(|told| (told.position, told.word))
        .collect()
}

/// The script looks at each subject itself: a suspicion of the walk may be over by then.
#[tokio::test]
async fn a_sound_subject_needs_no_step() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    broken_by(
        &mut state,
        "SET @event.worker:gone.0:event.id 16; ZADD @event.workers.watched 1 a; ZADD @event.workers.departed 1 gone; LPUSH @event.group:g:waiting work:1; \
         ZADD @event.groups 1 g; SET @event.groups.waiting 1; HSET @events.emitted k v; ZADD @events.emitted.ends 1 k; \
         HSET @x:events.scheduled k 1; ZADD @events.scheduled 9007199254740991 x\nk",
    )
    .await;
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
    for subject in objects
        .map(|name| ("object", name))
        .into_iter()
        .chain(others)
    {
        assert_eq!(call(&mut state, &[subject]).await, [], "{subject:?}");
    }
}

/// Limits count each object in hand. Of many that no slot owns, none is left.
#[tokio::test]
async fn every_object_in_hand_is_looked_at() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    broken_by(&mut state, "PING").await;
    let members = (0..3000).flat_map(|n| ["0".to_owned(), format!("left:{n}:")]);
    let words: Vec<String> = [redis.keys().objects_in_hand()]
        .into_iter()
        .chain(members)
        .collect();
    state
        .run(
            "ZADD",
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .await;
    let report = control(&state.conn, &state.keys)
        .check()
        .await
        .expect("a report");
    assert_eq!(report.violations_total, 3000);
    assert_eq!(repair(&state, &doing()).await.steps_total, 3000);
    assert_eq!(told(&mut state).await, [""; 0]);
}

/// `event.groups.times` has the number of marks in the lists of groups. If it is lost, marks are not
/// taken for names.
#[tokio::test]
async fn marks_of_lost_times_are_no_names() {
    const MARKED: &str = "LPUSH @event.group:g:waiting work:1 \u{0}t1700 \u{0}t1800; ZADD @event.groups 1 g; ZADD @event.marks 1 1700 2 1800";
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (waiting, steps) in [(1, 0), (3, 0), (4, 1), (0, 1)] {
        broken_by(
            &mut state,
            &format!("{MARKED}; SET @event.groups.waiting {waiting}"),
        )
        .await;
        assert_eq!(
            repair(&state, &doing())
                .await
                .kinds
                .get("group")
                .copied()
                .unwrap_or_default(),
            steps,
            "{waiting}"
        );
        assert_eq!(told(&mut state).await, [""; 0], "{waiting}");
    }
}

/// A user without a right that a repair needs may only let it describe its steps. Redis does not undo a
/// script that fails halfway.
#[tokio::test]
async fn a_repair_without_a_right_changes_nothing() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    broken_by(&mut state, "DEL @objects.held").await;
    state.run("ACL", &["SETUSER", "default", "-xadd"]).await;
    let planned = repair(&state, &Repair::default()).await;
    assert_eq!(planned.steps_total, 4, "{planned:?}");
    let refused = control(&state.conn, &state.keys)
        .repair(BY, &doing())
        .await
        .expect_err("no right");
    assert!(
        matches!(&refused, ControlError::Denied(told) if told == "XADD"),
        "{refused}"
    );
    let again = repair(&state, &Repair::default()).await;
    assert_eq!(lines(&again), lines(&planned));
}

/// A repair writes nothing while a shared key has a wrong type.
#[tokio::test]
async fn a_shared_key_of_a_wrong_type_is_reported() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let key = redis.keys().objects_held();
    broken_by(&mut state, "DEL @objects.held; SET @objects.held 1").await;
    for with in [Repair::default(), doing()] {
        let refused = control(&state.conn, &state.keys)
            .repair(BY, &with)
            .await
            .expect_err("a wrong type");
        assert!(
            matches!(&refused, ControlError::WrongType { key: told, .. } if *told == key),
            "{refused}"
        );
    }
}

/// The counter of ids is lost, or went back. A repair raises it above each batch, wherever the batch is.
#[tokio::test]
async fn the_counter_rises_above_every_batch() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = redis.keys().clone();
    let batches = [(7, &["1", "2"][..]), (1, &["1"])];
    let places = ["in hand", "held", "lost", "given back"];
    for (place, (first, batch)) in places
        .map(|place| batches.map(|batch| (place, batch)))
        .concat()
    {
        state.run("FLUSHDB", &[]).await;
        state.register("gone", 1).await;
        let (list, last) = (keys.worker_lost("gone.0"), first + batch.len() as u64 - 1);
        match place {
            "in hand" => state.own("gone.0", "work:1", first, batch).await,
            "held" => {
                let numbers = format!("{first} 0 0 0 stop");
                state.hold("work:1", "1", batch, &numbers).await;
            }
            _ => {
                state
                    .run(
                        "LPUSH",
                        &[&[list.as_str()], batch, &[&first.to_string()]].concat(),
                    )
                    .await
            }
        }
        if place == "given back" {
            state
                .run("SET", &[&keys.event_worker("work:1"), "gone.0"])
                .await;
        }
        state
            .run("SET", &[&keys.next_event_id(), &(last - 1).to_string()])
            .await;
        let planned = repair(
            &state,
            &Repair {
                dry_run: true,
                ..doing()
            },
        )
        .await;
        let done = repair(&state, &doing()).await;
        assert_eq!(
            (planned.kinds["ids"], &planned.kinds),
            (1, &done.kinds),
            "{place}"
        );
        let given: u64 = redis::cmd("GET")
            .arg(keys.next_event_id())
            .query_async(&mut state.conn)
            .await
            .expect("GET");
        assert!(given > last, "{place}: {given}");
        assert_eq!(told(&mut state).await, [""; 0], "{place}");
        assert_eq!(lines(&repair(&state, &doing()).await), [""; 0], "{place}");
    }
}

/// The batch of a dead worker is held. The repair looks at the object alone here: in a whole repair, the
/// look at the worker may come first.
#[tokio::test]
async fn the_counter_rises_above_the_batch_of_a_dead_worker() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let key = redis.keys().next_event_id();
    for (given, rises) in [("8", false), ("7", true)] {
        state.run("FLUSHDB", &[]).await;
        state.own("plain", "work:1", 7, &["1", "2"]).await;
        state.run("SET", &[&key, given]).await;
        let words = call(&mut state, &[("object", "work:1")]).await;
        assert_eq!(words.contains(&(0, "ids".to_owned())), rises, "{words:?}");
        assert_eq!(told(&mut state).await, [""; 0]);
    }
    // A batch without ids tells nothing about the counter.
    let lost = redis.keys().worker_lost("gone.0");
    state.run("FLUSHDB", &[]).await;
    state.run("RPUSH", &[&lost, "0", "2", "1"]).await;
    let words = call(&mut state, &[("worker", "gone.0")]).await;
    assert_eq!(words, [(0, "dead".to_owned())]);
}
