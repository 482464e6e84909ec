//! The call of the script `detach`: a process gives its worker name back.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::DETACH;
use crate::wire::reply::Reply;

/// The result of a detach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detached {
    /// The process has given its name back.
    Detached {
        /// The number of objects that the process' slots owned. These objects are now held, due at
        /// once.
        held: u64,
        /// Lost keys of slots, as pairs of an escaped name and a text: objects that are held for an
        /// operator because of a lost key, lists that have their names again, and batches whose
        /// objects are not known, or are owned by other slots.
        lost: Vec<(String, String)>,
    },
    /// There was no lease. Either the lease had lapsed, or an earlier copy of this call has run.
    Lapsed,
    /// Another process has the name: the lease or the registration has another token.
    Fenced {
        /// The present lease; empty if there is none.
        lease: String,
    },
}

/// Gives the worker name back.
pub async fn detach(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    name: &str,
    token: &str,
) -> Result<Detached, ScriptError> {
    let mut cmd = DETACH.with_key(&keys.worker_lease(name));
    cmd.arg(keys.prefix()).arg(name).arg(token);
    let mut reply = Reply::of("detach", DETACH.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "detached" => Ok(Detached::Detached {
            held: reply.count()?,
            lost: reply.texts()?,
        }),
        "lapsed" => Ok(Detached::Lapsed),
        "fenced" => Ok(Detached::Fenced {
            lease: reply.text()?,
        }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
