//! A share of groups.

use serde::Serialize;

/// The priority of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// The highest priority.
    High,
    /// The priority of groups without a share that sets one.
    Normal,
    /// The lowest priority.
    Low,
}

impl Priority {
    /// Returns the word for this priority: `high`, `normal` or `low`.
    pub fn word(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    fn of(word: &str) -> Option<Self> {
        [Self::High, Self::Normal, Self::Low]
            .into_iter()
            .find(|priority| priority.word() == word)
    }
}

/// The value of a share in `event.shares`: `WEIGHT PRIORITY IN_FLIGHT RATE BURST SET_MS WHO_BYTES
/// WHO WHY`, without a space between WHO and WHY. `-` stands for a part that is not set. The field
/// of the value in the hash is the selector of the share, `PREFIX:*`.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareValue {
    /// The weight of the groups, 1 to 100.
    pub weight: Option<u64>,
    /// The priority of the groups.
    pub priority: Option<Priority>,
    /// The most objects in flight at the same time.
    pub in_flight: Option<u64>,
    /// The most objects claimed per second.
    pub rate: Option<f64>,
    /// The most objects claimed at once after a pause.
    pub burst: Option<u64>,
    /// The time at which the share was set, in ms since the epoch.
    pub set_ms: u64,
    /// The actor who set the share.
    pub who: Vec<u8>,
    /// The reason why the share was set.
    pub why: Vec<u8>,
}

impl ShareValue {
    /// Reads a value. Returns `None` if the value is invalid. A part that is no number or no
    /// priority is not set, as in the scripts.
    pub fn read(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(8, |byte| *byte == b' ');
        let mut part = || {
            std::str::from_utf8(parts.next()?)
                .ok()
                .filter(|part| !part.is_empty())
        };
        let (weight, priority, in_flight, rate, burst) =
            (part()?, part()?, part()?, part()?, part()?);
        let (set_ms, who_bytes) = (part()?.parse().ok()?, part()?.parse().ok()?);
        let (who, why) = parts.next()?.split_at_checked(who_bytes)?;
        Some(Self {
            weight: weight.parse().ok(),
            priority: Priority::of(priority),
            in_flight: in_flight.parse().ok(),
            rate: rate.parse().ok().filter(|rate: &f64| rate.is_finite()),
            burst: burst.parse().ok(),
            set_ms,
            who: who.to_owned(),
            why: why.to_owned(),
        })
    }
}

/// The length of the periods in which the events of a share are counted, in ms.
const PERIOD_MS: u64 = 10_000;

/// The value of a share in `event.shares.used`: `TAKEN TAT PERIOD THIS LAST`. The field of the value in
/// the hash is the selector of the share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShareUsed {
    /// The number of events that were taken.
    pub taken: u64,
    /// The time up to which these events use the rate, in us since the epoch.
    pub tat_us: u64,
    /// The number of the period of 10 s in which the last event was taken.
    pub period: u64,
    /// The number of events that were taken in this period.
    pub this: u64,
    /// The number of events that were taken in the period before.
    pub last: u64,
}

impl ShareUsed {
    /// Reads a value. If the value is absent or invalid, all numbers are 0, as in the scripts.
    pub fn read(value: &[u8]) -> Self {
        let read = || {
            let mut parts = std::str::from_utf8(value).ok()?.split(' ').map(str::parse);
            let mut part = || parts.next()?.ok();
            let used = Self {
                taken: part()?,
                tat_us: part()?,
                period: part()?,
                this: part()?,
                last: part()?,
            };
            parts.next().is_none().then_some(used)
        };
        read().unwrap_or_default()
    }

    /// Returns the number of events per second that were taken in the last 10 s. Of the period before
    /// the present one, a part counts that is as long as the rest of the 10 s.
    pub fn per_second(self, now_ms: u64) -> f64 {
        let (period, into) = (now_ms / PERIOD_MS, now_ms % PERIOD_MS);
        let (this, last) = match period.checked_sub(self.period) {
            Some(0) => (self.this, self.last),
            Some(1) => (0, self.this),
            _ => (0, 0),
        };
        let of_last = last as f64 * (PERIOD_MS - into) as f64 / PERIOD_MS as f64;
        (of_last + this as f64) * 1000.0 / PERIOD_MS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read() {
        let share = ShareValue::read(b"5 high - - - 1700 3 adawhy not").expect("a share");
        assert_eq!(
            (share.weight, share.priority, share.set_ms),
            (Some(5), Some(Priority::High), 1700)
        );
        assert_eq!(
            (share.in_flight, share.rate, share.burst),
            (None, None, None)
        );
        assert_eq!(
            (&share.who[..], &share.why[..]),
            (&b"ada"[..], &b"why not"[..])
        );
        let share = ShareValue::read(b"- - 10 2.5 4 1700 0 ").expect("a share");
        assert_eq!((share.weight, share.priority), (None, None));
        assert_eq!(
            (share.in_flight, share.rate, share.burst),
            (Some(10), Some(2.5), Some(4))
        );
        for value in [
            &b""[..],
            b"5 high - - - 1700 3",
            b"5 high - - - 1700 9 ada",
            b"5 high - - - x 0 ",
            b"5  - - - - 1700 0 ",
        ] {
            assert_eq!(ShareValue::read(value), None);
        }
    }

    #[test]
    fn the_events_taken_are_read() {
        let used = ShareUsed {
            taken: 9,
            tat_us: 8,
            period: 7,
            this: 6,
            last: 5,
        };
        assert_eq!(ShareUsed::read(b"9 8 7 6 5"), used);
        for value in [
            &b""[..],
            b"9 8 7 6",
            b"9 8 7 6 5 4",
            b"9 8 7 6 x",
            b"9 8 7 6 -5",
            b"9  7 6 5",
            b"\xff",
        ] {
            assert_eq!(ShareUsed::read(value), ShareUsed::default());
        }
    }

    #[test]
    fn the_events_per_second_are_those_of_the_last_10_s() {
        let used = ShareUsed {
            taken: 0,
            tat_us: 0,
            period: 7,
            this: 30,
            last: 100,
        };
        for (now_ms, expected) in [
            (70_000, 13.0),
            (72_500, 10.5),
            (79_999, 3.001),
            (80_000, 3.0),
            (85_000, 1.5),
            (90_000, 0.0),
            (69_999, 0.0),
        ] {
            assert!(
                (used.per_second(now_ms) - expected).abs() < 1e-9,
                "at {now_ms}: {}",
                used.per_second(now_ms)
            );
        }
    }
}
