//! The call that sets or removes a share of groups.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::{IN_HAND, SHARE};
use crate::wire::reply::Reply;
use crate::wire::values::Priority;

/// The change of a share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ShareStep {
    /// Set the share.
    Set {
        /// The time since when objects in hand are counted, from [`count_in_hand`].
        counted_since: u64,
        /// The parts of the share.
        parts: ShareParts,
    },
    /// Remove the share.
    Remove,
}

/// The parts of a share. A part that is `None` is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ShareParts {
    /// The weight, 1 to 100.
    pub weight: Option<u64>,
    /// The priority.
    pub priority: Option<Priority>,
    /// The most objects in hand, from 1.
    pub in_flight: Option<u64>,
    /// The most events per second, above 0.
    pub rate: Option<f64>,
    /// The most events at once, from 1.
    pub burst: Option<u64>,
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
    /// Objects in hand are not counted since the given time. The call changed nothing.
    Restart,
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
        ShareStep::Set {
            counted_since,
            parts,
        } => {
            cmd.arg("set").arg(selector).arg(counted_since);
            cmd.arg(or_dash(parts.weight))
                .arg(parts.priority.map_or("-", Priority::word));
            cmd.arg(or_dash(parts.in_flight))
                .arg(or_dash(parts.rate))
                .arg(or_dash(parts.burst));
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
        "restart" => Ok(ShareDone::Restart),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

fn or_dash<T: ToString>(part: Option<T>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| part.to_string())
}

/// Makes workers count the objects in hand from now on. Returns the time since when they do so, in
/// ms since the epoch. It is safe to repeat the call.
pub async fn count_in_hand(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
) -> Result<u64, ScriptError> {
    let mut cmd = begin(&SHARE, &keys.event_shares(), keys, by);
    cmd.arg("count");
    let (word, mut reply) = call(conn, "share", &SHARE, &cmd).await?;
    match word.as_str() {
        "counting" => reply.count(),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}

/// The objects in hand that a call of [`in_hand`] looks at.
#[derive(Debug, Clone, Copy)]
pub enum InHand<'a> {
    /// Adds the objects of these slots, `NAME.SLOT`; at most 500.
    Slots(&'a [String]),
    /// Removes, of the counted objects after this one, those that no slot owns.
    Members {
        /// The last member of the page before; empty for the first page.
        after: &'a [u8],
        /// The most members of a page.
        count: usize,
    },
}

/// Corrects the count of the objects in hand. Returns the last member of the page, which is empty if
/// there is no further page; `None` if objects in hand are not counted since `counted_since`. It is
/// safe to repeat the call.
pub async fn in_hand(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    counted_since: u64,
    look: InHand<'_>,
) -> Result<Option<Vec<u8>>, ScriptError> {
    let mut cmd = IN_HAND.with_key(&keys.objects_in_hand());
    cmd.arg(keys.prefix()).arg(counted_since);
    match look {
        InHand::Slots(slots) => drop(cmd.arg("slots").arg(slots)),
        InHand::Members { after, count } => drop(cmd.arg("members").arg(after).arg(count)),
    }
    let mut reply = Reply::of("in_hand", IN_HAND.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "counted" => reply.bytes().map(Some),
        "restart" => Ok(None),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
