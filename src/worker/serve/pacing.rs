//! The pacing of calls: when the next call is due, and which slots it names.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::wire::{Advance, BatchReply, ClaimFirst, Room};
use crate::worker::config::WorkerConfig;
use crate::worker::serve::allowance::Allowance;
use crate::worker::serve::caller::{CALLS_MAX, NAMED_MIN, SuspectRoom, named_after};
use crate::worker::serve::slots::{Slot, Slots, Step};

/// The time between two calls that name all free slots, in times of `block`. A lost reply makes such
/// a call due at once; the others are for safety only.
const NAME_ALL_BLOCKS: u32 = 5;

pub(super) struct Pacing {
    /// Whether a call is due although no slot has a result, because there may be something to
    /// claim.
    is_due: bool,
    /// Whether markers of unknown groups wait, so that a call is of use even without a slot.
    sorts: bool,
    /// The time at which a call is due in any case.
    due_at: Instant,
    /// Whether the last reply named no time within `block`.
    is_far: bool,
    /// The longest time between two calls. After a pop, the next pop counts as a call.
    block: Duration,
    /// The most free slots that a call may name. Doubles after each call in which all named free
    /// slots got a batch.
    named_max: usize,
    /// The next call from this time on names all free slots, so that it finds a batch of a slot
    /// that the process does not know of. This happens after an attach, after a lost reply, and
    /// once in five times `block`.
    name_all_at: Instant,
    /// The slot at which the next call begins, because the call before had no room for the result
    /// of this slot. So no result waits for ever.
    name_from: usize,
    pub(super) claim_first: ClaimFirst,
    pub(super) suspects: SuspectRoom,
    allowance: Allowance,
}

impl Pacing {
    pub(super) fn new(config: &WorkerConfig) -> Self {
        Self {
            is_due: true,
            sorts: false,
            due_at: Instant::now(),
            is_far: false,
            block: config.block,
            named_max: NAMED_MIN,
            name_all_at: Instant::now(),
            name_from: 0,
            claim_first: ClaimFirst::Held,
            suspects: SuspectRoom::default(),
            allowance: Allowance::new(config.reply_bytes),
        }
    }

    /// Returns whether there may be something to claim.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns whether markers of unknown groups wait.
    pub(super) fn sorts(&self) -> bool {
        self.sorts
    }

    /// Records whether markers of unknown groups wait.
    pub(super) fn sort(&mut self, unsorted: bool) {
        self.sorts = unsorted;
    }

    /// Records that there may be something to claim.
    pub(super) fn wake(&mut self) {
        self.is_due = true;
    }

    /// Returns the time at which the next call is due at the latest.
    pub(super) fn due_at(&self) -> Instant {
        self.due_at
    }

    /// Makes the next call due at this time at the latest.
    pub(super) fn wake_by(&mut self, at: Instant) {
        self.due_at = self.due_at.min(at);
    }

    /// Records that the due time has come.
    pub(super) fn time_has_come(&mut self) {
        self.due_at = Instant::now() + self.block;
        self.is_due = true;
    }

    /// Makes the next call due after this time at the latest, which a reply names.
    pub(super) fn look_in(&mut self, time: Duration) {
        self.is_far = time >= self.block;
        self.wake_by(Instant::now() + time);
    }

    /// Records that a pop and the call behind it have ended. If nothing falls due soon, the next pop
    /// and its call come before anything is to be claimed. So an idle process makes a further call
    /// only to name all free slots. While Redis is out of memory, a pop moves nothing.
    pub(super) fn waited(&mut self, out_of_memory: bool) {
        if self.is_far && !self.is_due && !out_of_memory {
            self.due_at = self.name_all_at.max(Instant::now() + self.block);
        }
    }

    /// Returns the most bytes per reply.
    pub(super) fn reply_bytes(&self) -> usize {
        self.allowance.bytes()
    }

    /// Adds slots to the call: slots with results as long as there is room and, with `claims`, free
    /// slots. The slot `popped`, if it is free, is added even beyond the limit on free slots.
    /// Returns the numbers of the added slots.
    pub(super) fn name_slots(
        &mut self,
        slots: &mut Slots,
        call: &mut Advance,
        claims: bool,
        popped: Option<usize>,
    ) -> Vec<usize> {
        let all = claims && self.names_all();
        let mut names_left = if all { slots.len() } else { self.named_max };
        // A call names at most half of the slots, unless it names all. Redis works on one half
        // while the process works on the other.
        let asked_max = if all {
            slots.len()
        } else {
            slots.len().div_ceil(CALLS_MAX)
        };
        let mut asked = Vec::with_capacity(asked_max);
        let mut room = Room::of_call();
        let first = std::mem::take(&mut self.name_from);
        for number in (first..slots.len()).chain(0..first) {
            let Some(slot) = slots.get(number) else {
                continue;
            };
            match slot {
                _ if asked.len() == asked_max => break,
                Slot::Reported(pending) if !room.admits(pending.load) => {
                    self.name_from = number;
                    break;
                }
                Slot::Reported(pending) => {
                    if pending.handled {
                        call.handled(number);
                    }
                    call.report_taken(number, &pending.report, pending.taken.elapsed());
                }
                Slot::Free if claims && (names_left > 0 || popped == Some(number)) => {
                    names_left = names_left.saturating_sub(1);
                    call.free(number);
                }
                Slot::Free | Slot::Asked(_) | Slot::Delivering(_) | Slot::Parked(_) => continue,
            }
            slots.step(number, Step::Ask);
            asked.push(number);
        }
        self.is_due &= !claims;
        asked
    }

    /// Returns whether the present call names all free slots.
    fn names_all(&mut self) -> bool {
        let now = Instant::now();
        let all = now >= self.name_all_at;
        if all {
            self.name_all_at = now + NAME_ALL_BLOCKS * self.block;
        }
        all
    }

    /// Records a reply for these slots.
    pub(super) fn answered(&mut self, slots: &Slots, asked: &[usize], batches: &[BatchReply]) {
        if self.allowance.is_reduced() {
            self.allowance.came(
                batches
                    .iter()
                    .flat_map(|batch| &batch.events)
                    .map(|event| event.len())
                    .sum(),
            );
        }
        let was_free = |slot: usize| matches!(slots.get(slot), Some(Slot::Asked(None)));
        let named = asked.iter().filter(|slot| was_free(**slot)).count();
        let given = batches.iter().filter(|batch| was_free(batch.slot)).count();
        if named > 0 {
            self.named_max = named_after(named, given);
        }
    }

    /// Records a call without a reply, whose effect is unknown.
    pub(super) fn unanswered(&mut self) {
        self.sorts = false;
        self.name_all_at = Instant::now();
        self.is_due = true;
    }

    /// Lowers the limit on the bytes of a reply, because the link may have been too slow.
    pub(super) fn ask_for_less(&mut self) {
        if self.allowance.failed() {
            debug!(
                bytes = self.allowance.bytes(),
                "claim: the next replies are smaller"
            );
        }
    }
}
