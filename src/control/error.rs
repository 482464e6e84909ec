//! Why an operation of a [`Control`](super::Control) failed.

use crate::event::NameError;
use crate::wire::ScriptError;

/// Why a look at the system, or an action of an operator, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The URL cannot be read; nothing was sent.
    #[error("{reason}")]
    Url {
        /// The reason, without any part of the URL.
        reason: String,
    },
    /// Redis could not be asked, or refused.
    #[error("Redis did not answer {what}: {source}")]
    Redis {
        /// What was being read.
        what: &'static str,
        /// The error of the connection or of Redis.
        source: redis::RedisError,
    },
    /// Redis answered in a form that this version does not know.
    #[error("unexpected answer to {what}: {answer}; is another version of seriatim at work on these keys?")]
    Reply {
        /// What was being read.
        what: &'static str,
        /// What is wrong with the answer.
        answer: String,
    },
    /// The name given is no object's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There are as many rules as there may be; nothing was done.
    #[error(
        "there are {0} pauses and blocks already: nothing was done; a prefix, as in work:*, is one rule for all of its objects"
    )]
    Rules(u64),
    /// What was given is no id of a dead letter, and no cursor of their list.
    #[error("{0:?} is no id of a dead letter; `seriatim dead list` shows them, they are like 1767225600000-0")]
    DeadId(String),
    /// What was given is no id of a row of the log, and no cursor of the log.
    #[error("{0:?} is no id of a row of the log; `seriatim log --json` shows them as \"log_id\", they are like 1767225600000-0")]
    LogId(String),
    /// What was given is no cursor of this list.
    #[error("{0:?} is no cursor of this list; pass one that a page of the same list has")]
    Cursor(String),
    /// The Redis user may not do what the action needs; nothing was done.
    #[error(
        "the Redis user may not use {0} on these keys, nothing was done; docs/protocol.md, \"Permissions\", lists what an operator needs"
    )]
    Denied(String),
    /// A key has a type that the protocol does not allow; nothing was done.
    #[error("{key} is a {found}, which it must not be; nothing was done, `seriatim check` tells more")]
    WrongType {
        /// The key.
        key: String,
        /// Its type.
        found: String,
    },
}

impl From<ScriptError> for ControlError {
    fn from(error: ScriptError) -> Self {
        match error {
            ScriptError::Redis(source) => Self::Redis { what: "a script", source },
            ScriptError::Denied(command) => Self::Denied(command),
            ScriptError::WrongType { key, found } => Self::WrongType { key, found },
            other => Self::Reply { what: "a script", answer: other.to_string() },
        }
    }
}

impl ControlError {
    pub(crate) fn redis(what: &'static str) -> impl FnOnce(redis::RedisError) -> Self {
        move |source| Self::Redis { what, source }
    }

    pub(super) fn reply(what: &'static str, answer: impl Into<String>) -> Self {
        Self::Reply { what, answer: answer.into() }
    }
}
