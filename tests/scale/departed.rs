//! Names whose processes have left. A pop under way may still move a marker to one of their slots,
//! so other processes must look at these slots. Story: every process read 2 keys for each slot of
//! each such name, every second. With 3,000 names Redis did little else, and an emit took a third
//! of a second.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use rstest::rstest;
use seriatim::keys::Keys;
use seriatim::wire::{self, Adopted, Sweep};

use crate::cost::{log_commands, worked};
use crate::idle::commands;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::sweep::LOOK;
use crate::support::{Redis, control, until};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DEPARTED: u64 = 100_000;
/// Maximum number of keys of slots in one round. A name of the tests has so many slots that it
/// needs a whole round.
const ROUND_KEYS: u64 = 6144;
const SLOTS: u64 = 256;

const FILL: &str = r"
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for n = ARGV[1], ARGV[1] + ARGV[2] - 1 do
  redis.call('HSET', KEYS[1], 'left-' .. n, string.format('%d token-%d %.0f', ARGV[3], n, now_ms - 5000))
  if #KEYS > 1 then redis.call('ZADD', KEYS[2], ARGV[4], 'left-' .. n) end
end";

/// The reply of a sweep that finds nothing. It says that a mark is due, because no process of these
/// tests pushes marks.
const NOTHING: Adopted = Adopted {
    more: false,
    moved: 0,
    is_ahead: false,
    mark: true,
    held: 0,
    strays: 0,
    lost: Vec::new(),
    names: Vec::new(),
};

async fn adopt(conn: &mut MultiplexedConnection, keys: &Keys) -> Adopted {
    adopt_as("sweeper", conn, keys).await
}

async fn adopt_as(own: &str, conn: &mut MultiplexedConnection, keys: &Keys) -> Adopted {
    let sweep = Sweep {
        own,
        crashes_max: 5,
        look: LOOK,
        forget: DAY,
        since: None,
        notice: LOOK,
    };
    wire::adopt(conn, keys, &sweep).await.expect("a sweep")
}

/// Registers this many departed names, all due at this time.
async fn fill(conn: &mut MultiplexedConnection, keys: &Keys, count: u64, slots: u64, due: &str) {
    let sets = [keys.event_workers(), keys.event_workers_departed()];
    for from in (0..count).step_by(10_000) {
        let mut fill = redis::cmd("EVAL");
        fill.arg(FILL).arg(2).arg(&sets);
        fill.arg((from, count.min(10_000), slots, due));
        fill.exec_async(conn).await.expect("names");
    }
}

