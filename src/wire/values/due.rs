//! The due time of a held object, of a schedule and of a cron job: a score of `objects.held`,
//! `events.scheduled` or `events.cron.next`.
//!
//! Some scores are no times. This type is the only reader of these scores, so that no such score is
//! shown as a time, or counted as one.

/// The time at which a held object, a schedule or a cron job is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DueTime {
    /// Due at once, since an unknown time. The score is 0.
    AtOnce,
    /// Due at this time, ms since the epoch.
    At(u64),
    /// Not due at any time: a held object waits for an operator, a cron job has no further tick. The
    /// score is infinite.
    Never,
}

impl DueTime {
    /// Reads a score of `events.scheduled` or `events.cron.next`. The event of the schedule is not
    /// queued yet.
    pub fn read(score: f64) -> Self {
        if score == f64::INFINITY {
            Self::Never
        } else if score >= 1.0 {
            Self::At(score as u64)
        } else {
            Self::AtOnce
        }
    }

    /// Reads a score of `objects.held`. If the object is grouped, the score is its due
    /// time below 0, or -1 if it is due at once. Such an object is due, also if Redis' clock was set
    /// back since.
    pub fn of_held(score: f64, now_ms: u64) -> Self {
        match Self::read(score.abs()) {
            Self::At(1) if score < 0.0 => Self::AtOnce,
            Self::At(ms) if score < 0.0 => Self::At(ms.min(now_ms)),
            due => due,
        }
    }

    /// Returns the due time, ms since the epoch, if it has one.
    pub fn ms(self) -> Option<u64> {
        match self {
            Self::At(ms) => Some(ms),
            Self::AtOnce | Self::Never => None,
        }
    }

    /// Returns whether the time has come.
    pub fn is_due(self, now_ms: u64) -> bool {
        match self {
            Self::AtOnce => true,
            Self::At(ms) => ms <= now_ms,
            Self::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_that_are_no_times_are_not_read_as_times() {
        for (score, due) in [
            (0.0, DueTime::AtOnce),
            (-0.0, DueTime::AtOnce),
            (1700.0, DueTime::At(1700)),
            (f64::INFINITY, DueTime::Never),
            (-5.0, DueTime::AtOnce),
            (f64::NAN, DueTime::AtOnce),
        ] {
            assert_eq!(DueTime::read(score), due, "{score}");
        }
        for (score, due) in [
            (0.0, DueTime::AtOnce),
            (-1.0, DueTime::AtOnce),
            (1700.0, DueTime::At(1700)),
            (-1700.0, DueTime::At(1700)),
            (-1900.0, DueTime::At(1800)),
            (1900.0, DueTime::At(1900)),
            (f64::INFINITY, DueTime::Never),
        ] {
            assert_eq!(DueTime::of_held(score, 1800), due, "{score}");
        }
        assert!(
            DueTime::AtOnce.is_due(0)
                && DueTime::At(5).is_due(5)
                && !DueTime::At(6).is_due(5)
                && !DueTime::Never.is_due(u64::MAX)
        );
        assert!(
            DueTime::AtOnce.ms().is_none()
                && DueTime::Never.ms().is_none()
                && DueTime::At(5).ms() == Some(5)
        );
    }
}
