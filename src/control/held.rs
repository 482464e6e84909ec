//! Held objects, including paused ones: reason and due time of each; releasing an object, or
//! skipping its first event.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rules::Rule;
use super::{Control, ControlError, Cursor, RowId};
use crate::escape;
use crate::wire::operator::{self, HeldReply, RELEASE_PER_CALL_MAX, ReleasedOne};
pub use crate::wire::operator::{By, Released};
use crate::wire::values::{HeldId, Tag};

/// Maximum number of held objects that one call reads.
pub const PER_CALL_MAX: usize = 250;

/// The condition that ends a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// The first event has failed and is tried again later.
    Retry,
    /// The worker is gone; another worker continues.
    Takeover,
    /// The object gave way to other objects.
    Yield,
    /// The worker was stopped, started again with fewer slots, or had its sink unavailable for
    /// long. Another worker continues.
    Stop,
    /// An operator has released the object, or skipped an event of it. Any worker continues.
    Released,
    /// The object waits until an operator releases it.
    Operator,
    /// The object waits until the rules that match it are lifted.
    Rule,
}

/// A held object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldObject {
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// The condition that ends the hold.
    pub waits_for: WaitsFor,
    /// Due time, ms since the epoch; none if the object waits for an operator or a rule.
    pub due_ms: Option<u64>,
    /// Id of the first event of the held batch; none without a batch.
    pub id: Option<u64>,
    /// Number of failed deliveries of that event.
    pub attempts: u64,
    /// Number of workers that died with that event in flight.
    pub crashes: u64,
    /// Number of events in the held batch. Further events may be queued after them.
    pub events: u64,
    /// Recorded reason of the hold, with the last error. For a paused object, the reason before the
    /// pause.
    pub why: String,
    /// Rules that match a paused object, blocks first. Includes lifted rules whose objects are
    /// still being woken. Empty for all other objects.
    pub rules: Vec<Rule>,
}

/// One page of held objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldPage {
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// The objects. From [`Control::held`] sorted by due time, with those that wait for an operator
    /// last; from [`Control::paused`] sorted by name.
    pub objects: Vec<HeldObject>,
    /// Cursor of the next page; none if there are no more.
    pub next: Option<Cursor>,
}

/// The result of [`Control::skip`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skipped {
    /// The event is now a dead letter, and the object is due at once.
    Skipped {
        /// Id of the event.
        id: u64,
        /// Id of the new dead letter.
        dead_id: RowId,
        /// Number of events left in the held batch.
        left: u64,
    },
    /// The object is not held. The value is its owner, empty if it has none.
    NotHeld(String),
    /// A rule holds the object. It continues when the rule is lifted.
    Paused,
    /// The object is held but has no batch. The value is the reason of the hold, empty for a yield.
    NoBatch(String),
    /// The first event has another id, which is the value.
    Other(u64),
}

/// Selects the held objects for [`Control::release_all`]; by default all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Which<'a> {
    /// Only objects whose names begin with this text.
    pub prefix: &'a str,
    /// Only objects whose reason ([`HeldObject::why`]) contains this text.
    pub why: &'a str,
    /// Only objects that wait for an operator.
    pub until_released: bool,
}

/// The counts of [`Control::release_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedAll {
    /// Number of released objects.
    pub released: u64,
    /// Number of objects that were already due.
    pub due: u64,
}

impl Control {
    /// Reads up to `count` held objects (1 to [`PER_CALL_MAX`]). Begins after the position `after`,
    /// or at the beginning without it. With `until_released`, only objects that wait for an
    /// operator.
    ///
    /// An object whose due time changes between two pages may be missed, or be in both. This
    /// happens to no other object. Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] for a cursor of another list. Other errors if Redis cannot be
    /// asked, or if `objects.held` is not a sorted set.
    pub async fn held(&self, until_released: bool, after: Option<&Cursor>, count: usize) -> Result<HeldPage, ControlError> {
        let after = after.map(place).transpose()?;
        let count = count.clamp(1, PER_CALL_MAX);
        let read = operator::held(&mut self.connection(), &self.keys, until_released, after.as_ref(), count).await;
        let (now_ms, page) = read?;
        let next = page.last().filter(|_| page.len() == count).map(cursor);
        Ok(HeldPage { now_ms, objects: page.into_iter().map(HeldObject::of).collect(), next })
    }

