//! A model of the receiver. For each object it has the events that the receiver applies, drops and
//! keeps back.

use std::collections::BTreeMap;

use super::Received;
use crate::consume::{Verdict, judge};

/// The state of the receiver for one object.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    last: u64,
    /// Events that are kept back because an earlier event is missing, by id.
    early: BTreeMap<u64, Received>,
    /// Applied events, in the order of their ids.
    pub(super) applied: Vec<Received>,
}

impl Receiver {
    /// Receives the event that arrives next.
    pub(super) fn take(&mut self, received: Received) {
        match judge(self.last, received.id, received.prev) {
            Ok(Verdict::Apply) => {
                self.apply(received);
                self.look_again();
            }
            Ok(Verdict::Early) => {
                self.early.entry(received.id).or_insert(received);
            }
            // The numbers are valid here, so the only other verdict is a duplicate.
            Ok(Verdict::Duplicate) | Err(_) => {}
        }
    }

    /// Used at the end of a history. Gives up waiting for an event that never came, and returns an
    /// event that was kept back for it. To be called until it returns none.
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
