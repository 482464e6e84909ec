//! A batch in flight.

use bytes::Bytes;
use tokio::time::Instant;

use crate::event::{NAME_BYTES_MAX, ObjectName};
use crate::sink::Batch;
use crate::wire::values::{Reason, ReasonCode, Tag};
use crate::wire::{BatchReply, BatchResult, Report};
use crate::worker::retry::UsedUp;

/// Ids of one batch are this far apart: there is one partition.
pub(crate) const STRIDE: u64 = 1;

/// A batch that a slot has in flight.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    /// The object's name as it stands in Redis.
    pub(crate) raw: Bytes,
    /// The batch as Redis knows it.
    pub(crate) tag: Tag,
    /// The events.
    pub(crate) batch: Batch,
    /// How many events of the object were given to the slot without a pause, these included.
    pub(crate) turn: usize,
    /// When it was given.
    pub(crate) taken: Instant,
    /// The event of which handlers have finished something, as far as the process knows.
    pub(crate) handled: Option<u64>,
    /// How many events handlers have emitted with that, and their bytes.
    pub(crate) emitted: (usize, usize),
    /// How many handlers and subtasks of that event are finished.
    pub(crate) finished: usize,
}

impl InFlight {
    /// Takes a batch out of a reply; `turn` counts what the slot had of the object before.
    pub(crate) fn new(reply: BatchReply, turn: usize) -> Self {
        // A name that is not UTF-8 is never shown to a sink: see `unfit`.
        let object = ObjectName::found(&String::from_utf8_lossy(&reply.object));
        let turn = turn + reply.events.len();
        let batch = Batch { object, first: reply.tag.first, prev: reply.prev, stride: STRIDE, payloads: reply.events };
        // In other hands, handlers may have finished something of its first event.
        let handled = reply.tag.is_again().then_some(reply.tag.first);
        let taken = Instant::now();
        Self { raw: reply.object, tag: reply.tag, batch, turn, taken, handled, emitted: (0, 0), finished: 0 }
    }

    /// How many events to offer to the sink at once: an event that failed, or that may have killed
    /// its worker, is delivered alone.
    pub(crate) fn offered(&self) -> usize {
        if self.tag.is_suspect() { 1 } else { self.batch.len() }
    }

    /// Why the batch cannot be offered to any sink: its object has a name that no library emits for
    /// and no output can show as it is.
    pub(crate) fn unfit(&self) -> Option<Reason> {
        // Most names are short and ASCII: one look at their bytes.
        if self.raw.len() <= NAME_BYTES_MAX && self.raw.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
            return None;
        }
        ObjectName::from_bytes(&self.raw).err().map(|error| Reason::new(ReasonCode::Quarantine, error.to_string()))
    }

    /// The id of the event behind the first `at`.
    pub(crate) fn id(&self, at: usize) -> u64 {
        self.batch.first + at as u64 * STRIDE
    }

    /// The tag of what follows the event behind the first `count`; nothing where that is the last
    /// one.
    pub(crate) fn behind(&self, count: usize) -> Option<Tag> {
        (count + 1 < self.batch.len()).then(|| self.tag.after(count + 1, STRIDE))
    }

    pub(crate) fn report(&self, count: usize, then: BatchResult) -> Report {
        let last = count.checked_sub(1).map(|at| self.id(at));
        Report { object: self.raw.clone(), tag: self.tag, count, last, then }
    }

    /// Its first event has killed too many workers.
    pub(crate) fn crashed(&self, then: UsedUp) -> BatchResult {
        let reason = Reason::new(ReasonCode::Crashes, format!("died {} times with this event in hand", self.tag.crashes));
        let (next, id, attempts, error) = (self.behind(0), self.id(0), self.tag.attempts, reason.to_string());
        match then {
            UsedUp::Hold => BatchResult::Hold { rest: self.tag, delay: None, reason },
            UsedUp::DeadLetter => BatchResult::Reject { next, id, error, attempts },
            UsedUp::CompleteWithErrors => BatchResult::Complete { next, id, error, attempts },
        }
    }

    /// The whole batch, held until an operator releases it.
    pub(crate) fn hold_for_operator(&self, reason: Reason) -> Report {
        self.report(0, BatchResult::Hold { rest: self.tag, delay: None, reason })
    }
}
