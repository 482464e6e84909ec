//! The steps of a schedule, and the resulting calls.

use super::super::advance::{Advance, Choice};
use super::super::reference::{Attach, Broken, Event, Finish, Name, Room};
use super::super::schedules::Mode;

/// Keys of an object that can get another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Queue,
    Last,
    /// A string that is not an id.
    LastText,
    Owner,
    Held,
    HeldId,
    Errors,
}

#[derive(Debug, Clone, Copy)]
pub enum Token {
    /// The token of a process that has its name, if any.
    Mine,
    /// The last token of this process, even if it has lost its name.
    Last,
    /// The token of the process before.
    Older,
    Others,
}

/// Settings for suspects: maximum number of crashes, whether such a batch is settled then, and the
/// crashes of the suspects in flight.
pub const ROOMS: [(u32, bool, &[u32]); 7] =
    [(0, false, &[]), (5, false, &[]), (5, true, &[2; 7]), (2, false, &[]), (2, true, &[]), (3, true, &[1; 3]), (5, false, &[4])];

pub(super) fn room(at: usize) -> Room {
    let (crashes_max, settles, in_hand) = ROOMS[at];
    Room { crashes_max, settles, in_hand: in_hand.to_vec() }
}

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub batch: usize,
    pub batch_bytes: usize,
    pub reply_bytes: usize,
    pub claims: usize,
    pub markers: usize,
    /// Highest id that the caller has seen: none, the last one given, or one that Redis has lost.
    pub highest: u8,
    pub forget: bool,
    pub log: bool,
    /// Index into [`ROOMS`].
    pub room: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct AttachStep {
    pub name: usize,
    pub slots: usize,
    /// Whether to use the last token instead of a fresh one.
    pub again: bool,
    pub displace: Option<bool>,
    pub before: bool,
    pub long: bool,
    pub crashes_max: u32,
    /// Index into [`ROOMS`].
    pub room: usize,
}

/// The objects for which a handler emits, and the sizes of the events.
pub type EmitPlan = Vec<(usize, u16)>;

#[derive(Debug, Clone)]
pub enum Step {
    Emit(Vec<(usize, Vec<u16>)>),
    Marker(Option<usize>),
    /// A mark is pushed: whether `event.marks` has it.
    Mark(bool),
    /// A producer schedules an event: object, key, whether it is due, the time among equal ones, and
    /// the length of the event.
    Schedule(usize, usize, bool, u8, u16, Mode),
    Cancel(usize, usize),
    /// An event that a slot has taken is cancelled by its key.
    CancelTaken(usize, usize),
    /// The most events and bytes of a call.
    Promote(usize, usize),
    Pop(usize, usize),
    Advance(usize, Token, Bounds, [Choice; 3]),
    Attach(AttachStep),
    Renew(usize, Token, bool, usize),
    Adopt(usize, u32),
    Detach(usize, Token),
    /// A success of one of two handlers or a subtask, for an event of the slot's batch, with its
    /// emits; or for a batch that never existed.
    Finish(usize, Token, usize, Option<(u8, u8, EmitPlan)>, bool),
    Connect(u8, u8, u8, bool),
    Expire(usize),
    Day(usize),
    /// The counter is evicted, or set back.
    Lose(bool),
    Release(usize),
    ReleaseAll,
    /// An operator forgets these objects.
    Forget(Vec<usize>),
    /// Time passes until the last id expires.
    Fade(usize),
    /// An operator retries (true) or drops some of the dead letters ever made.
    Settle(bool, Vec<u8>),
    SetFree(usize),
    /// A skip of the object's first event: any, with its id, or with a wrong id.
    Skip(usize, Option<bool>),
    /// An operator sets a rule, with an end or without.
    SetRule(usize, usize, bool),
    /// An operator lifts a rule, mostly an existing one.
    LiftRule(u8),
    /// Time passes until the end of a rule.
    EndRule(u8),
    Wrong(usize, Part),
    Heal(usize),
    /// An earlier call, repeated.
    Late(u8),
    /// A call while a shared key has a wrong type.
    Broken(Broken, Box<Step>),
}

/// The calls to Redis.
#[derive(Debug, Clone)]
pub enum Call {
    Emit(Vec<(Name, Vec<Event>)>),
    Marker(Name),
    /// Time in ms, and whether `event.marks` has it.
    Mark(u64, bool),
    Schedule {
        object: Name,
        key: &'static str,
        due: u64,
        event: Event,
        mode: Mode,
    },
    Cancel(Name, &'static str),
    CancelTaken(Name, &'static str),
    Promote {
        events: usize,
        bytes: usize,
    },
    Pop(String),
    Advance(Advance),
    Attach(Attach),
    Renew {
        name: &'static str,
        token: String,
        lease_ms: u64,
        slots: usize,
    },
    Adopt {
        own: &'static str,
        crashes_max: u32,
    },
    Detach {
        name: &'static str,
        token: String,
    },
    Connect {
        replication_id: &'static str,
        highest: u64,
        first_id: u64,
        log: bool,
    },
    Finish(Finish),
    Expire(&'static str),
    Day(&'static str),
    /// The new value of the counter.
    Lose(Option<u64>),
    Release(Vec<Name>),
    Forget(Vec<Name>),
    Fade(Name),
    Settle {
        retry: bool,
        serials: Vec<u64>,
    },
    SetFree(Name),
    Skip(Name, Option<u64>),
    /// Sets a rule, with an end or without, or lifts it.
    Rule(&'static str, Name, Option<bool>),
    /// Field of the rule.
    EndRule(Name),
    Wrong(Name, Part),
    Heal(Name),
}
