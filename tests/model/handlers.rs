//! Handlers: their record of successes and emits in Redis (`lua/handled.lua`, and its use in commit
//! and skip), and in the process.
//!
//! If a process has handlers, an event has two. The first one sends to the receiver; the second may
//! emit an event. `Send` runs both at once. `Finish` runs one of them alone, and records its
//! success.
use crate::process::next_envelope;
use crate::properties::{EMITTED_TWICE, RAN_AGAIN, STALE_TOKEN};
use crate::protocol::{Action, EmitsAre, Fate, Fault, Protocol, Special};
use crate::state::*;
use crate::steps::Refused;

impl Protocol {
    pub fn has_handlers(&self, process: usize) -> bool {
        self.bounds.handlers.contains(&process)
    }

    /// The script `handled`. Returns whether it has recorded the success.
    pub fn handled(&self, s: &mut State, call: &Keep) -> Result<bool, Refused> {
        if let Some(refused) = self.fence(s, call.name as usize, call.token)
            && self.guards.handled_is_fenced
        {
            return Err(refused);
        }
        let w = call.name as usize * SLOTS_EACH + call.slot as usize;
        let Slot { batch, tag, .. } = s.redis.slots[w];
        let Object {
            owner,
            handled: kept,
            ..
        } = s.redis.objects[call.object as usize];
        if owner != w as u8 + 1 || (tag != call.tag && self.guards.handled_looks_at_the_tag) {
            return Ok(false);
        }
        let another = kept.id != call.what.id;
        let is_later = kept.id > call.what.id && kept.id < tag.first + batch.len();
        if another
            && ((is_later && self.guards.later_stays)
                || (kept.emitted != 0 && self.guards.unpushed_stays))
        {
            return Ok(false);
        }
        let Handled {
            id,
            event,
            finished,
            emitted,
        } = call.what;
        let before = if another { Handled::default() } else { kept };
        let kept = Handled {
            id,
            event,
            finished: before.finished | finished,
            emitted: before.emitted.max(emitted),
        };
        let past = &mut s.redis.past;
        for (handler, set) in past.finished.iter_mut().enumerate() {
            *set |= if finished & 1 << handler != 0 {
                wide_bit(event)
            } else {
                0
            };
        }
        past.emitters |= if emitted != 0 { wide_bit(event) } else { 0 };
        if s.ghost.newest[call.name as usize] != call.token {
            s.ghost.broken |= STALE_TOKEN;
        }
        s.redis.objects[call.object as usize].handled = kept;
        if self.guards.emits_are == EmitsAre::PushedAtOnce {
            self.push_emitted(s, kept);
        }
        Ok(true)
    }

    /// The part of commit and skip that ends an event: pushes its emits, and deletes its record.
    /// `behind`: the first id of the batch that has not ended.
    pub fn end_handled(&self, s: &mut State, at: usize, behind: u8) {
        let kept = s.redis.objects[at].handled;
        if kept.id >= behind && self.guards.only_what_ends {
            return;
        }
        if self.guards.emits_are == EmitsAre::PushedWithTheCommit {
            self.push_emitted(s, kept);
        }
        if self.guards.handled_goes_with_the_commit {
            s.redis.objects[at].handled = Handled::default();
        }
    }

    /// Pushes an event and a marker, like any emit.
    fn push_emitted(&self, s: &mut State, kept: Handled) {
        let Some(object) = (kept.emitted as usize).checked_sub(1) else {
            return;
        };
        if s.redis.past.pushed & wide_bit(kept.event) != 0 {
            s.ghost.broken |= EMITTED_TWICE;
            return;
        }
        s.redis.past.pushed |= wide_bit(kept.event);
        self.apply(s, Action::Push { object });
    }

    /// Returns a batch as the sink gets it. Handlers get the record of their event, unless the
    /// batch was never in other hands.
    pub fn take_in(&self, s: &State, process: usize, hand: Hand) -> Hand {
        let mut hand = hand;
        let Tag {
            first,
            handouts,
            attempts,
            crashes,
        } = hand.tag;
        if self.bounds.handlers.is_empty() || hand.batch.is_empty() {
            return hand;
        }
        let again = handouts + attempts + crashes > 0;
        if again && self.guards.word_of_what_comes_again {
            hand.handled = first;
        }
        let kept = s.redis.objects[hand.object as usize - 1].handled;
        let asks = again || (s.processes[process].again && self.guards.handled_read_after_a_lapse);
        if asks
            && self.has_handlers(process)
            && (first..first + hand.batch.len()).contains(&kept.id)
            && self.guards.handled_is_read
        {
            (hand.sent, hand.finished, hand.handled) = (kept.id - first, kept.finished, kept.id);
            go_behind_what_is_finished(&mut hand);
        }
        hand
    }

    /// Returns whether a result ends the event with the record, as far as the process knows.
    pub fn ends_handled(&self, hand: &Hand, outcome: Outcome) -> bool {
        let behind = match outcome {
            Outcome::Done(_) | Outcome::Yield(_) => u8::MAX,
            Outcome::Reject(k) => hand.tag.first + k + 1,
            outcome => hand.tag.first + outcome.delivered(),
        };
        hand.handled != 0 && hand.handled < behind
    }

