//! Tests `control::check`. It finds nothing in a clean state, and finds each broken invariant by
//! its number. An object that only moves breaks no invariant.
#![cfg(feature = "worker")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rstest::{Context, rstest};
use seriatim::control::check::{CheckReport, Invariant, Subject};
use seriatim::keys::Keys;

use crate::state::State;
use crate::support::{Redis, control};

async fn fresh() -> (Redis, State) {
    let redis = Redis::start();
    let state = State::new(redis.connect().await, redis.keys().clone());
    (redis, state)
}

async fn report(state: &mut State) -> CheckReport {
    let keys = state.keys.clone();
    control(&state.conn, &keys).check().await.expect("a report")
}

/// Returns the invariant and the subject of each violation.
fn found(report: &CheckReport) -> Vec<(Invariant, String)> {
    assert_eq!(report.violations_total, report.violations.len() as u64);
    report
        .violations
        .iter()
        .map(|violation| (violation.invariant, violation.subject.to_string()))
        .collect()
}

#[tokio::test]
async fn an_empty_redis_is_clean() {
    let (_redis, mut state) = fresh().await;
    let report = report(&mut state).await;
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test]
async fn a_system_as_it_should_be_is_clean() {
    let (_redis, mut state) = fresh().await;
    state.clean().await;
    let report = report(&mut state).await;
    assert!(report.is_clean(), "{report:#?}");
    let seen = report.looked_at;
    assert_eq!((seen.names, seen.workers, seen.markers), (2, 4, 3));
    assert_eq!(
        (seen.objects_with_events, seen.objects_held),
        (4, 5),
        "{seen:?}"
    );
    assert_eq!(seen.suspicions, 0);
}

#[rstest]
// Cases of I1: the object has events, but no marker or list leads a worker to it.
#[case::no_marker(Invariant::I1, "object x")]
#[case::in_the_list_of_an_unregistered_worker(Invariant::I1, "object x")]
#[case::list_lacks_owned(Invariant::I2, "object x")]
#[case::owner_of_no_registered_name(Invariant::I2, "object x")]
#[case::owner_slot_too_high(Invariant::I2, "object x")]
#[case::held_in_no_set(Invariant::I2, "object x")]
#[case::held_in_both_sets(Invariant::I2, "object x")]
#[case::in_held_without_owner(Invariant::I2, "object x")]
#[case::in_paused_with_worker(Invariant::I2, "object work:2")]
#[case::paused_without_rule(Invariant::I2, "object x")]
#[case::batch_without_object(Invariant::I3, "worker a.1")]
#[case::batch_of_an_unregistered_worker(Invariant::I3, "worker stranger.5")]
#[case::two_objects_owned(Invariant::I3, "worker a.0")]
#[case::tag_without_batch(Invariant::I4, "worker a.1")]
#[case::batch_without_tag(Invariant::I4, "worker a.0")]
#[case::batch_and_held_batch(Invariant::I4, "object work:2")]
#[case::held_batch_of_nobody(Invariant::I4, "object x")]
#[case::held_numbers_without_batch(Invariant::I4, "object work:7")]
#[case::held_batch_without_numbers(Invariant::I4, "object work:6")]
#[case::batch_of_delivered_ids(Invariant::I5, "worker a.0")]
#[case::batch_above_the_last_id(Invariant::I5, "worker a.2")]
#[case::held_batch_of_delivered_ids(Invariant::I5, "object work:5")]
#[case::delivered_above_the_last_id(Invariant::I5, "object x")]
#[case::lease_of_another_token(Invariant::I6, "name a")]
#[case::last_id_is_no_number(Invariant::Layout, "object x")]
#[case::tag_is_no_number(Invariant::Layout, "worker a.0")]
#[case::held_numbers_are_none(Invariant::Layout, "object work:6")]
#[case::rule_is_none(Invariant::Layout, "shared key")]
#[case::rule_of_no_kind(Invariant::Layout, "shared key")]
#[case::rules_are_looked_at_too_late(Invariant::Layout, "shared key")]
#[case::name_without_slots(Invariant::Layout, "name b")]
#[case::name_in_no_set(Invariant::Layout, "name gone")]
#[case::name_in_both_sets(Invariant::Layout, "name gone")]
#[case::idempotency_key_without_end(Invariant::Layout, "shared key")]
#[tokio::test]
async fn each_broken_invariant_is_found_by_number(
    #[context] context: Context,
    #[case] invariant: Invariant,
    #[case] subject: &str,
) {
    let (_redis, mut state) = fresh().await;
    state.clean().await;
    let case = context.description.expect("a case has a description");
    break_it(&mut state, case).await;
    let report = report(&mut state).await;
    assert_eq!(
        found(&report),
        [(invariant, subject.to_owned())],
        "{case}: {report:#?}"
    );
}

