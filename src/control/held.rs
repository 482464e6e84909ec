//! Held objects, paused ones among them: why each waits and until when; released at once, or rid of
//! the event at their head.

use std::collections::BTreeMap;

use redis::aio::ConnectionLike;
use serde::Serialize;

use super::ControlError;
use super::rules::Rule;
use crate::escape;
use crate::keys::Keys;
use crate::wire::operator::{self, HeldReply, RELEASE_PER_CALL_MAX, ReleasedOne};
pub use crate::wire::operator::{By, Released, Skipped};

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
    /// Where the next page begins.
    #[serde(skip)]
    place: HeldReply,
}

/// Some held objects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldPage {
    /// Redis's time, ms since the epoch.
    pub now_ms: u64,
    /// Of [`held`] those that are due first come first, those that wait for an operator last; of
    /// [`paused`] by name.
    pub objects: Vec<HeldObject>,
}

/// Reads up to `count` held objects (at most [`PER_CALL_MAX`]) that come after this one; from the
/// beginning without one. With `until_released`, only those that wait for an operator. Fewer than
/// asked for means that there are no more.
///
/// An object whose time changes between two pages may be missed, or told twice; no other is.
///
/// # Errors
/// [`ControlError`] if Redis cannot be asked, also if `objects.held` is no sorted set.
pub async fn held<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    until_released: bool,
    after: Option<&HeldObject>,
    count: usize,
) -> Result<HeldPage, ControlError> {
    let after = after.map(|after| &after.place);
    let (now_ms, page) = operator::held(conn, keys, until_released, after, count.clamp(1, PER_CALL_MAX)).await?;
    Ok(HeldPage { now_ms, objects: page.into_iter().map(HeldObject::of).collect() })
}

/// Reads up to `count` paused objects (at most [`PER_CALL_MAX`]), by the bytes of their names, that
/// come after this one; from the beginning without one. Each is told with the rules that are over
/// it. Fewer than asked for means that there are no more.
///
/// # Errors
/// [`ControlError`] if Redis cannot be asked, also if `objects.paused` is no sorted set.
pub async fn paused<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    after: Option<&HeldObject>,
    count: usize,
) -> Result<HeldPage, ControlError> {
    let after = after.map(|after| &after.place.object[..]);
    let page = operator::paused(conn, keys, after, count.clamp(1, PER_CALL_MAX)).await?;
    let rule = |(field, value): (Vec<u8>, Vec<u8>)| Rule::of(&field, &value, page.now_ms).map(|rule| (field, rule));
    let rules: BTreeMap<Vec<u8>, Rule> = page.rules.into_iter().filter_map(rule).collect();
    let paused = |(place, fields): (HeldReply, Vec<Vec<u8>>)| HeldObject {
        waits_for: WaitsFor::Rule,
        rules: fields.iter().filter_map(|field| rules.get(field).cloned()).collect(),
        ..HeldObject::of(place)
    };
    Ok(HeldPage { now_ms: page.now_ms, objects: page.objects.into_iter().map(paused).collect() })
}

/// Makes a held object due at once, whatever it waits for, and wakes a worker. Its attempts and
/// crashes stay counted. What was done is kept in the [actions](mod@super::actions).
///
/// Calling again is safe. After a lost reply it may release the object once more, if it has failed
/// again meanwhile.
///
/// # Errors
/// [`ControlError::Name`] for a name that no object can have; others if Redis cannot be asked or
/// does not allow it.
pub async fn release<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    by: By<'_>,
    object: impl AsRef<[u8]>,
) -> Result<Released, ControlError> {
    Ok(operator::release(conn, keys, by, keys.found(&object)?).await?)
}

/// Which held objects [`release_all`] is about; by default all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Which<'a> {
    /// Only those whose names begin so.
    pub prefix: &'a str,
    /// Only those whose reason ([`HeldObject::why`]) contains this text.
    pub why: &'a str,
    /// Only those that wait for an operator.
    pub until_released: bool,
}

/// The counts of a [`release_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleasedAll {
    /// How many objects were released.
    pub released: u64,
    /// How many were due already.
    pub due: u64,
}

/// Releases all held objects, or some of them, that are held when it begins, in steps of 100: each
/// is made due at once as by [`release`], and kept in the [actions](mod@super::actions). Objects
/// that wait for a rule stay. `progress` is called after each step.
///
/// An object that becomes held meanwhile may be released or not, also one that was released and has
/// failed again.
///
/// Calling again is safe, and goes on where the first call ended.
///
/// # Errors
/// As [`release`]. The steps until then are done; `progress` has told how many objects they
/// released.
pub async fn release_all<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    by: By<'_>,
    which: &Which<'_>,
    mut progress: impl FnMut(&ReleasedAll),
) -> Result<ReleasedAll, ControlError> {
    const WHAT: &str = "objects.held";
    let mut all = ReleasedAll::default();
    let mut cursor = 0_u64;
    loop {
        // Not by the time, which a release changes: an object that fails again and again would come
        // again and again.
        let mut ask = redis::cmd("ZSCAN");
        ask.arg(keys.objects_held()).arg(cursor).arg("COUNT").arg(RELEASE_PER_CALL_MAX);
        let (next, page): (u64, Vec<(Vec<u8>, String)>) = ask.query_async(conn).await.map_err(ControlError::redis(WHAT))?;
        let meant = |(object, due): &(Vec<u8>, String)| {
            object.starts_with(which.prefix.as_bytes()) && (!which.until_released || due.as_str() == "inf")
        };
        let objects: Vec<Vec<u8>> = page.into_iter().filter(meant).map(|(object, _)| object).collect();
        for some in objects.chunks(RELEASE_PER_CALL_MAX) {
            for released in operator::release_many(conn, keys, by, which.until_released, which.why, some).await? {
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

/// Sends the event at the head of a held object to the dead letters; the object is due at once and
/// goes on with what follows, `prev` being the last event delivered. With `id`, only if that is the
/// event's id: what an operator has looked at may be over meanwhile. What was done is kept in the
/// [actions](mod@super::actions).
///
/// With an `id`, calling again is safe; without, it may skip the next event.
///
/// # Errors
/// As [`release`].
pub async fn skip<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    by: By<'_>,
    object: impl AsRef<[u8]>,
    id: Option<u64>,
) -> Result<Skipped, ControlError> {
    Ok(operator::skip(conn, keys, by, keys.found(&object)?, id).await?)
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
            place,
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
