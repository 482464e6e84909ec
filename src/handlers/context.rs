//! The context of a handler: data about the handler's event, and the operations that a handler can
//! call.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_core::Serialize;
use serde_core::de::DeserializeOwned;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::emits::{
    Done, EMITS_BYTES_MAX, EmitRoom, Emitting, HandlerEmitError, HandlerProgressError,
    HandlerResultError, RESULT_BYTES_MAX,
};
use super::failure::Failure;
use super::fields::HandlerFields;
use crate::escape;
use crate::event::{EVENT_BYTES_MAX, Event, IntoEvent, ObjectName};
use crate::sink::{Context, LedgerError, PROGRESS_BYTES_MAX, Progress, With};
#[cfg(doc)]
use crate::sink::{REPORT_LINE_BYTES_MAX, REPORT_LINES_MAX};
use crate::wire;

/// Maximum number of subtasks that the handlers of one event may name under
/// [`once`](HandlerContext::once), all handlers together.
///
/// It is limited because the step that finalizes the event reads the names of all finished
/// subtasks. Redis runs no other command meanwhile.
pub const SUBTASKS_MAX: usize = 1000;
/// Maximum number of bytes of the name of a subtask.
pub const SUBTASK_BYTES_MAX: usize = 256;
/// Maximum number of bytes of the value that a subtask returns, as JSON: 64 KiB.
pub const SUBTASK_VALUE_BYTES_MAX: usize = 64 * 1024;

/// The values with which a handler's own store can refuse late writes: see
/// [`HandlerContext::fence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Token of the worker process: a fresh UUID for each attach.
    pub token: Arc<str>,
    /// The event's id. Within an object ids only grow.
    pub id: u64,
}

/// The state of a subtask.
#[derive(Debug, Default)]
enum Subtask {
    #[default]
    Unfinished,
    /// The subtask has returned this value, as JSON text.
    Done(Bytes),
    /// An earlier version of seriatim has recorded the subtask, without its value.
    DoneWithout,
}

/// The state of an event while its handlers run.
pub(super) struct EventRun {
    pub(super) event: Event,
    pub(super) event_type: Option<String>,
    pub(super) attempts: u32,
    pub(super) cx: Context,
    /// The subtasks by name.
    once: Mutex<HashMap<String, Arc<AsyncMutex<Subtask>>>>,
    /// The number of emits and bytes that are still allowed.
    pub(super) room: EmitRoom,
}

impl EventRun {
    pub(super) fn new(
        event: Event,
        event_type: Option<String>,
        attempts: u32,
        cx: Context,
        known: &Progress,
    ) -> Self {
        let done = known.finished.iter().filter_map(|(field, value)| {
            let subtask = wire::returned(value).map_or(Subtask::DoneWithout, |json| {
                Subtask::Done(json.to_owned().into())
            });
            Some((
                field.strip_prefix("once:")?.to_owned(),
                Arc::new(subtask.into()),
            ))
        });
        let once = Mutex::new(done.collect());
        let room = EmitRoom::beside(known.emitted, known.results + known.returned());
        Self {
            event,
            event_type,
            attempts,
            cx,
            once,
            room,
        }
    }

    async fn keep(&self, field: &str, with: With<'_>) -> Result<(), LedgerError> {
        match &self.cx.ledger {
            Some(ledger) => ledger.write(self.event.id, field, with).await,
            None => Ok(()),
        }
    }

    /// Writes to the ledger that a handler has finished, together with the handler's emits and its
    /// result.
    pub(super) async fn keep_finished(
        &self,
        handler: &HandlerFields,
        done: &Done,
    ) -> Result<(), LedgerError> {
        let emits = (done.emits.events() > 0).then(|| done.emits.value(handler.place));
        let result = done
            .result
            .as_ref()
            .map(|result| [handler.member.as_bytes(), result].concat());
        let with = With {
            returned: None,
            emits: emits
                .as_ref()
                .map(|value| (handler.emits.as_str(), &value[..])),
            result: result
                .as_ref()
                .map(|value| (handler.result.as_str(), &value[..])),
        };
        self.keep(&handler.finished, with).await
    }

