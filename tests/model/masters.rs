//! Two masters at once: a separate model, of ids, epochs and the wait for replicas.
//!
//! There are one object and two servers. One server is the master, the other one has a copy of an
//! earlier state of the master. A failover makes the second server a master too, with a higher
//! epoch. The old master goes on until it hears of the failover. A process has two connections,
//! each to any master that it accepts.
//!
//! Leases, holds and everything else are in the main model of the protocol. This model leaves them
//! out. So any process may get the batch in flight, under its id.
use stateright::{Model, Property};

use crate::check::{Properties, explore, shortest};

const PROCESSES: usize = 2;
/// The time at the start. Ids begin far below it, as after `--first-id 1`. Each id takes one unit
/// of time.
const START: u8 = 20;

/// The guards of the protocol. Each can be switched off.
#[derive(Clone, Copy, Debug)]
struct Guards {
    /// A process refuses a master with an epoch below the highest one seen.
    epoch: bool,
    /// A process closes its other connections when it meets a higher epoch.
    close: bool,
    /// A batch reaches the receiver only after the replica has it.
    wait_before_delivery: bool,
    /// An emit is acknowledged only after the replica has it.
    wait_for_emits: bool,
}

const ALL: Guards = Guards {
    epoch: true,
    close: true,
    wait_before_delivery: true,
    wait_for_emits: true,
};
const WITHOUT_WAIT: Guards = Guards {
    wait_before_delivery: false,
    wait_for_emits: false,
    ..ALL
};

#[derive(Clone)]
struct Masters {
    guards: Guards,
    /// Number of connections of each process.
    conns: [usize; PROCESSES],
    /// The one property to check; `None`: all.
    only: Option<&'static str>,
}

/// Number of events.
const EVENTS: u8 = 3;

/// The keys of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Data {
    counter: u8,
    /// The epoch of the master that `connect` has recorded. It stands for the replication id.
    recorded: u8,
    queue: Vec<u8>,
    /// The batch in flight: id and event.
    batch: Option<(u8, u8)>,
    /// Committed events, as bits.
    done: u8,
}

