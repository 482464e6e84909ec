//! The faults of the model. Each fault uses up one of the faults that the bounds allow; effects of
//! time on dead processes use up none.
use crate::process::next_envelope;
use crate::protocol::{Action, Fault, Protocol};
use crate::state::*;

impl Protocol {
    pub fn fault_actions(&self, s: &State, actions: &mut Vec<Action>) {
        for process in 0..self.bounds.processes.len() {
            if self.may(s, Fault::Crash) && s.is_live(process) {
                actions.push(Action::Crash { process });
            }
            if self.may(s, Fault::LateSend) && s.wire.is_none() && s.is_live(process) {
                let hand = &s.processes[process].hand;
                let sends = |&slot: &usize| {
                    hand[slot].sent < hand[slot].batch.len() && hand[slot].finished & SENDS == 0
                };
                let slots = (0..SLOTS_EACH).filter(sends);
                actions.extend(slots.map(|slot| Action::GiveUp { process, slot }));
            }
        }
        for name in 0..NAMES {
            let found = s.redis.names[name];
            if found.lease != 0 && (!self.is_kept(s, name) || self.may(s, Fault::Pause)) {
                actions.push(Action::Expire { name });
            }
            if self.may(s, Fault::GhostPop) && !s.redis.markers.is_empty() {
                let first = name * SLOTS_EACH;
                actions
                    .extend((first..first + found.slots as usize).map(|w| Action::GhostPop { w }));
            }
        }
        if let Some(late) = s.late {
            actions.push(Action::Late {
                markers_first: false,
            });
            if matches!(late, Late::Advance(_)) {
                actions.push(Action::Late {
                    markers_first: true,
                });
            }
        }
        if s.wire.is_some() {
            actions.push(Action::Arrive);
        }
        if self.may(s, Fault::Rollback) {
            actions.push(if s.snapshot.is_none() {
                Action::Snapshot
            } else {
                Action::Rollback
            });
        }
        let losses = [
            (Fault::Emptied, Action::Empty),
            (Fault::Evicted, Action::Evict),
            (Fault::SetBack, Action::SetBack),
        ];
        actions.extend(
            losses
                .into_iter()
                .filter(|(loss, _)| self.may(s, *loss))
                .map(|(_, action)| action),
        );
    }

    pub fn fault(&self, s: &mut State, action: Action) {
        match action {
            Action::Crash { process } => {
                // The process also loses its memory, including the highest id seen.
                s.processes[process] = Process::default();
                s.spend_fault(true);
                s.ghost.deaths += 1;
            }
            Action::Expire { name } => {
                if self.is_kept(s, name) {
                    s.spend_fault(true);
                    s.ghost.deaths += 1;
                }
                s.redis.names[name].lease = 0;
            }
            Action::GhostPop { w } => {
                self.pop(s, w);
                s.spend_fault(true);
            }
            Action::Late { markers_first } => {
                // No process reads the reply to the second copy.
                match s.late.take() {
                    Some(Late::Advance(call)) => drop(self.advance(s, &call, true, markers_first)),
                    Some(Late::Handled(call)) => drop(self.handled(s, &call)),
                    None => {}
                }
            }
            Action::GiveUp { process, slot } => {
                s.wire = Some(next_envelope(&s.processes[process].hand[slot]));
                s.spend_fault(true);
            }
            Action::Arrive => {
                if let Some(envelope) = s.wire.take() {
                    self.receive(s, envelope);
                }
            }
            Action::Snapshot => s.snapshot = Some(Box::new(s.redis)),
            Action::Rollback => {
                if let Some(snapshot) = s.snapshot.take() {
                    self.roll_back(s, *snapshot);
                }
            }
            Action::Empty => self.roll_back(
                s,
                Redis {
                    meta: EMPTY,
                    ..Redis::default()
                },
            ),
            Action::Evict => {
                self.lose_counter(s, 0);
                s.redis.evicted = true;
            }
            Action::SetBack => self.lose_counter(s, s.redis.next_id / 2),
            Action::Connect { process } => {
                self.connect(s, s.processes[process].highest);
                let found = &mut s.processes[process];
                found.replication = s.replication;
                found.mode = Mode::Lapsed;
            }
            other => unreachable!("{other:?} is no fault"),
        }
    }

    fn lose_counter(&self, s: &mut State, counter: u8) {
        s.redis.next_id = counter;
        s.time += 1;
        s.spend_fault(true);
    }

    /// Simulates a failover, or a restart. Records the losses of Redis: events without any trace,
    /// and dead letters that are no longer dead.
    fn roll_back(&self, s: &mut State, snapshot: Redis) {
        for event in s.events().collect::<Vec<_>>() {
            let applied = s.received[object_of(event)].applied & bit(event) != 0;
            let given_up = |redis: &Redis| {
                (redis.objects[object_of(event)].dead | redis.objects[object_of(event)].gone)
                    & bit(event)
                    != 0
            };
            let (was_dead, is_dead) = (given_up(&s.redis), given_up(&snapshot));
            if (snapshot.places(event) == 0 && !applied) || (was_dead && !is_dead) {
                s.ghost.excused |= wide_bit(event);
            }
        }
        s.redis = snapshot;
        s.snapshot = None;
        s.replication += 1;
        s.time += 1;
        s.late = None;
        s.spend_fault(true);
        // Every process loses its connections, and with them its lease. The failover may also undo
        // the stop of a process.
        s.ghost.deaths += self.bounds.processes.len() as u8;
        for name in 0..NAMES {
            s.ghost.newest[name] = s.redis.names[name].last_token;
        }
    }
}
