//! What Redis holds, and what each step of the protocol does to it: written from `docs/design.md` and the headers of the scripts, not from the
//! scripts, and meant to be read as their specification. `advance` has a file of its own.
//!
//! Time is the number of the step: a score or a time that a script took from its clock is that number, one in the far future is [`FAR`] more.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use seriatim::scripts::Forgot;

use super::operator::Action;
use super::rules::Rule;

/// An object's name, any bytes.
pub type Name = Bytes;
/// An event, any bytes.
pub type Event = Bytes;

/// Added to the number of the step where something is due in the far future; also how long that is, in ms.
pub const FAR: u64 = 4_000_000_000_000;
/// The due time of what waits for an operator.
pub const OPERATOR: u64 = u64::MAX;
/// The counter jumps by so much where Redis may have lost ids: a stand-in for the jump to the time.
pub const JUMP: u64 = 1_000_000;
pub const ID_MAX: u64 = (1 << 53) - 1;
/// The names of worker processes. The order of first registration is the order of sweeps.
pub const NAMES: [&str; 3] = ["p", "q", "r"];

/// What a key holds: absent is the empty value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key<T> {
    Right(T),
    /// A hash, where the protocol wants something else.
    Wrong,
}

impl<T: Default> Default for Key<T> {
    fn default() -> Self {
        Self::Right(T::default())
    }
}

