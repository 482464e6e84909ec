//! The code that all operator calls share: the actor, the reason, and the refusals.

use redis::Cmd;
use redis::aio::ConnectionLike;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::Script;
use crate::wire::reply::Reply;

/// The most bytes of an actor, or of a reason, that are stored. A longer text is cut.
const TEXT_BYTES_MAX: usize = 1000;

/// The actor and the reason of an action.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// The actor, e.g. `ada@host`.
    pub who: &'a str,
    /// The reason, as free text; may be empty.
    pub why: &'a str,
}

pub(super) fn begin(script: &Script, key: &str, keys: &Keys, by: By<'_>) -> Cmd {
    let mut cmd = script.with_key(key);
    cmd.arg(keys.prefix())
        .arg(shortened(by.who))
        .arg(shortened(by.why));
    cmd
}

fn shortened(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES_MAX))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    &text[..end]
}

/// Calls an operator script. Returns the first word of the reply, and the rest of the reply. If the
/// script refuses the action, returns the refusal as an error.
pub(super) async fn call(
    conn: &mut impl ConnectionLike,
    name: &'static str,
    script: &Script,
    cmd: &Cmd,
) -> Result<(String, Reply), ScriptError> {
    let mut reply = Reply::of(name, script.call(conn, cmd).await?)?;
    match reply.text()? {
        word if word == "denied" => Err(ScriptError::Denied(reply.text()?)),
        word if word == "wrong_type" => Err(ScriptError::WrongType {
            key: reply.lossy()?,
            found: reply.text()?,
        }),
        word => Ok((word, reply)),
    }
}
