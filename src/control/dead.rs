//! Dead letters: events that will not be delivered any more, each with the reason, oldest first. An
//! operator reads, retries or drops them.

use serde::Serialize;

use super::of_object::Search;
use super::{Control, ControlError, Cursor, RowEvent, RowId, log, reply};
use crate::escape;
use crate::wire::operator::{self, Record};
pub use crate::wire::operator::{By, Settle, Settled};

/// Maximum number of dead letters that one call reads. It is small, because events may be large.
pub const PER_CALL_MAX: usize = operator::DEAD_PER_CALL_MAX;

/// One dead letter. If its entry in Redis lacks a field, for example because another program has
/// added the entry, the field is `None` or empty here.
///
/// A dead letter serializes as
/// `{"dead_id":"1700-0","id":12,"prev":7,"object":"work:1","event":{…},"error":"…","attempts":0}`.
/// [`RowEvent`] describes the form of the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Id of the dead letter.
    pub dead_id: RowId,
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
    /// The reason why the event became a dead letter.
    pub error: String,
    /// Number of failed attempts: deliveries that ended as transient. A rejection does not count.
    pub attempts: Option<u64>,
}

impl DeadLetter {
    /// Returns the escaped name of the object.
    fn shown(&self) -> &str {
        self.object_escaped.as_deref().unwrap_or(&self.object)
    }
}

/// Maximum number of dead letters at which one call of [`Control::dead_letters_of`] looks.
pub const LOOKED_MAX: u64 = 1000;

/// Number of bytes of each event that a step reads. A step needs only ids and objects, and 0 stands
/// for whole events.
const FEW_BYTES: usize = 1;

/// One page of dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadPage {
    /// The dead letters.
    pub letters: Vec<DeadLetter>,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

/// The counts of [`Control::settle_all`], or of one of its steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SettledAll {
    /// Number of dead letters retried or dropped.
    pub done: u64,
    /// Number of dead letters that were left as they were. Such a dead letter cannot be read, or
    /// the queue of its object has a wrong type.
    pub left: u64,
    /// Number of retried dead letters whose objects have delivered newer events since. A receiver gets
    /// these events out of order.
    pub newer_delivered: u64,
    /// Cursor of the next step; none after the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Cursor>,
}

