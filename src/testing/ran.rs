//! The result of a test run with one event, with assertions about it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::emitted::{self, EmittedEvent, EventPattern};
use super::memory::Kept;
use crate::event::Event;
use crate::handlers::HandlerOutcome;
use crate::sink::{Report, Stop};

/// The results of the handlers of one event in one run.
///
/// The functions named `assert_…` panic if the assertion is false, and the message shows all
/// results. Otherwise they return `self`, or the value that they have found.
#[derive(Debug, Clone)]
pub struct Ran {
    event: Event,
    outcomes: Vec<(String, HandlerOutcome)>,
    /// Result of the delivery; none if the delivery was cancelled.
    delivered: Option<Result<(), Stop>>,
    emitted: Vec<EmittedEvent>,
    results: BTreeMap<String, Value>,
    report: Option<Report>,
}

impl Ran {
    pub(super) fn new(
        event: Event,
        outcomes: Vec<(String, HandlerOutcome)>,
        delivered: Option<Result<(), Stop>>,
        kept: &Kept,
        report: Option<Report>,
    ) -> Self {
        Self {
            event,
            outcomes,
            delivered,
            emitted: kept.emitted(),
            results: kept.results(),
            report,
        }
    }

    /// Returns the outcome of the handler with this id; none if no such handler is registered for
    /// the event.
    pub fn outcome(&self, handler: &str) -> Option<&HandlerOutcome> {
        self.outcomes()
            .find(|(id, _)| *id == handler)
            .map(|(_, outcome)| outcome)
    }

    /// Returns the id and the outcome of each handler of the event, in the order of registration.
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = (&str, &HandlerOutcome)> {
        self.outcomes
            .iter()
            .map(|(id, outcome)| (id.as_str(), outcome))
    }

    /// Returns whether all handlers have succeeded, in this run or in an earlier one. Then the
    /// event counts as delivered.
    pub fn is_delivered(&self) -> bool {
        matches!(self.delivered, Some(Ok(())))
    }

    /// Returns whether the run was cancelled before all handlers had ended.
    pub fn is_cancelled(&self) -> bool {
        self.delivered.is_none()
    }

    /// Returns the reason why the event was not delivered. In a worker, [`Stop::Transient`] leads
    /// to the retry policy, and [`Stop::Rejected`] to a dead letter. None if the event was
    /// delivered or the run was cancelled.
    pub fn stop(&self) -> Option<&Stop> {
        self.delivered.as_ref()?.as_ref().err()
    }

    /// Returns the emits of the handlers that have succeeded, in this run or in an earlier one.
    /// They are in the order in which they are pushed when the event is finalized.
    pub fn emitted(&self) -> &[EmittedEvent] {
        &self.emitted
    }

    /// Returns the result of a handler that has succeeded, in this run or in an earlier one; none
    /// if it has set no result.
    pub fn result(&self, handler: &str) -> Option<&Value> {
        self.results.get(handler)
    }

    /// Returns the last progress and log lines that handlers have reported in this run; none if they
    /// have reported nothing.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// Asserts that all handlers have succeeded, in this run or in an earlier one.
    ///
    /// # Panics
    /// If the event is not delivered.
    #[track_caller]
    pub fn assert_delivered(&self) -> &Self {
        assert!(
            self.is_delivered(),
            "the event was not delivered{}",
            self.describe()
        );
        self
    }

    /// Asserts that the handler has succeeded in this run.
    ///
    /// # Panics
    /// If the handler did not run, or did not succeed.
    #[track_caller]
    pub fn assert_succeeded(&self, handler: &str) -> &Self {
        let succeeded = matches!(self.outcome(handler), Some(HandlerOutcome::Succeeded));
        assert!(
            succeeded,
            "the handler {handler:?} did not succeed in this run{}",
            self.describe()
        );
        self
    }

