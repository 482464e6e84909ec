//! A slot, and the one function that changes it.

use std::time::Duration;

use tracing::error;

use super::in_flight::InFlight;
use super::result::{HandedOver, PendingReport, Policy, hand_over, over};
use crate::wire::values::{Reason, ReasonCode};
use crate::wire::{BatchReply, BatchResult, Load};
use crate::worker::deliver::Outcome;
use crate::worker::retry::UsedUp;

/// A slot, as the process believes it to be.
#[derive(Debug, Default)]
pub(crate) enum Slot {
    /// It has no batch.
    #[default]
    Free,
    /// It is named in a call under way, with the result it reported, if any.
    Asked(Option<PendingReport>),
    /// The sink has its batch.
    Delivering(InFlight),
    /// It has a result for the next call.
    Reported(PendingReport),
    /// It keeps its batch while the sink is unavailable.
    Parked(InFlight),
}

impl Slot {
    /// The state's name, for the log.
    fn name(&self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Asked(_) => "asked",
            Self::Delivering(_) => "delivering",
            Self::Reported(_) => "reported",
            Self::Parked(_) => "parked",
        }
    }

    /// The crashes of the batch that the slot has in hand, also once its result under way is taken.
    pub(crate) fn crashes(&self) -> u32 {
        match self {
            Self::Free | Self::Asked(None) => 0,
            Self::Delivering(in_flight) | Self::Parked(in_flight) => in_flight.tag.crashes,
            Self::Asked(Some(pending)) | Self::Reported(pending) => pending.report.then.in_hand().map_or(0, |next| next.crashes),
        }
    }
}

/// What happens to a slot.
pub(crate) enum Step<'a> {
    /// A call names it.
    Ask,
    /// The call's reply gives it a batch, or none.
    Answer(Option<BatchReply>),
    /// The call failed: what it did is unknown.
    Unanswered,
    /// The sink is done.
    Outcome(Outcome, &'a Policy<'a>),
    /// The sink is unavailable: keep the batch.
    Park,
    /// Try the sink again.
    Resume,
    /// The sink is unavailable for long: other workers may have the batch.
    GiveBack,
    /// The batch cannot be delivered.
    Refuse(Reason),
    /// Its first event has killed too many workers: it is settled so, without a delivery.
    Settle(UsedUp),
}

impl Step<'_> {
    /// The step's name, for the log.
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
    /// The one place where a slot changes. A step that does not fit the slot is a bug: it is
    /// logged, and leaves the slot as it is.
    pub(crate) fn next(self, step: Step<'_>) -> Self {
        match (self, step) {
            (Self::Free, Step::Ask) => Self::Asked(None),
            (Self::Reported(pending), Step::Ask) => Self::Asked(Some(pending)),
            (Self::Asked(_), Step::Answer(None)) => Self::Free,
            (Self::Asked(pending), Step::Answer(Some(reply))) => {
                // The turn goes on where the same object comes back, and begins anew with another
                // one.
                let turn = pending.filter(|pending| pending.report.object == reply.object).map_or(0, |pending| pending.turn);
                Self::Delivering(InFlight::new(reply, turn))
            }
            (Self::Asked(None), Step::Unanswered) => Self::Free,
            (Self::Asked(Some(pending)), Step::Unanswered) => Self::Reported(pending),
            (Self::Delivering(in_flight), Step::Outcome(outcome, policy)) => match hand_over(in_flight, outcome, policy) {
                HandedOver::Reported(pending) => Self::Reported(pending),
                HandedOver::Parked(in_flight) => Self::Parked(in_flight),
            },
            (Self::Delivering(in_flight), Step::Park) => Self::Parked(in_flight),
            (Self::Parked(in_flight), Step::Resume) => Self::Delivering(in_flight),
            (Self::Parked(in_flight), Step::GiveBack) => {
                let (rest, delay) = (in_flight.tag, Some(Duration::ZERO));
                let then = BatchResult::Hold { rest, delay, reason: ReasonCode::Unavailable.into() };
                Self::Reported(over(in_flight, 0, then, 0, true))
            }
            (Self::Delivering(in_flight), Step::Settle(then)) => {
                let then = in_flight.crashed(then);
                // A suspect is settled alone, so that its load may be too high.
                Self::Reported(over(in_flight, 0, then, 0, true))
            }
            (Self::Delivering(in_flight), Step::Refuse(reason)) => Self::Reported(PendingReport {
                report: in_flight.hold_for_operator(reason),
                taken: in_flight.taken,
                handled: false,
                load: Load::default().with_rest(),
                turn: 0,
            }),
            (slot @ (Self::Free | Self::Parked(_) | Self::Delivering(_) | Self::Reported(_) | Self::Asked(_)), step) => {
                error!(slot = slot.name(), step = step.name(), "claim: an impossible step of a slot; report this as a bug");
                slot
            }
        }
    }
}
