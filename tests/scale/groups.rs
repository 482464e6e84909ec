//! Groups at size: a backlog of one group does not delay the others, and waiting groups get equal
//! shares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use seriatim::async_trait;
use seriatim::sink::{Batch, Context, Delivered, Sink};

use crate::cost::{log_commands, slowness};
use crate::support::console::{Console, PATIENCE};
use crate::support::running::start;
use crate::support::{Redis, until};

/// The number of objects of the large group.
const MANY: usize = 1_000_000;
/// The most deliveries of the large group before that of the small group's object: 16 for each call
/// that groups 2,048 markers, and some more.
const BEFORE_MAX: usize = 10_000;
/// The longest time from the start of the worker to this delivery. It takes less than 1 s, but other
/// processes may slow the test down.
const LATE: Duration = Duration::from_secs(10);
/// The longest time of a script call on a quiet machine, and the part of the calls that may be above
/// it, because other processes delayed Redis.
const CALL_US: u64 = 10_000;
const DELAYED_MAX: f64 = 0.05;

/// The numbers of objects of ten groups.
const BACKLOGS: [usize; 10] = [
    1, 10, 100, 1000, 10_000, 20_000, 40_000, 60_000, 100_000, 300_000,
];
const WINDOW: Duration = Duration::from_secs(2);
const WINDOWS: usize = 5;
/// The largest difference of a group's share from an equal share.
const OFF_MAX: f64 = 0.1;

/// Lua that gives a group objects with one event each. They have markers or, with `held`, are due
/// held objects, every second one with a batch.
const FILL: &str = r"
local P, group, from, to, held = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == 'held'
local lists = {}
for n = from, to - 1 do
    local object = group .. ':' .. n
    if held and n % 2 == 0 then
        redis.call('LPUSH', P .. object .. ':events.held', n)
        redis.call('MSET', P .. object .. ':event.worker', 'held', P .. object .. ':events.held.id', '1 1 0 0 retry: no')
    else
        redis.call('LPUSH', P .. object .. ':events', n)
        if held then redis.call('SET', P .. object .. ':event.worker', 'held') end
    end
    if held then
        redis.call('ZADD', P .. 'objects.held', n + 1, object)
    else
        lists[#lists + 1] = object
    end
    if #lists == 1000 or n == to - 1 and lists[1] then
        redis.call('LPUSH', P .. 'objects.with.events', unpack(lists))
        lists = {}
    end
end";

pub(super) async fn fill(redis: &Redis, group: &str, objects: usize, kind: &str) {
    let mut conn = redis.connect().await;
    for from in (0..objects).step_by(100_000) {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(FILL)
            .arg(0)
            .arg(redis.keys().prefix())
            .arg(group)
            .arg(from)
            .arg(objects.min(from + 100_000))
            .arg(kind);
        cmd.query_async::<()>(&mut conn).await.expect("filled");
    }
}

/// Counts deliveries by group. Each takes some time.
#[derive(Clone, Default)]
pub(super) struct Counter {
    pub(super) takes: Duration,
    pub(super) counts: Arc<Mutex<HashMap<String, usize>>>,
}

impl Counter {
    pub(super) fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.counts.lock().expect("the sink does not panic")
    }

    pub(super) fn count(&self, group: &str) -> usize {
        self.counts().get(group).copied().unwrap_or(0)
    }
}

#[async_trait]
impl Sink for Counter {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        let group = batch
            .object()
            .as_str()
            .split(':')
            .next()
            .unwrap_or_default()
            .to_owned();
        *self.counts().entry(group).or_default() += 1;
        tokio::time::sleep(self.takes).await;
        Delivered::all()
    }
}

/// The calls of scripts since [`record`], and how long Redis had waited for a core before.
pub(super) struct Recording {
    waited_us: u64,
}

/// Lets Redis count the calls of scripts from now on, and record those that take longer than `CALL_US`.
pub(super) async fn record(console: &Console) -> Recording {
    let _: () = console.run(&["CONFIG", "RESETSTAT"]).await;
    log_commands(console, CALL_US).await;
    Recording {
        waited_us: waited_us(console).await,
    }
}

/// Returns for how long Redis has waited for a core that other processes had, in µs. 0 if the system
/// does not tell.
async fn waited_us(console: &Console) -> u64 {
    let server: String = console.run(&["INFO", "server"]).await;
    let pid = server
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .expect("a process");
    let times = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    times
        .split_whitespace()
        .nth(1)
        .and_then(|ns| ns.parse::<u64>().ok())
        .unwrap_or(0)
        / 1000
}

