//! A model of the receiver: the events that it applies, drops and keeps back, per object.

use std::collections::BTreeMap;

use super::Received;
use crate::consume::{Verdict, judge};

/// The state of the receiver for one object.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    last: u64,
    /// Events kept back, by id, because an event before them is missing.
    early: BTreeMap<u64, Received>,
    /// Applied events; ids grow.
    pub(super) applied: Vec<Received>,
}

impl Receiver {
    /// Receives the next event, in the order of arrival.
    pub(super) fn take(&mut self, received: Received) {
        match judge(self.last, received.id, received.prev) {
            Ok(Verdict::Apply) => {
                self.apply(received);
                self.look_again();
            }
            Ok(Verdict::Early) => {
                self.early.entry(received.id).or_insert(received);
            }
            // The numbers are valid here, so only a duplicate is left.
            Ok(Verdict::Duplicate) | Err(_) => {}
        }
    }

    /// At the end, skips an event that never came, and returns the event that waited for it. Called
    /// until it returns none.
    pub(super) fn give_up(&mut self) -> Option<Received> {
        while let Some((id, received)) = self.early.pop_first() {
            if id > self.last {
                self.apply(received);
                self.look_again();
                return Some(received);
            }
        }
        None
    }

    fn look_again(&mut self) {
        while let Some(first) = self.early.first_entry() {
            match judge(self.last, first.get().id, first.get().prev) {
                Ok(Verdict::Early) => return,
                Ok(Verdict::Apply) => {
                    let received = first.remove();
                    self.apply(received);
                }
                Ok(Verdict::Duplicate) | Err(_) => drop(first.remove()),
            }
        }
    }

    fn apply(&mut self, received: Received) {
        self.last = received.id;
        self.applied.push(received);
    }
}
