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

use super::{ControlError, reply};
use crate::escape;
use crate::keys::Keys;
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
    /// The id of the row in the stream `event.log`: ms since the epoch, a dash, and a number.
    pub log_id: String,
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

/// A page of the log, and what it tells of the log as a whole at the same moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogPage {
    /// The rows.
    pub entries: Vec<LogEntry>,
    /// How many rows were ever written.
    pub written: u64,
    /// How many of them are there; the others, the oldest, were trimmed away.
    pub kept: u64,
    /// The id of the last row ever written; `0-0` without one.
    pub last_id: String,
    /// Whether the page has fewer rows than asked for because of their bytes: go on behind its last
    /// one.
    pub more: bool,
}

/// Reads up to `count` rows (1 to [`PER_CALL_MAX`]), oldest first, that come after the one named,
/// which need not be there; from the beginning without one. Fewer than asked for, if
/// [`LogPage::more`] does not say otherwise, means that there are no more yet: a page ends behind
/// the row with which it has 1 MiB.
///
/// # Errors
/// [`ControlError::LogId`] for what is no id, others if Redis cannot be asked, also if `event.log`
/// is no stream.
pub async fn log<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    after: Option<&str>,
    count: usize,
) -> Result<LogPage, ControlError> {
    let from = behind(after)?.unwrap_or_else(|| "-".to_owned());
    read(conn, keys, ["XRANGE", &from, "+"], count).await
}

/// The same newest first: those that come before the one named, from the end without one.
///
/// # Errors
/// As [`log`].
pub async fn newest_log<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    before: Option<&str>,
    count: usize,
) -> Result<LogPage, ControlError> {
    let from = behind(before)?.unwrap_or_else(|| "+".to_owned());
    read(conn, keys, ["XREVRANGE", &from, "-"], count).await
}

/// What to read after for all that was finalized at this time (ms since the epoch) or later.
pub fn since(ms: u64) -> Option<String> {
    ms.checked_sub(1).map(|before| format!("{before}-{}", u64::MAX))
}

/// Whether the workers write all events that are finalized to the log, as the worker that connected
/// last has noted it. If not, the log has only events completed with errors.
///
/// # Errors
/// [`ControlError`] if Redis cannot be asked.
pub async fn is_on<C: ConnectionLike>(conn: &mut C, keys: &Keys) -> Result<bool, ControlError> {
    let ask = redis::Cmd::hexists(keys.meta(), "event.log");
    ask.query_async(conn).await.map_err(ControlError::redis("seriatim.meta"))
}

/// Whether the row with the id `a` comes before the row with the id `b` in a log; false for text
/// that is no id.
pub fn is_before(a: &str, b: &str) -> bool {
    let place = |id: &str| id.split_once('-').and_then(|(ms, n)| Some((ms.parse::<u64>().ok()?, n.parse::<u64>().ok()?)));
    matches!((place(a), place(b)), (Some(a), Some(b)) if a < b)
}

fn behind(log_id: Option<&str>) -> Result<Option<String>, ControlError> {
    let behind = |log_id: &str| match reply::is_entry_id(log_id) {
        true => Ok(format!("({log_id}")),
        false => Err(ControlError::LogId(log_id.to_owned())),
    };
    log_id.map(behind).transpose()
}

async fn read<C: ConnectionLike>(conn: &mut C, keys: &Keys, range: [&str; 3], count: usize) -> Result<LogPage, ControlError> {
    const WHAT: &str = "event.log";
    page(rows(conn, WHAT, keys.event_log(), range, count.clamp(1, PER_CALL_MAX)).await?)
        .ok_or_else(|| ControlError::reply(WHAT, "it is not three numbers and entries"))
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

fn page(items: Vec<Value>) -> Option<LogPage> {
    let [written, kept, last_id, entries, more] = <[Value; 5]>::try_from(items).ok()?;
    Some(LogPage {
        entries: reply::entries(entries)?.into_iter().map(|(log_id, fields)| entry(log_id, &fields)).collect::<Option<_>>()?,
        written: reply::number(&written)?,
        kept: reply::number(&kept)?,
        last_id: reply::text(&last_id)?,
        more: reply::number(&more)? > 0,
    })
}

fn entry(log_id: String, fields: &[(String, Value)]) -> Option<LogEntry> {
    let finalized_ms = log_id.split('-').next()?.parse().ok()?;
    let mut entry = LogEntry {
        log_id,
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
