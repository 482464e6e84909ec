//! Growing waits, with jitter.

use std::time::Duration;

/// Waits that double up to a limit.
pub(crate) struct GrowingWait {
    next: Duration,
    max: Duration,
}

impl GrowingWait {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { next: min, max }
    }

    /// Returns the next wait with jitter. Doubles the wait after it, up to the limit.
    pub(crate) fn delay(&mut self) -> Duration {
        let delay = jitter(self.next);
        self.next = (self.next * 2).min(self.max);
        delay
    }

    pub(crate) fn wait(&mut self) -> impl Future<Output = ()> + use<> {
        tokio::time::sleep(self.delay())
    }
}

/// Returns a random time between half of `delay` and `delay`.
pub(crate) fn jitter(delay: Duration) -> Duration {
    spread(delay, 0.5, 1.0)
}

/// Returns a random time between two parts of `delay`, given as factors.
pub(crate) fn spread(delay: Duration, from: f64, to: f64) -> Duration {
    let random = uuid::Uuid::new_v4().as_u64_pair().0;
    delay.mul_f64(from + (to - from) * ((random >> 11) as f64 / (1u64 << 53) as f64))
}
