//! The call of the script `attach`: a process takes its worker name.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::suspects::Suspects;
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::ATTACH;
use crate::wire::reply::{Reply, millis};

/// The arguments of `attach`.
#[derive(Debug, Clone)]
pub struct Attach<'a> {
    /// The worker name that the process takes.
    pub name: &'a str,
    /// A new token, which the fence compares from now on.
    pub token: &'a str,
    /// The text that follows the token in the lease: host, process id and start time of the
    /// process, and the length of the lease.
    pub holder: &'a str,
    /// The time for which the lease is valid without a renewal.
    pub lease: Duration,
    /// The number of slots that the process runs.
    pub slots: usize,
    /// The value of the lease to replace, exactly as an earlier reply returned it; empty: replace
    /// no lease.
    pub displace: &'a str,
    /// The token that this process had before its lease lapsed; empty if there was none.
    pub before: &'a str,
    /// The number of processes that may die with the same event in hand. After that many deaths the
    /// event is held for an operator. 0: no limit.
    pub crashes_max: u32,
    /// The number of suspects that the process may take. A suspect is a batch that may kill its
    /// worker.
    pub suspects: Suspects,
}

/// The result of an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// The calling process now has the name.
    Attached {
        /// The number of unfinished batches that the process' slots keep.
        kept: u64,
        /// The number of objects that are now held. The process does not run their slot, their
        /// event has killed too many workers, or their batch is a suspect beyond the limit.
        held: u64,
        /// The texts of the log: pairs of an escaped name and a reason. Objects are held because
        /// of crashes or of a lost key. Lists have their names again. Batches have no known object, or
        /// one that another slot owns.
        lost: Vec<(String, String)>,
    },
    /// Another process has the name.
    InUse {
        /// The lease of that process.
        lease: String,
        /// The time until that lease ends, if it is not renewed.
        left: Duration,
    },
}

/// Takes the worker name, if no other process has it.
pub async fn attach(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    args: &Attach<'_>,
) -> Result<Attached, ScriptError> {
    let mut cmd = ATTACH.with_key(&keys.worker_lease(args.name));
    cmd.arg(keys.prefix())
        .arg(args.name)
        .arg(args.token)
        .arg(args.holder)
        .arg(millis(args.lease))
        .arg(args.slots);
    cmd.arg(args.displace)
        .arg(args.before)
        .arg(args.crashes_max)
        .arg(args.suspects.to_string());
    let mut reply = Reply::of("attach", ATTACH.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "attached" => {
            let (kept, held, _strays) = (reply.count()?, reply.count()?, reply.count()?);
            Ok(Attached::Attached {
                kept,
                held,
                lost: reply.texts()?,
            })
        }
        "in_use" => Ok(Attached::InUse {
            lease: reply.text()?,
            left: Duration::from_millis(reply.int()?.max(0).unsigned_abs()),
        }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
