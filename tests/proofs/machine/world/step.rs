//! The steps of a schedule, and the calls that are made of them.

use super::super::advance::{Advance, Choice};
use super::super::reference::{Attach, Broken, Event, Finish, Name, Room};

/// Keys of an object that can be given another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Queue,
    Last,
    /// A string, but no id.
    LastText,
    Owner,
    Held,
    HeldId,
    Errors,
}

#[derive(Debug, Clone, Copy)]
pub enum Token {
    /// That of a process that has its name, if there is any.
    Mine,
    /// That of this process, whether it has its name or not.
    Last,
    /// That of the process before.
    Older,
    Others,
}

/// Room for suspects: the crashes at which an event is put aside, whether it is settled then, and
/// what is in hand.
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
    /// The highest id the caller has seen: none, the last one given, or one that Redis has lost.
    pub highest: u8,
    pub forget: bool,
    pub log: bool,
    /// Of [`ROOMS`].
    pub room: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct AttachStep {
    pub name: usize,
    pub slots: usize,
    /// Not a fresh token, but the last one.
    pub again: bool,
    pub displace: Option<bool>,
    pub before: bool,
    pub long: bool,
    pub crashes_max: u32,
    /// Of [`ROOMS`].
    pub room: usize,
}

/// For which objects a handler emits, and how large the events are.
pub type EmitPlan = Vec<(usize, u16)>;

#[derive(Debug, Clone)]
pub enum Step {
    Emit(Vec<(usize, Vec<u16>)>),
    Marker(Option<usize>),
    Pop(usize, usize),
    Advance(usize, Token, Bounds, [Choice; 3]),
    Attach(AttachStep),
    Renew(usize, Token, bool, usize),
    Adopt(usize, u32),
    Detach(usize, Token),
    /// Of some event of the slot's batch, one of two handlers or a subtask, and for which objects
    /// it has emitted; or of a batch that never was.
    Finish(usize, Token, usize, Option<(u8, u8, EmitPlan)>, bool),
    Connect(u8, u8, u8, bool),
    Expire(usize),
    Day(usize),
    /// The counter is evicted, or is that of an earlier state.
    Lose(bool),
    Release(usize),
    ReleaseAll,
    /// An operator forgets these.
    Forget(Vec<usize>),
    /// Time passes until what is to be forgotten is.
    Fade(usize),
    /// An operator retries, or else drops, some of the dead letters there ever were.
    Settle(bool, Vec<u8>),
    SetFree(usize),
    /// Of the object's head event: whichever it is, the right id, or a wrong one.
    Skip(usize, Option<bool>),
    /// An operator sets a rule, with an end or without.
    SetRule(usize, usize, bool),
    /// An operator lifts a rule, mostly one that there is.
    LiftRule(u8),
    /// Time passes until a rule is over that has an end.
    EndRule(u8),
    Wrong(usize, Part),
    Heal(usize),
    /// A call made before, once more.
    Late(u8),
    /// A call while a shared key has a wrong type.
    Broken(Broken, Box<Step>),
}

/// What goes to Redis.
#[derive(Debug, Clone)]
pub enum Call {
    Emit(Vec<(Name, Vec<Event>)>),
    Marker(Name),
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
    /// The counter, as it is from now on.
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
    /// Set, with an end or without, or lifted.
    Rule(&'static str, Name, Option<bool>),
    /// The rule's field.
    EndRule(Name),
    Wrong(Name, Part),
    Heal(Name),
}
