//! Tests `control::check`. It finds nothing in a clean state, and finds each broken invariant by
//! its number. An object that only moves breaks no invariant.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rstest::rstest;
use seriatim::control::check::{CheckReport, Invariant, Subject};
use seriatim::keys::Keys;

use crate::scene::Scene;
use crate::support::{Redis, control};

async fn fresh() -> Scene {
    Scene::bare(Redis::start()).await
}

/// Returns the invariant and the subject of each violation.
fn found(report: &CheckReport) -> Vec<(Invariant, String)> {
    assert_eq!(report.violations_total, report.violations.len() as u64);
    let found = report.violations.iter();
    found
        .map(|found| (found.invariant, found.subject.to_string()))
        .collect()
}

#[tokio::test]
async fn an_empty_redis_is_clean() {
    let report = fresh().await.report_of_check().await;
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test]
async fn a_system_as_it_should_be_is_clean() {
    let scene = fresh().await;
    scene.add("clean").await;
    let report = scene.report_of_check().await;
    assert!(report.is_clean(), "{report:#?}");
    let seen = report.looked_at;
    assert_eq!((seen.names, seen.workers, seen.markers), (2, 4, 3));
    let objects = (seen.objects_with_events, seen.objects_held);
    assert_eq!(objects, (4, 5), "{seen:?}");
    assert_eq!(seen.suspicions, 0);
}

#[rstest]
// Cases of I1: the object has events, but no marker or list leads a worker to it.
#[case::no_marker("LPUSH x:events {}", Invariant::I1, "object x")]
#[case::in_the_list_of_an_unregistered_worker(
    "LPUSH x:events {}; LPUSH event.worker:stranger.0:object x",
    Invariant::I1,
    "object x"
)]
#[case::list_lacks_owned("SET x:event.worker a.1", Invariant::I2, "object x")]
#[case::owner_of_no_registered_name(
    "SET x:event.worker stranger.0; LPUSH event.worker:stranger.0:object x",
    Invariant::I2,
    "object x"
)]
#[case::owner_slot_too_high(
    "SET x:event.worker a.3; LPUSH event.worker:a.3:object x",
    Invariant::I2,
    "object x"
)]
#[case::held_in_no_set("SET x:event.worker held", Invariant::I2, "object x")]
#[case::held_in_both_sets(
    "hold x 1 '0 0 0 0 yield'; ZADD objects.paused 0 x",
    Invariant::I2,
    "object x"
)]
#[case::in_held_without_owner("ZADD objects.held 1 x", Invariant::I2, "object x")]
#[case::in_paused_with_worker("ZADD objects.paused 0 work:2", Invariant::I2, "object work:2")]
// Neither of the rules matches the object.
#[case::paused_without_rule(
    "SET x:event.worker held; ZADD objects.paused 0 x; HSET event.rules 'pause x:*' '1 0 0 3 0 ada' 'block y' '1 0 0 3 0 ada'",
    Invariant::I2,
    "object x"
)]
#[case::batch_without_object("batch a.1 20 {}", Invariant::I3, "worker a.1")]
#[case::batch_of_an_unregistered_worker(
    "batch stranger.5 20 {}",
    Invariant::I3,
    "worker stranger.5"
)]
#[case::two_objects_owned(
    "SET x:event.worker a.0; LPUSH event.worker:a.0:object x",
    Invariant::I3,
    "worker a.0"
)]
#[case::tag_without_batch("SET event.worker:a.1:event.id '12 1'", Invariant::I4, "worker a.1")]
#[case::batch_without_tag("DEL event.worker:a.0:event.id", Invariant::I4, "worker a.0")]
#[case::batch_and_held_batch(
    "LPUSH work:2:events.held {}; SET work:2:events.held.id '16 0 0 0 stop'",
    Invariant::I4,
    "object work:2"
)]
#[case::held_batch_of_nobody(
    "LPUSH x:events.held {}; SET x:events.held.id '16 0 0 0 stop'",
    Invariant::I4,
    "object x"
)]
#[case::held_numbers_without_batch(
    "SET work:7:events.held.id '12 0 0 0 stop'",
    Invariant::I4,
    "object work:7"
)]
#[case::held_batch_without_numbers("DEL work:6:events.held.id", Invariant::I4, "object work:6")]
#[case::batch_of_delivered_ids("delivered work:2 12", Invariant::I5, "worker a.0")]
#[case::batch_above_the_last_id(
    "own a.2 x 1000 {} {}; SET next.event.id 1000",
    Invariant::I5,
    "worker a.2"
)]
#[case::held_batch_of_delivered_ids("delivered work:5 15", Invariant::I5, "object work:5")]
#[case::delivered_above_the_last_id(
    "delivered x 500; SET next.event.id 499",
    Invariant::I5,
    "object x"
)]
#[case::lease_of_another_token("SET event.worker:a:lease 'another h 1 1'", Invariant::I6, "name a")]
#[case::last_id_is_no_number("SET x:last.event.id 1e3", Invariant::Layout, "object x")]
#[case::tag_is_no_number(
    "SET event.worker:a.0:event.id twelve",
    Invariant::Layout,
    "worker a.0"
)]
#[case::held_numbers_are_none(
    "SET work:6:events.held.id '16 stop'",
    Invariant::Layout,
    "object work:6"
)]
#[case::rule_is_none(
    "HSET event.rules 'pause *' '1 0 0 3 ada'",
    Invariant::Layout,
    "shared key"
)]
#[case::rule_of_no_kind(
    "HSET event.rules 'other *' '1 0 0 3 0 ada'",
    Invariant::Layout,
    "shared key"
)]
#[case::rules_are_looked_at_too_late(
    "HSET event.rules 'pause *' '1 5 0 3 0 ada'",
    Invariant::Layout,
    "shared key"
)]
#[case::name_without_slots("HSET event.workers b 'many token 0'", Invariant::Layout, "name b")]
#[case::name_in_no_set(
    "HSET seriatim.meta names.indexed 1; ZADD event.workers.watched 1 a",
    Invariant::Layout,
    "name gone"
)]
#[case::name_in_both_sets(
    "HSET seriatim.meta names.indexed 1; ZADD event.workers.watched 1 a 1 gone; ZADD event.workers.departed 1 gone",
    Invariant::Layout,
    "name gone"
)]
#[case::idempotency_key_without_end(
    "HSET events.emitted 'x\nk' digest",
    Invariant::Layout,
    "shared key"
)]
#[tokio::test]
async fn each_broken_invariant_is_found_by_number(
    #[case] broken_by: &str,
    #[case] invariant: Invariant,
    #[case] subject: &str,
) {
    let scene = fresh().await;
    scene.add(&format!("clean; {broken_by}")).await;
    let report = scene.report_of_check().await;
    let expected = [(invariant, subject.to_owned())];
    assert_eq!(found(&report), expected, "{report:#?}");
}

