//! The call of the script `connect`. A worker process calls this script first on every new
//! connection.

use redis::aio::ConnectionLike;

use super::advance::EventLog;
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::CONNECT;
use crate::wire::reply::Reply;

/// The arguments of `connect`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connect {
    /// The highest id that the process has seen; 0: none.
    pub highest: u64,
    /// The first id of a new namespace, if a user has chosen one. 0: no id is chosen, and ids begin
    /// at the server's time.
    pub first_id: u64,
    /// The limits of the event log; `None` if the process writes no log.
    pub event_log: Option<EventLog>,
}

/// The result of `connect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// Whether Redis may have lost writes, for example by a failover or a restart. There are three
    /// signs: the server's replication id differs from the recorded id; the id counter was absent;
    /// or the id counter was below an id that the process has seen.
    pub changed: bool,
    /// The present value of the id counter.
    pub counter: u64,
    /// Whether the Redis user may call functions of libraries.
    pub functions: bool,
}

/// Calls `connect`, which must be the first script on every new connection.
pub async fn connect(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    replication_id: &str,
    seen: Connect,
) -> Result<Connected, ScriptError> {
    let mut cmd = CONNECT.with_key(&keys.meta());
    cmd.arg(keys.prefix())
        .arg(replication_id)
        .arg(seen.highest)
        .arg(seen.first_id);
    cmd.arg(seen.event_log.map_or(0, |log| log.keep));
    let mut reply = Reply::of("connect", CONNECT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "ok" => Ok(Connected {
            changed: reply.int()? == 1,
            counter: reply.number()?,
            functions: reply.int()? == 1,
        }),
        "denied" => Err(ScriptError::Denied(reply.text()?)),
        "schema" => Err(ScriptError::Schema(reply.text()?)),
        "counter" => Err(ScriptError::Counter(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
