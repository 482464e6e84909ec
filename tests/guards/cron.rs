//! `cron`: jobs that cannot fire, and the time of the next job.

use std::time::Duration;

use seriatim::control::By;
use seriatim::keys::Keys;
use seriatim::wire::operator::{self, CronDone, CronStep};
use seriatim::wire::values::CronValue;
use seriatim::wire::{self, DueJob, ScriptError, Ticks};

use crate::state::State;
use crate::support::{Redis, jobs};

async fn state_of(redis: &Redis, keys: &Keys) -> State {
    State::new(redis.connect().await, keys.clone())
}

/// Returns a job as a call of the script returns it.
fn due(name: &str, job: &CronValue, handled_ms: u64) -> DueJob {
    DueJob {
        name: name.into(),
        id: job.id.clone().into(),
        json: job.json().into(),
        event_bytes: job.event.len(),
        handled_ms,
    }
}

/// Stores a job with the event `1`. Its next tick has this score.
async fn set(state: &mut State, name: &str, object: &str, next: &str) -> DueJob {
    let job = jobs::job("id 0", object, "1");
    state
        .run(
            "HSET",
            &[&state.keys.events_cron(), name, &jobs::text(&job)],
        )
        .await;
    state
        .run("ZADD", &[&state.keys.events_cron_next(), next, name])
        .await;
    due(name, &job, 0)
}

/// Makes a call whose ticks queue the event of the job `events` times.
fn ticks(job: &DueJob, events: usize) -> Ticks {
    Ticks {
        job: job.clone(),
        handled_ms: 7,
        next_ms: Some(99_999_999_999_999),
        events: Some(events),
    }
}

async fn last(state: &mut State, name: &str) -> Option<String> {
    redis::cmd("HGET")
        .arg(state.keys.events_cron_last())
        .arg(name)
        .query_async(&mut state.conn)
        .await
        .expect("HGET")
}

async fn next_ms(state: &mut State, name: &str) -> Option<f64> {
    redis::cmd("ZSCORE")
        .arg(state.keys.events_cron_next())
        .arg(name)
        .query_async(&mut state.conn)
        .await
        .expect("ZSCORE")
}

/// The job's object cannot get an event: its queue has a wrong type, or its name is foreign. The
/// script names the job and postpones it for a minute, and the tick is not lost. A call that only
/// skips ticks needs no queue, so it counts them as handled.
#[tokio::test]
async fn an_object_that_can_get_no_event_keeps_its_ticks() {
    let (one, other) = (Redis::start(), Redis::own(&[]));
    let foreign = "{shop:0}:work:1";
    for (redis, keys, object, why) in [
        (&one, one.keys().clone(), "work:1", "wrong work:1:events"),
        (&other, Keys::new(), foreign, "name"),
    ] {
        let mut state = state_of(redis, &keys).await;
        let job = set(&mut state, "job", object, "1").await;
        if object != foreign {
            state.run("SET", &[&keys.events(object), "wrong"]).await;
        }
        let fired = wire::cron(&mut state.conn, &keys, &[ticks(&job, 1)])
            .await
            .expect("a reply");
        assert_eq!(fired.wrong, [(b"job".to_vec(), why.to_owned())]);
        assert_eq!(
            (fired.events, fired.due.len(), last(&mut state, "job").await),
            (0, 0, None)
        );
        assert_eq!(
            next_ms(&mut state, "job").await,
            Some(fired.now_ms as f64 + 60_000.0)
        );

        let skipped = wire::cron(&mut state.conn, &keys, &[ticks(&job, 0)])
            .await
            .expect("a reply");
        assert_eq!((skipped.wrong.len(), skipped.events), (0, 0));
        assert_eq!(last(&mut state, "job").await.as_deref(), Some("7 0"));
        assert_eq!(next_ms(&mut state, "job").await, Some(99_999_999_999_999.0));
    }
}

