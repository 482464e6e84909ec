//! Schedules: a separate model of the schedules that producers store, replace and cancel, and of
//! promotion.
//!
//! One object has two keys. A producer stores an event with a due time under a key. Two processes
//! promote at any time, and again after a lost reply. Redis' clock goes on, and may step back. A
//! promoted event is queued as a reference: the event stays under its key, where it can be replaced
//! and cancelled, until a slot takes it. The main model of the protocol shows what happens after
//! that.
use stateright::{Model, Property};

use crate::check::{Properties, explore, shortest};

const KEYS: usize = 2;
const PROCESSES: usize = 2;
/// Number of events that producers schedule.
const EVENTS: u8 = 3;
const TIME_MAX: u8 = 3;
/// Number of steps back of the clock.
const STEPS_BACK: u8 = 1;

/// The guards of the protocol. Each can be switched off.
#[derive(Clone, Copy, Debug)]
struct Guards {
    /// Event and time are stored, and removed, in one transaction.
    one_transaction: bool,
    /// The step that pushes the reference also marks the schedule as queued.
    one_step: bool,
    /// A reference counts only if its schedule was queued at the time that the reference names.
    time_in_reference: bool,
    /// Redis' clock decides what is due, not the clock of a process.
    clock_of_redis: bool,
    /// Due schedules are promoted in the order of their due times.
    order: bool,
}

const ALL: Guards = Guards {
    one_transaction: true,
    one_step: true,
    time_in_reference: true,
    clock_of_redis: true,
    order: true,
};

#[derive(Clone)]
struct Schedules {
    guards: Guards,
    /// The one property to check; `None`: all.
    only: Option<&'static str>,
}

