//! Walks over the registered names in bounded steps. Redis keeps the few watched names apart from
//! the many departed ones.
//!
//! The sets of watched and departed names are complete after the pass of `lua/adopt.lua` over the
//! registry. Before that pass has ended, all names count as watched.

use redis::aio::ConnectionLike;

use super::{ControlError, reply};
use crate::keys::Keys;
use crate::wire;

/// Number of slots that one call of the script reads, if no name has more. This takes about 0.1 ms if
/// the slots are empty, and 1 ms if all of them have an object.
const SLOTS_PER_CALL: u32 = 512;
/// Maximum number of slots of one name that a call reads.
const SLOTS_PER_NAME: u32 = 1024;
/// Maximum number of names of one call. A name takes longer than a slot.
const NAMES_PER_CALL: usize = 128;
/// Maximum number of slots of a name. A higher number in Redis is invalid.
const SLOTS_MAX: u32 = 65_536;

/// Selects the names that a walk returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameSet {
    /// Names with a lease or with something in their slots.
    Watched,
    /// Names without a lease whose slots were empty at the last look.
    Departed,
}

/// The key that a walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// `event.workers`: all names.
    All,
    /// `event.workers.watched`.
    Watched,
    /// `event.workers.departed`.
    Departed,
}

/// A walk over worker names, one page at a time. Each name comes with its value in `event.workers`.
/// A name may come twice. No name that stays registered is missed.
pub(crate) struct Walk {
    /// The names to walk over; none after the last page, or if these names are not known yet.
    set: Option<Set>,
    cursor: u64,
}

impl Walk {
    /// Walks over all names.
    pub(super) fn all() -> Self {
        Self {
            set: Some(Set::All),
            cursor: 0,
        }
    }

    /// Walks over the names of one set.
    pub(crate) async fn of<C: ConnectionLike>(
        conn: &mut C,
        keys: &Keys,
        which: NameSet,
    ) -> Result<Self, ControlError> {
        let set = match (is_indexed(conn, keys).await?, which) {
            (true, NameSet::Watched) => Some(Set::Watched),
            (true, NameSet::Departed) => Some(Set::Departed),
            (false, NameSet::Watched) => Some(Set::All),
            (false, NameSet::Departed) => None,
        };
        Ok(Self { set, cursor: 0 })
    }

    /// Returns the next page; `None` after the last page. A key of a wrong type counts as empty,
    /// and `check` reports it.
    pub(crate) async fn next<C: ConnectionLike>(
        &mut self,
        conn: &mut C,
        keys: &Keys,
    ) -> Result<Option<Vec<(String, String)>>, ControlError> {
        let Some(set) = self.set else { return Ok(None) };
        let (cursor, page) = page(conn, keys, set, self.cursor).await?;
        self.cursor = cursor;
        if cursor == 0 {
            self.set = None;
        }
        Ok(Some(page))
    }
}

/// Reads one page of names with their values, about 100 of them. A set that Redis stores in a
/// compact form comes as one page, of up to 512 names with the default settings of Redis. Also
/// returns the cursor of the next page; 0 after the last page, or if a key has a wrong type.
pub(super) async fn page<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    set: Set,
    cursor: u64,
) -> Result<(u64, Vec<(String, String)>), ControlError> {
    const WHAT: &str = "the names of event.workers";
    const PAGE: usize = 100;
    let (command, key) = match set {
        Set::All => ("HSCAN", keys.event_workers()),
        Set::Watched => ("ZSCAN", keys.event_workers_watched()),
        Set::Departed => ("ZSCAN", keys.event_workers_departed()),
    };
    let mut ask = redis::cmd(command);
    ask.arg(key).arg(cursor).arg("COUNT").arg(PAGE);
    let (cursor, flat): (u64, Vec<Vec<u8>>) = match ask.query_async(conn).await {
        Ok(page) => page,
        Err(error) if error.code() == Some("WRONGTYPE") => return Ok((0, Vec::new())),
        Err(error) => return Err(ControlError::redis(WHAT)(error)),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut page: Vec<_> = flat
        .chunks_exact(2)
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect();
    if set != Set::All && !page.is_empty() {
        let mut values = redis::cmd("HMGET");
        values.arg(keys.event_workers()).arg(
            page.iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>(),
        );
        let values: Vec<Option<Vec<u8>>> = match values.query_async(conn).await {
            Ok(values) => values,
            Err(error) if error.code() == Some("WRONGTYPE") => return Ok((0, Vec::new())),
            Err(error) => return Err(ControlError::redis(WHAT)(error)),
        };
        // A name that is no longer registered was left behind in the set. It is skipped.
        let known = page.into_iter().zip(values);
        page = known
            .filter_map(|((name, _), value)| Some((name, text(&value?))))
            .collect();
    }
    Ok((cursor, page))
}

/// Returns whether a pass over all registered worker names has ended, and no new pass has begun.
/// After a pass each of these names is in `event.workers.watched` or in `event.workers.departed`.
/// Calls of the script `adopt` make a pass, step by step.
pub(super) async fn is_indexed<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
) -> Result<bool, ControlError> {
    let mut ask = redis::cmd("HMGET");
    ask.arg(keys.meta()).arg(&["names.indexed", "names.cursor"]);
    match ask
        .query_async::<(Option<Vec<u8>>, Option<Vec<u8>>)>(conn)
        .await
    {
        Ok((indexed, cursor)) => Ok(indexed.is_some() && cursor.is_none()),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(false),
        Err(error) => Err(ControlError::redis("the pass over the names")(error)),
    }
}