async fn now_ms(console: &Console) -> u64 {
    let (seconds, micros): (u64, u64) = console.run(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

/// Registers a departed name with a last sign of life of this age, due for a look.
async fn left(console: &Console, name: &str, age: Duration) {
    let at_ms = now_ms(console).await - age.as_millis() as u64;
    let registered = format!("HSET event.workers {name} '4 token {at_ms}'");
    let is_due = format!("ZADD event.workers.departed 1 {name}");
    console.add(&format!("{registered}; {is_due}")).await;
}

/// Lets the next call begin a round.
async fn next_round(console: &Console) {
    console.add("HDEL seriatim.meta names.next").await;
}

/// Sets a field of `seriatim.meta` to a time.
async fn set_time(console: &Console, field: &str, ms: u64) {
    let set = format!("HSET seriatim.meta {field} {ms}");
    console.add(&set).await;
}

/// Returns the time of the next look at a name among the watched names.
async fn watched(console: &Console, name: &str) -> Option<f64> {
    let set = console.keys.event_workers_watched();
    console.run(&["ZSCORE", &set, name]).await
}

/// Returns the time of the next look at a name among the departed names.
async fn departed(console: &Console, name: &str) -> Option<f64> {
    let set = console.keys.event_workers_departed();
    console.run(&["ZSCORE", &set, name]).await
}

async fn names(console: &Console) -> Vec<String> {
    console.run(&["HKEYS", &console.keys.event_workers()]).await
}

/// The sweeps of all processes within 5 s.
#[derive(Debug)]
struct Swept {
    sweeps: u64,
    commands: u64,
    /// The time of Redis, µs.
    us: u64,
}

/// Lets each process sweep four times a second.
async fn sweep(console: &Console, processes: &mut [MultiplexedConnection]) -> Swept {
    let (mut sweeps, began) = (0, Instant::now());
    let (commands_before, us_before) = (commands(console).await.0, worked(console).await.0);
    while began.elapsed() < Duration::from_secs(5) {
        for (n, process) in processes.iter_mut().enumerate() {
            let swept = adopt_as(&format!("sweeper-{n}"), process, &console.keys).await;
            assert_eq!(swept, NOTHING);
            sweeps += 1;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let swept = Swept {
        sweeps,
        us: worked(console).await.0 - us_before,
        commands: commands(console).await.0 - commands_before,
    };
    println!("{swept:?}");
    swept
}

/// 100,000 departed names are all due at the same moment, and many processes sweep. Checks the number
/// of keys per round, and the commands and the time of Redis against those without such names. Both
/// times are of one run, because a host may be ten times slower than another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_departed_names_cost_little_for_any_number_of_processes() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let mut processes = Vec::new();
    for _ in 0..8 {
        processes.push(redis.connect().await);
    }
    let without = sweep(&console, &mut processes).await;
    fill(&mut conn, keys, DEPARTED, SLOTS, "1").await;
    // The pass is over, so that only the rounds are measured.
    set_time(&console, "names.indexed", now_ms(&console).await).await;
    let began = Instant::now();
    let with = sweep(&console, &mut processes).await;
    let set = keys.event_workers_departed();
    let looked: u64 = console.run(&["ZCOUNT", &set, "(1", "inf"]).await;
    let rounds = began.elapsed().as_secs() + 2;
    assert!(
        looked > 0 && looked <= rounds * (ROUND_KEYS / SLOTS + 2),
        "{looked} names were looked at in {rounds} rounds"
    );
    let per_sweep = |swept: &Swept, figure: u64| figure as f64 / swept.sweeps as f64;
    // A look takes 6 commands. Some names are due for a second look within this time.
    let others = with.commands.saturating_sub(8 * looked);
    let commands = per_sweep(&with, others);
    assert!(
        commands <= 1.1 * per_sweep(&without, without.commands),
        "{commands} commands per sweep"
    );
    // The rounds take two to five times as long as the sweeps without names; a look at each name in
    // each sweep would take hundreds of times as long.
    let us = per_sweep(&with, with.us);
    assert!(
        us <= 20.0 * per_sweep(&without, without.us),
        "{us} µs per sweep"
    );
}

/// A round serves all processes together. It has the names that were due first and last.
#[tokio::test]
async fn one_round_in_a_second_looks_at_so_many_keys() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    fill(&mut conn, keys, 1000, SLOTS, "1000").await;
    console
        .add("ZADD event.workers.departed 1 left-7 2000 left-8")
        .await;
    for _ in 0..3 {
        adopt(&mut conn, keys).await;
        set_time(&console, "names.next", now_ms(&console).await + 900).await;
    }
    let set = keys.event_workers_departed();
    let looked: u64 = console.run(&["ZCOUNT", &set, "(2000", "inf"]).await;
    assert!(
        (2..=ROUND_KEYS / SLOTS + 2).contains(&looked),
        "{looked} names"
    );
    for name in ["left-7", "left-8"] {
        let next = departed(&console, name).await;
        assert!(next > Some(2000.0), "{name} was not looked at");
    }
}

/// The time of the next round was set an hour ahead by a wrong clock. The round comes at once all
/// the same.
#[tokio::test]
async fn a_round_that_lies_far_ahead_is_not_awaited() {
    let redis = Redis::start();
    let (mut conn, console) = (redis.connect().await, redis.console().await);
    left(&console, "gone", Duration::from_secs(5)).await;
    set_time(&console, "names.next", now_ms(&console).await + 3_600_000).await;
    adopt(&mut conn, redis.keys()).await;
    assert!(departed(&console, "gone").await > Some(1.0));
}

/// A round begins as soon as it is due, and not a round later.
#[tokio::test]
async fn a_round_begins_when_it_is_due() {
    let redis = Redis::start();
    let (mut conn, console) = (redis.connect().await, redis.console().await);
    left(&console, "gone", Duration::from_secs(5)).await;
    set_time(&console, "names.next", now_ms(&console).await).await;
    adopt(&mut conn, redis.keys()).await;
    assert!(departed(&console, "gone").await > Some(1.0));
}

/// A dead process is taken over at once, however many departed names are due before it.
#[tokio::test]
async fn a_takeover_does_not_wait_behind_departed_names() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let stuck = Recorder::with(|_| Act::Wait(Gate::closed()));
    let dead = start(&redis, "dead", &stuck, |config| {
        config.lease = Duration::from_secs(2)
    });
    console.emit("work:1", "1").await;
    stuck.until_offered(1).await;
    fill(&mut conn, keys, DEPARTED, SLOTS, "1").await;
    dead.crash().await;
    let crashed = Instant::now();
    let sink = Recorder::new();
    let worker = start(&redis, "other", &sink, |config| {
        config.sweep = Duration::from_secs(1)
    });
    sink.until_sent(1).await;
    assert!(
        crashed.elapsed() < Duration::from_secs(8),
        "{:?}",
        crashed.elapsed()
    );
    worker.finish().await;
}

/// A call takes over a bounded number of objects; later calls take the rest.
#[tokio::test]
async fn a_large_takeover_goes_on_in_the_next_call() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for name in ["a", "b"] {
        let registered = format!("HSET event.workers {name} '1024 token 1'");
        let is_due = format!("ZADD event.workers.watched 1 {name}");
        console.add(&format!("{registered}; {is_due}")).await;
        for slot in 0..300 {
            let list = format!("event.worker:{name}.{slot}:object");
            console.add(&format!("LPUSH {list} {name}:{slot}")).await;
        }
    }
    let mut strays = Vec::new();
    for _ in 0..10 {
        let adopted = adopt(&mut conn, keys).await;
        strays.push(adopted.strays);
        if !adopted.more {
            break;
        }
    }
    assert_eq!(
        (strays.iter().sum::<u64>(), strays.iter().max()),
        (600, Some(&256)),
        "{strays:?}"
    );
}

