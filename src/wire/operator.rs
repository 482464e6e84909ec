//! Calls of an operator: dead letters are retried or dropped, held objects listed and released,
//! their head events skipped, rules set and lifted. Each may be made again.

mod paused;
mod release_many;
mod rule;

use redis::Cmd;
use redis::aio::ConnectionLike;

pub use self::paused::{PausedReply, paused};
pub use self::release_many::{RELEASE_PER_CALL_MAX, ReleasedOne, release_many};
pub use self::rule::{RuleStep, Ruled, rule};
use super::{DEAD, HELD, RELEASE, Reply, SKIP, Script, ScriptError};
use crate::keys::Keys;

/// How many dead letters one call of [`dead`] takes.
pub const DEAD_PER_CALL_MAX: usize = 32;
/// How many bytes are kept of who did something, and of why.
const TEXT_BYTES_MAX: usize = 1000;

/// Who does something, and why.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// Who, e.g. `ada@host`.
    pub who: &'a str,
    /// Why, for people; may be empty.
    pub why: &'a str,
}

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

/// What became of an object that was to be released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// It is due at once. What it waited for, empty for a yield.
    Released(String),
    /// It is not held. Its owner, empty where it has none.
    NotHeld(String),
    /// A rule holds it: it goes on where that is lifted.
    Paused,
}

/// What became of an object whose head event was to be skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skipped {
    /// The event is a dead letter, and the object due at once.
    Skipped {
        /// The event's id.
        id: u64,
        /// The id of its dead letter.
        dead_id: String,
        /// How many events are left of the held batch.
        left: u64,
    },
    /// It is not held. Its owner, empty where it has none.
    NotHeld(String),
    /// A rule holds it: it goes on where that is lifted.
    Paused,
    /// It is held, but no event of it has been in hand. Why it is held, empty for a yield.
    NoBatch(String),
    /// Its head is another event.
    Other(u64),
}

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

fn begin(script: &Script, key: &str, keys: &Keys, by: By<'_>) -> Cmd {
    let mut cmd = script.with_key(key);
    cmd.arg(keys.prefix()).arg(shortened(by.who)).arg(shortened(by.why));
    cmd
}

fn shortened(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// The word a reply begins with, where it is not a refusal.
async fn call(
    conn: &mut impl ConnectionLike,
    name: &'static str,
    script: &Script,
    cmd: &Cmd,
) -> Result<(String, Reply), ScriptError> {
    let mut reply = Reply::of(name, script.call(conn, cmd).await?)?;
    match reply.text()? {
        word if word == "denied" => Err(ScriptError::Denied(reply.text()?)),
        word if word == "wrong_type" => Err(ScriptError::WrongType { key: reply.lossy()?, found: reply.text()? }),
        word => Ok((word, reply)),
    }
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

/// Makes a held object due at once. Calling again is safe: it releases the object once more where
/// it is held again.
pub async fn release(conn: &mut impl ConnectionLike, keys: &Keys, by: By<'_>, object: &[u8]) -> Result<Released, ScriptError> {
    let mut cmd = begin(&RELEASE, &keys.objects_held(), keys, by);
    cmd.arg(object);
    let (word, mut reply) = call(conn, "release", &RELEASE, &cmd).await?;
    match word.as_str() {
        "released" => Ok(Released::Released(reply.lossy()?)),
        "not_held" => Ok(Released::NotHeld(reply.lossy()?)),
        "paused" => Ok(Released::Paused),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

/// Sends the head event of a held object to the dead letters. With the id that it is expected to
/// have, calling again is safe.
pub async fn skip(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    object: &[u8],
    id: Option<u64>,
) -> Result<Skipped, ScriptError> {
    let mut cmd = begin(&SKIP, &keys.objects_held(), keys, by);
    cmd.arg(object).arg(id.map_or(String::new(), |id| id.to_string()));
    let (word, mut reply) = call(conn, "skip", &SKIP, &cmd).await?;
    match word.as_str() {
        "skipped" => Ok(Skipped::Skipped { id: reply.number()?, dead_id: reply.text()?, left: reply.count()? }),
        "not_held" => Ok(Skipped::NotHeld(reply.lossy()?)),
        "paused" => Ok(Skipped::Paused),
        "no_batch" => Ok(Skipped::NoBatch(reply.lossy()?)),
        "other" => Ok(Skipped::Other(reply.number()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
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
