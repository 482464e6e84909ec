//! The call of `handled`: what handlers have finished of an event in a slot's hands.

use std::collections::BTreeSet;

use redis::aio::ConnectionLike;

use super::{HANDLED, Reply, ScriptError, Tag};
use crate::keys::Keys;

/// A batch in a slot's hands.
#[derive(Debug, Clone, Copy)]
pub struct InHand<'a> {
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

/// What became of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// It was taken.
    Kept {
        /// Where it asked what is kept: the event that speaks of; 0 where there is none.
        id: u64,
        /// What is finished of it.
        finished: BTreeSet<String>,
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

/// Keeps what is finished of the event with this id (`handler:ID`, `once:SUBTASK`); where there is no such event, asks what is kept.
///
/// Dropping the future does not take back a call that was sent; calling again is safe.
pub async fn handled(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    batch: &InHand<'_>,
    finished: Option<(u64, &str)>,
) -> Result<Handled, ScriptError> {
    let mut cmd = HANDLED.with_key(&keys.worker_lease(batch.name));
    cmd.arg(keys.prefix()).arg(batch.name).arg(batch.token).arg(batch.slot).arg(batch.object).arg(batch.tag.to_string());
    if let Some((id, field)) = finished {
        cmd.arg(id).arg(field);
    }
    let mut reply = Reply::of("handled", HANDLED.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "kept" => {
            let (mut id, mut finished) = (0, BTreeSet::new());
            while reply.len() > 0 {
                let (field, value) = (reply.lossy()?, reply.lossy()?);
                // Another program may have written to the hash: what is no id speaks of no event.
                match field.as_str() {
                    "id" => id = value.parse().unwrap_or(0),
                    _ => drop(finished.insert(field)),
                }
            }
            Ok(Handled::Kept { id, finished })
        }
        "other" => Ok(Handled::Other),
        "lapsed" => Ok(Handled::Lapsed),
        "fenced" => Ok(Handled::Fenced { lease: reply.text()? }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
