//! Wait: an idle process blocks on the markers, for one idle slot, on a connection of its own.
//!
//! The pop moves a marker into the slot's `W:object` in the same step. If its answer is lost, or the process dies, the marker is there all the same:
//! the next advance, renewal or sweep finds it.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Connection;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{RedisError, Value};
use tracing::{debug, warn};

use super::config::WorkerConfig;
use super::connect::Redis;
use super::error::WorkerError;
use crate::failpoints::around;

/// While Redis is out of memory and cannot move markers for a pop, advance looks itself, this often.
const OOM_WAIT: Duration = Duration::from_millis(100);

/// Waits until a marker was moved for `slot`, or the block time is over. Answers the connection for the next wait;
/// nothing where it failed.
///
/// Dropping the future closes the connection, and with it the pop; a marker may have been moved before.
pub(crate) async fn wait(
    redis: Redis,
    conn: Option<MultiplexedConnection>,
    from: String,
    to: String,
    config: Arc<WorkerConfig>,
) -> Result<Option<MultiplexedConnection>, WorkerError> {
    let mut conn = match conn {
        Some(conn) => conn,
        // Taken out of the pool: with a pop under way it must never be used for anything else.
        None => Connection::take(redis.reconnect().await?),
    };
    // The server answers after the block time at the latest; what is longer is a lost connection.
    conn.set_response_timeout(config.block + config.response_timeout);
    match around!("pop", pop(&mut conn, &from, &to, config.block)).await {
        Ok(moved) => {
            debug!(moved, "claim: pop");
            Ok(Some(conn))
        }
        Err(error) if error.code() == Some("OOM") => {
            tokio::time::sleep(OOM_WAIT).await;
            Ok(Some(conn))
        }
        Err(error) => {
            warn!(%error, "claim: the wait for markers failed, trying again");
            Ok(None)
        }
    }
}

async fn pop(conn: &mut MultiplexedConnection, from: &str, to: &str, block: Duration) -> Result<bool, RedisError> {
    let mut cmd = redis::cmd("BLMOVE");
    cmd.arg(from).arg(to).arg("RIGHT").arg("LEFT").arg(block.as_secs_f64());
    let moved = conn.req_packed_command(&cmd).await.and_then(Value::extract_error)?;
    Ok(moved != Value::Nil)
}
