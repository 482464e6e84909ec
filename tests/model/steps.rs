//! The scripts as atomic steps, named after the Lua files: advance, connect, and those of
//! operators. `leases` has the scripts about leases.
use crate::properties::{CLAIMED_PAUSED, ID_REUSED, LOGGED_TWICE, RESULT_TWICE, STALE_TOKEN};
use crate::protocol::{Jump, Protocol};
use crate::state::*;

/// The distance of a jump: more ids than are given between two failovers.
const JUMP: u8 = 16;

/// The result of a fenced script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    Lapsed,
    Fenced,
}

impl Protocol {
    pub fn fence(&self, s: &mut State, name: usize, token: u8) -> Option<Refused> {
        let found = s.redis.names[name];
        if self.guards.fence && found.lease != token {
            let ours = found.lease == 0 && found.last_token == token;
            return Some(if ours {
                Refused::Lapsed
            } else {
                Refused::Fenced
            });
        }
        if s.ghost.newest[name] != token {
            s.ghost.broken |= STALE_TOKEN;
        }
        None
    }

    /// Commits and claims for the slots of the call. Returns, per slot, the batch in flight (object
    /// 0 = the slot is free). `again` = a second copy of the call. `markers_first` = whether
    /// markers, not held objects, have the first turn.
    pub fn advance(
        &self,
        s: &mut State,
        call: &Call,
        again: bool,
        markers_first: bool,
    ) -> Result<[Hand; SLOTS_EACH], Refused> {
        let name = call.name as usize;
        if let Some(refused) = self.fence(s, name, call.token) {
            return Err(refused);
        }
        if self.guards.lost_counter_jumps && (s.redis.evicted || s.redis.next_id < call.highest) {
            self.jump(s, call.highest);
        }
        let named = |slot: &usize| call.slots[*slot] != Named::Not;
        for slot in (0..SLOTS_EACH).filter(named) {
            let w = name * SLOTS_EACH + slot;
            if let Named::Result {
                tag,
                outcome,
                handled,
            } = call.slots[slot]
                && !s.redis.slots[w].batch.is_empty()
            {
                let is_meant = self.is_meant(s.redis.slots[w].tag, tag);
                if is_meant || !self.guards.rows_of_results_that_count {
                    self.log_delivered(s, w, outcome.delivered());
                }
                if is_meant {
                    if again {
                        s.ghost.broken |= RESULT_TWICE;
                    }
                    self.commit(s, w, outcome, handled);
                }
            }
            self.go_on(s, w, call);
        }
        let mut markers_turn = markers_first;
        for slot in (0..SLOTS_EACH).filter(named) {
            let w = name * SLOTS_EACH + slot;
            if s.redis.owned(w).is_none() {
                self.claim(s, w, call, &mut markers_turn);
            }
        }
        let mut reply = [Hand::default(); SLOTS_EACH];
        for slot in (0..SLOTS_EACH).filter(named) {
            let w = name * SLOTS_EACH + slot;
            if let Some(object) = s.redis.owned(w) {
                if self.guards.strays {
                    for other in s.redis.slots[w]
                        .objects
                        .iter()
                        .filter(|&other| other != object as u8 + 1)
                    {
                        self.stray(s, w, other);
                    }
                }
                let Slot { batch, tag, .. } = s.redis.slots[w];
                let prev = s.redis.objects[object].last;
                reply[slot] = Hand {
                    object: object as u8 + 1,
                    batch,
                    tag,
                    prev,
                    ..Hand::default()
                };
            }
        }
        Ok(reply)
    }

    /// Returns whether a result with the tag `named` is about the batch with the tag `present`.
    fn is_meant(&self, present: Tag, named: Tag) -> bool {
        if !self.guards.batch_first {
            return true;
        }
        present.first == named.first && (!self.guards.batch_handouts || present == named)
    }

