//! The call of the script `emit`: it queues the events of an object, at most once per idempotency
//! key, and within the limits of the queues. The call of `cancel` also reads its reply with the
//! code of this module.

use redis::{Cmd, ErrorKind, RedisError, ServerError, Value};

use super::error::ScriptError;
use super::lua::EMIT;
use super::reply::Reply;
use crate::keys::Keys;

/// An emit that needs the script `emit`, because it has an idempotency key, or its object has
/// limits.
#[derive(Debug)]
pub struct ScriptedEmit<'a> {
    /// The object.
    pub object: &'a str,
    /// The idempotency key, and the time in ms for which it is kept.
    pub key: Option<(&'a str, u64)>,
    /// The most events queued for the object; `None`: any number.
    pub queued_max: Option<u64>,
    /// The most markers; `None`: any number.
    pub markers_max: Option<u64>,
    /// The state, the parts or the wait of the emit.
    pub with: EmitWith<'a>,
}

/// The state, the parts or the wait of a scripted emit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmitWith<'a> {
    /// Nothing.
    Nothing,
    /// The object's state, which is stored in `OBJ:data`.
    Data(&'a [u8]),
    /// Each event counts as a separate emit. The script queues as many of the events as the limits
    /// allow. Valid only without a key.
    Parts,
    /// The producer awaits the end of the event. Valid only with a key and one event.
    Await {
        /// The time in seconds for which the end is kept.
        seconds: u64,
        /// The inbox that gets the key of the end: letters and digits, or empty.
        inbox: &'a str,
    },
}

/// The result of a call of `emit`. Only `Emitted` and `Part` changed data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmitReply {
    /// The events are queued. The number: all events that are now queued for the object.
    Emitted(u64),
    /// The call has several emits, and the limit has room only for the first ones. The numbers:
    /// events that are now queued for the object, the limit, and events that this call has queued.
    Part(u64, u64, u64),
    /// The emit with this key was done before. The number: all events that are now queued for the
    /// object.
    Repeated(u64),
    /// The idempotency key was used before, for other events or data of this object.
    Differs,
    /// The object has too many queued events. The numbers: these events, and the limit.
    QueueFull(u64, u64),
    /// There are too many markers. The numbers: these markers, and the limit.
    MarkersFull(u64, u64),
    /// The server does not know the script. [`ScriptedEmit::begin`] with `with_text` loads the
    /// script.
    Unknown,
}

/// Returns the text of the script, for clients in other languages.
pub fn emit_text() -> &'static str {
    EMIT.text()
}

impl ScriptedEmit<'_> {
    /// Begins the command. The caller appends the events as arguments, the main event first. With
    /// `with_text`, the command has the text of the script. Then it also works on a server that
    /// does not know the script, and loads the script there.
    pub fn begin(&self, keys: &Keys, with_text: bool) -> Cmd {
        let mut cmd = EMIT.begin(&keys.objects_with_events(), with_text);
        let (key, window_ms) = self.key.unwrap_or(("", 0));
        cmd.arg(keys.prefix())
            .arg(self.object)
            .arg(key)
            .arg(window_ms);
        cmd.arg(self.queued_max.unwrap_or(0))
            .arg(self.markers_max.unwrap_or(0));
        match self.with {
            EmitWith::Nothing => cmd.arg("none").arg(""),
            EmitWith::Data(data) => cmd.arg("data").arg(data),
            EmitWith::Parts => cmd.arg("part").arg(""),
            EmitWith::Await { seconds, inbox } => {
                cmd.arg("await").arg(format!("{seconds} {inbox}"))
            }
        };
        cmd
    }
}

impl EmitReply {
    /// Reads the reply.
    ///
    /// # Errors
    /// The error that Redis returned instead of a reply. If the script refused the call, the error
    /// begins with `NOPERM` or `WRONGTYPE`.
    pub fn read(value: &Value) -> Result<Self, RedisError> {
        read("emit", value, Self::Unknown, |word, reply| {
            Ok(match word {
                "emitted" => Self::Emitted(reply.count()?),
                "part" => Self::Part(reply.count()?, reply.count()?, reply.count()?),
                "repeated" => Self::Repeated(reply.count()?),
                "differs" => Self::Differs,
                "full" => {
                    let (what, now, limit) = (reply.text()?, reply.count()?, reply.count()?);
                    if what == "markers" {
                        Self::MarkersFull(now, limit)
                    } else {
                        Self::QueueFull(now, limit)
                    }
                }
                word => return Err(reply.wrong(format!("unknown status {word:?}"))),
            })
        })
    }
}

/// Reads the reply of a script for producers. `unknown` is the result if the server does not know
/// the script. `read` gets the first word of the reply, and reads the part after it.
pub(super) fn read<T>(
    script: &'static str,
    value: &Value,
    unknown: T,
    read: impl FnOnce(&str, &mut Reply) -> Result<T, ScriptError>,
) -> Result<T, RedisError> {
    let mut reply = match value {
        Value::ServerError(error) if error.code() == "NOSCRIPT" => return Ok(unknown),
        Value::ServerError(error) => return Err(error.clone().into()),
        value => Reply::of(script, value.clone()).map_err(unexpected)?,
    };
    let known = || {
        Ok(match reply.text()?.as_str() {
            "denied" => Err(refusal(
                "NOPERM",
                format!("the user may not use {}", reply.text()?),
            )),
            "wrong_type" => Err(refusal(
                "WRONGTYPE",
                format!("{} is a {}", reply.lossy()?, reply.text()?),
            )),
            word => Ok(read(word, &mut reply)?),
        })
    };
    known().map_err(unexpected)?
}

fn refusal(code: &str, detail: String) -> RedisError {
    let line = format!("-{code} {}\r\n", detail.replace(['\r', '\n'], " "));
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(Value::ServerError(error)) => ServerError::into(error),
        _ => RedisError::from((
            ErrorKind::UnexpectedReturnType,
            "the script refused the call",
            detail,
        )),
    }
}

fn unexpected(error: ScriptError) -> RedisError {
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "an unexpected reply of a script",
        error.to_string(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        let word = |word: &str| Value::BulkString(word.as_bytes().to_vec());
        let array = |words: &[&str], number: i64| {
            Value::Array(
                words
                    .iter()
                    .map(|text| word(text))
                    .chain([Value::Int(number), Value::Int(7)])
                    .collect(),
            )
        };
        assert_eq!(
            EmitReply::read(&array(&["emitted"], 3)).expect("a reply"),
            EmitReply::Emitted(3)
        );
        assert_eq!(
            EmitReply::read(&array(&["repeated"], 3)).expect("a reply"),
            EmitReply::Repeated(3)
        );
        assert_eq!(
            EmitReply::read(&array(&["full", "queued"], 9)).expect("a reply"),
            EmitReply::QueueFull(9, 7)
        );
        assert_eq!(
            EmitReply::read(&array(&["full", "markers"], 9)).expect("a reply"),
            EmitReply::MarkersFull(9, 7)
        );
        let refused = EmitReply::read(&array(&["wrong_type", "a\nb:events", "string"], 0))
            .expect_err("refused");
        assert_eq!(
            (refused.code(), refused.detail()),
            (Some("WRONGTYPE"), Some("a b:events is a string"))
        );
        assert!(
            EmitReply::read(&array(&["other"], 0)).is_err()
                && EmitReply::read(&Value::Nil).is_err()
        );
    }
}
