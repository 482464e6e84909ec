//! The call of the script `doctor`: it checks whether the Redis user has the rights that a worker
//! needs.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::DOCTOR;
use crate::wire::reply::Reply;

/// The rights of the Redis user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rights {
    /// The user has all rights that a worker needs.
    All {
        /// Whether the user may call functions of libraries, which a worker does not need.
        functions: bool,
    },
    /// The user may not use this command, which a worker needs.
    Lacks(String),
}

/// Returns whether the Redis user has the rights of a worker.
pub async fn rights(conn: &mut impl ConnectionLike, keys: &Keys) -> Result<Rights, ScriptError> {
    let mut cmd = DOCTOR.with_key(&keys.meta());
    cmd.arg(keys.prefix());
    let mut reply = Reply::of("doctor", DOCTOR.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "ok" => Ok(Rights::All {
            functions: reply.int()? == 1,
        }),
        "denied" => Ok(Rights::Lacks(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
