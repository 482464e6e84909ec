//! The state of a schedule apart from Redis: the processes and their tokens, earlier results and
//! calls, and the next event. A [`Step`] is possible in every state, so that a failing schedule can
//! be shortened. [`World::apply`] turns a step into a [`Call`].

mod step;

use std::collections::BTreeMap;

use super::advance::{Advance, Choice, Reported};
use super::reference::{
    Attach, Broken, Emits, Event, FAR, Finish, Key, NAMES, Name, Numbers, Reference, Reply, Sent,
};
use super::rules::{KINDS, SELECTORS};
use super::schedules::SCHEDULE_KEYS;
use super::shares::{ALL, CLASSES, LIMITS, PREFIXES, Share, WEIGHTS};

pub use step::*;

/// Object names, most of which look like other keys.
pub const OBJECTS: [&[u8]; 6] = [
    b"a",
    b"b",
    b"a:events",
    b"event.worker:p.0",
    b"\xff{}\0",
    b"held",
];

/// Returns the name of an object.
fn named(at: usize) -> Name {
    Name::from_static(OBJECTS[at])
}

/// Time to live of the last id of a released object, in a call that lets it expire.
const FORGET_MS: u64 = 3_600_000;
const LEASES_MS: [u64; 2] = [3_600_000, 7_200_000];
const CALLS_KEPT: usize = 12;
const TOLD_KEPT: usize = 40;

#[derive(Debug, Clone, Default)]
struct Process {
    token: String,
    older: String,
    slots: usize,
    from_markers: bool,
}

#[derive(Debug, Clone, Default)]
pub struct World {
    pub state: Reference,
    processes: BTreeMap<&'static str, Process>,
    reported: Vec<(&'static str, usize, Reported)>,
    calls: Vec<Call>,
    events: u32,
    tokens: u32,
}

impl World {
    /// Returns a world whose first id is 1.
    pub fn begin() -> Self {
        let mut world = Self::default();
        world.state.counter = Some(0);
        world
    }

    /// Makes the step in the reference. Returns the broken key, if any, the call, and the expected
    /// reply.
    pub fn apply(&mut self, step: &Step) -> (Option<Broken>, Call, Reply) {
        self.state.now += 1;
        let (broken, step) = match step {
            Step::Broken(broken, step) => (Some(*broken), &**step),
            step => (None, step),
        };
        let call = self.call(step);
        self.state.broken = broken;
        let reply = self.make(&call);
        self.state.broken = None;
        self.took_place(&call, &reply);
        (broken, call, reply)
    }

