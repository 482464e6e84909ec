//! Schedules in the reference: how a producer stores, replaces and cancels them, how they are
//! promoted, and how a slot takes their events.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::reference::{Broken, Dead, End, Event, FAR, Key, Name, Numbers, Reference, Reply, Row};

/// The keys of schedules. `-1` looks like a key that the emitter makes. The last one ends with the
/// key `k`, and its event is awaited under the name `a k`.
pub const SCHEDULE_KEYS: [&str; 3] = ["k", "-1", "?3600 a k"];
/// The beginning of the key of an awaited event; the name of the event follows.
const AWAITED: &str = "?3600 ";
/// The times for which an end is kept, the note that an event is awaited, and an inbox.
pub const END_MS: u64 = 3_600_000;
pub const PENDING_MS: u64 = 604_800_000;
pub const INBOX_MS: u64 = 60_000;
/// The inbox of all awaited events, and the value of a key that notes that one is awaited.
pub const INBOX: &str = "in7";
pub const PENDING: &str = "?3600 in7 0f";

/// The maximum number of wrong schedules that one reply names.
const WRONG_MAX: usize = 16;

/// The effect of a call on an existing schedule with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Replace,
    KeepTime,
    KeepFirst,
}

/// A schedule of an object.
#[derive(Debug, Clone)]
pub struct Scheduled {
    /// The due time. A time below [`FAR`] is in the past, any other time is in the far future.
    pub due: u64,
    pub event: Event,
    /// The step in which a reference to the event was queued, if it was.
    pub queued: Option<u64>,
}

impl Scheduled {
    /// Returns the score in `events.scheduled`.
    pub fn score(&self) -> String {
        self.queued
            .map_or_else(|| self.due.to_string(), |at| format!("-{}", QUEUED + at))
    }
}

/// If the event of a schedule is queued, the score of the schedule is `-(QUEUED + time)`.
pub const QUEUED: u64 = 1_000_000_000_000_000;

/// The first entry of a queue, as a slot reads it.
pub enum Head {
    /// A valid reference: the event of a schedule with a key, and the key.
    Keyed(Event, &'static str),
    /// A reference to a schedule that was replaced or cancelled.
    Void,
    /// Any other event.
    Plain,
    /// A reference that cannot be checked, because `events.scheduled` has a wrong type.
    Wrong,
}

/// The beginning of a reference; its time and the key follow.
pub const REFERENCE: &[u8] = b"\0queued ";

/// Returns whether the event is a reference of this key.
fn is_reference_of(event: &Event, key: &str) -> bool {
    let text = event
        .strip_prefix(REFERENCE)
        .and_then(|rest| rest.strip_suffix(key.as_bytes()));
    text.and_then(|time| time.strip_suffix(b" "))
        .is_some_and(|time| time.iter().all(u8::is_ascii_digit))
}

/// Returns the reference to an event that was queued at this time.
fn reference_to(at: u64, key: &str) -> Event {
    [REFERENCE, format!("{at} {key}").as_bytes()]
        .concat()
        .into()
}

/// Returns the due time of an event that could not be queued in this step: a minute later.
pub fn postponed(now: u64) -> u64 {
    2 * FAR + now
}

/// Returns the object and the name of the event that is queued under this key, if it is awaited.
pub fn awaited(object: &Name, key: &str) -> Option<Bytes> {
    Some(member(object, key.strip_prefix(AWAITED)?))
}

/// Returns the member of `events.scheduled` for this object and key.
pub fn member(object: &Name, key: &str) -> Bytes {
    [&object[..], b"\n", key.as_bytes()].concat().into()
}

impl Reference {
    /// SCHEDULE: a producer stores a schedule in one plain transaction.
    pub fn schedule(
        &mut self,
        object: &Name,
        key: &'static str,
        due: u64,
        event: &Event,
        mode: Mode,
    ) -> Reply {
        let place = (object.clone(), key);
        // The producer awaits the event.
        self.ends
            .extend(awaited(object, key).map(|member| (member, None)));
        match self.schedules.get_mut(&place) {
            Some(_) if mode == Mode::KeepFirst => {}
            Some(schedule) if mode == Mode::KeepTime => schedule.event = event.clone(),
            _ => drop(self.schedules.insert(
                place,
                Scheduled {
                    due,
                    event: event.clone(),
                    queued: None,
                },
            )),
        }
        Reply::Done
    }

    /// CANCEL, as a plain transaction: a producer deletes a schedule.
    pub fn cancel(&mut self, object: &Name, key: &'static str) -> Reply {
        self.schedules.remove(&(object.clone(), key));
        Reply::Done
    }

    /// Writes the end of an event that had this key, if the event is awaited.
    pub fn end(&mut self, object: &Name, key: &str, end: End) {
        let Some(member) = awaited(object, key) else {
            return;
        };
        if self.ends.insert(member.clone(), Some(end)) == Some(None) {
            self.inbox.insert(0, member);
        }
    }

