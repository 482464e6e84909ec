//! The call of `position`: a projection's place in the log and its state.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::POSITION;
use super::reply::{Reply, millis};
use crate::keys::Keys;

/// What is done with them.
#[derive(Debug, Clone, Copy)]
pub enum PositionStep<'a> {
    /// Takes the name, and reads.
    Open,
    /// Writes, and keeps the name.
    Save {
        /// The place.
        position: &'a str,
        /// The state.
        state: &'a [u8],
    },
    /// Keeps the name.
    Keep,
    /// Gives it back.
    Close,
}

/// Makes the call. Answers the place and the state where it opens, both empty where there are none
/// yet; nothing where another has the name.
///
/// Calling again with the same token is safe.
pub async fn position(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    name: &str,
    token: &str,
    lease: Duration,
    step: PositionStep<'_>,
) -> Result<Option<(String, Vec<u8>)>, ScriptError> {
    let mut cmd = POSITION.with_key(&keys.event_projections());
    let word = match step {
        PositionStep::Open => "open",
        PositionStep::Save { .. } => "save",
        PositionStep::Keep => "keep",
        PositionStep::Close => "close",
    };
    cmd.arg(keys.prefix()).arg(word).arg(name).arg(token).arg(millis(lease));
    if let PositionStep::Save { position, state } = step {
        cmd.arg(position).arg(state);
    }
    let mut reply = Reply::of("position", POSITION.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "lost" => Ok(None),
        "ok" if matches!(step, PositionStep::Open) => Ok(Some((reply.text()?, reply.bytes()?))),
        "ok" => Ok(Some(Default::default())),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
