//! The target to which a worker sends events: the [`Sink`] trait and the sinks of this crate.
//!
//! - [`each`], [`batches`]: closures, called per event or per batch
//! - [`Handlers`](crate::handlers::Handlers): handlers for types of events, which run in the worker
//!   process
//! - [`stdout`], [`File`]: envelopes as lines, through one writer thread each
//! - `http` (feature `http`): to a URL, or to the URL in each event
//! - [`Null`]: counts every event as delivered and drops it
//! - [`Spec`]: the names of sinks on the command line
//!
//! A sink knows nothing of the protocol. The worker relies only on the sink's results. If the
//! process dies during a delivery, the batch comes again, with the same ids.

mod closures;
mod error;
mod file;
#[cfg(feature = "http")]
pub mod http;
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

/// The target to which a worker sends events ("the backend").
///
/// All slots of a worker process share a sink. It is called concurrently, but never twice at once
/// for one object.
///
/// Cancellation: the future may be dropped at any await (the grace of a stop is over, the lease is
/// lost). Effects until then may stay, and the same events come again with the same ids. So the
/// sink, or its backend, must apply the receiver's rule or be idempotent.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Sends the events of `batch`, oldest first. Returns the number of events, from the front,
    /// that are delivered for good.
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered;

    /// Returns the longest time that a delivery of one event takes. A delivery that blocks its
    /// thread for `stall_max` beyond this time ends the process: see
    /// [`WorkerConfig::stall_max`](crate::worker::WorkerConfig::stall_max). Default: 0.
    fn timeout_max(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the sink's name for people, without secrets. It is shown by `seriatim stats`. Default:
    /// empty.
    fn name(&self) -> String {
        String::new()
    }

    /// Opens files of the sink anew, e.g. after a rename; called at SIGHUP. Returns whether the
    /// sink has such a file. Deliveries go on meanwhile.
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

    fn name(&self) -> String {
        (**self).name()
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

    fn name(&self) -> String {
        (**self).name()
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
    /// Returns a batch, for tests of sinks and for programs that call a sink themselves. Ids begin
    /// at `first` and grow by 1.
    pub fn new(object: ObjectName, first: u64, prev: u64, payloads: Vec<Bytes>) -> Self {
        Self { object, first, prev, stride: 1, payloads }
    }

    /// Returns the object of all events of the batch.
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// Returns the number of events; at least 1 when a sink gets the batch.
    pub fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// Returns the events with their ids, oldest first. Cloning an event copies no payload.
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

/// The context of a delivery.
#[derive(Debug, Clone)]
pub struct Context {
    /// The worker (slot) that delivers, `NAME.SLOT`.
    pub worker: Arc<str>,
    /// The number of earlier failures of the batch's first event; 0 at the first try.
    pub attempts: u32,
    /// The number of workers that died with the first event in hand.
    pub crashes: u32,
    /// The fence of the process: a fresh UUID per attach. A store that records it can refuse late
    /// writes of an older process.
    pub token: Arc<str>,
    /// Cancelled when the lease is lost or the worker stops at once. Events sent after that are
    /// sent in vain.
    pub cancelled: CancellationToken,
    /// The ledger of handler progress; `None` outside of a worker.
    pub(crate) ledger: Option<Arc<dyn Ledger>>,
    /// The post that records the event under delivery; `None` outside of a worker.
    pub(crate) post: Option<Arc<Post>>,
}

impl Context {
    /// Records that the delivery goes on with this event.
    pub(crate) fn begins(&self, id: u64) {
        if let Some(post) = &self.post {
            post.event(id);
        }
    }

    /// Returns the context of a first try, for tests of sinks and for programs that call a sink
    /// themselves. Outside of a worker no handler progress is stored, and emits are dropped.
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

/// The result of a delivery: the number of delivered events, from the front of the batch, and the
/// reason if the sink stopped before the end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Delivered {
    pub(crate) count: Option<usize>,
    pub(crate) stop: Option<Stop>,
}

impl Delivered {
    /// Returns the result for a batch that is delivered entirely.
    pub fn all() -> Self {
        Self { count: None, stop: None }
    }

    /// Returns the result for `count` delivered events; `stop` is the reason why the next event is
    /// not delivered.
    pub fn stopped(count: usize, stop: Stop) -> Self {
        Self { count: Some(count), stop: Some(stop) }
    }

    /// Returns the result for `count` delivered events that shall be committed now. The other
    /// events may come again at once.
    pub fn so_far(count: usize) -> Self {
        Self { count: Some(count), stop: None }
    }

    /// Returns the number of delivered events in a batch of `len`.
    pub fn count(&self, len: usize) -> usize {
        self.count.map_or(len, |count| count.min(len))
    }

    /// Returns the reason why the sink stopped, if it did.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }
}

/// The reason why a sink stopped before the end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// This event failed now and may succeed later. It comes again with the same id and `prev`. Its
    /// object is held with the backoff of the [retry policy](crate::worker::RetryPolicy); all other
    /// objects go on. If the event's attempts are used up, the policy decides its fate.
    Transient {
        /// The error text, stored with the object while it waits.
        error: String,
        /// The wait instead of the policy's backoff. The failure counts as an attempt all the same.
        retry_after: Option<Duration>,
    },
    /// The event was not tried. Its object is held for a time, and no attempt is counted.
    Postponed {
        /// The reason, stored with the object while it waits.
        reason: String,
        /// The time.
        after: Duration,
    },
    /// This event will never succeed. It goes to the dead letters, and the object's next event
    /// follows.
    Rejected {
        /// The error text, stored with the dead letter.
        error: String,
    },
    /// The sink itself fails, not the event. The worker stops claiming, keeps its batches, and
    /// tries the sink again with one slot.
    Unavailable {
        /// The error text.
        error: String,
    },
}

impl Stop {
    /// Returns [`Stop::Transient`] without a wait of its own.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::Transient { error: error.to_string(), retry_after: None }
    }

    /// Returns [`Stop::Rejected`].
    pub fn rejected(error: impl fmt::Display) -> Self {
        Self::Rejected { error: error.to_string() }
    }

    /// Returns [`Stop::Unavailable`].
    pub fn unavailable(error: impl fmt::Display) -> Self {
        Self::Unavailable { error: error.to_string() }
    }

    /// Returns the text of the error, or the reason.
    pub fn error(&self) -> &str {
        match self {
            Self::Transient { error, .. } | Self::Rejected { error } | Self::Unavailable { error } => error,
            Self::Postponed { reason, .. } => reason,
        }
    }
}
