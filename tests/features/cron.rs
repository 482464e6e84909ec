//! Cron jobs: each tick fires once, whatever happens to processes and clocks.
#![cfg(feature = "cli")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim::control::cron::{CronDone, CronDraft};
use seriatim::control::{By, Control, ControlError};
use seriatim::cron::{CronSchedule, Missed};
use seriatim::event::Json;
use seriatim::wire::values::CronLast;
use seriatim::wire::{self, DueJob, Ticks};

use crate::support::clock::Clock;
use crate::support::console::{Console, PATIENCE};
use crate::support::process::{Process, sent_to};
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, control, until};

const BY: By<'static> = By { who: "ada", why: "a test" };

async fn control_of(redis: &Redis) -> Control {
    control(&redis.connect().await, redis.keys())
}

fn every_second() -> CronSchedule {
    CronSchedule::new("@every 1s", None).expect("a schedule")
}

fn tick(schedule: CronSchedule) -> CronDraft<Json> {
    CronDraft::new("tick", schedule, "work:1", Json::new("\"tick\""))
}

/// Returns the time up to which the ticks of a job are handled.
async fn handled(console: &Console, name: &str) -> u64 {
    let last: Option<String> = console.run(&["HGET", &console.keys.events_cron_last(), name]).await;
    CronLast::read(&last.unwrap_or_default()).handled_ms
}

#[tokio::test]
async fn ten_processes_fire_each_tick_once() {
    let redis = Redis::start();
    let (console, control, sink) = (redis.console().await, control_of(&redis).await, Recorder::new());
    let mut workers = Vec::new();
    for n in 0..10 {
        workers.push(start(&redis, &format!("w{n}"), &sink, |_| {}));
    }
    console.until_idle(10).await;
    let job = tick(every_second()).missed(Missed::All);
    assert_eq!(control.set_cron(BY, job).await.expect("set"), CronDone::New);
    let since = handled(&console, "tick").await;
    sink.until_sent(4).await;
    assert_eq!(control.pause_cron(BY, "tick").await.expect("paused"), CronDone::Paused);
    let fired = control.crons(None, 10).await.expect("a page").jobs[0].detail.clone().expect("a job");
    assert!(fired.paused && fired.next_ms.is_none() && fired.last_ms.is_some_and(|last| last >= since + 4000), "{fired:?}");
    for worker in workers {
        worker.finish().await;
    }
    let sent = sink.sent().len();
    assert!((4..=5).contains(&sent), "{sent} events");
    console.check().await;
}

/// A job with ticks of every second, while one of two processes stands still for some ticks.
#[tokio::test]
async fn a_process_that_is_paused_across_a_tick_fires_nothing_twice() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, control_of(&redis).await);
    let dir = tempfile::tempdir().expect("a directory");
    let files = ["a", "b"].map(|name| dir.path().join(name));
    let sinks = files.each_ref().map(|file| format!("file:{}", file.display()));
    let mut processes = [Process::start(&redis, "a", &sinks[0], &[]), Process::start(&redis, "b", &sinks[1], &[])];
    console.until_idle(2).await;
    control.set_cron(BY, tick(every_second()).missed(Missed::All)).await.expect("set");
    let since = handled(&console, "tick").await;
    for process in &processes {
        let before = handled(&console, "tick").await;
        process.pause();
        until("other processes go on", PATIENCE, async || (handled(&console, "tick").await >= before + 2000).then_some(())).await;
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
    // The pause handles the ticks up to its own time, of which the last may not have fired.
    assert!(events == ticks || events + 1 == ticks, "{events} events of {ticks} ticks");
    assert!(events >= 4, "{events}");
}

