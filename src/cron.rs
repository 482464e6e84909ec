//! The schedule of a cron job: the times at which the job is due.
//!
//! The ticks of a schedule are computed by every process that needs them. The processes use the
//! same text, time zone and beginning. If two processes have different time zone data, they may
//! compute different times for one tick. Then the tick may fire at both times.

mod local;

use std::fmt;
use std::str::FromStr as _;

use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes of a schedule's text.
const TEXT_BYTES_MAX: usize = 256;
/// The first word of a schedule with a fixed interval.
const EVERY: &str = "@every";
/// Shortest and longest interval, in ms: a second, and a hundred years, with leap years.
const EVERY_MS: std::ops::RangeInclusive<i64> = 1000..=36_600 * 24 * 3600 * 1000;
/// The numbers of values of the fields of a schedule, from the days of the week to the seconds.
const VALUES: [u32; 6] = [7, 12, 31, 24, 60, 60];

/// The reason why a text is not a cron schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CronError {
    /// The fields are invalid.
    #[error(
        "{text:?} is not a cron schedule: {reason}; write five or six fields as in \"30 9 * * MON-FRI\", @every 1h, or @daily"
    )]
    Fields {
        /// The text.
        text: String,
        /// The reason.
        reason: String,
    },
    /// The interval is invalid.
    #[error(
        "{0:?} is not an interval: write a second to a hundred years, as in @every 90s, @every 1h30m or @every 2d"
    )]
    Every(String),
    /// The time zone is unknown.
    #[error("{0:?} is not a time zone: write a name of the IANA database, as in Europe/Berlin")]
    Zone(String),
    /// The ticks of the schedule cannot be computed. They may be computable later, or with other
    /// time zone data.
    #[error("the next time of {text:?} in {zone} cannot be computed: {reason}")]
    Search {
        /// The text of the schedule.
        text: String,
        /// The time zone.
        zone: String,
        /// The reason.
        reason: String,
    },
    /// The schedule has no tick in the future.
    #[error("{0:?} has no time in the future at which it is due")]
    Never(String),
}

/// A cron schedule: a text and a time zone. The text is five or six fields (the first of six is the
/// second), `@every DURATION`, or one of `@yearly`, `@monthly`, `@weekly`, `@daily`, `@hourly`. The
/// fields belong to the time zone.
///
/// If the hour has no wildcard and no step, the schedule is a list of fixed times, each of which is
/// due once a day. If the clock of the zone skips a fixed time, it is due right after the change;
/// several skipped times are due together, once. If a fixed time comes twice, it is due the first
/// time. With a wildcard or a step in the hour, the schedule follows the real hours: skipped times
/// are not due, and times that come twice are due twice.
#[derive(Clone)]
pub struct CronSchedule {
    text: String,
    zone: String,
    ticks: Ticks,
}

#[derive(Clone)]
enum Ticks {
    /// A fixed interval, in ms.
    Every(i64),
    Fields(Box<local::Fields>),
}

