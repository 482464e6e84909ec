//! Recover: after any death the same events come again, with the same ids and the same prev, and in
//! order.

use std::time::Duration;

use seriatim::sink::Stop;

use crate::support::console::{Console, PATIENCE};
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{Running, start, start_at};
use crate::support::{Redis, until};

/// Returns the text, the id and the `prev` of each delivered event.
fn offered(sink: &Recorder) -> Vec<(String, u64, u64)> {
    sink.sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.id, offer.prev))
        .collect()
}

fn expected(events: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    events
        .iter()
        .map(|(text, id, prev)| ((*text).to_owned(), *id, *prev))
        .collect()
}

/// Kills the process. Then starts a process with the same name, or another process that takes over
/// the name.
async fn succeed(
    redis: &Redis,
    console: &Console,
    dead: Running,
    sink: &Recorder,
    same_name: bool,
) -> Running {
    dead.crash().await;
    if same_name {
        console.end_lease("w").await;
        return start(redis, "w", sink, |_| {});
    }
    let other = start(redis, "other", sink, |_| {});
    console.end_lease("w").await;
    other
}

async fn crash_before_send(same_name: bool) {
    let (redis, console) = Redis::start().with_console().await;
    let before = Recorder::with(|offer| match offer.text().as_str() {
        "1" => Act::Send,
        _ => Act::Wait(Gate::closed()),
    });
    let worker = start(&redis, "w", &before, |config| config.batch = 1);
    console.emit("work:1", "1").await;
    console.emit("work:1", "2").await;
    before.until_offered(2).await;
    let after = Recorder::new();
    let worker = succeed(&redis, &console, worker, &after, same_name).await;
    after.until_sent(1).await;
    assert_eq!(offered(&before), expected(&[("1", 1, 0)]));
    assert_eq!(offered(&after), expected(&[("2", 2, 1)]));
    assert_eq!(after.sent()[0].crashes, 1);
    worker.finish().await;
    console.until_at_rest().await;
}

#[tokio::test]
async fn crash_before_send_then_restart() {
    crash_before_send(true).await;
}

#[tokio::test]
async fn crash_before_send_then_takeover() {
    crash_before_send(false).await;
}

async fn crash_after_send(same_name: bool) {
    let (redis, console) = Redis::start().with_console().await;
    let before = Recorder::with(|offer| match offer.text().as_str() {
        "3" => Act::SendThenWait(Gate::closed()),
        _ => Act::Send,
    });
    console.emit_all("work:1", ["1", "2", "3", "4"]).await;
    let worker = start(&redis, "w", &before, |_| {});
    before.until_sent(3).await;
    let after = Recorder::new();
    let worker = succeed(&redis, &console, worker, &after, same_name).await;
    after.until_sent(4).await;
    // The whole batch comes again, including the events that the dead process had delivered. The
    // receiver's rule recognizes these as duplicates.
    assert_eq!(
        offered(&before),
        expected(&[("1", 1, 0), ("2", 2, 1), ("3", 3, 2)])
    );
    assert_eq!(
        offered(&after),
        expected(&[("1", 1, 0), ("2", 2, 1), ("3", 3, 2), ("4", 4, 3)])
    );
    worker.finish().await;
    console.until_at_rest().await;
}

#[tokio::test]
async fn crash_after_send_then_restart() {
    crash_after_send(true).await;
}

#[tokio::test]
async fn crash_after_send_then_takeover() {
    crash_after_send(false).await;
}

/// The commit took effect, but its reply was lost. The reply had the slot's next batch.
async fn crash_after_commit(same_name: bool) {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let before = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &before, |config| config.batch = 2);
    console.emit("warm:up", "0").await;
    console.until_at_rest_after(1).await;
    proxy.lose_next(&["done"], Lose::Reply, true);
    console.emit_all("work:1", ["1", "2", "3"]).await;
    proxy.until_lost(1).await;
    assert_eq!(offered(&before)[1..], expected(&[("1", 2, 0), ("2", 3, 2)]));
    assert_eq!(console.last_id("work:1").await, 3, "the commit happened");
    let after = Recorder::new();
    let worker = succeed(&redis, &console, worker, &after, same_name).await;
    after.until_sent(1).await;
    assert_eq!(offered(&after), expected(&[("3", 4, 3)]));
    worker.finish().await;
    console.until_at_rest().await;
}

