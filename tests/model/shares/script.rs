//! The scripts as atomic steps.
use super::*;

/// Why a group may claim nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// The objects in hand of this prefix.
    Room(usize),
    /// The events per second of this prefix.
    Events(usize),
}

impl Full {
    fn prefix(self) -> usize {
        match self {
            Self::Room(prefix) | Self::Events(prefix) => prefix,
        }
    }
}

impl State {
    /// Returns the limit that allows no claim in a group now; none if a claim is allowed.
    pub fn full_by(&self, group: usize) -> Option<Full> {
        let is_in_hand = |at: usize, prefix: usize| {
            self.in_hand & 1 << at != 0 && prefixes_of(at).contains(&prefix)
        };
        self.limits_of(group).find_map(|prefix| {
            let Share { in_flight, burst } = self.shares[prefix].unwrap_or_default();
            if in_flight.is_some_and(|most| {
                (0..OBJECTS).filter(|at| is_in_hand(*at, prefix)).count() >= most.into()
            }) {
                Some(Full::Room(prefix))
            } else {
                (burst.is_some() && self.tokens[prefix] == 0).then_some(Full::Events(prefix))
            }
        })
    }

    /// Lets all groups have turns again that wait for a limit.
    fn end_waits(&mut self) {
        (self.own, self.others) = ([Look::Absent; PREFIXES], [Look::Absent; PREFIXES]);
        self.turns
            .iter_mut()
            .filter(|turn| **turn == Turn::Waits)
            .for_each(|turn| *turn = Turn::Ready);
    }

    /// Lets the turns of a group wait for a limit.
    fn wait(&mut self, group: usize, by: Full) {
        let (prefix, look) = match by {
            Full::Room(prefix) => (prefix, Look::AtRoom),
            Full::Events(prefix) => (prefix, Look::AtEvents),
        };
        let member = if prefix == group {
            &mut self.own[prefix]
        } else {
            &mut self.others[prefix]
        };
        // A look that is due does not become a later one because of a rate.
        if *member != Look::Due || look == Look::AtRoom {
            *member = look;
        }
        self.turns[group] = Turn::Waits;
    }

    /// Lets groups have turns again whose look is due.
    fn look(&mut self) {
        for prefix in 0..PREFIXES {
            let own = std::mem::replace(&mut self.own[prefix], Look::Absent);
            let others = std::mem::replace(&mut self.others[prefix], Look::Absent);
            for group in 0..PREFIXES {
                let is_due = group == prefix && own == Look::Due
                    || prefixes_of(group).contains(&prefix) && others == Look::Due;
                if is_due && self.turns[group] == Turn::Waits {
                    self.turns[group] = Turn::Ready;
                }
            }
            self.own[prefix] = if own == Look::Due { Look::Absent } else { own };
            self.others[prefix] = if others == Look::Due {
                Look::Absent
            } else {
                others
            };
        }
    }

    /// Pushes a name to the list of a group.
    fn push_grouped(&mut self, group: usize, object: usize) {
        self.lists[group].push(object as u8 + 1);
        if self.turns[group] == Turn::Absent {
            self.turns[group] = Turn::Ready;
        }
    }

    /// Groups due held objects and all markers.
    fn sort(&mut self) {
        let none_waits = self.are_lists_empty();
        for at in 0..OBJECTS {
            if let Owner::Held { due: true, aside } = self.objects[at].owner
                && (!aside || none_waits)
            {
                self.objects[at].owner = Owner::Held {
                    due: true,
                    aside: true,
                };
                self.push_grouped(self.group_of(at), at);
            }
        }
        while let Some(name) = self.markers.pop() {
            let at = name as usize - 1;
            self.push_grouped(self.group_of(at), at);
        }
    }

    /// Returns whether a name leads to an object that a call may claim: held and due, or free and with
    /// events.
    fn leads(&self, object: usize) -> bool {
        match self.objects[object].owner {
            Owner::Nobody => self.objects[object].queue > 0,
            Owner::Slot(_) => false,
            Owner::Held { due, .. } => due,
        }
    }

    /// Moves the popped names of a slot back to the markers.
    fn give_back(&mut self, slot: usize) {
        for name in std::mem::take(&mut self.slots[slot].popped).iter() {
            self.markers.push_oldest(name);
        }
    }
}

