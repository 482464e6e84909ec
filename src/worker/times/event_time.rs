//! The age of events: from an event's own time until the event is delivered and committed. It is
//! measured only with the setting `event_time`.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::event::Pointer;
use crate::worker::serve::slots::InFlight;
use crate::worker::watch::figures::Figures;

/// A number that is not below this one counts as a time in ms. As seconds it would be after the
/// year 5000.
const MS_FROM: f64 = 1e11;

/// The begin of the year 2000, in ms since 1970. An earlier time counts as a mistake.
const MS_LEAST: f64 = 946_684_800_000.0;
/// The most that a time may be ahead of the clock, in ms. A time further ahead counts as a mistake.
/// The clocks of producers may be a little ahead.
const MS_AHEAD: f64 = 86_400_000.0;

/// The times of events that are delivered and not committed yet, by slot.
pub(in crate::worker) struct EventTimes {
    pointer: Pointer,
    /// The times in ms since 1970; `None` for an event without a time.
    by_slot: Vec<Vec<Option<f64>>>,
}

impl EventTimes {
    pub(in crate::worker) fn new(pointer: &Pointer, slots: usize) -> Self {
        Self {
            pointer: pointer.clone(),
            by_slot: vec![Vec::new(); slots],
        }
    }

    /// Reads the times of the first `count` events of a batch. These events have been delivered.
    pub(in crate::worker) fn delivered(&mut self, slot: usize, in_flight: &InFlight, count: usize) {
        let times = in_flight
            .batch
            .payloads
            .iter()
            .take(count)
            .map(|payload| time_ms(&self.pointer, payload));
        self.by_slot[slot] = times.collect();
    }

    /// Adds the ages of the slot's delivered events to the figures, because they are committed now.
    pub(in crate::worker) fn committed(&mut self, slot: usize, figures: &Figures) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64()
            * 1000.0;
        for time in self.by_slot[slot].drain(..) {
            match time {
                Some(time) if time < now + MS_AHEAD => {
                    figures.event_age((now - time).max(0.0) / 1000.0)
                }
                _ => figures.event_without_time(),
            }
        }
    }
}

/// Returns the time of an event in ms since 1970. The event has its time in Unix seconds or ms, as
/// a number or a text, or in the form of RFC 3339. Returns `None` if there is no valid time.
fn time_ms(pointer: &Pointer, payload: &[u8]) -> Option<f64> {
    let document: &RawValue = serde_json::from_slice(payload).ok()?;
    let found = pointer.find(document)?.get();
    let text: String = if found.starts_with('"') {
        serde_json::from_str(found).ok()?
    } else {
        found.to_owned()
    };
    let ms = match text.parse::<f64>() {
        Ok(number) if number.abs() >= MS_FROM => Some(number),
        Ok(number) => Some(number * 1000.0),
        Err(_) => text
            .parse::<Timestamp>()
            .ok()
            .map(|time| time.as_millisecond() as f64),
    };
    ms.filter(|ms| ms.is_finite() && *ms >= MS_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_one_of_some_forms() {
        let pointer: Pointer = "/at/time".parse().expect("a pointer");
        let of = |time: &str| {
            time_ms(
                &pointer,
                format!("{{\"at\":{{\"time\":{time}}}}}").as_bytes(),
            )
        };
        for (time, ms) in [
            ("1767268800", 1_767_268_800_000.0),
            ("1767268800.25", 1_767_268_800_250.0),
            ("\"1767268800\"", 1_767_268_800_000.0),
            ("1767268800250", 1_767_268_800_250.0),
            ("\"2026-01-01T12:00:00.25Z\"", 1_767_268_800_250.0),
            ("\"2026-01-01T13:00:00+01:00\"", 1_767_268_800_000.0),
        ] {
            assert_eq!(of(time), Some(ms), "{time}");
        }
        for time in [
            "null",
            "\"soon\"",
            "{}",
            "\"NaN\"",
            "1e999",
            "[1]",
            "true",
            "0",
            "-1e305",
            "900000000",
        ] {
            assert_eq!(of(time), None, "{time}");
        }
        assert_eq!(
            [&b"7"[..], b"{", b"", b"{\"at\":1}"].map(|event| time_ms(&pointer, event)),
            [None; 4]
        );
    }
}
