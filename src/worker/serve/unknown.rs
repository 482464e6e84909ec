//! Events that this process does not know, e.g. because of their type. They wait for a process that
//! knows them.
//!
//! The ledger (`OBJ:event.handled`) records the time at which a process first met the event without
//! knowing it. So the time survives restarts and takeovers, and the step that ends the event
//! deletes it. The waits grow with this time. So a process meets the same unknown event about ten
//! times in the first minute, and then about once a minute.

use std::time::{Duration, SystemTime};

use crate::sink::{Context, With};
use crate::worker::times::growing_wait::jitter;

/// The first part of the ledger's field. The time in ms since 1970 follows.
const FIELD: &str = "unknown:";
/// The shortest and the longest wait of an object between two tries.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns how long the event has waited since a process first met it without knowing it. Records
/// the present time if no process has met it before. Returns 0 if the ledger has no time: then the
/// event waits longer, but is not lost.
pub(in crate::worker) async fn waited(cx: &Context, id: u64) -> Duration {
    let Some(ledger) = &cx.ledger else {
        return Duration::ZERO;
    };
    let now_ms = SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let Ok(known) = ledger.read().await else {
        return Duration::ZERO;
    };
    let met = known
        .finished
        .keys()
        .filter_map(|field| field.strip_prefix(FIELD)?.parse::<u64>().ok())
        .min();
    match met.filter(|_| known.id == id) {
        // The clocks of two processes may differ.
        Some(met) => Duration::from_millis(now_ms.saturating_sub(met)),
        None => {
            // Without the record the wait begins anew.
            let _ = ledger
                .write(id, &format!("{FIELD}{now_ms}"), With::default())
                .await;
            Duration::ZERO
        }
    }
}

/// Returns the wait until the next try of an event that has waited for this time.
pub(in crate::worker) fn wait(waited: Duration) -> Duration {
    jitter((waited / 4).clamp(WAIT_MIN, WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that a process meets an unknown event rarely: about 20 times in the first minute, and
    /// later at most twice a minute.
    #[test]
    fn an_unknown_event_comes_rarely() {
        let (mut waited, mut met) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(60) {
            waited += wait(waited);
            met += 1;
        }
        assert!((12..=40).contains(&met), "{met}");
        let later = wait(Duration::from_secs(86_400));
        assert!(later >= WAIT_MAX / 2 && later <= WAIT_MAX, "{later:?}");
    }
}