/// The second half of a producer's write, if the write takes two steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Half {
    /// The due time of a key is still to be stored.
    Time(usize, u8),
    /// The due time of a key is still to be removed.
    NoTime(usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    now: u8,
    steps_back: u8,
    /// `OBJ:events.scheduled`: the event of each key.
    events: [Option<u8>; KEYS],
    /// `events.scheduled`: the due time of each key and, if its event is queued, the number of the
    /// reference to the event.
    times: [Option<(u8, Option<u8>)>; KEYS],
    half: Option<Half>,
    /// For each process: the schedule that it has pushed, but not marked as queued yet.
    pushed: [Option<(usize, u8)>; PROCESSES],
    /// The time that each process has seen last.
    clocks: [u8; PROCESSES],
    /// The queue: references, each with its key and its number; the oldest first.
    queue: Vec<(usize, u8)>,
    /// The number of references ever pushed. It stands for the time.
    references: u8,
    /// All events that slots have taken.
    taken: Vec<u8>,
    /// State that only the properties read: the number of scheduled events; the due time of each;
    /// the events that were replaced or cancelled before a slot took them.
    made: u8,
    due: [u8; EVENTS as usize],
    withdrawn: u8,
    was_early: bool,
    was_out_of_order: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Action {
    /// Stores a new event under a key, or replaces the event there.
    Schedule {
        key: usize,
        due: u8,
    },
    /// Replaces the event and keeps the time.
    KeepTime {
        key: usize,
    },
    Cancel {
        key: usize,
    },
    /// The second half of a producer's write.
    Half,
    /// A call for at most one schedule. A repeated call after a lost reply is another call.
    Promote {
        process: usize,
        key: usize,
    },
    /// Marks a pushed schedule as queued, in a separate step.
    Mark {
        process: usize,
    },
    /// A slot takes the next entry of the queue.
    Take,
    Tick,
    StepBack,
    /// A process looks at the time.
    Look {
        process: usize,
    },
}

impl Schedules {
    fn store(&self, s: &mut State, key: usize, time: Option<u8>) {
        let event = s.made;
        let place = &mut s.events[key];
        if let Some(before) = place.replace(event) {
            s.withdrawn |= 1 << before;
        }
        s.made += 1;
        let due = time.or(s.times[key].map(|(due, _)| due)).unwrap_or(0);
        s.due[event as usize] = due;
        match time {
            Some(due) if self.guards.one_transaction => s.times[key] = Some((due, None)),
            Some(due) => s.half = Some(Half::Time(key, due)),
            None => {}
        }
    }

    /// Returns the schedules that a process may promote next.
    fn may_promote(&self, s: &State, process: usize) -> Vec<usize> {
        let now = if self.guards.clock_of_redis {
            s.now
        } else {
            s.clocks[process]
        };
        let due: Vec<usize> = (0..KEYS)
            .filter(|&key| s.times[key].is_some_and(|(due, queued)| due <= now && queued.is_none()))
            .collect();
        let first = due.iter().filter_map(|&key| s.times[key]).min();
        due.into_iter()
            .filter(|&key| !self.guards.order || s.times[key] == first)
            .collect()
    }

    fn promote(&self, s: &mut State, process: usize, key: usize) {
        let Some(event) = s.events[key] else {
            // An entry without an event is removed.
            s.times[key] = None;
            return;
        };
        s.was_early |= s.now < s.due[event as usize];
        let waits = |other: usize| s.times[other].is_some_and(|(_, queued)| queued.is_none());
        let overtaken = |&key: &usize| {
            s.events[key].is_some_and(|other| s.due[other as usize] < s.due[event as usize])
        };
        // Of two due schedules that are stored, the earlier one comes first.
        s.was_out_of_order |= (0..KEYS)
            .filter(|&other| other != key && waits(other))
            .any(|other| overtaken(&other));
        let Some((due, _)) = s.times[key] else { return };
        s.references += 1;
        s.queue.push((key, s.references));
        if self.guards.one_step {
            s.times[key] = Some((due, Some(s.references)));
        } else {
            s.pushed[process] = Some((key, s.references));
        }
    }
}

impl Schedules {
    fn take(&self, s: &mut State) {
        let (key, number) = s.queue.remove(0);
        let counts = s.times[key].is_some_and(|(_, queued)| queued == Some(number))
            || !self.guards.time_in_reference;
        if let Some(event) = s.events[key].filter(|_| counts) {
            s.was_early |= s.now < s.due[event as usize] && s.steps_back == 0;
            s.taken.push(event);
            (s.events[key], s.times[key]) = (None, None);
        }
    }
}

impl Model for Schedules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for key in 0..KEYS {
            if s.half.is_none() && s.made < EVENTS {
                actions.extend((1..=TIME_MAX).map(|due| Action::Schedule { key, due }));
                if s.events[key].is_some() && s.times[key].is_some() {
                    actions.push(Action::KeepTime { key });
                }
            }
            if s.half.is_none() && s.events[key].is_some() {
                actions.push(Action::Cancel { key });
            }
        }
        if s.half.is_some() {
            actions.push(Action::Half);
        }
        for process in 0..PROCESSES {
            match s.pushed[process] {
                Some(_) => actions.push(Action::Mark { process }),
                None => actions.extend(
                    self.may_promote(s, process)
                        .into_iter()
                        .map(|key| Action::Promote { process, key }),
                ),
            }
            if !self.guards.clock_of_redis && s.clocks[process] != s.now {
                actions.push(Action::Look { process });
            }
        }
        if !s.queue.is_empty() {
            actions.push(Action::Take);
        }
        if s.now < TIME_MAX {
            actions.push(Action::Tick);
        }
        if s.now > 0 && s.steps_back < STEPS_BACK {
            actions.push(Action::StepBack);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Schedule { key, due } => self.store(&mut s, key, Some(due)),
            Action::KeepTime { key } => self.store(&mut s, key, None),
            Action::Cancel { key } => {
                let event = s.events[key].take()?;
                s.withdrawn |= 1 << event;
                if self.guards.one_transaction {
                    s.times[key] = None;
                } else {
                    s.half = Some(Half::NoTime(key));
                }
            }
            Action::Half => match s.half.take()? {
                Half::Time(key, due) => s.times[key] = Some((due, None)),
                Half::NoTime(key) => s.times[key] = None,
            },
            Action::Promote { process, key } => self.promote(&mut s, process, key),
            Action::Mark { process } => {
                let (key, number) = s.pushed[process].take()?;
                s.times[key] = s.times[key].map(|(due, _)| (due, Some(number)));
            }
            Action::Take => self.take(&mut s),
            Action::Tick => s.now += 1,
            Action::StepBack => {
                s.now = 0;
                s.steps_back += 1;
            }
            Action::Look { process } => s.clocks[process] = s.now,
        }
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(
                "I8 every schedule has one event and one due time",
                |_, s: &State| {
                    s.half.is_some()
                        || (0..KEYS).all(|key| s.events[key].is_some() == s.times[key].is_some())
                },
            ),
            Property::always("I4 an event is in one place", |_, s: &State| {
                (0..s.made).all(|event| s.places(event) <= 1)
            }),
            Property::always("I7 nothing is lost", |_, s: &State| {
                (0..s.made).all(|event| s.places(event) > 0 || s.withdrawn & 1 << event != 0)
            }),
            Property::always(
                "what is replaced or cancelled never comes",
                |_, s: &State| s.taken.iter().all(|event| s.withdrawn & 1 << event == 0),
            ),
            Property::always(
                "I8 a queued event has one reference that counts",
                |_, s: &State| {
                    s.pushed.iter().any(Option::is_some)
                        || (0..KEYS).all(|key| match s.times[key] {
                            Some((_, Some(number))) => s.queue.contains(&(key, number)),
                            _ => true,
                        })
                },
            ),
            Property::always("no event is early", |_, s: &State| !s.was_early),
            Property::always(
                "events come in the order of their due times",
                |_, s: &State| !s.was_out_of_order,
            ),
        ];
        properties.retain(|property| self.only.is_none_or(|only| only == property.name));
        properties
    }
}

