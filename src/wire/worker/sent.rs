//! The calls of the script `sent`: it records that a request is sent to a receiver, or is over.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::handled::SlotBatch;
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::SENT;
use crate::wire::reply::Reply;

/// The time by which a request may outlive its time limit, on its way to the receiver and back.
pub const SENT_MARGIN: Duration = Duration::from_secs(2);

/// The result of a call of `sent` before a request is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// The request may be sent.
    Sent {
        /// The number of the request. It is above the numbers of all earlier requests.
        number: u64,
        /// The time at which the time limit ends, in ms since 1970, by Redis' clock.
        deadline_ms: u64,
    },
    /// Another request of the object may be open, for this time at most.
    Earlier(Duration),
    /// The slot has another batch or object.
    Other,
    /// The lease is gone, and no other process has attached since.
    Lapsed,
    /// Another process has the name: the lease or the registration has another token.
    Fenced {
        /// The present lease; empty if there is none.
        lease: String,
    },
}

/// Records that a request with events of this batch is about to be sent. `request` names all
/// requests of one delivery: the caller sends each of them only after the one before is over.
/// `highest`: the highest id that the caller has seen.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call.
pub async fn sent(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    batch: &SlotBatch<'_>,
    request: &str,
    limit: Duration,
    highest: u64,
) -> Result<Sent, ScriptError> {
    let mut cmd = SENT.with_key(&keys.next_event_id());
    cmd.arg(keys.prefix())
        .arg(batch.object)
        .arg(request)
        .arg(batch.name)
        .arg(batch.token)
        .arg(batch.slot);
    cmd.arg(batch.tag.to_string())
        .arg(ms(limit))
        .arg(ms(SENT_MARGIN))
        .arg(highest);
    let mut reply = Reply::of("sent", SENT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "sent" => Ok(Sent::Sent {
            number: reply.number()?,
            deadline_ms: reply.number()?,
        }),
        "earlier" => Ok(Sent::Earlier(Duration::from_millis(reply.count()?))),
        "other" => Ok(Sent::Other),
        "counter" => Err(ScriptError::Counter(reply.lossy()?)),
        "lapsed" => Ok(Sent::Lapsed),
        "fenced" => Ok(Sent::Fenced {
            lease: reply.text()?,
        }),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

/// Records that the last request of this name is over.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call.
pub async fn request_over(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    object: &[u8],
    request: &str,
) -> Result<(), ScriptError> {
    let mut cmd = SENT.with_key(&keys.next_event_id());
    cmd.arg(keys.prefix()).arg(object).arg(request);
    let mut reply = Reply::of("sent", SENT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "over" => Ok(()),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