/// One call fires the ticks of several jobs.
#[tokio::test]
async fn a_call_fires_several_jobs() {
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let mut state = state_of(&redis, &keys).await;
    let mut fire = Vec::new();
    for (name, object, events) in [("a", "work:1", 1), ("b", "work:2", 2), ("c", "work:3", 3)] {
        fire.push(ticks(&set(&mut state, name, object, "1").await, events));
    }
    let fired = wire::cron(&mut state.conn, &keys, &fire)
        .await
        .expect("a reply");
    assert_eq!((fired.jobs, fired.events, fired.due.len()), (3, 6, 0));
    let console = redis.console().await;
    for (object, events) in [("work:1", 1), ("work:2", 2), ("work:3", 3)] {
        assert_eq!(
            console.list(&keys.events(object)).await,
            vec!["1"; events],
            "{object}"
        );
    }
    assert_eq!(
        console.list(&keys.objects_with_events()).await,
        ["work:1", "work:2", "work:3"]
    );
}

/// A shared key has a wrong type. The call fails before it counts a tick as handled; otherwise this
/// tick would be lost. It also fails if no job is due.
#[tokio::test]
async fn a_shared_key_of_a_wrong_type_loses_no_tick() {
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let (mut state, console) = (state_of(&redis, &keys).await, redis.console().await);
    for key in [
        keys.events_cron_next(),
        keys.events_cron(),
        keys.events_cron_last(),
        keys.objects_with_events(),
    ] {
        let job = set(&mut state, "job", "work:1", "99999999999999").await;
        state.run("DEL", &[&key]).await;
        state.run("SET", &[&key, "wrong"]).await;
        for ticks in [&[ticks(&job, 1)][..], &[]] {
            let refused = wire::cron(&mut state.conn, &keys, ticks)
                .await
                .expect_err("a wrong type");
            assert!(refused.is_wrong_type(), "{key}: {refused}");
        }
        assert_eq!(
            console.list(&keys.events("work:1")).await,
            Vec::<String>::new(),
            "{key}"
        );
        state.run("DEL", &[&key]).await;
        assert_eq!(last(&mut state, "job").await, None, "{key}");
    }
}

/// The user lacks a right without which a tick would be lost, or would fire again. So no tick
/// fires. A call without ticks needs none of these rights.
#[tokio::test]
async fn without_one_right_no_tick_fires() {
    let redis = Redis::own(&[]);
    let keys = redis.keys().clone();
    let mut state = state_of(&redis, &keys).await;
    let job = set(&mut state, "job", "work:1", "1").await;
    let queue = "denied LPUSH work:1:events";
    for (denied, rules) in [
        ("HSET", &["~*", "-hset"][..]),
        ("ZADD", &["~*", "-zadd"]),
        ("LPUSH", &["%R~*", "~*events.cron*", "~*work:1:events"]),
        (queue, &["%R~*", "~*events.cron*", "~*objects.with.events"]),
    ] {
        let user = ["worker", "reset", "on", "nopass", "+@all"];
        state
            .run("ACL", &[&["SETUSER"], &user[..], rules].concat())
            .await;
        let mut conn = redis.connect().await;
        redis::cmd("AUTH")
            .arg("worker")
            .arg("x")
            .query_async::<()>(&mut conn)
            .await
            .expect("logged in");
        assert_eq!(
            wire::cron(&mut conn, &keys, &[])
                .await
                .expect("a reply")
                .due,
            std::slice::from_ref(&job),
            "{denied}"
        );
        match wire::cron(&mut conn, &keys, &[ticks(&job, 1)]).await {
            Ok(fired) => assert_eq!(
                fired.wrong,
                [(b"job".to_vec(), queue.to_owned())],
                "{denied}"
            ),
            Err(refused) => assert!(
                matches!(&refused, ScriptError::Denied(command) if command == denied),
                "{denied}: {refused}"
            ),
        }
        assert_eq!(last(&mut state, "job").await, None, "{denied}");
        assert_eq!(
            redis.console().await.list(&keys.events("work:1")).await,
            Vec::<String>::new(),
            "{denied}"
        );
        if denied == queue {
            // A call that only skips ticks needs no right to the queue.
            assert!(
                wire::cron(&mut conn, &keys, &[ticks(&job, 0)])
                    .await
                    .expect("a reply")
                    .wrong
                    .is_empty()
            );
            assert_eq!(last(&mut state, "job").await.as_deref(), Some("7 0"));
        }
    }
}

