//! A batch in flight.

use bytes::Bytes;
use tokio::time::Instant;

use crate::event::{NAME_BYTES_MAX, ObjectName};
use crate::sink::Batch;
use crate::wire::values::{Reason, ReasonCode, Tag};
use crate::wire::{BatchReply, BatchResult, Report};
use crate::worker::times::retry::UsedUp;

/// The distance between the ids of neighbouring events of a batch. It is 1, because a namespace has
/// one partition.
pub(crate) const STRIDE: u64 = 1;

/// A batch that a slot has in flight.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    /// The object's name, as stored in Redis.
    pub(crate) raw: Bytes,
    /// The tag of the batch in Redis.
    pub(crate) tag: Tag,
    /// The events.
    pub(crate) batch: Batch,
    /// The number of events of the object that the slot got without a pause, including the events
    /// of this batch.
    pub(crate) turn: usize,
    /// The time at which the slot got the batch.
    pub(crate) taken: Instant,
    /// The id of the event whose handler progress is stored, as far as the process knows.
    pub(crate) handled: Option<u64>,
    /// The number and the bytes of the events that the handlers of the event `handled` have
    /// emitted.
    pub(crate) emitted: (usize, usize),
    /// The number of finished handlers and subtasks of the event `handled`.
    pub(crate) finished: usize,
}

impl InFlight {
    /// Makes a batch in flight from a reply. `turn` is the number of events of the object that the
    /// slot had without a pause before this batch.
    pub(crate) fn new(reply: BatchReply, turn: usize) -> Self {
        // A name that is not UTF-8 never reaches a sink: see `unfit`.
        let object = ObjectName::found(&String::from_utf8_lossy(&reply.object));
        let turn = turn + reply.events.len();
        let batch = Batch {
            object,
            first: reply.tag.first,
            prev: reply.prev,
            stride: STRIDE,
            payloads: reply.events,
        };
        // If another worker had the batch, its first event may have handler progress.
        let handled = reply.tag.is_again().then_some(reply.tag.first);
        let taken = Instant::now();
        Self {
            raw: reply.object,
            tag: reply.tag,
            batch,
            turn,
            taken,
            handled,
            emitted: (0, 0),
            finished: 0,
        }
    }

    /// Returns the number of events to offer to the sink at once. An event that failed, or that may
    /// have killed its worker, is delivered alone.
    pub(crate) fn offered(&self) -> usize {
        if self.tag.is_suspect() {
            1
        } else {
            self.batch.len()
        }
    }

    /// Returns the reason if no sink may get the batch; otherwise `None`. No sink may get a batch
    /// whose object name the library refuses, because outputs cannot show such a name as it is.
    pub(crate) fn unfit(&self) -> Option<Reason> {
        // Fast path: most names are short and ASCII.
        if self.raw.len() <= NAME_BYTES_MAX
            && self.raw.iter().all(|byte| matches!(byte, 0x20..=0x7e))
        {
            return None;
        }
        ObjectName::from_bytes(&self.raw)
            .err()
            .map(|error| Reason::new(ReasonCode::Quarantine, error.to_string()))
    }

    /// Returns the id of the event at this index.
    pub(crate) fn id(&self, at: usize) -> u64 {
        self.batch.first + at as u64 * STRIDE
    }

    /// Returns the tag of the events after the event at index `count`; `None` if that event is the
    /// last one of the batch.
    pub(crate) fn behind(&self, count: usize) -> Option<Tag> {
        (count + 1 < self.batch.len()).then(|| self.tag.after(count + 1, STRIDE))
    }

    pub(crate) fn report(&self, count: usize, then: BatchResult) -> Report {
        let last = count.checked_sub(1).map(|at| self.id(at));
        Report {
            object: self.raw.clone(),
            tag: self.tag,
            count,
            last,
            then,
        }
    }

    /// Returns the result for a first event that has killed too many workers.
    pub(crate) fn crashed(&self, then: UsedUp) -> BatchResult {
        let reason = Reason::new(
            ReasonCode::Crashes,
            format!("died {} times with this event in hand", self.tag.crashes),
        );
        let (next, id, attempts, error) = (
            self.behind(0),
            self.id(0),
            self.tag.attempts,
            reason.to_string(),
        );
        match then {
            UsedUp::Hold => BatchResult::Hold {
                rest: self.tag,
                delay: None,
                reason,
            },
            UsedUp::DeadLetter => BatchResult::Reject {
                next,
                id,
                error,
                attempts,
            },
            UsedUp::CompleteWithErrors => BatchResult::Complete {
                next,
                id,
                error,
                attempts,
            },
        }
    }

    /// Returns the report that holds the whole batch until an operator releases it.
    pub(crate) fn hold_for_operator(&self, reason: Reason) -> Report {
        self.report(
            0,
            BatchResult::Hold {
                rest: self.tag,
                delay: None,
                reason,
            },
        )
    }
}