/// Breaks one thing in a clean state, as the case says.
async fn break_it(state: &mut State, case: &str) {
    let keys = state.keys.clone();
    match case {
        "no_marker" => state.run("LPUSH", &[&keys.events("x"), "{}"]).await,
        "in_the_list_of_an_unregistered_worker" => {
            state.run("LPUSH", &[&keys.events("x"), "{}"]).await;
            state
                .run("LPUSH", &[&keys.worker_object("stranger.0"), "x"])
                .await;
        }
        "idempotency_key_without_end" => {
            state
                .run("HSET", &[&keys.events_emitted(), "x\nk", "digest"])
                .await
        }
        "list_lacks_owned" => state.run("SET", &[&keys.event_worker("x"), "a.1"]).await,
        "owner_of_no_registered_name" => {
            state
                .run("SET", &[&keys.event_worker("x"), "stranger.0"])
                .await;
            state
                .run("LPUSH", &[&keys.worker_object("stranger.0"), "x"])
                .await;
        }
        "owner_slot_too_high" => {
            state.run("SET", &[&keys.event_worker("x"), "a.3"]).await;
            state.run("LPUSH", &[&keys.worker_object("a.3"), "x"]).await;
        }
        "held_in_no_set" => state.run("SET", &[&keys.event_worker("x"), "held"]).await,
        "held_in_both_sets" => {
            state.hold("x", "1", &[], "0 0 0 0 yield").await;
            state.run("ZADD", &[&keys.objects_paused(), "0", "x"]).await;
        }
        "in_held_without_owner" => state.run("ZADD", &[&keys.objects_held(), "1", "x"]).await,
        "in_paused_with_worker" => {
            state
                .run("ZADD", &[&keys.objects_paused(), "0", "work:2"])
                .await
        }
        "paused_without_rule" => {
            state.run("SET", &[&keys.event_worker("x"), "held"]).await;
            state.run("ZADD", &[&keys.objects_paused(), "0", "x"]).await;
            // Neither of these rules matches the object.
            state.rule("pause x:*", "1 0 0 3 0 ada", "never").await;
            state.rule("block y", "1 0 0 3 0 ada", "never").await;
        }
        "rule_is_none" => state.rule("pause *", "1 0 0 3 ada", "never").await,
        "rule_of_no_kind" => state.rule("other *", "1 0 0 3 0 ada", "never").await,
        "rules_are_looked_at_too_late" => state.rule("pause *", "1 5 0 3 0 ada", "never").await,
        "batch_without_object" => state.batch("a.1", 20, &["{}"]).await,
        "batch_of_an_unregistered_worker" => state.batch("stranger.5", 20, &["{}"]).await,
        "two_objects_owned" => {
            state.run("SET", &[&keys.event_worker("x"), "a.0"]).await;
            state.run("LPUSH", &[&keys.worker_object("a.0"), "x"]).await;
        }
        "tag_without_batch" => {
            state
                .run("SET", &[&keys.worker_event_id("a.1"), "12 1"])
                .await
        }
        "batch_without_tag" => state.run("DEL", &[&keys.worker_event_id("a.0")]).await,
        "batch_and_held_batch" => {
            state
                .run("LPUSH", &[&keys.events_held("work:2"), "{}"])
                .await;
            state
                .run("SET", &[&keys.events_held_id("work:2"), "16 0 0 0 stop"])
                .await;
        }
        "held_batch_of_nobody" => {
            state.run("LPUSH", &[&keys.events_held("x"), "{}"]).await;
            state
                .run("SET", &[&keys.events_held_id("x"), "16 0 0 0 stop"])
                .await;
        }
        "held_numbers_without_batch" => {
            state
                .run("SET", &[&keys.events_held_id("work:7"), "12 0 0 0 stop"])
                .await
        }
        "held_batch_without_numbers" => state.run("DEL", &[&keys.events_held_id("work:6")]).await,
        "batch_of_delivered_ids" => state.delivered("work:2", 12).await,
        "batch_above_the_last_id" => {
            state.own("a.2", "x", 1000, &["{}", "{}"]).await;
            state.run("SET", &[&keys.next_event_id(), "1000"]).await;
        }
        "held_batch_of_delivered_ids" => state.delivered("work:5", 15).await,
        "delivered_above_the_last_id" => {
            state.delivered("x", 500).await;
            state.run("SET", &[&keys.next_event_id(), "499"]).await;
        }
        "lease_of_another_token" => {
            state
                .run("SET", &[&keys.worker_lease("a"), "another h 1 1"])
                .await
        }
        "last_id_is_no_number" => state.run("SET", &[&keys.last_event_id("x"), "1e3"]).await,
        "tag_is_no_number" => {
            state
                .run("SET", &[&keys.worker_event_id("a.0"), "twelve"])
                .await
        }
        "held_numbers_are_none" => {
            state
                .run("SET", &[&keys.events_held_id("work:6"), "16 stop"])
                .await
        }
        "name_without_slots" => {
            state
                .run("HSET", &[&keys.event_workers(), "b", "many token 0"])
                .await
        }
        "name_in_no_set" | "name_in_both_sets" => {
            // Marks the first pass over all names as done.
            state
                .run("HSET", &[&keys.meta(), "names.indexed", "1"])
                .await;
            state
                .run("ZADD", &[&keys.event_workers_watched(), "1", "a"])
                .await;
            if case == "name_in_both_sets" {
                state
                    .run("ZADD", &[&keys.event_workers_watched(), "1", "gone"])
                    .await;
                state
                    .run("ZADD", &[&keys.event_workers_departed(), "1", "gone"])
                    .await;
            }
        }
        other => panic!("no such case: {other}"),
    }
}

