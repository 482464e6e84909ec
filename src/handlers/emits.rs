//! The emits and results of an event's handlers. They are kept back until the handlers have
//! succeeded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::event::{DueError, EventError, NameError, ScheduleKeyError};
#[cfg(doc)]
use crate::sink::PROGRESS_BYTES_MAX;
use crate::wire::Emits;
use crate::wire::values::{Later, SCHEDULE_EVENTS};

/// Maximum number of events that the handlers of one event emit together. A scheduled event counts
/// twice.
pub const EMITS_MAX: usize = 1000;
/// Maximum number of bytes that the handlers of one event emit together: 2 MiB of object names and
/// events.
pub const EMITS_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Maximum number of bytes of a handler's result, as JSON: 64 KiB.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;

/// The reason why a handler cannot set its result. A result that was set earlier stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerResultError {
    /// The result has more than 64 KiB.
    #[error(
        "the result has {bytes} bytes of JSON, the limit is {bytes_max}; keep it in a store, and return a reference"
    )]
    TooLarge {
        /// The size of the result in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The text is not one JSON document.
    #[error("the result is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The value cannot be written as JSON.
    #[error("the result cannot be written as JSON: {0}")]
    Serialize(#[source] serde_json::Error),
    /// The emits and results of all handlers of the event together would have more than
    /// [`EMITS_BYTES_MAX`] bytes.
    #[error(
        "the results and emits of the handlers of one event have at most {EMITS_BYTES_MAX} bytes together"
    )]
    Full,
    /// The handler has ended or timed out. It must set its result before it ends.
    #[error("the handler has ended; it must set its result before it ends")]
    Ended,
}

/// The reason why a handler cannot report its progress. The progress that it reported earlier stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerProgressError {
    /// The progress has more than [`PROGRESS_BYTES_MAX`] bytes of JSON, is not JSON, or cannot be
    /// written as JSON.
    #[error("the progress is not reported: {0}")]
    Value(#[from] EventError),
    /// The handler has ended or timed out.
    #[error("the handler has ended; it must report its progress before it ends")]
    Ended,
}

impl From<EventError> for HandlerResultError {
    fn from(error: EventError) -> Self {
        match error {
            EventError::NotJson(error) => Self::NotJson(error),
            EventError::Serialize(error) => Self::Serialize(error),
            EventError::TooLarge { bytes, bytes_max } => Self::TooLarge { bytes, bytes_max },
        }
    }
}

/// The reason why a handler cannot emit an event. Events that it has emitted earlier stay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerEmitError {
    /// The object's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event is invalid.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The key of a schedule is invalid.
    #[error(transparent)]
    Key(#[from] ScheduleKeyError),
    /// The due time of a schedule is more than a hundred years away.
    #[error(transparent)]
    Due(#[from] DueError),
    /// All handlers of the event together would emit more than 1,000 events, or more than 2 MiB of
    /// object names and events.
    #[error(
        "the handlers of one event emit at most {EMITS_MAX} events with {EMITS_BYTES_MAX} bytes, object names included: \
         emit fewer, and let the handler of one of them emit the others"
    )]
    Full,
    /// The handler has ended or timed out. It must emit before it ends.
    #[error("the handler has ended; it must emit before it ends")]
    Ended,
}

/// The room for emits and results: the events and the bytes that the handlers of an event may still
/// add.
#[derive(Debug)]
pub(super) struct EmitRoom(Mutex<(usize, usize)>);

impl EmitRoom {
    /// Returns the room that is left after these stored emits, and after results of this many
    /// bytes.
    pub(super) fn beside((events, bytes): (usize, usize), results: usize) -> Self {
        let bytes_left = EMITS_BYTES_MAX
            .saturating_sub(bytes)
            .saturating_sub(results);
        Self(Mutex::new((EMITS_MAX.saturating_sub(events), bytes_left)))
    }

    fn take(&self, events: usize, bytes: usize) -> Result<(), HandlerEmitError> {
        let mut left = locked(&self.0);
        if left.0 < events || left.1 < bytes {
            return Err(HandlerEmitError::Full);
        }
        *left = (left.0 - events, left.1 - bytes);
        Ok(())
    }

    /// Takes room for a result of `bytes` bytes, and gives back the room of the handler's former
    /// result, which has `before` bytes.
    fn exchange(&self, before: usize, bytes: usize) -> Result<(), HandlerResultError> {
        let mut left = locked(&self.0);
        left.1 = (left.1 + before)
            .checked_sub(bytes)
            .ok_or(HandlerResultError::Full)?;
        Ok(())
    }

    /// Takes room for the value of a subtask. Returns whether there was enough.
    pub(super) fn take_value(&self, bytes: usize) -> bool {
        self.take(0, bytes).is_ok()
    }

    /// Gives back the room of a failed handler. The emits and the result of this handler are
    /// discarded.
    pub(super) fn give_back(&self, done: &Done) {
        let mut left = locked(&self.0);
        *left = (
            left.0 + done.emits.events(),
            left.1 + done.emits.bytes() + done.result_bytes(),
        );
    }
}

