//! Finds how the last events of an object ended, as far as the event log and the dead letters still
//! show it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::chain::{self, Look, Position};
use super::{Control, ControlError, RowEvent, RowId, reply};
use crate::event::EventStatus;

/// Number of log rows that [`Control::ended`] reads, and also of dead letters. It reads the newest
/// ones.
pub const ROWS_MAX: u64 = 1000;
/// Maximum number of events that [`Control::ended`] returns.
pub const EVENTS_MAX: usize = 5;

/// A finalized event.
///
/// It serializes as
/// `{"id":12,"prev":7,"status":"dead","attempts":3,"error":"…","taken_ms":1690,"at_ms":1700,"dead_id":"1700-0"}`.
/// If handlers had results, `"results":{"mail":…}` follows the error. An event that was read is at
/// the end, in the form of [`RowEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EndedEvent {
    /// Id of the event; none if the row lacks it.
    pub id: Option<u64>,
    /// Id of the event of this object that was delivered last before this event.
    pub prev: Option<u64>,
    /// Result of the event.
    pub status: EventStatus,
    /// Number of failed attempts: deliveries that ended as transient.
    pub attempts: Option<u64>,
    /// Last error; none if the event was delivered.
    pub error: Option<String>,
    /// Results of its handlers, as one JSON object as in the log. None if there are no results, or
    /// if they exceed 64 KiB.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "reply::as_json"
    )]
    pub results: Option<String>,
    /// Time at which the worker that finalized the event had taken it, ms since the epoch by Redis'
    /// clock; none for a dead letter without a log row, or if an operator skipped the event.
    pub taken_ms: Option<u64>,
    /// Time when the event was finalized, ms since the epoch by Redis' clock.
    pub at_ms: u64,
    /// Id of the dead letter of this event, if the dead letter still exists.
    pub dead_id: Option<RowId>,
    /// The event, or its beginning; none if it was not read. [`Control::ended`] reads no events.
    #[serde(flatten)]
    pub event: Option<RowEvent>,
}

impl EndedEvent {
    /// Returns the results by handler id, each as JSON text on one line. Empty if there are no
    /// results.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results
            .as_deref()
            .map(reply::members)
            .unwrap_or_default()
    }
}

/// The result of [`Control::ended`]: events, and the number of rows read to find them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Ended {
    /// The object's last finalized events, highest ids first; at most [`EVENTS_MAX`].
    pub events: Vec<EndedEvent>,
    /// Number of log rows that were read, newest first.
    pub log_rows: u64,
    /// Number of dead letters that were read, newest first.
    pub dead_letters: u64,
    /// Whether all rows and all dead letters were read. If not, the oldest of them were not read.
    pub complete: bool,
    /// Keys of a wrong type, which could not be read.
    pub unreadable: Vec<String>,
}

impl Control {
    /// Looks for the object's last events in the newest [`ROWS_MAX`] rows of the event log and in
    /// the newest [`ROWS_MAX`] dead letters; with [`Control::with_event_bytes_max`], in an eighth of
    /// them. Stops in each of the two when [`EVENTS_MAX`] events
    /// are found. Without `--event-log`, the log has only events completed with errors.
    ///
    /// Each step reads up to 100 rows or 1 MiB, and returns only the rows of the object. The call
    /// only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name. Other errors if Redis cannot be asked. A
    /// stream of a wrong type is not an error: it is listed in `unreadable`.
    pub async fn ended(&self, object: impl AsRef<[u8]>) -> Result<Ended, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let object = keys.found(&object)?;
        let looked_max = if self.event_bytes_max > 0 {
            ROWS_MAX / 8
        } else {
            ROWS_MAX
        };
        let look = Look {
            object,
            looked_max,
            found_max: EVENTS_MAX,
            ends_by_bytes: false,
            event_bytes_max: None,
        };
        let log = look
            .run(&mut conn, keys, keys.event_log(), Position::Start)
            .await?;
        let dead = look
            .run(&mut conn, keys, keys.events_dead(), Position::Start)
            .await?;
        let mut ended = Ended {
            log_rows: log.looked,
            dead_letters: dead.looked,
            complete: [&log, &dead]
                .iter()
                .all(|side| side.is_complete() || side.is_wrong_type),
            ..Ended::default()
        };
        for (side, key) in [(&log, keys.event_log()), (&dead, keys.events_dead())] {
            ended.unreadable.extend(side.is_wrong_type.then_some(key));
        }
        let pairs = chain::paired(&log, &dead);
        let mut letters: Vec<Option<(RowId, EndedEvent)>> =
            dead.rows.into_iter().map(Some).collect();
        for ((_, event), pair) in log.rows.into_iter().zip(pairs) {
            let dead_id = pair.and_then(|letter| Some(letters.get_mut(letter)?.take()?.0));
            ended.events.push(EndedEvent { dead_id, ..event });
        }
        let letters = letters.into_iter().flatten();
        ended
            .events
            .extend(letters.map(|(dead_id, letter)| EndedEvent {
                dead_id: Some(dead_id),
                ..letter
            }));
        ended
            .events
            .sort_by_key(|event| Reverse((event.id, event.at_ms)));
        ended.events.truncate(EVENTS_MAX);
        Ok(ended)
    }
}
