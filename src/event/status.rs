//! How an event ended.

use std::fmt;

use serde_core::{Serialize, Serializer};

/// How an event ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventStatus {
    /// The event was delivered.
    Completed,
    /// The attempts were used up, and the retry policy has completed the event.
    CompletedWithErrors,
    /// The event became a dead letter.
    Dead,
    /// The event was cancelled by its key while its object was held, waiting for a retry or an
    /// operator.
    Cancelled,
    /// A status that this version of seriatim does not know; the value is its word.
    Other(String),
}

impl EventStatus {
    /// Returns the word for this status, as in the event log.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::CompletedWithErrors => "completed_with_errors",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        }
    }

    pub(crate) fn of(word: String) -> Self {
        match word.as_str() {
            "completed" => Self::Completed,
            "completed_with_errors" => Self::CompletedWithErrors,
            "dead" => Self::Dead,
            "cancelled" => Self::Cancelled,
            _ => Self::Other(word),
        }
    }
}

impl Serialize for EventStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for EventStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
