//! Cron jobs: each tick fires once, even if processes pause or die, or clocks change.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::control::cron::{CronDetail, CronDone, CronDraft};
use seriatim::control::{By, Control, ControlError};
use seriatim::cron::{CronSchedule, Missed};
use seriatim::event::Json;
use seriatim::wire::values::{CronLast, CronValue};
use seriatim::wire::{self, DueJob, Ticks};

use crate::support::clock::Clock;
use crate::support::console::{Console, PATIENCE};
use crate::support::operator::Reads;
use crate::support::process::{Process, sent_to};
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, assert_matches, jobs, until};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};

async fn setup() -> (Redis, Console, Control) {
    let (redis, console) = Redis::start().with_console().await;
    let control = console.control();
    (redis, console, control)
}

fn schedule(text: &str) -> CronSchedule {
    CronSchedule::new(text, None).expect("a schedule")
}

async fn set(control: &Control, job: CronDraft<Json>) -> CronDone {
    control.set_cron(BY, job).await.expect("set")
}

/// Returns the only job, or the first one.
async fn detail(control: &Control) -> CronDetail {
    let page = control.crons(None, 1).await.expect("a page");
    page.jobs[0].detail.clone().expect("a job")
}

fn tick_of(schedule: CronSchedule) -> CronDraft<Json> {
    CronDraft::new("tick", schedule, "work:1", Json::new("\"tick\""))
}

/// Returns a job with a tick every hour.
fn hourly(name: &str, object: String) -> CronDraft<Json> {
    CronDraft::new(name, schedule("@every 1h"), object, Json::new("1"))
}

/// Returns the time up to which the ticks of a job count as handled.
async fn handled(console: &Console, name: &str) -> u64 {
    let last: Option<String> = console
        .run(&["HGET", &console.keys.events_cron_last(), name])
        .await;
    CronLast::read(&last.unwrap_or_default()).handled_ms
}

#[tokio::test]
async fn ten_processes_fire_each_tick_once() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    let mut workers = Vec::new();
    for n in 0..10 {
        workers.push(start(&redis, &format!("w{n}"), &sink, |_| {}));
    }
    console.until_idle(10).await;
    let job = tick_of(schedule("@every 1s")).missed(Missed::All);
    assert_eq!(set(&control, job).await, CronDone::New);
    let since = handled(&console, "tick").await;
    sink.until_sent(4).await;
    assert_eq!(
        control.pause_cron(BY, "tick").await.expect("paused"),
        CronDone::Paused
    );
    let fired = detail(&control).await;
    assert!(
        fired.paused
            && fired.next_ms.is_none()
            && fired.last_ms.is_some_and(|last| last >= since + 4000),
        "{fired:?}"
    );
    for worker in workers {
        worker.finish().await;
    }
    // Pausing a job counts all ticks before the pause as handled, even if the last of them did not
    // fire. So the events are compared with the last tick that fired.
    let (sent, last) = (sink.sent().len() as u64, fired.last_ms.expect("a run"));
    assert!(
        sent == (last - since) / 1000,
        "{sent} events in {} ms",
        last - since
    );
    console.check().await;
}

/// A job has a tick every second. Each of two processes is paused in turn for some ticks.
#[tokio::test]
async fn a_process_that_is_paused_across_a_tick_fires_nothing_twice() {
    let (redis, console, control) = setup().await;
    let dir = tempfile::tempdir().expect("a directory");
    let files = ["a", "b"].map(|name| dir.path().join(name));
    let mut processes = [("a", &files[0]), ("b", &files[1])]
        .map(|(name, file)| Process::start(&redis, name, &format!("file:{}", file.display()), &[]));
    console.until_idle(2).await;
    set(&control, tick_of(schedule("@every 1s")).missed(Missed::All)).await;
    let since = handled(&console, "tick").await;
    for process in &processes {
        let before = handled(&console, "tick").await;
        process.pause();
        until("other processes go on", PATIENCE, async || {
            (handled(&console, "tick").await >= before + 2000).then_some(())
        })
        .await;
        process.go_on();
    }
    control.pause_cron(BY, "tick").await.expect("paused");
    console.until_at_rest().await;
    for process in &mut processes {
        process.terminate();
        process.ended().await;
    }
    let events: usize = files.iter().map(|file| sent_to(file).len()).sum();
    let paused_at = handled(&console, "tick").await;
    let ticks = usize::try_from((paused_at - since) / 1000).expect("few");
    // Pausing a job counts all ticks before the pause as handled, even if the last of them did not
    // fire.
    assert!(
        (4..=ticks).contains(&events),
        "{events} events of {ticks} ticks"
    );
}

