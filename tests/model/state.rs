//! The state of the model: Redis, worker processes, the receiver. All numbers are small, because
//! the number of states limits the checker.
//!
//! Objects, names, processes and slots are indices. Slot `w` belongs to name `w / SLOTS_EACH`. An
//! event is a number that is unique over all objects. So order, loss, duplicates and mixed-up
//! objects are visible everywhere.
use std::fmt;

pub const OBJECTS: usize = 2;
pub const NAMES: usize = 2;
pub const SLOTS_EACH: usize = 2;
pub const SLOTS: usize = NAMES * SLOTS_EACH;
pub const PROCESSES: usize = 3;
/// Maximum number of events of one object.
pub const EVENTS_MAX: u8 = 4;
/// Number of ids in the ghost table of given ids (used with rollback only).
pub const IDS: usize = 128;

/// The value of `Redis::meta` if `seriatim.meta` is absent: no process has connected yet.
pub const EMPTY: u8 = 15;

/// The value of `Object::owner` for a held object.
pub const HELD: u8 = 15;

/// The two handlers of an event, as bits. The first one sends to the receiver, the second may emit.
pub const SENDS: u8 = 1;
pub const EMITS: u8 = 2;
pub const BOTH: u8 = SENDS | EMITS;

/// Returns the number of the `index`th event (from 0) of an object.
pub fn event(object: usize, index: u8) -> u8 {
    object as u8 * EVENTS_MAX + index + 1
}

pub fn object_of(event: u8) -> usize {
    ((event - 1) / EVENTS_MAX) as usize
}

/// Returns the bit of an event in a set of events of its own object.
pub fn bit(event: u8) -> u8 {
    1 << ((event - 1) % EVENTS_MAX)
}

/// Returns the bit of an event in a set of all events.
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

    /// LPUSH: adds the value at the head, as the newest.
    pub fn push(&mut self, value: u8) {
        let len = self.len();
        assert!(
            value > 0 && value < 16 && len < 8,
            "a list of the model is full: {self:?}"
        );
        self.0 |= u32::from(value) << (4 * len);
    }

    /// RPUSH: adds the value at the tail, to be taken next.
    pub fn push_oldest(&mut self, value: u8) {
        assert!(
            value > 0 && value < 16 && self.len() < 8,
            "a list of the model is full: {self:?}"
        );
        self.0 = self.0 << 4 | u32::from(value);
    }

    /// RPOP: takes the value at the tail, the oldest.
    pub fn pop(&mut self) -> Option<u8> {
        let value = (self.0 & 15) as u8;
        self.0 >>= 4;
        (value > 0).then_some(value)
    }

    /// LREM 1: removes the newest occurrence.
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

/// The identity of a batch, compared as a whole with the tag of a result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Tag {
    pub first: u8,
    pub handouts: u8,
    pub attempts: u8,
    pub crashes: u8,
}

/// The due time of an object in `objects.held`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Due {
    /// The object is not in `objects.held`.
    #[default]
    Absent,
    Now,
    Later,
    /// The object waits until an operator releases it.
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Rule {
    #[default]
    Absent,
    Paused,
    /// The rule is being lifted: claims ignore it, but not all its objects are woken yet.
    Lifted,
}

/// `OBJ:event.handled`: finished handlers of one event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Handled {
    /// Id of the event; 0 = no record.
    pub id: u8,
    /// The event with this id, for properties only.
    pub event: u8,
    /// Finished handlers, as bits.
    pub finished: u8,
    /// Object (index + 1) for which an event was emitted; 0 = none.
    pub emitted: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Object {
    pub queue: Short,
    pub last: u8,
    /// Owner: 0 = none, w + 1 = worker `w`, or HELD.
    pub owner: u8,
    pub held: Short,
    pub held_tag: Tag,
    pub due: Due,
    /// Whether the object is in `objects.paused`.
    pub paused: bool,
    pub dead: u8,
    /// Dead letters that an operator has dropped, or retried as a new event.
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
    /// Token in the lease; 0 = no lease.
    pub lease: u8,
    /// Value in `event.workers`: the last token (0 = not registered) and the slots.
    pub last_token: u8,
    pub slots: u8,
    /// Used only with the guard `resweep` off: whether the name was swept since its lease ended.
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
    /// Whether the counter is absent because it was evicted.
    pub evicted: bool,
    /// `replication.id` of `seriatim.meta`, or EMPTY.
    pub meta: u8,
    /// A rule over all objects, and the number of objects that its waking has passed.
    pub all: Rule,
    pub cursor: u8,
    /// `event.log`: the events that have a row.
    pub log: u16,
    pub past: Past,
}

