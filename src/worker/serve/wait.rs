//! Wait: an idle process waits for a marker for one of its idle slots, on a connection that only
//! this wait uses.
//!
//! The pop moves a marker into the slot's list `event.worker:W:object` in one step. The call of
//! advance follows in the same round trip, and claims the object for the slot. If the reply is
//! lost, or the process dies, the marker or the batch is still in Redis. The next advance, renewal
//! or sweep finds it.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::connection::PatientConnection;
use crate::connection::errors::describe;
use crate::failpoints::around;
use crate::wire::{Advance, Advanced, ScriptError, pop_and_advance};
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::serve::caller::until_replicated;
use crate::worker::session::connect::{Connection, Redis};

/// The result of a wait.
pub(crate) struct Waited {
    /// The connection, for the next wait.
    pub(crate) conn: PatientConnection,
    /// Whether Redis is out of memory, so that a pop moves no markers.
    pub(crate) out_of_memory: bool,
    /// The reply to the call of advance.
    pub(crate) reply: Result<Advanced, ScriptError>,
}

/// Returns the command of a pop. It waits for a marker for at most `block`, and moves the marker to
/// the slot's list.
pub(crate) fn pop(config: &WorkerConfig, slot: usize, block: Duration) -> Cmd {
    let to = config.keys.worker_object(&config.worker(slot));
    let mut pop = redis::cmd("BLMOVE");
    // A timeout of 0 would block for ever, so it is at least 1 ms.
    pop.arg(config.keys.objects_with_events())
        .arg(to)
        .arg("RIGHT")
        .arg("LEFT")
        .arg(block.max(Duration::from_millis(1)).as_secs_f64());
    pop
}

/// Waits until the pop moves a marker, or the block time is over. In both cases the call follows.
/// Returns `None` if the connection failed.
///
/// Cancellation: dropping the future closes the connection, which ends the pop. Before that, the
/// pop may have moved a marker, and the call may have run.
pub(crate) async fn wait(
    redis: Redis,
    conn: Option<PatientConnection>,
    pop: Cmd,
    call: Advance,
    config: Arc<WorkerConfig>,
) -> Result<Option<Waited>, WorkerError> {
    let mut conn = match conn {
        Some(conn) => conn,
        // The connection leaves the pool: with a pop under way, no other task may use it.
        None => Connection::take(redis.reconnect().await?),
    };
    // The server replies after the block time at the latest. A longer silence is a lost connection.
    conn.set_block(config.block);
    let answer = around!("pop", pop_and_advance(&mut conn, pop, &call)).await;
    let made_at = conn.made_at();
    match answer {
        Ok((popped, mut reply)) => {
            if let Ok(advanced) = &reply
                && let Err(error) = until_replicated(&redis, &mut conn, advanced).await
            {
                reply = Err(error);
            }
            let out_of_memory = popped
                .as_ref()
                .is_err_and(|error| error.code() == Some("OOM"));
            match popped {
                // A list of a wrong type is found and reported by the next call of advance.
                Err(error) if !out_of_memory && error.code() != Some("WRONGTYPE") => {
                    redis.outage().failed(made_at, &describe(&error))
                }
                _ if reply.is_ok() => redis.outage().answered(made_at),
                _ => {}
            }
            Ok(Some(Waited {
                conn,
                out_of_memory,
                reply,
            }))
        }
        Err(error) => {
            redis.outage().failed(made_at, &describe(&error));
            Ok(None)
        }
    }
}
