//! A sink that runs handlers: async functions for types of events, in the worker process.
//!
//! Of the events of an object one is handled at a time, in order; the handlers of an event run at
//! the same time. What a handler has finished is kept in the worker's ledger as long as others of
//! the event have not, so that a retry runs only those. If the process dies, what was kept stays
//! finished, and everything else runs again.
//!
//! - `handler`, `failure`: the trait of a handler, and why one has not succeeded
//! - `context`: the context of a handler, and the guard for subtasks
//! - `emits`: the events that a handler emits, and its result
//! - `set`: the registered handlers, and the fields of each in the ledger (`fields`)
//! - `run`: the handlers of one event

mod context;
mod emits;
mod failure;
mod fields;
mod handler;
mod run;
mod set;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_core::de::DeserializeOwned;

pub use context::{Fence, HandlerContext, SUBTASK_BYTES_MAX, SUBTASKS_MAX};
pub use emits::{EMITS_BYTES_MAX, EMITS_MAX, HandlerEmitError, HandlerResultError, RESULT_BYTES_MAX};
pub use failure::{Failure, HandlerResult};
pub use handler::{EventType, Handler};
pub use run::HandlerOutcome;
pub use set::Unhandled;

use self::fields::HandlerFields;
use self::handler::{AnyHandler, Typed};
use self::run::Leaves;
use self::set::{HandlerSet, Registered};
use crate::event::{Event, type_of};
use crate::sink::{Batch, Context, Delivered, Progress, Sink, Stop};

/// After so much time, what is done of a batch is committed: a crash makes no more than this run
/// again, and the event under way.
const COMMIT_AFTER: Duration = Duration::from_millis(100);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
const ID_BYTES_MAX: usize = 128;

/// Why a set of handlers cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlersError {
    /// What is finished is kept by the handler's id, so that two must not share one.
    #[error("two handlers have the id {0:?}; give each its own")]
    Duplicate(String),
    /// The id is none.
    #[error("the id of a handler has 1 to {ID_BYTES_MAX} bytes without control characters; {0:?} has not")]
    Id(String),
    /// A timeout is out of its range.
    #[error("a handler's timeout is {0:?}; it must be 1 ms to 24 h")]
    Timeout(Duration),
}

/// For which events a handler runs.
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
/// All handlers of an event run, at the same time. When all have succeeded, the event is delivered.
/// Where one fails for a time, the event comes again as the worker's retry policy says, and only
/// those run that have not succeeded. Where one answers that it never will, the event goes to the
/// dead letters with all errors, as soon as the others that run have ended: no handler runs again.
/// A panic, and a handler that takes longer than its timeout, are failures for a time.
#[derive(Clone)]
pub struct Handlers(Arc<HandlerSet>);

impl Handlers {
    /// Begins a set of handlers.
    pub fn builder() -> HandlersBuilder {
        HandlersBuilder { all: Vec::new(), timeout: TIMEOUT_DEFAULT, unhandled: Unhandled::default() }
    }

    /// The positions and ids of an event's handlers, in the order of registration.
    pub(crate) fn handlers_for(&self, event: &Event) -> Vec<(usize, &str)> {
        let handlers = self.0.handlers_of(type_of(&event.payload).as_deref());
        handlers.into_iter().map(|at| (at, self.0.all[at].id.as_str())).collect()
    }

    /// Runs the handlers of one event as [`deliver`](Sink::deliver) does. `ended` gets the position
    /// and the outcome of each handler that ran, also if this future is dropped. `timeout` replaces
    /// the timeouts of the handlers.
    pub(crate) async fn run_event(
        &self,
        ended: &mut Vec<(usize, HandlerOutcome)>,
        timeout: Option<Duration>,
        event: Event,
        cx: &Context,
    ) -> Result<(), Stop> {
        let known = known(cx).await?;
        let known = if event.id == known.id { known } else { Progress::default() };
        self.0.run_and_tell(ended, timeout, event, cx.attempts, cx, known).await.map(drop)
    }
}

