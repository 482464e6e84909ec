//! The call of `dead`: dead letters are retried or dropped.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::DEAD;

/// How many dead letters one call of [`dead`] takes.
pub const DEAD_PER_CALL_MAX: usize = 32;

/// What is done to dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// The event is pushed again, as a new one.
    Retry,
    /// The dead letter goes.
    Drop,
}

/// What became of one dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// Its event was pushed again.
    Retried,
    /// It is gone, and the event with it.
    Dropped,
    /// It was not there, or not there any more.
    Gone,
    /// It stays: it names no object or no event.
    Unreadable,
    /// It stays: the queue of its object is no list.
    WrongType,
}

/// Retries or drops dead letters, from the first on: up to [`DEAD_PER_CALL_MAX`], or 1 MiB of
/// events. Returns what became of each of these, at least one, in order.
///
/// Calling again is safe: those that are gone are passed over.
pub async fn dead(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    settle: Settle,
    dead_ids: &[impl AsRef<str>],
) -> Result<Vec<Settled>, ScriptError> {
    let mut cmd = begin(&DEAD, &keys.events_dead(), keys, by);
    cmd.arg(if settle == Settle::Retry { "retry" } else { "drop" });
    for dead_id in dead_ids.iter().take(DEAD_PER_CALL_MAX) {
        cmd.arg(dead_id.as_ref());
    }
    let (word, mut reply) = call(conn, "dead", &DEAD, &cmd).await?;
    if word != "settled" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let mut settled = Vec::with_capacity(dead_ids.len());
    if reply.len() == 0 && !dead_ids.is_empty() {
        return Err(reply.wrong("it settled none"));
    }
    while reply.len() > 0 {
        settled.push(match reply.text()?.as_str() {
            "retried" => Settled::Retried,
            "dropped" => Settled::Dropped,
            "gone" => Settled::Gone,
            "unreadable" => Settled::Unreadable,
            "wrong_type" => Settled::WrongType,
            word => return Err(reply.wrong(format!("nothing that becomes of a dead letter: {word:?}"))),
        });
    }
    Ok(settled)
}