/// An object has events and an owner key, but is in no list. This breaks two invariants: nothing
/// covers the object, and its owner does not have it in a list.
#[tokio::test]
async fn a_lost_owner_with_events_breaks_i1_and_i2() {
    let scene = fresh().await;
    let lost = "HSET event.workers a '1 t 0'; LPUSH x:events {}; SET x:event.worker a.0";
    scene.add(lost).await;
    let report = scene.report_of_check().await;
    let broken = [Invariant::I2, Invariant::I1].map(|broken| (broken, "object x".to_owned()));
    assert_eq!(found(&report), broken);
    let subject = Subject::Object("x".to_owned());
    assert_eq!(report.violations[0].subject, subject);
}

/// Gives each key of an object, of a worker, and of all workers each wrong type. The check must
/// report the key as a finding, and must never fail.
#[tokio::test]
async fn a_wrong_type_is_a_finding() {
    let scene = fresh().await;
    for (key, right) in [
        ("work:1:events", "list"),
        ("work:1:last.event.id", "string"),
        ("work:2:event.worker", "string"),
        ("work:5:events.held", "list"),
        ("work:5:events.held.id", "string"),
        ("work:5:event.handled", "hash"),
        ("work:5:event.errors", "list"),
        ("event.worker:a.0:object", "list"),
        ("event.worker:a.0:event", "list"),
        ("event.worker:a.0:event.id", "string"),
        ("event.worker:a:lease", "string"),
        ("objects.with.events", "list"),
        ("objects.held", "zset"),
        ("objects.paused", "zset"),
        ("next.event.id", "string"),
        ("event.workers", "hash"),
        ("events.dead", "stream"),
        ("event.log", "stream"),
        ("operator.actions", "stream"),
        ("seriatim.meta", "hash"),
    ] {
        for (wrong, command) in [
            ("string", format!("SET {key} 1")),
            ("list", format!("LPUSH {key} 1")),
            ("zset", format!("ZADD {key} 1 1")),
            ("hash", format!("HSET {key} 1 1")),
            ("stream", format!("XADD {key} 1-1 1 1")),
        ] {
            if wrong == right {
                continue;
            }
            scene.again(&format!("clean; DEL {key}; {command}")).await;
            let report = scene.report_of_check().await;
            let name = format!("{}{key}", scene.keys.prefix());
            let findings = report
                .violations
                .iter()
                .filter(|found| found.invariant == Invariant::Layout && found.what.contains(&name));
            assert_eq!(findings.count(), 1, "{key} as {wrong}: {report:#?}");
        }
    }
}