    /// Commits the result of a slot. `handled`: the caller states that the result may end the event
    /// with a record of handlers.
    fn commit(&self, s: &mut State, w: usize, outcome: Outcome, handled: bool) {
        let Some(at) = s.redis.owned(w) else { return };
        let k = outcome.delivered().min(s.redis.slots[w].batch.len());
        if handled {
            self.end_handled(
                s,
                at,
                s.redis.slots[w].tag.first + k + u8::from(matches!(outcome, Outcome::Reject(_))),
            );
        }
        let Slot { batch, tag, .. } = &mut s.redis.slots[w];
        let object = &mut s.redis.objects[at];
        if k > 0 {
            for _ in 0..k {
                batch.pop();
            }
            tag.first += k;
            object.last = tag.first - 1;
            tag.attempts = 0;
            tag.crashes = tag.crashes.min(1);
        }
        match outcome {
            Outcome::Done(_) | Outcome::Part(_) => {}
            Outcome::Yield(_) => self.hold_rest(s, w, at, Due::Now),
            Outcome::Hold(_) => self.hold_rest(s, w, at, Due::Now),
            Outcome::Retry(_) => {
                tag.attempts += 1;
                tag.crashes = tag.crashes.min(1);
                self.hold_rest(s, w, at, Due::Later);
            }
            Outcome::Wait(_) => {
                tag.attempts += 1;
                tag.crashes = tag.crashes.min(1);
                self.hold_rest(s, w, at, Due::Never);
            }
            Outcome::Crash(_) => {
                tag.crashes += 1;
                s.ghost.deaths += 1;
                let is_over = tag.crashes >= self.bounds.crashes_max;
                self.hold_rest(s, w, at, if is_over { Due::Never } else { Due::Now });
            }
            Outcome::Reject(_) => {
                if let Some(event) = batch.pop() {
                    object.dead |= bit(event);
                    if !self.guards.dead_letter_leaves_last {
                        object.last = tag.first;
                    }
                    let crashes = if self.guards.rejection_keeps_crashes {
                        tag.crashes.min(1)
                    } else {
                        0
                    };
                    *tag = Tag {
                        first: tag.first + 1,
                        attempts: 0,
                        crashes,
                        ..*tag
                    };
                    self.log(s, event);
                }
            }
        }
    }

    /// Moves the first event of a held object to the dead letters. The rest of its batch is due
    /// now.
    pub fn skip(&self, s: &mut State, at: usize) {
        s.spend_outcome(true);
        let object = &mut s.redis.objects[at];
        let tag = object.held_tag;
        let Some(event) = object.held.pop() else {
            return;
        };
        object.dead |= bit(event);
        if !self.guards.dead_letter_leaves_last {
            object.last = tag.first;
        }
        let rest = Tag {
            first: tag.first + 1,
            attempts: 0,
            crashes: tag.crashes.min(1),
            ..tag
        };
        object.held_tag = if object.held.is_empty() {
            Tag::default()
        } else {
            rest
        };
        object.due = Due::Now;
        if self.guards.skip_has_a_row {
            self.log(s, event);
        }
        if self.guards.skip_ends_handled {
            self.end_handled(s, at, rest.first);
        }
    }

    /// Writes a row for each of the first events of a batch.
    fn log_delivered(&self, s: &mut State, w: usize, k: u8) {
        s.redis.slots[w]
            .batch
            .iter()
            .take(k.into())
            .for_each(|event| self.log(s, event));
    }

    /// Writes a row of the event log. If Redis may lose writes, writes none, because rows would
    /// then only multiply the states.
    fn log(&self, s: &mut State, event: u8) {
        if self.may_lose() {
            return;
        }
        if s.redis.log & wide_bit(event) != 0 {
            s.ghost.broken |= LOGGED_TWICE;
        }
        s.redis.log |= wide_bit(event);
    }

    /// Retries the first dead letter of an object as a new event behind all others.
    pub fn again(&self, s: &mut State, at: usize) {
        self.drop_dead(s, at);
        let new = event(at, s.pushed[at]);
        s.pushed[at] += 1;
        let queue = &mut s.redis.objects[at].queue;
        if self.guards.again_at_the_end {
            queue.push(new);
        } else {
            queue.push_oldest(new);
        }
        if self.guards.again_with_marker {
            s.redis.markers.push(at as u8 + 1);
        }
    }

    /// Drops the first dead letter of an object.
    pub fn drop_dead(&self, s: &mut State, at: usize) {
        s.spend_outcome(true);
        let object = &mut s.redis.objects[at];
        let first = object.dead & object.dead.wrapping_neg();
        object.dead &= !first;
        object.gone |= first;
    }