#[tokio::test]
async fn crash_after_commit_then_restart() {
    crash_after_commit(true).await;
}

#[tokio::test]
async fn crash_after_commit_then_takeover() {
    crash_after_commit(false).await;
}

/// The commit did not reach Redis. The event was delivered, but the object was not released.
async fn crash_before_release(same_name: bool) {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let before = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &before, |_| {});
    console.emit("warm:up", "0").await;
    console.until_at_rest_after(1).await;
    proxy.lose_next(&["done"], Lose::Request, true);
    console.emit("work:1", "1").await;
    proxy.until_lost(1).await;
    // A second event comes in between. Its marker may be dropped. The event waits behind the first
    // event.
    console.emit("work:1", "2").await;
    let after = Recorder::new();
    let worker = succeed(&redis, &console, worker, &after, same_name).await;
    after.until_sent(2).await;
    assert_eq!(offered(&before)[1..], expected(&[("1", 2, 0)]));
    assert_eq!(offered(&after), expected(&[("1", 2, 0), ("2", 3, 2)]));
    worker.finish().await;
    console.until_at_rest().await;
}

#[tokio::test]
async fn crash_before_release_then_restart() {
    crash_before_release(true).await;
}

#[tokio::test]
async fn crash_before_release_then_takeover() {
    crash_before_release(false).await;
}

/// The last commit released the object, but the process died before it got the reply.
#[tokio::test]
async fn crash_after_release_leaves_nothing_behind() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let before = Recorder::new();
    let worker = start_at(proxy.url(), &redis, "w", &before, |_| {});
    console.emit("warm:up", "0").await;
    console.until_at_rest_after(1).await;
    proxy.lose_next(&["done"], Lose::Reply, true);
    console.emit("work:1", "1").await;
    proxy.until_lost(1).await;
    console.until_at_rest().await;
    let after = Recorder::new();
    let worker = succeed(&redis, &console, worker, &after, true).await;
    console.emit("work:1", "2").await;
    after.until_sent(1).await;
    assert_eq!(offered(&after), expected(&[("2", 3, 2)]));
    worker.finish().await;
}

