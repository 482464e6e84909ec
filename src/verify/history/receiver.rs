//! The receiver, played: per object, what it applies, what it drops, what it keeps back.

use std::collections::BTreeMap;

use super::Received;
use crate::consume::{Verdict, judge};

/// What the receiver knows of one object.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    last: u64,
    /// Kept back by id, because something before it is still to come.
    early: BTreeMap<u64, Received>,
    /// What was applied; ids grow.
    pub(super) applied: Vec<Received>,
}

impl Receiver {
    /// Takes the next event in the order of its coming.
    pub(super) fn take(&mut self, received: Received) {
        match judge(self.last, received.id, received.prev) {
            Ok(Verdict::Apply) => {
                self.apply(received);
                self.look_again();
            }
            Ok(Verdict::Early) => {
                self.early.entry(received.id).or_insert(received);
            }
            // The numbers of what is taken are sound, so that only a duplicate is left.
            Ok(Verdict::Duplicate) | Err(_) => {}
        }
    }

    /// At the end: goes on behind what never came, and answers the event that waited for it. To be
    /// asked until there is none.
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
