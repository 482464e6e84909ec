//! The Lua scripts and their typed calls: the only place that knows what goes over the wire to them and what comes back.
//!
//! A script is one atomic step of the protocol, and every one may be called again when its reply was lost. Its text is put together once
//! (lua/README.md). If the process dies with a call under way, the step has happened or it has not; what follows from either is told in
//! the header of each script.

mod advance;
mod emits;
mod forget;
mod handled;
mod lease;
mod load;
pub mod operator;
pub mod projection;
mod suspects;
mod tag;

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

pub(crate) use advance::pop_and_advance;
pub use advance::{Advance, Advanced, BatchReply, Bounds, EventLog, From, Report, Results, advance};
pub use emits::Emits;
pub use forget::{Forgot, OBJECTS_MAX, forget};
pub use handled::{Finished, Handled, InHand, handled};
pub use lease::{Adopted, Attach, Attached, Connected, Detached, Renewed, Seen, Sweep, adopt, attach, connect, detach, renew};
pub use load::{Load, Room};

pub use suspects::Suspects;
pub use tag::{Tag, TagError};

use crate::failpoints::{around, lua};
use crate::keys;

/// Works at `maxmemory` too: the backlog must still drain, and an operator still decide.
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";
/// Needs memory: Redis refuses it at `maxmemory`, as a whole.
const DENY_OOM: &str = "#!lua\n";
/// Only reads: Redis runs it at `maxmemory` and on replicas too.
const NO_WRITES: &str = "#!lua flags=no-writes\n";

macro_rules! script {
    ($name:ident, $file:literal $(, $fragment:literal)*) => {
        script!(ALLOW_OOM, $name, $file $(, $fragment)*);
    };
    ($flags:ident, $name:ident, $file:literal $(, $fragment:literal)*) => {
        static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($flags, &[lua!("lib/prefix.lua"), $(lua!($fragment)),*], lua!($file)));
    };
}

script!(CONNECT, "connect.lua", "lib/ids.lua", "lib/jump.lua", "lib/rights.lua");
script!(ATTACH, "attach.lua", "lib/fence.lua", "lib/tag.lua", "lib/hold.lua", "lib/slots.lua", "lib/suspects.lua");
script!(RENEW, "renew.lua", "lib/fence.lua", "lib/tag.lua", "lib/hold.lua", "lib/slots.lua");
script!(DETACH, "detach.lua", "lib/fence.lua", "lib/tag.lua", "lib/hold.lua", "lib/slots.lua");
script!(ADOPT, "adopt.lua", "lib/fence.lua", "lib/tag.lua", "lib/hold.lua", "lib/slots.lua", "lib/rules.lua", "lib/clock.lua");
script!(FORGET, "forget.lua");
script!(HANDLED, "handled.lua", "lib/ids.lua", "lib/fence.lua", "lib/emits.lua");
script!(DENY_OOM, HANDLED_EMITS, "handled.lua", "lib/ids.lua", "lib/fence.lua", "lib/emits.lua");

/// Three layers: what it shares with other scripts, what all of a call shares, and what the call does.
static ADVANCE: LazyLock<Script> = LazyLock::new(|| {
    Script::in_layers(
        ALLOW_OOM,
        &[
            &[lua!("lib/prefix.lua"), lua!("lib/ids.lua"), lua!("lib/jump.lua"), lua!("lib/fence.lua"), lua!("lib/tag.lua")],
            &[lua!("advance.lua")],
            &[
                lua!("advance/batch.lua"),
                &part("hold", &[lua!("lib/hold.lua"), lua!("advance/hold.lua")]),
                &part("suspects", &[lua!("lib/suspects.lua"), lua!("advance/suspects.lua")]),
                &part("again", &[lua!("advance/again.lua")]),
                &part("log", &[lua!("advance/log.lua")]),
                &part("rules", &[lua!("lib/rules.lua"), lua!("advance/rules.lua")]),
                &part("emits", &[lua!("lib/emits.lua"), lua!("advance/emits.lua")]),
                &part("errors", &[lua!("lib/beginning.lua"), lua!("advance/errors.lua")]),
                &part("partly", &[lua!("advance/partly.lua")]),
                lua!("advance/commit.lua"),
                lua!("advance/own.lua"),
                &part("markers", &[lua!("advance/markers.lua")]),
                &part("held", &[lua!("advance/held.lua")]),
                &part("strays", &[lua!("advance/strays.lua")]),
                lua!("advance/claim.lua"),
                lua!("advance/call.lua"),
            ],
        ],
    )
});

script!(DEAD, "operator/dead.lua", "lib/beginning.lua", "operator/actions.lua");
script!(RELEASE, "operator/release.lua", "lib/beginning.lua", "operator/actions.lua");
script!(RELEASE_MANY, "operator/release_many.lua", "lib/beginning.lua", "operator/actions.lua");
script!(SKIP, "operator/skip.lua", "lib/ids.lua", "lib/tag.lua", "lib/emits.lua", "lib/beginning.lua", "operator/actions.lua");
script!(NO_WRITES, HELD, "operator/held.lua");
script!(NO_WRITES, PAUSED, "operator/paused.lua", "lib/rules.lua");
script!(RULE, "operator/rule.lua", "lib/rules.lua", "lib/beginning.lua", "operator/actions.lua");
script!(DENY_OOM, POSITION, "projection/position.lua");

