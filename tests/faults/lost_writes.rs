//! Redis itself loses writes: by a failover, by a restart, or because its data is deleted. No id is
//! given to a second event.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use seriatim::wire::{
    self, Advance, Advanced, BatchResult, Bounds, ClaimFirst, Connect, Report, Suspects, Tag,
};
use seriatim::worker::StopReason;

use crate::state::State;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

/// Returns the time to which the counter jumps.
fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros() as u64
}

/// Simulates a failover in one step: the server gets another replication id, these commands bring
/// back an earlier state, and all connections are closed.
async fn fail_over(redis: &Redis, earlier: &[&[&str]]) -> Console {
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("DEBUG").arg("CHANGE-REPL-ID");
    for words in earlier {
        pipe.cmd(words[0]).arg(&words[1..]);
    }
    pipe.cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes");
    let _: redis::Value = pipe
        .query_async(&mut redis.connect().await)
        .await
        .expect("an earlier state");
    redis.console().await
}

#[tokio::test]
async fn another_replication_id_makes_the_counter_jump_once() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let workers = ["a", "b", "c"].map(|name| start(&redis, name, &sink, |_| {}));
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    for name in ["a", "b", "c"] {
        console.until_lease(name).await;
    }
    let before = now_us();
    let console = fail_over(&redis, &[]).await;
    for n in 0..60 {
        console.emit(&format!("work:{}", n % 9), "2").await;
    }
    sink.until_sent(61).await;
    for worker in workers {
        worker.finish().await;
    }
    sink.applied();
    // Batches taken before the connections were closed have small ids. The counter jumps only once,
    // although three processes saw the new replication id.
    let counter = console.number(&console.keys.next_event_id()).await;
    assert!((before..now_us()).contains(&counter), "{counter}");
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_counter_that_went_back_jumps_above_every_id_seen() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console
        .emit_all("work:1", (0..50).map(|n| n.to_string()))
        .await;
    sink.until_sent(50).await;
    console.until_at_rest().await;
    // Redis has lost the last writes to the counter and to the object's last id.
    let (counter, last) = (
        console.keys.next_event_id(),
        console.keys.last_event_id("work:1"),
    );
    let console = fail_over(&redis, &[&["SET", &counter, "10"], &["SET", &last, "10"]]).await;
    console.emit("work:1", "50").await;
    sink.until_sent(51).await;
    worker.finish().await;
    let last = sink.sent().pop().expect("an event");
    assert!(last.id > 1_000_000 && last.prev == 10, "{last:?}");
    assert_eq!(
        sink.applied_of("work:1").last().map(String::as_str),
        Some("50"),
        "a receiver takes it"
    );
}

/// Story: the first process to reach an emptied Redis made the counter jump. But this process took
/// the loss of its name's registration for a deletion, and stopped. The other processes found a
/// correct counter and replication id, and stopped as well.
#[tokio::test]
async fn an_emptied_redis_is_worked_on_after_one_lease() {
    let mut redis = Redis::own(&[]);
    let console = redis.console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "2" {
            Act::SendThenWait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let lease = Duration::from_millis(700);
    let workers = ["a", "b"].map(|name| start(&redis, name, &sink, |config| config.lease = lease));
    console.emit("work:1", "1").await;
    console.until_at_rest_after(1).await;
    console.emit("work:1", "2").await;
    gate.until_reached(1).await;
    redis.server().restart();
    let began = Instant::now();
    let console = redis.console().await;
    console.emit("work:1", "3").await;
    for name in ["a", "b"] {
        console.until_lease(name).await;
    }
    assert!(
        began.elapsed() >= lease,
        "an old token may be revived: whoever holds it must have noticed"
    );
    sink.until_sent(3).await;
    for worker in workers {
        worker.finish().await;
    }
    let ids: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.id, offer.prev))
        .collect();
    assert_eq!(ids[..2], [("1".to_owned(), 1, 0), ("2".to_owned(), 2, 1)]);
    // Redis has lost the event in flight with all other data. The id of this event is not given
    // again.
    let (last, prev) = (ids[2].1, ids[2].2);
    assert!(last > 1 && prev == 0, "{ids:?}");
    assert!(last > 2, "the id {last} was given before");
    console.until_at_rest().await;
}

