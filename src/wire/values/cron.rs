//! A cron job, its schedule, and its last run.

use serde::{Deserialize, Serialize};

use crate::cron::{CronError, CronSchedule, Missed};

/// The value of a job in `events.cron`: `ID PAUSED SINCE_MS OBJECT_BYTES PLAN_BYTES OBJECT PLAN
/// EVENT`. Between OBJECT, PLAN and EVENT there are no spaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronValue {
    /// A text without blanks, which changes when the job is set differently or resumed.
    pub id: String,
    /// Whether the job is paused.
    pub is_paused: bool,
    /// The time from which the job's intervals count, in ms since the epoch: the time at which the
    /// schedule was set.
    pub since_ms: u64,
    /// The object.
    pub object: Vec<u8>,
    /// The schedule, as JSON.
    pub plan: Vec<u8>,
    /// The event, or its beginning if the value was cut.
    pub event: Vec<u8>,
}

impl CronValue {
    /// Reads a value, or its beginning. Returns `None` if it is invalid.
    pub fn read(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(6, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(parts.next()?).ok();
        let (id, paused) = (text()?.to_owned(), text()?);
        let is_paused = match paused {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let since_ms = text()?.parse().ok()?;
        let (object_bytes, plan_bytes) = (text()?.parse().ok()?, text()?.parse().ok()?);
        let (object, rest) = parts.next()?.split_at_checked(object_bytes)?;
        let (plan, event) = rest.split_at_checked(plan_bytes)?;
        let is_valid = !id.is_empty();
        is_valid.then(|| Self {
            id,
            is_paused,
            since_ms,
            object: object.into(),
            plan: plan.into(),
            event: event.into(),
        })
    }

    /// Returns the value as stored.
    pub fn text(&self) -> Vec<u8> {
        let (id, paused, since) = (&self.id, u8::from(self.is_paused), self.since_ms);
        let numbers = format!(
            "{id} {paused} {since} {} {} ",
            self.object.len(),
            self.plan.len()
        );
        [numbers.as_bytes(), &self.object, &self.plan, &self.event].concat()
    }

    /// Returns the number of bytes of the whole event. `value_bytes` is the size of the whole
    /// value, of which `self` may be only the beginning.
    pub fn event_bytes(&self, value_bytes: u64) -> u64 {
        let others = self.text().len() - self.event.len();
        value_bytes.saturating_sub(others as u64)
    }
}

/// The schedule of a job as JSON: `{"schedule":"30 9 * * *","zone":"UTC","missed":"once"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CronPlan {
    /// The text of the schedule.
    pub schedule: String,
    /// The name of the time zone.
    pub zone: String,
    /// The treatment of ticks that came while no worker ran.
    pub missed: Missed,
}

impl CronPlan {
    /// Returns the plan of a schedule.
    pub fn new(schedule: &CronSchedule, missed: Missed) -> Self {
        Self {
            schedule: schedule.as_str().to_owned(),
            zone: schedule.zone().to_owned(),
            missed,
        }
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// The mistake in the JSON text. A newer version may have written the text.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// Returns the plan as stored.
    pub fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the schedule.
    ///
    /// # Errors
    /// [`CronError`] if this version cannot read the schedule.
    pub fn schedule(&self) -> Result<CronSchedule, CronError> {
        CronSchedule::new(&self.schedule, Some(&self.zone))
    }
}

/// A value of `events.cron.last`: `HANDLED_MS FIRED_MS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CronLast {
    /// The time up to which the job's ticks have fired or were skipped, in ms since the epoch.
    pub handled_ms: u64,
    /// The time at which the job fired last, in ms since the epoch; 0: never.
    pub fired_ms: u64,
}

impl CronLast {
    /// Reads a value. Returns zeros if the value is invalid, as if it were absent.
    pub fn read(value: &str) -> Self {
        let read = || {
            let (handled, fired) = value.split_once(' ')?;
            Some(Self {
                handled_ms: handled.parse().ok()?,
                fired_ms: fired.parse().ok()?,
            })
        };
        read().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_is_printed() {
        for value in [&b"a-1 0 5 3 2 o:1{}[1] 2"[..], b"x 1 0 0 0 "] {
            assert_eq!(CronValue::read(value).expect("a job").text(), value);
        }
        let job = CronValue::read(b"a-1 0 5 3 2 o:1{}[1] 2").expect("a job");
        assert_eq!(
            (&job.object[..], &job.plan[..], &job.event[..]),
            (&b"o:1"[..], &b"{}"[..], &b"[1] 2"[..])
        );
        assert_eq!(job.event_bytes(22), 5);
        for value in [
            &b""[..],
            b"a 2 5 0 0 ",
            b"a 0 5 3 0 ob",
            b"a 0 x 0 0 ",
            b" 0 5 0 0 ",
            b"a 0 5 0",
        ] {
            assert_eq!(CronValue::read(value), None, "{value:?}");
        }
        assert_eq!(
            CronLast::read("7 5"),
            CronLast {
                handled_ms: 7,
                fired_ms: 5
            }
        );
        assert_eq!(CronLast::read("7"), CronLast::default());
    }
}
