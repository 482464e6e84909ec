//! The results of batches.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::in_flight::{InFlight, STRIDE};
use crate::sink::Stop;
use crate::wire::values::{Reason, ReasonCode};
use crate::wire::{BatchResult, Load, Report};
use crate::worker::deliver::Outcome;
use crate::worker::retry::{RetryPolicy, UsedUp};

/// A result, and what is remembered for the batch that may follow.
#[derive(Debug, Clone)]
pub(crate) struct PendingReport {
    pub(crate) report: Report,
    /// When the batch was given.
    pub(crate) taken: Instant,
    /// It ends the event of which handlers have finished something.
    pub(crate) handled: bool,
    /// The work that it is for Redis.
    pub(crate) load: Load,
    /// How many events of the object the slot has had without a pause.
    pub(super) turn: usize,
}

/// What decides between the results.
pub(crate) struct Policy<'a> {
    /// After this many events of one object, others get a turn.
    pub(crate) turn_max: usize,
    /// The process is stopping: it goes on with no object.
    pub(crate) stopping: bool,
    /// The event log is on.
    pub(crate) logs: bool,
    /// What follows when an event with this payload fails.
    pub(crate) retry_of: &'a dyn Fn(&[u8]) -> RetryPolicy,
}

/// A batch behind its delivery.
pub(super) enum HandedOver {
    /// It has a result for the next call.
    Reported(PendingReport),
    /// It is kept while the sink is unavailable.
    Parked(InFlight),
}

/// Turns an outcome into the result that the next call reports, or parks the batch.
pub(super) fn hand_over(in_flight: InFlight, outcome: Outcome, policy: &Policy<'_>) -> HandedOver {
    let (len, count, tag) = (in_flight.batch.len(), outcome.count, in_flight.tag);
    let turn_over = policy.stopping || in_flight.turn >= policy.turn_max;
    let then = match outcome.stop {
        Some(Stop::Transient { error, retry_after }) => {
            let payload = in_flight.batch.payloads.get(count).map_or(&[][..], |payload| payload);
            failed(&in_flight, count, shortened(&error), retry_after, (policy.retry_of)(payload))
        }
        Some(Stop::Rejected { error }) => {
            let attempts = tag.after(count, STRIDE).attempts;
            BatchResult::Reject { next: in_flight.behind(count), id: in_flight.id(count), error: shortened(&error), attempts }
        }
        Some(Stop::Unavailable { .. }) if count == 0 => return HandedOver::Parked(in_flight),
        Some(Stop::Unavailable { .. }) | None if count < len => BatchResult::Part { next: tag.after(count, STRIDE) },
        Some(Stop::Unavailable { .. }) => BatchResult::Yield,
        None if turn_over => BatchResult::Yield,
        None => BatchResult::Done,
    };
    // What lets go of the object ends its turn, also where the same slot gets it back in the same
    // call.
    let turn = if then.lets_go() { 0 } else { in_flight.turn - (len - count) };
    HandedOver::Reported(over(in_flight, count, then, turn, policy.logs))
}

/// The result, with what it ends.
pub(super) fn over(in_flight: InFlight, count: usize, then: BatchResult, turn: usize, logs: bool) -> PendingReport {
    let end = match then.buried() {
        Some(id) => id + 1,
        None if then.is_whole() => u64::MAX,
        None => in_flight.id(count),
    };
    let handled = in_flight.handled.is_some_and(|id| id < end);
    let load = load(&in_flight, &then, count, logs, handled);
    PendingReport { report: in_flight.report(count, then), taken: in_flight.taken, handled, load, turn }
}

/// The work of a result: the events that leave the batch, their rows in the log, and what handlers
/// have emitted and finished.
fn load(in_flight: &InFlight, then: &BatchResult, count: usize, logs: bool, handled: bool) -> Load {
    let buried = usize::from(then.buried().is_some());
    let over = &in_flight.batch.payloads[..(count + buried).min(in_flight.batch.len())];
    let bytes = over.iter().map(Bytes::len).sum();
    let load = Load::of_batch(over.len(), bytes);
    let load = if then.is_whole() { load } else { load.with_rest() };
    let load = if logs { load.with_rows(over.len(), bytes) } else { load };
    if handled { load.with_emits(in_flight.emitted.0, in_flight.emitted.1).with_finished(in_flight.finished) } else { load }
}

/// The event behind the first `count` has failed: it is tried again later, unless its attempts are
/// used up.
pub(crate) fn failed(
    in_flight: &InFlight,
    count: usize,
    error: String,
    retry_after: Option<Duration>,
    retry: RetryPolicy,
) -> BatchResult {
    let rest = in_flight.tag.after(count, STRIDE).failed();
    let (next, id, attempts) = (in_flight.behind(count), in_flight.id(count), rest.attempts);
    match retry.used_up(attempts) {
        None => {
            let delay = retry_after.unwrap_or_else(|| retry.backoff.wait(attempts));
            BatchResult::Hold { rest, delay: Some(delay), reason: Reason::new(ReasonCode::Retry, error) }
        }
        Some(UsedUp::Hold) => {
            let text = format!("failed {attempts} times, at last: {error}");
            BatchResult::Hold { rest, delay: None, reason: Reason::new(ReasonCode::Attempts, text) }
        }
        Some(UsedUp::DeadLetter) => BatchResult::Reject { next, id, error, attempts },
        Some(UsedUp::CompleteWithErrors) => BatchResult::Complete { next, id, error, attempts },
    }
}

/// An error as it is kept in Redis: the first thousand bytes of it.
pub(crate) fn shortened(error: &str) -> String {
    let end = (0..=error.len().min(1000)).rev().find(|at| error.is_char_boundary(*at)).unwrap_or(0);
    error[..end].to_owned()
}