    /// Reads up to `count` paused objects (1 to [`PER_CALL_MAX`]), in the byte order of their
    /// names, each with the rules that match it. Begins after the position `after`, or at the
    /// beginning without it.
    ///
    /// Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] for a cursor of another list. Other errors if Redis cannot be
    /// asked, or if `objects.paused` is not a sorted set.
    pub async fn paused(&self, after: Option<&Cursor>, count: usize) -> Result<HeldPage, ControlError> {
        let after = after.map(name).transpose()?;
        let count = count.clamp(1, PER_CALL_MAX);
        let page = operator::paused(&mut self.connection(), &self.keys, after.as_deref(), count).await?;
        let last = page.objects.last().filter(|_| page.objects.len() == count);
        let next = last.map(|(last, _)| Cursor::from(format!("{NAME}{}", escape::name(&last.object))));
        let rule = |(field, value): (Vec<u8>, Vec<u8>)| Rule::of(&field, &value, page.now_ms).map(|rule| (field, rule));
        let rules: BTreeMap<Vec<u8>, Rule> = page.rules.into_iter().filter_map(rule).collect();
        let paused = |(place, fields): (HeldReply, Vec<Vec<u8>>)| HeldObject {
            waits_for: WaitsFor::Rule,
            rules: fields.iter().filter_map(|field| rules.get(field).cloned()).collect(),
            ..HeldObject::of(place)
        };
        Ok(HeldPage { now_ms: page.now_ms, objects: page.objects.into_iter().map(paused).collect(), next })
    }

    /// Makes a held object due at once, for whatever reason it is held, and wakes a worker.
    /// Attempts and crashes stay counted. Recorded in the [actions](Control::actions).
    ///
    /// One atomic step. Calling again is safe. After a lost reply, a second call may release the
    /// object once more if it failed again meanwhile.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name. Other errors if Redis cannot be asked or
    /// forbids it.
    pub async fn release(&self, by: By<'_>, object: impl AsRef<[u8]>) -> Result<Released, ControlError> {
        let object = self.keys.found(&object)?;
        Ok(operator::release(&mut self.connection(), &self.keys, by, object).await?)
    }

    /// Releases all objects that are held at the beginning, or the selected ones, in steps of 100.
    /// Each is made due at once as by [`Control::release`], and recorded in the
    /// [actions](Control::actions). Objects that wait for a rule stay. `progress` is called after
    /// each step.
    ///
    /// An object that becomes held meanwhile may be released or not. The same holds for an object
    /// that was released and failed again.
    ///
    /// Calling again is safe and continues after the released objects. If the future is dropped,
    /// any number of steps may be done.
    ///
    /// # Errors
    /// As [`Control::release`]. Earlier steps stay done; `progress` has received the number of
    /// released objects.
    pub async fn release_all(
        &self,
        by: By<'_>,
        which: &Which<'_>,
        mut progress: impl FnMut(&ReleasedAll),
    ) -> Result<ReleasedAll, ControlError> {
        const WHAT: &str = "objects.held";
        let (mut conn, keys) = (self.connection(), &self.keys);
        let mut all = ReleasedAll::default();
        let mut cursor = 0_u64;
        loop {
            // Does not read in the order of due times, because a release changes them: an object
            // that keeps failing would appear again and again.
            let mut ask = redis::cmd("ZSCAN");
            ask.arg(keys.objects_held()).arg(cursor).arg("COUNT").arg(RELEASE_PER_CALL_MAX);
            let page = ask.query_async(&mut conn).await;
            let (next, page): (u64, Vec<(Vec<u8>, String)>) = page.map_err(ControlError::redis(WHAT))?;
            let meant = |(object, due): &(Vec<u8>, String)| {
                object.starts_with(which.prefix.as_bytes()) && (!which.until_released || due.as_str() == "inf")
            };
            let objects: Vec<Vec<u8>> = page.into_iter().filter(meant).map(|(object, _)| object).collect();
            for some in objects.chunks(RELEASE_PER_CALL_MAX) {
                let step = operator::release_many(&mut conn, keys, by, which.until_released, which.why, some).await?;
                for released in step {
                    all.released += u64::from(released == ReleasedOne::Released);
                    all.due += u64::from(released == ReleasedOne::Due);
                }
                progress(&all);
            }
            if next == 0 {
                return Ok(all);
            }
            cursor = next;
        }
    }

    /// Moves the first event of a held object to the dead letters. The object is due at once and
    /// continues with the next event, whose `prev` is the last delivered event. If `id` is given,
    /// skips only the event with this id, because the event that the operator saw may have ended
    /// since. Recorded in the [actions](Control::actions).
    ///
    /// One atomic step. With an `id`, calling again is safe. Without one, a second call may skip
    /// the next event.
    ///
    /// # Errors
    /// As [`Control::release`].
    pub async fn skip(&self, by: By<'_>, object: impl AsRef<[u8]>, id: Option<u64>) -> Result<Skipped, ControlError> {
        let object = self.keys.found(&object)?;
        let skipped = operator::skip(&mut self.connection(), &self.keys, by, object, id).await?;
        Ok(match skipped {
            operator::Skipped::Skipped { id, dead_id, left } => Skipped::Skipped { id, dead_id: dead_id.into(), left },
            operator::Skipped::NotHeld(owner) => Skipped::NotHeld(owner),
            operator::Skipped::Paused => Skipped::Paused,
            operator::Skipped::NoBatch(why) => Skipped::NoBatch(why),
            operator::Skipped::Other(id) => Skipped::Other(id),
        })
    }
}

