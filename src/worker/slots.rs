//! The slots of a process, and the one function that changes them.
//!
//! What is here is belief: the truth is in Redis, and every reply of `advance` puts the belief
//! right. If the process dies, the belief dies with it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::{error, warn};

use super::deliver::Outcome;
use super::retry::{RetryPolicy, UsedUp};
use crate::event::{NAME_BYTES_MAX, ObjectName};
use crate::sink::{Batch, Stop};
use crate::wire::values::{Reason, ReasonCode};
use crate::wire::{BatchReply, Load, Report, Results, Tag};

/// Ids of one batch are this far apart: there is one partition.
const STRIDE: u64 = 1;

/// A batch in a slot's hands.
#[derive(Debug, Clone)]
pub(crate) struct Hand {
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

impl Hand {
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

    fn id(&self, at: usize) -> u64 {
        self.batch.first + at as u64 * STRIDE
    }

    /// The tag of what follows the event behind the first `count`; nothing where that is the last
    /// one.
    pub(crate) fn behind(&self, count: usize) -> Option<Tag> {
        (count + 1 < self.batch.len()).then(|| self.tag.after(count + 1, STRIDE))
    }

    pub(crate) fn report(&self, count: usize, then: Results) -> Report {
        let last = count.checked_sub(1).map(|at| self.id(at));
        Report { object: self.raw.clone(), tag: self.tag, count, last, then }
    }

    /// Its first event has killed too many workers.
    pub(crate) fn crashed(&self, then: UsedUp) -> Results {
        let reason = Reason::new(ReasonCode::Crashes, format!("died {} times with this event in hand", self.tag.crashes));
        let (next, id, attempts, error) = (self.behind(0), self.id(0), self.tag.attempts, reason.to_string());
        match then {
            UsedUp::Hold => Results::Hold { rest: self.tag, delay: None, reason },
            UsedUp::DeadLetter => Results::Reject { next, id, error, attempts },
            UsedUp::CompleteWithErrors => Results::Complete { next, id, error, attempts },
        }
    }