/// An object has events and an owner key, but is in no list. This breaks two invariants: nothing
/// covers the object, and its owner does not have it in a list.
#[tokio::test]
async fn a_lost_owner_with_events_breaks_i1_and_i2() {
    let (_redis, mut state) = fresh().await;
    state.register("a", 1).await;
    state.run("LPUSH", &[&state.keys.events("x"), "{}"]).await;
    state
        .run("SET", &[&state.keys.event_worker("x"), "a.0"])
        .await;
    let report = report(&mut state).await;
    assert_eq!(
        found(&report),
        [
            (Invariant::I2, "object x".to_owned()),
            (Invariant::I1, "object x".to_owned())
        ]
    );
    assert_eq!(
        report.violations[0].subject,
        Subject::Object("x".to_owned())
    );
}

/// Gives each key of an object, of a worker, and of all workers each wrong type. The check must
/// report the key as a finding, and must never fail.
#[tokio::test]
async fn a_wrong_type_is_a_finding() {
    // The test deletes all data of the server, so it needs a server of its own.
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    let kinds: Vec<(String, &str)> = vec![
        (keys.events("work:1"), "list"),
        (keys.last_event_id("work:1"), "string"),
        (keys.event_worker("work:2"), "string"),
        (keys.events_held("work:5"), "list"),
        (keys.events_held_id("work:5"), "string"),
        (keys.event_handled("work:5"), "hash"),
        (keys.event_errors("work:5"), "list"),
        (keys.worker_object("a.0"), "list"),
        (keys.worker_event("a.0"), "list"),
        (keys.worker_event_id("a.0"), "string"),
        (keys.worker_lease("a"), "string"),
        (keys.objects_with_events(), "list"),
        (keys.objects_held(), "zset"),
        (keys.objects_paused(), "zset"),
        (keys.next_event_id(), "string"),
        (keys.event_workers(), "hash"),
        (keys.events_dead(), "stream"),
        (keys.event_log(), "stream"),
        (keys.operator_actions(), "stream"),
        (keys.meta(), "hash"),
    ];
    for (key, right) in &kinds {
        for wrong in ["string", "list", "zset", "hash", "stream"]
            .iter()
            .filter(|wrong| *wrong != right)
        {
            state.run("FLUSHDB", &[]).await;
            state.clean().await;
            state.run("DEL", &[key]).await;
            match *wrong {
                "string" => state.run("SET", &[key, "1"]).await,
                "list" => state.run("LPUSH", &[key, "1"]).await,
                "zset" => state.run("ZADD", &[key, "1", "1"]).await,
                "hash" => state.run("HSET", &[key, "1", "1"]).await,
                _ => state.run("XADD", &[key, "1-1", "1", "1"]).await,
            }
            let report = report(&mut state).await;
            let told = report
                .violations
                .iter()
                .filter(|v| v.invariant == Invariant::Layout && v.what.contains(key.as_str()));
            assert_eq!(told.count(), 1, "{key} as {wrong}: {report:#?}");
        }
    }
}

