//! The call of the script `repair`: it puts keys right that belong together.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::REPAIR;

/// The most subjects in one call.
pub const REPAIR_PER_CALL_MAX: usize = 32;

/// The settings that all calls of a repair share.
#[derive(Debug, Clone, Default)]
pub struct RepairCall {
    /// Whether the call makes the changes. Otherwise it only describes them.
    pub doing: bool,
    /// Id of the row of the actions that the call before has returned; empty in the first call.
    pub row: String,
    /// The due time, in ms since 1970, of schedules that have lost theirs. `None` leaves them.
    pub due_ms: Option<u64>,
    /// Whether a list without any other key of its object is a queue, although there is no
    /// namespace.
    pub all_lists: bool,
    /// Ids of workers that are dead; `*` for all that are no slot of a registered name.
    pub dead_owners: Vec<String>,
}

/// A text of the script about one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairLine {
    /// The position of the subject in the call, from 0.
    pub position: usize,
    /// `left`, `again`, or the kind of a step.
    pub word: String,
    /// The text for people.
    pub what: String,
}

/// Puts these subjects right, at most [`REPAIR_PER_CALL_MAX`]. Each has a kind, a name and a hint
/// (`lua/check.lua`). Returns the texts, and the id of the row that the calls of the repair share.
/// It is safe to repeat the call.
pub async fn repair<'s>(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    with: &RepairCall,
    subjects: impl IntoIterator<Item = (&'s str, &'s [u8], &'s str)>,
) -> Result<(Vec<RepairLine>, String), ScriptError> {
    let mut cmd = begin(&REPAIR, &keys.event_workers(), keys, by);
    cmd.arg(if with.doing { "do" } else { "plan" })
        .arg(format!("{} *", with.row));
    cmd.arg(with.due_ms.map_or(String::new(), |ms| ms.to_string()))
        .arg(if with.all_lists { "1" } else { "" });
    cmd.arg(
        with.dead_owners
            .iter()
            .map(|worker| format!("{worker}\n"))
            .collect::<String>(),
    );
    for (kind, name, hint) in subjects.into_iter().take(REPAIR_PER_CALL_MAX) {
        cmd.arg(kind).arg(name).arg(hint);
    }
    let (word, mut reply) = call(conn, "repair", &REPAIR, &cmd).await?;
    if word != "repaired" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let row = reply.text()?;
    let (mut flat, mut lines) = (reply.array()?, Vec::new());
    while flat.len() > 0 {
        let position = usize::try_from(flat.count()?).unwrap_or(0);
        let position = position
            .checked_sub(1)
            .ok_or_else(|| flat.wrong("a position is 0"))?;
        let word = flat.text()?;
        // `solves` has a name for the program, not a text.
        let what = if word == "solves" {
            flat.lossy()?
        } else {
            flat.escaped()?
        };
        lines.push(RepairLine {
            position,
            word,
            what,
        });
    }
    Ok((lines, row))
}
