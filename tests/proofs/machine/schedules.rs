//! Schedules in the reference: what a producer stores, replaces and cancels, what is promoted, and what
//! a slot takes.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::reference::{Broken, Dead, Event, FAR, Key, Name, Numbers, Reference, Reply, Row};

/// The keys of schedules. One looks like a member of another object.
pub const SCHEDULE_KEYS: [&str; 3] = ["k", "-1", "a k"];

/// The most schedules that a reply names as wrong.
const WRONG_MAX: usize = 16;

/// The treatment of an existing schedule with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Replace,
    KeepTime,
    KeepFirst,
}

/// A schedule of an object.
#[derive(Debug, Clone)]
pub struct Scheduled {
    /// The due time: below [`FAR`] in the past, from there on in the far future.
    pub due: u64,
    pub event: Event,
    /// The step in which the event was queued, as a reference.
    pub queued: Option<u64>,
}

impl Scheduled {
    /// Returns the score in `events.scheduled`.
    pub fn score(&self) -> String {
        self.queued.map_or_else(|| self.due.to_string(), |at| format!("-{}", QUEUED + at))
    }
}

/// The score of a schedule whose event is queued is minus this, minus the time.
pub const QUEUED: u64 = 1_000_000_000_000_000;

/// The head of a queue, as a slot reads it.
pub enum Head {
    /// The event of a schedule with a key.
    Keyed(Event, &'static str),
    /// A reference whose schedule was replaced or cancelled.
    Void,
    /// Any other event.
    Plain,
    /// A reference, but `events.scheduled` has a wrong type.
    Wrong,
}

/// The beginning of a reference; its time and the key follow.
pub const REFERENCE: &[u8] = b"\0queued ";

/// Returns whether the event is a reference of this key.
fn is_reference_of(event: &Event, key: &str) -> bool {
    let text = event.strip_prefix(REFERENCE).and_then(|rest| rest.strip_suffix(key.as_bytes()));
    text.and_then(|time| time.strip_suffix(b" ")).is_some_and(|time| time.iter().all(u8::is_ascii_digit))
}

/// Returns the reference to an event that was queued at this time.
fn reference_to(at: u64, key: &str) -> Event {
    [REFERENCE, format!("{at} {key}").as_bytes()].concat().into()
}

/// Returns the due time of an event that could not be queued in this step.
pub fn postponed(now: u64) -> u64 {
    2 * FAR + now
}

/// Returns the member of `events.scheduled`.
pub fn member(object: &Name, key: &str) -> Bytes {
    [&object[..], b"\n", key.as_bytes()].concat().into()
}

impl Reference {
    /// SCHEDULE, a plain transaction.
    pub fn schedule(&mut self, object: &Name, key: &'static str, due: u64, event: &Event, mode: Mode) -> Reply {
        let place = (object.clone(), key);
        match self.schedules.get_mut(&place) {
            Some(_) if mode == Mode::KeepFirst => {}
            Some(schedule) if mode == Mode::KeepTime => schedule.event = event.clone(),
            _ => drop(self.schedules.insert(place, Scheduled { due, event: event.clone(), queued: None })),
        }
        Reply::Done
    }

    /// CANCEL, a plain transaction.
    pub fn cancel(&mut self, object: &Name, key: &'static str) -> Reply {
        self.schedules.remove(&(object.clone(), key));
        Reply::Done
    }

