//! Claims by hand: a program with a loop of its own claims events one by one, and gives the result
//! of each at any time.

use std::time::Duration;

use seriatim::wire::EventLog;
use seriatim::worker::{ClaimError, Claimed, Claims, Worker, WorkerConfig, WorkerError};

use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::Recorder;
use crate::support::running::{config, policy, retrying, start};
use crate::support::{Redis, assert_matches, until};

async fn claims(redis: &Redis, name: &str, change: impl FnOnce(&mut WorkerConfig)) -> Claims {
    let mut config = config(redis, name);
    change(&mut config);
    Worker::builder(redis.url())
        .config(config)
        .claims()
        .await
        .expect("the name is free")
}

async fn next(claims: &Claims) -> Claimed {
    tokio::time::timeout(PATIENCE, claims.next())
        .await
        .expect("there is one")
        .expect("claimed")
}

/// Waits until no event is left. The last claim removes markers that lead to no event.
async fn at_rest(claims: &Claims, console: &Console) {
    until("nothing more is there", PATIENCE, async || {
        claims
            .try_next()
            .await
            .expect("asked")
            .is_none()
            .then_some(())
    })
    .await;
    console.until_at_rest().await;
}

/// Waits until no event is left, and closes the claims.
async fn finish(claims: Claims, console: &Console) {
    at_rest(&claims, console).await;
    claims.close().await;
}

fn numbers(claimed: &Claimed) -> (String, String, u64, u64) {
    let event = claimed.event();
    (
        event.object.to_string(),
        String::from_utf8_lossy(&event.payload).into_owned(),
        event.id,
        event.prev,
    )
}

fn event(object: &str, text: &str, id: u64, prev: u64) -> (String, String, u64, u64) {
    (object.to_owned(), text.to_owned(), id, prev)
}

/// The events of an object are claimed one at a time and in order, with events of other objects
/// between them. If there is no event, `try_next` does not wait.
#[tokio::test]
async fn events_are_claimed_one_by_one_and_in_order() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |_| {}).await;
    assert!(worker.try_next().await.expect("asked").is_none());
    console.emit_all("work:1", ["1", "2"]).await;
    let mut first = next(&worker).await;
    assert_eq!(
        (numbers(&first), first.attempt(), first.crashes()),
        (event("work:1", "1", 1, 0), 1, 0)
    );
    assert!(
        worker.try_next().await.expect("asked").is_none(),
        "the second event waits for the first one"
    );
    console.emit("work:2", "3").await;
    let mut other = worker
        .try_next()
        .await
        .expect("asked")
        .expect("another object's");
    assert_eq!(numbers(&other), event("work:2", "3", 2, 0));
    console.check().await;
    first.commit().await.expect("committed");
    let mut second = next(&worker).await;
    assert_eq!(numbers(&second), event("work:1", "2", 3, 1));
    second.commit().await.expect("committed");
    other.commit().await.expect("committed");
    finish(worker, &console).await;
    assert_eq!(console.text(&console.keys.worker_lease("w")).await, None);
}

/// An event wakes a waiting caller. If the program claims no more, another worker takes the next
/// event.
#[tokio::test]
async fn what_is_not_asked_for_is_not_taken() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| config.block = Duration::from_secs(1)).await;
    let (mut claimed, ()) = tokio::join!(next(&worker), async {
        console.until_idle(1).await;
        console.emit_all("work:1", ["1", "2", "3"]).await;
    });
    claimed.commit().await.expect("committed");
    let sink = Recorder::new();
    let other = start(&redis, "other", &sink, |_| {});
    sink.until_sent(2).await;
    other.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .iter()
        .map(|offer| (offer.text(), offer.prev))
        .collect();
    assert_eq!(sent, [("2".to_owned(), 1), ("3".to_owned(), 2)]);
    worker.close().await;
    console.until_at_rest().await;
}

