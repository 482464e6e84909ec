//! The commands that idle workers send. Story: a renewal looked at each slot with a command of its own,
//! and each process made two calls a second and looked for schedules once a second.

use std::time::{Duration, Instant};

use seriatim::worker::WorkerConfig;

use crate::support::console::{Console, PATIENCE};
use crate::support::process::Process;
use crate::support::recorder::Recorder;
use crate::support::running::start;
use crate::support::{Redis, until};

/// The most commands of one worker per second. Commands of scripts count.
const COMMANDS_MAX: f64 = 60.0;

/// The time over which commands are counted. The first and the last call of a
/// kind may fall inside or outside; they are few in this time.
const SECONDS: Duration = Duration::from_secs(30);

/// Returns the number of all commands so far, and of pops.
pub(crate) async fn commands(console: &Console) -> (u64, u64) {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let calls = |line: &str| -> Option<(String, u64)> {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    let all: Vec<_> = stats.lines().filter_map(calls).collect();
    let pops = all
        .iter()
        .find(|(name, _)| name == "blmove")
        .map_or(0, |(_, calls)| *calls);
    (
        all.iter()
            .filter(|(name, _)| name != "info")
            .map(|(_, calls)| calls)
            .sum(),
        pops,
    )
}

/// Returns the commands per worker and second of so many idle workers with the default settings.
async fn per_second(workers: u64) -> f64 {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let processes: Vec<_> = (0..workers)
        .map(|n| Process::start(&redis, &format!("w{n}"), "null", &[]))
        .collect();
    for process in &processes {
        process.until_logged("recover: attached").await;
    }
    // The first seconds have the calls of the start.
    until("the workers wait", PATIENCE, async || {
        (commands(&console).await.1 >= 4 * workers).then_some(())
    })
    .await;
    let seconds = async || -> f64 {
        let (seconds, us): (f64, f64) = console.run(&["TIME"]).await;
        seconds + us / 1e6
    };
    let (began, before) = (seconds().await, commands(&console).await.0);
    tokio::time::sleep(SECONDS).await;
    let (after, ended) = (commands(&console).await.0, seconds().await);
    (after - before) as f64 / (ended - began) / workers as f64
}

/// Each kind of call has a least interval, so a slow machine has fewer commands per second. Both
/// servers run at the same time, so that it slows both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_sends_few_commands_whatever_the_number_of_workers() {
    let (one, many) = tokio::join!(per_second(1), per_second(8));
    println!("commands per worker and second: {one:.1} with one worker, {many:.1} with 8");
    assert!(
        one <= COMMANDS_MAX && many <= COMMANDS_MAX,
        "{one:.1} and {many:.1}"
    );
    assert!(
        many <= 1.3 * one,
        "{one:.1} and {many:.1}: the number of commands grows with the square of the workers"
    );
}

/// An idle worker calls rarely, but a first event waits for no such call: it ends the wait of the pop.
/// The median counts, because a busy machine may delay some events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_event_waits_for_no_call() {
    const EVENTS: usize = 7;
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    let settings = WorkerConfig::default();
    let worker = start(&redis, "w", &sink, |config| {
        (config.block, config.sweep, config.concurrency) =
            (settings.block, settings.sweep, settings.concurrency);
    });
    let mut times = Vec::new();
    for sent in 1..=EVENTS {
        let from = commands(&console).await.1;
        until("the worker is idle", PATIENCE, async || {
            (commands(&console).await.1 >= from + 3).then_some(())
        })
        .await;
        console.until_idle(1).await;
        let began = Instant::now();
        console.emit("work:1", "1").await;
        sink.until_sent(sent).await;
        times.push(began.elapsed());
    }
    worker.finish().await;
    times.sort();
    println!("{times:?}");
    assert!(times[EVENTS / 2] < Duration::from_millis(200), "{times:?}");
}