/// Two processes compute the same tick, tested with direct script calls. The second call to fire
/// this tick is refused.
#[tokio::test]
async fn a_tick_that_another_process_has_fired_is_refused() {
    let (redis, console, control) = setup().await;
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    set(&control, tick_of(schedule("@yearly"))).await;
    console.add("ZADD events.cron.next 1 tick").await;
    let mut fire = async |jobs: &[&DueJob]| {
        let ticks = jobs.iter().map(|job| Ticks {
            job: (*job).clone(),
            handled_ms: job.handled_ms + 5,
            next_ms: None,
            events: Some(1),
        });
        let ticks: Vec<_> = ticks.collect();
        wire::cron(&mut conn, keys, &ticks).await.expect("a reply")
    };
    let due = fire(&[]).await.due;
    assert_eq!(due.len(), 1);
    let fired = fire(&[&due[0], &due[0]]).await;
    assert_eq!(
        (fired.jobs, fired.events, fired.due.len(), fired.next_due),
        (1, 1, 0, None)
    );
    for changed in [
        DueJob {
            id: b"other".to_vec(),
            handled_ms: due[0].handled_ms + 5,
            ..due[0].clone()
        },
        DueJob {
            name: b"gone".to_vec(),
            ..due[0].clone()
        },
        due[0].clone(),
    ] {
        assert_eq!(fire(&[&changed]).await.events, 0);
    }
    assert_eq!(console.queue("work:1").await, ["\"tick\""]);
    control.pause_cron(BY, "tick").await.expect("paused");
    let now = DueJob {
        handled_ms: handled(&console, "tick").await,
        ..due[0].clone()
    };
    assert_eq!(fire(&[&now]).await.events, 0, "paused");
    console.check().await;
}

/// The script names each unreadable job with the reason. Such a job fires no tick, and its next
/// tick is put off for a while.
#[tokio::test]
async fn jobs_that_cannot_be_read_are_named() {
    let redis = Redis::start();
    let (console, mut conn, keys) = (redis.console().await, redis.connect().await, redis.keys());
    console.add("HSET events.cron a nonsense b nonsense").await;
    console.add("ZADD events.cron.next 1 a 2 b 3 gone").await;
    let fired = wire::cron(&mut conn, keys, &[]).await.expect("a reply");
    let wrong = fired.wrong.iter();
    let wrong = wrong.map(|(name, why)| format!("{} {why}", String::from_utf8_lossy(name)));
    let wrong: Vec<_> = wrong.collect();
    assert_eq!(wrong, ["a value", "b value", "gone absent"]);
    assert_eq!((fired.events, fired.due.len()), (0, 0));
    let next: Vec<(String, f64)> = console
        .run(&["ZRANGE", &keys.events_cron_next(), "0", "-1", "WITHSCORES"])
        .await;
    assert!(
        next.len() == 2 && next.iter().all(|(_, at)| *at > 1e12),
        "{next:?}"
    );
}

/// The days on which the clocks of Berlin go ahead and back in 2090, as days since 1970.
const SPRING: u64 = 43_914;
const AUTUMN: u64 = 44_131;

/// Returns a time of day in UTC on this day, as ms since 1970.
fn at(day: u64, hour: u64, minute: u64, second: u64) -> u64 {
    (day * 86_400 + hour * 3600 + minute * 60 + second) * 1000
}

