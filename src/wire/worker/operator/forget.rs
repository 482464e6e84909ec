//! The call of the script `operator/forget`: it forgets an idle object, and records the action.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::Forgot;
use crate::wire::error::ScriptError;
use crate::wire::lua::FORGET_ONE;

/// Forgets the object if it is idle. Records the action if the last id is deleted. It is safe to
/// repeat the call.
pub async fn forget(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    object: &[u8],
) -> Result<Forgot, ScriptError> {
    let mut cmd = begin(&FORGET_ONE, &keys.objects_held(), keys, by);
    cmd.arg(object);
    let (word, mut reply) = call(conn, "operator/forget", &FORGET_ONE, &cmd).await?;
    Forgot::read(&word, &mut reply)
}
