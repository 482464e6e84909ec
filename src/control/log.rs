//! The event log: the result of each finalized event, in the order in which the events were
//! finalized. Workers write all results if their event log is on. Otherwise they write only events
//! completed with errors.
//!
//! The step that finalizes an event writes the event's row, exactly once. The ids of the rows give
//! their order. The oldest rows are trimmed.

use std::collections::BTreeMap;

use redis::aio::ConnectionLike;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Control, ControlError, Cursor, RowEvent, RowId, reply};
use crate::event::EventStatus;
use crate::wire::{self, Reply};

/// Maximum number of rows that one call reads. It is small, because events may be large.
pub const PER_CALL_MAX: usize = 100;

/// One row of the log. If the row in Redis lacks a field, the field is `None` or empty here.
///
/// A row serializes as
/// `{"log_id":"1700-0","status":"completed","id":12,"prev":7,"object":"work:1","event":{…},"error":null,"attempts":0,"taken_ms":1690,
/// "finalized_ms":1700}`.
/// [`RowEvent`] describes the form of the event. If handlers had results, `"results":{"mail":…}`
/// follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogEntry {
    /// Id of the row.
    pub log_id: RowId,
    /// Result of the event.
    pub status: EventStatus,
    /// Id of the event.
    pub id: Option<u64>,
    /// Id of the event of this object that was delivered last before this event.
    pub prev: Option<u64>,
    /// The object.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// The event. With [`Control::with_event_bytes_max`], only its first bytes.
    #[serde(flatten)]
    pub event: RowEvent,
    /// Last error; none if the event was delivered.
    pub error: Option<String>,
    /// Number of failed attempts: deliveries that ended as transient.
    pub attempts: Option<u64>,
    /// Time at which the worker that finalized the event had taken it, ms since the epoch by Redis'
    /// clock; none if an operator skipped the event.
    pub taken_ms: Option<u64>,
    /// Time at which the event was finalized, ms since the epoch by Redis' clock. This time is
    /// never less than in the row before, even if Redis' clock was set back.
    pub finalized_ms: u64,
    /// Results of the successful handlers by handler id, as the text of one JSON object. None if no
    /// handler had a result.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "reply::as_json"
    )]
    pub results: Option<String>,
}

impl LogEntry {
    /// Returns a top-level member of the event as JSON text on one line, e.g. a time that the
    /// producer wrote into the event. None if the member is absent or the event is not a JSON
    /// object, or is cut. If the member occurs twice, the last one counts.
    pub fn member(&self, name: &str) -> Option<String> {
        let members: BTreeMap<String, &RawValue> =
            serde_json::from_slice(self.event.bytes()).ok()?;
        members
            .get(name)
            .map(|value| value.get().replace(['\r', '\n'], " "))
    }
}

impl LogEntry {
    /// Returns the results by handler id, each as JSON text on one line. Empty if there are no
    /// results.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results
            .as_deref()
            .map(reply::members)
            .unwrap_or_default()
    }

    /// Returns the result of a handler as JSON text on one line; none if the handler had no result.
    pub fn result(&self, handler: &str) -> Option<String> {
        self.results().remove(handler)
    }
}

/// A page of the log. Also has counts of the whole log, read at the same moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogPage {
    /// The rows.
    pub entries: Vec<LogEntry>,
    /// Number of rows ever written.
    pub written: u64,
    /// Number of rows that are still in the log. The oldest rows may have been trimmed.
    pub kept: u64,
    /// Position of the end of the log. All later rows come after this position.
    pub end: Cursor,
    /// Cursor of the next page; none if there are no more rows yet. To follow the log in that case,
    /// use the cursor of the last row that you have read.
    pub next: Option<Cursor>,
}

impl LogPage {
    /// Returns whether the whole log ends before `cursor`. This means that Redis has lost rows, or
    /// that the cursor is in the future. A reader that continues at such a cursor may miss the next
    /// rows. Returns false for a text that is not a cursor of a log.
    pub fn ends_before(&self, cursor: &Cursor) -> bool {
        let place = |id: &str| {
            id.split_once('-')
                .and_then(|(ms, n)| Some((ms.parse::<u64>().ok()?, n.parse::<u64>().ok()?)))
        };
        matches!((place(self.end.as_str()), place(cursor.as_str())), (Some(end), Some(cursor)) if end < cursor)
    }
}

