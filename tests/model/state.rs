//! What there is: Redis, worker processes, the receiver. Small numbers throughout, because the
//! number of states decides how far the checker gets.
//!
//! Objects, names, processes and slots are indices. Slot `w` belongs to name `w / SLOTS_EACH`. An
//! event is a number that is unique over all objects, so that order, loss, duplication and a mix-up
//! of objects are visible wherever it turns up.
use std::fmt;

pub const OBJECTS: usize = 2;
pub const NAMES: usize = 2;
pub const SLOTS_EACH: usize = 2;
pub const SLOTS: usize = NAMES * SLOTS_EACH;
pub const PROCESSES: usize = 3;
/// Room for events of one object in the numbering of events.
pub const EVENTS_MAX: u8 = 4;
/// Ids that the ghost table of given ids has room for (used with rollback only).
pub const IDS: usize = 128;

/// There is no `seriatim.meta`: nobody has connected yet.
pub const EMPTY: u8 = 15;

/// The owner of a held object.
pub const HELD: u8 = 15;

/// The two handlers of an event, as bits: what the receiver gets is the work of the first, and the
/// second may emit.
pub const SENDS: u8 = 1;
pub const EMITS: u8 = 2;
pub const BOTH: u8 = SENDS | EMITS;

/// The number of the `index`th event (from 0) of an object.
pub fn event(object: usize, index: u8) -> u8 {
    object as u8 * EVENTS_MAX + index + 1
}

pub fn object_of(event: u8) -> usize {
    ((event - 1) / EVENTS_MAX) as usize
}

/// The bit of an event in a set of events of its own object.
pub fn bit(event: u8) -> u8 {
    1 << ((event - 1) % EVENTS_MAX)
}

/// The bit of an event in a set of all events.
pub fn wide_bit(event: u8) -> u16 {
    1 << event
}

/// A list of at most eight numbers from 1 to 15, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Short(u32);

impl Short {
    pub fn len(self) -> u8 {
        (32 - self.0.leading_zeros()).div_ceil(4) as u8
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn get(self, at: u8) -> u8 {
        (self.0 >> (4 * at) & 15) as u8
    }

    /// LPUSH: at the head, as the newest.
    pub fn push(&mut self, value: u8) {
        let len = self.len();
        assert!(value > 0 && value < 16 && len < 8, "a list of the model is full: {self:?}");
        self.0 |= u32::from(value) << (4 * len);
    }

    /// RPUSH: at the tail, taken next.
    pub fn push_oldest(&mut self, value: u8) {
        assert!(value > 0 && value < 16 && self.len() < 8, "a list of the model is full: {self:?}");
        self.0 = self.0 << 4 | u32::from(value);
    }

    /// RPOP: from the tail, the oldest.
    pub fn pop(&mut self) -> Option<u8> {
        let value = (self.0 & 15) as u8;
        self.0 >>= 4;
        (value > 0).then_some(value)
    }

    /// LREM 1: the newest occurrence.
    pub fn remove(&mut self, value: u8) {
        if let Some(at) = (0..self.len()).rev().find(|&at| self.get(at) == value) {
            let below = self.0 & ((1 << (4 * at)) - 1);
            self.0 = (self.0 >> (4 * at) >> 4) << (4 * at) | below;
        }
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..self.len()).map(move |at| self.get(at))
    }

    pub fn contains(self, value: u8) -> bool {
        self.iter().any(|other| other == value)
    }
}

impl FromIterator<u8> for Short {
    fn from_iter<I: IntoIterator<Item = u8>>(values: I) -> Self {
        let mut list = Self::default();
        values.into_iter().for_each(|value| list.push(value));
        list
    }
}

impl fmt::Debug for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What names a batch: compared whole with what a result names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Tag {
    pub first: u8,
    pub handouts: u8,
    pub attempts: u8,
    pub crashes: u8,
}

/// When an object in `objects.held` is due.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Due {
    /// Not in `objects.held`.
    #[default]
    Absent,
    Now,
    Later,
    /// Until an operator releases it.
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Rule {
    #[default]
    Absent,
    Paused,
    /// Being lifted: claims ignore it, its objects are not all woken yet.
    Lifted,
}