/// Processes die at any point, each time with all slots busy. By the receiver's rule, every event
/// is applied once and in order.
#[tokio::test]
async fn deaths_at_any_point_lose_and_reorder_nothing() {
    const EVENTS: usize = 600;
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    for n in 0..EVENTS {
        console
            .emit(&format!("work:{}", n % 9), n.to_string())
            .await;
    }
    let mut last = 0;
    for death in 1.. {
        let worker = start(&redis, "w", &sink, |config| {
            config.batch = 4;
            config.crashes_max = 1000;
        });
        let some = last + 13 + death % 17;
        if some >= EVENTS {
            sink.until_sent(EVENTS).await;
            until("all is applied", PATIENCE, async || {
                (sink.applied().values().map(Vec::len).sum::<usize>() == EVENTS).then_some(())
            })
            .await;
            worker.finish().await;
            break;
        }
        until("it got some way", PATIENCE, async || {
            (sink.applied().values().map(Vec::len).sum::<usize>() >= some).then_some(())
        })
        .await;
        worker.crash().await;
        console.check().await;
        console.end_lease("w").await;
        last = sink.applied().values().map(Vec::len).sum();
    }
    for object in 0..9 {
        assert!(
            sink.applied_of(&format!("work:{object}"))
                .into_iter()
                .eq((object..EVENTS).step_by(9).map(|n| n.to_string()))
        );
    }
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_restart_with_fewer_slots_holds_what_the_others_had() {
    let (redis, console) = Redis::start().with_console().await;
    let before = Recorder::with(|_| Act::Wait(Gate::closed()));
    let worker = start(&redis, "w", &before, |config| config.concurrency = 6);
    for n in 0..6 {
        console.emit_all(&format!("work:{n}"), ["1", "2"]).await;
    }
    before.until_offered(6).await;
    worker.crash().await;
    console.end_lease("w").await;

    let gate = Gate::closed();
    let held_up = gate.clone();
    let after = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let worker = start(&redis, "w", &after, |config| config.concurrency = 2);
    gate.until_reached(2).await;
    // The new process has only two slots. The batches of the other four slots are held, due at
    // once. The two slots continue with their own batches.
    let held: Vec<String> = console
        .run(&["ZRANGE", &console.keys.objects_held(), "0", "-1"])
        .await;
    assert_eq!(held.len(), 4);
    for object in &held {
        let why = console.held_id(object).await.expect("held");
        assert!(why.ends_with(" 0 0 1 slots"), "{why}");
    }
    let slots: String = console
        .run(&["HGET", &console.keys.event_workers(), "w"])
        .await;
    assert!(
        slots.starts_with("6 "),
        "the number of slots never goes down: {slots}"
    );
    gate.open();
    after.until_sent(12).await;
    worker.finish().await;
    let mut first: Vec<_> = before
        .offered()
        .into_iter()
        .map(|offer| (offer.object, offer.id, offer.prev))
        .collect();
    let mut again: Vec<_> = after
        .offered()
        .into_iter()
        .filter(|o| o.text() == "1")
        .map(|offer| (offer.object, offer.id, offer.prev))
        .collect();
    first.sort();
    again.sort();
    assert_eq!(first, again);
    console.until_at_rest().await;
}

#[tokio::test]
async fn a_process_that_never_returns_is_taken_over_when_its_lease_ends() {
    let (redis, console) = Redis::start().with_console().await;
    let before = Recorder::with(|_| Act::Wait(Gate::closed()));
    let worker = start(&redis, "w", &before, |config| {
        config.lease = Duration::from_millis(1500)
    });
    console.emit_all("work:1", ["1", "2"]).await;
    console.emit_all("work:2", ["1"]).await;
    before.until_offered(2).await;
    let after = Recorder::new();
    let other = start(&redis, "other", &after, |_| {});
    console.until_lease("other").await;
    assert_eq!(after.offered(), [], "a live process keeps what it has");
    worker.crash().await;
    after.until_sent(3).await;
    other.finish().await;
    let mut again: Vec<_> = after
        .sent()
        .iter()
        .map(|offer| (offer.object.clone(), offer.text(), offer.crashes))
        .collect();
    again.sort();
    let one = |object: &str, text: &str| (object.to_owned(), text.to_owned(), 1);
    // The events behind a suspect in its batch are still delivered one by one, so they keep one
    // crash.
    assert_eq!(
        again,
        [one("work:1", "1"), one("work:1", "2"), one("work:2", "1")]
    );
    assert!(after.sent().iter().all(|offer| offer.batch == 1));
    console.until_at_rest().await;
}

#[tokio::test]
async fn an_event_that_kills_its_worker_is_held_for_an_operator() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit_all("work:1", ["1", "2", "3"]).await;
    let deadly = || {
        Recorder::with(|offer| {
            if offer.text() == "2" {
                Act::Wait(Gate::closed())
            } else {
                Act::Send
            }
        })
    };
    for death in 1..=5 {
        let sink = deadly();
        let worker = start(&redis, "w", &sink, |_| {});
        until("it has the event in hand", PATIENCE, async || {
            sink.offered()
                .iter()
                .any(|offer| offer.text() == "2")
                .then_some(())
        })
        .await;
        let suspect = sink.offered().pop().expect("an offer");
        if death > 1 {
            assert_eq!(
                (suspect.batch, suspect.crashes),
                (1, if death == 2 { 1 } else { death - 1 })
            );
        }
        worker.crash().await;
        console.end_lease("w").await;
    }
    let sink = deadly();
    let worker = start(&redis, "w", &sink, |_| {});
    let held = console.until_held("work:1", "crashes").await;
    assert!(
        held.ends_with(" 5 crashes: died 5 times with this event in hand"),
        "{held}"
    );
    let id: u64 = held
        .split(' ')
        .next()
        .expect("an id")
        .parse()
        .expect("a number");
    assert_eq!(console.due("work:1").await, Some(f64::INFINITY));
    assert_eq!(
        console.list(&console.keys.events_held("work:1")).await,
        ["2", "3"]
    );
    // Other objects are still served.
    console.emit("work:2", "1").await;
    sink.until_sent(1).await;
    worker.stop().await;

    // The operator has repaired the cause of the deaths.
    let mended = Recorder::new();
    let worker = start(&redis, "w", &mended, |_| {});
    console.until_lease("w").await;
    console.release("work:1").await;
    mended.until_sent(2).await;
    worker.finish().await;
    let sent: Vec<_> = mended
        .sent()
        .into_iter()
        .map(|offer| (offer.text(), offer.id, offer.prev))
        .collect();
    assert_eq!(sent, expected(&[("2", id, id - 1), ("3", id + 1, id)]));
    console.until_at_rest().await;
}

