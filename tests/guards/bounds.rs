//! Bounds of scripts, at their exact values, and replies about keys that do not exist.

use std::collections::BTreeMap;
use std::time::Duration;

use seriatim::wire::{self, Advance, Advanced, Bounds, ClaimFirst};

use crate::support::{Redis, control};
use crate::{BOUNDS, ask, attached, done, objects, pop};

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
        state
            .run(
                "HSET",
                &[&[state.keys.event_handled("work:1").as_str()], &fields[..]].concat(),
            )
            .await;
        let seen = control
            .inspect("work:1")
            .await
            .expect("inspected")
            .kept_results
            .expect("results");
        assert_eq!(seen.results().len(), shown, "{bytes} bytes");
    }
}

/// `inspect` reads schedules until it has 1 MiB of their events.
#[tokio::test]
async fn schedules_are_read_up_to_1_mib() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (hash, event) = (
        state.keys.events_scheduled_of("work:1"),
        "1".repeat(300_000),
    );
    for n in 0..20 {
        state
            .run("HSET", &[&hash, &format!("key-{n}"), &event])
            .await;
    }
    let seen = control(&state.conn, &state.keys)
        .inspect("work:1")
        .await
        .expect("inspected");
    let read = seen.next_schedules.len();
    assert!(
        (4..20).contains(&read) && seen.schedules == 20,
        "{read} of {}",
        seen.schedules
    );
}

/// A page of the event log ends after the row with which it has 1 MiB.
#[tokio::test]
async fn a_page_of_rows_ends_at_1_mib() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (log, control) = (state.keys.event_log(), control(&state.conn, &state.keys));
    for (bytes, rows) in [((1 << 20) - 1, 2), (1 << 20, 1)] {
        state.run("DEL", &[&log]).await;
        for (id, bytes) in [("1-0", bytes), ("2-0", 100), ("3-0", 100)] {
            state
                .run(
                    "XADD",
                    &[&log, id, "event", &"1".repeat(bytes - "event".len())],
                )
                .await;
        }
        let page = control.log(None, 10).await.expect("a page");
        assert_eq!(
            (page.entries.len(), page.next.is_some()),
            (rows, true),
            "{bytes} bytes"
        );
    }
}

/// A name whose registration is invalid has no slots. The slots of all other names are still read.
#[tokio::test]
async fn a_name_without_slots_hides_no_other() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    state.own("w.0", "work:1", 5, &["1"]).await;
    state
        .run("HSET", &[&keys.event_workers(), "odd", "nonsense"])
        .await;
    state
        .run("ZADD", &[&keys.event_workers_watched(), "1", "odd"])
        .await;
    let seen = control(&state.conn, &keys)
        .inspect("work:1")
        .await
        .expect("inspected");
    assert_eq!(
        (seen.taken_by, seen.names_alive),
        (vec!["w.0".to_owned()], 1)
    );
}

/// A stream that does not exist has no rows, and none was ever written.
#[tokio::test]
async fn an_absent_stream_is_empty() {
    let redis = Redis::start();
    let control = control(&redis.connect().await, redis.keys());
    let log = control.log(None, 10).await.expect("a page");
    assert_eq!(
        (
            log.written,
            log.kept,
            log.end.as_str(),
            log.entries.len(),
            log.next
        ),
        (0, 0, "0-0", 0, None)
    );
    let streams = control.stats().await.expect("stats").streams;
    for stream in [streams.log, streams.dead, streams.actions] {
        assert_eq!(
            (stream.rows, stream.written, stream.oldest_ms),
            (0, 0, None),
            "{streams:?}"
        );
    }
}

