//! The call of `connect`: the first script on every new connection of a worker process.

use redis::aio::ConnectionLike;

use super::advance::EventLog;
use super::error::ScriptError;
use super::lua::CONNECT;
use super::reply::Reply;
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
