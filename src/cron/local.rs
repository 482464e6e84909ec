//! Searches ticks in the local time of a zone.
//!
//! Two steps: the crate `croner` finds times on a calendar without time zone, and this module finds
//! the moment of each such time. So a day that the zone skips, as 30 December 2011 in Apia, is no
//! error. The loops are bounded: each turn passes a change of the zone's clock.
//!
//! - *Fixed* schedules: each time of the calendar has one moment. It is the first one if the time
//!   comes twice, and the moment of the change if the clock skips the time.
//! - *Other* schedules: each moment whose local time matches.

use croner::Cron;
use croner::errors::CronError;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};

/// The most changes of a zone's clock that one search passes. A zone has about 2 of them in a year,
/// and the longest time between two ticks is 40 years.
const CHANGES_MAX: usize = 1000;

/// A search that failed, with the reason.
type Found<T> = Result<Option<T>, String>;

/// A schedule of five or six fields, and its zone.
#[derive(Clone)]
pub(super) struct Fields {
    cron: Cron,
    zone: TimeZone,
    is_fixed: bool,
}

/// The moments from one change of the zone's clock to the next.
struct Segment {
    begin: Option<Timestamp>,
    end: Option<Timestamp>,
    offset: Offset,
}

/// The moment of a time of the calendar.
struct Moment {
    at: Timestamp,
    /// If the time comes twice, or never: the beginning and the end of the range of local times
    /// that come twice, or never.
    range: Option<(DateTime, DateTime)>,
}

impl Fields {
    /// Makes the schedule. `text` has five fields, six fields (with seconds), or a word.
    pub(super) fn new(text: &str, cron: Cron, zone: TimeZone) -> Self {
        let fields: Vec<&str> = text.split(' ').collect();
        let is_fixed = match fields[..] {
            [_, hour, _, _, _] | [_, _, hour, _, _, _] => !hour.contains(['*', '/', '?']),
            // @hourly is the only word whose hour is a wildcard.
            _ => !text.eq_ignore_ascii_case("@hourly"),
        };
        Self {
            cron,
            zone,
            is_fixed,
        }
    }

    /// Returns the first tick after this time. Times are in ms since 1970.
    pub(super) fn next_after(&self, after: u64) -> Found<u64> {
        let Some(after) = time(after) else {
            return Ok(None);
        };
        let found = if self.is_fixed {
            self.next_fixed(after)
        } else {
            self.next_real(after)
        };
        Ok(found?.and_then(ms))
    }

    /// Returns the last tick before this time.
    pub(super) fn last_before(&self, before: u64) -> Found<u64> {
        // The search begins at a whole second, and does not find a tick at this very second.
        let Some(before) = time(before.div_ceil(1000).saturating_mul(1000)) else {
            return Ok(None);
        };
        let found = if self.is_fixed {
            self.last_fixed(before)
        } else {
            self.last_real(before)
        };
        Ok(found?.and_then(ms))
    }

    fn next_fixed(&self, after: Timestamp) -> Found<Timestamp> {
        // The times of the calendar up to the local time have their moments at or before `after`.
        let mut from = self.zone.to_datetime(after);
        for _ in 0..CHANGES_MAX {
            let Some(next) = self.next_civil(from, false)? else {
                return Ok(None);
            };
            let moment = self.moment(next)?;
            match moment.range {
                _ if moment.at > after => return Ok(Some(moment.at)),
                // `after` is in the second pass of times that come twice.
                Some((_, end)) => from = second_before(end)?,
                None => return Err(format!("{next} is at {}, not after {after}", moment.at)),
            }
        }
        Err(too_many(after))
    }

    fn last_fixed(&self, before: Timestamp) -> Found<Timestamp> {
        let local = self.zone.to_datetime(before);
        // In the second pass of times that come twice, all of them have had their moments.
        let mut from = match self.moment(local)? {
            Moment {
                at,
                range: Some((_, end)),
            } if at < before => end,
            _ => local,
        };
        for _ in 0..CHANGES_MAX {
            let Some(last) = self.last_civil(from)? else {
                return Ok(None);
            };
            let moment = self.moment(last)?;
            match moment.range {
                _ if moment.at < before => return Ok(Some(moment.at)),
                // The clock has skipped this time, and the change is not before `before`.
                Some((begin, _)) => from = begin,
                None => return Err(format!("{last} is at {}, not before {before}", moment.at)),
            }
        }
        Err(too_many(before))
    }