    /// CANCEL, the script: an event that waits for a retry or an operator is over.
    pub fn cancel_taken(&mut self, object: &Name, key: &'static str) -> Reply {
        let found = self.object(object).clone();
        let last = found.last_id().unwrap_or(0);
        let Some((id, _)) = found.key.filter(|(id, taken)| *taken == key && *id > last) else {
            return Reply::Cancelled("absent");
        };
        match found.owner.right().and_then(Clone::clone) {
            Some(owner) if owner == "held" => {}
            Some(owner) => {
                let tag = self.worker(&owner).tag.clone();
                let is_it = tag.is_some_and(|tag| Numbers::of_tag(&tag).first == id);
                return Reply::Cancelled(if is_it { "running" } else { "absent" });
            }
            None => return Reply::Cancelled("absent"),
        }
        let Some(numbers) = Numbers::of_held(&found.held_id).filter(|numbers| numbers.first == id) else {
            return Reply::Cancelled("absent");
        };
        let broken = [Broken::Held, Broken::Paused, Broken::Markers, Broken::Meta, Broken::Log];
        let cannot_push = found.handled.as_ref().and_then(|kept| self.cannot_push(kept)).is_some();
        let Key::Right(batch) = found.held else { return Reply::WrongType };
        if self.is_broken(&broken) || cannot_push {
            return Reply::WrongType;
        }
        if self.log_on {
            let why =
                found.held_id.right().and_then(|id| id.as_ref()?.splitn(5, |byte| *byte == b' ').nth(4).map(<[u8]>::to_vec));
            let error = [b"cancelled: ", &why.unwrap_or_default()[..]].concat().into();
            let prev = found.last.right().and_then(Clone::clone).unwrap_or_else(|| "0".to_owned());
            let event = batch.first().cloned().unwrap_or_default();
            let event = Dead { serial: 0, id, prev, object: object.clone(), event, error, attempts: numbers.attempts };
            let results = found.handled.as_ref().and_then(|kept| kept.results_of(id));
            self.log.push(Row { status: "cancelled", event, taken: false, results });
        }
        self.end_handled(object);
        let held = self.object(object);
        (held.held, held.held_id, held.errors, held.key) = (Key::default(), Key::default(), Key::default(), None);
        if !self.paused.contains(object) {
            self.due.insert(object.clone(), 0);
            self.markers.push(Name::new());
        }
        Reply::Cancelled("cancelled")
    }

    /// Reads the head of the object's queue. The event of a valid reference leaves its schedule.
    pub fn head(&mut self, object: &Name, head: &Event) -> Head {
        let Some(key) = SCHEDULE_KEYS.into_iter().find(|key| is_reference_of(head, key)) else { return Head::Plain };
        if self.is_broken(&[Broken::Scheduled]) {
            return Head::Wrong;
        }
        let place = (object.clone(), key);
        let is_it = self.schedules.get(&place).is_some_and(|found| found.queued.is_some_and(|at| reference_to(at, key) == head));
        if !is_it {
            return Head::Void;
        }
        self.schedules.remove(&place).map_or(Head::Void, |schedule| Head::Keyed(schedule.event, key))
    }

    /// PROMOTE. Due schedules become events, in the order of their due times and then of their
    /// members. One whose queue has a wrong type is due again later.
    pub fn promote(&mut self, most: usize, bytes: usize) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Scheduled]) {
            return Reply::WrongType;
        }
        let due = self.schedules.iter().filter(|(_, at)| at.due < FAR && at.queued.is_none()).collect::<Vec<_>>();
        let mut due: Vec<_> =
            due.into_iter().map(|((object, key), at)| (at.due, member(object, key), object.clone(), *key)).collect();
        due.sort();
        let (mut events, mut left) = (0, bytes);
        let (mut marked, mut wrong) = (BTreeSet::new(), Vec::new());
        for (_, member, object, key) in due.into_iter().take(most) {
            if left == 0 {
                break;
            }
            let place = (object.clone(), key);
            match &mut self.objects.entry(object.clone()).or_default().queue {
                Key::Right(queue) => {
                    let event = if key.starts_with('-') {
                        self.schedules.remove(&place).map(|schedule| schedule.event)
                    } else {
                        let now = self.now;
                        self.schedules.get_mut(&place).map(|schedule| {
                            schedule.queued = Some(now);
                            reference_to(now, key)
                        })
                    };
                    let event = event.expect("it is due");
                    // A time in µs has 16 digits, where a step has few.
                    let time = if event.starts_with(REFERENCE) { 16 - self.now.to_string().len() } else { 0 };
                    left = left.saturating_sub(event.len() + time);
                    // A reference of the same key leads nowhere any more.
                    if event.starts_with(REFERENCE) && queue.last().is_some_and(|last| is_reference_of(last, key)) {
                        queue.pop();
                    }
                    queue.push(event);
                    events += 1;
                    if marked.insert(object.clone()) {
                        self.markers.insert(0, object);
                    }
                }
                Key::Wrong => {
                    let Some(schedule) = self.schedules.get_mut(&place) else { unreachable!("it is due") };
                    schedule.due = postponed(self.now);
                    wrong.push(member);
                }
            }
        }
        wrong.truncate(WRONG_MAX);
        self.promoted += events;
        let next = self.schedules.values().filter(|schedule| schedule.queued.is_none()).map(|schedule| schedule.due).min();
        Reply::Promoted {
            events,
            is_due: next.map(|due| due < FAR),
            markers: self.markers.len() as u64,
            names: self.watched.len() as u64,
            wrong,
        }
    }
}
