//! Finds the longest queues among the objects that workers have in hand.

use std::collections::BTreeMap;

use redis::Value;
use redis::aio::ConnectionLike;
use serde::Serialize;

use super::names::{NameSet, Walk, slots_in};
use super::stats::ask;
use super::{Control, ControlError, reply};
use crate::escape;
use crate::keys::Keys;
use crate::wire::values::Tag;

/// Maximum number of slots that [`Control::under_work`] reads.
pub const SLOTS_MAX: usize = 512;

/// Maximum number of bytes that are read from the tag of a batch. No valid tag is longer.
pub(super) const TAG_BYTES_MAX: usize = 64;

/// Maximum number of pages of names that are read. If names have one slot each, six pages already
/// have more than [`SLOTS_MAX`] slots.
const PAGES_MAX: usize = 8;

/// An object that a worker has in hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObjectUnderWork {
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Id of the worker that owns the object.
    pub worker: String,
    /// Number of events in the queue of the object. The batch in flight does not count.
    pub queued: u64,
    /// Id of the first event in flight; none without a batch.
    pub id: Option<u64>,
}

/// The result of [`Control::under_work`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnderWork {
    /// The objects, the longest queue first. Objects with queues of the same length are sorted by
    /// name.
    pub objects: Vec<ObjectUnderWork>,
    /// Number of slots that were read.
    pub slots_read: u64,
    /// Whether workers have further slots, which were not read. Then other objects in hand may have
    /// longer queues.
    pub more_slots: bool,
}

impl Control {
    /// Finds the `top` longest queues among the objects that workers have in hand now, at most
    /// [`SLOTS_MAX`]. The look reads at most [`SLOTS_MAX`] slots. If there are more, it reads as
    /// many slots of each name as of any other, as far as the names have them.
    ///
    /// An object counts if it is in the list of a slot and this slot owns it, whether or not the
    /// process has a lease. An object that a slot has only just taken is left out.
    ///
    /// Cost: a few commands, one for each slot read, one for each object in hand, and two for each
    /// object of the result. They are pipelined. The call only reads. It may be repeated, and its
    /// future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked. A key of a wrong type counts as empty, and `check`
    /// reports it.
    pub async fn under_work(&self, top: usize) -> Result<UnderWork, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let (workers, more_slots) = workers(&mut conn, keys).await?;
        let mut found = in_lists(&mut conn, keys, &workers).await?;
        found.sort_by(|a, b| {
            b.queued
                .cmp(&a.queued)
                .then_with(|| a.object.cmp(&b.object))
        });
        found.truncate(top.min(SLOTS_MAX));
        let objects = owned(&mut conn, keys, found).await?;
        Ok(UnderWork {
            objects,
            slots_read: workers.len() as u64,
            more_slots,
        })
    }
}

/// An object in the list of a slot.
struct Found {
    worker: String,
    object: Vec<u8>,
    queued: u64,
}

/// Returns the ids of the workers to read, and whether there are more workers.
async fn workers<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
) -> Result<(Vec<String>, bool), ControlError> {
    // A departed name has nothing in its slots.
    let mut walk = Walk::of(conn, keys, NameSet::Watched).await?;
    // A walk may return a name twice.
    let mut names = BTreeMap::new();
    let mut pages = 0;
    let mut more = false;
    while let Some(page) = walk.next(conn, keys).await? {
        names.extend(
            page.into_iter()
                .map(|(name, value)| (name, slots_in(&value).unwrap_or(0))),
        );
        pages += 1;
        if pages == PAGES_MAX {
            more = true;
            break;
        }
    }
    let slots: Vec<u32> = names.values().copied().collect();
    let shares = shares(&slots, SLOTS_MAX as u32);
    more |= shares.iter().sum::<u32>()
        < slots
            .iter()
            .fold(0, |sum: u32, slots| sum.saturating_add(*slots));
    let ids = |(name, share): (&String, u32)| {
        (0..share)
            .map(|slot| format!("{name}.{slot}"))
            .collect::<Vec<_>>()
    };
    Ok((names.keys().zip(shares).flat_map(ids).collect(), more))
}

/// Divides `total` among the names: each gets the same number, but none more than its slots. The
/// sum of the shares is `total`, or the number of all slots if this is lower.
fn shares(slots: &[u32], total: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    // Names with few slots come first, so that the others share the rest.
    order.sort_by_key(|name| slots[*name]);
    let mut shares = vec![0; slots.len()];
    let mut left = total;
    for (done, name) in order.into_iter().enumerate() {
        let names_left = u32::try_from(slots.len() - done).unwrap_or(u32::MAX);
        shares[name] = slots[name].min(left / names_left);
        left -= shares[name];
    }
    shares
}

