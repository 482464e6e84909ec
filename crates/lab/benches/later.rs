//! Measures schedules: their lateness on an idle system, and how much a million schedules that are
//! due at once delay other events.
//!
//!     cargo bench --bench later [-- --schedules N]
//!
//! The bench has a private Redis on loopback. Its workers discard the events that they get. First
//! 500 schedules are due at different times, and nothing else happens. Then events are emitted at
//! 500 per second, first without schedules, then while N overdue schedules (1,000,000 by default)
//! are promoted and delivered. The exit code is 1 if the p99 of the lateness is above 20 ms. It is
//! also 1 if the promotion delays other events: the p99 of an emit is then above 10 ms, or the p99
//! from emit to sink is above 50 ms.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::Emitter;
use seriatim::event::Json;
use seriatim::keys::Keys;
use seriatim::sink::{self, Stop};
use seriatim::worker::{Shutdown, Worker};
use seriatim_lab::statistics;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Environment variable with the URL of Redis. This program sets it when it starts itself again as
/// a second worker, which measures nothing.
const CHILD: &str = "SERIATIM_BENCH_WORKER";
const LATE: usize = 500;
const EVERY: Duration = Duration::from_millis(2);
/// Events emitted in each part.
const EMITS: usize = 2_500;
const LATENESS_P99_MAX: u64 = 20;
const EMIT_P99_MAX: Duration = Duration::from_millis(10);
const TO_SINK_P99_MAX: Duration = Duration::from_millis(50);

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if let Ok(url) = std::env::var(CHILD) {
        let worker = Worker::builder(url)
            .name("other")
            .sink(sink::each(|_| async { Ok::<(), Stop>(()) }))
            .build()?;
        runtime.block_on(worker.run(Shutdown::new()))?;
        return Ok(());
    }
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let schedules = match args.as_slice() {
        [] => 1_000_000,
        [option, number] if option == "--schedules" => number.parse()?,
        _ => anyhow::bail!("usage: later [--schedules N]"),
    };
    runtime.block_on(measure(schedules))
}

/// The second worker process. It is killed when this value is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// For each probe event that came to the sink, the time of its arrival.
type Came = Arc<Mutex<HashMap<String, Instant>>>;

