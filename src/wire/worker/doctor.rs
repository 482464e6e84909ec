//! The call of the script `doctor`: it checks whether the Redis user has the rights that a worker
//! needs.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::DOCTOR;
use crate::wire::reply::Reply;

/// Returns the first command that a worker needs and that the Redis user may not use; `None` if the
/// user may use all of them.
pub async fn missing_right(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
) -> Result<Option<String>, ScriptError> {
    let mut cmd = DOCTOR.with_key(&keys.meta());
    cmd.arg(keys.prefix());
    let mut reply = Reply::of("doctor", DOCTOR.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "ok" => Ok(None),
        "denied" => Ok(Some(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
