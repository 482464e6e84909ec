//! `repair`: what it does after the loss of keys. `cases.txt` has most cases.

mod cases;
mod lost;
mod progress;

use seriatim::control::{By, Repair, RepairReport};

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

/// The counter of ids is lost, or went back. A repair raises it above each batch, wherever the batch is.
#[tokio::test]
async fn the_counter_rises_above_every_batch() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = redis.keys().clone();
    for place in ["in hand", "held", "lost", "given back"] {
        state.run("FLUSHDB", &[]).await;
        state.register("gone", 1).await;
        match place {
            "in hand" => state.own("gone.0", "work:1", 7, &["1", "2"]).await,
            "held" => state.hold("work:1", "1", &["1", "2"], "7 0 0 0 stop").await,
            _ => {
                state
                    .run("RPUSH", &[&keys.worker_lost("gone.0"), "7", "2", "1"])
                    .await
            }
        }
        if place == "given back" {
            state
                .run("SET", &[&keys.event_worker("work:1"), "gone.0"])
                .await;
        }
        state.run("SET", &[&keys.next_event_id(), "7"]).await;
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
        assert!(given > 8, "{place}: {given}");
        assert_eq!(told(&mut state).await, [""; 0], "{place}");
        assert_eq!(lines(&repair(&state, &doing()).await), [""; 0], "{place}");
    }
}