/// `OBJ:event.handled`: what handlers have finished of one event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Handled {
    /// 0 = nothing is kept.
    pub id: u8,
    /// The event that has this id: for properties only.
    pub event: u8,
    /// Handlers, as bits.
    pub finished: u8,
    /// The object (index + 1) for which an event was emitted; 0 = none.
    pub emitted: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Object {
    pub queue: Short,
    pub last: u8,
    /// 0 nobody, w + 1, or HELD.
    pub owner: u8,
    pub held: Short,
    pub held_tag: Tag,
    pub due: Due,
    /// In `objects.paused`.
    pub paused: bool,
    pub dead: u8,
    /// What was among the dead letters until an operator dropped it, or made a new event of it.
    pub gone: u8,
    pub rule: Rule,
    pub handled: Handled,
}

/// The keys of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Slot {
    /// `event.worker:W:object`, objects as index + 1.
    pub objects: Short,
    pub batch: Short,
    pub tag: Tag,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Name {
    /// The token in the lease; 0 = no lease.
    pub lease: u8,
    /// In `event.workers`: the last token (0 = not registered) and the slots.
    pub last_token: u8,
    pub slots: u8,
    /// Only with the guard `resweep` off: swept since its lease went.
    pub swept: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Redis {
    pub objects: [Object; OBJECTS],
    pub slots: [Slot; SLOTS],
    pub names: [Name; NAMES],
    /// `objects.with.events`, objects as index + 1.
    pub markers: Short,
    pub next_id: u8,
    /// The counter is absent: it was evicted.
    pub evicted: bool,
    /// `replication.id` of `seriatim.meta`, or EMPTY.
    pub meta: u8,
    /// A rule that is over all objects, and how many of these its waking has passed.
    pub all: Rule,
    pub cursor: u8,
    /// `event.log`: events that have a row.
    pub log: u16,
    pub past: Past,
}

/// What only the properties look at, and a failover takes back: sets of events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Past {
    /// One of whose handlers was written down as finished: the first, the second.
    pub finished: [u16; 2],
    /// That have emitted, which was written down …
    pub emitters: u16,
    /// … and what they have emitted was pushed.
    pub pushed: u16,
}

impl Redis {
    /// Whether a rule in force is over the object: its own one, or that over all.
    pub fn is_ruled(&self, at: usize) -> bool {
        self.objects[at].rule == Rule::Paused || self.all == Rule::Paused
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Mode {
    /// Not started yet, or crashed: may be started.
    #[default]
    Off,
    /// Has sent an attach, and got no reply yet.
    Attaching,
    Running,
    /// Knows that its lease is gone; attaches again.
    Lapsed,
    /// Fenced or detached: never acts again.
    Stopped,
}

/// What a process has in hand for one slot: the batch as a reply of advance gave it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Hand {
    /// Index + 1; 0 = the slot is free.
    pub object: u8,
    pub batch: Short,
    pub tag: Tag,
    pub prev: u8,
    /// How many events, from the front, have been sent.
    pub sent: u8,
    /// Handlers that have finished the event behind these, as bits.
    pub finished: u8,
    /// The id of which something is kept, as far as the process knows; 0 = none.
    pub handled: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Process {
    pub mode: Mode,
    pub token: u8,
    /// The token it had before it lapsed; 0 = none.
    pub before: u8,
    /// While it attaches: the lease it displaces.
    pub displace: u8,
    pub hand: [Hand; SLOTS_EACH],
    /// The replication id of its connections (with losses only).
    pub replication: u8,
    /// The highest id it has seen (with losses only).
    pub highest: u8,
    /// Only with the guard `rules_in_script` off: the objects it believes to be paused.
    pub rules: u8,
    /// Only where there are handlers: it had the name before it lapsed, so that batches may come
    /// again under the tags they had.
    pub again: bool,
}

/// What a receiver knows about one object, and what it has been through.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Received {
    /// Highest id applied.
    pub last: u8,
    /// Events ever applied.
    pub applied: u8,
    /// The event applied last, and the epoch its id was given in.
    pub newest: u8,
    pub epoch: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Envelope {
    pub id: u8,
    pub prev: u8,
    pub object: u8,
    pub event: u8,
}

/// What became of a batch, as a worker reports it. The number is how many events, from the front,
/// were delivered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    Done(u8),
    Yield(u8),
    Retry(u8),
    Reject(u8),
    Part(u8),
    Hold(u8),
    /// It has failed for the last time: an operator is waited for.
    Wait(u8),
}

impl Outcome {
    /// How many events, from the front, were delivered.
    pub fn delivered(self) -> u8 {
        match self {
            Self::Done(k) | Self::Yield(k) | Self::Retry(k) | Self::Reject(k) | Self::Part(k) | Self::Hold(k) | Self::Wait(k) => {
                k
            }
        }
    }
}

/// How a call of advance names one slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Named {
    #[default]
    Not,
    Free,
    Result {
        tag: Tag,
        outcome: Outcome,
        /// The word that it ends an event of which something is kept.
        handled: bool,
    },
}

