//! Measures how much a crowded Redis slows emitters. At 500 emits per second, one run measures the
//! p99 of an emit to a crowded Redis and to one without the crowd.
//!
//!     cargo bench --bench crowd [-- --scale PERCENT]
//!
//! There are two private Redis servers on loopback. Each has two worker processes; all their 512
//! slots are busy. The crowd is in one of these servers: 100,000 departed names, 1,000,000 markers,
//! 300,000 paused and 100,000 held objects, and 1,000 rules. `--scale` sets a percentage of these
//! numbers. The two servers get 500 emits per second in turn. The exit code is 1 if the p99 with
//! the crowd is more than twice the p99 without.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::future::pending;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::control;
use redis::aio::MultiplexedConnection;
use seriatim::Emitter;
use seriatim::control::By;
use seriatim::control::rules::Kind;
use seriatim::event::Json;
use seriatim::keys::Keys;
use seriatim::sink;
use seriatim::worker::{Shutdown, Worker};
use seriatim_lab::statistics::{median, percentile};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Environment variable with the name of the worker. This program sets it when it starts itself
/// again as a worker process.
const CHILD: &str = "SERIATIM_BENCH_WORKER";
const WORKERS: usize = 2;
const SLOTS: usize = 256;
/// Interval between emits: 500 emits per second. One turn takes five seconds.
const EVERY: Duration = Duration::from_millis(2);
const EMITS: usize = 2_500;
const TURNS: usize = 8;
/// Maximum ratio of the p99 with the crowd to the p99 without.
const RATIO_MAX: f64 = 2.0;
/// Number of seeded entries (names, markers, objects) per command.
const CHUNK: u64 = 5_000;

const DEPARTED: u64 = 100_000;
const MARKERS: u64 = 1_000_000;
const PAUSED: u64 = 300_000;
const HELD: u64 = 100_000;
const RULES: u64 = 1_000;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if let Ok(name) = std::env::var(CHILD) {
        return runtime.block_on(busy_worker(&name));
    }
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let percent = match args.as_slice() {
        [] => 100,
        [option, percent] if option == "--scale" => percent.parse()?,
        _ => anyhow::bail!("usage: crowd [--scale PERCENT]"),
    };
    runtime.block_on(measure(percent))
}

async fn measure(percent: u64) -> anyhow::Result<()> {
    let (empty, crowded) = (Crowd::start().await?, Crowd::start().await?);
    let began = Instant::now();
    crowded.crowd(percent).await?;
    println!("crowd at {percent} %, seeded in {:.0?}", began.elapsed());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        without.push(empty.emits(turn).await?);
        with.push(crowded.emits(turn).await?);
    }
    let [without_p50, without_p99] = [50.0, 99.0].map(|percent| of_turns(&without, percent));
    let [with_p50, with_p99] = [50.0, 99.0].map(|percent| of_turns(&with, percent));
    let ratio = with_p99 / without_p99;
    println!("an emit at 500/s, medians of {TURNS} turns of {EMITS}, ms");
    println!("  without the crowd: p50 {without_p50:.3}  p99 {without_p99:.3}");
    println!("  with the crowd:    p50 {with_p50:.3}  p99 {with_p99:.3}");
    println!("  p99 with / without {ratio:.2}, at most {RATIO_MAX:.2}");
    anyhow::ensure!(ratio <= RATIO_MAX, "the crowd costs emitters too much");
    Ok(())
}

/// Computes the percentile of each turn. Returns the median of these values, in ms.
fn of_turns(turns: &[Vec<f64>], percent: f64) -> f64 {
    let of_each = turns.iter().filter_map(|turn| percentile(turn, percent));
    median(&of_each.collect::<Vec<f64>>()).unwrap_or(f64::NAN)
}

/// A Redis server and its workers, whose slots are all busy.
struct Crowd {
    _server: support::Server,
    _workers: Vec<Process>,
    conn: MultiplexedConnection,
    emitter: Emitter,
}

/// A child process that is killed when the value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a worker whose deliveries never end.
async fn busy_worker(name: &str) -> anyhow::Result<()> {
    let sink = sink::batches(|_: sink::Batch, _| pending::<sink::Delivered>());
    let worker = Worker::builder(std::env::var("SERIATIM_REDIS")?)
        .name(name)
        .concurrency(SLOTS)
        .sink(sink);
    worker.build()?.run(Shutdown::new()).await?;
    Ok(())
}

