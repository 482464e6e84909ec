//! Judges the outputs of any number of workers. If the input is available, compares them with it.
//!
//! An output consists of lines with one envelope each. The outputs are judged in two ways:
//!
//! - *within one file*, in the order of its lines, as a receiver of that file alone sees them. The
//!   ids of an object grow. An event that comes again is a duplicate, which the receiver's rule
//!   drops. An event with a late id is a duplicate only if the event came in time elsewhere, in
//!   this file or in another one. Otherwise the receiver has lost the event, and the event counts
//!   as reordered.
//! - *across all files*, by id. The events of an object form one chain that starts at 0, in which
//!   `prev` is the id of the event before. If an object was forgotten, its chain begins anew with
//!   `prev` 0. New chains are counted; they are faults only if the caller declares that no object
//!   was forgotten.
//!
//! With the input, the chain of each object must also equal the input's lines of that object, one
//! by one, byte for byte. Real input has equal events, so sequences are compared, not sets. If an
//! event is a dead letter, it may be absent from the outputs.
//!
//! Payloads are not stored: an event costs about 50 bytes, so millions of events fit into memory.

mod align;
mod chain;
mod history;
mod report;
mod seen;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use history::{Faults, History, HistoryExample, HistoryKind, HistoryLineError, HistoryReport};
pub use report::{Example, Kind, Report};
pub use seen::FileId;

use report::{Findings, Totals};
use seen::{Dead, Expected, Sent, place, print};

use crate::consume::{self, Envelope, EnvelopeError, Verdict};

/// The reason why a line of dead letters is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLineError {
    /// The line is not a JSON object with `id` and `object`.
    #[error("this is not a dead letter as `seriatim dead list --json` prints it: {0}")]
    NotDead(#[source] serde_json::Error),
    /// The line has none of `event`, `event_text` and `event_hex`.
    #[error("this dead letter has none of \"event\", \"event_text\" and \"event_hex\"")]
    NoEvent,
    /// `event_hex` is not an even number of hex digits.
    #[error("the \"event_hex\" of this dead letter is not pairs of hex digits")]
    NotHex,
}

#[derive(Deserialize)]
struct DeadLine<'a> {
    /// The id; `null` if another program added the entry.
    id: Option<u64>,
    #[serde(borrow)]
    object: Cow<'a, str>,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
    #[serde(borrow, default)]
    event_text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    event_hex: Option<Cow<'a, str>>,
}

/// Collects outputs, dead letters and the input, in any order. [`Judge::finish`] judges them.
#[derive(Debug, Default)]
pub struct Judge {
    files: Vec<String>,
    objects: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    /// Highest id of each object so far, in each file.
    highest: HashMap<(FileId, u32), u64>,
    sent: Vec<Sent>,
    dead: Vec<Dead>,
    /// The input; `None` if the outputs are judged without one.
    expected: Option<Vec<Expected>>,
    findings: Findings,
    never_forgotten: bool,
}