async fn set_clock(clock: &Clock, console: &Console, to_ms: u64) {
    let now = u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time")
            .as_millis(),
    )
    .expect("a time");
    clock.step_ahead(Duration::from_millis(to_ms - now));
    until("scripts see the step", PATIENCE, async || {
        let seconds: u64 = console
            .run(&["EVAL", "return redis.call('TIME')[1]", "0"])
            .await;
        (seconds * 1000 + 500 >= to_ms).then_some(())
    })
    .await;
}

/// In Berlin the clocks go ahead on 26 March 2090 at 02:00, and back on 29 October 2090 at 03:00.
#[tokio::test]
async fn a_job_fires_once_across_both_changes_of_daylight_saving_time() {
    let clock = Clock::new();
    let redis = Redis::with(&[], clock.environment());
    let (console, control) = (redis.console().await, redis.control().await);
    let daily = CronSchedule::new("30 2 * * *", Some("Europe/Berlin")).expect("a schedule");
    let next = async || detail(&control).await.next_ms;
    let sink = Recorder::new();
    // In spring 02:30 does not exist: the tick is at the end of the gap, 03:00. In autumn 02:30
    // comes twice, at 00:30 and at 01:30 UTC.
    let spring = (
        at(SPRING, 0, 50, 0),
        at(SPRING, 1, 0, 0),
        at(SPRING + 1, 0, 30, 0),
        at(SPRING, 2, 30, 0),
    );
    let autumn = (
        at(AUTUMN, 0, 20, 0),
        at(AUTUMN, 0, 30, 0),
        at(AUTUMN + 1, 1, 30, 0),
        at(AUTUMN, 1, 30, 5),
    );
    for (n, (before, tick, next_tick, later)) in [spring, autumn].into_iter().enumerate() {
        set_clock(&clock, &console, before).await;
        set(&control, tick_of(daily.clone())).await;
        assert_eq!(next().await, Some(tick));
        set_clock(&clock, &console, tick).await;
        let worker = start(&redis, &format!("w{n}"), &sink, |_| {});
        sink.until_sent(n + 1).await;
        until("the next tick is known", PATIENCE, async || {
            (next().await == Some(next_tick)).then_some(())
        })
        .await;
        worker.finish().await;
        set_clock(&clock, &console, later).await;
        let worker = start(&redis, &format!("x{n}"), &sink, |_| {});
        console.until_idle(1).await;
        worker.finish().await;
        assert_eq!((next().await, sink.sent().len()), (Some(next_tick), n + 1));
        control.remove_cron(BY, "tick").await.expect("removed");
    }
}

/// Makes a job of `@every 1h` look as if it had been set this long ago.
async fn set_back(console: &Console, name: &str, ms: u64) {
    let (jobs, since) = (
        console.keys.events_cron(),
        handled(console, name).await - ms,
    );
    let (last, next) = (format!("{since} 0"), (since + 3_600_000).to_string());
    console
        .add_one(&["HSET", "events.cron.last", name, &last])
        .await;
    console
        .add_one(&["ZADD", "events.cron.next", &next, name])
        .await;
    let value: String = console.run(&["HGET", &jobs, name]).await;
    let mut job = CronValue::read(value.as_bytes()).expect("a job");
    job.since_ms = since;
    console
        .add_one(&["HSET", "events.cron", name, &jobs::text(&job)])
        .await;
}

/// No worker runs for some ticks of a job. Afterwards the missed ticks are skipped, or fire once,
/// or all fire.
#[tokio::test]
async fn after_an_outage_ticks_are_skipped_or_fire_once_or_all() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    for (name, missed) in [
        ("skip", Missed::Skip),
        ("once", Missed::Once),
        ("all", Missed::All),
    ] {
        set(&control, hourly(name, format!("{name}:1")).missed(missed)).await;
        set_back(&console, name, 5 * 3_600_000 + 90_000).await;
    }
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(6).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(
        ["skip:1", "once:1", "all:1"].map(|object| sink.sent_of(object).len()),
        [0, 1, 5]
    );
    console.check().await;
}