/// A call returns jobs until it has read 1 MiB of them. All jobs that are due stay due.
#[tokio::test]
async fn a_call_reads_1_mib_of_jobs() {
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let mut state = state_of(&redis, &keys).await;
    for (bytes, due) in [
        ((1 << 19) - 1, &["a", "b", "c"][..]),
        (1 << 19, &["a", "b"]),
    ] {
        for (name, next, bytes) in [("a", "1", bytes), ("b", "2", 1 << 19), ("c", "3", 1000)] {
            let value = jobs::value("id 0", "work:1", "");
            let value = format!("{value}{}", "1".repeat(bytes - value.len()));
            state
                .run("HSET", &[&keys.events_cron(), name, &value])
                .await;
            state
                .run("ZADD", &[&keys.events_cron_next(), next, name])
                .await;
        }
        let reply = wire::cron(&mut state.conn, &keys, &[])
            .await
            .expect("a reply");
        let names: Vec<_> = reply
            .due
            .iter()
            .map(|job| String::from_utf8_lossy(&job.name))
            .collect();
        assert_eq!(
            (&names[..], reply.wrong.len()),
            (
                &due.iter().map(|name| (*name).into()).collect::<Vec<_>>()[..],
                0
            )
        );
        assert_eq!(
            redis
                .console()
                .await
                .run::<u64>(&["ZCOUNT", &keys.events_cron_next(), "1", "3"])
                .await,
            3
        );
    }
}

/// The reply has the time until the first tick. A job without a further tick, and no job at all,
/// give no time.
#[tokio::test]
async fn the_reply_has_the_time_until_the_first_tick() {
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let mut state = state_of(&redis, &keys).await;
    assert_eq!(
        wire::cron(&mut state.conn, &keys, &[])
            .await
            .expect("a reply")
            .next_due,
        None
    );
    set(&mut state, "over", "work:1", "inf").await;
    assert_eq!(
        wire::cron(&mut state.conn, &keys, &[])
            .await
            .expect("a reply")
            .next_due,
        None
    );
    set(&mut state, "job", "work:1", "99999999999999").await;
    let reply = wire::cron(&mut state.conn, &keys, &[])
        .await
        .expect("a reply");
    assert_eq!(
        reply.next_due,
        Some(Duration::from_millis(99_999_999_999_999 - reply.now_ms))
    );
    set(&mut state, "due", "work:1", "1").await;
    assert_eq!(
        wire::cron(&mut state.conn, &keys, &[])
            .await
            .expect("a reply")
            .next_due,
        Some(Duration::ZERO)
    );
}

/// The caller has read the job, and then somebody else has resumed or set it. The call that resumes
/// the job says so, and changes nothing. Otherwise the job would get the next tick of another
/// schedule.
#[tokio::test]
async fn a_job_that_has_changed_is_not_resumed() {
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let (mut state, console) = (state_of(&redis, &keys).await, redis.console().await);
    let resume = CronStep::Resume {
        id: "id",
        new_id: "new",
        next_ms: Some(9),
    };
    let by = By {
        who: "ada",
        why: "a test",
    };
    let job = |head: &str| jobs::value(head, "work:1", "1");
    for (before, done, after, next) in [
        ("id 0", CronDone::Changed, "id 0", None),
        ("other 1", CronDone::Changed, "other 1", None),
        ("id 1", CronDone::Resumed, "new 0", Some(9.0)),
    ] {
        state
            .run("HSET", &[&keys.events_cron(), "job", &job(before)])
            .await;
        let reply = operator::cron(&mut state.conn, &keys, by, "job", resume)
            .await
            .expect("a reply");
        assert_eq!(reply, done, "{before}");
        let value: String = console.run(&["HGET", &keys.events_cron(), "job"]).await;
        assert_eq!(
            (value, next_ms(&mut state, "job").await),
            (job(after), next),
            "{before}"
        );
        let actions: u64 = console.run(&["XLEN", &keys.operator_actions()]).await;
        assert_eq!(
            (last(&mut state, "job").await.is_some(), actions),
            (next.is_some(), u64::from(next.is_some())),
            "{before}"
        );
    }
}