/// Redis goes back to an earlier state, in which the name has the lease of an earlier process. The
/// process waits until this lease ends.
#[tokio::test]
async fn a_revived_token_is_waited_out() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let lease = Duration::from_millis(700);
    let worker = start(&redis, "w", &sink, |config| config.lease = lease);
    console.emit("work:1", "1").await;
    console.until_at_rest_after(1).await;
    let keys = redis.keys();
    let began = Instant::now();
    let half_ms = (lease.as_millis() / 2).to_string();
    let revived = [
        "SET",
        &keys.worker_lease("w"),
        "before elsewhere/1/2 77 5",
        "PX",
        &half_ms,
    ];
    let registered = ["HSET", &keys.event_workers(), "w", "4 before 1"];
    let console = fail_over(&redis, &[&revived, &registered]).await;
    until("it has its name again", PATIENCE, async || {
        let lease = console.text(&keys.worker_lease("w")).await?;
        (!lease.starts_with("before ")).then_some(())
    })
    .await;
    assert!(began.elapsed() >= lease, "{:?}", began.elapsed());
    console.emit("work:1", "2").await;
    sink.until_sent(2).await;
    worker.finish().await;
    let last = sink.sent().pop().expect("an event");
    assert!(last.id > 1_000_000 && last.prev == 1, "{last:?}");
}

/// Story: FLUSHALL under a running worker ended it with exit code 4, although no other process had its
/// name. It attaches again, as after a lapse, and gives ids above all that it has seen. A worker without
/// any event remembers no id, which would tell it that Redis has lost writes.
#[tokio::test]
async fn a_worker_goes_on_after_flushall() {
    for has_event in [true, false] {
        let (redis, console) = Redis::own(&[]).with_console().await;
        let sink = Recorder::new();
        // If a new connection finds the lost writes first, the worker waits for one lease.
        let worker = start(&redis, "w", &sink, |config| {
            config.lease = Duration::from_secs(5)
        });
        if has_event {
            console.emit("work:1", "1").await;
            sink.until_sent(1).await;
            console.until_at_rest().await;
        }
        console.until_idle(1).await;
        let _: () = console.run(&["FLUSHALL"]).await;
        console.emit("work:1", "2").await;
        sink.until_sent(1 + usize::from(has_event)).await;
        console.until_at_rest().await;
        let (first, last) = (sink.sent().remove(0), sink.sent().pop().expect("an event"));
        assert!(
            (last.id > first.id || !has_event) && last.prev == 0,
            "{last:?} after {first:?}"
        );
        worker.finish().await;
    }
}

