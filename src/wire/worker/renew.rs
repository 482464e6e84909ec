//! The call of the script `renew`: a process renews the lease of its worker name.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::RENEW;
use crate::wire::reply::{Reply, millis};

/// The result of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is valid for its full length again.
    Renewed {
        /// The number of strays: object names in the lists of slots that did not own the objects.
        /// Each of these names is a marker again.
        strays: u64,
        /// Lost keys that the call has written again, as pairs of an escaped name and a text.
        lost: Vec<(String, String)>,
    },
    /// The lease is gone, and no other process has attached since.
    Lapsed,
    /// Another process has the name: the lease or the registration has another token.
    Fenced {
        /// The present lease; empty if there is none.
        lease: String,
    },
}

/// Renews the lease of the worker name.
pub async fn renew(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    name: &str,
    token: &str,
    lease: Duration,
    slots: usize,
) -> Result<Renewed, ScriptError> {
    let mut cmd = RENEW.with_key(&keys.worker_lease(name));
    cmd.arg(keys.prefix())
        .arg(name)
        .arg(token)
        .arg(millis(lease))
        .arg(slots);
    let mut reply = Reply::of("renew", RENEW.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "renewed" => Ok(Renewed::Renewed {
            strays: reply.count()?,
            lost: reply.texts()?,
        }),
        "lapsed" => Ok(Renewed::Lapsed),
        "fenced" => Ok(Renewed::Fenced {
            lease: reply.text()?,
        }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
