//! `advance`: commit, go on, claim.

use super::reference::{
    Advanced, Broken, Dead, ERRORS_MAX, Event, FAR, Failure, Given, ID_MAX, JUMP, Key, Name, Numbers, OPERATOR, Reference, Reply,
    Room, Row, remove,
};

/// What follows on the delivered part of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    Done,
    Yield,
    Part {
        next: Numbers,
    },
    Hold {
        rest: Numbers,
        delay: Delay,
        why: &'static str,
    },
    /// A dead letter; or else completed with errors, which the log keeps.
    Reject {
        next: Option<Numbers>,
        id: u64,
        attempts: u32,
        complete: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    Zero,
    Far,
    Operator,
}

/// The result of one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub object: Name,
    pub tag: Numbers,
    pub count: usize,
    pub last: Option<u64>,
    pub then: Then,
    /// It may end the event of which handlers have finished something.
    pub handled: bool,
}

#[derive(Debug, Clone)]
pub struct Advance {
    pub name: &'static str,
    pub token: String,
    pub batch: usize,
    pub batch_bytes: usize,
    pub reply_bytes: usize,
    pub claims: usize,
    pub markers: usize,
    /// The highest id the caller has seen.
    pub highest: u64,
    /// 0: never.
    pub forget_ms: u64,
    /// What is finalized is logged.
    pub log: bool,
    pub room: Room,
    pub from_held: bool,
    /// Without a result, the slot is free as far as the process knows.
    pub slots: Vec<(usize, Option<Told>)>,
    /// Busy slots for which a pop may have moved a name.
    pub looks: Vec<usize>,
}

/// What `reject` says is wrong with the event.
pub const ERROR: &str = "bad";
/// What Redis says of a key of a wrong type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

struct Slot {
    number: usize,
    w: String,
    /// It has a batch: it is given nothing more in this call.
    has: bool,
    /// What it was given new events of in this call.
    given: Option<Name>,
    /// The object it has left in this call, whose name is still the last of its list: the next object takes its place there.
    left: Option<Name>,
    /// What its object's next event follows on.
    prev: u64,
}

#[derive(PartialEq)]
enum Got {
    Claimed,
    Dropped,
    /// There are no events.
    Empty,
}

struct Call<'a> {
    state: &'a mut Reference,
    batch: usize,
    batch_bytes: usize,
    reply_bytes: i64,
    claims: usize,
    markers: usize,
    forget_ms: u64,
    log: bool,
    room: Room,
    from_held: bool,
    counter: u64,
    progress: bool,
    /// Slots that have claimed an object and its first event, and what its events follow on.
    claimed: Vec<(usize, String, Name, u64)>,
    batches: Vec<Given>,
    quarantined: Vec<(String, String)>,
}

impl Reference {
    pub fn advance(&mut self, args: &Advance) -> Reply {
        if let Some(refused) = self.fence(args.name, &args.token) {
            return refused;
        }
        let before = self.counter.unwrap_or(0);
        let is_lost = self.counter.is_none() || before < args.highest;
        let counter = if is_lost { before.max(args.highest).max(self.highest) + JUMP } else { before };
        match self.broken {
            Some(Broken::Markers | Broken::Held | Broken::Rules | Broken::Counter) => return Reply::WrongType,
            Some(Broken::Paused) if !self.rules.is_empty() => return Reply::WrongType,
            Some(Broken::CounterText) => return Reply::Counter("nan".to_owned()),
            _ if counter + 1024 * args.batch as u64 > ID_MAX => return Reply::Counter(counter.to_string()),
            _ => {}
        }
        let mut call = Call {
            state: self,
            batch: args.batch,
            batch_bytes: args.batch_bytes,
            reply_bytes: args.reply_bytes as i64,
            claims: args.claims,
            markers: args.markers,
            forget_ms: args.forget_ms,
            log: args.log,
            room: args.room.clone(),
            from_held: args.from_held,
            counter,
            progress: false,
            claimed: Vec::new(),
            batches: Vec::new(),
            quarantined: Vec::new(),
        };
        call.run(args);
        let Call { reply_bytes, from_held, progress, batches, quarantined, .. } = call;
        if call.counter != before {
            let counter = call.counter;
            self.counter = Some(counter);
            self.highest = self.highest.max(counter);
        }
        let due = self.due.values().copied().min().filter(|due| *due != OPERATOR);
        let left = !self.markers.is_empty() || due.is_some_and(|due| due <= self.now) || reply_bytes <= 0;
        let more = args.claims > 0 && progress && left;
        let due = due.into_iter().chain(self.next_rule()).min();
        Reply::Advanced(Advanced { due, more, from_held, batches, quarantined })
    }
}

