//! The lease: the right to run a worker name, and how a process notices that it has lost the lease.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seriatim::async_trait;
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{Holder, StopReason, WorkerError};

use crate::support::console::PATIENCE;
use crate::support::proxy::{Lose, Proxy};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::{start, start_at};
use crate::support::{Redis, assert_matches, until};

#[tokio::test]
async fn a_name_in_use_is_refused_soon_and_clearly() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let owner = start(&redis, "w", &sink, |config| {
        config.lease = Duration::from_millis(900)
    });
    let lease = console.until_lease("w").await;
    let second = start(&redis, "w", &sink, |_| {});
    let error = second.ended().await.expect_err("the name is in use");
    assert_matches!(
        error,
        WorkerError::InUse { name, pid, .. } if name == "w" && *pid == std::process::id()
    );
    let text = error.to_string();
    let expected = format!(
        "the name \"w\" is in use by process {} on ",
        std::process::id()
    );
    assert!(
        text.starts_with(&expected)
            && text.ends_with("; stop it, choose another name, or take over with --takeover"),
        "{text}"
    );
    assert_eq!(
        console.text(&console.keys.worker_lease("w")).await,
        Some(lease),
        "the owner did not notice"
    );
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    owner.finish().await;
}

/// A process cannot see whether a process of another host is dead. So it waits until the lease
/// ends, because a dead process does not renew it.
#[tokio::test]
async fn a_lease_that_nobody_renews_is_awaited() {
    let (redis, console) = Redis::start().with_console().await;
    let began = Instant::now();
    let _: () = console
        .run(&[
            "SET",
            &console.keys.worker_lease("w"),
            "dead elsewhere/1/2 77 5",
            "PX",
            "500",
        ])
        .await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    until("it has the name", PATIENCE, async || {
        let lease = console.text(&console.keys.worker_lease("w")).await?;
        (!lease.starts_with("dead ")).then_some(())
    })
    .await;
    assert!(began.elapsed() >= Duration::from_millis(500));
    worker.finish().await;
}

/// If the lease belongs to a process of this host that no longer runs, a new process takes the
/// lease at once.
#[tokio::test]
async fn a_lease_of_a_process_that_is_gone_is_not_awaited() {
    let (redis, console) = Redis::start().with_console().await;
    let mut child = std::process::Command::new("true")
        .spawn()
        .expect("it starts");
    child.wait().expect("it ends");
    let this = Holder::current().to_string();
    let host = this.split(' ').next().expect("a host");
    // The lease is longer than any wait of the test.
    let lease = format!("dead {host} {} 5", child.id());
    let _: () = console
        .run(&[
            "SET",
            &console.keys.worker_lease("w"),
            &lease,
            "PX",
            "600000",
        ])
        .await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    worker.finish().await;
}

#[tokio::test]
async fn a_process_may_be_told_to_stop_while_it_waits_for_its_name() {
    let (redis, console) = Redis::start().with_console().await;
    let _: () = console
        .run(&[
            "SET",
            &console.keys.worker_lease("w"),
            "other elsewhere/1/2 77 5",
            "PX",
            "600000",
        ])
        .await;
    let worker = start(&redis, "w", &Recorder::new(), |_| {});
    let stopped = worker.stop().await;
    assert_eq!(
        (stopped.reason, stopped.delivered),
        (StopReason::Graceful { held: 0 }, 0)
    );
    let lease = console
        .text(&console.keys.worker_lease("w"))
        .await
        .expect("a lease");
    assert!(lease.starts_with("other "), "{lease}");
}

/// A process keeps its lease while its sink is slow.
#[tokio::test]
async fn the_lease_is_renewed_while_the_sink_is_busy() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let worker = start(&redis, "w", &sink, |config| {
        config.concurrency = 1;
        config.lease = Duration::from_secs(3);
    });
    console.emit("work:1", "1").await;
    gate.until_reached(1).await;
    let key = console.keys.worker_lease("w");
    let lease = console.text(&key).await;
    let mut renewals = 0;
    let mut left: i64 = console.run(&["PTTL", &key]).await;
    while renewals < 2 {
        let now: i64 = console.run(&["PTTL", &key]).await;
        assert!(now > 0, "the lease is there all the time");
        renewals += usize::from(now > left);
        left = now;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert_eq!(console.text(&key).await, lease, "by the same token");
    gate.open();
    worker.finish().await;
}

