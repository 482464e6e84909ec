//! The state of Redis, the arguments of calls, and their replies.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use seriatim::wire::Forgot;

use super::super::operator::Action;
use super::super::rules::Rule;
use super::super::schedules::Scheduled;
use super::super::shares::Share;
use super::object::{EmitField, Key, Object};

/// An object's name, any bytes.
pub type Name = Bytes;
/// An event, any bytes.
pub type Event = Bytes;

/// The number of the step plus this value is a due time in the far future. In calls to Redis, this
/// value is a delay in ms.
pub const FAR: u64 = 4_000_000_000_000;
/// Due time of an object that waits for an operator.
pub const OPERATOR: u64 = i64::MAX as u64;
/// Distance by which the counter jumps if Redis may have lost ids. In the reference it replaces the
/// jump to the time.
pub const JUMP: u64 = 1_000_000;
pub const ID_MAX: u64 = (1 << 53) - 1;
/// The names of worker processes. Their order is the order of sweeps.
pub const NAMES: [&str; 3] = ["p", "q", "r"];

#[derive(Debug, Clone, Default)]
pub struct Worker {
    /// Names in the slot's list, in the order of Redis. A pop adds a name at the front.
    pub objects: Vec<Name>,
    pub batch: Vec<Event>,
    pub tag: Option<String>,
}

/// The numbers of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    pub first: u64,
    pub handouts: u32,
    pub attempts: u32,
    pub crashes: u32,
    /// Whether the batch is one event with a key in its first hand-out.
    pub is_keyed: bool,
}

impl Numbers {
    pub fn of(first: u64) -> Self {
        Self {
            first,
            handouts: 0,
            attempts: 0,
            crashes: 0,
            is_keyed: false,
        }
    }

    /// Formats `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`, or `FIRST 0` for the first hand-out of an
    /// event with a key.
    pub fn tag(self) -> String {
        let Self {
            first,
            handouts,
            attempts,
            crashes,
            is_keyed,
        } = self;
        match (handouts, attempts, crashes) {
            (0, 0, 0) if is_keyed => format!("{first} 0"),
            (0, 0, 0) => format!("{first}"),
            (_, 0, 0) => format!("{first} {handouts}"),
            (_, _, 0) => format!("{first} {handouts} {attempts}"),
            _ => format!("{first} {handouts} {attempts} {crashes}"),
        }
    }

    pub fn of_tag(tag: &str) -> Self {
        let all: Vec<u64> = tag.split(' ').map(|n| n.parse().expect("a tag")).collect();
        let at = |n: usize| all.get(n).copied().unwrap_or(0) as u32;
        Self {
            first: all[0],
            handouts: at(1),
            attempts: at(2),
            crashes: at(3),
            is_keyed: tag.ends_with(" 0") && all.len() == 2,
        }
    }

    /// Formats `FIRST HANDOUTS ATTEMPTS CRASHES WHY`.
    pub fn held_id(self, why: &[u8]) -> Bytes {
        let Self {
            first,
            handouts,
            attempts,
            crashes,
            ..
        } = self;
        [
            format!("{first} {handouts} {attempts} {crashes} ").as_bytes(),
            why,
        ]
        .concat()
        .into()
    }

    /// Parses the numbers of a held batch. Returns none if there is no held batch.
    pub fn of_held(held_id: &Key<Option<Bytes>>) -> Option<Self> {
        let text = String::from_utf8_lossy(held_id.right()?.as_ref()?).into_owned();
        let all: Vec<u64> = text
            .splitn(5, ' ')
            .take(4)
            .map(|n| n.parse().expect("a number"))
            .collect();
        let numbers = Self {
            first: all[0],
            handouts: all[1] as u32,
            attempts: all[2] as u32,
            crashes: all[3] as u32,
            is_keyed: false,
        };
        (numbers.first > 0).then_some(numbers)
    }

    /// Returns the numbers of the batch that remains after its first `count` events.
    pub fn after(self, count: usize) -> Self {
        match count {
            0 => self,
            _ => Self {
                first: self.first + count as u64,
                attempts: 0,
                crashes: self.crashes.min(1),
                is_keyed: false,
                ..self
            },
        }
    }
}

