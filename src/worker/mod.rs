//! The worker: claims objects, owns them, and sends their events to a sink in order.
//!
//! Read [`Worker::run`] from top to bottom, then these modules:
//!
//! - `session`: the worker name with its lease, the connections, and the periodic work of a process
//! - `serve`: one session: claim, deliver, commit
//! - `by_hand`: for a program with its own loop, which asks for each event (claiming by hand)
//! - `times`: the waits of retries, and the age of events
//! - `watch`: the observation of a process: counts, health, log lines, status and spans
//! - `shutdown`, `config`, `error`: stop requests, settings, errors

mod by_hand;
mod config;
mod error;
mod serve;
mod session;
mod shutdown;
mod times;
mod watch;

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

pub use by_hand::{ClaimError, Claimed, Claims};
pub use config::{
    BATCH_BYTES_MAX, BATCH_MAX, CONCURRENCY_MAX, ConfigError, REPLY_BYTES_MAX, WorkerConfig,
};
pub use error::{StopReason, Stopped, WorkerError};
pub use shutdown::Shutdown;
pub use times::retry::{Backoff, Limit, RetryError, RetryPolicy, UsedUp, UsedUpError};
pub use watch::activity::Vitals;
pub use watch::figures::{
    AttachFigures, CallFigures, DeliveryFigures, Distribution, ErrorFigures, HoldFigures,
    LongestDelivery, SinkFigures, SlotFigures, WorkerFigures,
};
pub use watch::status::{LastMinute, LongDelivery, Quantiles, WorkerStatus};
pub use watch::traces::Traces;

pub use crate::wire::values::Holder;
pub use crate::wire::{EventLog, Scripts, ScriptsError, Way};

use self::serve::{Serve, SessionEnd};
use self::session::connect::Redis;
use self::session::lease::{DETACH_PATIENCE, Session, attach, attach_again_after, detach};
use self::watch::activity::Activity;
use crate::connection::{PatientConnection, Server};
use crate::sink::Sink;

/// The time for which a process that stops at once waits for Redis to detach it.
const DETACH_PATIENCE_AT_ONCE: Duration = Duration::from_millis(500);

/// A worker process: many slots under one name.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::sink::{self, Stop};
/// use seriatim::worker::{Shutdown, Worker};
///
/// let worker = Worker::builder("redis://127.0.0.1").name("catalog-a").sink(sink::each(|event|
/// async move {
///     println!("{} {}", event.object, event.id);
///     Ok::<(), Stop>(())
/// }));
/// let stopped = worker.build()?.run(Shutdown::on_signals()?).await?;
/// println!("{} events delivered", stopped.delivered);
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    redis: Redis,
    config: Arc<WorkerConfig>,
    sink: Arc<dyn Sink>,
    activity: Arc<Activity>,
}

impl Worker {
    /// Returns a handle that shows the state of this worker while it runs.
    pub fn vitals(&self) -> Vitals {
        Vitals(Arc::clone(&self.activity))
    }

    /// Returns a new connection, for `testing`.
    pub(crate) async fn connection(&self) -> Result<PatientConnection, WorkerError> {
        Ok((*self.redis.reconnect().await?).clone())
    }

    /// Returns the settings, for `testing`.
    pub(crate) fn config(&self) -> &Arc<WorkerConfig> {
        &self.config
    }

    /// Replaces the sink, for `testing`.
    pub(crate) fn map_sink(&mut self, map: impl FnOnce(Arc<dyn Sink>) -> Arc<dyn Sink>) {
        self.sink = map(Arc::clone(&self.sink));
    }

    /// Returns the builder of a worker for this [`Server`], e.g. `redis://host`.
    pub fn builder(server: impl Into<Server>) -> WorkerBuilder {
        WorkerBuilder {
            server: server.into(),
            config: WorkerConfig::default(),
            sink: None,
        }
    }

