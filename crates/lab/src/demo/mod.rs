//! `seriatim demo`: runs the whole path of events on one machine, kills worker processes during the
//! run, and judges the outputs.
//!
//! This file has the steps of the demo, in the order of time. `demo/stage.rs` has the processes.

mod input;
mod processes;
mod show;
mod stage;
mod watch;
mod watched;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use comfy_table::{Table, presets};
use seriatim::verify::{Judge, Kind, Report};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::lines::{Fields, Lines};
use seriatim_console::shown;
use seriatim_console::stop::stop_signal;
use seriatim_console::verify;
use seriatim_web::listen::address::Address;

use self::input::Input;
use self::show::Show;
use self::stage::{Stage, WentOn};
use crate::private::Guard;

/// Lease of the workers: the time until other workers take over the objects of a killed worker. It
/// is shorter than the default of `seriatim worker`, which is 5 s.
const LEASE: Duration = Duration::from_secs(2);
/// The names of the three worker processes.
const WORKERS: [&str; 3] = ["demo-a", "demo-b", "demo-c"];
/// Percentage of emitted events at which the first worker process is killed for good. `RESTART_AT`:
/// the percentage at which the second one is killed and restarted.
const KILL_AT: u64 = 20;
const RESTART_AT: u64 = 50;

/// Run a demo: three workers deliver the events of many objects, two of the workers are killed, and
/// the demo checks that no event is lost or reordered.
///
/// The demo starts a private Redis, two producers, and three worker processes that write to files.
/// It kills one worker with SIGKILL in the middle of its work, and the others take over. It kills
/// another worker and restarts it under its name. Then it checks the outputs as `seriatim verify`
/// does. It takes about 15 seconds and deletes its files. redis-server >= 7.0 or valkey-server must
/// be on the PATH, or SERIATIM_REDIS_SERVER names one; `scripts/demo` installs one.
///
/// Exit code 0: no event was lost, reordered or forked. 1: an event was lost, reordered or forked,
/// or the demo could not continue.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Emit the events of this file (NDJSON, plain or gzip) instead of generated events
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    #[command(flatten)]
    fields: Fields,
    /// The number of events to generate
    #[arg(
        long,
        default_value_t = 25_000,
        value_name = "N",
        conflicts_with = "from"
    )]
    events: u64,
    /// Generate the events of an earlier run again; SEED is the seed that the earlier run printed
    #[arg(long, value_name = "SEED", conflicts_with = "from")]
    seed: Option<u64>,
    /// Keep the input, the outputs and the logs in this new or empty directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Run a small shop and a dashboard for it, until Ctrl-C, instead of the demo above. Open the
    /// link that it prints
    #[arg(
        long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8480",
        conflicts_with_all = ["from", "events", "seed", "keep"]
    )]
    dashboard: Option<Address>,
}

/// The times that the demo has measured.
struct Measured {
    /// Time from the first emit to the last delivery.
    whole: Duration,
    /// Number of events in the final burst, and the time until they were delivered.
    burst: (u64, Duration),
    takeover: WentOn,
    restart: WentOn,
}

pub async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    if let Some(address) = &args.dashboard {
        return tokio::select! {
            done = watched::play(address.to_string()) => done,
            stopped = stop_signal() => {
                stopped?;
                shown::say("seriatim: the shop, its Redis and its files are gone");
                Ok(Exit::Done)
            }
        };
    }
    // If a stop signal comes before the end, the stage is dropped, and all its processes end.
    tokio::select! {
        done = play(args) => done,
        stopped = stop_signal() => {
            stopped?;
            Err(Failure::with(Exit::Broken, "the demo was stopped by a signal; its Redis, its workers and their files are gone"))
        }
    }
}

async fn play(args: Args) -> anyhow::Result<Exit> {
    let show = Show::new();
    let guard = Guard::start()?;
    let home = stage::home(args.keep.as_deref(), &guard)?;
    let input = input(&args, home.clone(), &show).await?;
    let mut stage = Stage::set(guard, home.clone(), LEASE, show).await?;
    let measured = act(&mut stage, &input).await?;
    let (outputs, producers) = (stage.outputs(), input.producers.clone());
    let report = tokio::task::spawn_blocking(move || judge(&outputs, &producers)).await??;
    let mut out = describe(&report, &measured)?;
    if args.keep.is_some() {
        writeln!(out, "input, outputs and logs are in {}", home.display())?;
    } else if !report.is_clean() {
        writeln!(
            out,
            "the files named above are gone; run it again with --keep DIR (and the same --seed) to look into them"
        )?;
    }
    shown::print(&out)?;
    if !report.is_clean() {
        return Ok(Exit::Broken);
    }
    say_what_to_try();
    Ok(Exit::Done)
}

