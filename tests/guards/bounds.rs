//! Bounds of scripts, at their exact values, and replies about keys that do not exist.

use std::collections::BTreeMap;

use seriatim::wire;

use crate::attached;
use crate::support::{Redis, control};

/// `inspect` shows results of handlers up to 64 KiB together.
#[tokio::test]
async fn results_of_exactly_64_kib_are_shown() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    state.own("w.0", "work:1", 5, &["1"]).await;
    let control = control(&state.conn, &state.keys);
    for (bytes, shown) in [(65_536, 2), (65_537, 1)] {
        let small = "\"a\":1";
        let large = format!("\"b\":{}", "2".repeat(bytes - small.len() - "\"b\":".len()));
        let fields = ["id", "5", "result:a", small, "result:b", &large];
        state.run("HSET", &[&[state.keys.event_handled("work:1").as_str()], &fields[..]].concat()).await;
        let seen = control.inspect("work:1").await.expect("inspected").kept_results.expect("results");
        assert_eq!(seen.results().len(), shown, "{bytes} bytes");
    }
}

/// `inspect` reads schedules until it has 1 MiB of their events.
#[tokio::test]
async fn schedules_are_read_up_to_1_mib() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (hash, event) = (state.keys.events_scheduled_of("work:1"), "1".repeat(300_000));
    for n in 0..20 {
        state.run("HSET", &[&hash, &format!("key-{n}"), &event]).await;
    }
    let seen = control(&state.conn, &state.keys).inspect("work:1").await.expect("inspected");
    let read = seen.next_schedules.len();
    assert!((4..20).contains(&read) && seen.schedules == 20, "{read} of {}", seen.schedules);
}

/// A name whose registration is invalid has no slots. The slots of all other names are still read.
#[tokio::test]
async fn a_name_without_slots_hides_no_other() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("w.0", "work:1", 5, &["1"]).await;
    state.run("HSET", &[&keys.event_workers(), "odd", "nonsense"]).await;
    state.run("ZADD", &[&keys.event_workers_watched(), "1", "odd"]).await;
    let seen = control(&state.conn, &keys).inspect("work:1").await.expect("inspected");
    assert_eq!((seen.taken_by, seen.names_alive), (vec!["w.0".to_owned()], 1));
}

/// A stream that does not exist has no rows, and none was ever written.
#[tokio::test]
async fn an_absent_stream_is_empty() {
    let redis = Redis::start();
    let control = control(&redis.connect().await, redis.keys());
    let log = control.log(None, 10).await.expect("a page");
    assert_eq!((log.written, log.kept, log.end.as_str(), log.entries.len(), log.next), (0, 0, "0-0", 0, None));
    let streams = control.stats().await.expect("stats").streams;
    for stream in [streams.log, streams.dead, streams.actions] {
        assert_eq!((stream.rows, stream.written, stream.oldest_ms), (0, 0, None), "{streams:?}");
    }
}

/// The upper bounds of lateness in ms, as the protocol has them.
const LATENESS_MS: [u64; 16] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 600_000, 3_600_000];

/// An event that is exactly as late as a bound counts below this bound; an event that is 1 ms later
/// counts below the next bound. The time of the call is not known before. So for each bound there
/// is a due time in each ms around the call. The first schedule that is not due shows the time.
#[tokio::test]
async fn lateness_is_counted_up_to_and_including_a_bound() {
    const AROUND_MS: u64 = 13;
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    let schedules = keys.events_scheduled();
    for _ in 0..500 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut state.conn).await.expect("TIME");
        let from_ms = seconds * 1000 + micros / 1000 - 2;
        let due = LATENESS_MS.iter().flat_map(|bound| (0..=AROUND_MS).map(move |ms| from_ms + ms - bound));
        let due: Vec<u64> = due.collect();
        let mut write = redis::pipe();
        write.cmd("DEL").arg(&[&schedules, &keys.events_scheduled_lateness(), &keys.objects_with_events()]).ignore();
        let mut values = redis::cmd("HSET");
        values.arg(keys.events_scheduled_of("work:1"));
        let mut times = redis::cmd("ZADD");
        times.arg(&schedules);
        for (n, due_ms) in due.iter().enumerate() {
            values.arg(format!("-{n}")).arg("1");
            times.arg(*due_ms).arg(format!("work:1\n-{n}"));
        }
        write.add_command(values).ignore().add_command(times).ignore();
        write.query_async::<()>(&mut state.conn).await.expect("scheduled");
        let reply = wire::promote(&mut state.conn, &keys, 256, 1 << 20).await.expect("a reply");
        let mut first = redis::cmd("ZRANGE");
        first.arg(&schedules).arg(&["0", "0", "WITHSCORES"]);
        let first: Vec<(String, f64)> = first.query_async(&mut state.conn).await.expect("ZRANGE");
        let Some(now_ms) = first.first().map(|(_, due_ms)| *due_ms as u64 - 1) else { continue };
        if now_ms <= from_ms {
            continue;
        }
        let mut expected = BTreeMap::new();
        for late_ms in due.iter().filter_map(|due_ms| now_ms.checked_sub(*due_ms)) {
            let bound = LATENESS_MS.iter().find(|bound| late_ms <= **bound);
            *expected.entry(bound.map_or_else(|| "inf".to_owned(), u64::to_string)).or_insert(0) += 1;
        }
        let mut counted = redis::cmd("HGETALL");
        let counted: BTreeMap<String, u64> =
            counted.arg(keys.events_scheduled_lateness()).query_async(&mut state.conn).await.expect("HGETALL");
        assert_eq!((counted.values().sum::<u64>(), counted), (reply.events as u64, expected));
        return;
    }
    panic!("no call came in time");
}