#[tokio::test]
async fn without_a_namespace_other_keys_are_left_alone() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, Keys::new());
    state.clean().await;
    state.run("ZADD", &["calendar:events", "1", "party"]).await;
    state.run("HSET", &["their:data", "a", "b"]).await;
    state.run("SET", &["plain", "1"]).await;
    // The check does not report broken keys of another namespace on the same Redis.
    state.run("LPUSH", &["{other:0}:x:events", "{}"]).await;
    state
        .run(
            "ZADD",
            &[&state.keys.events_scheduled(), "1", "{other:0}:x\nkey"],
        )
        .await;
    let first = report(&mut state).await;
    assert!(first.is_clean(), "{first:#?}");
    assert_eq!(first.looked_at.foreign, 1);
    // A marker for `calendar` makes `calendar` an object of this namespace.
    state
        .run("LPUSH", &[&state.keys.objects_with_events(), "calendar"])
        .await;
    assert_eq!(
        found(&report(&mut state).await),
        [(Invariant::Layout, "object calendar".to_owned())]
    );

    let mut other = State::new(
        redis.connect().await,
        Keys::with_namespace("other").expect("a namespace"),
    );
    assert_eq!(
        found(&report(&mut other).await),
        [(Invariant::I1, "object x".to_owned())]
    );
}

#[tokio::test]
async fn names_of_any_bytes_are_looked_at() {
    let (_redis, mut state) = fresh().await;
    for object in ["a*[b]?:c{d}", "x:events", "event.worker:a.0", ":", "held"] {
        state.emit(object, "{}").await;
    }
    let key = [state.keys.prefix().as_bytes(), b"\xff\xfe:events"].concat();
    redis::cmd("LPUSH")
        .arg(key)
        .arg("{}")
        .query_async::<()>(&mut state.conn)
        .await
        .expect("LPUSH");
    let report = report(&mut state).await;
    let odd = r"object \xff\xfe".to_owned();
    assert_eq!(
        found(&report),
        [(Invariant::Layout, odd.clone()), (Invariant::I1, odd)]
    );
}

#[tokio::test]
async fn all_violations_are_counted_and_some_reported() {
    let (_redis, mut state) = fresh().await;
    for n in 0..300 {
        let queue = state.keys.events(&format!("x:{n}"));
        state.run("LPUSH", &[&queue, "{}"]).await;
    }
    let keys = state.keys.clone();
    let all = report_of(&mut state, &keys, 100).await;
    assert_eq!((all.violations_total, all.violations.len()), (300, 100));
    assert_eq!(report_of(&mut state, &keys, 0).await.violations_total, 300);
}

async fn report_of(state: &mut State, keys: &Keys, violations_max: usize) -> CheckReport {
    control(&state.conn, keys)
        .check_up_to(violations_max)
        .await
        .expect("a report")
}

/// The scripts of the check only read. So the check works even if Redis refuses every write.
#[tokio::test]
async fn it_runs_at_maxmemory() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    state.clean().await;
    state.run("LPUSH", &[&state.keys.events("x"), "{}"]).await;
    state.run("SCRIPT", &["FLUSH"]).await;
    state.run("CONFIG", &["SET", "maxmemory", "1"]).await;
    let refused = redis::cmd("SET")
        .arg("a")
        .arg("b")
        .query_async::<()>(&mut state.conn)
        .await;
    assert_eq!(refused.expect_err("no memory").code(), Some("OOM"));
    assert_eq!(
        found(&report(&mut state).await),
        [(Invariant::I1, "object x".to_owned())]
    );
}

/// A Lua script that moves one object one step along its path, atomically. The steps are: emitted,
/// taken, owned, held, owned again, delivered.
const MOVE: &str = r"
local queue, owner, last, held, held_id, markers, list, batch, tag, due, counter = unpack(KEYS)
local object, worker = ARGV[1], ARGV[2]
local has = redis.call('GET', owner)
if has == 'held' then
  redis.call('ZREM', due, object)
  if redis.call('LLEN', list) > 0 then redis.call('ZADD', due, 1, object) return end
  redis.call('SET', owner, worker)
  redis.call('LPUSH', list, object)
  redis.call('RENAME', held, batch)
  redis.call('SET', tag, (string.match(redis.call('GET', held_id), '^(%d+)')))
  redis.call('DEL', held_id)
elseif has == worker then
  local first = redis.call('GET', tag)
  if math.random(2) == 1 then
    redis.call('DEL', owner, batch, tag)
    redis.call('LREM', list, 0, object)
    redis.call('SET', last, first)
    if redis.call('LLEN', queue) > 0 then redis.call('LPUSH', markers, object) end
  else
    redis.call('SET', owner, 'held')
    redis.call('LREM', list, 0, object)
    redis.call('RENAME', batch, held)
    redis.call('SET', held_id, first .. ' 0 0 0 retry: because')
    redis.call('DEL', tag)
    redis.call('ZADD', due, 1, object)
  end
