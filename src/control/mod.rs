//! Looks at a live system and says what is there, and does what an operator may do.
//!
//! - [`check`](mod@check): the invariants, read off by number
//! - [`stats`](mod@stats): workers, markers, held objects, dead letters, and with a scan the depth
//!   of every queue
//! - [`inspect`](mod@inspect): one object: where its events are and why they wait
//! - [`ended`](mod@ended): what became of the last events of an object
//! - [`dead`]: the dead letters: read, retried, dropped
//! - [`held`](mod@held): the held objects: why they wait, released, rid of their head event
//! - [`rules`](mod@rules): pauses and blocks: set, lifted, listed
//! - [`actions`](mod@actions): what operators did
//! - [`log`](mod@log): the log of events, in the order in which they were finalized
//! - [`forget`](mod@forget): lets go of what remains of idle objects
//! - [`server`](mod@server): settings of Redis that break the promise
//! - `report` (private, its types are in `check`): invariants and violations
//! - `names`, `scan` and `reply` (private): walking the registered names and the key space, and
//!   reading what Redis answers
//!
//! Only retrying, dropping, releasing, skipping, and setting and lifting rules write to Redis; they
//! need the rights that `docs/protocol.md` lists for them. Each of these is one atomic script, and
//! is kept with who did it and why.
//!
//! Everything works in bounded steps, so that a look never holds up the workers, and in bounded
//! memory. The futures can be dropped at any time. They need a connection of their own or a shared
//! one, and any Redis user who may read and run scripts.

pub mod actions;
pub mod check;
pub mod dead;
pub mod ended;
pub mod forget;
pub mod held;
pub mod inspect;
pub mod log;
pub(crate) mod names;
mod reply;
mod report;
pub mod rules;
mod scan;
pub mod server;
pub mod stats;

pub use self::actions::{Action, actions};
pub use self::check::{CheckReport, check};
pub use self::dead::{DeadLetter, dead_letters};
pub use self::ended::{Ended, ended};
pub use self::forget::{Forgot, forget};
pub use self::held::{HeldObject, HeldPage, held, paused};
pub use self::inspect::{Inspection, inspect};
pub use self::log::{LogEntry, LogPage, LogStatus, log, newest_log};
pub use self::rules::{Rule, Rules, rules};
pub use self::stats::{Depth, Stats, depth, stats};

use crate::event::NameError;
use crate::wire::ScriptError;
pub use crate::wire::operator::By;

/// Why a look at the system, or an action of an operator, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
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
    /// What was given is no id of a dead letter.
    #[error("{0:?} is no id of a dead letter; `seriatim dead list` shows them, they are like 1767225600000-0")]
    DeadId(String),
    /// What was given is no id of a row of the log.
    #[error("{0:?} is no id of a row of the log; `seriatim log --json` shows them as \"log_id\", they are like 1767225600000-0")]
    LogId(String),
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

    fn reply(what: &'static str, answer: impl Into<String>) -> Self {
        Self::Reply { what, answer: answer.into() }
    }
}
