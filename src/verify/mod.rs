//! Judges what came out of workers: the outputs of any number of them, and, where it is at hand,
//! what went in.
//!
//! Outputs are lines with one envelope each. Two views of them are judged:
//!
//! - *within one file*, in the order of its lines, as a receiver of that file alone sees it: ids of
//!   an object grow, and what comes again is a duplicate, which the receiver's rule drops. An id
//!   that comes late is only a duplicate if that event came in time elsewhere, in this file or in
//!   another one; if not, the receiver has lost it, and it counts as reordered.
//! - *across all files*, by id: the events of an object form one chain that starts at 0, in which
//!   `prev` names the event before. Where an object was forgotten, its chain begins anew with
//!   `prev` 0; that is counted, and no fault unless told so.
//!
//! With the input beside them, the chain of each object must also be the input's lines of that
//! object, one by one, byte for byte. Real input repeats itself, so sequences are compared, never
//! sets. A dead letter excuses the absence of its event.
//!
//! Payloads are not kept: an event costs about 50 bytes, so that millions of them fit.

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

/// Why a line of dead letters cannot be used.
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
    /// `null` where another program added the entry.
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

/// Gathers outputs, dead letters and the input, in any order, and judges them in [`Judge::finish`].
#[derive(Debug, Default)]
pub struct Judge {
    files: Vec<String>,
    objects: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    /// The highest id so far of an object in one file.
    highest: HashMap<(FileId, u32), u64>,
    sent: Vec<Sent>,
    dead: Vec<Dead>,
    /// `None` without an input to hold the outputs against.
    expected: Option<Vec<Expected>>,
    findings: Findings,
    never_forgotten: bool,
}

impl Judge {
    /// A judge who has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names a file whose lines follow; the name is only shown.
    pub fn file(&mut self, name: impl Into<String>) -> FileId {
        self.files.push(name.into());
        FileId(u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX))
    }

    /// Takes one line of an output, without its line break, and answers whether it is an envelope.
    /// Lines of one file come in their order; `line` counts from 1. `ended` is false for a last
    /// line without a line break: a worker died while it wrote it, so if it is no whole envelope,
    /// it is reported as torn and breaks nothing. Empty lines are skipped.
    pub fn output(&mut self, file: FileId, line: u64, text: &[u8], ended: bool) -> bool {
        let place = place(file, line);
        if text.trim_ascii().is_empty() {
            return true;
        }
        let Envelope { id, prev, object, event } = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Json(_) | EnvelopeError::Missing(_)) if !ended => {
                self.findings.add(Kind::Torn, place, || "the last line was not written to its end".to_owned());
                return false;
            }
            Err(error) => {
                // The error counts lines from here; the file's own line stands beside it.
                self.findings.add(Kind::Malformed, place, || error.to_string().replace(" at line 1 ", " at "));
                return false;
            }
        };
        let object = self.object(&object);
        let highest = self.highest.entry((file, object)).or_default();
        // By the receiver's own rule: what it drops as a duplicate did not come in time here.
        let in_time = consume::judge(*highest, id, prev) != Ok(Verdict::Duplicate);
        *highest = id.max(*highest);
        self.sent.push(Sent { id, prev, print: print(event.get().as_bytes()), object, place, in_time });
        true
    }

    /// Takes one line of `seriatim dead list --json`: its event may be absent from the outputs. A
    /// letter whose id is `null`, which another program has added, excuses nothing.
    ///
    /// # Errors
    ///
    /// If the line is not a dead letter; nothing is taken then.
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
            self.dead.push(Dead { id, print, object, place: place(file, line) });
        }
        Ok(())
    }

    /// No object was ever forgotten: an event with `prev` 0 after others of its object is no new
    /// beginning, but a fork.
    pub fn never_forgotten(&mut self) {
        self.never_forgotten = true;
    }

    /// From now on the outputs are held against an input, even if it turns out to be empty.
    pub fn against_input(&mut self) {
        self.expected.get_or_insert_default();
    }

    /// Takes one event of the input. Events of one object come in the order they were emitted.
    pub fn expect(&mut self, file: FileId, line: u64, object: &str, event: &[u8]) {
        let object = self.object(object);
        let expected = Expected { print: print(event), object, place: place(file, line) };
        self.expected.get_or_insert_default().push(expected);
    }

    /// Judges everything that was taken.
    pub fn finish(mut self) -> Report {
        let objects = self.names.len();
        self.sent.sort_unstable_by_key(|sent| (sent.object, sent.id, sent.place));
        // The last word on a dead letter that is listed twice is the same as the first.
        self.dead.sort_unstable_by_key(|dead| (dead.object, dead.id, dead.place));
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
            let missing = chain::judge(name, sent, dead, self.never_forgotten, &mut totals, &mut self.findings);
            let mut lost = 0;
            if let Some(expected) = &expected {
                let expected = run(expected, object, |expected| expected.object);
                lost = align::judge(name, sent, dead, expected, &self.files, &mut self.findings);
            }
            // An absent event shows in the chain, as a prev that nobody delivered, and against the
            // input: it counts once.
            for gap in missing.into_iter().skip(lost) {
                self.findings.add(Kind::Lost, gap.place, || {
                    format!("{name}: id {} follows id {}, which is in no output", gap.id, gap.prev)
                });
            }
        }
        self.findings.into_report(&self.files, totals, self.dead.len() as u64)
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

/// The part of a slice, sorted by object, that belongs to one object.
fn run<T>(sorted: &[T], object: u32, of: impl Fn(&T) -> u32) -> &[T] {
    let from = sorted.partition_point(|item| of(item) < object);
    let to = from + sorted[from..].partition_point(|item| of(item) == object);
    &sorted[from..to]
}

/// The bytes that pairs of hex digits stand for.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| if let [high, low] = pair { Some(digit(high)? << 4 | digit(low)?) } else { None }).collect()
}
