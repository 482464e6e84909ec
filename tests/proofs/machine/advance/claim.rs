//! Claim: a free slot takes an object that its list, a marker, or a due held object names.

use super::super::reference::{Event, FAR, Key, Name, Numbers, OPERATOR, remove};
use super::{Call, Got, Slot};

impl Call<'_> {
    /// Claims from the names in the slot's own list, in the order in which they came.
    pub(super) fn claim_taken(&mut self, slot: &mut Slot) {
        for name in self.state.worker(&slot.w).objects.clone().into_iter().rev() {
            self.progress = true;
            let owner = self.state.owner(&name);
            let others = owner.as_ref().is_some_and(|owner| *owner != slot.w);
            if self.state.meet(&name)
                || name.is_empty()
                || others
                || slot.given.as_ref() == Some(&name)
            {
                remove(&mut self.state.worker(&slot.w).objects, &name);
            } else if slot.has
                || self.claims == 0
                || self.reply_bytes <= 0
                || self.limited && owner.is_none()
            {
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

    /// Adds the name of a new object to the slot's list. If the slot has left an object in this
    /// call, the new name takes the place of that object's name. Otherwise the new name comes
    /// first.
    fn enlist(&mut self, slot: &mut Slot, name: &Name) {
        let names = &mut self.state.worker(&slot.w).objects;
        match slot.left.take().and_then(|_| names.last_mut()) {
            Some(last) => last.clone_from(name),
            None => names.insert(0, name.clone()),
        }
    }

    /// Makes the slot the owner of the object, if the object has events. Returns the result.
    /// `named` says that the slot's list already has the name.
    pub(super) fn own(&mut self, slot: &mut Slot, name: &Name, named: bool) -> Got {
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
        let queued = self.state.object(name).queue.right().map(Vec::len);
        if queued.is_some_and(|events| events > 0) {
            let last = self.state.object(name).last_id().unwrap_or(0);
            self.rise_above(last);
        }
        match queued {
            None => self.quarantine(slot, name, ":events", "a hash"),
            Some(0) => return Got::Empty,
            Some(_) if self.state.object(name).last_id().is_none() => {
                let defect = if self.state.object(name).last == Key::Wrong {
                    "a hash"
                } else {
                    "no id"
                };
                self.quarantine(slot, name, ":last.event.id", defect);
            }
            // An owner key of a wrong type counts as an absent owner. But a held batch of the
            // object must come first.
            Some(_) if self.state.object(name).owner == Key::Wrong && self.state.is_held(name) => {
                self.quarantine_held(slot, name);
            }
            Some(_) => {
                match self.take(&slot.w, name, 1) {
                    None => {
                        self.postpone(slot, name);
                        return Got::Dropped;
                    }
                    Some(events) if events.is_empty() => return Got::Empty,
                    Some(_) => {}
                }
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
                self.claimed
                    .push((slot.number, slot.w.clone(), name.clone(), last));
                (slot.has, slot.given, self.progress) = (true, Some(name.clone()), true);
                self.claims -= 1;
                return Got::Claimed;
            }
        }
        Got::Dropped
    }

    /// Claims held objects and markers in turn. If one of the two is used up, the other continues.
    /// A marker that leads to no event uses no turn. If the call may read no more markers, the
    /// claim ends, and the turn stays with the markers.
    pub(super) fn claim(&mut self, slot: &mut Slot) {
        let mut without = 0;
        while without < 2 && self.claims > 0 && self.reply_bytes > 0 && !slot.has {
            let got = if self.from_held {
                self.claim_held(slot)
            } else {
                self.claim_marker(slot)
            };
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
        if self.state.meet(&name) || name.is_empty() || self.state.owner(&name).is_some() {
            return Some(Got::Dropped);
        }
        let got = self.own(slot, &name, false);
        Some(if got == Got::Claimed {
            got
        } else {
            Got::Dropped
        })
    }

    fn claim_held(&mut self, slot: &mut Slot) -> Option<Got> {
        let now = self.state.now as i64;
        let (_, name) = self
            .state
            .due
            .iter()
            .map(|(name, due)| (*due, name))
            .filter(|(due, _)| *due <= now)
            .min()?;
        let name = name.clone();
        Some(self.claim_due(slot, name))
    }

    /// Claims a due held object.
    pub(super) fn claim_due(&mut self, slot: &mut Slot, name: Name) -> Got {
        self.progress = true;
        if self.state.object(&name).owner == Key::Wrong {
            self.quarantine_held(slot, &name);
            return Got::Dropped;
        }
        let is_claimed = self
            .claimed
            .iter()
            .any(|(_, _, claimed, _)| *claimed == name)
            || slot.given.as_ref() == Some(&name);
        let object = self.state.object(&name);
        if object.owner == Key::default() && !is_claimed {
            // The owner key is absent, but the object is in the set of held objects. So it is still
            // held, with or without a batch.
            object.owner = Key::Right(Some("held".to_owned()));
        }
        if self.state.owner(&name).as_deref() != Some("held") {
            self.state.due.remove(&name);
            return Got::Dropped;
        } else if self.state.is_ruled(&name) {
            self.state.due.remove(&name);
            self.state.paused.insert(name);
            return Got::Dropped;
        }
        let object = self.state.object(&name).clone();
        match (Numbers::of_held(&object.held_id), &object.held) {
            // A suspect above the limits waits, and delays no other object.
            (Some(numbers), _) if !self.room.admits(numbers.crashes) => {
                self.state
                    .due
                    .insert(name.clone(), (FAR + self.state.now) as i64);
                Got::Dropped
            }
            (Some(numbers), held) => self.claim_batch(slot, &name, numbers, held),
            (None, Key::Right(held)) if held.is_empty() => {
                self.state.due.remove(&name);
                self.state.object(&name).held_id = Key::default();
                let got = self.own(slot, &name, false);
                if got == Got::Empty {
                    self.forget_later(&name);
                }
                if got == Got::Claimed {
                    got
                } else {
                    Got::Dropped
                }
            }
            // A held batch with unknown numbers must not be left out.
            (None, _) => {
                let kind = if object.held_id == Key::Wrong {
                    "a hash"
                } else if object.held_id == Key::default() {
                    "absent"
                } else {
                    "a string"
                };
                let stored = self.state.held_for(&name).map(|(_, why)| why.to_vec());
                let why = stored.filter(|why| why.starts_with(b"quarantine: "));
                let why = why.unwrap_or_else(|| {
                    [
                        b"quarantine: ",
                        &name[..],
                        b":events.held.id is ",
                        kind.as_bytes(),
                        b" and tells no ids",
                    ]
                    .concat()
                });
                if object.held_id == Key::default() {
                    let held_id = Numbers::of(0).held_id(&why);
                    self.state.object(&name).held_id = Key::Right(Some(held_id));
                }
                self.state.due.insert(name.clone(), OPERATOR as i64);
                self.tell_quarantined(&name, &why);
                Got::Dropped
            }
        }
    }

    /// Hands out a held batch once more.
    fn claim_batch(
        &mut self,
        slot: &mut Slot,
        name: &Name,
        numbers: Numbers,
        held: &Key<Vec<Event>>,
    ) -> Got {
        let object = self.state.object(name).clone();
        let wrong = match held {
            Key::Wrong => Some((":events.held", "a hash")),
            Key::Right(_) if object.last == Key::Wrong => Some((":last.event.id", "a hash")),
            Key::Right(_) if object.last_id().is_none() => Some((":last.event.id", "no id")),
            Key::Right(batch) if batch.is_empty() => Some((":events.held", "absent")),
            Key::Right(_) => None,
        };
        if let Some((key, kind)) = wrong {
            let why = [
                b"quarantine: ",
                &name[..],
                key.as_bytes(),
                b" is ",
                kind.as_bytes(),
            ]
            .concat();
            self.state.due.insert(name.clone(), OPERATOR as i64);
            let object = self.state.object(name);
            let is_lost = kind == "absent";
            if is_lost {
                // Without the batch, its errors and its key are of no event.
                (object.errors, object.key) = (Key::default(), None);
            }
            let numbers = if is_lost { Numbers::of(0) } else { numbers };
            object.held_id = Key::Right(Some(numbers.held_id(&why)));
            self.tell_quarantined(name, &why);
            return Got::Dropped;
        }
        let events = held.right().map_or(0, Vec::len) as u64;
        self.rise_above(numbers.first + events - 1);
        self.count(name, events);
        self.state.due.remove(name);
        let object = self.state.object(name);
        let Key::Right(batch) = std::mem::take(&mut object.held) else {
            unreachable!("looked at above")
        };
        object.held_id = Key::default();
        object.owner = Key::Right(Some(slot.w.clone()));
        self.enlist(slot, name);
        let worker = self.state.worker(&slot.w);
        worker.batch = batch;
        worker.tag = Some(
            Numbers {
                handouts: numbers.handouts + 1,
                ..numbers
            }
            .tag(),
        );
        self.give_again(slot, name);
        self.claims -= 1;
        self.room.take(numbers.crashes);
        Got::Claimed
    }
}
