//! Counts of values by range. The values are sizes and times that a worker measures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of times, in microseconds: 100 µs times powers of 2.5, up to 93 s.
pub(super) const TIMES_US: [u64; 16] = [
    100, 250, 625, 1_563, 3_906, 9_766, 24_414, 61_035, 152_588, 381_470, 953_674, 2_384_186,
    5_960_464, 14_901_161, 37_252_903, 93_132_257,
];
/// The upper bounds of numbers of events: powers of 2, up to the largest batch.
pub(super) const EVENTS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// The upper bounds of numbers of attempts.
pub(super) const ATTEMPTS: [u64; 8] = [1, 2, 3, 5, 10, 20, 50, 100];

/// The number of values in each of some ranges.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// The number of values in each range. The last number is for values above all bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Adds a value `times` times.
    pub(super) fn add(&self, value: u64, times: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(times, Ordering::Relaxed);
        self.sum
            .fetch_add(value.saturating_mul(times), Ordering::Relaxed);
    }

    pub(super) fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), 1);
    }

    /// Returns the counts so far. `per_unit`: the number of units of the histogram in one unit of
    /// the result, for example 1e6 for µs and s.
    pub(super) fn look(&self, per_unit: f64) -> Distribution {
        Distribution {
            bounds: self
                .bounds
                .iter()
                .map(|bound| *bound as f64 / per_unit)
                .collect(),
            counts: self
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect(),
            sum: self.sum.load(Ordering::Relaxed) as f64 / per_unit,
        }
    }
}

/// The number of values in each of some ranges, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Distribution {
    /// The upper bounds of the ranges, in ascending order. A range includes its upper bound.
    pub bounds: Vec<f64>,
    /// The number of values in each range, and last the number above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: f64,
}

impl Distribution {
    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the upper bound of the range in which the quantile `part` (e.g. 0.99) lies. Returns
    /// the highest bound if the quantile is above all bounds; `None` if there are no values.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        })?;
        self.bounds.get(at).or(self.bounds.last()).copied()
    }

    /// Returns the sum of these distributions, which must have the same ranges.
    pub(super) fn sum<const N: usize>(all: [&Self; N]) -> Self {
        let mut sum = all
            .first()
            .map_or_else(Self::default, |first| (*first).clone());
        for more in all.iter().skip(1) {
            for (count, more) in sum.counts.iter_mut().zip(&more.counts) {
                *count += more;
            }
            sum.sum += more.sum;
        }
        sum
    }

    /// Returns the distribution of the values that were added after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self
            .counts
            .iter()
            .zip(&earlier.counts)
            .map(|(now, then)| now.saturating_sub(*then))
            .collect();
        Self {
            bounds: self.bounds.clone(),
            counts,
            sum: self.sum - earlier.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_between_their_bounds() {
        let histogram = Histogram::new(&EVENTS);
        for value in [1, 2, 3, 4, 1024, 1025] {
            histogram.add(value, 1);
        }
        histogram.add(5, 4);
        let seen = histogram.look(1.0);
        assert_eq!(seen.counts, [1, 1, 2, 4, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((seen.count(), seen.sum), (10, 2079.0));
        assert_eq!(
            [0.0, 0.1, 0.5, 0.8, 0.9, 1.0].map(|part| seen.quantile(part)),
            [1.0, 1.0, 8.0, 8.0, 1024.0, 1024.0].map(Some)
        );
        assert_eq!(Histogram::new(&EVENTS).look(1.0).quantile(0.5), None);
        histogram.add(1, 2);
        let later = histogram.look(1.0).since(&seen);
        assert_eq!((later.count(), later.counts[0], later.sum), (2, 2, 2.0));
    }

    #[test]
    fn times_are_shown_in_seconds() {
        let histogram = Histogram::new(&TIMES_US);
        histogram.add_time(Duration::from_micros(100));
        histogram.add_time(Duration::from_secs(1000));
        let seen = histogram.look(1e6);
        assert_eq!((seen.counts[0], seen.counts[16]), (1, 1));
        assert!(
            (seen.sum - 1000.0001).abs() < 1e-6 && (seen.bounds[0] - 0.0001).abs() < 1e-12,
            "{seen:?}"
        );
    }
}
