//! What `check` reports: invariants by number, what breaks them, how much was looked at.

use std::fmt;

use serde::Serialize;

/// What may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Invariant {
    /// Every queued event is covered: a marker, a worker that has the object, or the object is
    /// held.
    I1,
    /// Owner and worker agree, and `held` and the sets of held objects.
    I2,
    /// A worker that does not own its object has an empty batch.
    I3,
    /// An event is in exactly one place.
    I4,
    /// Ids increase, and none is given twice.
    I5,
    /// At most one worker that passes the fence owns an object.
    I6,
    /// Nothing acknowledged is lost while Redis keeps its writes.
    I7,
    /// None of the seven: a key has another type or form than `docs/protocol.md` gives it.
    #[serde(rename = "layout")]
    Layout,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout => f.pad("layout"),
            numbered => f.pad(&format!("{numbered:?}")),
        }
    }
}

/// What a violation is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Subject {
    /// An object, by its [escaped](crate::escape::name) name.
    Object(String),
    /// A worker, by id, e.g. `catalog-a.3`.
    Worker(String),
    /// A worker process, by NAME.
    Name(String),
    /// A key that belongs to all.
    Shared,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(name) => write!(f, "object {name}"),
            Self::Worker(id) => write!(f, "worker {id}"),
            Self::Name(name) => write!(f, "name {name}"),
            Self::Shared => f.write_str("shared key"),
        }
    }
}

/// One broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// Where.
    pub subject: Subject,
    /// What was seen there, in one line.
    pub what: String,
}

/// How much was looked at. Redis may show a key twice while its tables grow or shrink; then it
/// counts twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LookedAt {
    /// Keys of this namespace that belong to objects or workers.
    pub keys: u64,
    /// Objects with events queued.
    pub objects_with_events: u64,
    /// Objects with an owner, held ones included.
    pub objects_owned: u64,
    /// Members of `objects.held` and `objects.paused`.
    pub objects_held: u64,
    /// Objects of which an event was delivered.
    pub objects_delivered: u64,
    /// Markers.
    pub markers: u64,
    /// Worker processes in `event.workers`.
    pub names: u64,
    /// Workers, registered or with keys.
    pub workers: u64,
    /// Subjects looked at a second time, alone.
    pub suspicions: u64,
    /// Keys of other programs whose names end as ours do; only without a namespace.
    pub foreign: u64,
}

/// An invariant that Redis alone cannot show, and what of it was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NotReadable {
    /// Which one.
    pub invariant: Invariant,
    /// Why, and what was checked of it.
    pub why: &'static str,
}

/// What [`Control::check`](crate::control::Control::check) cannot read off Redis.
pub const NOT_READABLE: &[NotReadable] = &[
    NotReadable {
        invariant: Invariant::I4,
        why: "two equal events may be two events; checked: a batch and its numbers belong together, and only a held object has a held batch",
    },
    NotReadable {
        invariant: Invariant::I5,
        why: "what receivers applied is not in Redis (`verify` reads it from outputs); checked: a batch comes after what was \
              delivered, and no id is above next.event.id",
    },
    NotReadable {
        invariant: Invariant::I6,
        why: "one key holds one owner, so Redis cannot show two; checked: the lease is held by the last to attach",
    },
    NotReadable {
        invariant: Invariant::I7,
        why: "what was acknowledged is not in Redis; nothing is checked (`verify --against` does)",
    },
];

/// What [`Control::check`](crate::control::Control::check) found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// How much was looked at.
    pub looked_at: LookedAt,
    /// How many violations there are.
    pub violations_total: u64,
    /// The first of them.
    pub violations: Vec<Violation>,
    /// What Redis cannot show.
    pub not_readable: &'static [NotReadable],
}

impl CheckReport {
    /// Whether everything that can be read holds.
    pub fn is_clean(&self) -> bool {
        self.violations_total == 0
    }
}