    fn call(&mut self, step: &Step) -> Call {
        match step {
            Step::Emit(pushes) => {
                let pushes = pushes.iter();
                Call::Emit(
                    pushes
                        .map(|(at, lens)| (named(*at), self.payloads(lens)))
                        .collect(),
                )
            }
            // All times of marks have the same length, so the order of their texts is the order of
            // the times.
            Step::Mark(is_known) => Call::Mark(1_700_000_000_000 + self.state.now, *is_known),
            Step::Marker(at) => Call::Marker(at.map_or(Name::new(), named)),
            Step::Schedule(at, key, is_due, time, len, mode) => Call::Schedule {
                object: named(*at),
                key: SCHEDULE_KEYS[*key],
                due: if *is_due {
                    u64::from(*time)
                } else {
                    FAR + u64::from(*time)
                },
                event: self.payload(*len),
                mode: *mode,
            },
            Step::Cancel(at, key) => Call::Cancel(named(*at), SCHEDULE_KEYS[*key]),
            Step::CancelTaken(at, key) => Call::CancelTaken(named(*at), SCHEDULE_KEYS[*key]),
            Step::CancelAs(at, key) => Call::CancelAs(named(*at), SCHEDULE_KEYS[*key]),
            Step::Promote(events, bytes) => Call::Promote {
                events: *events,
                bytes: *bytes,
            },
            Step::Pop(name, slot) => Call::Pop(format!("{}.{slot}", NAMES[*name])),
            Step::Advance(name, Token::Mine, bounds, choices) => match self.alive(*name) {
                Some(name) => self.advance(name, Token::Mine, *bounds, choices),
                None => self.attach(AttachStep {
                    name: *name,
                    slots: 3,
                    again: false,
                    displace: None,
                    before: false,
                    long: true,
                    crashes_max: 5,
                    room: 0,
                }),
            },
            Step::Advance(name, token, bounds, choices) => {
                self.advance(NAMES[*name], *token, *bounds, choices)
            }
            Step::Attach(attach) => self.attach(*attach),
            Step::Renew(name, token, long, slots) => Call::Renew {
                name: NAMES[*name],
                token: self.token(NAMES[*name], *token),
                lease_ms: LEASES_MS[usize::from(*long)],
                slots: *slots,
            },
            Step::Adopt(own, crashes_max) => Call::Adopt {
                own: NAMES[*own],
                crashes_max: *crashes_max,
            },
            Step::Detach(name, token) => Call::Detach {
                name: NAMES[*name],
                token: self.token(NAMES[*name], *token),
            },
            Step::Finish(name, token, slot, finished, wrong) => {
                let (name, slot, object, mut tag) = self.in_hand(*name, *slot);
                let worker = self.state.worker(&format!("{name}.{slot}")).clone();
                let finished = finished.as_ref().map(|(at, which, emits)| {
                    let id = tag.first + u64::from(*at) % worker.batch.len().max(1) as u64;
                    let (field, emit_field) = [
                        ("handler:a", "emit:a"),
                        ("handler:b", "emit:b"),
                        ("once:b", ""),
                    ][usize::from(*which)];
                    let emits = emits.iter();
                    let events: Vec<_> = emits
                        .map(|(at, len)| (named(*at), self.payload(*len)))
                        .collect();
                    let emits = (*which < 2 && !events.is_empty()).then(|| {
                        let place = 1 - usize::from(*which);
                        (emit_field, Emits { place, events })
                    });
                    (id, field, emits)
                });
                tag.handouts += u32::from(*wrong);
                Call::Finish(Finish {
                    name,
                    token: self.token(name, *token),
                    slot,
                    object,
                    tag,
                    finished,
                })
            }
            Step::Sent(name, token, slot, request, is_over, wrong) => {
                let (name, slot, object, mut tag) = self.in_hand(*name, *slot);
                tag.handouts += u32::from(*wrong);
                let (token, request) = (self.token(name, *token), REQUESTS[*request]);
                let highest = self.state.highest;
                // Workers hold an object with an invalid name, so they send no request of it.
                let is_over = *is_over || std::str::from_utf8(&object).is_err();
                Call::Sent(Sent {
                    name,
                    token,
                    slot,
                    object,
                    tag,
                    request,
                    is_over,
                    highest,
                })
            }
            Step::Connect(id, highest, first, log) => {
                let counter = self.state.counter.unwrap_or(0);
                let replication_id = ["", "one", "two"][usize::from(*id)];
                let highest = [0, counter, counter + 5][usize::from(*highest)];
                let first_id = [0, counter, counter + 10][usize::from(*first)];
                Call::Connect {
                    replication_id,
                    highest,
                    first_id,
                    log: *log,
                }
            }
            Step::Expire(name) => Call::Expire(NAMES[*name]),
            Step::Day(name) => Call::Day(NAMES[*name]),
            Step::Lose(evicted) => {
                Call::Lose((!evicted).then_some(self.state.counter.unwrap_or(0) / 2))
            }
            Step::Release(at) => Call::Release(vec![named(*at)]),
            Step::ReleaseAll => Call::Release((0..OBJECTS.len()).map(named).collect()),
            Step::Forget(all) => Call::Forget(all.iter().map(|at| named(*at)).collect()),
            Step::ForgetAs(at) => Call::ForgetAs(named(*at)),
            Step::Fade(at) => Call::Fade(named(*at)),
            Step::Settle(retry, chosen) => {
                let serials = chosen
                    .iter()
                    .map(|at| u64::from(*at) % (self.state.buried + 1) + 1)
                    .collect();
                Call::Settle {
                    retry: *retry,
                    serials,
                }
            }
            Step::SetFree(at) => {
                // Usually chooses a paused object, if there is one.
                let paused = &self.state.paused;
                Call::SetFree(match paused.iter().nth(at % paused.len().max(1)) {
                    Some(name) if at % 3 < 2 => name.clone(),
                    _ => named(*at),
                })
            }
            Step::Skip(at, right) => {
                // Usually chooses an object with a held batch, if there is one.
                let has_batch = |name: &&Name| {
                    let held = self.state.objects[*name].held.right();
                    held.is_some_and(|batch| !batch.is_empty())
                };
                let held: Vec<&Name> = self.state.due.keys().filter(has_batch).collect();
                let object = match held.get(at % held.len().max(1)) {
                    Some(name) if at % 3 < 2 => (*name).clone(),
                    _ => named(*at),
                };
                let first = Numbers::of_held(&self.state.object(&object).held_id)
                    .map_or(1, |numbers| numbers.first);
                Call::Skip(
                    object,
                    right.map(|right| if right { first } else { first + 1 }),
                )
            }
            Step::SetRule(kind, selector, ends) => Call::Rule(
                KINDS[*kind],
                Name::from_static(SELECTORS[*selector]),
                Some(*ends),
            ),
            Step::LiftRule(at) => {
                let rules = &self.state.rules;
                let (kind, selector) = match rules.keys().nth(usize::from(*at) % (rules.len() + 1))
                {
                    Some(field) => (
                        KINDS[usize::from(field.starts_with(b"block"))],
                        field.slice("pause ".len()..),
                    ),
                    None => (KINDS[0], Name::from_static(SELECTORS[0])),
                };
                Call::Rule(kind, selector, None)
            }
            Step::SetShare(prefix, weight, class, in_flight, burst) => {
                let prefix = PREFIXES[*prefix];
                let is_all = prefix == ALL;
                let (weight, class) = (
                    WEIGHTS[*weight].filter(|_| !is_all),
                    CLASSES[*class].filter(|_| !is_all),
                );
                // The share of all objects has a limit.
                let in_flight = LIMITS[*in_flight].or(is_all.then_some(3));
                let share = Share {
                    weight,
                    class,
                    in_flight,
                    burst: LIMITS[*burst],
                };
                Call::Share(Name::from_static(prefix), Some(share))
            }
            Step::CountInHand => Call::CountInHand,
            Step::Look => Call::Look,
            Step::RemoveShare(at) => {
                let shares = &self.state.shares;
                let prefix = shares.keys().nth(usize::from(*at) % (shares.len() + 1));
                let prefix = prefix.cloned();
                Call::Share(prefix.unwrap_or(Name::from_static(PREFIXES[0])), None)
            }
            Step::EndRule(at) => {
                let rules = self.state.rules.iter();
                let ending = rules.filter(|(_, rule)| rule.end.is_some() && !rule.lifted);
                let ending: Vec<&Name> = ending.map(|(field, _)| field).collect();
                match ending.get(usize::from(*at) % ending.len().max(1)) {
                    Some(field) => Call::EndRule((*field).clone()),
                    None => Call::Marker(Name::new()),
                }
            }
            // The owner key of an owned object is not broken, because the protocol does not define
            // the fate of its batch in this case.
            Step::Wrong(at, Part::Owner) if self.is_owned(OBJECTS[*at]) => Call::Heal(named(*at)),
            Step::Wrong(at, part) => Call::Wrong(named(*at), *part),
            Step::Heal(at) => Call::Heal(named(*at)),
            Step::Late(at) if !self.calls.is_empty() => {
                self.calls[usize::from(*at) % self.calls.len()].clone()
            }
            Step::Late(_) => Call::Marker(Name::new()),
            Step::Broken(_, step) => self.call(step),
        }
    }

