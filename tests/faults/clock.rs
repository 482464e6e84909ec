//! Sets Redis' clock back, or ahead, by an hour. Story: an object was held, due at once, and Redis
//! stored the present time as its due time. After a step back the object waited for an hour. A
//! takeover also waited for an hour, because Redis stores the end of a lease, not its length.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use rstest::rstest;
use seriatim::control::rules::{Kind, Selector};
use seriatim::keys::Keys;
use seriatim::projection::{RedisStore, Store};
use seriatim::wire::operator::By;
use seriatim::wire::{self, Adopted, Attach, Attached, Suspects, Sweep};

use crate::state::State;
use crate::support::clock::Clock;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::sweep::LOOK;
use crate::support::{Redis, control, until};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The time within which every object must continue after a step of the clock.
const SOON: Duration = Duration::from_secs(8);

fn with_clock() -> (Clock, Redis) {
    let clock = Clock::new();
    let redis = Redis::with(&[], clock.environment());
    (clock, redis)
}

/// Sets the clock back by an hour, and waits until scripts see the step. Valkey caches the time
/// that scripts read, for a moment.
async fn step_back(clock: &Clock, console: &Console) {
    let before = now_ms(console).await;
    clock.step_back(HOUR);
    until("scripts see the step", PATIENCE, async || {
        let seconds: u64 = console
            .run(&["EVAL", "return redis.call('TIME')[1]", "0"])
            .await;
        (seconds * 1000 < before - 1_800_000).then_some(())
    })
    .await;
}

async fn adopt(conn: &mut MultiplexedConnection, keys: &Keys, since: Option<Duration>) -> Adopted {
    adopt_in(conn, keys, since, LOOK).await
}

/// Makes one sweep. `notice` is the time that a process needs at most to notice the end of its
/// lease.
async fn adopt_in(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    since: Option<Duration>,
    notice: Duration,
) -> Adopted {
    let sweep = Sweep {
        own: "sweeper",
        crashes_max: 5,
        look: LOOK,
        forget: DAY,
        since,
        notice,
    };
    wire::adopt(conn, keys, &sweep).await.expect("a sweep")
}

async fn now_ms(console: &Console) -> u64 {
    let (seconds, micros): (u64, u64) = console.run(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

/// The due times of schedules are absolute: after a step back they are an hour late.
#[tokio::test]
async fn a_clock_that_steps_back_makes_schedules_late_and_doubles_none() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |_| {});
    let emitter = seriatim::Emitter::connect(redis.url())
        .await
        .expect("a connection")
        .with_keys(redis.keys().clone());
    let schedule = async |n: u32, after: Duration| {
        let event = seriatim::event::Json::new(n.to_string());
        emitter
            .schedule("work:1", event)
            .after(after)
            .send()
            .await
            .expect("scheduled");
    };
    schedule(1, Duration::ZERO).await;
    sink.until_sent(1).await;
    schedule(2, Duration::from_millis(1500)).await;
    step_back(&clock, &console).await;
    schedule(3, Duration::from_millis(100)).await;
    sink.until_sent(2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    clock.step_ahead(HOUR);
    sink.until_sent(3).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["1", "3", "2"]);
}

/// Tests held objects when the clock is set back by an hour: some are due at once, one has a retry
/// in 3 s.
#[tokio::test]
async fn what_was_due_is_due_after_a_step_back() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    let now = now_ms(&console).await;
    for (n, why) in ["takeover", "stop", "slots"].into_iter().enumerate() {
        let first = n as u64 + 1;
        state
            .hold(
                why,
                &now.to_string(),
                &["{}"],
                &format!("{first} 0 0 0 {why}"),
            )
            .await;
    }
    for object in ["yield", "wake"] {
        state.hold(object, &now.to_string(), &[], "0 0 0 0 ").await;
        state.run("DEL", &[&keys.events_held_id(object)]).await;
        state.run("LPUSH", &[&keys.events(object), "{}"]).await;
    }
    state
        .hold(
            "retry",
            &(now + 3000).to_string(),
            &["{}"],
            "4 0 1 0 retry: no",
        )
        .await;
    state
        .hold("operator", "inf", &["{}"], "5 0 1 0 attempts: no")
        .await;
    adopt(&mut state.conn, &keys, None).await;
    step_back(&clock, &console).await;
    let stepped = Instant::now();
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.sweep = Duration::from_secs(1)
    });
    sink.until_sent(6).await;
    assert!(stepped.elapsed() < SOON, "{:?}", stepped.elapsed());
    assert_eq!(console.due("operator").await, Some(f64::INFINITY));
    worker.finish().await;
}