#[tokio::test]
async fn a_lapsed_process_drops_what_it_has_and_goes_on() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.before == 0 {
            Act::SendThenWait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 2);
    console.emit_all("work:1", ["1"]).await;
    gate.until_reached(1).await;
    let first = console.until_lease("w").await;
    console.end_lease("w").await;
    sink.until_sent(2).await;
    let second = console.until_lease("w").await;
    assert_ne!(first, second);
    console.until_at_rest().await;
    worker.finish().await;
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev, offer.crashes, offer.attempts))
        .collect();
    assert_eq!(
        sent,
        [(1, 0, 0, 0); 2],
        "the same id and prev, and a lapse counts no crash"
    );
    assert_eq!(
        sink.overlaps(),
        [""; 0],
        "the first delivery was dropped before"
    );
    assert!(second.starts_with(&sink.sent()[1].token));
}

/// A process lapses, and its objects were adopted while it was away. It continues without them.
#[tokio::test]
async fn a_lapsed_process_goes_on_without_what_others_took() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::with(|_| Act::SendThenWait(Gate::closed()));
    let proxy = Proxy::before(&redis);
    let worker = start_at(proxy.url(), &redis, "w", &sink, |_| {});
    console.emit_all("work:1", ["1", "2"]).await;
    sink.until_sent(1).await;
    proxy.close();
    let other = Recorder::new();
    let taker = start(&redis, "other", &other, |_| {});
    console.end_lease("w").await;
    other.until_sent(2).await;
    console.until_at_rest().await;
    proxy.open();
    console.until_lease("w").await;
    taker.finish().await;
    console.emit("work:2", "1").await;
    until("it goes on", PATIENCE, async || {
        (sink.sent_of("work:2").len() == 1).then_some(())
    })
    .await;
    let events: Vec<_> = other
        .sent()
        .into_iter()
        .map(|offer| (offer.id, offer.prev))
        .collect();
    assert_eq!(events, [(1, 0), (2, 1)]);
    worker.crash().await;
}

#[tokio::test]
async fn a_process_that_was_taken_over_stops_and_commits_nothing() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::with(|_| Act::SendThenWait(Gate::closed()));
    let first = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    let taken = Recorder::new();
    let second = start(&redis, "w", &taken, |config| config.takeover = true);
    taken.until_sent(1).await;
    assert_eq!(
        (
            taken.sent()[0].id,
            taken.sent()[0].prev,
            taken.sent()[0].crashes
        ),
        (1, 0, 1)
    );
    // By itself the first process would only renew its lease, once a minute. Another event makes it
    // call Redis earlier.
    for n in 0.. {
        if first.is_over() {
            break;
        }
        console.emit("work:2", n.to_string()).await;
        taken.until_sent(n + 2).await;
    }
    let error = first.ended().await.expect_err("it is fenced");
    assert_matches!(error, WorkerError::Fenced { name, .. } if name == "w");
    let expected = format!(
        "fenced: the name \"w\" was taken over by process {} on ",
        std::process::id()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_eq!(sink.sent().len(), 1);
    second.finish().await;
    console.until_at_rest().await;
}

/// A fenced process reports a result late. Meanwhile another process has delivered the event and
/// two more events of the object.
#[tokio::test]
async fn a_late_result_of_a_fenced_process_changes_nothing() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::SendThenWait(held_up.clone()));
    let proxy = Proxy::before(&redis);
    let first = start_at(proxy.url(), &redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    proxy.close();
    gate.open();
    let taken = Recorder::new();
    let second = start(&redis, "w", &taken, |config| config.takeover = true);
    console.emit_all("work:1", ["2", "3"]).await;
    taken.until_sent(3).await;
    console.until_at_rest().await;
    proxy.open();
    let error = first.ended().await.expect_err("it is fenced");
    assert_matches!(error, WorkerError::Fenced { .. });
    assert_eq!(console.last_id("work:1").await, 3);
    second.finish().await;
    console.until_at_rest().await;
}

