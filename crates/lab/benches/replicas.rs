//! Measures the cost of `--wait 1`, on a master with one replica. The rounds with the wait and
//! without it are in turn.
//!
//!     cargo bench --locked --bench replicas
//!
//! Prints three medians with and without the wait: the time of a single emit, the time from emit to
//! sink, and the rate of a drain. With the wait, each of the two times may be at most 0.15 ms
//! longer, and the rate must be at least 0.7 of the rate without. Otherwise the bench fails.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use seriatim::async_trait;
use seriatim::event::Json;
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{Shutdown, Worker};
use seriatim::{Emitter, redis};
use seriatim_lab::statistics::median;

const ROUNDS: usize = 7;
const EMITS: usize = 1_000;
const DRAINED: usize = 50_000;
const OBJECTS: usize = 1_000;
const WAITS: [u32; 2] = [0, 1];
/// Interval between emits while the time from emit to sink is measured.
const PACE: Duration = Duration::from_millis(2);

/// A Redis server and its port. The server is killed when this value is dropped.
struct Server(Child, u16);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(dir: &Path, of: Option<u16>) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let mut command = Command::new(
            std::env::var("SERIATIM_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned()),
        );
        command
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--repl-diskless-sync-delay",
                "0",
                "--dir",
            ])
            .arg(dir);
        if let Some(of) = of {
            command.args(["--replicaof", "127.0.0.1", &of.to_string()]);
        }
        Ok(Self(
            command
                .stdout(Stdio::null())
                .spawn()
                .context("redis-server")?,
            port,
        ))
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.1)
    }
}

/// A sink that records the arrival time of each event.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Arrivals {
    fn take(&self) -> Vec<Instant> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[async_trait]
impl Sink for Arrivals {
    async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
        let now = Instant::now();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(batch.events().map(|_| now));
        Delivered::all()
    }
}

fn main() -> ExitCode {
    if !std::env::args().any(|word| word == "--bench") {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match runtime.block_on(run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("replicas: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<bool> {
    let dirs = [tempfile::tempdir()?, tempfile::tempdir()?];
    let master = Server::start(dirs[0].path(), None)?;
    let _replica = Server::start(dirs[1].path(), Some(master.1))?;
    until_attached(&master).await?;
    // For each of the two waits, the figures of all rounds: emit, emit to sink, drain.
    let mut figures = [const { [const { Vec::new() }; 3] }; 2];
    for round in 0..ROUNDS {
        for wait in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let found = measure(&master.url(), WAITS[wait]).await?;
            for (all, one) in figures[wait].iter_mut().zip(found) {
                all.push(one);
            }
        }
    }
    let [without, with] = figures.map(|each| each.map(middle));
    println!("| | without | --wait 1 | |\n|---|---|---|---|");
    let ms = |seconds: f64| seconds * 1000.0;
    for (at, name) in ["emit, median", "emit to sink, median"].iter().enumerate() {
        let (a, b) = (ms(without[at]), ms(with[at]));
        println!("| {name} | {a:.3} ms | {b:.3} ms | {:.3} ms more |", b - a);
    }
    let ratio = with[2] / without[2];
    println!(
        "| drain | {:.0} events/s | {:.0} events/s | {ratio:.2} |",
        without[2], with[2]
    );
    Ok(with[0] - without[0] <= 150e-6 && with[1] - without[1] <= 150e-6 && ratio >= 0.7)
}

async fn until_attached(master: &Server) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        ensure!(
            began.elapsed() < Duration::from_secs(20),
            "the replica is not attached"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Ok(mut conn) = redis::Client::open(master.url())?
            .get_multiplexed_async_connection()
            .await
        else {
            continue;
        };
        let (_, replicas): ((), u64) = redis::pipe()
            .cmd("SET")
            .arg("touched")
            .arg(1)
            .cmd("WAIT")
            .arg(1)
            .arg(100)
            .query_async(&mut conn)
            .await?;
        if replicas == 1 {
            return Ok(());
        }
    }
}

/// Returns three figures: the median time of an emit, in seconds; the median time from emit to
/// sink, in seconds; the events drained per second.
async fn measure(url: &str, wait: u32) -> anyhow::Result<[f64; 3]> {
    let emitter = Emitter::builder(url)
        .wait(wait, Duration::from_secs(1))
        .connect()
        .await?;
    let plain = Emitter::connect(url).await?;
    let mut emits = Vec::new();
    for n in 0..EMITS {
        let began = Instant::now();
        emitter
            .emit(format!("work:{}", n % OBJECTS), Json::new("{}"))
            .await?;
        emits.push(began.elapsed().as_secs_f64());
    }
    plain
        .emit_many((0..DRAINED - EMITS).map(|n| (format!("work:{}", n % OBJECTS), Json::new("{}"))))
        .await?;
    let (arrivals, shutdown) = (Arrivals::default(), Shutdown::new());
    let worker = Worker::builder(url)
        .name("bench")
        .wait(wait, Duration::from_secs(1))
        .takeover(true)
        .sink(arrivals.clone());
    let began = Instant::now();
    let worker = tokio::spawn(worker.build()?.run(shutdown.clone()));
    while arrivals.count() < DRAINED {
        ensure!(
            began.elapsed() < Duration::from_secs(60),
            "not drained: {}",
            arrivals.count()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let drained = DRAINED as f64 / began.elapsed().as_secs_f64();
    arrivals.take();
    let mut sent = Vec::new();
    for n in 0..EMITS / 2 {
        tokio::time::sleep(PACE).await;
        sent.push(Instant::now());
        plain
            .emit(format!("work:{}", n % OBJECTS), Json::new("{}"))
            .await?;
    }
    let waited = Instant::now();
    while arrivals.count() < sent.len() {
        ensure!(
            waited.elapsed() < Duration::from_secs(10),
            "not all events came"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The events arrive in the order in which they were emitted, because there is only one at a
    // time. So the n-th arrival is that of the n-th emit.
    let latencies = sent
        .into_iter()
        .zip(arrivals.take())
        .map(|(sent, came)| came.saturating_duration_since(sent).as_secs_f64());
    let latencies = latencies.collect();
    shutdown.stop();
    worker.await??;
    Ok([middle(emits), middle(latencies), drained])
}

fn middle(values: Vec<f64>) -> f64 {
    median(&values).unwrap_or(f64::NAN)
}
