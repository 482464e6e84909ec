//! One call of `advance`: commit, go on, claim.

mod claim;
mod groups;
mod limits;
mod results;

pub use results::{Choice, Delay, Reported, choice};

use std::collections::{BTreeMap, BTreeSet};

use super::reference::{
    Advanced, Broken, Event, Given, ID_MAX, JUMP, Key, Name, Numbers, OPERATOR, Reference, Reply,
    Room, remove,
};
use super::schedules::{Head, postponed};

#[derive(Debug, Clone)]
pub struct Advance {
    pub name: &'static str,
    pub token: String,
    pub batch: usize,
    pub batch_bytes: usize,
    pub reply_bytes: usize,
    pub claims: usize,
    pub markers: usize,
    /// Whether objects have groups.
    pub has_groups: bool,
    /// Highest id that the caller has seen.
    pub highest: u64,
    /// Time to live of last ids, in ms; 0: no expiry.
    pub forget_ms: u64,
    /// Whether finalized events are logged.
    pub log: bool,
    pub room: Room,
    pub from_held: bool,
    /// The named slots, each with its result. A slot without a result is free, as far as the
    /// process knows.
    pub slots: Vec<(usize, Option<Reported>)>,
    /// Busy slots to look at, because a pop may have moved a name into their lists.
    pub looks: Vec<usize>,
}

/// The error of Redis for a key of a wrong type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

struct Slot {
    number: usize,
    w: String,
    /// Whether the slot has a batch. Then it gets no further batch in this call.
    has: bool,
    /// Object of which the slot got new events in this call.
    given: Option<Name>,
    /// Object that the slot has left in this call. Its name stays the last one of the slot's list
    /// until the name of the next object replaces it.
    left: Option<Name>,
    /// The `prev` of the next event of the slot's object.
    prev: u64,
}

#[derive(PartialEq)]
enum Got {
    Claimed,
    Dropped,
    /// The object has no events.
    Empty,
}

struct Call<'a> {
    state: &'a mut Reference,
    batch: usize,
    batch_bytes: usize,
    reply_bytes: i64,
    claims: usize,
    markers: usize,
    /// Whether objects have groups, by their parts or by shares.
    has_groups: bool,
    /// The parts of a name that are its group.
    depth: usize,
    forget_ms: u64,
    log: bool,
    room: Room,
    from_held: bool,
    counter: u64,
    progress: bool,
    /// Slots that have claimed an object and taken its first event. Each entry ends with the `prev`
    /// of this event.
    claimed: Vec<(usize, String, Name, u64)>,
    batches: Vec<Given>,
    quarantined: Vec<(String, String)>,
    /// The keys of schedules whose events were taken, by slot.
    keyed: BTreeMap<String, &'static str>,
    /// Whether a share has a limit.
    limited: bool,
    /// The objects that the call has quarantined. It does not look at them again.
    excluded: BTreeSet<Name>,
    /// Whether names wait that a call can claim now; none if the groups took no turns.
    ready: Option<bool>,
    /// Whether the call has let groups have turns again, and whether it wakes another worker.
    unparked: bool,
    wakes: bool,
}

