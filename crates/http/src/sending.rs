//! The body of a request, which tells when the request is sent.
//!
//! The HTTP client takes the body from here as soon as there is a connection, and over HTTP/2 as
//! soon as the receiver takes one more request on it. Before that, the request waits inside this
//! process, and the time of this wait is not part of the time limit of the request. As long as the
//! body is here, the request can be taken back: the receiver then gets no complete request.
//!
//! The client drops the body when it has written the body to the connection, or over HTTP/2 to an
//! open stream. Then the next request of the lane has its turn.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::streams::Turn;

/// The body of one request.
#[derive(Debug)]
pub(super) struct Sending {
    bytes: Bytes,
    /// Tells that the request is sent; `None` after this. If nobody waits for it any more, the
    /// request is taken back.
    sent: Option<oneshot::Sender<()>>,
    /// The time after which the request is not sent any more.
    ends: Option<Instant>,
    /// The turn of the request in its lane.
    _turn: Turn,
}

/// Tells when the request is sent. If this value is dropped before that, the request is not sent.
pub(super) struct Sent(oneshot::Receiver<()>);

impl Sending {
    pub(super) fn new(bytes: Bytes, ends: Option<Instant>, turn: Turn) -> (Self, Sent) {
        let (sender, sent) = oneshot::channel();
        (
            Self {
                bytes,
                sent: Some(sender),
                ends,
                _turn: turn,
            },
            Sent(sent),
        )
    }
}

impl Sent {
    /// Waits until the request is sent. Returns false if the client has dropped its body, because it
    /// failed before. Cancellation safe.
    pub(super) async fn wait(&mut self) -> bool {
        (&mut self.0).await.is_ok()
    }

    /// Takes the request back. Returns false if it is sent already.
    pub(super) fn take_back(&mut self) -> bool {
        self.0.close();
        self.0.try_recv().is_err()
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let is_late = self.ends.is_some_and(|ends| Instant::now() >= ends);
        if self
            .sent
            .take()
            .is_some_and(|sent| is_late || sent.send(()).is_err())
        {
            self.bytes = Bytes::new();
            return Poll::Ready(Some(Err(io::Error::other("the request was taken back"))));
        }
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent.is_none() && self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn poll(body: &mut Sending) -> Option<io::Result<Bytes>> {
        let polled = Pin::new(body).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
        let Poll::Ready(frame) = polled else {
            panic!("it is ready")
        };
        frame.map(|frame| frame.map(|frame| frame.into_data().expect("data")))
    }

    #[test]
    fn a_request_is_sent_or_taken_back() {
        let (mut body, mut sent) = Sending::new(Bytes::from_static(b"1"), None, Turn::default());
        assert!(sent.wait().now_or_never().is_none() && !body.is_end_stream());
        assert_eq!(
            poll(&mut body).and_then(Result::ok),
            Some(Bytes::from_static(b"1"))
        );
        assert!(body.is_end_stream() && poll(&mut body).is_none());
        assert!(!sent.take_back());
        let (mut body, mut sent) = Sending::new(Bytes::from_static(b"1"), None, Turn::default());
        assert!(sent.take_back());
        assert!(poll(&mut body).is_some_and(|frame| frame.is_err()));
        let (mut body, sent) = Sending::new(Bytes::from_static(b"1"), None, Turn::default());
        drop(sent);
        assert!(poll(&mut body).is_some_and(|frame| frame.is_err()));
        let (mut body, mut sent) = Sending::new(
            Bytes::from_static(b"1"),
            Some(Instant::now()),
            Turn::default(),
        );
        assert!(poll(&mut body).is_some_and(|frame| frame.is_err()));
        assert_eq!(sent.wait().now_or_never(), Some(false));
    }
}
