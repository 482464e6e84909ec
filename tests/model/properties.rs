//! The properties: the invariants by number, the receiver's rule, the limits after a rollback, and
//! that no event waits for ever.
use stateright::Property;

use crate::handlers::{emitted_with_the_end, nothing_stays_behind};
use crate::protocol::{Action, Fate, Protocol, Report};
use crate::state::*;

// Properties of steps, not of states: once broken, they stay broken.
pub const STALE_TOKEN: u16 = 1;
pub const RESULT_TWICE: u16 = 2;
pub const CLAIMED_PAUSED: u16 = 4;
pub const ID_REUSED: u16 = 8;
pub const EARLY: u16 = 16;
pub const OLDER_AFTER_NEWER: u16 = 32;
pub const SKIPPED: u16 = 64;
pub const APPLIED_TWICE: u16 = 128;
pub const WRONG_OBJECT: u16 = 256;
pub const DROPPED_AS_DUPLICATE: u16 = 512;
pub const LOGGED_TWICE: u16 = 1024;
pub const RAN_AGAIN: u16 = 2048;
pub const EMITTED_TWICE: u16 = 4096;

impl Protocol {
    pub fn all_properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("I1 every queued event is covered", |_, s: &State| {
                is_covered(&s.redis)
            }),
            Property::always(
                "I2 owners and held objects are where they belong",
                |_, s: &State| owners_agree(&s.redis),
            ),
            Property::always("I3 who owns nothing has an empty batch", |_, s: &State| {
                batches_are_owned(&s.redis)
            }),
            Property::always("I4 an event is in one place", |_, s: &State| {
                s.events().all(|event| s.redis.places(event) <= 1)
            }),
            Property::always("I5 a receiver is never early", |_, s: &State| {
                s.ghost.broken & EARLY == 0
            }),
            Property::always("I5 events are applied in order", |_, s: &State| {
                s.ghost.broken & OLDER_AFTER_NEWER == 0
            }),
            Property::always("I5 none is skipped", |_, s: &State| {
                s.ghost.broken & (SKIPPED | DROPPED_AS_DUPLICATE) == 0
            }),
            Property::always("I5 none is applied twice", |_, s: &State| {
                s.ghost.broken & (APPLIED_TWICE | WRONG_OBJECT) == 0
            }),
            Property::always("I5 no two events share an id", |_, s: &State| {
                s.ghost.broken & ID_REUSED == 0
            }),
            Property::always(
                "I6 accepted calls come from the newest token",
                |_, s: &State| s.ghost.broken & STALE_TOKEN == 0,
            ),
            Property::always("I7 nothing is lost", |_, s: &State| nothing_is_lost(s)),
            Property::always("a result counts once", |_, s: &State| {
                s.ghost.broken & RESULT_TWICE == 0
            }),
            Property::always("a paused object is not claimed", |_, s: &State| {
                s.ghost.broken & CLAIMED_PAUSED == 0
            }),
            Property::always("a death counts as one crash", |_, s: &State| {
                crashes_are_deaths(s)
            }),
            Property::always(
                "an event that is over has one row in the log",
                |protocol: &Protocol, s| protocol.may_lose() || is_logged(s),
            ),
            Property::always(
                "what is written down as finished does not run again",
                |_, s: &State| s.ghost.broken & RAN_AGAIN == 0,
            ),
            Property::always(
                "what is emitted is pushed once, when its event ends",
                |_, s: &State| s.ghost.broken & EMITTED_TWICE == 0 && emitted_with_the_end(s),
            ),
            Property::always(
                "nothing is kept of an event that is over",
                |_, s: &State| nothing_stays_behind(&s.redis),
            ),
            Property::always("L1 nothing waits for ever", |protocol: &Protocol, s| {
                protocol.comes_to_rest(s, None)
            }),
        ];
        if self.bounds.stall {
            properties.push(Property::always(
                "L2 a slow object holds up only itself",
                |protocol: &Protocol, s| {
                    (0..protocol.bounds.objects)
                        .all(|object| protocol.comes_to_rest(s, Some(object)))
                },
            ));
        }
        properties
    }

    /// Applies the receiver's rule: apply if `prev <= last < id`, duplicate if `id <= last`, early
    /// if `prev > last`.
    pub fn receive(&self, s: &mut State, envelope: Envelope) {
        let Envelope {
            id,
            prev,
            object,
            event,
        } = envelope;
        let found = s.received[object as usize];
        let Object { dead, gone, .. } = s.redis.objects[object as usize];
        let dead = dead | gone;
        let excused = |event: u8| s.ghost.excused & wide_bit(event) != 0;
        let settled = |event: u8| (found.applied | dead) & bit(event) != 0 || excused(event);
        let with_losses = s.ghost.given.is_some();
        let mut broken = 0;
        if object_of(event) != object as usize {
            broken |= WRONG_OBJECT;
        } else if id <= found.last {
            // After a rollback, an event that is dropped here may come again under a new id. The
            // property I7 checks that it does.
            broken |= if settled(event) || with_losses {
                0
            } else {
                DROPPED_AS_DUPLICATE
            };
        } else if prev > found.last {
            broken |= EARLY;
        } else {
            // If Redis forgot the delivery of an event, it comes again with all later events, in a
            // new epoch.
            let epoch = s
                .ghost
                .given
                .as_ref()
                .map_or(0, |given| given[id as usize] >> 4);
            let order = (epoch, event).cmp(&(found.epoch, found.newest));
            broken |= if order.is_lt() { OLDER_AFTER_NEWER } else { 0 };
            broken |= if order.is_eq() { APPLIED_TWICE } else { 0 };
            let skipped =
                (crate::state::event(object as usize, 0)..event).any(|earlier| !settled(earlier));
            broken |= if skipped { SKIPPED } else { 0 };
            let applied = found.applied | bit(event);
            s.received[object as usize] = Received {
                last: id,
                applied,
                newest: event,
                epoch,
            };
        }
        s.ghost.broken |= broken;
    }

    /// Returns whether all due events arrive without further faults, in a fair run of the living
    /// processes. This implies that a state at rest has no uncovered or overdue events. With
    /// `stalled`, deliveries of that object never end, and no other object may wait for it while a
    /// slot is free.
    pub fn comes_to_rest(&self, s: &State, stalled: Option<usize>) -> bool {
        if s.ghost.broken != 0 {
            // The broken property is reported on its own.
            return true;
        }
        let mut s = s.clone();
        s.faults = 0;
        for round in 0..40 {
            let before = s.clone();
            if !(0..PROCESSES).any(|process| s.is_live(process)) {
                let Some(process) = (0..self.bounds.processes.len())
                    .find(|&process| s.processes[process].mode == Mode::Off)
                else {
                    return true;
                };
                self.apply(
                    &mut s,
                    Action::Attach {
                        process,
                        fate: Fate::Answered,
                    },
                );
            }
            self.run_round(&mut s, round % 2 == 1, stalled);
            if round % 2 == 1 && s == before {
                return self.nothing_is_due(&s, stalled);
            }
            if stalled.is_none() && self.nothing_is_due(&s, None) {
                return true;
            }
        }
        false
    }

    fn run_round(&self, s: &mut State, markers_first: bool, stalled: Option<usize>) {
        if s.wire.is_some() {
            self.apply(s, Action::Arrive);
        }
        while s.redis.all == Rule::Lifted {
            self.apply(s, Action::WakeNext);
        }
        for object in 0..self.bounds.objects {
            if s.redis.objects[object].rule == Rule::Lifted {
                self.apply(s, Action::Wake { object });
            }
            if s.redis.objects[object].due == Due::Later {
                self.apply(s, Action::Due { object });
            }
        }
        for name in 0..NAMES {
            if !self.is_kept(s, name) {
                s.redis.names[name].lease = 0;
            }
        }
        for process in 0..self.bounds.processes.len() {
            if s.is_live(process) && !s.is_connected(process) {
                self.apply(s, Action::Connect { process });
            }
            let lapsed = matches!(s.processes[process].mode, Mode::Lapsed | Mode::Attaching);
            if lapsed && self.may_attach(s, process) {
                self.apply(
                    s,
                    Action::Attach {
                        process,
                        fate: Fate::Answered,
                    },
                );
            }
            if s.processes[process].mode == Mode::Running {
                self.work(s, process, markers_first, stalled);
            }
        }
    }

    /// Lets a process do each kind of its work once, without faults.
    fn work(&self, s: &mut State, process: usize, markers_first: bool, stalled: Option<usize>) {
        let (name, slots) = self.bounds.processes[process];
        self.apply(s, Action::ReadRules { process });
        self.apply(s, Action::Renew { process });
        for other in (0..NAMES).filter(|&other| other != name && self.guards.takeover) {
            self.apply(
                s,
                Action::Adopt {
                    process,
                    name: other,
                },
            );
        }
        let mut reports = [None; SLOTS_EACH];
        for (slot, report) in reports.iter_mut().enumerate().take(slots as usize) {
            let mut hand = s.processes[process].hand[slot];
            if hand.sent < hand.batch.len()
                && stalled.is_some_and(|stalled| hand.object == stalled as u8 + 1)
            {
                continue;
            }
            while hand.sent < hand.batch.len() {
                self.apply(s, Action::Send { process, slot });
                hand.sent += 1;
            }
            let done = Report::Is(Outcome::Done(hand.sent));
            if hand.object != 0 && hand.batch.is_empty() {
                self.apply(s, Action::Release { process, slot });
            }
            *report = Some(if hand.object != 0 && !hand.batch.is_empty() {
                done
            } else {
                Report::Free
            });
        }
        if s.processes[process].mode == Mode::Running {
            self.apply(
                s,
                Action::Advance {
                    process,
                    reports,
                    fate: Fate::Answered,
                    markers_first,
                },
            );
        }
    }

    fn nothing_is_due(&self, s: &State, stalled: Option<usize>) -> bool {
        let has_free_slot = |process: usize| {
            let slots = self.bounds.processes[process].1 as usize;
            s.processes[process].mode == Mode::Running
                && s.processes[process].hand[..slots]
                    .iter()
                    .any(|hand| hand.object == 0)
        };
        let free = stalled.is_none() || (0..self.bounds.processes.len()).any(has_free_slot);
        s.events().all(|event| {
            let object = &s.redis.objects[object_of(event)];
            let waits_for_operator = s.redis.is_ruled(object_of(event)) || object.due == Due::Never;
            let settled = (s.received[object_of(event)].applied | object.dead | object.gone)
                & bit(event)
                != 0;
            settled && s.redis.places(event) <= usize::from(object.dead & bit(event) != 0)
                || s.ghost.excused & wide_bit(event) != 0
                || waits_for_operator
                || stalled == Some(object_of(event))
                || !free
        })
    }
}