/// What only some calls of a script need: a function of this name that answers what the fragments return, made when it is first called. Functions last as
/// long as a call of the script does, so each call pays for all it makes.
fn part(name: &str, fragments: &[&str]) -> String {
    let text = fragments.concat();
    format!(
        "local {name}_made\nlocal function {name}()\n{name}_made = {name}_made or (function()\n{text}end)()\nreturn {name}_made\nend\n"
    )
}

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
    /// The state of a projection is larger than [`STATE_BYTES_MAX`](crate::projection::STATE_BYTES_MAX); nothing was written.
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
            Self::Redis(error) => crate::told::told(error),
            other => other.to_string(),
        }
    }

    /// Whether a key has a type that the protocol does not allow.
    pub fn is_wrong_type(&self) -> bool {
        matches!(self, Self::WrongType { .. }) || matches!(self, Self::Redis(error) if error.code() == Some("WRONGTYPE"))
    }
}

/// A script's text, with the means to call it.
pub(crate) struct Script {
    inner: redis::Script,
}

impl Script {
    pub(crate) fn new(flags: &str, fragments: &[&str], body: &str) -> Self {
        Self::in_layers(flags, &[&[fragments, &[body]].concat()])
    }

    /// Each layer is a function in the one before. For each name that a function uses of the one it is made in, Lua goes through a list of all names that
    /// are used so there; what it uses of those further out is at hand. A function may use 60 names from outside, and no
    /// more; the third layer of advance uses 57.
    fn in_layers(flags: &str, layers: &[&[&str]]) -> Self {
        let mut text = [flags, keys::LUA].concat();
        for (depth, layer) in layers.iter().enumerate() {
            text += if depth > 0 { "return (function()\n" } else { "" };
            text += &layer.concat();
        }
        text += &"end)()\n".repeat(layers.len() - 1);
        Self { inner: redis::Script::new(&text) }
    }

    /// Begins a call with the one key that tells Redis where the call belongs; arguments follow.
    pub(crate) fn with_key(&self, key: &str) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.inner.get_hash()).arg(1).arg(key);
        cmd
    }

    /// Calls the script; loads it first where the server does not know it.
    ///
    /// Dropping the future does not take back a call that was sent.
    pub(crate) async fn call(&self, conn: &mut impl ConnectionLike, cmd: &Cmd) -> Result<Value, RedisError> {
        match conn.req_packed_command(cmd).await.and_then(Value::extract_error) {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                around!("load", self.inner.load_async(conn)).await?;
                conn.req_packed_command(cmd).await.and_then(Value::extract_error)
            }
            reply => reply,
        }
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

#[cfg(test)]
mod tests {
    /// A command that a script uses and `rights` does not ask for could fail in the middle of a script.
    #[test]
    fn rights_asks_for_every_command_the_scripts_use() {
        let rights = include_str!("../../lua/lib/rights.lua");
        let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
        let scripts = [
            "connect",
            "attach",
            "renew",
            "detach",
            "adopt",
            "advance",
            "handled",
            "lib/jump",
            "lib/tag",
            "lib/hold",
            "lib/slots",
            "lib/fence",
            "lib/rules",
            "lib/emits",
            "lib/clock",
        ];
        let parts = [
            "advance/hold",
            "advance/batch",
            "advance/again",
            "advance/log",
            "advance/rules",
            "advance/emits",
            "advance/errors",
            "advance/partly",
            "advance/commit",
            "advance/own",
            "advance/markers",
            "advance/held",
            "advance/strays",
            "advance/claim",
            "advance/call",
        ];
        let mut asked = 0;
        for script in scripts.into_iter().chain(parts) {
            let text = std::fs::read_to_string(lua.join(format!("{script}.lua"))).expect("a script");
            for call in ["call('", "try('"] {
                for (at, _) in text.match_indices(call) {
                    let command = text[at + call.len()..].split('\'').next().unwrap_or_default();
                    assert!(rights.contains(&format!("'{command}'")), "{script}.lua uses {command}");
                    asked += 1;
                }
            }
        }
        assert!(asked > 80, "{asked} calls were found");
    }

    /// The same for what an operator does.
    #[test]
    fn actions_asks_for_every_command_an_operator_uses() {
        let lua = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/operator");
        let read = |script: &str| std::fs::read_to_string(lua.join(format!("{script}.lua"))).expect("a script");
        let actions = read("actions");
        let mut asked = 0;
        for text in ["actions", "dead", "release", "release_many", "skip", "rule", "../lib/rules", "../lib/emits"].map(read) {
            for rest in text.split("call('").skip(1) {
                let command = rest.split('\'').next().unwrap_or_default();
                assert!(actions.contains(&format!("{{ '{command}'")), "{command} is not asked for");
                asked += 1;
            }
        }
        assert!(asked >= 20, "{asked} calls were found");
    }
}