impl<T> Key<T> {
    pub fn right(&self) -> Option<&T> {
        match self {
            Self::Right(value) => Some(value),
            Self::Wrong => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Object {
    /// Oldest first, as all events here.
    pub queue: Key<Vec<Event>>,
    pub last: Key<Option<String>>,
    /// The time to live of the last id, ms.
    pub fades: Option<u64>,
    pub owner: Key<Option<String>>,
    pub held: Key<Vec<Event>>,
    pub held_id: Key<Option<Bytes>>,
    /// What handlers have finished of an event, by its id.
    pub handled: Option<Handled>,
    /// How the event at the head of the batch has failed, the newest first.
    pub errors: Key<Vec<Failure>>,
}

/// What handlers have kept of an event until it is over.
#[derive(Debug, Clone, Default)]
pub struct Handled {
    pub id: u64,
    /// `handler:ID`, `once:SUBTASK`.
    pub finished: BTreeSet<String>,
    /// By field, `emit:ID`.
    pub emits: BTreeMap<String, Emits>,
    /// By field, `result:ID`.
    pub results: BTreeMap<String, String>,
}

/// The result of a handler that has finished: one for events with an even id. The field and its value.
pub fn result_of(id: u64, field: &str) -> Option<(String, String)> {
    let handler = field.strip_prefix("handler:").filter(|_| id.is_multiple_of(2))?;
    Some((format!("result:{handler}"), format!("\"{handler}\":{id}")))
}

/// What one handler has emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emits {
    /// The handler's among those registered.
    pub place: usize,
    pub events: Vec<(Name, Event)>,
}

/// The field `emit:ID`, and its value.
pub type EmitField = (&'static str, Emits);

impl Emits {
    pub fn bytes(&self) -> usize {
        self.events.iter().map(|(object, event)| object.len() + event.len()).sum()
    }
}

impl Handled {
    /// The results as the row of this event has them.
    pub fn results_of(&self, id: u64) -> Option<String> {
        let members: Vec<_> = self.results.values().cloned().collect();
        (self.id == id && !members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
    }

    /// All that was emitted, in the order in which it is pushed.
    pub fn events(&self) -> Vec<(Name, Event)> {
        let mut all: Vec<_> = self.emits.values().collect();
        all.sort_by_key(|emits| emits.place);
        all.into_iter().flat_map(|emits| emits.events.clone()).collect()
    }
}

/// When, in which attempt, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub at: u64,
    pub attempt: u32,
    pub error: &'static str,
}

/// So many errors of an event are kept.
pub const ERRORS_MAX: usize = 20;

impl Object {
    /// The id of the last event delivered, `None` where that is not known.
    pub fn last_id(&self) -> Option<u64> {
        self.last.right().and_then(|last| last.as_ref().map_or(Some(0), |text| id_of(text)))
    }
}

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
    /// What is kept of which event, where that was asked, and how many events were emitted, with how many bytes.
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
    /// The fewer crashes are left to a batch, the fewer suspects may be in hand with it; nothing: it is no suspect.
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

/// A whole number from 0 to 2^53 - 1.
pub fn id_of(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|id| *id <= ID_MAX)
}

/// Takes one occurrence out, the foremost.
pub fn remove(list: &mut Vec<Name>, name: &Name) {
    if let Some(at) = list.iter().position(|other| other == name) {
        list.remove(at);
    }
}

impl Reference {
    pub fn object(&mut self, name: &Name) -> &mut Object {
        self.objects.entry(name.clone()).or_default()
    }

    pub fn worker(&mut self, w: &str) -> &mut Worker {
        self.workers.entry(w.to_owned()).or_default()
    }

    /// Who owns the object; a key of a wrong type names nobody.
    pub fn owner(&self, name: &Name) -> Option<String> {
        self.objects.get(name)?.owner.right()?.clone()
    }

    pub fn registered(&self, name: &str) -> Option<&Registered> {
        self.registry.iter().find(|(other, _)| *other == name).map(|(_, registered)| registered)
    }

    fn register(&mut self, name: &'static str, slots: usize, token: &str) {
        let value = Registered { slots, token: token.to_owned(), at: Some(self.now) };
        match self.registry.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => self.registry.push((name, value)),
        }
    }

    fn watch(&mut self, name: &'static str) {
        self.departed.remove(name);
        self.watched.insert(name);
    }

    fn depart(&mut self, name: &'static str) {
        self.watched.remove(name);
        self.departed.insert(name);
    }

    /// A new dead letter; answers its serial.
    pub fn bury(&mut self, id: u64, prev: String, object: &Name, event: Event, error: Bytes, attempts: u32) -> u64 {
        self.buried += 1;
        self.dead.push(Dead { serial: self.buried, id, prev, object: object.clone(), event, error, attempts });
        self.buried
    }

    pub fn is_broken(&self, keys: &[Broken]) -> bool {
        self.broken.is_some_and(|broken| keys.contains(&broken))
    }

    /// EMIT. Where the queue has a wrong type, only the marker is pushed.
    pub fn emit(&mut self, object: &Name, events: &[Event]) -> Reply {
        if let Key::Right(queue) = &mut self.object(object).queue {
            queue.extend_from_slice(events);
        }
        self.markers.insert(0, object.clone());
        Reply::Done
    }

    /// WAIT. The oldest marker moves to the slot's list.
    pub fn pop(&mut self, w: &str) -> Reply {
        if let Some(name) = self.markers.pop() {
            self.worker(w).objects.insert(0, name);
        }
        Reply::Done
    }

    /// The reply to a process whose lease is not there, or not its own.
    pub fn fence(&self, name: &str, token: &str) -> Option<Reply> {
        match self.leases.get(name) {
            Some(lease) if lease.token == token => None,
            Some(lease) => Some(Reply::Fenced(lease.text())),
            None if self.is_broken(&[Broken::Workers]) => Some(Reply::WrongType),
            None if self.registered(name).is_some_and(|last| last.token == token) => Some(Reply::Lapsed),
            None => Some(Reply::Fenced(String::new())),
        }
    }

    /// HOLD: takes the object from the worker. Without numbers the batch is empty and the reason a yield.
    pub fn hold(&mut self, w: &str, object: &Name, due: u64, held_id: Option<Bytes>) {
        self.due.insert(object.clone(), due);
        let worker = self.worker(w);
        worker.tag = None;
        remove(&mut worker.objects, object);
        let held = self.object(object);
        held.owner = Key::Right(Some("held".to_owned()));
        if held_id.is_some() {
            held.held_id = Key::Right(held_id);
        }
    }

    /// The batch moves to the object.
    pub fn hold_batch(&mut self, w: &str, object: &Name, due: u64, held_id: Bytes) {
        let batch = std::mem::take(&mut self.worker(w).batch);
        self.object(object).held = Key::Right(batch);
        self.hold(w, object, due, Some(held_id));
    }

    /// Holds what a slot owns, now, for a reason that lies with the process.
    fn hold_owned(&mut self, w: &str, object: &Name, why: &str, died: bool, crashes_max: u32) {
        let now = self.now;
        let Some(tag) = self.worker(w).tag.clone() else { return self.hold(w, object, now, None) };
        let mut numbers = Numbers::of_tag(&tag);
        numbers.crashes += u32::from(died);
        if died && crashes_max > 0 && numbers.crashes >= crashes_max {
            let why = format!("crashes: died {} times with this event in hand", numbers.crashes);
            self.hold_batch(w, object, OPERATOR, numbers.held_id(why.as_bytes()));
        } else {
            self.hold_batch(w, object, now, numbers.held_id(why.as_bytes()));
        }
    }

    /// A look at all the slots of a name: what is owned is told, once, oldest first; everything else goes back to the markers, to be taken next.
    /// Answers how many names went back.
    fn each_slot(&mut self, name: &str, slots: usize, mut owned: impl FnMut(&mut Self, &str, usize, &Name)) -> u64 {
        let mut strays = 0;
        for slot in 0..slots {
            let w = format!("{name}.{slot}");
            let mut told = None;
            for object in self.worker(&w).objects.clone().into_iter().rev() {
                if told.as_ref() == Some(&object) {
                    remove(&mut self.worker(&w).objects, &object);
                } else if self.owner(&object).as_ref() == Some(&w) {
                    owned(self, &w, slot, &object);
                    told = Some(object);
                } else {
                    self.stray(&w, object);
                    strays += 1;
                }
            }
        }
        strays
    }

    /// A name goes from the worker's list back to the markers; the empty one has done its work.
    pub fn stray(&mut self, w: &str, object: Name) {
        remove(&mut self.worker(w).objects, &object);
        if !object.is_empty() {
            self.markers.push(object);
        }
    }

    pub fn attach(&mut self, args: &Attach) -> Reply {
        let lease = self.leases.get(args.name);
        let repeated = lease.is_some_and(|lease| lease.token == args.token);
        if let Some(lease) = lease
            && !repeated
            && lease.text() != args.displace
        {
            return Reply::InUse(lease.text());
        }
        if self.is_broken(&[Broken::Markers, Broken::Held, Broken::Workers]) {
            return Reply::WrongType;
        }
        let last = self.registered(args.name).cloned();
        let slots_all = args.slots.max(last.as_ref().map_or(0, |last| last.slots));
        // A batch tells of a death, but not where the process itself had the name last.
        let last_token = last.map(|last| last.token).unwrap_or_default();
        let died = !repeated && last_token != args.before && last_token != args.token;
        self.leases.insert(args.name, Lease { token: args.token.clone(), holder: args.holder, ms: args.lease_ms });
        self.register(args.name, slots_all, &args.token);
        self.watch(args.name);
        let (mut kept, mut held) = (0, 0);
        let mut room = args.room.clone();
        self.each_slot(args.name, slots_all, |this, w, slot, object| {
            let numbers = this.worker(w).tag.as_deref().map(Numbers::of_tag);
            let crashes = numbers.map_or(0, |numbers| numbers.crashes + u32::from(died));
            let killer = died && numbers.is_some() && args.crashes_max > 0 && crashes >= args.crashes_max;
            if slot >= args.slots || killer || !room.admits(crashes) {
                this.hold_owned(w, object, "slots", died, args.crashes_max);
                held += 1;
            } else if let Some(mut numbers) = numbers {
                numbers.crashes = crashes;
                room.take(crashes);
                this.worker(w).tag = Some(numbers.tag());
                kept += 1;
            }
        });
        Reply::Attached { kept, held }
    }

    pub fn renew(&mut self, name: &'static str, token: &str, lease_ms: u64, slots: usize) -> Reply {
        if let Some(refused) = self.fence(name, token) {
            return refused;
        }
        if self.is_broken(&[Broken::Markers, Broken::Workers]) {
            return Reply::WrongType;
        }
        let slots = slots.max(self.registered(name).map_or(0, |last| last.slots));
        self.leases.get_mut(name).expect("the fence saw it").ms = lease_ms;
        self.register(name, slots, token);
        self.watch(name);
        Reply::Renewed { strays: self.each_slot(name, slots, |_, _, _, _| ()) }
    }

    /// ADOPT. All names are due here, in the order of the names.
    pub fn adopt(&mut self, own: &str, crashes_max: u32) -> Reply {
        if self.is_broken(&[Broken::Workers]) {
            return Reply::WrongType;
        }
        let mut all = self.registry.clone();
        all.sort_by_key(|(name, _)| *name);
        all.iter().for_each(|(name, _)| self.watch(name));
        if self.is_broken(&[Broken::Meta]) {
            return Reply::WrongType;
        }
        let (mut held, mut strays, mut names) = (0, 0, Vec::new());
        for (name, last) in all {
            if name == own || self.leases.contains_key(name) {
                continue;
            }
            // The times of the reference lie ahead of Redis' clock: such a sign of life becomes one of now.
            if last.at.is_some() {
                self.register(name, last.slots, &last.token);
            }
            let has_something = (0..last.slots).any(|slot| {
                let worker = self.worker(&format!("{name}.{slot}"));
                !worker.objects.is_empty() || !worker.batch.is_empty()
            });
            if has_something {
                // Where a shared key is broken, the name keeps what it has until that is put right.
                let before = held + strays;
                if !self.is_broken(&[Broken::Markers, Broken::Held]) {
                    strays += self.each_slot(name, last.slots, |this, w, _, object| {
                        this.hold_owned(w, object, "takeover", true, crashes_max);
                        held += 1;
                    });
                }
                if held + strays > before {
                    self.register(name, last.slots, &last.token);
                    names.push(name.to_owned());
                }
            } else if last.at.is_none() {
                self.registry.retain(|(other, _)| *other != name);
                self.watched.remove(name);
            } else {
                self.depart(name);
            }
        }
        Reply::Swept { held, strays, names }
    }

    pub fn detach(&mut self, name: &'static str, token: &str) -> Reply {
        if let Some(refused) = self.fence(name, token) {
            return refused;
        }
        if self.is_broken(&[Broken::Markers, Broken::Held, Broken::Workers]) {
            return Reply::WrongType;
        }
        let slots = self.registered(name).map_or(0, |last| last.slots);
        let mut held = 0;
        self.each_slot(name, slots, |this, w, _, object| {
            this.hold_owned(w, object, "stop", false, 0);
            held += 1;
        });
        self.leases.remove(name);
        self.register(name, slots, token);
        self.depart(name);
        if held > 0 {
            self.markers.push(Name::new());
        }
        Reply::Detached { held }
    }

    pub fn connect(&mut self, replication_id: &str, highest: u64, first_id: u64, log: bool) -> Reply {
        match self.broken {
            Some(Broken::Meta | Broken::Counter) => return Reply::WrongType,
            Some(Broken::CounterText) => return Reply::Counter("nan".to_owned()),
            _ => {}
        }
        let seen = self.meta.clone().flatten();
        let differs = !replication_id.is_empty() && seen.as_deref() != Some(replication_id);
        let mut counter = self.counter.unwrap_or(0);
        let evicted = self.meta.is_some() && self.counter.is_none();
        // An emptied Redis has no replication id to compare with, but its counter tells.
        let changed = differs && seen.is_some() || counter < highest || evicted;
        if changed || self.meta.is_none() && first_id == 0 {
            counter = counter.max(highest).max(self.highest) + JUMP;
        }
        counter = counter.max(first_id.saturating_sub(1));
        self.counter = Some(counter);
        self.highest = self.highest.max(counter);
        self.log_was_on = log || self.log_was_on && self.meta.is_some();
        self.meta = Some(if differs { Some(replication_id.to_owned()) } else { seen });
        self.log_on = log;
        Reply::Connected { changed, counter }
    }

    /// HANDLED. Only for the batch in hand, and of its events never one before the one that was told last.
    pub fn finish(&mut self, args: &Finish) -> Reply {
        if let Some(refused) = self.fence(args.name, &args.token) {
            return refused;
        }
        let w = format!("{}.{}", args.name, args.slot);
        let worker = self.worker(&w).clone();
        if self.owner(&args.object) != Some(w) || worker.tag != Some(args.tag.tag()) {
            return Reply::OtherBatch;
        }
        let end = args.tag.first + worker.batch.len() as u64;
        let kept = &mut self.object(&args.object).handled;
        let Some((id, field, emits)) = args.finished.clone() else {
            let Handled { id, finished, emits, results } = kept.clone().unwrap_or_default();
            let emitted = (emits.values().map(|emits| emits.events.len()).sum(), emits.values().map(Emits::bytes).sum());
            return Reply::Kept(id, finished, emitted, results.values().map(String::len).sum());
        };
        match kept {
            Some(later) if (id + 1..end).contains(&later.id) => return Reply::OtherBatch,
            Some(other) if other.id != id && !other.emits.is_empty() => return Reply::Unpushed(other.id.to_string()),
            Some(same) if same.id == id => {}
            _ => *kept = Some(Handled { id, ..Handled::default() }),
        }
        let kept = kept.as_mut().expect("just made");
        kept.finished.insert(field.to_owned());
        kept.results.extend(result_of(id, field));
        kept.emits.extend(emits.map(|(field, emits)| (field.to_owned(), emits)));
        Reply::Kept(0, BTreeSet::new(), (0, 0), 0)
    }

    /// The first of the objects for which handlers have emitted whose queue has a wrong type.
    pub fn cannot_push(&self, handled: &Handled) -> Option<Name> {
        let wrong = |object: &Name| self.objects.get(object).is_some_and(|object| object.queue == Key::Wrong);
        handled.events().into_iter().map(|(object, _)| object).find(wrong)
    }

    /// What handlers have kept of an event goes; what they have emitted is pushed, with a marker for each object.
    pub fn end_handled(&mut self, name: &Name) {
        let Some(handled) = self.object(name).handled.take() else { return };
        let mut marked = BTreeSet::new();
        for (object, event) in handled.events() {
            let Key::Right(queue) = &mut self.object(&object).queue else { unreachable!("looked at before") };
            queue.push(event);
            self.pushed += 1;
            if marked.insert(object.clone()) {
                self.markers.insert(0, object);
            }
        }
    }

    /// An operator, or time: the object is due.
    pub fn release(&mut self, object: &Name) -> Reply {
        if let Some(due) = self.due.get_mut(object) {
            *due = 0;
        }
        Reply::Done
    }

    /// FORGET. Each object by itself: what is not idle stays.
    pub fn forget(&mut self, names: &[Name]) -> Reply {
        let all: Option<Vec<_>> = names.iter().map(|name| self.forget_one(name)).collect();
        all.map_or(Reply::WrongType, Reply::Forgot)
    }

    /// Nothing where it cannot be told whether the object is held.
    fn forget_one(&mut self, name: &Name) -> Option<Forgot> {
        let (is_due, is_paused) = (self.due.contains_key(name), self.paused.contains(name));
        let (is_broken, is_paused_broken) = (self.is_broken(&[Broken::Held]), self.is_broken(&[Broken::Paused]));
        let object = self.object(name);
        let key = |suffix: &str| format!("{}{suffix}", String::from_utf8_lossy(name));
        let (Key::Right(queue), Key::Right(owner), Key::Right(last)) = (&object.queue, &object.owner, &object.last) else {
            let wrong = [(object.queue == Key::Wrong, ":events"), (object.owner == Key::Wrong, ":event.worker")];
            let suffix = wrong.iter().find(|(is_wrong, _)| *is_wrong).map_or(":last.event.id", |(_, suffix)| suffix);
            return Some(Forgot::Wrong { key: key(suffix) });
        };
        match owner {
            Some(owner) if owner != "held" => return Some(Forgot::Owned { owner: owner.clone() }),
            Some(_) => return Some(Forgot::Held),
            None if object.held != Key::default() || object.held_id != Key::default() => return Some(Forgot::Held),
            None if is_broken => return None,
            None if is_due => return Some(Forgot::Held),
            None if is_paused_broken => return None,
            None if is_paused => return Some(Forgot::Held),
            None if !queue.is_empty() => return Some(Forgot::Queued { events: queue.len() as u64 }),
            // What was emitted would be lost.
            None if object.handled.as_ref().is_some_and(|handled| !handled.emits.is_empty()) => {
                return Some(Forgot::Reserved { key: key(":event.handled") });
            }
            None => {}
        }
        object.handled = None;
        object.errors = Key::default();
        let Some(last_event_id) = last.clone() else { return Some(Forgot::Unknown) };
        (object.last, object.fades) = (Key::default(), None);
        Some(Forgot::Forgotten { last_event_id })
    }
}