/// The clock is set back while workers run. One worker holds an object for its next attempt,
/// another worker dies. Without the correction, the dead worker's lease would end an hour late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_process_is_taken_over_in_time_after_a_step_back() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let five_s = Duration::from_secs(5);
    let stuck = Recorder::with(|_| Act::Wait(Gate::closed()));
    let dies = start(&redis, "dies", &stuck, |config| config.lease = five_s);
    console.emit("work:1", "1").await;
    stuck.until_offered(1).await;
    let sink = Recorder::new();
    let lives = start(&redis, "lives", &sink, |config| {
        config.sweep = Duration::from_secs(1);
        config.lease = five_s;
    });
    console.until_lease("lives").await;
    let noted = async || {
        console
            .run::<Option<String>>(&["HGET", &console.keys.meta(), "clock"])
            .await
            .map(drop)
    };
    until("a sweep has noted the time", PATIENCE, noted).await;
    step_back(&clock, &console).await;
    dies.crash().await;
    let stepped = Instant::now();
    console.emit("work:2", "1").await;
    sink.until_sent(2).await;
    assert!(stepped.elapsed() < SOON, "{:?}", stepped.elapsed());
    lives.finish().await;
    console.until_at_rest().await;
}

/// A process that restarts under its name waits until the lease of the former process ends. Without
/// the correction, that lease would end an hour late.
#[tokio::test]
async fn a_lease_is_cut_to_its_length_by_the_next_of_its_name() {
    let (clock, redis) = with_clock();
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let lease = Duration::from_secs(5);
    let mut args = Attach {
        name: "w",
        token: "token-1",
        holder: "elsewhere 1 1 5000ms",
        lease,
        slots: 1,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    wire::attach(&mut conn, &keys, &args)
        .await
        .expect("attached");
    step_back(&clock, &redis.console().await).await;
    args.token = "token-2";
    for _ in 0..2 {
        let Attached::InUse { left, .. } = wire::attach(&mut conn, &keys, &args)
            .await
            .expect("an answer")
        else {
            panic!("the name is in use")
        };
        assert!(left <= lease, "{left:?}");
    }
}

/// Without the correction, a pause of three seconds would last an hour longer.
#[tokio::test]
async fn a_rule_ends_in_time_after_a_step_back() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let by = By {
        who: "ada",
        why: "",
    };
    for (selector, after) in [
        ("a:*", Some(Duration::from_secs(3))),
        ("b:*", None),
        ("c:*", Some(2 * HOUR)),
    ] {
        let selector: Selector = selector.parse().expect("a selector");
        control(&conn, &keys)
            .set_rule(by, Kind::Pause, &selector, after)
            .await
            .expect("set");
    }
    adopt(&mut conn, &keys, None).await;
    step_back(&clock, &console).await;
    let stepped = Instant::now();
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.sweep = Duration::from_secs(1)
    });
    for object in ["a:1", "b:1", "c:1"] {
        console.emit(object, "1").await;
    }
    sink.until_sent(1).await;
    assert!(stepped.elapsed() < SOON, "{:?}", stepped.elapsed());
    assert_eq!(sink.sent()[0].object, "a:1");
    let left = control(&conn, &keys).rules().await.expect("rules");
    let ends: Vec<_> = left
        .rules
        .iter()
        .filter(|rule| rule.in_force)
        .map(|rule| rule.end_ms)
        .collect();
    let [None, Some(end)] = ends[..] else {
        panic!("{left:?}")
    };
    let two_hours = 7_200_000;
    assert!(
        (two_hours - 60_000..=two_hours).contains(&(end - left.now_ms)),
        "{left:?}"
    );
    worker.stop().await;
}

