//! The target to which a worker sends events: the [`Sink`] trait and the sinks of this crate.
//!
//! - [`each`], [`batches`]: call a closure per event or per batch
//! - [`Handlers`](crate::handlers::Handlers): runs handlers for types of events in the worker
//!   process
//! - [`stdout`], [`File`]: write envelopes as lines, each with its own writer thread
//! - [`Null`]: counts every event as delivered and drops it
//!
//! The crate `seriatim-http` has sinks that send to one URL, or to the URL that each event names.
//!
//! A sink knows nothing of the protocol. The worker relies only on the sink's results. If the
//! process dies during a delivery, the batch comes again, with the same ids.

mod closures;
mod error;
mod file;
mod ledger;
mod null;
mod post;
mod report;
mod requests;
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
pub(crate) use post::{Post, Reported};
pub(crate) use report::as_json;
pub use report::{PROGRESS_BYTES_MAX, REPORT_LINE_BYTES_MAX, REPORT_LINES_MAX, Report, ReportLine};
pub(crate) use requests::Requests;
pub use requests::{Opened, RequestError};
pub use stdout::{Stdout, stdout};

/// The target to which a worker sends events ("the backend").
///
/// All slots of a worker process share a sink. It is called concurrently, but never twice at once
/// for one object.
///
/// Cancellation: the future may be dropped at any await, because the grace of a stop is over or the
/// lease is lost. Its effects up to that point may stay, and the same events come again with the
/// same ids. So the sink, or its backend, must apply the receiver's rule or be idempotent.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Sends the events of `batch`, oldest first. The result says how many events, counted from the
    /// front, are delivered for good.
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered;

    /// Returns the longest time that a delivery of one event takes. If a delivery blocks its thread
    /// for `stall_max` longer than this time, the process ends itself: see
    /// [`WorkerConfig::stall_max`](crate::worker::WorkerConfig::stall_max). Default: 0.
    fn timeout_max(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the sink's name for people, without secrets. It is shown by `seriatim stats`.
    /// Default: empty.
    fn name(&self) -> String {
        String::new()
    }

    /// Opens the files of the sink anew, e.g. after a rename. It is called at SIGHUP, while
    /// deliveries go on. Returns whether the sink has such a file.
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
    /// Makes a batch, for tests of sinks and for programs that call a sink themselves. The ids of
    /// the events begin at `first` and grow by 1.
    pub fn new(object: ObjectName, first: u64, prev: u64, payloads: Vec<Bytes>) -> Self {
        Self {
            object,
            first,
            prev,
            stride: 1,
            payloads,
        }
    }

    /// Returns the object of all events of the batch.
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// Returns the number of events. A batch that a sink gets has at least 1 event.
    pub fn len(&self) -> usize {
        self.payloads.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty()
    }

    /// Returns the events with their ids, oldest first. Cloning an event does not copy its payload.
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
    /// Id of the worker (slot) that delivers: `NAME.SLOT`.
    pub worker: Arc<str>,
    /// Number of earlier failures of the batch's first event; 0 at its first try.
    pub attempts: u32,
    /// Number of workers that died with the first event of the batch in hand.
    pub crashes: u32,
    /// Token of the process: a fresh UUID for each attach. If a store records the token, it can
    /// refuse late writes of an older process.
    pub token: Arc<str>,
    /// Token that is cancelled when the lease is lost or the worker stops at once. From then on
    /// the sink need not send events of the batch: the worker cannot commit them.
    pub cancelled: CancellationToken,
    /// The ledger of handler progress; `None` outside of a worker.
    pub(crate) ledger: Option<Arc<dyn Ledger>>,
    /// Record of requests that may be open; `None` outside of a worker.
    pub(crate) requests: Option<Arc<dyn Requests>>,
    /// Post that records the event under delivery; `None` outside of a worker.
    pub(crate) post: Option<Arc<Post>>,
}

impl Context {
    /// Returns whether the lease may have ended, because the process has stood still or cannot reach
    /// Redis. Then another process may have the batch. A sink in which a batch waits before it is sent
    /// asks this after the wait, and if it is true, returns [`Stop::not_begun`].
    pub fn may_be_lost(&self) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|ledger| ledger.may_be_lost())
    }

    /// Records that the delivery has now reached this event.
    #[doc(hidden)]
    pub fn begins(&self, id: u64) {
        if let Some(post) = &self.post {
            post.event(id);
        }
    }

    /// Records the progress of the event under delivery, as JSON text of at most
    /// [`PROGRESS_BYTES_MAX`] bytes. For another event it has no effect.
    #[doc(hidden)]
    pub fn progress(&self, id: u64, json: &str) {
        if let Some(post) = &self.post {
            post.progress(id, json);
        }
    }

    /// Records a log line of the event under delivery. For another event it has no effect.
    #[doc(hidden)]
    pub fn log(&self, id: u64, text: &str) {
        if let Some(post) = &self.post {
            post.log(id, text);
        }
    }

    /// Returns the context of a first try, for tests of sinks and for programs that call a sink
    /// themselves. Outside of a worker, handler progress is not stored, and emits are dropped.
    pub fn detached() -> Self {
        Self {
            worker: "detached.0".into(),
            attempts: 0,
            crashes: 0,
            token: "".into(),
            cancelled: CancellationToken::new(),
            ledger: None,
            requests: None,
            post: None,
        }
    }
}