impl CronSchedule {
    /// Reads a schedule. `zone` is a name of the IANA time zone database; `None` means UTC.
    /// `@every` does not depend on the zone.
    ///
    /// # Errors
    /// [`CronError`] with the first broken rule.
    pub fn new(text: &str, zone: Option<&str>) -> Result<Self, CronError> {
        let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
        let zone = zone.unwrap_or("UTC");
        let time_zone = TimeZone::get(zone).map_err(|_| CronError::Zone(zone.to_owned()))?;
        let made = |ticks| Self {
            text: text.clone(),
            zone: zone.to_owned(),
            ticks,
        };
        let wrong = |reason: String| CronError::Fields {
            text: text.chars().take(TEXT_BYTES_MAX).collect(),
            reason,
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong(format!("it has more than {TEXT_BYTES_MAX} bytes")));
        }
        if let Some(interval) = text.strip_prefix(EVERY) {
            let ms = Span::from_str(interval.trim())
                .and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
            let ms = ms
                .ok()
                .and_then(|duration| i64::try_from(duration.as_millis()).ok());
            let ms = ms
                .filter(|ms| EVERY_MS.contains(ms))
                .ok_or_else(|| CronError::Every(text.clone()))?;
            return Ok(made(Ticks::Every(ms)));
        }
        let parser = croner::parser::CronParser::builder()
            .year(croner::parser::Year::Disallowed)
            .build();
        let cron = parser
            .parse(text)
            .map_err(|error| wrong(error.to_string()))?;
        if let Some(reason) = slip(text) {
            return Err(wrong(reason));
        }
        Ok(made(Ticks::Fields(Box::new(local::Fields::new(
            text, cron, time_zone,
        )))))
    }

    /// Returns the first tick after the time `after`; `None` if there is none. Times are in ms
    /// since 1970. `since` is the time from which the intervals of `@every` count.
    ///
    /// # Errors
    /// [`CronError::Search`] if the tick cannot be computed.
    pub fn next_after(&self, after: u64, since: u64) -> Result<Option<u64>, CronError> {
        match &self.ticks {
            Ticks::Every(interval) => {
                let next = |interval: u64| {
                    let passed = after
                        .checked_sub(since)
                        .map_or(0, |passed| passed / interval);
                    since.checked_add(interval.checked_mul(passed + 1)?)
                };
                Ok(u64::try_from(*interval).ok().and_then(next))
            }
            Ticks::Fields(fields) => fields
                .next_after(after)
                .map_err(|reason| self.unknown(reason)),
        }
    }

    fn unknown(&self, reason: String) -> CronError {
        CronError::Search {
            text: self.text.clone(),
            zone: self.zone.clone(),
            reason,
        }
    }

    /// Returns the last tick before the time `before`. The arguments are as in
    /// [`next_after`](Self::next_after).
    fn last_before(&self, before: u64, since: u64) -> Result<Option<u64>, CronError> {
        match &self.ticks {
            Ticks::Every(interval) => {
                let last = |interval: u64| {
                    let passed = before.checked_sub(since)?.checked_sub(1)? / interval;
                    (passed > 0).then(|| since + passed * interval)
                };
                Ok(u64::try_from(*interval).ok().and_then(last))
            }
            Ticks::Fields(fields) => fields
                .last_before(before)
                .map_err(|reason| self.unknown(reason)),
        }
    }

    /// Returns the ticks after `after` and up to `until`, oldest first. If there are more than
    /// `count_max`, returns only the latest `count_max` ticks.
    ///
    /// # Errors
    /// [`CronError::Search`] if a tick cannot be computed.
    pub(crate) fn between(
        &self,
        after: u64,
        until: u64,
        since: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, CronError> {
        let (mut ticks, mut at) = (Vec::new(), after);
        while ticks.len() <= count_max {
            match self
                .next_after(at, since)?
                .filter(|tick| *tick <= until && *tick > at)
            {
                Some(tick) => {
                    ticks.push(tick);
                    at = tick;
                }
                None => return Ok(ticks),
            }
        }
        // There are more ticks than `count_max`. So the latest ones are collected, from the end
        // backwards.
        ticks.clear();
        at = until.saturating_add(1);
        while ticks.len() < count_max {
            let Some(tick) = self
                .last_before(at, since)?
                .filter(|tick| *tick > after && *tick < at)
            else {
                break;
            };
            ticks.push(tick);
            at = tick;
        }
        ticks.reverse();
        Ok(ticks)
    }

    /// Returns the text of the schedule.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name of the time zone.
    pub fn zone(&self) -> &str {
        &self.zone
    }
}

impl fmt::Debug for CronSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CronSchedule({:?}, {:?})", self.text, self.zone)
    }
}

impl PartialEq for CronSchedule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.zone == other.zone
    }
}

/// The treatment of all ticks since the last run, if the first of these ticks is more than 60 s
/// late. If the first tick is less late, each tick fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// The ticks fire once, together, if at least one of them is at most 60 s late. Otherwise none
    /// of them fires.
    Skip,
    /// The ticks fire once, together.
    #[default]
    Once,
    /// Each tick fires. If there are more than 1,000 ticks, only the latest 1,000 fire.
    All,
}