impl Crowd {
    async fn start() -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let server = support::Server::start(&["--port", &port.to_string()]);
        let url = format!("redis://127.0.0.1:{port}");
        let patience =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let conn = redis::Client::open(url.as_str())?
            .get_multiplexed_async_connection_with_config(&patience)
            .await?;
        let emitter = Emitter::builder(&url).connect().await?;
        for busy in 0..WORKERS * SLOTS {
            emitter
                .event(format!("busy:{busy}"), Json::new("{}"))
                .send()
                .await?;
        }
        let mut workers = Vec::new();
        for name in 0..WORKERS {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .env(CHILD, format!("w{name}"))
                .env("SERIATIM_REDIS", &url)
                .stdout(Stdio::null());
            workers.push(Process(command.spawn()?));
        }
        let mut place = Self {
            _server: server,
            _workers: workers,
            conn,
            emitter,
        };
        place.until_busy().await?;
        Ok(place)
    }

    async fn until_busy(&mut self) -> anyhow::Result<()> {
        let owners: Vec<_> = (0..WORKERS * SLOTS)
            .map(|busy| Keys::new().event_worker(&format!("busy:{busy}")))
            .collect();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let owned: usize = redis::cmd("EXISTS")
                .arg(&owners)
                .query_async(&mut self.conn)
                .await?;
            if owned == owners.len() {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "only {owned} slots are busy after 30 s"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs the Lua text once for each number `n` from 1 to `percent` percent of `count`. One
    /// command does a chunk of these numbers, from `ARGV[1]` to `ARGV[2]`.
    async fn seed(&self, count: u64, percent: u64, lua: &str) -> anyhow::Result<()> {
        let mut conn = self.conn.clone();
        let count = count * percent / 100;
        let script = format!("for n = ARGV[1], ARGV[2] do {lua} end");
        for from in (1..=count).step_by(CHUNK as usize) {
            let to = (from + CHUNK - 1).min(count);
            redis::cmd("EVAL")
                .arg(&script)
                .arg(0)
                .arg(from)
                .arg(to)
                .exec_async(&mut conn)
                .await?;
        }
        Ok(())
    }

    async fn crowd(&self, percent: u64) -> anyhow::Result<()> {
        let mut conn = self.conn.clone();
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query_async(&mut conn).await?;
        let departed_ms = seconds * 1000 - 30_000;
        let register = "local token = string.format('00000000-0000-4000-8000-%012d', n)
            redis.call('HSET', 'event.workers', 'departed-' .. n, '256 ' .. token .. ' ";
        self.seed(DEPARTED, percent, &format!("{register}{departed_ms}')"))
            .await?;
        let by = By {
            who: "bench",
            why: "a crowd",
        };
        for rule in 1..=(RULES * percent / 100).max(1) {
            control(&conn, &Keys::new())
                .set_rule(by, Kind::Pause, &format!("paused:{rule}:*").parse()?, None)
                .await?;
        }
        let held = "redis.call('SET', name .. ':event.worker', 'held') redis.call('LPUSH', name .. ':events', '{}')";
        let paused = format!(
            "local name = 'paused:' .. n % 1000 + 1 .. ':' .. n {held} redis.call('ZADD', 'objects.paused', 0, name)"
        );
        self.seed(PAUSED, percent, &paused).await?;
        let due_ms = (seconds + 3600) * 1000;
        let waiting = format!(
            "local name = 'held:' .. n {held} redis.call('ZADD', 'objects.held', {due_ms} + n, name)"
        );
        self.seed(HELD, percent, &waiting).await?;
        let marked = "redis.call('LPUSH', 'marked:' .. n .. ':events', '{}') redis.call('LPUSH', 'objects.with.events', 'marked:' .. n)";
        self.seed(MARKERS, percent, marked).await
    }

    /// Emits for one turn at an even pace. Returns for each emit the time from its due time to its
    /// reply, in ms. The times are sorted.
    async fn emits(&self, turn: usize) -> anyhow::Result<Vec<f64>> {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut under_way = JoinSet::new();
        for emit in 0..EMITS {
            let due = every.tick().await;
            let emitter = self.emitter.clone();
            under_way.spawn(async move {
                let sent = emitter
                    .event(format!("emitted:{turn}:{emit}"), Json::new("{\"n\":1}"))
                    .send()
                    .await;
                sent.map(|_| due.elapsed().as_secs_f64() * 1000.0)
            });
        }
        let mut took = Vec::with_capacity(EMITS);
        while let Some(done) = under_way.join_next().await {
            took.push(done??);
        }
        Ok(took)
    }
}
