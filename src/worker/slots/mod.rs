//! The slots of a process.
//!
//! What is here is belief: the truth is in Redis, and every reply of `advance` puts the belief
//! right. If the process dies, the belief dies with it.
//!
//! - `slot`: a slot, and the one function that changes it
//! - `in_flight`: a batch that a slot has in flight
//! - `result`: the results of batches

mod in_flight;
mod result;
mod slot;
#[cfg(test)]
mod tests;

pub(crate) use in_flight::InFlight;
pub(crate) use result::{Policy, failed, shortened};
pub(crate) use slot::{Slot, Step};

/// All slots of a process, by their numbers.
pub(crate) struct Slots(Vec<Slot>);

impl Slots {
    pub(crate) fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| Slot::Free).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Slot> {
        self.0.get(slot)
    }

    /// The batch that the sink has of this slot.
    pub(crate) fn delivering(&mut self, slot: usize) -> Option<&mut InFlight> {
        match self.0.get_mut(slot) {
            Some(Slot::Delivering(in_flight)) => Some(in_flight),
            _ => None,
        }
    }

    /// Changes one slot.
    pub(crate) fn step(&mut self, slot: usize, step: Step<'_>) {
        if let Some(slot) = self.0.get_mut(slot) {
            *slot = std::mem::take(slot).next(step);
        }
    }

    /// Whether no slot has a batch that could still be finished.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.iter().all(|slot| matches!(slot, Slot::Free | Slot::Parked(_)))
    }

    pub(crate) fn has_result(&self) -> bool {
        self.0.iter().any(|slot| matches!(slot, Slot::Reported(_)))
    }

    pub(crate) fn has_free(&self) -> bool {
        self.0.iter().any(|slot| matches!(slot, Slot::Free))
    }

    pub(crate) fn has_parked(&self) -> bool {
        self.0.iter().any(|slot| matches!(slot, Slot::Parked(_)))
    }

    /// The slots that keep their batches while the sink is unavailable.
    pub(crate) fn parked(&self) -> Vec<usize> {
        (0..self.len()).filter(|slot| matches!(self.0[*slot], Slot::Parked(_))).collect()
    }

    /// The last free slot, and whether no other slot is free.
    pub(crate) fn last_free(&self) -> Option<(usize, bool)> {
        let last = self.0.iter().rposition(|slot| matches!(slot, Slot::Free))?;
        Some((last, !self.0[..last].iter().any(|slot| matches!(slot, Slot::Free))))
    }

    /// The crashes of the batch that each slot has in hand.
    pub(crate) fn crashes(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().map(Slot::crashes)
    }

    /// All slots with their numbers; those from `first` on come first.
    pub(crate) fn beginning_at(&mut self, first: usize) -> impl Iterator<Item = (usize, &mut Slot)> {
        let (later, sooner) = self.0.split_at_mut(first);
        let sooner = sooner.iter_mut().enumerate().map(move |(at, slot)| (first + at, slot));
        sooner.chain(later.iter_mut().enumerate())
    }
}
