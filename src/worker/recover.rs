//! Recover: what any process does for names whose process is gone.
//!
//! A name without a lease keeps nothing: the objects its slots own are held, due at once, and claimed again like any held object. If the
//! sweeping process dies in between, the script has run or it has not, and another process sweeps within a second.

use std::time::Duration;

use redis::aio::ConnectionLike;
use tracing::info;

use super::config::WorkerConfig;
use crate::failpoints::around;
use crate::scripts::{self, ScriptError};

/// A name that has nothing and no lease is forgotten this long after its last takeover.
const FORGET: Duration = Duration::from_secs(24 * 60 * 60);
/// Calls in one sweep; a registry that is larger than they cover is finished in the next.
const CALLS_MAX: usize = 1000;

/// Looks at every registered name once. Answers whether anything was taken over.
pub(crate) async fn sweep(conn: &mut impl ConnectionLike, config: &WorkerConfig) -> Result<bool, ScriptError> {
    let mut cursor = "0".to_owned();
    let mut found = false;
    for _ in 0..CALLS_MAX {
        let call = scripts::adopt(conn, &config.keys, &config.name, &cursor, config.crashes_max, FORGET);
        let adopted = around!("adopt", call).await?;
        if !adopted.names.is_empty() {
            let (names, held, strays) = (adopted.names.join(" "), adopted.held, adopted.strays);
            info!(names, held, strays, "recover: took over what names without a lease had");
            found = true;
        }
        cursor = adopted.cursor;
        if cursor == "0" {
            break;
        }
    }
    Ok(found)
}
