//! Calls of `connect`, `attach`, `renew`, `detach` and `adopt`: who has a name.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::{ADOPT, ATTACH, CONNECT, DETACH, EventLog, RENEW, Reply, ScriptError, Suspects};
use crate::keys::Keys;

/// What a process knows when it makes a connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// The highest id it has been given; 0 = none yet.
    pub highest: u64,
    /// The lowest id to give, by choice; 0 = a namespace without data begins at the time.
    pub first_id: u64,
    /// The log, if the process logs the events it finalizes.
    pub event_log: Option<EventLog>,
}

/// What `connect` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// The server's history is not the one known before: a failover, a restart, or another server.
    pub changed: bool,
    /// The counter as it is now.
    pub counter: u64,
}

/// The first script on every new connection of a worker process.
pub async fn connect(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    replication_id: &str,
    seen: Seen,
) -> Result<Connected, ScriptError> {
    let mut cmd = CONNECT.with_key(&keys.meta());
    cmd.arg(keys.prefix()).arg(replication_id).arg(seen.highest).arg(seen.first_id);
    cmd.arg(seen.event_log.map_or(0, |log| log.keep));
    let mut reply = Reply::of("connect", CONNECT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "ok" => Ok(Connected { changed: reply.int()? == 1, counter: reply.number()? }),
        "denied" => Err(ScriptError::Denied(reply.text()?)),
        "schema" => Err(ScriptError::Schema(reply.text()?)),
        "counter" => Err(ScriptError::Counter(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

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

/// What became of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The lease holds for another term.
    Renewed {
        /// Names that slots had taken and did not own, now markers again.
        strays: u64,
    },
    /// The lease is gone, and nobody took the name since.
    Lapsed,
    /// The name has another lease, or another registration.
    Fenced {
        /// The lease, empty if there is none.
        lease: String,
    },
}

/// Keeps a name.
pub async fn renew(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    name: &str,
    token: &str,
    lease: Duration,
    slots: usize,
) -> Result<Renewed, ScriptError> {
    let mut cmd = RENEW.with_key(&keys.worker_lease(name));
    cmd.arg(keys.prefix()).arg(name).arg(token).arg(millis(lease)).arg(slots);
    let mut reply = Reply::of("renew", RENEW.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "renewed" => Ok(Renewed::Renewed { strays: reply.count()? }),
        "lapsed" => Ok(Renewed::Lapsed),
        "fenced" => Ok(Renewed::Fenced { lease: reply.text()? }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

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

/// How a process looks at other names.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// Its own name, which it leaves alone.
    pub own: &'a str,
    /// Deaths with one event in hand after which that event waits for an operator.
    pub crashes_max: u32,
    /// Time from a look at a name with a lease to the next one, over all processes.
    pub look: Duration,
    /// Time after which a name without a lease that has nothing is forgotten.
    pub forget: Duration,
    /// Time since this process made its sweep before this one, by its own clock; none if there was
    /// none.
    pub since: Option<Duration>,
    /// Time within which a process notices that its lease has ended, if its settings are those of
    /// this process. Behind a step of the clock, takeovers wait for so long and 2 s more, but at
    /// least 5 s.
    pub notice: Duration,
}

/// What one call of `adopt` took over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Names that may have something are still due, or times are still to be moved: call again.
    pub more: bool,
    /// Held objects that are due earlier now, because Redis' clock has stepped back.
    pub moved: u64,
    /// Leases may have ended whose processes live: Redis' clock has stepped ahead a moment ago, or
    /// Redis could not be reached. Nothing is taken over.
    pub is_ahead: bool,
    /// Objects now held, due at once.
    pub held: u64,
    /// Names that slots had taken and did not own, now markers again.
    pub strays: u64,
    /// The worker names from which something was taken.
    pub names: Vec<String>,
}

/// Takes over what names without a lease have, as far as they are due to be looked at.
pub async fn adopt(conn: &mut impl ConnectionLike, keys: &Keys, sweep: &Sweep<'_>) -> Result<Adopted, ScriptError> {
    let mut cmd = ADOPT.with_key(&keys.event_workers());
    cmd.arg(keys.prefix()).arg(sweep.own).arg(sweep.crashes_max).arg(millis(sweep.look)).arg(millis(sweep.forget));
    cmd.arg(sweep.since.map_or(String::new(), |since| millis(since).to_string())).arg(millis(sweep.notice));
    let mut reply = Reply::of("adopt", ADOPT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "swept" => {
            let (more, held, strays) = (reply.int()? == 1, reply.count()?, reply.count()?);
            let (moved, is_ahead) = (reply.count()?, reply.int()? == 1);
            let mut adopted = Adopted { more, moved, is_ahead, held, strays, names: Vec::new() };
            while reply.len() > 0 {
                adopted.names.push(reply.text()?);
            }
            Ok(adopted)
        }
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
