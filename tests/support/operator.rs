//! The handle of an operator: reads that succeed, and calls that are refused.

use std::fmt::Debug;

use seriatim::control::actions::Action;
use seriatim::control::inspect::Inspection;
use seriatim::control::{Control, ControlError, LogEntry};

/// Reads that succeed.
pub trait Reads {
    /// Looks at an object.
    async fn inspection_of(&self, object: impl AsRef<[u8]>) -> Inspection;

    /// Returns the newest actions, at most so many.
    async fn recorded(&self, count: usize) -> Vec<Action>;

    /// Returns the oldest rows of the event log, at most so many.
    async fn logged(&self, count: usize) -> Vec<LogEntry>;
}

impl Reads for Control {
    async fn inspection_of(&self, object: impl AsRef<[u8]>) -> Inspection {
        self.inspect(object).await.expect("an inspection")
    }

    async fn recorded(&self, count: usize) -> Vec<Action> {
        let page = self.actions(None, count).await;
        page.expect("the actions").actions
    }

    async fn logged(&self, count: usize) -> Vec<LogEntry> {
        self.log(None, count).await.expect("the log").entries
    }
}

/// Fails unless Redis has denied this command.
#[track_caller]
pub fn assert_denied<T: Debug>(refused: &Result<T, ControlError>, command: &str) {
    match refused {
        Err(ControlError::Denied(denied)) if denied.eq_ignore_ascii_case(command) => {}
        other => panic!("{command}: {other:?}"),
    }
}

/// Fails unless this key has a wrong type.
#[track_caller]
pub fn assert_wrong_type<T: Debug>(refused: &Result<T, ControlError>, key: &str) {
    match refused {
        Err(ControlError::WrongType { key: wrong, .. }) if wrong == key => {}
        other => panic!("{key}: {other:?}"),
    }
}
