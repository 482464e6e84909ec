//! Object names, payloads, events and their envelopes.
//!
//! Payloads stay bytes all the way. They are checked once to be JSON, are never decoded into a
//! tree, and are never encoded again.

mod event_type;
mod pointer;
mod schedule;
mod status;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_core::Serialize;
use serde_json::value::RawValue;

#[doc(hidden)]
pub use event_type::type_of;
pub use pointer::{Pointer, PointerError};
pub(crate) use schedule::object_and_key;
pub use schedule::{DUE_MAX, DueError, SCHEDULE_KEY_BYTES_MAX, ScheduleKey, ScheduleKeyError};
pub(crate) use schedule::{check_after, check_due};
pub use status::EventStatus;

/// The longest object name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// Default limit of the size of an event, in bytes: 1 MiB.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// Upper bound of ids, 2^53. All ids are lower, so they are exact in the numbers of every language.
pub const ID_END: u64 = 1 << 53;

/// The name of an object: 1 to 512 bytes of UTF-8 without control characters, e.g. `work:1`. Clones
/// are cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName(Arc<str>);

/// The reason why a name is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("an object name must not be empty")]
    Empty,
    /// The name has more than 512 bytes; the field is its length.
    #[error("an object name has at most {NAME_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// The name has a control character; the fields are its code point and its byte position.
    #[error("an object name has no control characters, this one has U+{0:04X} at byte {1}")]
    Control(u32, usize),
    /// The name is not UTF-8; the field is the position of the first invalid byte.
    #[error("an object name is UTF-8, this one is invalid at byte {0}")]
    NotUtf8(usize),
    /// The name begins with a brace and there is no namespace. Without a namespace, the keys of
    /// such a name could be keys of a namespace.
    #[error(
        "without a namespace, an object name must not begin with '{{': {0:?}; choose another name or use a namespace"
    )]
    Brace(String),
}

