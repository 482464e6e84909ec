//! Held objects, including paused ones. Lists them with reason and due time, releases an object, or
//! skips the first event of an object.

mod release;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::release::{RELEASE_OVER_MAX, ReleaseFilter, ReleasedAll};
use super::rules::Rule;
use super::shares::ShareWait;
use super::{Control, ControlError, Cursor};
use crate::escape;
pub use crate::wire::operator::HELD_LOOKED_MAX as LOOKED_MAX;
use crate::wire::operator::{self, HeldPart, HeldQuery, HeldReply};
pub use crate::wire::operator::{By, Released, Skipped};
use crate::wire::values::{DueTime, HeldId, Tag};

/// Maximum number of held objects that one call reads.
pub const PER_CALL_MAX: usize = 250;

/// The condition that ends a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// The first event has failed. It is tried again at the due time.
    Retry,
    /// The worker does not know the first event, e.g. its type. Another worker may know it. A
    /// worker looks at it again at the due time.
    Unknown,
    /// The worker's process is gone. Another worker continues.
    Takeover,
    /// The object gave way to other objects.
    Yield,
    /// The worker was stopped, or started again with fewer slots, or its sink was unavailable for
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
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HeldObject {
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// The condition that ends the hold.
    pub waits_for: WaitsFor,
    /// Due time, ms since the epoch; none if the object waits for an operator or a rule, or is due at
    /// once.
    pub due_ms: Option<u64>,
    /// Whether the object is due at once, without a due time, e.g. because an operator has released it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// Id of the first event of the held batch; none without a batch.
    pub id: Option<u64>,
    /// Number of failed deliveries of the first event of the held batch.
    pub attempts: u64,
    /// Number of workers that died with that first event in flight.
    pub crashes: u64,
    /// Number of events in the held batch. Further events may be queued after them.
    pub events: u64,
    /// Recorded reason of the hold, with the last error. For a paused object: the reason why it was
    /// held before the pause.
    pub why: String,
    /// Rules that match a paused object, blocks first. This includes lifted rules whose objects are
    /// still being woken. Empty for an object that is not paused.
    pub rules: Vec<Rule>,
    /// The share whose limit the object waits for. None if the object is not due, if its name is
    /// not grouped, or if no share stops it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_share: Option<ShareWait>,
}

/// One page of held objects.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HeldPage {
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// The objects. [`Control::held`] sorts them by due time; objects that wait for an operator
    /// come last. [`Control::paused`] sorts them by name.
    pub objects: Vec<HeldObject>,
    /// Number of objects that were looked at for this page.
    pub looked: u64,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

/// Selects held objects for [`Control::held_where`]. The default selects all.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeldFilter<'a> {
    /// Only objects whose names begin with these bytes.
    pub prefix: &'a [u8],
    /// Only objects that wait for this.
    pub waits_for: Option<WaitsFor>,
    /// Only objects that are due now, and that no worker has taken yet.
    pub due: bool,
}

