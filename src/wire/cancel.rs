//! The call of the script `cancel`: it ends an event that has a key and waits for a retry or an
//! operator.

use redis::{Cmd, RedisError, Value};

use super::emit;
use super::lua::CANCEL;
use crate::keys::Keys;

/// The result of the script `cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReply {
    /// The event has ended, without another delivery.
    Cancelled,
    /// A slot has the event. Nothing has changed.
    Running,
    /// The event is neither in hand nor held. Nothing has changed.
    Absent,
    /// The server does not know the script. [`cancel`] with `with_text` loads the script.
    Unknown,
}

/// Makes the command. `id` is the event's id in `OBJ:event.key`; the script does not cancel another
/// event with the same key. With `with_text`, the command has the text of the script. Then it also
/// works on a server that does not know the script, and loads the script there.
pub fn cancel(keys: &Keys, object: &[u8], key: &str, id: &str, with_text: bool) -> Cmd {
    let mut cmd = CANCEL.begin(&keys.objects_held(), with_text);
    cmd.arg(keys.prefix()).arg(object).arg(key).arg(id);
    cmd
}

/// Returns the text of the script, for clients in other languages.
pub fn cancel_text() -> &'static str {
    CANCEL.text()
}

impl CancelReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// The error that Redis returned instead of a reply. If the script refused the call, the error
    /// begins with `NOPERM` or `WRONGTYPE`.
    pub fn read(value: &Value) -> Result<Self, RedisError> {
        emit::read("cancel", value, Self::Unknown, |word, reply| match word {
            "cancelled" => Ok(Self::Cancelled),
            "running" => Ok(Self::Running),
            "absent" => Ok(Self::Absent),
            word => Err(reply.wrong(format!("unknown status {word:?}"))),
        })
    }
}