    fn next_real(&self, after: Timestamp) -> Found<Timestamp> {
        let mut segment = self.segment_of(after);
        let (mut from, mut inclusive) = (after, false);
        for _ in 0..CHANGES_MAX {
            let local = segment.offset.to_datetime(from);
            let Some(next) = self.next_civil(local, inclusive)? else {
                return Ok(None);
            };
            let at = segment
                .offset
                .to_timestamp(next)
                .map_err(|error| error.to_string())?;
            match segment.end {
                Some(end) if at >= end => {
                    (from, inclusive) = (end, true);
                    segment = self.segment_of(end);
                }
                _ => return Ok(Some(at)),
            }
        }
        Err(too_many(after))
    }

    fn last_real(&self, before: Timestamp) -> Found<Timestamp> {
        let mut from = before;
        for _ in 0..CHANGES_MAX {
            let segment = self.segment_of(moved(from, -1)?);
            let Some(last) = self.last_civil(segment.offset.to_datetime(from))? else {
                return Ok(None);
            };
            let at = segment
                .offset
                .to_timestamp(last)
                .map_err(|error| error.to_string())?;
            match segment.begin {
                Some(begin) if at < begin => from = begin,
                _ => return Ok(Some(at)),
            }
        }
        Err(too_many(before))
    }

    fn segment_of(&self, at: Timestamp) -> Segment {
        let begin = moved(at, 1)
            .ok()
            .and_then(|after| self.zone.preceding(after).next());
        let end = self.zone.following(at).next();
        let timestamp = |change: jiff::tz::TimeZoneTransition<'_>| change.timestamp();
        Segment {
            begin: begin.map(timestamp),
            end: end.map(timestamp),
            offset: self.zone.to_offset(at),
        }
    }

    /// Returns the moment of a time of the calendar.
    fn moment(&self, local: DateTime) -> Result<Moment, String> {
        let text = |error: jiff::Error| error.to_string();
        let offset = self.zone.to_ambiguous_timestamp(local).offset();
        let (before, after) = match offset {
            AmbiguousOffset::Unambiguous { offset } => {
                return Ok(Moment {
                    at: offset.to_timestamp(local).map_err(text)?,
                    range: None,
                });
            }
            AmbiguousOffset::Gap { before, after } | AmbiguousOffset::Fold { before, after } => {
                (before, after)
            }
        };
        let is_gap = matches!(offset, AmbiguousOffset::Gap { .. });
        // A moment before the change.
        let early = if is_gap { after } else { before }
            .to_timestamp(local)
            .map_err(text)?;
        let mut changes = self.zone.following(early).take(CHANGES_MAX);
        let change = changes.find(|change| self.zone.to_offset(change.timestamp()) == after);
        let change = change
            .ok_or_else(|| format!("the change of the clock at {local} is unknown"))?
            .timestamp();
        let (from, to) = (before.to_datetime(change), after.to_datetime(change));
        let range = Some(if is_gap { (from, to) } else { (to, from) });
        Ok(Moment {
            at: if is_gap { change } else { early },
            range,
        })
    }

    fn next_civil(&self, from: DateTime, inclusive: bool) -> Found<DateTime> {
        self.found(
            self.cron
                .find_next_occurrence(&on_calendar(from)?, inclusive),
        )
    }

    fn last_civil(&self, from: DateTime) -> Found<DateTime> {
        self.found(
            self.cron
                .find_previous_occurrence(&on_calendar(from)?, false),
        )
    }