/// After a step back, a sweep moves the due times of held objects. Many objects move in bounded
/// steps, and keep their order.
#[tokio::test]
async fn many_held_objects_move_in_bounded_steps() {
    const HELD: u64 = 4_500;
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let now = now_ms(&console).await;
    let mut pipe = redis::pipe();
    for n in 0..HELD {
        // Several objects in a row have the same due time.
        pipe.cmd("ZADD")
            .arg(keys.objects_held())
            .arg(now + 60_000 + n / 3000 * 5)
            .arg(format!("{n:05}"))
            .ignore();
    }
    for n in 0..1_200 {
        pipe.cmd("ZADD")
            .arg(keys.objects_held())
            .arg("inf")
            .arg(format!("operator:{n}"))
            .ignore();
    }
    let () = pipe.query_async(&mut conn).await.expect("held");
    let mut gone = redis::pipe();
    for n in 0..1_500 {
        gone.cmd("ZADD")
            .arg(keys.event_workers_departed())
            .arg(now + 500_000 + n)
            .arg(format!("gone-{n}"))
            .ignore();
    }
    let () = gone.query_async(&mut conn).await.expect("departed");
    adopt(&mut conn, &keys, None).await;
    step_back(&clock, &console).await;
    let mut moved = Vec::new();
    let mut more = true;
    while more && moved.len() < 20 {
        let adopted = adopt(&mut conn, &keys, None).await;
        moved.push(adopted.moved);
        more = adopted.more;
    }
    assert!(
        !more,
        "objects that wait for an operator are moved without end: {moved:?}"
    );
    assert_eq!(
        (moved.iter().sum::<u64>(), moved.iter().max()),
        (HELD, Some(&1000)),
        "{moved:?}"
    );
    let due = [
        "ZRANGE",
        &keys.objects_held(),
        "-inf",
        "(inf",
        "BYSCORE",
        "WITHSCORES",
    ];
    let all: Vec<(String, f64)> = console.run(&due).await;
    let kept: u64 = console
        .run(&["ZCOUNT", &keys.objects_held(), "inf", "inf"])
        .await;
    assert_eq!(kept, 1_200);
    assert!(
        all.iter()
            .map(|(object, _)| object)
            .eq(&(0..HELD).map(|n| format!("{n:05}")).collect::<Vec<_>>())
    );
    let ahead = now_ms(&console).await as f64;
    assert!(
        all.iter()
            .all(|(_, due)| (ahead + 30_000.0..ahead + 62_000.0).contains(due)),
        "{:?}",
        all.first()
    );
    let latest: Vec<(String, f64)> = console
        .run(&[
            "ZRANGE",
            &keys.event_workers_departed(),
            "-1",
            "-1",
            "WITHSCORES",
        ])
        .await;
    assert!(latest[0].1 < ahead + 504_000.0, "{latest:?}");
    let fields: Vec<String> = console.run(&["HKEYS", &keys.meta()]).await;
    assert!(!fields.contains(&"clock.step".to_owned()), "{fields:?}");
    // The next sweep moves no due time a second time.
    assert_eq!(adopt(&mut conn, &keys, None).await.moved, 0);
}

/// After a step back, the first sweep corrects the time of the next look at a name. It also
/// corrects the lease of a living process.
#[tokio::test]
async fn watched_names_are_looked_at_after_a_step_back() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    console.add("HSET event.workers w '1 token 1'").await;
    console
        .add("SET event.worker:w:lease 'token h 1 1 5000ms' PX 5000")
        .await;
    console.add("ZADD event.workers.watched 1 w").await;
    adopt(&mut conn, &keys, None).await;
    step_back(&clock, &console).await;
    while adopt(&mut conn, &keys, None).await.more {}
    let left: i64 = console.run(&["PTTL", &keys.worker_lease("w")]).await;
    assert!((1..=5000).contains(&left), "{left} ms");
    let next: f64 = console
        .run(&["ZSCORE", &keys.event_workers_watched(), "w"])
        .await;
    assert!(next <= now_ms(&console).await as f64 + LOOK.as_millis() as f64);
}

