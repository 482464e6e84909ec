//! How a worker is told to stop: gracefully, or at once.

use tokio_util::sync::CancellationToken;

/// Tells a worker to stop. Clones tell the same worker.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    graceful: CancellationToken,
    at_once: CancellationToken,
}

impl Shutdown {
    /// Nothing is told yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stop gracefully: claim nothing more, finish what is in hand within the grace, hold the rest.
    pub fn stop(&self) {
        self.graceful.cancel();
    }

    /// Stop at once: drop what is in hand and hold it; it comes again, with the same ids.
    pub fn stop_at_once(&self) {
        self.graceful.cancel();
        self.at_once.cancel();
    }

    /// Done when a graceful stop was asked for. Cancellation safe.
    pub async fn stopped(&self) {
        self.graceful.cancelled().await;
    }

    /// Done when a stop at once was asked for. Cancellation safe.
    pub async fn stopped_at_once(&self) {
        self.at_once.cancelled().await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.graceful.is_cancelled()
    }
}

impl From<CancellationToken> for Shutdown {
    /// A token that, cancelled, stops the worker gracefully.
    fn from(graceful: CancellationToken) -> Self {
        Self { graceful, at_once: CancellationToken::new() }
    }
}
