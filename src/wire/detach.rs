//! The call of `detach`: a process gives its name back.

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::DETACH;
use super::reply::Reply;
use crate::keys::Keys;

/// What became of a detach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detached {
    /// The name is given back.
    Detached {
        /// Objects the slots still owned, now held, due at once.
        held: u64,
    },
    /// There was no lease any more: it lapsed, or this call was made before.
    Lapsed,
    /// The name has another lease, or another registration.
    Fenced {
        /// The lease, empty if there is none.
        lease: String,
    },
}

/// Gives a name back.
pub async fn detach(conn: &mut impl ConnectionLike, keys: &Keys, name: &str, token: &str) -> Result<Detached, ScriptError> {
    let mut cmd = DETACH.with_key(&keys.worker_lease(name));
    cmd.arg(keys.prefix()).arg(name).arg(token);
    let mut reply = Reply::of("detach", DETACH.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "detached" => Ok(Detached::Detached { held: reply.count()? }),
        "lapsed" => Ok(Detached::Lapsed),
        "fenced" => Ok(Detached::Fenced { lease: reply.text()? }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