#[tokio::test]
async fn a_change_takes_effect_within_a_second() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    let workers = ["a", "b"].map(|name| start(&redis, name, &sink, |_| {}));
    console.until_idle(2).await;
    let yearly = schedule("@yearly");
    assert_eq!(set(&control, tick_of(yearly.clone())).await, CronDone::New);
    assert_eq!(set(&control, tick_of(yearly.clone())).await, CronDone::Same);
    let soon = schedule("@every 3s");
    assert_eq!(set(&control, tick_of(soon)).await, CronDone::Replaced);
    let since = handled(&console, "tick").await;
    sink.until_sent(1).await;
    let fired = detail(&control).await.last_ms;
    assert!(
        fired.is_some_and(|fired| (since + 3000..since + 4000).contains(&fired)),
        "{fired:?} {since}"
    );
    let paused = control.pause_cron(BY, "tick").await;
    assert_eq!(paused.expect("paused"), CronDone::Paused);
    assert_eq!(set(&control, tick_of(yearly)).await, CronDone::Replaced);
    let paused = detail(&control).await;
    assert!(paused.paused && paused.schedule == "@yearly", "{paused:?}");
    let before = sink.sent().len();
    let ran = control.run_cron(BY, "tick").await;
    assert_eq!(ran.expect("run"), CronDone::Ran);
    sink.until_sent(before + 1).await;
    for expected in [CronDone::Resumed, CronDone::Changed] {
        let resumed = control.resume_cron(BY, "tick").await;
        assert_eq!(resumed.expect("no error"), expected);
    }
    let removed = control.remove_cron(BY, "tick").await;
    assert_eq!(removed.expect("removed"), CronDone::Removed);
    for missing in [
        control.remove_cron(BY, "tick").await,
        control.pause_cron(BY, "tick").await,
        control.resume_cron(BY, "tick").await,
        control.run_cron(BY, "tick").await,
    ] {
        assert_eq!(missing.expect("no error"), CronDone::NotSet);
    }
    for worker in workers {
        worker.finish().await;
    }
    let actions = control.recorded(30).await.into_iter().rev();
    let actions: Vec<_> = actions.map(|action| action.action).collect();
    let expected = "cron-set cron-set cron-pause cron-set cron-run cron-resume cron-remove";
    assert_eq!(actions.join(" "), expected);
    assert!(
        console.left().await.iter().all(|key| !key.contains("cron")),
        "{:?}",
        console.left().await
    );
}

#[tokio::test]
async fn a_job_whose_queue_has_a_wrong_type_is_not_run() {
    let (_redis, console, control) = setup().await;
    let job = CronDraft::new("tick", schedule("@yearly"), "work:1", Json::new("1"));
    set(&control, job).await;
    console.add("SET work:1:events x").await;
    let refused = control.run_cron(BY, "tick").await;
    assert_matches!(refused, Err(ControlError::WrongType { found, .. }) if found == "string");
    let actions = control.recorded(10).await;
    let actions: Vec<_> = actions.iter().map(|action| &action.action[..]).collect();
    assert_eq!(actions, ["cron-set"]);
    console.add("DEL work:1:events").await;
    let ran = control.run_cron(BY, "tick").await;
    assert_eq!(ran.expect("run"), CronDone::Ran);
}

#[tokio::test]
async fn bad_jobs_are_refused_and_nothing_is_written() {
    let (_redis, console, control) = setup().await;
    let refused = async |job| control.set_cron(BY, job).await.expect_err("a bad job");
    let never = schedule("0 0 30 2 *");
    assert_matches!(refused(tick_of(never)).await, ControlError::Cron(_));
    let job =
        |name, object, event| CronDraft::new(name, schedule("@every 1s"), object, Json::new(event));
    let unnamed = refused(job("", "work:1", "1")).await;
    assert_matches!(unnamed, ControlError::CronName(_));
    assert_matches!(refused(job("a", "", "1")).await, ControlError::Name(_));
    let no_json = refused(job("a", "work:1", "{")).await;
    assert_matches!(no_json, ControlError::Event(_));
    console.add("SET work:1:events x").await;
    let now = refused(job("a", "work:1", "1").now()).await;
    assert_matches!(now, ControlError::WrongType { .. });
    let page = control.crons(None, 10).await.expect("a page");
    assert!(page.jobs.is_empty());
}

