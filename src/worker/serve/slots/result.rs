//! The results of batches.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::in_flight::{InFlight, STRIDE};
use crate::sink::Stop;
use crate::wire::values::{Reason, ReasonCode};
use crate::wire::{BatchResult, Load, Report};
use crate::worker::config::WorkerConfig;
use crate::worker::serve::deliver::Outcome;
use crate::worker::serve::unknown;
use crate::worker::times::retry::{RetryPolicy, Time, UsedUp};

/// A result for the next call, and the data that the object's next batch needs.
#[derive(Debug, Clone)]
pub(crate) struct PendingReport {
    pub(crate) report: Report,
    /// The time at which the slot got the batch.
    pub(crate) taken: Instant,
    /// The time at which the sink had returned its result.
    pub(crate) ended: Instant,
    /// Whether the result may end the event whose handler progress is stored.
    pub(crate) handled: bool,
    /// The work that the result causes in Redis.
    pub(crate) load: Load,
    /// The number of events of the object that the slot had without a pause.
    pub(super) turn: usize,
}

/// The rules by which an outcome becomes a result.
pub(crate) struct Policy<'a> {
    /// The number of events of one object after which the object yields to others.
    pub(crate) turn_max: usize,
    /// Whether the process is stopping and takes no more events of any object.
    pub(crate) stopping: bool,
    /// Whether the event log is on.
    pub(crate) logs: bool,
    /// The longest time for which an event waits for a process that knows it.
    pub(crate) unknown_max: Duration,
    /// The number of crashes at which an object waits for an operator; 0: at none.
    pub(crate) crashes_held: u32,
    /// A function that returns the retry policy of an event's payload.
    pub(crate) retry_of: &'a dyn Fn(&[u8]) -> RetryPolicy,
}

impl<'a> Policy<'a> {
    /// Returns the rules of a worker with these settings.
    pub(crate) fn of(
        config: &WorkerConfig,
        stopping: bool,
        retry_of: &'a dyn Fn(&[u8]) -> RetryPolicy,
    ) -> Self {
        let (turn_max, unknown_max, logs) = (
            config.turn_max,
            config.unknown_max,
            config.event_log.is_some(),
        );
        Self {
            turn_max,
            stopping,
            logs,
            unknown_max,
            crashes_held: config.crashes_held(),
            retry_of,
        }
    }
}

/// The next state of a batch after its delivery.
pub(super) enum HandedOver {
    /// The batch has a result for the next call.
    Reported(PendingReport),
    /// The batch is kept while the sink is unavailable.
    Parked(InFlight),
}

/// Turns an outcome into the result that the next call reports, or parks the batch.
pub(super) fn hand_over(in_flight: InFlight, outcome: Outcome, policy: &Policy<'_>) -> HandedOver {
    let (len, count, tag) = (in_flight.batch.len(), outcome.count, in_flight.tag);
    let turn_over = policy.stopping || in_flight.turn >= policy.turn_max;
    let retry = || {
        (policy.retry_of)(
            in_flight
                .batch
                .payloads
                .get(count)
                .map_or(&[][..], |payload| payload),
        )
    };
    let then = match outcome.stop {
        Some(Stop::Transient { error, retry_after }) => {
            failed(&in_flight, count, shortened(&error), retry_after, retry())
        }
        Some(Stop::Postponed { reason, after }) => {
            let reason = Reason::new(ReasonCode::Retry, shortened(&reason));
            BatchResult::Hold {
                rest: tag.after(count, STRIDE),
                delay: Some(after),
                reason,
            }
        }
        Some(Stop::Rejected { error }) => rejected(&in_flight, count, shortened(&error), retry()),
        Some(Stop::Unknown { error }) if outcome.waited >= policy.unknown_max => {
            let error = format!(
                "{error}; no worker knew the event for {}",
                Time(policy.unknown_max)
            );
            rejected(&in_flight, count, shortened(&error), retry())
        }
        Some(Stop::Unknown { error }) => BatchResult::Hold {
            rest: tag.after(count, STRIDE),
            delay: Some(unknown::wait(outcome.waited)),
            reason: Reason::new(ReasonCode::Unknown, shortened(&error)),
        },
        Some(Stop::Crashed { error }) => {
            crashed(&in_flight, count, &shortened(&error), policy.crashes_held)
        }
        Some(Stop::Unavailable { .. }) if count == 0 => return HandedOver::Parked(in_flight),
        Some(Stop::Unavailable { .. }) | None if count < len => BatchResult::Part {
            next: tag.after(count, STRIDE),
        },
        Some(Stop::Unavailable { .. }) => BatchResult::Yield,
        None if turn_over => BatchResult::Yield,
        None => BatchResult::Done,
    };
    // A result that lets the object go ends the object's turn, even if the same call gives the
    // object back to the slot.
    let turn = if then.lets_go() {
        0
    } else {
        in_flight.turn - (len - count)
    };
    HandedOver::Reported(over(in_flight, count, then, turn, policy.logs))
}

