//! Measures the figures that the guide promises, against a private Redis on loopback. Prints each
//! figure beside its bound.
//!
//!     cargo build --release
//!     cargo bench --bench promises [-- takeover|restart|idle|latency|drain] [--input FILE]
//!
//! `--input` names an NDJSON file, plain or gzip. For the drain, the events of this file are
//! emitted ten times. Without `--input`, generated events are drained. The figures are for
//! orientation: on a loaded machine a missed bound proves little, but a kept bound proves enough.
//! The exit code is 1 if a bound is missed.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::control;
use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::sink;
use seriatim::worker::{Shutdown, Worker};

/// Environment variable with the name of the worker. This program sets it when it starts itself
/// again as a worker process.
const CHILD: &str = "SERIATIM_BENCH_WORKER";
/// Time that the sink of a worker process takes for a batch. It is long, so that a batch is always
/// in flight.
const SLOW: Duration = Duration::from_millis(100);
const OBJECTS: usize = 64;

struct Figure {
    what: &'static str,
    measured: f64,
    unit: &'static str,
    /// Positive: an upper bound. Negative: its absolute value is a lower bound.
    bound: f64,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if let Ok(name) = std::env::var(CHILD) {
        return runtime.block_on(slow_worker(&name));
    }
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let input = args
        .iter()
        .position(|arg| arg == "--input")
        .and_then(|at| args.get(at + 1))
        .cloned();
    let wanted = |what: &str| {
        let named: Vec<_> = args
            .iter()
            .filter(|arg| !arg.starts_with("--") && Some(*arg) != input.as_ref())
            .collect();
        named.is_empty() || named.iter().any(|arg| *arg == what)
    };
    let mut figures = Vec::new();
    if wanted("latency") {
        figures.extend(runtime.block_on(latency())?);
    }
    if wanted("idle") {
        figures.extend(runtime.block_on(idle())?);
    }
    if wanted("drain") {
        figures.extend(runtime.block_on(drain(input.as_deref()))?);
    }
    if wanted("restart") {
        figures.extend(runtime.block_on(restart())?);
    }
    if wanted("takeover") {
        figures.extend(runtime.block_on(takeover())?);
    }
    let mut missed = 0;
    for Figure {
        what,
        measured,
        unit,
        bound,
    } in figures
    {
        let kept = if bound < 0.0 {
            measured >= -bound
        } else {
            measured <= bound
        };
        let side = if bound < 0.0 { "at least" } else { "at most" };
        println!(
            "{what:<58} {measured:>10.3} {unit:<9} {side} {:>8} {}",
            bound.abs(),
            if kept { "kept" } else { "MISSED" }
        );
        missed += usize::from(!kept);
    }
    anyhow::ensure!(missed == 0, "{missed} bounds missed");
    Ok(())
}

/// A Redis on a port of the loopback interface.
struct Loopback {
    _server: support::Server,
    url: String,
    conn: MultiplexedConnection,
}

impl Loopback {
    async fn start() -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let server = support::Server::start(&["--port", &port.to_string()]);
        let url = format!("redis://127.0.0.1:{port}");
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let info = seriatim::connection::url::connection_info(&url)?.set_tcp_settings(
            seriatim::connection::url::tcp_settings(Duration::from_secs(60)),
        );
        let conn = redis::Client::open(info)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Self {
            _server: server,
            url,
            conn,
        })
    }

    async fn emit(&mut self, object: &str, event: &str) -> anyhow::Result<()> {
        let keys = Keys::new();
        let mut pipe = redis::pipe();
        pipe.atomic()
            .cmd("LPUSH")
            .arg(keys.events(object))
            .arg(event);
        pipe.cmd("LPUSH")
            .arg(keys.objects_with_events())
            .arg(object);
        Ok(pipe.exec_async(&mut self.conn).await?)
    }

    async fn owners(&mut self) -> anyhow::Result<Vec<Option<String>>> {
        let keys: Vec<_> = (0..OBJECTS)
            .map(|n| Keys::new().event_worker(&format!("o:{n}")))
            .collect();
        Ok(redis::cmd("MGET")
            .arg(keys)
            .query_async(&mut self.conn)
            .await?)
    }
}

/// A child process that is killed when the value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn child(url: &str, name: &str) -> anyhow::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .env(CHILD, name)
        .env("SERIATIM_REDIS", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Ok(Process(command.spawn()?))
}

