//! Measures handlers in another language: the sink `exec` and programs that talk to it, compared with a
//! sink in Rust that does nothing, in turn.
//!
//!     cargo bench --bench exec [-- [--events N] [--rounds N] [[--children N] COMMAND…]]
//!
//! Each COMMAND is a program that speaks the handler protocol; without one, examples/handlers.py is
//! measured, as one program and as two. `--children N` runs the COMMAND behind it N times at once. Each measurement has its own private Redis on loopback, and a
//! worker in this process with 64 slots.
//!
//! - Drain by Zipf: all events (by default 100,000 of 1,000 objects) are emitted first. The figures are
//!   medians of the ratios to the Rust sink of the same round.
//! - Drain of distinct objects: each event has its own object.
//! - Latency: 500 events per second for 10 s, one after another. From the emit to the commit, as the median.
//! - Idle: the CPU time of the worker and its program over 10 s without events.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use seriatim::Emitter;
use seriatim::event::Json;
use seriatim::sink::{Null, Sink};
use seriatim::worker::{Shutdown, Worker, WorkerConfig};
use seriatim_exec::{Exec, Options};
use seriatim_lab::statistics::median;
use tokio::time::{Instant, sleep, sleep_until};

const SLOTS: usize = 64;
const OBJECTS: usize = 1000;
/// The rate and the length of the measurement of the latency.
const PER_SECOND: u32 = 500;
const LATENCY_FOR: u32 = 10;
const IDLE_FOR: Duration = Duration::from_secs(10);

/// The command line.
struct Args {
    events: usize,
    rounds: usize,
    /// The programs, each with its number.
    programs: Vec<(String, usize)>,
}

impl Args {
    fn read() -> anyhow::Result<Self> {
        let mut args = Self {
            events: 100_000,
            rounds: 3,
            programs: Vec::new(),
        };
        let mut children = 1;
        let mut words = std::env::args().skip(1).filter(|arg| arg != "--bench");
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|number| number.parse().ok());
            match word.as_str() {
                "--events" => args.events = number().context("--events needs a number")?,
                "--rounds" => args.rounds = number().context("--rounds needs a number")?,
                "--children" => children = number().context("--children needs a number")?,
                _ => {
                    let children = std::mem::replace(&mut children, 1);
                    args.programs.push((word, children));
                }
            }
        }
        if args.programs.is_empty() {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
            let quiet = "import sys; sys.path.insert(0, sys.argv[1]); import handlers; handlers.run(lambda name, event, cx: None)";
            let command = format!("python3 -B -c '{quiet}' '{root}/examples'");
            args.programs = vec![(command.clone(), 1), (command, 2)];
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let measured = Args::read().and_then(|args| runtime?.block_on(measure(&args)));
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("exec: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    for (what, of) in [
        ("by Zipf", zipf as fn(usize) -> Vec<usize>),
        ("each its own object", distinct),
    ] {
        let mut ratios = vec![Vec::new(); args.programs.len()];
        let mut rates = Vec::new();
        for _ in 0..args.rounds {
            let null = drain(args.events, of, None).await?;
            rates.push(null);
            for (ratios, program) in ratios.iter_mut().zip(&args.programs) {
                ratios.push(drain(args.events, of, Some(program)).await? / null);
            }
        }
        println!("{what}: {:.0} events/s without a program", middle(&rates));
        for (ratios, (command, children)) in ratios.iter().zip(&args.programs) {
            println!(
                "  {:.2} of it with {children} of {}",
                middle(ratios),
                shown(command)
            );
        }
    }
    let null = latency(None).await?;
    println!(
        "latency at {PER_SECOND}/s: {:.2} ms without a program",
        null * 1000.0
    );
    for program in &args.programs {
        let with = latency(Some(program)).await?;
        println!(
            "  {:+.2} ms with {} of {}",
            (with - null) * 1000.0,
            program.1,
            shown(&program.0)
        );
    }
    for program in &args.programs {
        let used = idle(program).await?;
        println!(
            "idle: {:.2} % of a core with {} of {}",
            used * 100.0,
            program.1,
            shown(&program.0)
        );
    }
    Ok(())
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

/// Returns the end of a command.
fn shown(command: &str) -> String {
    let chars: Vec<char> = command.chars().collect();
    let from = chars.len().saturating_sub(48);
    let dots = if from > 0 { "…" } else { "" };
    format!("{dots}{}", chars[from..].iter().collect::<String>())
}

/// Returns the object of each event: the k-th object has 1/k of the events of the first one.
fn zipf(events: usize) -> Vec<usize> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=OBJECTS)
        .map(|k| {
            sum += 1.0 / k as f64;
            sum
        })
        .collect();
    let mut random = fastrand::Rng::with_seed(1);
    let mut draw = || {
        let at = random.f64() * sum;
        sums.partition_point(|up_to| *up_to < at)
    };
    (0..events).map(|_| draw()).collect()
}

fn distinct(events: usize) -> Vec<usize> {
    (0..events).collect()
}

/// A worker with its sink, on a private Redis.
struct Running {
    server: support::Server,
    conn: redis::aio::MultiplexedConnection,
    emitter: Emitter,
    exec: Option<Exec>,
    shutdown: Shutdown,
}

impl Running {
    async fn start() -> anyhow::Result<Self> {
        let server = support::Server::start(&[]);
        let client = redis::Client::open(server.url())?;
        Ok(Self {
            conn: client.get_multiplexed_async_connection().await?,
            emitter: Emitter::connect(server.url()).await?,
            server,
            exec: None,
            shutdown: Shutdown::new(),
        })
    }