/// Story: the lease and the registration of a running worker were deleted together. The worker ended
/// with exit code 4, although no other process had its name.
#[tokio::test]
async fn a_process_whose_lease_and_registration_are_gone_attaches_again() {
    let (redis, console) = Redis::start().with_console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.id == 1 {
            Act::SendThenWait(held_up.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_sent(1).await;
    // Both keys are deleted in one step. In two steps, the process could find only its lease
    // deleted, which is a lapse.
    let mut pipe = redis::pipe();
    pipe.atomic()
        .cmd("DEL")
        .arg(console.keys.worker_lease("w"))
        .cmd("DEL")
        .arg(console.keys.event_workers());
    let () = pipe
        .query_async(&mut redis.connect().await)
        .await
        .expect("deleted");
    gate.open();
    console.emit("work:2", "2").await;
    console.until_at_rest().await;
    console.until_lease("w").await;
    // The loss counts as no crash of the event in hand.
    assert!(
        sink.sent().iter().all(|sent| sent.crashes == 0),
        "{:?}",
        sink.sent()
    );
    worker.finish().await;
}

/// The reply to an attach is lost, and the call is repeated. The lease already has the token of the
/// process, so no crash is counted.
#[tokio::test]
async fn a_repeated_attach_counts_no_crash() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let sink = Recorder::with(|offer| {
        if offer.before == 0 {
            Act::Wait(Gate::closed())
        } else {
            Act::Send
        }
    });
    let worker = start_at(proxy.url(), &redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    sink.until_offered(1).await;
    // The proxy recognizes the attach, because in its arguments the length of the lease follows the
    // holder.
    proxy.lose_next(
        &[&format!("{} 60000ms", Holder::current())],
        Lose::Reply,
        false,
    );
    console.end_lease("w").await;
    sink.until_sent(1).await;
    assert_eq!(
        (proxy.lost(), sink.sent()[0].id, sink.sent()[0].crashes),
        (1, 1, 0)
    );
    worker.finish().await;
}

/// The reply to a detach is lost, and the call is repeated. The lease is already gone, so the
/// second call changes nothing.
#[tokio::test]
async fn a_repeated_detach_is_done() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let proxy = Proxy::before(&redis);
    let sink = Recorder::with(|_| Act::Wait(Gate::closed()));
    let worker = start_at(proxy.url(), &redis, "w", &sink, |config| {
        config.grace = Duration::ZERO
    });
    console.emit("work:1", "1").await;
    sink.until_offered(1).await;
    let token = sink.offered()[0].token.clone();
    // The proxy recognizes the detach, because only this script has the token as its last argument.
    let end = format!("${}\r\n{token}\r\n", token.len());
    proxy.lose(move |request| request.ends_with(end.as_bytes()).then_some(Lose::Reply));
    worker.shutdown.stop();
    proxy.until_lost(1).await;
    proxy.lose(|_| None);
    let stopped = worker.ended().await.expect("a graceful stop");
    assert_matches!(stopped.reason, StopReason::Graceful { .. }, "{stopped:?}");
    assert_eq!(
        console.held_id("work:1").await.as_deref(),
        Some("1 0 0 0 stop")
    );
    assert_eq!(console.text(&console.keys.worker_lease("w")).await, None);
}

/// A sink that keeps the context of its only delivery.
#[derive(Clone, Default)]
struct Keeps(Arc<Mutex<Option<Context>>>);

#[async_trait]
impl Sink for Keeps {
    async fn deliver(&self, _: &Batch, cx: &Context) -> Delivered {
        self.0
            .lock()
            .expect("no panic")
            .get_or_insert_with(|| cx.clone());
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_sink_is_told_when_the_lease_is_lost() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Keeps::default();
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit("work:1", "1").await;
    let cx = until("the sink has it", PATIENCE, async || {
        sink.0.lock().expect("no panic").clone()
    })
    .await;
    assert!(!cx.cancelled.is_cancelled());
    console.end_lease("w").await;
    tokio::time::timeout(PATIENCE, cx.cancelled.cancelled())
        .await
        .expect("it is told");
    worker.crash().await;
}

/// A sink that blocks the whole runtime of its process, in its first delivery, for longer than the
/// lease.
#[derive(Clone)]
struct Blocks(Recorder);

#[async_trait]
impl Sink for Blocks {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        if self.0.offered().is_empty() {
            std::thread::sleep(Duration::from_millis(1000));
        }
        self.0.deliver(batch, cx).await
    }
}

#[tokio::test]
async fn a_sink_that_blocks_its_process_for_longer_than_the_lease_loses_nothing() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    console.emit_all("work:1", ["1", "2", "3"]).await;
    console.emit("work:2", "1").await;
    let worker = start(&redis, "w", &Blocks(sink.clone()), |config| {
        config.concurrency = 1;
        config.lease = Duration::from_millis(300);
    });
    until("all is delivered", PATIENCE, async || {
        (sink.applied().values().map(Vec::len).sum::<usize>() == 4).then_some(())
    })
    .await;
    console.until_at_rest().await;
    assert_eq!(sink.applied_of("work:1"), ["1", "2", "3"]);
    assert!(
        sink.sent().iter().all(|offer| offer.crashes == 0),
        "a lapse is no crash"
    );
    worker.stop().await;
}