    /// Asserts that the handler has failed and that its error text contains `error_part`. An error,
    /// a panic and a timeout are failures.
    ///
    /// # Panics
    /// If the handler did not run, did not fail, or has an error that does not contain the text.
    #[track_caller]
    pub fn assert_failed(&self, handler: &str, error_part: &str) -> &Self {
        let failure = self.outcome(handler).and_then(HandlerOutcome::failure);
        let failed = failure.is_some_and(|failure| failure.error().contains(error_part));
        assert!(
            failed,
            "the handler {handler:?} did not fail with {error_part:?}{}",
            self.describe()
        );
        self
    }

    /// Asserts that an event that matches the pattern was emitted for this object: see
    /// [`EventPattern`]. Returns the first such event.
    ///
    /// # Panics
    /// If no event matches.
    #[track_caller]
    pub fn assert_emitted(&self, object: &str, pattern: impl EventPattern) -> &EmittedEvent {
        match emitted::find(&self.emitted, object, &pattern) {
            Some(event) => event,
            None => panic!(
                "no event was emitted for {object} like {}{}",
                pattern.shown(),
                self.describe()
            ),
        }
    }

    /// Asserts that an event that matches the pattern was scheduled for this object: see
    /// [`EventPattern`]. Returns the first such event; its [`schedule`](EmittedEvent::schedule) has
    /// key and time.
    ///
    /// # Panics
    /// If no event matches.
    #[track_caller]
    pub fn assert_scheduled(&self, object: &str, pattern: impl EventPattern) -> &EmittedEvent {
        match emitted::find_scheduled(&self.emitted, object, &pattern) {
            Some(event) => event,
            None => panic!(
                "no event was scheduled for {object} like {}{}",
                pattern.shown(),
                self.describe()
            ),
        }
    }

    /// Asserts that the schedule of this object with this key was cancelled.
    ///
    /// # Panics
    /// If it was not.
    #[track_caller]
    pub fn assert_schedule_cancelled(&self, object: &str, key: &str) -> &Self {
        assert!(
            emitted::is_cancelled(&self.emitted, object, key),
            "no schedule of {object} with the key {key:?} was cancelled{}",
            self.describe()
        );
        self
    }

    /// Asserts that no event that matches the pattern was emitted for this object.
    ///
    /// # Panics
    /// If an event matches.
    #[track_caller]
    pub fn assert_not_emitted(&self, object: &str, pattern: impl EventPattern) -> &Self {
        let found = emitted::find(&self.emitted, object, &pattern);
        assert!(
            found.is_none(),
            "an event was emitted for {object} like {}{}",
            pattern.shown(),
            self.describe()
        );
        self
    }

    /// Asserts that no event was emitted, for any object.
    ///
    /// # Panics
    /// If an event was emitted.
    #[track_caller]
    pub fn assert_nothing_emitted(&self) -> &Self {
        assert!(
            self.emitted.is_empty(),
            "something was emitted{}",
            self.describe()
        );
        self
    }

    /// Returns all results as text. The message of a failed assertion shows them.
    fn describe(&self) -> String {
        let Event { id, object, .. } = &self.event;
        let mut text = match &self.delivered {
            Some(Ok(())) => format!("\nevent {id} of {object} was delivered"),
            Some(Err(Stop::Rejected { error })) => {
                format!("\nevent {id} of {object} is a dead letter: {error}")
            }
            Some(Err(stop)) => format!("\nevent {id} of {object} is tried again: {}", stop.error()),
            None => format!("\nthe delivery of event {id} of {object} was cancelled"),
        };
        text += "\nhandlers:";
        for (handler, outcome) in self.outcomes() {
            // Writing to a string never fails.
            let _ = write!(text, "\n  {handler}  {outcome:?}");
        }
        if self.outcomes.is_empty() {
            text += "\n  none is registered for this event";
        }
        for (handler, result) in &self.results {
            let _ = write!(text, "\n  {handler}  result {result}");
        }
        text + "\nemitted:" + &emitted::shown(&self.emitted)
    }
}
