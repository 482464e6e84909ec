//! Dead letters: events that a sink rejected, or that are not JSON, in the order they were given up.

use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::{ControlError, reply};
use crate::keys::Keys;

/// How many dead letters one call reads at most; events may be large.
pub const PER_CALL_MAX: usize = 32;

/// One dead letter. A field that an entry lacks, because another program added it, is `None` or empty.
///
/// It serializes as `{"dead_id":"1700-0","id":12,"prev":7,"object":"work:1","event":{…},"error":"…","attempts":0}`. The event is as it was emitted,
/// but for CR and LF, where JSON allows them only as white space: they become spaces, so that a line stays a line. An event that is not JSON
/// stands in `event_text` instead, or in `event_hex` if it is not even UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The id of the entry in the stream `events.dead`: milliseconds, a dash, and a number.
    pub dead_id: String,
    /// The event's id.
    pub id: Option<u64>,
    /// The id of the last event of the object delivered before.
    pub prev: Option<u64>,
    /// The object.
    pub object: String,
    /// The event, byte for byte.
    pub event: Vec<u8>,
    /// Why it was given up.
    pub error: String,
    /// How often its delivery had failed before.
    pub attempts: Option<u64>,
}

impl Serialize for DeadLetter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("dead_id", &self.dead_id)?;
        line.serialize_entry("id", &self.id)?;
        line.serialize_entry("prev", &self.prev)?;
        line.serialize_entry("object", &self.object)?;
        let in_one_line: Vec<u8> = self.event.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect();
        if let Ok(event) = serde_json::from_slice::<&RawValue>(&in_one_line) {
            line.serialize_entry("event", event)?;
        } else if let Ok(text) = std::str::from_utf8(&self.event) {
            line.serialize_entry("event_text", text)?;
        } else {
            let hex: String = self.event.iter().map(|byte| format!("{byte:02x}")).collect();
            line.serialize_entry("event_hex", &hex)?;
        }
        line.serialize_entry("error", &self.error)?;
        line.serialize_entry("attempts", &self.attempts)?;
        line.end()
    }
}

/// Reads up to `count` dead letters (at most [`PER_CALL_MAX`]), oldest first, that come after the one named; from the beginning without
/// one. Fewer than asked for means that there are no more.
///
/// # Errors
/// [`ControlError`] if Redis cannot be asked, also if `events.dead` is no stream.
pub async fn dead_letters<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    after: Option<&str>,
    count: usize,
) -> Result<Vec<DeadLetter>, ControlError> {
    const WHAT: &str = "events.dead";
    let from = after.map_or_else(|| "-".to_owned(), |dead_id| format!("({dead_id}"));
    let mut ask = redis::cmd("XRANGE");
    ask.arg(keys.events_dead()).arg(from).arg("+").arg("COUNT").arg(count.min(PER_CALL_MAX));
    let answer: RedisResult<Value> = ask.query_async(conn).await;
    let entries = reply::array(answer.map_err(ControlError::redis(WHAT))?);
    let letters: Option<Vec<DeadLetter>> = entries.and_then(|entries| entries.into_iter().map(letter).collect());
    letters.ok_or_else(|| ControlError::reply(WHAT, "an entry is not an id and its fields"))
}

fn letter(entry: Value) -> Option<DeadLetter> {
    let [dead_id, fields] = <[Value; 2]>::try_from(reply::array(entry)?).ok()?;
    let mut letter = DeadLetter {
        dead_id: reply::text(&dead_id)?,
        id: None,
        prev: None,
        object: String::new(),
        event: Vec::new(),
        error: String::new(),
        attempts: None,
    };
    for pair in reply::array(fields)?.chunks_exact(2) {
        let value = &pair[1];
        match reply::text(&pair[0])?.as_str() {
            "id" => letter.id = reply::number(value),
            "prev" => letter.prev = reply::number(value),
            "object" => letter.object = reply::text(value)?,
            "event" => letter.event = reply::bytes(value)?,
            "error" => letter.error = reply::text(value)?,
            "attempts" => letter.attempts = reply::number(value),
            _ => {}
        }
    }
    Some(letter)
}
