//! The reference: the state of Redis, and the effect of each step of the protocol. It is written
//! from `docs/design.md`, `docs/lab/design.md` and the headers of the scripts, not from their code.
//! It can be read as their specification. `advance` has its own file.
//!
//! The time is the number of the step. It replaces every score and every time that a script takes
//! from Redis' clock. A time in the far future is the number of the step plus [`FAR`].

mod object;
mod state;

use std::collections::BTreeSet;

use bytes::Bytes;
use seriatim::wire::Forgot;

pub use object::*;
pub use state::*;

/// Parses a whole number from 0 to 2^53 - 1.
pub fn id_of(text: &str) -> Option<u64> {
    let digits =
        !text.is_empty() && text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .filter(|id| *id <= ID_MAX)
}

/// Removes the first occurrence of the name from the list.
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

    /// Returns the owner of the object, or none if the owner key is absent or has a wrong type.
    pub fn owner(&self, name: &Name) -> Option<String> {
        self.objects.get(name)?.owner.right()?.clone()
    }

    pub fn registered(&self, name: &str) -> Option<&Registered> {
        self.registry
            .iter()
            .find(|(other, _)| *other == name)
            .map(|(_, registered)| registered)
    }

    /// Returns the number of slots to look at, at least `own`. Without a registration, any slot may
    /// have something.
    fn slots_of(&self, name: &str, own: usize) -> usize {
        let used = |(w, worker): (&String, &Worker)| {
            let (of, slot) = w.rsplit_once('.')?;
            let is_used = of == name && !(worker.objects.is_empty() && worker.batch.is_empty());
            is_used.then(|| slot.parse::<usize>().expect("a slot") + 1)
        };
        let known = self.registered(name).map(|last| last.slots);
        known
            .or_else(|| self.workers.iter().filter_map(used).max())
            .map_or(own, |slots| own.max(slots))
    }

    fn register(&mut self, name: &'static str, slots: usize, token: &str) {
        let value = Registered {
            slots,
            token: token.to_owned(),
            at: Some(self.now),
        };
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

    /// Adds a dead letter. Returns its serial number.
    pub fn bury(
        &mut self,
        id: u64,
        prev: String,
        object: &Name,
        event: Event,
        error: Bytes,
        attempts: u32,
    ) -> u64 {
        self.buried += 1;
        self.dead.push(Dead {
            serial: self.buried,
            id,
            prev,
            object: object.clone(),
            event,
            error,
            attempts,
        });
        self.buried
    }

    pub fn is_broken(&self, keys: &[Broken]) -> bool {
        self.broken.is_some_and(|broken| keys.contains(&broken))
    }

    /// EMIT: pushes events and a marker. If the queue has a wrong type, only the marker is pushed.
    pub fn emit(&mut self, object: &Name, events: &[Event]) -> Reply {
        if let Key::Right(queue) = &mut self.object(object).queue {
            queue.extend_from_slice(events);
        }
        self.markers.insert(0, object.clone());
        Reply::Done
    }

    /// A process, or another program, pushes a mark. `event.marks` has only the marks of processes.
    pub fn mark(&mut self, ms: u64, is_known: bool) -> Reply {
        if is_known {
            self.marks.insert(ms);
        }
        self.markers
            .insert(0, Name::from(format!("\0t{ms}").into_bytes()));
        Reply::Done
    }

    /// Meets a name. If the name is a mark, this mark and all older ones no longer wait. Returns
    /// whether the name is a mark.
    pub fn meet(&mut self, name: &Name) -> bool {
        let digits = name
            .strip_prefix(b"\0t")
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let Some(ms) = digits.and_then(|digits| digits.parse().ok()) else {
            return false;
        };
        if !self.is_broken(&[Broken::Marks]) && self.marks.contains(&ms) {
            self.marks.retain(|other| *other > ms);
            self.met = Some(ms);
        }
        true
    }

    /// WAIT: the pop moves the oldest marker to the slot's list.
    pub fn pop(&mut self, w: &str) -> Reply {
        if let Some(name) = self.markers.pop() {
            self.worker(w).objects.insert(0, name);
        }
        Reply::Done
    }

    /// Returns the reply to a process that does not have the lease, or none if it has the lease.
    pub fn fence(&self, name: &str, token: &str) -> Option<Reply> {
        match self.leases.get(name) {
            Some(lease) if lease.token == token => None,
            Some(lease) => Some(Reply::Fenced(lease.text())),
            None if self.is_broken(&[Broken::Workers]) => Some(Reply::WrongType),
            None if self.registered(name).is_none_or(|last| last.token == token) => {
                Some(Reply::Lapsed)
            }
            None => Some(Reply::Fenced(String::new())),
        }
    }

    /// HOLD: takes the object from the worker and holds it. Without numbers there is no held batch,
    /// as after a yield.
    pub fn hold(&mut self, w: &str, object: &Name, due: u64, held_id: Option<Bytes>) {
        self.leave_hand(object);
        self.due.insert(object.clone(), due as i64);
        let worker = self.worker(w);
        worker.tag = None;
        remove(&mut worker.objects, object);
        let held = self.object(object);
        held.owner = Key::Right(Some("held".to_owned()));
        if held_id.is_some() {
            held.held_id = Key::Right(held_id);
        }
    }

    /// Moves the worker's batch to the object, and holds the object.
    pub fn hold_batch(&mut self, w: &str, object: &Name, due: u64, held_id: Bytes) {
        let batch = std::mem::take(&mut self.worker(w).batch);
        self.object(object).held = Key::Right(batch);
        self.hold(w, object, due, Some(held_id));
    }

    /// Holds the object of a slot, due at once, for a reason of the process. After too many deaths
    /// the object waits for an operator.
    fn hold_owned(&mut self, w: &str, object: &Name, why: &str, died: bool, crashes_max: u32) {
        let now = self.now;
        let Some(tag) = self.worker(w).tag.clone() else {
            return self.hold(w, object, now, None);
        };
        let mut numbers = Numbers::of_tag(&tag);
        numbers.crashes += u32::from(died);
        if died && crashes_max > 0 && numbers.crashes >= crashes_max {
            let why = format!(
                "crashes: died {} times with this event in hand",
                numbers.crashes
            );
            self.hold_batch(w, object, OPERATOR, numbers.held_id(why.as_bytes()));
        } else {
            self.hold_batch(w, object, now, numbers.held_id(why.as_bytes()));
        }
    }

    /// Walks over all slots of a worker name. Calls `owned` once for each owned object, oldest
    /// first. Moves all other names back to the markers, where they are taken next. Returns the
    /// number of these names.
    fn each_slot(
        &mut self,
        name: &str,
        slots: usize,
        mut owned: impl FnMut(&mut Self, &str, usize, &Name),
    ) -> u64 {
        let mut strays = 0;
        for slot in 0..slots {
            let w = format!("{name}.{slot}");
            let mut kept = None;
            for object in self.worker(&w).objects.clone().into_iter().rev() {
                if kept.as_ref() == Some(&object) {
                    remove(&mut self.worker(&w).objects, &object);
                } else if self.owner(&object).as_ref() == Some(&w) {
                    owned(self, &w, slot, &object);
                    kept = Some(object);
                } else {
                    self.stray(&w, object);
                    strays += 1;
                }
            }
        }
        strays
    }

    /// Moves a name from the worker's list back to the markers. An empty name is dropped, because
    /// its marker has already woken a worker.
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
        let slots_all = self.slots_of(args.name, args.slots);
        // A batch counts a death, unless the attaching process itself was the last one with this
        // name.
        let is_other = |token: &String| *token != args.before && *token != args.token;
        let died = !repeated && last.map_or(args.before.is_empty(), |last| is_other(&last.token));
        self.leases.insert(
            args.name,
            Lease {
                token: args.token.clone(),
                holder: args.holder,
                ms: args.lease_ms,
            },
        );
        self.register(args.name, slots_all, &args.token);
        self.watch(args.name);
        let (mut kept, mut held) = (0, 0);
        let mut room = args.room.clone();
        self.each_slot(args.name, slots_all, |this, w, slot, object| {
            let numbers = this.worker(w).tag.as_deref().map(Numbers::of_tag);
            let crashes = numbers.map_or(0, |numbers| numbers.crashes + u32::from(died));
            let killer =
                died && numbers.is_some() && args.crashes_max > 0 && crashes >= args.crashes_max;
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
        let slots = self.slots_of(name, slots);
        self.leases.get_mut(name).expect("the fence saw it").ms = lease_ms;
        self.register(name, slots, token);
        self.watch(name);
        Reply::Renewed {
            strays: self.each_slot(name, slots, |_, _, _, _| ()),
        }
    }

    /// ADOPT. In the reference all names are due for a look, in alphabetical order.
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
            // Last signs of life from earlier steps have times that are ahead of Redis' clock. The
            // sweep replaces such a time with the present time.
            if last.at.is_some() {
                self.register(name, last.slots, &last.token);
            }
            let has_something = (0..last.slots).any(|slot| {
                let worker = self.worker(&format!("{name}.{slot}"));
                !worker.objects.is_empty() || !worker.batch.is_empty()
            });
            if has_something {
                // If a shared key is broken, the objects stay with the name until the key is
                // repaired.
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
        Reply::Swept {
            held,
            strays,
            names,
        }
    }

    pub fn detach(&mut self, name: &'static str, token: &str) -> Reply {
        if let Some(refused) = self.fence(name, token) {
            return refused;
        }
        if self.is_broken(&[Broken::Markers, Broken::Held, Broken::Workers]) {
            return Reply::WrongType;
        }
        let slots = self.slots_of(name, 0);
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

    pub fn connect(
        &mut self,
        replication_id: &str,
        highest: u64,
        first_id: u64,
        log: bool,
    ) -> Reply {
        match self.broken {
            Some(Broken::Meta | Broken::Counter) => return Reply::WrongType,
            Some(Broken::CounterText) => return Reply::Counter("nan".to_owned()),
            _ => {}
        }
        let seen = self.meta.clone().flatten();
        let differs = !replication_id.is_empty() && seen.as_deref() != Some(replication_id);
        let mut counter = self.counter.unwrap_or(0);
        let evicted = self.meta.is_some() && self.counter.is_none();
        // An emptied Redis has no recorded replication id, but its counter is below the highest id.
        let changed = differs && seen.is_some() || counter < highest || evicted;
        if changed || self.meta.is_none() && first_id == 0 {
            counter = counter.max(highest).max(self.highest) + JUMP;
        }
        counter = counter.max(first_id.saturating_sub(1));
        self.counter = Some(counter);
        self.highest = self.highest.max(counter);
        self.log_was_on = log || self.log_was_on && self.meta.is_some();
        self.meta = Some(if differs {
            Some(replication_id.to_owned())
        } else {
            seen
        });
        self.log_on = log;
        Reply::Connected { changed, counter }
    }

    /// HANDLED: records a success, or reads the record. It is allowed only for the batch in flight.
    /// A success of an event before the recorded event is refused.
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
            let Handled {
                id,
                finished,
                emits,
                results,
            } = kept.clone().unwrap_or_default();
            let emitted = (
                emits.values().map(|emits| emits.events.len()).sum(),
                emits.values().map(Emits::bytes).sum(),
            );
            return Reply::Kept(
                id,
                finished,
                emitted,
                results.values().map(String::len).sum(),
            );
        };
        match kept {
            Some(later) if (id + 1..end).contains(&later.id) => return Reply::OtherBatch,
            Some(other) if other.id != id && !other.emits.is_empty() => {
                return Reply::Unpushed(other.id.to_string());
            }
            Some(same) if same.id == id => {}
            _ => {
                *kept = Some(Handled {
                    id,
                    ..Handled::default()
                })
            }
        }
        let kept = kept.as_mut().expect("just made");
        kept.finished.insert(field.to_owned());
        kept.results.extend(result_of(id, field));
        kept.emits
            .extend(emits.map(|(field, emits)| (field.to_owned(), emits)));
        Reply::Kept(0, BTreeSet::new(), (0, 0), 0)
    }

    /// SENT: records a request for the batch in flight, unless another one may be open, or records
    /// that a request is over.
    pub fn sent(&mut self, args: &Sent) -> Reply {
        let found = self
            .objects
            .get(&args.object)
            .and_then(|object| object.sent);
        let is_own = found.is_some_and(|(_, request)| request == args.request);
        if args.is_over {
            if is_own {
                self.object(&args.object).sent = None;
            }
            return Reply::Over;
        }
        if let Some(refused) = self.fence(args.name, &args.token) {
            return refused;
        }
        let w = format!("{}.{}", args.name, args.slot);
        let tag = self.worker(&w).tag.clone();
        if self.owner(&args.object) != Some(w) || tag != Some(args.tag.tag()) {
            return Reply::OtherBatch;
        } else if found.is_some() && !is_own {
            return Reply::Earlier;
        }
        match self.broken {
            Some(Broken::Counter) => return Reply::WrongType,
            Some(Broken::CounterText) => return Reply::Counter("nan".to_owned()),
            _ => {}
        }
        let before = self.counter.unwrap_or(0);
        let is_lost = self.counter.is_none() || before < args.highest;
        let counter = if is_lost {
            before.max(args.highest).max(self.highest) + JUMP
        } else {
            before
        };
        self.counter = Some(counter + 1);
        self.highest = self.highest.max(counter + 1);
        self.object(&args.object).sent = Some((counter + 1, args.request));
        Reply::Sent(counter + 1)
    }

    /// Returns the first object whose queue has a wrong type, among the objects that get emits of
    /// the record.
    pub fn cannot_push(&self, handled: &Handled) -> Option<Name> {
        let wrong = |object: &Name| {
            self.objects
                .get(object)
                .is_some_and(|object| object.queue == Key::Wrong)
        };
        handled
            .events()
            .into_iter()
            .map(|(object, _)| object)
            .find(wrong)
    }

    /// Ends the record of an event. Pushes its emits, with one marker for each object, and deletes
    /// the record.
    pub fn end_handled(&mut self, name: &Name) {
        let Some(handled) = self.object(name).handled.take() else {
            return;
        };
        let mut marked = BTreeSet::new();
        for (object, event) in handled.events() {
            let Key::Right(queue) = &mut self.object(&object).queue else {
                unreachable!("looked at before")
            };
            queue.push(event);
            self.pushed += 1;
            if marked.insert(object.clone()) {
                self.markers.insert(0, object);
            }
        }
    }

    /// Makes the object due, as an operator or the time does.
    pub fn release(&mut self, object: &Name) -> Reply {
        if let Some(due) = self.due.get_mut(object) {
            *due = 0;
        }
        Reply::Done
    }

    /// FORGET: checks each object separately. An object that is not idle stays.
    pub fn forget(&mut self, names: &[Name]) -> Reply {
        let all: Option<Vec<_>> = names.iter().map(|name| self.forget_one(name)).collect();
        all.map_or(Reply::WrongType, Reply::Forgot)
    }

    /// Forgets one object. Returns none if a broken key hides whether the object is held.
    pub fn forget_one(&mut self, name: &Name) -> Option<Forgot> {
        let (is_due, is_paused) = (self.due.contains_key(name), self.paused.contains(name));
        let (is_broken, is_paused_broken) = (
            self.is_broken(&[Broken::Held]),
            self.is_broken(&[Broken::Paused]),
        );
        let schedules = self
            .schedules
            .keys()
            .filter(|(object, _)| object == name)
            .count() as u64;
        let object = self.object(name);
        let key = |suffix: &str| format!("{}{suffix}", String::from_utf8_lossy(name));
        let (Key::Right(queue), Key::Right(owner), Key::Right(last)) =
            (&object.queue, &object.owner, &object.last)
        else {
            let wrong = [
                (object.queue == Key::Wrong, ":events"),
                (object.owner == Key::Wrong, ":event.worker"),
            ];
            let suffix = wrong
                .iter()
                .find(|(is_wrong, _)| *is_wrong)
                .map_or(":last.event.id", |(_, suffix)| suffix);
            return Some(Forgot::Wrong { key: key(suffix) });
        };
        match owner {
            Some(owner) if owner != "held" => {
                return Some(Forgot::Owned {
                    owner: owner.clone(),
                });
            }
            Some(_) => return Some(Forgot::Held),
            None if object.held != Key::default() || object.held_id != Key::default() => {
                return Some(Forgot::Held);
            }
            None if is_broken => return None,
            None if is_due => return Some(Forgot::Held),
            None if is_paused_broken => return None,
            None if is_paused => return Some(Forgot::Held),
            None if !queue.is_empty() => {
                return Some(Forgot::Queued {
                    events: queue.len() as u64,
                });
            }
            None if schedules > 0 => return Some(Forgot::Scheduled { events: schedules }),
            // An object with stored emits is not forgotten, because its emits would be lost.
            None if object
                .handled
                .as_ref()
                .is_some_and(|handled| !handled.emits.is_empty()) =>
            {
                return Some(Forgot::Reserved {
                    key: key(":event.handled"),
                });
            }
            None => {}
        }
        let last = last.clone();
        // The object has only keys that an idle object may have. The record of a request ends by itself.
        *object = Object {
            sent: object.sent,
            ..Object::default()
        };
        Some(
            last.map_or(Forgot::Unknown, |last_event_id| Forgot::Forgotten {
                last_event_id,
            }),
        )
    }
}
