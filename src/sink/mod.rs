//! Where a worker sends events: the [`Sink`] trait and the sinks that come with it.
//!
//! - [`each`], [`batches`]: closures, called per event or per batch
//! - [`Handlers`](crate::handlers::Handlers): handlers for types of events, which run in the worker
//!   process
//! - [`stdout`], [`File`]: envelopes as lines, through one writer thread each
//! - [`Null`]: takes everything and keeps nothing
//! - [`Spec`]: the names of sinks on the command line
//!
//! A sink owns nothing of the protocol: what it answers is all that the worker goes by. If the
//! process dies during a delivery, the batch comes again, with the same ids.

mod closures;
mod error;
mod file;
mod ledger;
mod null;
mod post;
mod spec;
mod stdout;
mod writer;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::event::{Event, ObjectName};

pub use closures::{Batches, Each, batches, each};
pub use error::SinkError;
pub use file::File;
pub(crate) use ledger::{Ledger, LedgerError, Progress, With};
pub use null::Null;
#[cfg(test)]
pub(crate) use post::Polled;
pub(crate) use post::Post;
pub use spec::{Spec, SpecError};
pub use stdout::{Stdout, stdout};

/// Where a worker sends events ("the backend").
///
/// A sink is shared by all slots of a worker process and called concurrently, but never twice at
/// once for one object. The future may be dropped at any await (a shutdown whose grace is over, a
/// lost lease): what it did until then may have taken effect, and the same events come again with
/// the same ids, so a sink or what stands behind it applies the receiver's rule or is idempotent.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Sends the events of `batch`, oldest first, and answers how many, from the front, are
    /// delivered for good.
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered;

    /// The longest time a delivery of one event takes by the sink's own account. One that blocks
    /// its thread for this time and `stall_max` beyond it ends the process: see
    /// [`WorkerConfig::stall_max`](crate::worker::WorkerConfig::stall_max).
    fn timeout_max(&self) -> Duration {
        Duration::ZERO
    }

    /// Opens anew what the sink has open, e.g. a file that was renamed; asked for by SIGHUP.
    /// Returns whether the sink has anything of the kind. Deliveries go on meanwhile.
    async fn reopen(&self) -> io::Result<bool> {
        Ok(false)
    }
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Arc<S> {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        (**self).deliver(batch, cx).await
    }

    fn timeout_max(&self) -> Duration {
        (**self).timeout_max()
    }

    async fn reopen(&self) -> io::Result<bool> {
        (**self).reopen().await
    }
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Box<S> {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        (**self).deliver(batch, cx).await
    }

    fn timeout_max(&self) -> Duration {
        (**self).timeout_max()
    }

    async fn reopen(&self) -> io::Result<bool> {
        (**self).reopen().await
    }
}

/// The events of one object that a worker has in flight, oldest first.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(crate) object: ObjectName,
    pub(crate) first: u64,
    pub(crate) prev: u64,
    pub(crate) stride: u64,
    pub(crate) payloads: Vec<Bytes>,
}

impl Batch {
    /// A batch, for tests of sinks and for programs that call a sink themselves. Ids run up from
    /// `first` in steps of 1.
    pub fn new(object: ObjectName, first: u64, prev: u64, payloads: Vec<Bytes>) -> Self {
        Self { object, first, prev, stride: 1, payloads }
    }

    /// The object that all events of the batch belong to.
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// How many events the batch has; at least 1 when a sink gets it.
    pub fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// The events with their ids, oldest first. Cloning an event copies no payload.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.payloads.iter().enumerate().map(|(at, payload)| {
            let id = self.first + at as u64 * self.stride;
            Event {
                id,
                prev: if at == 0 { self.prev } else { id - self.stride },
                object: self.object.clone(),
                payload: payload.clone(),
            }
        })
    }
}

/// What a sink is told beside the batch.
#[derive(Debug, Clone)]
pub struct Context {
    /// The worker (slot) that delivers, `NAME.SLOT`.
    pub worker: Arc<str>,
    /// How often the first event of the batch has failed before: 0 at the first try.
    pub attempts: u32,
    /// How often a worker died with the first event in hand.
    pub crashes: u32,
    /// The fence of the process: a fresh UUID per attach. A store that keeps it can refuse what an
    /// older process sends late.
    pub token: Arc<str>,
    /// Fires when the lease is lost or the worker stops at once: what is sent after that is sent in
    /// vain.
    pub cancelled: CancellationToken,
    /// Where is kept what handlers have finished; nothing outside of a worker.
    pub(crate) ledger: Option<Arc<dyn Ledger>>,
    /// Where the event under delivery is noted; nothing outside of a worker.
    pub(crate) post: Option<Arc<Post>>,
}

impl Context {
    /// The delivery goes on with this event.
    pub(crate) fn begins(&self, id: u64) {
        if let Some(post) = &self.post {
            post.event(id);
        }
    }

    /// A context of a first try, for tests of sinks and for programs that call a sink themselves.
    /// Outside of a worker nothing is kept of what handlers have finished, and what they emit goes
    /// nowhere.
    pub fn detached() -> Self {
        Self {
            worker: "detached.0".into(),
            attempts: 0,
            crashes: 0,
            token: "".into(),
            cancelled: CancellationToken::new(),
            ledger: None,
            post: None,
        }
    }
}

/// How many events of a batch, from the front, are delivered, and why the sink stopped if not all.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Delivered {
    pub(crate) count: Option<usize>,
    pub(crate) stop: Option<Stop>,
}

impl Delivered {
    /// Every event of the batch is delivered.
    pub fn all() -> Self {
        Self { count: None, stop: None }
    }

    /// The first `count` events are delivered, the next one is not, for the reason given.
    pub fn stopped(count: usize, stop: Stop) -> Self {
        Self { count: Some(count), stop: Some(stop) }
    }

    /// The first `count` events are delivered, and the others may come again at once: what is done
    /// so far is to be committed.
    pub fn so_far(count: usize) -> Self {
        Self { count: Some(count), stop: None }
    }

    /// How many of a batch of `len` are delivered.
    pub fn count(&self, len: usize) -> usize {
        self.count.map_or(len, |count| count.min(len))
    }

    /// Why the sink stopped, if it did.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }
}

/// Why a sink stopped before the end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// This event, again later, with the same id and the same `prev`. The object waits as its
    /// [retry policy](crate::worker::RetryPolicy) says, all others go on; where the event's
    /// attempts are used up, the policy says what becomes of it.
    Transient {
        /// What went wrong; kept with the object while it waits.
        error: String,
        /// Wait this long instead of the policy's backoff; it is no attempt more.
        retry_after: Option<Duration>,
    },
    /// This event, never: it goes to the dead letters and the object's next event follows.
    Rejected {
        /// What is wrong with it; kept with the dead letter.
        error: String,
    },
    /// The sink itself, not the event: the worker stops claiming, keeps what it has, and tries
    /// again with one slot.
    Unavailable {
        /// What went wrong.
        error: String,
    },
}

impl Stop {
    /// This event, again later.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::Transient { error: error.to_string(), retry_after: None }
    }

    /// This event, never.
    pub fn rejected(error: impl fmt::Display) -> Self {
        Self::Rejected { error: error.to_string() }
    }

    /// The sink itself is down.
    pub fn unavailable(error: impl fmt::Display) -> Self {
        Self::Unavailable { error: error.to_string() }
    }

    /// The error's text.
    pub fn error(&self) -> &str {
        match self {
            Self::Transient { error, .. } | Self::Rejected { error } | Self::Unavailable { error } => error,
        }
    }
}
