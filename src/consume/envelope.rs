//! The envelope that a consumer reads: `{"id":12,"prev":7,"object":"work:1","event":{…}}`.

use std::borrow::Cow;
use std::fmt;

use serde_core::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{NumbersError, check_numbers};

/// An envelope. It borrows from the bytes from which it was parsed. Its numbers are valid:
/// `1 <= id < 2^53` and `prev < id`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Envelope<'a> {
    /// The event's id.
    pub id: u64,
    /// The id of the object's event that was delivered last before this one; 0 if there is none.
    pub prev: u64,
    /// The name of the object. It is borrowed unless the JSON has escapes.
    pub object: Cow<'a, str>,
    /// The event as JSON, byte for byte. `serde_json::from_str(envelope.event.get())` decodes it.
    pub event: &'a RawValue,
}

/// The reason why bytes are not an envelope.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The bytes are not one JSON object, or a member has the wrong type. `id` and `prev` must be
    /// whole numbers that are not negative; `object` must be a string.
    #[error("not an envelope: {0}")]
    Json(#[source] serde_json::Error),
    /// A member is absent.
    #[error("not an envelope: the member {0:?} is missing")]
    Missing(&'static str),
    /// The id and `prev` are invalid.
    #[error("not an envelope: {0}")]
    Numbers(#[source] NumbersError),
}

impl<'a> Envelope<'a> {
    /// Parses one envelope. White space around the envelope, such as a line end, is allowed.
    /// Unknown members are ignored. If a member occurs twice, the last one counts, as in the JSON
    /// parsers of most languages. The call copies no bytes, unless `object` has escapes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, EnvelopeError> {
        let members: Members<'a> = serde_json::from_slice(bytes).map_err(EnvelopeError::Json)?;
        let id = members.id.ok_or(EnvelopeError::Missing("id"))?;
        let prev = members.prev.ok_or(EnvelopeError::Missing("prev"))?;
        let object = members.object.ok_or(EnvelopeError::Missing("object"))?.0;
        let event = members.event.ok_or(EnvelopeError::Missing("event"))?;
        check_numbers(id, prev).map_err(EnvelopeError::Numbers)?;
        Ok(Self {
            id,
            prev,
            object,
            event,
        })
    }
}

/// The members found so far. The parser is written by hand, not derived, because a consumer may use
/// the crate without the worker. In this form the crate compiles no proc macro of serde.
#[derive(Default)]
struct Members<'a> {
    id: Option<u64>,
    prev: Option<u64>,
    object: Option<Text<'a>>,
    event: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the members id, prev, object and event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Members::default();
        while let Some(member) = map.next_key()? {
            match member {
                Member::Id => members.id = Some(map.next_value()?),
                Member::Prev => members.prev = Some(map.next_value()?),
                Member::Object => members.object = Some(map.next_value()?),
                Member::Event => members.event = Some(map.next_value()?),
                Member::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(members)
    }
}

/// The name of a member. In the JSON it may be written with or without escapes.
enum Member {
    Id,
    Prev,
    Object,
    Event,
    Unknown,
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_identifier(MemberVisitor)
    }
}

struct MemberVisitor;

impl Visitor<'_> for MemberVisitor {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> Result<Member, E> {
        Ok(match name {
            "id" => Member::Id,
            "prev" => Member::Prev,
            "object" => Member::Object,
            "event" => Member::Event,
            _ => Member::Unknown,
        })
    }
}

