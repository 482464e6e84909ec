//! The effects that a handler outside of this process asks for with its success.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::context::HandlerContext;
use super::failure::Failure;
use crate::event::Json;

/// The effects of an event's success: emits, schedules, cancelled schedules, and a result. A handler
/// outside of this process asks for them in JSON (docs/handlers-protocol.md).
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Effects {
    emit: Vec<Object<Emit>>,
    cancel: Vec<Object<Cancel>>,
    schedule: Vec<Object<Schedule>>,
    /// A result that is null is a result.
    #[serde(deserialize_with = "given")]
    result: Option<Box<RawValue>>,
}

fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// A value that is read from a JSON object only. serde would also take a list of the members.
#[derive(Debug)]
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(OfMap(PhantomData))
    }
}

/// An event to queue.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Emit {
    object: String,
    event: Box<RawValue>,
}

/// A schedule to set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    object: String,
    event: Box<RawValue>,
    key: Option<String>,
    at_ms: Option<u64>,
    after_ms: Option<u64>,
    #[serde(default)]
    mode: Mode,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Replace,
    KeepTime,
    KeepFirst,
}

/// A schedule to cancel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    object: String,
    key: String,
}

impl Effects {
    /// Parses a JSON object with the members `emit`, `schedule`, `cancel` and `result`. All of them are
    /// optional.
    ///
    /// # Errors
    /// If the text is no such object, or has other members.
    pub fn parse(json: &[u8]) -> serde_json::Result<Self> {
        let Object(effects) = serde_json::from_slice(json)?;
        Ok(effects)
    }

    /// Gives the effects to the context of the handler. Cancels come before schedules.
    pub(super) fn give(&self, cx: &HandlerContext) -> Result<(), Failure> {
        let named = |member: &str, at: usize, error: &dyn std::fmt::Display| {
            Failure::transient(format!("the answer has a wrong {member}[{at}]: {error}"))
        };
        for (at, Object(emit)) in self.emit.iter().enumerate() {
            cx.emit(&emit.object, json(&emit.event))
                .map_err(|error| named("emit", at, &error))?;
        }
        for (at, Object(cancel)) in self.cancel.iter().enumerate() {
            cx.cancel_schedule(&cancel.object, &cancel.key)
                .map_err(|error| named("cancel", at, &error))?;
        }
        for (at, Object(wanted)) in self.schedule.iter().enumerate() {
            let mut schedule = cx.schedule(&wanted.object, json(&wanted.event));
            schedule = match (wanted.at_ms, wanted.after_ms) {
                (Some(ms), None) => schedule.at(UNIX_EPOCH + Duration::from_millis(ms)),
                (None, Some(ms)) => schedule.after(Duration::from_millis(ms)),
                _ => {
                    let why = "it needs either at_ms or after_ms";
                    return Err(named("schedule", at, &why));
                }
            };
            schedule = match wanted.mode {
                Mode::Replace => schedule,
                Mode::KeepTime => schedule.keep_time(),
                Mode::KeepFirst => schedule.keep_first(),
            };
            if let Some(key) = &wanted.key {
                schedule = schedule.key(key);
            }
            schedule
                .add()
                .map_err(|error| named("schedule", at, &error))?;
        }
        if let Some(result) = &self.result {
            let refused =
                |error| Failure::transient(format!("the answer has a wrong result: {error}"));
            cx.result(json(result)).map_err(refused)?;
        }
        Ok(())
    }
}

fn json(raw: &RawValue) -> Json {
    Json::new(Bytes::copy_from_slice(raw.get().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_objects() {
        for (json, why) in [
            ("[]", "expected an object"),
            (r#"{"emit":[["a",1]]}"#, "expected an object"),
            (r#"{"cancel":[["a","k"]]}"#, "expected an object"),
            (r#"{"schedule":["a"]}"#, "expected an object"),
            (r#"{"emits":[]}"#, "unknown field `emits`"),
            (r#"{"emit":null}"#, "invalid type: null"),
        ] {
            let error = Effects::parse(json.as_bytes()).expect_err(json).to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
        let event = "{ \"n\": 12345678901234567890 }";
        let json = format!(r#"{{"result":null,"emit":[{{"event":{event},"object":"a"}}]}}"#);
        let effects = Effects::parse(json.as_bytes()).expect("effects");
        assert_eq!(effects.emit[0].0.event.get(), event);
        assert_eq!(effects.result.expect("a result").get(), "null");
    }
}