    /// Returns whether results are stored.
    pub(super) fn keeps_results(&self) -> bool {
        self.cx
            .ledger
            .as_ref()
            .is_some_and(|ledger| ledger.keeps_results())
    }

    /// Returns the state of a subtask. `None` if the name is new and the limit is reached. Finished
    /// subtasks stay known, even if an earlier version of seriatim had a higher limit.
    fn subtask(&self, name: &str) -> Option<Arc<AsyncMutex<Subtask>>> {
        let mut once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        if once.len() >= SUBTASKS_MAX && !once.contains_key(name) {
            return None;
        }
        Some(Arc::clone(once.entry(name.to_owned()).or_default()))
    }
}

/// The context of a handler for one event. Clones are cheap and share the event.
#[derive(Clone)]
pub struct HandlerContext {
    pub(super) run: Arc<EventRun>,
    pub(super) cancelled: CancellationToken,
    pub(super) emitting: Emitting,
}

impl HandlerContext {
    /// Returns the event's id.
    pub fn id(&self) -> u64 {
        self.run.event.id
    }

    /// Returns `prev`: the id of the object's event that was delivered last before this one; 0 if
    /// there is none.
    pub fn prev(&self) -> u64 {
        self.run.event.prev
    }

    /// Returns the object.
    pub fn object(&self) -> &ObjectName {
        &self.run.event.object
    }

    /// Returns the event, byte for byte as it was emitted.
    pub fn payload(&self) -> &[u8] {
        &self.run.event.payload
    }

    /// Returns the event's type: its top-level member `type`. None if this member is not a string.
    pub fn event_type(&self) -> Option<&str> {
        self.run.event_type.as_deref()
    }

    /// Returns the number of this attempt at the event, counted from 1. Only failures count, so a
    /// crash does not change the number.
    pub fn attempt(&self) -> u32 {
        self.run.attempts.saturating_add(1)
    }

    /// Returns the id of the worker (slot) that runs the handler: `NAME.SLOT`.
    pub fn worker(&self) -> &str {
        &self.run.cx.worker
    }

    /// Returns the values with which the handler's own store can refuse late writes.
    ///
    /// A process that was paused for longer than its lease may go on with an event that another
    /// process has handled meanwhile. So for each object, a store should record the highest event
    /// id that it has applied, in the same transaction as the effect. Then it can refuse late and
    /// repeated events by comparing ids. If the store also records the token, the token shows which
    /// process has written.
    pub fn fence(&self) -> Fence {
        Fence {
            token: Arc::clone(&self.run.cx.token),
            id: self.id(),
        }
    }

    /// Returns a token that is cancelled when the handler's time is over, the lease is lost, or the
    /// worker stops at once. Work after that moment is in vain. The handler's own future is dropped
    /// at that moment. The token is for other tasks that the handler has started.
    ///
    /// A worker without a connection learns only later that its lease is lost. Until then only the
    /// [`fence`](Self::fence) refuses its writes.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Emits an event for any object, together with the success of the handler. Pass `&T` for a
    /// value of any serializable type, or [`Json`](crate::event::Json) for text that is JSON
    /// already. The event may have at most 1 MiB.
    ///
    /// This call sends nothing. If the handler fails, panics, times out or its process dies, its
    /// emits are discarded, and the rerun emits again. If the handler succeeds, its emits are
    /// stored with the success. The step that finalizes the handler's event pushes these emits,
    /// even if the event becomes a dead letter or is completed with errors. If the event comes
    /// again, a handler that has succeeded does not run again. So each emitted event is pushed
    /// exactly once.
    ///
    /// Events for one object are pushed in the order in which the handler emits them. Emits of
    /// several handlers are pushed in the order in which the handlers are registered. Do not emit
    /// inside a subtask that runs [`once`](Self::once). If the handler fails after such a subtask,
    /// the subtask does not run again and its emits are lost.
    ///
    /// # Errors
    /// - The name or the event is invalid.
    /// - The handlers of the event would emit more than 1,000 events or 2 MiB together.
    /// - The handler has ended.
    ///
    /// If Redis is at its `maxmemory` when a handler with emits succeeds, the emits cannot be
    /// stored. This counts as a transient failure, and the handler runs again.
    pub fn emit(
        &self,
        object: impl AsRef<str>,
        event: impl IntoEvent,
    ) -> Result<(), HandlerEmitError> {
        let object = self.object_named(object.as_ref())?;
        let event = event.into_event(EVENT_BYTES_MAX)?;
        self.emitting.push(&self.run.room, object.as_str(), &event)
    }

