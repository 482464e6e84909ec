//! Shares: a separate model of limits, of the groups that wait for them, and of operators who set and
//! remove shares while workers run.
//!
//! There are three objects: `a:x:1`, `a:y:1` and `b`. The prefixes `a:x`, `a` and `*` may have a
//! share, so limits are nested. The main model shows what happens to the events of an object in hand.
//! Here a batch has one event. The groups have their turns in any order.
mod properties;
mod script;
mod tests;

use stateright::{Model, Property};

use crate::check::Properties;
use crate::state::Short;

pub const OBJECTS: usize = 3;
pub const SLOTS: usize = 2;
/// The prefixes that may have a share. A prefix with a share is a group.
pub const PREFIXES: usize = 3;
pub const A_X: usize = 0;
pub const A: usize = 1;
pub const ALL: usize = 2;
/// The group of objects without a share of a prefix. `*` makes no group.
pub const REST: usize = 2;

/// Returns the prefixes of an object, the longest first.
pub fn prefixes_of(object: usize) -> &'static [usize] {
    [&[A_X, A, ALL][..], &[A, ALL], &[ALL]][object]
}

/// The guards of the protocol. Each can be switched off.
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// The step that changes the owner of an object also counts the object.
    pub counted_with_the_owner: bool,
    /// Workers count objects from the first step of an operator on, before the slots are looked at.
    pub counted_from_the_start: bool,
    /// An operator looks at all slots before the share is set.
    pub slots_are_looked_at: bool,
    /// A share is set only if objects have been counted since the operator began.
    pub epoch: bool,
    /// A takeover takes the object out of the objects in hand.
    pub takeover_uncounts: bool,
    /// When an object leaves its slot, calls look again at the groups that wait for its prefixes.
    pub looks_again: bool,
    /// When a share changes, all groups have turns again.
    pub change_ends_waits: bool,
    /// The shares of the object count, whatever list its name is in.
    pub own_group: bool,
    /// A group that may claim nothing waits apart from the other groups.
    pub waits_apart: bool,
    /// A held object is claimed only if its limits allow that.
    pub held_too: bool,
    /// An object whose marker a pop has moved is claimed only if its limits allow that.
    pub popped_too: bool,
    /// A rate counts the further events of an object in hand.
    pub further_events: bool,
}

pub const ON: Guards = Guards {
    counted_with_the_owner: true,
    counted_from_the_start: true,
    slots_are_looked_at: true,
    epoch: true,
    takeover_uncounts: true,
    looks_again: true,
    change_ends_waits: true,
    own_group: true,
    waits_apart: true,
    held_too: true,
    popped_too: true,
    further_events: true,
};

/// A share with limits. `burst`: the events that its rate allows at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Share {
    pub in_flight: Option<u8>,
    pub burst: Option<u8>,
}

pub const fn in_flight(objects: u8) -> Share {
    Share {
        in_flight: Some(objects),
        burst: None,
    }
}

pub const fn rate(burst: u8) -> Share {
    Share {
        in_flight: None,
        burst: Some(burst),
    }
}

/// The bounds of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// The number of events of each object.
    pub events: [u8; OBJECTS],
    /// The shares, each with an operator who sets it.
    pub shares: Vec<(usize, Share)>,
    pub removals: u8,
    /// Crashes of processes.
    pub crashes: u8,
    /// Deliveries that are to be tried again later.
    pub retries: u8,
    /// Events that the rates allow beyond the bursts.
    pub refills: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Owner {
    #[default]
    Nobody,
    Slot(usize),
    /// `aside`: the name is grouped.
    Held {
        due: bool,
        aside: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Object {
    /// The number of events in the queue.
    pub queue: u8,
    /// Whether an event is in the batch, in hand or held.
    pub has_batch: bool,
    pub owner: Owner,
    pub delivered: u8,
}

/// A group in `event.groups`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Turn {
    #[default]
    Absent,
    Ready,
    /// The group waits for a limit.
    Waits,
}

/// The score of a member of `event.groups.blocked`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Look {
    #[default]
    Absent,
    /// A call looks again when an object leaves its slot.
    AtRoom,
    /// A call looks again when the rate allows an event.
    AtEvents,
    /// The next call looks.
    Due,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slot {
    /// The names in `event.worker:W:object` that the slot does not own, as index + 1.
    pub popped: Short,
    pub is_dead: bool,
}

/// The next step of an operator who sets a share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Operator {
    #[default]
    Begin,
    /// Looks at this slot, or sets the share if there is no such slot. Objects have been counted since
    /// this time.
    At(usize, u8),
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    pub objects: [Object; OBJECTS],
    /// `objects.with.events` and the lists of the groups, objects as index + 1.
    pub markers: Short,
    pub lists: [Short; PREFIXES],
    pub turns: [Turn; PREFIXES],
    /// `event.groups.blocked`: the members for a group that waits for its own share, and for all groups
    /// that wait for the share of a shorter prefix.
    pub own: [Look; PREFIXES],
    pub others: [Look; PREFIXES],
    /// `objects.in.hand`, as bits.
    pub in_hand: u8,
    /// The time since when objects in hand are counted; 0: they are not.
    pub since: u8,
    pub shares: [Option<Share>; PREFIXES],
    /// The events that the rates allow now.
    pub tokens: [u8; PREFIXES],
    pub slots: [Slot; SLOTS],
    pub operators: [Operator; PREFIXES],
    /// The steps that have happened, of those that the bounds limit.
    pub pushed: [u8; OBJECTS],
    pub removals: u8,
    pub crashes: u8,
    pub retries: u8,
    pub refills: u8,
    /// It stands for the time: it is another one each time it is read.
    pub time: u8,
    /// Used only with the guard `counted_with_the_owner` off: the claimed objects that are to be counted.
    pub uncounted: u8,
    /// State that only the properties read: whether a claim was above a limit, or above a rate.
    pub is_above_limit: bool,
    pub is_above_rate: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Push(usize),
    Pop(usize),
    /// A call of a process for its slot. Its delivery is done, or is to be tried again later. The group
    /// `first` has the first turn.
    Advance {
        slot: usize,
        retry: bool,
        first: usize,
    },
    /// Used only with the guard `counted_with_the_owner` off.
    Count(usize),
    Due(usize),
    /// The rate of a prefix allows one event more.
    Refill(usize),
    Crash(usize),
    /// Another process takes over the object of a dead process. Then a new process has the slot.
    Adopt(usize),
    /// A process with the same name starts, and goes on with the object of the slot.
    Restart(usize),
    /// The next step of the operator who sets this share of the bounds.
    Set(usize),
    Remove(usize),
}