/// Only the first result of an event counts. A second result, equal or not, changes nothing.
#[tokio::test]
async fn the_first_answer_counts() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", retrying("fixed:1h")).await;
    console.emit_all("work:1", ["1", "2", "3"]).await;
    let mut first = next(&worker).await;
    for _ in 0..3 {
        first.commit().await.expect("committed");
    }
    first
        .retry("too late", None)
        .await
        .expect("nothing is done");
    first.reject("too late").await.expect("nothing is done");
    drop(first);
    let mut second = next(&worker).await;
    for _ in 0..2 {
        second
            .retry("busy", Some(Duration::from_secs(1000)))
            .await
            .expect("held");
    }
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("2 0 1 0 retry: busy")
    );
    console.release("work:1").await;
    let mut again = next(&worker).await;
    assert_eq!(
        (numbers(&again), again.attempt()),
        (event("work:1", "2", 2, 1), 2)
    );
    // The first hand-out already has a result. A second result of it changes nothing.
    second.commit().await.expect("nothing is done");
    again.reject("no such thing").await.expect("rejected");
    again
        .reject("no such thing")
        .await
        .expect("nothing is done");
    let mut third = next(&worker).await;
    assert_eq!(numbers(&third), event("work:1", "3", 3, 1));
    third.commit().await.expect("committed");
    at_rest(&worker, &console).await;
    assert_eq!(console.dead().await.len(), 1);
    worker.close().await;
}

/// The retry policy ends the attempts, as for a worker with a sink.
#[tokio::test]
async fn attempts_end_as_the_policy_says() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(
        &redis,
        "w",
        retrying("fixed:1ms,attempts=2,then=dead-letter"),
    )
    .await;
    console.emit("work:1", "1").await;
    for attempt in 1..=2 {
        let mut claimed = next(&worker).await;
        assert_eq!(claimed.attempt(), attempt);
        claimed.retry("down", None).await.expect("taken");
    }
    at_rest(&worker, &console).await;
    assert_eq!(console.dead().await.len(), 1);
    worker.close().await;
}

/// An event that the program drops without a result counts a failed attempt. If the caller no
/// longer waits when its event is claimed, no attempt is counted.
#[tokio::test]
async fn what_is_dropped_comes_again() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| config.concurrency = 1).await;
    console.emit("work:1", "1").await;
    drop(next(&worker).await);
    let mut again = next(&worker).await;
    assert_eq!(
        (numbers(&again), again.attempt()),
        (event("work:1", "1", 1, 0), 2)
    );
    again.commit().await.expect("committed");
    at_rest(&worker, &console).await;
    let waiting = tokio::time::timeout(Duration::from_millis(1), worker.next()).await;
    assert!(waiting.is_err(), "there is nothing");
    console.emit("work:1", "2").await;
    let mut second = next(&worker).await;
    assert_eq!(
        (numbers(&second), second.attempt()),
        (event("work:1", "2", 2, 1), 1)
    );
    second.commit().await.expect("committed");
    finish(worker, &console).await;
}

/// At most as many events are claimed as there are slots. The next caller waits for a slot.
#[tokio::test]
async fn slots_bound_what_is_claimed() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| config.concurrency = 2).await;
    for object in ["work:1", "work:2", "work:3"] {
        console.emit(object, "1").await;
    }
    let (mut first, mut second) = (next(&worker).await, next(&worker).await);
    assert!(worker.try_next().await.expect("asked").is_none());
    let (mut third, ()) = tokio::join!(next(&worker), async {
        first.commit().await.expect("committed")
    });
    second.commit().await.expect("committed");
    third.commit().await.expect("committed");
    finish(worker, &console).await;
}

/// A program that claims by hand gets a held batch of another worker event by event, with the same
/// ids.
#[tokio::test]
async fn a_batch_of_another_worker_comes_one_by_one() {
    let (redis, console) = Redis::start().with_console().await;
    let other = claims(&redis, "other", |_| {}).await;
    let sink = Recorder::with(|_| {
        crate::support::recorder::Act::Stop(seriatim::sink::Stop::transient("down"))
    });
    console
        .emit_all("work:1", ["1", "2", "3", "not JSON", "5"])
        .await;
    let worker = start(&redis, "w", &sink, retrying("fixed:1h"));
    console.until_held("work:1", "retry").await;
    worker.finish().await;
    console.release("work:1").await;
    for (text, id, prev) in [("1", 1, 0), ("2", 2, 1), ("3", 3, 2), ("5", 5, 3)] {
        let mut claimed = next(&other).await;
        assert_eq!(numbers(&claimed), event("work:1", text, id, prev));
        console.check().await;
        claimed.commit().await.expect("committed");
    }
    at_rest(&other, &console).await;
    assert_eq!(console.dead().await.len(), 1);
    other.close().await;
}

