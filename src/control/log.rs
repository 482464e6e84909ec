//! The event log: the result of each finalized event, in the order of finalizing. Workers write it
//! if their event log is on.
//!
//! The step that finalizes an event writes its row, exactly once. Row ids give the order. The
//! oldest rows are trimmed.

use std::collections::BTreeMap;
use std::fmt;

use redis::Value;
use redis::aio::ConnectionLike;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::{Control, ControlError, Cursor, RowId, reply};
use crate::escape;
use crate::wire;

/// Maximum number of rows that one call reads. Events may be large.
pub const PER_CALL_MAX: usize = 100;

/// The result of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogStatus {
    /// The event was delivered.
    Completed,
    /// The attempts were used up, and the retry policy completes the event.
    CompletedWithErrors,
    /// The event went to the dead letters.
    Dead,
    /// The event was cancelled by its key while it waited for a retry or an operator.
    Cancelled,
    /// A word that this version does not know.
    Other(String),
}

impl LogStatus {
    /// Returns the word used in the log.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed_with_errors",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        }
    }

    pub(super) fn of(word: String) -> Self {
        match word.as_str() {
            "completed" => Self::Completed,
            "completed_with_errors" => Self::CompletedWithErrors,
            "dead" => Self::Dead,
            "cancelled" => Self::Cancelled,
            _ => Self::Other(word),
        }
    }
}

impl Serialize for LogStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for LogStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One row of the log. A field that a row lacks is `None` or empty.
///
/// A row serializes as
/// `{"log_id":"1700-0","status":"completed","id":12,"prev":7,"object":"work:1","event":{…},"error":null,"attempts":0,"taken_ms":1690,
/// "finalized_ms":1700}`.
/// The event has the form of a [dead letter](super::DeadLetter)'s event. If handlers had results,
/// `"results":{"mail":…}` follows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// Id of the row.
    pub log_id: RowId,
    /// Result of the event.
    pub status: LogStatus,
    /// Id of the event.
    pub id: Option<u64>,
    /// Id of the last event of the object that was delivered before.
    pub prev: Option<u64>,
    /// The object.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    pub object_escaped: Option<String>,
    /// The event, byte for byte.
    pub event: Vec<u8>,
    /// Last error; none if the event was delivered.
    pub error: Option<String>,
    /// Number of failed deliveries.
    pub attempts: Option<u64>,
    /// Time at which the finalizing worker took the event, ms since the epoch by Redis' clock; none
    /// if an operator skipped it.
    pub taken_ms: Option<u64>,
    /// Results of the successful handlers by handler id: the text of one JSON object. None if no
    /// handler had a result.
    pub results: Option<String>,
    /// Time at which the event was finalized, ms since the epoch by Redis' clock. Never less than
    /// in the row before, even if that clock was set back.
    pub finalized_ms: u64,
}

impl LogEntry {
    /// Returns the JSON text, on one line, of a top-level member of the event, e.g. its own time.
    /// None if the member is absent or the event is not a JSON object. If the member occurs twice,
    /// the last one counts.
    pub fn member(&self, name: &str) -> Option<String> {
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.event).ok()?;
        members.get(name).map(|value| value.get().replace(['\r', '\n'], " "))
    }
}

impl LogEntry {
    /// Returns the results by handler id, as JSON text on one line each. Empty without results.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results.as_deref().map(reply::members).unwrap_or_default()
    }

    /// Returns the result of a handler as JSON text on one line; none if it had no result.
    pub fn result(&self, handler: &str) -> Option<String> {
        self.results().remove(handler)
    }
}

impl Serialize for LogEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("log_id", &self.log_id)?;
        line.serialize_entry("status", self.status.as_str())?;
        line.serialize_entry("id", &self.id)?;
        line.serialize_entry("prev", &self.prev)?;
        line.serialize_entry("object", &self.object)?;
        if let Some(escaped) = &self.object_escaped {
            line.serialize_entry("object_escaped", escaped)?;
        }
        reply::serialize_event(&mut line, &self.event)?;
        line.serialize_entry("error", &self.error)?;
        line.serialize_entry("attempts", &self.attempts)?;
        line.serialize_entry("taken_ms", &self.taken_ms)?;
        line.serialize_entry("finalized_ms", &self.finalized_ms)?;
        if let Some(results) = &self.results {
            line.serialize_entry("results", &reply::AsJson(results))?;
        }
        line.end()
    }
}

/// A page of the log, and counts of the whole log at the same moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogPage {
    /// The rows.
    pub entries: Vec<LogEntry>,
    /// Number of rows ever written.
    pub written: u64,
    /// Number of rows present. The others, the oldest, were trimmed.
    pub kept: u64,
    /// End of the log. Later rows come after it.
    pub end: Cursor,
    /// Cursor of the next page; none if there are no more rows yet. To follow the log, continue
    /// after the last row that was read.
    pub next: Option<Cursor>,
}