/// A string that is borrowed if it has no escapes. (`Cow` itself always copies.)
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, ID_END, ObjectName};
    use proptest::prelude::*;
    use rstest::rstest;

    #[test]
    fn members_come_in_any_order_and_unknown_ones_are_ignored() {
        let text = br#" {"event": {"a" : [1]} ,"new":{"id":3},"object":"work:1","prev":7,"id":12,"x":null} "#;
        let envelope = Envelope::parse(text).expect("an envelope");
        assert_eq!((envelope.id, envelope.prev), (12, 7));
        assert!(matches!(envelope.object, Cow::Borrowed("work:1")));
        assert_eq!(envelope.event.get(), r#"{"a" : [1]}"#);
    }

    #[test]
    fn escapes_are_undone_in_names_of_members_and_objects() {
        let text = br#"{"\u0069d":1,"prev":0,"object":"a\"\\\u00e9\ud83d\ude00","event":"\u0061"}"#;
        let envelope = Envelope::parse(text).expect("an envelope");
        assert_eq!((envelope.id, &*envelope.object), (1, "a\"\\é😀"));
        assert_eq!(envelope.event.get(), r#""\u0061""#);
    }

    #[test]
    fn of_a_member_that_is_there_twice_the_last_counts() {
        let text =
            br#"{"id":1,"prev":9,"object":"a","event":1,"object":"b","id":3,"prev":2,"event":2}"#;
        let envelope = Envelope::parse(text).expect("an envelope");
        assert_eq!(
            (
                envelope.id,
                envelope.prev,
                &*envelope.object,
                envelope.event.get()
            ),
            (3, 2, "b", "2")
        );
    }

    #[rstest]
    #[case(
        r#"{"prev":0,"object":"a","event":1}"#,
        r#"the member "id" is missing"#
    )]
    #[case(
        r#"{"id":1,"object":"a","event":1}"#,
        r#"the member "prev" is missing"#
    )]
    #[case(r#"{"id":1,"prev":0,"event":1}"#, r#"the member "object" is missing"#)]
    #[case(
        r#"{"id":1,"prev":0,"object":"a"}"#,
        r#"the member "event" is missing"#
    )]
    #[case(
        r#"{"id":0,"prev":0,"object":"a","event":1}"#,
        "an event's id is at least 1"
    )]
    #[case(
        r#"{"id":9007199254740992,"prev":0,"object":"a","event":1}"#,
        "below 2^53"
    )]
    #[case(r#"{"id":3,"prev":3,"object":"a","event":1}"#, "prev is 3 and id is 3")]
    #[case(
        r#"{"id":-1,"prev":0,"object":"a","event":1}"#,
        "invalid value: integer `-1`"
    )]
    #[case(
        r#"{"id":1.0,"prev":0,"object":"a","event":1}"#,
        "invalid type: floating point"
    )]
    #[case(
        r#"{"id":18446744073709551616,"prev":0,"object":"a","event":1}"#,
        "invalid type: floating point"
    )]
    #[case(
        r#"{"id":"1","prev":0,"object":"a","event":1}"#,
        "invalid type: string"
    )]
    #[case(r#"{"id":null,"prev":0,"object":"a","event":1}"#, "invalid type: null")]
    #[case(r#"{"id":1,"prev":0,"object":7,"event":1}"#, "invalid type: integer")]
    #[case(r#"{"id":1,"prev":0,"object":"\ud800","event":1}"#, "not an envelope")]
    #[case(r#"{"id":1,"prev":0,"object":"a","event":1"#, "EOF")]
    #[case(r#"{"id":1,"prev":0,"object":"a","event":1}{}"#, "trailing characters")]
    #[case(r#"[1,0,"a",1]"#, "invalid type: sequence")]
    #[case("", "EOF")]
    fn what_is_no_envelope_is_told_why(#[case] text: &str, #[case] why: &str) {
        let error = Envelope::parse(text.as_bytes())
            .expect_err("no envelope")
            .to_string();
        assert!(
            error.starts_with("not an envelope: ") || why == "not an envelope",
            "{error}"
        );
        assert!(error.contains(why), "{error:?} should say {why:?}");
    }

    #[test]
    fn bad_utf8_and_deep_events_do_no_harm() {
        assert!(Envelope::parse(b"{\"id\":1,\"prev\":0,\"object\":\"\xff\",\"event\":1}").is_err());
        assert!(
            Envelope::parse(b"{\"id\":1,\"prev\":0,\"object\":\"a\",\"event\":\"\xff\"}").is_err()
        );
        let deep = format!(
            "{{\"id\":1,\"prev\":0,\"object\":\"a\",\"event\":{}{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(
            Envelope::parse(deep.as_bytes())
                .expect("an envelope")
                .event
                .get()
                .len(),
            200_000
        );
    }

    proptest! {
        #[test]
        fn what_a_sink_writes_is_read_back(id in 1..ID_END, back in 1..ID_END, object in "\\PC{1,40}", text in ".*") {
            let payload = serde_json::to_vec(&text).expect("JSON");
            let object = ObjectName::new(object).expect("a name");
            let event = Event { id, prev: id.saturating_sub(back), object, payload: payload.into() };
            let mut line = Vec::new();
            event.write_envelope(&mut line);
            line.push(b'\n');
            let envelope = Envelope::parse(&line).expect("an envelope");
            prop_assert_eq!((envelope.id, envelope.prev, &*envelope.object), (event.id, event.prev, event.object.as_str()));
            prop_assert_eq!(envelope.event.get().as_bytes(), &event.payload[..]);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Envelope::parse(&bytes);
        }
    }
}