    /// Checks a name of an object, and returns it as an object name.
    pub(super) fn object_named(&self, object: &str) -> Result<ObjectName, HandlerEmitError> {
        Ok(match &self.run.cx.ledger {
            Some(ledger) => ledger.object(object)?,
            None => ObjectName::new(object)?,
        })
    }

    /// Sets the handler's result. Pass `&T` for a value of any serializable type, or
    /// [`Json`](crate::event::Json) for text that is JSON already. The result may have at most 64
    /// KiB. It replaces an earlier result of the handler.
    ///
    /// This call sends nothing. The result is stored with the success of the handler. When the
    /// event is finalized, the result is written into the event's row of the event log, as part of
    /// `results` of [`LogEntry`](crate::control::LogEntry). A handler that fails has no result. If
    /// the event log is off, results are deleted with the event's progress.
    ///
    /// # Errors
    /// - The value is not JSON or has more than 64 KiB.
    /// - The results and the emitted events of the event's handlers would have more than
    ///   [`EMITS_BYTES_MAX`](crate::handlers::EMITS_BYTES_MAX) bytes together.
    /// - The handler has ended.
    pub fn result(&self, value: impl IntoEvent) -> Result<(), HandlerResultError> {
        let result = value.into_event(RESULT_BYTES_MAX)?;
        self.emitting.set_result(&self.run.room, result)
    }

    /// Reports the progress of the event, for people: `seriatim inspect` and the page of the object
    /// show the last one while the event is in hand. Pass `&T` for a value of any serializable type, or
    /// [`Json`](crate::event::Json) for text that is JSON already. The value may have at most
    /// [`PROGRESS_BYTES_MAX`] bytes.
    ///
    /// This call sends nothing. The process writes new reports to Redis once per second, so a handler
    /// may report often. No decision depends on a report, and it ends with the run of the handler. All
    /// handlers of an event share one progress.
    ///
    /// # Errors
    /// - The value is not JSON or has more than [`PROGRESS_BYTES_MAX`] bytes.
    /// - The handler has ended.
    pub fn progress(&self, value: impl IntoEvent) -> Result<(), HandlerProgressError> {
        let json = value.into_event(PROGRESS_BYTES_MAX)?;
        if self.emitting.is_over() {
            return Err(HandlerProgressError::Ended);
        }
        let cx = &self.run.cx;
        cx.progress(self.id(), &String::from_utf8_lossy(&json));
        Ok(())
    }

    /// Writes a line to the log of the process, with the object and the id of the event.
    /// `seriatim inspect` and the page of the object show the last [`REPORT_LINES_MAX`] lines while
    /// the event is in hand, each with its first [`REPORT_LINE_BYTES_MAX`] bytes. After the end of the
    /// handler this call has no effect.
    pub fn log(&self, text: impl fmt::Display) {
        if !self.emitting.is_over() {
            let text = text.to_string();
            info!(object = %self.object(), id = self.id(), "{}", escape::text(&text));
            self.run.cx.log(self.id(), &text);
        }
    }

