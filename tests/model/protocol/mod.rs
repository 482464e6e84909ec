//! The model as the checker sees it: bounds, guards, actions.
mod bounds;
mod guards;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::check::Properties;
use crate::state::*;

pub use bounds::*;
pub use guards::*;

/// The report of a call of advance about one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    Free,
    Is(Outcome),
}

/// The fate of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Answered,
    ReplyLost,
    /// The reply arrives; a second copy of the call arrives later.
    Repeated,
}

/// One step. Processes, slots (within their process), workers (`w`), names and objects are indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Push {
        object: usize,
    },
    Pop {
        process: usize,
        slot: usize,
    },
    Advance {
        process: usize,
        reports: [Option<Report>; SLOTS_EACH],
        fate: Fate,
        markers_first: bool,
    },
    Send {
        process: usize,
        slot: usize,
    },
    /// One handler of the next event has finished and is recorded. `emitted` = the object (index
    /// + 1) for which it has emitted an event; 0 = none.
    Finish {
        process: usize,
        slot: usize,
        handler: u8,
        emitted: u8,
        fate: Fate,
    },
    Attach {
        process: usize,
        fate: Fate,
    },
    Adopt {
        process: usize,
        name: usize,
    },
    Detach {
        process: usize,
        fate: Fate,
    },
    Renew {
        process: usize,
    },
    /// Time passes until a held object is due.
    Due {
        object: usize,
    },
    /// An operator releases a held object.
    Operator {
        object: usize,
    },
    /// The last id of an idle object is deleted.
    Forget {
        object: usize,
    },
    /// An operator sends the first event of a held object to the dead letters.
    Skip {
        object: usize,
    },
    /// An operator retries the first dead letter of an object as a new event.
    Again {
        object: usize,
    },
    /// An operator drops the first dead letter of an object.
    Drop {
        object: usize,
    },
    Pause {
        object: usize,
    },
    Lift {
        object: usize,
    },
    /// Deletes the lifted rule of an object, and wakes the object if no other rule is over it.
    Wake {
        object: usize,
    },
    PauseAll,
    LiftAll,
    /// One step of the waking of the rule over all objects: wakes the next paused object, if no
    /// other rule is over it. If no object is left, deletes the rule.
    WakeNext,
    Crash {
        process: usize,
    },
    /// A lease ends.
    Expire {
        name: usize,
    },
    GhostPop {
        w: usize,
    },
    /// The second copy of a call arrives.
    Late {
        markers_first: bool,
    },
    /// The sender gives up an envelope that is under way.
    GiveUp {
        process: usize,
        slot: usize,
    },
    /// The given-up envelope arrives.
    Arrive,
    /// From here on, a failover loses the writes of Redis.
    Snapshot,
    Rollback,
    Empty,
    Evict,
    SetBack,
    /// A process reconnects to Redis after a failover.
    Connect {
        process: usize,
    },
    /// Used only with the guard `rules_in_script` off.
    ReadRules {
        process: usize,
    },
    /// Used only with the guard `atomic_release` off.
    Release {
        process: usize,
        slot: usize,
    },
}

/// The protocol within bounds.
#[derive(Clone, Debug, Default)]
pub struct Protocol {
    pub bounds: Bounds,
    pub guards: Guards,
    /// The only property to check; `None`: all properties.
    pub only: Option<&'static str>,
    pub allowed: Arc<Allowed>,
}

/// Effects that a failover may have on events, counted over all explored steps.
#[derive(Debug, Default)]
pub struct Allowed {
    /// Number of events that Redis lost.
    pub lost: AtomicU64,
    /// Number of events applied again under a new id because Redis lost their delivery.
    pub redelivered: AtomicU64,
}

impl Allowed {
    fn count(&self, before: &State, after: &State) {
        let lost = after.ghost.excused & !before.ghost.excused;
        self.lost
            .fetch_add(lost.count_ones().into(), Ordering::Relaxed);
        for (before, after) in before.received.iter().zip(&after.received) {
            let again = after.last != before.last && after.applied == before.applied;
            self.redelivered.fetch_add(again.into(), Ordering::Relaxed);
        }
    }
}

impl Properties for Protocol {
    fn only(self, property: &'static str) -> Self {
        Self {
            only: Some(property),
            ..self
        }
    }

    fn words(&self, _: &State, action: &Action) -> String {
        self.in_words(*action)
    }
}

