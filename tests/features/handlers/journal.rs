//! A journal, to which the handlers of a test add lines.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use seriatim::handlers::{Failure, Handler, HandlerContext, HandlerResult};

use crate::support::console::PATIENCE;
use crate::support::until;

/// Lines in the order in which handlers have added them.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub(super) fn note(&self, line: impl Into<String>) {
        self.0.lock().expect("no panic").push(line.into());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }

    /// Returns the journal's lines, sorted, because the handlers of one event run at the same time.
    pub(super) fn sorted(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.sort();
        lines
    }

    pub(super) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|noted| *noted == line).count()
    }

    pub(super) async fn until(&self, count: usize, line: &str) {
        until(&format!("{count} times {line:?}"), PATIENCE, async || {
            (self.count(line) >= count).then_some(())
        })
        .await;
    }

    /// Returns a handler that records its name and the event's id, and succeeds.
    pub(super) fn notes(&self, name: &'static str) -> impl Handler<Value> {
        self.answers(name, |_| Ok(()))
    }

    /// Returns such a handler that fails for a time with this error.
    pub(super) fn transient(&self, name: &'static str, error: &'static str) -> impl Handler<Value> {
        self.answers(name, move |_| Err(Failure::transient(error)))
    }

    /// Returns such a handler that fails for ever with this error.
    pub(super) fn unrecoverable(
        &self,
        name: &'static str,
        error: &'static str,
    ) -> impl Handler<Value> {
        self.answers(name, move |_| Err(Failure::unrecoverable(error)))
    }

    /// Returns a handler that records its name and the event's id, and returns the result of
    /// `answer`.
    pub(super) fn answers(
        &self,
        name: &'static str,
        answer: impl Fn(&HandlerContext) -> HandlerResult + Clone + Send + Sync + 'static,
    ) -> impl Handler<Value> {
        let journal = self.clone();
        move |_: Value, cx: HandlerContext| {
            let (journal, answer) = (journal.clone(), answer.clone());
            async move {
                journal.note(format!("{name} {}", cx.id()));
                answer(&cx)
            }
        }
    }
}
