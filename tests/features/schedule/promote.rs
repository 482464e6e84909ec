//! Promotion: when scheduled events are pushed to their queues, and in which order.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::Emitter;
use seriatim::event::Json;
use seriatim::sink::Stop;
use seriatim::wire::{self, PROMOTED_MAX};

use crate::support::Redis;
use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::until;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn now_ms() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time")
            .as_millis(),
    )
    .expect("a time")
}

async fn emitter(redis: &Redis) -> Emitter {
    redis.emitter().await
}

/// Events with the times in ms at which the sink got them.
type Times = Arc<Mutex<Vec<(String, u64)>>>;

/// Returns a sink that notes the time of each event.
fn timed() -> (Recorder, Times) {
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let sink = Recorder::with(move |offer| {
        noted
            .lock()
            .expect("no panic")
            .push((offer.text(), now_ms()));
        Act::Send
    });
    (sink, times)
}

/// Emits 200 events at once. Returns the time in ms until 95 % of them were delivered. On a busy
/// machine, scheduled events cannot be faster than this.
async fn emitted_95_percent(emitter: &Emitter, sink: &Recorder, times: &Times) -> u64 {
    times.lock().expect("no panic").clear();
    let sent = sink.sent().len();
    let began = now_ms();
    let events = (0..200).map(|n| (format!("emitted:{n}"), Json::new(format!("{n}"))));
    emitter.emit_many(events).await.expect("emitted");
    sink.until_sent(sent + 200).await;
    times.lock().expect("no panic")[189].1 - began
}

/// Schedules 200 events that are due in half a second. Returns how many ms after its due time each
/// was delivered, in ascending order.
async fn scheduled_late(emitter: &Emitter, sink: &Recorder, times: &Times) -> Vec<i128> {
    times.lock().expect("no panic").clear();
    let sent = sink.sent().len();
    let schedules = (0..200).map(|n| {
        emitter
            .schedule(format!("scheduled:{n}"), Json::new(format!("{n}")))
            .after(ms(500))
    });
    let scheduled = emitter.schedule_many(schedules).await.expect("scheduled");
    sink.until_sent(sent + 200).await;
    let late = times.lock().expect("no panic").clone().into_iter();
    let mut late: Vec<i128> = late
        .map(|(text, at)| {
            let n: usize = text.parse().expect("a number");
            i128::from(at) - i128::from(scheduled[n].due_ms)
        })
        .collect();
    late.sort_unstable();
    late
}

/// No event is delivered before its due time. On a machine that is not busy, 95 % are delivered
/// within 50 ms of it. A busy machine has the time that emitted events need for the same, three
/// times. Both are medians of rounds in turn, because the load of a machine changes.
#[tokio::test]
async fn of_200_events_none_is_early_and_95_percent_come_within_50_ms() {
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let (sink, times) = timed();
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 64);
    let (mut emitted, mut scheduled) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let late = scheduled_late(&emitter, &sink, &times).await;
        assert!(late[0] >= 0, "early by {} ms", -late[0]);
        scheduled.push(late[189]);
        emitted.push(i128::from(
            emitted_95_percent(&emitter, &sink, &times).await,
        ));
    }
    println!("95 % within ms: scheduled {scheduled:?}, emitted {emitted:?}");
    emitted.sort_unstable();
    scheduled.sort_unstable();
    let most = 50.max(3 * emitted[2]);
    assert!(
        scheduled[2] <= most,
        "median of the rounds {} ms, at most {most} ms",
        scheduled[2]
    );
    worker.finish().await;
    redis.console().await.check().await;
}

/// No worker ran when the events became due.
#[tokio::test]
async fn overdue_events_fire_at_once_at_the_start_in_the_order_of_their_times() {
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let now = SystemTime::now();
    for (text, ago) in [("\"c\"", 10), ("\"a\"", 3000), ("\"b\"", 20)] {
        emitter
            .schedule("work:1", Json::new(text))
            .at(now - ms(ago))
            .send()
            .await
            .expect("scheduled");
    }
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(3).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["\"a\"", "\"b\"", "\"c\""]);
    redis.console().await.check().await;
}

#[tokio::test]
async fn a_replaced_event_never_fires_at_its_old_time() {
    let redis = Redis::start();
    let (sink, times) = timed();
    let worker = start(&redis, "w", &sink, |_| {});
    let emitter = emitter(&redis).await;
    let mut begun = Vec::new();
    for n in 0..20 {
        let first = emitter
            .schedule(format!("user:{n}"), Json::new("\"monthly\""))
            .after(ms(2000))
            .key("renew");
        first.send().await.expect("scheduled");
        let second = emitter
            .schedule(format!("user:{n}"), Json::new("\"yearly\""))
            .after(ms(4000))
            .key("renew");
        begun.push(now_ms());
        second.send().await.expect("scheduled");
    }
    sink.until_sent(20).await;
    // All objects wait for the same time, so they come in the order of their replacements.
    for ((text, at), begun) in times.lock().expect("no panic").iter().zip(begun) {
        assert_eq!(text, "\"yearly\"");
        assert!(
            *at + 1 >= begun + 4000,
            "{} ms after its replacement",
            at - begun
        );
    }
    worker.finish().await;
}