    fn make(&mut self, call: &Call) -> Reply {
        let state = &mut self.state;
        match call {
            Call::Emit(pushes) => {
                pushes
                    .iter()
                    .for_each(|(object, events)| drop(state.emit(object, events)));
                Reply::Done
            }
            Call::Marker(object) => {
                state.markers.insert(0, object.clone());
                Reply::Done
            }
            Call::Mark(ms, is_known) => state.mark(*ms, *is_known),
            Call::Schedule {
                object,
                key,
                due,
                event,
                mode,
            } => state.schedule(object, key, *due, event, *mode),
            Call::Cancel(object, key) => state.cancel(object, key),
            Call::CancelTaken(object, key) => state.cancel_taken(object, key),
            Call::CancelAs(object, key) => state.cancel_as(object, key),
            Call::Promote { events, bytes } => state.promote(*events, *bytes),
            Call::Pop(w) => state.pop(w),
            Call::Advance(args) => state.advance(args),
            Call::Attach(args) => state.attach(args),
            Call::Renew {
                name,
                token,
                lease_ms,
                slots,
            } => state.renew(name, token, *lease_ms, *slots),
            Call::Adopt { own, crashes_max } => state.adopt(own, *crashes_max),
            Call::Detach { name, token } => state.detach(name, token),
            Call::Finish(args) => state.finish(args),
            Call::Sent(args) => state.sent(args),
            Call::Connect {
                replication_id,
                highest,
                first_id,
                log,
            } => state.connect(replication_id, *highest, *first_id, *log),
            Call::Expire(name) => {
                state.leases.remove(name);
                Reply::Done
            }
            Call::Lose(counter) => {
                self.state.counter = *counter;
                Reply::Done
            }
            Call::Day(name) => {
                state
                    .registry
                    .iter_mut()
                    .filter(|(other, _)| other == name)
                    .for_each(|(_, last)| last.at = None);
                Reply::Done
            }
            Call::Release(names) => {
                names.iter().for_each(|name| drop(state.release(name)));
                Reply::Done
            }
            Call::Forget(names) => state.forget(names),
            Call::ForgetAs(name) => state.forget_as(name),
            Call::Fade(name) => {
                let object = state.object(name);
                if object.fades.take().is_some() {
                    object.last = Key::default();
                }
                Reply::Done
            }
            Call::Settle { retry, serials } => state.settle(*retry, serials),
            Call::SetFree(name) => state.set_free(name),
            Call::Skip(name, expected) => state.skip(name, *expected),
            Call::Rule(kind, selector, set) => state.rule(kind, selector, *set),
            Call::Share(prefix, share) => state.share(prefix, *share),
            Call::CountInHand => state.count_in_hand(),
            Call::Look => {
                state.blocked.values_mut().for_each(|is_due| *is_due = true);
                Reply::Done
            }
            Call::EndRule(field) => {
                if let Some(rule) = state.rules.get_mut(field) {
                    rule.end = Some(1);
                }
                Reply::Done
            }
            Call::Wrong(name, part) => {
                let object = state.object(name);
                if matches!(part, Part::Last | Part::LastText) {
                    object.fades = None;
                }
                match part {
                    Part::Queue => object.queue = Key::Wrong,
                    Part::Last => object.last = Key::Wrong,
                    Part::LastText => object.last = Key::Right(Some("1e5".to_owned())),
                    Part::Owner => object.owner = Key::Wrong,
                    Part::Held => object.held = Key::Wrong,
                    Part::HeldId => object.held_id = Key::Wrong,
                    Part::Errors => object.errors = Key::Wrong,
                }
                Reply::Done
            }
            Call::Heal(name) => {
                let object = state.object(name);
                if object.last_id().is_none() {
                    (object.last, object.fades) = (Key::default(), None);
                }
                heal(&mut object.queue);
                heal(&mut object.held);
                heal(&mut object.held_id);
                heal(&mut object.errors);
                Reply::Done
            }
        }
    }

