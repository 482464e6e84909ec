//! The call of the script `dead`: it retries or drops dead letters.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::DEAD;

/// The most dead letters in one call of [`dead`].
pub const DEAD_PER_CALL_MAX: usize = 32;

/// The action on dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Push the event again, as a new event.
    Retry,
    /// Delete the dead letter.
    Drop,
}

/// The result for one dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The event was pushed again.
    Retried,
    /// The event was pushed again. Newer events of its object were delivered since it became a dead
    /// letter, so a receiver gets it out of order.
    RetriedLate,
    /// The dead letter and its event are deleted.
    Dropped,
    /// The dead letter does not exist, or no longer exists.
    Gone,
    /// The dead letter stays: it has no valid object name, or no event.
    Unreadable,
    /// The dead letter stays: the queue of its object is not a list.
    WrongType,
}

impl Settled {
    /// Returns whether the dead letter was retried or dropped.
    #[must_use]
    pub fn is_done(self) -> bool {
        matches!(self, Self::Retried | Self::RetriedLate | Self::Dropped)
    }

    /// Returns the word for this result in outputs for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Retried | Self::RetriedLate => "retried",
            Self::Dropped => "dropped",
            Self::Gone => "gone",
            Self::Unreadable => "unreadable",
            Self::WrongType => "wrong_type",
        }
    }
}

/// The record of an action that takes many calls. The calls share one row.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The selected objects: a name, a prefix with `*`, or `*` for all.
    pub selected: &'a [u8],
    /// Id of the row that the call before has returned; empty in the first call.
    pub row: &'a str,
}

impl Record<'_> {
    /// Returns the argument of the script.
    pub(super) fn argument(&self) -> Vec<u8> {
        [self.row.as_bytes(), b" ", self.selected].concat()
    }
}

/// Retries or drops dead letters, in order, and records each of them. The call ends after
/// [`DEAD_PER_CALL_MAX`] dead letters, or after 1 MiB of events. Returns a result for each dead
/// letter that the call reached, at least one.
///
/// It is safe to repeat the call: dead letters that no longer exist are skipped.
pub async fn dead(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    settle: Settle,
    dead_ids: &[impl AsRef<str>],
) -> Result<Vec<Settled>, ScriptError> {
    Ok(settled(conn, keys, by, settle, b"", dead_ids).await?.0)
}

/// As [`dead`], for an action of many calls that share one row. Also returns the id of this row; it
/// is empty if nothing was done yet.
pub async fn dead_in(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    settle: Settle,
    record: Record<'_>,
    dead_ids: &[impl AsRef<str>],
) -> Result<(Vec<Settled>, String), ScriptError> {
    settled(conn, keys, by, settle, &record.argument(), dead_ids).await
}

/// Calls the script. Without a record, each dead letter has one of its own.
async fn settled(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    settle: Settle,
    record: &[u8],
    dead_ids: &[impl AsRef<str>],
) -> Result<(Vec<Settled>, String), ScriptError> {
    let mut cmd = begin(&DEAD, &keys.events_dead(), keys, by);
    cmd.arg(if settle == Settle::Retry {
        "retry"
    } else {
        "drop"
    })
    .arg(record);
    for dead_id in dead_ids.iter().take(DEAD_PER_CALL_MAX) {
        cmd.arg(dead_id.as_ref());
    }
    let (word, mut reply) = call(conn, "dead", &DEAD, &cmd).await?;
    if word != "settled" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let row = reply.text()?;
    let mut settled = Vec::with_capacity(dead_ids.len());
    if reply.len() == 0 && !dead_ids.is_empty() {
        return Err(reply.wrong("no results"));
    }
    while reply.len() > 0 {
        settled.push(match reply.text()?.as_str() {
            "retried" => Settled::Retried,
            "retried_late" => Settled::RetriedLate,
            "dropped" => Settled::Dropped,
            "gone" => Settled::Gone,
            "unreadable" => Settled::Unreadable,
            "wrong_type" => Settled::WrongType,
            word => return Err(reply.wrong(format!("unknown result {word:?}"))),
        });
    }
    Ok((settled, row))
}
