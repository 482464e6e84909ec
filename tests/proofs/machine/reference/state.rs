//! What Redis holds, what a call is told, and what it answers.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use seriatim::wire::Forgot;

use super::super::operator::Action;
use super::super::rules::Rule;
use super::object::{EmitField, Key, Object};

/// An object's name, any bytes.
pub type Name = Bytes;
/// An event, any bytes.
pub type Event = Bytes;

/// Added to the number of the step where something is due in the far future; also how long that is,
/// in ms.
pub const FAR: u64 = 4_000_000_000_000;
/// The due time of what waits for an operator.
pub const OPERATOR: u64 = u64::MAX;
/// The counter jumps by so much where Redis may have lost ids: a stand-in for the jump to the time.
pub const JUMP: u64 = 1_000_000;
pub const ID_MAX: u64 = (1 << 53) - 1;
/// The names of worker processes. The order of first registration is the order of sweeps.
pub const NAMES: [&str; 3] = ["p", "q", "r"];

#[derive(Debug, Clone, Default)]
pub struct Worker {
    /// As in Redis: a pop puts a name in front.
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
}

impl Numbers {
    pub fn of(first: u64) -> Self {
        Self { first, handouts: 0, attempts: 0, crashes: 0 }
    }

    /// `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`
    pub fn tag(self) -> String {
        let Self { first, handouts, attempts, crashes } = self;
        match (handouts, attempts, crashes) {
            (0, 0, 0) => format!("{first}"),
            (_, 0, 0) => format!("{first} {handouts}"),
            (_, _, 0) => format!("{first} {handouts} {attempts}"),
            _ => format!("{first} {handouts} {attempts} {crashes}"),
        }
    }

    pub fn of_tag(tag: &str) -> Self {
        let all: Vec<u64> = tag.split(' ').map(|n| n.parse().expect("a tag")).collect();
        let at = |n: usize| all.get(n).copied().unwrap_or(0) as u32;
        Self { first: all[0], handouts: at(1), attempts: at(2), crashes: at(3) }
    }

    /// `FIRST HANDOUTS ATTEMPTS CRASHES WHY`
    pub fn held_id(self, why: &[u8]) -> Bytes {
        let Self { first, handouts, attempts, crashes } = self;
        [format!("{first} {handouts} {attempts} {crashes} ").as_bytes(), why].concat().into()
    }

    /// The numbers of a held batch; nothing where there is none.
    pub fn of_held(held_id: &Key<Option<Bytes>>) -> Option<Self> {
        let text = String::from_utf8_lossy(held_id.right()?.as_ref()?).into_owned();
        let all: Vec<u64> = text.splitn(5, ' ').take(4).map(|n| n.parse().expect("a number")).collect();
        let numbers = Self { first: all[0], handouts: all[1] as u32, attempts: all[2] as u32, crashes: all[3] as u32 };
        (numbers.first > 0).then_some(numbers)
    }

    /// What remains after the first `count` events.
    pub fn after(self, count: usize) -> Self {
        match count {
            0 => self,
            _ => Self { first: self.first + count as u64, attempts: 0, crashes: self.crashes.min(1), ..self },
        }
    }
}

#[derive(Debug, Clone)]
pub struct Registered {
    pub slots: usize,
    pub token: String,
    /// The step of its last sign of life; nothing: more than a day ago.
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
    /// Stands for the id of its entry, which Redis makes.
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
    /// It says when the event was taken.
    pub taken: bool,
    /// The results of handlers.
    pub results: Option<String>,
}