#[tokio::test]
async fn without_a_namespace_other_keys_are_left_alone() {
    let scene = Scene::bare_under(Keys::new()).await;
    // The check does not report broken keys of another namespace on the same Redis.
    let keys = "
        clean; ZADD calendar:events 1 party; HSET their:data a b; SET plain 1
        LPUSH {other:0}:x:events {}; ZADD events.scheduled 1 '{other:0}:x\nkey'
    ";
    scene.add(keys).await;
    let first = scene.report_of_check().await;
    assert!(first.is_clean(), "{first:#?}");
    assert_eq!(first.looked_at.foreign, 1);
    // A marker for `calendar` makes `calendar` an object of this namespace.
    scene.add("LPUSH objects.with.events calendar").await;
    let report = scene.report_of_check().await;
    let calendar = (Invariant::Layout, "object calendar".to_owned());
    assert_eq!(found(&report), [calendar]);

    let other = Keys::with_namespace("other").expect("a namespace");
    let other = control(&scene.conn().await, &other);
    let report = other.check().await.expect("a report");
    assert_eq!(found(&report), [(Invariant::I1, "object x".to_owned())]);
}

#[tokio::test]
async fn names_of_any_bytes_are_looked_at() {
    let scene = fresh().await;
    for object in ["a*[b]?:c{d}", "x:events", "event.worker:a.0", ":", "held"] {
        scene.emit(object, "{}").await;
    }
    let key = [scene.keys.prefix().as_bytes(), b"\xff\xfe:events"].concat();
    let push = redis::cmd("LPUSH").arg(key).arg("{}").to_owned();
    let pushed = push.exec_async(&mut scene.conn().await).await;
    pushed.expect("LPUSH");
    let report = scene.report_of_check().await;
    let odd = r"object \xff\xfe".to_owned();
    assert_eq!(
        found(&report),
        [(Invariant::Layout, odd.clone()), (Invariant::I1, odd)]
    );
}

#[tokio::test]
async fn all_violations_are_counted_and_some_reported() {
    let scene = fresh().await;
    let queue = |n| format!("LPUSH x:{n}:events {{}}; ");
    scene.add(&(0..300).map(queue).collect::<String>()).await;
    let control = control(&scene.conn().await, &scene.keys);
    for (most, shown) in [(100, 100), (0, 0)] {
        let report = control.check_up_to(most).await.expect("a report");
        let counts = (report.violations_total, report.violations.len());
        assert_eq!(counts, (300, shown));
    }
}

/// The scripts of the check only read. So the check works even if Redis refuses every write.
#[tokio::test]
async fn it_runs_at_maxmemory() {
    let scene = Scene::bare(Redis::own(&[])).await;
    scene.add("clean; LPUSH x:events {}").await;
    let () = scene.run(&["SCRIPT", "FLUSH"]).await;
    let () = scene.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.try_run::<()>(&["SET", "a", "b"]).await;
    assert_eq!(refused.expect_err("no memory").code(), Some("OOM"));
    let report = scene.report_of_check().await;
    assert_eq!(found(&report), [(Invariant::I1, "object x".to_owned())]);
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
    let scene = fresh().await;
    let keys = scene.keys.clone();
    let name = "HSET event.workers a '8 token-of-a 0'";
    let lease = "SET event.worker:a:lease 'token-of-a host-1 4711 99' PX 600000";
    scene.add(&format!("{name}; {lease}")).await;
    let stop = Arc::new(AtomicBool::new(false));
    let moves = Arc::new(AtomicU64::new(0));
    let mover = {
        let (mut conn, keys, stop, moves) = (
            scene.redis.connect().await,
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
        let report = scene.report_of_check().await;
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
    assert!(scene.report_of_check().await.is_clean());
}

/// A producer pushes events of one object all the time, but never a marker. The object's queue is
/// longer at each look of the check, so no two looks are equal. The check must still report the
/// object.
#[tokio::test]
async fn an_object_that_is_fed_without_markers_is_found() {
    let scene = fresh().await;
    let markers = " other".repeat(10_000);
    scene
        .add(&format!("LPUSH objects.with.events{markers}"))
        .await;
    let is_over = Arc::new(AtomicBool::new(false));
    let producer = {
        let mut conn = scene.redis.connect().await;
        let (queue, is_over) = (scene.keys.events("x"), is_over.clone());
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
        let length: u64 = scene.run(&["LLEN", &scene.keys.events("x")]).await;
        (length > 0).then_some(())
    })
    .await;
    let report = scene.report_of_check().await;
    is_over.store(true, Ordering::Relaxed);
    producer.await.expect("no panic");
    assert_eq!(found(&report), [(Invariant::I1, "object x".to_owned())]);
}
