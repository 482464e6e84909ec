//! The call of the script `promote`: it pushes scheduled events that are due.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::PROMOTE;
use crate::wire::reply::Reply;

/// The most events that one call promotes.
pub const EVENTS_MAX: usize = 256;

/// The result of one call of `promote`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promoted {
    /// The number of events pushed.
    pub events: u64,
    /// The time until the next schedule is due; zero if more schedules are due now, `None` if there
    /// are no schedules.
    pub next_due: Option<Duration>,
    /// The number of markers after the call.
    pub markers: u64,
    /// The number of watched worker names: names with a lease, or with something in their slots.
    /// This is about the number of living processes.
    pub names: u64,
    /// The time until the next cron job is due; `None` if no cron job will be due.
    pub next_cron: Option<Duration>,
    /// The number of schedules that could not be pushed.
    pub wrong_count: u64,
    /// Up to 16 of the schedules that could not be pushed: the member of `events.scheduled`, and
    /// the reason.
    pub wrong: Vec<(Vec<u8>, String)>,
}

/// Promotes up to `events_max` events (1 to [`EVENTS_MAX`]). Stops after the event with which the
/// events exceed `bytes`.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call.
pub async fn promote(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    events_max: usize,
    bytes: usize,
) -> Result<Promoted, ScriptError> {
    let mut cmd = PROMOTE.with_key(&keys.events_scheduled());
    cmd.arg(keys.prefix()).arg(events_max).arg(bytes);
    let mut reply = Reply::of("promote", PROMOTE.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "promoted" => {}
        "denied" => return Err(ScriptError::Denied(reply.text()?)),
        word => return Err(reply.wrong(format!("unknown status {word:?}"))),
    }
    let (events, next) = (reply.count()?, reply.int()?);
    let next_due = u64::try_from(next).ok().map(Duration::from_millis);
    let (markers, names) = (reply.count()?, reply.count()?);
    let next_cron = u64::try_from(reply.int()?).ok().map(Duration::from_millis);
    let wrong_count = reply.count()?;
    let (mut pairs, mut wrong) = (reply.array()?, Vec::new());
    while pairs.len() > 0 {
        wrong.push((pairs.bytes()?, pairs.lossy()?));
    }
    Ok(Promoted {
        events,
        next_due,
        markers,
        names,
        next_cron,
        wrong_count,
        wrong,
    })
}
