//! Finds keys of other programs in a database that is used without a namespace.

use redis::aio::ConnectionLike;
use redis::{RedisError, RedisResult};

use crate::keys::Keys;

/// Number of keys that one look reads.
const KEYS_MAX: usize = 1000;

/// A key that is not of seriatim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// The key.
    pub key: Vec<u8>,
    /// Whether no worker has connected to this database yet.
    pub is_first_start: bool,
}

/// Returns a key of another program, if about the first 1,000 keys of the database have one. A key
/// of a namespace, which begins with a brace, does not count. Cost: three commands, each O(1000).
///
/// # Errors
/// The connection failed, or the user may not use `SCAN`.
pub async fn foreign_key(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
) -> RedisResult<Option<ForeignKey>> {
    let known: bool = redis::cmd("EXISTS")
        .arg(keys.meta())
        .query_async(conn)
        .await?;
    let mut scan = redis::cmd("SCAN");
    scan.arg(0).arg("COUNT").arg(KEYS_MAX);
    let (_, found): (Vec<u8>, Vec<Vec<u8>>) = scan.query_async(conn).await?;
    let foreign = found
        .into_iter()
        .find(|key| !key.starts_with(b"{") && !keys.may_have(key));
    Ok::<_, RedisError>(foreign.map(|key| ForeignKey {
        key,
        is_first_start: !known,
    }))
}