/// Runs a worker with default settings, whose sink is slow and prints a line for each batch.
async fn slow_worker(name: &str) -> anyhow::Result<()> {
    let sink = sink::batches(|batch: sink::Batch, _| async move {
        println!("{}", batch.object());
        tokio::time::sleep(SLOW).await;
        sink::Delivered::all()
    });
    Worker::builder(std::env::var("SERIATIM_REDIS")?)
        .name(name)
        .batch(16)
        .sink(sink)
        .build()?
        .run(Shutdown::new())
        .await?;
    Ok(())
}

async fn latency() -> anyhow::Result<Vec<Figure>> {
    let mut redis = Loopback::start().await?;
    let (seen, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let sink = sink::each(move |_event| {
        let _ = seen.send(Instant::now());
        async { Ok(()) }
    });
    let shutdown = Shutdown::new();
    let running = tokio::spawn(
        Worker::builder(redis.url.as_str())
            .name("w")
            .sink(sink)
            .build()?
            .run(shutdown.clone()),
    );
    let mut every = tokio::time::interval(Duration::from_millis(10));
    let mut took = Vec::new();
    for n in 0..1100 {
        every.tick().await;
        let began = Instant::now();
        redis.emit(&format!("o:{n}"), "{\"n\":1}").await?;
        let Some(arrived) = arrivals.recv().await else {
            anyhow::bail!("the worker ended")
        };
        // The first hundred events are a warm-up and do not count.
        if n >= 100 {
            took.push((arrived - began).as_secs_f64() * 1000.0);
        }
    }
    shutdown.stop();
    running.await??;
    took.sort_by(f64::total_cmp);
    Ok(vec![Figure {
        what: "emit to sink, 100 events/s, median of 1000",
        measured: took[500],
        unit: "ms",
        bound: 1.0,
    }])
}

async fn idle() -> anyhow::Result<Vec<Figure>> {
    let redis = Loopback::start().await?;
    let process = Process(
        Command::new(crate::support::program())
            .args(["worker", "--sink", "null", "--redis", &redis.url])
            .stderr(Stdio::null())
            .spawn()?,
    );
    let ticks = || -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.0.id()))?;
        let fields: Vec<_> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = ticks()?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    // A clock tick is 10 ms on every Linux that Rust runs on, so 20 s are 2,000 ticks.
    let measured = (ticks()? - before) / 2000.0 * 100.0;
    Ok(vec![Figure {
        what: "idle worker process, processor time in 20 s",
        measured,
        unit: "% of core",
        bound: 1.0,
    }])
}

async fn drain(input: Option<&str>) -> anyhow::Result<Vec<Figure>> {
    let mut rates = Vec::new();
    for _ in 0..5 {
        rates.push(drain_once(input).await?);
    }
    rates.sort_by(f64::total_cmp);
    Ok(vec![Figure {
        what: "drain to a file on tmpfs, median of 5",
        measured: rates[2],
        unit: "events/s",
        bound: -50_000.0,
    }])
}