/// A pop moved a marker to a name five minutes after the name's last sign of life. The next look
/// finds the marker, and the series of looks starts again.
#[tokio::test]
async fn a_late_pop_to_a_departed_name_is_found() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    left(&console, "gone", Duration::from_secs(300)).await;
    adopt(&mut conn, keys).await;
    let now = now_ms(&console).await as f64;
    let next = departed(&console, "gone").await.expect("departed");
    assert!(
        (next - now - 300_000.0).abs() < 10_000.0,
        "it is looked at 10 min after its end, not in {} ms",
        next - now
    );

    console.add("LPUSH event.worker:gone.3:object work:1").await;
    // Now the last sign of life was ten minutes ago.
    left(&console, "gone", Duration::from_secs(600)).await;
    next_round(&console).await;
    let adopted = adopt(&mut conn, keys).await;
    assert_eq!(
        (adopted.strays, adopted.names),
        (1, vec!["gone".to_owned()])
    );
    assert_eq!(console.list(&keys.objects_with_events()).await, ["work:1"]);
    adopt(&mut conn, keys).await;
    let next = departed(&console, "gone").await.expect("departed");
    let now = now_ms(&console).await as f64;
    assert!(
        (0.0..=1000.0).contains(&(next - now)),
        "the looks start again: {} ms",
        next - now
    );
    assert_eq!(watched(&console, "gone").await, None);
}

/// The longer ago the last sign of life of a name, the later its next look. Looks come after 1 s,
/// 10 s, 1 min, 10 min, 1 h, and when the name is forgotten.
#[rstest]
#[case(0, 1)]
#[case(4, 10)]
#[case(30, 60)]
#[case(100, 600)]
#[case(2_000, 3_600)]
#[case(10_000, 86_400)]
#[tokio::test]
async fn a_departed_name_is_looked_at_ever_more_rarely(#[case] age_s: u64, #[case] next_s: u64) {
    let redis = Redis::start();
    let (mut conn, console) = (redis.connect().await, redis.console().await);
    left(&console, "gone", Duration::from_secs(age_s)).await;
    adopt(&mut conn, redis.keys()).await;
    let next = departed(&console, "gone").await.expect("departed");
    let words = ["HGET", &console.keys.event_workers(), "gone"];
    let registered: String = console.run(&words).await;
    let at = registered.rsplit(' ').next().map(str::parse::<f64>);
    let at = at.expect("a word").expect("a time");
    assert!(
        (next - at - next_s as f64 * 1000.0).abs() <= 1.0,
        "{} ms",
        next - at
    );
}

