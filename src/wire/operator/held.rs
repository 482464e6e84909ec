//! The call of the script `held`: it returns a page of held objects.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::HELD;
use crate::wire::reply::Reply;

/// A held object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldReply {
    /// The object's name, as stored in Redis.
    pub object: Vec<u8>,
    /// The due time, as stored in Redis.
    pub due: String,
    /// The value of `OBJ:event.worker`.
    pub owner: String,
    /// The value of `OBJ:events.held.id`: the tag of the held batch, and the reason.
    pub held_id: String,
    /// The number of events in the held batch.
    pub events: u64,
}

/// Returns the time of Redis in ms since the epoch, and a page of held objects. With
/// `until_released`, the page has only objects that wait for an operator. The page begins behind
/// the object `after`.
pub async fn held(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    until_released: bool,
    after: Option<&HeldReply>,
    count: usize,
) -> Result<(u64, Vec<HeldReply>), ScriptError> {
    let mut cmd = HELD.with_key(&keys.objects_held());
    cmd.arg(keys.prefix()).arg(if until_released { "inf" } else { "all" });
    match after {
        Some(after) => cmd.arg(&after.due).arg(&after.object),
        None => cmd.arg("").arg(""),
    };
    cmd.arg(count);
    let mut reply = Reply::of("held", HELD.call(conn, &cmd).await?)?;
    let word = reply.text()?;
    if word != "held" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let now_ms = reply.number()?;
    let mut page = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut entry = reply.array()?;
        page.push(HeldReply {
            object: entry.bytes()?,
            due: entry.text()?,
            owner: entry.lossy()?,
            held_id: entry.lossy()?,
            events: entry.count()?,
        });
    }
    Ok((now_ms, page))
}
