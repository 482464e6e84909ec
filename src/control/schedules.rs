//! Schedules: events that are queued when they are due. They are listed, and an operator cancels
//! one.

use serde::Serialize;

use super::{By, Control, ControlError, Cursor, RowEvent};
use crate::escape;
use crate::event::{ScheduleKey, object_and_key};
pub use crate::wire::operator::CancelledSchedule;
use crate::wire::operator::{self, Range, ScheduledReply};
use crate::wire::values::DueTime;

/// Maximum number of schedules that one call reads. If an object has few schedules,
/// [`Control::schedules_of`] may return all of them, up to 128.
pub const PER_CALL_MAX: usize = 100;

/// A scheduled event.
///
/// It serializes as `{"object":"work:1","key":"reminder","due_ms":1700,"event":{…}}`. If the escaped
/// key differs from the key, `key_escaped` has the escaped key. If the event
/// is queued, `"queued":true` is added. An event above 8 KiB is left out, and `event_bytes` has its
/// size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScheduledEvent {
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Key of the schedule; bytes that are not UTF-8 are shown as U+FFFD. A key that begins with `-`
    /// was made by the emitter.
    pub key: String,
    /// [Escaped](crate::escape::name) form of `key`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_escaped: Option<String>,
    /// Due time, ms since the epoch; none if the schedule is due at once, or broken, which
    /// [`Control::check`] reports. If the event is already queued, the time at which it was queued.
    pub due_ms: Option<u64>,
    /// Whether the schedule is due at once, without a due time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// Whether the event is already queued and no worker has taken it yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queued: bool,
    /// The event; left out if it has more than 8 KiB.
    #[serde(flatten)]
    pub event: RowEvent,
}

/// One page of schedules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SchedulePage {
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// The schedules. A page of all objects is sorted by due time; a page of one object has no
    /// order.
    pub schedules: Vec<ScheduledEvent>,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

impl Control {
    /// Reads up to `count` schedules (1 to [`PER_CALL_MAX`]) of all objects, by due time. Reads
    /// only schedules whose events are not queued yet, and that are due from `from_ms` to `to_ms`,
    /// both included. Begins after the position `after`; without `after`, at the beginning.
    ///
    /// A schedule whose due time changes between two pages may be missed, or be in both pages. The
    /// call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list. Other errors if Redis
    /// cannot be asked, or if `events.scheduled` is not a sorted set.
    pub async fn schedules(
        &self,
        from_ms: Option<u64>,
        to_ms: Option<u64>,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<SchedulePage, ControlError> {
        let count = count.clamp(1, PER_CALL_MAX);
        let after = after.map(place).transpose()?;
        let after = after
            .as_ref()
            .map(|(due, member)| (due.as_str(), member.as_slice()));
        let range = Range::All {
            from: from_ms,
            to: to_ms,
            after,
        };
        let page = operator::scheduled(&mut self.connection(), &self.keys, range, count).await?;
        let last = page
            .schedules
            .last()
            .filter(|_| page.schedules.len() == count);
        let next = last
            .map(|last| Cursor::from(format!("{DUE}{} {}", last.due, escape::name(&last.member))));
        Ok(SchedulePage {
            now_ms: page.now_ms,
            schedules: page.schedules.into_iter().map(event).collect(),
            next,
        })
    }

    /// Reads about `count` schedules (1 to [`PER_CALL_MAX`]) of one object, in no order. Includes
    /// schedules whose events are queued. A page may be empty although a next page exists.
    ///
    /// The cost grows only with the number of schedules of this object. The call only reads, and
    /// may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name, otherwise as
    /// [`schedules`](Self::schedules).
    pub async fn schedules_of(
        &self,
        object: impl AsRef<[u8]>,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<SchedulePage, ControlError> {
        let object = self.keys.found(&object)?;
        let wrong = |cursor: &Cursor| ControlError::Cursor(cursor.to_string());
        let number = |cursor: &Cursor| {
            let number = cursor
                .as_str()
                .strip_prefix(SCAN)
                .and_then(|text| text.parse().ok());
            number.ok_or_else(|| wrong(cursor))
        };
        let cursor = after.map(number).transpose()?.unwrap_or(0);
        let range = Range::Object { object, cursor };
        let page = operator::scheduled(
            &mut self.connection(),
            &self.keys,
            range,
            count.clamp(1, PER_CALL_MAX),
        )
        .await?;
        let next = (page.cursor != 0).then(|| Cursor::from(format!("{SCAN}{}", page.cursor)));
        Ok(SchedulePage {
            now_ms: page.now_ms,
            schedules: page.schedules.into_iter().map(event).collect(),
            next,
        })
    }

    /// Cancels the schedule of the object with this key. Works until a worker takes the event, and
    /// again while the event waits for a retry or an operator, as
    /// [`Emitter::cancel`](crate::Emitter::cancel). Emits of the event's successful handlers are
    /// queued, and the event becomes no dead letter. The step is recorded in the
    /// [actions](Control::actions), unless nothing has changed.
    ///
    /// The call is one atomic step. Calling again is safe.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name, and [`ControlError::ScheduleKey`] for an
    /// invalid key. Other errors if Redis cannot be asked or forbids it, or if a key has a wrong
    /// type; then nothing was done.
    pub async fn cancel_schedule(
        &self,
        by: By<'_>,
        object: impl AsRef<[u8]>,
        key: &str,
    ) -> Result<CancelledSchedule, ControlError> {
        let (object, key) = (
            self.keys.found(&object)?,
            ScheduleKey::new(key).map_err(ControlError::ScheduleKey)?,
        );
        Ok(operator::cancel(&mut self.connection(), &self.keys, by, object, key.as_str()).await?)
    }
}

/// Beginning of a cursor of the schedules of all objects. The due time, a blank and the member
/// follow it.
const DUE: &str = "scheduled ";
/// Beginning of a cursor of one object's schedules. The cursor of HSCAN follows it.
const SCAN: &str = "schedules ";

fn place(cursor: &Cursor) -> Result<(String, Vec<u8>), ControlError> {
    let read = || {
        let (due, member) = cursor.as_str().strip_prefix(DUE)?.split_once(' ')?;
        due.parse::<f64>().ok()?;
        Some((due.to_owned(), escape::unescaped(member).ok()?))
    };
    read().ok_or_else(|| ControlError::Cursor(cursor.to_string()))
}

fn event(found: ScheduledReply) -> ScheduledEvent {
    let (object, key) = object_and_key(&found.member).unwrap_or((&[], &found.member));
    let due = found.due.parse().ok().map(DueTime::read);
    ScheduledEvent {
        object: String::from_utf8_lossy(object).into_owned(),
        object_escaped: escape::differing(object),
        key: String::from_utf8_lossy(key).into_owned(),
        key_escaped: escape::differing(key),
        due_ms: due.and_then(DueTime::ms),
        at_once: due == Some(DueTime::AtOnce),
        event: RowEvent::if_whole(found.event, found.event_bytes),
        queued: found.is_queued,
    }
}
