//! The deliveries under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::sink::{Context, Post, Sink};
use crate::worker::config::WorkerConfig;
use crate::worker::serve::deliver::{Outcome, deliver};
use crate::worker::serve::ledger::{BatchLedger, SessionLedger};
use crate::worker::serve::slots::InFlight;
use crate::worker::session::connect::Redis;
use crate::worker::session::lease::Session;
use crate::worker::watch::activity::Activity;
use crate::worker::watch::traces;

/// The longest delivery that counts as short.
const SHORT_MAX: Duration = Duration::from_micros(200);
/// The number of short deliveries in a row after which a lone delivery is polled once before it
/// gets a task.
const SHORT_RUN: u32 = 8;

/// A delivery that has ended.
pub(super) struct EndedDelivery {
    pub(super) slot: usize,
    pub(super) outcome: Outcome,
    /// The handler progress of the batch.
    pub(super) ledger: Arc<BatchLedger>,
    pub(super) took: Duration,
}

pub(super) struct Deliveries {
    sink: Arc<dyn Sink>,
    config: Arc<WorkerConfig>,
    token: Arc<str>,
    /// Whether batches may come again under the same tags, because the lease of this process has
    /// lapsed before.
    again: bool,
    ledger: Arc<SessionLedger>,
    /// The posts of the slots, by slot number.
    posts: Vec<Arc<Post>>,
    running: JoinSet<EndedDelivery>,
    /// The lone delivery that ended when it was polled without a task.
    polled: Option<EndedDelivery>,
    /// The number of short deliveries since the last longer one.
    short_run: u32,
    /// Cancelled when this value is dropped.
    cancelled: CancellationToken,
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}

impl Deliveries {
    pub(super) fn new(
        redis: &Redis,
        config: &Arc<WorkerConfig>,
        sink: &Arc<dyn Sink>,
        session: &Session,
        activity: &Activity,
    ) -> Self {
        Self {
            sink: Arc::clone(sink),
            config: Arc::clone(config),
            token: Arc::clone(&session.token),
            again: session.again,
            ledger: Arc::new(SessionLedger::new(redis, config, session)),
            posts: activity.posts(config.concurrency),
            running: JoinSet::new(),
            polled: None,
            short_run: 0,
            cancelled: CancellationToken::new(),
        }
    }

    /// Gives the slot's batch to the sink. `alone`: no other slot gets a batch at this moment.
    ///
    /// A lone delivery is polled once before it gets a task, if the last deliveries were short and
    /// no other delivery is under way. The reason is that a task would take longer than a short
    /// delivery. If such a poll blocks, the session stands still until the poll ends. After that,
    /// deliveries get their own tasks again.
    pub(super) fn start(&mut self, slot: usize, in_flight: &InFlight, alone: bool) {
        let ledger = Arc::new(BatchLedger::new(
            Arc::clone(&self.ledger),
            slot,
            in_flight,
            self.again,
        ));
        let post = Arc::clone(&self.posts[slot]);
        let cx = Context {
            worker: self.config.worker(slot).into(),
            attempts: in_flight.tag.attempts,
            crashes: in_flight.tag.crashes,
            token: Arc::clone(&self.token),
            cancelled: self.cancelled.clone(),
            ledger: Some(ledger.clone()),
            requests: Some(ledger.clone()),
            post: Some(Arc::clone(&post)),
        };
        let (sink, batch, offered) = (
            Arc::clone(&self.sink),
            in_flight.batch.clone(),
            in_flight.offered(),
        );
        let config = Arc::clone(&self.config);
        let delivery = async move {
            let (began, object, first) = (Instant::now(), batch.object().clone(), batch.first);
            let span = config
                .traces
                .as_ref()
                .and_then(|traces| traces.begin(&batch, offered, &cx, &config.keys));
            let delivery = deliver(sink, batch, offered, cx);
            let delivery = traces::inside(span, delivery);
            let outcome = post.note(&object, first, delivery).await;
            EndedDelivery {
                slot,
                outcome,
                ledger,
                took: began.elapsed(),
            }
        };
        if !alone || self.short_run < SHORT_RUN || self.polled.is_some() || !self.running.is_empty()
        {
            self.running.spawn(delivery);
            return;
        }
        let mut delivery = delivery.boxed();
        match (&mut delivery).now_or_never() {
            Some(ended) => self.polled = Some(ended),
            None => {
                self.running.spawn(delivery);
            }
        }
    }

    /// Takes the lone delivery that ended when it was polled.
    pub(super) fn take_polled(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        let ended = self.polled.take().map(Ok);
        self.measure(ended)
    }

    /// Waits for the next delivery that ends. Returns `None` if no delivery is running.
    pub(super) async fn next(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        let ended = self.running.join_next().await;
        self.measure(ended)
    }

    /// Returns the next delivery that has already ended; `None` if there is none.
    pub(super) fn try_next(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        let ended = self.running.try_join_next();
        self.measure(ended)
    }

    /// Counts short deliveries in a row.
    fn measure(
        &mut self,
        ended: Option<Result<EndedDelivery, JoinError>>,
    ) -> Option<Result<EndedDelivery, JoinError>> {
        if let Some(ended) = &ended {
            let is_short = ended.as_ref().is_ok_and(|ended| ended.took <= SHORT_MAX);
            self.short_run = if is_short {
                self.short_run.saturating_add(1)
            } else {
                0
            };
        }
        ended
    }
}