/// `close` gives back the events without a result, and counts no attempt. A program that drops its
/// claims without `close` also gives them back.
#[tokio::test]
async fn a_close_gives_everything_back() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit("work:1", "1").await;
    for close in [true, false] {
        let worker = claims(&redis, "w", |_| {}).await;
        let mut claimed = next(&worker).await;
        assert_eq!((claimed.attempt(), claimed.crashes()), (1, 0));
        if close {
            worker.close().await;
        } else {
            drop(worker);
            until("it is given back", PATIENCE, async || {
                console
                    .text(&console.keys.worker_lease("w"))
                    .await
                    .is_none()
                    .then_some(())
            })
            .await;
        }
        assert!(claimed.cancelled().is_cancelled());
        assert_matches!(claimed.commit().await, Err(ClaimError::Lost));
        assert_eq!(console.owner("work:1").await.as_deref(), Some("held"));
    }
    let worker = claims(&redis, "w", |_| {}).await;
    next(&worker).await.commit().await.expect("committed");
    finish(worker, &console).await;
}

/// After a lapse of the lease the program has lost its claimed events. The process attaches again,
/// and the event comes again with its id.
#[tokio::test]
async fn after_a_lapse_the_event_comes_again() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| {
        config.lease = Duration::from_millis(600)
    })
    .await;
    console.emit("work:1", "1").await;
    let mut first = next(&worker).await;
    console.end_lease("w").await;
    let mut again = next(&worker).await;
    assert_eq!((numbers(&again), again.crashes()), (numbers(&first), 0));
    assert_matches!(first.commit().await, Err(ClaimError::Lost));
    again.commit().await.expect("committed");
    finish(worker, &console).await;
}

/// Another process takes over the name. The first program gets errors, and its claimed events come
/// to the other process.
#[tokio::test]
async fn a_name_taken_over_ends_the_claims() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| {
        config.lease = Duration::from_millis(600)
    })
    .await;
    console.emit("work:1", "1").await;
    let mut first = next(&worker).await;
    let other = claims(&redis, "w", |config| config.takeover = true).await;
    let ended = tokio::time::timeout(PATIENCE, worker.next())
        .await
        .expect("it ends")
        .expect_err("the name is another's");
    assert_matches!(ended, ClaimError::Ended(why) if matches!(**why, WorkerError::Fenced { .. }));
    assert_matches!(first.commit().await, Err(ClaimError::Lost));
    let mut again = next(&other).await;
    assert_eq!(
        (numbers(&again), again.crashes()),
        (event("work:1", "1", 1, 0), 1)
    );
    again.commit().await.expect("committed");
    at_rest(&other, &console).await;
    worker.close().await;
    other.close().await;
}

/// If Redis closes every connection, claimed events are committed over a new connection.
#[tokio::test]
async fn claims_go_on_over_new_connections() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |_| {}).await;
    let kill = async |console: &Console| {
        let _: u64 = console
            .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
    };
    for n in 1..=5u64 {
        let (mut claimed, ()) = tokio::join!(next(&worker), async {
            kill(&console).await;
            console.emit("work:1", n.to_string()).await;
            kill(&console).await;
        });
        assert_eq!(numbers(&claimed), event("work:1", &n.to_string(), n, n - 1));
        kill(&console).await;
        claimed.commit().await.expect("committed");
    }
    finish(worker, &console).await;
}

