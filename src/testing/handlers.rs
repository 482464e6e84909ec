//! Runs handlers without Redis.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_core::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::memory::{Identity, Memory};
use super::ran::Ran;
use crate::event::{EVENT_BYTES_MAX, Event, EventError, IntoEvent, NameError, ObjectName};
use crate::handlers::{Handler, HandlerOutcome, Handlers, HandlersError};
use crate::sink::{Context, Post};

/// The reason why the event of a test is invalid. The checks are the same as in an emitter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestEventError {
    /// The object's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event is invalid.
    #[error(transparent)]
    Event(#[from] EventError),
}

/// An event for the handlers under test, with its id, its `prev` and the number of the attempt.
#[derive(Debug, Clone)]
#[must_use]
pub struct TestEvent {
    object: ObjectName,
    payload: Bytes,
    id: u64,
    prev: u64,
    attempt: u32,
}

impl TestEvent {
    /// Makes an event for an object. Pass `&T` for a value of any serializable type, or
    /// [`Json`](crate::event::Json) for text that is JSON already. The event has at most 1 MiB. Its
    /// id is 1, its `prev` is 0, and the attempt is the first one.
    ///
    /// # Errors
    /// [`TestEventError`] if the object's name or the event is invalid.
    pub fn new(object: impl AsRef<str>, event: impl IntoEvent) -> Result<Self, TestEventError> {
        let (object, payload) = (ObjectName::new(object)?, event.into_event(EVENT_BYTES_MAX)?);
        Ok(Self {
            object,
            payload,
            id: 1,
            prev: 0,
            attempt: 1,
        })
    }

    /// Sets the event's id. Ids that a worker gives are 1 to 2^53 - 1. Default: 1.
    pub fn id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// Sets `prev`: the id of the object's preceding event. In a worker it is lower than the
    /// event's id, or 0. Default: 0.
    pub fn prev(mut self, prev: u64) -> Self {
        self.prev = prev;
        self
    }

    /// Sets the number of the attempt, counted from 1. A 0 counts as 1. Default: 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }
}

/// Runs handlers on events without Redis. Uses the same code as a worker process, but with a ledger
/// in memory.
///
/// The ledger records the same as in a worker: successful handlers, subtasks under
/// [`once`](crate::handlers::HandlerContext::once), and emits. An event is identified by its object
/// and its id. A second run of the same event acts like a retry, or a delivery after a crash:
/// recorded handlers and subtasks do not run again. As in a worker, the success of the last handler
/// is recorded only if it has emitted or has a result.
///
/// All clones share the ledger, and runs of different events may overlap. Timeouts use the clock of
/// tokio. So a test does not wait for timeouts if it pauses this clock, with
/// `#[tokio::test(start_paused = true)]` and tokio's feature `test-util`.
#[derive(Debug, Clone)]
pub struct HandlerTest {
    handlers: Handlers,
    timeout: Option<Duration>,
    memory: Memory,
}

impl HandlerTest {
    /// Tests a set of handlers. For each event, the same handlers run as in a worker.
    pub fn new(handlers: Handlers) -> Self {
        Self {
            handlers,
            timeout: None,
            memory: Memory::default(),
        }
    }

    /// Tests one handler. It runs for every event.
    ///
    /// # Errors
    /// [`HandlersError`] if the id is invalid, or the handler's own timeout is out of range.
    pub fn one<T>(id: impl Into<String>, handler: impl Handler<T>) -> Result<Self, HandlersError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        Ok(Self::new(
            Handlers::builder().register_all::<T>(id, handler).build()?,
        ))
    }

    /// Sets one timeout for all handlers, in place of their own timeouts.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Deletes the records of all events. After this, every handler and subtask runs again.
    pub fn forget(&self) {
        self.memory.forget();
    }

    /// Runs the handlers of the event that have not succeeded in an earlier run. Returns the
    /// results of all handlers of the event.
    ///
    /// If the future is dropped, the futures of the handlers are dropped, too. Records that were
    /// made until then stay.
    pub async fn run(&self, event: TestEvent) -> Ran {
        self.run_until(event, std::future::pending()).await
    }

    /// Runs the handlers like [`run`](Self::run), but only until `cancel` ends. Then the delivery
    /// is cancelled, as if a worker loses its lease: the token `cx.cancelled()` is cancelled, and
    /// the futures of the running handlers are dropped.
    pub async fn run_until(&self, event: TestEvent, cancel: impl Future<Output = ()>) -> Ran {
        let TestEvent {
            object,
            payload,
            id,
            prev,
            attempt,
        } = event;
        let event = Event {
            id,
            prev,
            object,
            payload,
        };
        let place: Identity = (event.object.clone(), id);
        let cancelled = CancellationToken::new();
        let post = Arc::new(Post::default());
        post.event(id);
        let cx = Context {
            attempts: attempt.saturating_sub(1),
            cancelled: cancelled.clone(),
            ledger: Some(self.memory.ledger(place.clone())),
            post: Some(Arc::clone(&post)),
            ..Context::detached()
        };
        let before = self.memory.of(&place).finished;
        let mut ended = Vec::new();
        let delivered = {
            let mut running = std::pin::pin!(self.handlers.run_event(
                &mut ended,
                self.timeout,
                event.clone(),
                &cx
            ));
            tokio::select! {
                biased;
                delivered = &mut running => Some(delivered),
                () = cancel => {
                    cancelled.cancel();
                    None
                }
            }
        };
        let outcome = |(at, id): (usize, &str)| {
            let outcome = match ended.iter().find(|(ran, _)| *ran == at) {
                Some((_, outcome)) => outcome.clone(),
                None if before.contains_key(&format!("handler:{id}")) => {
                    HandlerOutcome::SucceededBefore
                }
                None => HandlerOutcome::Cancelled,
            };
            (id.to_owned(), outcome)
        };
        let outcomes = self
            .handlers
            .handlers_for(&event)
            .into_iter()
            .map(outcome)
            .collect();
        let kept = self.memory.of(&place);
        let report = post.report(|reported| reported.report.clone());
        Ran::new(event, outcomes, delivered, &kept, report)
    }
}