    /// Takes the worker name, and works until `shutdown` stops the worker. If the worker ends for
    /// any other reason, returns an error.
    ///
    /// At the start, waits up to `connect_timeout` for a Redis that is loading or cannot be
    /// reached. Later the worker waits without a limit: for Redis if it goes away, and for an
    /// operator if a key has a wrong type. The log reports both waits.
    ///
    /// Cancellation: dropping the future has the effect of a crash. The lease ends, and other
    /// workers deliver the events in hand again, with the same ids.
    ///
    /// # Errors
    ///
    /// - [`WorkerError::Connect`]: Redis cannot be reached within `connect_timeout`, or refuses
    ///   user or password.
    /// - [`WorkerError::InUse`]: another live process has the name.
    /// - [`WorkerError::Fenced`]: another process took the name.
    /// - Any other [`WorkerError`]: waiting does not repair its cause.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Result<Stopped, WorkerError> {
        let shutdown = shutdown.into();
        tokio::select! {
            stopped = self.work(&shutdown) => stopped,
            never = reopen(&*self.sink, &shutdown) => match never {},
        }
    }

    /// Runs one session after the other, until the worker is stopped or cannot go on.
    async fn work(&self, shutdown: &Shutdown) -> Result<Stopped, WorkerError> {
        let (mut delivered, mut stop_began) = (0, None);
        let mut before: Option<Session> = None;
        let activity = &self.activity;
        loop {
            let entered = activity
                .turning(Box::pin(self.enter(before.as_ref(), shutdown, delivered)))
                .await?;
            let mut session = match entered {
                ControlFlow::Continue(session) => session,
                ControlFlow::Break(stopped) => return Ok(stopped),
            };
            let serve = Serve::new(
                &self.redis,
                &self.config,
                &self.sink,
                &session,
                activity,
                &mut delivered,
                &mut stop_began,
            )?;
            activity.attached(true);
            let ended = serve.run(shutdown).await;
            activity.attached(false);
            let ended = ended?;
            let began = stop_began.unwrap_or_else(Instant::now);
            let lost = match ended {
                SessionEnd::Finished | SessionEnd::GraceOver => {
                    return Ok(self
                        .leave(&session, delivered, began, DETACH_PATIENCE, false)
                        .await);
                }
                SessionEnd::AtOnce => {
                    return Ok(self
                        .leave(&session, delivered, began, DETACH_PATIENCE_AT_ONCE, true)
                        .await);
                }
                SessionEnd::Lost(lost) => lost,
            };
            let again =
                attach_again_after(lost, &self.redis, &self.config, &mut session, activity).await?;
            // A stop ends this wait.
            let _ = activity
                .turning(Box::pin(tokio::time::timeout(again, shutdown.stopped())))
                .await;
            before = Some(session);
        }
    }

    /// Attaches. If a stop is requested meanwhile, first waits for the reply, because the call may
    /// have been sent. If the call has taken the name, the process must give the name back, or the
    /// stop would look like a death.
    async fn enter(
        &self,
        before: Option<&Session>,
        shutdown: &Shutdown,
        delivered: u64,
    ) -> Result<ControlFlow<Stopped, Session>, WorkerError> {
        let attaching = attach(&self.redis, &self.config, before);
        tokio::pin!(attaching);
        tokio::select! {
            session = &mut attaching => return Ok(ControlFlow::Continue(session?)),
            () = shutdown.stopped() => {}
        }
        let began = Instant::now();
        Ok(ControlFlow::Break(
            match tokio::time::timeout(DETACH_PATIENCE, attaching).await {
                Ok(Ok(session)) => {
                    self.leave(&session, delivered, began, DETACH_PATIENCE, false)
                        .await
                }
                _ if before.is_none() => {
                    stopped(StopReason::Graceful { held: 0 }, delivered, began)
                }
                _ => stopped(StopReason::Unreachable, delivered, began),
            },
        ))
    }

    async fn leave(
        &self,
        session: &Session,
        delivered: u64,
        began: Instant,
        patience: Duration,
        at_once: bool,
    ) -> Stopped {
        let name = &self.config.name;
        let detaching = Box::pin(detach(
            &self.redis,
            &self.config,
            session,
            Instant::now() + patience,
        ));
        let reason = match self.activity.turning(detaching).await {
            None => StopReason::Unreachable,
            Some(_) if at_once => StopReason::AtOnce,
            Some(held) => StopReason::Graceful { held },
        };
        if let StopReason::Graceful { held } = reason {
            self.activity.figures.stopped(held);
        }
        match reason {
            StopReason::Unreachable => {
                warn!(%name, "recover: not detached, Redis does not reply; the lease will end by itself")
            }
            _ => info!(%name, ?reason, delivered, "recover: detached"),
        }
        stopped(reason, delivered, began)
    }
}

/// Opens the sink anew each time that `shutdown` requests it.
async fn reopen(sink: &dyn Sink, shutdown: &Shutdown) -> Infallible {
    let mut reopens = shutdown.reopens();
    loop {
        // `shutdown` keeps the sender, so the channel stays open and this wait cannot fail.
        let _ = reopens.changed().await;
        match sink.reopen().await {
            Ok(true) => info!("deliver: the sink follows its path anew"),
            Ok(false) => info!("deliver: the sink has nothing to open anew; the signal is ignored"),
            Err(error) => {
                warn!(%error, "deliver: the sink could not be opened anew; the next delivery tries again")
            }
        }
    }
}

fn stopped(reason: StopReason, delivered: u64, began: Instant) -> Stopped {
    Stopped {
        reason,
        delivered,
        took: began.elapsed(),
    }
}

/// The builder of a worker: settings with defaults, and a sink, which has no default.
#[must_use]
pub struct WorkerBuilder {
    server: Server,
    config: WorkerConfig,
    sink: Option<Arc<dyn Sink>>,
}

