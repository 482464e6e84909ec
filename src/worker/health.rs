//! Whether the sink takes events, as far as its answers tell.
//!
//! Once it says that it is unavailable, nothing more is claimed and batches are kept, and it is
//! tried again under backoff with one slot at a time. Only such a try tells that it is back: what
//! other deliveries answer may be as old as the failure.

use std::time::Duration;

use tokio::time::Instant;

use super::growing_wait::GrowingWait;

/// The first wait before an unavailable sink is tried again.
const PROBE_MIN: Duration = Duration::from_millis(100);

/// The state of the sink.
pub(crate) enum Health {
    /// It takes events.
    Up,
    /// It does not. It is tried again at the time given.
    Down { probe_at: Instant, backoff: GrowingWait, probe: Probe, since: Instant },
}

/// How an unavailable sink is tried.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Probe {
    /// Not yet again.
    Later,
    /// With the next batch there is.
    Now,
    /// With the batch of this slot. Other deliveries may be under way from before, and need never
    /// end.
    Slot(usize),
}

/// What an answer of the sink changed.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    None,
    WentDown,
    CameUp,
}

impl Health {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }

    /// Whether a try of the sink waits for a batch.
    pub(crate) fn wants_batch(&self) -> bool {
        matches!(self, Self::Down { probe: Probe::Now, .. })
    }

    /// Whether the slot's batch may go to the sink now; where a try waits for one, this is it.
    pub(crate) fn admits(&mut self, slot: usize) -> bool {
        match self {
            Self::Up => true,
            Self::Down { probe: probe @ Probe::Now, .. } => {
                *probe = Probe::Slot(slot);
                true
            }
            Self::Down { .. } => false,
        }
    }

    /// Takes in an answer of the sink to the slot's delivery.
    pub(crate) fn answered(&mut self, slot: usize, available: bool, probe_max: Duration) -> Change {
        match self {
            Self::Up if available => Change::None,
            Self::Up => {
                let mut backoff = GrowingWait::new(PROBE_MIN, probe_max);
                let now = Instant::now();
                *self = Self::Down { probe_at: now + backoff.delay(), backoff, probe: Probe::Later, since: now };
                Change::WentDown
            }
            Self::Down { probe, .. } if *probe != Probe::Slot(slot) => Change::None,
            Self::Down { .. } if available => {
                *self = Self::Up;
                Change::CameUp
            }
            Self::Down { probe_at, backoff, probe, .. } => {
                *probe = Probe::Later;
                *probe_at = Instant::now() + backoff.delay();
                Change::None
            }
        }
    }

    /// When to try the sink again; nothing while it takes events.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        match self {
            Self::Down { probe_at, .. } => Some(*probe_at),
            Self::Up => None,
        }
    }

    /// When batches that are kept go to other workers; nothing while it takes events.
    pub(crate) fn give_back_at(&self, unavailable_max: Duration) -> Option<Instant> {
        match self {
            Self::Down { since, .. } => Some(*since + unavailable_max),
            Self::Up => None,
        }
    }

    /// They go now; what is claimed for tries is kept for as long again.
    pub(crate) fn gave_back(&mut self) {
        if let Self::Down { since, .. } = self {
            *since = Instant::now();
        }
    }

    /// It is time to try the sink, with the next batch there is. A try that has no answer after
    /// `probe_max` is followed by one with another slot: one object may be stuck for reasons of its
    /// own.
    pub(crate) fn begin_probe(&mut self, probe_max: Duration) {
        if let Self::Down { probe_at, probe, .. } = self {
            *probe = Probe::Now;
            *probe_at = Instant::now() + probe_max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(5);

    /// Deliveries that had begun before the failure ended well after it, and each of them told that
    /// the sink was back.
    #[test]
    fn only_a_try_tells_that_the_sink_is_back() {
        let mut health = Health::Up;
        assert_eq!(health.answered(0, false, MAX), Change::WentDown);
        assert!(!health.admits(1) && !health.wants_batch());
        assert_eq!(health.answered(2, true, MAX), Change::None);
        health.begin_probe(MAX);
        assert!(health.wants_batch() && health.admits(1) && !health.admits(3));
        assert_eq!(health.answered(3, true, MAX), Change::None);
        assert_eq!(health.answered(1, false, MAX), Change::None);
        assert!(!health.wants_batch() && !health.admits(1));
        health.begin_probe(MAX);
        assert!(health.admits(4));
        assert_eq!(health.answered(4, true, MAX), Change::CameUp);
        assert!(health.is_up() && health.probe_at().is_none());
    }
}
