//! The call of `held`: a page of held objects.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::HELD;
use crate::wire::reply::Reply;

/// A held object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldReply {
    /// Its name, as it stands in Redis.
    pub object: Vec<u8>,
    /// When it is due, as Redis has it.
    pub due: String,
    /// Its owner.
    pub owner: String,
    /// The numbers of its batch, and why it is held.
    pub held_id: String,
    /// How many events its batch has.
    pub events: u64,
}

/// Reads a page of held objects, and Redis's time in ms.
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
