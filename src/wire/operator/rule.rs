//! Pauses and blocks: set and lifted, each in one call.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::RULE;
use crate::wire::reply::millis;

/// What becomes of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleStep {
    /// It is in force, until it is lifted or for so long.
    Set(Option<Duration>),
    /// It holds nothing any more; workers wake what it has held.
    Lift,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ruled {
    /// It is in force now, and was not set before.
    New,
    /// It was in force already, and has the end, the actor and the reason of this call now.
    Again,
    /// It was being lifted, or past its end, and is in force again.
    Revived,
    /// It is lifted.
    Lifted,
    /// It was lifted before: its objects are being woken.
    Lifting,
    /// There is no such rule.
    NotSet,
    /// There are as many rules as there may be: nothing was done.
    TooMany(u64),
}

/// Sets or lifts the rule of a kind (`pause` or `block`) for a selector. Calling again is safe.
pub async fn rule(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    step: RuleStep,
    kind: &str,
    selector: &[u8],
    rules_max: u64,
) -> Result<Ruled, ScriptError> {
    let (word, after) = match step {
        RuleStep::Set(after) => ("set", after),
        RuleStep::Lift => ("lift", None),
    };
    // A rule that is to end at once has an end all the same.
    let for_ms = after.map_or(0, |after| millis(after).max(1));
    let mut cmd = begin(&RULE, &keys.event_rules(), keys, by);
    cmd.arg(word).arg(kind).arg(selector).arg(for_ms).arg(rules_max);
    let (word, mut reply) = call(conn, "rule", &RULE, &cmd).await?;
    match word.as_str() {
        "set" => match reply.text()?.as_str() {
            "new" => Ok(Ruled::New),
            "again" => Ok(Ruled::Again),
            "revived" => Ok(Ruled::Revived),
            word => Err(reply.wrong(format!("nothing that becomes of a rule: {word:?}"))),
        },
        "lifted" => Ok(Ruled::Lifted),
        "lifting" => Ok(Ruled::Lifting),
        "not_set" => Ok(Ruled::NotSet),
        "too_many" => Ok(Ruled::TooMany(reply.count()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