impl Control {
    /// Reads up to `count` dead letters (1 to [`PER_CALL_MAX`]), oldest first. Begins after the
    /// position `after`; without `after`, at the oldest dead letter. The call only reads, and may
    /// be repeated.
    ///
    /// With [`Control::with_event_bytes_max`], a page also ends when its rows have 1 MiB in Redis.
    /// [`DeadPage::next`] shows whether there are more.
    ///
    /// # Errors
    /// [`ControlError::DeadId`] if `after` is a cursor of another list. Other errors if Redis
    /// cannot be asked, or if `events.dead` is not a stream.
    pub async fn dead_letters(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<DeadPage, ControlError> {
        self.dead_page(false, after, count).await
    }

    /// Reads dead letters newest first. Begins with the next one older than the position `after`;
    /// without `after`, with the newest one.
    ///
    /// # Errors
    /// As [`Control::dead_letters`].
    pub async fn newest_dead_letters(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<DeadPage, ControlError> {
        self.dead_page(true, after, count).await
    }

    /// Reads up to `count` dead letters of one object after the position `after`, oldest first or
    /// newest first. Each call looks at no more than [`LOOKED_MAX`] dead letters, of all objects.
    /// So a page may have fewer than `count` dead letters, or none, although a next page exists. With
    /// [`Control::with_event_bytes_max`], a call looks at a quarter of them, or at 1 MiB.
    ///
    /// The call only reads, and may be repeated.
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
        let after = after.map(|after| checked(after.as_str())).transpose()?;
        let (object, event_bytes_max) = (object.as_ref(), self.event_bytes_max);
        let fields = [
            ("id", 0),
            ("prev", 0),
            ("event", event_bytes_max),
            ("error", 0),
            ("attempts", 0),
        ];
        let search = Search {
            stream: &self.keys.events_dead(),
            object,
            newest,
            looked_max: if event_bytes_max > 0 {
                LOOKED_MAX / 4
            } else {
                LOOKED_MAX
            },
            found_max: count,
            // As in the other lists, whole events are read until there are enough of them.
            ends_by_bytes: event_bytes_max > 0,
            fields: &fields,
        };
        let found = search
            .run(&mut self.connection(), &self.keys, after)
            .await?;
        let next = found
            .next()
            .or_else(|| after.filter(|_| !found.complete).map(Cursor::from));
        if let Some(error) = found.wrong_type {
            return Err(error);
        }
        Ok(DeadPage {
            letters: found.rows.into_iter().map(letter).collect(),
            next,
        })
    }

    /// Reads one dead letter; none if there is no such dead letter. The call only reads, and may be
    /// repeated.
    ///
    /// # Errors
    /// [`ControlError::DeadId`] for an invalid id; otherwise as [`Control::dead_letters`].
    pub async fn dead_letter(&self, dead_id: &RowId) -> Result<Option<DeadLetter>, ControlError> {
        let dead_id = checked(dead_id.as_str())?;
        Ok(self
            .read_dead("XRANGE", [dead_id, dead_id], 1, self.event_bytes_max)
            .await?
            .0
            .pop())
    }

    /// Retries or drops these dead letters. Returns one result for each dead letter, in the order
    /// of `dead_ids`. A retried event is pushed as a new event at the end of its object's queue,
    /// and gets a new id. The result is [`Settled::RetriedLate`] if newer events of the object were
    /// delivered since the event became a dead letter. Each step is recorded in the [actions](Control::actions). The record of a
    /// drop has the first 8 KiB of the event.
    ///
    /// Each dead letter is settled in one atomic step. One call of Redis settles at most
    /// [`PER_CALL_MAX`] dead letters, or 1 MiB of events. Calling again is safe, even after the
    /// future was dropped or a reply was lost: for a dead letter that is already settled, the
    /// result is [`Settled::Gone`].
    ///
    /// # Errors
    /// [`ControlError::DeadId`] for an invalid id, and [`ControlError::Reason`] for a drop without a
    /// reason, before anything is done. Other errors if Redis cannot be asked or forbids it.
    pub async fn settle(
        &self,
        by: By<'_>,
        settle: Settle,
        dead_ids: &[RowId],
    ) -> Result<Vec<Settled>, ControlError> {
        check_reason(by, settle)?;
        dead_ids
            .iter()
            .try_for_each(|dead_id| checked(dead_id.as_str()).map(drop))?;
        let mut conn = self.connection();
        let mut settled = Vec::with_capacity(dead_ids.len());
        while let Some(left) = dead_ids
            .get(settled.len()..)
            .filter(|left| !left.is_empty())
        {
            settled.extend(operator::dead(&mut conn, &self.keys, by, settle, left).await?);
        }
        Ok(settled)
    }

    /// Retries or drops all dead letters that are present at the start, or those of one object.
    /// Works oldest first, in steps of [`PER_CALL_MAX`]. If a retried event becomes a dead letter
    /// again meanwhile, it is not retried once more. The steps share one row in the
    /// [actions](Control::actions), without the events.
    ///
    /// Calling again is safe, and continues at the first dead letter that is left. If the future is
    /// dropped, some of the steps may be done already.
    ///
    /// # Errors
    /// As [`Control::settle`]. The steps before the error stay done.
    pub async fn settle_all(
        &self,
        by: By<'_>,
        settle: Settle,
        object: Option<&[u8]>,
    ) -> Result<SettledAll, ControlError> {
        let mut all = SettledAll::default();
        loop {
            let step = self
                .settle_step(by, settle, object, all.next.as_ref())
                .await?;
            (all.done, all.left, all.next) =
                (all.done + step.done, all.left + step.left, step.next);
            all.newer_delivered += step.newer_delivered;
            if all.next.is_none() {
                return Ok(all);
            }
        }
    }

    /// Makes one step of [`Control::settle_all`]. The step covers the next [`PER_CALL_MAX`] dead
    /// letters after the position `after`; without `after`, the first ones. It ends earlier if they
    /// have 1 MiB together. The first step records which dead letter is then the newest, and the
    /// steps end there. So events that become dead letters again meanwhile are left alone.
    ///
    /// The steps share one row in the [actions](Control::actions), with the number of settled dead
    /// letters. The row has no events. Calling again with the same cursor is safe; the record then
    /// may have two rows.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list, before anything is done.
    /// Otherwise as [`Control::settle`].
    pub async fn settle_step(
        &self,
        by: By<'_>,
        settle: Settle,
        object: Option<&[u8]>,
        after: Option<&Cursor>,
    ) -> Result<SettledAll, ControlError> {
        check_reason(by, settle)?;
        let mut step = SettledAll::default();
        let (behind, last, mut row) = match after.map(Cursor::as_str) {
            Some(cursor) => {
                let (from, last, row) =
                    place(cursor).ok_or_else(|| ControlError::Cursor(cursor.to_owned()))?;
                (reply::behind(from), last.to_owned(), row.to_owned())
            }
            None => match self
                .read_dead("XREVRANGE", ["+", "-"], 1, FEW_BYTES)
                .await?
                .0
                .pop()
            {
                Some(last) => ("-".to_owned(), last.dead_id.to_string(), String::new()),
                None => return Ok(step),
            },
        };
        let (page, is_cut) = self
            .read_dead("XRANGE", [&behind, &last], PER_CALL_MAX, FEW_BYTES)
            .await?;
        let end = page.last().filter(|_| is_cut || page.len() == PER_CALL_MAX);
        let end = end.map(|end| end.dead_id.clone());
        let wanted = object.map(escape::name);
        let is_meant = |letter: &DeadLetter| {
            wanted
                .as_deref()
                .is_none_or(|wanted| letter.shown() == wanted)
        };
        let dead_ids: Vec<RowId> = page
            .into_iter()
            .filter(is_meant)
            .map(|letter| letter.dead_id)
            .collect();
        let (mut conn, selected, mut settled) =
            (self.connection(), object.unwrap_or(b"*"), Vec::new());
        while let Some(left) = dead_ids
            .get(settled.len()..)
            .filter(|left| !left.is_empty())
        {
            let record = Record {
                selected,
                row: &row,
            };
            let some;
            (some, row) =
                operator::dead_in(&mut conn, &self.keys, by, settle, record, left).await?;
            settled.extend(some);
        }
        for settled in settled {
            match settled {
                Settled::RetriedLate => {
                    (step.done, step.newer_delivered) = (step.done + 1, step.newer_delivered + 1)
                }
                Settled::Retried | Settled::Dropped => step.done += 1,
                Settled::Unreadable | Settled::WrongType => step.left += 1,
                Settled::Gone => {}
            }
        }
        step.next = end.map(|end| match row.as_str() {
            "" => Cursor::from(format!("{end}..{last}")),
            row => Cursor::from(format!("{end}..{last}..{row}")),
        });
        Ok(step)
    }

    async fn dead_page(
        &self,
        newest: bool,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<DeadPage, ControlError> {
        let (command, begin, end) = if newest {
            ("XREVRANGE", "+", "-")
        } else {
            ("XRANGE", "-", "+")
        };
        let behind = after
            .map(|after| checked(after.as_str()).map(reply::behind))
            .transpose()?;
        let count = count.clamp(1, PER_CALL_MAX);
        let bounds = [behind.as_deref().unwrap_or(begin), end];
        let (letters, is_cut) = self
            .read_dead(command, bounds, count, self.event_bytes_max)
            .await?;
        let last = letters.last().filter(|_| is_cut || letters.len() == count);
        Ok(DeadPage {
            next: last.map(|last| Cursor::from(&last.dead_id)),
            letters,
        })
    }

    /// Reads dead letters, each with at most `event_bytes_max` bytes of its event. Returns also
    /// whether the bytes have ended the page.
    ///
    /// With 0, which stands for whole events, the bytes never end the page. A caller that wants
    /// whole events gets as many dead letters as it asks for.
    async fn read_dead(
        &self,
        command: &str,
        bounds: [&str; 2],
        count: usize,
        event_bytes_max: usize,
    ) -> Result<(Vec<DeadLetter>, bool), ControlError> {
        const WHAT: &str = "events.dead";
        let unreadable = || ControlError::reply(WHAT, "an entry is not an id and its fields");
        let ([from, to], mut conn) = (bounds, self.connection());
        let (mut letters, mut from): (Vec<DeadLetter>, _) = (Vec::new(), from.to_owned());
        // If events are large, one reply has fewer entries than were requested. So the loop reads
        // until it has enough.
        while letters.len() < count {
            let (range, rest) = ([command, &from, to], count - letters.len());
            let mut reply = log::rows(
                &mut conn,
                WHAT,
                self.keys.events_dead(),
                range,
                rest,
                event_bytes_max,
                false,
            )
            .await?;
            let _counts = (reply.value()?, reply.value()?, reply.value()?);
            let some = reply::entries(reply.value()?).ok_or_else(unreadable)?;
            letters.extend(some.into_iter().map(letter));
            let is_cut = reply.count()? > 0;
            match letters.last() {
                Some(_) if is_cut && event_bytes_max > 0 => return Ok((letters, true)),
                Some(last) if is_cut => from = format!("({}", last.dead_id),
                _ => break,
            }
        }
        Ok((letters, false))
    }
}

/// Returns the parts of a cursor of a step: the dead letter after which the step begins, the one at
/// which the steps end, and the row in the actions; this is empty if the steps have done nothing yet.
fn place(cursor: &str) -> Option<(&str, &str, &str)> {
    let (from, rest) = cursor.split_once("..")?;
    let (last, row) = rest
        .split_once("..")
        .map_or((rest, None), |(last, row)| (last, Some(row)));
    let are_ids = [Some(from), Some(last), row]
        .into_iter()
        .flatten()
        .all(reply::is_entry_id);
    are_ids.then(|| (from, last, row.unwrap_or_default()))
}

/// Checks that a drop has a reason, because it cannot be undone.
fn check_reason(by: By<'_>, settle: Settle) -> Result<(), ControlError> {
    let is_missing = settle == Settle::Drop && by.why.trim().is_empty();
    if is_missing {
        Err(ControlError::Reason)
    } else {
        Ok(())
    }
}

/// Returns the id if it is a valid id of a dead letter.
fn checked(dead_id: &str) -> Result<&str, ControlError> {
    if reply::is_entry_id(dead_id) {
        Ok(dead_id)
    } else {
        Err(ControlError::DeadId(dead_id.to_owned()))
    }
}

fn letter((dead_id, fields): reply::Entry) -> DeadLetter {
    DeadLetter {
        dead_id: dead_id.into(),
        id: fields.number("id"),
        prev: fields.number("prev"),
        object: fields.text("object").unwrap_or_default(),
        object_escaped: fields.escaped("object"),
        event: fields.event().unwrap_or(RowEvent::Whole(Vec::new())),
        error: fields.text("error").unwrap_or_default(),
        attempts: fields.number("attempts"),
    }
}
