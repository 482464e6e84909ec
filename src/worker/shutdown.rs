//! Requests to a worker: to stop, gracefully or at once, and to open its sink anew.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// A handle that stops a worker. All clones stop the same worker.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    graceful: CancellationToken,
    at_once: CancellationToken,
    /// The number of requests to open the sink anew.
    reopens: watch::Sender<u64>,
}

impl Shutdown {
    /// Returns a handle on which nothing is requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows the signals of the process. The first SIGTERM or SIGINT stops the worker gracefully,
    /// the second one stops it at once. SIGHUP opens the sink anew.
    ///
    /// From then on none of these signals ends the process by itself. A task of the runtime waits
    /// for the signals. So an event handler that blocks the only thread of the runtime delays the
    /// reaction to signals.
    ///
    /// # Errors
    /// The error of the system if it accepts no handler for a signal.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its IO driver enabled.
    pub fn on_signals() -> io::Result<Self> {
        let (mut terminate, mut interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let mut hangup = signal(SignalKind::hangup())?;
        let shutdown = Self::new();
        let by_signal = shutdown.clone();
        tokio::spawn(async move {
            let mut is_second = false;
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    _ = hangup.recv() => {
                        by_signal.reopen();
                        continue;
                    }
                }
                by_signal.signalled(is_second);
                is_second = true;
            }
        });
        Ok(shutdown)
    }

    /// Stops gracefully at the first signal, also if the program has asked for a graceful stop before.
    fn signalled(&self, is_second: bool) {
        if is_second {
            info!("stopping at once");
            self.stop_at_once();
        } else {
            info!("finishing what is in hand; a second signal stops at once");
            self.stop();
        }
    }

    /// Stops gracefully: the worker claims nothing more, and finishes the events in hand within the
    /// grace. The objects of all other events in hand are held for other workers.
    pub fn stop(&self) {
        self.graceful.cancel();
    }

    /// Stops at once: the worker drops the events in hand, and their objects are held for other
    /// workers. The events come again with the same ids.
    pub fn stop_at_once(&self) {
        self.graceful.cancel();
        self.at_once.cancel();
    }

    /// Opens the files of the sink anew, e.g. after a log rotation: see
    /// [`Sink::reopen`](crate::sink::Sink::reopen).
    pub fn reopen(&self) {
        self.reopens.send_modify(|times| *times += 1);
    }

    /// Waits until a graceful stop is requested. Cancellation safe.
    pub async fn stopped(&self) {
        self.graceful.cancelled().await;
    }

    /// Waits until a stop at once is requested. Cancellation safe.
    pub async fn stopped_at_once(&self) {
        self.at_once.cancelled().await;
    }

    /// Returns whether a stop was requested.
    pub fn is_stopping(&self) -> bool {
        self.graceful.is_cancelled()
    }

    /// Returns a channel that changes with each request to open the sink anew.
    pub(crate) fn reopens(&self) -> watch::Receiver<u64> {
        self.reopens.subscribe()
    }
}

impl From<CancellationToken> for Shutdown {
    /// Returns a handle that stops the worker gracefully when the token is cancelled.
    fn from(graceful: CancellationToken) -> Self {
        Self {
            graceful,
            ..Self::default()
        }
    }
}
