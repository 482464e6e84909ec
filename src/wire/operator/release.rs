//! The call of `release`: a held object is due at once.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::RELEASE;

/// What became of an object that was to be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// It is due at once. What it waited for, empty for a yield.
    Released(String),
    /// It is not held. Its owner, empty where it has none.
    NotHeld(String),
    /// A rule holds it: it goes on where that is lifted.
    Paused,
}

/// Makes a held object due at once. Calling again is safe: it releases the object once more where
/// it is held again.
pub async fn release(conn: &mut impl ConnectionLike, keys: &Keys, by: By<'_>, object: &[u8]) -> Result<Released, ScriptError> {
    let mut cmd = begin(&RELEASE, &keys.objects_held(), keys, by);
    cmd.arg(object);
    let (word, mut reply) = call(conn, "release", &RELEASE, &cmd).await?;
    match word.as_str() {
        "released" => Ok(Released::Released(reply.lossy()?)),
        "not_held" => Ok(Released::NotHeld(reply.lossy()?)),
        "paused" => Ok(Released::Paused),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
