//! The call that sets or lifts a rule: a pause or a block.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::RULE;
use crate::wire::reply::millis;

/// The change of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleStep {
    /// Set the rule for this time; `None`: until the rule is lifted.
    Set(Option<Duration>),
    /// Lift the rule. From then on the rule holds no further object, and workers wake the objects
    /// that it held.
    Lift,
}

/// The result of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ruled {
    /// The rule is in force. It was not set before.
    New,
    /// The rule was in force already. It now has the end, the actor and the reason of this call.
    Again,
    /// The rule was being lifted, or its end had passed. It is in force again.
    Revived,
    /// The rule is lifted.
    Lifted,
    /// The rule was lifted before, and workers are still waking the objects that it held.
    Lifting,
    /// The rule does not exist.
    NotSet,
    /// The maximum number of rules is reached; the value is the present number. The call changed
    /// nothing.
    TooMany(u64),
}

/// Sets or lifts the rule of a kind (`pause` or `block`) for a selector. It is safe to repeat the
/// call.
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
    // 0 means no end, so a duration below 1 ms is sent as 1 ms.
    let for_ms = after.map_or(0, |after| millis(after).max(1));
    let mut cmd = begin(&RULE, &keys.event_rules(), keys, by);
    cmd.arg(word)
        .arg(kind)
        .arg(selector)
        .arg(for_ms)
        .arg(rules_max);
    let (word, mut reply) = call(conn, "rule", &RULE, &cmd).await?;
    match word.as_str() {
        "set" => match reply.text()?.as_str() {
            "new" => Ok(Ruled::New),
            "again" => Ok(Ruled::Again),
            "revived" => Ok(Ruled::Revived),
            word => Err(reply.wrong(format!("unknown result {word:?}"))),
        },
        "lifted" => Ok(Ruled::Lifted),
        "lifting" => Ok(Ruled::Lifting),
        "not_set" => Ok(Ruled::NotSet),
        "too_many" => Ok(Ruled::TooMany(reply.count()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