/// An object with many events yields: another object's event is claimed before its third event.
#[tokio::test]
async fn an_object_with_many_events_leaves_room() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| config.concurrency = 1).await;
    console
        .emit_all("busy", (0..20).map(|n| n.to_string()))
        .await;
    next(&worker).await.commit().await.expect("committed");
    console.emit("other", "1").await;
    let mut objects = Vec::new();
    for _ in 0..20 {
        let mut claimed = next(&worker).await;
        objects.push(claimed.event().object.to_string());
        claimed.commit().await.expect("committed");
    }
    let at = objects
        .iter()
        .position(|object| object == "other")
        .expect("it is claimed");
    assert!(at < 3, "{objects:?}");
    finish(worker, &console).await;
}

/// With the event log on, each result writes a row, as for a worker with a sink.
#[tokio::test]
async fn what_is_answered_is_logged() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| {
        config.event_log = Some(EventLog::default());
        config.retry = policy("fixed:1ms,attempts=1,then=complete-with-errors");
    })
    .await;
    console
        .emit_all("work:1", ["1", "2", "3", "no JSON", "5"])
        .await;
    next(&worker).await.commit().await.expect("committed");
    next(&worker).await.reject("never").await.expect("rejected");
    next(&worker)
        .await
        .retry("busy", None)
        .await
        .expect("completed with errors");
    next(&worker).await.commit().await.expect("committed");
    at_rest(&worker, &console).await;
    let page = redis.control().await.log(None, 100).await.expect("the log");
    let rows: Vec<_> = page
        .entries
        .iter()
        .map(|row| (row.status.to_string(), row.id, row.prev))
        .collect();
    let expected = [
        ("completed", 1, 0),
        ("dead", 2, 1),
        ("completed_with_errors", 3, 1),
        ("dead", 4, 1),
        ("completed", 5, 1),
    ];
    assert_eq!(
        rows,
        expected.map(|(status, id, prev)| (status.to_owned(), Some(id), Some(prev)))
    );
    assert!(
        page.entries
            .iter()
            .all(|row| row.taken_ms.is_some_and(|taken| taken <= row.finalized_ms)),
        "{page:?}"
    );
    worker.close().await;
}

/// `try_next` finds an event even behind 3,000 markers that lead to no event.
#[tokio::test]
async fn what_is_behind_many_markers_is_found() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |_| {}).await;
    for _ in 0..3000 {
        console.add("LPUSH objects.with.events nothing").await;
    }
    console.emit("work:1", "1").await;
    let mut claimed = worker.try_next().await.expect("asked").expect("an event");
    assert_eq!(numbers(&claimed), event("work:1", "1", 1, 0));
    claimed.commit().await.expect("committed");
    finish(worker, &console).await;
}

/// Story: an event that was claimed for `next()` counted as seen before the future returned it. If
/// a `select!` dropped the future in between, the event counted as "dropped without an answer".
/// With one attempt and dead letters, ten of ten events became dead letters, unseen.
#[tokio::test]
async fn an_event_that_next_never_returned_is_given_back() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(
        &redis,
        "w",
        retrying("fixed:1ms,attempts=1,then=dead-letter"),
    )
    .await;
    for n in 1..=10u64 {
        {
            let waiting = worker.next();
            tokio::pin!(waiting);
            // Polls the future once. Then the future is dropped unfinished.
            tokio::select! {
                biased;
                claimed = &mut waiting => panic!("nothing is there: {claimed:?}"),
                () = std::future::ready(()) => {}
            }
            console.emit("work:1", n.to_string()).await;
            let owner = console.keys.event_worker("work:1");
            until("it is claimed", PATIENCE, async || {
                console.text(&owner).await
            })
            .await;
            // One more round trip, so that the reply of the claim has arrived.
            console.run::<String>(&["PING"]).await;
        }
        let mut claimed = next(&worker).await;
        assert_eq!((numbers(&claimed).1, claimed.attempt()), (n.to_string(), 1));
        claimed.commit().await.expect("committed");
    }
    assert_eq!(console.dead().await.len(), 0);
    finish(worker, &console).await;
}