/// The same at the level of calls: a process has computed a tick, and another one fires it.
#[tokio::test]
async fn a_tick_that_another_process_has_fired_is_refused() {
    let redis = Redis::start();
    let (console, control) = (redis.console().await, control_of(&redis).await);
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    control.set_cron(BY, tick(CronSchedule::new("@yearly", None).expect("a schedule"))).await.expect("set");
    let _: () = console.run(&["ZADD", &keys.events_cron_next(), "1", "tick"]).await;
    let due = wire::cron(&mut conn, keys, &[]).await.expect("a reply").due;
    assert_eq!(due.len(), 1);
    let ticks = |job: &DueJob| Ticks { job: job.clone(), handled_ms: job.handled_ms + 5, next_ms: None, events: Some(1) };
    let fired = wire::cron(&mut conn, keys, &[ticks(&due[0]), ticks(&due[0])]).await.expect("a reply");
    assert_eq!((fired.jobs, fired.events, fired.due.len(), fired.next_due), (1, 1, 0, None));
    for changed in [
        DueJob { id: b"other".to_vec(), handled_ms: due[0].handled_ms + 5, ..due[0].clone() },
        DueJob { name: b"gone".to_vec(), ..due[0].clone() },
        due[0].clone(),
    ] {
        assert_eq!(wire::cron(&mut conn, keys, &[ticks(&changed)]).await.expect("a reply").events, 0);
    }
    assert_eq!(console.list(&keys.events("work:1")).await, ["\"tick\""]);
    control.pause_cron(BY, "tick").await.expect("paused");
    let now = DueJob { handled_ms: handled(&console, "tick").await, ..due[0].clone() };
    assert_eq!(wire::cron(&mut conn, keys, &[ticks(&now)]).await.expect("a reply").events, 0, "paused");
    console.check().await;
}

/// Returns the time in ms of a text like `2027-03-28T00:59:58Z`.
fn at(text: &str) -> u64 {
    let text = text.strip_suffix('Z').expect("UTC");
    let (date, time) = text.split_once('T').expect("a time");
    let number = |text: &str| -> u64 { text.parse().expect("a number") };
    let days = match date {
        "2027-03-28" => 20_905,
        "2027-10-31" => 21_122,
        _ => panic!("an unknown date"),
    };
    let clock: Vec<u64> = time.split(':').map(number).collect();
    (days * 86_400 + clock[0] * 3600 + clock[1] * 60 + clock[2]) * 1000
}

async fn set_clock(clock: &Clock, console: &Console, to_ms: u64) {
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_millis()).expect("a time");
    clock.step_ahead(Duration::from_millis(to_ms - now));
    until("scripts see the step", PATIENCE, async || {
        let seconds: u64 = console.run(&["EVAL", "return redis.call('TIME')[1]", "0"]).await;
        (seconds * 1000 + 500 >= to_ms).then_some(())
    })
    .await;
}

/// In Berlin the clocks go ahead on 28 March 2027 at 02:00, and back on 31 October 2027 at 03:00.
#[tokio::test]
async fn a_job_fires_once_across_both_changes_of_daylight_saving_time() {
    let clock = Clock::new();
    let redis = Redis::with(&[], clock.environment());
    let (console, control) = (redis.console().await, control_of(&redis).await);
    let daily = CronSchedule::new("30 2 * * *", Some("Europe/Berlin")).expect("a schedule");
    set_clock(&clock, &console, at("2027-03-28T00:59:58Z")).await;
    control.set_cron(BY, tick(daily.clone())).await.expect("set");
    let next = async || control.crons(None, 1).await.expect("a page").jobs[0].detail.clone().expect("a job").next_ms;
    assert_eq!(next().await, Some(at("2027-03-28T01:00:00Z")), "02:30 does not exist, the gap ends at 03:00");
    let sink = Recorder::new();
    let worker = start(&redis, "spring", &sink, |_| {});
    sink.until_sent(1).await;
    until("the next tick is known", PATIENCE, async || (next().await > Some(at("2027-03-28T02:00:00Z"))).then_some(())).await;
    assert_eq!(next().await, Some(at("2027-03-28T00:30:00Z") + 24 * 3_600_000));
    worker.finish().await;

    // 02:30 comes twice: at 00:30 and at 01:30 UTC.
    set_clock(&clock, &console, at("2027-10-31T00:29:58Z")).await;
    control.remove_cron(BY, "tick").await.expect("removed");
    control.set_cron(BY, tick(daily)).await.expect("set");
    assert_eq!(next().await, Some(at("2027-10-31T00:30:00Z")));
    let worker = start(&redis, "autumn", &sink, |_| {});
    sink.until_sent(2).await;
    until("the next tick is known", PATIENCE, async || (next().await > Some(at("2027-10-31T01:00:00Z"))).then_some(())).await;
    assert_eq!(next().await, Some(at("2027-10-31T01:30:00Z") + 24 * 3_600_000));
    worker.finish().await;
    assert_eq!(sink.sent().len(), 2);
}

