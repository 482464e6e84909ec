//! Dead letters: events that were given up, with the reason, in the order they were. They are read,
//! retried as new events, or dropped.

use redis::Value;
use redis::aio::ConnectionLike;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::{Control, ControlError, Cursor, RowId, log, reply};
use crate::escape;
use crate::keys::Keys;
use crate::wire::operator;
pub use crate::wire::operator::{By, Settle, Settled};

/// How many dead letters one call reads at most; events may be large.
pub const PER_CALL_MAX: usize = operator::DEAD_PER_CALL_MAX;

/// One dead letter. A field that an entry lacks, because another program added it, is `None` or
/// empty.
///
/// It serializes as
/// `{"dead_id":"1700-0","id":12,"prev":7,"object":"work:1","event":{…},"error":"…","attempts":0}`.
/// The event is as it was emitted, but for CR and LF, where JSON allows them only as white space:
/// they become spaces, so that a line stays a line. An event that is not JSON stands in
/// `event_text` instead, or in `event_hex` if it is not even UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its id.
    pub dead_id: RowId,
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
    /// Why it was given up.
    pub error: String,
    /// How often its delivery failed; a rejection is no failure.
    pub attempts: Option<u64>,
}

impl DeadLetter {
    /// The escaped name of its object.
    fn shown(&self) -> &str {
        self.object_escaped.as_deref().unwrap_or(&self.object)
    }
}

impl Serialize for DeadLetter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("dead_id", &self.dead_id)?;
        line.serialize_entry("id", &self.id)?;
        line.serialize_entry("prev", &self.prev)?;
        line.serialize_entry("object", &self.object)?;
        if let Some(escaped) = &self.object_escaped {
            line.serialize_entry("object_escaped", escaped)?;
        }
        reply::serialize_event(&mut line, &self.event)?;
        line.serialize_entry("error", &self.error)?;
        line.serialize_entry("attempts", &self.attempts)?;
        line.end()
    }
}

/// How many dead letters one call of [`Control::dead_letters_of`] looks at.
pub const LOOKED_MAX: usize = 1000;

/// Some dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadPage {
    /// The dead letters.
    pub letters: Vec<DeadLetter>,
    /// The next page; none if there are no more.
    pub next: Option<Cursor>,
}

/// The counts of a [`Control::settle_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettledAll {
    /// How many were retried or dropped.
    pub done: u64,
    /// How many stay, because they cannot be read or the queue of their object has a wrong type.
    pub left: u64,
}

impl Control {
    /// Reads up to `count` dead letters (1 to [`PER_CALL_MAX`]), oldest first, that come behind
    /// `after`; from the oldest one without. Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::DeadId`] for a cursor of another list; others if Redis cannot be asked, also
    /// if `events.dead` is no stream.
    pub async fn dead_letters(&self, after: Option<&Cursor>, count: usize) -> Result<DeadPage, ControlError> {
        self.dead_page(false, after, count).await
    }

    /// The same newest first: those that are older than `after`; from the newest one without.
    ///
    /// # Errors
    /// As [`Control::dead_letters`].
    pub async fn newest_dead_letters(&self, after: Option<&Cursor>, count: usize) -> Result<DeadPage, ControlError> {
        self.dead_page(true, after, count).await
    }