/// Beginning of a cursor of the held objects. The due time, a blank and the name follow.
const DUE: &str = "due ";
/// Beginning of a cursor of the paused objects. The name follows.
const NAME: &str = "name ";

/// Returns the cursor of the position after a held object. Names are escaped, because a cursor is
/// text.
fn cursor(last: &HeldReply) -> Cursor {
    Cursor::from(format!("{DUE}{} {}", last.due, escape::name(&last.object)))
}

fn place(cursor: &Cursor) -> Result<HeldReply, ControlError> {
    let read = || {
        let (due, name) = cursor.as_str().strip_prefix(DUE)?.split_once(' ')?;
        due.parse::<f64>().ok()?;
        let object = escape::unescaped(name).ok()?;
        Some(HeldReply { object, due: due.to_owned(), owner: String::new(), held_id: String::new(), events: 0 })
    };
    read().ok_or_else(|| ControlError::Cursor(cursor.to_string()))
}

fn name(cursor: &Cursor) -> Result<Vec<u8>, ControlError> {
    let name = cursor.as_str().strip_prefix(NAME).and_then(|name| escape::unescaped(name).ok());
    name.ok_or_else(|| ControlError::Cursor(cursor.to_string()))
}

impl HeldObject {
    fn of(place: HeldReply) -> Self {
        let HeldId { tag, reason } = place.held_id.parse().unwrap_or_default();
        let (first, why) = (tag.map(|tag| tag.first), reason.to_string());
        let Tag { attempts, crashes, .. } = tag.unwrap_or_default();
        let due_ms = place.due.parse::<f64>().ok().filter(|due| due.is_finite()).map(|due| due as u64);
        Self {
            object: String::from_utf8_lossy(&place.object).into_owned(),
            object_escaped: escape::differing(&place.object),
            waits_for: waits_for(due_ms.is_none(), &why),
            due_ms,
            id: first,
            attempts: attempts.into(),
            crashes: crashes.into(),
            events: place.events,
            why,
            rules: Vec::new(),
        }
    }
}

/// Derives the condition that ends the hold from the recorded reason.
fn waits_for(operator: bool, why: &str) -> WaitsFor {
    match why.split(':').next().unwrap_or_default() {
        _ if operator => WaitsFor::Operator,
        "" | "yield" => WaitsFor::Yield,
        "retry" => WaitsFor::Retry,
        "takeover" => WaitsFor::Takeover,
        "stop" | "slots" | "unavailable" => WaitsFor::Stop,
        _ => WaitsFor::Released,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_keeps_any_bytes_of_a_name_and_is_of_one_list() {
        for object in [&b"work:1"[..], b"two words", b"a\nb\\", b"\xff\x00 x"] {
            for due in ["inf", "1700", "1.5e12", "-inf"] {
                let at = HeldReply {
                    object: object.to_vec(),
                    due: due.to_owned(),
                    owner: String::new(),
                    held_id: String::new(),
                    events: 0,
                };
                assert_eq!(place(&cursor(&at)).expect("a cursor"), at);
                assert!(matches!(name(&cursor(&at)), Err(ControlError::Cursor(_))));
            }
            let by_name = Cursor::from(format!("{NAME}{}", escape::name(object)));
            assert_eq!(name(&by_name).expect("a cursor"), object);
            assert!(matches!(place(&by_name), Err(ControlError::Cursor(_))));
        }
        for wrong in ["", "due ", "due work:1", "due soon work:1", "due 1 \\q", "1700-0"] {
            assert!(matches!(place(&Cursor::from(wrong)), Err(ControlError::Cursor(_))), "{wrong:?}");
        }
    }

    #[test]
    fn what_an_object_waits_for_follows_from_the_reason() {
        for (why, expected) in [
            ("", WaitsFor::Yield),
            ("yield", WaitsFor::Yield),
            ("retry: stop: it", WaitsFor::Retry),
            ("takeover", WaitsFor::Takeover),
            ("stop", WaitsFor::Stop),
            ("slots", WaitsFor::Stop),
            ("skip", WaitsFor::Released),
            ("crashes: died 5 times with this event in hand", WaitsFor::Released),
            ("attempts: failed 3 times, at last: down", WaitsFor::Released),
            ("quarantine: x", WaitsFor::Released),
        ] {
            assert_eq!((waits_for(false, why), waits_for(true, why)), (expected, WaitsFor::Operator), "{why}");
        }
    }
}
