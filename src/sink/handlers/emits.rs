//! What the handlers of an event emit: kept back until they have succeeded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{EventError, NameError};
use crate::scripts::Emits;

/// The most events that the handlers of one event emit together.
pub const EMITS_MAX: usize = 1000;
/// The most bytes that they emit together, of objects' names and events: 8 MiB.
pub const EMITS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Why a handler cannot emit an event. Nothing of it is kept; what the handler emitted before stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerEmitError {
    /// The object's name is refused.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The event is refused.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The handlers of the event have emitted so much that this would be more than 1,000 events, or 8 MiB of objects' names and events.
    #[error(
        "the handlers of one event emit at most {EMITS_MAX} events with {EMITS_BYTES_MAX} bytes, names of objects included: \
         emit fewer, and let the handler of one of them emit the others"
    )]
    Full,
    /// The handler has ended, or its time was over: what it emits belongs to its success.
    #[error("the handler has ended; what it emits it must emit before")]
    Ended,
}

/// How much the handlers of an event may still emit.
#[derive(Debug)]
pub(super) struct Room(Mutex<(usize, usize)>);

impl Room {
    /// What is left beside these.
    pub(super) fn beside((events, bytes): (usize, usize)) -> Self {
        Self(Mutex::new((EMITS_MAX.saturating_sub(events), EMITS_BYTES_MAX.saturating_sub(bytes))))
    }

    fn take(&self, bytes: usize) -> Result<(), HandlerEmitError> {
        let mut left = locked(&self.0);
        if left.0 == 0 || left.1 < bytes {
            return Err(HandlerEmitError::Full);
        }
        *left = (left.0 - 1, left.1 - bytes);
        Ok(())
    }

    /// A handler has failed: it has emitted nothing.
    pub(super) fn give_back(&self, emits: &Emits) {
        let mut left = locked(&self.0);
        *left = (left.0 + emits.events(), left.1 + emits.bytes());
    }
}

/// What one handler has emitted; nothing more once it has ended.
#[derive(Debug, Clone)]
pub(super) struct Emitting(Arc<Mutex<Option<Emits>>>);

impl Emitting {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Emits::default()))))
    }

    pub(super) fn push(&self, room: &Room, object: &str, event: &[u8]) -> Result<(), HandlerEmitError> {
        let mut emitting = locked(&self.0);
        let emits = emitting.as_mut().ok_or(HandlerEmitError::Ended)?;
        room.take(object.len() + event.len())?;
        emits.push(object.as_bytes(), event);
        Ok(())
    }

    pub(super) fn end(&self) -> Emits {
        locked(&self.0).take().unwrap_or_default()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits are those of all handlers of an event together; one that fails gives back what it took.
    #[test]
    fn room_is_shared_and_given_back() {
        let room = Room::beside((998, 0));
        let (first, second) = (Emitting::new(), Emitting::new());
        first.push(&room, "a", b"1").expect("room");
        second.push(&room, "a", b"1").expect("room");
        assert!(matches!(second.push(&room, "a", b"1"), Err(HandlerEmitError::Full)));
        room.give_back(&first.end());
        assert!(matches!(first.push(&room, "a", b"1"), Err(HandlerEmitError::Ended)));
        second.push(&room, "a", b"1").expect("room");
        assert_eq!(second.end().events(), 2);
        let room = Room::beside((0, EMITS_BYTES_MAX - 4));
        let all = Emitting::new();
        assert!(matches!(all.push(&room, "ab", b"123"), Err(HandlerEmitError::Full)));
        all.push(&room, "ab", b"12").expect("room");
        assert!(matches!(all.push(&room, "", b"1"), Err(HandlerEmitError::Full)));
        // Whoever wrote what is kept may have had other limits.
        assert!(matches!(all.push(&Room::beside((2000, usize::MAX)), "", b""), Err(HandlerEmitError::Full)));
    }
}