/// `advance` reads 2,048 fields of rules; the last object may have 18 more. Each object has a name
/// with eight prefixes of its own, and its own rule: 18 fields. The first object also has the two
/// fields for all objects. So the first 113 objects have 2,036 fields. An object with five prefixes
/// has 12 more, which are exactly the rest; an object with four prefixes leaves 2 fields.
#[tokio::test]
async fn a_call_reads_so_many_fields_of_rules() {
    for (short, expected) in [("113:1:2:3:4:5", 114), ("113:1:2:3:4", 115)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        for n in 0..130 {
            let object = if n == 113 {
                short.to_owned()
            } else {
                format!("{n}:1:2:3:4:5:6:7:8")
            };
            state.emit(&object, "1").await;
            state
                .rule(&format!("pause {object}"), "1 0 0 3 0 ada", "never")
                .await;
        }
        let answer = ask(
            &mut state,
            Bounds {
                markers: 4096,
                ..BOUNDS
            },
        )
        .await
        .expect("an answer");
        assert!(
            matches!(&answer, Advanced::Ok { batches, more: true, .. } if batches.is_empty()),
            "{answer:?}"
        );
        let paused = state.keys.objects_paused();
        assert_eq!(
            redis.console().await.run::<u64>(&["ZCARD", &paused]).await,
            expected
        );
    }
}

/// A call wakes 64 objects, and each counts as 16 fields of rules. The other 1,024 fields are enough
/// to pause 57 objects with a rule each: 20 fields for the first, 18 for each other one.
#[tokio::test]
async fn objects_that_are_woken_count_as_fields_of_rules() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    for n in 0..64 {
        state
            .run("SET", &[&keys.event_worker(&format!("old:{n}")), "held"])
            .await;
        state
            .run("ZADD", &[&keys.objects_paused(), "0", &format!("old:{n}")])
            .await;
    }
    for n in 0..70 {
        let object = format!("{n}:1:2:3:4:5:6:7:8");
        state.emit(&object, "1").await;
        state
            .rule(&format!("pause {object}"), "1 0 0 3 0 ada", "never")
            .await;
    }
    state.rule("pause old:*", "1 0 1 3 0 ada", "0").await;
    ask(
        &mut state,
        Bounds {
            markers: 4096,
            ..BOUNDS
        },
    )
    .await
    .expect("an answer");
    let console = redis.console().await;
    assert_eq!(
        console.run::<u64>(&["ZCARD", &keys.objects_held()]).await,
        64
    );
    assert_eq!(
        console.run::<u64>(&["ZCARD", &keys.objects_paused()]).await,
        57
    );
}

/// The 64 objects that a call wakes may be of several rules, and each rule counts as one of them.
#[tokio::test]
async fn a_call_wakes_so_many_objects_of_all_rules() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    for kind in ["a", "b"] {
        for object in (0..40).map(|n| format!("{kind}:{n}")) {
            state
                .run("SET", &[&keys.event_worker(&object), "held"])
                .await;
            state
                .run("ZADD", &[&keys.objects_paused(), "0", &object])
                .await;
        }
        state
            .rule(&format!("pause {kind}:*"), "1 0 1 3 0 ada", "0")
            .await;
    }
    // As long as a rule is left, there is also the field `next`.
    for (woken, fields) in [(63, 2), (80, 0)] {
        ask(
            &mut state,
            Bounds {
                claims: 0,
                ..BOUNDS
            },
        )
        .await
        .expect("an answer");
        assert_eq!(
            console.run::<u64>(&["ZCARD", &keys.objects_held()]).await,
            woken
        );
        assert_eq!(
            console.run::<u64>(&["HLEN", &keys.event_rules()]).await,
            fields
        );
    }
}

