//! The call of `attach`: a process takes its name.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::ATTACH;
use super::reply::{Reply, millis};
use super::suspects::Suspects;
use crate::keys::Keys;

/// What a process needs to take its name.
#[derive(Debug, Clone)]
pub struct Attach<'a> {
    /// The name.
    pub name: &'a str,
    /// A fresh token.
    pub token: &'a str,
    /// `host pid start` of the process.
    pub holder: &'a str,
    /// How long the lease holds without renewal.
    pub lease: Duration,
    /// How many slots the process runs.
    pub slots: usize,
    /// The lease to take over from, as it was read; empty: none.
    pub displace: &'a str,
    /// The token this process had before its lease lapsed; empty: none.
    pub before: &'a str,
    /// Deaths with one event in hand after which that event waits for an operator; 0: never.
    pub crashes_max: u32,
    /// Room for batches that may kill the process.
    pub suspects: Suspects,
}

/// What became of an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// The name is ours.
    Attached {
        /// Unfinished batches kept for our slots.
        kept: u64,
        /// Objects held: their slots are not run any more, or their event has killed too many
        /// workers.
        held: u64,
    },
    /// Another process has the name.
    InUse {
        /// The lease, as it is.
        lease: String,
        /// How long it still holds if it is not renewed.
        left: Duration,
    },
}

/// Takes a name.
pub async fn attach(conn: &mut impl ConnectionLike, keys: &Keys, args: &Attach<'_>) -> Result<Attached, ScriptError> {
    let mut cmd = ATTACH.with_key(&keys.worker_lease(args.name));
    cmd.arg(keys.prefix()).arg(args.name).arg(args.token).arg(args.holder).arg(millis(args.lease)).arg(args.slots);
    cmd.arg(args.displace).arg(args.before).arg(args.crashes_max).arg(args.suspects.to_string());
    let mut reply = Reply::of("attach", ATTACH.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "attached" => Ok(Attached::Attached { kept: reply.count()?, held: reply.count()? }),
        "in_use" => Ok(Attached::InUse { lease: reply.text()?, left: Duration::from_millis(reply.int()?.max(0).unsigned_abs()) }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