/// A job fires only if it is the one that the caller has read, is not paused, and nobody has
/// handled its ticks meanwhile. Of each case: the job, its handled ticks, the events of the call,
/// and both after it.
#[tokio::test]
async fn a_job_fires_only_as_the_caller_has_read_it() {
    const NEXT: f64 = 99_999_999_999_999.0;
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let (mut state, console) = (state_of(&redis, &keys).await, redis.console().await);
    let job = |head: &str| jobs::value(head, "work:1", "1");
    for (text, handled, events, fires) in [
        ("id 0", Some("0 3"), Some(1), true),
        ("id 0", Some("0 3"), Some(2), true),
        ("id 0", None, Some(1), true),
        ("id 0", Some("odd"), Some(1), true),
        ("other 0", Some("0 3"), Some(1), false),
        ("id 1", Some("0 3"), Some(1), false),
        ("id 0", Some("7 3"), Some(1), false),
        ("odd", Some("0 3"), Some(1), false),
    ] {
        state.run("FLUSHDB", &[]).await;
        let value = if text == "odd" {
            text.to_owned()
        } else {
            job(text)
        };
        state
            .run("HSET", &[&keys.events_cron(), "job", &value])
            .await;
        state
            .run("ZADD", &[&keys.events_cron_next(), "99999999999990", "job"])
            .await;
        if let Some(handled) = handled {
            state
                .run("HSET", &[&keys.events_cron_last(), "job", handled])
                .await;
        }
        let tick = Ticks {
            job: due("job", &jobs::job("id 0", "work:1", "1"), 0),
            handled_ms: 7,
            next_ms: Some(99_999_999_999_999),
            events,
        };
        let fired = wire::cron(&mut state.conn, &keys, &[tick])
            .await
            .expect("a reply");
        let events = if fires { events.unwrap_or(0) } else { 0 };
        assert_eq!(
            (fired.jobs, fired.events),
            (u64::from(fires), events as u64),
            "{text} {handled:?}"
        );
        assert_eq!(
            (fired.wrong.len(), fired.due.len()),
            (0, 0),
            "{text} {handled:?}"
        );
        let after = if fires {
            Some(format!("7 {}", fired.now_ms))
        } else {
            handled.map(str::to_owned)
        };
        assert_eq!(last(&mut state, "job").await, after, "{text} {handled:?}");
        assert_eq!(
            next_ms(&mut state, "job").await,
            Some(if fires { NEXT } else { NEXT - 9.0 }),
            "{text} {handled:?}"
        );
        assert_eq!(
            console.list(&keys.events("work:1")).await,
            vec!["1"; events],
            "{text} {handled:?}"
        );
        let markers: &[&str] = if fires { &["work:1"] } else { &[] };
        assert_eq!(
            console.list(&keys.objects_with_events()).await,
            markers,
            "{text} {handled:?}"
        );
    }
}

