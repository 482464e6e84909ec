//! The report on outputs: counts, and the first few examples of each kind of fault.

use std::fmt;

use serde::Serialize;

use super::seen::LineAt;

/// Maximum number of examples that are kept for each kind of fault.
const EXAMPLES_MAX: usize = 5;

/// Counts that are not faults.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) events: u64,
    pub(super) objects: u64,
    pub(super) duplicates: u64,
    pub(super) anew: u64,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// An event that is in no output, although it is in the input, or although a later event has it
    /// as `prev`.
    Lost,
    /// An event that came after a later event of its object, or whose id is out of the input's
    /// order.
    Reordered,
    /// A second event with the same `prev`, unless this `prev` is 0. The object's chain has two
    /// branches.
    Forked,
    /// An id under which two different events came.
    IdReused,
    /// An event that is not in the input.
    Unexpected,
    /// A line that is not an envelope.
    Malformed,
    /// An incomplete last line. It is not a fault, because its event was never counted as
    /// delivered.
    Torn,
}

impl Kind {
    /// All kinds, the most serious first.
    pub const ALL: [Self; 7] = [
        Self::Lost,
        Self::Reordered,
        Self::Forked,
        Self::IdReused,
        Self::Unexpected,
        Self::Malformed,
        Self::Torn,
    ];

    /// Returns whether this kind is a fault.
    pub fn breaks(self) -> bool {
        self != Self::Torn
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Reordered => "reordered",
            Self::Forked => "forked",
            Self::IdReused => "ids reused",
            Self::Unexpected => "unexpected",
            Self::Malformed => "malformed lines",
            Self::Torn => "torn last lines",
        })
    }
}

/// One fault, and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Example {
    /// Kind of the fault.
    pub kind: Kind,
    /// The file: an output, the input, or the dead letters.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// Description of the fault, in one line.
    pub what: String,
}

/// The result of the judgement on a set of outputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Different events in the outputs.
    pub events: u64,
    /// Objects with at least one event in the outputs.
    pub objects: u64,
    /// Number of sends of events, without the first send of each event. Repeated sends are allowed,
    /// because the receiver's rule drops them.
    pub duplicates: u64,
    /// Number of times that an object's chain began anew, with `prev` 0, because the object was
    /// forgotten. If the caller has declared that no object was forgotten, such a chain counts as
    /// forked instead.
    pub anew: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// See [`Kind::Lost`].
    pub lost: u64,
    /// See [`Kind::Reordered`].
    pub reordered: u64,
    /// See [`Kind::Forked`].
    pub forked: u64,
    /// See [`Kind::IdReused`].
    pub ids_reused: u64,
    /// See [`Kind::Unexpected`].
    pub unexpected: u64,
    /// See [`Kind::Malformed`].
    pub malformed: u64,
    /// See [`Kind::Torn`].
    pub torn: u64,
    /// The first few examples of each kind of fault.
    pub examples: Vec<Example>,
}

impl Report {
    /// Returns the number of findings of this kind.
    pub fn count(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Lost => self.lost,
            Kind::Reordered => self.reordered,
            Kind::Forked => self.forked,
            Kind::IdReused => self.ids_reused,
            Kind::Unexpected => self.unexpected,
            Kind::Malformed => self.malformed,
            Kind::Torn => self.torn,
        }
    }

    /// Returns whether the outputs have no fault. Duplicates, new chains and a torn last line are
    /// not faults.
    pub fn is_clean(&self) -> bool {
        Kind::ALL
            .into_iter()
            .filter(|kind| kind.breaks())
            .all(|kind| self.count(kind) == 0)
    }
}

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    counts: [u64; Kind::ALL.len()],
    examples: [Vec<(LineAt, String)>; Kind::ALL.len()],
}

impl Findings {
    pub(super) fn add(&mut self, kind: Kind, place: LineAt, what: impl FnOnce() -> String) {
        self.counts[kind as usize] += 1;
        let examples = &mut self.examples[kind as usize];
        if examples.len() < EXAMPLES_MAX {
            examples.push((place, what()));
        }
    }

    pub(super) fn into_report(self, files: &[String], totals: Totals, dead: u64) -> Report {
        let name = |place: LineAt| {
            files
                .get(place.file.0 as usize)
                .cloned()
                .unwrap_or_default()
        };
        let examples = Kind::ALL
            .into_iter()
            .zip(self.examples)
            .flat_map(|(kind, examples)| {
                examples
                    .into_iter()
                    .map(move |(place, what)| (kind, place, what))
            });
        let count = |kind: Kind| self.counts[kind as usize];
        Report {
            events: totals.events,
            objects: totals.objects,
            duplicates: totals.duplicates,
            anew: totals.anew,
            dead,
            lost: count(Kind::Lost),
            reordered: count(Kind::Reordered),
            forked: count(Kind::Forked),
            ids_reused: count(Kind::IdReused),
            unexpected: count(Kind::Unexpected),
            malformed: count(Kind::Malformed),
            torn: count(Kind::Torn),
            examples: examples
                .map(|(kind, place, what)| Example {
                    kind,
                    file: name(place),
                    line: place.line,
                    what,
                })
                .collect(),
        }
    }
}