/// Returns a number of `INFO`, e.g. `total_connections_received`.
async fn figure(console: &Console, section: &str, name: &str) -> u64 {
    let info: String = console.run(&["INFO", section]).await;
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or("0")
        .trim();
    let value = value.strip_prefix("calls=").unwrap_or(value);
    value
        .split(',')
        .next()
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

/// Waits until Redis has run this many more pops.
async fn pops_pass(console: &Console, more: u64) {
    let pops = async || figure(console, "commandstats", "cmdstat_blmove").await;
    let seen = pops().await;
    until("pops pass", PATIENCE, async || {
        (pops().await >= seen + more).then_some(())
    })
    .await;
}

/// Story: each waiting `next()` had its own connection. Now all callers share one pop, and as many
/// callers wake as there are events.
#[tokio::test]
async fn any_number_of_waiters_shares_one_wait() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    for waiters in [64, 1024] {
        let worker = claims(&redis, "w", |config| config.concurrency = 1024).await;
        let worker = std::sync::Arc::new(worker);
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..waiters {
            let worker = std::sync::Arc::clone(&worker);
            waiting.spawn(async move { worker.next().await });
        }
        // The first pops open connections that then stay open.
        pops_pass(&console, 5).await;
        let connections = async || figure(&console, "stats", "total_connections_received").await;
        let before = connections().await;
        pops_pass(&console, 40).await;
        assert_eq!(connections().await, before, "{waiters} waiters");
        let objects: Vec<String> = (0..waiters)
            .map(|n| format!("work:{waiters}:{n}"))
            .collect();
        for object in &objects {
            console.emit(object, "1").await;
        }
        let mut claimed = Vec::new();
        while let Some(next) = waiting.join_next().await {
            claimed.push(next.expect("no panic").expect("claimed"));
        }
        let mut found: Vec<String> = claimed
            .iter()
            .map(|claimed| claimed.event().object.to_string())
            .collect();
        found.sort_unstable();
        let mut expected = objects.clone();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(connections().await, before);
        for claimed in &mut claimed {
            claimed.commit().await.expect("committed");
        }
        let worker = std::sync::Arc::into_inner(worker);
        finish(worker.expect("nobody else has it"), &console).await;
    }
}

/// Story: 64 callers asked again and again with a time limit, so each dropped its future of
/// `next()`. Together they opened 63 new connections a second.
#[tokio::test]
async fn waiters_that_give_up_and_ask_again_open_no_connections() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let worker = std::sync::Arc::new(claims(&redis, "w", |config| config.concurrency = 256).await);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let worker = std::sync::Arc::clone(&worker);
        waiting.spawn(async move {
            loop {
                drop(tokio::time::timeout(Duration::from_millis(60), worker.next()).await);
            }
        });
    }
    pops_pass(&console, 5).await;
    let connections = async || figure(&console, "stats", "total_connections_received").await;
    let before = connections().await;
    pops_pass(&console, 60).await;
    assert_eq!(connections().await, before);
    waiting.shutdown().await;
    let worker = std::sync::Arc::into_inner(worker);
    finish(worker.expect("nobody else has it"), &console).await;
}

/// Story: a caller waited, and the result of another caller made an event due soon. The waiting
/// caller got the event only after the block time of its pop, up to a second later.
#[tokio::test]
async fn an_object_that_becomes_due_during_the_wait_is_claimed() {
    let (redis, console) = Redis::start().with_console().await;
    let worker = claims(&redis, "w", |config| config.block = Duration::from_secs(1)).await;
    console.emit("work:1", "1").await;
    let mut claimed = next(&worker).await;
    let began = std::time::Instant::now();
    for attempt in 2..=30 {
        let (again, ()) = tokio::join!(next(&worker), async {
            console.until_idle(1).await;
            claimed
                .retry("busy", Some(Duration::from_millis(1)))
                .await
                .expect("held");
        });
        claimed = again;
        assert_eq!(
            (numbers(&claimed), claimed.attempt()),
            (event("work:1", "1", 1, 0), attempt)
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    claimed.commit().await.expect("committed");
    finish(worker, &console).await;
}
