//! What is kept of the lines that are judged.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher as _};

/// One of the files that are judged, as [`Judge::file`](super::Judge::file) names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(super) u32);

/// Where something was read: a file and a line, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) file: FileId,
    pub(super) line: u32,
}

/// What is kept of an event instead of its bytes. 128 bits: two events that differ do not meet by
/// accident.
pub(super) type Print = [u64; 2];

/// One send of one event, as one line of an output shows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) id: u64,
    pub(super) prev: u64,
    pub(super) print: Print,
    pub(super) object: u32,
    pub(super) place: Place,
    /// Whether the id was above all ids of the object before it in its file.
    pub(super) in_time: bool,
}

/// One dead letter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dead {
    pub(super) id: u64,
    pub(super) print: Print,
    pub(super) object: u32,
    pub(super) place: Place,
}

/// One event of the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) print: Print,
    pub(super) object: u32,
    pub(super) place: Place,
}

pub(super) fn place(file: FileId, line: u64) -> Place {
    Place { file, line: u32::try_from(line).unwrap_or(u32::MAX) }
}

/// The print of an event, the same for the event as it was emitted and as it stands in an output,
/// where line breaks are spaces.
pub(super) fn print(event: &[u8]) -> Print {
    let event = event.trim_ascii();
    let one_line: Cow<'_, [u8]> = if event.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        event.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }).collect()
    } else {
        event.into()
    };
    [0x5e, 0xa1].map(|seed| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed);
        hasher.write(&one_line);
        hasher.finish()
    })
}