async fn drain_once(input: Option<&str>) -> anyhow::Result<f64> {
    let mut redis = Loopback::start().await?;
    let program = crate::support::program();
    let queued = match input {
        Some(file) => {
            for _ in 0..10 {
                let status = Command::new(program)
                    .args(["emit", "--from", file, "--redis", &redis.url])
                    .stderr(Stdio::null())
                    .status()?;
                anyhow::ensure!(status.success(), "emit --from {file} failed");
            }
            queued(&mut redis.conn).await?
        }
        None => {
            for n in 0..256_540u64 {
                // The events are skewed like real events: half of the events belong to a twentieth
                // of the objects.
                let object = if n % 2 == 0 {
                    n * 7919 % 100
                } else {
                    n * 7919 % 2000
                };
                redis
                    .emit(
                        &format!("file:{object}"),
                        &format!("{{\"n\":{n},\"filler\":\"{}\"}}", "x".repeat(120)),
                    )
                    .await?;
            }
            256_540
        }
    };
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let sink = format!("file:{}", dir.path().join("out.ndjson").display());
    let worker = Command::new(program)
        .args([
            "worker", "--name", "w", "--sink", &sink, "--redis", &redis.url,
        ])
        .stderr(Stdio::null())
        .spawn()?;
    let worker = Process(worker);
    let mut began = None;
    let tags: Vec<_> = (0..64)
        .map(|slot| Keys::new().worker_event_id(&format!("w.{slot}")))
        .collect();
    loop {
        let mut pipe = redis::pipe();
        pipe.cmd("GET")
            .arg("next.event.id")
            .cmd("EXISTS")
            .arg(&tags);
        let (given, in_flight): (Option<u64>, u64) = pipe.query_async(&mut redis.conn).await?;
        if given.unwrap_or(0) > 0 && began.is_none() {
            began = Some(Instant::now());
        }
        if given == Some(queued) && in_flight == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.map_or(f64::NAN, |began| began.elapsed().as_secs_f64());
    drop(worker);
    Ok(queued as f64 / took)
}

async fn queued(conn: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let all = control(conn, &Keys::new()).depth(1).await?;
    Ok(all.events_queued)
}

/// Emits so many events that a slow worker has all objects in flight for a while.
async fn fill(redis: &mut Loopback) -> anyhow::Result<()> {
    for n in 0..OBJECTS {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for event in 0..1500 {
            pipe.cmd("LPUSH")
                .arg(Keys::new().events(&format!("o:{n}")))
                .arg(event)
                .ignore();
        }
        pipe.cmd("LPUSH")
            .arg("objects.with.events")
            .arg(format!("o:{n}"))
            .ignore();
        pipe.exec_async(&mut redis.conn).await?;
    }
    Ok(())
}

/// Waits until `name` owns an object.
async fn owns(redis: &mut Loopback, name: &str) -> anyhow::Result<()> {
    let prefix = format!("{name}.");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if redis
            .owners()
            .await?
            .iter()
            .flatten()
            .any(|owner| owner.starts_with(&prefix))
        {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "{name} owns nothing after 30 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn takeover() -> anyhow::Result<Vec<Figure>> {
    let mut took = Vec::new();
    let mut redis = Loopback::start().await?;
    for round in 0..20 {
        redis::cmd("FLUSHALL").exec_async(&mut redis.conn).await?;
        fill(&mut redis).await?;
        let mut victim = child(&redis.url, "a")?;
        owns(&mut redis, "a").await?;
        let _other = child(&redis.url, "b")?;
        // The wait varies, so that the kill comes at different times between two renewals of the
        // lease.
        tokio::time::sleep(Duration::from_millis(200 + 83 * round)).await;
        victim.0.kill()?;
        victim.0.wait()?;
        let killed = Instant::now();
        owns_again(&mut redis).await?;
        took.push(killed.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    Ok(vec![
        Figure {
            what: "takeover of a killed process, median of 20",
            measured: (took[9] + took[10]) / 2.0,
            unit: "s",
            bound: 7.0,
        },
        Figure {
            what: "takeover of a killed process, slowest of 20",
            measured: took[19],
            unit: "s",
            bound: 8.0,
        },
    ])
}

/// Waits until every object of the killed process `a` is owned by the process `b`, or has no owner
/// because it has no more events.
async fn owns_again(redis: &mut Loopback) -> anyhow::Result<()> {
    let owned =
        |owner: &Option<String>| owner.as_ref().is_some_and(|owner| owner.starts_with("a."));
    let of_victim: Vec<_> = redis
        .owners()
        .await?
        .iter()
        .enumerate()
        .filter(|(_, o)| owned(o))
        .map(|(n, _)| n)
        .collect();
    anyhow::ensure!(!of_victim.is_empty(), "the victim had nothing in hand");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let owners = redis.owners().await?;
        let goes_on = |n: &usize| {
            owners[*n]
                .as_ref()
                .is_none_or(|owner| owner.starts_with("b."))
        };
        if of_victim.iter().all(goes_on) {
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "not taken over after 30 s: {owners:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn restart() -> anyhow::Result<Vec<Figure>> {
    let mut redis = Loopback::start().await?;
    let mut slowest: f64 = 0.0;
    for _ in 0..20 {
        redis::cmd("FLUSHALL").exec_async(&mut redis.conn).await?;
        fill(&mut redis).await?;
        let mut victim = child(&redis.url, "a")?;
        owns(&mut redis, "a").await?;
        victim.0.kill()?;
        victim.0.wait()?;
        let began = Instant::now();
        let mut again = child(&redis.url, "a")?;
        let Some(stdout) = again.0.stdout.take() else {
            anyhow::bail!("no output")
        };
        let mut line = String::new();
        std::io::BufReader::new(stdout).read_line(&mut line)?;
        anyhow::ensure!(line.starts_with("o:"), "{line:?}");
        slowest = slowest.max(began.elapsed().as_secs_f64());
    }
    Ok(vec![Figure {
        what: "restart under the same name, slowest of 20",
        measured: slowest,
        unit: "s",
        bound: 0.2,
    }])
}
