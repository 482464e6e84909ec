//! The call of `skip`: the head event of a held object goes to the dead letters.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::SKIP;

/// What became of an object whose head event was to be skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skipped {
    /// The event is a dead letter, and the object due at once.
    Skipped {
        /// The event's id.
        id: u64,
        /// The id of its dead letter.
        dead_id: String,
        /// How many events are left of the held batch.
        left: u64,
    },
    /// It is not held. Its owner, empty where it has none.
    NotHeld(String),
    /// A rule holds it: it goes on where that is lifted.
    Paused,
    /// It is held, but no event of it has been in hand. Why it is held, empty for a yield.
    NoBatch(String),
    /// Its head is another event.
    Other(u64),
}

/// Sends the head event of a held object to the dead letters. With the id that it is expected to
/// have, calling again is safe.
pub async fn skip(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    object: &[u8],
    id: Option<u64>,
) -> Result<Skipped, ScriptError> {
    let mut cmd = begin(&SKIP, &keys.objects_held(), keys, by);
    cmd.arg(object).arg(id.map_or(String::new(), |id| id.to_string()));
    let (word, mut reply) = call(conn, "skip", &SKIP, &cmd).await?;
    match word.as_str() {
        "skipped" => Ok(Skipped::Skipped { id: reply.number()?, dead_id: reply.text()?, left: reply.count()? }),
        "not_held" => Ok(Skipped::NotHeld(reply.lossy()?)),
        "paused" => Ok(Skipped::Paused),
        "no_batch" => Ok(Skipped::NoBatch(reply.lossy()?)),
        "other" => Ok(Skipped::Other(reply.number()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
