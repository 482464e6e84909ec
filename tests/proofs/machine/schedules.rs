//! Schedules in the reference: what a frontend stores, replaces and cancels, and what is promoted.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::reference::{Broken, Event, FAR, Key, Name, Reference, Reply};

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
            _ => drop(self.schedules.insert(place, Scheduled { due, event: event.clone() })),
        }
        Reply::Done
    }

    /// CANCEL, a plain transaction.
    pub fn cancel(&mut self, object: &Name, key: &'static str) -> Reply {
        self.schedules.remove(&(object.clone(), key));
        Reply::Done
    }

    /// PROMOTE. Due schedules become events, in the order of their due times and then of their
    /// members. One whose queue has a wrong type is due again later.
    pub fn promote(&mut self, most: usize, bytes: usize) -> Reply {
        if self.is_broken(&[Broken::Markers, Broken::Scheduled]) {
            return Reply::WrongType;
        }
        let mut due: Vec<_> =
            self.schedules.iter().map(|((object, key), at)| (at.due, member(object, key), object.clone(), *key)).collect();
        due.retain(|(at, ..)| *at < FAR);
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
                    let Some(Scheduled { event, .. }) = self.schedules.remove(&place) else { unreachable!("it is due") };
                    left = left.saturating_sub(event.len());
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
        let next = self.schedules.values().map(|schedule| schedule.due).min();
        Reply::Promoted {
            events,
            is_due: next.map(|due| due < FAR),
            markers: self.markers.len() as u64,
            names: self.watched.len() as u64,
            wrong,
        }
    }
}
