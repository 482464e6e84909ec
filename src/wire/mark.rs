//! The call of the script `mark`: pushes a mark, from which the age of the oldest marker is known.

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::MARK;
use super::reply::Reply;
use crate::keys::Keys;

/// The result of the script `mark`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// A mark was pushed.
    Pushed,
    /// A time was written; no mark was pushed, because no markers wait, or the clock has stepped
    /// back.
    Noted,
    /// Nothing was due.
    Kept,
}

/// Pushes a mark if one is due.
///
/// # Errors
/// [`ScriptError::Denied`] if the user may not push marks; nothing is changed then.
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
