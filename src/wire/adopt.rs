//! The call of the script `adopt`: a process takes over the objects of names without a lease.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::ADOPT;
use super::reply::{Reply, millis};
use crate::keys::Keys;

/// The settings with which a process looks at other names.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// The name of the calling process; the script skips it.
    pub own: &'a str,
    /// The number of deaths with one event in hand after which the event is held for an operator.
    pub crashes_max: u32,
    /// The time between two looks at a name with a lease, by any process.
    pub look: Duration,
    /// The time after which a name that has no lease and nothing in its slots is removed.
    pub forget: Duration,
    /// The time since the previous sweep of this process, by its own clock; `None` before the first
    /// sweep.
    pub since: Option<Duration>,
    /// The time within which a process with these settings notices that its lease has ended. After
    /// a step of the clock, takeovers are paused for this time plus 2 s, but at least 5 s.
    pub notice: Duration,
}

/// The result of one call of `adopt`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Whether another call is needed: watched names are still due, or times must still be moved.
    pub more: bool,
    /// The number of held objects whose due time was moved back, because Redis' clock has stepped
    /// back.
    pub moved: u64,
    /// Whether living processes may have lost their leases: Redis' clock stepped ahead just now, or
    /// Redis could not be reached. Then the call takes nothing over.
    pub is_ahead: bool,
    /// Whether a mark is due: `mark` would change something.
    pub mark: bool,
    /// The number of objects that are now held, due at once.
    pub held: u64,
    /// The number of strays: names in slots that did not own them. Each is a marker again.
    pub strays: u64,
    /// The worker names from which objects or strays were taken.
    pub names: Vec<String>,
}

/// Looks at the worker names that are due, and takes over the objects of names without a lease.
pub async fn adopt(conn: &mut impl ConnectionLike, keys: &Keys, sweep: &Sweep<'_>) -> Result<Adopted, ScriptError> {
    let mut cmd = ADOPT.with_key(&keys.event_workers());
    cmd.arg(keys.prefix()).arg(sweep.own).arg(sweep.crashes_max).arg(millis(sweep.look)).arg(millis(sweep.forget));
    cmd.arg(sweep.since.map_or(String::new(), |since| millis(since).to_string())).arg(millis(sweep.notice));
    let mut reply = Reply::of("adopt", ADOPT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "swept" => {
            let (more, held, strays) = (reply.int()? == 1, reply.count()?, reply.count()?);
            let (moved, is_ahead, mark) = (reply.count()?, reply.int()? == 1, reply.int()? == 1);
            let mut adopted = Adopted { more, moved, is_ahead, mark, held, strays, names: Vec::new() };
            while reply.len() > 0 {
                adopted.names.push(reply.text()?);
            }
            Ok(adopted)
        }
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
