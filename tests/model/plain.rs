//! The plain algorithm, as published, one Redis command per step. It fails: the checker finds each
//! of its known flaws.
//!
//! Workers block on `BRPOPLPUSH objects.with.events event.worker:W:object`, then call `SETNX
//! OBJ:event.worker W`. Then a script takes one event at a time, and the worker sends and commits
//! the event. If the object has no more events, the worker calls `RPOP event.worker:W:object`. A
//! restarted worker first reads its own list.
use stateright::{Model, Property};

use crate::check::{Properties, explore, shortest};
use crate::state::{Envelope, OBJECTS, Received, Short, bit, event, object_of};

const WORKERS: usize = 2;
const PROCESSES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Object {
    queue: Short,
    last: u8,
    /// The worker that owns the object, + 1.
    owner: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Worker {
    objects: Short,
    events: Short,
    id: u8,
}

/// The position of a process in the published program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
enum At {
    #[default]
    Off,
    Restart,
    Pop,
    Own(u8),
    Take(u8),
    Read(u8, u8),
    Send(Envelope),
    Commit(Envelope),
    Forget,
}

#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct State {
    objects: [Object; OBJECTS],
    workers: [Worker; WORKERS],
    markers: Short,
    next_id: u8,
    processes: [At; PROCESSES],
    received: [Received; OBJECTS],
    pushed: [u8; OBJECTS],
    faults: u8,
    broken: [bool; 4],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The reply of a pop is lost: the worker pops again.
    PopReplyLost,
    /// The reply of a take is lost: the worker takes again.
    TakeReplyLost,
    /// A crash; the worker is restarted.
    Restart,
    /// A crash; the worker never returns.
    Gone,
    /// The worker is started a second time. Its first process is not dead, it only pauses.
    Twice,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Push { object: usize },
    Step { process: usize },
    LostReply { process: usize },
    Crash { process: usize },
    Start { process: usize },
}

#[derive(Clone, Debug)]
struct Plain {
    objects: usize,
    events: u8,
    /// The worker that each process runs, as an index.
    processes: Vec<usize>,
    started: usize,
    fault: Option<Fault>,
    counting: bool,
    only: Option<&'static str>,
}

impl Default for Plain {
    fn default() -> Self {
        Self {
            objects: 1,
            events: 2,
            processes: vec![0, 1],
            started: 2,
            fault: None,
            counting: false,
            only: None,
        }
    }
}

impl Plain {
    fn step(&self, s: &mut State, process: usize) {
        let w = self.processes[process];
        let me = w as u8 + 1;
        s.processes[process] = match s.processes[process] {
            At::Off => At::Off,
            At::Pop => match s.markers.pop() {
                Some(name) => {
                    s.workers[w].objects.push(name);
                    At::Own(name - 1)
                }
                None => At::Pop,
            },
            At::Own(object) => {
                if s.objects[object as usize].owner == 0 {
                    s.objects[object as usize].owner = me;
                    At::Take(object)
                } else {
                    At::Forget
                }
            }
            At::Take(object) => match self.take(s, w, object) {
                Some(event) => At::Read(object, event),
                None => At::Forget,
            },
            At::Read(object, event) => {
                let prev = s.objects[object as usize].last;
                At::Send(Envelope {
                    id: s.workers[w].id,
                    prev,
                    object,
                    event,
                })
            }
            At::Send(envelope) => {
                receive(s, envelope);
                At::Commit(envelope)
            }
            At::Commit(envelope) => {
                s.workers[w].events.pop();
                s.workers[w].id = 0;
                s.objects[envelope.object as usize].last = envelope.id;
                At::Take(envelope.object)
            }
            At::Forget => {
                s.workers[w].objects.pop();
                At::Pop
            }
            At::Restart => self.restart(s, w),
        };
    }

    /// The script that takes an event.
    fn take(&self, s: &mut State, w: usize, object: u8) -> Option<u8> {
        let found = &mut s.objects[object as usize];
        let event = found.queue.pop();
        match event {
            Some(event) => {
                s.workers[w].events.push(event);
                s.next_id += 1;
                s.workers[w].id = s.next_id;
            }
            None => {
                s.broken[3] |= found.owner != 0 && found.owner != w as u8 + 1;
                found.owner = 0;
            }
        }
        event
    }

    fn restart(&self, s: &mut State, w: usize) -> At {
        let newest = |list: Short| (!list.is_empty()).then(|| list.get(list.len() - 1));
        let Some(name) = newest(s.workers[w].objects) else {
            return At::Pop;
        };
        let object = name - 1;
        let owner = &mut s.objects[object as usize].owner;
        if *owner == 0 {
            *owner = w as u8 + 1;
        }
        match newest(s.workers[w].events) {
            _ if *owner != w as u8 + 1 => At::Forget,
            Some(event) => At::Read(object, event),
            None => At::Take(object),
        }
    }