#[tokio::test]
async fn events_scheduled_in_the_reverse_order_fire_in_due_order_also_of_one_object() {
    let redis = Redis::start();
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| config.concurrency = 1);
    let emitter = emitter(&redis).await;
    for objects in [["work:1", "work:1"], ["work:2", "work:3"]] {
        let base = SystemTime::now() + ms(300);
        emitter
            .schedule(objects[1], Json::new("\"second\""))
            .at(base + ms(60))
            .send()
            .await
            .expect("scheduled");
        emitter
            .schedule(objects[0], Json::new("\"first\""))
            .at(base)
            .send()
            .await
            .expect("scheduled");
    }
    sink.until_sent(4).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["\"first\"", "\"second\""]);
    let sent: Vec<_> = sink
        .sent()
        .into_iter()
        .map(|offer| offer.object)
        .filter(|object| object != "work:1")
        .collect();
    assert_eq!(sent, ["work:2", "work:3"]);
}

/// Schedules of one object with the same due time are delivered in the order in which the producer
/// made them.
#[tokio::test]
async fn schedules_without_a_key_that_are_due_together_keep_their_order() {
    let redis = Redis::start();
    let sink = Recorder::new();
    let emitter = emitter(&redis).await;
    let at = SystemTime::now();
    let schedules = (0..300).map(|n| emitter.schedule("work:1", Json::new(format!("{n}"))).at(at));
    emitter.schedule_many(schedules).await.expect("scheduled");
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(300).await;
    worker.finish().await;
    assert_eq!(
        sink.sent_of("work:1"),
        (0..300).map(|n| n.to_string()).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_key_used_again_while_its_event_runs_gives_exactly_one_more_run() {
    let redis = Redis::start();
    let gate = Gate::closed();
    let waits = gate.clone();
    let sink = Recorder::with(move |offer| {
        if offer.text() == "1" {
            Act::SendThenWait(waits.clone())
        } else {
            Act::Send
        }
    });
    let worker = start(&redis, "w", &sink, |_| {});
    let emitter = emitter(&redis).await;
    emitter
        .schedule("user:1", Json::new("1"))
        .key("renew")
        .send()
        .await
        .expect("scheduled");
    gate.until_reached(1).await;
    for text in ["2", "3"] {
        emitter
            .schedule("user:1", Json::new(text))
            .key("renew")
            .after(ms(200))
            .send()
            .await
            .expect("scheduled");
    }
    gate.open();
    sink.until_sent(2).await;
    tokio::time::sleep(ms(400)).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("user:1"), ["1", "3"]);
}

#[tokio::test]
async fn a_schedule_survives_the_death_of_every_worker_and_a_restart_of_redis() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let emitter = emitter(&redis).await;
    let dead = Recorder::new();
    let workers = ["a", "b"].map(|name| start(&redis, name, &dead, |_| {}));
    let schedules = (0..50).map(|n| {
        emitter
            .schedule(format!("work:{}", n % 7), Json::new(format!("{n}")))
            .after(ms(1500))
    });
    emitter.schedule_many(schedules).await.expect("scheduled");
    for worker in workers {
        worker.crash().await;
    }
    redis.server().restart();
    let sink = Recorder::new();
    let worker = start(&redis, "c", &sink, |_| {});
    sink.until_sent(50).await;
    worker.finish().await;
    assert_eq!((dead.sent().len(), sink.sent().len()), (0, 50));
    redis.console().await.check().await;
}

#[tokio::test]
async fn processes_that_promote_at_once_push_each_event_once() {
    let redis = Redis::start();
    let emitter = emitter(&redis).await;
    let at = SystemTime::now();
    let schedules = (0..5000).map(|n| {
        emitter
            .schedule(format!("work:{}", n % 40), Json::new(format!("{n}")))
            .at(at)
    });
    emitter.schedule_many(schedules).await.expect("scheduled");
    let promoters: Vec<_> = (0..8)
        .map(|_| {
            let (client, keys) = (
                redis::Client::open(redis.url()).expect("a URL"),
                redis.keys().clone(),
            );
            tokio::spawn(async move {
                let mut conn = client
                    .get_multiplexed_async_connection_with_config(&crate::support::patient())
                    .await
                    .expect("Redis answers");
                let mut events = 0;
                loop {
                    let promoted = wire::promote(&mut conn, &keys, PROMOTED_MAX / 8, 1 << 20)
                        .await
                        .expect("promoted");
                    events += promoted.events;
                    if promoted.next_due.is_none() {
                        return events;
                    }
                }
            })
        })
        .collect();
    let mut events = 0;
    for promoter in promoters {
        events += promoter.await.expect("no panic");
    }
    assert_eq!(events, 5000);
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(5000).await;
    worker.finish().await;
    let mut sent: Vec<u32> = sink
        .sent()
        .iter()
        .map(|offer| offer.text().parse().expect("a number"))
        .collect();
    sent.sort_unstable();
    assert_eq!(sent, (0..5000).collect::<Vec<_>>());
}

