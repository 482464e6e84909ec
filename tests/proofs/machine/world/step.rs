//! The steps of a schedule, and the calls that they become.

use super::super::advance::{Advance, Choice};
use super::super::reference::{Attach, Broken, Event, Finish, Name, Room, Sent};
use super::super::schedules::Mode;
use super::super::shares::Share;

/// The keys of an object that a step can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Queue,
    Last,
    /// The last id becomes a string that is not an id.
    LastText,
    Owner,
    Held,
    HeldId,
    Errors,
}

#[derive(Debug, Clone, Copy)]
pub enum Token {
    /// The token of a process that has the lease of its name, if there is one.
    Mine,
    /// The last token of this process, even if the process has lost its lease.
    Last,
    /// The previous token of the worker name.
    Older,
    Others,
}

/// Limits of suspects: the maximum number of crashes, whether a batch that reaches it ends without
/// a delivery, and the crashes of the suspects in flight.
pub const ROOMS: [(u32, bool, &[u32]); 7] = [
    (0, false, &[]),
    (5, false, &[]),
    (5, true, &[2; 3]),
    (2, false, &[]),
    (2, true, &[]),
    (3, true, &[1; 3]),
    (5, false, &[4]),
];

pub(super) fn room(at: usize) -> Room {
    let (crashes_max, settles, in_hand) = ROOMS[at];
    Room {
        crashes_max,
        settles,
        in_hand: in_hand.to_vec(),
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub has_groups: bool,
    pub batch: usize,
    pub batch_bytes: usize,
    pub reply_bytes: usize,
    pub claims: usize,
    pub markers: usize,
    /// Highest id that the caller states: none, the last id given, or a higher id, which Redis has
    /// lost.
    pub highest: u8,
    pub forget: bool,
    pub log: bool,
    /// Index into [`ROOMS`].
    pub room: usize,
}

/// The names of requests.
pub const REQUESTS: [&str; 2] = ["r1", "r2"];

#[derive(Debug, Clone, Copy)]
pub struct AttachStep {
    pub name: usize,
    pub slots: usize,
    /// Whether the attach uses the last token again, instead of a fresh one.
    pub again: bool,
    pub displace: Option<bool>,
    pub before: bool,
    pub long: bool,
    pub crashes_max: u32,
    /// Index into [`ROOMS`].
    pub room: usize,
}

/// The objects for which a handler emits, each with the size of the event.
pub type EmitPlan = Vec<(usize, u16)>;

#[derive(Debug, Clone)]
pub enum Step {
    Emit(Vec<(usize, Vec<u16>)>),
    Marker(Option<usize>),
    /// A mark is pushed. The flag says whether `event.marks` has it, too.
    Mark(bool),
    /// A producer schedules an event: object, key, whether it is due, a number that orders the
    /// times, and the length of the event.
    Schedule(usize, usize, bool, u8, u16, Mode),
    Cancel(usize, usize),
    /// A producer cancels, by its key, an event that a slot has taken.
    CancelTaken(usize, usize),
    /// An operator cancels a schedule or its event, with a record of the action.
    CancelAs(usize, usize),
    /// A promotion with limits: the maximum numbers of events and of bytes.
    Promote(usize, usize),
    Pop(usize, usize),
    Advance(usize, Token, Bounds, [Choice; 3]),
    Attach(AttachStep),
    Renew(usize, Token, bool, usize),
    Adopt(usize, u32),
    Detach(usize, Token),
    /// A handler or a subtask succeeds for an event of the slot's batch, and may emit. The last
    /// flag says whether the batch never existed.
    Finish(usize, Token, usize, Option<(u8, u8, EmitPlan)>, bool),
    /// A request of this name is recorded for the slot's batch, or is over. The last flag says
    /// whether the batch never existed.
    Sent(usize, Token, usize, usize, bool, bool),
    Connect(u8, u8, u8, bool),
    Expire(usize),
    Day(usize),
    /// The counter is evicted, or set back.
    Lose(bool),
    Release(usize),
    ReleaseAll,
    /// An operator forgets these objects.
    Forget(Vec<usize>),
    /// An operator forgets this object, with a record of the action.
    ForgetAs(usize),
    /// An operator sets a share: prefix, weight, class, most objects in hand, burst.
    SetShare(usize, usize, usize, usize, usize),
    /// An operator counts the objects in hand, and dies before the share is set.
    CountInHand,
    /// The time of the next look comes at all groups that wait for a limit.
    Look,
    /// An operator removes a share. The number chooses it.
    RemoveShare(u8),
    /// Time passes until the last id of the object expires.
    Fade(usize),
    /// An operator retries dead letters if true, or drops them. The numbers choose some of all dead
    /// letters ever made.
    Settle(bool, Vec<u8>),
    SetFree(usize),
    /// An operator skips the object's first event. The call names no id, the event's id, or a wrong
    /// id.
    Skip(usize, Option<bool>),
    /// An operator sets a rule. The flag says whether the rule has an end.
    SetRule(usize, usize, bool),
    /// An operator lifts a rule, usually one that exists.
    LiftRule(u8),
    /// Time passes until the end of a rule.
    EndRule(u8),
    Wrong(usize, Part),
    Heal(usize),
    /// An earlier call arrives again.
    Late(u8),
    /// The step is made while a shared key has a wrong type.
    Broken(Broken, Box<Step>),
}

/// The calls to Redis.
#[derive(Debug, Clone)]
pub enum Call {
    Emit(Vec<(Name, Vec<Event>)>),
    Marker(Name),
    /// A mark: its time in ms, and whether `event.marks` has it.
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
    CancelAs(Name, &'static str),
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
    Sent(Sent),
    Expire(&'static str),
    Day(&'static str),
    /// The counter is set to this value, or evicted.
    Lose(Option<u64>),
    Release(Vec<Name>),
    Forget(Vec<Name>),
    ForgetAs(Name),
    Fade(Name),
    Settle {
        retry: bool,
        serials: Vec<u64>,
    },
    SetFree(Name),
    Skip(Name, Option<u64>),
    /// Sets a rule, with an end if true, or lifts it if none.
    Rule(&'static str, Name, Option<bool>),
    /// The time of the next look has come at all groups that wait for a limit.
    Look,
    CountInHand,
    /// A share is set, or removed.
    Share(Name, Option<Share>),
    /// Ends the rule with this field.
    EndRule(Name),
    Wrong(Name, Part),
    Heal(Name),
}

impl Call {
    /// Returns whether the call is one of a script, which may arrive again.
    pub fn is_of_script(&self) -> bool {
        let is_process = matches!(
            self,
            Call::Advance(_)
                | Call::Attach(_)
                | Call::Renew { .. }
                | Call::Adopt { .. }
                | Call::Detach { .. }
        );
        let is_delivery = matches!(self, Call::Finish(_) | Call::Sent(_) | Call::Promote { .. });
        let is_action = matches!(
            self,
            Call::Settle { .. }
                | Call::SetFree(_)
                | Call::Skip(..)
                | Call::Rule(..)
                | Call::Share(..)
        );
        is_process || is_delivery || is_action
    }
}