impl Call<'_> {
    fn run(&mut self, args: &Advance) {
        self.progress |= self.state.wake();
        let mut slots = Vec::new();
        let mut going_on = Vec::new();
        for (at, (number, told)) in args.slots.iter().enumerate() {
            let w = format!("{}.{number}", args.name);
            let mut slot = Slot { number: *number, w, has: false, given: None, left: None, prev: 0 };
            if let Some(tag) = self.state.worker(&slot.w).tag.clone() {
                match told {
                    // Only what names the batch in flight is believed.
                    Some(told) if told.tag.tag() == tag => {
                        self.progress = true;
                        if self.commit(&mut slot, told) {
                            going_on.push((at, told.object.clone()));
                        }
                    }
                    _ => self.give_unknown(&mut slot),
                }
            }
            slots.push(slot);
        }
        let some_left = going_on.iter().any(|(_, object)| match &self.state.object(object).queue {
            Key::Right(queue) => !queue.is_empty(),
            Key::Wrong => true,
        });
        for (at, object) in going_on {
            self.go_on(&mut slots[at], &object, some_left);
        }
        for number in &args.looks {
            let left = slots.iter().find(|slot| slot.number == *number).and_then(|slot| slot.left.as_ref());
            self.return_strays(&format!("{}.{number}", args.name), left);
        }
        for slot in slots.iter_mut().filter(|slot| !slot.has && slot.left.is_none()) {
            self.claim_taken(slot);
        }
        for slot in slots.iter_mut().filter(|slot| !slot.has) {
            self.claim(slot);
            if let Some(left) = slot.left.take() {
                remove(&mut self.state.worker(&slot.w).objects, &left);
            }
        }
        self.fill();
    }

    // COMMIT

    /// Answers whether the slot goes on with its object.
    fn commit(&mut self, slot: &mut Slot, told: &Told) -> bool {
        let (now, w, name) = (self.state.now, slot.w.as_str(), &told.object);
        let prev_known = told.last.or(self.state.object(name).last_id()).unwrap_or(0);
        let (mut count, mut then) = (told.count, told.then.clone());
        if told.handled
            && let Some(wrong) = self.state.object(name).handled.clone().and_then(|kept| self.state.cannot_push(&kept))
        {
            // What handlers have emitted may not be lost: the event is not over.
            let why = [b"quarantine: ", &wrong[..], b":events is a hash"].concat();
            self.state.hold_batch(w, name, OPERATOR, told.tag.held_id(&why));
            self.tell_quarantined(name, &why);
            return false;
        }
        if self.log && (count > 0 || matches!(then, Then::Reject { .. })) {
            if self.state.broken == Some(Broken::Log) {
                // Neither may the event be gone without its row.
                let why = "quarantine: event.log is a set";
                self.state.hold_batch(w, name, OPERATOR, told.tag.held_id(why.as_bytes()));
                self.tell_quarantined(name, why.as_bytes());
                return false;
            }
            self.log_delivered(w, told);
        }
        if let Then::Reject { next, id, attempts, complete } = told.then {
            let event = self.state.worker(w).batch[count].clone();
            let (stream, broken) = if complete && !self.log { ("event.log", Broken::Log) } else { ("events.dead", Broken::Dead) };
            if self.state.broken == Some(broken) && !(complete && self.log) {
                // Rather held in its place than lost.
                let rest = Numbers { first: id, attempts, ..told.tag };
                let why = format!("quarantine: {stream}: {WRONG_TYPE}");
                self.drop_front(slot, told, count, told.last.or(Some(0)));
                self.state.hold_batch(&slot.w, name, OPERATOR, rest.held_id(why.as_bytes()));
                self.keep_error(told, attempts, ERROR);
                return false;
            }
            let (prev, error): (_, Name) = (prev_known.to_string(), ERROR.into());
            let row = Dead { serial: 0, id, prev: prev.clone(), object: name.clone(), event: event.clone(), error, attempts };
            if !complete {
                self.state.bury(id, prev, name, event, row.error.clone(), attempts);
            }
            if complete || self.log {
                let status = if complete { "completed_with_errors" } else { "dead" };
                let results = self.results_of(told, id).filter(|_| self.log);
                self.state.log.push(Row { status, event: row, taken: self.log, results });
            }
            count += 1;
            then = match next {
                Some(next) => Then::Part { next },
                None => Then::Done,
            };
        }
        let over = match (&told.then, &then) {
            (Then::Reject { id, .. }, _) => Some(*id),
            (_, Then::Done | Then::Yield) => None,
            _ => told.last.or(Some(0)),
        };
        self.drop_front(slot, told, count, over);
        slot.prev = prev_known;
        match then {
            Then::Done => {
                self.state.worker(&slot.w).tag = None;
                true
            }
            Then::Yield => {
                self.state.worker(&slot.w).tag = None;
                let queued = self.state.object(name).queue.right().is_none_or(|queue| !queue.is_empty());
                if queued {
                    self.state.hold(&slot.w, name, now, None);
                }
                !queued
            }
            Then::Part { next } => {
                self.state.worker(&slot.w).tag = Some(next.tag());
                self.give_again(slot, name);
                false
            }
            Then::Hold { rest, delay, why } => {
                let due = match delay {
                    Delay::Zero => now,
                    Delay::Far => FAR + now,
                    Delay::Operator => OPERATOR,
                };
                self.state.hold_batch(&slot.w, name, due, rest.held_id(why.as_bytes()));
                self.keep_error(told, rest.attempts, why.trim_start_matches("retry: "));
                false
            }
            Then::Reject { .. } => unreachable!("a dead letter is written, or the event is held"),
        }
    }

    /// Each delivered event has a row.
    fn log_delivered(&mut self, w: &str, told: &Told) {
        let (mut numbers, mut prev) = (told.tag, self.state.object(&told.object).last_id().unwrap_or(0));
        let batch = self.state.worker(w).batch.clone();
        for event in batch.into_iter().take(told.count) {
            let Numbers { first: id, attempts, .. } = numbers;
            let (object, error) = (told.object.clone(), Name::new());
            let event = Dead { serial: 0, id, prev: prev.to_string(), object, event, error, attempts };
            let results = self.results_of(told, id);
            self.state.log.push(Row { status: "completed", event, taken: true, results });
            (numbers, prev) = (numbers.after(1), id);
        }
    }

    /// The results of the event's handlers, if the call says that something of the batch is handled.
    fn results_of(&mut self, told: &Told, id: u64) -> Option<String> {
        self.state.object(&told.object).handled.as_ref().filter(|_| told.handled)?.results_of(id)
    }

    /// The first `count` events leave the batch; the last id delivered is written down. What handlers have kept goes with the last event that is
    /// over, where that is not all of the batch.
    fn drop_front(&mut self, slot: &Slot, told: &Told, count: usize, over: Option<u64>) {
        self.state.worker(&slot.w).batch.drain(..count);
        let object = self.state.object(&told.object);
        let is_over = object.handled.as_ref().is_some_and(|kept| over.is_none_or(|over| kept.id <= over));
        if told.handled && is_over {
            self.state.end_handled(&told.object);
        }
        if count > 0 && told.tag.attempts > 0 {
            self.state.object(&told.object).errors = Key::default();
        }
        let object = self.state.object(&told.object);
        if let Some(last) = told.last {
            (object.last, object.fades) = (Key::Right(Some(last.to_string())), None);
        }
    }

    /// The event behind those that are delivered has failed once more than its batch's tag says, and is held.
    fn keep_error(&mut self, told: &Told, attempt: u32, error: &'static str) {
        let at = self.state.now;
        let object = self.state.object(&told.object);
        if let Key::Right(errors) = &mut object.errors
            && attempt > told.tag.after(told.count).attempts
        {
            errors.insert(0, Failure { at, attempt, error });
            errors.truncate(ERRORS_MAX);
        }
    }

    // GO ON

    /// `some_left`: one of the slots that go on may take more.
    fn go_on(&mut self, slot: &mut Slot, name: &Name, some_left: bool) {
        if some_left && self.reply_bytes <= 0 {
            let now = self.state.now;
            return self.state.hold(&slot.w, name, now, None);
        }
        if self.state.pause(&slot.w, name, true) {
            return;
        }
        match self.take(&slot.w, name, self.batch) {
            None => self.quarantine(slot, name, ":events", "hash"),
            Some(events) if events.is_empty() => {
                self.forget_later(name);
                self.state.worker(&slot.w).tag = None;
                slot.left = Some(name.clone());
            }
            Some(_) => {
                (slot.has, slot.given) = (true, Some(name.clone()));
                self.give(slot.number, &slot.w, name, slot.prev);
            }
        }
    }

    /// The batch a slot has, whatever the process knows of it.
    fn give_unknown(&mut self, slot: &mut Slot) {
        slot.has = true;
        let objects = self.state.worker(&slot.w).objects.clone();
        if let Some(name) = objects.iter().find(|name| self.state.owner(name).as_ref() == Some(&slot.w)) {
            let tag = self.state.worker(&slot.w).tag.clone().expect("a batch has a tag");
            self.room.take(Numbers::of_tag(&tag).crashes);
            self.give_again(slot, name);
        }
    }

    /// Moves events of the object into the worker's batch, up to this many in it; nothing where the queue has a wrong type. Answers the batch.
    fn take(&mut self, w: &str, name: &Name, count_max: usize) -> Option<Vec<Event>> {
        let mut batch = std::mem::take(&mut self.state.worker(w).batch);
        let Key::Right(queue) = &mut self.state.object(name).queue else { return None };
        let mut bytes: usize = batch.iter().map(|event| event.len()).sum();
        while !queue.is_empty() && batch.len() < count_max && (batch.is_empty() || bytes < self.batch_bytes) {
            let event = queue.remove(0);
            bytes += event.len();
            self.reply_bytes -= event.len() as i64;
            batch.push(event);
        }
        self.state.worker(w).batch.clone_from(&batch);
        Some(batch)
    }

    /// The events of the worker's batch get new ids.
    fn give(&mut self, number: usize, w: &str, name: &Name, prev: u64) {
        let tag = Numbers::of(self.counter + 1).tag();
        let worker = self.state.worker(w);
        worker.tag = Some(tag.clone());
        let events = worker.batch.clone();
        self.counter += events.len() as u64;
        self.batches.push(Given { slot: number, object: name.clone(), tag, prev, events });
        self.progress = true;
    }

    /// Who has claimed gets what else there is, and ids.
    fn fill(&mut self) {
        for (number, w, name, prev) in std::mem::take(&mut self.claimed) {
            if self.reply_bytes > 0 {
                let _ = self.take(&w, &name, self.batch);
            }
            self.give(number, &w, &name, prev);
        }
    }

    /// The batch in flight, under the ids it has; not where the reply is full.
    fn give_again(&mut self, slot: &mut Slot, name: &Name) {
        slot.has = true;
        if self.reply_bytes > 0 {
            let worker = self.state.worker(&slot.w);
            let (tag, events) = (worker.tag.clone().expect("a batch has a tag"), worker.batch.clone());
            let prev = self.state.object(name).last_id().unwrap_or(0);
            self.rise_above(Numbers::of_tag(&tag).first + events.len() as u64 - 1);
            self.reply_bytes -= events.iter().map(|event| event.len() as i64).sum::<i64>();
            self.batches.push(Given { slot: slot.number, object: name.clone(), tag, prev, events });
            self.progress = true;
        }
    }

    /// A counter below an id that was given before jumps.
    fn rise_above(&mut self, id: u64) {
        if id > self.counter {
            self.counter = id.max(self.state.highest) + JUMP;
        }
    }

    /// From now on only the last id remains, for a while or for ever.
    fn release(&mut self, slot: &Slot, name: &Name) {
        self.forget_later(name);
        let worker = self.state.worker(&slot.w);
        worker.tag = None;
        remove(&mut worker.objects, name);
    }

    /// Nobody has the object any more, and it has no events.
    fn forget_later(&mut self, name: &Name) {
        let forget_ms = self.forget_ms;
        let object = self.state.object(name);
        object.owner = Key::Right(None);
        if forget_ms > 0 && object.last != Key::default() {
            object.fades = Some(forget_ms);
        }
    }

    /// Because of a key of a wrong type the object waits for an operator.
    fn quarantine(&mut self, slot: &Slot, name: &Name, key: &str, kind: &str) {
        let why = [b"quarantine: ", &name[..], key.as_bytes(), b" is a ", kind.as_bytes()].concat();
        self.state.hold(&slot.w, name, OPERATOR, Some([&b"0 0 0 0 "[..], &why].concat().into()));
        self.state.unpause(name);
        self.tell_quarantined(name, &why);
    }

    /// The key that is to tell the owner of a held object has a wrong type: its batch and its numbers stay.
    fn quarantine_held(&mut self, slot: &Slot, name: &Name) {
        self.state.due.insert(name.clone(), OPERATOR);
        self.state.unpause(name);
        self.state.object(name).owner = Key::Right(Some("held".to_owned()));
        remove(&mut self.state.worker(&slot.w).objects, name);
        self.tell_quarantined(name, &[b"quarantine: ", &name[..], b":event.worker is a hash"].concat());
    }

    fn put_back(&mut self, slot: &Slot, name: &Name, events: Vec<Event>) {
        self.reply_bytes += events.iter().map(|event| event.len() as i64).sum::<i64>();
        self.state.worker(&slot.w).batch.clear();
        if let Key::Right(queue) = &mut self.state.object(name).queue {
            queue.splice(..0, events);
        }
    }

    fn tell_quarantined(&mut self, name: &Name, why: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.quarantined.push((seriatim::escape::name(&name[..]).into_owned(), text(why)));
    }

    /// What a worker has taken but does not own goes back to the markers.
    fn return_strays(&mut self, w: &str, left: Option<&Name>) {
        for name in self.state.worker(w).objects.clone() {
            if left != Some(&name) && self.state.owner(&name).as_deref() != Some(w) {
                self.state.stray(w, name);
                self.progress = true;
            }
        }
    }

    // CLAIM

    /// The names in the slot's own list, oldest first.
    fn claim_taken(&mut self, slot: &mut Slot) {
        for name in self.state.worker(&slot.w).objects.clone().into_iter().rev() {
            self.progress = true;
            let owner = self.state.owner(&name);
            let others = owner.as_ref().is_some_and(|owner| *owner != slot.w);
            if name.is_empty() || others || slot.given.as_ref() == Some(&name) {
                remove(&mut self.state.worker(&slot.w).objects, &name);
            } else if slot.has || self.claims == 0 || self.reply_bytes <= 0 {
                let now = self.state.now;
                match owner {
                    Some(_) => self.state.hold(&slot.w, &name, now, None),
                    None => self.state.stray(&slot.w, name),
                }
            } else {
                let got = self.own(slot, &name, true);
                if got == Got::Empty {
                    self.release(slot, &name);
                }
            }
        }
    }

    /// New names come first, but for the one that takes the place of an object the slot has left.
    fn enlist(&mut self, slot: &mut Slot, name: &Name) {
        let names = &mut self.state.worker(&slot.w).objects;
        match slot.left.take().and_then(|_| names.last_mut()) {
            Some(last) => last.clone_from(name),
            None => names.insert(0, name.clone()),
        }
    }

    /// Makes the slot the owner of the object, if there are events. Answers whether it is. `named`: its list has the name.
    fn own(&mut self, slot: &mut Slot, name: &Name, named: bool) -> Got {
        let is_held = self.state.owner(name).as_deref() == Some("held");
        if !is_held && self.state.pause(&slot.w, name, named) {
            let forgets = self.forget_ms > 0;
            let object = self.state.object(name);
            if forgets && object.last.right().is_some_and(Option::is_some) {
                object.fades = None;
            }
            self.progress = true;
            return Got::Dropped;
        }
        let taken = self.take(&slot.w, name, 1);
        if taken.as_ref().is_some_and(|events| !events.is_empty()) {
            let last = self.state.object(name).last_id().unwrap_or(0);
            self.rise_above(last);
        }
        match taken {
            None => self.quarantine(slot, name, ":events", "hash"),
            Some(events) if events.is_empty() => return Got::Empty,
            Some(events) if self.state.object(name).last_id().is_none() => {
                self.put_back(slot, name, events);
                let kind = if self.state.object(name).last == Key::Wrong { "hash" } else { "string" };
                self.quarantine(slot, name, ":last.event.id", kind);
            }
            // An owner that cannot be told is nobody, but nobody may pass over what is held.
            Some(events) if self.state.object(name).owner == Key::Wrong && self.state.is_held(name) => {
                self.put_back(slot, name, events);
                self.quarantine_held(slot, name);
            }
            Some(_) => {
                let last = self.state.object(name).last_id().unwrap_or(0);
                if !named {
                    self.enlist(slot, name);
                }
                let forgets = self.forget_ms > 0;
                let object = self.state.object(name);
                object.owner = Key::Right(Some(slot.w.clone()));
                if forgets {
                    object.fades = None;
                }
                self.claimed.push((slot.number, slot.w.clone(), name.clone(), last));
                (slot.has, slot.given, self.progress) = (true, Some(name.clone()), true);
                self.claims -= 1;
                return Got::Claimed;
            }
        }
        Got::Dropped
    }

    /// Held objects and markers in turn; where one side has nothing, the other goes on. A marker that leads nowhere costs no turn, nor do those
    /// that the call may not look at any more.
    fn claim(&mut self, slot: &mut Slot) {
        let mut without = 0;
        while without < 2 && self.claims > 0 && self.reply_bytes > 0 && !slot.has {
            let got = if self.from_held { self.claim_held(slot) } else { self.claim_marker(slot) };
            if !self.from_held && got.is_none() && !self.state.markers.is_empty() {
                return;
            }
            self.from_held = !self.from_held && got != Some(Got::Dropped);
            without = if got.is_some() { 0 } else { without + 1 };
        }
    }

    fn claim_marker(&mut self, slot: &mut Slot) -> Option<Got> {
        if self.markers == 0 {
            return None;
        }
        let name = self.state.markers.pop()?;
        self.markers -= 1;
        self.progress = true;
        if name.is_empty() || self.state.owner(&name).is_some() {
            return Some(Got::Dropped);
        }
        let got = self.own(slot, &name, false);
        Some(if got == Got::Claimed { got } else { Got::Dropped })
    }

    fn claim_held(&mut self, slot: &mut Slot) -> Option<Got> {
        let now = self.state.now;
        let (_, name) = self.state.due.iter().map(|(name, due)| (*due, name)).filter(|(due, _)| *due <= now).min()?;
        let name = name.clone();
        self.progress = true;
        if self.state.object(&name).owner == Key::Wrong {
            self.quarantine_held(slot, &name);
            return Some(Got::Dropped);
        } else if self.state.owner(&name).as_deref() != Some("held") {
            self.state.due.remove(&name);
            return Some(Got::Dropped);
        } else if self.state.is_ruled(&name) {
            self.state.due.remove(&name);
            self.state.paused.insert(name);
            return Some(Got::Dropped);
        }
        let object = self.state.object(&name).clone();
        match (Numbers::of_held(&object.held_id), &object.held) {
            // A suspect for which there is no room waits, and is in nobody's way.
            (Some(numbers), _) if !self.room.admits(numbers.crashes) => {
                self.state.due.insert(name.clone(), FAR + now);
                Some(Got::Dropped)
            }
            (Some(numbers), held) => Some(self.claim_batch(slot, &name, numbers, held)),
            (None, Key::Right(held)) if held.is_empty() => {
                self.state.due.remove(&name);
                self.state.object(&name).held_id = Key::default();
                let got = self.own(slot, &name, false);
                if got == Got::Empty {
                    self.forget_later(&name);
                }
                Some(if got == Got::Claimed { got } else { Got::Dropped })
            }
            // A batch whose numbers are not known must not be passed over.
            (None, _) => {
                let kind = if object.held_id == Key::Wrong {
                    "hash"
                } else if object.held_id == Key::default() {
                    "none"
                } else {
                    "string"
                };
                let why = [b"quarantine: ", &name[..], b":events.held.id is a ", kind.as_bytes(), b" and tells no ids"].concat();
                self.state.due.insert(name.clone(), OPERATOR);
                self.tell_quarantined(&name, &why);
                Some(Got::Dropped)
            }
        }
    }

    /// A held batch is handed out once more.
    fn claim_batch(&mut self, slot: &mut Slot, name: &Name, numbers: Numbers, held: &Key<Vec<Event>>) -> Got {
        let object = self.state.object(name).clone();
        let wrong = match held {
            Key::Wrong => Some((":events.held", "hash")),
            Key::Right(_) if object.last == Key::Wrong => Some((":last.event.id", "hash")),
            Key::Right(_) if object.last_id().is_none() => Some((":last.event.id", "string")),
            Key::Right(batch) if batch.is_empty() => Some((":events.held", "none")),
            Key::Right(_) => None,
        };
        if let Some((key, kind)) = wrong {
            let why = [b"quarantine: ", &name[..], key.as_bytes(), b" is a ", kind.as_bytes()].concat();
            self.state.due.insert(name.clone(), OPERATOR);
            self.state.object(name).held_id = Key::Right(Some(numbers.held_id(&why)));
            self.tell_quarantined(name, &why);
            return Got::Dropped;
        }
        self.rise_above(numbers.first + held.right().map_or(0, Vec::len) as u64 - 1);
        self.state.due.remove(name);
        let object = self.state.object(name);
        let Key::Right(batch) = std::mem::take(&mut object.held) else { unreachable!("looked at above") };
        object.held_id = Key::default();
        object.owner = Key::Right(Some(slot.w.clone()));
        self.enlist(slot, name);
        let worker = self.state.worker(&slot.w);
        worker.batch = batch;
        worker.tag = Some(Numbers { handouts: numbers.handouts + 1, ..numbers }.tag());
        self.give_again(slot, name);
        self.claims -= 1;
        self.room.take(numbers.crashes);
        Got::Claimed
    }
}
