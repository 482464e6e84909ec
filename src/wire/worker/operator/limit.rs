//! The call that sets or removes a limit of the queues.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::LIMIT;

/// The change of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitStep {
    /// Set the limit.
    Set {
        /// The most queued events of an object; `None`: any number.
        queued_max: Option<u64>,
        /// The most markers; `None`: any number.
        markers_max: Option<u64>,
        /// The most limits that a namespace may have.
        limits_max: u64,
    },
    /// Remove the limit.
    Remove,
}

/// The result of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitDone {
    /// The limit is set. Before, this selector had no limit.
    New,
    /// The limit was set before. It now has the numbers, the actor and the reason of this call.
    Again,
    /// The limit is removed.
    Removed,
    /// This selector has no limit.
    NotSet,
    /// The maximum number of limits is reached; the value is the present number. The call changed
    /// nothing.
    TooMany(u64),
}

fn or_null(most: Option<u64>) -> String {
    most.map_or_else(|| "null".to_owned(), |most| most.to_string())
}

/// Sets or removes a limit. It is safe to repeat the call.
pub async fn limit(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    selector: &str,
    step: LimitStep,
) -> Result<LimitDone, ScriptError> {
    let mut cmd = begin(&LIMIT, &keys.event_limits(), keys, by);
    match step {
        LimitStep::Set {
            queued_max,
            markers_max,
            limits_max,
        } => {
            cmd.arg("set")
                .arg(selector)
                .arg(or_null(queued_max))
                .arg(or_null(markers_max))
                .arg(limits_max);
        }
        LimitStep::Remove => drop(cmd.arg("remove").arg(selector)),
    }
    let (word, mut reply) = call(conn, "limit", &LIMIT, &cmd).await?;
    match word.as_str() {
        "set" => match reply.text()?.as_str() {
            "new" => Ok(LimitDone::New),
            "again" => Ok(LimitDone::Again),
            word => Err(reply.wrong(format!("unknown result {word:?}"))),
        },
        "removed" => Ok(LimitDone::Removed),
        "not_set" => Ok(LimitDone::NotSet),
        "too_many" => Ok(LimitDone::TooMany(reply.count()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
