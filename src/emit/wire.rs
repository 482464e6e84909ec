//! The emitter's own connection: sends transactions. If the emitter waits for replicas, also sends
//! the wait.

use futures_util::future::join;
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};

use super::error::Failed;
use crate::connection::{PatientConnection, TooFew, Wait};

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

    /// Sends an atomic pipeline once, and returns the replies to `MULTI`, to each command and to
    /// `EXEC`. The second result is the outcome of the wait for replicas: `None` if enough have the
    /// transaction. Ignore the second result if the transaction failed.
    pub(super) async fn transact(
        &mut self,
        pipe: &Pipeline,
    ) -> (RedisResult<Vec<Value>>, Result<Option<TooFew>, Failed>) {
        let (offset, count) = all_replies(pipe);
        let Some(wait) = self.wait else {
            return (
                self.connection
                    .req_packed_commands(pipe, offset, count)
                    .await,
                Ok(None),
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
            Ok(Ok(())) => Ok(None),
            Ok(Err(too_few)) => Ok(Some(too_few)),
            Err(error) => Err(Failed::Unknown(error)),
        };
        (reply, waited)
    }
}

/// Returns offset and count that select all replies to an atomic pipeline: those to MULTI and to the
/// queued commands (OK, QUEUED), and the reply to EXEC.
pub(super) fn all_replies(pipe: &Pipeline) -> (usize, usize) {
    (0, pipe.len() + 2)
}

/// Examines whether the user may send transactions. Returns the refusal if the user lacks the right
/// to `EXEC` or `MULTI`. Without the right to `MULTI`, the commands of an emit would run one by one.
/// Without the right to `EXEC`, a transaction would never end, so `MULTI` is sent only after `EXEC`
/// alone has shown this right.
///
/// # Errors
/// There is no reply, or the server does not know a command.
pub(super) async fn refusal_of_transactions(
    connection: &mut (impl ConnectionLike + ?Sized),
) -> RedisResult<Option<RedisError>> {
    for commands in [&["EXEC"][..], &["MULTI", "EXEC"]] {
        let mut pipe = redis::pipe();
        for command in commands {
            pipe.cmd(command);
        }
        let replies = connection.req_packed_commands(&pipe, 0, pipe.len()).await?;
        let first = replies.into_iter().next().map(Value::extract_error);
        match first.unwrap_or(Ok(Value::Nil)) {
            Err(error) if error.code() == Some("NOPERM") => return Ok(Some(error)),
            // Outside of a transaction, EXEC is an error.
            Err(error) if commands.len() > 1 => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}
