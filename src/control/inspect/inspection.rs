//! The result of `inspect` for one object.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::reply;
use super::super::rules::Rule;
use super::super::shares::{SelectorShare, ShareWait};
use super::search::Searched;
use crate::sink::Report;

/// Maximum number of bytes that are read from an event.
pub const TEXT_BYTES_MAX: usize = 4096;

/// The state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// The object has no key.
    Unknown,
    /// No event of the object is queued, in flight or held.
    Idle,
    /// The owner is a worker whose process has a lease.
    Owned,
    /// The owner is a worker whose process has no lease.
    OwnerGone,
    /// The object is held.
    Held,
    /// A rule holds the object. No block matches it.
    Paused,
    /// A rule holds the object, and a block matches it.
    Blocked,
    /// A worker has taken the object's marker and will claim the object.
    Taken,
    /// The object has a marker, or its name is grouped. It waits for a free worker.
    Marked,
    /// The object has events but no marker, no worker and no hold: I1 is broken.
    Uncovered,
    /// The object has events, but no marker, no owner and no hold, and no worker was found that has
    /// taken its marker. Only some lists of workers were read, so one of the others may have it.
    Unclear,
}

/// The state of an object's first event. This is the event in flight or held, or, if there is none,
/// the oldest queued event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventState {
    /// The event waits for a worker.
    Queued,
    /// A worker has the event in flight, or had it in flight when the worker's process ended.
    InFlight,
    /// The event was in flight and will be delivered again: at the time `due_ms`, or when an
    /// operator releases the object.
    Waiting,
    /// A rule holds the object now, or will hold it when a worker next wants to claim it. No block
    /// matches the object.
    Paused,
    /// A rule holds the object now, or will hold it when a worker next wants to claim it. A block
    /// matches the object.
    Blocked,
}

/// A failed delivery of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Number of the attempt, counted from 1.
    pub attempt: u64,
    /// Time of the failure, ms since the epoch by Redis' clock.
    pub at_ms: u64,
    /// The first 500 bytes of the error text.
    pub error: String,
}

/// The place of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Location {
    /// The batch of the owner.
    Batch,
    /// The held batch.
    HeldBatch,
    /// The queue.
    Queue,
}

/// The event to be delivered next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextEvent {
    /// Location of the event.
    pub place: Location,
    /// Id of the event; none if the event is still queued.
    pub id: Option<u64>,
    /// Size of the event in bytes.
    pub bytes: u64,
    /// The event, or its first [`TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

/// A schedule of the object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextSchedule {
    /// Key of the schedule.
    pub key: String,
    /// [Escaped](crate::escape::name) form of `key`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_escaped: Option<String>,
    /// Due time, ms since the epoch; none if the schedule is due at once, or broken. `check` gives
    /// details.
    pub due_ms: Option<u64>,
    /// Whether the schedule is due at once, without a due time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// Whether the event is already queued and no worker has taken it yet.
    pub queued: bool,
}

/// Delivery counts of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tries {
    /// Number of earlier hand-outs of the batch.
    pub handouts: u64,
    /// Number of failed deliveries of its first event.
    pub attempts: u64,
    /// Number of processes that died with the batch in flight.
    pub crashes: u64,
}

/// Results that handlers have stored for an event that is not yet finalized.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptResults {
    /// Id of the event.
    pub id: Option<u64>,
    /// Results by handler id, as the text of one JSON object. It has only as many results as fit in
    /// 64 KiB.
    #[serde(serialize_with = "reply::as_json")]
    pub results: Option<String>,
}

impl KeptResults {
    /// Returns the results by handler id, each as JSON text on one line.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results
            .as_deref()
            .map(reply::members)
            .unwrap_or_default()
    }
}

/// The state of one object at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// Name of the object; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// State of the object.
    pub standing: Standing,
    /// State of the object's first event; none if the object has no event.
    pub state: Option<EventState>,
    /// One sentence that explains the state. It also says what the system does next, or gives
    /// advice.
    pub why: String,
    /// Number of events in the object's queue.
    pub events_queued: u64,
    /// Number of events in the batch of the object's owner.
    pub events_in_flight: u64,
    /// Number of events in the object's held batch.
    pub events_held: u64,
    /// Owner: a worker id, or `held`.
    pub owner: Option<String>,
    /// Id of the last delivered event.
    pub last_event_id: Option<u64>,
    /// The event to be delivered next.
    pub next_event: Option<NextEvent>,
    /// Delivery counts of the batch in flight or held; none without a batch.
    pub tries: Option<Tries>,
    /// Last errors of the event in flight or held, newest first; at most 20. A death of the worker
    /// is not an attempt, so it is not in this list.
    pub errors: Vec<FailedAttempt>,
    /// Results that handlers have stored for the event in flight or held; none without results.
    pub kept_results: Option<KeptResults>,
    /// The report of the handlers on the event in flight; none if they have reported nothing. It is
    /// up to about a second old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Recorded reason of the hold.
    pub held_why: Option<String>,
    /// Rules that match the object, blocks first. This includes lifted rules whose objects are
    /// still being woken. As long as a rule is in force, workers claim no further event of the
    /// object.
    pub rules: Vec<Rule>,
    /// Shares that match the object, that with the longest prefix last.
    pub shares: Vec<SelectorShare>,
    /// The share whose limit the object waits for; none if the name of the object is not grouped, or
    /// if no share stops it. If `group_beyond` is true, the name counts as grouped.
    pub waits_for_share: Option<ShareWait>,
    /// Due time of the object, ms since the epoch. None if the object is not held, or waits for an
    /// operator or a rule, or is due at once.
    pub due_ms: Option<u64>,
    /// Whether the held object is due at once, without a due time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// Whether the held object waits until an operator releases it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub until_released: bool,
    /// Number of schedules of the object.
    pub schedules: u64,
    /// Schedules of the object, by due time. If the object has more than 100 schedules, only some
    /// of them.
    pub next_schedules: Vec<NextSchedule>,
    /// Number of markers before the object's first marker, not counting marks. None if the object
    /// has no marker among the first 10,000 markers.
    pub markers_before: Option<u64>,
    /// Minimum time for which the object's first marker has waited, in ms, exact to 2 s or 5 %.
    /// None if no mark was pushed after this marker, or if the object has no marker among the first
    /// 10,000.
    pub waits_ms: Option<u64>,
    /// The group for which the name of the object is grouped; bytes that are not UTF-8 are shown
    /// as U+FFFD. None if the name is not among the first 10,000 in a list of its groups. `\0rest` is
    /// the list of all groups that have none of their own.
    pub group: Option<String>,
    /// Number of names before the object's name in the list of its group. Includes marks.
    pub group_before: Option<u64>,
    /// Whether the first 10,000 names of a longer list of its groups do not have the object. Then the
    /// object has a later name, or none.
    pub group_beyond: bool,
    /// Number of groups with names that are grouped.
    pub groups_waiting: u64,
    /// Whether there are more than 10,000 markers and the first 10,000 have no marker of the
    /// object. Then the object has a later marker, or none.
    pub markers_beyond: bool,
    /// Registered workers that have the object in their lists.
    pub taken_by: Vec<String>,
    /// Lists of workers that were read to find `taken_by`; none if no list was read.
    pub searched: Option<Searched>,
    /// Number of worker processes with a lease.
    pub names_alive: u64,
    /// Keys of the object that have wrong types.
    pub wrong_types: Vec<String>,
}
