//! A sink that runs handlers: async functions for types of events, in the worker process.
//!
//! The events of an object are handled one at a time, in order. The handlers of one event run at
//! the same time. The worker's ledger records each handler that has finished, until the event is
//! finalized. So a retry runs only the handlers that have not finished. If the process dies,
//! recorded handlers stay finished, and all others run again.
//!
//! - `handler`, `failure`: the trait of a handler, and its failures
//! - `context`: the context of a handler, and the guard for subtasks
//! - `emits`: the emits of a handler, and its result
//! - `schedule`: the schedules that a handler sets, and those that it cancels
//! - `set`, `fields`: the registered handlers, and the fields of each handler in the ledger
//! - `run`: runs the handlers of one event
//! - `remote`, `effects`: the handler of a sink whose handlers run outside of this process

mod context;
mod effects;
mod emits;
mod failure;
mod fields;
mod handler;
mod remote;
mod run;
mod schedule;
mod set;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_core::de::DeserializeOwned;

pub use context::{
    Fence, HandlerContext, SUBTASK_BYTES_MAX, SUBTASK_VALUE_BYTES_MAX, SUBTASKS_MAX,
};
pub use effects::Effects;
pub use emits::{
    EMITS_BYTES_MAX, EMITS_MAX, HandlerEmitError, HandlerProgressError, HandlerResultError,
    RESULT_BYTES_MAX,
};
pub use failure::{Failure, HandlerResult};
pub use handler::{EventType, Handler};
pub use remote::{Remote, Stored};
pub use run::HandlerOutcome;
pub use schedule::HandlerSchedule;
pub use set::Unhandled;

use self::fields::HandlerFields;
use self::handler::{AnyHandler, Typed};
use self::run::Leaves;
use self::set::{HandlerSet, Registered};
use crate::event::{Event, type_of};
use crate::sink::{Batch, Context, Delivered, Progress, Sink, Stop};

/// The time after which the finished events of a batch are committed. So a crash repeats only the
/// event under way and the events that were finished within this time.
const COMMIT_AFTER: Duration = Duration::from_millis(100);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
const ID_BYTES_MAX: usize = 128;

/// The reason why a set of handlers is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlersError {
    /// Two handlers have the same id. Progress is stored by id, so each handler needs its own id.
    #[error("two handlers have the id {0:?}; give each its own")]
    Duplicate(String),
    /// The id is invalid.
    #[error(
        "the handler id {0:?} is invalid: an id has 1 to {ID_BYTES_MAX} bytes without control characters"
    )]
    Id(String),
    /// A timeout is out of range.
    #[error("a handler's timeout is {0:?}; it must be 1 ms to 24 h")]
    Timeout(Duration),
}

/// The events for which a handler runs.
enum For {
    Type(String),
    Every,
    Other,
}

/// A sink that runs registered handlers in the worker process.
///
/// ```
/// use seriatim::handlers::{EventType, Failure, HandlerContext, Handlers};
///
/// #[derive(serde::Deserialize)]
/// struct Moved {
///     to: String,
/// }
///
/// impl EventType for Moved {
///     const TYPE: &'static str = "moved";
/// }
///
/// let handlers = Handlers::builder()
///     .register::<Moved>("mail", |event: Moved, cx: HandlerContext| async move {
///         if event.to.is_empty() {
///             return Err(Failure::unrecoverable("moved to nowhere"));
///         }
///         cx.once("notice", || async { Ok::<(), std::io::Error>(()) }).await?;
///         Ok(())
///     })
///     .build()?;
/// # fn is_sink(_: impl seriatim::sink::Sink) {}
/// # is_sink(handlers);
/// # Ok::<(), seriatim::handlers::HandlersError>(())
/// ```
///
/// All handlers of an event run at the same time. The event ends in one of these ways:
///
/// - All handlers succeed: the event is delivered.
/// - A handler fails transiently: the event comes again, according to the worker's retry policy.
///   Then only the handlers that have not succeeded run. Panics and timeouts are transient
///   failures.
/// - A handler fails unrecoverably: the event becomes a dead letter with all errors, as soon as the
///   other running handlers have ended. No handler runs again.
#[derive(Clone)]
pub struct Handlers(Arc<HandlerSet>);

impl Handlers {
    /// Returns a builder without handlers.
    pub fn builder() -> HandlersBuilder {
        HandlersBuilder {
            all: Vec::new(),
            timeout: TIMEOUT_DEFAULT,
            unhandled: Unhandled::default(),
        }
    }

    /// Returns the handlers of an event, in the order of registration. Each is a pair of its
    /// position in that order and its id.
    pub(crate) fn handlers_for(&self, event: &Event) -> Vec<(usize, &str)> {
        let handlers = self.0.handlers_of(type_of(&event.payload).as_deref());
        handlers
            .into_iter()
            .map(|at| (at, self.0.all[at].id.as_str()))
            .collect()
    }

    /// Runs the handlers of one event as [`deliver`](Sink::deliver) does. `ended` gets the position
    /// and the outcome of each handler that ran, even if this future is dropped early. `timeout`
    /// replaces the timeouts of the handlers.
    pub(crate) async fn run_event(
        &self,
        ended: &mut Vec<(usize, HandlerOutcome)>,
        timeout: Option<Duration>,
        event: Event,
        cx: &Context,
    ) -> Result<(), Stop> {
        let known = known(cx).await?;
        let known = if event.id == known.id {
            known
        } else {
            Progress::default()
        };
        self.0
            .run_and_tell(ended, timeout, event, cx.attempts, cx, known)
            .await
            .map(drop)
    }
}