/// Returns the pending report of a batch that leaves the slot.
pub(super) fn over(
    in_flight: InFlight,
    count: usize,
    then: BatchResult,
    turn: usize,
    logs: bool,
) -> PendingReport {
    let end = match then.buried() {
        Some(id) => id + 1,
        None if then.is_whole() => u64::MAX,
        None => in_flight.id(count),
    };
    let handled = in_flight.handled.is_some_and(|id| id < end);
    let load = load(&in_flight, &then, count, logs, handled);
    PendingReport {
        report: in_flight.report(count, then),
        taken: in_flight.taken,
        ended: Instant::now(),
        handled,
        load,
        turn,
    }
}

/// Returns the work of a result: the events that leave the batch, their rows in the log, and the
/// handler progress that is deleted.
fn load(in_flight: &InFlight, then: &BatchResult, count: usize, logs: bool, handled: bool) -> Load {
    let buried = usize::from(then.buried().is_some());
    let over = &in_flight.batch.payloads[..(count + buried).min(in_flight.batch.len())];
    let bytes = over.iter().map(Bytes::len).sum();
    let load = Load::of_batch(over.len(), bytes);
    // An event with a key may be awaited, and its end costs about as much as a rest.
    let load = if then.is_whole() && !in_flight.tag.is_keyed {
        load
    } else {
        load.with_rest()
    };
    let load = if logs {
        load.with_rows(over.len(), bytes)
    } else {
        load
    };
    if handled {
        load.with_emits(in_flight.emitted.0, in_flight.emitted.1)
            .with_finished(in_flight.finished)
    } else {
        load
    }
}

/// Returns the result for the failed event at index `count`: the event is retried later, unless its
/// attempts are used up.
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
            let delay =
                retry_after.map_or_else(|| retry.wait(attempts), |wait| retry.at_least(wait));
            BatchResult::Hold {
                rest,
                delay: Some(delay),
                reason: Reason::new(ReasonCode::Retry, error),
            }
        }
        Some(UsedUp::Hold) => {
            let text = format!("failed {attempts} times, at last: {error}");
            BatchResult::Hold {
                rest,
                delay: None,
                reason: Reason::new(ReasonCode::Attempts, text),
            }
        }
        Some(UsedUp::DeadLetter) => BatchResult::Reject {
            next,
            id,
            error,
            attempts,
        },
        Some(UsedUp::CompleteWithErrors) => BatchResult::Complete {
            next,
            id,
            error,
            attempts,
        },
    }
}

/// Returns the result for the rejected event at index `count`.
pub(crate) fn rejected(
    in_flight: &InFlight,
    count: usize,
    error: String,
    retry: RetryPolicy,
) -> BatchResult {
    let rest = in_flight.tag.after(count, STRIDE);
    let (next, id, attempts) = (in_flight.behind(count), in_flight.id(count), rest.attempts);
    match retry.rejected {
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
        UsedUp::Hold => BatchResult::Hold {
            rest,
            delay: None,
            reason: Reason::new(ReasonCode::Rejected, error),
        },
    }
}

/// Returns the result for the event at index `count` if the program that handled it has died. The
/// event comes again at once, unless it has `held` crashes now (0: no limit).
fn crashed(in_flight: &InFlight, count: usize, error: &str, held: u32) -> BatchResult {
    let rest = in_flight.tag.after(count, STRIDE).crashed();
    let (delay, reason) = if held != 0 && rest.crashes >= held {
        let text = format!(
            "died {} times with this event in hand, at last: {error}",
            rest.crashes
        );
        (None, Reason::new(ReasonCode::Crashes, text))
    } else {
        (Some(Duration::ZERO), Reason::new(ReasonCode::Retry, error))
    };
    BatchResult::Hold {
        rest,
        delay,
        reason,
    }
}

/// Returns an error as it is stored in Redis: at most its first 1,000 bytes, cut between
/// characters.
pub(crate) fn shortened(error: &str) -> String {
    let end = (0..=error.len().min(1000))
        .rev()
        .find(|at| error.is_char_boundary(*at))
        .unwrap_or(0);
    error[..end].to_owned()
}
