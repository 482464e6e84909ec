//! The call of the script `release_many`: it makes many held objects due soon.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use super::dead::Record;
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::RELEASE_MANY;

/// The most objects in one call.
pub const RELEASE_PER_CALL_MAX: usize = 100;

/// The result for one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleasedOne {
    /// The object is due within the time of the call.
    Released,
    /// The object was already due, or due within this time.
    Due,
    /// The object does not meet the conditions of the call.
    Other,
    /// A rule holds the object.
    Paused,
    /// The object is not held any more.
    NotHeld,
}

/// The conditions of [`release_many`], and its time.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseMany<'a> {
    /// Whether to release only objects that wait for an operator.
    pub until_released: bool,
    /// A part of the reason for the hold; empty for any reason.
    pub text: &'a str,
    /// The time over which the due times are evenly spread.
    pub over: Duration,
}

/// Makes each of these objects due within the time `over`, if it meets the conditions. Takes at most [`RELEASE_PER_CALL_MAX`] objects. Returns a result for each
/// object, in order, and the id of the row that the calls of the action share; it is empty if
/// nothing was done yet. It is safe to repeat the call.
pub async fn release_many(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    which: ReleaseMany<'_>,
    record: Record<'_>,
    objects: &[impl AsRef<[u8]>],
) -> Result<(Vec<ReleasedOne>, String), ScriptError> {
    let mut cmd = begin(&RELEASE_MANY, &keys.objects_held(), keys, by);
    cmd.arg(if which.until_released { "inf" } else { "all" })
        .arg(which.text)
        .arg(record.argument());
    cmd.arg(u64::try_from(which.over.as_millis()).unwrap_or(u64::MAX));
    for object in objects.iter().take(RELEASE_PER_CALL_MAX) {
        cmd.arg(object.as_ref());
    }
    let (word, mut reply) = call(conn, "release_many", &RELEASE_MANY, &cmd).await?;
    if word != "released" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let row = reply.text()?;
    let mut released = Vec::with_capacity(objects.len());
    while reply.len() > 0 {
        released.push(match reply.text()?.as_str() {
            "released" => ReleasedOne::Released,
            "due" => ReleasedOne::Due,
            "other" => ReleasedOne::Other,
            "paused" => ReleasedOne::Paused,
            "not_held" => ReleasedOne::NotHeld,
            word => return Err(reply.wrong(format!("unknown result {word:?}"))),
        });
    }
    Ok((released, row))
}
