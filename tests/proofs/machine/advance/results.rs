//! The results of batches: drawing, sending and committing them. A new result word of a slot needs
//! a line in each of [`Choice`], [`choice`], [`Choice::made_of`], [`Then`], [`Reported::report`] and
//! [`Call::commit`].

use std::time::Duration;

use proptest::prelude::*;
use seriatim::wire::{BatchResult, Report, Tag};

use super::super::reference::{
    Broken, Dead, ERRORS_MAX, End, FAR, Failure, Key, Name, Numbers, OPERATOR, Row,
};
use super::{Call, Slot, WRONG_TYPE};

/// How a call names a slot: not at all, as free, or with a result.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    Skip,
    Free,
    /// The slot has no result yet, but a pop for it may have ended.
    Look,
    Done,
    Yield,
    Part(u8),
    Hold(u8, Delay, bool),
    /// The program that handled the event has died.
    Crashed(u8),
    /// If false, the event becomes a dead letter. If true, it is completed with errors.
    Reject(u8, bool),
    /// A result reported before.
    Late(u8),
    /// The result of a batch that never existed.
    WrongTag,
}

/// Draws a choice, each kind with its own frequency.
pub fn choice() -> impl Strategy<Value = Choice> {
    let delay =
        prop_oneof![3 => Just(Delay::Zero), 2 => Just(Delay::Far), 1 => Just(Delay::Operator)];
    prop_oneof![
        2 => Just(Choice::Skip),
        4 => Just(Choice::Free),
        4 => Just(Choice::Look),
        6 => Just(Choice::Done),
        2 => Just(Choice::Yield),
        2 => any::<u8>().prop_map(Choice::Part),
        3 => (any::<u8>(), delay, any::<bool>()).prop_map(|(count, delay, failed)| Choice::Hold(count, delay, failed)),
        1 => any::<u8>().prop_map(Choice::Crashed),
        3 => (any::<u8>(), prop::bool::weighted(0.3)).prop_map(|(count, complete)| Choice::Reject(count, complete)),
        2 => any::<u8>().prop_map(Choice::Late),
        1 => Just(Choice::WrongTag),
    ]
}

/// The result of the rest of a batch, behind the delivered events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    Done,
    Yield,
    Part {
        next: Numbers,
    },
    Hold {
        rest: Numbers,
        delay: Delay,
        why: &'static str,
    },
    /// The first event of the rest becomes a dead letter, or is completed with errors if
    /// `complete`.
    Reject {
        next: Option<Numbers>,
        id: u64,
        attempts: u32,
        complete: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    Zero,
    Far,
    Operator,
}

impl Choice {
    /// Returns the number of delivered events of a batch of `len` events, and the result of the
    /// rest.
    pub fn made_of(self, tag: Numbers, len: usize) -> (usize, Then) {
        // `whole` returns a count up to the whole batch, `less` a count below it.
        let (whole, less) = (
            |count: u8| usize::from(count) % (len + 1),
            |count: u8| usize::from(count) % len,
        );
        match self {
            Self::Done => (len, Then::Done),
            Self::Yield => (len, Then::Yield),
            Self::Part(count) if whole(count) < len => (
                whole(count),
                Then::Part {
                    next: tag.after(whole(count)),
                },
            ),
            Self::Part(_) => (len, Then::Done),
            Self::Hold(count, delay, failed) => {
                let mut rest = tag.after(less(count));
                if failed {
                    (rest.attempts, rest.crashes) = (rest.attempts + 1, rest.crashes.min(1));
                }
                (
                    less(count),
                    Then::Hold {
                        rest,
                        delay,
                        why: if failed { "retry: no" } else { "stop" },
                    },
                )
            }
            Self::Crashed(count) => {
                let mut rest = tag.after(less(count));
                rest.crashes += 1;
                let (delay, why) = (Delay::Zero, "retry: died");
                (less(count), Then::Hold { rest, delay, why })
            }
            Self::Reject(count, complete) => {
                let count = less(count);
                let next = (count + 1 < len).then(|| tag.after(count + 1));
                (
                    count,
                    Then::Reject {
                        next,
                        id: tag.first + count as u64,
                        attempts: tag.after(count).attempts,
                        complete,
                    },
                )
            }
            Self::Skip | Self::Free | Self::Look | Self::Late(_) | Self::WrongTag => {
                unreachable!("{self:?} is no result")
            }
        }
    }
}

/// The result of one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub object: Name,
    pub tag: Numbers,
    pub count: usize,
    pub last: Option<u64>,
    pub then: Then,
    /// Whether the call states that this result may end an event that has a record of finished
    /// handlers.
    pub handled: bool,
}

/// The error of a rejected event.
pub const ERROR: &str = "bad";

impl Reported {
    /// Returns a result of a batch that never existed.
    pub fn wrong(object: Name, tag: Numbers, len: usize) -> Self {
        Self {
            object,
            tag,
            count: len,
            last: Some(tag.first),
            then: Then::Done,
            handled: true,
        }
    }

