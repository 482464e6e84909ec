//! The deliveries under way.

use std::sync::Arc;

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

/// A delivery that is over.
pub(super) struct EndedDelivery {
    pub(super) slot: usize,
    pub(super) outcome: Outcome,
    /// The progress of its handlers.
    pub(super) ledger: Arc<BatchLedger>,
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
            cancelled: CancellationToken::new(),
        }
    }

    /// Gives the slot's batch to the sink.
    pub(super) fn start(&mut self, slot: usize, in_flight: &InFlight) {
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
        self.running.spawn(async move {
            let (object, first) = (batch.object().clone(), batch.first);
            let outcome = post.note(&object, first, deliver(sink, batch, offered, cx)).await;
            EndedDelivery { slot, outcome, ledger }
        });
    }

    /// Waits for the next delivery that ends; none if there is none under way.
    pub(super) async fn next(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        self.running.join_next().await
    }

    /// The next delivery that has ended already.
    pub(super) fn try_next(&mut self) -> Option<Result<EndedDelivery, JoinError>> {
        self.running.try_join_next()
    }
}
