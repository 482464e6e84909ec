//! The Lua scripts and their typed calls: the only place that knows what goes over the wire to them
//! and what comes back.
//!
//! A script is one atomic step of the protocol, and every one may be called again when its reply
//! was lost. Its text is put together once (lua/README.md). If the process dies with a call under
//! way, the step has happened or it has not; what follows from either is told in the header of each
//! script.

mod advance;
mod emits;
mod forget;
mod handled;
mod lease;
mod load;
mod lua;
pub mod operator;
pub mod projection;
mod suspects;
mod tag;

use redis::{RedisError, Value};

pub(crate) use advance::pop_and_advance;
pub use advance::{Advance, Advanced, BatchReply, Bounds, EventLog, From, Report, Results, advance};
pub use emits::Emits;
pub use forget::{Forgot, OBJECTS_MAX, forget};
pub use handled::{Finished, Handled, InHand, handled};
pub use lease::{Adopted, Attach, Attached, Connected, Detached, Renewed, Seen, Sweep, adopt, attach, connect, detach, renew};
pub use load::{Load, Room};

pub use suspects::Suspects;
pub use tag::{Tag, TagError};

use lua::*;
pub(crate) use lua::{CHECK, ENDED, INSPECT, LOG, TAKEN};

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
    /// The state of a projection is larger than
    /// [`STATE_BYTES_MAX`](crate::projection::STATE_BYTES_MAX); nothing was written.
    #[error("the state of the projection has {bytes} bytes, RedisStore keeps {max} at most; keep it in a Store of your own")]
    StateTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The data is of a version of the protocol that this program does not know; nothing was done.
    #[error("the data is of protocol version {0}, this program knows 1 and 2; run a version that knows it")]
    Schema(String),
}

impl ScriptError {
    /// The error in one line; an error of Redis with its code.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Redis(error) => crate::connection::errors::told(error),
            other => other.to_string(),
        }
    }

    /// Whether a key has a type that the protocol does not allow.
    pub fn is_wrong_type(&self) -> bool {
        matches!(self, Self::WrongType { .. }) || matches!(self, Self::Redis(error) if error.code() == Some("WRONGTYPE"))
    }
}

/// Takes a reply apart, piece by piece, from the front.
pub(crate) struct Reply {
    script: &'static str,
    values: std::vec::IntoIter<Value>,
}

impl Reply {
    /// The pieces of a reply that is an array.
    pub(crate) fn of(script: &'static str, value: Value) -> Result<Self, ScriptError> {
        match value {
            Value::Array(values) => Ok(Self { script, values: values.into_iter() }),
            other => Err(ScriptError::Protocol { script, what: format!("an array was expected, not {other:?}") }),
        }
    }

    /// An error about this reply.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> ScriptError {
        ScriptError::Protocol { script: self.script, what: what.into() }
    }

    fn value(&mut self) -> Result<Value, ScriptError> {
        self.values.next().ok_or_else(|| self.wrong("it is too short"))
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, ScriptError> {
        match self.value()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            other => Err(self.wrong(format!("a string was expected, not {other:?}"))),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, ScriptError> {
        String::from_utf8(self.bytes()?).map_err(|error| self.wrong(error.to_string()))
    }

    /// Text for people; bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn lossy(&mut self) -> Result<String, ScriptError> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(crate) fn int(&mut self) -> Result<i64, ScriptError> {
        match self.value()? {
            Value::Int(n) => Ok(n),
            other => Err(self.wrong(format!("a whole number was expected, not {other:?}"))),
        }
    }

    pub(crate) fn count(&mut self) -> Result<u64, ScriptError> {
        let n = self.int()?;
        u64::try_from(n).map_err(|_| self.wrong(format!("a count was expected, not {n}")))
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self) -> Result<T, ScriptError> {
        let text = self.text()?;
        text.parse().map_err(|_| self.wrong(format!("a number was expected, not {text:?}")))
    }

    pub(crate) fn array(&mut self) -> Result<Reply, ScriptError> {
        let value = self.value()?;
        Self::of(self.script, value)
    }

    /// How many pieces are left.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}