/// Reads the object in the list of each worker, and the length of its queue.
async fn in_lists<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    workers: &[String],
) -> Result<Vec<Found>, ControlError> {
    let mut pipe = redis::pipe();
    for worker in workers {
        // The object in hand is at the tail. A late pop adds further names at the head.
        pipe.cmd("LINDEX").arg(keys.worker_object(worker)).arg(-1);
    }
    let objects = ask(conn, "the objects in hand", &mut pipe).await?;
    let objects = objects
        .into_iter()
        .map(|answer| answer.ok().and_then(|answer| reply::bytes(&answer)));
    let mut found: Vec<_> = workers
        .iter()
        .zip(objects)
        .filter_map(|(worker, object)| {
            Some(Found {
                worker: worker.clone(),
                object: object?,
                queued: 0,
            })
        })
        .collect();
    let mut pipe = redis::pipe();
    for one in &found {
        pipe.cmd("LLEN").arg(key(keys, &one.object, Keys::events));
    }
    for (one, answer) in found
        .iter_mut()
        .zip(ask(conn, "the queues of objects in hand", &mut pipe).await?)
    {
        one.queued = answer.ok().as_ref().and_then(reply::number).unwrap_or(0);
    }
    Ok(found)
}

/// Selects the objects that the worker really owns, and adds the ids of their first events.
async fn owned<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    found: Vec<Found>,
) -> Result<Vec<ObjectUnderWork>, ControlError> {
    let mut pipe = redis::pipe();
    for one in &found {
        pipe.cmd("GETRANGE")
            .arg(key(keys, &one.object, Keys::event_worker))
            .arg(0)
            .arg(one.worker.len());
        pipe.cmd("GETRANGE")
            .arg(keys.worker_event_id(&one.worker))
            .arg(0)
            .arg(TAG_BYTES_MAX - 1);
    }
    let answers = ask(conn, "the owners of objects in hand", &mut pipe).await?;
    let text = |answer: &redis::RedisResult<Value>| answer.as_ref().ok().and_then(reply::text);
    let objects = found
        .into_iter()
        .zip(answers.chunks_exact(2))
        .filter_map(|(one, answers)| {
            let is_owner = text(&answers[0]).is_some_and(|owner| owner == one.worker);
            is_owner.then(|| ObjectUnderWork {
                object: String::from_utf8_lossy(&one.object).into_owned(),
                object_escaped: escape::differing(&one.object),
                worker: one.worker,
                queued: one.queued,
                id: text(&answers[1]).and_then(|value| Some(Tag::of_stored(&value)?.first)),
            })
        });
    Ok(objects.collect())
}

/// Spells a key of an object whose name may have any bytes.
fn key(keys: &Keys, object: &[u8], kind: fn(&Keys, &str) -> String) -> Vec<u8> {
    let of_nobody = kind(keys, "");
    let (prefix, suffix) = of_nobody.split_at(keys.prefix().len());
    [prefix.as_bytes(), object, suffix.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_shared_among_names() {
        assert_eq!(shares(&[4, 4], 512), [4, 4]);
        assert_eq!(shares(&[1000, 4, 1000], 512), [254, 4, 254]);
        assert_eq!(shares(&[0, 65_536], 512), [0, 512]);
        assert_eq!(shares(&[], 512), [0; 0]);
    }

    proptest! {
        #[test]
        fn no_slot_is_left_over(slots in prop::collection::vec(0u32..2000, 0..900)) {
            let shares = shares(&slots, 512);
            prop_assert!(shares.iter().zip(&slots).all(|(share, slots)| share <= slots));
            prop_assert_eq!(shares.iter().sum::<u32>(), slots.iter().sum::<u32>().min(512));
        }
    }

    #[test]
    fn a_key_may_have_a_name_of_any_bytes() {
        let keys = Keys::with_namespace("n").expect("a namespace");
        assert_eq!(
            key(&keys, b"work:1", Keys::events),
            keys.events("work:1").into_bytes()
        );
        assert_eq!(
            key(&keys, b"\xff", Keys::event_worker),
            b"{n:0}:\xff:event.worker"
        );
    }
}
