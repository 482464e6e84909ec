//! Reads the sizes of three streams: the event log, the dead letters and the actions of operators.

use redis::aio::ConnectionLike;
use serde::Serialize;

use super::{ControlError, reply};
use crate::keys::Keys;
use crate::wire;

/// The size of one stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamStats {
    /// Number of rows that are in the stream now.
    pub rows: u64,
    /// Number of rows that were ever written, including trimmed ones.
    pub written: u64,
    /// Time at which the oldest row in the stream was written, ms since the epoch; none if there is
    /// no row.
    pub oldest_ms: Option<u64>,
}

/// The sizes of all streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamsStats {
    /// The event log.
    pub log: StreamStats,
    /// The dead letters.
    pub dead: StreamStats,
    /// The actions of operators.
    pub actions: StreamStats,
}

/// Reads the sizes of the streams, each with a call of its own. One script for all of them would
/// take long if rows are large. Adds keys of a wrong type to `unreadable`.
pub(super) async fn read<C: ConnectionLike>(
    conn: &mut C,
    keys: &Keys,
    unreadable: &mut Vec<String>,
) -> Result<StreamsStats, ControlError> {
    let mut read = [StreamStats::default(); 3];
    for (stats, key) in read.iter_mut().zip([
        keys.event_log(),
        keys.events_dead(),
        keys.operator_actions(),
    ]) {
        match size(conn, &key).await {
            Ok(size) => *stats = size,
            Err(error) if error.is_wrong_type() => {
                if !unreadable.contains(&key) {
                    unreadable.push(key);
                }
            }
            Err(error) => return Err(error),
        }
    }
    let [log, dead, actions] = read;
    Ok(StreamsStats { log, dead, actions })
}

async fn size<C: ConnectionLike>(conn: &mut C, key: &str) -> Result<StreamStats, ControlError> {
    const WHAT: &str = "the size of a stream";
    let mut ask = wire::STREAM.invoke();
    ask.key(key);
    let mut reply = reply::ask(conn, WHAT, &ask, "stream").await?;
    let (rows, written, first) = (reply.count()?, reply.count()?, reply.text()?);
    Ok(StreamStats {
        rows,
        written,
        oldest_ms: (rows > 0).then(|| reply::ms_of(&first)),
    })
}
