//! The call of the script `doctor`: whether the Redis user has the rights of a worker.

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::DOCTOR;
use super::reply::Reply;
use crate::keys::Keys;

/// Returns the first command that a worker needs and the user may not use; `None` if there is none.
pub async fn missing_right(conn: &mut impl ConnectionLike, keys: &Keys) -> Result<Option<String>, ScriptError> {
    let mut cmd = DOCTOR.with_key(&keys.meta());
    cmd.arg(keys.prefix());
    let mut reply = Reply::of("doctor", DOCTOR.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "ok" => Ok(None),
        "denied" => Ok(Some(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
