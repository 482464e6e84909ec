//! The call of the script `mark`: it pushes a mark. Marks tell how long the oldest marker has
//! waited.

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::MARK;
use crate::wire::reply::Reply;

/// The result of the script `mark`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// A mark was pushed.
    Pushed,
    /// The notes about marks in Redis were brought up to date, but no mark was pushed. For example,
    /// no markers wait, or the clock has stepped back.
    Noted,
    /// No mark was due. The call changed nothing.
    Kept,
}

/// Pushes a mark if one is due.
///
/// # Errors
/// [`ScriptError::Denied`] if the Redis user may not push marks. Then the call changes nothing.
pub async fn mark(conn: &mut impl ConnectionLike, keys: &Keys) -> Result<Marked, ScriptError> {
    let mut cmd = MARK.with_key(&keys.event_marks());
    cmd.arg(keys.prefix());
    let mut reply = Reply::of("mark", MARK.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "marked" => match reply.text()?.as_str() {
            "pushed" => Ok(Marked::Pushed),
            "noted" => Ok(Marked::Noted),
            "kept" => Ok(Marked::Kept),
            word => Err(reply.wrong(format!("unknown result {word:?}"))),
        },
        "denied" => Err(ScriptError::Denied(reply.text()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
