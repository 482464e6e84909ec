//! An event that was claimed by hand, and its result.

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
use crate::worker::serve::slots::{InFlight, failed, shortened};
use crate::worker::times::retry::RetryPolicy;

/// An event that was claimed by hand. The program gives it one result: `commit`, `retry` or
/// `reject`. Only the first result counts; a further call changes nothing and returns the outcome
/// of the first call.
///
/// A separate task sends the result, so dropping the future of the call does not take the result
/// back. If the program drops the event without a result, this counts as a transient failure.
#[must_use]
pub struct Claimed {
    event: Event,
    in_flight: InFlight,
    cancelled: CancellationToken,
    /// The slot; `None` after a result.
    slot: Option<UsedSlot>,
    /// Whether the future of the claim has returned the event to the program.
    pub(super) seen: bool,
    answer: Option<JoinHandle<Result<(), ClaimError>>>,
    answered: Option<Result<(), ClaimError>>,
}

impl Claimed {
    pub(super) fn new(slot: UsedSlot, in_flight: InFlight) -> Self {
        let Batch {
            object,
            first,
            prev,
            payloads,
            ..
        } = &in_flight.batch;
        let event = Event {
            id: *first,
            prev: *prev,
            object: object.clone(),
            payload: payloads[0].clone(),
        };
        let cancelled = slot.slots.over.clone();
        Self {
            event,
            in_flight,
            cancelled,
            slot: Some(slot),
            seen: false,
            answer: None,
            answered: None,
        }
    }

    /// Returns the event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the number of this attempt, from 1. Only failures count, so a crash does not change
    /// the number.
    pub fn attempt(&self) -> u32 {
        self.in_flight.tag.attempts.saturating_add(1)
    }

    /// Returns how many workers died with the event in hand.
    pub fn crashes(&self) -> u32 {
        self.in_flight.tag.crashes
    }

    /// Returns a token that is cancelled when this worker loses the event. Work on the event after
    /// that is in vain.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Reports the event as delivered. The object's next event can then be claimed.
    ///
    /// # Errors
    /// [`ClaimError::Lost`] if this worker has lost the event. Then the event comes again, unless
    /// the commit took effect just before the loss. `retry` and `reject` return the same errors.
    pub async fn commit(&mut self) -> Result<(), ClaimError> {
        // The events after this one exist only if another worker had taken a larger batch. They are
        // held, due at once, with their ids.
        let (rest, delay) = (self.in_flight.tag.after(1, 1), Some(Duration::ZERO));
        let then = match self.in_flight.batch.len() {
            1 => BatchResult::Yield,
            _ => BatchResult::Hold {
                rest,
                delay,
                reason: ReasonCode::Yield.into(),
            },
        };
        let report = self.in_flight.report(1, then);
        self.give(report, true).await
    }

    /// Reports that the event failed and shall be retried. The wait until the next attempt is
    /// `retry_after` or, if this is `None`, the wait of the retry policy. The policy also decides
    /// the event's fate when its attempts are used up.
    pub async fn retry(
        &mut self,
        error: impl fmt::Display,
        retry_after: Option<Duration>,
    ) -> Result<(), ClaimError> {
        let (report, over) = self.failure(&error.to_string(), retry_after);
        self.give(report, over).await
    }

    /// Reports that the event will never succeed. The retry policy decides its fate, by default a
    /// dead letter.
    pub async fn reject(&mut self, error: impl fmt::Display) -> Result<(), ClaimError> {
        let (report, over) = reject(&self.in_flight, &error.to_string(), self.policy());
        self.give(report, over).await
    }

    /// Returns the retry policy of the event.
    fn policy(&self) -> RetryPolicy {
        self.slot
            .as_ref()
            .map_or_else(RetryPolicy::default, |slot| {
                slot.slots.config.retry_of(&self.event.payload)
            })
    }

    /// Returns the report of a failure, and whether the report ends the event.
    fn failure(&self, error: &str, retry_after: Option<Duration>) -> (Report, bool) {
        let then = failed(
            &self.in_flight,
            0,
            shortened(error),
            retry_after,
            self.policy(),
        );
        let over = !matches!(then, BatchResult::Hold { .. });
        (self.in_flight.report(0, then), over)
    }

    /// Sends the first result, and waits for its outcome.
    async fn give(&mut self, report: Report, over: bool) -> Result<(), ClaimError> {
        if let Some(slot) = self.slot.take() {
            let handled = over && self.in_flight.handled.is_some();
            self.answer = Some(tokio::spawn(settle(
                slot,
                report,
                handled,
                self.in_flight.taken,
            )));
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
        let (report, over) = if self.seen {
            self.failure("dropped without an answer", None)
        } else {
            (give_back(&self.in_flight), false)
        };
        if let Some(slot) = self.slot.take() {
            let runtime = slot.slots.runtime.clone();
            runtime.spawn(settle(
                slot,
                report,
                over && self.in_flight.handled.is_some(),
                self.in_flight.taken,
            ));
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