    /// Reads up to `count` dead letters of one object that come behind `after`, oldest first or
    /// newest first. Each call looks at [`LOOKED_MAX`] dead letters at most, of whichever objects:
    /// a page may have fewer than `count`, or none, and still a next one.
    ///
    /// Only reads; may be called again.
    ///
    /// # Errors
    /// As [`Control::dead_letters`].
    pub async fn dead_letters_of(
        &self,
        object: impl AsRef<[u8]>,
        newest: bool,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<DeadPage, ControlError> {
        let wanted = escape::name(object.as_ref());
        let (mut found, mut looked) = (DeadPage { letters: Vec::new(), next: after.cloned() }, 0);
        while found.letters.len() < count && looked < LOOKED_MAX {
            let page = self.dead_page(newest, found.next.as_ref(), PER_CALL_MAX).await?;
            looked += page.letters.len();
            for letter in page.letters {
                if found.letters.len() == count {
                    return Ok(found);
                }
                found.next = Some(Cursor::from(&letter.dead_id));
                if letter.shown() == wanted {
                    found.letters.push(letter);
                }
            }
            if page.next.is_none() {
                found.next = None;
                break;
            }
        }
        Ok(found)
    }

    /// Reads one dead letter; none if it is not there. Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::DeadId`] for an invalid id; others as [`Control::dead_letters`].
    pub async fn dead_letter(&self, dead_id: &RowId) -> Result<Option<DeadLetter>, ControlError> {
        let dead_id = checked(dead_id.as_str())?;
        Ok(read(&mut self.connection(), &self.keys, "XRANGE", [dead_id, dead_id], 1).await?.pop())
    }

    /// Retries or drops these dead letters. Returns the result of each, in order. A retried event
    /// is pushed as a new one, at the end of its object's queue: it gets a new id. The
    /// [actions](Control::actions) keep a record of each, of a drop with the first 8 KiB of the
    /// event.
    ///
    /// Each dead letter is settled in one atomic step, [`PER_CALL_MAX`] of them or 1 MiB of events
    /// in one call. Calling again is safe, also after the future was dropped or a reply was lost:
    /// a dead letter that is settled already is [`Settled::Gone`].
    ///
    /// # Errors
    /// [`ControlError::DeadId`] for an invalid id, before anything is done; others if Redis cannot
    /// be asked or does not allow it.
    pub async fn settle(&self, by: By<'_>, settle: Settle, dead_ids: &[RowId]) -> Result<Vec<Settled>, ControlError> {
        dead_ids.iter().try_for_each(|dead_id| checked(dead_id.as_str()).map(drop))?;
        let mut conn = self.connection();
        let mut settled = Vec::with_capacity(dead_ids.len());
        while let Some(left) = dead_ids.get(settled.len()..).filter(|left| !left.is_empty()) {
            settled.extend(operator::dead(&mut conn, &self.keys, by, settle, left).await?);
        }
        Ok(settled)
    }

    /// Retries or drops all dead letters, or all of one object, that are there when it begins,
    /// oldest first, in steps of [`PER_CALL_MAX`]. An event that is retried and given up again
    /// meanwhile is not retried once more.
    ///
    /// Calling again is safe, and goes on at the first one that is left. If the future is dropped,
    /// any number of steps have been made.
    ///
    /// # Errors
    /// As [`Control::settle`]. The steps until then are done.
    pub async fn settle_all(&self, by: By<'_>, settle: Settle, object: Option<&[u8]>) -> Result<SettledAll, ControlError> {
        let wanted = object.map(escape::name);
        let mut all = SettledAll::default();
        let Some(last) = self.newest_dead_letters(None, 1).await?.letters.pop() else { return Ok(all) };
        let mut from = "-".to_owned();
        loop {
            let bounds = [from.as_str(), last.dead_id.as_str()];
            let page = read(&mut self.connection(), &self.keys, "XRANGE", bounds, PER_CALL_MAX).await?;
            let Some(end) = page.last() else { return Ok(all) };
            from = format!("({}", end.dead_id);
            let is_last = page.len() < PER_CALL_MAX;
            let is_meant = |letter: &DeadLetter| wanted.as_deref().is_none_or(|wanted| letter.shown() == wanted);
            let dead_ids: Vec<RowId> = page.into_iter().filter(is_meant).map(|letter| letter.dead_id).collect();
            for settled in self.settle(by, settle, &dead_ids).await? {
                match settled {
                    Settled::Retried | Settled::Dropped => all.done += 1,
                    Settled::Unreadable | Settled::WrongType => all.left += 1,
                    Settled::Gone => {}
                }
            }
            if is_last {
                return Ok(all);
            }
        }
    }

    async fn dead_page(&self, newest: bool, after: Option<&Cursor>, count: usize) -> Result<DeadPage, ControlError> {
        let (command, begin, end) = if newest { ("XREVRANGE", "+", "-") } else { ("XRANGE", "-", "+") };
        let behind = after.map(|after| checked(after.as_str()).map(|id| format!("({id}"))).transpose()?;
        let count = count.clamp(1, PER_CALL_MAX);
        let bounds = [behind.as_deref().unwrap_or(begin), end];
        let letters = read(&mut self.connection(), &self.keys, command, bounds, count).await?;
        let last = letters.last().filter(|_| letters.len() == count);
        Ok(DeadPage { next: last.map(|last| Cursor::from(&last.dead_id)), letters })
    }
}

/// An id of a dead letter.
fn checked(dead_id: &str) -> Result<&str, ControlError> {
    if reply::is_entry_id(dead_id) { Ok(dead_id) } else { Err(ControlError::DeadId(dead_id.to_owned())) }
}

async fn read<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    command: &str,
    bounds: [&str; 2],
    count: usize,
) -> Result<Vec<DeadLetter>, ControlError> {
    const WHAT: &str = "events.dead";
    let unreadable = || ControlError::reply(WHAT, "an entry is not an id and its fields");
    let [from, to] = bounds;
    let (mut letters, mut from): (Vec<DeadLetter>, _) = (Vec::new(), from.to_owned());
    // A page ends early where its events are large.
    while letters.len() < count {
        let items = log::rows(conn, WHAT, keys.events_dead(), [command, &from, to], count - letters.len()).await?;
        let [_, _, _, entries, more] = <[Value; 5]>::try_from(items).map_err(|_| unreadable())?;
        let some: Option<Vec<DeadLetter>> = reply::entries(entries)
            .and_then(|entries| entries.into_iter().map(|(dead_id, fields)| letter(dead_id, fields)).collect());
        letters.extend(some.ok_or_else(unreadable)?);
        match letters.last() {
            Some(last) if reply::number(&more).is_some_and(|more| more > 0) => from = format!("({}", last.dead_id),
            _ => break,
        }
    }
    Ok(letters)
}

fn letter(dead_id: String, fields: Vec<(String, Value)>) -> Option<DeadLetter> {
    let mut letter = DeadLetter {
        dead_id: dead_id.into(),
        id: None,
        prev: None,
        object: String::new(),
        object_escaped: None,
        event: Vec::new(),
        error: String::new(),
        attempts: None,
    };
    for (field, value) in &fields {
        match field.as_str() {
            "id" => letter.id = reply::number(value),
            "prev" => letter.prev = reply::number(value),
            "object" => {
                letter.object_escaped = escape::differing(&reply::bytes(value)?);
                letter.object = reply::text(value)?;
            }
            "event" => letter.event = reply::bytes(value)?,
            "error" => letter.error = reply::text(value)?,
            "attempts" => letter.attempts = reply::number(value),
            _ => {}
        }
    }
    Some(letter)
}
