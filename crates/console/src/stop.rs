//! Stop signals, for the commands that clean up before they end.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for a stop signal: Ctrl-C (SIGINT), `kill` (SIGTERM), or the end of the terminal (SIGHUP).
pub async fn stop_signal() -> anyhow::Result<()> {
    let [mut interrupt, mut terminate, mut hangup] = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// The signals that stop a server: SIGTERM and Ctrl-C. SIGHUP is not one of them: it lets a server
/// read its files again.
pub struct StopSignals([tokio::signal::unix::Signal; 2]);

pub fn stop_signals() -> anyhow::Result<StopSignals> {
    Ok(StopSignals([
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    ]))
}

impl StopSignals {
    /// Waits for the next stop signal. If the future is dropped, no signal is lost.
    pub async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}