    fn took_place(&mut self, call: &Call, reply: &Reply) {
        match (call, reply) {
            (Call::Attach(args), Reply::Attached { .. }) => {
                let process = self.processes.entry(args.name).or_default();
                if process.token != args.token {
                    process.older = std::mem::replace(&mut process.token, args.token.clone());
                }
                process.slots = args.slots;
            }
            (Call::Advance(args), Reply::Advanced(advanced)) => {
                self.processes.entry(args.name).or_default().from_markers = !advanced.from_held;
                self.reported.extend(
                    args.slots
                        .iter()
                        .filter_map(|(slot, reported)| Some((args.name, *slot, reported.clone()?))),
                );
                self.reported
                    .drain(..self.reported.len().saturating_sub(TOLD_KEPT));
            }
            _ => {}
        }
        if call.is_of_script() {
            self.calls.push(call.clone());
            self.calls
                .drain(..self.calls.len().saturating_sub(CALLS_KEPT));
        }
    }

    /// Returns a process, a slot of it, and the object and the tag of the slot's batch. Chooses a slot
    /// with a batch, if there is one.
    fn in_hand(&mut self, name: usize, slot: usize) -> (&'static str, usize, Name, Numbers) {
        let name = self.alive(name).unwrap_or(NAMES[name]);
        let slots: Vec<usize> = (0..3)
            .filter(|n| self.state.worker(&format!("{name}.{n}")).tag.is_some())
            .collect();
        let slot = slots
            .get(slot % slots.len().max(1))
            .copied()
            .unwrap_or(slot);
        let w = format!("{name}.{slot}");
        let worker = self.state.worker(&w).clone();
        let owned = self.owned(&w).unwrap_or(named(0));
        let tag = worker
            .tag
            .as_deref()
            .map_or(Numbers::of(1), Numbers::of_tag);
        (name, slot, owned, tag)
    }