impl ObjectName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NameError`] with the first broken rule.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong(name.len()));
        }
        if let Some((at, c)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NameError::Control(c as u32, at));
        }
        Ok(Self(name.into()))
    }

    /// Checks a name given as bytes.
    ///
    /// # Errors
    /// [`NameError`] with the first broken rule.
    pub fn from_bytes(name: &[u8]) -> Result<Self, NameError> {
        let name = std::str::from_utf8(name).map_err(|e| NameError::NotUtf8(e.valid_up_to()))?;
        Self::new(name)
    }

    /// Returns a name that was found in Redis, without a check. Another program may have written a
    /// name that breaks the rules. Workers still handle such an object, because otherwise its
    /// events would stay in Redis.
    pub(crate) fn found(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for ObjectName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ObjectName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A text that is JSON already. It is checked when it is emitted, and is passed on byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    /// Takes a JSON text or bytes. They are not checked here.
    pub fn new(text: impl Into<Bytes>) -> Self {
        Self(text.into())
    }
}

/// The reason why an event is refused before anything is sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The bytes are not one JSON document.
    #[error("the event is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The value cannot be written as JSON.
    #[error("the event cannot be written as JSON: {0}")]
    Serialize(#[source] serde_json::Error),
    /// The event is larger than the limit.
    #[error("the event has {bytes} bytes, the limit is {bytes_max}")]
    TooLarge {
        /// The size of the event in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
}

/// A value that can be emitted: a reference to a value of any serializable type, or [`Json`] for
/// text that is JSON already.
pub trait IntoEvent {
    /// Returns the event as JSON bytes.
    ///
    /// # Errors
    /// [`EventError`] if the value is not JSON or has more than `bytes_max` bytes.
    fn into_event(self, bytes_max: usize) -> Result<Bytes, EventError>;
}

impl<T: Serialize + ?Sized> IntoEvent for &T {
    fn into_event(self, bytes_max: usize) -> Result<Bytes, EventError> {
        let bytes = serde_json::to_vec(self).map_err(EventError::Serialize)?;
        within(bytes.into(), bytes_max)
    }
}

impl IntoEvent for Json {
    fn into_event(self, bytes_max: usize) -> Result<Bytes, EventError> {
        let bytes = within(self.0, bytes_max)?;
        check_json(&bytes).map_err(EventError::NotJson)?;
        Ok(bytes)
    }
}

fn within(event: Bytes, bytes_max: usize) -> Result<Bytes, EventError> {
    if event.len() > bytes_max {
        return Err(EventError::TooLarge {
            bytes: event.len(),
            bytes_max,
        });
    }
    Ok(event)
}

/// Checks that the bytes are exactly one JSON document in UTF-8. White space around it is allowed.
/// No tree is built.
pub(crate) fn check_json(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<&RawValue>(bytes).map(|_| ())
}

/// An event as a sink or a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The event's id, from 1 to below 2^53. Within an object, ids grow.
    pub id: u64,
    /// The id of the object's event that was delivered last before this one; 0 if there is none.
    pub prev: u64,
    /// The object of the event.
    pub object: ObjectName,
    /// The event as JSON, byte for byte as it was emitted.
    pub payload: Bytes,
}

impl Event {
    /// Appends the envelope `{"id":12,"prev":7,"object":"work:1","event":{…}}` in one line. CR and
    /// LF inside the payload become spaces. This is safe, because JSON allows CR and LF only as
    /// white space.
    pub fn write_envelope(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        // Writing to a Vec and serializing a string cannot fail.
        let _ = write!(
            out,
            "{{\"id\":{},\"prev\":{},\"object\":",
            self.id, self.prev
        );
        let _ = serde_json::to_writer(&mut *out, self.object.as_str());
        out.extend_from_slice(b",\"event\":");
        let start = out.len();
        out.extend_from_slice(&self.payload);
        for byte in &mut out[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", NameError::Empty)]
    #[case("a\nb", NameError::Control(10, 1))]
    #[case("a\u{85}", NameError::Control(0x85, 1))]
    #[case(&"x".repeat(513), NameError::TooLong(513))]
    fn bad_names_are_refused(#[case] name: &str, #[case] why: NameError) {
        assert_eq!(ObjectName::new(name), Err(why));
    }

    #[test]
    fn names_may_hold_colons_braces_and_any_letter() {
        for name in ["work:1", "a}b{", "é:日本", &"x".repeat(512)] {
            assert_eq!(ObjectName::new(name).expect("valid").as_str(), name);
        }
        assert_eq!(ObjectName::from_bytes(b"a\xff"), Err(NameError::NotUtf8(1)));
    }

    #[test]
    fn text_is_checked_and_kept_as_it_is() {
        let bytes = Json::new("{\"n\": 9007199254740993}")
            .into_event(100)
            .expect("JSON");
        assert_eq!(&bytes[..], b"{\"n\": 9007199254740993}");
        assert!(matches!(
            Json::new("{").into_event(100),
            Err(EventError::NotJson(_))
        ));
        assert!(matches!(
            Json::new("1 2").into_event(100),
            Err(EventError::NotJson(_))
        ));
        assert!(matches!(
            Json::new(&b"\"\xff\""[..]).into_event(100),
            Err(EventError::NotJson(_))
        ));
        assert!(matches!(
            Json::new("123").into_event(2),
            Err(EventError::TooLarge {
                bytes: 3,
                bytes_max: 2
            })
        ));
    }

    #[test]
    fn an_envelope_is_one_line() {
        let event = Event {
            id: 12,
            prev: 7,
            object: ObjectName::new("work:\"1\"").expect("valid"),
            payload: Bytes::from_static(b"{\"a\":\r\n1}"),
        };
        let mut out = Vec::new();
        event.write_envelope(&mut out);
        assert_eq!(
            out,
            br#"{"id":12,"prev":7,"object":"work:\"1\"","event":{"a":  1}}"#
        );
    }
}