/// Returns what is wrong with a schedule although a parser takes it: a part of a list is empty, or a
/// step is larger than its field, so `*/90` would fire each hour.
fn slip(text: &str) -> Option<String> {
    text.rsplit(' ').zip(VALUES).find_map(|(field, values)| {
        field.split(',').find_map(|part| {
            let step = part.split_once('/').and_then(|(_, step)| step.parse().ok());
            if part.is_empty() {
                Some(format!("a part of {field:?} is empty"))
            } else if step.is_some_and(|step: u32| step > values) {
                Some(format!(
                    "the step of {part:?} is larger than its field, which has {values} values"
                ))
            } else {
                None
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn time(text: &str) -> u64 {
        u64::try_from(Timestamp::from_str(text).expect("a time").as_millisecond())
            .expect("after 1970")
    }

    fn ticks(schedule: &str, zone: &str, from: &str, to: &str) -> Vec<String> {
        let schedule = CronSchedule::new(schedule, Some(zone)).expect("a schedule");
        let ticks = schedule
            .between(time(from), time(to), 0, 100)
            .expect("ticks");
        let zone = TimeZone::get(zone).expect("a zone");
        ticks
            .into_iter()
            .map(|tick| {
                local::time(tick)
                    .expect("a time")
                    .to_zoned(zone.clone())
                    .strftime("%m-%d %H:%M:%S%:z")
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn a_schedule_has_five_or_six_fields_or_a_word() {
        for good in [
            "30 9 * * MON-FRI",
            "0 30 9 * * *",
            "@daily",
            "@every 1h",
            "@every 90s",
            " @every 1h30m ",
            "@every 2d",
            "*/5 * * * *",
            "*/60 */24 * * *",
        ] {
            let schedule = CronSchedule::new(good, None).expect(good);
            assert!(
                matches!(schedule.next_after(1_700_000_000_000, 0), Ok(Some(_))),
                "{good}"
            );
        }
        let broken = CronSchedule::new("30 9\n *\t* MON", None).expect("fields");
        assert_eq!(broken.as_str(), "30 9 * * MON");
        for bad in [
            "",
            "* * * *",
            "0 0 0 1 1 * 2030",
            "61 * * * *",
            "*/90 * * * *",
            "*/61 * * * * *",
            "0 */25 * * *",
            "0 0 * */13 *",
            "1,,2 * * * *",
            "1, * * * *",
            "@sometimes",
            &"1,".repeat(400),
        ] {
            assert!(
                matches!(CronSchedule::new(bad, None), Err(CronError::Fields { .. })),
                "{bad:?}"
            );
        }
        for bad in [
            "@every",
            "@every 0s",
            "@every 999ms",
            "@every 1mo",
            "@every 30M",
            "@every 200y",
            "@every -1h",
            "@every 1",
        ] {
            assert!(
                matches!(CronSchedule::new(bad, None), Err(CronError::Every(_))),
                "{bad:?}"
            );
        }
        assert!(matches!(
            CronSchedule::new("@daily", Some("Europe/Nowhere")),
            Err(CronError::Zone(_))
        ));
        assert_eq!(
            CronSchedule::new("0 0 30 2 *", None)
                .expect("fields")
                .next_after(0, 0),
            Ok(None)
        );
    }

    /// In Berlin, the hour from 02:00 to 03:00 is skipped on 29 March 2026 and comes twice on 25
    /// October 2026.
    #[test]
    fn daylight_saving_skips_and_repeats_no_tick_of_a_fixed_time() {
        let zone = "Europe/Berlin";
        let spring = ticks(
            "30 2 * * *",
            zone,
            "2026-03-28T00:00:00Z",
            "2026-03-31T00:00:00Z",
        );
        assert_eq!(
            spring,
            [
                "03-28 02:30:00+01:00",
                "03-29 03:00:00+02:00",
                "03-30 02:30:00+02:00"
            ]
        );
        let autumn = ticks(
            "30 2 * * *",
            zone,
            "2026-10-24T00:00:00Z",
            "2026-10-27T00:00:00Z",
        );
        assert_eq!(
            autumn,
            [
                "10-24 02:30:00+02:00",
                "10-25 02:30:00+02:00",
                "10-26 02:30:00+01:00"
            ]
        );
        // A list of hours is a list of fixed times.
        let spring = ticks(
            "30 2,14 * * *",
            zone,
            "2026-03-28T12:00:00Z",
            "2026-03-29T23:00:00Z",
        );
        assert_eq!(
            spring,
            [
                "03-28 14:30:00+01:00",
                "03-29 03:00:00+02:00",
                "03-29 14:30:00+02:00"
            ]
        );
        let autumn = ticks(
            "30 2,14 * * *",
            zone,
            "2026-10-24T12:30:00Z",
            "2026-10-25T23:00:00Z",
        );
        assert_eq!(autumn, ["10-25 02:30:00+02:00", "10-25 14:30:00+01:00"]);
        // Every half hour of real time has a tick.
        let spring = ticks(
            "*/30 * * * *",
            zone,
            "2026-03-29T00:00:00Z",
            "2026-03-29T02:00:00Z",
        );
        assert_eq!(
            spring,
            [
                "03-29 01:30:00+01:00",
                "03-29 03:00:00+02:00",
                "03-29 03:30:00+02:00",
                "03-29 04:00:00+02:00"
            ]
        );
        let autumn = ticks(
            "*/30 * * * *",
            zone,
            "2026-10-24T23:59:00Z",
            "2026-10-25T01:59:00Z",
        );
        assert_eq!(
            autumn,
            [
                "10-25 02:00:00+02:00",
                "10-25 02:30:00+02:00",
                "10-25 02:00:00+01:00",
                "10-25 02:30:00+01:00"
            ]
        );
    }

    #[test]
    fn intervals_count_from_the_beginning() {
        let every = CronSchedule::new("@every 90s", None).expect("a schedule");
        assert_eq!(every.next_after(0, 1_000), Ok(Some(91_000)));
        assert_eq!(every.next_after(90_999, 1_000), Ok(Some(91_000)));
        assert_eq!(every.next_after(91_000, 1_000), Ok(Some(181_000)));
        assert_eq!(every.next_after(u64::MAX - 1, 1_000), Ok(None));
        assert_eq!(
            every.between(91_000, 361_000, 1_000, 10),
            Ok(vec![181_000, 271_000, 361_000])
        );
    }

    /// Tests that only the latest ticks remain if there are too many, and that the work is bounded.
    #[test]
    fn of_many_ticks_the_latest_remain() {
        for (text, step) in [
            ("@every 1s", 1_000),
            ("* * * * * *", 1_000),
            ("* * * * *", 60_000),
        ] {
            let schedule = CronSchedule::new(text, None).expect("a schedule");
            let until = 1_700_000_000_000 / 60_000 * 60_000;
            let ticks = schedule.between(0, until, 0, 1000).expect("ticks");
            assert_eq!(
                (ticks.len(), ticks[0], ticks[999]),
                (1000, until - 999 * step, until),
                "{text}"
            );
        }
    }
}
