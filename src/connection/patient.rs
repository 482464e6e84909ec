//! A connection to Redis. Its calls time out only if no byte moves on the connection for some time.
//!
//! The time for a reply depends on its size and on the link. With a fixed time limit for a whole
//! reply, every large reply on a slow link would fail, and would fail again with each repeat. So
//! the connection records when bytes last moved, and a call times out only after a given time
//! without progress. If the process dies, its connection ends; a call that was already sent may
//! still run.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisFuture, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

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
        let progress = Arc::new(Movement { since: made_at, moved_us: AtomicU64::new(0) });
        let stream = WatchedStream { stream, progress: Arc::clone(&progress), full: false };
        // The redis crate has its own timeout for a whole reply, 500 ms by default. This setting
        // turns that timeout off.
        let config = config.set_response_timeout(None);
        let (inner, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Self { inner, watch: Patience { progress, patience, block: Duration::ZERO }, driver: Arc::new(driver) })
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
        self.watch.progress.since
    }
}

impl ConnectionLike for PatientConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.watch.bound(self.inner.send_packed_command(cmd)))
    }

    fn req_packed_commands<'a>(&'a mut self, pipe: &'a Pipeline, offset: usize, count: usize) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(self.watch.bound(self.inner.send_packed_commands(pipe, offset, count)))
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
    at.checked_add(delay).unwrap_or_else(|| at + Duration::from_secs(30 * 365 * 24 * 60 * 60))
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// The time at which bytes last moved.
struct Movement {
    since: Instant,
    /// Time of the last movement, in microseconds after `since`.
    moved_us: AtomicU64,
}

impl Movement {
    fn moved(&self) {
        let us = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved_us.store(us, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.since + Duration::from_micros(self.moved_us.load(Ordering::Relaxed))
    }
}

/// A stream that records progress. Received bytes are progress. Sent bytes are progress only if the
/// socket takes them after it was full. Bytes that an empty socket takes do not count, because the
/// kernel accepts them even if the peer is dead.
struct WatchedStream<S> {
    stream: S,
    progress: Arc<Movement>,
    /// Whether the socket was full at the last write and took no more bytes.
    full: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.progress.moved();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) else {
            self.full = true;
            return Poll::Pending;
        };
        if std::mem::take(&mut self.full) && written.is_ok() {
            self.progress.moved();
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