    /// Starts the programs, and waits until they are ready.
    async fn open(&mut self, program: Option<&(String, usize)>) -> anyhow::Result<Arc<dyn Sink>> {
        let Some((command, children)) = program else {
            return Ok(Arc::new(Null));
        };
        let mut options = Options::default();
        options.children = *children;
        let exec = Exec::open(command.parse()?, options)?;
        let until = Instant::now() + Duration::from_secs(20);
        while exec.figures().ready < *children {
            anyhow::ensure!(Instant::now() < until, "{command} says no hello");
            sleep(Duration::from_millis(5)).await;
        }
        self.exec = Some(exec.clone());
        Ok(Arc::new(exec))
    }

    fn work(&self, sink: Arc<dyn Sink>) -> anyhow::Result<tokio::task::JoinHandle<()>> {
        let mut config = WorkerConfig::default();
        (config.name, config.concurrency) = ("exec".to_owned(), SLOTS);
        let worker = Worker::builder(self.server.url())
            .config(config)
            .sink(sink)
            .build()?;
        let shutdown = self.shutdown.clone();
        Ok(tokio::spawn(async move {
            if let Err(error) = worker.run(shutdown).await {
                println!("exec: the worker has ended: {error}");
            }
        }))
    }

    /// Returns the number of ids that are given, and whether an object has an owner.
    async fn at_rest(&mut self, events: usize, objects: usize) -> anyhow::Result<bool> {
        let (ids, markers, keys): (Option<u64>, usize, usize) = redis::pipe()
            .get("next.event.id")
            .llen("objects.with.events")
            .cmd("DBSIZE")
            .query_async(&mut self.conn)
            .await?;
        // An idle object has one key. The worker and the counters have at most 8.
        Ok(ids.is_some() && markers == 0 && keys <= objects + 8 && events > 0)
    }

    async fn end(self, working: tokio::task::JoinHandle<()>) -> anyhow::Result<()> {
        self.shutdown.stop();
        working.await?;
        if let Some(exec) = &self.exec {
            exec.close().await;
        }
        Ok(())
    }
}

/// Emits all events, then measures their delivery. Returns the events per second.
async fn drain(
    events: usize,
    of: fn(usize) -> Vec<usize>,
    program: Option<&(String, usize)>,
) -> anyhow::Result<f64> {
    let mut running = Running::start().await?;
    let objects = of(events);
    let mut distinct = objects.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let event = format!("{{\"type\":\"moved\",\"text\":\"{}\"}}", "x".repeat(160));
    let all = objects
        .iter()
        .map(|object| (format!("work:{object}"), Json::new(event.clone())));
    running.emitter.emit_many(all).await?;
    let sink = running.open(program).await?;
    let began = Instant::now();
    let working = running.work(sink)?;
    while !running.at_rest(events, distinct.len()).await? {
        anyhow::ensure!(
            began.elapsed() < Duration::from_secs(600),
            "the events are not delivered"
        );
        sleep(Duration::from_millis(5)).await;
    }
    let rate = events as f64 / began.elapsed().as_secs_f64();
    running.end(working).await?;
    Ok(rate)
}

/// Emits events at a steady rate. Returns the median of the seconds from the emit to the commit.
async fn latency(program: Option<&(String, usize)>) -> anyhow::Result<f64> {
    let mut running = Running::start().await?;
    let sink = running.open(program).await?;
    let working = running.work(sink)?;
    let (mut next, mut times) = (Instant::now(), Vec::new());
    for n in 0..PER_SECOND * LATENCY_FOR {
        next += Duration::from_secs(1) / PER_SECOND;
        sleep_until(next).await;
        let object = format!("work:{n}");
        let last = format!("{object}:last.event.id");
        let began = Instant::now();
        running
            .emitter
            .emit(&object, Json::new("{\"type\":\"moved\"}"))
            .await?;
        loop {
            let id: Option<u64> = redis::cmd("GET")
                .arg(&last)
                .query_async(&mut running.conn)
                .await?;
            if id.is_some() {
                break;
            }
            anyhow::ensure!(
                began.elapsed() < Duration::from_secs(20),
                "{object} is not delivered"
            );
        }
        times.push(began.elapsed().as_secs_f64());
    }
    running.end(working).await?;
    Ok(middle(&times))
}

/// Returns the part of a core that this process and its children use without events.
async fn idle(program: &(String, usize)) -> anyhow::Result<f64> {
    let mut running = Running::start().await?;
    let sink = running.open(Some(program)).await?;
    let working = running.work(sink)?;
    running.emitter.emit("work:1", Json::new("1")).await?;
    sleep(Duration::from_secs(2)).await;
    let before = cpu_seconds()?;
    sleep(IDLE_FOR).await;
    let used = cpu_seconds()? - before;
    running.end(working).await?;
    Ok(used / IDLE_FOR.as_secs_f64())
}

/// Returns the CPU time of this process and of the programs that it has started, in seconds.
fn cpu_seconds() -> anyhow::Result<f64> {
    let own = std::process::id().to_string();
    let mut ticks = 0.0;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{name}/stat")) else {
            continue;
        };
        let Some((head, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let is_redis = head.contains("redis-server");
        if (name == own || fields.get(1) == Some(&own.as_str())) && !is_redis {
            let field = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
            ticks += field(11).unwrap_or(0.0) + field(12).unwrap_or(0.0);
        }
    }
    // The kernel counts in hundredths of a second, whatever its own clock is.
    Ok(ticks / 100.0)
}
