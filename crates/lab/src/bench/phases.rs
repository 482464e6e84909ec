//! The phases of a measurement, the same for every system.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::figures::{Figure, Samples};
use super::pace::Schedule;
use super::place::{PATIENCE, Target};
use super::redis_info::Info;
use super::system::{Consumers, Producer, System};
use super::tally::Tally;
use super::workload::{Chain, Workload};
use crate::statistics::percentile;

/// Duration of the latency phase in one repetition.
pub(super) const LATENCY_TIME: Duration = Duration::from_secs(3);
/// Time between the start of the latency phase and its first event.
const LEAD: Duration = Duration::from_millis(50);

/// The setup shared by all phases.
pub(super) struct Phases {
    pub(super) place: Target,
    pub(super) load: Arc<Workload>,
    /// Order of each object's events if one producer emits all events. `of_many`: their order if
    /// `producers` producers emit them.
    pub(super) of_one: Arc<Chain>,
    pub(super) of_many: Arc<Chain>,
    pub(super) producers: usize,
    pub(super) per_second: u32,
    pub(super) wanted: Wanted,
}

/// The phases that the user wants to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) enqueue: bool,
    pub(super) drain: bool,
    pub(super) both: bool,
    pub(super) latency: bool,
    pub(super) memory: bool,
}

/// Start values of a measurement: Redis' processor time, and the time of the clock.
struct Meter {
    before: Info,
    began: Instant,
}

impl Meter {
    async fn start(place: &Target) -> anyhow::Result<Self> {
        let before = Info::ask(&place.conn).await?;
        Ok(Self {
            before,
            began: Instant::now(),
        })
    }

    /// Adds two samples: the events per second since the start, and the microseconds of Redis'
    /// processor time per event.
    async fn add(
        &self,
        phases: &Phases,
        out: &mut Samples,
        figures: (Figure, Figure),
        system: &'static str,
    ) -> anyhow::Result<()> {
        let (took, events) = (self.began.elapsed().as_secs_f64(), phases.load.events());
        out.add(figures.0, system, events as f64 / took);
        out.add(
            figures.1,
            system,
            cpu_us_since(&self.before, &phases.place, events).await?,
        );
        Ok(())
    }
}

/// Returns the microseconds of Redis' processor time per event since an earlier INFO.
pub(super) async fn cpu_us_since(
    before: &Info,
    place: &Target,
    events: usize,
) -> anyhow::Result<f64> {
    let cpu_s = Info::ask(&place.conn).await?.cpu_s() - before.cpu_s();
    Ok(cpu_s / events as f64 * 1e6)
}

impl Phases {
    /// Enqueues all events in bulk, then drains them. Measures the memory of Redis before the
    /// enqueueing, after it, and after the drain.
    pub(super) async fn bulk<S: System>(
        &self,
        system: &S,
        out: &mut Samples,
    ) -> anyhow::Result<()> {
        let wanted = self.wanted;
        if !(wanted.enqueue || wanted.drain || wanted.memory) {
            return Ok(());
        }
        self.begin(system).await?;
        let empty = self.memory_bytes().await?;
        let mut producer = system.producer().await?;
        let meter = Meter::start(&self.place).await?;
        producer.push_all(&self.load).await?;
        if wanted.enqueue {
            meter
                .add(
                    self,
                    out,
                    (Figure::EnqueueBulk, Figure::EnqueueBulkCpu),
                    S::NAME,
                )
                .await?;
        }
        drop(producer);
        if wanted.memory {
            let bytes = self.memory_bytes().await? - empty;
            out.add(
                Figure::BytesQueued,
                S::NAME,
                bytes / self.load.events() as f64,
            );
        }
        if wanted.drain || wanted.memory && S::KEEPS_OBJECTS {
            let figures = wanted
                .drain
                .then_some((Figure::DrainBulk, Figure::DrainBulkCpu));
            self.drain(system, &self.of_one, figures, out).await?;
        }
        if wanted.memory && S::KEEPS_OBJECTS {
            let bytes = self.memory_bytes().await? - empty;
            out.add(
                Figure::BytesIdle,
                S::NAME,
                bytes / self.load.objects_used() as f64,
            );
        }
        Ok(())
    }

    /// Enqueues the events one by one, with many emits in flight. Then drains them.
    pub(super) async fn single<S: System>(
        &self,
        system: &S,
        out: &mut Samples,
    ) -> anyhow::Result<()> {
        if !(self.wanted.enqueue || self.wanted.drain) {
            return Ok(());
        }
        self.begin(system).await?;
        let producer = system.producer().await?;
        let meter = Meter::start(&self.place).await?;
        self.push_singly(&producer).await?;
        if self.wanted.enqueue {
            meter
                .add(
                    self,
                    out,
                    (Figure::EnqueueSingle, Figure::EnqueueSingleCpu),
                    S::NAME,
                )
                .await?;
        }
        if self.wanted.drain {
            let figures = Some((Figure::DrainSingle, Figure::DrainSingleCpu));
            self.drain(system, &self.of_many, figures, out).await?;
        }
        Ok(())
    }

