//! `repair`: each key that belongs to others is lost, a repair describes its steps, then does them,
//! and `check` finds nothing more.

mod lost;
mod progress;

use std::collections::BTreeMap;

use seriatim::control::{By, Repair, RepairReport};

use crate::check::{broken_by, told};
use crate::state::State;
use crate::support::{Redis, control};

const BY: By<'_> = By { who: "ada", why: "lost" };

async fn repair(state: &State, with: &Repair) -> RepairReport {
    control(&state.conn, &state.keys).repair(BY, with).await.expect("a report")
}

fn doing() -> Repair {
    Repair { dry_run: false, share: 1.0, ..Repair::default() }
}

/// Returns the steps, and then what was left, as lines.
fn lines(report: &RepairReport) -> Vec<String> {
    let mut lines: Vec<_> =
        report.steps.iter().chain(&report.left).map(|step| format!("{} {}: {}", step.kind, step.subject, step.what)).collect();
    lines.sort();
    lines
}

/// Returns all keys with their values, as `DUMP` gives them.
async fn dump(state: &mut State) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut state.conn).await.expect("KEYS");
    let mut all = BTreeMap::new();
    for key in keys {
        let value = redis::cmd("DUMP").arg(&key).query_async(&mut state.conn).await.expect("DUMP");
        all.insert(key, value);
    }
    all
}

/// Breaks a clean state by each of these commands. A dry run tells these steps and changes nothing; a
/// repair makes the same steps; after it there is nothing to repair, and the check is clean.
async fn each(cases: &[(&str, &[&str])], with: &Repair) {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (commands, expected) in cases {
        broken_by(&mut state, commands).await;
        let before = dump(&mut state).await;
        let planned = repair(&state, &Repair { dry_run: true, ..with.clone() }).await;
        assert_eq!(lines(&planned), *expected, "{commands}");
        assert_eq!(dump(&mut state).await, before, "{commands}: a dry run writes nothing");
        let done = repair(&state, with).await;
        assert_eq!(lines(&done), *expected, "{commands}");
        assert_eq!((planned.steps_total, planned.left_total), (done.steps_total, done.left_total), "{commands}");
        if done.left_total == 0 {
            assert_eq!(told(&mut state).await, [""; 0], "{commands}");
            assert_eq!(lines(&repair(&state, with).await), [""; 0], "{commands}: a second repair");
        }
    }
}

#[tokio::test]
async fn a_clean_state_needs_no_repair() {
    each(&[("PING", &[])], &doing()).await;
}

#[tokio::test]
async fn held_objects_are_held_again() {
    const AGAIN: &str = "is in objects.held again, due now";
    const WAITS: &str = "is in objects.held again, and waits for an operator";
    let (five, six, seven, eight, nine) = (
        format!("held object work:5: {AGAIN}"),
        format!("held object work:6: {AGAIN}"),
        format!("held object work:7: {WAITS}"),
        format!("held object work:8: {AGAIN}"),
        format!("held object work:9: {AGAIN}"),
    );
    each(
        &[
            ("DEL @objects.held", &[&five, &six, &seven, &eight]),
            ("DEL @objects.paused", &[&nine]),
            ("DEL @event.rules", &[&nine, "held object work:9: is no longer paused, because no rule is over it"]),
            ("DEL @work:5:event.worker", &["owner object work:5: is held, so its owner is `held` again"]),
            ("DEL @work:9:event.worker", &["owner object work:9: is held, so its owner is `held` again"]),
            (
                "ZADD @objects.held 1 work:9",
                &["held object work:9: is only in objects.held, no longer in objects.paused"],
            ),
            (
                "ZADD @objects.held 1 work:2",
                &["held object work:2: is no longer in objects.held or objects.paused, because a.0 has it"],
            ),
            ("ZADD @objects.held 1 x", &["held object x: is no longer in objects.held, because it has no events"]),
            (
                "DEL @work:5:events.held",
                &["batch object work:5: its batch, from id 15 on, is lost: the object goes on with its queue"],
            ),
            (
                "DEL @work:5:events.held.id",
                &["requeued object work:5: 1 events of its batch have lost their ids: they get new ids, before all queued events"],
            ),
            (
                "SET @work:5:last.event.id 16",
                &["dead object work:5: 1 events of its held batch, from id 15 on, become dead letters: event 16 was delivered before"],
            ),
            (
                "SET @work:7:events.held.id 0~0~0~0~quarantine:~x~is~absent",
                &["held object work:7: no longer waits for an operator because of a lost key (quarantine: x is absent)"],
            ),
        ],
        &doing(),
    )
    .await;
}

#[tokio::test]
async fn what_slots_have_is_theirs_again() {
    each(
        &[
            ("DEL @event.worker:gone.0:object", &["list object work:4: is in the list of its owner gone.0 again"]),
            (
                "DEL @work:4:event.worker",
                &["owner worker gone.0: has a batch and the name of work:4, which nobody owns: it owns that object again"],
            ),
            (
                "DEL @event.worker:gone.0:event.id",
                &["requeued worker gone.0: 1 events of its batch have lost their ids: they get new ids, before all queued events of work:4"],
            ),
            (
                "DEL @event.worker:gone.0:event",
                &["batch worker gone.0: its batch is lost: its object work:4 goes on with its queue"],
            ),
            (
                "DEL @event.worker:gone.0:event @event.worker:gone.0:event.id",
                &["held object work:4: its owner gone.0 has no event of it: it is held, due now"],
            ),
            (
                "DEL @event.worker:gone.0:object @event.worker:gone.0:event @event.worker:gone.0:event.id; RPUSH @event.worker:gone.0:lost 14 {}",
                &["batch object work:4: has its batch of 1 events again, from event.worker:gone.0:lost: it is held, due now"],
            ),
            (
                "DEL @event.worker:gone.0:object @event.worker:gone.0:event @event.worker:gone.0:event.id; RPUSH @event.worker:gone.0:lost 0 {}",
                &["batch object work:4: has its batch of 1 events again, from event.worker:gone.0:lost: the events get new ids"],
            ),
            (
                "RPUSH @event.worker:gone.0:lost 14 {} {}",
                &["dead worker gone.0: 2 events of an object that is not known become dead letters without an object"],
            ),
            ("SET @event.worker:gone.0:event.id 3; DEL @event.worker:gone.0:event @event.worker:gone.0:object @work:4:event.worker",
                &["removed worker gone.0: event.worker:gone.0:event.id is of no batch"]),
        ],
        &doing(),
    )
    .await;
}

