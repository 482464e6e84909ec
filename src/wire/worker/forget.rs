//! The call of the script `forget`: it deletes the last ids of idle objects.

use redis::ToRedisArgs;
use redis::aio::ConnectionLike;
use serde::Serialize;

use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::FORGET;
use crate::wire::reply::Reply;

/// The most objects in one call.
pub const OBJECTS_MAX: usize = 250;

/// The result for one object. Only [`Forgot::Forgotten`] changed data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Forgot {
    /// The object was idle, and its last id is deleted.
    Forgotten {
        /// The id of the object's last delivered event.
        last_event_id: String,
    },
    /// The object is idle and has no last id: no event was ever delivered, or the object was
    /// forgotten before.
    Unknown,
    /// The object has queued events.
    Queued {
        /// The number of queued events.
        events: u64,
    },
    /// A worker owns the object.
    Owned {
        /// The worker's id.
        owner: String,
    },
    /// The object is held.
    Held,
    /// The object has schedules.
    Scheduled {
        /// The number of schedules.
        events: u64,
    },
    /// Handlers of the object have emitted events that were never pushed.
    Reserved {
        /// The key, without its namespace.
        key: String,
    },
    /// A key of the object has a wrong type.
    Wrong {
        /// The key, without its namespace.
        key: String,
    },
}

impl Forgot {
    /// Returns whether the object is idle and has no last id now.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Forgotten { .. } | Self::Unknown)
    }

    /// Reads the result for one object: its word, which the caller has read, and its detail.
    pub(super) fn read(word: &str, reply: &mut Reply) -> Result<Self, ScriptError> {
        Ok(match word {
            "queued" => Self::Queued {
                events: reply.count()?,
            },
            "scheduled" => Self::Scheduled {
                events: reply.count()?,
            },
            word => {
                let detail = reply.lossy()?;
                match word {
                    "forgotten" => Self::Forgotten {
                        last_event_id: detail,
                    },
                    "unknown" => Self::Unknown,
                    "owned" => Self::Owned { owner: detail },
                    "held" => Self::Held,
                    "reserved" => Self::Reserved { key: detail },
                    "wrong" => Self::Wrong { key: detail },
                    word => return Err(reply.wrong(format!("unknown word {word:?}"))),
                }
            }
        })
    }
}

/// Forgets each of these objects that is idle, in one step. Takes at most [`OBJECTS_MAX`] objects.
/// Returns a result for each object.
///
/// Cancellation: a call that was sent may still run. It is safe to repeat the call.
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
        all.push(Forgot::read(&word, &mut reply)?);
    }
    if all.len() != objects.len() {
        return Err(reply.wrong(format!(
            "{} results for {} objects",
            all.len(),
            objects.len()
        )));
    }
    Ok(all)
}
