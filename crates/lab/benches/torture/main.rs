//! The fault harness. It runs real worker processes, producers and a Redis, makes faults by a
//! schedule, and judges the run at the end.
//!
//!     scripts/torture [--minutes N] [--seed N] [--appendfsync everysec|always|mixed] [--keep DIR]
//!     scripts/torture --sentinel FAILOVERS [--wait N] [--min-replicas] [--seed N] [--keep DIR]
//!
//! The seed determines the schedule before anything starts (`plan`). All connections of workers and
//! producers to Redis go through a proxy that cuts some of them (`proxy`). At the end all faults
//! and rules are lifted, and all shares removed. Then the queues must drain within a time limit, and `seriatim check` must
//! find no violation. `seriatim verify --history` judges the history of emits, replies and arrivals
//! (`history`), and the event log is compared with this history (`event_log`). Events that stood in a
//! key that a fault has deleted need not come (`excused`). One worker sends to an HTTP receiver of the
//! harness, which has faults of its own (`http`). If anything is
//! wrong, the exit code is 1 and the files of the run are kept. With `--sentinel` the faults are
//! failovers (`sentinel`).

mod blocking;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../tests/support/clock.rs"]
mod clock;
mod event_log;
mod excused;
mod history;
mod http;
mod lost_keys;
mod marks;
mod plan;
mod producers;
#[allow(unreachable_pub)]
#[path = "../../../../tests/support/program.rs"]
mod program;
mod proxy;
mod random;
mod receiver;
mod rules;
mod sentinel;
mod server;
mod shares;
mod stage;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};

use self::plan::Appendfsync;
use self::stage::Stage;

/// The folder of the whole workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const USAGE: &str = "torture --minutes N [--seed N] [--appendfsync everysec|always|mixed] [--workers N] [--keep DIR]; \
                     torture --sentinel FAILOVERS [--wait N] [--min-replicas] [--seed N] [--workers N] [--keep DIR]";

/// The arguments of the command line.
struct Args {
    length: Duration,
    /// Number of failovers (`--sentinel`). If it is 0, the run has the faults of `plan` instead.
    failovers: usize,
    wait: u32,
    min_replicas: bool,
    seed: u64,
    appendfsync: Appendfsync,
    workers: usize,
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((blocking::WORD, words)) = words
        .split_first()
        .map(|(word, words)| (word.as_str(), words))
    {
        return match blocking::main(words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("torture: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    // Cargo starts a bench in the folder of its package. `--keep` is a path from the folder of the workspace.
    if let Err(error) = std::env::set_current_dir(ROOT) {
        eprintln!("torture: {ROOT}: {error}");
        return ExitCode::FAILURE;
    }
    // A plain `cargo bench` starts this program without arguments. Then it only prints its usage.
    match Args::read().and_then(|args| args.map_or_else(usage, |args| run(&args))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("torture: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> anyhow::Result<bool> {
    println!("usage: {USAGE}");
    Ok(true)
}

/// Runs the harness. Prints the result, and the directory of the files of the run. Returns whether
/// the run passed.
fn run(args: &Args) -> anyhow::Result<bool> {
    let dir = match &args.keep {
        Some(dir) => {
            std::fs::create_dir_all(dir)?;
            ensure!(
                std::fs::read_dir(dir)?.next().is_none(),
                "{} is not empty",
                dir.display()
            );
            dir.canonicalize()?
        }
        None => tempfile::Builder::new()
            .prefix("seriatim-torture-")
            .tempdir()?
            .keep(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let passed = runtime.block_on(async {
        tokio::select! {
            passed = torture(args, &dir) => passed,
            stopped = tokio::signal::ctrl_c() => { stopped?; bail!("stopped by Ctrl-C") }
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let seed = args.seed;
    match &passed {
        Ok(true) if args.keep.is_none() => std::fs::remove_dir_all(&dir)?,
        Ok(true) => println!("torture: the history and the logs are in {}", dir.display()),
        _ => println!(
            "torture: FAILED with --seed {seed}; the evidence is in {}",
            dir.display()
        ),
    }
    if let Ok(true) = passed {
        println!("torture: passed with --seed {seed}");
    }
    passed
}

async fn torture(args: &Args, dir: &std::path::Path) -> anyhow::Result<bool> {
    if args.failovers > 0 {
        let Args {
            failovers,
            wait,
            min_replicas,
            seed,
            workers,
            ..
        } = *args;
        println!(
            "torture: seed {seed}, {failovers} failovers, --wait {wait}, min-replicas {min_replicas}, in {}",
            dir.display()
        );
        return sentinel::run(
            &sentinel::Plan {
                failovers,
                wait,
                min_replicas,
                seed,
                workers,
            },
            dir,
        )
        .await;
    }
    let plan = plan::schedule(args.seed, args.length, args.appendfsync, args.workers);
    println!(
        "torture: seed {}, {:?}, {} faults, in {}",
        args.seed,
        args.length,
        plan.len(),
        dir.display()
    );
    let mut stage = Stage::set(dir, args.seed, args.workers, args.appendfsync).await?;
    stage.play(&plan).await?;
    let drained = stage.drain().await;
    let clean = stage.end().await;
    stage.print();
    if let Err(error) = &drained {
        println!("NOT DRAINED: {error:#}");
    }
    Ok(clean? && drained.is_ok())
}

impl Args {
    fn read() -> anyhow::Result<Option<Self>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let mut args = Self {
            length: Duration::ZERO,
            failovers: 0,
            wait: 2,
            min_replicas: false,
            seed: now.as_micros() as u64,
            appendfsync: Appendfsync::Mixed,
            workers: 4,
            keep: None,
        };
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(option) = words.next() {
            if option == "--min-replicas" {
                args.min_replicas = true;
                continue;
            }
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{option} needs a value; {USAGE}"))
            };
            match option.as_str() {
                "--minutes" => {
                    args.length = Duration::from_secs_f64(value()?.parse::<f64>()? * 60.0)
                }
                "--sentinel" => args.failovers = value()?.parse()?,
                "--wait" => args.wait = value()?.parse()?,
                "--seed" => args.seed = value()?.parse()?,
                "--workers" => args.workers = value()?.parse()?,
                "--keep" => args.keep = Some(value()?.into()),
                "--appendfsync" => {
                    args.appendfsync = match value()?.as_str() {
                        "always" => Appendfsync::Always,
                        "everysec" => Appendfsync::Everysec,
                        "mixed" => Appendfsync::Mixed,
                        other => bail!("--appendfsync {other}; {USAGE}"),
                    }
                }
                other => bail!("{other} is no option; {USAGE}"),
            }
        }
        ensure!(args.workers > 0, "--workers must be at least 1");
        Ok((args.length > Duration::ZERO || args.failovers > 0).then_some(args))
    }
}
