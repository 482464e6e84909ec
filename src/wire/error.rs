//! The error of a script call.

use redis::RedisError;

use crate::connection::errors;

/// A script call without a valid reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// The connection failed, or Redis refused the call. The script may have run. It is safe to
    /// repeat the call.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// The reply is invalid: it comes from another version of the script, or from another program.
    #[error("unexpected reply of the script {script}: {what}")]
    Protocol {
        /// The script's name.
        script: &'static str,
        /// A description of the mistake in the reply.
        what: String,
    },
    /// `next.event.id` is not a counter, or the counter has reached its end (2^53).
    #[error(
        "next.event.id holds {0:?}, which is not a valid counter; correct it before workers go on"
    )]
    Counter(String),
    /// The Redis user has no right to a command that the scripts use.
    #[error(
        "the Redis user may not use {0} on these keys; grant it what docs/protocol.md lists under Permissions"
    )]
    Denied(String),
    /// A key has a type that the protocol does not allow. The script changed nothing.
    #[error("{key} has the wrong type {found}; nothing was changed; `seriatim check` has details")]
    WrongType {
        /// The key.
        key: String,
        /// The type of the key.
        found: String,
    },
    /// The data has a protocol version that this program does not know. The script changed nothing.
    #[error(
        "the data is of protocol version {0}, this program knows version 1; run a version that knows it"
    )]
    Schema(String),
}

impl ScriptError {
    /// Returns the error in one line. An error of Redis begins with its code.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Redis(error) => errors::describe(error),
            other => other.to_string(),
        }
    }

    /// Returns whether a shared key stops all workers until an operator has corrected it. A counter at
    /// its end is none: a process raises the counter again to the highest value that it has seen.
    pub(crate) fn is_obstacle(&self) -> bool {
        let is_no_number = matches!(self, Self::Counter(text) if text.parse::<u64>().is_err());
        is_no_number || self.is_wrong_type()
    }

    /// Returns whether a key of a wrong type caused the error.
    pub fn is_wrong_type(&self) -> bool {
        matches!(self, Self::WrongType { .. })
            || matches!(self, Self::Redis(error) if error.code() == Some("WRONGTYPE"))
    }
}
