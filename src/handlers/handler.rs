//! The trait of a handler.

use std::marker::PhantomData;
use std::time::Duration;

use async_trait::async_trait;
use serde_core::de::DeserializeOwned;

use super::context::HandlerContext;
use super::failure::{Failure, HandlerResult};

/// A type of events. It stands for all events whose top-level member `type` is
/// [`TYPE`](Self::TYPE). The whole event is deserialized into a value of this type.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Moved {
///     to: String,
/// }
///
/// impl seriatim::handlers::EventType for Moved {
///     const TYPE: &'static str = "moved";
/// }
/// ```
pub trait EventType: DeserializeOwned + Send + 'static {
    /// The value of the member `type`.
    const TYPE: &'static str;
}

/// Handles events of type `T`. A closure `Fn(T, HandlerContext) -> impl Future<Output =
/// HandlerResult>` is a handler.
///
/// All slots of a worker process share the handler. It is called concurrently, but never twice at
/// once for one object. It must not block its thread: use `tokio::task::spawn_blocking` for work
/// that blocks.
///
/// Cancellation: the handler's future may be dropped at any await, after its timeout, if the lease
/// is lost, or when the grace of a stop is over. Its effects up to that point may stay, and the
/// event comes again.
#[async_trait]
pub trait Handler<T: Send + 'static>: Send + Sync + 'static {
    /// Handles one event.
    async fn handle(&self, event: T, cx: HandlerContext) -> HandlerResult;

    /// Returns this handler's timeout for one event. `None` (the default) means the value of
    /// [`HandlersBuilder::timeout`](super::HandlersBuilder::timeout).
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

/// A handler as a trait object, without its type parameter.
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
        let event = serde_json::from_slice(cx.payload()).map_err(|error| {
            Failure::unrecoverable(format!(
                "the event does not fit the type of this handler: {error}"
            ))
        })?;
        self.0.handle(event, cx).await
    }

    fn timeout(&self) -> Option<Duration> {
        self.0.timeout()
    }
}
