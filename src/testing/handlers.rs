//! Runs handlers without Redis.

use std::time::Duration;

use bytes::Bytes;
use serde_core::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::memory::{Memory, Place};
use super::ran::Ran;
use crate::event::{EVENT_BYTES_MAX, Event, EventError, IntoEvent, NameError, ObjectName};
use crate::handlers::{Handler, HandlerOutcome, Handlers, HandlersError};
use crate::sink::Context;

/// Why an event of a test is refused, as an emitter refuses it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestEventError {
    /// The object's name is refused.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event is refused.
    #[error(transparent)]
    Event(#[from] EventError),
}

/// An event that a test gives to handlers, and what a worker tells them of it.
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
    /// An event for an object: `&T` of anything that serializes, or [`Json`](crate::event::Json)
    /// that is text already, of at most 1 MiB. Its id is 1, its `prev` is 0, and it is the first
    /// attempt.
    ///
    /// # Errors
    /// The object's name or the event is refused.
    pub fn new(object: impl AsRef<str>, event: impl IntoEvent) -> Result<Self, TestEventError> {
        let (object, payload) = (ObjectName::new(object)?, event.into_event(EVENT_BYTES_MAX)?);
        Ok(Self { object, payload, id: 1, prev: 0, attempt: 1 })
    }

    /// The event's id. A worker gives 1 to 2^53 - 1. Default: 1.
    pub fn id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// The id of the object's event before. A worker gives an id less than that of the event, or 0.
    /// Default: 0.
    pub fn prev(mut self, prev: u64) -> Self {
        self.prev = prev;
        self
    }

    /// The attempt, from 1; 0 counts as 1. Default: 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }
}

/// Runs handlers on events, without Redis: by the code that a worker process runs, with its ledger
/// in memory.
///
/// The ledger remembers what a worker keeps of an event: handlers that have succeeded, subtasks
/// under [`once`](crate::handlers::HandlerContext::once), and what was emitted. An event is known by
/// its object and its id. A second run of the same event is what a retry is, or a delivery after a
/// crash: what is kept does not run again. As in a worker, the success of the last handler is kept
/// only if it has emitted or has a result.
///
/// Clones share the ledger, and runs of different events may overlap. Timeouts follow the clock of
/// tokio: a test with a paused clock (`#[tokio::test(start_paused = true)]`, tokio's feature
/// `test-util`) does not wait for them.
#[derive(Debug, Clone)]
pub struct HandlerTest {
    handlers: Handlers,
    timeout: Option<Duration>,
    memory: Memory,
}

impl HandlerTest {
    /// Tests a set of handlers. Only those that are registered for the type of an event run for it.
    pub fn new(handlers: Handlers) -> Self {
        Self { handlers, timeout: None, memory: Memory::default() }
    }

    /// Tests one handler, which runs for every event.
    ///
    /// # Errors
    /// The id is no handler's id, or the handler's own timeout is out of its range.
    pub fn one<T>(id: impl Into<String>, handler: impl Handler<T>) -> Result<Self, HandlersError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        Ok(Self::new(Handlers::builder().register_all::<T>(id, handler).build()?))
    }

    /// Lets each handler run this long instead of its own timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Forgets what is kept of all events: every handler and subtask runs again.
    pub fn forget(&self) {
        self.memory.forget();
    }

    /// Runs the handlers of the event that have not succeeded before, and returns what they did.
    ///
    /// Dropping the future drops those of the handlers; what was kept until then stays.
    pub async fn run(&self, event: TestEvent) -> Ran {
        self.run_until(event, std::future::pending()).await
    }

    /// The same until `cancel` ends. Then the delivery is cancelled, as where a worker loses its
    /// lease: `cx.cancelled()` fires, and the futures of the handlers that still run are dropped.
    pub async fn run_until(&self, event: TestEvent, cancel: impl Future<Output = ()>) -> Ran {
        let TestEvent { object, payload, id, prev, attempt } = event;
        let event = Event { id, prev, object, payload };
        let place: Place = (event.object.clone(), id);
        let cancelled = CancellationToken::new();
        let cx = Context {
            attempts: attempt.saturating_sub(1),
            cancelled: cancelled.clone(),
            ledger: Some(self.memory.ledger(place.clone())),
            ..Context::detached()
        };
        let before = self.memory.of(&place).finished;
        let mut ended = Vec::new();
        let delivered = {
            let mut running = std::pin::pin!(self.handlers.run_event(&mut ended, self.timeout, event.clone(), &cx));
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
                None if before.contains(&format!("handler:{id}")) => HandlerOutcome::SucceededBefore,
                None => HandlerOutcome::Cancelled,
            };
            (id.to_owned(), outcome)
        };
        let outcomes = self.handlers.handlers_for(&event).into_iter().map(outcome).collect();
        let kept = self.memory.of(&place);
        Ran::new(event, outcomes, delivered, &kept)
    }
}