    /// CANCEL, as a script: ends an event that a slot has taken and that waits for a retry or an
    /// operator.
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
        let Some(numbers) = Numbers::of_held(&found.held_id).filter(|numbers| numbers.first == id)
        else {
            return Reply::Cancelled("absent");
        };
        let broken = [
            Broken::Held,
            Broken::Paused,
            Broken::Markers,
            Broken::Meta,
            Broken::Log,
        ];
        let cannot_push = found
            .handled
            .as_ref()
            .and_then(|kept| self.cannot_push(kept))
            .is_some();
        let Key::Right(batch) = found.held else {
            return Reply::WrongType;
        };
        if self.is_broken(&broken) || cannot_push {
            return Reply::WrongType;
        }
        let why = found.held_id.right().and_then(|id| {
            id.as_ref()?
                .splitn(5, |byte| *byte == b' ')
                .nth(4)
                .map(<[u8]>::to_vec)
        });
        let error: Bytes = [b"cancelled: ", &why.unwrap_or_default()[..]]
            .concat()
            .into();
        let results = found.handled.as_ref().and_then(|kept| kept.results_of(id));
        let end = End {
            status: "cancelled",
            id,
            error: error.clone(),
            attempts: numbers.attempts,
            results: results.clone(),
        };
        self.end(object, key, end);
        if self.log_on {
            let prev = found
                .last
                .right()
                .and_then(Clone::clone)
                .unwrap_or_else(|| "0".to_owned());
            let event = batch.first().cloned().unwrap_or_default();
            let event = Dead {
                serial: 0,
                id,
                prev,
                object: object.clone(),
                event,
                error,
                attempts: numbers.attempts,
            };
            self.log.push(Row {
                status: "cancelled",
                event,
                taken: false,
                results,
            });
        }
        self.end_handled(object);
        let held = self.object(object);
        (held.held, held.held_id, held.errors, held.key) =
            (Key::default(), Key::default(), Key::default(), None);
        if !self.paused.contains(object) {
            self.due.insert(object.clone(), 0);
            self.markers.push(Name::new());
        }
        Reply::Cancelled("cancelled")
    }

    /// Reads the first entry of the object's queue. If it is a valid reference, the schedule is
    /// deleted and its event returned.
    pub fn head(&mut self, object: &Name, head: &Event) -> Head {
        let Some(key) = SCHEDULE_KEYS
            .into_iter()
            .find(|key| is_reference_of(head, key))
        else {
            return Head::Plain;
        };
        if self.is_broken(&[Broken::Scheduled]) {
            return Head::Wrong;
        }
        let place = (object.clone(), key);
        let is_it = self
            .schedules
            .get(&place)
            .is_some_and(|found| found.queued.is_some_and(|at| reference_to(at, key) == head));
        if !is_it {
            return Head::Void;
        }
        self.schedules
            .remove(&place)
            .map_or(Head::Void, |schedule| Head::Keyed(schedule.event, key))
    }

    /// PROMOTE: queues the events of due schedules, in the order of their due times and then of
    /// their members. If the object's queue has a wrong type, the schedule is due again a minute
    /// later.
    pub fn promote(&mut self, most: usize, bytes: usize) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Scheduled]) {
            return Reply::WrongType;
        }
        let due = self
            .schedules
            .iter()
            .filter(|(_, at)| at.due < FAR && at.queued.is_none())
            .collect::<Vec<_>>();
        let mut due: Vec<_> = due
            .into_iter()
            .map(|((object, key), at)| (at.due, member(object, key), object.clone(), *key))
            .collect();
        due.sort();
        let (mut events, mut left) = (0, bytes);
        let (mut marked, mut wrong) = (BTreeSet::new(), Vec::new());
        for (due, member, object, key) in due.into_iter().take(most) {
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
                    // In Redis the time in a reference has 16 digits (µs). The number of the step
                    // has fewer digits.
                    let time = if event.starts_with(REFERENCE) {
                        16 - self.now.to_string().len()
                    } else {
                        0
                    };
                    left = left.saturating_sub(event.len() + time);
                    // If the newest entry is an older reference of this key, it is no longer valid,
                    // so it is removed.
                    if event.starts_with(REFERENCE)
                        && queue.last().is_some_and(|last| is_reference_of(last, key))
                    {
                        queue.pop();
                    }
                    queue.push(event);
                    events += 1;
                    // A schedule that is due at once has no lateness.
                    self.promoted += u64::from(due > 0);
                    if marked.insert(object.clone()) {
                        self.markers.insert(0, object);
                    }
                }
                Key::Wrong => {
                    let Some(schedule) = self.schedules.get_mut(&place) else {
                        unreachable!("it is due")
                    };
                    schedule.due = postponed(self.now);
                    wrong.push(member);
                }
            }
        }
        wrong.truncate(WRONG_MAX);
        let next = self
            .schedules
            .values()
            .filter(|schedule| schedule.queued.is_none())
            .map(|schedule| schedule.due)
            .min();
        Reply::Promoted {
            events,
            is_due: next.map(|due| due < FAR),
            markers: (self.markers.len() + self.grouped.values().map(Vec::len).sum::<usize>())
                as u64,
            names: self.watched.len() as u64,
            wrong,
        }
    }
}
