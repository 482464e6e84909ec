//! The rate at which a receiver gets requests again after it has asked to be left alone.
//!
//! The rate begins low and doubles each second (*slow start*), up to half of the rate at which the
//! receiver asked. From there on it grows by a tenth each second, until it is so high that it does
//! not matter any more.

use std::time::Duration;

use tokio::time::Instant;

/// The first rate, in requests per second.
const RATE_FIRST: f64 = 10.0;
/// The rate from which on requests have no limit any more.
const RATE_MAX: f64 = 10_000.0;
/// Interval at which the rate grows.
const GROWS_EVERY: Duration = Duration::from_secs(1);
/// Longest time whose unused turns are made up for.
const BURST: Duration = Duration::from_millis(50);
/// Maximum number of seconds for which [`Pace::wait_behind`] looks ahead.
const AHEAD_MAX: u32 = 60;

/// The growing rate of one receiver.
#[derive(Debug)]
pub(super) struct Pace {
    /// Requests per second.
    rate: f64,
    /// The rate up to which the rate doubles.
    threshold: f64,
    grows_at: Instant,
    /// The time of the next turn.
    next: Instant,
}

impl Pace {
    /// Begins at `at`. `before`: the requests per second before the receiver asked.
    pub(super) fn begin(at: Instant, before: f64) -> Self {
        Self {
            rate: RATE_FIRST,
            threshold: (before / 2.0).max(RATE_FIRST),
            grows_at: at + GROWS_EVERY,
            next: at,
        }
    }

    /// Begins anew at `at`, with the threshold of this pace.
    pub(super) fn again(&self, at: Instant) -> Self {
        Self::begin(at, self.threshold * 2.0)
    }

    /// Returns whether requests have no limit any more.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        while now >= self.grows_at && self.rate < RATE_MAX {
            self.rate = grown(self.rate, self.threshold);
            self.grows_at += GROWS_EVERY;
        }
        self.rate >= RATE_MAX
    }

    /// Takes the next turn if it comes within `patience`, and returns the wait until this turn.
    pub(super) fn turn(&mut self, now: Instant, patience: Duration) -> Option<Duration> {
        let turn = self.next.max(now.checked_sub(BURST).unwrap_or(now));
        let wait = turn.saturating_duration_since(now);
        if wait > patience {
            return None;
        }
        self.next = turn + Duration::from_secs_f64(1.0 / self.rate);
        Some(wait)
    }

    /// Returns about the wait until this number of other requests have had their turns.
    pub(super) fn wait_behind(&self, requests: u32) -> Duration {
        let (mut ahead, mut rate) = (f64::from(requests), self.rate);
        for second in 0..AHEAD_MAX {
            if ahead < rate {
                return Duration::from_secs_f64(f64::from(second) + ahead / rate);
            }
            ahead -= rate;
            rate = grown(rate, self.threshold);
        }
        Duration::from_secs(AHEAD_MAX.into())
    }
}

fn grown(rate: f64, threshold: f64) -> f64 {
    if rate < threshold {
        (rate * 2.0).min(threshold)
    } else {
        rate * 1.1
    }
}

/// Measures the requests per second to a receiver.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// The beginning of the present second.
    began: Option<Instant>,
    count: u32,
    /// The number of requests in the second before.
    before: u32,
}

impl Meter {
    /// Counts a request.
    pub(super) fn count(&mut self, now: Instant) {
        self.turn(now);
        self.count = self.count.saturating_add(1);
    }

    /// Returns the larger number of the present second and the second before.
    pub(super) fn rate(&mut self, now: Instant) -> f64 {
        self.turn(now);
        f64::from(self.count.max(self.before))
    }

    fn turn(&mut self, now: Instant) {
        let passed = self
            .began
            .map_or(Duration::MAX, |began| now.saturating_duration_since(began));
        if passed >= GROWS_EVERY {
            self.before = if passed < 2 * GROWS_EVERY {
                self.count
            } else {
                0
            };
            (self.began, self.count) = (Some(now), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of turns in each of the first seconds, if there are always requests.
    fn turns(pace: &mut Pace, began: Instant, seconds: u64) -> Vec<u32> {
        let mut turns = vec![0; seconds as usize];
        for ms in 0..seconds * 1000 {
            let now = began + Duration::from_millis(ms);
            pace.is_over(now);
            while pace.turn(now, Duration::ZERO).is_some() {
                turns[ms as usize / 1000] += 1;
            }
        }
        turns
    }

    #[test]
    fn the_rate_comes_back_slowly() {
        let began = Instant::now();
        let turns = turns(&mut Pace::begin(began, 200.0), began, 8);
        let expected = [10, 20, 40, 80, 100, 110, 121, 133];
        assert!(
            turns
                .iter()
                .zip(expected)
                .all(|(turns, expected)| turns.abs_diff(expected) <= 2 + expected / 10),
            "{turns:?}"
        );
    }

    #[test]
    fn the_limit_ends() {
        let began = Instant::now();
        let mut pace = Pace::begin(began, 1e9);
        assert!(!pace.is_over(began + Duration::from_secs(9)));
        assert!(pace.is_over(began + Duration::from_secs(10)));
        assert!(Pace::begin(began, 0.0).is_over(began + Duration::from_secs(3600)));
    }

    #[test]
    fn turns_are_taken_in_order_within_the_patience() {
        let began = Instant::now();
        let mut pace = Pace::begin(began, 0.0);
        let ms = Duration::from_millis;
        let waits: Vec<_> = (0..4).map_while(|_| pace.turn(began, ms(250))).collect();
        assert_eq!(waits, [ms(0), ms(100), ms(200)]);
        assert_eq!(pace.wait_behind(5), ms(500));
        assert_eq!(Pace::begin(began, 80.0).wait_behind(30), ms(2000));
        assert_eq!(pace.wait_behind(u32::MAX), Duration::from_secs(60));
    }

    #[test]
    fn requests_are_measured() {
        let (mut meter, began) = (Meter::default(), Instant::now());
        let at = |ms: u64| began + Duration::from_millis(ms);
        (0..50).for_each(|n| meter.count(at(n)));
        assert_eq!(meter.rate(at(999)), 50.0);
        meter.count(at(1000));
        assert_eq!(meter.rate(at(1999)), 50.0);
        assert_eq!(meter.rate(at(2000)), 1.0);
        assert_eq!(meter.rate(at(9000)), 0.0);
    }
}
