//! A cron job, its schedule, and its last run.

use serde::{Deserialize, Serialize};

use crate::cron::{CronError, CronSchedule, Missed};

/// The value of a job in `events.cron`: this type as JSON, a line feed, and the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CronValue {
    /// A text that changes when the job is set differently or resumed.
    pub id: String,
    /// Whether the job is paused.
    #[serde(rename = "paused")]
    pub is_paused: bool,
    /// The time from which the job's intervals count, in ms since the epoch: the time at which the
    /// schedule was set.
    pub since_ms: u64,
    /// The object.
    pub object: String,
    /// The text of the schedule.
    pub schedule: String,
    /// The name of the time zone.
    pub zone: String,
    /// The treatment of ticks that came while no worker ran.
    pub missed: Missed,
    /// The event, or its beginning if the value was cut.
    #[serde(skip)]
    pub event: Vec<u8>,
}

impl CronValue {
    /// Reads a value, or its beginning. Returns `None` if it is invalid.
    pub fn read(value: &[u8]) -> Option<Self> {
        let end = value.iter().position(|byte| *byte == b'\n')?;
        let event = value[end + 1..].into();
        Some(Self {
            event,
            ..Self::of_json(&value[..end]).ok()?
        })
    }

    /// Reads a value without its event.
    ///
    /// # Errors
    /// The mistake in the JSON. A newer version may have written it.
    pub fn of_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Returns the value without its event.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
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
        let json = r#"{"id":"a","paused":true,"since_ms":5,"object":"o:1","schedule":"@daily","zone":"UTC","missed":"once"}"#;
        let job = CronValue::read(format!("{json}\n[1]\n2").as_bytes()).expect("a job");
        assert_eq!(
            (job.json().as_str(), &job.event[..]),
            (json, &b"[1]\n2"[..])
        );
        let no_feed = json.as_bytes();
        for value in [no_feed, b"", b"\n1", b"{}\n1"] {
            assert_eq!(CronValue::read(value), None, "{value:?}");
        }
    }

    #[test]
    fn the_last_run_is_read() {
        let last = CronLast {
            handled_ms: 7,
            fired_ms: 5,
        };
        assert_eq!(CronLast::read("7 5"), last);
        assert_eq!(CronLast::read("7"), CronLast::default());
    }
}
