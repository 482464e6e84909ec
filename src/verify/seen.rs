//! The data that is stored of each judged line.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher as _};

/// One of the judged files, returned by [`Judge::file`](super::Judge::file).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(super) u32);

/// The place of a line: its file, and its number in the file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineAt {
    pub(super) file: FileId,
    pub(super) line: u32,
}

/// A hash of an event, which is stored instead of the event. It has 128 bits, so two different
/// events do not get the same hash by accident.
pub(super) type Print = [u64; 2];

/// One send of one event, which is one line of an output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) id: u64,
    pub(super) prev: u64,
    pub(super) print: Print,
    pub(super) object: u32,
    pub(super) place: LineAt,
    /// Whether the id is higher than all ids of this object on earlier lines of the same file.
    pub(super) in_time: bool,
}

/// One dead letter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dead {
    pub(super) id: u64,
    pub(super) print: Print,
    pub(super) object: u32,
    pub(super) place: LineAt,
}

/// One event of the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) print: Print,
    pub(super) object: u32,
    pub(super) place: LineAt,
}

pub(super) fn place(file: FileId, line: u64) -> LineAt {
    LineAt {
        file,
        line: u32::try_from(line).unwrap_or(u32::MAX),
    }
}

/// Returns the hash of an event. In an output, line breaks of an event are replaced by spaces. The
/// hash of an event is the same with line breaks and with spaces.
pub(super) fn print(event: &[u8]) -> Print {
    let event = event.trim_ascii();
    let one_line: Cow<'_, [u8]> = if event.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        event
            .iter()
            .map(|byte| {
                if matches!(byte, b'\r' | b'\n') {
                    b' '
                } else {
                    *byte
                }
            })
            .collect()
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
