//! The call of `adopt`: a process takes over what names without a lease have.

use std::time::Duration;

use redis::aio::ConnectionLike;

use super::error::ScriptError;
use super::lua::ADOPT;
use super::reply::{Reply, millis};
use crate::keys::Keys;

/// How a process looks at other names.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// Its own name, which it leaves alone.
    pub own: &'a str,
    /// Deaths with one event in hand after which that event waits for an operator.
    pub crashes_max: u32,
    /// Time from a look at a name with a lease to the next one, over all processes.
    pub look: Duration,
    /// Time after which a name without a lease that has nothing is forgotten.
    pub forget: Duration,
    /// Time since this process made its sweep before this one, by its own clock; none if there was
    /// none.
    pub since: Option<Duration>,
    /// Time within which a process notices that its lease has ended, if its settings are those of
    /// this process. Behind a step of the clock, takeovers wait for so long and 2 s more, but at
    /// least 5 s.
    pub notice: Duration,
}

/// What one call of `adopt` took over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Names that may have something are still due, or times are still to be moved: call again.
    pub more: bool,
    /// Held objects that are due earlier now, because Redis' clock has stepped back.
    pub moved: u64,
    /// Leases may have ended whose processes live: Redis' clock has stepped ahead a moment ago, or
    /// Redis could not be reached. Nothing is taken over.
    pub is_ahead: bool,
    /// Objects now held, due at once.
    pub held: u64,
    /// Names that slots had taken and did not own, now markers again.
    pub strays: u64,
    /// The worker names from which something was taken.
    pub names: Vec<String>,
}

/// Takes over what names without a lease have, as far as they are due to be looked at.
pub async fn adopt(conn: &mut impl ConnectionLike, keys: &Keys, sweep: &Sweep<'_>) -> Result<Adopted, ScriptError> {
    let mut cmd = ADOPT.with_key(&keys.event_workers());
    cmd.arg(keys.prefix()).arg(sweep.own).arg(sweep.crashes_max).arg(millis(sweep.look)).arg(millis(sweep.forget));
    cmd.arg(sweep.since.map_or(String::new(), |since| millis(since).to_string())).arg(millis(sweep.notice));
    let mut reply = Reply::of("adopt", ADOPT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "swept" => {
            let (more, held, strays) = (reply.int()? == 1, reply.count()?, reply.count()?);
            let (moved, is_ahead) = (reply.count()?, reply.int()? == 1);
            let mut adopted = Adopted { more, moved, is_ahead, held, strays, names: Vec::new() };
            while reply.len() > 0 {
                adopted.names.push(reply.text()?);
            }
            Ok(adopted)
        }
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
