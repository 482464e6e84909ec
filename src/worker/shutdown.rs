//! How a worker is told to stop, gracefully or at once, and to open its sink anew.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Tells a worker to stop. Clones tell the same worker.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    graceful: CancellationToken,
    at_once: CancellationToken,
    /// How often the sink is to be opened anew.
    reopens: watch::Sender<u64>,
}

impl Shutdown {
    /// Nothing is told yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows the signals of the process: SIGTERM and SIGINT stop gracefully, a second one stops
    /// at once, SIGHUP opens the sink anew.
    ///
    /// From then on none of these signals ends the process by itself. A task of the runtime waits
    /// for them, so a handler that blocks the only thread of its runtime also delays them.
    ///
    /// # Errors
    /// Returns the error of the system if it accepts no handler for a signal.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its IO driver enabled.
    pub fn on_signals() -> io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hangup = signal(SignalKind::hangup())?;
        let shutdown = Self::new();
        let told = shutdown.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => told.signalled(),
                    _ = interrupt.recv() => told.signalled(),
                    _ = hangup.recv() => told.reopen(),
                }
            }
        });
        Ok(shutdown)
    }

    fn signalled(&self) {
        if self.is_stopping() {
            info!("stopping at once");
            self.stop_at_once();
        } else {
            info!("finishing what is in hand; a second signal stops at once");
            self.stop();
        }
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

    /// Open anew what the sink has open, e.g. after a rotation of its file: see
    /// [`Sink::reopen`](crate::sink::Sink::reopen).
    pub fn reopen(&self) {
        self.reopens.send_modify(|times| *times += 1);
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

    /// Changes with each request to open the sink anew.
    pub(crate) fn reopens(&self) -> watch::Receiver<u64> {
        self.reopens.subscribe()
    }
}

impl From<CancellationToken> for Shutdown {
    /// A token that, cancelled, stops the worker gracefully.
    fn from(graceful: CancellationToken) -> Self {
        Self { graceful, ..Self::default() }
    }
}
