//! Seriatim as a measured system. It has an emitter, as a producer has it, and workers of the
//! library. The sink of these workers only counts.

use std::sync::Arc;
use std::time::Instant;

use anyhow::anyhow;
use redis::aio::MultiplexedConnection;
use seriatim::control::shares::Share;
use seriatim::control::{By, Control};
use seriatim::event::Json;
use seriatim::sink::{Batch, Context, Delivered, Sink};
use seriatim::worker::{Shutdown, Stopped, Worker, WorkerConfig, WorkerError};
use seriatim::{Emitter, async_trait};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::failures;
use seriatim_console::shown;
use tokio::task::{JoinError, JoinSet};

use super::place::{PATIENCE, Target, lost};
use super::system::{Consumers, Producer, System};
use super::tally::Tally;
use super::workload::Workload;

/// The measured system: seriatim.
pub(super) struct Seriatim {
    pub(super) place: Target,
    /// Settings of each worker, except its name.
    pub(super) config: WorkerConfig,
    pub(super) workers: usize,
    /// The number of groups, and the most objects in hand of each; `None`: no shares.
    pub(super) limits: Option<(u32, u64)>,
}

#[derive(Clone)]
pub(super) struct Emits(Emitter);

pub(super) struct Workers {
    running: JoinSet<Result<Stopped, WorkerError>>,
    shutdown: Shutdown,
    /// For each slot, the key of its tag. The key exists as long as the slot has a batch.
    tags: Vec<String>,
    conn: MultiplexedConnection,
    ready_at: Instant,
}

/// A sink that delivers to the tally.
struct Counting(Arc<Tally>);

#[async_trait]
impl Sink for Counting {
    async fn deliver(&self, batch: &Batch, _cx: &Context) -> Delivered {
        let object = batch.object().as_str().as_bytes();
        for event in batch.events() {
            self.0.take(&event.payload, Some(object));
        }
        self.0.add(batch.len());
        Delivered::all()
    }
}

impl System for Seriatim {
    type Producer = Emits;
    type Consumers = Workers;

    const NAME: &'static str = "seriatim";
    const KEEPS_OBJECTS: bool = true;

    async fn prepare(&self) -> anyhow::Result<()> {
        let Some((groups, objects)) = self.limits else {
            return Ok(());
        };
        let control = Control::new(self.place.conn.clone()).with_keys(self.place.keys.clone());
        let by = By {
            who: "seriatim bench",
            why: "",
        };
        for group in 0..groups {
            let selector = format!("work{group}:*").parse()?;
            control
                .set_share(by, &selector, Share::new().in_flight(objects))
                .await
                .map_err(shown::action_failure)?;
        }
        Ok(())
    }

    async fn producer(&self) -> anyhow::Result<Emits> {
        let builder = Emitter::builder(self.place.url.as_str()).keys(self.place.keys.clone());
        Ok(Emits(
            builder
                .response_timeout(PATIENCE)
                .connect()
                .await
                .map_err(emit_failed)?,
        ))
    }

    async fn consume(&self, tally: &Arc<Tally>) -> anyhow::Result<Workers> {
        let keys = &self.place.keys;
        let shutdown = Shutdown::new();
        let (mut running, mut tags, mut leases) = (JoinSet::new(), Vec::new(), Vec::new());
        for n in 0..self.workers {
            let mut config = self.config.clone();
            config.name = format!("bench-{n}");
            tags.extend(
                (0..config.concurrency)
                    .map(|slot| keys.worker_event_id(&format!("{}.{slot}", config.name))),
            );
            leases.push(keys.worker_lease(&config.name));
            let worker = Worker::builder(self.place.url.as_str())
                .config(config)
                .sink(Counting(Arc::clone(tally)))
                .build();
            running.spawn(worker.map_err(failures::worker)?.run(shutdown.clone()));
        }
        let mut workers = Workers {
            running,
            shutdown,
            tags,
            conn: self.place.conn.clone(),
            ready_at: Instant::now(),
        };
        workers.until_attached(&leases).await?;
        Ok(workers)
    }
}

fn emit_failed(error: seriatim::EmitError) -> anyhow::Error {
    Failure::with(Exit::Redis, error)
}

impl Producer for Emits {
    async fn push_all(&mut self, load: &Workload) -> anyhow::Result<()> {
        let events =
            (0..load.events()).map(|event| (load.object(event), Json::new(load.payload(event))));
        let emitted = self
            .0
            .emit_many(events)
            .await
            .map_err(|error| Failure::with(Exit::Redis, error))?;
        anyhow::ensure!(
            emitted.events == load.events() as u64,
            "only {} events were emitted",
            emitted.events
        );
        Ok(())
    }

    async fn push(&mut self, load: &Workload, event: usize) -> anyhow::Result<()> {
        let emitted = self
            .0
            .emit(load.object(event), Json::new(load.payload(event)))
            .await;
        emitted.map(|_| ()).map_err(emit_failed)
    }
}

impl Workers {
    /// Waits until the first worker has its lease, and takes this time as `ready_at`. Polls without
    /// a pause, because a pause would take a few milliseconds.
    async fn until_attached(&mut self, leases: &[String]) -> anyhow::Result<()> {
        let asked_first = Instant::now();
        loop {
            let mut conn = self.conn.clone();
            let mut exists = redis::cmd("EXISTS");
            exists.arg(leases);
            let attached: u64 = tokio::select! {
                error = self.failed() => return Err(error),
                attached = exists.query_async(&mut conn) => attached.map_err(lost("EXISTS"))?,
            };
            if attached > 0 {
                self.ready_at = Instant::now();
                return Ok(());
            }
            anyhow::ensure!(
                asked_first.elapsed() < PATIENCE,
                "no worker has attached after {PATIENCE:?}"
            );
        }
    }
}

/// Returns the reason why a worker ended without being stopped.
fn ended(done: Option<Result<Result<Stopped, WorkerError>, JoinError>>) -> anyhow::Error {
    match done {
        Some(Ok(Err(error))) => failures::worker(error),
        Some(Err(error)) => anyhow!("a worker broke: {error}"),
        Some(Ok(Ok(stopped))) => anyhow!("a worker stopped by itself: {:?}", stopped.reason),
        None => anyhow!("no worker runs any more"),
    }
}

impl Consumers for Workers {
    fn ready_at(&self) -> Instant {
        self.ready_at
    }

    async fn failed(&mut self) -> anyhow::Error {
        ended(self.running.join_next().await)
    }

    async fn is_committed(&mut self) -> anyhow::Result<bool> {
        let mut exists = redis::cmd("EXISTS");
        exists.arg(&self.tags);
        let in_flight: u64 = exists
            .query_async(&mut self.conn)
            .await
            .map_err(lost("EXISTS"))?;
        Ok(in_flight == 0)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.shutdown.stop();
        while let Some(done) = self.running.join_next().await {
            if !matches!(done, Ok(Ok(_))) {
                return Err(ended(Some(done)));
            }
        }
        Ok(())
    }
}
