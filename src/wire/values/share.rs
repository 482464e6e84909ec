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
        [Self::High, Self::Normal, Self::Low].into_iter().find(|priority| priority.word() == word)
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
        let mut part = || std::str::from_utf8(parts.next()?).ok().filter(|part| !part.is_empty());
        let (weight, priority, in_flight, rate, burst) = (part()?, part()?, part()?, part()?, part()?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read() {
        let share = ShareValue::read(b"5 high - - - 1700 3 adawhy not").expect("a share");
        assert_eq!((share.weight, share.priority, share.set_ms), (Some(5), Some(Priority::High), 1700));
        assert_eq!((share.in_flight, share.rate, share.burst), (None, None, None));
        assert_eq!((&share.who[..], &share.why[..]), (&b"ada"[..], &b"why not"[..]));
        let share = ShareValue::read(b"- - 10 2.5 4 1700 0 ").expect("a share");
        assert_eq!((share.weight, share.priority), (None, None));
        assert_eq!((share.in_flight, share.rate, share.burst), (Some(10), Some(2.5), Some(4)));
        for value in [&b""[..], b"5 high - - - 1700 3", b"5 high - - - 1700 9 ada", b"5 high - - - x 0 ", b"5  - - - - 1700 0 "] {
            assert_eq!(ShareValue::read(value), None);
        }
    }
}