impl Reference {
    pub fn advance(&mut self, args: &Advance) -> Reply {
        if let Some(refused) = self.fence(args.name, &args.token) {
            return refused;
        }
        let before = self.counter.unwrap_or(0);
        let is_lost = self.counter.is_none() || before < args.highest;
        let counter = if is_lost {
            before.max(args.highest).max(self.highest) + JUMP
        } else {
            before
        };
        match self.broken {
            Some(Broken::Markers | Broken::Held | Broken::Rules | Broken::Counter) => {
                return Reply::WrongType;
            }
            Some(Broken::Paused) if !self.rules.is_empty() => return Reply::WrongType,
            Some(Broken::Shares) if self.counting => return Reply::WrongType,
            Some(Broken::CounterText) => return Reply::Counter("nan".to_owned()),
            _ if counter + 1024 * args.batch as u64 > ID_MAX => {
                return Reply::Counter(counter.to_string());
            }
            _ => {}
        }
        let (has_shares, limited) = (!self.shares.is_empty(), self.is_limited());
        let mut call = Call {
            state: self,
            batch: args.batch,
            batch_bytes: args.batch_bytes,
            reply_bytes: args.reply_bytes as i64,
            claims: args.claims,
            markers: args.markers,
            has_groups: args.has_groups || has_shares,
            depth: usize::from(args.has_groups),
            forget_ms: args.forget_ms,
            log: args.log,
            room: args.room.clone(),
            from_held: args.from_held,
            counter,
            progress: false,
            claimed: Vec::new(),
            batches: Vec::new(),
            quarantined: Vec::new(),
            keyed: BTreeMap::new(),
            limited,
            excluded: BTreeSet::new(),
            ready: None,
            unparked: false,
            wakes: false,
        };
        call.run(args);
        let Call {
            reply_bytes,
            from_held,
            progress,
            ready,
            wakes,
            mut batches,
            quarantined,
            ..
        } = call;
        // The order of the slots in a reply has no meaning, so the batches are sorted for the
        // comparison.
        batches.sort_by_key(|given| given.slot);
        if call.counter != before {
            let counter = call.counter;
            self.counter = Some(counter);
            self.highest = self.highest.max(counter);
        }
        // With limits, a time below 0 says only that the name of the object is grouped.
        let due = self
            .due
            .values()
            .copied()
            .filter(|due| *due >= 0 || !limited)
            .min();
        let due = due
            .map(|due| due.max(0) as u64)
            .filter(|due| *due != OPERATOR);
        let waits = ready.unwrap_or(!self.grouped.is_empty()) || !self.markers.is_empty();
        let waits = waits || limited && self.blocked.values().any(|is_due| *is_due);
        let left = waits || due.is_some_and(|due| due <= self.now) || reply_bytes <= 0;
        let more = args.claims > 0 && progress && left;
        if wakes && self.markers.is_empty() {
            self.markers.push(Name::new());
        }
        let due = due.into_iter().chain(self.next_rule()).min();
        Reply::Advanced(Advanced {
            due,
            more,
            unsorted: false,
            from_held,
            batches,
            quarantined,
        })
    }
}

