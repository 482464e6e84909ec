//! Reads the registered worker names in pages, and the slots of one name.

use redis::aio::ConnectionLike;
use redis::{RedisResult, Value};
use serde::Serialize;

use super::inspect::Tries;
use super::names::{self, Set};
use super::stats::{NameStats, ask, read_names, registered};
use super::under_work::TAG_BYTES_MAX;
use super::{Control, ControlError, Cursor, reply};
use crate::escape;
use crate::keys::Keys;
use crate::wire::values::Tag;

/// Maximum number of slots, and of names, in one page.
pub const PER_PAGE_MAX: usize = 256;

/// Maximum number of slots whose batches one call counts.
pub const COUNTED_PER_CALL_MAX: u64 = 1000;

/// Maximum number of objects that are shown of one slot. A slot has more than one object only if a
/// late pop has added further names to its list.
const OBJECTS_MAX: usize = 4;

/// Number of pages of names that one call reads at most. A page of Redis may be empty.
const STEPS_MAX: usize = 8;

/// One page of registered worker names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkersPage {
    /// The names: first those that have a lease or something in their slots, then the others.
    pub workers: Vec<NameStats>,
    /// Number of registered names.
    pub registered: u64,
    /// Cursor of the next page; none after the last page.
    pub next: Option<Cursor>,
}

/// An object in the list of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SlotObject {
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
}

/// The batch of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SlotBatch {
    /// Id of the first event; none if the tag of the batch is absent or invalid. `check` gives
    /// details.
    pub id: Option<u64>,
    /// Number of events.
    pub events: u64,
    /// Delivery counts.
    pub tries: Tries,
}

/// One slot of a worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Slot {
    /// Number of the slot, counted from 0.
    pub slot: u32,
    /// Worker id, `NAME.SLOT`.
    pub worker: String,
    /// Objects in the list of the slot, at most four. The first is the one in hand. Further objects
    /// were added by late pops.
    pub objects: Vec<SlotObject>,
    /// Number of further objects in the list.
    pub objects_not_shown: u64,
    /// The batch in flight.
    pub batch: Option<SlotBatch>,
}

/// The result of [`Control::worker`]: a registered name and some of its slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WorkerSlots {
    /// The name. Its counts are of its first [`COUNTED_PER_CALL_MAX`] slots.
    pub worker: NameStats,
    /// The slots, by number.
    pub slots: Vec<Slot>,
    /// Cursor of the next slots; none after the last slot.
    pub next: Option<Cursor>,
}

