//! The call that sets or removes a share of groups.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::SHARE;
use crate::wire::values::Priority;

/// The change of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareStep {
    /// Set the share.
    Set {
        /// The weight, 1 to 100; `None`: not set.
        weight: Option<u64>,
        /// The priority; `None`: not set.
        priority: Option<Priority>,
    },
    /// Remove the share.
    Remove,
}

/// The result of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareDone {
    /// The share is set. Before, this selector had no share.
    New,
    /// The share was set before. It now has the parts, the actor and the reason of this call.
    Again,
    /// The share is removed.
    Removed,
    /// This selector has no share.
    NotSet,
    /// The maximum number of shares is reached; the value is the present number. The call changed
    /// nothing.
    TooMany(u64),
}

/// Sets or removes a share. It is safe to repeat the call.
pub async fn share(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    selector: &str,
    step: ShareStep,
) -> Result<ShareDone, ScriptError> {
    let mut cmd = begin(&SHARE, &keys.event_shares(), keys, by);
    match step {
        ShareStep::Set { weight, priority } => {
            let weight = weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string());
            cmd.arg("set").arg(selector).arg(weight).arg(priority.map_or("-", Priority::word));
        }
        ShareStep::Remove => drop(cmd.arg("remove").arg(selector)),
    }
    let (word, mut reply) = call(conn, "share", &SHARE, &cmd).await?;
    match word.as_str() {
        "set" => match reply.text()?.as_str() {
            "new" => Ok(ShareDone::New),
            "again" => Ok(ShareDone::Again),
            word => Err(reply.wrong(format!("unknown result {word:?}"))),
        },
        "removed" => Ok(ShareDone::Removed),
        "not_set" => Ok(ShareDone::NotSet),
        "too_many" => Ok(ShareDone::TooMany(reply.count()?)),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