/// An event kills five processes, and each time another process takes over. The event is then held
/// for an operator.
#[tokio::test]
async fn an_event_that_kills_one_worker_after_the_other_is_held_for_an_operator() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit("work:1", "1").await;
    for name in ["a", "b", "c", "d", "e"] {
        let sink = Recorder::with(|_| Act::Wait(Gate::closed()));
        let worker = start(&redis, name, &sink, |_| {});
        sink.until_offered(1).await;
        worker.crash().await;
        console.end_lease(name).await;
    }
    let sink = Recorder::new();
    let worker = start(&redis, "f", &sink, |_| {});
    let held = console.until_held("work:1", "crashes").await;
    assert_eq!(
        held,
        "1 4 0 5 crashes: died 5 times with this event in hand"
    );
    assert_eq!(
        (console.due("work:1").await, sink.offered()),
        (Some(f64::INFINITY), Vec::new())
    );
    console.release("work:1").await;
    sink.until_sent(1).await;
    assert_eq!((sink.sent()[0].id, sink.sent()[0].crashes), (1, 5));
    worker.finish().await;
    console.until_at_rest().await;
}

/// A process that reports a failure has survived the event. So the deaths before, of which another
/// event may be the cause, do not add up with a death much later.
#[tokio::test]
async fn deaths_before_a_failure_do_not_hold_an_event() {
    let (redis, console) = Redis::start().with_console().await;
    console.emit("work:1", "1").await;
    let die = async |name: &str, crashes| {
        let sink = Recorder::with(|_| Act::Wait(Gate::closed()));
        let worker = start(&redis, name, &sink, |_| {});
        sink.until_offered(1).await;
        assert_eq!(sink.offered()[0].crashes, crashes);
        worker.crash().await;
        console.end_lease(name).await;
    };
    for (name, crashes) in [("a", 0), ("b", 1), ("c", 2), ("d", 3)] {
        die(name, crashes).await;
    }
    let fails = Recorder::with(|_| Act::Stop(Stop::transient("down")));
    let worker = start(&redis, "e", &fails, |_| {});
    console.until_held("work:1", "retry: down").await;
    worker.stop().await;
    assert_eq!(fails.offered()[0].crashes, 4);
    die("f", 1).await;
    let sink = Recorder::new();
    let worker = start(&redis, "g", &sink, |_| {});
    sink.until_sent(1).await;
    assert_eq!(sink.sent()[0].crashes, 2);
    worker.finish().await;
    console.until_at_rest().await;
}

/// After a death, the whole batch is delivered one event at a time, because each of its events may
/// be the killer.
#[tokio::test]
async fn a_suspect_batch_is_delivered_one_event_at_a_time() {
    let (redis, console) = Redis::start().with_console().await;
    console
        .emit_all("work:1", (0..5).map(|n| n.to_string()))
        .await;
    let before = Recorder::with(|_| Act::Wait(Gate::closed()));
    let worker = start(&redis, "w", &before, |_| {});
    before.until_offered(1).await;
    assert_eq!(before.offered()[0].batch, 5);
    let after = Recorder::new();
    let worker = succeed(&redis, &console, worker, &after, true).await;
    console
        .emit_all("work:1", (5..9).map(|n| n.to_string()))
        .await;
    after.until_sent(9).await;
    worker.finish().await;
    let batches: Vec<_> = after
        .sent()
        .iter()
        .map(|offer| (offer.batch, offer.crashes))
        .collect();
    assert_eq!(batches[..5], [(1, 1); 5]);
    assert!(
        batches[5..].iter().all(|(_, crashes)| *crashes == 0),
        "{batches:?}"
    );
    assert_eq!(after.applied_of("work:1").len(), 9);
    console.until_at_rest().await;
}