impl WorkerBuilder {
    /// Sets all settings at once. The other methods set one setting each.
    pub fn config(mut self, config: WorkerConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the name, 1 to 64 of `A-Z a-z 0-9 _ -`. Default: the host's name and 8 random hex
    /// digits.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Sets the namespace of the keys. Default: no namespace.
    pub fn keys(mut self, keys: crate::keys::Keys) -> Self {
        self.config.keys = keys;
        self
    }

    /// Sets the number of slots: objects delivered at the same time, 1 to 1024. Default: 256.
    pub fn concurrency(mut self, slots: usize) -> Self {
        self.config.concurrency = slots;
        self
    }

    /// Sets the most events of one object that the sink gets at once, 1 to 1000. Default: 256.
    pub fn batch(mut self, events: usize) -> Self {
        self.config.batch = events;
        self
    }

    /// Sets the time for which the lease is valid without a renewal, 300 ms to 1 hour. Default: 5
    /// s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets the number of workers that may die with the same event in hand, 1 to 1000, and the
    /// event's fate after so many deaths. Default: 5, and the event waits for an operator.
    pub fn crashes_max(mut self, crashes: u32, then: UsedUp) -> Self {
        (self.config.crashes_max, self.config.crashes_then) = (crashes, then);
        self
    }

    /// Sets the longest time that the worker's loop may stand still before the process lets its
    /// lease go, 1 s to 1 hour. Default: 60 s. A delivery that blocks its thread for this time
    /// beyond its timeout ends the process: see [`WorkerConfig::stall_max`].
    pub fn stall_max(mut self, stall_max: Duration) -> Self {
        self.config.stall_max = stall_max;
        self
    }

    /// Sets the time that a graceful stop gives the sink to finish the events in hand, at most 1
    /// hour. Default: 25 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// Sets the retry policy. Default: retry after 100 ms, doubling to 1 minute with jitter, for
    /// ever.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.config.retry = policy;
        self
    }

    /// Sets the retry policy of the events whose top-level member `type` is this string.
    pub fn retry_type(mut self, event_type: impl Into<String>, policy: RetryPolicy) -> Self {
        self.config.retry_types.insert(event_type.into(), policy);
        self
    }

    /// Logs every finalized event. Default: only events completed with errors are logged.
    pub fn event_log(mut self, log: EventLog) -> Self {
        self.config.event_log = Some(log);
        self
    }

    /// Makes the worker measure the age of each event, from the time that the event itself has at
    /// this place. The time is in Unix seconds or milliseconds, as a number or a text, or in the
    /// form of RFC 3339. By default, no age is measured.
    pub fn event_time(mut self, pointer: crate::event::Pointer) -> Self {
        self.config.event_time = Some(pointer);
        self
    }

    /// Makes a span of OpenTelemetry for each delivery of events with a sampled trace context. By
    /// default there are no spans. Only a build with the feature `traces` can make [`Traces`].
    pub fn traces(mut self, traces: Traces) -> Self {
        self.config.traces = Some(traces);
        self
    }

    /// Sets the number of replicas that must have a batch before the sink gets the batch, 0 to 100.
    /// After `timeout` (10 ms to 1 minute), the worker logs that replicas are missing, and waits
    /// again. Default: 0, no wait. If all replicas must have a batch, an id that a receiver has
    /// seen survives the loss of the master.
    pub fn wait(mut self, replicas: u32, timeout: Duration) -> Self {
        (self.config.wait, self.config.wait_timeout) = (replicas, timeout);
        self
    }

    /// Sets whether a batch must also be on the disks of the master and of the replicas that
    /// [`Self::wait`] waits for. Uses `WAITAOF`, which needs Redis 7.2 or later. Default: no.
    pub fn wait_local(mut self, wait_local: bool) -> Self {
        self.config.wait_local = wait_local;
        self
    }

    /// Sets whether to take the name at once from a live process, which then stops. Default: no.
    pub fn takeover(mut self, takeover: bool) -> Self {
        self.config.takeover = takeover;
        self
    }

    /// Sets the sink.
    pub fn sink(mut self, sink: impl Sink) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// Checks the settings. Does not connect yet.
    ///
    /// # Errors
    /// [`WorkerError::Config`], [`WorkerError::NoSink`], [`WorkerError::Url`] and
    /// [`WorkerError::Tls`].
    pub fn build(self) -> Result<Worker, WorkerError> {
        self.config.validate()?;
        let sink = self.sink.ok_or(WorkerError::NoSink)?;
        let activity = Arc::<Activity>::default();
        let redis = Redis::new(&self.server, &self.config, &activity.figures)?;
        Ok(Worker {
            redis,
            config: Arc::new(self.config),
            sink,
            activity,
        })
    }
}
