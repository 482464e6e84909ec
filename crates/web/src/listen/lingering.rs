//! A connection that continues to read for a moment after the server has sent its last answer.
//!
//! If the server refuses a request before it has read the whole body, the client still sends the
//! rest of the body. If the server closed the connection at once, the system would reset it, and
//! the client could not read the answer.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The longest time of this further reading. `BYTES_MAX`: the most bytes that are then read.
const TIME_MAX: Duration = Duration::from_secs(1);
const BYTES_MAX: usize = 64 << 20;

pub(super) struct Lingering<S> {
    stream: S,
    /// The number of bytes that may still be read, and the time at which the reading ends. It is
    /// set when the last answer is sent.
    ending: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> Lingering<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            ending: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Tells the client that no more answers come. Then reads until the client also closes the
    /// connection, or a limit is reached.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let (left, until) = match &mut this.ending {
            Some(ending) => ending,
            none => {
                ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
                none.insert((BYTES_MAX, Box::pin(sleep(TIME_MAX))))
            }
        };
        let mut bytes = [0; 16 * 1024];
        while *left > 0 && until.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {
                    *left = left.saturating_sub(buf.filled().len())
                }
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
