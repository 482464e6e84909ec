//! The call of the script `operator/cancel`: it cancels a schedule, or ends its event while the
//! event is held, and records the action.

use redis::aio::ConnectionLike;

use super::action::{By, begin, call};
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::CANCEL_SCHEDULE;

/// The result of cancelling a schedule as an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelledSchedule {
    /// The event was scheduled, or queued, or waited for a retry or an operator. It will not be
    /// delivered, or not again.
    Cancelled {
        /// The id of the event that was ended; `None` if no worker had taken it, so that it had no
        /// id.
        id: Option<u64>,
    },
    /// A worker has the event in flight, and the event goes on.
    Running {
        /// The id of the event in flight.
        id: u64,
        /// Whether the key was scheduled again meanwhile. This new schedule is cancelled.
        rescheduled: bool,
    },
    /// There is no event with this key: it was never scheduled, or it is over. Nothing has changed.
    NotFound,
}

/// Cancels the schedule of the object with this key, or ends its event while the event is held.
/// Records the action unless nothing has changed. It is safe to repeat the call.
pub async fn cancel(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    by: By<'_>,
    object: &[u8],
    key: &str,
) -> Result<CancelledSchedule, ScriptError> {
    let mut cmd = begin(&CANCEL_SCHEDULE, &keys.events_scheduled(), keys, by);
    cmd.arg(object).arg(key);
    let (word, mut reply) = call(conn, "operator/cancel", &CANCEL_SCHEDULE, &cmd).await?;
    match word.as_str() {
        "cancelled" => {
            let id = reply.text()?;
            let number = |_| reply.wrong(format!("a number was expected, not {id:?}"));
            Ok(CancelledSchedule::Cancelled {
                id: if id.is_empty() {
                    None
                } else {
                    Some(id.parse().map_err(number)?)
                },
            })
        }
        "running" => Ok(CancelledSchedule::Running {
            id: reply.number()?,
            rescheduled: false,
        }),
        "rescheduled" => Ok(CancelledSchedule::Running {
            id: reply.number()?,
            rescheduled: true,
        }),
        "absent" => Ok(CancelledSchedule::NotFound),
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
