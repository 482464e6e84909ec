//! Why a handler has not succeeded.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What a handler answers: it has succeeded, or why not. A handler whose result merely *means* a
/// failure, an order that was declined, has succeeded.
pub type HandlerResult = Result<(), Failure>;

/// Why a handler has not succeeded.
///
/// Any [`Error`] becomes a transient failure by `?`; what must not be tried again is told by
/// [`Failure::unrecoverable`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// This handler, again later, with the same event. Handlers that have succeeded do not run
    /// again.
    Transient {
        /// What went wrong; kept with the object while it waits.
        error: String,
        /// Wait this long instead of the retry policy's backoff; it is no attempt more.
        retry_after: Option<Duration>,
    },
    /// No handler of this event again: it goes to the dead letters with its errors.
    Unrecoverable {
        /// What is wrong with it; kept with the dead letter.
        error: String,
    },
}

impl Failure {
    /// This handler, again later.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::Transient { error: error.to_string(), retry_after: None }
    }

    /// This handler, again after this time.
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self::Transient { error: error.to_string(), retry_after: Some(wait) }
    }

    /// No handler of this event again.
    pub fn unrecoverable(error: impl fmt::Display) -> Self {
        Self::Unrecoverable { error: error.to_string() }
    }

    /// The error's text.
    pub fn error(&self) -> &str {
        match self {
            Self::Transient { error, .. } | Self::Unrecoverable { error } => error,
        }
    }
}

/// With the errors that caused it.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::transient(text)
    }
}