#[derive(Debug, Clone)]
pub struct Registered {
    pub slots: usize,
    pub token: String,
    /// Step of the name's last sign of life; none if it was more than a day ago.
    pub at: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Lease {
    pub token: String,
    pub holder: &'static str,
    pub ms: u64,
}

impl Lease {
    pub fn text(&self) -> String {
        format!("{} {}", self.token, self.holder)
    }
}

#[derive(Debug, Clone)]
pub struct Dead {
    /// Serial number. It replaces the id of the entry in Redis.
    pub serial: u64,
    pub id: u64,
    pub prev: String,
    pub object: Name,
    pub event: Event,
    pub error: Bytes,
    pub attempts: u32,
}

/// A row of the log.
#[derive(Debug, Clone)]
pub struct Row {
    pub status: &'static str,
    pub event: Dead,
    /// Whether the row has the time at which the event was taken.
    pub taken: bool,
    /// Results of handlers.
    pub results: Option<String>,
}

/// The end of an event whose producer awaits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub status: &'static str,
    pub id: u64,
    pub error: Bytes,
    pub attempts: u32,
    /// Results of handlers.
    pub results: Option<String>,
}

/// A shared key that has a wrong type, or a wrong value, during one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Markers,
    Held,
    Workers,
    Counter,
    /// The counter is a string that is not a number.
    CounterText,
    Dead,
    Log,
    Actions,
    Rules,
    Shares,
    Paused,
    Meta,
    Scheduled,
    Marks,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Reply of a plain Redis command.
    Done,
    Connected {
        changed: bool,
        counter: u64,
    },
    Counter(String),
    Attached {
        kept: u64,
        held: u64,
    },
    InUse(String),
    Renewed {
        strays: u64,
    },
    Detached {
        held: u64,
    },
    Swept {
        held: u64,
        strays: u64,
        names: Vec<String>,
    },
    Advanced(Advanced),
    Forgot(Vec<Forgot>),
    Lapsed,
    Fenced(String),
    WrongType,
    /// Result of each dead letter.
    Settled(Vec<&'static str>),
    /// Reason of the hold.
    Released(String),
    /// Owner of the object.
    NotHeld(String),
    Skipped {
        id: u64,
        left: u64,
    },
    /// Reason of the hold.
    NoBatch(String),
    /// Reason of the hold.
    NoIds(String),
    OtherHead(u64),
    /// A rule holds the object.
    Paused,
    /// Result of an action on a rule.
    Ruled(&'static str),
    Shared(&'static str),
    /// Record of finished handlers of an event: the event's id, the finished fields, the number and
    /// bytes of the emits, and the bytes of the results.
    Kept(u64, BTreeSet<String>, (usize, usize), usize),
    /// The record belongs to another event, whose id this is. Its emits are not pushed yet.
    Unpushed(String),
    /// Result of the script `cancel`.
    Cancelled(&'static str),
    /// Result of the script `operator/cancel`: its word, the id of the event or 0, and whether the
    /// key of an event in flight was scheduled again.
    CancelledAs(&'static str, u64, bool),
    /// A request may be sent, with this number.
    Sent(u64),
    /// Another request may be open.
    Earlier,
    Over,
    /// The slot has another batch, or the record belongs to a later event of the batch.
    OtherBatch,
    /// Scheduled events were queued. `is_due` tells whether more schedules are due; none without
    /// schedules.
    Promoted {
        events: u64,
        is_due: Option<bool>,
        markers: u64,
        names: u64,
        /// Members of `events.scheduled` that could not be promoted.
        wrong: Vec<Bytes>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advanced {
    /// Due time of the held object that is due first.
    pub due: Option<u64>,
    pub more: bool,
    /// Whether names of unknown groups wait. One call groups more names than a schedule of this
    /// test has.
    pub unsorted: bool,
    pub from_held: bool,
    pub batches: Vec<Given>,
    /// Quarantined objects with their reasons, in readable form.
    pub quarantined: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub slot: usize,
    pub object: Name,
    pub tag: String,
    pub prev: u64,
    pub events: Vec<Event>,
}

/// The limits of suspects of one process, and its suspects in flight.
#[derive(Debug, Clone, Default)]
pub struct Room {
    /// Maximum number of crashes; 0: no event counts as a suspect.
    pub crashes_max: u32,
    /// Whether a batch with `crashes_max` crashes ends without a further delivery.
    pub settles: bool,
    /// Crashes of each suspect in flight.
    pub in_hand: Vec<u32>,
}

impl Room {
    /// Returns how many suspects may be in flight if one of them has this number of crashes. The
    /// limit is lower if fewer crashes are left. Returns none for an event that is not a suspect.
    fn limit(&self, crashes: u32) -> Option<usize> {
        if crashes == 0 || self.crashes_max == 0 || self.settles && crashes >= self.crashes_max {
            return None;
        }
        match (self.crashes_max.saturating_sub(crashes), crashes) {
            (0 | 1, _) | (2, 2..) => Some(1),
            (2, _) | (_, 2..) => Some(4),
            _ => None,
        }
    }

    pub fn admits(&self, crashes: u32) -> bool {
        let Some(limit) = self.limit(crashes) else {
            return true;
        };
        let smallest = self
            .in_hand
            .iter()
            .filter_map(|crashes| self.limit(*crashes))
            .min();
        self.in_hand.len() < smallest.map_or(limit, |smallest| smallest.min(limit))
    }

    pub fn take(&mut self, crashes: u32) {
        if self.limit(crashes).is_some() {
            self.in_hand.push(crashes);
        }
    }
}

#[derive(Debug, Clone)]
pub struct Attach {
    pub name: &'static str,
    pub token: String,
    pub holder: &'static str,
    pub lease_ms: u64,
    pub slots: usize,
    pub displace: String,
    pub before: String,
    /// Maximum number of crashes; 0: no limit.
    pub crashes_max: u32,
    pub room: Room,
}

/// The arguments of a call that records a success for an event of a slot's batch. Without a success
/// the call reads the record.
#[derive(Debug, Clone)]
pub struct Finish {
    pub name: &'static str,
    pub token: String,
    pub slot: usize,
    pub object: Name,
    pub tag: Numbers,
    /// The success: id of the event, field, and emits.
    pub finished: Option<(u64, &'static str, Option<EmitField>)>,
}

/// The arguments of a call that records a request for a slot's batch, or its end.
#[derive(Debug, Clone)]
pub struct Sent {
    pub name: &'static str,
    pub token: String,
    pub slot: usize,
    pub object: Name,
    pub tag: Numbers,
    pub request: &'static str,
    pub is_over: bool,
    pub highest: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Reference {
    /// Number of the step.
    pub now: u64,
    pub objects: BTreeMap<Name, Object>,
    pub workers: BTreeMap<String, Worker>,
    /// Markers in the order of Redis: the last one is the oldest.
    pub markers: Vec<Name>,
    /// Times of the marks that wait. `met` is the time of the mark that was met last.
    pub marks: BTreeSet<u64>,
    pub met: Option<u64>,
    /// Held objects by due time. The time of an object that is grouped is negative.
    pub due: BTreeMap<Name, i64>,
    /// The passes of the groups that wait, and the names that are grouped for them, in the order of
    /// Redis: the last one is the oldest.
    pub groups: BTreeMap<Name, f64>,
    pub grouped: BTreeMap<Name, Vec<Name>>,
    /// Whether objects in hand are counted: from the time before the first share is set.
    pub counting: bool,
    /// The shares, by prefix.
    pub shares: BTreeMap<Name, Share>,
    /// The events that shares have taken, and those that count for their rates now.
    pub taken: BTreeMap<Name, u64>,
    pub spent: BTreeMap<Name, u64>,
    /// The members of event.groups.blocked, and whether a call looks at them now.
    pub blocked: BTreeMap<Name, bool>,
    /// The number of names that were taken in the present round.
    pub round: Option<u64>,
    pub paused: BTreeSet<Name>,
    /// Rules by their field: kind and selector.
    pub rules: BTreeMap<Name, Rule>,
    pub counter: Option<u64>,
    /// Highest value that the counter ever had. In these tests Redis' clock is always ahead of this
    /// value, so a jump to the time gives no id again.
    pub highest: u64,
    /// Registered names, in the order of registration.
    pub registry: Vec<(&'static str, Registered)>,
    /// Names with a lease or with something in their slots.
    pub watched: BTreeSet<&'static str>,
    /// Names without a lease and with empty slots.
    pub departed: BTreeSet<&'static str>,
    pub leases: BTreeMap<&'static str, Lease>,
    pub dead: Vec<Dead>,
    /// Rows of finalized events. With the log off, only events completed with errors have rows.
    pub log: Vec<Row>,
    /// Whether the process that connected last has its log on.
    pub log_on: bool,
    /// Whether any process has had its event log on since Redis was empty.
    pub log_was_on: bool,
    /// Number of dead letters made so far.
    pub buried: u64,
    pub actions: Vec<Action>,
    /// Schedules by object and key.
    pub schedules: BTreeMap<(Name, &'static str), Scheduled>,
    /// Awaited events by object and name, as in the key; with their ends, if they have ended.
    pub ends: BTreeMap<Bytes, Option<End>>,
    /// The awaited events whose ends were told to the inbox, newest first.
    pub inbox: Vec<Bytes>,
    /// Number of schedules with a due time that were promoted so far.
    pub promoted: u64,
    /// Number of emits of handlers pushed so far.
    pub pushed: u64,
    /// Number of calls in which groups of different weights, or of different classes, had turns.
    pub weighed: u64,
    pub classed: u64,
    /// Number of times that a group began to wait for a limit.
    pub parked: u64,
    /// The recorded replication id, if any; the outer none means that no schema is recorded.
    pub meta: Option<Option<String>>,
    pub broken: Option<Broken>,
}
