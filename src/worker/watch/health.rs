//! The health of the sink, as its results show it.
//!
//! While the sink is unavailable, the process claims nothing more and keeps its batches. It tries
//! the sink with the batch of one slot at a time, and the wait between two tries grows. Only such a
//! try (a *probe*) can show that the sink is back: other deliveries may have begun before the
//! failure.

use std::time::Duration;

use tokio::time::Instant;

use crate::worker::times::growing_wait::GrowingWait;

/// The first wait before an unavailable sink is tried again.
const PROBE_MIN: Duration = Duration::from_millis(100);

/// The state of the sink.
pub(crate) enum Health {
    /// The sink is available.
    Up,
    /// The sink is unavailable since `since`. The sink is tried again at `probe_at`.
    Down {
        probe_at: Instant,
        backoff: GrowingWait,
        probe: Probe,
        since: Instant,
    },
}

/// The state of the try (probe) of an unavailable sink.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Probe {
    /// The next try is not due yet.
    Later,
    /// A try is due. The next batch that can be delivered becomes the try.
    Now,
    /// The batch of this slot is the try. Only its result counts: older deliveries may still be
    /// under way, and may never end.
    Slot(usize),
}

/// The change that a result of the sink caused.
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

    /// Returns whether a try is due and waits for a batch.
    pub(crate) fn wants_batch(&self) -> bool {
        matches!(
            self,
            Self::Down {
                probe: Probe::Now,
                ..
            }
        )
    }

    /// Returns whether the slot's batch may go to the sink now. If a try waits for a batch, this
    /// batch becomes the try.
    pub(crate) fn admits(&mut self, slot: usize) -> bool {
        match self {
            Self::Up => true,
            Self::Down {
                probe: probe @ Probe::Now,
                ..
            } => {
                *probe = Probe::Slot(slot);
                true
            }
            Self::Down { .. } => false,
        }
    }

    /// Returns whether the slot's delivery is the try.
    pub(crate) fn is_probe(&self, slot: usize) -> bool {
        matches!(self, Self::Down { probe: Probe::Slot(tried), .. } if *tried == slot)
    }

    /// Records the sink's result for the slot's delivery.
    pub(crate) fn answered(&mut self, slot: usize, available: bool, probe_max: Duration) -> Change {
        match self {
            Self::Up if available => Change::None,
            Self::Up => {
                let mut backoff = GrowingWait::new(PROBE_MIN, probe_max);
                let now = Instant::now();
                *self = Self::Down {
                    probe_at: now + backoff.delay(),
                    backoff,
                    probe: Probe::Later,
                    since: now,
                };
                Change::WentDown
            }
            Self::Down { probe, .. } if *probe != Probe::Slot(slot) => Change::None,
            Self::Down { .. } if available => {
                *self = Self::Up;
                Change::CameUp
            }
            Self::Down {
                probe_at,
                backoff,
                probe,
                ..
            } => {
                *probe = Probe::Later;
                *probe_at = Instant::now() + backoff.delay();
                Change::None
            }
        }
    }

    /// Records that the slot's delivery has not tried the sink. Another batch becomes the try.
    pub(crate) fn untried(&mut self, slot: usize) {
        if let Self::Down {
            probe_at, probe, ..
        } = self
            && *probe == Probe::Slot(slot)
        {
            *probe = Probe::Later;
            *probe_at = Instant::now() + PROBE_MIN;
        }
    }

    /// Returns the time of the next try; `None` while the sink is available.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        match self {
            Self::Down { probe_at, .. } => Some(*probe_at),
            Self::Up => None,
        }
    }

    /// Returns the time at which kept batches are held for other workers; `None` while the sink is
    /// available.
    pub(crate) fn give_back_at(&self, unavailable_max: Duration) -> Option<Instant> {
        match self {
            Self::Down { since, .. } => Some(*since + unavailable_max),
            Self::Up => None,
        }
    }

    /// Records that the kept batches are held for other workers now. The batches that the process
    /// gets after this are kept for `unavailable_max`, too.
    pub(crate) fn gave_back(&mut self) {
        if let Self::Down { since, .. } = self {
            *since = Instant::now();
        }
    }

    /// Begins a try with the next batch. If a try has no result after `probe_max`, the next try has
    /// another slot, because the object of the first slot may be stuck for its own reasons.
    pub(crate) fn begin_probe(&mut self, probe_max: Duration) {
        if let Self::Down {
            probe_at, probe, ..
        } = self
        {
            *probe = Probe::Now;
            *probe_at = Instant::now() + probe_max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(5);

    /// Regression: deliveries that had begun before the failure succeeded after the failure, and
    /// each success counted as a proof that the sink was back.
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
        assert!(health.admits(3));
        health.untried(3);
        assert!(
            !health.is_up() && !health.wants_batch(),
            "nothing was tried"
        );
        health.begin_probe(MAX);
        assert!(health.admits(4));
        assert_eq!(health.answered(4, true, MAX), Change::CameUp);
        assert!(health.is_up() && health.probe_at().is_none());
    }
}