    fn found(&self, found: Result<Zoned, CronError>) -> Found<DateTime> {
        match found {
            Ok(found) => Ok(Some(found.datetime())),
            // No time of the calendar matches.
            Err(CronError::TimeSearchLimitExceeded) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Returns the time as UTC, in which all times of the calendar exist once.
fn on_calendar(local: DateTime) -> Result<Zoned, String> {
    local
        .to_zoned(TimeZone::UTC)
        .map_err(|error| error.to_string())
}

fn second_before(local: DateTime) -> Result<DateTime, String> {
    local
        .checked_sub(SignedDuration::from_secs(1))
        .map_err(|error| error.to_string())
}

/// Returns the time moved by this number of ns.
fn moved(at: Timestamp, ns: i64) -> Result<Timestamp, String> {
    at.checked_add(SignedDuration::from_nanos(ns))
        .map_err(|error| error.to_string())
}

fn too_many(at: Timestamp) -> String {
    format!("no tick near {at} within {CHANGES_MAX} changes of the clock")
}

pub(super) fn time(ms: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()
}

fn ms(time: Timestamp) -> Option<u64> {
    u64::try_from(time.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use crate::cron::CronSchedule;

    use super::*;

    /// A schedule as lists of minutes and hours, for the slow reference. `days`: the days of the
    /// week from Sunday, or none for each day.
    struct Plain {
        text: &'static str,
        minutes: Vec<i8>,
        hours: Vec<i8>,
        days: &'static [i8],
        is_fixed: bool,
    }

    impl Plain {
        fn has(&self, local: DateTime) -> bool {
            let day = local.weekday().to_sunday_zero_offset();
            let in_days = self.days.is_empty() || self.days.contains(&day);
            in_days && self.hours.contains(&local.hour()) && self.minutes.contains(&local.minute())
        }

        /// Returns the ticks of the time from `from` to `to`. Goes through all minutes, as cron
        /// does: a fixed time runs when the clock first shows it or a later time.
        fn ticks(&self, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<u64> {
            let (mut ticks, mut at, mut highest) = (Vec::new(), from, zone.to_datetime(from));
            loop {
                at += 1.minute();
                if at > to {
                    return ticks;
                }
                let local = zone.to_datetime(at);
                let mut is_due = !self.is_fixed && self.has(local);
                while local > highest {
                    highest = highest.checked_add(1.minute()).expect("a time");
                    is_due |= self.is_fixed && self.has(highest);
                }
                if is_due {
                    ticks.extend(ms(at));
                }
            }
        }
    }

    /// Compares the ticks with those of a slow reference, around all changes of several zones, in
    /// both directions. Berlin lost `30 2,14` in March, and had it twice in October. Lord Howe's
    /// clock moves by half an hour, Troll's by two hours. Cairo's and Gaza's clocks skip midnight,
    /// and St. John's once skipped 00:01. Apia skipped a day.
    #[test]
    fn ticks_are_those_of_a_slow_reference() {
        let all = || (0..60).collect::<Vec<i8>>();
        let each = |step: usize, from: i8, to: i8| (from..to).step_by(step).collect::<Vec<i8>>();
        let plain = |text, minutes: Vec<i8>, hours: Vec<i8>, days, is_fixed| Plain {
            text,
            minutes,
            hours,
            days,
            is_fixed,
        };
        let schedules = [
            plain("30 2,14 * * *", vec![30], vec![2, 14], &[], true),
            plain(
                "0,15,45 0-3 * * *",
                vec![0, 15, 45],
                vec![0, 1, 2, 3],
                &[],
                true,
            ),
            plain("*/20 1,2 * * SUN", each(20, 0, 60), vec![1, 2], &[0], true),
            plain("* 23,0 * * *", all(), vec![23, 0], &[], true),
            plain("@daily", vec![0], vec![0], &[], true),
            plain("30 * * * *", vec![30], each(1, 0, 24), &[], false),
            plain(
                "*/10 */2 * * *",
                each(10, 0, 60),
                each(2, 0, 24),
                &[],
                false,
            ),
            plain(
                "5 0-23/3 * * FRI,SAT",
                vec![5],
                each(3, 0, 24),
                &[5, 6],
                false,
            ),
        ];
        let zones = [
            ("Europe/Berlin", "2023-01-01T00:00:00Z", 2),
            ("Australia/Lord_Howe", "2024-01-01T00:00:00Z", 1),
            ("Pacific/Apia", "2011-09-01T00:00:00Z", 1),
            ("Africa/Cairo", "2024-01-01T00:00:00Z", 1),
            ("Asia/Gaza", "2012-01-01T00:00:00Z", 1),
            ("Atlantic/Azores", "2025-01-01T00:00:00Z", 1),
            ("America/St_Johns", "2010-01-01T00:00:00Z", 1),
            ("Antarctica/Troll", "2024-01-01T00:00:00Z", 1),
            ("Africa/Casablanca", "2024-01-01T00:00:00Z", 1),
            ("America/Nuuk", "2023-01-01T00:00:00Z", 1),
        ];
        for (zone, from, years) in zones {
            let (time_zone, from): (_, Timestamp) = (
                TimeZone::get(zone).expect("a zone"),
                from.parse().expect("a time"),
            );
            let end = from
                .checked_add(SignedDuration::from_hours(24 * 365 * years))
                .expect("a time");
            // ten days around each change of the clock.
            let changes = time_zone
                .following(from)
                .take_while(|change| change.timestamp() < end)
                .map(|change| change.timestamp());
            for change in changes.collect::<Vec<_>>() {
                let week = SignedDuration::from_hours(5 * 24);
                let (from, to) = (
                    change.checked_sub(week).expect("a time"),
                    change.checked_add(week).expect("a time"),
                );
                for plain in &schedules {
                    let expected = plain.ticks(&time_zone, from, to);
                    let schedule = CronSchedule::new(plain.text, Some(zone)).expect("a schedule");
                    let (from, to) = (ms(from).expect("ms"), ms(to).expect("ms"));
                    let (mut forward, mut backward) = (Vec::new(), Vec::new());
                    let mut at = from;
                    while let Some(tick) = schedule
                        .next_after(at, 0)
                        .expect("a search")
                        .filter(|tick| *tick <= to)
                    {
                        forward.push(tick);
                        at = tick;
                    }
                    let mut at = to + 1;
                    while let Some(tick) = schedule
                        .last_before(at, 0)
                        .expect("a search")
                        .filter(|tick| *tick > from)
                    {
                        backward.push(tick);
                        at = tick;
                    }
                    backward.reverse();
                    assert_eq!(forward, expected, "{zone} {change} {}", plain.text);
                    assert_eq!(
                        backward, expected,
                        "{zone} {change} {}, backwards",
                        plain.text
                    );
                }
            }
        }
    }

    /// Only the end of the search means that there is no tick. Any other failure is an error, so that
    /// the job is tried again.
    #[test]
    fn a_search_that_fails_is_an_error() {
        let zone = TimeZone::get("Pacific/Apia").expect("a zone");
        let cron = croner::parser::CronParser::builder()
            .build()
            .parse("0 12 30 12 *")
            .expect("a pattern");
        let fields = Fields::new("0 12 30 12 *", cron, zone);
        assert_eq!(
            fields.found(Err(CronError::TimeSearchLimitExceeded)),
            Ok(None)
        );
        for error in [CronError::InvalidDate, CronError::InvalidTime] {
            let text = error.to_string();
            assert_eq!(fields.found(Err(error)), Err(text));
        }
    }

    /// In Apia there was no 30 December 2011. The search for its ticks failed, and the job was
    /// never due again.
    #[test]
    fn a_skipped_day_ends_no_job() {
        let schedule = CronSchedule::new("0 12 30 12 *", Some("Pacific/Apia")).expect("a schedule");
        let mut at = ms("2011-06-01T00:00:00Z".parse().expect("a time")).expect("ms");
        let mut next = || {
            at = schedule
                .next_after(at, 0)
                .expect("a search")
                .expect("a tick");
            time(at)
                .expect("a time")
                .to_zoned(TimeZone::get("Pacific/Apia").expect("a zone"))
                .datetime()
                .to_string()
        };
        assert_eq!(
            [next(), next()],
            ["2011-12-31T00:00:00", "2012-12-30T12:00:00"]
        );
    }
}