    /// The whole batch, held until an operator releases it.
    pub(crate) fn hold_for_operator(&self, reason: Reason) -> Report {
        self.report(0, Results::Hold { rest: self.tag, delay: None, reason })
    }
}

/// A slot, as the process believes it to be.
#[derive(Debug, Default)]
pub(crate) enum Slot {
    /// It has no batch.
    #[default]
    Free,
    /// It is named in a call under way, with the result it reported, if any.
    Asked(Option<Told>),
    /// The sink has its batch.
    Delivering(Hand),
    /// It has a result for the next call.
    Reported(Told),
    /// It keeps its batch while the sink is unavailable.
    Parked(Hand),
}

impl Slot {
    /// The crashes of the batch that the slot has in hand, also once its result under way is taken.
    pub(crate) fn crashes(&self) -> u32 {
        match self {
            Self::Free | Self::Asked(None) => 0,
            Self::Delivering(hand) | Self::Parked(hand) => hand.tag.crashes,
            Self::Asked(Some(told)) | Self::Reported(told) => match &told.report.then {
                Results::Part { next } => next.crashes,
                Results::Reject { next, .. } | Results::Complete { next, .. } => next.map_or(0, |next| next.crashes),
                Results::Done | Results::Yield | Results::Hold { .. } => 0,
            },
        }
    }
}

/// A result, and what is remembered for the batch that may follow.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) report: Report,
    /// When the batch was given.
    pub(crate) taken: Instant,
    /// It ends the event of which handlers have finished something.
    pub(crate) handled: bool,
    /// The work that it is for Redis.
    pub(crate) load: Load,
    turn: usize,
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

impl Slot {
    /// The one place where a slot changes. A step that does not fit the slot leaves it as it is: it
    /// speaks of something that is over.
    pub(crate) fn next(self, step: Step<'_>) -> Self {
        match (self, step) {
            (Self::Free, Step::Ask) => Self::Asked(None),
            (Self::Reported(told), Step::Ask) => Self::Asked(Some(told)),
            (Self::Asked(_), Step::Answer(None)) => Self::Free,
            (Self::Asked(told), Step::Answer(Some(reply))) => {
                // The turn goes on where the same object comes back, and begins anew with another
                // one.
                let turn = told.filter(|told| told.report.object == reply.object).map_or(0, |told| told.turn);
                Self::Delivering(Hand::new(reply, turn))
            }
            (Self::Asked(None), Step::Unanswered) => Self::Free,
            (Self::Asked(Some(told)), Step::Unanswered) => Self::Reported(told),
            (Self::Delivering(hand), Step::Outcome(outcome, policy)) => hand_over(hand, outcome, policy),
            (Self::Delivering(hand), Step::Park) => Self::Parked(hand),
            (Self::Parked(hand), Step::Resume) => Self::Delivering(hand),
            (Self::Parked(hand), Step::GiveBack) => {
                let then = Results::Hold { rest: hand.tag, delay: Some(Duration::ZERO), reason: ReasonCode::Unavailable.into() };
                tell_over(hand, 0, then, 0, true)
            }
            (Self::Delivering(hand), Step::Settle(then)) => {
                let then = hand.crashed(then);
                // A suspect is settled alone, so that its load may be told too high.
                tell_over(hand, 0, then, 0, true)
            }
            (Self::Delivering(hand), Step::Refuse(reason)) => Self::Reported(Told {
                report: hand.hold_for_operator(reason),
                taken: hand.taken,
                handled: false,
                load: Load::default().with_rest(),
                turn: 0,
            }),
            (slot @ (Self::Free | Self::Parked(_) | Self::Delivering(_) | Self::Reported(_) | Self::Asked(_)), _) => slot,
        }
    }
}

/// Turns an outcome into the result the next call reports, or parks the batch.
fn hand_over(hand: Hand, outcome: Outcome, policy: &Policy<'_>) -> Slot {
    let (len, count, tag) = (hand.batch.len(), outcome.count, hand.tag);
    let turn_over = policy.stopping || hand.turn >= policy.turn_max;
    let then = match outcome.stop {
        Some(Stop::Transient { error, retry_after }) => {
            let payload = hand.batch.payloads.get(count).map_or(&[][..], |payload| payload);
            failed(&hand, count, shortened(&error), retry_after, (policy.retry_of)(payload))
        }
        Some(Stop::Rejected { error }) => {
            let attempts = tag.after(count, STRIDE).attempts;
            Results::Reject { next: hand.behind(count), id: hand.id(count), error: shortened(&error), attempts }
        }
        Some(Stop::Unavailable { .. }) if count == 0 => return Slot::Parked(hand),
        Some(Stop::Unavailable { .. }) | None if count < len => Results::Part { next: tag.after(count, STRIDE) },
        Some(Stop::Unavailable { .. }) => Results::Yield,
        None if turn_over => Results::Yield,
        None => Results::Done,
    };
    // What lets go of the object ends its turn, also where the same slot gets it back in the same
    // call.
    let ends = matches!(then, Results::Yield | Results::Hold { .. });
    let turn = if ends { 0 } else { hand.turn - (len - count) };
    tell_over(hand, count, then, turn, policy.logs)
}

/// The result, with what it ends.
fn tell_over(hand: Hand, count: usize, then: Results, turn: usize, logs: bool) -> Slot {
    let over = match &then {
        Results::Done | Results::Yield => u64::MAX,
        Results::Part { .. } | Results::Hold { .. } => hand.id(count),
        Results::Reject { id, .. } | Results::Complete { id, .. } => id + 1,
    };
    let handled = hand.handled.is_some_and(|id| id < over);
    let load = load(&hand, &then, count, logs, handled);
    Slot::Reported(Told { report: hand.report(count, then), taken: hand.taken, handled, load, turn })
}

/// The work of a result: the events that leave the batch, their rows in the log, and what handlers
/// have emitted and finished.
fn load(hand: &Hand, then: &Results, count: usize, logs: bool, handled: bool) -> Load {
    let buried = usize::from(matches!(then, Results::Reject { .. } | Results::Complete { .. }));
    let over = &hand.batch.payloads[..(count + buried).min(hand.batch.len())];
    let bytes = over.iter().map(Bytes::len).sum();
    let load = Load::of_batch(over.len(), bytes);
    let load = if matches!(then, Results::Done | Results::Yield) { load } else { load.with_rest() };
    let load = if logs { load.with_rows(over.len(), bytes) } else { load };
    if handled { load.with_emits(hand.emitted.0, hand.emitted.1).with_finished(hand.finished) } else { load }
}

/// The event behind the first `count` has failed: it is tried again later, unless its attempts are
/// used up.
pub(crate) fn failed(hand: &Hand, count: usize, error: String, retry_after: Option<Duration>, retry: RetryPolicy) -> Results {
    let rest = hand.tag.after(count, STRIDE).failed();
    let (next, id, attempts) = (hand.behind(count), hand.id(count), rest.attempts);
    match retry.used_up(attempts) {
        None => {
            let delay = retry_after.unwrap_or_else(|| retry.backoff.wait(attempts));
            Results::Hold { rest, delay: Some(delay), reason: Reason::new(ReasonCode::Retry, error) }
        }
        Some(UsedUp::Hold) => {
            let text = format!("failed {attempts} times, at last: {error}");
            Results::Hold { rest, delay: None, reason: Reason::new(ReasonCode::Attempts, text) }
        }
        Some(UsedUp::DeadLetter) => Results::Reject { next, id, error, attempts },
        Some(UsedUp::CompleteWithErrors) => Results::Complete { next, id, error, attempts },
    }
}

/// Logs an object that a call of advance has put aside, or a name that it has dropped. The name is
/// escaped.
pub(crate) fn tell_put_aside(object: &str, why: &str) {
    match why.starts_with("foreign: ") {
        true => warn!(%object, why, "claim: the marker is dropped"),
        false => error!(%object, why, "claim: the object is held until an operator releases it"),
    }
}

/// An error as it is kept in Redis: the first thousand bytes of it.
pub(crate) fn shortened(error: &str) -> String {
    let end = (0..=error.len().min(1000)).rev().find(|at| error.is_char_boundary(*at)).unwrap_or(0);
    error[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::retry::{Backoff, Limit};

    const RETRY: RetryPolicy = RetryPolicy { backoff: Backoff::Fixed(Duration::from_millis(1)), limit: None };
    const POLICY: Policy<'static> = Policy { turn_max: 4, stopping: false, logs: false, retry_of: &|_| RETRY };

    fn reply(tag: &str, events: usize) -> BatchReply {
        let events = vec![Bytes::from_static(b"1"); events];
        BatchReply { slot: 0, object: Bytes::from_static(b"o"), tag: tag.parse().expect("a tag"), prev: 3, events }
    }

    fn delivering(tag: &str, events: usize) -> Slot {
        Slot::Free.next(Step::Ask).next(Step::Answer(Some(reply(tag, events))))
    }

    fn reported(slot: Slot, count: usize, stop: Option<Stop>) -> Report {
        match slot.next(Step::Outcome(Outcome { count, stop }, &POLICY)) {
            Slot::Reported(told) => told.report,
            other => panic!("{other:?}"),
        }
    }

    /// What handlers have finished of an event is kept until that event is over, and no longer.
    #[test]
    fn what_handlers_have_finished_goes_with_their_event() {
        let is_over = |tag: &str, handled: Option<u64>, count: usize, stop: Option<Stop>| {
            let mut slot = delivering(tag, 3);
            if let (Slot::Delivering(hand), Some(id)) = (&mut slot, handled) {
                hand.handled = Some(id);
            }
            match slot.next(Step::Outcome(Outcome { count, stop }, &POLICY)) {
                Slot::Reported(told) => told.handled,
                other => panic!("{other:?}"),
            }
        };
        let (transient, rejected) = (|| Some(Stop::transient("down")), || Some(Stop::rejected("bad")));
        assert!(!is_over("7", None, 3, None));
        assert!(is_over("7", Some(9), 3, None));
        assert!(!is_over("7", Some(8), 1, transient()));
        assert!(is_over("7", Some(7), 1, transient()));
        assert!(is_over("7", Some(8), 1, rejected()));
        assert!(!is_over("7", Some(9), 1, rejected()));
        assert!(!is_over("7", Some(8), 1, None));
        // Whoever had the batch before may have kept something of its first event.
        assert!(is_over("7 1", None, 3, None) && is_over("7 0 0 1", None, 1, None));
        assert!(!is_over("7 1", None, 0, transient()));
    }

    #[test]
    fn all_delivered_goes_on() {
        let report = reported(delivering("7", 2), 2, None);
        assert_eq!((report.count, report.last, report.then), (2, Some(8), Results::Done));
    }

    /// One call wrote the log's rows of all slots, 32,768 with default settings. A result tells its
    /// work now, and a call takes in so much and no more.
    #[test]
    fn a_result_tells_its_work() {
        let load_of = |slot: Slot, count: usize, stop: Option<Stop>, logs: bool| match slot
            .next(Step::Outcome(Outcome { count, stop }, &Policy { logs, ..POLICY }))
        {
            Slot::Reported(told) => told.load,
            other => panic!("{other:?}"),
        };
        let delivered = Load::of_batch(3, 3);
        assert_eq!(load_of(delivering("7", 3), 3, None, false), delivered);
        assert_eq!(load_of(delivering("7", 3), 3, None, true), delivered.with_rows(3, 3));
        let failed = load_of(delivering("7", 3), 1, Some(Stop::transient("down")), true);
        assert_eq!(failed, Load::of_batch(1, 1).with_rest().with_rows(1, 1));
        let buried = load_of(delivering("7", 3), 2, Some(Stop::rejected("bad")), true);
        assert_eq!(buried, delivered.with_rest().with_rows(3, 3));
        // Handlers of 16 slots pushed 8 MiB each in one call.
        let mut slot = delivering("7", 3);
        if let Slot::Delivering(hand) = &mut slot {
            (hand.handled, hand.emitted) = (Some(9), (1000, 1 << 20));
        }
        assert_eq!(load_of(slot, 3, None, false), delivered.with_emits(1000, 1 << 20));
        // A call read 1,000 subtasks of each of 128 slots; those of an event that goes on are not
        // read.
        let remembers = |id: u64| {
            let mut slot = delivering("7", 3);
            if let Slot::Delivering(hand) = &mut slot {
                (hand.handled, hand.finished) = (Some(id), 1000);
            }
            slot
        };
        assert_eq!(load_of(remembers(9), 3, None, false), delivered.with_finished(1000));
        let goes_on = load_of(remembers(8), 1, Some(Stop::transient("down")), false);
        assert_eq!(goes_on, Load::of_batch(1, 1).with_rest());
    }

    #[test]
    fn a_long_turn_yields() {
        assert_eq!(reported(delivering("7", 4), 4, None).then, Results::Yield);
    }

    /// A slot that yielded and got the same object back in the same call went on counting: from
    /// then on, every batch yielded.
    #[test]
    fn a_turn_begins_anew_after_it_was_yielded() {
        let yielded = delivering("7", 4).next(Step::Outcome(Outcome { count: 4, stop: None }, &POLICY));
        let again = yielded.next(Step::Ask).next(Step::Answer(Some(reply("11 1", 2))));
        assert_eq!(reported(again, 2, None).then, Results::Done);
    }

    #[test]
    fn a_failure_holds_the_rest_and_counts() {
        let report = reported(delivering("7", 3), 1, Some(Stop::transient("down")));
        let rest = Tag { first: 8, attempts: 1, ..Tag::default() };
        let then = Results::Hold { rest, delay: Some(Duration::from_millis(1)), reason: "retry: down".into() };
        assert_eq!((report.count, report.last, report.then), (1, Some(7), then));
    }

    /// The limit counts the attempt that has just failed; a wait that the sink names is no attempt
    /// more.
    #[test]
    fn the_last_attempt_is_followed_by_what_the_policy_says() {
        let last = |then: UsedUp, tag: &str, count: usize| {
            let retry_of = |_: &[u8]| RetryPolicy { limit: Some(Limit { attempts: 3, then }), ..RETRY };
            let stop = Stop::Transient { error: "down".to_owned(), retry_after: Some(Duration::from_secs(9)) };
            let policy = Policy { retry_of: &retry_of, ..POLICY };
            match delivering(tag, 3).next(Step::Outcome(Outcome { count, stop: Some(stop) }, &policy)) {
                Slot::Reported(told) => told.report.then,
                other => panic!("{other:?}"),
            }
        };
        let rest = Tag { first: 7, handouts: 2, attempts: 2, crashes: 0 };
        let again = Results::Hold { rest, delay: Some(Duration::from_secs(9)), reason: "retry: down".into() };
        assert_eq!(last(UsedUp::DeadLetter, "7 2 1", 0), again);
        let (next, error) = (Some(Tag { first: 8, handouts: 2, ..Tag::default() }), "down".to_owned());
        let dead = Results::Reject { next, id: 7, error: error.clone(), attempts: 3 };
        assert_eq!(last(UsedUp::DeadLetter, "7 2 2", 0), dead);
        let complete = Results::Complete { next, id: 7, error, attempts: 3 };
        assert_eq!(last(UsedUp::CompleteWithErrors, "7 2 2", 0), complete);
        let reason = "attempts: failed 3 times, at last: down".into();
        let held = Results::Hold { rest: Tag { attempts: 3, ..rest }, delay: None, reason };
        assert_eq!(last(UsedUp::Hold, "7 2 2", 0), held);
        // The attempts were those of the first event, and crashes are none.
        assert!(matches!(last(UsedUp::DeadLetter, "7 2 2", 1), Results::Hold { rest, .. } if rest.attempts == 1));
        assert!(matches!(last(UsedUp::DeadLetter, "7 2 0 4", 0), Results::Hold { rest, .. } if rest.attempts == 1));
    }

    /// The policy is that of the event that failed.
    #[test]
    fn the_event_that_failed_is_asked_for_its_policy() {
        let retry_of = |payload: &[u8]| {
            assert_eq!(payload, b"2");
            RETRY
        };
        let events = ["1", "2", "3"].map(|event| Bytes::from_static(event.as_bytes())).to_vec();
        let slot = Slot::Free.next(Step::Ask).next(Step::Answer(Some(BatchReply { events, ..reply("7", 3) })));
        let policy = Policy { retry_of: &retry_of, ..POLICY };
        let slot = slot.next(Step::Outcome(Outcome { count: 1, stop: Some(Stop::transient("down")) }, &policy));
        assert!(matches!(slot, Slot::Reported(told) if matches!(told.report.then, Results::Hold { .. })));
    }

    #[test]
    fn a_rejected_event_leaves_the_rest() {
        let report = reported(delivering("7 1 2", 3), 0, Some(Stop::rejected("bad")));
        let next = Some(Tag { first: 8, handouts: 1, ..Tag::default() });
        assert_eq!(report.then, Results::Reject { next, id: 7, error: "bad".to_owned(), attempts: 2 });
        assert_eq!((report.count, report.last), (0, None));
        let report = reported(delivering("7", 1), 0, Some(Stop::rejected("bad")));
        assert!(matches!(report.then, Results::Reject { next: None, id: 7, .. }));
        let report = reported(delivering("7", 4), 2, Some(Stop::rejected("bad")));
        let next = Some(Tag { first: 10, ..Tag::default() });
        assert_eq!(report.then, Results::Reject { next, id: 9, error: "bad".to_owned(), attempts: 0 });
    }

    #[test]
    fn a_suspect_is_delivered_alone() {
        let slot = delivering("7 1 0 2", 3);
        let Slot::Delivering(hand) = &slot else { panic!() };
        assert_eq!(hand.offered(), 1);
        let next = Tag { first: 8, handouts: 1, attempts: 0, crashes: 1 };
        assert_eq!(reported(slot, 1, None).then, Results::Part { next });
    }

    /// An event that has killed too many workers is settled without a delivery, and what follows it
    /// stays suspect.
    #[test]
    fn a_killer_is_settled_as_it_is_said() {
        let settled = |then| match delivering("7 1 2 5", 3).next(Step::Settle(then)) {
            Slot::Reported(told) => (told.report.count, told.handled, told.report.then),
            other => panic!("{other:?}"),
        };
        let (next, error) =
            (Some(Tag { first: 8, handouts: 1, attempts: 0, crashes: 1 }), "crashes: died 5 times with this event in hand");
        let dead = Results::Reject { next, id: 7, error: error.to_owned(), attempts: 2 };
        assert_eq!(settled(UsedUp::DeadLetter), (0, true, dead));
        let complete = Results::Complete { next, id: 7, error: error.to_owned(), attempts: 2 };
        assert_eq!(settled(UsedUp::CompleteWithErrors), (0, true, complete));
    }

    /// What the result under way ends is in hand no more; what it leaves is.
    #[test]
    fn the_crashes_in_hand_are_those_of_what_stays() {
        let tag = "7 1 0 3";
        assert_eq!(delivering(tag, 2).crashes(), 3);
        assert_eq!(delivering(tag, 2).next(Step::Park).crashes(), 3);
        let part = delivering(tag, 2).next(Step::Outcome(Outcome { count: 1, stop: None }, &POLICY));
        assert_eq!((part.crashes(), part.next(Step::Ask).crashes()), (1, 1));
        let done = delivering(tag, 1).next(Step::Outcome(Outcome { count: 1, stop: None }, &POLICY));
        assert_eq!((done.crashes(), Slot::Free.crashes()), (0, 0));
    }

    #[test]
    fn an_unavailable_sink_parks_the_batch_and_counts_nothing() {
        let unavailable = || Some(Stop::unavailable("down"));
        let parked = delivering("7", 2).next(Step::Outcome(Outcome { count: 0, stop: unavailable() }, &POLICY));
        assert!(matches!(&parked, Slot::Parked(hand) if hand.tag.attempts == 0));
        assert!(matches!(parked.next(Step::Resume), Slot::Delivering(_)));
        assert!(matches!(reported(delivering("7", 2), 1, unavailable()).then, Results::Part { next } if next.to_string() == "8"));
    }

    #[test]
    fn a_lost_reply_keeps_the_result() {
        let slot = delivering("7", 1).next(Step::Outcome(Outcome { count: 1, stop: None }, &POLICY));
        let slot = slot.next(Step::Ask).next(Step::Unanswered);
        assert!(matches!(&slot, Slot::Reported(told) if told.report.then == Results::Done));
        assert!(matches!(Slot::Free.next(Step::Ask).next(Step::Unanswered), Slot::Free));
    }

    /// Every step meets every slot: the steps that fit change it, all others leave it as it is.
    #[test]
    fn only_steps_that_fit_change_a_slot() {
        let slots: [fn() -> Slot; 6] = [
            || Slot::Free,
            || Slot::Free.next(Step::Ask),
            || delivering("7", 2),
            || delivering("7", 2).next(Step::Park),
            || delivering("7", 2).next(Step::Outcome(Outcome { count: 2, stop: None }, &POLICY)),
            || delivering("7", 2).next(Step::Outcome(Outcome { count: 2, stop: None }, &POLICY)).next(Step::Ask),
        ];
        let steps: [fn() -> Step<'static>; 10] = [
            || Step::Ask,
            || Step::Answer(None),
            || Step::Answer(Some(reply("9", 1))),
            || Step::Unanswered,
            || Step::Outcome(Outcome { count: 2, stop: None }, &POLICY),
            || Step::Park,
            || Step::Resume,
            || Step::Refuse("no".into()),
            || Step::Settle(UsedUp::DeadLetter),
            || Step::GiveBack,
        ];
        let kind = |slot: Slot| match slot {
            Slot::Free => "free",
            Slot::Asked(None) => "asked",
            Slot::Asked(Some(_)) => "told",
            Slot::Delivering(hand) if hand.tag.first == 9 => "new",
            Slot::Delivering(_) => "has",
            Slot::Parked(_) => "parked",
            Slot::Reported(_) => "result",
        };
        // In the order of the slots above: what each of the steps makes of it.
        let expected = [
            ["asked", "free", "free", "free", "free", "free", "free", "free", "free", "free"],
            ["asked", "free", "new", "free", "asked", "asked", "asked", "asked", "asked", "asked"],
            ["has", "has", "has", "has", "result", "parked", "has", "result", "result", "has"],
            ["parked", "parked", "parked", "parked", "parked", "parked", "has", "parked", "parked", "result"],
            ["told", "result", "result", "result", "result", "result", "result", "result", "result", "result"],
            ["told", "free", "new", "result", "told", "told", "told", "told", "told", "told"],
        ];
        let found = slots.map(|slot| steps.map(|step| kind(slot().next(step()))));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_turn_begins_anew_with_another_object() {
        let told = delivering("7", 3).next(Step::Outcome(Outcome { count: 3, stop: None }, &POLICY));
        let other = BatchReply { object: Bytes::from_static(b"other"), ..reply("10", 3) };
        let slot = told.next(Step::Ask).next(Step::Answer(Some(other)));
        assert_eq!(reported(slot, 3, None).then, Results::Done);
    }

    #[test]
    fn a_process_that_stops_goes_on_with_nothing() {
        let policy = Policy { stopping: true, ..POLICY };
        let slot = delivering("7", 1).next(Step::Outcome(Outcome { count: 1, stop: None }, &policy));
        assert!(matches!(slot, Slot::Reported(told) if told.report.then == Results::Yield));
    }

    #[test]
    fn what_cannot_be_offered_waits_for_an_operator() {
        let slot = Slot::Free.next(Step::Ask);
        let slot = slot.next(Step::Answer(Some(BatchReply { object: Bytes::from_static(b"\xff"), ..reply("7 1 2", 1) })));
        let Slot::Delivering(hand) = &slot else { panic!("{slot:?}") };
        let reason = hand.unfit().expect("not UTF-8");
        assert_eq!(reason.to_string(), "quarantine: an object name is UTF-8, this one is not at byte 0");
        let Slot::Reported(told) = slot.next(Step::Refuse(reason.clone())) else { panic!("no result") };
        let rest = Tag { first: 7, handouts: 1, attempts: 2, ..Tag::default() };
        assert_eq!(told.report.then, Results::Hold { rest, delay: None, reason });
        let Slot::Delivering(sound) = delivering("7", 1) else { panic!("no batch") };
        assert_eq!(sound.unfit(), None);
        let unfit = |name: &[u8]| Hand::new(BatchReply { object: Bytes::copy_from_slice(name), ..reply("7", 1) }, 0).unfit();
        for fit in ["work 1", "é:日本", "a\\b", &"x".repeat(512)] {
            assert_eq!(unfit(fit.as_bytes()), None, "{fit:?}");
        }
        for (name, why) in [
            (&b"work:1\n"[..], "no control characters, this one has U+000A at byte 6"),
            (b"\x7f", "no control characters, this one has U+007F at byte 0"),
            ("a\u{85}".as_bytes(), "no control characters, this one has U+0085 at byte 1"),
            (&[b'x'; 513], "at most 512 bytes, this one has 513"),
        ] {
            let found = unfit(name).expect("unfit").to_string();
            assert!(found.starts_with("quarantine: an object name ") && found.ends_with(why), "{found}");
        }
    }

    #[test]
    fn errors_are_shortened_between_letters() {
        assert_eq!(shortened(&"é".repeat(600)).len(), 1000);
        assert_eq!(shortened(&format!("a{}", "é".repeat(600))).len(), 999);
    }
}
