//! The call of the script `release`: it makes a held object due at once.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::RELEASE;

/// The result of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// The object is due at once. The text is the reason for which it was held; empty if it had
    /// only yielded its slot.
    Released(String),
    /// The object is not held. The text is its owner; empty if it has none.
    NotHeld(String),
    /// A rule holds the object. The object goes on when the rule is lifted.
    Paused,
    /// The ids of the object's batch are lost, so no worker would take it. A
    /// [repair](crate::control::Control::repair) gives its events new ones. The text is the reason for
    /// which the object is held; empty if it is lost, too.
    NoIds(String),
}

/// Makes a held object due at once. Caution: if the object was held again meanwhile, a repeated
/// call releases it again.
pub async fn release(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    object: &[u8],
) -> Result<Released, ScriptError> {
    let mut cmd = begin(&RELEASE, &keys.objects_held(), keys, by);
    cmd.arg(object);
    let (word, mut reply) = call(conn, "release", &RELEASE, &cmd).await?;
    match word.as_str() {
        "released" => Ok(Released::Released(reply.lossy()?)),
        "not_held" => Ok(Released::NotHeld(reply.lossy()?)),
        "paused" => Ok(Released::Paused),
        "no_ids" => Ok(Released::NoIds(reply.lossy()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