    /// Returns the result in the form that the library sends.
    pub fn report(&self) -> Report {
        let then = match &self.then {
            Then::Done => BatchResult::Done,
            Then::Yield => BatchResult::Yield,
            Then::Part { next } => BatchResult::Part {
                next: (*next).into(),
            },
            Then::Hold { rest, delay, why } => {
                let delay = match delay {
                    Delay::Zero => Some(Duration::ZERO),
                    Delay::Far => Some(Duration::from_millis(FAR)),
                    Delay::Operator => None,
                };
                BatchResult::Hold {
                    rest: (*rest).into(),
                    delay,
                    reason: (*why).into(),
                }
            }
            Then::Reject {
                next,
                id,
                attempts,
                complete,
            } => {
                let (next, id, error, attempts) =
                    (next.map(Tag::from), *id, ERROR.to_owned(), *attempts);
                if *complete {
                    BatchResult::Complete {
                        next,
                        id,
                        error,
                        attempts,
                    }
                } else {
                    BatchResult::Reject {
                        next,
                        id,
                        error,
                        attempts,
                    }
                }
            }
        };
        Report {
            object: self.object.clone(),
            tag: self.tag.into(),
            count: self.count,
            last: self.last,
            then,
        }
    }
}

impl From<Numbers> for Tag {
    fn from(numbers: Numbers) -> Self {
        let Numbers {
            first,
            handouts,
            attempts,
            crashes,
            is_keyed,
        } = numbers;
        Self {
            first,
            handouts,
            attempts,
            crashes,
            is_keyed,
        }
    }
}

