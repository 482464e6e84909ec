//! The failure of a handler.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The result of a handler. Some effects only *mean* a failure, such as a declined order. With such
/// an effect, the handler has succeeded.
pub type HandlerResult = Result<(), Failure>;

/// The reason why a handler has not succeeded.
///
/// With `?`, any [`Error`] becomes a transient failure. For an event that must not be retried,
/// return [`Failure::unrecoverable`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The handler that failed runs again later, with the same event. Handlers of this event that
    /// have succeeded do not run again.
    Transient {
        /// The error text. It is stored with the object while the object waits.
        error: String,
        /// The wait before the next attempt, in place of the retry policy's backoff. The failure
        /// still counts as an attempt.
        retry_after: Option<Duration>,
    },
    /// The event becomes a dead letter, with its errors. None of its handlers runs again.
    Unrecoverable {
        /// The error text. It is stored with the dead letter.
        error: String,
    },
}

impl Failure {
    /// Returns a transient failure.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self::Transient {
            error: error.to_string(),
            retry_after: None,
        }
    }

    /// Returns a transient failure with this wait, in place of the retry policy's backoff.
    pub fn retry_after(error: impl fmt::Display, wait: Duration) -> Self {
        Self::Transient {
            error: error.to_string(),
            retry_after: Some(wait),
        }
    }

    /// Returns an unrecoverable failure.
    pub fn unrecoverable(error: impl fmt::Display) -> Self {
        Self::Unrecoverable {
            error: error.to_string(),
        }
    }

    /// Returns the error text.
    pub fn error(&self) -> &str {
        match self {
            Self::Transient { error, .. } | Self::Unrecoverable { error } => error,
        }
    }
}

/// Makes a transient failure from any error. The text has the error and its causes.
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
