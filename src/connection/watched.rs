//! The stream of a connection. It records progress, and lets the last words of the peer be read.
//!
//! A server that refuses a connection writes the reason and closes: `-ERR max number of clients
//! reached`, or `-DENIED` in protected mode. At that time the client is writing its first commands.
//! If the error of this write ended the connection, nobody would read the reason. So a failed write
//! does not end the connection: its bytes are dropped, and reads go on until the peer's bytes are
//! used up.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Number of bytes at the beginning of a connection that are kept.
const BEGINNING_BYTES: usize = 1024;
/// Longest wait for bytes of the peer after a write has failed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The time at which bytes last moved, and the first bytes that were received.
pub(super) struct Movement {
    since: Instant,
    /// Time of the last movement, in microseconds after `since`.
    moved_us: AtomicU64,
    /// At most [`BEGINNING_BYTES`].
    beginning: Mutex<Vec<u8>>,
}

impl Movement {
    pub(super) fn since(since: Instant) -> Self {
        Self {
            since,
            moved_us: AtomicU64::new(0),
            beginning: Mutex::default(),
        }
    }

    /// Returns the time at which the connection attempt began.
    pub(super) fn began_at(&self) -> Instant {
        self.since
    }

    /// Returns the time at which bytes last moved.
    pub(super) fn last(&self) -> Instant {
        self.since + Duration::from_micros(self.moved_us.load(Ordering::Relaxed))
    }

    /// Returns the first bytes that were received.
    pub(super) fn beginning(&self) -> Vec<u8> {
        self.beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn moved(&self) {
        let us = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved_us.store(us, Ordering::Relaxed);
    }

    /// Keeps the first bytes. Returns the number of bytes that may still come.
    fn keep(&self, bytes: &[u8]) -> usize {
        let mut beginning = self
            .beginning
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let room = BEGINNING_BYTES.saturating_sub(beginning.len());
        beginning.extend_from_slice(&bytes[..bytes.len().min(room)]);
        BEGINNING_BYTES.saturating_sub(beginning.len())
    }
}

/// A stream that records progress. Received bytes are progress. Sent bytes are progress only if the
/// socket takes them after it was full. Bytes that an empty socket takes do not count, because the
/// kernel accepts them even if the peer is dead.
pub(super) struct WatchedStream<S> {
    stream: S,
    progress: Arc<Movement>,
    /// Whether the socket was full at the last write and took no more bytes.
    full: bool,
    /// Number of bytes of the beginning that are still to be kept.
    to_keep: usize,
    broken: Option<Broken>,
}

/// The state after a write has failed.
struct Broken {
    /// The error of the write; taken when it is returned.
    error: Option<io::Error>,
    until: Pin<Box<Sleep>>,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(stream: S, progress: Arc<Movement>) -> Self {
        Self {
            stream,
            progress,
            full: false,
            to_keep: BEGINNING_BYTES,
            broken: None,
        }
    }

    /// Records a failed write. From now on written bytes are dropped.
    fn break_off(&mut self, error: io::Error, cx: &Context<'_>) {
        self.broken = Some(Broken {
            error: Some(error),
            until: Box::pin(sleep(LAST_WORDS)),
        });
        // The reader waits for bytes. It must also wait for the end of `until`.
        cx.waker().wake_by_ref();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Some(broken) = &mut this.broken {
            let is_over = match &read {
                Poll::Ready(read) => read.is_err() || buf.filled().len() == before,
                Poll::Pending => broken.until.as_mut().poll(cx).is_ready(),
            };
            if is_over {
                return Poll::Ready(Err(broken
                    .error
                    .take()
                    .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())));
            }
        }
        ready!(read)?;
        let received = buf.filled().get(before..).unwrap_or_default();
        if !received.is_empty() {
            this.progress.moved();
            if this.to_keep > 0 {
                this.to_keep = this.progress.keep(received);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, bytes) else {
            self.full = true;
            return Poll::Pending;
        };
        match written {
            Ok(written) => {
                if std::mem::take(&mut self.full) {
                    self.progress.moved();
                }
                Poll::Ready(Ok(written))
            }
            Err(error) => {
                self.break_off(error, cx);
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken.is_none()
            && let Err(error) = ready!(Pin::new(&mut self.stream).poll_flush(cx))
        {
            self.break_off(error, cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    fn watched(stream: UnixStream) -> WatchedStream<UnixStream> {
        WatchedStream::new(stream, Arc::new(Movement::since(Instant::now())))
    }

    /// Story: Redis refused a connection with the reason and closed it. The client was just writing
    /// and got "Broken pipe", so it never read the reason.
    #[tokio::test]
    async fn the_last_words_of_a_peer_are_read_after_a_failed_write() {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        there.write_all(b"-ERR full\r\n").await.expect("written");
        drop(there);
        let mut here = watched(here);
        here.write_all(b"PING\r\n")
            .await
            .expect("the write is taken");
        here.flush().await.expect("the flush is taken");
        let mut words = [0; 64];
        let count = here.read(&mut words).await.expect("the words");
        assert_eq!(&words[..count], b"-ERR full\r\n");
        assert_eq!(here.progress.beginning(), b"-ERR full\r\n");
        let error = here
            .read(&mut words)
            .await
            .expect_err("the error of the write");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    /// The peer takes no more bytes, sends none, and does not close.
    #[tokio::test]
    async fn a_failed_write_ends_the_connection_in_bounded_time() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let there = there.into_std().expect("a socket");
        there.shutdown(std::net::Shutdown::Read).expect("shut down");
        let mut here = watched(here);
        here.write_all(b"PING\r\n")
            .await
            .expect("the write is taken");
        let error = here
            .read(&mut [0; 8])
            .await
            .expect_err("the error of the write");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        drop(there);
    }
}
