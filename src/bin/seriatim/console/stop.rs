//! Stop signals, for the commands that clean up before they end.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for Ctrl-C, `kill`, or the end of the terminal.
pub(crate) async fn stop_signal() -> anyhow::Result<()> {
    let [mut interrupt, mut terminate, mut hangup] =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
