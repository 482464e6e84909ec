//! The log of events: what became of each that is finalized, in the order in which that was.
//! Workers write it where their event log is on.
//!
//! A row is written in the step that finalizes its event, exactly once. The ids of the rows give
//! the order; the oldest rows are trimmed away.

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

/// How many rows one call reads at most; events may be large.
pub const PER_CALL_MAX: usize = 100;

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogStatus {
    /// It was delivered.
    Completed,
    /// Its attempts were used up, and its retry policy says that it is over.
    CompletedWithErrors,
    /// It went to the dead letters.
    Dead,
    /// Something that another version of this program wrote.
    Other(String),
}

impl LogStatus {
    /// The word in the log.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed_with_errors",
            Self::Dead => "dead",
            Self::Other(word) => word,
        }
    }

    pub(super) fn of(word: String) -> Self {
        match word.as_str() {
            "completed" => Self::Completed,
            "completed_with_errors" => Self::CompletedWithErrors,
            "dead" => Self::Dead,
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
/// It serializes as
/// `{"log_id":"1700-0","status":"completed","id":12,"prev":7,"object":"work:1","event":{…},"error":null,"attempts":0,"taken_ms":1690,
/// "finalized_ms":1700}`, the event as that of a [dead letter](super::DeadLetter). Where handlers
/// had results, `"results":{"mail":…}` follows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// Its id.
    pub log_id: RowId,
    /// What became of the event.
    pub status: LogStatus,
    /// The event's id.
    pub id: Option<u64>,
    /// The id of the last event of the object delivered before.
    pub prev: Option<u64>,
    /// The object.
    pub object: String,
    /// Its [escaped](crate::escape::name) name, if that differs.
    pub object_escaped: Option<String>,
    /// The event, byte for byte.
    pub event: Vec<u8>,
    /// Its last error; nothing where it was delivered.
    pub error: Option<String>,
    /// How often its delivery failed before.
    pub attempts: Option<u64>,
    /// When the worker that finalized it was given it, ms since the epoch by Redis' clock; nothing
    /// where an operator skipped it.
    pub taken_ms: Option<u64>,
    /// The results of the handlers that have succeeded: the text of one JSON object, by the ids of
    /// the handlers. None if no handler had a result.
    pub results: Option<String>,
    /// When it was finalized, ms since the epoch by Redis' clock. Never less than in the row
    /// before, also where that clock was put back.
    pub finalized_ms: u64,
}

impl LogEntry {
    /// The JSON text, on one line, of a top-level member of the event, e.g. of its own time;
    /// nothing where it has none or is no JSON object. Of a member that is there twice the last one
    /// counts.
    pub fn member(&self, name: &str) -> Option<String> {
        let members: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.event).ok()?;
        members.get(name).map(|value| value.get().replace(['\r', '\n'], " "))
    }
}

impl LogEntry {
    /// The results by the ids of the handlers: JSON text on one line each. Empty without results.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results.as_deref().map(reply::members).unwrap_or_default()
    }

    /// The result of a handler: JSON text on one line; none if it had no result.
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

/// A page of the log, and the numbers of the whole log at the same moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogPage {
    /// The rows.
    pub entries: Vec<LogEntry>,
    /// How many rows were ever written.
    pub written: u64,
    /// How many of them are there; the others, the oldest, were trimmed away.
    pub kept: u64,
    /// The end of the log: behind it come the rows that are written later.
    pub end: Cursor,
    /// The next page; none if there are no more rows yet. To follow the log, go on behind the last
    /// row that was read.
    pub next: Option<Cursor>,
}

impl LogPage {
    /// Whether the whole log ends before this place, so that the next rows may not be read from
    /// there. Redis has then lost rows, or the place is in the future. False for text that is no
    /// cursor of a log.
    pub fn ends_before(&self, cursor: &Cursor) -> bool {
        let place = |id: &str| id.split_once('-').and_then(|(ms, n)| Some((ms.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
        matches!((place(self.end.as_str()), place(cursor.as_str())), (Some(end), Some(cursor)) if end < cursor)
    }
}

impl Control {
    /// Reads up to `count` rows (1 to [`PER_CALL_MAX`]), oldest first, that come behind `after`,
    /// whose row need not be there; from the oldest one without. A page has fewer rows if there are
    /// no more yet, or if they have 1 MiB together; [`LogPage::next`] tells which.
    ///
    /// Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::LogId`] for a cursor of another list; others if Redis cannot be asked, also
    /// if `event.log` is no stream.
    pub async fn log(&self, after: Option<&Cursor>, count: usize) -> Result<LogPage, ControlError> {
        let from = behind(after)?.unwrap_or_else(|| "-".to_owned());
        self.log_page(["XRANGE", &from, "+"], count).await
    }

    /// The same newest first: the rows before `after`; from the newest one without.
    ///
    /// # Errors
    /// As [`Control::log`].
    pub async fn newest_log(&self, after: Option<&Cursor>, count: usize) -> Result<LogPage, ControlError> {
        let from = behind(after)?.unwrap_or_else(|| "+".to_owned());
        self.log_page(["XREVRANGE", &from, "-"], count).await
    }

    /// Whether the workers write all events that are finalized to the log, as noted by the worker
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
        true => Ok(format!("({cursor}")),
        false => Err(ControlError::LogId(cursor.to_string())),
    };
    cursor.map(behind).transpose()
}

/// A page of a stream, which ends behind the row with which it has 1 MiB, and the numbers of the
/// stream: the reply of `lua/operator/log.lua`.
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
