//! What a handler is told beside its event, and what it can do with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;

use super::emits::{Done, EmitRoom, Emitting, HandlerEmitError, HandlerResultError, RESULT_BYTES_MAX};
use super::failure::Failure;
use super::fields::HandlerFields;
use crate::event::{EVENT_BYTES_MAX, Event, IntoEvent, ObjectName};
use crate::sink::{Context, LedgerError, Progress, With};

/// The most subtasks that the handlers of one event name under [`once`](HandlerContext::once), all
/// handlers together.
///
/// Redis reads the names of all subtasks that are done in the step that ends the event, and does
/// nothing else meanwhile.
pub const SUBTASKS_MAX: usize = 1000;
/// The most bytes of a subtask's name.
pub const SUBTASK_BYTES_MAX: usize = 256;

/// What a store needs to refuse what comes late: see [`HandlerContext::fence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// A fresh UUID per attach of a worker process.
    pub token: Arc<str>,
    /// The event's id. Within an object ids only grow.
    pub id: u64,
}

/// An event while its handlers run.
pub(super) struct EventRun {
    pub(super) event: Event,
    pub(super) event_type: Option<String>,
    pub(super) attempts: u32,
    pub(super) cx: Context,
    /// Subtasks by name, and whether each is done.
    once: Mutex<HashMap<String, Arc<AsyncMutex<bool>>>>,
    /// For what handlers emit.
    pub(super) room: EmitRoom,
}

impl EventRun {
    pub(super) fn new(event: Event, event_type: Option<String>, attempts: u32, cx: Context, known: &Progress) -> Self {
        let done =
            known.finished.iter().filter_map(|field| Some((field.strip_prefix("once:")?.to_owned(), Arc::new(true.into()))));
        let once = Mutex::new(done.collect());
        Self { event, event_type, attempts, cx, once, room: EmitRoom::beside(known.emitted, known.results) }
    }

    async fn keep(&self, field: &str, with: With<'_>) -> Result<(), LedgerError> {
        match &self.cx.ledger {
            Some(ledger) => ledger.write(self.event.id, field, with).await,
            None => Ok(()),
        }
    }

    /// Keeps that a handler has finished, what it has emitted, and its result.
    pub(super) async fn keep_finished(&self, handler: &HandlerFields, done: &Done) -> Result<(), LedgerError> {
        let emits = (done.emits.events() > 0).then(|| done.emits.value(handler.place));
        let result = done.result.as_ref().map(|result| [handler.member.as_bytes(), result].concat());
        let with = With {
            emits: emits.as_ref().map(|value| (handler.emits.as_str(), &value[..])),
            result: result.as_ref().map(|value| (handler.result.as_str(), &value[..])),
        };
        self.keep(&handler.finished, with).await
    }

    /// Whether results go into the event log.
    pub(super) fn logs(&self) -> bool {
        self.cx.ledger.as_ref().is_some_and(|ledger| ledger.logs())
    }

    /// Returns whether a subtask is done; none for a new name above the limit. Names that are done
    /// stay known, also if an earlier version kept more.
    fn subtask(&self, name: &str) -> Option<Arc<AsyncMutex<bool>>> {
        let mut once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        if once.len() >= SUBTASKS_MAX && !once.contains_key(name) {
            return None;
        }
        Some(Arc::clone(once.entry(name.to_owned()).or_default()))
    }
}

/// What a handler is told beside its event. Clones are cheap and speak of the same event.
#[derive(Clone)]
pub struct HandlerContext {
    pub(super) run: Arc<EventRun>,
    pub(super) cancelled: CancellationToken,
    pub(super) emitting: Emitting,
}

impl HandlerContext {
    /// The event's id.
    pub fn id(&self) -> u64 {
        self.run.event.id
    }

    /// The id of the object's event before this one that was delivered; 0 if there was none.
    pub fn prev(&self) -> u64 {
        self.run.event.prev
    }

    /// The object.
    pub fn object(&self) -> &ObjectName {
        &self.run.event.object
    }

    /// The event, byte for byte as it was emitted.
    pub fn payload(&self) -> &[u8] {
        &self.run.event.payload
    }

    /// The event's type: its top-level member `type`, where that is a string.
    pub fn event_type(&self) -> Option<&str> {
        self.run.event_type.as_deref()
    }

    /// Which attempt of the event this is, from 1. Attempts count failures: after a crash the
    /// attempt is the same.
    pub fn attempt(&self) -> u32 {
        self.run.attempts.saturating_add(1)
    }

    /// The worker (slot) that runs the handler, `NAME.SLOT`.
    pub fn worker(&self) -> &str {
        &self.run.cx.worker
    }

    /// For the handler's own store. A process that was paused for longer than its lease may go on
    /// with an event that another one has handled since. A store that keeps the highest id applied
    /// for each object, in the same transaction as what applying does, refuses that by one
    /// comparison, and with it whatever comes twice; one that keeps the token as well can tell who
    /// wrote.
    pub fn fence(&self) -> Fence {
        Fence { token: Arc::clone(&self.run.cx.token), id: self.id() }
    }

