//! Promotion of schedules, tested one call at a time.
#![cfg(feature = "worker")]

use std::time::Duration;

use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst, Promoted, Suspects};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

const MIB: usize = 1 << 20;

async fn promote(redis: &Redis, events: usize, bytes: usize) -> Promoted {
    wire::promote(&mut redis.connect().await, redis.keys(), events, bytes)
        .await
        .expect("a reply")
}

/// Stores a schedule as a producer does. The due time is in ms since 1970.
async fn schedule(console: &Console, object: &str, key: &str, time: &str, event: &str) {
    let keys = &console.keys;
    console
        .run::<()>(&["HSET", &keys.events_scheduled_of(object), key, event])
        .await;
    console
        .run::<()>(&[
            "ZADD",
            &keys.events_scheduled(),
            time,
            &format!("{object}\n{key}"),
        ])
        .await;
}

/// Returns the queue of an object. In references, `T` replaces the time.
async fn queue(console: &Console, object: &str) -> Vec<String> {
    let hide = |event: String| match event
        .strip_prefix("\0queued ")
        .and_then(|rest| rest.split_once(' '))
    {
        Some((time, key)) if time.parse::<u64>().is_ok() => format!("\0queued T {key}"),
        _ => event,
    };
    console
        .list(&console.keys.events(object))
        .await
        .into_iter()
        .map(hide)
        .collect()
}

#[tokio::test]
async fn a_call_takes_its_events_and_bytes_and_says_when_the_next_is_due() {
    let redis = Redis::start();
    let console = redis.console().await;
    for n in 1..=5 {
        schedule(
            &console,
            "work:1",
            &format!("-{n}"),
            &n.to_string(),
            &format!("{n}"),
        )
        .await;
    }
    schedule(&console, "work:2", "-big", "6", &"2".repeat(3000)).await;
    schedule(&console, "work:2", "-bigger", "7", &"3".repeat(3000)).await;
    schedule(&console, "work:2", "late", "99999999999999", "9").await;
    let first = promote(&redis, 3, MIB).await;
    assert_eq!(
        (first.events, first.next_due, first.markers, first.names),
        (3, Some(Duration::ZERO), 1, 0)
    );
    assert_eq!(
        console.list(&redis.keys().events("work:1")).await,
        ["1", "2", "3"]
    );
    assert_eq!(
        promote(&redis, 100, 2000).await.events,
        3,
        "two small events, and the one that exceeds the bytes"
    );
    let last = promote(&redis, 100, MIB).await;
    assert_eq!(last.events, 1);
    assert!(
        last.next_due
            .is_some_and(|due| due > Duration::from_secs(1_000_000)),
        "{last:?}"
    );
    assert_eq!(
        console.list(&redis.keys().objects_with_events()).await,
        ["work:1", "work:1", "work:2", "work:2"]
    );
    let late: Vec<(String, u64)> = console
        .run(&["HGETALL", &redis.keys().events_scheduled_lateness()])
        .await;
    assert_eq!(late, [("inf".to_owned(), 7)]);
    // A schedule that is due at once has no due time, so no lateness is counted.
    schedule(&console, "work:3", "-now", "0", "0").await;
    assert_eq!(promote(&redis, 100, MIB).await.events, 1);
    let late: Vec<(String, u64)> = console
        .run(&["HGETALL", &redis.keys().events_scheduled_lateness()])
        .await;
    assert_eq!(late, [("inf".to_owned(), 7)]);
    assert_eq!(promote(&redis, 100, MIB).await.events, 0);
    console.check().await;
}