/// If no process is left that remembers the ids, an operator sets the next id.
#[tokio::test]
async fn the_first_id_can_be_given() {
    let (redis, console) = Redis::start().with_console().await;
    for (first_id, expected) in [(5000, 5000), (0, 5001), (100, 5002)] {
        let sink = Recorder::new();
        console.emit("work:1", "1").await;
        let worker = start(&redis, "w", &sink, |config| config.first_id = first_id);
        sink.until_sent(1).await;
        worker.finish().await;
        assert_eq!(sink.sent()[0].id, expected, "it never goes back");
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_redis_that_is_away() {
    let mut redis = Redis::own(&[]);
    let console = redis.console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    console.until_at_rest_after(1).await;
    // The process waits for markers again, so it has the reply to its commit.
    console.until_idle(1).await;
    redis.server().kill();
    let stopped = worker.stop().await;
    assert_eq!(
        (stopped.reason, stopped.delivered),
        (StopReason::Unreachable, 1)
    );
}

/// Story: power failed twice within a second. The second failure undid the first jump of the
/// counter, and no process was left that remembered this jump. The second jump had a random
/// distance, too, and was shorter. So new events got ids below the ids that receivers had, and
/// receivers dropped them as duplicates.
#[tokio::test]
async fn a_jump_that_nobody_remembers_is_followed_by_one_that_goes_further() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let nobody = Connect::default();
    wire::connect(&mut conn, keys, "replication-0", nobody)
        .await
        .expect("an answer");
    let mut highest = 0;
    for restart in 1..=20 {
        let connected = wire::connect(&mut conn, keys, &format!("replication-{restart}"), nobody)
            .await
            .expect("an answer");
        assert!(
            connected.changed && connected.counter > highest,
            "{connected:?} after {highest}"
        );
        highest = connected.counter + 1;
        // An id is given. Then Redis loses all its data.
        let () = redis::pipe()
            .set(keys.next_event_id(), 7)
            .ignore()
            .query_async(&mut conn)
            .await
            .expect("set");
        let () = redis::cmd("HSET")
            .arg(keys.meta())
            .arg("replication.id")
            .arg("replication-0")
            .query_async(&mut conn)
            .await
            .expect("set");
    }
}

/// If the chosen first id is ahead of the time, the counter cannot jump to the time. It jumps by a
/// distance that differs each time. A second loss may undo the first jump, and then a jump by the
/// same distance would give the same ids again.
#[tokio::test]
async fn a_counter_that_is_ahead_of_the_time_jumps_too() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let first_id = 5_000_000_000_000_000;
    let seen = Connect {
        first_id,
        ..Connect::default()
    };
    let mut counters = Vec::new();
    for replication_id in ["replication-0", "replication-1", "replication-2"] {
        let connected = wire::connect(&mut conn, keys, replication_id, seen)
            .await
            .expect("an answer");
        counters.push(connected.counter);
    }
    let [first, second, third] = counters[..] else {
        panic!("{counters:?}")
    };
    assert_eq!(first, first_id - 1);
    assert!(
        second >= first + 1_000_000 && third >= second + 1_000_000,
        "{counters:?}"
    );
    assert_ne!(third - second, second - first);
}

/// Story: the counter fell below the ids of batches in hand. The caller did not state the highest
/// id that it had seen; a program that claims by hand may leave this out. So new events got ids
/// that batches in hand already had.
#[tokio::test]
async fn ids_of_batches_in_hand_are_not_given_again() {
    let held = BatchResult::Hold {
        rest: tag(7),
        delay: None,
        reason: "stop".into(),
    };
    let results = [BatchResult::Done, BatchResult::Yield, held];
    for (counter, then) in ["6", "7"]
        .into_iter()
        .flat_map(|counter| results.clone().map(|then| (counter, then)))
    {
        let redis = Redis::own(&[]);
        let mut state = State::new(redis.connect().await, redis.keys().clone());
        let keys = state.keys.clone();
        state.register("w", 2).await;
        state.lease("w").await;
        state.own("w.0", "a", 7, &["1", "2"]).await;
        state
            .add("LPUSH a:events 3; LPUSH b:events 4; LPUSH objects.with.events b")
            .await;
        state.run("SET", &[&keys.next_event_id(), counter]).await;
        let bounds = Bounds {
            batch: 10,
            batch_bytes: 1 << 20,
            reply_bytes: 1 << 20,
            claims: 2,
            markers: 100,
            forget_after: None,
            group_depth: 0,
            suspects: Suspects::NONE,
        };
        let held = matches!(then, BatchResult::Hold { .. });
        let (count, last) = if held { (0, None) } else { (2, Some(8)) };
        let mut call = Advance::new(&keys, "w", "token-of-w", bounds, ClaimFirst::Markers);
        call.report(
            0,
            &Report {
                object: "a".into(),
                tag: tag(7),
                count,
                last,
                then,
            },
        );
        call.free(1);
        let answer = wire::advance(&mut state.conn, &call)
            .await
            .expect("an answer");
        let Advanced::Ok { batches, .. } = answer else {
            panic!("{answer:?}")
        };
        assert!(!batches.is_empty());
        for batch in &batches {
            assert!(batch.tag.first > 8, "{batch:?}");
        }
    }
}

/// Returns the tag of a batch that was handed out once.
fn tag(first: u64) -> Tag {
    Tag {
        first,
        ..Tag::default()
    }
}
