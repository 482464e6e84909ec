//! The call of the script `adopt`: a process takes over the objects of worker names without a
//! lease.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::ADOPT;
use crate::wire::reply::{Reply, millis};

/// The settings with which a process looks at the worker names of other processes.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// The worker name of the calling process. The script skips this name.
    pub own: &'a str,
    /// The number of processes that may die with the same event in hand. After that many deaths the
    /// event is held for an operator. 0: no limit.
    pub crashes_max: u32,
    /// The time between two looks at the same watched name, by any process. A watched name has a
    /// lease, or something in its slots.
    pub look: Duration,
    /// The time from the last sign of life of a departed name until the name is removed. A departed
    /// name has no lease, and nothing in its slots.
    pub forget: Duration,
    /// The time since the previous sweep of this process, by its own clock; `None` before the first
    /// sweep.
    pub since: Option<Duration>,
    /// The time within which a process with these settings notices that its lease has ended. After
    /// Redis' clock has stepped ahead, no name is taken over for this time plus 2 s, but at least
    /// for 5 s.
    pub notice: Duration,
}

/// The result of one call of `adopt`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Whether another call is needed: watched names are still due for a look, or times must still
    /// be moved back.
    pub more: bool,
    /// The number of held objects whose due time was moved back, because Redis' clock has stepped
    /// back.
    pub moved: u64,
    /// Whether live processes may have lost their leases, because Redis' clock has just stepped
    /// ahead, or Redis could not be reached. If so, the call takes nothing over.
    pub is_ahead: bool,
    /// Whether a call of the script `mark` would change something.
    pub mark: bool,
    /// The number of objects that are now held. They are due at once, or wait for an operator if
    /// their event has killed too many workers.
    pub held: u64,
    /// The number of strays: object names in the lists of slots that did not own the objects. Each
    /// of these names is a marker again.
    pub strays: u64,
    /// The texts of the log: pairs of an escaped name and a reason. Objects are held because of
    /// crashes or of a lost key. Batches have no known object. Keys are written again.
    pub lost: Vec<(String, String)>,
    /// The worker names from which objects or strays were taken.
    pub names: Vec<String>,
}

/// Looks at the worker names that are due, and takes over the objects of names without a lease.
pub async fn adopt(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    sweep: &Sweep<'_>,
) -> Result<Adopted, ScriptError> {
    let mut cmd = ADOPT.with_key(&keys.event_workers());
    cmd.arg(keys.prefix())
        .arg(sweep.own)
        .arg(sweep.crashes_max)
        .arg(millis(sweep.look))
        .arg(millis(sweep.forget));
    cmd.arg(
        sweep
            .since
            .map_or(String::new(), |since| millis(since).to_string()),
    )
    .arg(millis(sweep.notice));
    let mut reply = Reply::of("adopt", ADOPT.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "swept" => {
            let (more, held, strays) = (reply.int()? == 1, reply.count()?, reply.count()?);
            let (moved, is_ahead, mark) = (reply.count()?, reply.int()? == 1, reply.int()? == 1);
            let lost = reply.texts()?;
            let mut adopted = Adopted {
                more,
                moved,
                is_ahead,
                mark,
                held,
                strays,
                lost,
                names: Vec::new(),
            };
            while reply.len() > 0 {
                adopted.names.push(reply.text()?);
            }
            Ok(adopted)
        }
        word => Err(reply.wrong(format!("unknown status {word:?}"))),
    }
}