fn is_covered(redis: &Redis) -> bool {
    (0..OBJECTS).all(|at| {
        let (object, name) = (&redis.objects[at], at as u8 + 1);
        object.queue.is_empty()
            || object.owner == HELD
            || redis.markers.contains(name)
            || redis.slots.iter().any(|slot| slot.objects.contains(name))
    })
}

fn owners_agree(redis: &Redis) -> bool {
    (0..OBJECTS).all(|at| {
        let object = &redis.objects[at];
        let holds = usize::from(object.due != Due::Absent) + usize::from(object.paused);
        match object.owner {
            HELD => holds == 1,
            0 => holds == 0 && object.held.is_empty(),
            w => {
                holds == 0
                    && object.held.is_empty()
                    && redis.slots[w as usize - 1].objects.contains(at as u8 + 1)
            }
        }
    })
}

fn batches_are_owned(redis: &Redis) -> bool {
    (0..SLOTS).all(|w| {
        let owned = redis
            .objects
            .iter()
            .filter(|object| object.owner == w as u8 + 1)
            .count();
        let batch = redis.slots[w].batch;
        let ours = |event| redis.objects[object_of(event)].owner == w as u8 + 1;
        owned <= 1 && batch.iter().all(ours)
    })
}

fn nothing_is_lost(s: &State) -> bool {
    s.events().all(|event| {
        let Object { gone, .. } = s.redis.objects[object_of(event)];
        let settled = (s.received[object_of(event)].applied | gone) & bit(event) != 0;
        settled || s.redis.places(event) > 0 || s.ghost.excused & wide_bit(event) != 0
    })
}

fn is_logged(s: &State) -> bool {
    s.ghost.broken & LOGGED_TWICE == 0
        && s.events()
            .all(|event| (s.redis.log & wide_bit(event) != 0) == s.redis.is_over(event))
}

fn crashes_are_deaths(s: &State) -> bool {
    let slots = s.redis.slots.iter().map(|slot| slot.tag.crashes);
    let held = s.redis.objects.iter().map(|object| object.held_tag.crashes);
    slots.chain(held).all(|crashes| crashes <= s.ghost.deaths)
}