    /// Fires when the handler's time is over, when the lease is lost, or when the worker stops at
    /// once: what is done after that is done in vain. The handler's own future is dropped then;
    /// this is for what it has started elsewhere. A worker that is cut off from Redis learns that
    /// its lease is lost when it reaches Redis again: until then only the [`fence`](Self::fence)
    /// tells.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Emits an event for an object, this one or another, with the success of the handler: `&T` of
    /// anything that serializes, or [`Json`](crate::event::Json) that is text already, of at most 1
    /// MiB.
    ///
    /// Nothing is sent here. A handler that fails has emitted nothing. What it has emitted when it
    /// succeeds is kept with that, and pushed in the same atomic step that ends the event, however
    /// it ends: delivered, completed with errors, a dead letter. So each is pushed exactly once,
    /// and not before; where the event comes again, the handler does not run again and so does not
    /// emit twice.
    ///
    /// Events for one object are pushed in the order in which the handler emits them; where several
    /// handlers emit, in the order in which these are registered. Do not emit inside of a subtask
    /// that runs [`once`](Self::once): if the handler fails after it, the subtask does not run
    /// again, and nothing was emitted.
    ///
    /// # Errors
    /// The name or the event is refused; or the handlers of the event would emit more than 1,000
    /// events or 2 MiB together; or the handler has ended. Where Redis is at its `maxmemory` when
    /// the handler has succeeded, it has failed for a time, and runs again.
    pub fn emit(&self, object: impl AsRef<str>, event: impl IntoEvent) -> Result<(), HandlerEmitError> {
        let object = match &self.run.cx.ledger {
            Some(ledger) => ledger.object(object.as_ref())?,
            None => ObjectName::new(object)?,
        };
        let event = event.into_event(EVENT_BYTES_MAX)?;
        self.emitting.push(&self.run.room, object.as_str(), &event)
    }

    /// Sets the handler's result: `&T` of anything that serializes, or [`Json`](crate::event::Json)
    /// that is text already, of at most 64 KiB. A result that was set before is replaced.
    ///
    /// Nothing is sent here. The result is kept with the success of the handler, and written into
    /// the event's row of the event log when the event ends: `results` of
    /// [`LogEntry`](crate::control::LogEntry). A handler that fails has no result. Without the
    /// event log nobody reads a result once the event has ended.
    ///
    /// # Errors
    /// The value is not JSON or has more than 64 KiB; or the results and the emitted events of the
    /// event's handlers would have more than [`EMITS_BYTES_MAX`](crate::handlers::EMITS_BYTES_MAX)
    /// bytes together; or the handler has ended.
    pub fn result(&self, value: impl IntoEvent) -> Result<(), HandlerResultError> {
        let result = value.into_event(RESULT_BYTES_MAX)?;
        self.emitting.set_result(&self.run.room, result)
    }

    /// Runs a subtask of the event unless it is done: `None` where it was. Whether it is done is
    /// kept beside the event as soon as it has succeeded: so it succeeds once, except where the
    /// worker dies in between.
    ///
    /// The guard is one per event and name of a subtask (1 to [`SUBTASK_BYTES_MAX`] bytes). Where
    /// several handlers of the event name the same subtask, one runs it and the others wait. A
    /// subtask must not begin itself again inside of itself: it would wait for ever, or until the
    /// handler's timeout.
    ///
    /// The handlers of one event name at most [`SUBTASKS_MAX`] subtasks together, those included
    /// that were done before. For more work, guard several steps by one subtask, or emit events
    /// whose handlers do the rest.
    ///
    /// # Errors
    /// - The subtask's own error. The subtask is not done then.
    /// - A transient failure if Redis cannot keep that the subtask is done.
    /// - A transient failure if the name is one above [`SUBTASKS_MAX`]. The subtask does not run.
    ///   Subtasks that are done stay done, so that a changed handler can finish the event.
    /// - An unrecoverable failure if the name is empty or longer than [`SUBTASK_BYTES_MAX`].
    pub async fn once<R, E, F>(&self, subtask: &str, run: impl FnOnce() -> F) -> Result<Option<R>, Failure>
    where
        F: Future<Output = Result<R, E>>,
        Failure: From<E>,
    {
        if subtask.is_empty() || subtask.len() > SUBTASK_BYTES_MAX {
            let bytes = subtask.len();
            return Err(Failure::unrecoverable(format!("the name of a subtask has 1 to {SUBTASK_BYTES_MAX} bytes, not {bytes}")));
        }
        let Some(done) = self.run.subtask(subtask) else {
            // The name comes last: an error is kept up to a limit.
            return Err(Failure::transient(format!(
                "the handlers of one event name at most {SUBTASKS_MAX} subtasks, and this one more was not run: guard several steps by \
                 one subtask, or emit events whose handlers do the rest; subtasks that are done stay done; refused: {subtask:?}"
            )));
        };
        let mut done = done.lock().await;
        if *done {
            return Ok(None);
        }
        let result = run().await?;
        self.run.keep(&format!("once:{subtask}"), With::default()).await?;
        *done = true;
        Ok(Some(result))
    }
}

impl fmt::Debug for HandlerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerContext")
            .field("object", &self.object().as_str())
            .field("id", &self.id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
