//! The error of an operation of a [`Control`](super::Control).

use crate::cron::CronError;
use crate::event::{EventError, NameError, ScheduleKeyError};
use crate::wire::ScriptError;

/// The reason why a look at the system, or an action of an operator, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The URL is invalid; nothing was sent.
    #[error("{reason}")]
    Url {
        /// The reason, without any part of the URL.
        reason: String,
    },
    /// The settings of TLS cannot be used: the process has no rustls provider, or a file is
    /// missing or invalid. Nothing was sent.
    #[error("TLS to Redis is not possible: {reason}")]
    Tls {
        /// The reason.
        reason: String,
    },
    /// The map of the addresses that Sentinels announce is invalid. Nothing was sent.
    #[error("the map of Sentinel addresses cannot be used: {reason}")]
    Sentinels {
        /// The reason.
        reason: String,
    },
    /// Redis could not be asked, or returned an error.
    #[error("Redis did not answer {what}: {source}")]
    Redis {
        /// The request or the key to which the error belongs.
        what: &'static str,
        /// The error of the connection or of Redis.
        source: redis::RedisError,
    },
    /// The reply has a form that this version of seriatim does not know.
    #[error("unexpected reply to {what}: {answer}; another version of seriatim may use these keys")]
    Reply {
        /// The request or the key to which the reply belongs.
        what: &'static str,
        /// The defect of the reply.
        answer: String,
    },
    /// The given name is not a valid object name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The maximum number of rules is reached; nothing was done.
    #[error(
        "there are already {0} pauses and blocks: nothing was done; a prefix such as work:* is one rule for all of its objects"
    )]
    Rules(u64),
    /// The time after which a rule ends is out of range; nothing was done.
    #[error(
        "the time until a rule ends is 1 ms to 100 years, it must not be 0: nothing was done; write 90s, 30m or 12h"
    )]
    RuleTime,
    /// A drop of dead letters has no reason; nothing was done.
    #[error("a drop of dead letters needs a reason: nothing was done")]
    Reason,
    /// A limit cannot have this selector; nothing was done.
    #[error(
        "{0:?} cannot have this limit: a limit is for * or a prefix such as work:*, and the number of markers only for *"
    )]
    LimitSelector(String),
    /// The maximum number of limits is reached; nothing was done.
    #[error(
        "there are already {0} limits: nothing was done; one prefix such as work:* covers all of its objects"
    )]
    Limits(u64),
    /// A share cannot have this selector; nothing was done.
    #[error("{selector:?} cannot have a share: {reason}")]
    ShareSelector {
        /// The selector.
        selector: String,
        /// The reason, and what to write instead.
        reason: String,
    },
    /// The share has no part; nothing was done.
    #[error(
        "a share needs a weight, a priority, a number of objects in hand, or a rate: nothing was done"
    )]
    ShareEmpty,
    /// A part of the share is invalid; nothing was done.
    #[error("{part} of a share must be {wanted}: nothing was done")]
    SharePart {
        /// The part of the share.
        part: &'static str,
        /// The values that the part can have.
        wanted: String,
    },
    /// Another operator removed the last share at the same time; nothing was done.
    #[error("the shares were changed at the same time: nothing was done; try again")]
    SharesChanged,
    /// The maximum number of shares is reached; nothing was done.
    #[error(
        "there are already {0} shares: nothing was done; one prefix such as acme:* covers all of its objects"
    )]
    Shares(u64),
    /// The cron schedule is invalid; nothing was done.
    #[error(transparent)]
    Cron(CronError),
    /// The name of the cron job is invalid; nothing was done.
    #[error("the name of the cron job is invalid: {0}")]
    CronName(#[source] ScheduleKeyError),
    /// The key of the schedule is invalid; nothing was done.
    #[error("the key of the schedule is invalid: {0}")]
    ScheduleKey(#[source] ScheduleKeyError),
    /// The event of the cron job is invalid; nothing was done.
    #[error(transparent)]
    Event(EventError),
    /// The maximum number of cron jobs is reached; nothing was done.
    #[error(
        "there are already {0} cron jobs: nothing was done; remove some, or let one job's handler emit several events"
    )]
    CronJobs(u64),
    /// The given text is neither an id of a dead letter nor a cursor of the list of dead letters.
    #[error(
        "{0:?} is not an id of a dead letter; `seriatim dead list` shows the ids, e.g. 1767225600000-0"
    )]
    DeadId(String),
    /// The given text is neither an id of a row of the log nor a cursor of the log.
    #[error(
        "{0:?} is not an id of a row of the log; `seriatim log --json` shows the ids as \"log_id\", e.g. 1767225600000-0"
    )]
    LogId(String),
    /// The given text is not a cursor of the list that was to be read.
    #[error("{0:?} is not a cursor of this list; use the cursor of a page of the same list")]
    Cursor(String),
    /// The Redis user lacks a right that the action needs; nothing was done.
    #[error(
        "the Redis user may not use {0} on these keys, nothing was done; docs/protocol.md, \"Permissions\", lists what an operator needs"
    )]
    Denied(String),
    /// A key has a type that the protocol does not allow; nothing was done.
    #[error("{key} has the wrong type {found}: nothing was done; `seriatim check` shows more")]
    WrongType {
        /// The key.
        key: String,
        /// The type found.
        found: String,
    },
}

impl From<ScriptError> for ControlError {
    fn from(error: ScriptError) -> Self {
        match error {
            ScriptError::Redis(source) => Self::Redis {
                what: "a script",
                source,
            },
            ScriptError::Denied(command) => Self::Denied(command),
            ScriptError::WrongType { key, found } => Self::WrongType { key, found },
            other => Self::Reply {
                what: "a script",
                answer: other.to_string(),
            },
        }
    }
}

impl ControlError {
    /// Returns whether the caller has given something invalid, so that the same call always fails.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        matches!(
            self,
            Self::Url { .. }
                | Self::Name(_)
                | Self::RuleTime
                | Self::Reason
                | Self::LimitSelector(_)
                | Self::ShareSelector { .. }
                | Self::ShareEmpty
                | Self::SharePart { .. }
                | Self::Cron(_)
                | Self::CronName(_)
                | Self::ScheduleKey(_)
                | Self::Event(_)
                | Self::DeadId(_)
                | Self::LogId(_)
                | Self::Cursor(_)
        )
    }

    /// Returns whether Redis has refused a command because a key has a wrong type.
    pub(super) fn is_wrong_type(&self) -> bool {
        matches!(self, Self::Redis { source, .. } if source.to_string().contains("WRONGTYPE"))
    }

    pub(crate) fn redis(what: &'static str) -> impl FnOnce(redis::RedisError) -> Self {
        move |source| Self::Redis { what, source }
    }

    pub(super) fn reply(what: &'static str, answer: impl Into<String>) -> Self {
        Self::Reply {
            what,
            answer: answer.into(),
        }
    }
}
