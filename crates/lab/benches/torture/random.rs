//! Random numbers from a seed, so that a run can be repeated.

use std::time::Duration;

pub(crate) use fastrand::Rng as Random;

/// The draws of the harness.
pub(crate) trait Draw {
    /// Draws a number from 0 to below `end`.
    fn below(&mut self, end: u64) -> u64;

    fn ms(&mut self, from: u64, to: u64) -> Duration;

    fn chance(&mut self, percent: u64) -> bool;
}

impl Draw for Random {
    fn below(&mut self, end: u64) -> u64 {
        self.u64(..end.max(1))
    }

    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.u64(from..=to))
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