    /// Returns a new event of this length. No two events are equal.
    fn payload(&mut self, len: u16) -> Event {
        self.events += 1;
        let mut text = self.events.to_string().into_bytes();
        text.resize(text.len().max(usize::from(len)), b' ');
        text.into()
    }

    fn payloads(&mut self, lens: &[u16]) -> Vec<Event> {
        lens.iter().map(|len| self.payload(*len)).collect()
    }

    fn process(&self, name: &str) -> Process {
        self.processes.get(name).cloned().unwrap_or_default()
    }

    fn token(&self, name: &str, which: Token) -> String {
        let token = match which {
            Token::Mine | Token::Last => self.process(name).token,
            Token::Older => self.process(name).older,
            Token::Others => self.process(NAMES[usize::from(name == NAMES[0])]).token,
        };
        if token.is_empty() {
            "token-none".to_owned()
        } else {
            token
        }
    }

    fn attach(&mut self, step: AttachStep) -> Call {
        let name = NAMES[step.name];
        let process = self.process(name);
        let token = if step.again && !process.token.is_empty() {
            process.token.clone()
        } else {
            self.tokens += 1;
            format!("token-{:04}", self.tokens)
        };
        let lease = self.state.leases.get(name);
        let lease = lease.map(|lease| lease.text()).unwrap_or_default();
        let displace = match step.displace {
            Some(true) => lease,
            Some(false) => format!("{} other 2 2", process.older),
            None => String::new(),
        };
        Call::Attach(Attach {
            name,
            token,
            holder: if step.long { "host 1 1" } else { "host 2 2" },
            lease_ms: LEASES_MS[usize::from(step.long)],
            slots: step.slots,
            displace,
            before: if step.before {
                process.token
            } else {
                String::new()
            },
            crashes_max: step.crashes_max,
            room: room(step.room),
        })
    }