    /// Enqueues the events one by one while the consumers drain them. Ends when all events are
    /// delivered.
    pub(super) async fn both<S: System>(
        &self,
        system: &S,
        out: &mut Samples,
    ) -> anyhow::Result<()> {
        if !self.wanted.both {
            return Ok(());
        }
        self.begin(system).await?;
        let producer = system.producer().await?;
        let tally = Tally::new(&self.load, &self.of_many, self.load.events(), false);
        let mut consumers = system.consume(&tally).await?;
        let meter = Meter::start(&self.place).await?;
        tokio::select! {
            error = consumers.failed() => return Err(error),
            pushed = self.push_singly(&producer) => pushed?,
        }
        until_committed(&mut consumers, &tally, S::NAME).await?;
        meter
            .add(self, out, (Figure::Both, Figure::BothCpu), S::NAME)
            .await?;
        consumers.stop().await?;
        tally.check(S::NAME)
    }

    /// Measures the latency: the time from the due time of an emit to the arrival of its event at
    /// the sink.
    pub(super) async fn latency<S: System>(
        &self,
        system: &S,
        out: &mut Samples,
    ) -> anyhow::Result<()> {
        if !self.wanted.latency {
            return Ok(());
        }
        self.begin(system).await?;
        let events = (LATENCY_TIME.as_secs_f64() * f64::from(self.per_second)) as usize;
        let events = events.clamp(1, self.load.events());
        let producer = system.producer().await?;
        let tally = Tally::new(&self.load, &self.of_many, events, true);
        let mut consumers = system.consume(&tally).await?;
        let meter = Meter::start(&self.place).await?;
        let mut pushing = JoinSet::new();
        let mut turns = Vec::with_capacity(self.producers);
        for _ in 0..self.producers {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            let (mut producer, load) = (producer.clone(), Arc::clone(&self.load));
            turns.push(sender);
            pushing.spawn(async move {
                while let Some(event) = receiver.recv().await {
                    producer.push(&load, event).await?;
                }
                anyhow::Ok(())
            });
        }
        let schedule = Schedule {
            begin: Instant::now() + LEAD,
            per_second: self.per_second,
        };
        let telling = schedule.tell(events, turns);
        tokio::select! {
            error = consumers.failed() => return Err(error),
            pushed = all(&mut pushing) => pushed?,
        }
        until_committed(&mut consumers, &tally, S::NAME).await?;
        let cpu_us = cpu_us_since(&meter.before, &self.place, events).await?;
        consumers.stop().await?;
        tally.check(S::NAME)?;
        let late = telling
            .join()
            .map_err(|_| anyhow!("the thread that paces the emits broke"))?;
        let ms = |event| {
            Some(
                tally
                    .arrived(event)?
                    .saturating_duration_since(schedule.due(event))
                    .as_secs_f64()
                    * 1e3,
            )
        };
        let took: Vec<f64> = (0..events).filter_map(ms).collect();
        out.add(
            Figure::LatencyP50,
            S::NAME,
            percentile(&took, 50.0).context("nothing was measured")?,
        );
        out.add(
            Figure::LatencyP99,
            S::NAME,
            percentile(&took, 99.0).context("nothing was measured")?,
        );
        out.add(Figure::LatencyCpu, S::NAME, cpu_us);
        out.add(
            Figure::LateP99,
            S::NAME,
            percentile(&late, 99.0).context("nothing was measured")? * 1e3,
        );
        Ok(())
    }

    async fn begin<S: System>(&self, system: &S) -> anyhow::Result<()> {
        self.place.clean().await?;
        system.prepare().await
    }

    async fn drain<S: System>(
        &self,
        system: &S,
        chain: &Arc<Chain>,
        figures: Option<(Figure, Figure)>,
        out: &mut Samples,
    ) -> anyhow::Result<()> {
        let tally = Tally::new(&self.load, chain, self.load.events(), false);
        let mut meter = Meter::start(&self.place).await?;
        let mut consumers = system.consume(&tally).await?;
        meter.began = consumers.ready_at();
        until_committed(&mut consumers, &tally, S::NAME).await?;
        if let Some(figures) = figures {
            meter.add(self, out, figures, S::NAME).await?;
        }
        consumers.stop().await?;
        tally.check(S::NAME)
    }

    /// Emits all events one by one. Each of the producers waits for the reply of an emit before its
    /// next emit.
    async fn push_singly<P: Producer>(&self, producer: &P) -> anyhow::Result<()> {
        let mut pushing = JoinSet::new();
        for first in 0..self.producers {
            let (mut producer, load, step) =
                (producer.clone(), Arc::clone(&self.load), self.producers);
            pushing.spawn(async move {
                for event in (first..load.events()).step_by(step) {
                    producer.push(&load, event).await?;
                }
                anyhow::Ok(())
            });
        }
        all(&mut pushing).await
    }

    /// Returns the memory that Redis uses, in bytes. Waits a moment first, because Redis frees the
    /// buffers of closed connections late.
    async fn memory_bytes(&self) -> anyhow::Result<f64> {
        if !self.wanted.memory {
            return Ok(f64::NAN);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Info::ask(&self.place.conn).await?.memory_bytes())
    }
}

/// Waits until all tasks have ended, or one has failed.
async fn all(tasks: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Waits until all events are delivered and committed.
async fn until_committed<C: Consumers>(
    consumers: &mut C,
    tally: &Tally,
    system: &str,
) -> anyhow::Result<()> {
    tokio::select! {
        error = consumers.failed() => return Err(error),
        delivered = tally.until_all(system) => delivered?,
    }
    let deadline = Instant::now() + PATIENCE;
    while !consumers.is_committed().await? {
        anyhow::ensure!(
            Instant::now() < deadline,
            "{system}: all is delivered, but not committed after {PATIENCE:?}"
        );
    }
    Ok(())
}