/// What is kept of an event of the batch.
async fn known(cx: &Context) -> Result<Progress, Stop> {
    match &cx.ledger {
        Some(ledger) => ledger.read().await.map_err(Stop::transient),
        None => Ok(Progress::default()),
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.all.iter().map(|registered| &registered.id)).finish()
    }
}

/// A set of handlers in the making. Each has an id of its own, 1 to 128 bytes, by which is kept
/// what it has finished: it should stay the same over restarts.
#[must_use]
pub struct HandlersBuilder {
    all: Vec<(For, String, Box<dyn AnyHandler>)>,
    timeout: Duration,
    unhandled: Unhandled,
}

impl HandlersBuilder {
    /// A handler for the events of a type. An event that does not deserialize into `T` is
    /// unrecoverable.
    pub fn register<T: EventType>(self, id: impl Into<String>, handler: impl Handler<T>) -> Self {
        self.register_type(T::TYPE, id, handler)
    }

    /// The same, with the type's name given: the value of the event's top-level member `type`.
    pub fn register_type<T: DeserializeOwned + Send + 'static>(
        self,
        event_type: impl Into<String>,
        id: impl Into<String>,
        handler: impl Handler<T>,
    ) -> Self {
        self.add(For::Type(event_type.into()), id, handler)
    }

    /// A handler for every event, beside those for its type: an event without a type, or that is no
    /// JSON object, too.
    pub fn register_all<T: DeserializeOwned + Send + 'static>(self, id: impl Into<String>, handler: impl Handler<T>) -> Self {
        self.add(For::Every, id, handler)
    }

    /// A handler for the events that no handler for a type takes.
    pub fn register_other<T: DeserializeOwned + Send + 'static>(self, id: impl Into<String>, handler: impl Handler<T>) -> Self {
        self.add(For::Other, id, handler)
    }

    /// How long a handler may take for one event, 1 ms to 24 h; a [`Handler::timeout`] of its own
    /// goes before this. After that its future is dropped, its cancellation token fires, and it has
    /// failed for a time. Default: 1 minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What becomes of an event for which no handler is registered. Default: a dead letter.
    pub fn unhandled(mut self, unhandled: Unhandled) -> Self {
        self.unhandled = unhandled;
        self
    }

    /// Checks the ids and the timeouts.
    ///
    /// # Errors
    /// Two handlers have the same id, an id is none, or a timeout is out of its range.
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
            all.push(Registered { fields: HandlerFields::of(&id, at), id, timeout, handler });
        }
        Ok(Handlers(Arc::new(HandlerSet { all, types, every, other, unhandled: self.unhandled })))
    }

    fn add<T: DeserializeOwned + Send + 'static>(mut self, of: For, id: impl Into<String>, handler: impl Handler<T>) -> Self {
        self.all.push((of, id.into(), Box::new(Typed::<T, _>::new(handler))));
        self
    }
}

#[async_trait]
impl Sink for Handlers {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let known = match known(cx).await {
            Ok(known) => known,
            Err(stop) => return Delivered::stopped(0, stop),
        };
        let began = Instant::now();
        for (at, event) in batch.events().enumerate() {
            // Of a batch that was in other hands, the events before the one of which something is
            // kept are done.
            if event.id < known.id {
                continue;
            }
            if at > 0 && began.elapsed() >= COMMIT_AFTER {
                return Delivered::so_far(at);
            }
            let known = if event.id == known.id { known.clone() } else { Progress::default() };
            cx.begins(event.id);
            let attempts = if at == 0 { cx.attempts } else { 0 };
            match self.0.run(event, attempts, cx, known).await {
                // What is emitted must be pushed, and a result logged, before anything is kept of
                // the next event.
                Ok(Leaves::Something) => return Delivered::so_far(at + 1),
                Ok(Leaves::Nothing) => {}
                Err(stop) => return Delivered::stopped(at, stop),
            }
        }
        Delivered::all()
    }

    fn timeout_max(&self) -> Duration {
        self.0.all.iter().map(|registered| registered.timeout).max().unwrap_or_default()
    }
}
