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
    /// The due time, as stored in Redis. Below 0 if the object is grouped.
    pub due: String,
    /// The value of `OBJ:event.worker`.
    pub owner: String,
    /// The value of `OBJ:events.held.id`: the tag of the held batch, and the reason.
    pub held_id: String,
    /// The number of events in the held batch.
    pub events: u64,
}

/// A part of the held objects, by their due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldPart {
    /// All held objects.
    All,
    /// Objects that wait for an operator.
    UntilReleased,
    /// Objects that do not wait for an operator.
    Timed,
    /// Objects that are due now.
    Due,
}

/// Maximum number of objects at which one call looks. The script has the same number.
pub const HELD_LOOKED_MAX: usize = 5000;

/// The objects to read.
#[derive(Debug, Clone, Copy)]
pub struct HeldQuery<'a> {
    /// The part of the held objects.
    pub part: HeldPart,
    /// Beginning of the names.
    pub prefix: &'a [u8],
    /// The object before the page: its due time and its name.
    pub after: Option<(&'a str, &'a [u8])>,
    /// Maximum number of objects in the page.
    pub count: usize,
}

/// A page of held objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldReplyPage {
    /// The time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// Number of objects that were looked at.
    pub looked: u64,
    /// The last object that was looked at: its due time and its name. None if there are no more
    /// objects.
    pub last: Option<(String, Vec<u8>)>,
    /// The objects.
    pub objects: Vec<HeldReply>,
}

/// Returns a page of held objects, sorted by due time. Looks at [`HELD_LOOKED_MAX`] objects, so a
/// page may have fewer objects than requested, or none.
pub async fn held(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    query: &HeldQuery<'_>,
) -> Result<HeldReplyPage, ScriptError> {
    let part = match query.part {
        HeldPart::All => "all",
        HeldPart::UntilReleased => "inf",
        HeldPart::Timed => "timed",
        HeldPart::Due => "due",
    };
    let (due, object) = query.after.unwrap_or_default();
    let mut cmd = HELD.with_key(&keys.objects_held());
    cmd.arg(keys.prefix())
        .arg(part)
        .arg(due)
        .arg(object)
        .arg(query.count)
        .arg(query.prefix);
    let mut reply = Reply::of("held", HELD.call(conn, &cmd).await?)?;
    let word = reply.text()?;
    if word != "held" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let (now_ms, looked) = (reply.number()?, reply.count()?);
    let (last, due) = (reply.bytes()?, reply.text()?);
    let mut objects = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut entry = reply.array()?;
        objects.push(HeldReply {
            object: entry.bytes()?,
            due: entry.text()?,
            owner: entry.lossy()?,
            held_id: entry.lossy()?,
            events: entry.count()?,
        });
    }
    Ok(HeldReplyPage {
        now_ms,
        looked,
        last: (!due.is_empty()).then_some((due, last)),
        objects,
    })
}