impl Shares {
    pub fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Push(object) => {
                s.pushed[object] += 1;
                s.objects[object].queue += 1;
                s.markers.push(object as u8 + 1);
            }
            Action::Pop(slot) => {
                if let Some(name) = s.markers.pop() {
                    s.slots[slot].popped.push(name);
                }
            }
            Action::Advance { slot, retry, first } => self.advance(s, slot, retry, first),
            Action::Count(object) => {
                s.uncounted &= !(1 << object);
                s.in_hand |= 1 << object;
            }
            Action::Due(object) => {
                if let Owner::Held { due, .. } = &mut s.objects[object].owner {
                    *due = true;
                }
            }
            Action::Refill(prefix) => {
                s.tokens[prefix] += 1;
                for member in [&mut s.own[prefix], &mut s.others[prefix]] {
                    *member = if *member == Look::AtEvents {
                        Look::Due
                    } else {
                        *member
                    };
                }
            }
            Action::Crash(slot) => s.slots[slot].is_dead = true,
            Action::Adopt(slot) => {
                if let Some(object) = s.owned(slot) {
                    let before = s.in_hand;
                    self.hold(s, object, true);
                    s.in_hand = if self.guards.takeover_uncounts {
                        s.in_hand
                    } else {
                        before
                    };
                }
                s.give_back(slot);
                s.slots[slot].is_dead = false;
            }
            Action::Restart(slot) => {
                s.give_back(slot);
                s.slots[slot].is_dead = false;
            }
            Action::Set(at) => self.set(s, at),
            Action::Remove(prefix) => {
                s.shares[prefix] = None;
                s.tokens[prefix] = 0;
                if !s.is_limited() {
                    (s.since, s.in_hand) = (0, 0);
                }
                if self.guards.change_ends_waits || !s.is_limited() {
                    s.end_waits();
                }
            }
        }
    }

    /// The next step of an operator who sets a share.
    fn set(&self, s: &mut State, at: usize) {
        let (prefix, share) = self.bounds.shares[at];
        s.operators[at] = match s.operators[at] {
            Operator::Begin => {
                if s.since == 0 && self.guards.counted_from_the_start {
                    s.time += 1;
                    s.since = s.time;
                }
                Operator::At(
                    if self.guards.slots_are_looked_at {
                        0
                    } else {
                        SLOTS
                    },
                    s.since,
                )
            }
            Operator::At(_, since) if since != s.since && self.guards.epoch => Operator::Begin,
            Operator::At(slot, since) if slot < SLOTS => {
                if let Some(object) = s.owned(slot) {
                    s.in_hand |= 1 << object;
                }
                Operator::At(slot + 1, since)
            }
            Operator::At(..) => {
                if s.since == 0 {
                    s.time += 1;
                    s.since = s.time;
                }
                let had_rate = s.shares[prefix].is_some_and(|share| share.burst.is_some());
                let burst = share.burst.unwrap_or_default();
                s.tokens[prefix] = if had_rate {
                    s.tokens[prefix].min(burst)
                } else {
                    burst
                };
                s.shares[prefix] = Some(share);
                if self.guards.change_ends_waits {
                    s.end_waits();
                }
                Operator::Over
            }
            Operator::Over => Operator::Over,
        };
    }

    /// Takes an object out of the objects in hand.
    fn uncount(&self, s: &mut State, object: usize) {
        s.uncounted &= !(1 << object);
        s.in_hand &= !(1 << object);
        if self.guards.looks_again {
            for prefix in prefixes_of(object) {
                for member in [&mut s.own[*prefix], &mut s.others[*prefix]] {
                    *member = if *member == Look::Absent {
                        Look::Absent
                    } else {
                        Look::Due
                    };
                }
            }
        }
    }

    fn hold(&self, s: &mut State, object: usize, due: bool) {
        self.uncount(s, object);
        s.objects[object].owner = Owner::Held { due, aside: false };
    }

    /// Takes the next event of an object.
    fn take(&self, s: &mut State, object: usize) {
        let Object {
            queue, has_batch, ..
        } = &mut s.objects[object];
        if !*has_batch {
            (*queue, *has_batch) = (*queue - 1, true);
        }
        for prefix in prefixes_of(object) {
            if s.shares[*prefix].is_some_and(|share| share.burst.is_some()) {
                s.is_above_rate |= s.tokens[*prefix] == 0;
                s.tokens[*prefix] = s.tokens[*prefix].saturating_sub(1);
            }
        }
    }

    fn own(&self, s: &mut State, slot: usize, object: usize) {
        s.objects[object].owner = Owner::Slot(slot);
        if self.guards.counted_with_the_owner {
            s.in_hand |= u8::from(s.since > 0) << object;
        } else {
            s.uncounted |= u8::from(s.since > 0) << object;
        }
        let owned = s.owned_by_slots();
        for prefix in prefixes_of(object) {
            let of_prefix = (0..OBJECTS)
                .filter(|at| owned & 1 << at != 0 && prefixes_of(*at).contains(prefix))
                .count();
            let most = s.shares[*prefix].and_then(|share| share.in_flight);
            s.is_above_limit |= most.is_some_and(|most| of_prefix > most.into());
        }
        self.take(s, object);
    }

    /// Commits the delivery of a slot. The slot goes on with its object, or leaves it.
    fn commit(&self, s: &mut State, object: usize, retry: bool) {
        if retry {
            self.hold(s, object, false);
            return;
        }
        s.objects[object].has_batch = false;
        s.objects[object].delivered += 1;
        let has_tokens = prefixes_of(object).iter().all(|prefix| {
            let has_rate = s.shares[*prefix].is_some_and(|share| share.burst.is_some());
            !has_rate || s.tokens[*prefix] > 0
        });
        if s.objects[object].queue == 0 {
            s.objects[object].owner = Owner::Nobody;
            self.uncount(s, object);
        } else if has_tokens || !self.guards.further_events {
            self.take(s, object);
        } else {
            self.hold(s, object, true);
        }
    }

    fn advance(&self, s: &mut State, slot: usize, retry: bool, first: usize) {
        if let Some(object) = s.owned(slot) {
            self.commit(s, object, retry);
        }
        if s.owned(slot).is_some() {
            s.give_back(slot);
            return;
        }
        let popped = std::mem::take(&mut s.slots[slot].popped);
        for name in popped.iter() {
            let object = name as usize - 1;
            if s.objects[object].owner != Owner::Nobody || s.objects[object].queue == 0 {
                continue;
            }
            if s.owned(slot).is_some() || s.is_limited() && self.guards.popped_too {
                s.markers.push_oldest(name);
            } else {
                self.own(s, slot, object);
            }
        }
        if s.owned(slot).is_some() {
            return;
        }
        if s.is_limited() || !s.are_lists_empty() {
            self.claim_in_groups(s, slot, first);
        } else {
            self.claim_in_order(s, slot, first == 0);
        }
    }

    /// Claims a held object that is due, or the object of a marker.
    fn claim_in_order(&self, s: &mut State, slot: usize, markers_first: bool) {
        let due =
            (0..OBJECTS).find(|at| matches!(s.objects[*at].owner, Owner::Held { due: true, .. }));
        if let Some(object) = due.filter(|_| !markers_first) {
            self.own(s, slot, object);
            return;
        }
        while let Some(name) = s.markers.pop() {
            let object = name as usize - 1;
            if s.objects[object].owner == Owner::Nobody && s.objects[object].queue > 0 {
                self.own(s, slot, object);
                return;
            }
        }
        if let Some(object) = due {
            self.own(s, slot, object);
        }
    }

    fn claim_in_groups(&self, s: &mut State, slot: usize, first: usize) {
        if s.is_limited() {
            s.sort();
            s.look();
        }
        // While the limit of all objects allows no claim, no group has a turn, and none waits apart.
        let is_full = s.full_by(REST).is_some();
        // A second round, because a name may have moved to a group that had its turn before.
        for at in 0..if is_full { 0 } else { 2 * PREFIXES } {
            let group = (first + at) % PREFIXES;
            if s.turns[group] == Turn::Ready && !self.turn(s, slot, group) {
                break;
            }
        }
        for group in 0..PREFIXES {
            if s.lists[group].is_empty() && s.turns[group] == Turn::Ready {
                s.turns[group] = Turn::Absent;
            }
        }
        if s.are_lists_empty() {
            s.end_waits();
            s.turns = [Turn::Absent; PREFIXES];
        }
    }

    /// Claims an object in the turn of a group. Returns whether another group may have the next turn.
    fn turn(&self, s: &mut State, slot: usize, group: usize) -> bool {
        while let Some(name) = Some(s.lists[group].get(0)).filter(|name| *name > 0) {
            let object = name as usize - 1;
            if !s.leads(object) {
                s.lists[group].pop();
                continue;
            }
            let own = if self.guards.own_group {
                s.group_of(object)
            } else {
                group
            };
            if own != group && own != REST {
                s.lists[group].pop();
                s.push_grouped(own, object);
                continue;
            }
            let is_held = s.objects[object].owner != Owner::Nobody;
            if let Some(by) = s.full_by(own).filter(|_| !is_held || self.guards.held_too) {
                // The limit of all objects leaves no turn to the other groups.
                let is_apart = self.guards.waits_apart && by.prefix() != ALL;
                if is_apart {
                    s.wait(group, by);
                }
                return is_apart;
            }
            s.lists[group].pop();
            self.own(s, slot, object);
            return false;
        }
        true
    }
}