impl Judge {
    /// Makes a judge without data.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file. Its lines are added later. The name is only used in reports.
    pub fn file(&mut self, name: impl Into<String>) -> FileId {
        self.files.push(name.into());
        FileId(u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX))
    }

    /// Adds one line of an output, without its line break. Returns whether the line is an envelope.
    /// The lines of one file must be added in their order. `line` is the number of the line,
    /// counted from 1. `ended` is false for a last line without a line break, which a worker leaves
    /// if it dies while writing. If such a line is not a whole envelope, it is reported as torn and
    /// is not a fault. Empty lines are skipped.
    pub fn output(&mut self, file: FileId, line: u64, text: &[u8], ended: bool) -> bool {
        let place = place(file, line);
        if text.trim_ascii().is_empty() {
            return true;
        }
        let Envelope {
            id,
            prev,
            object,
            event,
        } = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Json(_) | EnvelopeError::Missing(_)) if !ended => {
                self.findings.add(Kind::Torn, place, || {
                    "the last line was not written to its end".to_owned()
                });
                return false;
            }
            Err(error) => {
                // The error names line 1, because each line is parsed alone. The number of the line
                // in the file is printed beside it.
                self.findings.add(Kind::Malformed, place, || {
                    error.to_string().replace(" at line 1 ", " at ")
                });
                return false;
            }
        };
        let object = self.object(&object);
        let highest = self.highest.entry((file, object)).or_default();
        // The receiver's own rule decides this. If the rule drops the event as a duplicate, the
        // event did not come in time in this file.
        let in_time = consume::judge(*highest, id, prev) != Ok(Verdict::Duplicate);
        *highest = id.max(*highest);
        self.sent.push(Sent {
            id,
            prev,
            print: print(event.get().as_bytes()),
            object,
            place,
            in_time,
        });
        true
    }

    /// Adds one line of `seriatim dead list --json`. The event of this dead letter may be absent
    /// from the outputs. If the dead letter has the id `null`, because another program has added
    /// it, it is ignored.
    ///
    /// # Errors
    ///
    /// The line is not a dead letter. Such a line is ignored.
    pub fn dead(&mut self, file: FileId, line: u64, text: &[u8]) -> Result<(), DeadLineError> {
        let dead: DeadLine<'_> = serde_json::from_slice(text).map_err(DeadLineError::NotDead)?;
        let print = match (dead.event, &dead.event_text, &dead.event_hex) {
            (Some(event), _, _) => print(event.get().as_bytes()),
            (None, Some(text), _) => print(text.as_bytes()),
            (None, None, Some(hex)) => print(&unhex(hex).ok_or(DeadLineError::NotHex)?),
            (None, None, None) => return Err(DeadLineError::NoEvent),
        };
        if let Some(id) = dead.id {
            let object = self.object(&dead.object);
            self.dead.push(Dead {
                id,
                print,
                object,
                place: place(file, line),
            });
        }
        Ok(())
    }

    /// Declares that no object was ever forgotten. After this, an event with `prev` 0 that comes
    /// after other events of its object is a fork, not the begin of a new chain.
    pub fn never_forgotten(&mut self) {
        self.never_forgotten = true;
    }

    /// Declares that the outputs are to be compared with an input, even if this input is empty.
    pub fn against_input(&mut self) {
        self.expected.get_or_insert_default();
    }

    /// Adds one event of the input. The events of one object must be added in the order of their
    /// emits.
    pub fn expect(&mut self, file: FileId, line: u64, object: &str, event: &[u8]) {
        let object = self.object(object);
        let expected = Expected {
            print: print(event),
            object,
            place: place(file, line),
        };
        self.expected.get_or_insert_default().push(expected);
    }

    /// Judges all lines.
    pub fn finish(mut self) -> Report {
        let objects = self.names.len();
        self.sent
            .sort_unstable_by_key(|sent| (sent.object, sent.id, sent.place));
        // If the dead letters list the same event twice, the first entry counts.
        self.dead
            .sort_unstable_by_key(|dead| (dead.object, dead.id, dead.place));
        self.dead.dedup_by_key(|dead| (dead.object, dead.id));
        let mut expected = self.expected.take();
        if let Some(expected) = &mut expected {
            expected.sort_unstable_by_key(|expected| (expected.object, expected.place));
        }
        let mut totals = Totals::default();
        chain::ids_of_two_objects(&self.sent, &self.dead, &self.names, &mut self.findings);
        for object in 0..objects as u32 {
            let sent = run(&self.sent, object, |sent| sent.object);
            let dead = run(&self.dead, object, |dead| dead.object);
            let name = &self.names[object as usize];
            let missing = chain::judge(
                name,
                sent,
                dead,
                self.never_forgotten,
                &mut totals,
                &mut self.findings,
            );
            let mut lost = 0;
            if let Some(expected) = &expected {
                let expected = run(expected, object, |expected| expected.object);
                lost = align::judge(name, sent, dead, expected, &self.files, &mut self.findings);
            }
            // A missing event is found twice: by its `prev` in the chain, and in the comparison
            // with the input. It counts once.
            for gap in missing.into_iter().skip(lost) {
                self.findings.add(Kind::Lost, gap.place, || {
                    format!(
                        "{name}: id {} follows id {}, which is in no output",
                        gap.id, gap.prev
                    )
                });
            }
        }
        self.findings
            .into_report(&self.files, totals, self.dead.len() as u64)
    }

    fn object(&mut self, name: &str) -> u32 {
        if let Some(&object) = self.objects.get(name) {
            return object;
        }
        let object = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let name: Arc<str> = name.into();
        self.names.push(name.clone());
        self.objects.insert(name, object);
        object
    }
}

/// Returns the part of a slice that belongs to one object. The slice is sorted by object.
fn run<T>(sorted: &[T], object: u32, of: impl Fn(&T) -> u32) -> &[T] {
    let from = sorted.partition_point(|item| of(item) < object);
    let to = from + sorted[from..].partition_point(|item| of(item) == object);
    &sorted[from..to]
}

/// Returns the bytes of a text that consists of pairs of hex digits; none if the text is invalid.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| {
        char::from(*digit)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            if let [high, low] = pair {
                Some(digit(high)? << 4 | digit(low)?)
            } else {
                None
            }
        })
        .collect()
}