/// A call of advance, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    pub name: u8,
    pub token: u8,
    pub rules: u8,
    /// The highest id the process has seen (with losses only).
    pub highest: u8,
    pub slots: [Named; SLOTS_EACH],
}

/// A call of handled that writes something down, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Keep {
    pub name: u8,
    pub token: u8,
    pub slot: u8,
    pub object: u8,
    pub tag: Tag,
    pub what: Handled,
}

/// A call that has been made, and may arrive once more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Late {
    Advance(Call),
    Handled(Keep),
}

#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct State {
    pub redis: Redis,
    pub processes: [Process; PROCESSES],
    pub received: [Received; OBJECTS],
    /// Events pushed so far.
    pub pushed: [u8; OBJECTS],
    /// Faults and special outcomes that may still happen.
    pub faults: u8,
    pub outcomes: u8,
    /// A second copy of a call that has been made: it may still arrive.
    pub late: Option<Late>,
    /// An envelope on its way that its sender has given up on.
    pub wire: Option<Envelope>,
    /// The replication id of the server: 0 until a failover.
    pub replication: u8,
    /// How often Redis has lost something: time has passed, more than ids were given.
    pub time: u8,
    /// What Redis will be rolled back to.
    pub snapshot: Option<Box<Redis>>,
    pub ghost: Ghost,
}

/// What only the properties look at.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ghost {
    /// The token of the last attach of each name.
    pub newest: [u8; NAMES],
    /// Crashes, lost leases and takeovers so far.
    pub deaths: u8,
    /// Events that Redis itself lost.
    pub excused: u16,
    /// Properties broken for good, as bits.
    pub broken: u16,
    /// With losses only: event and epoch (upper bits) of every id given.
    pub given: Option<Box<[u8; IDS]>>,
}

impl Late {
    fn token(self) -> u8 {
        match self {
            Self::Advance(call) => call.token,
            Self::Handled(keep) => keep.token,
        }
    }
}

impl State {
    pub fn spend_fault(&mut self, spend: bool) {
        self.faults = self.faults.checked_sub(u8::from(spend)).expect("an action takes more faults than there are");
    }

    pub fn spend_outcome(&mut self, spend: bool) {
        self.outcomes = self.outcomes.checked_sub(u8::from(spend)).expect("an action takes more outcomes than there are");
    }

    /// A token that occurs nowhere: tokens are compared for equality only, so a forgotten one is as
    /// good as a fresh one.
    pub fn fresh_token(&self) -> u8 {
        let used = |token: u8| {
            let names = |redis: &Redis| redis.names.iter().any(|name| name.lease == token || name.last_token == token);
            names(&self.redis)
                || self.snapshot.as_deref().is_some_and(names)
                || self.processes.iter().any(|process| [process.token, process.before, process.displace].contains(&token))
                || self.late.is_some_and(|late| late.token() == token)
                || self.ghost.newest.contains(&token)
        };
        (1..=u8::MAX).find(|&token| !used(token)).unwrap_or(u8::MAX)
    }

    pub fn is_live(&self, process: usize) -> bool {
        matches!(self.processes[process].mode, Mode::Running | Mode::Lapsed | Mode::Attaching)
    }

    /// Whether the connections of a process lead to the Redis of today.
    pub fn is_connected(&self, process: usize) -> bool {
        self.processes[process].replication == self.replication
    }

    /// Every pushed event.
    pub fn events(&self) -> impl Iterator<Item = u8> + '_ {
        (0..OBJECTS).flat_map(|object| (0..self.pushed[object]).map(move |index| event(object, index)))
    }
}

impl Redis {
    /// The object that worker `w` owns.
    pub fn owned(&self, w: usize) -> Option<usize> {
        self.objects.iter().position(|object| object.owner == w as u8 + 1)
    }

    /// Whether an event that was pushed is over: it has left its batch.
    pub fn is_over(&self, event: u8) -> bool {
        self.places(event) <= usize::from(self.objects[object_of(event)].dead & bit(event) != 0)
    }

    /// In how many places an event is.
    pub fn places(&self, event: u8) -> usize {
        let occurrences = |list: Short| list.iter().filter(|&other| other == event).count();
        let object = &self.objects[object_of(event)];
        self.objects.iter().map(|object| occurrences(object.queue) + occurrences(object.held)).sum::<usize>()
            + self.slots.iter().map(|slot| occurrences(slot.batch)).sum::<usize>()
            + usize::from(object.dead & bit(event) != 0)
    }
}
