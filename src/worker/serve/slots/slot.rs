//! A slot, and the one function that changes it.

use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

use super::in_flight::InFlight;
use super::result::{HandedOver, PendingReport, Policy, hand_over, over};
use crate::wire::values::{Reason, ReasonCode};
use crate::wire::{BatchReply, BatchResult, Load};
use crate::worker::serve::deliver::Outcome;
use crate::worker::times::retry::UsedUp;

/// The state of a slot, as the process sees it.
#[derive(Debug, Default)]
pub(crate) enum Slot {
    /// The slot has no batch.
    #[default]
    Free,
    /// The slot is named in a call under way, with its reported result, if any.
    Asked(Option<PendingReport>),
    /// The sink has the slot's batch.
    Delivering(InFlight),
    /// The slot has a result for the next call.
    Reported(PendingReport),
    /// The slot keeps its batch while the sink is unavailable.
    Parked(InFlight),
}

impl Slot {
    /// Returns the state's name, for the log.
    fn name(&self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Asked(_) => "asked",
            Self::Delivering(_) => "delivering",
            Self::Reported(_) => "reported",
            Self::Parked(_) => "parked",
        }
    }

    /// The number of states.
    pub(crate) const NUMBERS: usize = 5;

    /// Returns the number of the state: its place among the figures of all states.
    pub(crate) fn number(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::Asked(_) => 1,
            Self::Delivering(_) => 2,
            Self::Reported(_) => 3,
            Self::Parked(_) => 4,
        }
    }

    /// Returns the crashes of the slot's batch. After a reported result, these are the crashes of
    /// the rest of the batch.
    pub(crate) fn crashes(&self) -> u32 {
        match self {
            Self::Free | Self::Asked(None) => 0,
            Self::Delivering(in_flight) | Self::Parked(in_flight) => in_flight.tag.crashes,
            Self::Asked(Some(pending)) | Self::Reported(pending) => {
                pending.report.then.in_hand().map_or(0, |next| next.crashes)
            }
        }
    }
}

/// A step that changes a slot.
pub(crate) enum Step<'a> {
    /// A call names the slot.
    Ask,
    /// The reply to the call gives the slot a batch, or none.
    Answer(Option<BatchReply>),
    /// The call failed; its effect is unknown.
    Unanswered,
    /// The delivery has ended.
    Outcome(Outcome, &'a Policy<'a>),
    /// The sink is unavailable: keep the batch.
    Park,
    /// Give the kept batch to the sink again.
    Resume,
    /// The sink is unavailable for a long time: hold the batch for other workers.
    GiveBack,
    /// The batch cannot be delivered: hold it for an operator.
    Refuse(Reason),
    /// The first event has killed too many workers: settle it without a delivery.
    Settle(UsedUp),
}

impl Step<'_> {
    /// Returns the step's name, for the log.
    fn name(&self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Answer(_) => "answer",
            Self::Unanswered => "unanswered",
            Self::Outcome(..) => "outcome",
            Self::Park => "park",
            Self::Resume => "resume",
            Self::GiveBack => "give back",
            Self::Refuse(_) => "refuse",
            Self::Settle(_) => "settle",
        }
    }
}

impl Slot {
    /// Returns the next state. Only this function changes a slot. A step that does not fit the
    /// state is a bug: it is logged, and the state stays.
    pub(crate) fn next(self, step: Step<'_>) -> Self {
        match (self, step) {
            (Self::Free, Step::Ask) => Self::Asked(None),
            (Self::Reported(pending), Step::Ask) => Self::Asked(Some(pending)),
            (Self::Asked(_), Step::Answer(None)) => Self::Free,
            (Self::Asked(pending), Step::Answer(Some(reply))) => {
                // If the slot gets the same object again, the object's turn goes on. For another
                // object, a new turn begins.
                let turn = pending
                    .filter(|pending| pending.report.object == reply.object)
                    .map_or(0, |pending| pending.turn);
                Self::Delivering(InFlight::new(reply, turn))
            }
            (Self::Asked(None), Step::Unanswered) => Self::Free,
            (Self::Asked(Some(pending)), Step::Unanswered) => Self::Reported(pending),
            (Self::Delivering(in_flight), Step::Outcome(outcome, policy)) => {
                match hand_over(in_flight, outcome, policy) {
                    HandedOver::Reported(pending) => Self::Reported(pending),
                    HandedOver::Parked(in_flight) => Self::Parked(in_flight),
                }
            }
            (Self::Delivering(in_flight), Step::Park) => Self::Parked(in_flight),
            (Self::Parked(in_flight), Step::Resume) => Self::Delivering(in_flight),
            (Self::Parked(in_flight), Step::GiveBack) => {
                let (rest, delay) = (in_flight.tag, Some(Duration::ZERO));
                let then = BatchResult::Hold {
                    rest,
                    delay,
                    reason: ReasonCode::Unavailable.into(),
                };
                Self::Reported(over(in_flight, 0, then, 0, true))
            }
            (Self::Delivering(in_flight), Step::Settle(then)) => {
                let then = in_flight.crashed(then);
                // The load is estimated as if the event log were on. The estimate may be too high,
                // but this does no harm, because a suspect is settled alone.
                Self::Reported(over(in_flight, 0, then, 0, true))
            }
            (Self::Delivering(in_flight), Step::Refuse(reason)) => Self::Reported(PendingReport {
                report: in_flight.hold_for_operator(reason),
                taken: in_flight.taken,
                ended: Instant::now(),
                handled: false,
                load: Load::default().with_rest(),
                turn: 0,
            }),
            (
                slot @ (Self::Free
                | Self::Parked(_)
                | Self::Delivering(_)
                | Self::Reported(_)
                | Self::Asked(_)),
                step,
            ) => {
                error!(
                    slot = slot.name(),
                    step = step.name(),
                    "claim: an impossible step of a slot; report this as a bug"
                );
                slot
            }
        }
    }
}
