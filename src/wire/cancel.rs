//! The call of the script `cancel`: it ends an event with a key that waits for a retry.

use redis::{Cmd, RedisError, Value};

use super::emit;
use super::lua::CANCEL;
use crate::keys::Keys;

/// The result of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReply {
    /// The event is over, without another delivery.
    Cancelled,
    /// A slot has the event. Nothing has changed.
    Running,
    /// No event of this key is in hand or held.
    Absent,
    /// The server does not know the script. [`cancel`] with its text loads it.
    Unknown,
}

/// Makes the command. `with_text`: also works if the server does not know the script, and loads it.
pub fn cancel(keys: &Keys, object: &[u8], key: &str, with_text: bool) -> Cmd {
    let mut cmd = CANCEL.begin(&keys.objects_held(), with_text);
    cmd.arg(keys.prefix()).arg(object).arg(key);
    cmd
}

impl CancelReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// The error in place of a reply. A refusal of the script begins with `NOPERM` or `WRONGTYPE`.
    pub fn read(value: &Value) -> Result<Self, RedisError> {
        emit::read("cancel", value, Self::Unknown, |word, reply| match word {
            "cancelled" => Ok(Self::Cancelled),
            "running" => Ok(Self::Running),
            "absent" => Ok(Self::Absent),
            word => Err(reply.wrong(format!("unknown status {word:?}"))),
        })
    }
}
