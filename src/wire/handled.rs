//! The call of `handled`: what handlers have finished of an event in a slot's hands.

use std::collections::BTreeSet;

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::{HANDLED, HANDLED_EMITS};
use super::reply::Reply;
use super::values::Tag;
use crate::keys::Keys;

/// A batch in a slot's hands.
#[derive(Debug, Clone, Copy)]
pub struct SlotBatch<'a> {
    /// The name of the process.
    pub name: &'a str,
    /// Its token.
    pub token: &'a str,
    /// The slot.
    pub slot: usize,
    /// The object, as it stands in Redis.
    pub object: &'a [u8],
    /// The tag of the batch.
    pub tag: Tag,
}

/// What is finished of an event of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// The event's id.
    pub id: u64,
    /// `handler:ID` or `once:SUBTASK`.
    pub field: &'a str,
    /// The field `emit:ID` and its value, where the handler has emitted.
    pub emits: Option<(&'a str, &'a [u8])>,
    /// The field `result:ID` and its value, if the handler has a result.
    pub result: Option<(&'a str, &'a [u8])>,
}

/// What became of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// It was taken.
    Kept {
        /// Where it asked what is kept: the event that speaks of; 0 where there is none.
        id: u64,
        /// What is finished of it.
        finished: BTreeSet<String>,
        /// How many events those that have finished have emitted, and the bytes of their objects'
        /// names and of the events themselves.
        emitted: (usize, usize),
        /// The bytes of the results that are kept.
        results: usize,
    },
    /// Of an earlier event something is still to be pushed.
    Unpushed {
        /// Its id.
        id: String,
    },
    /// The slot has another batch, or a later event of it is under way.
    Other,
    /// The lease is gone, and nobody took the name since.
    Lapsed,
    /// The name has another lease, or another registration.
    Fenced {
        /// The lease, empty if there is none.
        lease: String,
    },
}

/// Keeps what is finished of an event; where there is nothing, asks what is kept. Where a handler
/// has emitted, Redis must have memory: at its `maxmemory` nothing is done.
///
/// Dropping the future does not take back a call that was sent; calling again is safe.
pub async fn handled(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    batch: &SlotBatch<'_>,
    finished: Option<Finished<'_>>,
) -> Result<Handled, ScriptError> {
    let script = if finished.is_some_and(|finished| finished.emits.is_some()) { &HANDLED_EMITS } else { &HANDLED };
    let mut cmd = script.with_key(&keys.worker_lease(batch.name));
    cmd.arg(keys.prefix()).arg(batch.name).arg(batch.token).arg(batch.slot).arg(batch.object).arg(batch.tag.to_string());
    if let Some(Finished { id, field, emits, result }) = finished {
        cmd.arg(id).arg(field).arg(1);
        for (field, value) in [emits, result].into_iter().flatten() {
            cmd.arg(field).arg(value);
        }
    }
    let mut reply = Reply::of("handled", script.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "kept" => {
            let (mut id, mut finished, mut emitted) = (0, BTreeSet::new(), (0usize, 0usize));
            let mut results = 0usize;
            while reply.len() > 0 {
                let (field, value) = (reply.lossy()?, reply.lossy()?);
                // Another program may have written to the hash: what is no id speaks of no event.
                match field.as_str() {
                    "id" => id = value.parse().unwrap_or(0),
                    _ if field.starts_with("emit:") => {
                        // One that cannot be read counts as well: it is the commit that finds out.
                        let (events, bytes) = value.split_once(' ').unwrap_or_default();
                        emitted.0 = emitted.0.saturating_add(events.parse().unwrap_or(1));
                        emitted.1 = emitted.1.saturating_add(bytes.parse().unwrap_or(0));
                    }
                    _ if field.starts_with("result:") => results = results.saturating_add(value.parse().unwrap_or(0)),
                    _ => drop(finished.insert(field)),
                }
            }
            Ok(Handled::Kept { id, finished, emitted, results })
        }
        "unpushed" => Ok(Handled::Unpushed { id: reply.lossy()? }),
        "other" => Ok(Handled::Other),
        "lapsed" => Ok(Handled::Lapsed),
        "fenced" => Ok(Handled::Fenced { lease: reply.text()? }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