/// Makes a job of `@every 1h` look as if it had been set this long ago.
async fn set_back(console: &Console, name: &str, ms: u64) {
    let (keys, since) = (&console.keys, handled(console, name).await - ms);
    let _: () = console.run(&["HSET", &keys.events_cron_last(), name, &format!("{since} 0")]).await;
    let _: () = console.run(&["ZADD", &keys.events_cron_next(), &(since + 3_600_000).to_string(), name]).await;
    let value: String = console.run(&["HGET", &keys.events_cron(), name]).await;
    let mut parts: Vec<String> = value.splitn(4, ' ').map(str::to_owned).collect();
    parts[2] = since.to_string();
    let _: () = console.run(&["HSET", &keys.events_cron(), name, &parts.join(" ")]).await;
}

/// No worker runs for some ticks.
#[tokio::test]
async fn after_an_outage_ticks_are_skipped_or_fire_once_or_all() {
    let redis = Redis::start();
    let (console, control, sink) = (redis.console().await, control_of(&redis).await, Recorder::new());
    let hourly = || CronSchedule::new("@every 1h", None).expect("a schedule");
    for (name, missed) in [("skip", Missed::Skip), ("once", Missed::Once), ("all", Missed::All)] {
        let job = CronDraft::new(name, hourly(), format!("{name}:1"), Json::new("1")).missed(missed);
        control.set_cron(BY, job).await.expect("set");
        set_back(&console, name, 5 * 3_600_000 + 90_000).await;
    }
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(6).await;
    console.until_at_rest().await;
    worker.finish().await;
    assert_eq!(["skip:1", "once:1", "all:1"].map(|object| sink.sent_of(object).len()), [0, 1, 5]);
    console.check().await;
}

#[tokio::test]
async fn a_change_takes_effect_within_a_second() {
    let redis = Redis::start();
    let (console, control, sink) = (redis.console().await, control_of(&redis).await, Recorder::new());
    let workers = ["a", "b"].map(|name| start(&redis, name, &sink, |_| {}));
    console.until_idle(2).await;
    let yearly = CronSchedule::new("@yearly", None).expect("a schedule");
    assert_eq!(control.set_cron(BY, tick(yearly.clone())).await.expect("set"), CronDone::New);
    assert_eq!(control.set_cron(BY, tick(yearly.clone())).await.expect("set"), CronDone::Same);
    assert_eq!(control.set_cron(BY, tick(every_second())).await.expect("set"), CronDone::Replaced);
    let since = handled(&console, "tick").await;
    sink.until_sent(1).await;
    assert!(handled(&console, "tick").await < since + 2000, "the tick after the first has been handled");
    assert_eq!(control.pause_cron(BY, "tick").await.expect("paused"), CronDone::Paused);
    assert_eq!(control.set_cron(BY, tick(yearly)).await.expect("set"), CronDone::Replaced);
    let paused = control.crons(None, 10).await.expect("a page").jobs[0].detail.clone().expect("a job");
    assert!(paused.paused && paused.schedule == "@yearly", "{paused:?}");
    assert_eq!(control.run_cron(BY, "tick").await.expect("run"), CronDone::Ran);
    assert_eq!(control.resume_cron(BY, "tick").await.expect("resumed"), CronDone::Resumed);
    assert_eq!(control.resume_cron(BY, "tick").await.expect("no error"), CronDone::Changed);
    sink.until_sent(2).await;
    assert_eq!(control.remove_cron(BY, "tick").await.expect("removed"), CronDone::Removed);
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
    let actions = control.actions(None, 30).await.expect("a page").actions;
    let actions: Vec<_> = actions.iter().rev().map(|action| action.action.as_str()).collect();
    assert_eq!(actions, ["cron-set", "cron-set", "cron-pause", "cron-set", "cron-run", "cron-resume", "cron-remove"]);
    assert!(console.left().await.iter().all(|key| !key.contains("cron")), "{:?}", console.left().await);
}