/// A shared key of a wrong type while one call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Markers,
    Held,
    Workers,
    Counter,
    /// The counter is a string, but no number.
    CounterText,
    Dead,
    Log,
    Actions,
    Rules,
    Paused,
    Meta,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Of a plain Redis command.
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
    /// What became of each dead letter.
    Settled(Vec<&'static str>),
    /// Why it was held.
    Released(String),
    /// Its owner.
    NotHeld(String),
    Skipped {
        id: u64,
        left: u64,
    },
    /// Why it is held.
    NoBatch(String),
    OtherHead(u64),
    /// A rule holds the object.
    Paused,
    /// What became of a rule.
    Ruled(&'static str),
    /// What is kept of which event, where that was asked, and how many events were emitted, with
    /// how many bytes.
    Kept(u64, BTreeSet<String>, (usize, usize), usize),
    /// Of this event something is still to be pushed.
    Unpushed(String),
    /// The slot has something else in hand.
    OtherBatch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advanced {
    /// When the first held object is due.
    pub due: Option<u64>,
    pub more: bool,
    pub from_held: bool,
    pub batches: Vec<Given>,
    /// The object and why, as people read them.
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

/// How many batches that may kill it a process takes.
#[derive(Debug, Clone, Default)]
pub struct Room {
    /// 0: there are no suspects.
    pub crashes_max: u32,
    /// What is at `crashes_max` is settled without a delivery.
    pub settles: bool,
    /// The crashes of the suspects in hand.
    pub in_hand: Vec<u32>,
}

impl Room {
    /// The fewer crashes are left to a batch, the fewer suspects may be in hand with it; nothing:
    /// it is no suspect.
    fn limit(&self, crashes: u32) -> Option<usize> {
        if crashes == 0 || self.crashes_max == 0 || self.settles && crashes >= self.crashes_max {
            return None;
        }
        match self.crashes_max.saturating_sub(crashes) {
            0 | 1 => Some(1),
            2 => Some(4),
            _ => (crashes >= 2).then_some(8),
        }
    }

    pub fn admits(&self, crashes: u32) -> bool {
        let Some(limit) = self.limit(crashes) else { return true };
        let smallest = self.in_hand.iter().filter_map(|crashes| self.limit(*crashes)).min();
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
    /// 0: never.
    pub crashes_max: u32,
    pub room: Room,
}

/// What handlers have finished of an event in a slot's hands; without it, what is kept is asked.
#[derive(Debug, Clone)]
pub struct Finish {
    pub name: &'static str,
    pub token: String,
    pub slot: usize,
    pub object: Name,
    pub tag: Numbers,
    /// The id, the field, and what was emitted.
    pub finished: Option<(u64, &'static str, Option<EmitField>)>,
}

#[derive(Debug, Clone, Default)]
pub struct Reference {
    /// The number of the step.
    pub now: u64,
    pub objects: BTreeMap<Name, Object>,
    pub workers: BTreeMap<String, Worker>,
    /// As in Redis: the last one is the oldest.
    pub markers: Vec<Name>,
    pub due: BTreeMap<Name, u64>,
    pub paused: BTreeSet<Name>,
    /// By kind and selector.
    pub rules: BTreeMap<Name, Rule>,
    pub counter: Option<u64>,
    /// The highest counter there ever was. The time, to which the counter jumps, is beyond it.
    pub highest: u64,
    /// In the order in which the names came.
    pub registry: Vec<(&'static str, Registered)>,
    /// Names that are alive or have something.
    pub watched: BTreeSet<&'static str>,
    /// Names without a lease that have nothing.
    pub departed: BTreeSet<&'static str>,
    pub leases: BTreeMap<&'static str, Lease>,
    pub dead: Vec<Dead>,
    /// Events that are finalized; without the log only those completed with errors.
    pub log: Vec<Row>,
    /// Whether the process that came last logs.
    pub log_on: bool,
    /// A worker had the log on since the data began.
    pub log_was_on: bool,
    /// How many dead letters there ever were.
    pub buried: u64,
    pub actions: Vec<Action>,
    /// How many events that handlers had emitted there were to push.
    pub pushed: u64,
    /// Whether the schema is written down, and the replication id.
    pub meta: Option<Option<String>>,
    pub broken: Option<Broken>,
}