    /// Returns the first object in the list of this slot that the slot owns.
    fn owned(&self, w: &str) -> Option<Name> {
        let mut objects = self.state.workers.get(w)?.objects.iter();
        let own = objects.find(|object| self.state.owner(object).as_deref() == Some(w));
        own.cloned()
    }

    fn is_owned(&self, object: &'static [u8]) -> bool {
        self.state
            .owner(&Name::from_static(object))
            .is_some_and(|owner| owner != "held")
    }

    /// Returns this worker name if its last process has the lease, or else the next such name.
    fn alive(&self, name: usize) -> Option<&'static str> {
        let alive = |name: &&str| {
            let lease = self.state.leases.get(*name);
            lease.is_some_and(|lease| lease.token == self.process(name).token)
        };
        let mut names = NAMES.into_iter().cycle().skip(name).take(NAMES.len());
        names.find(alive)
    }

    fn advance(
        &mut self,
        name: &'static str,
        token: Token,
        bounds: Bounds,
        choices: &[Choice; 3],
    ) -> Call {
        let process = self.process(name);
        let looks = (0..process.slots)
            .zip(choices)
            .filter(|(_, choice)| matches!(choice, Choice::Look))
            .map(|(slot, _)| slot)
            .collect();
        let slots = (0..process.slots)
            .zip(choices)
            .filter(|(_, choice)| !matches!(choice, Choice::Skip | Choice::Look))
            .map(|(slot, choice)| (slot, self.result_of(name, slot, *choice)))
            .collect();
        let Bounds {
            has_groups,
            batch,
            batch_bytes,
            reply_bytes,
            claims,
            markers,
            highest,
            forget,
            log,
            room: at,
        } = bounds;
        let counter = self.state.counter.unwrap_or(0);
        let token = self.token(name, token);
        Call::Advance(Advance {
            name,
            token,
            batch,
            batch_bytes,
            reply_bytes,
            claims,
            markers,
            has_groups,
            highest: [0, counter, counter + 5][usize::from(highest)],
            forget_ms: if forget { FORGET_MS } else { 0 },
            log,
            room: room(at),
            from_held: !process.from_markers,
            slots,
            looks,
        })
    }

    fn result_of(&mut self, name: &'static str, slot: usize, choice: Choice) -> Option<Reported> {
        let w = format!("{name}.{slot}");
        let worker = self.state.worker(&w).clone();
        let owned = self.owned(&w);
        let late = |at: u8| {
            let reported = self.reported.iter();
            let own = reported.filter(|(n, s, _)| *n == name && *s == slot);
            let all: Vec<_> = own.collect();
            Some(all.get(usize::from(at) % all.len().max(1))?.2.clone())
        };
        let (Some(tag), Some(object)) = (worker.tag, owned) else {
            return if matches!(choice, Choice::Free) {
                None
            } else {
                late(0)
            };
        };
        let (tag, len) = (Numbers::of_tag(&tag), worker.batch.len());
        let (count, then) = match choice {
            Choice::Free | Choice::Skip | Choice::Look => return None,
            Choice::Late(at) => return late(at),
            Choice::WrongTag => {
                let tag = Numbers {
                    handouts: tag.handouts + 1,
                    ..tag
                };
                return Some(Reported::wrong(object, tag, len));
            }
            result => result.made_of(tag, len),
        };
        let last = count.checked_sub(1).map(|n| tag.first + n as u64);
        // In every second step the result states that it may end an event with a record. The script
        // must accept this statement, true or not.
        let handled = self.state.now.is_multiple_of(2);
        Some(Reported {
            object,
            tag,
            count,
            last,
            then,
            handled,
        })
    }
}

/// Deletes a key of a wrong type.
fn heal<T: Default + PartialEq>(key: &mut Key<T>) {
    if *key == Key::Wrong {
        *key = Key::default();
    }
}