/// Wrong schedules stop no other schedule. The queue of `bad:1` and the hash of schedules of
/// `bad:2` have a wrong type. Other entries have no event, or name no object.
#[tokio::test]
async fn an_event_that_cannot_be_queued_stays_and_stops_no_other() {
    let redis = Redis::start();
    let console = redis.console().await;
    let keys = redis.keys();
    console
        .run::<()>(&["SET", &keys.events("bad:1"), "x"])
        .await;
    schedule(&console, "bad:1", "k", "1", "1").await;
    console
        .run::<()>(&["SET", &keys.events_scheduled_of("bad:2"), "x"])
        .await;
    console
        .run::<()>(&[
            "ZADD",
            &keys.events_scheduled(),
            "2",
            "bad:2\nk",
            "3",
            "gone:1\nk",
            "4",
            "odd",
            "5",
            "\nk",
        ])
        .await;
    schedule(&console, "work:1", "k", "6", "6").await;
    let done = promote(&redis, 100, MIB).await;
    assert_eq!(done.events, 1);
    let wrong: Vec<(String, &str)> = done
        .wrong
        .iter()
        .map(|(member, why)| {
            (
                String::from_utf8_lossy(member).into_owned(),
                why.split(' ').next().unwrap_or_default(),
            )
        })
        .collect();
    let expected = [
        ("bad:1\nk", "wrong"),
        ("bad:2\nk", "wrong"),
        ("gone:1\nk", "absent"),
        ("odd", "name"),
        ("\nk", "name"),
    ];
    assert_eq!((done.wrong_count, wrong.len()), (5, 5));
    assert_eq!(
        wrong,
        expected.map(|(member, why)| (member.to_owned(), why))
    );
    assert_eq!(queue(&console, "work:1").await, ["\0queued T k"]);
    assert!(
        done.next_due
            .is_some_and(|due| due > Duration::from_secs(55) && due <= Duration::from_secs(60)),
        "{done:?}"
    );
    let left: Vec<String> = console
        .run(&["ZRANGE", &keys.events_scheduled(), "0", "-1"])
        .await;
    assert_eq!(left, ["work:1\nk", "bad:1\nk", "bad:2\nk"]);
    // An operator deletes the queue of a wrong type.
    console.run::<()>(&["DEL", &keys.events("bad:1")]).await;
    console
        .run::<()>(&["ZADD", &keys.events_scheduled(), "1", "bad:1\nk"])
        .await;
    assert_eq!(promote(&redis, 100, MIB).await.events, 1);
    assert_eq!(queue(&console, "bad:1").await, ["\0queued T k"]);
}

/// For a worker without a namespace, a name that begins with a brace may be an object of a
/// namespace. Its schedule is not promoted.
#[tokio::test]
async fn the_schedules_of_another_namespace_are_left_alone() {
    let redis = Redis::own(&[]);
    let console = redis.console().await;
    let mut conn = redis.connect().await;
    let other = format!("{}work:1", redis.keys().prefix());
    schedule(&console, "work:1", "k", "99999999999999", "1").await;
    console
        .run::<()>(&["ZADD", "events.scheduled", "1", &format!("{other}\nk")])
        .await;
    let done = wire::promote(&mut conn, &seriatim::keys::Keys::new(), 10, MIB)
        .await
        .expect("a reply");
    assert_eq!((done.events, done.wrong.len(), done.next_due), (0, 1, None));
    let kept: u64 = console
        .run(&["HLEN", &redis.keys().events_scheduled_of("work:1")])
        .await;
    assert_eq!(kept, 1);
}

/// Story: a million overdue events were queued before a slow worker, 256 events ten times a second.
/// An event that was emitted later waited behind all of them.
#[tokio::test]
async fn with_many_markers_few_schedules_are_promoted() {
    let redis = Redis::start();
    let console = redis.console().await;
    let markers = redis.keys().objects_with_events();
    for n in 0..300 {
        schedule(&console, &format!("work:{n}"), "k", "1", "1").await;
    }
    let many: Vec<&str> = ["LPUSH", &markers]
        .into_iter()
        .chain(std::iter::repeat_n("busy:1", 900))
        .collect();
    console.run::<u64>(&many).await;
    let first = promote(&redis, 256, MIB).await;
    assert_eq!(
        (first.events, first.markers),
        (100, 1000),
        "up to 1,000 markers"
    );
    assert_eq!(promote(&redis, 256, MIB).await.events, 8);
}