/// Names three commands to try next, with the program as it was started.
fn say_what_to_try() {
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "seriatim".to_owned());
    shown::say("try next:");
    for (purpose, command) in [
        ("a small shop, watched in the browser", "demo --dashboard"),
        (
            "a worker for your own Redis, redis://127.0.0.1",
            "worker --sink stdout",
        ),
        (
            "an event for this worker, from another terminal",
            r#"emit customer:1 '{"type":"paid"}'"#,
        ),
    ] {
        shown::say(&format!("  # {purpose}\n  {program} {command}"));
    }
}

/// Writes the events into one file for each producer.
async fn input(args: &Args, home: PathBuf, show: &Show) -> anyhow::Result<Input> {
    let (input, origin) = match args.from.clone() {
        Some(path) => {
            let (fields, origin) = (args.fields.clone(), format!("of {}", path.display()));
            (
                tokio::task::spawn_blocking(move || input::from_file(&path, &fields, &home))
                    .await??,
                origin,
            )
        }
        None => {
            let (events, seed) = (
                args.events,
                args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
            );
            let generated =
                tokio::task::spawn_blocking(move || input::generated(events, seed, &home))
                    .await??;
            (generated, format!("generated with --seed {seed}"))
        }
    };
    let (events, objects) = (
        show::count(input.events(), "event"),
        show::count(input.objects, "object"),
    );
    show.say(&format!(
        "{events} of {objects}, {origin}, from two producers to three worker processes"
    ));
    Ok(input)
}

/// Runs the steps of the demo.
async fn act(stage: &mut Stage, input: &Input) -> anyhow::Result<Measured> {
    for name in WORKERS {
        stage.start_worker(name)?;
    }
    stage.until_attached().await?;
    stage.start_producers(input)?;

    stage.until_fed(KILL_AT).await?;
    let caught = stage.kill_at_work(WORKERS[0]).await?;
    stage.say(&format!(
        "killed {} for good, with SIGKILL, {caught}; lease {}",
        WORKERS[0],
        show::seconds(LEASE)
    ));
    let takeover = stage.until_gone_on(caught).await?;
    stage.say(&format!("taken over: {takeover}"));

    stage.until_fed(RESTART_AT).await?;
    let caught = stage.kill_at_work(WORKERS[1]).await?;
    stage.say(&format!(
        "killed {}, {caught}, and restarted it under its name",
        WORKERS[1]
    ));
    stage.start_worker(WORKERS[1])?;
    let restart = stage.until_gone_on(caught).await?;
    stage.until_attached().await?;
    stage.say(&format!("restarted: {restart}"));

    let (burst_began, burst) = stage.burst().await?;
    stage.say(&format!("the last {} at once", show::count(burst, "event")));
    let (drained, whole) = stage.until_drained().await?;
    stage.say("everything is delivered; stopping the workers");
    stage.stop_workers().await?;
    Ok(Measured {
        whole,
        burst: (burst, drained - burst_began),
        takeover,
        restart,
    })
}

/// Judges the outputs of the workers against the emitted events, as `seriatim verify --against`
/// does.
fn judge(outputs: &[PathBuf], producers: &[PathBuf]) -> anyhow::Result<Report> {
    let mut judge = Judge::new();
    judge.never_forgotten();
    for output in outputs {
        verify::output(&mut judge, Lines::open(output)?)?;
    }
    for producer in producers {
        verify::input(&mut judge, Lines::open(producer)?, &Fields::plain())?;
    }
    Ok(judge.finish())
}

/// Formats the report.
fn describe(report: &Report, measured: &Measured) -> anyhow::Result<String> {
    let rate = |events: u64, time: Duration| {
        show::number((events as f64 / time.as_secs_f64().max(0.001)) as u64)
    };
    let Measured {
        whole,
        burst: (burst, burst_time),
        takeover,
        restart,
    } = measured;
    let (overall, at_once) = (rate(report.events, *whole), rate(*burst, *burst_time));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("events", show::number(report.events).to_string());
    row("objects", show::number(report.objects).to_string());
    row(
        "events per second",
        format!("{at_once} in the closing burst; {overall} overall, paced to be watched"),
    );
    row(
        "duplicates",
        format!(
            "{} (sent again after a kill; receivers drop them by id)",
            show::number(report.duplicates)
        ),
    );
    row(
        "takeover",
        format!(
            "{takeover} (lease {}; the default is 5 s)",
            show::seconds(LEASE)
        ),
    );
    row("restart", restart.to_string());
    for kind in Kind::ALL {
        if matches!(kind, Kind::Lost | Kind::Reordered | Kind::Forked) || report.count(kind) > 0 {
            row(
                &kind.to_string(),
                show::number(report.count(kind)).to_string(),
            );
        }
    }
    let mut out = table.trim_fmt() + "\n";
    verify::examples(report, &mut out)?;
    Ok(out)
}