/// A call pauses 256 objects. A lifted rule without objects counts as one of the 64 objects that a
/// call wakes.
#[tokio::test]
async fn a_call_pauses_so_many_objects_and_deletes_so_many_rules() {
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    for n in 0..300 {
        state.emit(&format!("work:{n}"), "1").await;
    }
    for n in 0..100 {
        state
            .rule(&format!("block old:{n}"), "1 0 1 3 0 ada", "0")
            .await;
    }
    state.rule("pause work:*", "1 0 0 3 0 ada", "0").await;
    let bounds = Bounds {
        markers: 4096,
        ..BOUNDS
    };
    for (paused, rules) in [(256, 37), (300, 1)] {
        let answer = ask(&mut state, bounds).await.expect("an answer");
        assert_eq!(objects(&answer), Vec::<&str>::new());
        assert_eq!(
            console.run::<u64>(&["ZCARD", &keys.objects_paused()]).await,
            paused
        );
        // One more field is `next`.
        assert_eq!(
            console.run::<u64>(&["HLEN", &keys.event_rules()]).await,
            rules + 1
        );
    }
}

/// A reply counts as full at 0 bytes. As long as one byte is left, a slot gets a batch of any size:
/// the batch in hand again, the object of a marker or of a popped name, a held batch, or more events
/// of its object.
#[tokio::test]
async fn a_reply_is_full_at_0_bytes() {
    for what in [
        "in hand",
        "marker",
        "popped",
        "popped twice",
        "held",
        "go on",
    ] {
        for (reply_bytes, expected) in [(0, &[][..]), (1, &["work:1"][..])] {
            let redis = Redis::start();
            let mut state = attached(&redis).await;
            let keys = state.keys.clone();
            // A slot that goes on with its object claims nothing.
            let claims = usize::from(what != "go on");
            let mut call = Advance::new(
                &keys,
                "w",
                "token-1",
                Bounds {
                    reply_bytes,
                    claims,
                    ..BOUNDS
                },
                ClaimFirst::Markers,
            );
            match what {
                "in hand" | "go on" => state.own("w.0", "work:1", 1, &["12"]).await,
                "held" => {
                    state
                        .hold("work:1", "1", &["12"], "1 0 1 0 retry: down")
                        .await
                }
                _ => state.emit("work:1", "12").await,
            }
            if what == "popped" || what == "popped twice" {
                pop(&mut state, "w.0").await;
            }
            if what == "popped twice" {
                state.run("LPUSH", &[&keys.worker_object("w.0"), ""]).await;
            }
            if what == "go on" {
                state.run("LPUSH", &[&keys.events("work:1"), "34"]).await;
                call.report(0, &done("work:1", 1));
            } else {
                call.free(0);
            }
            let answer = wire::advance(&mut state.conn, &call)
                .await
                .expect("an answer");
            assert_eq!(
                objects(&answer),
                expected,
                "{what}, {reply_bytes} bytes: {answer:?}"
            );
            let Advanced::Ok { next_due, .. } = answer else {
                panic!("{answer:?}")
            };
            let is_held = expected.is_empty() && ["held", "go on"].contains(&what);
            assert_eq!(
                next_due,
                is_held.then_some(Duration::ZERO),
                "{what}, {reply_bytes} bytes"
            );
        }
    }
}

/// Another call is of use if the reply is full, and not if it has a byte left.
#[tokio::test]
async fn a_full_reply_asks_for_another_call() {
    for (reply_bytes, is_full) in [(1, true), (2, true), (3, false)] {
        let redis = Redis::start();
        let mut state = attached(&redis).await;
        state.emit("work:1", "12").await;
        let answer = ask(
            &mut state,
            Bounds {
                reply_bytes,
                ..BOUNDS
            },
        )
        .await
        .expect("an answer");
        assert_eq!(objects(&answer), ["work:1"]);
        assert!(
            matches!(answer, Advanced::Ok { more, .. } if more == is_full),
            "{reply_bytes} bytes: {answer:?}"
        );
    }
}