elseif redis.call('LPOS', list, object) then
  redis.call('SET', owner, worker)
  redis.call('LMOVE', queue, batch, 'RIGHT', 'LEFT')
  redis.call('SET', tag, redis.call('INCR', counter))
elseif redis.call('LLEN', queue) > 0 then
  if redis.call('LLEN', list) == 0 then
    redis.call('LREM', markers, 0, object)
    redis.call('LPUSH', list, object)
  end
else
  redis.call('LPUSH', queue, '{}')
  redis.call('LPUSH', markers, object)
end
";

/// Objects move while the check runs. The check walks over the keys, and then looks again at every
/// suspicion. It must not report a violation that is gone at the second look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_moves_is_no_violation() {
    let (redis, mut state) = fresh().await;
    let keys = state.keys.clone();
    state.register("a", 8).await;
    state.lease("a").await;
    let stop = Arc::new(AtomicBool::new(false));
    let moves = Arc::new(AtomicU64::new(0));
    let mover = {
        let (mut conn, keys, stop, moves) = (
            redis.connect().await,
            keys.clone(),
            stop.clone(),
            moves.clone(),
        );
        let script = redis::Script::new(MOVE);
        tokio::spawn(async move {
            let mut step = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let object = format!("work:{}", step % 211);
                let worker = format!("a.{}", step % 211 % 8);
                let mut call = script.key(keys.events(&object));
                call.key(keys.event_worker(&object))
                    .key(keys.last_event_id(&object))
                    .key(keys.events_held(&object));
                call.key(keys.events_held_id(&object))
                    .key(keys.objects_with_events())
                    .key(keys.worker_object(&worker));
                call.key(keys.worker_event(&worker))
                    .key(keys.worker_event_id(&worker))
                    .key(keys.objects_held());
                call.key(keys.next_event_id()).arg(&object).arg(&worker);
                call.invoke_async::<()>(&mut conn).await.expect("a move");
                step += 1;
                moves.store(step, Ordering::Relaxed);
            }
        })
    };
    crate::support::until("objects move", Duration::from_secs(20), async || {
        (moves.load(Ordering::Relaxed) > 2000).then_some(())
    })
    .await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut looks, mut suspicions) = (0, 0);
    while looks < 100 || suspicions < 5 {
        let report = report(&mut state).await;
        assert!(
            report.is_clean(),
            "after {looks} looks and {} moves: {report:#?}",
            moves.load(Ordering::Relaxed)
        );
        looks += 1;
        suspicions += report.looked_at.suspicions;
        assert!(
            Instant::now() < deadline,
            "{looks} looks found only {suspicions} suspicions to heal"
        );
    }
    stop.store(true, Ordering::Relaxed);
    mover.await.expect("the mover ends well");
    println!(
        "{looks} looks, {suspicions} suspicions that healed, {} moves",
        moves.load(Ordering::Relaxed)
    );
    assert!(report(&mut state).await.is_clean());
}

/// A producer pushes events of one object all the time, but never a marker. The object's queue is
/// longer at each look of the check, so no two looks are equal. The check must still report the
/// object.
#[tokio::test]
async fn an_object_that_is_fed_without_markers_is_found() {
    let (redis, mut state) = fresh().await;
    let keys = state.keys.clone();
    for _ in 0..20 {
        state
            .run(
                "LPUSH",
                &[&[keys.objects_with_events().as_str()], &["other"; 500][..]].concat(),
            )
            .await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let producer = {
        let (mut conn, queue, is_over) = (redis.connect().await, keys.events("x"), is_over.clone());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                redis::cmd("LPUSH")
                    .arg(&queue)
                    .arg("1")
                    .exec_async(&mut conn)
                    .await
                    .expect("LPUSH");
            }
        })
    };
    crate::support::until("the first event", Duration::from_secs(5), async || {
        redis::cmd("LLEN")
            .arg(keys.events("x"))
            .query_async::<u64>(&mut state.conn.clone())
            .await
            .ok()
            .filter(|len| *len > 0)
    })
    .await;
    let report = report(&mut state).await;
    is_over.store(true, Ordering::Relaxed);
    producer.await.expect("no panic");
    assert_eq!(found(&report), [(Invariant::I1, "object x".to_owned())]);
}