/// The result of a delivery: the number of delivered events, counted from the front of the batch.
/// If the sink stopped before the end, the result also has the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Delivered {
    pub(crate) count: Option<usize>,
    pub(crate) stop: Option<Stop>,
}

impl Delivered {
    /// Returns the result for a batch that is delivered entirely.
    pub fn all() -> Self {
        Self {
            count: None,
            stop: None,
        }
    }

    /// Returns the result for `count` delivered events. `stop` is the reason why the event after
    /// them is not delivered.
    pub fn stopped(count: usize, stop: Stop) -> Self {
        Self {
            count: Some(count),
            stop: Some(stop),
        }
    }

    /// Returns the result for `count` delivered events that are to be committed now. The other
    /// events of the batch may come again at once.
    pub fn so_far(count: usize) -> Self {
        Self {
            count: Some(count),
            stop: None,
        }
    }

    /// Returns the number of delivered events for a batch of `len` events.
    pub fn count(&self, len: usize) -> usize {
        self.count.map_or(len, |count| count.min(len))
    }

    /// Returns the reason why the sink stopped; none if it did not stop.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }
}

/// The reason why a sink stopped before the end of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The event failed now and may succeed later. It comes again with the same id and `prev`. Its
    /// object is held with the backoff of the [retry policy](crate::worker::RetryPolicy). All other
    /// objects go on. If the event's attempts are used up, the policy decides its fate.
    Transient {
        /// The error text. It is stored with the object while the object waits.
        error: String,
        /// The wait before the next attempt, in place of the policy's backoff. The failure still
        /// counts as an attempt.
        retry_after: Option<Duration>,
    },
    /// The sink did not try the event. The object is held for a time, and no attempt is counted.
    Postponed {
        /// The reason. It is stored with the object while the object waits.
        reason: String,
        /// The time for which the object is held.
        after: Duration,
    },
    /// The event will never succeed. The [retry policy](crate::worker::RetryPolicy) decides its
    /// fate. By default it becomes a dead letter, and the object's next event follows.
    Rejected {
        /// The error text. It is stored with the dead letter.
        error: String,
    },
    /// This process does not know the event, e.g. its type, but another process may know it. The
    /// object is held with a growing wait, and no attempt is counted. An event that has waited for
    /// [`unknown_max`](crate::worker::WorkerConfig::unknown_max) is rejected.
    Unknown {
        /// The reason. It is stored with the object while the object waits.
        error: String,
    },
    /// The program that handled the event has died, e.g. a child process of the sink. This counts as a
    /// crash, as if a worker had died with the event in hand: the event comes again at once and alone,
    /// and after [`crashes_max`](crate::worker::WorkerConfig::crashes_max) crashes the object waits for
    /// an operator, or the event is ended.
    Crashed {
        /// The error text. It is stored with the object while the object waits.
        error: String,
    },
    /// The sink itself fails, not the event. The process claims no more objects, keeps its batches,
    /// and tries the sink again with one of them.
    Unavailable {
        /// The error text.
        error: String,
    },
}

impl Stop {
    /// Returns [`Stop::Transient`] with the backoff of the retry policy.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::Transient {
            error: error.to_string(),
            retry_after: None,
        }
    }

    /// Returns [`Stop::Postponed`] without a wait, for an event that was not begun because the lease
    /// [may have ended](Context::may_be_lost). If the worker still has its lease, the event comes again
    /// at once.
    pub fn not_begun() -> Self {
        Self::Postponed {
            reason: "the event was not begun, because the lease may have ended".to_owned(),
            after: Duration::ZERO,
        }
    }

    /// Returns [`Stop::Rejected`].
    pub fn rejected(error: impl fmt::Display) -> Self {
        Self::Rejected {
            error: error.to_string(),
        }
    }

    /// Returns [`Stop::Unknown`].
    pub fn unknown(error: impl fmt::Display) -> Self {
        Self::Unknown {
            error: error.to_string(),
        }
    }

    /// Returns [`Stop::Crashed`].
    pub fn crashed(error: impl fmt::Display) -> Self {
        Self::Crashed {
            error: error.to_string(),
        }
    }

    /// Returns [`Stop::Unavailable`].
    pub fn unavailable(error: impl fmt::Display) -> Self {
        Self::Unavailable {
            error: error.to_string(),
        }
    }

    /// Returns the text of the error, or the reason.
    pub fn error(&self) -> &str {
        match self {
            Self::Transient { error, .. }
            | Self::Rejected { error }
            | Self::Unknown { error }
            | Self::Crashed { error }
            | Self::Unavailable { error } => error,
            Self::Postponed { reason, .. } => reason,
        }
    }
}