/// Jobs that cannot fire: one whose queue has a wrong type, one of a newer version, invalid ones,
/// an entry without a job, and a paused job with a tick. A good job still fires.
#[tokio::test]
async fn a_job_that_cannot_fire_keeps_its_ticks_and_stops_no_other() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    let keys = redis.keys();
    for name in ["wrong", "newer", "good", "paused"] {
        set(&control, hourly(name, format!("{name}:1"))).await;
        set_back(&console, name, 9_000_000).await;
    }
    control.pause_cron(BY, "paused").await.expect("paused");
    console.add("SET wrong:1:events x").await;
    console.add("HSET events.cron newer '{\"id\":\"id\",\"paused\":false,\"since_ms\":5,\"object\":\"newer:1\"}\n1'").await;
    let old = jobs::value("id 0", "old:1", "1").replace(":5,", ":99999999999999999999,");
    console
        .add_one(&["HSET", "events.cron", "odd", "odd", "old", &old])
        .await;
    console
        .add("ZADD events.cron.next 1 gone 2 odd 3 paused 4 old")
        .await;
    let since = handled(&console, "wrong").await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    let due = async || -> Vec<(String, f64)> {
        console
            .run(&["ZRANGE", &keys.events_cron_next(), "0", "-1", "WITHSCORES"])
            .await
    };
    let is_late = |(_, due): &(_, f64)| *due > since as f64 + 9_000_000.0;
    until("no job is due", PATIENCE, async || {
        due().await.iter().all(is_late).then_some(())
    })
    .await;
    let mut names: Vec<_> = due().await.into_iter().map(|(name, _)| name).collect();
    names.retain(|name| name != "good");
    assert_eq!(names.len(), 4, "neither `gone` nor `paused`: {names:?}");
    assert_eq!(sink.sent_of("good:1").len(), 1);
    assert_eq!(handled(&console, "wrong").await, since);
    console
        .add("DEL wrong:1:events; ZADD events.cron.next 1 wrong")
        .await;
    until("the job fires", PATIENCE, async || {
        (!sink.sent_of("wrong:1").is_empty()).then_some(())
    })
    .await;
    worker.finish().await;
    let sent = sink.sent_of("wrong:1").len();
    assert_eq!(sent, 1, "the ticks since then fire once");
    let listed = control.crons(None, 10).await.expect("a page").jobs;
    let unreadable = listed.iter().filter(|job| job.detail.is_none());
    assert_eq!(unreadable.count(), 3, "{listed:?}");
}

/// Story: a search that failed counted as "never", so the job was dead without a word. Now it keeps its
/// ticks, is tried again each minute, and the list says why it does not fire. Here the time zone is not
/// known to this process.
#[tokio::test]
async fn a_job_whose_ticks_cannot_be_computed_is_tried_again_and_shown() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    let keys = redis.keys();
    let job = jobs::value("id 0", "o:1", "1").replace("UTC", "Mars/Base");
    console
        .add_one(&["HSET", "events.cron", "lost", &job])
        .await;
    console.add("HSET events.cron.last lost '1000 1000'").await;
    console.add("ZADD events.cron.next 2000 lost").await;
    let began: (u64, u64) = console.run(&["TIME"]).await;
    let worker = start(&redis, "w", &sink, |_| {});
    let next = until("the job is put off", PATIENCE, async || {
        let next: f64 = console
            .run(&["ZSCORE", &keys.events_cron_next(), "lost"])
            .await;
        (next > 2000.0).then_some(next)
    })
    .await;
    let late_ms = next - (began.0 * 1000) as f64;
    assert!((59_000.0..120_000.0).contains(&late_ms), "{late_ms} ms");
    let handled = handled(&console, "lost").await;
    assert_eq!(handled, 1000, "its ticks are not handled");
    let detail = detail(&control).await;
    let problem = detail.problem.expect("a problem");
    assert!(
        problem.contains("Mars/Base") && problem.ends_with("; workers try again each minute"),
        "{problem}"
    );
    worker.finish().await;
    assert!(sink.sent().is_empty());
}

