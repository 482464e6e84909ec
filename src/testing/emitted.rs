//! Emitted events, and patterns that match them in tests.

use std::time::Duration;

use bytes::Bytes;
use serde_core::de::DeserializeOwned;
use serde_json::Value;

use crate::event::ObjectName;
use crate::wire::values::{Due, Later, LaterMode};

/// An event that a handler has emitted or scheduled, or a schedule that it has cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmittedEvent {
    /// Object of the event.
    pub object: ObjectName,
    /// The event as JSON, byte for byte as it will be pushed. Empty if a schedule is cancelled.
    pub payload: Bytes,
    /// The schedule of the event; none if the event is not scheduled.
    pub schedule: Option<EmittedSchedule>,
}

/// The schedule of an event that a handler has
/// [scheduled](crate::handlers::HandlerContext::schedule).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmittedSchedule {
    /// The key of the schedule: the key given by the handler, or a new key that begins with `-`.
    pub key: String,
    /// The point in time at which the event is due, ms since the epoch; none if `after` is set.
    pub at_ms: Option<u64>,
    /// The time from the end of the handler's event until the scheduled event is due; none if
    /// `at_ms` is set.
    pub after: Option<Duration>,
    /// Whether the handler has cancelled the schedule with this key.
    pub is_cancelled: bool,
}

impl From<Later<'_>> for EmittedSchedule {
    fn from(later: Later<'_>) -> Self {
        let (at_ms, after) = match later.due {
            Due::At(ms) => (Some(ms), None),
            Due::After(ms) => (None, Some(Duration::from_millis(ms))),
        };
        Self {
            key: String::from_utf8_lossy(later.key).into_owned(),
            at_ms,
            after,
            is_cancelled: later.mode == LaterMode::Cancel,
        }
    }
}

impl EmittedEvent {
    /// Deserializes the event.
    ///
    /// # Errors
    /// The error of serde_json if the event is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }
}

/// A pattern for emitted events: a JSON value, or a predicate `Fn(&serde_json::Value) -> bool`.
///
/// If the pattern is a JSON object, an event matches if it has all members of the pattern; it may
/// have more members. If the pattern is another JSON value, an event matches if it is equal.
pub trait EventPattern {
    /// Returns whether the event matches.
    fn matches(&self, event: &Value) -> bool;

    /// Returns the pattern as text. The message of a failed assertion shows it.
    fn shown(&self) -> String {
        "an event of which the predicate is true".to_owned()
    }
}

impl EventPattern for Value {
    fn matches(&self, event: &Value) -> bool {
        has(event, self)
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

impl<F: Fn(&Value) -> bool> EventPattern for F {
    fn matches(&self, event: &Value) -> bool {
        self(event)
    }
}

fn has(event: &Value, wanted: &Value) -> bool {
    match (event, wanted) {
        (Value::Object(event), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, wanted)| event.get(name).is_some_and(|found| has(found, wanted))),
        _ => event == wanted,
    }
}

/// Returns the first of these events that is for the object, matches the pattern, and is not
/// scheduled.
pub(super) fn find<'a>(
    emitted: &'a [EmittedEvent],
    object: &str,
    pattern: &impl EventPattern,
) -> Option<&'a EmittedEvent> {
    let matches = |event: &EmittedEvent| {
        event
            .json::<Value>()
            .is_ok_and(|event| pattern.matches(&event))
    };
    let mut now = emitted.iter().filter(|event| event.schedule.is_none());
    now.find(|event| event.object.as_str() == object && matches(event))
}

/// Returns the first scheduled event that is for the object and matches the pattern.
pub(super) fn find_scheduled<'a>(
    emitted: &'a [EmittedEvent],
    object: &str,
    pattern: &impl EventPattern,
) -> Option<&'a EmittedEvent> {
    let matches = |event: &EmittedEvent| {
        event
            .json::<Value>()
            .is_ok_and(|event| pattern.matches(&event))
    };
    let is_scheduled = |event: &&EmittedEvent| {
        event
            .schedule
            .as_ref()
            .is_some_and(|schedule| !schedule.is_cancelled)
    };
    let mut later = emitted.iter().filter(is_scheduled);
    later.find(|event| event.object.as_str() == object && matches(event))
}

/// Returns whether the schedule of the object with this key is cancelled.
pub(super) fn is_cancelled(emitted: &[EmittedEvent], object: &str, key: &str) -> bool {
    emitted.iter().any(|event| {
        let schedule = event.schedule.as_ref();
        event.object.as_str() == object
            && schedule.is_some_and(|schedule| schedule.is_cancelled && schedule.key == key)
    })
}

/// Returns the events as lines of text. The message of a failed assertion shows them.
pub(super) fn shown(emitted: &[EmittedEvent]) -> String {
    let line = |event: &EmittedEvent| {
        let when = event
            .schedule
            .as_ref()
            .map_or_else(String::new, |schedule| {
                let what = if schedule.is_cancelled {
                    "cancelled"
                } else {
                    "later"
                };
                format!("  {what}, key {:?}", schedule.key)
            });
        format!(
            "\n  {}  {}{when}",
            event.object,
            String::from_utf8_lossy(&event.payload)
        )
    };
    if emitted.is_empty() {
        "\n  nothing".to_owned()
    } else {
        emitted.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_json_object_matches_an_event_with_more_members() {
        let event = json!({"type": "paid", "by": {"card": 1, "bank": 2}, "parts": [1, 2]});
        for (pattern, expected) in [
            (json!({}), true),
            (json!({"type": "paid"}), true),
            (json!({"by": {"card": 1}}), true),
            (json!({"by": {"card": 2}}), false),
            (json!({"by": 1}), false),
            (json!({"other": null}), false),
            (json!({"parts": [1, 2]}), true),
            (json!({"parts": [1]}), false),
            (json!("paid"), false),
        ] {
            assert_eq!(pattern.matches(&event), expected, "{pattern}");
        }
    }
}