    /// Holds the rest of a batch. If neither the batch nor the queue has events, holds nothing, and
    /// `go_on` then releases the object.
    fn hold_rest(&self, s: &mut State, w: usize, object: usize, due: Due) {
        if !s.redis.slots[w].batch.is_empty() {
            self.hold(s, w, object, due);
        } else if !s.redis.objects[object].queue.is_empty() {
            self.hold(s, w, object, Due::Now);
        }
    }

    fn go_on(&self, s: &mut State, w: usize, call: &Call) {
        let Some(at) = s.redis.owned(w) else { return };
        if !s.redis.slots[w].batch.is_empty() {
            return;
        }
        if s.redis.objects[at].queue.is_empty() {
            if self.guards.atomic_release {
                self.release(s, w, at);
            }
        } else if self.is_paused(s, at, call) {
            self.pause(s, w, at);
        } else {
            self.take(s, w, at);
        }
    }

    /// A free slot reads the names in its list, then due held objects and markers in turn, until it
    /// owns an object.
    fn claim(&self, s: &mut State, w: usize, call: &Call, markers_turn: &mut bool) {
        for name in s.redis.slots[w].objects.iter() {
            if s.redis.owned(w).is_none() {
                self.claim_name(s, w, name, call);
            } else if !self.guards.claimed_once && s.redis.owned(w) == Some(name as usize - 1) {
                // Without the guard, the object is read as one with an empty queue, and held
                // without its batch.
                let batch = std::mem::take(&mut s.redis.slots[w].batch);
                self.hold(s, w, name as usize - 1, Due::Now);
                s.redis.slots[w].batch = batch;
                return;
            }
        }
        if s.redis.owned(w).is_some() {
            return;
        }
        loop {
            let due = s
                .redis
                .objects
                .iter()
                .position(|object| object.due == Due::Now);
            match (due, s.redis.markers.is_empty()) {
                (None, true) => return,
                (Some(object), none) if none || !*markers_turn => {
                    self.claim_held(s, w, object, call);
                    *markers_turn = true;
                }
                _ => {
                    let name = s.redis.markers.pop().unwrap_or_default();
                    s.redis.slots[w].objects.push(name);
                    self.claim_name(s, w, name, call);
                    *markers_turn = false;
                }
            }
            if s.redis.owned(w).is_some() {
                return;
            }
        }
    }

    /// Claims a name that is in `event.worker:W:object`, or drops it.
    fn claim_name(&self, s: &mut State, w: usize, name: u8, call: &Call) {
        let at = name as usize - 1;
        let object = s.redis.objects[at];
        if object.queue.is_empty() || (self.guards.owner_check && object.owner != 0) {
            self.forget(s, w, at);
        } else if self.is_paused(s, at, call) {
            self.pause(s, w, at);
        } else {
            s.redis.objects[at].owner = w as u8 + 1;
            self.take(s, w, at);
        }
    }

    fn claim_held(&self, s: &mut State, w: usize, at: usize, call: &Call) {
        s.redis.objects[at].due = Due::Absent;
        if self.is_paused(s, at, call) {
            s.redis.objects[at].paused = true;
            return;
        }
        s.redis.objects[at].owner = w as u8 + 1;
        s.redis.slots[w].objects.push(at as u8 + 1);
        let ruled = s.redis.is_ruled(at);
        let object = &mut s.redis.objects[at];
        if !object.held.is_empty() {
            let slot = &mut s.redis.slots[w];
            slot.batch = std::mem::take(&mut object.held);
            slot.tag = std::mem::take(&mut object.held_tag);
            slot.tag.handouts += u8::from(self.guards.handouts);
            let last = slot.tag.first + slot.batch.len() - 1;
            if ruled {
                s.ghost.broken |= CLAIMED_PAUSED;
            }
            self.rise_above(s, last);
        } else if object.queue.is_empty() {
            self.release(s, w, at);
        } else {
            self.take(s, w, at);
        }
    }

    fn is_paused(&self, s: &State, at: usize, call: &Call) -> bool {
        if self.guards.rules_in_script {
            s.redis.is_ruled(at)
        } else {
            call.rules & 1 << at != 0
        }
    }

