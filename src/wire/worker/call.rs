//! The calls of a script on a server that may not know it yet.

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, ScriptInvocation, ServerErrorKind, Value};

use crate::failpoints::around;
use crate::wire::lua::Script;

impl Script {
    /// Begins a call that first loads the script if the server does not know it.
    pub(crate) fn invoke(&self) -> ScriptInvocation<'_> {
        self.inner.prepare_invoke()
    }

    /// Calls the script. If the server does not know the script, loads it first.
    ///
    /// Cancellation: a call that was sent may still run.
    pub(crate) async fn call(
        &self,
        conn: &mut impl ConnectionLike,
        cmd: &Cmd,
    ) -> Result<Value, RedisError> {
        match conn
            .req_packed_command(cmd)
            .await
            .and_then(Value::extract_error)
        {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                around!("load", self.inner.load_async(conn)).await?;
                conn.req_packed_command(cmd)
                    .await
                    .and_then(Value::extract_error)
            }
            reply => reply,
        }
    }
}
