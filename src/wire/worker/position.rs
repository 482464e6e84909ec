//! The call of the script `position`: it reads and writes a projection's position in the log and
//! its state.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::POSITION;
use crate::wire::reply::{Reply, millis};

/// The step to take.
#[derive(Debug, Clone, Copy)]
pub enum PositionStep<'a> {
    /// Take the lease of the projection, and read position and state.
    Open,
    /// Write position and state, and renew the lease.
    Save {
        /// The position.
        position: &'a str,
        /// The state.
        state: &'a [u8],
    },
    /// Renew the lease.
    Keep,
    /// Give the lease back.
    Close,
}

/// Calls the script. [`PositionStep::Open`] returns the position and the state, both empty for a
/// new projection. Every other step returns two empty values. Returns `None` if another process has
/// the lease.
///
/// It is safe to repeat the call with the same token.
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
    cmd.arg(keys.prefix())
        .arg(word)
        .arg(name)
        .arg(token)
        .arg(millis(lease));
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
