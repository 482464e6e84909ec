//! Recover: what any process does for names whose process is gone.
//!
//! A name without a lease keeps nothing: the objects its slots own are held, due at once, and
//! claimed again like any held object. If the sweeping process dies in between, the script has run
//! or it has not, and another process sweeps within a second.

use std::time::Duration;

use redis::aio::ConnectionLike;
use tracing::{info, warn};

use super::config::WorkerConfig;
use crate::failpoints::around;
use crate::wire::{self, ScriptError, Sweep};

/// A name that has nothing and no lease is forgotten this long after its last sign of life.
const FORGET: Duration = Duration::from_secs(24 * 60 * 60);
/// Calls in one sweep; names that are still due then are looked at in the next one.
const CALLS_MAX: usize = 1000;

/// The result of a sweep.
pub(crate) struct Swept {
    /// There may be something to claim.
    pub(crate) found: bool,
    /// Redis' clock has stepped ahead, or Redis was away: leases may have ended whose processes
    /// live, this process' own, too.
    pub(crate) is_ahead: bool,
}

/// Looks at the registered names that are due, and follows Redis' clock. `since` is the time since
/// the sweep before.
pub(crate) async fn sweep(
    conn: &mut impl ConnectionLike,
    config: &WorkerConfig,
    since: Option<Duration>,
) -> Result<Swept, ScriptError> {
    // A name is due again before the next sweep of this process, whatever its timers do.
    let look = config.sweep / 2;
    // A process whose handlers are busy notices its lapse at a renewal. One follows each sweep that
    // tells of a step.
    let notice = config.sweep.min(config.lease / 3);
    let mut sweep = Sweep { own: &config.name, crashes_max: config.crashes_held(), look, forget: FORGET, since, notice };
    let (mut found, mut is_ahead) = (false, false);
    let mut moved = 0;
    for _ in 0..CALLS_MAX {
        let call = wire::adopt(conn, &config.keys, &sweep);
        let adopted = around!("adopt", call).await?;
        if !adopted.names.is_empty() {
            let (names, held, strays) = (adopted.names.join(" "), adopted.held, adopted.strays);
            info!(names, held, strays, "recover: took over what names without a lease had");
            found = true;
        }
        moved += adopted.moved;
        is_ahead |= adopted.is_ahead;
        if !adopted.more {
            break;
        }
        // The first call has told all that the time before it tells.
        sweep.since = None;
    }
    if moved > 0 {
        warn!(objects = moved, "recover: the clock of Redis has stepped back, held objects are due as early as before");
    }
    Ok(Swept { found: found || moved > 0, is_ahead })
}
