//! The call of `forget`: the last ids of idle objects go.

use redis::ToRedisArgs;
use redis::aio::ConnectionLike;
use serde::Serialize;

use super::error::ScriptError;
use super::lua::FORGET;
use super::reply::Reply;
use crate::keys::Keys;

/// The most objects in one call.
pub const OBJECTS_MAX: usize = 250;

/// What became of an object that was to be forgotten. All but the first of these have changed
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Forgot {
    /// It was idle, and its last id is gone.
    Forgotten {
        /// The id of its last event delivered.
        last_event_id: String,
    },
    /// It is idle, and there is no last id of it: no event was ever delivered, or it was forgotten
    /// before.
    Unknown,
    /// It has events.
    Queued {
        /// How many.
        events: u64,
    },
    /// A worker has it.
    Owned {
        /// The worker's id.
        owner: String,
    },
    /// It is held.
    Held,
    /// A key that is reserved for later versions speaks of it, or events that handlers have emitted
    /// were never pushed.
    Reserved {
        /// The key, without a namespace.
        key: String,
    },
    /// One of its keys has a wrong type.
    Wrong {
        /// The key, without a namespace.
        key: String,
    },
}

impl Forgot {
    /// Whether nothing remains of the object.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Forgotten { .. } | Self::Unknown)
    }
}

/// Forgets those of these objects, at most [`OBJECTS_MAX`], that are idle, in one step, and answers
/// what became of each.
///
/// Dropping the future does not take back a call that was sent; calling again is safe.
pub async fn forget(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    objects: &[impl ToRedisArgs],
) -> Result<Vec<Forgot>, ScriptError> {
    let mut cmd = FORGET.with_key(&keys.objects_held());
    cmd.arg(keys.prefix()).arg(objects);
    let mut reply = Reply::of("forget", FORGET.call(conn, &cmd).await?)?;
    match reply.text()?.as_str() {
        "looked" => {}
        word => return Err(reply.wrong(format!("unknown status {word:?}"))),
    }
    let mut all = Vec::with_capacity(objects.len());
    while reply.len() > 0 {
        let word = reply.text()?;
        all.push(match word.as_str() {
            "queued" => Forgot::Queued { events: reply.count()? },
            word => {
                let detail = String::from_utf8_lossy(&reply.bytes()?).into_owned();
                match word {
                    "forgotten" => Forgot::Forgotten { last_event_id: detail },
                    "unknown" => Forgot::Unknown,
                    "owned" => Forgot::Owned { owner: detail },
                    "held" => Forgot::Held,
                    "reserved" => Forgot::Reserved { key: detail },
                    "wrong" => Forgot::Wrong { key: detail },
                    word => return Err(reply.wrong(format!("unknown word {word:?}"))),
                }
            }
        });
    }
    if all.len() != objects.len() {
        return Err(reply.wrong(format!("{} answers for {} objects", all.len(), objects.len())));
    }
    Ok(all)
}