async fn measure(schedules: usize) -> anyhow::Result<()> {
    let server = support::Server::start(&[]);
    let came = Came::default();
    let noted = Arc::clone(&came);
    let probes = sink::each(move |event| {
        if event.object.as_str().starts_with("probe:") {
            let name = String::from_utf8_lossy(&event.payload).into_owned();
            noted
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .insert(name, Instant::now());
        }
        async { Ok::<(), Stop>(()) }
    });
    let emitter = Emitter::connect(server.url()).await?;
    let shutdown = Shutdown::new();
    let worker = Worker::builder(server.url())
        .name("probes")
        .sink(probes)
        .build()?;
    let working = tokio::spawn(worker.run(shutdown.clone()));
    sleep(Duration::from_millis(500)).await;

    for n in 0..LATE {
        let after = Duration::from_millis(20 + (n as u64 * 7) % 60);
        emitter
            .schedule(format!("late:{n}"), Json::new("1"))
            .after(after)
            .send()
            .await?;
        sleep(Duration::from_millis(11)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let (p50, p99) = (lateness(&server, 50).await?, lateness(&server, 99).await?);
    println!(
        "lateness of {LATE} schedules on an idle system: p50 at most {p50} ms, p99 at most {p99} ms"
    );

    let (emit_before, to_sink_before) = probe(&emitter, &came, 0).await?;
    tell("without schedules", &emit_before, &to_sink_before);
    let began = Instant::now();
    let overdue =
        (0..schedules).map(|n| emitter.schedule(format!("work:{}", n % 100_000), Json::new("1")));
    // The due time is far ahead, so that no schedule is promoted before all schedules are stored.
    let far = std::time::SystemTime::now() + Duration::from_secs(3600);
    emitter
        .schedule_many(overdue.map(|schedule| schedule.at(far)))
        .await?;
    println!("{schedules} schedules stored in {:.1?}", began.elapsed());
    let other = Command::new(std::env::current_exe()?)
        .env(CHILD, server.url())
        .stdin(Stdio::null())
        .spawn()?;
    let _other = Other(other);
    make_due(&server).await?;
    let began = Instant::now();
    let (emit, to_sink) = probe(&emitter, &came, EMITS).await?;
    tell("while they are promoted", &emit, &to_sink);
    let left = left(&server).await?;
    println!("{left} schedules were left after that");
    while self::left(&server).await? > 0 {
        sleep(Duration::from_millis(50)).await;
    }
    println!("all promoted after {:.1?}", began.elapsed());
    shutdown.stop_at_once();
    drop(working.await?);

    anyhow::ensure!(p99 <= LATENESS_P99_MAX, "schedules are late");
    anyhow::ensure!(
        percentile(&emit, 99.0) <= EMIT_P99_MAX,
        "promotion delays emits"
    );
    anyhow::ensure!(
        percentile(&to_sink, 99.0) <= TO_SINK_P99_MAX,
        "promotion delays other objects"
    );
    Ok(())
}

/// Emits events for the objects `probe:…`, which no schedule uses, at 500 per second. Returns the
/// duration of each emit, and the times from emit to sink.
async fn probe(
    emitter: &Emitter,
    came: &Came,
    first: usize,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut emits, mut began) = (Vec::with_capacity(EMITS), Vec::with_capacity(EMITS));
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for n in first..first + EMITS {
        ticks.tick().await;
        let at = Instant::now();
        emitter
            .emit(format!("probe:{}", n % 100), Json::new(n.to_string()))
            .await?;
        emits.push(at.elapsed());
        began.push((n.to_string(), at));
    }
    // The second worker process delivers about half of the probe events. They are not recorded.
    sleep(Duration::from_secs(2)).await;
    let came = came
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let to_sink = began
        .iter()
        .filter_map(|(name, at)| Some(came.get(name)?.duration_since(*at)))
        .collect();
    Ok((emits, to_sink))
}

fn percentile(times: &[Duration], percent: f64) -> Duration {
    let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    Duration::from_secs_f64(statistics::percentile(&times, percent).unwrap_or(0.0))
}

fn tell(when: &str, emits: &[Duration], to_sink: &[Duration]) {
    let [emit_50, emit_99] = [50.0, 99.0].map(|percent| percentile(emits, percent));
    let [sink_50, sink_99] = [50.0, 99.0].map(|percent| percentile(to_sink, percent));
    println!(
        "{when}: emit p50 {emit_50:.1?} p99 {emit_99:.1?}; emit to sink p50 {sink_50:.1?} p99 {sink_99:.1?}, {} seen",
        to_sink.len()
    );
}

async fn connection(server: &support::Server) -> anyhow::Result<redis::aio::MultiplexedConnection> {
    let config =
        redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    Ok(redis::Client::open(server.url())?
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

/// Returns the percentile `percent` of the lateness of all promoted events, as an upper bound in
/// ms.
async fn lateness(server: &support::Server, percent: u64) -> anyhow::Result<u64> {
    let stats = support::control(&connection(server).await?, &Keys::new())
        .stats()
        .await?;
    let total: u64 = stats
        .schedules
        .lateness
        .iter()
        .map(|(_, events)| events)
        .sum();
    let mut left = (total * percent).div_ceil(100);
    for (bound, events) in &stats.schedules.lateness {
        left = left.saturating_sub(*events);
        if left == 0 {
            return Ok(bound.unwrap_or(u64::MAX));
        }
    }
    anyhow::bail!("nothing was promoted")
}

/// Makes all schedules due at once, as after an outage of an hour.
async fn make_due(server: &support::Server) -> anyhow::Result<()> {
    let set = Keys::new().events_scheduled();
    let mut conn = connection(server).await?;
    let store = "return redis.call('ZUNIONSTORE', KEYS[1], 1, KEYS[1], 'WEIGHTS', '0.001')";
    redis::cmd("EVAL")
        .arg(store)
        .arg(1)
        .arg(set)
        .query_async::<u64>(&mut conn)
        .await?;
    Ok(())
}

async fn left(server: &support::Server) -> anyhow::Result<u64> {
    let mut conn = connection(server).await?;
    Ok(redis::cmd("ZCARD")
        .arg(Keys::new().events_scheduled())
        .query_async(&mut conn)
        .await?)
}