/// Sets of events that only the properties read. A failover sets them back, as it does Redis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Past {
    /// For each of the two handlers: the events for which it was recorded as finished.
    pub finished: [u16; 2],
    /// Events with a recorded emit.
    pub emitters: u16,
    /// Events whose emit was pushed.
    pub pushed: u16,
}

impl Redis {
    /// Returns whether a rule in force is over the object: its own rule, or the rule over all
    /// objects.
    pub fn is_ruled(&self, at: usize) -> bool {
        self.objects[at].rule == Rule::Paused || self.all == Rule::Paused
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Mode {
    /// The process is not started yet, or has crashed. It may be started.
    #[default]
    Off,
    /// The process has sent an attach, and has no reply yet.
    Attaching,
    Running,
    /// The process knows that its lease has ended, and attaches again.
    Lapsed,
    /// The process is fenced or detached: it never acts again.
    Stopped,
}

/// The batch of a process for one slot, as a reply of advance gave it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Hand {
    /// Object index + 1; 0 = the slot is free.
    pub object: u8,
    pub batch: Short,
    pub tag: Tag,
    pub prev: u8,
    /// Number of sent events, from the front of the batch.
    pub sent: u8,
    /// Handlers that have finished the next event, as bits.
    pub finished: u8,
    /// Id of the event with a record of handlers, as far as the process knows; 0 = none.
    pub handled: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Process {
    pub mode: Mode,
    pub token: u8,
    /// Token before the lapse; 0 = none.
    pub before: u8,
    /// While attaching: the lease to displace.
    pub displace: u8,
    pub hand: [Hand; SLOTS_EACH],
    /// Replication id of its connections (used only if Redis may lose writes).
    pub replication: u8,
    /// Highest id that the process has seen (used only if Redis may lose writes).
    pub highest: u8,
    /// Used only with the guard `rules_in_script` off: the objects that the process considers
    /// paused.
    pub rules: u8,
    /// Used only with handlers: whether the process had the name before it lapsed. Batches may then
    /// come again under their old tags.
    pub again: bool,
}

/// The knowledge of a receiver about one object, and its history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Received {
    /// Highest id applied.
    pub last: u8,
    /// Events that the receiver has ever applied, as bits.
    pub applied: u8,
    /// Event applied last, and the epoch of its id.
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

/// The result of a batch, as a worker reports it. Each number is the number of delivered events,
/// from the front of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    Done(u8),
    Yield(u8),
    Retry(u8),
    Reject(u8),
    Part(u8),
    Hold(u8),
    /// The event has failed for the last time, and waits for an operator.
    Wait(u8),
    /// The program that handled the event has died.
    Crash(u8),
}

impl Outcome {
    /// Returns the number of delivered events, from the front.
    pub fn delivered(self) -> u8 {
        match self {
            Self::Done(k)
            | Self::Yield(k)
            | Self::Retry(k)
            | Self::Reject(k)
            | Self::Part(k)
            | Self::Hold(k)
            | Self::Wait(k)
            | Self::Crash(k) => k,
        }
    }
}

/// The entry of one slot in a call of advance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Named {
    #[default]
    Not,
    Free,
    Result {
        tag: Tag,
        outcome: Outcome,
        /// Whether the caller states that the result may end the event with a record.
        handled: bool,
    },
}

/// A call of advance that is under way to Redis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    pub name: u8,
    pub token: u8,
    pub rules: u8,
    /// Highest id that the process has seen (used only if Redis may lose writes).
    pub highest: u8,
    pub slots: [Named; SLOTS_EACH],
}

