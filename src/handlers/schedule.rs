//! A schedule that is set or cancelled together with the success of a handler.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::context::HandlerContext;
use super::emits::HandlerEmitError;
use crate::event::{EVENT_BYTES_MAX, IntoEvent, ObjectName, ScheduleKey, check_after, check_due};
use crate::wire::values::{Due, Later, LaterMode};

/// A schedule of a handler, under construction. [`HandlerContext::schedule`] makes it.
#[derive(Debug)]
#[must_use = "nothing is scheduled without add()"]
pub struct HandlerSchedule<'a> {
    cx: &'a HandlerContext,
    event: Result<(ObjectName, Bytes), HandlerEmitError>,
    key: Option<Result<ScheduleKey, HandlerEmitError>>,
    mode: LaterMode,
    due: Due,
}

impl HandlerContext {
    /// Begins a schedule of an event for any object. The event is queued when it is due. Without
    /// [`at`](HandlerSchedule::at) or [`after`](HandlerSchedule::after) the event is due at once.
    ///
    /// Like an [emit](Self::emit), the schedule belongs to the success of the handler. The step
    /// that finalizes the handler's event sets the schedule. If the handler fails, or its process
    /// dies, the schedule is discarded.
    ///
    /// ```no_run
    /// # use seriatim::handlers::{Failure, HandlerContext};
    /// # use std::time::Duration;
    /// # fn handle(cx: &HandlerContext) -> Result<(), Failure> {
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// cx.schedule(cx.object(), &serde_json::json!({"type": "remind"})).after(7 * day).key("reminder").add()?;
    /// # Ok(()) }
    /// ```
    pub fn schedule(&self, object: impl AsRef<str>, event: impl IntoEvent) -> HandlerSchedule<'_> {
        let object = self.object_named(object.as_ref());
        let event = object.and_then(|object| Ok((object, event.into_event(EVENT_BYTES_MAX)?)));
        HandlerSchedule {
            cx: self,
            event,
            key: None,
            mode: LaterMode::Replace,
            due: Due::At(0),
        }
    }

    /// Cancels the object's schedule with this key, if there is one when the handler's event is
    /// finalized. Like an [emit](Self::emit), this belongs to the success of the handler. It counts as
    /// two emits. Cancels and schedules of a handler take effect in the order of the calls.
    ///
    /// An event that a worker has taken already is not cancelled, also if it waits for a retry.
    /// [`Emitter::cancel`](crate::emit::Emitter::cancel) ends such an event.
    ///
    /// # Errors
    /// As [`emit`](Self::emit), and [`HandlerEmitError::Key`].
    pub fn cancel_schedule(
        &self,
        object: impl AsRef<str>,
        key: impl Into<String>,
    ) -> Result<(), HandlerEmitError> {
        let object = self.object_named(object.as_ref())?;
        let key = ScheduleKey::new(key)?;
        self.emitting
            .push_cancel(&self.run.room, object.as_str(), key.as_str())
    }
}

impl HandlerSchedule<'_> {
    /// Sets the point in time at which the event is due, by Redis' clock.
    pub fn at(mut self, time: SystemTime) -> Self {
        self.due = Due::At(millis(time.duration_since(UNIX_EPOCH).unwrap_or_default()));
        self
    }

    /// Makes the event due after this time, by Redis' clock. The time counts from the step that
    /// finalizes the handler's event.
    pub fn after(mut self, time: Duration) -> Self {
        self.due = Due::After(millis(time));
        self
    }

    /// Sets the key, as [`Schedule::key`](crate::emit::Schedule::key). If the object already has a
    /// schedule with this key, that schedule is replaced.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(ScheduleKey::new(key).map_err(HandlerEmitError::from));
        self
    }

    /// If the object already has a schedule with this key, replaces only its event and keeps its
    /// time.
    pub fn keep_time(mut self) -> Self {
        self.mode = LaterMode::KeepTime;
        self
    }

    /// If the object already has a schedule with this key, changes nothing.
    pub fn keep_first(mut self) -> Self {
        self.mode = LaterMode::KeepFirst;
        self
    }

    /// Adds the schedule to the emits of the handler, which take effect with its success. Returns
    /// the key.
    ///
    /// # Errors
    /// As [`HandlerContext::emit`], [`HandlerEmitError::Key`] and [`HandlerEmitError::Due`]. A schedule counts as two emits,
    /// and the bytes of its key count, too.
    pub fn add(self) -> Result<ScheduleKey, HandlerEmitError> {
        let (object, event) = self.event?;
        match self.due {
            Due::At(ms) => check_due(ms)?,
            Due::After(ms) => check_after(Duration::from_millis(ms))?,
        }
        let key = self.key.unwrap_or_else(|| Ok(ScheduleKey::unique()))?;
        let later = Later {
            key: key.as_str().as_bytes(),
            mode: self.mode,
            due: self.due,
        };
        self.cx
            .emitting
            .push_later(&self.cx.run.room, object.as_str(), &event, later)?;
        Ok(key)
    }
}

/// Returns a duration in ms, rounded up, so that no event comes early. A longer time than the
/// largest time of a schedule is cut to it.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000))
        .unwrap_or(u64::MAX)
        .min(crate::event::ID_END - 1)
}