    /// Runs a subtask of the event, and returns its value. If the subtask is already finished, does
    /// not run it, and returns the stored value. The success of a subtask and its value are recorded
    /// in Redis at once, as JSON.
    ///
    /// A subtask can run twice if it ends, but its success is not recorded: the process dies first, a
    /// timeout or a cancel drops the subtask, a stalled or lost lease lets another worker run it, or
    /// Redis cannot record the success. A retried dead letter is a new event: its subtasks run anew.
    ///
    /// The value may have at most [`SUBTASK_VALUE_BYTES_MAX`] bytes of JSON. It counts towards
    /// [`EMITS_BYTES_MAX`](crate::handlers::EMITS_BYTES_MAX), the limit of all emits, results and
    /// values of the event. It is deleted when the event is finalized.
    ///
    /// A subtask is identified by its event and its name (1 to [`SUBTASK_BYTES_MAX`] bytes). If
    /// several handlers of the event name the same subtask, one runs it and the others wait. A
    /// subtask must not call itself: it would wait until the handler's timeout.
    ///
    /// The handlers of one event name at most [`SUBTASKS_MAX`] subtasks together, including those
    /// that finished in earlier runs. For more work, guard several steps by one subtask, or emit
    /// events whose handlers do the rest.
    ///
    /// Cancellation: if the future is dropped, the subtask is not finished, and runs again.
    ///
    /// # Errors
    /// - The error of the subtask itself. The subtask is then not finished.
    /// - A transient failure if Redis cannot record that the subtask is finished.
    /// - An unrecoverable failure if the value cannot be written as JSON, or is too large. The
    ///   subtask has run, but is not finished.
    /// - A transient failure if the stored value cannot be read as `R`, e.g. after a deploy that
    ///   changed `R`, or if an earlier version of seriatim stored no value and `R` cannot be read
    ///   from `null`. The subtask does not run. A version that can read the value can finish the
    ///   event.
    /// - A transient failure if the name is new and [`SUBTASKS_MAX`] names are already used. The
    ///   subtask does not run. Finished subtasks stay finished, so that a changed handler can
    ///   finish the event.
    /// - An unrecoverable failure if the name is empty or longer than [`SUBTASK_BYTES_MAX`].
    pub async fn once<R, E, F>(&self, subtask: &str, run: impl FnOnce() -> F) -> Result<R, Failure>
    where
        R: Serialize + DeserializeOwned,
        F: Future<Output = Result<R, E>>,
        Failure: From<E>,
    {
        if subtask.is_empty() || subtask.len() > SUBTASK_BYTES_MAX {
            let bytes = subtask.len();
            return Err(Failure::unrecoverable(format!(
                "the name of a subtask has 1 to {SUBTASK_BYTES_MAX} bytes, not {bytes}"
            )));
        }
        let Some(done) = self.run.subtask(subtask) else {
            // The name of the subtask comes last, because stored errors are cut at a maximum
            // length.
            return Err(Failure::transient(format!(
                "the handlers of one event name at most {SUBTASKS_MAX} subtasks, and this one more was not run: guard several steps by \
                 one subtask, or emit events whose handlers do the rest; subtasks that are done stay done; refused: {subtask:?}"
            )));
        };
        let mut done = done.lock().await;
        match &*done {
            Subtask::Unfinished => {}
            Subtask::Done(json) => return read_value(subtask, json),
            Subtask::DoneWithout => return read_value(subtask, b"null"),
        }
        let value = run().await?;
        let json = self.value_of(subtask, &value)?;
        self.run
            .keep(
                &format!("once:{subtask}"),
                With {
                    returned: Some(&json),
                    ..With::default()
                },
            )
            .await?;
        *done = Subtask::Done(json.into());
        Ok(value)
    }

    /// Returns the JSON text of a subtask's value, and takes the room for it.
    fn value_of(&self, subtask: &str, value: &impl Serialize) -> Result<Vec<u8>, Failure> {
        let refused = |why: String| {
            Failure::unrecoverable(format!(
                "the subtask {subtask:?} has run, but its value {why}"
            ))
        };
        let json = serde_json::to_vec(value)
            .map_err(|error| refused(format!("cannot be written as JSON: {error}")))?;
        if json.len() > SUBTASK_VALUE_BYTES_MAX {
            let bytes = json.len();
            return Err(refused(format!(
                "has {bytes} bytes of JSON, the limit is {SUBTASK_VALUE_BYTES_MAX}; keep it in a store, and return a reference"
            )));
        } else if !self.run.room.take_value(json.len()) {
            return Err(refused(format!(
                "does not fit: the emits, results and values of one event have at most {EMITS_BYTES_MAX} bytes together"
            )));
        }
        Ok(json)
    }
}

/// Reads the stored value of a finished subtask.
fn read_value<R: DeserializeOwned>(subtask: &str, json: &[u8]) -> Result<R, Failure> {
    serde_json::from_slice(json).map_err(|error| {
        Failure::transient(format!(
            "the subtask {subtask:?} is done, but its stored value cannot be read as {}: {error}; deploy a version that can read it",
            std::any::type_name::<R>()
        ))
    })
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