/// A call of `handled` that is under way to Redis, and records a success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Keep {
    pub name: u8,
    pub token: u8,
    pub slot: u8,
    pub object: u8,
    pub tag: Tag,
    pub what: Handled,
}

/// A call that was made, and of which a second copy may still arrive.
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
    /// Number of events pushed so far.
    pub pushed: [u8; OBJECTS],
    /// Number of faults and special outcomes that may still happen.
    pub faults: u8,
    pub outcomes: u8,
    /// Second copy of a call, which may still arrive.
    pub late: Option<Late>,
    /// Envelope that is under way although its sender has given it up.
    pub wire: Option<Envelope>,
    /// Replication id of the server: 0 until a failover.
    pub replication: u8,
    /// Number of times that Redis lost writes. It stands for the time, which grows faster than ids
    /// are given.
    pub time: u8,
    /// State to which Redis may be rolled back.
    pub snapshot: Option<Box<Redis>>,
    pub ghost: Ghost,
}

/// State that only the properties read.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ghost {
    /// Token of the last attach of each name.
    pub newest: [u8; NAMES],
    /// Number of crashes, lost leases and takeovers so far.
    pub deaths: u8,
    /// Events that Redis itself lost.
    pub excused: u16,
    /// Broken properties of steps, as bits. They stay broken.
    pub broken: u16,
    /// Event and epoch (upper bits) of every id given (used only if Redis may lose writes).
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
        self.faults = self
            .faults
            .checked_sub(u8::from(spend))
            .expect("an action takes more faults than there are");
    }

    pub fn spend_outcome(&mut self, spend: bool) {
        self.outcomes = self
            .outcomes
            .checked_sub(u8::from(spend))
            .expect("an action takes more outcomes than there are");
    }

    /// Returns a token that occurs nowhere. Tokens are only compared for equality, so a token that
    /// has disappeared everywhere can be used again.
    pub fn fresh_token(&self) -> u8 {
        let used = |token: u8| {
            let names = |redis: &Redis| {
                redis
                    .names
                    .iter()
                    .any(|name| name.lease == token || name.last_token == token)
            };
            names(&self.redis)
                || self.snapshot.as_deref().is_some_and(names)
                || self.processes.iter().any(|process| {
                    [process.token, process.before, process.displace].contains(&token)
                })
                || self.late.is_some_and(|late| late.token() == token)
                || self.ghost.newest.contains(&token)
        };
        (1..=u8::MAX).find(|&token| !used(token)).unwrap_or(u8::MAX)
    }

    pub fn is_live(&self, process: usize) -> bool {
        matches!(
            self.processes[process].mode,
            Mode::Running | Mode::Lapsed | Mode::Attaching
        )
    }

    /// Returns whether the connections of a process lead to the present Redis.
    pub fn is_connected(&self, process: usize) -> bool {
        self.processes[process].replication == self.replication
    }

    /// Returns every pushed event.
    pub fn events(&self) -> impl Iterator<Item = u8> + '_ {
        (0..OBJECTS)
            .flat_map(|object| (0..self.pushed[object]).map(move |index| event(object, index)))
    }
}

impl Redis {
    /// Returns the object that worker `w` owns.
    pub fn owned(&self, w: usize) -> Option<usize> {
        self.objects
            .iter()
            .position(|object| object.owner == w as u8 + 1)
    }

    /// Returns whether a pushed event is over: it has left its batch for good.
    pub fn is_over(&self, event: u8) -> bool {
        self.places(event) <= usize::from(self.objects[object_of(event)].dead & bit(event) != 0)
    }

    /// Returns the number of places that have the event.
    pub fn places(&self, event: u8) -> usize {
        let occurrences = |list: Short| list.iter().filter(|&other| other == event).count();
        let object = &self.objects[object_of(event)];
        self.objects
            .iter()
            .map(|object| occurrences(object.queue) + occurrences(object.held))
            .sum::<usize>()
            + self
                .slots
                .iter()
                .map(|slot| occurrences(slot.batch))
                .sum::<usize>()
            + usize::from(object.dead & bit(event) != 0)
    }
}
