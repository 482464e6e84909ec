//! Wait: an idle process blocks on the markers, for one idle slot, on a connection of its own.
//!
//! The pop moves a marker into the slot's `W:object` in the same step, and the call of advance that
//! follows it at once, in the same round trip, claims its object for the slot. If the answer is
//! lost, or the process dies, marker or batch are there all the same: the next advance, renewal or
//! sweep finds them.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::config::WorkerConfig;
use super::connect::{Connection, Redis};
use super::error::WorkerError;
use crate::connection::PatientConnection;
use crate::connection::errors::told;
use crate::failpoints::around;
use crate::wire::{Advance, Advanced, ScriptError, pop_and_advance};

/// What became of a wait.
pub(crate) struct Waited {
    /// For the next one.
    pub(crate) conn: PatientConnection,
    /// Redis is out of memory and moves no markers for a pop.
    pub(crate) out_of_memory: bool,
    /// What advance answered.
    pub(crate) reply: Result<Advanced, ScriptError>,
}

/// A pop that moves a marker to the slot within `block`.
pub(crate) fn pop(config: &WorkerConfig, slot: usize, block: Duration) -> Cmd {
    let to = config.keys.worker_object(&config.worker(slot));
    let mut pop = redis::cmd("BLMOVE");
    // Zero would be for ever.
    pop.arg(config.keys.objects_with_events())
        .arg(to)
        .arg("RIGHT")
        .arg("LEFT")
        .arg(block.max(Duration::from_millis(1)).as_secs_f64());
    pop
}

/// Waits until a marker was moved, or the block time is over, and makes the call. Nothing where the
/// connection failed.
///
/// Dropping the future closes the connection, and with it the pop; a marker may have been moved,
/// and the call made, before.
pub(crate) async fn wait(
    redis: Redis,
    conn: Option<PatientConnection>,
    pop: Cmd,
    call: Advance,
    config: Arc<WorkerConfig>,
) -> Result<Option<Waited>, WorkerError> {
    let mut conn = match conn {
        Some(conn) => conn,
        // Taken out of the pool: with a pop under way it must never be used for anything else.
        None => Connection::take(redis.reconnect().await?),
    };
    // The server answers after the block time at the latest; what is longer is a lost connection.
    conn.set_block(config.block);
    let answer = around!("pop", pop_and_advance(&mut conn, pop, &call)).await;
    let made_at = conn.made_at();
    match answer {
        Ok((popped, reply)) => {
            let out_of_memory = popped.as_ref().is_err_and(|error| error.code() == Some("OOM"));
            match popped {
                // A list of a wrong type is found by the next call of advance, which says so.
                Err(error) if !out_of_memory && error.code() != Some("WRONGTYPE") => {
                    redis.outage().failed(made_at, &told(&error))
                }
                _ if reply.is_ok() => redis.outage().answered(made_at),
                _ => {}
            }
            Ok(Some(Waited { conn, out_of_memory, reply }))
        }
        Err(error) => {
            redis.outage().failed(made_at, &told(&error));
            Ok(None)
        }
    }
}
