//! What a handler is, and what it can answer.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use async_trait::async_trait;
use serde_core::de::DeserializeOwned;

use super::context::HandlerContext;

/// A type of event: those whose top-level member `type` is [`TYPE`](Self::TYPE), deserialized from
/// the whole event.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Moved {
///     to: String,
/// }
///
/// impl seriatim::sink::EventType for Moved {
///     const TYPE: &'static str = "moved";
/// }
/// ```
pub trait EventType: DeserializeOwned + Send + 'static {
    /// The value of the member `type`.
    const TYPE: &'static str;
}

/// What a handler answers: it has succeeded, or why not. A handler whose result merely *means* a
/// failure, an order that was declined, has succeeded.
pub type HandlerResult = Result<(), Failure>;

/// Why a handler has not succeeded.
///
/// Any [`Error`] becomes a transient failure by `?`; what must not be tried again is told by
/// [`Failure::unrecoverable`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// This handler, again later, with the same event. Handlers that have succeeded do not run
    /// again.
    Transient {
        /// What went wrong; kept with the object while it waits.
        error: String,
        /// Wait this long instead of the retry policy's backoff; it is no attempt more.
        retry_after: Option<Duration>,
    },
    /// No handler of this event again: it goes to the dead letters with its errors.
    Unrecoverable {
        /// What is wrong with it; kept with the dead letter.
        error: String,
    },
}

impl Failure {
    /// This handler, again later.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::Transient { error: error.to_string(), retry_after: None }
    }

    /// This handler, again after this time.
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self::Transient { error: error.to_string(), retry_after: Some(wait) }
    }

    /// No handler of this event again.
    pub fn unrecoverable(error: impl fmt::Display) -> Self {
        Self::Unrecoverable { error: error.to_string() }
    }

    /// The error's text.
    pub fn error(&self) -> &str {
        match self {
            Self::Transient { error, .. } | Self::Unrecoverable { error } => error,
        }
    }
}

/// With the errors that caused it.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::transient(text)
    }
}

/// Does something with events of type `T`. A closure `Fn(T, HandlerContext) -> impl Future<Output =
/// HandlerResult>` is one.
///
/// It is shared by all slots of a worker process and called concurrently, but never twice at once
/// for one object. Its future may be dropped at any await: after its timeout, where the lease is
/// lost, or where the grace of a stop is over. What it did until then may have taken effect, and
/// the event comes again. It must not block its thread; what does belongs into
/// `tokio::task::spawn_blocking`.
#[async_trait]
pub trait Handler<T: Send + 'static>: Send + Sync + 'static {
    /// Handles one event.
    async fn handle(&self, event: T, cx: HandlerContext) -> HandlerResult;

    /// How long this handler may take for one event; nothing: as long as
    /// [`HandlersBuilder::timeout`](super::HandlersBuilder::timeout) says.
    fn timeout(&self) -> Option<Duration> {
        None
    }
}

#[async_trait]
impl<T, H, F> Handler<T> for H
where
    T: Send + 'static,
    H: Fn(T, HandlerContext) -> F + Send + Sync + 'static,
    F: Future<Output = HandlerResult> + Send,
{
    async fn handle(&self, event: T, cx: HandlerContext) -> HandlerResult {
        self(event, cx).await
    }
}

/// A handler whose type of event is forgotten.
#[async_trait]
pub(super) trait AnyHandler: Send + Sync {
    async fn run(&self, cx: HandlerContext) -> HandlerResult;

    fn timeout(&self) -> Option<Duration>;
}

pub(super) struct Typed<T, H>(H, PhantomData<fn() -> T>);

impl<T, H> Typed<T, H> {
    pub(super) fn new(handler: H) -> Self {
        Self(handler, PhantomData)
    }
}

#[async_trait]
impl<T: DeserializeOwned + Send + 'static, H: Handler<T>> AnyHandler for Typed<T, H> {
    async fn run(&self, cx: HandlerContext) -> HandlerResult {
        let event = serde_json::from_slice(cx.payload())
            .map_err(|error| Failure::unrecoverable(format!("the event is not what this handler takes: {error}")))?;
        self.0.handle(event, cx).await
    }

    fn timeout(&self) -> Option<Duration> {
        self.0.timeout()
    }
}