#[tokio::test]
async fn what_an_index_knew_is_known_again() {
    each(
        &[
            ("DEL @objects.with.events", &["marker object work:1: has 2 events queued: it gets a marker"]),
            ("HDEL @event.rules next", &["rules shared key: event.rules says when rules are looked at next: never"]),
            ("ZADD @event.marks 1 odd", &["removed shared key: 1 members of event.marks that are no marks"]),
            (
                "HSET @events.cron daily 1~0~5~3~2~x:1{}1",
                &["cron cron job daily: has a next tick again: a worker process computes its time"],
            ),
            (
                "HSET @events.cron paused 1~1~5~3~2~x:1{}1; ZADD @events.cron.next 7 paused 8 none",
                &[
                    "removed cron job none: its next tick is removed, because there is no such job",
                    "removed cron job paused: its next tick is removed, because it is paused",
                ],
            ),
            (
                "HSET @seriatim.meta names.indexed 1; ZADD @event.workers.watched 1 a",
                &["name name gone: is in event.workers.watched, so that sweeps look at it"],
            ),
            (
                "LPUSH @event.group:g:waiting work:1",
                &["group group g: has 1 names set aside: it is in event.groups again"],
            ),
            (
                "LPUSH @event.group:g:waiting work:1; ZADD @event.groups 1 g",
                &["group shared key: event.groups.waiting is 1 again, the number of names in the lists of groups; it was 0"],
            ),
            (
                "ZADD @event.groups 4398046511104 g; LPUSH @event.group:g:waiting work:1; SET @event.groups.waiting 1",
                &["group shared key: 1 groups have turns again, because no time is known at which a limit lets them go on"],
            ),
            (
                "HSET @event.shares a:* 5~-~-~-~-~1700~3~ada; ZADD @objects.in.hand 0 x: 0 work:2:",
                &[
                    "share object work:4: counts as in hand again",
                    "share object x: no longer counts as in hand, because no slot owns it",
                    "share shared key: event.shares.summary begins with 1 1 again",
                ],
            ),
            (
                "HSET @events.emitted k v; ZADD @events.emitted.ends 1 l 2 m; ZREM @events.emitted.ends m; HSET @events.emitted n v",
                &[
                    "emitted idempotency key k: its window ends in a day, because its end is lost",
                    "emitted idempotency key n: its window ends in a day, because its end is lost",
                    "removed idempotency key l: its end is removed, because there is no such idempotency key",
                ],
            ),
            ("LPUSH @x:event.errors e", &["removed object x: x:event.errors is of no event"]),
        ],
        &doing(),
    )
    .await;
}

/// Limits count each object in hand. Of many that no slot owns, none is left.
#[tokio::test]
async fn every_object_in_hand_is_looked_at() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    broken_by(&mut state, "PING").await;
    let members = (0..3000).flat_map(|n| ["0".to_owned(), format!("left:{n}:")]);
    let words: Vec<String> = [redis.keys().objects_in_hand()].into_iter().chain(members).collect();
    state.run("ZADD", &words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let report = control(&state.conn, &state.keys).check().await.expect("a report");
    assert_eq!(report.violations_total, 3000);
    assert_eq!(repair(&state, &doing()).await.steps_total, 3000);
    assert_eq!(told(&mut state).await, [""; 0]);
}

/// `event.groups.times` has the number of marks in the lists of groups. If it is lost, marks are not
/// taken for names.
#[tokio::test]
async fn marks_of_lost_times_are_no_names() {
    const MARKED: &str =
        "LPUSH @event.group:g:waiting work:1 \u{0}t1700 \u{0}t1800; ZADD @event.groups 1 g; ZADD @event.marks 1 1700 2 1800";
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    for (waiting, steps) in [(1, 0), (3, 0), (4, 1), (0, 1)] {
        broken_by(&mut state, &format!("{MARKED}; SET @event.groups.waiting {waiting}")).await;
        assert_eq!(repair(&state, &doing()).await.kinds.get("group").copied().unwrap_or_default(), steps, "{waiting}");
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
            _ => state.run("RPUSH", &[&keys.worker_lost("gone.0"), "7", "2", "1"]).await,
        }
        if place == "given back" {
            state.run("SET", &[&keys.event_worker("work:1"), "gone.0"]).await;
        }
        state.run("SET", &[&keys.next_event_id(), "7"]).await;
        let planned = repair(&state, &Repair { dry_run: true, ..doing() }).await;
        let done = repair(&state, &doing()).await;
        assert_eq!((planned.kinds["ids"], &planned.kinds), (1, &done.kinds), "{place}");
        let given: u64 = redis::cmd("GET").arg(keys.next_event_id()).query_async(&mut state.conn).await.expect("GET");
        assert!(given > 8, "{place}: {given}");
        assert_eq!(told(&mut state).await, [""; 0], "{place}");
        assert_eq!(lines(&repair(&state, &doing()).await), [""; 0], "{place}");
    }
}
