//! Being told to end, for the commands that clean up first.

use tokio::signal::unix::{SignalKind, signal};

/// Ctrl-C, `kill`, or the terminal closed.
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