/// A call that fires no tick keeps the time of the last one. A call that only postpones the job
/// keeps all else.
#[tokio::test]
async fn a_call_without_events_keeps_the_time_of_the_last_tick() {
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let mut state = state_of(&redis, &keys).await;
    let job = set(&mut state, "job", "work:1", "1").await;
    state
        .run("HSET", &[&keys.events_cron_last(), "job", "0 3"])
        .await;
    let postponed = Ticks {
        events: None,
        ..ticks(&job, 0)
    };
    let fired = wire::cron(&mut state.conn, &keys, &[postponed])
        .await
        .expect("a reply");
    assert_eq!(
        (fired.jobs, fired.events, fired.wrong.len(), fired.due.len()),
        (0, 0, 0, 0)
    );
    assert_eq!(last(&mut state, "job").await.as_deref(), Some("0 3"));
    assert_eq!(
        next_ms(&mut state, "job").await,
        Some(fired.now_ms as f64 + 60_000.0)
    );
    let fired = wire::cron(&mut state.conn, &keys, &[ticks(&job, 0)])
        .await
        .expect("a reply");
    assert_eq!(
        (fired.jobs, fired.events, fired.wrong.len(), fired.due.len()),
        (0, 0, 0, 0)
    );
    assert_eq!(last(&mut state, "job").await.as_deref(), Some("7 3"));
    assert_eq!(next_ms(&mut state, "job").await, Some(99_999_999_999_999.0));
    assert_eq!(
        redis
            .console()
            .await
            .list(&keys.objects_with_events())
            .await,
        [""; 0]
    );
}

/// A call returns jobs that are due. It removes entries without a job, and those of paused jobs,
/// and postpones jobs that are invalid.
#[tokio::test]
async fn a_call_returns_jobs_that_are_due() {
    const NO_ID: &str = "99999999999999999999";
    let redis = Redis::start();
    let keys = redis.keys().clone();
    let mut state = state_of(&redis, &keys).await;
    let (good, empty) = (
        jobs::job("id 0", "work:1", "1"),
        jobs::job("other 0", "work:2", ""),
    );
    let (good_text, no_feed) = (jobs::text(&good), good.json());
    for (at, (name, value, handled)) in (1..).zip([
        ("good", &good_text, Some("7 8")),
        ("empty", &jobs::text(&empty), None),
        ("paused", &jobs::value("id 1", "work:1", "1"), None),
        ("short", &no_feed, None),
        (
            "since",
            &good_text.replace(":5,", &format!(":{NO_ID},")),
            None,
        ),
        ("handled", &good_text, Some(&*format!("{NO_ID} 8"))),
    ]) {
        state.run("HSET", &[&keys.events_cron(), name, value]).await;
        state
            .run("ZADD", &[&keys.events_cron_next(), &at.to_string(), name])
            .await;
        if let Some(handled) = handled {
            state
                .run("HSET", &[&keys.events_cron_last(), name, handled])
                .await;
        }
    }
    state
        .run("ZADD", &[&keys.events_cron_next(), "7", "absent"])
        .await;
    let reply = wire::cron(&mut state.conn, &keys, &[])
        .await
        .expect("a reply");
    assert_eq!(reply.due, [due("good", &good, 7), due("empty", &empty, 0)]);
    let wrong = [
        ("short", "value"),
        ("since", "value"),
        ("handled", "value"),
        ("absent", "absent"),
    ];
    assert_eq!(
        reply.wrong,
        wrong.map(|(name, why)| (name.as_bytes().to_vec(), why.to_owned()))
    );
    assert_eq!(
        (reply.jobs, reply.events, reply.next_due),
        (0, 0, Some(Duration::ZERO))
    );
    let left: Vec<(String, f64)> = redis
        .console()
        .await
        .run(&["ZRANGE", &keys.events_cron_next(), "0", "-1", "WITHSCORES"])
        .await;
    let later = reply.now_ms as f64 + 60_000.0;
    let expected = [
        ("good", 1.0),
        ("empty", 2.0),
        ("handled", later),
        ("short", later),
        ("since", later),
    ];
    assert_eq!(left, expected.map(|(name, score)| (name.to_owned(), score)));
}