impl Data {
    /// Returns the events that are queued, in flight or committed, as bits.
    fn events(&self) -> u8 {
        let queued = self
            .queue
            .iter()
            .copied()
            .chain(self.batch.map(|(_, event)| event));
        queued.fold(self.done, |all, event| all | 1 << event)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Server {
    data: Data,
    /// The epoch of this server as a master; 0: the server is a replica.
    epoch: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Process {
    /// For each connection: the server, and the epoch that it had when the connection was made.
    conns: [Option<(usize, u8)>; 2],
    epoch: u8,
    highest: u8,
    hand: Option<Hand>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hand {
    server: usize,
    epoch: u8,
    id: u8,
    event: u8,
    waited: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    servers: [Server; 2],
    processes: [Process; PROCESSES],
    time: u8,
    pushed: u8,
    failovers: u8,
    acknowledged: u8,
    /// Events that only a replaced master accepted, as bits. They are lost, or come in any order.
    doomed: u8,
    /// The receiver: highest id applied, newest event applied, applied events.
    last: u8,
    newest: u8,
    applied: u8,
    /// Ids that a receiver has seen, each with its event.
    seen: Vec<(u8, u8)>,
    reused: bool,
    reordered: bool,
    applied_twice: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Action {
    Emit(usize),
    /// The replica gets the present state of its master.
    Replicate,
    /// The replica becomes the master. The old master goes on.
    FailOver,
    /// The old master becomes a replica of the new one.
    Demote,
    Connect {
        process: usize,
        conn: usize,
        server: usize,
    },
    Take {
        process: usize,
        conn: usize,
    },
    /// The wait of a process ends: the replica has the batch that the process has in hand.
    Wait(usize),
    Deliver(usize),
    Commit {
        process: usize,
        conn: usize,
    },
}

impl State {
    fn newest_epoch(&self) -> u8 {
        self.servers
            .iter()
            .map(|server| server.epoch)
            .max()
            .unwrap_or(0)
    }

    /// Returns the master that the Sentinels name.
    fn master(&self) -> usize {
        usize::from(self.servers[1].epoch > self.servers[0].epoch)
    }

    /// Returns a counter above every id given before: the time, or beyond a known id.
    fn jump(&self, known: u8) -> u8 {
        if self.time > known {
            self.time
        } else {
            known + 30
        }
    }

    /// Returns whether the connection still leads to the same master.
    fn is_open(&self, (server, epoch): (usize, u8)) -> bool {
        self.servers[server].epoch == epoch
    }

    fn deliver(&mut self, Hand { id, event, .. }: Hand) {
        if self
            .seen
            .iter()
            .any(|&(other, its)| other == id && its != event)
        {
            self.reused = true;
        }
        if !self.seen.contains(&(id, event)) {
            self.seen.push((id, event));
            self.seen.sort_unstable();
        }
        if id > self.last {
            // Redis has lost the first delivery, and the event comes again under another id.
            let again = self.applied & (1 << event) != 0;
            let counts = self.doomed & (1 << event) == 0 && !again;
            self.reordered |= counts && event < self.newest;
            self.applied_twice |= again;
            self.newest = if counts { event } else { self.newest };
            self.last = id;
            self.applied |= 1 << event;
        }
    }
}

impl Model for Masters {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            time: START,
            ..State::default()
        };
        state.servers[0].epoch = 1;
        state.servers[0].data.recorded = 1;
        state.servers[1].data = state.servers[0].data.clone();
        vec![state]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let master = s.master();
        let masters: Vec<usize> = (0..2)
            .filter(|&server| s.servers[server].epoch > 0)
            .collect();
        if s.pushed < EVENTS {
            actions.extend(masters.iter().map(|&server| Action::Emit(server)));
        }
        if masters.len() == 1 {
            if s.servers[0].data != s.servers[1].data {
                actions.push(Action::Replicate);
            }
            if s.failovers < 1 {
                actions.push(Action::FailOver);
            }
        } else {
            actions.push(Action::Demote);
        }
        for process in 0..PROCESSES {
            let found = &s.processes[process];
            for conn in 0..self.conns[process] {
                for &server in &masters {
                    let epoch = s.servers[server].epoch;
                    if found.conns[conn] != Some((server, epoch))
                        && (!self.guards.epoch || epoch >= found.epoch)
                    {
                        actions.push(Action::Connect {
                            process,
                            conn,
                            server,
                        });
                    }
                }
                if found.conns[conn].is_some_and(|open| s.is_open(open)) {
                    actions.push(Action::Take { process, conn });
                    if found.hand.is_some() {
                        actions.push(Action::Commit { process, conn });
                    }
                }
            }
            let Some(hand) = found.hand else { continue };
            let has_replica = masters.len() == 1
                && hand.server == master
                && hand.epoch == s.servers[master].epoch;
            if !hand.waited
                && has_replica
                && s.servers[1 - master].data.batch == Some((hand.id, hand.event))
            {
                actions.push(Action::Wait(process));
            }
            if hand.waited || !self.guards.wait_before_delivery {
                actions.push(Action::Deliver(process));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Emit(server) => {
                s.pushed += 1;
                let event = s.pushed;
                s.servers[server].data.queue.push(event);
                if server != s.master() {
                    s.doomed |= 1 << event;
                }
                if !self.guards.wait_for_emits {
                    s.acknowledged |= 1 << event;
                }
            }
            Action::Replicate => {
                let master = s.master();
                s.servers[1 - master].data = s.servers[master].data.clone();
                s.acknowledged |= s.servers[master].data.events();
            }
            Action::FailOver => {
                let (other, epoch) = (1 - s.master(), s.newest_epoch() + 1);
                s.servers[other].epoch = epoch;
                s.failovers += 1;
                s.time += 1;
            }
            Action::Demote => {
                let master = s.master();
                s.servers[1 - master] = Server {
                    data: s.servers[master].data.clone(),
                    epoch: 0,
                };
            }
            Action::Connect {
                process,
                conn,
                server,
            } => {
                let (epoch, highest) = (s.servers[server].epoch, s.processes[process].highest);
                let counter = s.servers[server].data.counter;
                let jumped = s.jump(counter.max(highest));
                let data = &mut s.servers[server].data;
                if data.recorded != epoch || counter < highest {
                    data.counter = jumped;
                }
                data.recorded = epoch;
                let counter = data.counter;
                let found = &mut s.processes[process];
                if epoch > found.epoch && self.guards.close {
                    found.conns = [None; 2];
                }
                found.conns[conn] = Some((server, epoch));
                (found.epoch, found.highest) = (found.epoch.max(epoch), highest.max(counter));
            }
            Action::Take { process, conn } => {
                let (server, epoch) = s.processes[process].conns[conn]?;
                let highest = s.processes[process].highest;
                let jumped = s.jump(s.servers[server].data.counter.max(highest));
                let data = &mut s.servers[server].data;
                if data.batch.is_none() && !data.queue.is_empty() {
                    if data.counter < highest {
                        data.counter = jumped;
                    }
                    data.counter += 1;
                    data.batch = Some((data.counter, data.queue.remove(0)));
                    s.time += 1;
                }
                let (id, event) = s.servers[server].data.batch?;
                let found = &mut s.processes[process];
                found.highest = found.highest.max(id);
                found.hand = Some(Hand {
                    server,
                    epoch,
                    id,
                    event,
                    waited: false,
                });
            }
            Action::Wait(process) => s.processes[process].hand.as_mut()?.waited = true,
            Action::Deliver(process) => {
                let hand = s.processes[process].hand?;
                s.deliver(hand);
            }
            Action::Commit { process, conn } => {
                let (server, _) = s.processes[process].conns[conn]?;
                let hand = s.processes[process].hand.take()?;
                // A process commits only an event that it has delivered.
                if !s.seen.contains(&(hand.id, hand.event)) {
                    return None;
                }
                let data = &mut s.servers[server].data;
                if data.batch == Some((hand.id, hand.event)) {
                    data.batch = None;
                    data.done |= 1 << hand.event;
                }
            }
        }
        (s != *before).then_some(s)
    }

    fn within_boundary(&self, s: &State) -> bool {
        s.servers.iter().all(|server| server.data.counter < 200)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("no two events share an id", |_, s: &State| !s.reused),
            Property::always("no older event after a newer one", |_, s: &State| {
                !s.reordered
            }),
            Property::always("no event is applied twice", |model: &Self, s: &State| {
                !model.guards.wait_for_emits || !s.applied_twice
            }),
            Property::always(
                "no acknowledged event is lost",
                |model: &Self, s: &State| {
                    let present = s.servers[s.master()].data.events();
                    model.is_plain() || s.acknowledged & !(present | s.applied) == 0
                },
            ),
        ];
        properties.retain(|property| self.only.is_none_or(|only| only == property.name));
        properties
    }
}

impl Masters {
    /// Returns whether neither emits nor deliveries wait for the replica. Then events may be lost.
    fn is_plain(&self) -> bool {
        !self.guards.wait_before_delivery && !self.guards.wait_for_emits
    }
}

impl Properties for Masters {
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

fn masters(guards: Guards, conns: [usize; PROCESSES]) -> Masters {
    Masters {
        guards,
        conns,
        only: None,
    }
}

/// Asserts that nothing breaks.
fn holds(guards: Guards, conns: [usize; PROCESSES]) {
    let found = explore(&format!("{guards:?}"), masters(guards, conns), 2);
    assert!(found.broken.is_empty(), "{:#?}", found.broken);
}

/// Asserts that this property breaks if `off` turns one of these guards off.
fn breaks(
    mut guards: Guards,
    conns: [usize; PROCESSES],
    property: &'static str,
    off: impl FnOnce(&mut Guards),
) {
    off(&mut guards);
    let trace = shortest(masters(guards, conns), property);
    println!("{guards:?}: {property}\n  {}", trace.join("\n  "));
    assert!(!trace.is_empty(), "`{property}` should break");
}

#[test]
fn with_all_guards_nothing_breaks() {
    holds(ALL, [2, 1]);
}

/// Without a wait events may be lost, but ids and order hold.
#[test]
fn without_a_wait_ids_and_order_hold() {
    holds(WITHOUT_WAIT, [1, 1]);
}

/// A process comes back to the old master with an id of the new master. By then the counters of
/// both masters have jumped to the time.
#[test]
fn epochs_are_needed() {
    breaks(WITHOUT_WAIT, [1, 1], "no two events share an id", |g| {
        g.epoch = false
    });
}

/// A connection to the old master stays open, and the next call on it names an id of the new
/// master. So the counter of the old master jumps.
#[test]
fn old_connections_must_be_closed() {
    breaks(WITHOUT_WAIT, [2, 1], "no two events share an id", |g| {
        g.close = false
    });
}

/// The event survives the failover, but its id does not. Under another id the receiver takes it for
/// a new event.
#[test]
fn the_wait_before_delivery_is_needed() {
    breaks(ALL, [1, 1], "no event is applied twice", |g| {
        g.wait_before_delivery = false
    });
}

#[test]
fn the_wait_for_emits_is_needed() {
    breaks(ALL, [1, 1], "no acknowledged event is lost", |g| {
        g.wait_for_emits = false
    });
}