    /// Runs all living processes without faults to the end. Returns whether everything arrives.
    fn comes_to_rest(&self, s: &State) -> bool {
        let mut s = s.clone();
        if self.fault == Some(Fault::Restart) {
            s.processes[..self.started]
                .iter_mut()
                .filter(|at| **at == At::Off)
                .for_each(|at| *at = At::Restart);
        }
        for _ in 0..200 {
            let before = s.clone();
            (0..self.processes.len()).for_each(|process| self.step(&mut s, process));
            if s == before {
                break;
            }
        }
        let applied = |event| s.received[object_of(event)].applied & bit(event) != 0;
        s.processes.iter().all(|&at| at == At::Off) || events(&s).into_iter().all(applied)
    }
}

fn events(s: &State) -> Vec<u8> {
    (0..OBJECTS)
        .flat_map(|object| (0..s.pushed[object]).map(move |index| event(object, index)))
        .collect()
}

/// Applies the receiver's rule.
fn receive(s: &mut State, envelope: Envelope) {
    let Envelope {
        id,
        prev,
        object,
        event,
    } = envelope;
    let found = &mut s.received[object as usize];
    if id <= found.last {
        s.broken[0] |= found.applied & bit(event) == 0;
    } else if prev > found.last {
        s.broken[1] = true;
    } else {
        s.broken[0] |= (crate::state::event(object as usize, 0)..event)
            .any(|earlier| found.applied & bit(earlier) == 0);
        s.broken[2] |= event <= found.newest;
        *found = Received {
            last: id,
            applied: found.applied | bit(event),
            newest: event,
            epoch: 0,
        };
    }
}

impl Properties for Plain {
    fn only(self, property: &'static str) -> Self {
        Self {
            only: Some(property),
            ..self
        }
    }

    fn words(&self, before: &State, action: &Action) -> String {
        let who =
            |process: usize| format!("process {process} (worker {})", self.processes[process]);
        let step = |process: usize| match before.processes[process] {
            At::Off => "nothing".into(),
            At::Restart => {
                "restart: LINDEX event.worker:W:object 0, SETNX, LINDEX event.worker:W:event 0"
                    .into()
            }
            At::Pop => "BRPOPLPUSH objects.with.events event.worker:W:object".into(),
            At::Own(object) => format!("SETNX {object}:event.worker W"),
            At::Take(object) => {
                format!(
                    "script: RPOPLPUSH {object}:events event.worker:W:event, INCR; or DEL {object}:event.worker"
                )
            }
            At::Read(object, event) => {
                format!("GET event.worker:W:event.id, GET {object}:last.event.id for event {event}")
            }
            At::Send(Envelope {
                id, prev, event, ..
            }) => format!("sends event {event} as id {id}, prev {prev}"),
            At::Commit(Envelope { id, object, .. }) => {
                format!("RPOP event.worker:W:event, SET {object}:last.event.id {id}")
            }
            At::Forget => "RPOP event.worker:W:object".into(),
        };
        match *action {
            Action::Push { object } => {
                format!(
                    "a producer pushes event {} of object {object}",
                    event(object, before.pushed[object])
                )
            }
            Action::Step { process } => format!("{}: {}", who(process), step(process)),
            Action::LostReply { process } => {
                format!("{}: {}; the reply is lost", who(process), step(process))
            }
            Action::Crash { process } => format!("{} crashes", who(process)),
            Action::Start { process } => format!("{} starts", who(process)),
        }
    }
}