impl LogPage {
    /// Returns whether the whole log ends before `cursor`. Then Redis has lost rows, or the cursor
    /// is in the future. A reader that continues at the cursor may then miss the next rows. False
    /// for text that is not a cursor of a log.
    pub fn ends_before(&self, cursor: &Cursor) -> bool {
        let place = |id: &str| id.split_once('-').and_then(|(ms, n)| Some((ms.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
        matches!((place(self.end.as_str()), place(cursor.as_str())), (Some(end), Some(cursor)) if end < cursor)
    }
}

impl Control {
    /// Reads up to `count` rows (1 to [`PER_CALL_MAX`]), oldest first. Begins after the position
    /// `after`, whose row may be absent, or at the oldest row without it. A page has fewer rows if
    /// there are no more yet, or if they exceed 1 MiB together; [`LogPage::next`] tells the two
    /// apart.
    ///
    /// Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::LogId`] for a cursor of another list. Other errors if Redis cannot be asked,
    /// or if `event.log` is not a stream.
    pub async fn log(&self, after: Option<&Cursor>, count: usize) -> Result<LogPage, ControlError> {
        let from = behind(after)?.unwrap_or_else(|| "-".to_owned());
        self.log_page(["XRANGE", &from, "+"], count).await
    }

    /// Reads rows newest first: those before `after`, or from the newest row without it.
    ///
    /// # Errors
    /// As [`Control::log`].
    pub async fn newest_log(&self, after: Option<&Cursor>, count: usize) -> Result<LogPage, ControlError> {
        let from = behind(after)?.unwrap_or_else(|| "+".to_owned());
        self.log_page(["XREVRANGE", &from, "-"], count).await
    }

    /// Returns whether workers write all finalized events to the log, as recorded by the worker
    /// that connected last. If not, the log has only events completed with errors.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn is_log_on(&self) -> Result<bool, ControlError> {
        let ask = redis::Cmd::hexists(self.keys.meta(), "event.log");
        ask.query_async(&mut self.connection()).await.map_err(ControlError::redis("seriatim.meta"))
    }

    async fn log_page(&self, range: [&str; 3], count: usize) -> Result<LogPage, ControlError> {
        const WHAT: &str = "event.log";
        let count = count.clamp(1, PER_CALL_MAX);
        let items = rows(&mut self.connection(), WHAT, self.keys.event_log(), range, count).await?;
        page(items, count).ok_or_else(|| ControlError::reply(WHAT, "it is not three numbers and entries"))
    }
}

fn behind(cursor: Option<&Cursor>) -> Result<Option<String>, ControlError> {
    let behind = |cursor: &Cursor| match reply::is_entry_id(cursor.as_str()) {
        true => Ok(reply::behind(cursor.as_str())),
        false => Err(ControlError::LogId(cursor.to_string())),
    };
    cursor.map(behind).transpose()
}

/// Reads a page of a stream and the counts of the stream, with `lua/operator/log.lua`. The page
/// ends with the row that brings it to 1 MiB.
pub(super) async fn rows<C: ConnectionLike>(
    conn: &mut C,
    what: &'static str,
    stream: String,
    range: [&str; 3],
    count: usize,
) -> Result<Vec<Value>, ControlError> {
    let mut ask = wire::LOG.invoke();
    ask.key(stream).arg(&range[..]).arg(count);
    let answer: Value = ask.invoke_async(conn).await.map_err(ControlError::redis(what))?;
    reply::after("log", answer).map_err(|answer| ControlError::reply(what, answer))
}

fn page(items: Vec<Value>, count: usize) -> Option<LogPage> {
    let [written, kept, last_id, entries, more] = <[Value; 5]>::try_from(items).ok()?;
    let entries = reply::entries(entries)?.into_iter().map(|(log_id, fields)| entry(log_id, &fields));
    let entries: Vec<LogEntry> = entries.collect::<Option<_>>()?;
    let is_cut = reply::number(&more)? > 0 || entries.len() >= count;
    Some(LogPage {
        next: entries.last().filter(|_| is_cut).map(|last| Cursor::from(&last.log_id)),
        entries,
        written: reply::number(&written)?,
        kept: reply::number(&kept)?,
        end: reply::text(&last_id)?.into(),
    })
}

fn entry(log_id: String, fields: &[(String, Value)]) -> Option<LogEntry> {
    let finalized_ms = log_id.split('-').next()?.parse().ok()?;
    let mut entry = LogEntry {
        log_id: log_id.into(),
        status: LogStatus::Other(String::new()),
        id: None,
        prev: None,
        object: String::new(),
        object_escaped: None,
        event: Vec::new(),
        error: None,
        attempts: None,
        taken_ms: None,
        results: None,
        finalized_ms,
    };
    for (field, value) in fields {
        match field.as_str() {
            "status" => entry.status = LogStatus::of(reply::text(value)?),
            "id" => entry.id = reply::number(value),
            "prev" => entry.prev = reply::number(value),
            "object" => {
                entry.object_escaped = escape::differing(&reply::bytes(value)?);
                entry.object = reply::text(value)?;
            }
            "event" => entry.event = reply::bytes(value)?,
            "error" => entry.error = reply::text(value).filter(|error| !error.is_empty()),
            "attempts" => entry.attempts = reply::number(value),
            "results" => entry.results = reply::text(value).filter(|results| !results.is_empty()),
            "taken" => entry.taken_ms = reply::number(value),
            _ => {}
        }
    }
    Some(entry)
}