/// Returns the progress that the ledger has stored for an event of the batch.
async fn known(cx: &Context) -> Result<Progress, Stop> {
    match &cx.ledger {
        Some(ledger) => ledger.read().await.map_err(Stop::transient),
        None => Ok(Progress::default()),
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.all.iter().map(|registered| &registered.id))
            .finish()
    }
}

/// Builds a set of handlers. Each handler has its own id of 1 to 128 bytes. Progress is stored by
/// id, so an id should stay the same over restarts.
#[must_use]
pub struct HandlersBuilder {
    all: Vec<(For, String, Box<dyn AnyHandler>)>,
    timeout: Duration,
    unhandled: Unhandled,
}

impl HandlersBuilder {
    /// Adds a handler for the events of a type. If an event does not deserialize into `T`, this is
    /// an unrecoverable failure.
    pub fn register<T: EventType>(self, id: impl Into<String>, handler: impl Handler<T>) -> Self {
        self.register_type(T::TYPE, id, handler)
    }

    /// Adds a handler for the events of a type that is given by name: the value of the event's
    /// top-level member `type`.
    pub fn register_type<T: DeserializeOwned + Send + 'static>(
        self,
        event_type: impl Into<String>,
        id: impl Into<String>,
        handler: impl Handler<T>,
    ) -> Self {
        self.add(For::Type(event_type.into()), id, handler)
    }

    /// Adds a handler for every event. It runs in addition to the handlers for the event's type. It
    /// also gets events without a type, and events that are not JSON objects.
    pub fn register_all<T: DeserializeOwned + Send + 'static>(
        self,
        id: impl Into<String>,
        handler: impl Handler<T>,
    ) -> Self {
        self.add(For::Every, id, handler)
    }

    /// Adds a handler for all events whose type has no handler.
    pub fn register_other<T: DeserializeOwned + Send + 'static>(
        self,
        id: impl Into<String>,
        handler: impl Handler<T>,
    ) -> Self {
        self.add(For::Other, id, handler)
    }

    /// Sets the timeout of a handler for one event, 1 ms to 24 h. If a handler has its own
    /// [`Handler::timeout`], that one is used instead. After the timeout, the handler's future is
    /// dropped and its cancellation token is cancelled. This is a transient failure. Default: 1
    /// minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the fate of an event for which no handler runs. Default: the event waits for a process
    /// that has a handler for it.
    pub fn unhandled(mut self, unhandled: Unhandled) -> Self {
        self.unhandled = unhandled;
        self
    }

    /// Builds the set, and checks the ids and the timeouts.
    ///
    /// # Errors
    /// Two handlers have the same id, an id is invalid, or a timeout is out of range.
    pub fn build(self) -> Result<Handlers, HandlersError> {
        let (mut ids, mut types) = (BTreeSet::new(), BTreeMap::<String, Vec<usize>>::new());
        let (mut all, mut every, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (of, id, handler)) in self.all.into_iter().enumerate() {
            if id.is_empty() || id.len() > ID_BYTES_MAX || id.chars().any(char::is_control) {
                return Err(HandlersError::Id(id));
            } else if !ids.insert(id.clone()) {
                return Err(HandlersError::Duplicate(id));
            }
            let timeout = handler.timeout().unwrap_or(self.timeout);
            if !(Duration::from_millis(1)..=Duration::from_secs(24 * 3600)).contains(&timeout) {
                return Err(HandlersError::Timeout(timeout));
            }
            match of {
                For::Type(name) => types.entry(name).or_default().push(at),
                For::Every => every.push(at),
                For::Other => other.push(at),
            }
            all.push(Registered {
                fields: HandlerFields::of(&id, at),
                id,
                timeout,
                handler,
            });
        }
        Ok(Handlers(Arc::new(HandlerSet {
            all,
            types,
            every,
            other,
            unhandled: self.unhandled,
        })))
    }

    fn add<T: DeserializeOwned + Send + 'static>(
        mut self,
        of: For,
        id: impl Into<String>,
        handler: impl Handler<T>,
    ) -> Self {
        self.all
            .push((of, id.into(), Box::new(Typed::<T, _>::new(handler))));
        self
    }
}

#[async_trait]
impl Sink for Handlers {
    fn name(&self) -> String {
        "handlers".to_owned()
    }

    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let known = match known(cx).await {
            Ok(known) => known,
            Err(stop) => return Delivered::stopped(0, stop),
        };
        let began = Instant::now();
        for (at, event) in batch.events().enumerate() {
            // The ledger has progress of a later event of the batch. So this event was already
            // finished in an earlier delivery.
            if event.id < known.id {
                continue;
            }
            if at > 0 && began.elapsed() >= COMMIT_AFTER {
                return Delivered::so_far(at);
            }
            let known = if event.id == known.id {
                known.clone()
            } else {
                Progress::default()
            };
            cx.begins(event.id);
            let attempts = if at == 0 { cx.attempts } else { 0 };
            match self.0.run(event, attempts, cx, known).await {
                // The next event would overwrite the stored progress. So this event is committed
                // first, to push its emits and to log its results.
                Ok(Leaves::Something) => return Delivered::so_far(at + 1),
                Ok(Leaves::Nothing) => {}
                Err(stop) => return Delivered::stopped(at, stop),
            }
        }
        Delivered::all()
    }

    fn timeout_max(&self) -> Duration {
        self.0
            .all
            .iter()
            .map(|registered| registered.timeout)
            .max()
            .unwrap_or_default()
    }
}
