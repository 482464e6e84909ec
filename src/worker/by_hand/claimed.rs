//! An event that was claimed by hand, and the answers to it.

use std::fmt;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::error::ClaimError;
use super::slots::{UsedSlot, give_back, reject, settle};
use crate::event::Event;
use crate::sink::Batch;
use crate::wire::values::ReasonCode;
use crate::wire::{BatchResult, Report};
use crate::worker::retry::RetryPolicy;
use crate::worker::slots::{InFlight, failed, shortened};

/// An event that was claimed by hand. One answer counts, the first; giving another one, or the same
/// again, does nothing and says what became of the first.
///
/// An answer is given by a task of its own: dropping the future that waits for it takes nothing
/// back. Dropped without an answer, the event counts as failed for a time.
#[must_use]
pub struct Claimed {
    event: Event,
    in_flight: InFlight,
    cancelled: CancellationToken,
    /// Nothing once it is answered.
    slot: Option<UsedSlot>,
    /// The future that asked for it has returned it to the program.
    pub(super) seen: bool,
    answer: Option<JoinHandle<Result<(), ClaimError>>>,
    answered: Option<Result<(), ClaimError>>,
}

impl Claimed {
    pub(super) fn new(slot: UsedSlot, in_flight: InFlight) -> Self {
        let Batch { object, first, prev, payloads, .. } = &in_flight.batch;
        let event = Event { id: *first, prev: *prev, object: object.clone(), payload: payloads[0].clone() };
        let cancelled = slot.slots.over.clone();
        Self { event, in_flight, cancelled, slot: Some(slot), seen: false, answer: None, answered: None }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Which attempt this is, from 1. Attempts count failures: after a crash the attempt is the
    /// same.
    pub fn attempt(&self) -> u32 {
        self.in_flight.tag.attempts.saturating_add(1)
    }

    /// How often a worker died with the event in hand.
    pub fn crashes(&self) -> u32 {
        self.in_flight.tag.crashes
    }

    /// Fires when the event is not this worker's any more: what is done after that is done in vain.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// The event is delivered; the object's next one follows, for whoever asks.
    ///
    /// # Errors
    /// [`ClaimError::Lost`]: the event comes again, unless the commit was taken just before. The
    /// other answers fail in the same way.
    pub async fn commit(&mut self) -> Result<(), ClaimError> {
        // What is left of a batch that another worker had taken goes on elsewhere, with its ids.
        let (rest, delay) = (self.in_flight.tag.after(1, 1), Some(Duration::ZERO));
        let then = match self.in_flight.batch.len() {
            1 => BatchResult::Yield,
            _ => BatchResult::Hold { rest, delay, reason: ReasonCode::Yield.into() },
        };
        let report = self.in_flight.report(1, then);
        self.give(report, true).await
    }

    /// The event, again later: after this time, or else as the retry policy says, which also says
    /// what becomes of it when its attempts are used up.
    pub async fn retry(&mut self, error: impl fmt::Display, retry_after: Option<Duration>) -> Result<(), ClaimError> {
        let (report, over) = self.failure(&error.to_string(), retry_after);
        self.give(report, over).await
    }

    /// The event, never: it goes to the dead letters.
    pub async fn reject(&mut self, error: impl fmt::Display) -> Result<(), ClaimError> {
        let report = reject(&self.in_flight, &error.to_string());
        self.give(report, true).await
    }

    /// The report, and whether the event is over with it.
    fn failure(&self, error: &str, retry_after: Option<Duration>) -> (Report, bool) {
        let policy = match &self.slot {
            Some(slot) => slot.slots.config.retry_of(&self.event.payload),
            None => RetryPolicy::default(),
        };
        let then = failed(&self.in_flight, 0, shortened(error), retry_after, policy);
        let over = !matches!(then, BatchResult::Hold { .. });
        (self.in_flight.report(0, then), over)
    }

    /// Gives the first answer, and waits for what becomes of it.
    async fn give(&mut self, report: Report, over: bool) -> Result<(), ClaimError> {
        if let Some(slot) = self.slot.take() {
            let handled = over && self.in_flight.handled.is_some();
            self.answer = Some(tokio::spawn(settle(slot, report, handled, self.in_flight.taken)));
        }
        if let Some(answer) = &mut self.answer {
            self.answered = Some(answer.await.unwrap_or(Err(ClaimError::Lost)));
            self.answer = None;
        }
        self.answered.clone().unwrap_or(Err(ClaimError::Lost))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if self.slot.is_none() {
            return;
        }
        let (report, over) =
            if self.seen { self.failure("dropped without an answer", None) } else { (give_back(&self.in_flight), false) };
        if let Some(slot) = self.slot.take() {
            let runtime = slot.slots.runtime.clone();
            runtime.spawn(settle(slot, report, over && self.in_flight.handled.is_some(), self.in_flight.taken));
        }
    }
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed")
            .field("object", &self.event.object.as_str())
            .field("id", &self.event.id)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
