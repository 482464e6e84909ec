//! Held objects, paused ones among them: why each waits and until when; released at once, or rid of
//! the event at their head.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rules::Rule;
use super::{Control, ControlError, Cursor, RowId};
use crate::escape;
use crate::wire::operator::{self, HeldReply, RELEASE_PER_CALL_MAX, ReleasedOne};
pub use crate::wire::operator::{By, Released};

/// How many held objects one call reads at most.
pub const PER_CALL_MAX: usize = 250;

/// What a held object waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// Its event has failed, and is tried again later.
    Retry,
    /// Its worker is gone: another one goes on with it.
    Takeover,
    /// Other objects have a turn.
    Yield,
    /// Its worker was stopped, started again with fewer slots, or its sink was unavailable for
    /// long: another one goes on with it.
    Stop,
    /// An operator has released it, or skipped an event of it: any worker goes on with it.
    Released,
    /// Until an operator releases it.
    Operator,
    /// Until the rules over it are lifted.
    Rule,
}

/// A held object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldObject {
    /// Its name; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// Its [escaped](crate::escape::name) name, if that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// When it is due, ms since the epoch; nothing: until an operator or a rule releases it.
    pub due_ms: Option<u64>,
    /// The id of the event at its head; nothing where no event of it is in hand.
    pub id: Option<u64>,
    /// How often that event has failed.
    pub attempts: u64,
    /// How many workers died with it in hand.
    pub crashes: u64,
    /// How many events are in its batch; others may be queued behind them.
    pub events: u64,
    /// Why it is held, as it was noted: with the last error. Of a paused object, why it was held
    /// before.
    pub why: String,
    /// The rules that are over a paused object, blocks first, and those that are lifted but still
    /// being woken. Empty for all others.
    pub rules: Vec<Rule>,
}

/// Some held objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldPage {
    /// Redis's time, ms since the epoch.
    pub now_ms: u64,
    /// Of [`Control::held`] by due time, those that wait for an operator last; of
    /// [`Control::paused`] by name.
    pub objects: Vec<HeldObject>,
    /// The next page; none if there are no more.
    pub next: Option<Cursor>,
}

/// The result of [`Control::skip`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skipped {
    /// The event is a dead letter, and the object due at once.
    Skipped {
        /// The event's id.
        id: u64,
        /// The id of its dead letter.
        dead_id: RowId,
        /// How many events are left of the held batch.
        left: u64,
    },
    /// It is not held. Its owner, empty if it has none.
    NotHeld(String),
    /// A rule holds it: it goes on when the rule is lifted.
    Paused,
    /// It is held, but no event of it has been in hand. Why it is held, empty for a yield.
    NoBatch(String),
    /// Its head is another event.
    Other(u64),
}

/// Which held objects [`Control::release_all`] releases; by default all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Which<'a> {
    /// Only those whose names begin so.
    pub prefix: &'a str,
    /// Only those whose reason ([`HeldObject::why`]) contains this text.
    pub why: &'a str,
    /// Only those that wait for an operator.
    pub until_released: bool,
}

/// The counts of a [`Control::release_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedAll {
    /// How many objects were released.
    pub released: u64,
    /// How many were due already.
    pub due: u64,
}

impl Control {
    /// Reads up to `count` held objects (1 to [`PER_CALL_MAX`]) that come behind `after`; from the
    /// beginning without. With `until_released`, only those that wait for an operator.
    ///
    /// An object whose due time changes between two pages may be missed, or be in both; no other
    /// is. Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] for a cursor of another list; others if Redis cannot be asked, also
    /// if `objects.held` is no sorted set.
    pub async fn held(&self, until_released: bool, after: Option<&Cursor>, count: usize) -> Result<HeldPage, ControlError> {
        let after = after.map(place).transpose()?;
        let count = count.clamp(1, PER_CALL_MAX);
        let read = operator::held(&mut self.connection(), &self.keys, until_released, after.as_ref(), count).await;
        let (now_ms, page) = read?;
        let next = page.last().filter(|_| page.len() == count).map(cursor);
        Ok(HeldPage { now_ms, objects: page.into_iter().map(HeldObject::of).collect(), next })
    }

    /// Reads up to `count` paused objects (1 to [`PER_CALL_MAX`]), by the bytes of their names,
    /// that come behind `after`; from the beginning without. Each comes with the rules over it.
    ///
    /// Only reads; may be called again.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] for a cursor of another list; others if Redis cannot be asked, also
    /// if `objects.paused` is no sorted set.
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

    /// Makes a held object due at once, whatever it waits for, and wakes a worker. Its attempts and
    /// crashes stay counted. The [actions](Control::actions) keep a record.
    ///
    /// One atomic step. Calling again is safe. After a lost reply it may release the object once
    /// more, if it has failed again meanwhile.
    ///
    /// # Errors
    /// [`ControlError::Name`] for a name that no object can have; others if Redis cannot be asked
    /// or does not allow it.
    pub async fn release(&self, by: By<'_>, object: impl AsRef<[u8]>) -> Result<Released, ControlError> {
        let object = self.keys.found(&object)?;
        Ok(operator::release(&mut self.connection(), &self.keys, by, object).await?)
    }

    /// Releases all held objects, or some of them, that are held when it begins, in steps of 100:
    /// each is made due at once as by [`Control::release`], with a record in the
    /// [actions](Control::actions). Objects that wait for a rule stay. `progress` is called after
    /// each step.
    ///
    /// An object that becomes held meanwhile may be released or not, also one that was released and
    /// has failed again.
    ///
    /// Calling again is safe, and goes on where the first call ended. If the future is dropped, any
    /// number of steps have been made.
    ///
    /// # Errors
    /// As [`Control::release`]. The steps until then are done; `progress` has told how many objects
    /// they released.
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
            // Not by the time, which a release changes: an object that fails again and again would
            // come again and again.
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

    /// Sends the event at the head of a held object to the dead letters. The object is due at once
    /// and goes on with the next event, `prev` being the last event delivered. With `id`, only if
    /// that is the event's id: the event that an operator has looked at may be over meanwhile. The
    /// [actions](Control::actions) keep a record.
    ///
    /// One atomic step. With an `id`, calling again is safe; without, it may skip the next event.
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

/// The beginning of a cursor of the held objects; the due time, a blank and the name follow.
const DUE: &str = "due ";
/// The beginning of a cursor of the paused objects; the name follows.
const NAME: &str = "name ";

/// The place behind a held object. Names are escaped, because a cursor is text.
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
        let mut parts = place.held_id.splitn(5, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
        let (first, _handouts, attempts, crashes) = (number(), number(), number(), number());
        let why = parts.next().unwrap_or_default().to_owned();
        let due_ms = place.due.parse::<f64>().ok().filter(|due| due.is_finite()).map(|due| due as u64);
        Self {
            object: String::from_utf8_lossy(&place.object).into_owned(),
            object_escaped: escape::differing(&place.object),
            waits_for: waits_for(due_ms.is_none(), &why),
            due_ms,
            id: (first > 0).then_some(first),
            attempts,
            crashes,
            events: place.events,
            why,
            rules: Vec::new(),
        }
    }
}

/// What follows from the reason that was noted, which is what it was held for at first.
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