/// A sweep looks a last time at a departed name, and then removes the name. If one of its slots has
/// a marker at this look, the marker is taken over and the name stays.
#[tokio::test]
async fn a_departed_name_is_looked_at_a_last_time_when_it_is_forgotten() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for name in ["empty", "late"] {
        left(&console, name, DAY + Duration::from_secs(1)).await;
    }
    console.add("LPUSH event.worker:late.0:object work:1").await;
    let adopted = adopt(&mut conn, keys).await;
    assert_eq!(
        (adopted.strays, adopted.names),
        (1, vec!["late".to_owned()])
    );
    assert_eq!(names(&console).await, ["late"]);
    assert_eq!(departed(&console, "empty").await, None);
}

/// A batch without an object in the slot's list cannot be taken over, but must not be lost with its
/// name: `check` reports it. The name is looked at less often than other watched names.
#[tokio::test]
async fn a_name_that_has_only_a_batch_is_never_forgotten() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    left(&console, "gone", DAY + Duration::from_secs(1)).await;
    console.add("LPUSH event.worker:gone.1:event 1").await;
    let before = now_ms(&console).await;
    let round = adopt(&mut conn, keys).await;
    assert_eq!(
        (round.held, round.strays, &round.names[..]),
        (0, 0, &["gone".to_owned()][..])
    );
    assert!(
        matches!(&round.lost[..], [(_, why)] if why.contains("the object of the batch")),
        "{round:?}"
    );
    assert_eq!(names(&console).await, ["gone"]);
    let next = watched(&console, "gone").await.expect("watched");
    assert!(next as u64 >= before, "{next}");
}

/// Story: names registered by an older version are in neither set. No process looked at them, and
/// the objects of a dead process of that version were lost.
#[tokio::test]
async fn names_of_an_older_version_are_found_by_a_pass() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for from in [0, 1000] {
        let mut fill = redis::cmd("EVAL");
        fill.arg(FILL).arg(1).arg(keys.event_workers());
        fill.arg((from, 1000, 4));
        fill.exec_async(&mut conn).await.expect("names");
    }
    let given = "
        LPUSH event.worker:left-1234.2:object work:1
        SET event.worker:left-77:lease 'token-77 host 1 1' PX 600000
    ";
    console.add(given).await;
    let mut found = 0;
    for _ in 0..40 {
        next_round(&console).await;
        found += adopt(&mut conn, keys).await.strays;
    }
    assert_eq!(found, 1);
    let (watched, departed) = (keys.event_workers_watched(), keys.event_workers_departed());
    let watched: Vec<String> = console.run(&["ZRANGE", &watched, "0", "-1"]).await;
    let departed: u64 = console.run(&["ZCARD", &departed]).await;
    assert_eq!((watched, departed), (vec!["left-77".to_owned()], 1999));
    let fields: Vec<String> = console.run(&["HKEYS", &keys.meta()]).await;
    assert!(
        fields.contains(&"names.indexed".to_owned())
            && !fields.contains(&"names.cursor".to_owned()),
        "{fields:?}"
    );

    // The next pass begins in an hour.
    console.add("HSET event.workers strange '4 token 1'").await;
    for (hours, is_found) in [(0, false), (2, true)] {
        let at = now_ms(&console).await - hours * 3_600_000;
        set_time(&console, "names.indexed", at).await;
        for _ in 0..40 {
            next_round(&console).await;
            adopt(&mut conn, keys).await;
        }
        // Its last sign of life was in 1970: the pass forgets it.
        assert_eq!(
            !names(&console).await.contains(&"strange".to_owned()),
            is_found,
            "{hours} hours after the last pass"
        );
    }
}