impl State {
    /// Returns the number of places that have the event.
    fn places(&self, event: u8) -> usize {
        let stored = self
            .events
            .iter()
            .filter(|&&other| other == Some(event))
            .count();
        stored + self.taken.iter().filter(|&&other| other == event).count()
    }
}

impl Properties for Schedules {
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

/// Asserts that this property breaks without the guard that `off` turns off.
fn breaks(property: &'static str, off: impl FnOnce(&mut Guards)) {
    let mut guards = ALL;
    off(&mut guards);
    let trace = shortest(Schedules { guards, only: None }, property);
    println!("{guards:?}: {property}\n  {}", trace.join("\n  "));
    assert!(!trace.is_empty(), "`{property}` should break");
}

#[test]
fn schedules_with_all_guards() {
    let (guards, only) = (ALL, None);
    let found = explore("schedules", Schedules { guards, only }, 2);
    assert!(found.broken.is_empty(), "{:#?}", found.broken);
}

/// A producer replaces the event first, and then the time. In between the new event comes at the
/// old time. A cancelled schedule leaves a time, which a new event then gets.
#[test]
fn event_and_time_change_in_one_transaction() {
    for property in [
        "no event is early",
        "I8 every schedule has one event and one due time",
    ] {
        breaks(property, |g| g.one_transaction = false);
    }
}

/// A slot comes to the reference before the schedule is marked, and passes it over. A producer
/// replaces the event meanwhile, and the new event is marked although its time has not come.
#[test]
fn the_push_marks_the_schedule() {
    breaks("I8 a queued event has one reference that counts", |g| {
        g.one_step = false
    });
}

/// A key is replaced after its event was queued. The old reference leads to the new event, which is
/// not due yet.
#[test]
fn a_reference_says_when_its_event_was_queued() {
    breaks("no event is early", |g| g.time_in_reference = false);
}

/// Redis' clock steps back, and a process still uses the time that it saw before the step.
#[test]
fn the_clock_of_redis_decides() {
    breaks("no event is early", |g| g.clock_of_redis = false);
}

#[test]
fn the_first_due_schedule_comes_first() {
    breaks("events come in the order of their due times", |g| {
        g.order = false
    });
}
