//! Why a call of a script failed.

use redis::RedisError;

use crate::connection::errors;

/// A call that did not give a reply of the protocol.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// The connection failed, or Redis refused. The step may have happened; calling again is safe.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// The reply is not one that the script gives: another version of it, or another program's.
    #[error("unexpected reply of the script {script}: {what}")]
    Protocol {
        /// The script's name.
        script: &'static str,
        /// What is wrong with the reply.
        what: String,
    },
    /// `next.event.id` holds something that is no counter, or the counter is at its end (2^53).
    #[error("next.event.id holds {0:?}, which is no usable counter; put it right before workers go on")]
    Counter(String),
    /// The Redis user may not do what the scripts do.
    #[error("the Redis user may not use {0} on these keys; grant it what docs/protocol.md lists under Permissions")]
    Denied(String),
    /// A key has a type that the protocol does not allow; nothing was done.
    #[error("{key} is a {found}, which it must not be; nothing was done: `seriatim check` tells more")]
    WrongType {
        /// The key.
        key: String,
        /// Its type.
        found: String,
    },
    /// The data is of a version of the protocol that this program does not know; nothing was done.
    #[error("the data is of protocol version {0}, this program knows 1 and 2; run a version that knows it")]
    Schema(String),
}

impl ScriptError {
    /// The error in one line; an error of Redis with its code.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Redis(error) => errors::told(error),
            other => other.to_string(),
        }
    }

    /// Whether a key has a type that the protocol does not allow.
    pub fn is_wrong_type(&self) -> bool {
        matches!(self, Self::WrongType { .. }) || matches!(self, Self::Redis(error) if error.code() == Some("WRONGTYPE"))
    }
}