/// Story: with many processes, ticks were lost. Each process waited between reading the jobs and
/// firing their ticks. So another process had already fired most of these jobs, and the calls had
/// no effect. In the end ticks were more than 60 s late. Schedules waited meanwhile.
#[tokio::test]
async fn many_processes_fire_many_jobs_soon_and_schedules_do_not_wait() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    for n in 0..500 {
        let name = format!("job {n}");
        let job = hourly(&name, format!("work:{n}")).missed(Missed::Skip);
        set(&control, job).await;
        set_back(&console, &name, 3_600_000).await;
    }
    // Each process has four slots.
    let worker = |n| start(&redis, &format!("w{n}"), &sink, |_| {});
    let workers: Vec<_> = (0..30).map(worker).collect();
    sink.until_sent(500).await;
    let fired = handled(&console, "job 0").await;
    let mut last = 0;
    for n in 0..500 {
        last = last.max(handled(&console, &format!("job {n}")).await);
    }
    println!("first to last: {} ms", last - fired);
    for worker in workers {
        worker.finish().await;
    }
    assert_eq!(sink.sent().len(), 500);
    console.check().await;
}

/// A thousand jobs are due at the same moment. They fire in bounded steps.
#[tokio::test]
async fn a_thousand_jobs_of_one_moment_all_fire_once() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    for n in 0..1000 {
        let name = format!("job {n}");
        let job = hourly(&name, format!("work:{n}")).missed(Missed::All);
        set(&control, job).await;
        set_back(&console, &name, 9_000_000).await;
    }
    let workers =
        ["a", "b", "c"].map(|name| start(&redis, name, &sink, |config| config.concurrency = 64));
    // Each job was set two and a half hours ago, so it has two ticks.
    sink.until_sent(2000).await;
    for worker in workers {
        worker.finish().await;
    }
    assert!((0..1000).all(|n| sink.sent_of(&format!("work:{n}")).len() == 2));
    console.check().await;
}

/// Story: the interval of an `@every` job once began again when the job was resumed. So its next
/// tick came too late.
#[tokio::test]
async fn a_resumed_job_keeps_the_ticks_of_its_interval() {
    let (_redis, console, control) = setup().await;
    let hourly = schedule("@every 1h");
    set(&control, tick_of(hourly)).await;
    set_back(&console, "tick", 600_000).await;
    let since = handled(&console, "tick").await;
    control.pause_cron(BY, "tick").await.expect("paused");
    control.resume_cron(BY, "tick").await.expect("resumed");
    let next = detail(&control).await.next_ms;
    assert_eq!(next, Some(since + 3_600_000));
}

/// Replaces the event of a job and keeps its schedule. A tick that is already due fires with the
/// new event.
#[tokio::test]
async fn another_event_keeps_the_ticks_that_are_due() {
    let (redis, console, control) = setup().await;
    let sink = Recorder::new();
    let hourly = schedule("@every 1h");
    set(&control, tick_of(hourly.clone())).await;
    set_back(&console, "tick", 9_000_000).await;
    let other = CronDraft::new("tick", hourly.clone(), "work:1", Json::new("2"));
    assert_eq!(set(&control, other).await, CronDone::Replaced);
    let now = CronDraft::new("tick", hourly, "work:1", Json::new("2")).now();
    let done = set(&control, now).await;
    assert_eq!(done, CronDone::Same, "and nothing is queued");
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(1).await;
    console.until_idle(1).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("work:1"), ["2"]);
}
