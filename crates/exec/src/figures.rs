//! The figures of a sink: its programs, and what they have done since its start.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The figures of a sink. A read is not a snapshot of one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// The number of programs that the sink keeps.
    pub programs: usize,
    /// The programs that run and have said hello.
    pub ready: usize,
    /// The batches that programs have.
    pub batches: usize,
    /// The starts of programs.
    pub starts: u64,
    /// The programs that ended or were killed with a batch in hand.
    pub crashes: u64,
}

/// The counts of all keepers of a sink.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    ready: AtomicUsize,
    batches: AtomicUsize,
    starts: AtomicU64,
    crashes: AtomicU64,
    /// Wakes those who wait for a ready program.
    has_changed: Notify,
}

impl Counts {
    /// Waits until a program is ready.
    pub(crate) async fn until_ready(&self) {
        loop {
            let changed = self.has_changed.notified();
            if self.ready.load(Ordering::Relaxed) > 0 {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn started(&self) {
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn crashed(&self) {
        self.crashes.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes the counts of a keeper from `before` to `now`: whether its program is ready, and the
    /// batches that it has.
    pub(crate) fn change(&self, before: (bool, usize), now: (bool, usize)) {
        for (count, before, now) in [
            (&self.ready, usize::from(before.0), usize::from(now.0)),
            (&self.batches, before.1, now.1),
        ] {
            count.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
        if before.0 != now.0 {
            self.has_changed.notify_waiters();
        }
    }

    pub(crate) fn read(&self, programs: usize) -> Figures {
        Figures {
            programs,
            ready: self.ready.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            starts: self.starts.load(Ordering::Relaxed),
            crashes: self.crashes.load(Ordering::Relaxed),
        }
    }
}