impl Call<'_> {
    fn run(&mut self, args: &Advance) {
        let now = self.state.now as i64;
        let was_due = self.state.due.values().any(|due| *due <= now);
        self.progress |= self.state.wake();
        let mut slots = Vec::new();
        let mut going_on = Vec::new();
        for (at, (number, reported)) in args.slots.iter().enumerate() {
            let w = format!("{}.{number}", args.name);
            let mut slot = Slot {
                number: *number,
                w,
                has: false,
                given: None,
                left: None,
                prev: 0,
            };
            if let Some(tag) = self.state.worker(&slot.w).tag.clone() {
                match reported {
                    // A result counts only if its tag is the tag of the batch in flight, and its
                    // object is that of the batch. If the counter was set back, tags come again.
                    Some(reported)
                        if reported.tag.tag() == tag
                            && self.state.owner(&reported.object).as_ref() == Some(&slot.w) =>
                    {
                        self.progress = true;
                        if self.commit(&mut slot, reported) {
                            going_on.push((at, reported.object.clone()));
                        }
                    }
                    _ => self.give_unknown(&mut slot),
                }
            }
            slots.push(slot);
        }
        let some_left = going_on
            .iter()
            .any(|(_, object)| match &self.state.object(object).queue {
                Key::Right(queue) => !queue.is_empty(),
                Key::Wrong => true,
            });
        for (at, object) in going_on {
            self.go_on(&mut slots[at], &object, some_left);
        }
        for number in &args.looks {
            let left = slots
                .iter()
                .find(|slot| slot.number == *number)
                .and_then(|slot| slot.left.as_ref());
            self.return_strays(&format!("{}.{number}", args.name), left);
        }
        let without = slots.iter().filter(|slot| !slot.has).count();
        let claims_before = self.claims;
        for slot in slots
            .iter_mut()
            .filter(|slot| !slot.has && slot.left.is_none())
        {
            self.claim_taken(slot);
        }
        let claims = claims_before
            .min(without)
            .saturating_sub(claims_before - self.claims);
        let is_grouped = self.is_grouped(claims, was_due);
        if is_grouped {
            self.claim_grouped(&mut slots, claims);
        }
        for slot in slots.iter_mut().filter(|slot| !slot.has) {
            if !is_grouped {
                self.claim(slot);
            }
            if let Some(left) = slot.left.take() {
                remove(&mut self.state.worker(&slot.w).objects, &left);
            }
        }
        self.fill();
    }

    /// Lets the slot take more events of its object, or releases the object. `some_left` says that
    /// at least one of the slots that go on has room for more events.
    fn go_on(&mut self, slot: &mut Slot, name: &Name, some_left: bool) {
        let has_events = self
            .state
            .object(name)
            .queue
            .right()
            .is_none_or(|queue| !queue.is_empty());
        let is_over = self.limited && has_events && self.events_left(name) < 1;
        if some_left && (self.reply_bytes <= 0 || is_over) {
            let now = self.state.now;
            return self.state.hold(&slot.w, name, now, None);
        }
        if self.state.pause(&slot.w, name, true) {
            return;
        }
        let most = if self.limited {
            self.batch.min(self.events_left(name))
        } else {
            self.batch
        };
        match self.take(&slot.w, name, most) {
            None if self.state.object(name).queue == Key::Wrong => {
                self.quarantine(slot, name, ":events", "a hash")
            }
            None => self.postpone(slot, name),
            Some(events) if events.is_empty() => {
                self.forget_later(name);
                self.state.worker(&slot.w).tag = None;
                slot.left = Some(name.clone());
            }
            Some(events) => {
                self.took(name, events.len() as u64);
                (slot.has, slot.given) = (true, Some(name.clone()));
                self.give(slot.number, &slot.w, name, slot.prev);
            }
        }
    }

    /// Gives a slot again the batch that it already has. The process may not know of this batch.
    fn give_unknown(&mut self, slot: &mut Slot) {
        slot.has = true;
        let objects = self.state.worker(&slot.w).objects.clone();
        if let Some(name) = objects
            .iter()
            .find(|name| self.state.owner(name).as_ref() == Some(&slot.w))
        {
            let tag = self
                .state
                .worker(&slot.w)
                .tag
                .clone()
                .expect("a batch has a tag");
            self.room.take(Numbers::of_tag(&tag).crashes);
            self.give_again(slot, name);
        }
    }

    /// Moves events of the object into the worker's batch, until the batch has `count_max` events.
    /// The event of a schedule with a key is a batch of its own. Returns the batch. Returns none if
    /// the queue has a wrong type, or if the queue begins with a reference and `events.scheduled`
    /// has a wrong type.
    fn take(&mut self, w: &str, name: &Name, count_max: usize) -> Option<Vec<Event>> {
        let mut batch = std::mem::take(&mut self.state.worker(w).batch);
        let mut bytes: usize = batch.iter().map(|event| event.len()).sum();
        while batch.len() < count_max
            && (batch.is_empty() || bytes < self.batch_bytes)
            && !self.keyed.contains_key(w)
        {
            let Key::Right(queue) = &self.state.object(name).queue else {
                return None;
            };
            let Some(mut event) = queue.first().cloned() else {
                break;
            };
            if !batch.is_empty() && event.starts_with(b"\0") {
                break;
            }
            let head = self.state.head(name, &event);
            if let Head::Wrong = head {
                return None;
            }
            if let Key::Right(queue) = &mut self.state.object(name).queue {
                queue.remove(0);
            }
            match head {
                Head::Void => continue,
                Head::Keyed(found, key) => {
                    event = found;
                    self.keyed.insert(w.to_owned(), key);
                }
                Head::Plain | Head::Wrong => {}
            }
            bytes += event.len();
            self.reply_bytes -= event.len() as i64;
            batch.push(event);
        }
        self.state.worker(w).batch.clone_from(&batch);
        Some(batch)
    }

    /// Holds the object for a minute, because `events.scheduled` has a wrong type.
    fn postpone(&mut self, slot: &Slot, name: &Name) {
        self.state
            .hold(&slot.w, name, postponed(self.state.now), None);
        self.excluded.insert(name.clone());
        self.progress = true;
    }

    /// Gives new ids to the events of the worker's batch.
    fn give(&mut self, number: usize, w: &str, name: &Name, prev: u64) {
        let first = self.counter + 1;
        let key = self.keyed.get(w).copied();
        let tag = Numbers {
            is_keyed: key.is_some(),
            ..Numbers::of(first)
        }
        .tag();
        if let Some(key) = key {
            self.state.object(name).key = Some((first, key));
        }
        let worker = self.state.worker(w);
        worker.tag = Some(tag.clone());
        let events = worker.batch.clone();
        self.counter += events.len() as u64;
        self.batches.push(Given {
            slot: number,
            object: name.clone(),
            tag,
            prev,
            events,
        });
        self.progress = true;
    }

    /// Fills the batch of each slot that has claimed an object, and gives ids to its events.
    fn fill(&mut self) {
        for (number, w, name, prev) in std::mem::take(&mut self.claimed) {
            self.count(&name, 1);
            if self.reply_bytes > 0 {
                let most = if self.limited {
                    self.batch.min(self.events_left(&name).saturating_add(1))
                } else {
                    self.batch
                };
                let events = self.take(&w, &name, most).map_or(1, |events| events.len());
                self.took(&name, events as u64 - 1);
            }
            self.give(number, &w, &name, prev);
        }
    }

    /// Gives the batch in flight again, with the same ids, if the reply has room.
    fn give_again(&mut self, slot: &mut Slot, name: &Name) {
        slot.has = true;
        if self.reply_bytes > 0 {
            let worker = self.state.worker(&slot.w);
            let (tag, events) = (
                worker.tag.clone().expect("a batch has a tag"),
                worker.batch.clone(),
            );
            let prev = self.state.object(name).last_id().unwrap_or(0);
            self.rise_above(Numbers::of_tag(&tag).first + events.len() as u64 - 1);
            self.reply_bytes -= events.iter().map(|event| event.len() as i64).sum::<i64>();
            self.batches.push(Given {
                slot: slot.number,
                object: name.clone(),
                tag,
                prev,
                events,
            });
            self.progress = true;
        }
    }

    /// Lets the counter jump if it is below this id, which was given before.
    fn rise_above(&mut self, id: u64) {
        if id > self.counter {
            self.counter = id.max(self.state.highest) + JUMP;
        }
    }

    /// Releases the object. Only its last id stays, with or without a time to live.
    fn release(&mut self, slot: &Slot, name: &Name) {
        self.forget_later(name);
        let worker = self.state.worker(&slot.w);
        worker.tag = None;
        remove(&mut worker.objects, name);
    }

    /// Removes the owner of an object without events, and sets the time to live of its last id.
    fn forget_later(&mut self, name: &Name) {
        self.state.leave_hand(name);
        let forget_ms = self.forget_ms;
        let object = self.state.object(name);
        object.owner = Key::Right(None);
        if forget_ms > 0 && object.last != Key::default() {
            object.fades = Some(forget_ms);
        }
    }

    /// Holds the object for an operator, because of a key with this defect.
    fn quarantine(&mut self, slot: &Slot, name: &Name, key: &str, defect: &str) {
        let why = [
            b"quarantine: ",
            &name[..],
            key.as_bytes(),
            b" is ",
            defect.as_bytes(),
        ]
        .concat();
        self.state.hold(
            &slot.w,
            name,
            OPERATOR,
            Some([&b"0 0 0 0 "[..], &why].concat().into()),
        );
        self.state.unpause(name);
        self.tell_quarantined(name, &why);
    }

    /// Quarantines a held object whose owner key has a wrong type. The object keeps its held batch
    /// and numbers.
    fn quarantine_held(&mut self, slot: &Slot, name: &Name) {
        self.state.due.insert(name.clone(), OPERATOR as i64);
        self.state.unpause(name);
        self.state.object(name).owner = Key::Right(Some("held".to_owned()));
        remove(&mut self.state.worker(&slot.w).objects, name);
        self.tell_quarantined(
            name,
            &[b"quarantine: ", &name[..], b":event.worker is a hash"].concat(),
        );
    }

    fn tell_quarantined(&mut self, name: &Name, why: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.excluded.insert(name.clone());
        self.quarantined
            .push((seriatim::escape::name(&name[..]).into_owned(), text(why)));
    }

    /// Returns names to the markers: the names in a worker's list that the worker does not own.
    fn return_strays(&mut self, w: &str, left: Option<&Name>) {
        for name in self.state.worker(w).objects.clone() {
            if left != Some(&name) && self.state.owner(&name).as_deref() != Some(w) {
                self.state.stray(w, name);
                self.progress = true;
            }
        }
    }
}
