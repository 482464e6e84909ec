//! Recover: every process takes over the objects of worker names whose process is gone.
//!
//! The objects of a worker name without a lease are held, due at once, and claimed like any held
//! object. An object whose event has killed too many workers is held for an operator instead. If
//! the sweeping process dies, the script has run completely or not at all, and another process
//! sweeps within a second.

use std::time::Duration;

use redis::aio::ConnectionLike;
use tracing::{debug, info, warn};

use crate::connection::errors::is_outage;
use crate::failpoints::around;
use crate::wire::{self, ScriptError, Sweep};
use crate::worker::config::WorkerConfig;
use crate::worker::session::connect::Redis;
use crate::worker::watch::figures::Call;
use crate::worker::watch::logged;

/// The time from the last sign of life of a worker name until the name is removed, if it has no
/// lease and its slots are empty.
const FORGET: Duration = Duration::from_secs(24 * 60 * 60);
/// The most calls in one sweep. The next sweep looks at the names that are still due.
const CALLS_MAX: usize = 1000;

/// The result of a sweep.
pub(crate) struct Swept {
    /// Whether there may be something to claim.
    pub(crate) found: bool,
    /// Whether Redis' clock has stepped ahead, or Redis was away. Living processes, including this
    /// one, may have lost their leases.
    pub(crate) is_ahead: bool,
    /// Whether a mark is due.
    pub(crate) mark: bool,
}

/// Sweeps: looks at the registered worker names that are due for a look. Also notices steps of
/// Redis' clock. `since` is the time since the previous sweep.
pub(crate) async fn sweep(
    redis: &Redis,
    conn: &mut impl ConnectionLike,
    config: &WorkerConfig,
    since: Option<Duration>,
) -> Result<Swept, ScriptError> {
    // The time between two looks is half of the interval between sweeps. So a name is due again
    // before the next sweep, even if timers are late.
    let look = config.sweep / 2;
    // A process whose handlers are busy notices only at a renewal that its lease has lapsed. A
    // renewal follows each sweep that finds a step of the clock.
    let notice = config.sweep.min(config.lease / 3);
    let mut sweep = Sweep {
        own: &config.name,
        crashes_max: config.crashes_held(),
        look,
        forget: FORGET,
        since,
        notice,
    };
    let (mut found, mut is_ahead, mut mark) = (false, false, false);
    let mut moved = 0;
    for _ in 0..CALLS_MAX {
        let call = around!("adopt", wire::adopt(conn, &config.keys, &sweep));
        let adopted = redis.timed(Call::Adopt, call).await?;
        redis
            .figures()
            .lost_keys(logged::quarantined_all(&adopted.lost));
        if !adopted.names.is_empty() {
            redis.figures().took_over(adopted.names.len());
            let (names, held, strays) = (adopted.names.join(" "), adopted.held, adopted.strays);
            info!(
                names,
                held, strays, "recover: took over the objects of names without a lease"
            );
            found = true;
        }
        moved += adopted.moved;
        is_ahead |= adopted.is_ahead;
        mark = adopted.mark;
        if !adopted.more {
            break;
        }
        // Only the first call may compare the clock with the time since the last sweep.
        sweep.since = None;
    }
    if moved > 0 {
        warn!(
            objects = moved,
            "recover: the clock of Redis has stepped back; due times of held objects were moved back, too"
        );
    }
    Ok(Swept {
        found: found || moved > 0,
        is_ahead,
        mark,
    })
}

/// Pushes a mark, so that the age of the oldest marker is known. No decision depends on this age,
/// so any error other than a lost connection is ignored.
pub(crate) async fn mark(
    conn: &mut impl ConnectionLike,
    config: &WorkerConfig,
) -> Result<(), ScriptError> {
    match around!("mark", wire::mark(conn, &config.keys)).await {
        Err(ScriptError::Redis(error)) if is_outage(&error) => Err(ScriptError::Redis(error)),
        Err(error) => {
            debug!(%error, "recover: no mark was pushed; the age of the oldest marker is unknown");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