impl Control {
    /// Reads a page of registered worker names: up to `count` of them, at most [`PER_PAGE_MAX`].
    /// A page ends earlier if its names have more than [`COUNTED_PER_CALL_MAX`] slots. Of a single
    /// name with more slots, the first ones are counted
    /// ([`slots_read`](NameStats::slots_read)).
    ///
    /// A name may come on two pages. No name that stays registered is missed, unless the number of
    /// names falls by more than half while the list is read.
    ///
    /// Cost: a few commands, three for each name, and one for each slot. They are pipelined. The
    /// call only reads. It may be repeated, and its future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError::Cursor`], or other errors if Redis cannot be asked. A key of a wrong type
    /// counts as empty, and `check` reports it.
    pub async fn workers(
        &self,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<WorkersPage, ControlError> {
        let after = after.map(Position::of).transpose()?;
        let (mut conn, keys) = (self.connection(), &self.keys);
        let mut page = WorkersPage {
            registered: number_of_names(&mut conn, keys).await?,
            ..WorkersPage::default()
        };
        let mut position = match after {
            Some(after) => Some(after),
            None if names::is_indexed(&mut conn, keys).await? => {
                Some(Position::start(Set::Watched))
            }
            None => Some(Position::start(Set::All)),
        };
        let count = count.clamp(1, PER_PAGE_MAX);
        for _ in 0..STEPS_MAX {
            let Some(at) = position.take() else { break };
            let (scan, names) = names::page(&mut conn, keys, at.set, at.scan).await?;
            position = match page.fill(names, at.after.as_deref(), count) {
                Filled::AllOf => at.behind(scan),
                Filled::UpTo(last) => Some(Position {
                    after: last.or(at.after),
                    ..at
                }),
            };
            if page.workers.len() >= count {
                break;
            }
        }
        page.next = position.as_ref().map(Position::cursor);
        read_names(&mut conn, keys, &mut page.workers, COUNTED_PER_CALL_MAX).await?;
        Ok(page)
    }

    /// Reads one registered name and up to `count` of its slots, at most [`PER_PAGE_MAX`]. Returns
    /// none if the name is not registered.
    ///
    /// Cost: a few commands, one for each slot of the name up to [`COUNTED_PER_CALL_MAX`], and four
    /// for each slot of the page. They are pipelined. The call only reads. It may be repeated, and
    /// its future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError::Cursor`], or other errors if Redis cannot be asked. A key of a wrong type
    /// counts as empty, and `check` reports it.
    pub async fn worker(
        &self,
        name: &str,
        after: Option<&Cursor>,
        count: usize,
    ) -> Result<Option<WorkerSlots>, ControlError> {
        const WHAT: &str = "the name in event.workers";
        let from: u32 = match after {
            Some(after) => after
                .as_str()
                .parse()
                .map_err(|_| ControlError::Cursor(after.to_string()))?,
            None => 0,
        };
        let (mut conn, keys) = (self.connection(), &self.keys);
        let value: RedisResult<Value> = redis::cmd("HGET")
            .arg(keys.event_workers())
            .arg(name)
            .query_async(&mut conn)
            .await;
        let value = match value {
            Ok(value) => reply::text(&value),
            Err(error) if error.code() == Some("WRONGTYPE") => None,
            Err(error) => return Err(ControlError::redis(WHAT)(error)),
        };
        let Some(value) = value else { return Ok(None) };
        let mut worker = [registered(name.to_owned(), &value)];
        read_names(&mut conn, keys, &mut worker, COUNTED_PER_CALL_MAX).await?;
        let [worker] = worker;
        let end = worker
            .slots
            .min(from.saturating_add(count.clamp(1, PER_PAGE_MAX) as u32));
        let slots = slots(&mut conn, keys, name, (from..end).collect()).await?;
        let next = (end < worker.slots).then(|| Cursor::from(end.to_string()));
        Ok(Some(WorkerSlots {
            worker,
            slots,
            next,
        }))
    }
}

async fn number_of_names<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
) -> Result<u64, ControlError> {
    match redis::cmd("HLEN")
        .arg(keys.event_workers())
        .query_async(conn)
        .await
    {
        Ok(number) => Ok(number),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(0),
        Err(error) => Err(ControlError::redis("the names of event.workers")(error)),
    }
}

/// The names of a page of Redis that fit into a [`WorkersPage`].
enum Filled {
    /// All names.
    AllOf,
    /// The names up to this one; none of them without a name.
    UpTo(Option<String>),
}

impl WorkersPage {
    /// Adds the names after `after`, in the order of the alphabet, as far as they fit.
    fn fill(
        &mut self,
        mut names: Vec<(String, String)>,
        after: Option<&str>,
        count: usize,
    ) -> Filled {
        names.retain(|(name, _)| after.is_none_or(|after| &name[..] > after));
        names.sort();
        let mut slots: u64 = self
            .workers
            .iter()
            .map(|worker| u64::from(worker.slots))
            .sum();
        let mut last = None;
        for (name, value) in names {
            let worker = registered(name, &value);
            slots += u64::from(worker.slots);
            let is_full = self.workers.len() >= count
                || slots > COUNTED_PER_CALL_MAX && !self.workers.is_empty();
            if is_full {
                return Filled::UpTo(last);
            }
            last = Some(worker.name.clone());
            // A walk of Redis may return a name twice.
            if !self.workers.iter().any(|shown| shown.name == worker.name) {
                self.workers.push(worker);
            }
        }
        Filled::AllOf
    }
}

/// A position in the list of names: a page of Redis, and the last name of this page that was
/// returned. Redis returns some sets as one page, however many names were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    set: Set,
    scan: u64,
    after: Option<String>,
}

impl Position {
    fn start(set: Set) -> Self {
        Self {
            set,
            scan: 0,
            after: None,
        }
    }

    /// Returns the position behind this page of Redis; none at the end of the list. `scan` is the
    /// cursor of Redis for the next page.
    fn behind(&self, scan: u64) -> Option<Self> {
        match (self.set, scan) {
            (Set::Watched, 0) => Some(Self::start(Set::Departed)),
            (_, 0) => None,
            (set, scan) => Some(Self {
                set,
                scan,
                after: None,
            }),
        }
    }