#[derive(Clone)]
pub struct Shares {
    pub bounds: Bounds,
    pub guards: Guards,
    /// The one property to check; `None`: all.
    pub only: Option<&'static str>,
}

impl Model for Shares {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let Bounds {
            events,
            shares,
            removals,
            crashes,
            retries,
            refills,
        } = &self.bounds;
        for (object, events) in events.iter().enumerate() {
            if s.pushed[object] < *events {
                actions.push(Action::Push(object));
            }
            if matches!(s.objects[object].owner, Owner::Held { due: false, .. }) {
                actions.push(Action::Due(object));
            }
            if s.uncounted & 1 << object != 0 {
                actions.push(Action::Count(object));
            }
        }
        for slot in 0..SLOTS {
            // A process that has died may have sent a pop.
            if s.slots[slot].popped.is_empty() && !s.markers.is_empty() {
                actions.push(Action::Pop(slot));
            }
            if s.slots[slot].is_dead {
                actions.extend([Action::Adopt(slot), Action::Restart(slot)]);
                continue;
            }
            actions.extend((0..PREFIXES).map(|first| Action::Advance {
                slot,
                retry: false,
                first,
            }));
            if s.owned(slot).is_some() && s.retries < *retries {
                actions.extend((0..PREFIXES).map(|first| Action::Advance {
                    slot,
                    retry: true,
                    first,
                }));
            }
            if s.crashes < *crashes {
                actions.push(Action::Crash(slot));
            }
        }
        actions.extend(
            (0..shares.len())
                .filter(|at| s.operators[*at] != Operator::Over)
                .map(Action::Set),
        );
        for prefix in 0..PREFIXES {
            if s.shares[prefix].is_some() && s.removals < *removals {
                actions.push(Action::Remove(prefix));
            }
            let burst = s.shares[prefix].and_then(|share| share.burst);
            if burst.is_some_and(|burst| s.tokens[prefix] < burst) && s.refills < *refills {
                actions.push(Action::Refill(prefix));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Advance { retry: true, .. } => s.retries += 1,
            Action::Refill(_) => s.refills += 1,
            Action::Crash(_) => s.crashes += 1,
            Action::Remove(_) => s.removals += 1,
            _ => {}
        }
        self.apply(&mut s, action);
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = properties::all();
        properties.retain(|property| self.only.is_none_or(|only| only == property.name));
        properties
    }
}

impl Properties for Shares {
    fn only(self, property: &'static str) -> Self {
        Self {
            only: Some(property),
            ..self
        }
    }

    fn words(&self, _: &State, action: &Action) -> String {
        format!("{action:?}")
    }
}

impl State {
    /// Returns the object that a slot owns.
    pub fn owned(&self, slot: usize) -> Option<usize> {
        self.objects
            .iter()
            .position(|object| object.owner == Owner::Slot(slot))
    }

    /// Returns the objects that slots own, as bits.
    pub fn owned_by_slots(&self) -> u8 {
        (0..OBJECTS)
            .filter(|at| matches!(self.objects[*at].owner, Owner::Slot(_)))
            .map(|at| 1 << at)
            .sum()
    }

    /// Returns whether a share is set. In this model each share has a limit.
    pub fn is_limited(&self) -> bool {
        self.shares.iter().any(Option::is_some)
    }

    pub fn are_lists_empty(&self) -> bool {
        self.lists.iter().all(|list| list.is_empty())
    }

    /// Returns the group of an object: its longest prefix with a share.
    pub fn group_of(&self, object: usize) -> usize {
        prefixes_of(object)
            .iter()
            .copied()
            .find(|prefix| *prefix != ALL && self.shares[*prefix].is_some())
            .unwrap_or(REST)
    }

    /// Returns the prefixes whose shares limit a group, the shortest first.
    pub fn limits_of(&self, group: usize) -> impl Iterator<Item = usize> {
        // The first object of each group has the prefixes of the group.
        let shares = self.shares;
        prefixes_of(group)
            .iter()
            .rev()
            .copied()
            .filter(move |prefix| shares[*prefix].is_some())
    }
}