    /// Adds the steps in which one of the two handlers finishes alone, and its success is recorded.
    /// A success is recorded if the other handler has not finished, or if this handler has emitted.
    pub fn finish_actions(
        &self,
        s: &State,
        process: usize,
        slot: usize,
        actions: &mut Vec<Action>,
    ) {
        let hand = s.processes[process].hand[slot];
        if !self.has_handlers(process) || hand.sent >= hand.batch.len() {
            return;
        }
        let mut each = |handler: u8, emitted: u8| {
            actions.push(Action::Finish {
                process,
                slot,
                handler,
                emitted,
                fate: Fate::Answered,
            });
            if s.late.is_none() && self.may(s, Fault::RepeatedCall) {
                actions.push(Action::Finish {
                    process,
                    slot,
                    handler,
                    emitted,
                    fate: Fate::Repeated,
                });
            }
        };
        for handler in [SENDS, EMITS]
            .into_iter()
            .filter(|handler| hand.finished & handler == 0)
        {
            if (hand.finished | handler) != BOTH && self.may_also(s, Special::Finish) {
                each(handler, 0);
            }
            if handler == EMITS && self.may_also(s, Special::Emit) {
                (0..self.bounds.objects)
                    .filter(|&at| self.has_room(s, at))
                    .for_each(|at| each(handler, at as u8 + 1));
            }
        }
    }

    /// Returns whether there is a number for one more event of an object.
    fn has_room(&self, s: &State, object: usize) -> bool {
        let pending = s
            .redis
            .objects
            .iter()
            .filter(|other| other.handled.emitted == object as u8 + 1)
            .count() as u8;
        s.pushed[object].max(self.bounds.events) + pending < EVENTS_MAX
    }

    pub fn finish(
        &self,
        s: &mut State,
        process: usize,
        slot: usize,
        handler: u8,
        emitted: u8,
        fate: Fate,
    ) {
        s.spend_outcome(true);
        s.spend_fault(fate != Fate::Answered);
        let Process { token, hand, .. } = s.processes[process];
        let Hand {
            object,
            batch,
            tag,
            sent,
            ..
        } = hand[slot];
        self.run(s, process, slot, handler);
        let what = Handled {
            id: tag.first + sent,
            event: batch.get(sent),
            finished: handler,
            emitted,
        };
        let name = self.bounds.processes[process].0 as u8;
        let call = Keep {
            name,
            token,
            slot: slot as u8,
            object: object - 1,
            tag,
            what,
        };
        if fate == Fate::Repeated {
            s.late = Some(Late::Handled(call));
        }
        match self.handled(s, &call) {
            Err(refused) => self.refused(s, process, refused),
            // The script has not recorded the success, so the handler does not count as finished.
            Ok(false) => {}
            Ok(true) => {
                let hand = &mut s.processes[process].hand[slot];
                (hand.handled, hand.finished) = (what.id, hand.finished | handler);
                go_behind_what_is_finished(hand);
            }
        }
    }

    /// Runs the unfinished handlers of the next event. They succeed.
    pub fn run_all(&self, s: &mut State, process: usize, slot: usize) {
        let finished = s.processes[process].hand[slot].finished;
        [SENDS, EMITS]
            .into_iter()
            .filter(|handler| finished & handler == 0)
            .for_each(|handler| self.run(s, process, slot, handler));
        let hand = &mut s.processes[process].hand[slot];
        hand.finished = BOTH;
        go_behind_what_is_finished(hand);
    }

    fn run(&self, s: &mut State, process: usize, slot: usize, handler: u8) {
        let Process { token, hand, .. } = s.processes[process];
        let envelope = next_envelope(&hand[slot]);
        let name = s.redis.names[self.bounds.processes[process].0];
        // A process that has lost its lease may run a finished handler again; that breaks no
        // property.
        let in_hand =
            name.lease == token && s.redis.slots[self.worker(process, slot)].tag == hand[slot].tag;
        if in_hand
            && s.redis.past.finished[usize::from(handler == EMITS)] & wide_bit(envelope.event) != 0
        {
            s.ghost.broken |= RAN_AGAIN;
        }
        if handler == SENDS {
            self.receive(s, envelope);
        }
    }
}

fn go_behind_what_is_finished(hand: &mut Hand) {
    if hand.finished == BOTH {
        (hand.sent, hand.finished) = (hand.sent + 1, 0);
    }
}

/// Returns whether each record of handlers belongs to an event that is in a slot's batch, or held.
pub fn nothing_stays_behind(redis: &Redis) -> bool {
    redis.objects.iter().all(|object| {
        let (batch, tag) = match object.owner {
            0 => (Short::default(), Tag::default()),
            HELD => (object.held, object.held_tag),
            w => (
                redis.slots[w as usize - 1].batch,
                redis.slots[w as usize - 1].tag,
            ),
        };
        object.handled.id == 0 || (tag.first..tag.first + batch.len()).contains(&object.handled.id)
    })
}

/// Returns whether the emits of exactly those events that are over were pushed.
pub fn emitted_with_the_end(s: &State) -> bool {
    let over: u16 = s
        .events()
        .filter(|&event| s.redis.is_over(event))
        .map(wide_bit)
        .sum();
    s.redis.past.pushed == s.redis.past.emitters & over
}