impl Control {
    /// Reads up to `count` rows (1 to [`PER_CALL_MAX`]), oldest first. Begins after the position
    /// `after`, whose row may be absent; without `after`, at the oldest row. A page has fewer rows
    /// if the log has no more rows yet, or if the rows together exceed 1 MiB. [`LogPage::next`]
    /// shows which of the two is true.
    ///
    /// The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::LogId`] if `after` is a cursor of another list. Other errors if Redis cannot
    /// be asked, or if `event.log` is not a stream.
    pub async fn log(&self, after: Option<&Cursor>, count: usize) -> Result<LogPage, ControlError> {
        let from = behind(after)?.unwrap_or_else(|| "-".to_owned());
        self.log_page(["XRANGE", &from, "+"], count).await
    }

    /// Reads rows newest first. Begins with the row before the position `after`; without `after`,
    /// with the newest row.
    ///
    /// # Errors
    /// As [`Control::log`].
    pub async fn newest_log(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<LogPage, ControlError> {
        let from = behind(after)?.unwrap_or_else(|| "+".to_owned());
        self.log_page(["XREVRANGE", &from, "-"], count).await
    }

    /// Returns whether workers write all finalized events to the log. This setting is recorded by
    /// the worker that connected last. If it is off, the log has only events completed with errors.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn is_log_on(&self) -> Result<bool, ControlError> {
        let ask = redis::Cmd::hexists(self.keys.meta(), "event.log");
        ask.query_async(&mut self.connection())
            .await
            .map_err(ControlError::redis("seriatim.meta"))
    }

    async fn log_page(&self, range: [&str; 3], count: usize) -> Result<LogPage, ControlError> {
        const WHAT: &str = "event.log";
        let count = count.clamp(1, PER_CALL_MAX);
        let mut reply = rows(
            &mut self.connection(),
            WHAT,
            self.keys.event_log(),
            range,
            count,
            self.event_bytes_max,
            true,
        )
        .await?;
        page(&mut reply, count)
    }
}

fn behind(cursor: Option<&Cursor>) -> Result<Option<String>, ControlError> {
    let behind = |cursor: &Cursor| match reply::is_entry_id(cursor.as_str()) {
        true => Ok(reply::behind(cursor.as_str())),
        false => Err(ControlError::LogId(cursor.to_string())),
    };
    cursor.map(behind).transpose()
}

/// Reads a page of a stream and the counts of the whole stream, with `lua/operator/log.lua`. If the
/// rows reach 1 MiB together, the page ends with the row that reaches it. `event_bytes_max` is the
/// maximum number of bytes of each event in the reply; 0 for whole events. Without `counts`, the counts
/// are 0; they cost the read of one more row.
pub(super) async fn rows<C: ConnectionLike>(
    conn: &mut C,
    what: &'static str,
    stream: String,
    range: [&str; 3],
    count: usize,
    event_bytes_max: usize,
    counts: bool,
) -> Result<Reply, ControlError> {
    let mut ask = wire::LOG.invoke();
    ask.key(stream)
        .arg(&range[..])
        .arg(count)
        .arg(event_bytes_max)
        .arg(u8::from(counts));
    reply::ask(conn, what, &ask, "log").await
}

fn page(reply: &mut Reply, count: usize) -> Result<LogPage, ControlError> {
    let unreadable = || ControlError::reply("event.log", "an entry is not an id and its fields");
    let (written, kept, end) = (reply.count()?, reply.count()?, reply.text()?);
    let entries = reply::entries(reply.value()?).ok_or_else(unreadable)?;
    let entries: Option<Vec<LogEntry>> = entries.into_iter().map(entry).collect();
    let entries = entries.ok_or_else(unreadable)?;
    let is_cut = reply.count()? > 0 || entries.len() >= count;
    Ok(LogPage {
        next: entries
            .last()
            .filter(|_| is_cut)
            .map(|last| Cursor::from(&last.log_id)),
        entries,
        written,
        kept,
        end: end.into(),
    })
}

fn entry((log_id, fields): reply::Entry) -> Option<LogEntry> {
    Some(LogEntry {
        finalized_ms: log_id.split('-').next()?.parse().ok()?,
        log_id: log_id.into(),
        status: EventStatus::of(fields.text("status").unwrap_or_default()),
        id: fields.number("id"),
        prev: fields.number("prev"),
        object: fields.text("object").unwrap_or_default(),
        object_escaped: fields.escaped("object"),
        event: fields.event().unwrap_or(RowEvent::Whole(Vec::new())),
        error: fields.filled("error"),
        attempts: fields.number("attempts"),
        taken_ms: fields.number("taken"),
        results: fields.filled("results"),
    })
}
