//! Recover: what any process does for names whose process is gone.
//!
//! A name without a lease keeps nothing: the objects its slots own are held, due at once, and claimed again like any held object. If the
//! sweeping process dies in between, the script has run or it has not, and another process sweeps within a second.

use std::time::Duration;

use redis::aio::ConnectionLike;
use tracing::{info, warn};

use super::config::WorkerConfig;
use crate::failpoints::around;
use crate::scripts::{self, ScriptError, Sweep};

/// A name that has nothing and no lease is forgotten this long after its last sign of life.
const FORGET: Duration = Duration::from_secs(24 * 60 * 60);
/// Calls in one sweep; names that are still due then are looked at in the next one.
const CALLS_MAX: usize = 1000;

/// Looks at the registered names that are due, and follows Redis' clock. `since` is the time since the sweep before. Returns whether there may be
/// something to claim.
pub(crate) async fn sweep(
    conn: &mut impl ConnectionLike,
    config: &WorkerConfig,
    since: Option<Duration>,
) -> Result<bool, ScriptError> {
    // A name is due again before the next sweep of this process, whatever its timers do.
    let look = config.sweep / 2;
    let mut sweep = Sweep { own: &config.name, crashes_max: config.crashes_held(), look, forget: FORGET, since };
    let mut found = false;
    let mut moved = 0;
    for _ in 0..CALLS_MAX {
        let call = scripts::adopt(conn, &config.keys, &sweep);
        let adopted = around!("adopt", call).await?;
        if !adopted.names.is_empty() {
            let (names, held, strays) = (adopted.names.join(" "), adopted.held, adopted.strays);
            info!(names, held, strays, "recover: took over what names without a lease had");
            found = true;
        }
        moved += adopted.moved;
        if !adopted.more {
            break;
        }
        // The first call has told all that the time before it tells.
        sweep.since = None;
    }
    if moved > 0 {
        warn!(objects = moved, "recover: the clock of Redis has stepped back, held objects are due as early as before");
    }
    Ok(found || moved > 0)
}