/// The emits and the result of one handler.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) emits: Emits,
    pub(super) result: Option<Bytes>,
}

impl Done {
    fn result_bytes(&self) -> usize {
        self.result.as_ref().map_or(0, Bytes::len)
    }
}

/// The emits and the result of a running handler; `None` when the handler has ended.
#[derive(Debug, Clone)]
pub(super) struct Emitting(Arc<Mutex<Option<Done>>>);

impl Emitting {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Done::default()))))
    }

    pub(super) fn push(
        &self,
        room: &EmitRoom,
        object: &str,
        event: &[u8],
    ) -> Result<(), HandlerEmitError> {
        let mut emitting = locked(&self.0);
        let done = emitting.as_mut().ok_or(HandlerEmitError::Ended)?;
        room.take(1, object.len() + event.len())?;
        done.emits.push(object.as_bytes(), event);
        Ok(())
    }

    pub(super) fn push_later(
        &self,
        room: &EmitRoom,
        object: &str,
        event: &[u8],
        later: Later<'_>,
    ) -> Result<(), HandlerEmitError> {
        let mut emitting = locked(&self.0);
        let done = emitting.as_mut().ok_or(HandlerEmitError::Ended)?;
        room.take(
            SCHEDULE_EVENTS,
            object.len() + event.len() + later.key.len(),
        )?;
        done.emits.push_later(object.as_bytes(), event, later);
        Ok(())
    }

    pub(super) fn push_cancel(
        &self,
        room: &EmitRoom,
        object: &str,
        key: &str,
    ) -> Result<(), HandlerEmitError> {
        let mut emitting = locked(&self.0);
        let done = emitting.as_mut().ok_or(HandlerEmitError::Ended)?;
        room.take(SCHEDULE_EVENTS, object.len() + key.len())?;
        done.emits.push_cancel(object.as_bytes(), key.as_bytes());
        Ok(())
    }

    pub(super) fn set_result(
        &self,
        room: &EmitRoom,
        result: Bytes,
    ) -> Result<(), HandlerResultError> {
        let mut emitting = locked(&self.0);
        let done = emitting.as_mut().ok_or(HandlerResultError::Ended)?;
        room.exchange(done.result_bytes(), result.len())?;
        done.result = Some(result);
        Ok(())
    }

    /// Returns whether the handler has ended.
    pub(super) fn is_over(&self) -> bool {
        locked(&self.0).is_none()
    }

    pub(super) fn end(&self) -> Done {
        locked(&self.0).take().unwrap_or_default()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that all handlers of an event share the limits, and that a failed handler gives its
    /// room back.
    #[test]
    fn room_is_shared_and_given_back() {
        let room = EmitRoom::beside((998, 0), 0);
        let (first, second) = (Emitting::new(), Emitting::new());
        first.push(&room, "a", b"1").expect("room");
        second.push(&room, "a", b"1").expect("room");
        assert!(matches!(
            second.push(&room, "a", b"1"),
            Err(HandlerEmitError::Full)
        ));
        room.give_back(&first.end());
        assert!(matches!(
            first.push(&room, "a", b"1"),
            Err(HandlerEmitError::Ended)
        ));
        second.push(&room, "a", b"1").expect("room");
        assert_eq!(second.end().emits.events(), 2);
        let room = EmitRoom::beside((0, EMITS_BYTES_MAX - 10), 6);
        let all = Emitting::new();
        assert!(matches!(
            all.push(&room, "ab", b"123"),
            Err(HandlerEmitError::Full)
        ));
        all.push(&room, "ab", b"12").expect("room");
        assert!(matches!(
            all.push(&room, "", b"1"),
            Err(HandlerEmitError::Full)
        ));
        // A worker with higher limits may have stored more than this worker allows.
        assert!(matches!(
            all.push(&EmitRoom::beside((2000, usize::MAX), usize::MAX), "", b""),
            Err(HandlerEmitError::Full)
        ));
    }

    /// Tests that a new result gives back the room of the former result, and that results and emits
    /// share the room.
    #[test]
    fn a_result_has_its_place_in_the_room() {
        let room = EmitRoom::beside((0, EMITS_BYTES_MAX - 4), 0);
        let doing = Emitting::new();
        doing
            .set_result(&room, Bytes::from_static(b"123"))
            .expect("room");
        assert!(matches!(
            doing.set_result(&room, Bytes::from_static(b"12345")),
            Err(HandlerResultError::Full)
        ));
        doing
            .set_result(&room, Bytes::from_static(b"12"))
            .expect("room");
        assert!(matches!(
            doing.push(&room, "a", b"12"),
            Err(HandlerEmitError::Full)
        ));
        doing.push(&room, "a", b"1").expect("room");
        let done = doing.end();
        assert_eq!(done.result.as_deref(), Some(&b"12"[..]));
        room.give_back(&done);
        Emitting::new()
            .set_result(&room, Bytes::from_static(b"1234"))
            .expect("room");
        assert!(matches!(
            doing.set_result(&room, Bytes::new()),
            Err(HandlerResultError::Ended)
        ));
    }
}