/// Story: for a queue of a wrong type, 256 schedules of 1 MiB each took Redis a second, every
/// minute. The worker's log had a line for each of them.
#[tokio::test]
async fn events_that_cannot_be_queued_are_not_read() {
    let redis = Redis::start();
    let console = redis.console().await;
    console
        .run::<()>(&["SET", &redis.keys().events("bad:1"), "x"])
        .await;
    for n in 0..100 {
        schedule(&console, "bad:1", &format!("k{n}"), "1", "1").await;
    }
    let reads = async || {
        let text: String = console.run(&["INFO", "commandstats"]).await;
        let calls = text
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_hget:calls="));
        calls
            .and_then(|calls| calls.split(',').next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let before = reads().await;
    let done = promote(&redis, 256, MIB).await;
    assert_eq!(
        (done.events, done.wrong_count, done.wrong.len()),
        (0, 100, 16)
    );
    assert_eq!(reads().await, before);
}

/// Story: if the key of a statistic had a wrong type, no schedule was promoted. And each of many
/// wakes cost one call.
#[tokio::test]
async fn a_wrong_statistic_and_many_wakes_stop_nothing() {
    let redis = Redis::start();
    let console = redis.console().await;
    let keys = redis.keys();
    console
        .run::<()>(&["SET", &keys.events_scheduled_lateness(), "x"])
        .await;
    for n in 0..50 {
        console
            .run::<()>(&["ZADD", &keys.events_scheduled_wake(), "0", &n.to_string()])
            .await;
    }
    schedule(&console, "work:1", "k", "1", "1").await;
    assert_eq!(promote(&redis, 256, MIB).await.events, 1);
    let wakes: u64 = console.run(&["ZCARD", &keys.events_scheduled_wake()]).await;
    assert_eq!(wakes, 0);
}

/// Story: a Redis user lost the right to HDEL. So an event was pushed without a marker, and was
/// pushed again later.
#[tokio::test]
async fn without_a_right_nothing_is_pushed() {
    let redis = Redis::own(&[]);
    let console = redis.console().await;
    schedule(&console, "work:1", "k", "1", "1").await;
    console
        .run::<()>(&[
            "ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all", "-hdel",
        ])
        .await;
    let mut conn = redis.connect().await;
    redis::cmd("AUTH")
        .arg("worker")
        .arg("x")
        .query_async::<()>(&mut conn)
        .await
        .expect("logged in");
    let denied = wire::promote(&mut conn, redis.keys(), 10, MIB).await;
    assert!(
        matches!(&denied, Err(wire::ScriptError::Denied(command)) if command == "HDEL"),
        "{denied:?}"
    );
    assert_eq!(
        console.list(&redis.keys().events("work:1")).await,
        Vec::<String>::new()
    );
}

/// A Redis user may not write to the queue of one object. The error names the refused command, and
/// the schedule stays.
#[tokio::test]
async fn a_push_that_is_refused_is_told() {
    let redis = Redis::own(&[]);
    let console = redis.console().await;
    schedule(&console, "work:1", "-1", "1", "1").await;
    let queue = redis.keys().events("work:1");
    let rules = [
        "on",
        "nopass",
        "+@all",
        "%R~*",
        &format!("~{}*", redis.keys().events_scheduled()),
    ];
    console
        .run::<()>(&[&["ACL", "SETUSER", "worker", "reset"][..], &rules].concat())
        .await;
    let mut conn = redis.connect().await;
    redis::cmd("AUTH")
        .arg("worker")
        .arg("x")
        .query_async::<()>(&mut conn)
        .await
        .expect("logged in");
    let refused = wire::promote(&mut conn, redis.keys(), 10, MIB)
        .await
        .expect_err("it may not push")
        .to_string();
    // Redis and Valkey word this error differently.
    assert!(
        ["access", "ermission", "NOPERM"]
            .iter()
            .any(|word| refused.contains(word)),
        "{refused}"
    );
    assert_eq!(console.list(&queue).await, Vec::<String>::new());
    assert_eq!(
        console
            .run::<u64>(&["ZCARD", &redis.keys().events_scheduled()])
            .await,
        1
    );
}

/// Story: the object was paused, and its key was replaced again and again after the event was
/// queued. Each time a reference stayed in the queue. A call removes only a bounded number of such
/// references, and loses no event behind them.
#[tokio::test]
async fn references_that_lead_nowhere_are_passed_over_in_bounded_calls() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    state
        .run("SET", &[&keys.worker_lease("w"), "t a 1 1"])
        .await;
    state.run("SET", &[&keys.next_event_id(), "0"]).await;
    for n in 0..700 {
        state
            .run(
                "LPUSH",
                &[&keys.events("work:1"), &format!("\0queued {n} k")],
            )
            .await;
    }
    state
        .run("LPUSH", &[&keys.events("work:1"), "1", "2"])
        .await;
    state
        .run("LPUSH", &[&keys.objects_with_events(), "work:1"])
        .await;
    let bounds = Bounds {
        batch: 10,
        batch_bytes: MIB,
        reply_bytes: MIB,
        claims: 4,
        markers: 100,
        forget_after: None,
        group_depth: 0,
        suspects: Suspects::NONE,
    };
    for queued in [446, 190, 0] {
        let mut call = Advance::new(&keys, "w", "t", bounds, ClaimFirst::Markers);
        (0..4).for_each(|slot| call.free(slot));
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok { batches, more, .. } = answer else {
            panic!("{answer:?}")
        };
        let left: usize = redis::cmd("LLEN")
            .arg(keys.events("work:1"))
            .query_async(&mut state.conn)
            .await
            .expect("a number");
        assert_eq!((left, more), (queued, queued > 0));
        let events: Vec<_> = batches.iter().map(|batch| batch.events.clone()).collect();
        let expected: &[&[&[u8]]] = if queued > 0 { &[] } else { &[&[b"1", b"2"]] };
        assert_eq!(events, expected);
    }
    // The bound is for the whole call, not for each object.
    for n in 0..300 {
        let object = format!("user:{n}");
        state
            .run(
                "LPUSH",
                &[&keys.events(&object), "\0queued 1 k", "\0queued 2 k"],
            )
            .await;
        state
            .run("LPUSH", &[&keys.objects_with_events(), &object])
            .await;
    }
    let mut call = Advance::new(
        &keys,
        "w",
        "t",
        Bounds {
            claims: 512,
            markers: 4096,
            ..bounds
        },
        ClaimFirst::Markers,
    );
    (1..512).for_each(|slot| call.free(slot));
    wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    let markers: usize = redis::cmd("LLEN")
        .arg(keys.objects_with_events())
        .query_async(&mut state.conn)
        .await
        .expect("a number");
    assert_eq!(
        markers,
        300 - 128,
        "two references of each object, 256 in all"
    );
}

/// A key comes due again. Its new reference replaces an older one only if the older one is the
/// newest entry of the queue.
#[tokio::test]
async fn a_key_that_is_due_again_leaves_one_reference_if_nothing_was_queued_between() {
    let redis = Redis::start();
    let console = redis.console().await;
    for key in ["k", "k", "other", "k", "k"] {
        schedule(&console, "work:1", key, "1", "1").await;
        assert_eq!(promote(&redis, 10, MIB).await.events, 1);
    }
    assert_eq!(
        queue(&console, "work:1").await,
        ["\0queued T k", "\0queued T other", "\0queued T k"]
    );
    console.check().await;
}
