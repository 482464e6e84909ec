//! The deliveries under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::sink::{Context, Post, Sink};
use crate::worker::activity::Activity;
use crate::worker::config::WorkerConfig;
use crate::worker::connect::Redis;
use crate::worker::deliver::{Outcome, deliver};
use crate::worker::lease::Session;
use crate::worker::ledger::{BatchLedger, SessionLedger};
use crate::worker::slots::InFlight;

/// The longest delivery that counts as short.
const SHORT_MAX: Duration = Duration::from_micros(200);
/// After so many short deliveries in a row, a lone delivery is polled before it is spawned.
const SHORT_RUN: u32 = 8;

/// A delivery that is over.
pub(super) struct EndedDelivery {
    pub(super) slot: usize,
    pub(super) outcome: Outcome,
    /// The progress of its handlers.
    pub(super) ledger: Arc<BatchLedger>,
    took: Duration,
}

pub(super) struct Deliveries {
    sink: Arc<dyn Sink>,
    config: Arc<WorkerConfig>,
    token: Arc<str>,
    /// Batches may come again under the tags they had.
    again: bool,
    ledger: Arc<SessionLedger>,
    /// By slot.
    posts: Vec<Arc<Post>>,
    running: JoinSet<EndedDelivery>,
    /// The lone delivery that ended when it was polled.
    polled: Option<EndedDelivery>,
    /// The number of short deliveries since the last other one.
    short_run: u32,
    /// Fires when this is dropped.
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
            ledger: Arc::new(SessionLedger::new(redis, config, &session.token)),
            posts: activity.posts(config.concurrency),
            running: JoinSet::new(),
            polled: None,
            short_run: 0,
            cancelled: CancellationToken::new(),
        }
    }

    /// Gives the slot's batch to the sink. `alone`: no other slot gets a batch in this moment.
    ///
    /// A lone delivery is polled once by the caller if the last ones were short and nothing else is
    /// in hand: a task of its own would cost longer than the delivery. A delivery that blocks its
    /// thread then stops the session meanwhile, but the ones after it have tasks of their own.
    pub(super) fn start(&mut self, slot: usize, in_flight: &InFlight, alone: bool) {
        let ledger = Arc::new(BatchLedger::new(Arc::clone(&self.ledger), slot, in_flight, self.again));
        let post = Arc::clone(&self.posts[slot]);
        let cx = Context {
            worker: self.config.worker(slot).into(),
            attempts: in_flight.tag.attempts,
            crashes: in_flight.tag.crashes,
            token: Arc::clone(&self.token),
            cancelled: self.cancelled.clone(),
            ledger: Some(ledger.clone()),
            post: Some(Arc::clone(&post)),
        };
        let (sink, batch, offered) = (Arc::clone(&self.sink), in_flight.batch.clone(), in_flight.offered());
        let delivery = async move {
            let (began, object, first) = (Instant::now(), batch.object().clone(), batch.first);
            let outcome = post.note(&object, first, deliver(sink, batch, offered, cx)).await;
            EndedDelivery { slot, outcome, ledger, took: began.elapsed() }
        };
        if !alone || self.short_run < SHORT_RUN || self.polled.is_some() || !self.running.is_empty() {
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

    /// Waits for the next delivery that ends; none if there is none under way.
    pub(super) async fn next(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        let ended = match self.polled.take() {
            Some(ended) => Some(Ok(ended)),
            None => self.running.join_next().await,
        };
        self.measure(ended)
    }

    /// The next delivery that has ended already.
    pub(super) fn try_next(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        let ended = self.polled.take().map(Ok).or_else(|| self.running.try_join_next());
        self.measure(ended)
    }

    fn measure(&mut self, ended: Option<Result<EndedDelivery, JoinError>>) -> Option<Result<EndedDelivery, JoinError>> {
        if let Some(ended) = &ended {
            let is_short = ended.as_ref().is_ok_and(|ended| ended.took <= SHORT_MAX);
            self.short_run = if is_short { self.short_run.saturating_add(1) } else { 0 };
        }
        ended
    }
}
