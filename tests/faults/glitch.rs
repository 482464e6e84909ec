//! A glitch of Redis' clock: it steps ahead by an hour, and back after seconds. Story: in the
//! glitch, the ticks of cron jobs were handled up to a time an hour ahead. Then no tick fired for
//! an hour, and nothing showed it.

use std::process::Command;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control::cron::{CronDone, CronDraft};
use seriatim::control::{By, Verdict};
use seriatim::cron::{CronSchedule, Missed};
use seriatim::event::Json;
use seriatim::keys::Keys;
use seriatim::wire::values::{CronLast, CronValue};
use seriatim::wire::{self, Sweep};

use crate::support::clock::Clock;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::sweep::LOOK;
use crate::support::{Redis, control, jobs, until};

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MS: u64 = 3_600_000;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The most jobs that one sweep moves.
const MOVES_MAX: usize = 1000;

fn with_clock() -> (Clock, Redis) {
    let clock = Clock::new();
    let redis = Redis::with(&[], clock.environment());
    (clock, redis)
}

async fn now_ms(console: &Console) -> u64 {
    let (seconds, micros): (u64, u64) = console.run(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

async fn last(console: &Console, name: &str) -> CronLast {
    let last: Option<String> = console
        .run(&["HGET", &console.keys.events_cron_last(), name])
        .await;
    CronLast::read(&last.unwrap_or_default())
}

fn every_second() -> CronDraft<Json> {
    CronDraft::new(
        "tick",
        CronSchedule::new("@every 1s", None).expect("a schedule"),
        "work:1",
        Json::new("1"),
    )
}

/// After the glitch, jobs fire again at once. No tick up to the end of the glitch fires again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cron_goes_on_after_a_glitch() {
    let (clock, redis) = with_clock();
    let (console, sink) = (redis.console().await, Recorder::new());
    let control = control(&redis.connect().await, redis.keys());
    let worker = start(&redis, "w", &sink, |config| {
        config.sweep = Duration::from_millis(300)
    });
    assert_eq!(
        control.set_cron(BY, every_second()).await.expect("set"),
        CronDone::New
    );
    sink.until_sent(2).await;
    let began = now_ms(&console).await;
    clock.step_ahead(HOUR);
    until("the job has fired in the glitch", PATIENCE, async || {
        (last(&console, "tick").await.fired_ms > began + HOUR_MS / 2).then_some(())
    })
    .await;
    clock.step_back(Duration::ZERO);
    until("the handled time is right", PATIENCE, async || {
        (last(&console, "tick").await.handled_ms < began + HOUR_MS / 2).then_some(())
    })
    .await;
    let (from, sent) = (last(&console, "tick").await.handled_ms, sink.sent().len());
    sink.until_sent(sent + 3).await;
    assert_eq!(
        control.pause_cron(BY, "tick").await.expect("paused"),
        CronDone::Paused
    );
    let fired = last(&console, "tick").await.fired_ms;
    console.until_at_rest().await;
    worker.finish().await;
    // Each second has one tick.
    let (ticks, events) = ((fired - from) / 1000 + 2, (sink.sent().len() - sent) as u64);
    assert!(events <= ticks, "{events} events in {} ms", fired - from);
}

async fn sweep(conn: &mut MultiplexedConnection, keys: &Keys) -> bool {
    let sweep = Sweep {
        own: "sweeper",
        crashes_max: 5,
        look: LOOK,
        forget: DAY,
        since: Some(Duration::ZERO),
        notice: LOOK,
    };
    wire::adopt(conn, keys, &sweep).await.expect("a sweep").more
}

/// Sets jobs whose ticks are handled up to this time, with the next tick a second later.
async fn put_jobs(console: &Console, names: impl IntoIterator<Item = String>, handled_ms: u64) {
    let job = CronValue {
        schedule: "@every 1s".to_owned(),
        missed: Missed::Once,
        ..jobs::job("id 0", "o:1", "1")
    };
    let value = jobs::text(&job);
    for name in names {
        let _: u64 = console
            .run(&["HSET", &console.keys.events_cron(), &name, &value])
            .await;
        let handled = format!("{handled_ms} {handled_ms}");
        let _: u64 = console
            .run(&["HSET", &console.keys.events_cron_last(), &name, &handled])
            .await;
        let next = (handled_ms + 1000).to_string();
        let _: u64 = console
            .run(&["ZADD", &console.keys.events_cron_next(), &next, &name])
            .await;
    }
}

/// Jobs move in steps of 1,000. A step back that does not undo a step ahead, or that comes after
/// the clock was ahead for long, moves no job: the ticks have fired in their time.
#[tokio::test]
async fn jobs_move_in_bounded_steps() {
    for (gained_ms, since_ms, moves) in [
        (HOUR_MS, 10_000, true),
        (HOUR_MS, 2 * HOUR_MS, false),
        (60_000, 10_000, false),
        (0, 0, false),
    ] {
        let (redis, console) = Redis::own(&[]).with_console().await;
        let mut conn = redis.connect().await;
        let (meta, now) = (console.keys.meta(), now_ms(&console).await);
        let jobs = 2 * MOVES_MAX + 10;
        put_jobs(
            &console,
            (0..jobs).map(|n| format!("ahead-{n}")),
            now + HOUR_MS,
        )
        .await;
        put_jobs(&console, ["sound".to_owned()], now - 1000).await;
        let tomorrow = (now + 24 * HOUR_MS).to_string();
        let _: u64 = console
            .run(&["ZADD", &console.keys.events_cron_next(), &tomorrow, "sound"])
            .await;
        // Counted from now, because many jobs were set meanwhile.
        let noted = now_ms(&console).await + HOUR_MS;
        let _: u64 = console
            .run(&["HSET", &meta, "clock", &noted.to_string()])
            .await;
        if gained_ms > 0 {
            let ahead = (noted - since_ms).to_string();
            let _: u64 = console
                .run(&[
                    "HSET",
                    &meta,
                    "clock.ahead",
                    &ahead,
                    "clock.gained",
                    &gained_ms.to_string(),
                ])
                .await;
        }
        let mut sweeps = 0;
        while sweep(&mut conn, redis.keys()).await {
            sweeps += 1;
            assert!(sweeps < 20, "the moves end");
            let due: usize = console
                .run(&[
                    "ZCOUNT",
                    &console.keys.events_cron_next(),
                    "-inf",
                    &(now + HOUR_MS / 2).to_string(),
                ])
                .await;
            assert!(
                due <= sweeps * MOVES_MAX,
                "{due} jobs after {sweeps} sweeps"
            );
        }
        let end = now_ms(&console).await;
        for name in ["ahead-0".to_owned(), format!("ahead-{}", jobs - 1)] {
            let CronLast {
                handled_ms,
                fired_ms,
            } = last(&console, &name).await;
            match moves {
                true => assert!(
                    (now..=end).contains(&handled_ms) && fired_ms == handled_ms,
                    "{handled_ms} {fired_ms}"
                ),
                false => assert_eq!((handled_ms, fired_ms), (now + HOUR_MS, now + HOUR_MS)),
            }
        }
        assert_eq!(last(&console, "sound").await.handled_ms, now - 1000);
        let due: usize = console
            .run(&[
                "ZCOUNT",
                &console.keys.events_cron_next(),
                "-inf",
                &end.to_string(),
            ])
            .await;
        assert_eq!(due, if moves { jobs + 1 } else { 0 });
    }
}

/// No tick fires while the clock is far from the time that the last sweep noted.
#[tokio::test]
async fn no_tick_fires_in_a_glitch_that_no_sweep_has_seen() {
    let (redis, console) = Redis::start().with_console().await;
    let mut conn = redis.connect().await;
    let now = now_ms(&console).await;
    put_jobs(&console, ["tick".to_owned()], now - 5000).await;
    for (noted_ms, fires) in [
        (now - 120_000, false),
        (now + 120_000, false),
        (now - 30_000, true),
    ] {
        let _: u64 = console
            .run(&["HSET", &console.keys.meta(), "clock", &noted_ms.to_string()])
            .await;
        let due = wire::cron(&mut conn, redis.keys(), &[])
            .await
            .expect("an answer");
        assert_eq!(!due.due.is_empty(), fires, "{noted_ms}");
        if !fires {
            assert_eq!(due.next_due, Some(Duration::from_secs(1)));
            assert_eq!((due.jobs, due.events), (0, 0));
        }
    }
}

/// After a step back that ends no glitch, a job waits for the clock. `cron list`, `stats`, `check`
/// and `doctor` show it, and the remedy helps.
#[tokio::test]
async fn a_job_that_waits_for_the_clock_is_shown() {
    let (redis, console) = Redis::start().with_console().await;
    let control = control(&redis.connect().await, redis.keys());
    control.set_cron(BY, every_second()).await.expect("set");
    let ahead = now_ms(&console).await + HOUR_MS;
    let _: u64 = console
        .run(&[
            "HSET",
            &console.keys.events_cron_last(),
            "tick",
            &format!("{ahead} {ahead}"),
        ])
        .await;
    let _: u64 = console
        .run(&[
            "ZADD",
            &console.keys.events_cron_next(),
            &(ahead + 1000).to_string(),
            "tick",
        ])
        .await;
    let problem = async || {
        control.crons(None, 10).await.expect("a page").jobs[0]
            .detail
            .clone()
            .expect("a job")
            .problem
    };
    assert!(
        problem()
            .await
            .is_some_and(|text| text.contains("`seriatim cron pause`")),
        "no problem"
    );
    assert_eq!(control.stats().await.expect("stats").cron.ahead, 1);
    let report = control.check().await.expect("a report");
    assert!(
        report
            .violations
            .iter()
            .any(|one| one.what.contains("was ahead") && one.what.contains("cron pause")),
        "{report:?}"
    );
    let findings = control.examine().await.expect("findings");
    let cron = findings
        .iter()
        .find(|finding| finding.what == "cron")
        .expect("a finding");
    assert_eq!(cron.verdict, Verdict::Wrong);
    assert!(cron.text.contains("cron pause"), "{cron:?}");
    for (arguments, expected) in [
        (&["cron", "list"][..], "  problem no tick fires for 35"),
        (&["stats"], "`seriatim cron list` shows the remedy"),
    ] {
        let mut program = Command::new(crate::support::program());
        program
            .args(["--redis", redis.url(), "--namespace", redis.namespace()])
            .args(arguments);
        let output = program
            .env_remove("SERIATIM_REDIS")
            .env_remove("SERIATIM_NAMESPACE")
            .output()
            .expect("the program runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    control.pause_cron(BY, "tick").await.expect("paused");
    assert_eq!(control.stats().await.expect("stats").cron.ahead, 0);
    control.resume_cron(BY, "tick").await.expect("resumed");
    assert_eq!(
        (
            problem().await,
            control.stats().await.expect("stats").cron.ahead
        ),
        (None, 0)
    );
    assert!(control.check().await.expect("a report").is_clean());
}