/// Objects that were found in the lists of the slots of some names.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Names with a lease.
    pub(super) alive: u64,
    /// Worker ids, each with the object in the list of this worker.
    pub(super) objects: Vec<(String, Vec<u8>)>,
}

/// Reads the objects in the lists of the slots of these names. `object` selects one object; if it
/// is empty, all objects are read.
pub(super) async fn taken<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    object: &[u8],
    names: &[(String, String)],
) -> Result<Taken, ControlError> {
    let mut taken = Taken::default();
    let names = names
        .iter()
        .map(|(name, value)| (name.as_str(), slots_in(value).unwrap_or(0)));
    for step in steps(names) {
        taken_by(conn, keys, object, &step, &mut taken).await?;
    }
    Ok(taken)
}

/// Divides names, each with the number of its slots to read, into steps of bounded size.
pub(super) fn steps<'a>(names: impl Iterator<Item = (&'a str, u32)>) -> Vec<Vec<(&'a str, u32)>> {
    let mut steps: Vec<Vec<(&str, u32)>> = Vec::new();
    let mut slots_left = 0;
    for (name, slots) in names {
        let slots = slots.min(SLOTS_PER_NAME);
        match steps
            .last_mut()
            .filter(|step| slots <= slots_left && step.len() < NAMES_PER_CALL)
        {
            Some(step) => step.push((name, slots)),
            None => {
                steps.push(vec![(name, slots)]);
                slots_left = SLOTS_PER_CALL;
            }
        }
        slots_left = slots_left.saturating_sub(slots);
    }
    steps
}

/// Adds the objects in the lists of the slots of one step.
pub(super) async fn taken_by<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    object: &[u8],
    names: &[(&str, u32)],
    taken: &mut Taken,
) -> Result<(), ControlError> {
    const WHAT: &str = "lua/taken.lua";
    let mut call = wire::TAKEN.invoke();
    call.key(keys.event_workers());
    call.arg(keys.prefix()).arg(object);
    for (name, slots) in names {
        call.arg(*name).arg(*slots);
    }
    let mut reply = reply::ask(conn, WHAT, &call, "taken").await?;
    taken.alive += reply.count()?;
    let mut objects = reply.array()?;
    while objects.len() > 0 {
        taken.objects.push((objects.lossy()?, objects.bytes()?));
    }
    Ok(())
}

/// Parses the number of slots from a value of `event.workers`; none if the value is invalid.
pub(crate) fn slots_in(value: &str) -> Option<u32> {
    let (slots, _token) = value.split_once(' ')?;
    slots
        .parse()
        .ok()
        .filter(|slots| (1..=SLOTS_MAX).contains(slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_bounded_number_of_slots_and_names() {
        let sizes = |slots: &[u32]| -> Vec<usize> {
            steps(slots.iter().map(|slots| ("w", *slots)))
                .iter()
                .map(Vec::len)
                .collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[128; 9]), [4, 4, 1]);
        assert_eq!(sizes(&[500, 12, 1, 512, 5000, 0]), [2, 1, 1, 2]);
        assert_eq!(sizes(&[1; 300]), [128, 128, 44]);
    }
}