/// Returns how many of these times are above the limit although Redis has waited for so long: a wait
/// explains the rest of a call beyond the limit.
fn unexplained(long: &[u64], limit: f64, waited_us: u64) -> usize {
    let mut beyond: Vec<f64> = long
        .iter()
        .map(|us| *us as f64 - limit)
        .filter(|beyond| *beyond > 0.0)
        .collect();
    beyond.sort_unstable_by(f64::total_cmp);
    let mut left = waited_us as f64;
    beyond
        .iter()
        .skip_while(|beyond| {
            left -= **beyond;
            left >= 0.0
        })
        .count()
}

impl Recording {
    /// Asserts that calls of scripts are short. On a slow or busy host they may take longer.
    pub(super) async fn assert_short_calls(self, console: &Console, what: &str) {
        let _: () = console
            .run(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"])
            .await;
        let waited_us = waited_us(console).await - self.waited_us;
        let entries: Vec<redis::Value> = console.run(&["SLOWLOG", "GET", "-1"]).await;
        let long = entries.iter().filter_map(|entry| {
            let redis::Value::Array(parts) = entry else {
                return None;
            };
            let words: Vec<Vec<u8>> = redis::from_redis_value_ref(parts.get(3)?).ok()?;
            let is_script = words.first().is_some_and(|word| {
                word.eq_ignore_ascii_case(b"evalsha") || word.eq_ignore_ascii_case(b"fcall")
            });
            redis::from_redis_value_ref::<u64>(parts.get(2)?)
                .ok()
                .filter(|_| is_script)
        });
        let long: Vec<u64> = long.collect();
        let stats: String = console.run(&["INFO", "commandstats", "latencystats"]).await;
        let of = |start: &str| stats.lines().find_map(|line| line.strip_prefix(start));
        let number = |start| of(start)?.split(',').next()?.parse::<f64>().ok();
        let (scripts, functions) = (
            number("cmdstat_evalsha:calls="),
            number("cmdstat_fcall:calls="),
        );
        let calls = scripts.unwrap_or(0.0) + functions.unwrap_or(0.0);
        assert!(calls > 0.0, "scripts ran");
        let percentiles = of("latency_percentiles_usec_fcall:")
            .or_else(|| of("latency_percentiles_usec_evalsha:"))
            .unwrap_or_default();
        println!(
            "{what}: {calls} calls, {percentiles}; above {CALL_US} µs: {long:?}; waited {waited_us} µs for a core"
        );
        let above = |limit: f64| unexplained(&long, limit, waited_us) as f64;
        let allowed = calls * DELAYED_MAX;
        let is_short = above(CALL_US as f64) <= allowed
            || above(CALL_US as f64 * slowness(console).await) <= allowed;
        assert!(is_short, "{} of {calls} calls are too long", long.len());
    }
}

/// Runs a worker until `b:1`, behind a million objects of another group, is delivered.
async fn first_behind_a_million(slots: usize, takes: Duration) {
    let (redis, console) = Redis::own(&[]).with_console().await;
    fill(&redis, "a", MANY, "markers").await;
    console.emit("b:1", "1").await;
    let recording = record(&console).await;
    let sink = Counter {
        takes,
        ..Counter::default()
    };
    let began = Instant::now();
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = slots;
        config.group_depth = 1;
    });
    until("b:1 is delivered", PATIENCE, async || {
        (sink.count("b") > 0).then_some(())
    })
    .await;
    let (time, before) = (began.elapsed(), sink.count("a"));
    println!("{slots} slots, {takes:?}: b:1 came after {time:?} and {before} objects a:*");
    worker.stop().await;
    recording
        .assert_short_calls(&console, &format!("{slots} slots, {takes:?}"))
        .await;
    // The number of deliveries before it does not depend on the speed of the machine.
    assert!(
        before <= BEFORE_MAX && time <= LATE,
        "{before} objects a:*, {time:?}"
    );
}

/// Story: 300,000 objects `a:*` were queued, then `b:1` was delivered as the 300,001st.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_behind_a_million_of_another_group_comes_within_a_second() {
    first_behind_a_million(256, Duration::ZERO).await;
}

/// Tests the same with few slots that are busy nearly all the time.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_behind_a_million_comes_within_a_second_although_slots_are_busy() {
    first_behind_a_million(8, Duration::from_millis(50)).await;
}