impl Model for Plain {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut s = State {
            faults: u8::from(self.fault.is_some()),
            ..State::default()
        };
        s.processes[..self.started].fill(At::Pop);
        vec![s]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let pushable = (0..self.objects).filter(|&object| s.pushed[object] < self.events);
        actions.extend(pushable.map(|object| Action::Push { object }));
        for process in 0..self.processes.len() {
            let at = s.processes[process];
            if at != At::Off {
                actions.push(Action::Step { process });
            }
            match (self.fault, at) {
                (Some(Fault::Restart), At::Off) if s.faults == 0 => {
                    actions.push(Action::Start { process })
                }
                (Some(Fault::Twice), At::Off) if s.faults > 0 => {
                    actions.push(Action::Start { process })
                }
                (_, At::Off) => {}
                _ if s.faults == 0 => {}
                (Some(Fault::Restart | Fault::Gone), _) => actions.push(Action::Crash { process }),
                (Some(Fault::PopReplyLost), At::Pop) => actions.push(Action::LostReply { process }),
                (Some(Fault::TakeReplyLost), At::Take(_)) => {
                    actions.push(Action::LostReply { process })
                }
                _ => {}
            }
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut next = s.clone();
        match action {
            Action::Push { object } => {
                next.objects[object]
                    .queue
                    .push(event(object, s.pushed[object]));
                next.markers.push(object as u8 + 1);
                next.pushed[object] += 1;
            }
            Action::Step { process } => self.step(&mut next, process),
            Action::LostReply { process } => {
                self.step(&mut next, process);
                next.processes[process] = s.processes[process];
                next.faults -= 1;
            }
            Action::Crash { process } => {
                next.processes[process] = At::Off;
                next.faults -= 1;
            }
            Action::Start { process } => {
                next.processes[process] = At::Restart;
                next.faults = 0;
            }
        }
        (next != *s).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("I1 every queued event is covered", |_, s: &State| {
                (0..OBJECTS).all(|at| {
                    let name = at as u8 + 1;
                    s.objects[at].queue.is_empty()
                        || s.markers.contains(name)
                        || s.workers.iter().any(|worker| worker.objects.contains(name))
                })
            }),
            Property::always("I2 an owner has the object", |_, s: &State| {
                (0..OBJECTS).all(|at| match s.objects[at].owner {
                    0 => true,
                    w => s.workers[w as usize - 1].objects.contains(at as u8 + 1),
                })
            }),
            Property::always("I3 who owns nothing has no event", |_, s: &State| {
                let owns = |w: usize, event: u8| s.objects[object_of(event)].owner == w as u8 + 1;
                (0..WORKERS).all(|w| s.workers[w].events.iter().all(|event| owns(w, event)))
            }),
            Property::always("I5 none is skipped", |_, s: &State| !s.broken[0]),
            Property::always("I5 a receiver is never early", |_, s: &State| !s.broken[1]),
            Property::always("I5 events are applied in order", |_, s: &State| {
                !s.broken[2]
            }),
            Property::always("only its owner releases an object", |_, s: &State| {
                !s.broken[3]
            }),
            Property::always("L1 nothing waits for ever", |plain: &Self, s: &State| {
                plain.comes_to_rest(s)
            }),
        ];
        if self.counting {
            properties.push(Property::always(
                "I1 in its counting form",
                |_, s: &State| {
                    (0..OBJECTS).all(|at| {
                        let count =
                            |list: Short| list.iter().filter(|&name| name == at as u8 + 1).count();
                        let workers: usize =
                            s.workers.iter().map(|worker| count(worker.objects)).sum();
                        s.objects[at].queue.len() as usize <= count(s.markers) + workers
                    })
                },
            ));
        }
        properties.retain(|property| self.only.is_none_or(|only| only == property.name));
        properties
    }
}

/// Asserts that the checker finds the flaw, and prints the shortest trace.
fn fails(flaw: &str, plain: Plain, property: &'static str) {
    let trace = shortest(plain, property);
    println!(
        "the plain algorithm, {flaw}, breaks `{property}`:\n  {}\n",
        trace.join("\n  ")
    );
    assert!(!trace.is_empty(), "{flaw}: `{property}` should break");
}

/// If workers only crash and come back, the algorithm keeps its promise.
#[test]
fn holds_without_its_flaws() {
    let sound = Plain {
        objects: 2,
        ..Plain::default()
    };
    assert!(
        explore("the plain algorithm without faults", sound.clone(), 1)
            .broken
            .is_empty()
    );
    let restarts = Plain {
        fault: Some(Fault::Restart),
        ..sound
    };
    assert!(
        explore("the plain algorithm with a restart", restarts, 1)
            .broken
            .is_empty()
    );
}

/// Every queued event is covered, but the published invariant, which counts markers, does not hold.
#[test]
fn counts_too_much() {
    let plain = Plain {
        events: 3,
        counting: true,
        ..Plain::default()
    };
    fails("without any fault", plain, "I1 in its counting form");
}

/// `RPOP event.worker:W:object` takes the oldest name. After a lost reply, this may not be the name
/// of the finished object.
#[test]
fn pops_its_object_blindly() {
    let plain = Plain {
        objects: 2,
        events: 1,
        fault: Some(Fault::PopReplyLost),
        ..Plain::default()
    };
    fails(
        "popping blindly after a lost reply",
        plain.clone(),
        "I1 every queued event is covered",
    );
    fails(
        "popping blindly after a lost reply",
        plain,
        "L1 nothing waits for ever",
    );
}

/// `DEL OBJ:event.worker` at the end of the queue releases an object that now belongs to another
/// worker.
#[test]
fn releases_what_it_does_not_own() {
    let plain = Plain {
        events: 3,
        processes: vec![0, 1, 0],
        fault: Some(Fault::Twice),
        ..Plain::default()
    };
    fails(
        "releasing without a fence",
        plain.clone(),
        "only its owner releases an object",
    );
    fails(
        "releasing without a fence",
        plain.clone(),
        "I3 who owns nothing has no event",
    );
    fails("releasing without a fence", plain, "I5 none is skipped");
}

/// A take whose reply was lost is repeated, and takes the next event. The first event is never
/// sent.
#[test]
fn takes_twice() {
    let plain = Plain {
        fault: Some(Fault::TakeReplyLost),
        ..Plain::default()
    };
    fails(
        "taking again after a lost reply",
        plain,
        "I5 none is skipped",
    );
}

/// The objects of a worker that never returns wait for ever.
#[test]
fn knows_no_takeover() {
    let plain = Plain {
        fault: Some(Fault::Gone),
        ..Plain::default()
    };
    fails(
        "with a worker that never returns",
        plain,
        "L1 nothing waits for ever",
    );
}