impl Call<'_> {
    /// Applies the result. Returns whether the slot goes on with its object.
    pub(super) fn commit(&mut self, slot: &mut Slot, reported: &Reported) -> bool {
        let (now, w, name) = (self.state.now, slot.w.as_str(), &reported.object);
        let prev_known = reported
            .last
            .or(self.state.object(name).last_id())
            .unwrap_or(0);
        let (mut count, mut then) = (reported.count, reported.then.clone());
        // The counter must be above the ids of this batch, so that no other object gets them.
        let last = match &then {
            Then::Done | Then::Yield => reported.last.unwrap_or(0),
            _ => (reported.tag.first + self.state.worker(w).batch.len() as u64).saturating_sub(1),
        };
        self.rise_above(last);
        if reported.handled
            && let Some(wrong) = self
                .state
                .object(name)
                .handled
                .clone()
                .and_then(|kept| self.state.cannot_push(&kept))
        {
            // If the emits of the handlers cannot be pushed, the event is not finalized. So no emit
            // is lost.
            let why = [b"quarantine: ", &wrong[..], b":events is a hash"].concat();
            self.state
                .hold_batch(w, name, OPERATOR, reported.tag.held_id(&why));
            self.tell_quarantined(name, &why);
            return false;
        }
        if self.log && (count > 0 || matches!(then, Then::Reject { .. })) {
            if self.state.broken == Some(Broken::Log) {
                // If the row cannot be written to the log, the event is not finalized either.
                let why = "quarantine: event.log is a set";
                self.state
                    .hold_batch(w, name, OPERATOR, reported.tag.held_id(why.as_bytes()));
                self.tell_quarantined(name, why.as_bytes());
                return false;
            }
            self.log_delivered(w, reported);
        }
        // Handler progress below the batch is of an event that was lost, so it is over.
        let before_batch = reported.tag.first.checked_sub(1);
        if let Then::Reject {
            next,
            id,
            attempts,
            complete,
        } = reported.then
        {
            let event = self.state.worker(w).batch[count].clone();
            let (stream, broken) = if complete && !self.log {
                ("event.log", Broken::Log)
            } else {
                ("events.dead", Broken::Dead)
            };
            if self.state.broken == Some(broken) && !(complete && self.log) {
                // If the event cannot be written to the stream, the event is held, so that it is
                // not lost.
                let rest = Numbers {
                    first: id,
                    attempts,
                    ..reported.tag
                };
                let why = format!("quarantine: {stream}: {WRONG_TYPE}");
                self.drop_front(slot, reported, count, reported.last.or(before_batch));
                self.state
                    .hold_batch(&slot.w, name, OPERATOR, rest.held_id(why.as_bytes()));
                self.keep_error(reported, attempts, ERROR);
                return false;
            }
            let (prev, error): (_, Name) = (prev_known.to_string(), ERROR.into());
            let row = Dead {
                serial: 0,
                id,
                prev: prev.clone(),
                object: name.clone(),
                event: event.clone(),
                error,
                attempts,
            };
            if !complete {
                self.state
                    .bury(id, prev, name, event, row.error.clone(), attempts);
            }
            if complete || self.log {
                let status = if complete {
                    "completed_with_errors"
                } else {
                    "dead"
                };
                let results = self.results_of(reported, id).filter(|_| self.log);
                self.state.log.push(Row {
                    status,
                    event: row,
                    taken: self.log,
                    results,
                });
            }
            count += 1;
            then = match next {
                Some(next) => Then::Part { next },
                None => Then::Done,
            };
        }
        let over = match (&reported.then, &then) {
            (Then::Reject { id, .. }, _) => Some(*id),
            (_, Then::Done | Then::Yield) => None,
            _ => reported.last.or(before_batch),
        };
        self.drop_front(slot, reported, count, over);
        slot.prev = prev_known;
        match then {
            Then::Done => {
                self.state.worker(&slot.w).tag = None;
                true
            }
            Then::Yield => {
                self.state.worker(&slot.w).tag = None;
                let queued = self
                    .state
                    .object(name)
                    .queue
                    .right()
                    .is_none_or(|queue| !queue.is_empty());
                if queued {
                    self.state.hold(&slot.w, name, now, None);
                }
                !queued
            }
            Then::Part { next } => {
                self.state.worker(&slot.w).tag = Some(next.tag());
                self.give_again(slot, name);
                false
            }
            Then::Hold { rest, delay, why } => {
                let due = match delay {
                    Delay::Zero => now,
                    Delay::Far => FAR + now,
                    Delay::Operator => OPERATOR,
                };
                self.state
                    .hold_batch(&slot.w, name, due, rest.held_id(why.as_bytes()));
                self.keep_error(reported, rest.attempts, why.trim_start_matches("retry: "));
                false
            }
            Then::Reject { .. } => unreachable!("a dead letter is written, or the event is held"),
        }
    }

    /// Writes a row for each delivered event.
    fn log_delivered(&mut self, w: &str, reported: &Reported) {
        let (mut numbers, mut prev) = (
            reported.tag,
            self.state.object(&reported.object).last_id().unwrap_or(0),
        );
        let batch = self.state.worker(w).batch.clone();
        for event in batch.into_iter().take(reported.count) {
            let Numbers {
                first: id,
                attempts,
                ..
            } = numbers;
            let (object, error) = (reported.object.clone(), Name::new());
            let event = Dead {
                serial: 0,
                id,
                prev: prev.to_string(),
                object,
                event,
                error,
                attempts,
            };
            let results = self.results_of(reported, id);
            self.state.log.push(Row {
                status: "completed",
                event,
                taken: true,
                results,
            });
            (numbers, prev) = (numbers.after(1), id);
        }
    }

    /// Returns the results of the event's handlers, if the call states that a record of them may
    /// exist.
    fn results_of(&mut self, reported: &Reported, id: u64) -> Option<String> {
        self.state
            .object(&reported.object)
            .handled
            .as_ref()
            .filter(|_| reported.handled)?
            .results_of(id)
    }

    /// Removes the first `count` events from the batch, and sets the last delivered id. If the
    /// event of the record of handlers is finalized, the record ends, too. `over` is the id of the
    /// last finalized event, or none if no event is left.
    fn drop_front(&mut self, slot: &Slot, reported: &Reported, count: usize, over: Option<u64>) {
        let results = self.results_of(reported, reported.tag.first);
        let batch = &mut self.state.worker(&slot.w).batch;
        // The batch may have lost events, so a result may name more events than the batch has.
        batch.drain(..count.min(batch.len()));
        let object = self.state.object(&reported.object);
        let is_over = object
            .handled
            .as_ref()
            .is_some_and(|kept| over.is_none_or(|over| kept.id <= over));
        if reported.handled && is_over {
            self.state.end_handled(&reported.object);
        }
        if count > 0 && reported.tag.attempts > 0 {
            self.state.object(&reported.object).errors = Key::default();
        }
        if count > 0 && reported.tag.tag().contains(' ') {
            self.end_first(reported, results);
            self.state.object(&reported.object).key = None;
        }
        let object = self.state.object(&reported.object);
        if let Some(last) = reported.last {
            (object.last, object.fades) = (Key::Right(Some(last.to_string())), None);
        }
    }

    /// Writes the end of the batch's first event, if the event is awaited.
    fn end_first(&mut self, reported: &Reported, results: Option<String>) {
        let Numbers {
            first: id,
            attempts,
            ..
        } = reported.tag;
        let key = self.state.object(&reported.object).key;
        let Some((_, key)) = key.filter(|(of, _)| *of == id) else {
            return;
        };
        let (status, error) = match reported.then {
            Then::Reject { complete, .. } if reported.count == 0 => match complete {
                true => ("completed_with_errors", ERROR),
                false => ("dead", ERROR),
            },
            _ => ("completed", ""),
        };
        let end = End {
            status,
            id,
            error: error.into(),
            attempts,
            results,
        };
        self.state.end(&reported.object, key, end);
    }

    /// Records the error of the first event that was not delivered, if it has failed once more than
    /// the tag of its batch states.
    fn keep_error(&mut self, reported: &Reported, attempt: u32, error: &'static str) {
        let at = self.state.now;
        let object = self.state.object(&reported.object);
        if let Key::Right(errors) = &mut object.errors
            && attempt > reported.tag.after(reported.count).attempts
        {
            errors.insert(0, Failure { at, attempt, error });
            errors.truncate(ERRORS_MAX);
        }
    }
}
