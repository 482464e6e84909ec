//! The report of `check`: invariants by number, their violations, and counts.

use std::fmt;

use serde::Serialize;

/// An invariant of `docs/design.md`, or the layout of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Invariant {
    /// Every queued event is covered: its object has a marker, is in a worker's list, or is held.
    I1,
    /// The owner key agrees with the list of the worker. The value `held` of an owner key agrees
    /// with the sorted sets of held and paused objects.
    I2,
    /// A worker that does not own its object has an empty batch.
    I3,
    /// An event is in exactly one place.
    I4,
    /// Ids of an object's events increase, and no id is given twice.
    I5,
    /// At most one worker that passes the fence owns an object.
    I6,
    /// No acknowledged event is lost while Redis keeps its writes.
    I7,
    /// Every schedule has one event and one due time.
    I8,
    /// Every cron job that is not paused has one next tick, and its ticks are not handled up to a
    /// time far ahead of Redis' clock.
    I9,
    /// An owner has something queued or in hand: a slot that owns an object has a batch, or the queue
    /// of the object has events.
    I10,
    /// Not an invariant, but the layout of the keys: a key has a type or form that differs from
    /// `docs/protocol.md`.
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

/// The subject of a violation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Subject {
    /// An object; the value is its [escaped](crate::escape::name) name.
    Object(String),
    /// A worker, by id, e.g. `catalog-a.3`.
    Worker(String),
    /// A worker process, by NAME.
    Name(String),
    /// A group of objects; the value is its escaped name.
    Group(String),
    /// A schedule; the value is its member of `events.scheduled`, escaped: the object, `\n` and the
    /// key.
    Schedule(String),
    /// A cron job; the value is its escaped name.
    Cron(String),
    /// An idempotency key; the value is its escaped field of `events.emitted`. Only a repair has this
    /// subject.
    Emitted(String),
    /// A key shared by all workers.
    Shared,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(name) => write!(f, "object {name}"),
            Self::Worker(id) => write!(f, "worker {id}"),
            Self::Name(name) => write!(f, "name {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Schedule(member) => write!(f, "schedule {member}"),
            Self::Cron(name) => write!(f, "cron job {name}"),
            Self::Emitted(field) => write!(f, "idempotency key {field}"),
            Self::Shared => f.write_str("shared key"),
        }
    }
}

/// One broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Violation {
    /// The broken invariant.
    pub invariant: Invariant,
    /// The subject that breaks the invariant.
    pub subject: Subject,
    /// Description of the violation, in one line.
    pub what: String,
}

/// Numbers of the things that the check looked at. Redis may return a key twice while it resizes
/// its tables. Such a key is counted twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LookedAt {
    /// Keys of this namespace that belong to objects or workers.
    pub keys: u64,
    /// Objects with events queued.
    pub objects_with_events: u64,
    /// Objects that have an owner key. Includes held objects, whose owner key is `held`.
    pub objects_owned: u64,
    /// Members of `objects.held` and `objects.paused`.
    pub objects_held: u64,
    /// Objects with a last id, i.e. with at least one delivered event.
    pub objects_delivered: u64,
    /// Members of `events.scheduled`.
    pub schedules: u64,
    /// Cron jobs.
    pub cron_jobs: u64,
    /// Markers.
    pub markers: u64,
    /// Groups with names that are grouped.
    pub groups: u64,
    /// Names that are grouped.
    pub grouped: u64,
    /// Worker processes in `event.workers`.
    pub names: u64,
    /// Workers that are registered or have keys.
    pub workers: u64,
    /// Subjects that the check looked at a second time, alone.
    pub suspicions: u64,
    /// Keys of other programs whose names end like the keys of seriatim. Counted only without a
    /// namespace.
    pub foreign: u64,
}

/// An invariant that cannot be fully checked in Redis, and the part of it that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NotReadable {
    /// The invariant.
    pub invariant: Invariant,
    /// The reason why Redis cannot show the invariant, and the part that was checked.
    pub why: &'static str,
}

/// The invariants that [`Control::check`](crate::control::Control::check) cannot fully read from
/// Redis.
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

/// The result of [`Control::check`](crate::control::Control::check).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// Counts of the check.
    pub looked_at: LookedAt,
    /// Number of all violations, including those that `violations` does not list.
    pub violations_total: u64,
    /// The first violations, up to the limit of the call.
    pub violations: Vec<Violation>,
    /// Invariants that cannot be fully checked in Redis.
    pub not_readable: &'static [NotReadable],
}

impl CheckReport {
    /// Returns whether the check found no violation.
    pub fn is_clean(&self) -> bool {
        self.violations_total == 0
    }
}