    /// Returns the cursor, `SET-SCAN` or `SET-SCAN-NAME`.
    fn cursor(&self) -> Cursor {
        let set = match self.set {
            Set::All => 'a',
            Set::Watched => 'w',
            Set::Departed => 'd',
        };
        let scan = self.scan;
        Cursor::from(self.after.as_ref().map_or_else(
            || format!("{set}-{scan}"),
            |after| format!("{set}-{scan}-{after}"),
        ))
    }

    fn of(cursor: &Cursor) -> Result<Self, ControlError> {
        let read = || {
            let mut parts = cursor.as_str().splitn(3, '-');
            let set = match parts.next()? {
                "a" => Set::All,
                "w" => Set::Watched,
                "d" => Set::Departed,
                _ => return None,
            };
            Some(Self {
                set,
                scan: parts.next()?.parse().ok()?,
                after: parts.next().map(str::to_owned),
            })
        };
        read().ok_or_else(|| ControlError::Cursor(cursor.to_string()))
    }
}

/// Reads these slots of a name.
async fn slots<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    name: &str,
    slots: Vec<u32>,
) -> Result<Vec<Slot>, ControlError> {
    const COMMANDS: usize = 4;
    let ids: Vec<String> = slots.iter().map(|slot| format!("{name}.{slot}")).collect();
    let mut pipe = redis::pipe();
    for worker in &ids {
        let list = keys.worker_object(worker);
        // The object in hand is at the tail.
        pipe.cmd("LRANGE")
            .arg(&list)
            .arg(-(OBJECTS_MAX as i64))
            .arg(-1)
            .cmd("LLEN")
            .arg(list);
        pipe.cmd("LLEN").arg(keys.worker_event(worker));
        pipe.cmd("GETRANGE")
            .arg(keys.worker_event_id(worker))
            .arg(0)
            .arg(TAG_BYTES_MAX - 1);
    }
    let answers = ask(conn, "the slots", &mut pipe).await?;
    let read = |((slot, worker), four): ((u32, String), &[RedisResult<Value>])| {
        let number = |at: usize| four[at].as_ref().ok().and_then(reply::number).unwrap_or(0);
        let listed = four[0]
            .as_ref()
            .ok()
            .cloned()
            .and_then(reply::array)
            .unwrap_or_default();
        let objects: Vec<_> = listed
            .iter()
            .rev()
            .filter_map(reply::bytes)
            .map(|object| shown(&object))
            .collect();
        let tag = four[3]
            .as_ref()
            .ok()
            .and_then(reply::text)
            .and_then(|value| Tag::of_stored(&value));
        let batch = (number(2) > 0).then(|| {
            let tries = tag.map_or_else(Tries::default, |tag| Tries {
                handouts: tag.handouts.into(),
                attempts: tag.attempts.into(),
                crashes: tag.crashes.into(),
            });
            SlotBatch {
                id: tag.map(|tag| tag.first),
                events: number(2),
                tries,
            }
        });
        let objects_not_shown = number(1).saturating_sub(objects.len() as u64);
        Slot {
            slot,
            worker,
            objects,
            objects_not_shown,
            batch,
        }
    };
    Ok(slots
        .into_iter()
        .zip(ids)
        .zip(answers.chunks_exact(COMMANDS))
        .map(read)
        .collect())
}

fn shown(object: &[u8]) -> SlotObject {
    SlotObject {
        object: String::from_utf8_lossy(object).into_owned(),
        object_escaped: escape::differing(object),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_position() {
        for after in [None, Some("host-1.a".to_owned()), Some(String::new())] {
            for set in [Set::All, Set::Watched, Set::Departed] {
                let position = Position {
                    set,
                    scan: 7,
                    after: after.clone(),
                };
                assert_eq!(
                    Position::of(&position.cursor()).expect("a position"),
                    position
                );
            }
        }
        for other in [
            "",
            "w",
            "w-",
            "w-x",
            "x-1",
            "1700-0",
            "w-99999999999999999999",
        ] {
            assert!(
                matches!(
                    Position::of(&Cursor::from(other)),
                    Err(ControlError::Cursor(_))
                ),
                "{other}"
            );
        }
    }
}
