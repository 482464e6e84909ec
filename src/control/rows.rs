//! The parts that the rows of streams and lists share: the event, and the fields of a row in Redis.

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::value::RawValue;

use crate::escape;

/// The event of a row, as far as it was read.
///
/// It serializes as the member `event` of its row. The JSON is as it was emitted, with one change:
/// CR and LF, which JSON allows only as white space, become spaces. So a row stays on one line. If
/// the event is not JSON, `event_text` has it instead of `event`. If it is not UTF-8, `event_hex`
/// has it.
///
/// If only the beginning was read, `event_text` or `event_hex` has it, and `event_bytes` has the
/// length of the whole event. A beginning is never written as JSON, because the beginning of a
/// number is another number. If nothing was read, `event` is `null`, and `event_bytes` has the
/// length.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowEvent {
    /// The event, byte for byte.
    Whole(Vec<u8>),
    /// The beginning of the event.
    Beginning {
        /// The first bytes.
        bytes: Vec<u8>,
        /// Length of the whole event in bytes.
        whole_bytes: u64,
    },
    /// The event is too large for the list.
    LeftOut {
        /// Length of the event in bytes; none if the row is broken.
        whole_bytes: Option<u64>,
    },
}

impl RowEvent {
    /// Returns the event with these bytes. They are only its beginning if the whole event is
    /// longer.
    pub fn new(bytes: Vec<u8>, whole_bytes: Option<u64>) -> Self {
        match whole_bytes.filter(|whole| *whole > bytes.len() as u64) {
            Some(whole_bytes) => Self::Beginning { bytes, whole_bytes },
            None => Self::Whole(bytes),
        }
    }

    /// Returns the bytes that were read; none if the event is left out.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) | Self::Beginning { bytes, .. } => bytes,
            Self::LeftOut { .. } => &[],
        }
    }

    /// Returns the bytes that were read, to replace them.
    pub fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Self::Whole(bytes) | Self::Beginning { bytes, .. } => Some(bytes),
            Self::LeftOut { .. } => None,
        }
    }

    /// Returns the bytes that were read, as owned bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Whole(bytes) | Self::Beginning { bytes, .. } => bytes,
            Self::LeftOut { .. } => Vec::new(),
        }
    }

    /// Returns the length of the whole event, if the row does not have all of it.
    pub fn whole_bytes(&self) -> Option<u64> {
        match self {
            Self::Whole(_) => None,
            Self::Beginning { whole_bytes, .. } => Some(*whole_bytes),
            Self::LeftOut { whole_bytes } => *whole_bytes,
        }
    }

    /// Returns whether the row has the whole event.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// Returns the event if these are all its bytes.
    pub(super) fn if_whole(bytes: Vec<u8>, whole_bytes: Option<u64>) -> Self {
        match whole_bytes {
            Some(length) if length == bytes.len() as u64 => Self::Whole(bytes),
            whole_bytes => Self::LeftOut { whole_bytes },
        }
    }
}

impl Serialize for RowEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        let one_line = |bytes: &[u8]| -> Vec<u8> {
            let plain = |byte: &u8| {
                if matches!(byte, b'\r' | b'\n') {
                    b' '
                } else {
                    *byte
                }
            };
            bytes.iter().map(plain).collect()
        };
        match self {
            Self::LeftOut { .. } => line.serialize_entry("event", &None::<()>)?,
            Self::Whole(bytes) | Self::Beginning { bytes, .. } => {
                if let (true, Ok(event)) = (
                    self.is_whole(),
                    serde_json::from_slice::<&RawValue>(&one_line(bytes)),
                ) {
                    line.serialize_entry("event", event)?;
                } else if let Ok(text) = std::str::from_utf8(bytes) {
                    line.serialize_entry("event_text", text)?;
                } else {
                    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    line.serialize_entry("event_hex", &hex)?;
                }
            }
        }
        if !self.is_whole() {
            line.serialize_entry("event_bytes", &self.whole_bytes())?;
        }
        line.end()
    }
}

/// Serializes the event of a row; `null` if the row has none.
pub(super) fn or_null<S: Serializer>(
    event: &Option<RowEvent>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match event {
        Some(event) => event.serialize(serializer),
        None => serializer.collect_map([("event", None::<()>)]),
    }
}

/// The fields of a row of a stream, by name. If a row has a field more than once, the last one
/// counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(pub(super) Vec<(String, Vec<u8>)>);

impl Fields {
    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        let of_name = self.0.iter().rev().find(|(field, _)| field == name);
        of_name.map(|(_, value)| value.as_slice())
    }

    /// Returns the field as text. Bytes that are not UTF-8 become U+FFFD.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.bytes(name)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Returns the field as text; none if it is empty.
    pub(super) fn filled(&self, name: &str) -> Option<String> {
        self.text(name).filter(|text| !text.is_empty())
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns the [escaped](crate::escape::name) form of the field, if it differs.
    pub(super) fn escaped(&self, name: &str) -> Option<String> {
        self.bytes(name).and_then(escape::differing)
    }

    /// Returns the event. The field `event_bytes` has the length of the whole event, if the field
    /// `event` is only its beginning. Another program may have written any number there.
    pub(super) fn event(&self) -> Option<RowEvent> {
        let bytes = self.bytes("event")?.to_vec();
        Some(RowEvent::new(bytes, self.number("event_bytes")))
    }
}