/// An event of a schedule with a key counts as twelve of the 4,096 events that a call of `advance`
/// takes.
#[tokio::test]
async fn a_call_claims_so_many_events_with_a_key() {
    const OBJECTS: usize = 400;
    let redis = Redis::start();
    let mut state = attached(&redis).await;
    let keys = state.keys.clone();
    let mut queue = redis::pipe();
    for object in (0..OBJECTS).map(|n| format!("work:{n}")) {
        queue
            .cmd("HSET")
            .arg(keys.events_scheduled_of(&object))
            .arg(&["key", "1"])
            .ignore();
        queue
            .cmd("ZADD")
            .arg(keys.events_scheduled())
            .arg("-1000000000000005")
            .arg(format!(
                "{object}
key"
            ))
            .ignore();
        queue
            .cmd("LPUSH")
            .arg(keys.events(&object))
            .arg("\0queued 5 key")
            .ignore();
        queue
            .cmd("LPUSH")
            .arg(keys.objects_with_events())
            .arg(&object)
            .ignore();
    }
    queue
        .query_async::<()>(&mut state.conn)
        .await
        .expect("queued");
    let bounds = Bounds {
        claims: OBJECTS,
        markers: 4096,
        ..BOUNDS
    };
    let mut call = Advance::new(&keys, "w", "token-1", bounds, ClaimFirst::Markers);
    (0..OBJECTS).for_each(|slot| call.free(slot));
    let answer = wire::advance(&mut state.conn, &call)
        .await
        .expect("an answer");
    assert_eq!(objects(&answer).len(), 342);
}

/// The upper bounds of lateness in ms, as the protocol has them.
const LATENESS_MS: [u64; 16] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000, 600_000, 3_600_000,
];

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
        let (seconds, micros): (u64, u64) = redis::cmd("TIME")
            .query_async(&mut state.conn)
            .await
            .expect("TIME");
        let from_ms = seconds * 1000 + micros / 1000 - 2;
        let due = LATENESS_MS
            .iter()
            .flat_map(|bound| (0..=AROUND_MS).map(move |ms| from_ms + ms - bound));
        let due: Vec<u64> = due.collect();
        let mut write = redis::pipe();
        write
            .cmd("DEL")
            .arg(&[
                &schedules,
                &keys.events_scheduled_lateness(),
                &keys.objects_with_events(),
            ])
            .ignore();
        let mut values = redis::cmd("HSET");
        values.arg(keys.events_scheduled_of("work:1"));
        let mut times = redis::cmd("ZADD");
        times.arg(&schedules);
        for (n, due_ms) in due.iter().enumerate() {
            values.arg(format!("-{n}")).arg("1");
            times.arg(*due_ms).arg(format!("work:1\n-{n}"));
        }
        write
            .add_command(values)
            .ignore()
            .add_command(times)
            .ignore();
        write
            .query_async::<()>(&mut state.conn)
            .await
            .expect("scheduled");
        let reply = wire::promote(&mut state.conn, &keys, 256, 1 << 20)
            .await
            .expect("a reply");
        let mut first = redis::cmd("ZRANGE");
        first.arg(&schedules).arg(&["0", "0", "WITHSCORES"]);
        let first: Vec<(String, f64)> = first.query_async(&mut state.conn).await.expect("ZRANGE");
        let Some(now_ms) = first.first().map(|(_, due_ms)| *due_ms as u64 - 1) else {
            continue;
        };
        if now_ms <= from_ms {
            continue;
        }
        let mut expected = BTreeMap::new();
        for late_ms in due.iter().filter_map(|due_ms| now_ms.checked_sub(*due_ms)) {
            let bound = LATENESS_MS.iter().find(|bound| late_ms <= **bound);
            *expected
                .entry(bound.map_or_else(|| "inf".to_owned(), u64::to_string))
                .or_insert(0) += 1;
        }
        let mut counted = redis::cmd("HGETALL");
        let counted: BTreeMap<String, u64> = counted
            .arg(keys.events_scheduled_lateness())
            .query_async(&mut state.conn)
            .await
            .expect("HGETALL");
        assert_eq!(
            (counted.values().sum::<u64>(), counted),
            (reply.events as u64, expected)
        );
        return;
    }
    panic!("no call came in time");
}
