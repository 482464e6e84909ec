//! The cost of an exporter: its looks, its marks, and its counts of the queued events.

use std::collections::BTreeMap;

use redis::Value;
use seriatim::metrics::NamespaceMetrics;

use crate::cost::{within, worked};
use crate::looks::{MARKERS, fill_all};
use crate::support::console::Console;
use crate::support::{Redis, control};

/// Number of looks, and of marks.
const ROUNDS: usize = 20;
/// The most time of Redis for a look, or for a mark, µs.
const LOOK_US: u64 = 2000;
/// The longest time of one command, µs.
const COMMAND_US: u64 = 5000;
/// Number of times that a slow command is tried again.
const TRIES: usize = 10;

/// Gives one event to each object that has a marker.
const QUEUES: &str = "
    for n = tonumber(ARGV[2]), ARGV[2] + 9999 do
        redis.call('LPUSH', ARGV[1] .. 'work:' .. n .. ':events', '{}')
    end";

/// Returns the times, in µs, and the arguments of all commands in the log of slow commands.
async fn slow(console: &Console) -> Vec<(u64, Vec<Vec<u8>>)> {
    let entries: Vec<Value> = console.run(&["SLOWLOG", "GET", "-1"]).await;
    let read = |entry: Value| {
        let Value::Array(parts) = entry else {
            return None;
        };
        let us = redis::from_redis_value_ref::<u64>(parts.get(2)?).ok()?;
        Some((
            us,
            redis::from_redis_value_ref::<Vec<Vec<u8>>>(parts.get(3)?).ok()?,
        ))
    };
    entries
        .into_iter()
        .map(|entry| read(entry).expect("an entry of the log"))
        .collect()
}

/// Returns the longest time of each command, in µs, by the name of the command. Other processes may
/// have slowed down a command, so a command over the limit is tried again, and its best time counts.
async fn longest(redis: &Redis, console: &Console) -> BTreeMap<String, u64> {
    let mut conn = redis.connect().await;
    let mut longest = BTreeMap::new();
    for (mut best, words) in slow(console).await {
        for _ in 0..TRIES {
            if best <= COMMAND_US {
                break;
            }
            let _: () = console.run(&["SLOWLOG", "RESET"]).await;
            let mut again = redis::cmd(std::str::from_utf8(&words[0]).expect("a command"));
            let _: Value = again
                .arg(&words[1..])
                .query_async(&mut conn)
                .await
                .expect("a reply");
            let same = slow(console)
                .await
                .into_iter()
                .filter(|(_, others)| *others == words);
            best = best.min(same.map(|(us, _)| us).max().unwrap_or(0));
        }
        let most: &mut u64 = longest
            .entry(String::from_utf8_lossy(&words[0]).into_owned())
            .or_default();
        *most = best.max(*most);
    }
    let _: () = console.run(&["SLOWLOG", "RESET"]).await;
    longest
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort();
    times[times.len() / 2]
}

/// Tests that a scrape of the exporter takes at most 2 ms of Redis' time, and a mark, too. No
/// command of a scrape, of a mark, or of a count of all queues takes more than 5 ms.
#[tokio::test]
async fn an_exporter_at_millions_of_objects_is_cheap() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let keys = redis.keys();
    fill_all(&console).await;
    for from in (0..MARKERS).step_by(10_000) {
        let _: Option<String> = console
            .run(&["EVAL", QUEUES, "0", keys.prefix(), &from.to_string()])
            .await;
    }
    let control = control(&redis.connect().await, keys);
    let metrics = NamespaceMetrics::default();
    // The first calls load the scripts.
    metrics.look(&control).await.expect("a look");
    control.mark().await.expect("a mark");
    for (setting, value) in [
        ("slowlog-max-len", "1000000"),
        ("slowlog-log-slower-than", "1000"),
    ] {
        let _: () = console.run(&["CONFIG", "SET", setting, value]).await;
    }
    let _: () = console.run(&["SLOWLOG", "RESET"]).await;
    let (mut looks, mut marks) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (before, _) = worked(&console).await;
        metrics.look(&control).await.expect("a look");
        let (after, _) = worked(&console).await;
        looks.push(after - before);
    }
    for _ in 0..ROUNDS {
        // Without the earlier mark, each call pushes one.
        let _: u64 = console.run(&["DEL", &keys.event_marks()]).await;
        let (before, _) = worked(&console).await;
        control.mark().await.expect("a mark");
        let (after, _) = worked(&console).await;
        marks.push(after - before);
        assert_eq!(
            console.run::<u64>(&["ZCARD", &keys.event_marks()]).await,
            1,
            "a mark was pushed"
        );
    }
    let (look, mark, of_looks) = (
        median(looks),
        median(marks),
        longest(&redis, &console).await,
    );
    // A share of 1 leaves out the pauses, so that the count does not take minutes. Its commands are
    // those of a paced count.
    let depth = control.paced_depth(0, 1.0).await.expect("a count");
    assert_eq!(
        (depth.objects_with_events, depth.events_queued),
        (MARKERS, MARKERS)
    );
    let of_count = longest(&redis, &console).await;
    println!(
        "Redis' time: {look} µs per scrape, {mark} µs per mark; commands above 1 ms, in µs: {of_looks:?}, of a count {of_count:?}"
    );
    assert!(
        within(&console, look.max(mark), LOOK_US).await,
        "{look} µs, {mark} µs"
    );
    let most = of_looks
        .values()
        .chain(of_count.values())
        .max()
        .copied()
        .unwrap_or(0);
    assert!(
        within(&console, most, COMMAND_US).await,
        "{of_looks:?} {of_count:?}"
    );
}
