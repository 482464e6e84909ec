//! The result of a look at one object.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::reply;
use super::super::rules::Rule;

/// How much of an event is read, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Where an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// There is no key of it.
    Unknown,
    /// Nothing is queued, in flight or held.
    Idle,
    /// A worker whose process lives owns it.
    Owned,
    /// A worker whose process has no lease owns it.
    OwnerGone,
    /// It is held.
    Held,
    /// A rule holds it, and no block is over it.
    Paused,
    /// A rule holds it, and a block is over it.
    Blocked,
    /// A worker has taken its marker and is about to claim it.
    Taken,
    /// It has a marker and waits for a free worker.
    Marked,
    /// It has events and nothing covers them: I1 is broken.
    Uncovered,
}

/// What is the matter with the event at an object's head: the one in hand, or else the oldest that
/// is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventState {
    /// It waits for a worker.
    Queued,
    /// A worker has it in hand, or had it when its process went away.
    InFlight,
    /// It was in hand and comes again: at the time that `due_ms` tells, or where an operator
    /// releases it.
    Waiting,
    /// A rule holds it, or will before anything more of the object is claimed, and no block is over
    /// it.
    Paused,
    /// The same where a block is over it.
    Blocked,
}

/// An attempt of an event that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Which attempt it was, counted from 1.
    pub attempt: u64,
    /// When it failed, ms since the epoch by Redis' clock.
    pub at_ms: u64,
    /// How: the first 500 bytes of its error.
    pub error: String,
}

/// Where events are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// In the batch of the owner.
    Batch,
    /// In the held batch.
    HeldBatch,
    /// In the queue.
    Queue,
}

/// The event to be delivered next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextEvent {
    /// Where it is.
    pub place: Place,
    /// Its id; none while it is queued.
    pub id: Option<u64>,
    /// Its size in bytes.
    pub bytes: u64,
    /// It, or its first [`TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

/// How often a batch was tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tries {
    /// How often it was handed out before.
    pub handouts: u64,
    /// How often its delivery failed.
    pub attempts: u64,
    /// How often its process died with it.
    pub crashes: u64,
}

/// Results of handlers that have succeeded, of an event that is not over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptResults {
    /// The event's id.
    pub id: Option<u64>,
    /// The results by the ids of the handlers: the text of one JSON object. As many as have
    /// together at most 64 KiB.
    #[serde(serialize_with = "reply::as_json")]
    pub results: Option<String>,
}

impl KeptResults {
    /// The results by the ids of the handlers: JSON text on one line each.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.results.as_deref().map(reply::members).unwrap_or_default()
    }
}

/// What Redis has of one object at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// Its name; bytes that are not UTF-8 are shown as U+FFFD.
    pub object: String,
    /// Its [escaped](crate::escape::name) name, if that differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Redis's time, ms since the epoch.
    pub now_ms: u64,
    /// Where it stands.
    pub standing: Standing,
    /// What is the matter with its head event; none without one.
    pub state: Option<EventState>,
    /// The same as a sentence, with what will happen next or what to do.
    pub why: String,
    /// Events in its queue.
    pub events_queued: u64,
    /// Events in its owner's batch.
    pub events_in_flight: u64,
    /// Events in its held batch.
    pub events_held: u64,
    /// Its owner: a worker id, or `held`.
    pub owner: Option<String>,
    /// Id of the last event delivered.
    pub last_event_id: Option<u64>,
    /// The event to be delivered next.
    pub next_event: Option<NextEvent>,
    /// How often the batch in flight or held was tried; none without one.
    pub tries: Option<Tries>,
    /// How the event in hand has failed at last, the newest first; at most 20. Deaths of its worker
    /// are no attempts.
    pub errors: Vec<FailedAttempt>,
    /// The results that handlers of the event in hand have kept; none without results.
    pub kept_results: Option<KeptResults>,
    /// Why it is held, as it was noted.
    pub held_why: Option<String>,
    /// The rules that are over it, blocks first, and those that are lifted but still being woken.
    /// While one is in force, nothing more of the object is claimed, wherever it stands.
    pub rules: Vec<Rule>,
    /// When it is due, ms since the epoch; none if it is not held, or held until an operator or a
    /// rule releases it.
    pub due_ms: Option<u64>,
    /// How many markers will be taken before its first one; none if it has no marker among the
    /// first 10,000.
    pub markers_before: Option<u64>,
    /// Its first marker is not among the first 10,000, and there are more: it waits behind them, or
    /// has no marker.
    pub markers_beyond: bool,
    /// Registered workers that have it in their list.
    pub taken_by: Vec<String>,
    /// Worker processes whose lease is there, of all names.
    pub names_alive: u64,
    /// Its keys of wrong types.
    pub wrong_types: Vec<String>,
}
