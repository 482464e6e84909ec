//! The call of the script `skip`: it sends the first event of a held object to the dead letters.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::RowId;
use crate::wire::error::ScriptError;
use crate::wire::lua::SKIP;

/// The result of a skip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skipped {
    /// The event is a dead letter, and the object is due at once.
    Skipped {
        /// The id of the event.
        id: u64,
        /// The id of the dead letter.
        dead_id: RowId,
        /// The number of events left in the held batch.
        left: u64,
    },
    /// The object is not held. The text is its owner; empty if it has none.
    NotHeld(String),
    /// A rule holds the object. The object goes on when the rule is lifted.
    Paused,
    /// The object is held without a batch. The text is the reason for which it is held; empty if it
    /// has only yielded its slot.
    NoBatch(String),
    /// The ids of the object's batch are lost. A [repair](crate::control::Control::repair) gives its
    /// events new ones. The text is the reason for which the object is held; empty if it is lost, too.
    NoIds(String),
    /// The first event has another id than the call expected. The number is that other id.
    Other(u64),
}

/// Sends the first event of a held object to the dead letters. If `id` is given, the call skips
/// only the event with this id, so it is safe to repeat the call. Without `id`, a repeated call may
/// skip the next event, too.
pub async fn skip(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    object: &[u8],
    id: Option<u64>,
) -> Result<Skipped, ScriptError> {
    let mut cmd = begin(&SKIP, &keys.objects_held(), keys, by);
    cmd.arg(object)
        .arg(id.map_or(String::new(), |id| id.to_string()));
    let (word, mut reply) = call(conn, "skip", &SKIP, &cmd).await?;
    match word.as_str() {
        "skipped" => Ok(Skipped::Skipped {
            id: reply.number()?,
            dead_id: reply.text()?.into(),
            left: reply.count()?,
        }),
        "not_held" => Ok(Skipped::NotHeld(reply.lossy()?)),
        "paused" => Ok(Skipped::Paused),
        "no_batch" => Ok(Skipped::NoBatch(reply.lossy()?)),
        "no_ids" => Ok(Skipped::NoIds(reply.lossy()?)),
        "other" => Ok(Skipped::Other(reply.number()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