/// Runs a worker while ten groups wait. The groups that wait for a whole window must get equal
/// shares in it. `held`: the group whose objects are due held objects.
async fn equal_shares(held: Option<usize>, backlogs: [usize; 10]) {
    let (redis, console) = Redis::own(&[]).with_console().await;
    // The largest group comes first, so that all others wait behind it.
    for (n, backlog) in backlogs.iter().enumerate().rev() {
        let kind = if held == Some(n) { "held" } else { "markers" };
        fill(&redis, &format!("g{n}"), *backlog, kind).await;
    }
    let recording = record(&console).await;
    let sink = Counter {
        takes: Duration::from_millis(20),
        ..Counter::default()
    };
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 64;
        config.group_depth = 1;
    });
    until("all markers are grouped", PATIENCE, async || {
        let markers: u64 = console
            .run(&["LLEN", &redis.keys().objects_with_events()])
            .await;
        let held: u64 = console
            .run(&["ZCOUNT", &redis.keys().objects_held(), "0", "999999"])
            .await;
        (markers < 100 && held == 0).then_some(())
    })
    .await;
    let mut worst: f64 = 0.0;
    for window in 0..WINDOWS {
        let before = sink.counts().clone();
        tokio::time::sleep(WINDOW).await;
        let after = sink.counts().clone();
        let count = |counts: &HashMap<String, usize>, n: usize| {
            counts.get(&format!("g{n}")).copied().unwrap_or(0)
        };
        let waiting = |counts, n: &usize| count(counts, *n) < backlogs[*n];
        let claims = |n: usize| (count(&after, n) - count(&before, n)) as f64;
        let waited: Vec<usize> = (0..10).filter(|n| waiting(&after, n)).collect();
        // Groups that wait no more had a part of the window.
        let others: f64 = (0..10).filter(|n| !waiting(&after, n)).map(claims).sum();
        let mean = waited.iter().map(|n| claims(*n)).sum::<f64>() / waited.len() as f64;
        let off = waited
            .iter()
            .map(|n| (claims(*n) / mean - 1.0).abs())
            .fold(0.0, f64::max);
        worst = worst.max(off);
        println!(
            "window {window}: {} groups waited, {mean:.0} claims each, off by at most {off:.3}; others {others}",
            waited.len()
        );
        assert!(
            waited.len() >= 3 && mean > 50.0,
            "too few groups or claims to compare"
        );
        assert!(
            off <= OFF_MAX,
            "window {window}: {:?}",
            waited.iter().map(|n| claims(*n)).collect::<Vec<_>>()
        );
    }
    println!("shares were off by at most {worst:.3}");
    worker.stop().await;
    recording.assert_short_calls(&console, "ten groups").await;
}

/// Tests that each of ten groups with very different backlogs gets an equal share of the claims.
#[tokio::test(flavor = "multi_thread")]
async fn groups_that_wait_get_equal_shares() {
    equal_shares(None, BACKLOGS).await;
}

/// Tests the same if one of the groups has 100,000 due held objects, and no markers.
#[tokio::test(flavor = "multi_thread")]
async fn held_objects_that_are_due_count_for_their_group() {
    equal_shares(Some(8), BACKLOGS).await;
}

/// Story: without a free slot, a call went on with markers, but not with due held objects. With
/// slow deliveries, an object behind 100,000 due held objects of another group waited for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_object_behind_many_of_another_group_comes_soon_although_slots_are_busy() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    fill(&redis, "a", 100_000, "held").await;
    console
        .add("LPUSH b:1:events 1; SET b:1:event.worker held; ZADD objects.held 200000 b:1")
        .await;
    let recording = record(&console).await;
    let sink = Counter {
        takes: Duration::from_millis(300),
        ..Counter::default()
    };
    let began = Instant::now();
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 4;
        config.group_depth = 1;
    });
    until("b:1 is delivered", PATIENCE, async || {
        (sink.count("b") > 0).then_some(())
    })
    .await;
    let (time, before) = (began.elapsed(), sink.count("a"));
    println!("b:1 came after {time:?} and {before} objects a:*");
    worker.stop().await;
    recording.assert_short_calls(&console, "held").await;
    assert!(time <= LATE, "{time:?}");
}

/// Tests that calls stay short although the names of 500 groups have 20,000 bytes each: their objects
/// share the list of further groups. The names are too long, so the objects are held.
#[tokio::test(flavor = "multi_thread")]
async fn groups_with_long_names_keep_the_calls_short() {
    const OBJECTS: usize = 500;
    let (redis, console) = Redis::own(&[]).with_console().await;
    let long = "x".repeat(20_000);
    for n in 0..OBJECTS {
        console.emit(&format!("{n}{long}:1"), "1").await;
    }
    let recording = record(&console).await;
    let worker = start(&redis, "w", &Counter::default(), |config| {
        config.concurrency = 4;
        config.group_depth = 1;
    });
    let held = async || {
        console
            .run::<usize>(&["ZCARD", &console.keys.objects_held()])
            .await
    };
    until("all objects are held", PATIENCE, async || {
        (held().await == OBJECTS).then_some(())
    })
    .await;
    worker.stop().await;
    recording.assert_short_calls(&console, "long names").await;
}