impl Control {
    /// Reads up to `count` held objects (1 to [`PER_CALL_MAX`]). Begins after the position `after`;
    /// without `after`, at the beginning. If `until_released` is true, reads only objects that wait
    /// for an operator.
    ///
    /// An object whose due time changes between two pages may be missed, or be in both pages. This
    /// happens to no other object. The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list. Other errors if Redis
    /// cannot be asked, or if `objects.held` is not a sorted set.
    pub async fn held(
        &self,
        until_released: bool,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<HeldPage, ControlError> {
        let filter = HeldFilter {
            waits_for: until_released.then_some(WaitsFor::Operator),
            ..HeldFilter::default()
        };
        self.held_where(&filter, after, count).await
    }

    /// Reads up to `count` of the held objects that the filter selects, in the order of
    /// [`Control::held`]. Each call looks at no more than [`LOOKED_MAX`] objects, and reads why the
    /// objects wait for no more than [`PER_CALL_MAX`] of them. So a page may have fewer than
    /// `count` objects, or none, although a next page exists. [`HeldPage::looked`] shows the
    /// number.
    ///
    /// If names of the objects are grouped, the call also reads the shares, and how far those are
    /// used that match the objects.
    ///
    /// Objects that wait for an operator, and objects that are due, lie together. A call with such
    /// a filter looks at no others.
    ///
    /// # Errors
    /// As [`Control::held`].
    pub async fn held_where(
        &self,
        filter: &HeldFilter<'_>,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<HeldPage, ControlError> {
        let after = after.map(place).transpose()?;
        let count = count.clamp(1, PER_CALL_MAX);
        let (part, why) = match filter.waits_for {
            // No held object waits for a rule, and none that waits for an operator is due.
            Some(WaitsFor::Rule) => return self.no_page().await,
            Some(WaitsFor::Operator) if filter.due => return self.no_page().await,
            Some(WaitsFor::Operator) => (HeldPart::UntilReleased, None),
            why if filter.due => (HeldPart::Due, why),
            Some(why) => (HeldPart::Timed, Some(why)),
            None => (HeldPart::All, None),
        };
        let after = after
            .as_ref()
            .map(|(due, object)| (due.as_str(), &object[..]));
        let read_max = if why.is_some() { PER_CALL_MAX } else { count };
        let query = HeldQuery {
            part,
            prefix: filter.prefix,
            after,
            count: read_max,
        };
        let page = operator::held(&mut self.connection(), &self.keys, &query).await?;
        let mut next = page.last.as_ref().map(|(due, object)| cursor(due, object));
        let mut objects = Vec::with_capacity(count);
        // The objects of the page that are grouped: the place in the page, and the name.
        let mut grouped: Vec<(usize, Vec<u8>)> = Vec::new();
        for place in page.objects {
            let at = cursor(&place.due, &place.object);
            let grouped_name = is_grouped(&place.due).then(|| place.object.clone());
            let held = HeldObject::of(place, page.now_ms);
            if why.is_some_and(|why| held.waits_for != why) {
                continue;
            }
            grouped.extend(grouped_name.map(|name| (objects.len(), name)));
            objects.push(held);
            if objects.len() == count {
                // The objects after this one were read, but are not in this page.
                next = Some(at).filter(|_| why.is_some()).or(next);
                break;
            }
        }
        let asked: Vec<(&[u8], u64)> = grouped
            .iter()
            .map(|(at, name)| (&name[..], objects[*at].events))
            .collect();
        let waits = self.share_waits(&asked).await?;
        for ((at, _), wait) in grouped.iter().zip(waits) {
            objects[*at].waits_for_share = wait;
        }
        Ok(HeldPage {
            now_ms: page.now_ms,
            objects,
            looked: page.looked,
            next,
        })
    }

    /// Returns a page without objects, for a filter that no object meets.
    async fn no_page(&self) -> Result<HeldPage, ControlError> {
        Ok(HeldPage {
            now_ms: self.now_ms().await?,
            objects: Vec::new(),
            looked: 0,
            next: None,
        })
    }

    /// Reads up to `count` paused objects (1 to [`PER_CALL_MAX`]), in the byte order of their
    /// names, each with the rules that match it. Begins after the position `after`; without
    /// `after`, at the beginning.
    ///
    /// The call only reads, and may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Cursor`] if `after` is a cursor of another list. Other errors if Redis
    /// cannot be asked, or if `objects.paused` is not a sorted set.
    pub async fn paused(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<HeldPage, ControlError> {
        self.paused_where(b"", after, count).await
    }

    /// Reads up to `count` paused objects whose names begin with `prefix`, as [`Control::paused`]
    /// does. The call looks at no other objects.
    ///
    /// # Errors
    /// As [`Control::paused`].
    pub async fn paused_where(
        &self,
        prefix: impl AsRef<[u8]>,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<HeldPage, ControlError> {
        let after = after.map(name).transpose()?;
        let (prefix, count) = (prefix.as_ref(), count.clamp(1, PER_CALL_MAX));
        let page = operator::paused(
            &mut self.connection(),
            &self.keys,
            prefix,
            after.as_deref(),
            count,
        )
        .await?;
        let last = page.objects.last().filter(|_| page.objects.len() == count);
        let next =
            last.map(|(last, _)| Cursor::from(format!("{NAME}{}", escape::name(&last.object))));
        let rule = |(field, value): (Vec<u8>, Vec<u8>)| {
            Rule::of(&field, &value, page.now_ms).map(|rule| (field, rule))
        };
        let rules: BTreeMap<Vec<u8>, Rule> = page.rules.into_iter().filter_map(rule).collect();
        let paused = |(place, fields): (HeldReply, Vec<Vec<u8>>)| HeldObject {
            waits_for: WaitsFor::Rule,
            rules: fields
                .iter()
                .filter_map(|field| rules.get(field).cloned())
                .collect(),
            ..HeldObject::of(place, page.now_ms)
        };
        let (looked, objects) = (
            page.objects.len() as u64,
            page.objects.into_iter().map(paused).collect(),
        );
        Ok(HeldPage {
            now_ms: page.now_ms,
            objects,
            looked,
            next,
        })
    }

    /// Makes a held object due at once, for whatever reason it is held, and wakes a worker. The
    /// counts of attempts and crashes stay. The step is recorded in the
    /// [actions](Control::actions).
    ///
    /// The call is one atomic step. Calling again is safe. After a lost reply, a second call may
    /// release the object once more if the object has failed again meanwhile.
    ///
    /// # Errors
    /// [`ControlError::Name`] for an invalid object name. Other errors if Redis cannot be asked or
    /// forbids it.
    pub async fn release(
        &self,
        by: By<'_>,
        object: impl AsRef<[u8]>,
    ) -> Result<Released, ControlError> {
        let object = self.keys.found(&object)?;
        Ok(operator::release(&mut self.connection(), &self.keys, by, object).await?)
    }

    /// Moves the first event of a held object to the dead letters. The object is due at once and
    /// continues with the next event, whose `prev` is the id of the last delivered event. If `id`
    /// is given, skips only the event with this id. Without `id`, the call may skip another event
    /// than the one that the operator saw, because that event may have ended since. The step is
    /// recorded in the [actions](Control::actions).
    ///
    /// The call is one atomic step. With an `id`, calling again is safe. Without an `id`, a second
    /// call may skip the next event.
    ///
    /// # Errors
    /// As [`Control::release`].
    pub async fn skip(
        &self,
        by: By<'_>,
        object: impl AsRef<[u8]>,
        id: Option<u64>,
    ) -> Result<Skipped, ControlError> {
        let object = self.keys.found(&object)?;
        Ok(operator::skip(&mut self.connection(), &self.keys, by, object, id).await?)
    }
}

/// Beginning of a cursor of the held objects. The due time, a blank and the name follow it.
const DUE: &str = "due ";
/// Beginning of a cursor of the paused objects. The name follows it.
const NAME: &str = "name ";

/// Returns the cursor for the position after a held object. The name in it is escaped, because a
/// cursor is text.
fn cursor(due: &str, object: &[u8]) -> Cursor {
    Cursor::from(format!("{DUE}{due} {}", escape::name(object)))
}

/// Returns the due time and the name of the object before a page.
fn place(cursor: &Cursor) -> Result<(String, Vec<u8>), ControlError> {
    let read = || {
        let (due, name) = cursor.as_str().strip_prefix(DUE)?.split_once(' ')?;
        due.parse::<f64>().ok()?;
        Some((due.to_owned(), escape::unescaped(name).ok()?))
    };
    read().ok_or_else(|| ControlError::Cursor(cursor.to_string()))
}

fn name(cursor: &Cursor) -> Result<Vec<u8>, ControlError> {
    let name = cursor
        .as_str()
        .strip_prefix(NAME)
        .and_then(|name| escape::unescaped(name).ok());
    name.ok_or_else(|| ControlError::Cursor(cursor.to_string()))
}

impl HeldObject {
    fn of(place: HeldReply, now_ms: u64) -> Self {
        let HeldId { tag, reason } = place.held_id.parse().unwrap_or_default();
        let (first, why) = (tag.map(|tag| tag.first), reason.to_string());
        let Tag {
            attempts, crashes, ..
        } = tag.unwrap_or_default();
        let due = place
            .due
            .parse()
            .map_or(DueTime::Never, |score| DueTime::of_held(score, now_ms));
        Self {
            object: String::from_utf8_lossy(&place.object).into_owned(),
            object_escaped: escape::differing(&place.object),
            waits_for: waits_for(due == DueTime::Never, &why),
            due_ms: due.ms(),
            at_once: due == DueTime::AtOnce,
            id: first,
            attempts: attempts.into(),
            crashes: crashes.into(),
            events: place.events,
            why,
            rules: Vec::new(),
            waits_for_share: None,
        }
    }
}

/// Returns whether a score of `objects.held` says that the name of the object is grouped.
fn is_grouped(score: &str) -> bool {
    score.parse::<f64>().is_ok_and(|score| score < 0.0)
}

/// Derives the condition that ends the hold from the recorded reason.
fn waits_for(operator: bool, why: &str) -> WaitsFor {
    match why.split(':').next().unwrap_or_default() {
        _ if operator => WaitsFor::Operator,
        "" | "yield" => WaitsFor::Yield,
        "retry" => WaitsFor::Retry,
        "unknown" => WaitsFor::Unknown,
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
                assert_eq!(
                    place(&cursor(due, object)).expect("a cursor"),
                    (due.to_owned(), object.to_vec())
                );
                assert!(matches!(
                    name(&cursor(due, object)),
                    Err(ControlError::Cursor(_))
                ));
            }
            let by_name = Cursor::from(format!("{NAME}{}", escape::name(object)));
            assert_eq!(name(&by_name).expect("a cursor"), object);
            assert!(matches!(place(&by_name), Err(ControlError::Cursor(_))));
        }
        for wrong in [
            "",
            "due ",
            "due work:1",
            "due soon work:1",
            "due 1 \\q",
            "1700-0",
        ] {
            assert!(
                matches!(place(&Cursor::from(wrong)), Err(ControlError::Cursor(_))),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn what_an_object_waits_for_follows_from_the_reason() {
        for (why, expected) in [
            ("", WaitsFor::Yield),
            ("yield", WaitsFor::Yield),
            ("retry: stop: it", WaitsFor::Retry),
            ("unknown: no handler", WaitsFor::Unknown),
            ("rejected: no such place", WaitsFor::Released),
            ("takeover", WaitsFor::Takeover),
            ("stop", WaitsFor::Stop),
            ("slots", WaitsFor::Stop),
            ("skip", WaitsFor::Released),
            (
                "crashes: died 5 times with this event in hand",
                WaitsFor::Released,
            ),
            (
                "attempts: failed 3 times, at last: down",
                WaitsFor::Released,
            ),
            ("quarantine: x", WaitsFor::Released),
        ] {
            assert_eq!(
                (waits_for(false, why), waits_for(true, why)),
                (expected, WaitsFor::Operator),
                "{why}"
            );
        }
    }
}
