//! A walk through the model along the path of a scenario. Every property is checked after every
//! step.
use stateright::Model;

use crate::protocol::{Action, Bounds, Fate, Guards, Protocol, Report};
use crate::state::{Outcome, SLOTS_EACH, State, bit, event};

pub struct Walk {
    pub protocol: Protocol,
    pub state: State,
    steps: Vec<String>,
}

impl Walk {
    /// Begins a walk. The processes that the bounds count as attached are attached.
    pub fn begin(bounds: Bounds) -> Self {
        Self::begin_with(bounds, Guards::default())
    }

    pub fn begin_with(bounds: Bounds, guards: Guards) -> Self {
        let protocol = Protocol {
            bounds,
            guards,
            ..Protocol::default()
        };
        Self {
            state: protocol.initial(),
            protocol,
            steps: Vec::new(),
        }
    }

    /// Makes a step, which must be possible, and asserts that no property breaks.
    pub fn go(&mut self, action: Action) -> &mut Self {
        let broken = self.try_go(action);
        assert!(
            broken.is_empty(),
            "broken: {broken:?} after\n{}",
            self.steps.join("\n")
        );
        self
    }

    /// Makes a step, which must be possible. Returns the properties that it breaks.
    pub fn try_go(&mut self, action: Action) -> Vec<&'static str> {
        let mut possible = Vec::new();
        self.protocol.actions(&self.state, &mut possible);
        self.steps.push(self.protocol.in_words(action));
        assert!(
            possible.contains(&action),
            "not possible:\n{}\nbut {possible:#?}",
            self.steps.join("\n")
        );
        self.protocol.apply(&mut self.state, action);
        let properties = self.protocol.properties();
        let broken = properties
            .iter()
            .filter(|property| !(property.condition)(&self.protocol, &self.state));
        broken.map(|property| property.name).collect()
    }

    pub fn push(&mut self, object: usize) -> &mut Self {
        self.go(Action::Push { object })
    }

    pub fn send(&mut self, process: usize, slot: usize) -> &mut Self {
        self.go(Action::Send { process, slot })
    }

    /// Calls advance for one free slot.
    pub fn claim(&mut self, process: usize, slot: usize) -> &mut Self {
        self.call(process, slot, Report::Free, Fate::Answered)
    }

    /// Calls advance for one slot with a result.
    pub fn report(&mut self, process: usize, slot: usize, outcome: Outcome) -> &mut Self {
        self.call(process, slot, Report::Is(outcome), Fate::Answered)
    }

    /// Claims, sends, and reports one delivered event.
    pub fn deliver(&mut self, process: usize, slot: usize) -> &mut Self {
        self.claim(process, slot).finish(process, slot)
    }

    /// Sends the batch of a slot, and reports one delivered event.
    pub fn finish(&mut self, process: usize, slot: usize) -> &mut Self {
        let outcome = Outcome::Done(1);
        self.send(process, slot).report(process, slot, outcome)
    }

    pub fn call(&mut self, process: usize, slot: usize, report: Report, fate: Fate) -> &mut Self {
        self.go(advance(process, slot, report, fate))
    }

    pub fn attach(&mut self, process: usize) -> &mut Self {
        self.go(Action::Attach {
            process,
            fate: Fate::Answered,
        })
    }

    /// Returns the object (index) of a slot's batch, as the process knows it.
    pub fn in_hand(&self, process: usize, slot: usize) -> Option<usize> {
        (self.state.processes[process].hand[slot].object as usize).checked_sub(1)
    }

    /// Returns whether the receiver has applied an event, counted from 0 within its object.
    pub fn is_applied(&self, object: usize, index: u8) -> bool {
        self.state.received[object].applied & bit(event(object, index)) != 0
    }
}

pub fn advance(process: usize, slot: usize, report: Report, fate: Fate) -> Action {
    let mut reports = [None; SLOTS_EACH];
    reports[slot] = Some(report);
    Action::Advance {
        process,
        reports,
        fate,
        markers_first: false,
    }
}
