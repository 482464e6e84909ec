//! The call of the script `paused`: it returns a page of paused objects, with the rules that hold
//! them.

use redis::aio::ConnectionLike;

use super::held::HeldReply;
use crate::keys::Keys;
use crate::wire::error::ScriptError;
use crate::wire::lua::PAUSED;
use crate::wire::reply::Reply;

/// A page of paused objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausedReply {
    /// The time of Redis, ms since the epoch.
    pub now_ms: u64,
    /// The rules that hold any of these objects: fields and values of `event.rules`.
    pub rules: Vec<(Vec<u8>, Vec<u8>)>,
    /// The objects, sorted by name. Each object comes with the fields in `event.rules` of the rules
    /// that hold it, blocks first.
    pub objects: Vec<(HeldReply, Vec<Vec<u8>>)>,
}

/// Returns a page of paused objects whose names begin with `prefix`. The page begins after the given
/// name.
pub async fn paused(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    prefix: &[u8],
    after: Option<&[u8]>,
    count: usize,
) -> Result<PausedReply, ScriptError> {
    let from = match after {
        Some(after) if after >= prefix => [b"(", after].concat(),
        _ if prefix.is_empty() => b"-".to_vec(),
        _ => [b"[", prefix].concat(),
    };
    let to = following(prefix).map_or_else(|| b"+".to_vec(), |end| [b"(", &end[..]].concat());
    let mut cmd = PAUSED.with_key(&keys.objects_paused());
    cmd.arg(keys.prefix()).arg(from).arg(to).arg(count);
    let mut reply = Reply::of("paused", PAUSED.call(conn, &cmd).await?)?;
    let word = reply.text()?;
    if word != "paused" {
        return Err(reply.wrong(format!("unknown status {word:?}")));
    }
    let now_ms = reply.number()?;
    let (mut pairs, mut rules) = (reply.array()?, Vec::new());
    while pairs.len() > 0 {
        rules.push((pairs.bytes()?, pairs.bytes()?));
    }
    let mut objects = Vec::with_capacity(reply.len());
    while reply.len() > 0 {
        let mut entry = reply.array()?;
        let (object, owner, held_id, events) = (
            entry.bytes()?,
            entry.lossy()?,
            entry.lossy()?,
            entry.count()?,
        );
        let mut fields = Vec::with_capacity(entry.len());
        while entry.len() > 0 {
            fields.push(entry.bytes()?);
        }
        objects.push((
            HeldReply {
                object,
                due: String::new(),
                owner,
                held_id,
                events,
            },
            fields,
        ));
    }
    Ok(PausedReply {
        now_ms,
        rules,
        objects,
    })
}

/// Returns the lowest text above all texts that begin with `prefix`; none if there is no such text.
fn following(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
