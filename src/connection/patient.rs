//! A connection to Redis. Its calls time out only if no byte moves on the connection for some time.
//!
//! The time for a reply depends on its size and on the link. With a fixed time limit for a whole
//! reply, every large reply on a slow link would fail, and would fail again with each repeat. So
//! the connection records when bytes last moved, and a call times out only after a given time
//! without progress. If the process dies, its connection ends; a call that was already sent may
//! still run.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisFuture,
    RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::errors::refused;
use super::watched::{Movement, WatchedStream};

/// A connection that all its clones share. It does not reconnect. It ends when its last clone is
/// dropped.
#[derive(Clone)]
pub struct PatientConnection {
    inner: MultiplexedConnection,
    watch: Patience,
    /// The task that drives the connection. The task ends when the last clone of the connection is
    /// dropped.
    driver: Arc<Driver>,
}

impl PatientConnection {
    /// Opens a connection over any stream, and authenticates. Later calls time out after the time
    /// `patience` without progress. `made_at` is the time at which the attempt began.
    pub(super) async fn over<S>(
        stream: S,
        settings: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
        patience: Duration,
        made_at: Instant,
    ) -> RedisResult<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let progress = Arc::new(Movement::since(made_at));
        let stream = WatchedStream::new(stream, Arc::clone(&progress));
        // The redis crate has its own timeout for a whole reply, 500 ms by default. This setting
        // turns that timeout off.
        let config = config.set_response_timeout(None);
        let (inner, driver) = MultiplexedConnection::new_with_config(settings, stream, config)
            .await
            .map_err(|error| refused(error, progress.beginning()))?;
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Self {
            inner,
            watch: Patience {
                progress,
                patience,
                block: Duration::ZERO,
            },
            driver: Arc::new(driver),
        })
    }

    /// Sets the time for which later commands may block on purpose. It is added to the time without
    /// progress after which a call times out.
    pub fn set_block(&mut self, block: Duration) {
        self.watch.block = block;
    }

    /// Returns the time for which commands may block on purpose.
    pub fn block(&self) -> Duration {
        self.watch.block
    }

    /// Returns whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.driver.0.is_finished()
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Returns the time at which the connection attempt began.
    pub fn made_at(&self) -> Instant {
        self.watch.progress.began_at()
    }
}

impl ConnectionLike for PatientConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.watch.bound(self.inner.send_packed_command(cmd)))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(
            self.watch
                .bound(self.inner.send_packed_commands(pipe, offset, count)),
        )
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}

/// The task that reads from and writes to the connection. Dropping this value ends the task.
pub(super) struct Driver(AbortHandle);

impl Driver {
    /// Closes the connection. Calls that are under way fail.
    pub(super) fn close(&self) {
        self.0.abort();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The time limits of a call.
#[derive(Clone)]
struct Patience {
    progress: Arc<Movement>,
    /// Longest time without progress.
    patience: Duration,
    /// Time for which a command may block on purpose. It is added to `patience`.
    block: Duration,
}

impl Patience {
    /// Waits for the call as long as bytes move on the connection.
    async fn bound<T>(&self, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let mut call = pin!(call);
        let mut until = after(Instant::now(), self.patience.saturating_add(self.block));
        loop {
            if let Ok(answer) = timeout_at(until, call.as_mut()).await {
                return answer;
            }
            let alive_until = after(self.progress.last(), self.patience);
            if alive_until <= until.max(Instant::now()) {
                return Err(timed_out());
            }
            until = alive_until;
        }
    }
}

/// Returns `at + delay`. If the clock cannot represent this time, returns a time 30 years after
/// `at`.
fn after(at: Instant, delay: Duration) -> Instant {
    at.checked_add(delay)
        .unwrap_or_else(|| at + Duration::from_secs(30 * 365 * 24 * 60 * 60))
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