/// Story: `inspect` and `check` read all slots of all names in one call. At 10,000 names Redis
/// stood still for more than a second. Now departed names are read in steps, and only for an object
/// that seems uncovered.
#[tokio::test]
async fn looking_at_the_system_among_many_departed_names_takes_short_calls() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    fill(&mut conn, keys, 10_000, SLOTS, "99999999999999").await;
    set_time(&console, "names.indexed", now_ms(&console).await).await;
    let given = "
        LPUSH event.worker:left-77.200:object taken; LPUSH taken:events 1; LPUSH queued:events 1
        LPUSH objects.with.events queued
    ";
    console.add(given).await;
    let control = control(&conn, keys);
    log_commands(&console, 500_000).await;
    let seen = control.inspect("taken").await.expect("an inspection");
    assert_eq!(seen.taken_by, ["left-77.200"]);
    let report = control.check().await.expect("a report");
    assert_eq!(
        (report.violations_total, report.looked_at.names),
        (0, 10_000),
        "{report:?}"
    );
    let stats = control.stats().await.expect("stats");
    assert_eq!((stats.workers.len(), stats.workers_not_shown), (1000, 9000));
    // A call takes less than a millisecond on a quiet machine.
    let slow: redis::Value = console.run(&["SLOWLOG", "GET"]).await;
    assert_eq!(
        slow,
        redis::Value::Array(Vec::new()),
        "calls of more than half a second"
    );
}

/// Story: Redis was restarted during a pass. Its hash function then has a new seed, so the cursor
/// skipped a quarter of the names. They were in neither set, although the pass was over.
#[tokio::test]
async fn the_pass_begins_anew_on_another_server() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for (id, fields) in [("id-1", 2), ("id-1", 2), ("id-2", 0)] {
        wire::connect(&mut conn, keys, id, wire::Connect::default())
            .await
            .expect("connected");
        if fields == 0 {
            for field in ["names.cursor", "names.indexed"] {
                let left: bool = console.run(&["HEXISTS", &keys.meta(), field]).await;
                assert!(!left, "{field}");
            }
        }
        console
            .add("HSET seriatim.meta names.cursor 7 names.indexed 1")
            .await;
    }
}

/// A process returns, and another process leaves: each name moves into the other set.
#[tokio::test]
async fn a_name_is_watched_while_its_process_lives() {
    let (redis, console) = Redis::start().with_console().await;
    left(&console, "w", Duration::from_secs(5)).await;
    let worker = start(&redis, "w", &Recorder::new(), |_| {});
    console.until_lease("w").await;
    assert_eq!(departed(&console, "w").await, None);
    assert!(watched(&console, "w").await.is_some());
    worker.finish().await;
    assert!(departed(&console, "w").await.is_some());
    assert_eq!(watched(&console, "w").await, None);

    let worker = start(&redis, "dead", &Recorder::new(), |_| {});
    console.until_lease("dead").await;
    worker.crash().await;
    console.end_lease("dead").await;
    let _other = start(&redis, "other", &Recorder::new(), |_| {});
    until("the dead name has departed", PATIENCE, async || {
        departed(&console, "dead").await.map(drop)
    })
    .await;
    assert_eq!(watched(&console, "dead").await, None);
}

/// Story: a pass treated a watched name as one in neither set. A name whose lease had just ended,
/// seen by its own process, was then in both sets.
#[tokio::test]
async fn a_pass_leaves_watched_names_alone() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let now = now_ms(&console).await;
    let registered = format!("HSET event.workers sweeper '4 token {now}'");
    let is_watched = format!("ZADD event.workers.watched {now} sweeper");
    console.add(&format!("{registered}; {is_watched}")).await;
    adopt(&mut conn, keys).await;
    let fields: Vec<String> = console.run(&["HKEYS", &keys.meta()]).await;
    assert!(
        fields.contains(&"names.indexed".to_owned()),
        "the pass is over: {fields:?}"
    );
    assert!(watched(&console, "sweeper").await.is_some());
    assert_eq!(departed(&console, "sweeper").await, None);
}