/// After a step back, the last sign of life of a departed name seems to be in the future. The
/// name's series of looks starts again.
#[tokio::test]
async fn a_departed_name_is_looked_at_soon_after_a_step_back() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    let now = now_ms(&console).await;
    let _: u64 = console
        .run(&[
            "HSET",
            &keys.event_workers(),
            "gone",
            &format!("1 token {now}"),
        ])
        .await;
    adopt(&mut conn, &keys, None).await;
    step_back(&clock, &console).await;
    while adopt(&mut conn, &keys, None).await.more {}
    until("it is looked at", PATIENCE, async || {
        console.add("HDEL seriatim.meta names.next").await;
        adopt(&mut conn.clone(), &keys, None).await;
        let next: f64 = console
            .run(&["ZSCORE", &keys.event_workers_departed(), "gone"])
            .await;
        let registered: String = console.run(&["HGET", &keys.event_workers(), "gone"]).await;
        let at: u64 = registered
            .rsplit(' ')
            .next()
            .and_then(|at| at.parse().ok())
            .expect("a time");
        (at < now && next < now as f64).then_some(())
    })
    .await;
}

/// If the clock is set ahead, all leases end at once, although the processes live. No process takes
/// over their names, and no crash is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_ahead_counts_no_crash() {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let workers = ["a", "b"].map(|name| {
        start(&redis, name, &sink, |config| {
            config.sweep = Duration::from_millis(300);
            config.lease = Duration::from_secs(5);
        })
    });
    for n in 0..8 {
        console.emit(&format!("work:{n}"), "1").await;
    }
    gate.until_reached(8).await;
    for name in ["a", "b"] {
        console.until_lease(name).await;
    }
    // Both processes have made a sweep and remember its time.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before: Vec<String> = console.run(&["HVALS", &console.keys.event_workers()]).await;
    clock.step_ahead(HOUR);
    until("both have attached again", PATIENCE, async || {
        let now: Vec<String> = console.run(&["HVALS", &console.keys.event_workers()]).await;
        let token = |value: &String| value.split(' ').nth(1).map(str::to_owned);
        now.iter()
            .zip(&before)
            .all(|(now, before)| token(now) != token(before))
            .then_some(())
    })
    .await;
    gate.open();
    until("all is delivered", PATIENCE, async || {
        (sink.applied().len() == 8).then_some(())
    })
    .await;
    assert!(
        sink.offered().iter().all(|offer| offer.crashes == 0),
        "{:?}",
        sink.offered()
    );
    for worker in workers {
        worker.finish().await;
    }
    console.until_at_rest().await;
}

