//! The slots of a process, as the process sees them.
//!
//! The truth is in Redis, and every reply of `advance` corrects the states here. If the process
//! dies, nothing here is needed again.
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
pub(crate) use result::{Policy, failed, rejected, shortened};
pub(crate) use slot::{Slot, Step};

/// All slots of a process, by number.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// The number of slots in each state.
    numbers: [usize; Slot::NUMBERS],
}

impl Slots {
    pub(crate) fn new(slots: usize) -> Self {
        let mut numbers = [0; Slot::NUMBERS];
        numbers[Slot::Free.number()] = slots;
        Self {
            slots: (0..slots).map(|_| Slot::Free).collect(),
            numbers,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&Slot> {
        self.slots.get(slot)
    }

    /// Returns the slot's batch if the sink has it.
    pub(crate) fn delivering(&mut self, slot: usize) -> Option<&mut InFlight> {
        match self.slots.get_mut(slot) {
            Some(Slot::Delivering(in_flight)) => Some(in_flight),
            _ => None,
        }
    }

    /// Changes one slot.
    pub(crate) fn step(&mut self, slot: usize, step: Step<'_>) {
        if let Some(slot) = self.slots.get_mut(slot) {
            self.numbers[slot.number()] -= 1;
            *slot = std::mem::take(slot).next(step);
            self.numbers[slot.number()] += 1;
        }
    }

    /// Returns the number of slots in each state, in the order of [`Slot::number`].
    pub(crate) fn numbers(&self) -> &[usize; Slot::NUMBERS] {
        &self.numbers
    }

    /// Returns whether no slot has a batch that could still be finished.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots
            .iter()
            .all(|slot| matches!(slot, Slot::Free | Slot::Parked(_)))
    }

    /// Returns whether each slot is free, or is in a call that commits its batch.
    pub(crate) fn only_commits(&self) -> bool {
        self.slots
            .iter()
            .all(|slot| matches!(slot, Slot::Free | Slot::Asked(Some(_))))
    }

    pub(crate) fn has_result(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| matches!(slot, Slot::Reported(_)))
    }

    pub(crate) fn has_free(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Free))
    }

    /// Returns the number of slots that are free, or have a result that no call has.
    pub(crate) fn without_batch(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| matches!(slot, Slot::Free | Slot::Reported(_)))
            .count()
    }

    pub(crate) fn has_parked(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| matches!(slot, Slot::Parked(_)))
    }

    /// Returns the slots that keep their batches while the sink is unavailable.
    pub(crate) fn parked(&self) -> Vec<usize> {
        (0..self.len())
            .filter(|slot| matches!(self.slots[*slot], Slot::Parked(_)))
            .collect()
    }

    /// Returns the last free slot, and whether no other slot is free.
    pub(crate) fn last_free(&self) -> Option<(usize, bool)> {
        let last = self
            .slots
            .iter()
            .rposition(|slot| matches!(slot, Slot::Free))?;
        Some((
            last,
            !self.slots[..last]
                .iter()
                .any(|slot| matches!(slot, Slot::Free)),
        ))
    }

    /// Returns the crashes of each slot's batch.
    pub(crate) fn crashes(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().map(Slot::crashes)
    }
}