impl Protocol {
    pub fn initial(&self) -> State {
        let mut s = State {
            faults: self.bounds.faults,
            outcomes: self.bounds.outcomes,
            ..State::default()
        };
        if self.may_lose() {
            s.ghost.given = Some(Box::new([0; IDS]));
        }
        for process in 0..self.bounds.attached {
            self.start(&mut s, process, Fate::Answered);
        }
        s
    }

    /// Returns whether Redis may lose writes.
    pub fn may_lose(&self) -> bool {
        LOSSES.iter().any(|loss| self.allows(*loss))
    }

    pub fn allows(&self, fault: Fault) -> bool {
        self.bounds.fault_kinds.contains(&fault)
    }

    pub fn may(&self, s: &State, fault: Fault) -> bool {
        s.faults > 0 && self.allows(fault)
    }

    pub fn may_also(&self, s: &State, special: Special) -> bool {
        s.outcomes > 0 && self.bounds.outcome_kinds.contains(&special)
    }

    /// Changes the state by one action.
    pub fn apply(&self, s: &mut State, action: Action) {
        match action {
            Action::Push { object } => {
                assert!(
                    s.pushed[object] < EVENTS_MAX,
                    "more events than there are numbers for"
                );
                s.redis.objects[object]
                    .queue
                    .push(event(object, s.pushed[object]));
                s.redis.markers.push(object as u8 + 1);
                s.pushed[object] += 1;
            }
            Action::Pop { process, slot } => self.pop(s, self.worker(process, slot)),
            Action::Advance {
                process,
                reports,
                fate,
                markers_first,
            } => {
                self.call_advance(s, process, reports, fate, markers_first);
            }
            Action::Send { process, slot } => self.send(s, process, slot),
            Action::Finish {
                process,
                slot,
                handler,
                emitted,
                fate,
            } => self.finish(s, process, slot, handler, emitted, fate),
            Action::Attach { process, fate } => self.start(s, process, fate),
            Action::Adopt { process, name } => {
                self.adopt(s, self.bounds.processes[process].0, name)
            }
            Action::Detach { process, fate } => self.stop(s, process, fate),
            Action::Renew { process } => self.keep(s, process),
            Action::Due { object } | Action::Operator { object } => {
                s.redis.objects[object].due = Due::Now
            }
            Action::Forget { object } => {
                s.redis.objects[object].last = 0;
                s.spend_outcome(true);
            }
            Action::Skip { object } => self.skip(s, object),
            Action::Again { object } => self.again(s, object),
            Action::Drop { object } => self.drop_dead(s, object),
            Action::Pause { object } => {
                s.redis.objects[object].rule = Rule::Paused;
                s.spend_outcome(true);
            }
            Action::Lift { object } => s.redis.objects[object].rule = Rule::Lifted,
            Action::Wake { object } => {
                s.redis.objects[object].rule = Rule::Absent;
                self.wake(s, object);
            }
            Action::PauseAll => {
                s.redis.all = Rule::Paused;
                if self.guards.waking_anew {
                    s.redis.cursor = 0;
                }
                s.spend_outcome(true);
            }
            Action::LiftAll => s.redis.all = Rule::Lifted,
            Action::WakeNext => self.wake_next(s),
            Action::ReadRules { process } => {
                let paused = |&at: &usize| s.redis.is_ruled(at);
                s.processes[process].rules = (0..OBJECTS).filter(paused).map(|at| 1 << at).sum();
            }
            Action::Release { process, slot } => {
                let object = s.processes[process].hand[slot].object as usize - 1;
                self.release(s, self.worker(process, slot), object);
                s.processes[process].hand[slot] = Hand::default();
            }
            fault => self.fault(s, fault),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for object in 0..self.bounds.objects {
            if s.pushed[object] < self.bounds.events {
                actions.push(Action::Push { object });
            }
            self.object_actions(s, object, actions);
        }
        self.rule_actions(s, actions);
        for process in 0..self.bounds.processes.len() {
            self.process_actions(s, process, actions);
        }
        self.fault_actions(s, actions);
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut next = s.clone();
        self.apply(&mut next, action);
        self.allowed.count(s, &next);
        (next != *s).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = self.all_properties();
        properties.retain(|property| self.only.is_none_or(|only| only == property.name));
        properties
    }
}
