//! The call of the script `handled`: it reads and writes the handler progress of an event in
//! flight.

use std::collections::BTreeMap;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::{HANDLED, HANDLED_EMITS};
use crate::wire::reply::Reply;
use crate::wire::values::Tag;

/// A batch in flight in a slot.
#[derive(Debug, Clone, Copy)]
pub struct SlotBatch<'a> {
    /// The worker name of the process.
    pub name: &'a str,
    /// The token of the process.
    pub token: &'a str,
    /// The slot's number.
    pub slot: usize,
    /// The object's name, as stored in Redis.
    pub object: &'a [u8],
    /// The tag of the batch.
    pub tag: Tag,
}

/// The value of the field of a finished handler. Earlier versions wrote it for a
/// subtask, too.
pub const FINISHED: &[u8] = b"1";

/// Returns the value of the field of a finished subtask that has returned this JSON text.
pub fn finished_with(json: &[u8]) -> Vec<u8> {
    [b"=", json].concat()
}

/// Returns the JSON text in the value of a finished subtask's field; `None` if an earlier version
/// has written the field without it.
pub fn returned(value: &str) -> Option<&str> {
    value.strip_prefix('=')
}

/// One finished handler or subtask of an event.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// The event's id.
    pub id: u64,
    /// The name of the field in `OBJ:event.handled`: `handler:ID` or `once:SUBTASK`.
    pub field: &'a str,
    /// The value of the field: [`FINISHED`], or [`finished_with`] for a subtask.
    pub value: &'a [u8],
    /// The field `emit:ID` with its value, if the handler has emitted.
    pub emits: Option<(&'a str, &'a [u8])>,
    /// The field `result:ID` with its value, if the handler has a result.
    pub result: Option<(&'a str, &'a [u8])>,
}

/// The result of a call of `handled`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// The handler progress was written or read.
    Kept {
        /// The id of the event whose progress is stored; 0 if no progress is stored, or if the call
        /// wrote progress.
        id: u64,
        /// The finished handlers and subtasks of the event `id`, with the values of their fields.
        finished: BTreeMap<String, String>,
        /// The number of events that the finished handlers have emitted, and the number of bytes of
        /// these events and of their object names.
        emitted: (usize, usize),
        /// The number of bytes of the results that handlers have returned and that are stored.
        results: usize,
    },
    /// The call wrote nothing: the stored progress belongs to an earlier event, whose emits are not
    /// pushed yet.
    Unpushed {
        /// The id of the earlier event.
        id: String,
    },
    /// The slot has another batch, or a later event of the batch has progress already.
    Other,
    /// The lease is gone, and no other process has attached since.
    Lapsed,
    /// Another process has the name: the lease or the registration has another token.
    Fenced {
        /// The present lease; empty if there is none.
        lease: String,
    },
}

/// With `finished`, writes the progress of an event. Without `finished`, reads the stored progress.
/// A write with emits needs memory in Redis: at `maxmemory` it fails and changes nothing.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call.
pub async fn handled(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    batch: &SlotBatch<'_>,
    finished: Option<Finished<'_>>,
) -> Result<Handled, ScriptError> {
    let script = if finished.is_some_and(|finished| finished.emits.is_some()) {
        &HANDLED_EMITS
    } else {
        &HANDLED
    };
    let mut cmd = script.with_key(&keys.worker_lease(batch.name));
    cmd.arg(keys.prefix())
        .arg(batch.name)
        .arg(batch.token)
        .arg(batch.slot)
        .arg(batch.object)
        .arg(batch.tag.to_string());
    if let Some(Finished {
        id,
        field,
        value,
        emits,
        result,
    }) = finished
    {
        cmd.arg(id).arg(field).arg(value);
        for (field, value) in [emits, result].into_iter().flatten() {
            cmd.arg(field).arg(value);
        }
    }
    let mut reply = Reply::of("handled", script.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "kept" => {
            let (mut id, mut finished, mut emitted) = (0, BTreeMap::new(), (0usize, 0usize));
            let mut results = 0usize;
            while reply.len() > 0 {
                let (field, value) = (reply.lossy()?, reply.lossy()?);
                // Another program may have written the hash. If the event id in the hash is
                // invalid, the hash counts as empty.
                match field.as_str() {
                    "id" => id = value.parse().unwrap_or(0),
                    _ if field.starts_with("emit:") => {
                        // An unreadable value counts as one event of 0 bytes. The commit reports
                        // the error.
                        let (events, bytes) = value.split_once(' ').unwrap_or_default();
                        emitted.0 = emitted.0.saturating_add(events.parse().unwrap_or(1));
                        emitted.1 = emitted.1.saturating_add(bytes.parse().unwrap_or(0));
                    }
                    _ if field.starts_with("result:") => {
                        results = results.saturating_add(value.parse().unwrap_or(0))
                    }
                    _ => drop(finished.insert(field, value)),
                }
            }
            Ok(Handled::Kept {
                id,
                finished,
                emitted,
                results,
            })
        }
        "unpushed" => Ok(Handled::Unpushed { id: reply.lossy()? }),
        "other" => Ok(Handled::Other),
        "lapsed" => Ok(Handled::Lapsed),
        "fenced" => Ok(Handled::Fenced {
            lease: reply.text()?,
        }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
