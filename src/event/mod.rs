//! What travels: object names, payloads, events and their envelopes.
//!
//! Payloads are bytes from end to end: checked once to be JSON, never decoded into a tree and never
//! encoded again.

#[cfg(feature = "worker")]
mod event_type;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_core::Serialize;
use serde_json::value::RawValue;

#[cfg(feature = "worker")]
pub(crate) use event_type::type_of;

/// The longest object name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// The longest event unless configured otherwise: 1 MiB.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// Ids stay below this, 2^53, so that they are exact in every language's numbers.
pub const ID_END: u64 = 1 << 53;

/// The name of an object: 1 to 512 bytes of UTF-8 without control characters, e.g. `work:1`. Cheap
/// to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName(Arc<str>);

/// Why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("an object name must not be empty")]
    Empty,
    /// The name has more than 512 bytes; the field tells how many.
    #[error("an object name has at most {NAME_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// The name has a control character; the fields tell which, and at which byte.
    #[error("an object name has no control characters, this one has U+{0:04X} at byte {1}")]
    Control(u32, usize),
    /// The name is not UTF-8; the field tells the first bad byte.
    #[error("an object name is UTF-8, this one is not at byte {0}")]
    NotUtf8(usize),
    /// Without a namespace, a name must not begin with a brace, or it could meet the keys of a
    /// namespace.
    #[error("without a namespace, an object name must not begin with '{{': {0:?}; choose another name or use a namespace")]
    Brace(String),
}

impl ObjectName {
    /// Checks a name.
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
    pub fn from_bytes(name: &[u8]) -> Result<Self, NameError> {
        let name = std::str::from_utf8(name).map_err(|e| NameError::NotUtf8(e.valid_up_to()))?;
        Self::new(name)
    }

    /// A name as it was found in Redis. It may break the rules above if another program wrote it;
    /// it is worked on all the same, because refusing it would leave its events behind.
    #[cfg(feature = "worker")]
    pub(crate) fn found(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
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

/// JSON that is text already: it is checked when it is emitted and travels byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    /// Takes JSON text or bytes; nothing is checked yet.
    pub fn new(text: impl Into<Bytes>) -> Self {
        Self(text.into())
    }
}

/// Why an event is refused before anything is sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The bytes are not one JSON document.
    #[error("the event is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The value could not be written as JSON.
    #[error("the event cannot be written as JSON: {0}")]
    Serialize(#[source] serde_json::Error),
    /// The event is larger than the limit.
    #[error("the event has {bytes} bytes, the limit is {bytes_max}")]
    TooLarge {
        /// Size of the event in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
}

/// What can be emitted: a reference to anything that serializes, or [`Json`] that is text already.
pub trait IntoEvent {
    /// The event as JSON bytes of at most `bytes_max`.
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
        return Err(EventError::TooLarge { bytes: event.len(), bytes_max });
    }
    Ok(event)
}

/// Whether the bytes are exactly one JSON document in UTF-8, white space around it allowed. Builds
/// nothing.
pub(crate) fn check_json(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<&RawValue>(bytes).map(|_| ())
}

/// One event as a sink or a consumer sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The event's id: 1 and up, below 2^53, growing along the events of an object.
    pub id: u64,
    /// The id of the object's preceding delivered event; 0 if there was none.
    pub prev: u64,
    /// The object the event belongs to.
    pub object: ObjectName,
    /// The event itself, JSON, byte for byte as it was emitted.
    pub payload: Bytes,
}

impl Event {
    /// Appends the envelope `{"id":12,"prev":7,"object":"work:1","event":{…}}` in one line: CR and
    /// LF inside the payload, where JSON allows them only as white space, become spaces.
    pub fn write_envelope(&self, out: &mut Vec<u8>) {
        use std::io::Write as _;
        // Writing to a Vec and serializing a string cannot fail.
        let _ = write!(out, "{{\"id\":{},\"prev\":{},\"object\":", self.id, self.prev);
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
        let bytes = Json::new("{\"n\": 9007199254740993}").into_event(100).expect("JSON");
        assert_eq!(&bytes[..], b"{\"n\": 9007199254740993}");
        assert!(matches!(Json::new("{").into_event(100), Err(EventError::NotJson(_))));
        assert!(matches!(Json::new("1 2").into_event(100), Err(EventError::NotJson(_))));
        assert!(matches!(Json::new(&b"\"\xff\""[..]).into_event(100), Err(EventError::NotJson(_))));
        assert!(matches!(Json::new("123").into_event(2), Err(EventError::TooLarge { bytes: 3, bytes_max: 2 })));
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
        assert_eq!(out, br#"{"id":12,"prev":7,"object":"work:\"1\"","event":{"a":  1}}"#);
    }
}
