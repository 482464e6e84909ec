//! `cron`: jobs that cannot fire, and the time of the next job.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control::By;
use seriatim::keys::Keys;
use seriatim::wire::operator::{self, CronDone, CronStep};
use seriatim::wire::values::CronValue;
use seriatim::wire::{self, DueJob, Fired, ScriptError, Ticks};

use crate::scene::Scene;
use crate::support::{Redis, jobs};

/// A time that is not due.
const LATER: u64 = 99_999_999_999_999;

async fn given() -> Scene {
    Scene::bare(Redis::start()).await
}

/// Makes a call with these ticks.
async fn call(scene: &Scene, ticks: &[Ticks]) -> Fired {
    call_on(&mut scene.conn().await, scene, ticks).await
}

async fn call_on(conn: &mut MultiplexedConnection, scene: &Scene, ticks: &[Ticks]) -> Fired {
    let fired = wire::cron(conn, &scene.keys, ticks).await;
    fired.expect("a reply")
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

/// Stores the text of a job. Its next tick has this score.
async fn store(scene: &Scene, name: &str, text: &str, next: &str) {
    let tick = format!("ZADD events.cron.next {next} {name}");
    let job = format!("HSET events.cron {name} '{text}'");
    scene.add(&format!("{job}; {tick}")).await;
}

/// Stores a job with the event `1`. Its next tick has this score.
async fn set(scene: &Scene, name: &str, object: &str, next: &str) -> DueJob {
    let job = jobs::job("id 0", object, "1");
    store(scene, name, &jobs::text(&job), next).await;
    due(name, &job, 0)
}

/// Makes a call whose ticks queue the event of the job `events` times.
fn ticks(job: &DueJob, events: usize) -> Ticks {
    Ticks {
        job: job.clone(),
        handled_ms: 7,
        next_ms: Some(LATER),
        events: Some(events),
    }
}

async fn last(scene: &Scene, name: &str) -> Option<String> {
    let words = ["HGET", &scene.keys.events_cron_last(), name];
    scene.run(&words).await
}

async fn next_ms(scene: &Scene, name: &str) -> Option<f64> {
    let words = ["ZSCORE", &scene.keys.events_cron_next(), name];
    scene.run(&words).await
}

/// The job's object cannot get an event: its queue has a wrong type, or its name is foreign. The
/// script names the job and postpones it for a minute, and the tick is not lost. A call that only
/// skips ticks needs no queue, so it counts them as handled.
#[tokio::test]
async fn an_object_that_can_get_no_event_keeps_its_ticks() {
    let (one, other) = (given().await, Scene::bare_under(Keys::new()).await);
    let foreign = "{shop:0}:work:1";
    for (scene, object, why) in [
        (one, "work:1", "wrong work:1:events"),
        (other, foreign, "name"),
    ] {
        let job = set(&scene, "job", object, "1").await;
        if object != foreign {
            scene.add("SET work:1:events wrong").await;
        }
        let fired = call(&scene, &[ticks(&job, 1)]).await;
        assert_eq!(fired.wrong, [(b"job".to_vec(), why.to_owned())]);
        assert_eq!(
            (fired.events, fired.due.len(), last(&scene, "job").await),
            (0, 0, None)
        );
        assert_eq!(
            next_ms(&scene, "job").await,
            Some(fired.now_ms as f64 + 60_000.0)
        );

        let skipped = call(&scene, &[ticks(&job, 0)]).await;
        assert_eq!((skipped.wrong.len(), skipped.events), (0, 0));
        assert_eq!(last(&scene, "job").await.as_deref(), Some("7 0"));
        assert_eq!(next_ms(&scene, "job").await, Some(LATER as f64));
    }
}

/// One call fires the ticks of several jobs.
#[tokio::test]
async fn a_call_fires_several_jobs() {
    let scene = given().await;
    let mut fire = Vec::new();
    for (name, object, events) in [("a", "work:1", 1), ("b", "work:2", 2), ("c", "work:3", 3)] {
        fire.push(ticks(&set(&scene, name, object, "1").await, events));
    }
    let fired = call(&scene, &fire).await;
    assert_eq!((fired.jobs, fired.events, fired.due.len()), (3, 6, 0));
    for (key, list) in [
        ("work:1:events", "[1]"),
        ("work:2:events", "[1, 1]"),
        ("work:3:events", "[1, 1, 1]"),
        ("objects.with.events", "[work:1, work:2, work:3]"),
    ] {
        assert_eq!(scene.at(key).await, list, "{key}");
    }
}

/// A shared key has a wrong type. The call fails before it counts a tick as handled; otherwise this
/// tick would be lost. It also fails if no job is due.
#[tokio::test]
async fn a_shared_key_of_a_wrong_type_loses_no_tick() {
    let scene = given().await;
    for key in [
        "events.cron.next",
        "events.cron",
        "events.cron.last",
        "objects.with.events",
    ] {
        let job = set(&scene, "job", "work:1", "99999999999999").await;
        scene.add(&format!("DEL {key}; SET {key} wrong")).await;
        for ticks in [&[ticks(&job, 1)][..], &[]] {
            let refused = wire::cron(&mut scene.conn().await, &scene.keys, ticks).await;
            let refused = refused.expect_err("a wrong type");
            assert!(refused.is_wrong_type(), "{key}: {refused}");
        }
        assert_eq!(scene.at("work:1:events").await, "nil", "{key}");
        scene.add(&format!("DEL {key}")).await;
        assert_eq!(last(&scene, "job").await, None, "{key}");
    }
}

/// The user lacks a right without which a tick would be lost, or would fire again. So no tick
/// fires. A call without ticks needs none of these rights.
#[tokio::test]
async fn without_one_right_no_tick_fires() {
    let scene = Scene::bare(Redis::own(&[])).await;
    let job = set(&scene, "job", "work:1", "1").await;
    let queue = "denied LPUSH work:1:events";
    for (denied, rules) in [
        ("HSET", &["~*", "-hset"][..]),
        ("ZADD", &["~*", "-zadd"]),
        ("LPUSH", &["%R~*", "~*events.cron*", "~*work:1:events"]),
        (queue, &["%R~*", "~*events.cron*", "~*objects.with.events"]),
    ] {
        let user = ["ACL", "SETUSER", "worker", "reset", "on", "nopass", "+@all"];
        scene.run::<()>(&[&user[..], rules].concat()).await;
        let mut conn = scene.redis.connect().await;
        let login = redis::cmd("AUTH").arg(&["worker", "x"]).to_owned();
        login.exec_async(&mut conn).await.expect("logged in");
        let read = call_on(&mut conn, &scene, &[]).await;
        assert_eq!(read.due, std::slice::from_ref(&job), "{denied}");
        match wire::cron(&mut conn, &scene.keys, &[ticks(&job, 1)]).await {
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
        assert_eq!(last(&scene, "job").await, None, "{denied}");
        assert_eq!(scene.at("work:1:events").await, "nil", "{denied}");
        if denied == queue {
            // A call that only skips ticks needs no right to the queue.
            let skipped = call_on(&mut conn, &scene, &[ticks(&job, 0)]).await;
            assert!(skipped.wrong.is_empty());
            assert_eq!(last(&scene, "job").await.as_deref(), Some("7 0"));
        }
    }
}

/// A call returns jobs until it has read 1 MiB of them. All jobs that are due stay due.
#[tokio::test]
async fn a_call_reads_1_mib_of_jobs() {
    let scene = given().await;
    for (bytes, due) in [
        ((1 << 19) - 1, &["a", "b", "c"][..]),
        (1 << 19, &["a", "b"]),
    ] {
        for (name, next, bytes) in [("a", "1", bytes), ("b", "2", 1 << 19), ("c", "3", 1000)] {
            let value = jobs::value("id 0", "work:1", "");
            let value = format!("{value}{}", "1".repeat(bytes - value.len()));
            store(&scene, name, &value, next).await;
        }
        let reply = call(&scene, &[]).await;
        let names: Vec<_> = reply.due.iter().map(|job| &job.name[..]).collect();
        let due: Vec<_> = due.iter().map(|name| name.as_bytes()).collect();
        assert_eq!((names, reply.wrong.len()), (due, 0));
        assert_eq!(scene.at("events.cron.next").await, "<a: 1, b: 2, c: 3>");
    }
}

/// The reply has the time until the first tick. A job without a further tick, and no job at all,
/// give no time.
#[tokio::test]
async fn the_reply_has_the_time_until_the_first_tick() {
    let scene = given().await;
    assert_eq!(call(&scene, &[]).await.next_due, None);
    set(&scene, "over", "work:1", "inf").await;
    assert_eq!(call(&scene, &[]).await.next_due, None);
    set(&scene, "job", "work:1", &LATER.to_string()).await;
    let reply = call(&scene, &[]).await;
    let until = Duration::from_millis(LATER - reply.now_ms);
    assert_eq!(reply.next_due, Some(until));
    set(&scene, "due", "work:1", "1").await;
    assert_eq!(call(&scene, &[]).await.next_due, Some(Duration::ZERO));
}

/// The caller has read the job, and then somebody else has resumed or set it. The call that resumes
/// the job says so, and changes nothing. Otherwise the job would get the next tick of another
/// schedule.
#[tokio::test]
async fn a_job_that_has_changed_is_not_resumed() {
    let scene = given().await;
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
        let value = format!("HSET events.cron job '{}'", job(before));
        scene.add(&value).await;
        let (mut conn, keys) = (scene.conn().await, &scene.keys);
        let reply = operator::cron(&mut conn, keys, by, "job", resume).await;
        assert_eq!(reply.expect("a reply"), done, "{before}");
        let value: String = scene.run(&["HGET", &keys.events_cron(), "job"]).await;
        let found = (value, next_ms(&scene, "job").await);
        assert_eq!(found, (job(after), next), "{before}");
        let actions: u64 = scene.run(&["XLEN", &keys.operator_actions()]).await;
        assert_eq!(
            (last(&scene, "job").await.is_some(), actions),
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
    const NEXT: f64 = LATER as f64;
    let scene = given().await;
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
        let case = format!("{text} {handled:?}");
        let value = if text == "odd" {
            text.to_owned()
        } else {
            job(text)
        };
        scene.again("").await;
        store(&scene, "job", &value, "99999999999990").await;
        if let Some(handled) = handled {
            let handled = format!("HSET events.cron.last job '{handled}'");
            scene.add(&handled).await;
        }
        let tick = Ticks {
            job: due("job", &jobs::job("id 0", "work:1", "1"), 0),
            handled_ms: 7,
            next_ms: Some(LATER),
            events,
        };
        let fired = call(&scene, &[tick]).await;
        let events = if fires { events.unwrap_or(0) } else { 0 };
        assert_eq!(
            (fired.jobs, fired.events),
            (u64::from(fires), events as u64),
            "{case}"
        );
        assert_eq!((fired.wrong.len(), fired.due.len()), (0, 0), "{case}");
        let after = if fires {
            Some(format!("7 {}", fired.now_ms))
        } else {
            handled.map(str::to_owned)
        };
        assert_eq!(last(&scene, "job").await, after, "{case}");
        let next = if fires { NEXT } else { NEXT - 9.0 };
        assert_eq!(next_ms(&scene, "job").await, Some(next), "{case}");
        let queue = scene.list(&scene.keys.events("work:1")).await;
        assert_eq!(queue, vec!["1"; events], "{case}");
        let markers = scene.at("objects.with.events").await;
        assert_eq!(markers, if fires { "[work:1]" } else { "nil" }, "{case}");
    }
}

/// A call that fires no tick keeps the time of the last one. A call that only postpones the job
/// keeps all else.
#[tokio::test]
async fn a_call_without_events_keeps_the_time_of_the_last_tick() {
    let scene = given().await;
    let job = set(&scene, "job", "work:1", "1").await;
    scene.add("HSET events.cron.last job '0 3'").await;
    let postponed = Ticks {
        events: None,
        ..ticks(&job, 0)
    };
    let fired = call(&scene, &[postponed]).await;
    assert_eq!(
        (fired.jobs, fired.events, fired.wrong.len(), fired.due.len()),
        (0, 0, 0, 0)
    );
    assert_eq!(last(&scene, "job").await.as_deref(), Some("0 3"));
    assert_eq!(
        next_ms(&scene, "job").await,
        Some(fired.now_ms as f64 + 60_000.0)
    );
    let fired = call(&scene, &[ticks(&job, 0)]).await;
    assert_eq!(
        (fired.jobs, fired.events, fired.wrong.len(), fired.due.len()),
        (0, 0, 0, 0)
    );
    assert_eq!(last(&scene, "job").await.as_deref(), Some("7 3"));
    assert_eq!(next_ms(&scene, "job").await, Some(LATER as f64));
    assert_eq!(scene.at("objects.with.events").await, "nil");
}

/// A call returns jobs that are due. It removes entries without a job, and those of paused jobs,
/// and postpones jobs that are invalid.
#[tokio::test]
async fn a_call_returns_jobs_that_are_due() {
    const NO_ID: &str = "99999999999999999999";
    let scene = given().await;
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
        store(&scene, name, value, &at.to_string()).await;
        if let Some(handled) = handled {
            let handled = format!("HSET events.cron.last {name} '{handled}'");
            scene.add(&handled).await;
        }
    }
    scene.add("ZADD events.cron.next 7 absent").await;
    let reply = call(&scene, &[]).await;
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
    let left = scene.scores("events.cron.next").await;
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