/// Idle workers do not know of a new schedule, and look for schedules only once a second or more
/// rarely. So a new schedule that is due soon must wake a worker.
#[tokio::test]
async fn a_schedule_that_is_due_soon_wakes_an_idle_worker() {
    let redis = Redis::start();
    let (sink, times) = timed();
    let workers = ["a", "b", "c"].map(|name| start(&redis, name, &sink, |_| {}));
    let emitter = emitter(&redis).await;
    let (mut late, mut emitted) = (Vec::new(), Vec::new());
    let sent_at = || times.lock().expect("no panic").last().expect("sent").1;
    for n in 0..20 {
        tokio::time::sleep(ms(37)).await;
        let began = now_ms();
        emitter
            .emit("work:1", Json::new(format!("{n}")))
            .await
            .expect("emitted");
        sink.until_sent(2 * n + 1).await;
        emitted.push(sent_at() - began);
        let scheduled = emitter
            .schedule("work:1", Json::new(format!("{n}")))
            .after(ms(30))
            .send()
            .await
            .expect("scheduled");
        sink.until_sent(2 * n + 2).await;
        late.push(sent_at() - scheduled.due_ms);
    }
    late.sort_unstable();
    emitted.sort_unstable();
    println!("lateness in ms: {late:?}; emitted: {emitted:?}");
    // A worker that is not woken looks for due schedules only after half a second to a second.
    assert!(
        late[15] <= 50.max(3 * emitted[15]) && late[10] < 200,
        "{late:?}, emitted {emitted:?}"
    );
    for worker in workers {
        worker.finish().await;
    }
}

/// The worker that has set a timer for the schedule dies. Another worker finds the schedule when it
/// looks for due schedules.
#[tokio::test]
async fn a_schedule_fires_although_the_worker_that_knew_of_it_is_dead() {
    let redis = Redis::start();
    let sink = Recorder::new();
    let first = start(&redis, "a", &sink, |_| {});
    let emitter = emitter(&redis).await;
    let wake = redis.keys().events_scheduled_wake();
    let scheduled = emitter
        .schedule("work:1", Json::new("1"))
        .after(ms(800))
        .send()
        .await
        .expect("scheduled");
    let console = redis.console().await;
    until("the worker is woken", PATIENCE, async || {
        let wakes: u64 = console.run(&["ZCARD", &wake]).await;
        (wakes == 0).then_some(())
    })
    .await;
    first.crash().await;
    let second = start(&redis, "b", &sink, |_| {});
    sink.until_sent(1).await;
    // The second worker checks once a second. Without the check no event would come here, because
    // nothing else wakes this worker. So the bound leaves a busy host its time.
    let late = now_ms() - scheduled.due_ms;
    assert!(late < 10_000, "{late} ms");
    second.finish().await;
}

#[tokio::test]
async fn an_event_that_comes_due_while_its_object_is_paused_waits_in_order() {
    let (redis, console) = Redis::start().with_console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let emitter = emitter(&redis).await;
    let control = redis.control().await;
    let by = seriatim::control::By {
        who: "ada",
        why: "a test",
    };
    let selector = "work:1".parse().expect("a selector");
    control
        .set_rule(by, seriatim::control::rules::Kind::Pause, &selector, None)
        .await
        .expect("set");
    emitter
        .emit("work:1", Json::new("1"))
        .await
        .expect("emitted");
    emitter
        .schedule("work:1", Json::new("2"))
        .after(ms(100))
        .send()
        .await
        .expect("scheduled");
    until("the event is queued", PATIENCE, async || {
        let queued: u64 = console.run(&["LLEN", &redis.keys().events("work:1")]).await;
        (queued == 2).then_some(())
    })
    .await;
    emitter
        .emit("work:1", Json::new("3"))
        .await
        .expect("emitted");
    assert!(sink.sent().is_empty());
    control
        .lift_rule(by, seriatim::control::rules::Kind::Pause, &selector)
        .await
        .expect("lifted");
    sink.until_sent(3).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["1", "2", "3"]);
    console.check().await;
}

#[tokio::test]
async fn an_event_that_comes_due_while_its_object_waits_for_a_retry_stays_behind_it() {
    let redis = Redis::start();
    let sink = Recorder::with(|offer| match (offer.text().as_str(), offer.before) {
        ("\"bad\"", 0..2) => Act::Stop(Stop::transient("not yet")),
        _ => Act::Send,
    });
    let worker = start(&redis, "w", &sink, |_| {});
    let emitter = emitter(&redis).await;
    let at = SystemTime::now() + ms(150);
    emitter
        .schedule("work:1", Json::new("\"bad\""))
        .at(at)
        .send()
        .await
        .expect("scheduled");
    emitter
        .schedule("work:1", Json::new("2"))
        .at(at + ms(5))
        .send()
        .await
        .expect("scheduled");
    sink.until_sent(2).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["\"bad\"", "2"]);
}