#[tokio::test]
async fn bad_jobs_are_refused_and_nothing_is_written() {
    let redis = Redis::start();
    let control = control_of(&redis).await;
    let never = CronSchedule::new("0 0 30 2 *", None).expect("fields");
    assert!(matches!(control.set_cron(BY, tick(never)).await, Err(ControlError::Cron(_))));
    let with = |name: &str, object: &str, event: &str| CronDraft::new(name, every_second(), object, Json::new(event.to_owned()));
    assert!(matches!(control.set_cron(BY, with("", "work:1", "1")).await, Err(ControlError::CronName(_))));
    assert!(matches!(control.set_cron(BY, with("a", "", "1")).await, Err(ControlError::Name(_))));
    assert!(matches!(control.set_cron(BY, with("a", "work:1", "{")).await, Err(ControlError::Event(_))));
    let console = redis.console().await;
    let _: () = console.run(&["SET", &redis.keys().events("work:1"), "x"]).await;
    assert!(matches!(control.set_cron(BY, with("a", "work:1", "1").now()).await, Err(ControlError::WrongType { .. })));
    assert!(control.crons(None, 10).await.expect("a page").jobs.is_empty());
}

/// A job for a queue of a wrong type, one of a newer version, an entry without a job, and a good one.
#[tokio::test]
async fn a_job_that_cannot_fire_keeps_its_ticks_and_stops_no_other() {
    let redis = Redis::start();
    let (console, control, sink) = (redis.console().await, control_of(&redis).await, Recorder::new());
    let keys = redis.keys();
    for name in ["wrong", "newer", "good"] {
        let job = CronDraft::new(name, every_second(), format!("{name}:1"), Json::new("1"));
        control.set_cron(BY, job).await.expect("set");
    }
    let _: () = console.run(&["SET", &keys.events("wrong:1"), "x"]).await;
    let _: () = console.run(&["HSET", &keys.events_cron(), "newer", "id 0 5 7 2 newer:1{}1"]).await;
    let _: () = console.run(&["HSET", &keys.events_cron(), "odd", "odd"]).await;
    let _: () = console.run(&["ZADD", &keys.events_cron_next(), "1", "gone", "2", "odd"]).await;
    let since = handled(&console, "wrong").await;
    let worker = start(&redis, "w", &sink, |_| {});
    sink.until_sent(2).await;
    assert_eq!((sink.sent_of("good:1").len(), handled(&console, "wrong").await), (2, since));
    let due: Vec<(String, f64)> = console.run(&["ZRANGE", &keys.events_cron_next(), "0", "-1", "WITHSCORES"]).await;
    let later: Vec<_> = due.iter().filter(|(name, due)| name != "good" && *due > since as f64 + 30_000.0).collect();
    assert_eq!((due.len(), later.len()), (4, 3), "{due:?}");
    let _: () = console.run(&["DEL", &keys.events("wrong:1")]).await;
    let _: () = console.run(&["ZADD", &keys.events_cron_next(), "1", "wrong"]).await;
    until("the job fires", PATIENCE, async || (!sink.sent_of("wrong:1").is_empty()).then_some(())).await;
    worker.finish().await;
    assert_eq!(sink.sent_of("wrong:1").len(), 1, "the ticks since then fire once");
    let listed = control.crons(None, 10).await.expect("a page").jobs;
    assert_eq!(listed.iter().filter(|job| job.detail.is_none()).count(), 2, "{listed:?}");
}

/// The jobs of one moment come in steps.
#[tokio::test]
async fn a_thousand_jobs_of_one_moment_all_fire_once() {
    let redis = Redis::start();
    let (console, control, sink) = (redis.console().await, control_of(&redis).await, Recorder::new());
    let hourly = CronSchedule::new("@every 1h", None).expect("a schedule");
    for n in 0..1000 {
        let name = format!("job {n}");
        let job = CronDraft::new(&name, hourly.clone(), format!("work:{n}"), Json::new("1")).missed(Missed::All);
        control.set_cron(BY, job).await.expect("set");
        set_back(&console, &name, 9_000_000).await;
    }
    let workers = ["a", "b", "c"].map(|name| start(&redis, name, &sink, |config| config.concurrency = 64));
    // Two hours and a half have two ticks.
    sink.until_sent(2000).await;
    for worker in workers {
        worker.finish().await;
    }
    assert!((0..1000).all(|n| sink.sent_of(&format!("work:{n}")).len() == 2));
    console.check().await;
}
