//! Finds how the last events of an object ended, as far as the event log and the dead letters still
//! show it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use redis::Value;
use redis::aio::ConnectionLike;
use serde::Serialize;

use super::log::LogStatus;
use super::{Control, ControlError, RowId, reply};
use crate::keys::Keys;
use crate::wire;

/// Number of log rows that [`Control::ended`] reads, and also of dead letters. It reads the newest
/// ones.
pub const ROWS_MAX: u64 = 1000;
/// Maximum number of events that [`Control::ended`] returns.
pub const EVENTS_MAX: usize = 5;

/// Maximum number of rows that one call of the script reads. It is small, because events may be
/// large.
const PER_CALL: u64 = 100;

/// A finalized event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EndedEvent {
    /// Id of the event; none if the row lacks it.
    pub id: Option<u64>,
    /// Result of the event.
    pub status: LogStatus,
    /// Number of failed deliveries.
    pub attempts: Option<u64>,
    /// Last error; none if the event was delivered.
    pub error: Option<String>,
    /// Results of its handlers, as one JSON object as in the log. None if there are no results, or
    /// if they exceed 64 KiB.
    #[serde(serialize_with = "reply::as_json", skip_serializing_if = "Option::is_none")]
    pub results: Option<String>,
    /// Time when the event was finalized, ms since the epoch by Redis' clock.
    pub at_ms: u64,
    /// Id of the dead letter of this event, if the dead letter still exists.
    pub dead_id: Option<RowId>,
}

impl EndedEvent {
    /// Returns the results by handler id, each as JSON text on one line. Empty if there are no
    /// results.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results.as_deref().map(reply::members).unwrap_or_default()
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
    /// the newest [`ROWS_MAX`] dead letters. Stops in each of the two when [`EVENTS_MAX`] events
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
        let mut ended = Ended { complete: true, ..Ended::default() };
        let logged = look(&mut conn, keys, object, keys.event_log(), &mut ended).await?;
        ended.log_rows = logged.looked;
        let dead = look(&mut conn, keys, object, keys.events_dead(), &mut ended).await?;
        ended.dead_letters = dead.looked;
        ended.events = logged.rows.into_iter().map(|(_, event)| event).collect();
        for (dead_id, letter) in dead.rows {
            let is_it = |event: &&mut EndedEvent| {
                event.dead_id.is_none() && event.status == LogStatus::Dead && event.id.is_some() && event.id == letter.id
            };
            match ended.events.iter_mut().find(is_it) {
                Some(event) => event.dead_id = Some(dead_id),
                None => ended.events.push(EndedEvent { dead_id: Some(dead_id), ..letter }),
            }
        }
        ended.events.sort_by_key(|event| Reverse((event.id, event.at_ms)));
        ended.events.truncate(EVENTS_MAX);
        Ok(ended)
    }
}

/// Rows of the object in one stream, newest first.
#[derive(Default)]
struct Found {
    rows: Vec<(RowId, EndedEvent)>,
    looked: u64,
}

async fn look<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    object: &[u8],
    stream: String,
    ended: &mut Ended,
) -> Result<Found, ControlError> {
    const WHAT: &str = "lua/operator/ended.lua";
    let (mut found, mut from) = (Found::default(), "+".to_owned());
    while found.looked < ROWS_MAX && found.rows.len() < EVENTS_MAX {
        let count = PER_CALL.min(ROWS_MAX - found.looked);
        let mut ask = wire::ENDED.invoke();
        ask.key(&stream);
        ask.arg(keys.prefix()).arg(object).arg(&from).arg(count).arg(EVENTS_MAX - found.rows.len());
        let answer: Value = match ask.invoke_async(conn).await {
            Ok(answer) => answer,
            Err(error) if error.to_string().contains("WRONGTYPE") => {
                ended.unreadable.push(stream);
                return Ok(found);
            }
            Err(error) => return Err(ControlError::redis(WHAT)(error)),
        };
        let items = reply::after("ended", answer).map_err(|answer| ControlError::reply(WHAT, answer))?;
        let (looked, last, more, rows) =
            page(items).ok_or_else(|| ControlError::reply(WHAT, "it is not a count, an id and rows"))?;
        found.looked += looked;
        found.rows.extend(rows);
        if !more && looked < count && found.rows.len() < EVENTS_MAX {
            return Ok(found);
        }
        from = format!("({last}");
    }
    ended.complete = false;
    Ok(found)
}

type Page = (u64, String, bool, Vec<(RowId, EndedEvent)>);

fn page(items: Vec<Value>) -> Option<Page> {
    let mut items = items.into_iter();
    let (looked, last) = (reply::number(&items.next()?)?, reply::text(&items.next()?)?);
    let more = reply::number(&items.next()?)? > 0;
    Some((looked, last, more, items.map(row).collect::<Option<_>>()?))
}

fn row(item: Value) -> Option<(RowId, EndedEvent)> {
    let [row_id, status, id, attempts, error, results] = <[Value; 6]>::try_from(reply::array(item)?).ok()?;
    let row_id = reply::text(&row_id)?;
    let event = EndedEvent {
        id: reply::number(&id),
        status: LogStatus::of(reply::text(&status)?),
        attempts: reply::number(&attempts),
        error: reply::text(&error).filter(|error| !error.is_empty()),
        results: reply::text(&results).filter(|results| !results.is_empty()),
        at_ms: row_id.split('-').next()?.parse().ok()?,
        dead_id: None,
    };
    Some((row_id.into(), event))
}
