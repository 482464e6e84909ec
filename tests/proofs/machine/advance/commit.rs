//! Commit: what a slot says of its batch.

use super::super::reference::{Broken, Dead, ERRORS_MAX, FAR, Failure, Key, Name, Numbers, OPERATOR, Row};
use super::{Call, Delay, ERROR, Slot, Then, Told, WRONG_TYPE};

impl Call<'_> {
    /// Answers whether the slot goes on with its object.
    pub(super) fn commit(&mut self, slot: &mut Slot, told: &Told) -> bool {
        let (now, w, name) = (self.state.now, slot.w.as_str(), &told.object);
        let prev_known = told.last.or(self.state.object(name).last_id()).unwrap_or(0);
        let (mut count, mut then) = (told.count, told.then.clone());
        if told.handled
            && let Some(wrong) = self.state.object(name).handled.clone().and_then(|kept| self.state.cannot_push(&kept))
        {
            // What handlers have emitted may not be lost: the event is not over.
            let why = [b"quarantine: ", &wrong[..], b":events is a hash"].concat();
            self.state.hold_batch(w, name, OPERATOR, told.tag.held_id(&why));
            self.tell_quarantined(name, &why);
            return false;
        }
        if self.log && (count > 0 || matches!(then, Then::Reject { .. })) {
            if self.state.broken == Some(Broken::Log) {
                // Neither may the event be gone without its row.
                let why = "quarantine: event.log is a set";
                self.state.hold_batch(w, name, OPERATOR, told.tag.held_id(why.as_bytes()));
                self.tell_quarantined(name, why.as_bytes());
                return false;
            }
            self.log_delivered(w, told);
        }
        if let Then::Reject { next, id, attempts, complete } = told.then {
            let event = self.state.worker(w).batch[count].clone();
            let (stream, broken) = if complete && !self.log { ("event.log", Broken::Log) } else { ("events.dead", Broken::Dead) };
            if self.state.broken == Some(broken) && !(complete && self.log) {
                // Rather held in its place than lost.
                let rest = Numbers { first: id, attempts, ..told.tag };
                let why = format!("quarantine: {stream}: {WRONG_TYPE}");
                self.drop_front(slot, told, count, told.last.or(Some(0)));
                self.state.hold_batch(&slot.w, name, OPERATOR, rest.held_id(why.as_bytes()));
                self.keep_error(told, attempts, ERROR);
                return false;
            }
            let (prev, error): (_, Name) = (prev_known.to_string(), ERROR.into());
            let row = Dead { serial: 0, id, prev: prev.clone(), object: name.clone(), event: event.clone(), error, attempts };
            if !complete {
                self.state.bury(id, prev, name, event, row.error.clone(), attempts);
            }
            if complete || self.log {
                let status = if complete { "completed_with_errors" } else { "dead" };
                let results = self.results_of(told, id).filter(|_| self.log);
                self.state.log.push(Row { status, event: row, taken: self.log, results });
            }
            count += 1;
            then = match next {
                Some(next) => Then::Part { next },
                None => Then::Done,
            };
        }
        let over = match (&told.then, &then) {
            (Then::Reject { id, .. }, _) => Some(*id),
            (_, Then::Done | Then::Yield) => None,
            _ => told.last.or(Some(0)),
        };
        self.drop_front(slot, told, count, over);
        slot.prev = prev_known;
        match then {
            Then::Done => {
                self.state.worker(&slot.w).tag = None;
                true
            }
            Then::Yield => {
                self.state.worker(&slot.w).tag = None;
                let queued = self.state.object(name).queue.right().is_none_or(|queue| !queue.is_empty());
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
                self.state.hold_batch(&slot.w, name, due, rest.held_id(why.as_bytes()));
                self.keep_error(told, rest.attempts, why.trim_start_matches("retry: "));
                false
            }
            Then::Reject { .. } => unreachable!("a dead letter is written, or the event is held"),
        }
    }

    /// Each delivered event has a row.
    fn log_delivered(&mut self, w: &str, told: &Told) {
        let (mut numbers, mut prev) = (told.tag, self.state.object(&told.object).last_id().unwrap_or(0));
        let batch = self.state.worker(w).batch.clone();
        for event in batch.into_iter().take(told.count) {
            let Numbers { first: id, attempts, .. } = numbers;
            let (object, error) = (told.object.clone(), Name::new());
            let event = Dead { serial: 0, id, prev: prev.to_string(), object, event, error, attempts };
            let results = self.results_of(told, id);
            self.state.log.push(Row { status: "completed", event, taken: true, results });
            (numbers, prev) = (numbers.after(1), id);
        }
    }

    /// The results of the event's handlers, if the call says that something of the batch is
    /// handled.
    fn results_of(&mut self, told: &Told, id: u64) -> Option<String> {
        self.state.object(&told.object).handled.as_ref().filter(|_| told.handled)?.results_of(id)
    }

    /// The first `count` events leave the batch; the last id delivered is written down. What
    /// handlers have kept goes with the last event that is over, where that is not all of the
    /// batch.
    fn drop_front(&mut self, slot: &Slot, told: &Told, count: usize, over: Option<u64>) {
        let batch = &mut self.state.worker(&slot.w).batch;
        // A result may tell of more than a batch that has lost events.
        batch.drain(..count.min(batch.len()));
        let object = self.state.object(&told.object);
        let is_over = object.handled.as_ref().is_some_and(|kept| over.is_none_or(|over| kept.id <= over));
        if told.handled && is_over {
            self.state.end_handled(&told.object);
        }
        if count > 0 && told.tag.attempts > 0 {
            self.state.object(&told.object).errors = Key::default();
        }
        let object = self.state.object(&told.object);
        if let Some(last) = told.last {
            (object.last, object.fades) = (Key::Right(Some(last.to_string())), None);
        }
    }

    /// The event behind those that are delivered has failed once more than its batch's tag says,
    /// and is held.
    fn keep_error(&mut self, told: &Told, attempt: u32, error: &'static str) {
        let at = self.state.now;
        let object = self.state.object(&told.object);
        if let Key::Right(errors) = &mut object.errors
            && attempt > told.tag.after(told.count).attempts
        {
            errors.insert(0, Failure { at, attempt, error });
            errors.truncate(ERRORS_MAX);
        }
    }
}
