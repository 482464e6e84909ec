//! Waits for optional times and futures.

use std::future::pending;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

/// Waits until the time; for ever if it is `None`.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Waits for the future; for ever if it is `None`. The future stays in its place.
pub(crate) async fn ready<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