    /// Moves up to `batch_max` events from the queue into the batch of `w`, with fresh ids.
    fn take(&self, s: &mut State, w: usize, at: usize) {
        if s.redis.is_ruled(at) {
            s.ghost.broken |= CLAIMED_PAUSED;
        }
        self.rise_above(s, s.redis.objects[at].last);
        let first = s.redis.next_id + 1;
        for _ in 0..self.bounds.batch_max {
            let Some(event) = s.redis.objects[at].queue.pop() else {
                break;
            };
            s.redis.slots[w].batch.push(event);
            s.redis.next_id += 1;
            let value = event | s.replication << 4;
            if let Some(given) = &mut s.ghost.given {
                let known = std::mem::replace(&mut given[s.redis.next_id as usize], value);
                if known & 15 != 0 && known & 15 != event {
                    s.ghost.broken |= ID_REUSED;
                }
            }
        }
        s.redis.slots[w].tag = Tag {
            first,
            ..Tag::default()
        };
    }

    /// Removes a name from `event.worker:W:object`.
    fn forget(&self, s: &mut State, w: usize, at: usize) {
        if self.guards.remove_by_value {
            s.redis.slots[w].objects.remove(at as u8 + 1);
        } else {
            s.redis.slots[w].objects.pop();
        }
    }

    pub fn release(&self, s: &mut State, w: usize, at: usize) {
        s.redis.objects[at].owner = 0;
        s.redis.slots[w].tag = Tag::default();
        self.forget(s, w, at);
    }

    pub fn hold(&self, s: &mut State, w: usize, at: usize, due: Due) {
        let object = &mut s.redis.objects[at];
        object.due = due;
        object.owner = HELD;
        object.held = std::mem::take(&mut s.redis.slots[w].batch);
        let tag = std::mem::take(&mut s.redis.slots[w].tag);
        object.held_tag = if object.held.is_empty() {
            Tag::default()
        } else {
            tag
        };
        self.forget(s, w, at);
    }

    /// Holds an object, with an empty batch, until its rule is lifted.
    fn pause(&self, s: &mut State, w: usize, at: usize) {
        self.hold(s, w, at, Due::Absent);
        s.redis.objects[at].paused = true;
    }

    /// Makes a paused object due, unless a rule is still over it.
    pub fn wake(&self, s: &mut State, at: usize) {
        if s.redis.objects[at].paused && !s.redis.is_ruled(at) {
            (s.redis.objects[at].paused, s.redis.objects[at].due) = (false, Due::Now);
        }
    }

    pub fn wake_next(&self, s: &mut State) {
        let paused = |at: &usize| s.redis.objects[*at].paused;
        match (s.redis.cursor as usize..OBJECTS).find(paused) {
            Some(at) => {
                s.redis.cursor = at as u8 + 1;
                self.wake(s, at);
                if !self.guards.waking_to_the_end {
                    (s.redis.all, s.redis.cursor) = (Rule::Absent, 0);
                }
            }
            None => (s.redis.all, s.redis.cursor) = (Rule::Absent, 0),
        }
    }

    /// Worker `w` has `name` in its list but does not own the object. Puts the name back among the
    /// markers, so that it is taken next.
    pub fn stray(&self, s: &mut State, w: usize, name: u8) {
        self.forget(s, w, name as usize - 1);
        s.redis.markers.push_oldest(name);
    }

    /// The first script on a new connection.
    pub fn connect(&self, s: &mut State, highest: u8) {
        let is_new = s.redis.meta == EMPTY;
        let changed = !is_new && s.redis.meta != s.replication;
        if changed
            || s.redis.evicted
            || s.redis.next_id < highest
            || is_new && self.guards.emptied_begins_at_the_time
        {
            self.jump(s, highest);
        }
        s.redis.meta = s.replication;
    }

    /// Moves the counter beyond every id given.
    fn jump(&self, s: &mut State, highest: u8) {
        let known = s.redis.next_id.max(highest);
        s.redis.evicted = false;
        s.redis.next_id = match self.guards.jump {
            Jump::Nowhere => s.redis.next_id,
            Jump::AsFar => known + JUMP,
            Jump::AtRandom => known + 2 * JUMP / s.time.max(1),
            Jump::ToTheTime => known.max(JUMP * s.time),
        };
    }

    /// Lets the counter jump if it is below an id given before.
    fn rise_above(&self, s: &mut State, id: u8) {
        if self.guards.last_id_lifts_the_counter && s.redis.next_id < id {
            self.jump(s, id);
        }
    }
}
