//! The emitter's own connection: sends transactions. If the emitter waits for replicas, also sends
//! the wait.

use futures_util::future::join;
use redis::aio::ConnectionLike as _;
use redis::{Cmd, Pipeline, RedisResult, Value};

use super::error::Failed;
use crate::connection::{PatientConnection, Wait};

#[derive(Clone)]
pub(super) struct Wire {
    connection: PatientConnection,
    wait: Option<Wait>,
}

impl Wire {
    pub(super) fn new(mut connection: PatientConnection, wait: Option<Wait>) -> Self {
        if let Some(wait) = &wait {
            // Redis reads the commands behind a wait only when this wait is over. Two groups and a
            // lone emit may be under way at once. So a reply may take up to three waits.
            connection.set_block(wait.timeout().saturating_mul(3));
        }
        Self { connection, wait }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Sends a command that only reads.
    pub(super) async fn ask(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        self.connection.req_packed_command(cmd).await
    }

    /// Sends an atomic pipeline once, and returns the reply to its `EXEC`. The second result is the
    /// outcome of the wait for replicas. Ignore the second result if the transaction failed.
    pub(super) async fn transact(
        &mut self,
        pipe: &Pipeline,
    ) -> (RedisResult<Vec<Value>>, Result<(), Failed>) {
        // Offset and count skip the replies to MULTI and to the queued commands (OK, QUEUED) and
        // select the reply to EXEC.
        let (offset, count) = (pipe.len() + 1, 1);
        let Some(wait) = self.wait else {
            return (
                self.connection
                    .req_packed_commands(pipe, offset, count)
                    .await,
                Ok(()),
            );
        };
        // Transaction and wait are written at once: the first poll sends the transaction, and then
        // the wait.
        let mut waiting = self.connection.clone();
        let (reply, waited) = join(
            self.connection.req_packed_commands(pipe, offset, count),
            wait.run(&mut waiting),
        )
        .await;
        let waited = match waited {
            Ok(Ok(())) => Ok(()),
            Ok(Err(too_few)) => Err(Failed::Unreplicated(too_few)),
            Err(error) => Err(Failed::Unknown(error)),
        };
        (reply, waited)
    }
}
