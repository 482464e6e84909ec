//! The type of an event.

use std::borrow::Cow;
use std::fmt;

use serde_core::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Returns the type of an event: its top-level member `type`. None if this member is not a string.
/// If the member occurs twice, the last one counts. The event is read once, and no tree is built.
pub fn type_of(payload: &[u8]) -> Option<String> {
    let Typed(raw) = serde_json::from_slice(payload).ok()?;
    serde_json::from_str(raw?.get()).ok()
}

struct Typed<'a>(Option<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Typed<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TypedVisitor)
    }
}

struct TypedVisitor;

impl<'de> Visitor<'de> for TypedVisitor {
    type Value = Typed<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Typed<'de>, A::Error> {
        let mut found = None;
        while let Some(member) = map.next_key::<Cow<'de, str>>()? {
            match &*member {
                "type" => found = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Typed(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_event_is_its_member_type() {
        for (payload, found) in [
            (r#"{"type":"moved"}"#, Some("moved")),
            (
                r#" {"a":{"type":"no"},"type":"mo\u0076ed","b":[1e400]} "#,
                Some("moved"),
            ),
            (r#"{"\u0074ype":"moved"}"#, Some("moved")),
            (r#"{"type":"created","type":"moved"}"#, Some("moved")),
            (r#"{"type":7}"#, None),
            (r#"{"Type":"moved"}"#, None),
            (r#"["type"]"#, None),
            (r#""type""#, None),
            ("{", None),
            ("", None),
        ] {
            assert_eq!(type_of(payload.as_bytes()).as_deref(), found, "{payload}");
        }
    }
}
