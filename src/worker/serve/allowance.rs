//! The allowance: the most bytes that a reply of advance may have.
//!
//! If a link is too slow for a reply, it may still manage a smaller one. So each call that fails
//! with its connection halves the allowance. Full replies double it again, up to the setting. A
//! batch has at least one event, even if this event is larger than the allowance.

/// The number of bytes below which failures do not lower the allowance.
const BYTES_MIN: usize = 64 * 1024;
/// The number of full replies in a row that double the allowance.
const FULL_MAX: u32 = 4;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    bytes: usize,
    max: usize,
    /// The number of full replies since the allowance last changed.
    full: u32,
}

impl Allowance {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            bytes: max,
            max,
            full: 0,
        }
    }

    /// Returns the most bytes per reply.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the allowance is below the setting `reply_bytes`.
    pub(crate) fn is_reduced(&self) -> bool {
        self.bytes < self.max
    }

    /// Records a call that failed with its connection. Returns whether the allowance became
    /// smaller.
    pub(crate) fn failed(&mut self) -> bool {
        let before = self.bytes;
        (self.bytes, self.full) = ((before / 2).max(BYTES_MIN.min(self.max)), 0);
        self.bytes < before
    }

    /// Records a reply of this size. A small reply does not prove that a large one would arrive, so
    /// it does not count.
    pub(crate) fn came(&mut self, bytes: usize) {
        if bytes < self.bytes / 2 {
            return;
        }
        self.full += 1;
        if self.full == FULL_MAX {
            self.bytes = self.bytes.saturating_mul(2).min(self.max);
            self.full = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shrinks_with_failures_and_grows_with_full_replies() {
        let max = 8 << 20;
        let mut allowance = Allowance::new(max);
        assert!(!allowance.is_reduced());
        let shrunk = std::iter::from_fn(|| allowance.failed().then(|| allowance.bytes() >> 10))
            .collect::<Vec<_>>();
        assert_eq!(shrunk, [4096, 2048, 1024, 512, 256, 128, 64]);
        allowance.came(1000);
        for doubled in 1..=7 {
            (0..FULL_MAX).for_each(|_| allowance.came(allowance.bytes() / 2));
            assert_eq!(allowance.bytes(), BYTES_MIN << doubled);
        }
        (0..100).for_each(|_| allowance.came(max));
        assert!(!allowance.is_reduced() && allowance.bytes() == max);
    }

    #[test]
    fn a_setting_below_the_floor_stays() {
        let mut allowance = Allowance::new(1000);
        assert!(!allowance.failed() && allowance.bytes() == 1000);
    }
}
