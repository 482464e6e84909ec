//! The report on a history: counts, and the first few examples of each kind of fault.

use std::fmt;

use serde::Serialize;

use crate::verify::seen::LineAt;

/// Maximum number of examples that are kept for each kind of fault.
const EXAMPLES_MAX: usize = 5;

/// A kind of fault in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HistoryKind {
    /// An acknowledged event that was never applied and is not a dead letter.
    Lost,
    /// An event that came although its emit certainly failed.
    Undone,
    /// One event that came under two ids.
    Doubled,
    /// Two events that came under one id.
    IdReused,
    /// An event that was applied out of the order of the emits, or out of the order of the due
    /// times of schedules. Or an event that came only after a later event was applied.
    Reordered,
    /// A scheduled event that came before it was due.
    Early,
    /// A second event with the same `prev`, unless this `prev` is 0. Or an id that came with two
    /// different `prev`.
    Forked,
    /// An event whose `prev` never came. The chain of the object has a gap, or does not start at 0.
    Gap,
    /// An event that nobody emitted, that came for another object, or that came before its emit.
    Unexpected,
    /// A line that contradicts another line, or whose numbers are invalid for an event.
    Malformed,
}

impl HistoryKind {
    /// All kinds of faults, the most serious first.
    pub const ALL: [Self; 10] = [
        Self::Lost,
        Self::Undone,
        Self::Doubled,
        Self::IdReused,
        Self::Reordered,
        Self::Early,
        Self::Forked,
        Self::Gap,
        Self::Unexpected,
        Self::Malformed,
    ];
}

impl fmt::Display for HistoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Undone => "failed, and came",
            Self::Doubled => "doubled",
            Self::IdReused => "ids reused",
            Self::Reordered => "reordered",
            Self::Early => "early",
            Self::Forked => "forked",
            Self::Gap => "gaps",
            Self::Unexpected => "unexpected",
            Self::Malformed => "malformed",
        })
    }
}

/// One fault, and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HistoryExample {
    /// Kind of the fault.
    pub kind: HistoryKind,
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// Description of the fault, in one line.
    pub what: String,
}

/// The verdict over a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HistoryReport {
    /// Number of emitted events, with any outcome.
    pub events: u64,
    /// Events whose emit was acknowledged.
    pub ok: u64,
    /// Events whose emit certainly failed.
    pub failed: u64,
    /// Events whose emit has an unknown outcome, including those without any reply.
    pub unknown: u64,
    /// Events among `unknown` that were applied or became dead letters.
    pub unknown_came: u64,
    /// Different events that the receiver applied.
    pub applied: u64,
    /// Objects with at least one applied event.
    pub objects: u64,
    /// Number of times that an event came again under the same id. The receiver's rule drops such
    /// arrivals.
    pub duplicates: u64,
    /// Number of times that an object's chain began anew, with `prev` 0, because the object was
    /// forgotten. If the caller has declared that no object was forgotten, such a chain counts as
    /// forked instead.
    pub anew: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// Acknowledged events that Redis lost in a declared window. Counted only if the history is
    /// judged as lossy.
    pub lost_by_redis: u64,
    /// Events that came again under a new id because Redis had lost their delivery. Counted only if
    /// the history is judged as lossy.
    pub redelivered: u64,
    /// Events that came after an event that was emitted later. When Redis gave them their ids, it
    /// had lost that later event, because two masters had accepted events. Counted only if the
    /// history is judged as lossy.
    pub behind_lost: u64,
    /// The faults.
    pub faults: Faults,
    /// The first few examples of each kind of fault.
    pub examples: Vec<HistoryExample>,
}

impl HistoryReport {
    /// Returns the number of faults of a kind.
    pub fn count(&self, kind: HistoryKind) -> u64 {
        self.faults.0[kind as usize]
    }

    /// Returns whether the history has no fault.
    pub fn is_clean(&self) -> bool {
        self.faults.0.iter().all(|count| *count == 0)
    }
}

/// Numbers of faults by kind; serialized as an object with a member for each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults([u64; HistoryKind::ALL.len()]);

impl Serialize for Faults {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(HistoryKind::ALL.into_iter().zip(&self.0))
    }
}

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    counts: Faults,
    examples: [Vec<(LineAt, String)>; HistoryKind::ALL.len()],
}

impl Findings {
    pub(super) fn add(&mut self, kind: HistoryKind, place: LineAt, what: impl FnOnce() -> String) {
        self.counts.0[kind as usize] += 1;
        let examples = &mut self.examples[kind as usize];
        if examples.len() < EXAMPLES_MAX {
            examples.push((place, what()));
        }
    }

    pub(super) fn into_report(self, files: &[String], totals: HistoryReport) -> HistoryReport {
        let name = |place: LineAt| {
            files
                .get(place.file.0 as usize)
                .cloned()
                .unwrap_or_default()
        };
        let examples =
            HistoryKind::ALL
                .into_iter()
                .zip(self.examples)
                .flat_map(|(kind, examples)| {
                    examples
                        .into_iter()
                        .map(move |(place, what)| HistoryExample {
                            kind,
                            file: name(place),
                            line: place.line,
                            what,
                        })
                });
        HistoryReport {
            examples: examples.collect(),
            faults: self.counts,
            ..totals
        }
    }
}
