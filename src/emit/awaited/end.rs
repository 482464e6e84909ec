//! The end of an event, and the errors of a wait for it.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::RedisError;
use serde_core::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::connection::errors::describe;
use crate::emit::EmitError;
use crate::escape;
use crate::event::{EventStatus, NameError, ObjectName, ScheduleKeyError};

/// How an awaited event ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventEnd {
    /// The id of the event. `None` if an operator has cancelled the event before a worker took it.
    pub id: Option<u64>,
    /// How it ended. Only [`Completed`](EventStatus::Completed) events were delivered.
    pub status: EventStatus,
    /// The last error; `None` if the event was delivered.
    pub error: Option<String>,
    /// The number of failed attempts.
    pub attempts: u64,
    /// The results of its handlers, as one JSON object by handler id. `None` if they have set none.
    pub results: Option<String>,
}

/// The reason why a wait for the end of an event has failed. The event goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The object's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name of the event is invalid.
    #[error(transparent)]
    Key(#[from] ScheduleKeyError),
    /// The event has not ended in time, or its end is forgotten, or no emit with this name was
    /// awaited.
    #[error(
        "no end of event {name:?} of {} after {within:?}{}: wait again, or look at the object with `seriatim inspect`",
        escape::name(.object.as_str()), .unreachable.as_ref().map_or_else(String::new, |error| format!(" ({})", describe(error)))
    )]
    TimedOut {
        /// The object.
        object: ObjectName,
        /// The name of the event.
        name: String,
        /// The time of the wait.
        within: Duration,
        /// The last error, if Redis could not be asked at the end of this time.
        unreachable: Option<RedisError>,
    },
    /// Redis refuses to tell the end: the user lacks the right to `MGET`.
    #[error("Redis refuses to tell the end of an event: {}", describe(.0))]
    Refused(RedisError),
}

/// The reason why [`Emitter::call`](crate::Emitter::call) has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The event is not queued, or that is unknown.
    #[error("{error} (event {name:?})")]
    Emit {
        /// The name of the event. If the event is queued, [`end_of`](crate::Emitter::end_of) waits for
        /// its end.
        name: String,
        /// The error of the emit.
        #[source]
        error: EmitError,
    },
    /// The event had not ended in time. It goes on.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The event has ended, but was not delivered.
    #[error(
        "event {name:?} of {} is {}: {}",
        escape::name(.object.as_str()), .end.status, .end.error.as_deref().unwrap_or("without an error")
    )]
    Ended {
        /// The object.
        object: ObjectName,
        /// The name of the event.
        name: String,
        /// How the event has ended.
        end: Box<EventEnd>,
    },
    /// The event was delivered, but its result is not of the wanted type.
    #[error(
        "event {name:?} of {} was delivered, but its result cannot be read: {error}",
        escape::name(.object.as_str())
    )]
    Result {
        /// The object.
        object: ObjectName,
        /// The name of the event.
        name: String,
        /// The error of the conversion.
        #[source]
        error: serde_json::Error,
    },
}

impl EventEnd {
    /// Reads the value of the key. Returns `None` if the event has not ended.
    pub(super) fn of(value: &[u8]) -> Option<Self> {
        if value.starts_with(b"?") {
            return None;
        }
        let text = String::from_utf8_lossy(value);
        let members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_str(&text).unwrap_or_default();
        let member = |name: &str| members.get(name).map(|member| member.get());
        let number = |name: &str| member(name)?.parse::<u64>().ok();
        let string = |name: &str| serde_json::from_str(member(name)?).ok();
        Some(Self {
            id: number("id").filter(|id| *id > 0),
            status: EventStatus::of(string("status").unwrap_or_default()),
            error: string("error"),
            attempts: number("attempts").unwrap_or(0),
            results: member("results").map(str::to_owned),
        })
    }

    /// Returns the result of the event's only handler with a result; `null` if none has set one. If
    /// several handlers have set results, this is the JSON object of all, by handler id.
    ///
    /// # Errors
    /// The result is not of type `T`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let Some(results) = &self.results else {
            return serde_json::from_str("null");
        };
        let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(results)?;
        let mut values = members.values();
        match (values.next(), values.next()) {
            (Some(only), None) => serde_json::from_str(only.get()),
            _ => serde_json::from_str(results),
        }
    }

    /// Returns the result, if the event was delivered. `object` and `name` are those of the event.
    pub(super) fn into_result<T: DeserializeOwned>(
        self,
        object: &ObjectName,
        name: &str,
    ) -> Result<T, CallError> {
        let (object, name) = (object.clone(), name.to_owned());
        if self.status == EventStatus::Completed {
            self.result().map_err(|error| CallError::Result {
                object,
                name,
                error,
            })
        } else {
            Err(CallError::Ended {
                object,
                name,
                end: Box::new(self),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end(text: &str) -> EventEnd {
        EventEnd::of(text.as_bytes()).expect("an end")
    }

    #[test]
    fn the_result_is_that_of_the_only_handler_that_has_set_one() {
        let of = |results: &str| end(&format!(r#"{{"status":"completed"{results}}}"#));
        let result = |end: &EventEnd| end.result::<Value>().expect("a result");
        assert_eq!(result(&of("")), Value::Null);
        let one = of(r#","results":{"pay":{"n":7}}"#);
        assert_eq!(result(&one), json!({"n": 7}));
        let two = of(r#","results":{"a":1,"b":2}"#);
        assert_eq!(result(&two), json!({"a": 1, "b": 2}));
        let text = of(r#","results":{"pay":"text"}"#);
        assert!(text.result::<u64>().is_err());
    }

    #[test]
    fn an_event_that_was_not_delivered_has_no_result() {
        let end = end(r#"{"status":"dead","id":12,"attempts":3,"error":"no \/ card","later":[1]}"#);
        let object = ObjectName::new("work:1").expect("a name");
        let failed = end.into_result::<Value>(&object, "k");
        let failed = failed.expect_err("it is dead");
        assert_eq!(
            failed.to_string(),
            r#"event "k" of work:1 is dead: no / card"#
        );
        let CallError::Ended { end, .. } = failed else {
            panic!("{failed}");
        };
        assert_eq!((end.id, end.attempts), (Some(12), 3));
    }

    /// A value that somebody else has written ends the wait. Its status is not known.
    #[test]
    fn any_value_but_a_question_mark_is_an_end() {
        assert_eq!(EventEnd::of(b"?ab12"), None);
        assert_eq!(EventEnd::of(b"?"), None);
        assert_eq!(end("x").status, EventStatus::Other(String::new()));
    }
}