/// Emits one event after another. Each event is emitted only after the event before it was
/// delivered.
async fn keep_busy(console: &Console) -> Infallible {
    loop {
        console.emit("busy:1", "1").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Story, case `first_sweep`: after a step ahead, a process that commits all the time noticed its
/// lapse at once and attached again. But its first sweep did not say how long ago the process had
/// swept before. So it took over everything from a process in a long handler, and counted a crash
/// for each event. Story, case `long_lease`: the pause of takeovers was 5 s. It ended before a
/// process with a long lease renewed its lease.
#[rstest]
#[case::first_sweep(Duration::from_secs(5), Duration::from_secs(60))]
#[case::long_lease(Duration::from_secs(60), Duration::from_secs(1))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_ahead_takes_nothing_from_a_long_handler(
    #[case] lease: Duration,
    #[case] sweep: Duration,
) {
    let (clock, redis) = with_clock();
    let console = redis.console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let slow = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let in_handlers = start(&redis, "in-handlers", &slow, |config| {
        (config.lease, config.sweep) = (lease, sweep)
    });
    for n in 0..4 {
        console.emit(&format!("slow:{n}"), "1").await;
    }
    gate.until_reached(4).await;
    let quick = Recorder::new();
    let commits = start(&redis, "commits", &quick, |config| {
        (config.lease, config.sweep) = (Duration::from_secs(5), Duration::from_secs(1));
    });
    let token = async || {
        let registered: String = console
            .run(&["HGET", &console.keys.event_workers(), "in-handlers"])
            .await;
        registered.split(' ').nth(1).map(str::to_owned)
    };
    let before = token().await;
    let attached_again = async {
        quick.until_sent(100).await;
        // The process `commits` has made a sweep that recorded the time.
        until("a sweep has noted the time", PATIENCE, async || {
            console
                .run::<Option<String>>(&["HGET", &console.keys.meta(), "clock"])
                .await
        })
        .await;
        clock.step_ahead(HOUR);
        until(
            "the process in handlers has attached again",
            PATIENCE,
            async || (token().await != before).then_some(()),
        )
        .await;
    };
    tokio::select! {
        never = keep_busy(&console) => match never {},
        () = attached_again => {}
    }
    gate.open();
    until("the handlers have ended", PATIENCE, async || {
        let sent = [slow.sent(), quick.sent()].concat();
        (sent
            .iter()
            .filter(|offer| offer.object.starts_with("slow:"))
            .count()
            >= 4)
            .then_some(())
    })
    .await;
    let crashed: Vec<_> = [slow.offered(), quick.offered()]
        .concat()
        .into_iter()
        .filter(|offer| offer.crashes > 0)
        .collect();
    assert!(crashed.is_empty(), "{crashed:?}");
    assert!(
        quick.offered().iter().all(|offer| offer.object == "busy:1"),
        "something was taken over"
    );
    in_handlers.finish().await;
    commits.finish().await;
    console.check().await;
}

/// For a moment after a step ahead, no process takes over a name. After that, the name of a dead
/// process is taken over.
#[tokio::test]
async fn a_takeover_waits_for_a_moment_after_a_step_ahead() {
    let (redis, console) = Redis::start().with_console().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys().clone());
    console.add("HSET event.workers dead '1 token 1'").await;
    let second = Some(Duration::from_secs(1));
    // The columns of each case:
    // - time since the last sweep by Redis' clock, in ms (by the caller's own clock always 1 s)
    // - time since a step of the clock was found, in ms
    // - time until a process notices the end of its lease, in s
    // - number of strays that the sweep finds
    //
    // Story: takeovers paused for 5 s in all cases. But a process with a lease of 60 s that was
    // busy in handlers noticed the end of its lease only after 20 s.
    for (noted, ahead, notice, found) in [
        (10_000, None, 1, 0),
        (1_000, Some(2_000), 1, 0),
        (1_000, Some(6_000), 20, 0),
        (1_000, Some(21_000), 20, 0),
        (1_000, Some(23_000), 20, 1),
        (2_000, Some(6_000), 1, 1),
    ] {
        let now = now_ms(&console).await;
        console
            .add("LREM objects.with.events 0 work:1; DEL event.worker:dead.0:object")
            .await;
        console.add("LPUSH event.worker:dead.0:object work:1").await;
        console.add("ZADD event.workers.watched 1 dead").await;
        let _: u64 = console
            .run(&["HSET", &keys.meta(), "clock", &(now - noted).to_string()])
            .await;
        if let Some(ahead) = ahead {
            let _: u64 = console
                .run(&[
                    "HSET",
                    &keys.meta(),
                    "clock.ahead",
                    &(now - ahead).to_string(),
                ])
                .await;
        }
        let adopted = adopt_in(&mut conn, &keys, second, Duration::from_secs(notice)).await;
        assert_eq!(
            (adopted.strays, adopted.is_ahead),
            (found, found == 0),
            "{noted} {ahead:?} {notice}"
        );
    }
}

/// Without the correction, the lease of a dead projection process would end an hour late.
#[tokio::test]
async fn a_projection_is_free_in_time_after_a_step_back() {
    let (clock, redis) = with_clock();
    let lease = Duration::from_secs(2);
    let mut store =
        RedisStore::new(redis.connect().await, redis.keys().clone(), "p").expect("a name");
    assert!(
        store
            .open("token-1", lease)
            .await
            .expect("an answer")
            .is_some()
    );
    step_back(&clock, &redis.console().await).await;
    let stepped = Instant::now();
    let mut other =
        RedisStore::new(redis.connect().await, redis.keys().clone(), "p").expect("a name");
    while other
        .open("token-2", lease)
        .await
        .expect("an answer")
        .is_none()
    {
        assert!(stepped.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
