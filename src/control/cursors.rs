//! A secret for servers that give cursors to clients which may not see all objects.
//!
//! The secret is in the hash `seriatim.meta`, so that all servers of the namespace use the same one,
//! also after a restart. Whoever may read the hash may read all names, so the secret hides nothing
//! from a user of Redis.

use super::{Control, ControlError};

/// The field of `seriatim.meta`.
const FIELD: &str = "cursors.secret";
const WHAT: &str = "seriatim.meta";

impl Control {
    /// Returns the secret with which the servers of this namespace seal cursors. If there is none,
    /// writes the 32 bytes of `fresh`, which must be random. If `fresh` is `None`, only reads.
    ///
    /// Returns `None` if there is none and none may be written: the Redis user lacks the right, Redis
    /// refuses writes, or no worker has connected to the namespace yet. Then the server needs a
    /// secret of its own.
    ///
    /// If two servers write at the same time, the last one counts, so ask again if a cursor cannot be
    /// read. Cost: one command that reads; at the first time two more.
    ///
    /// # Errors
    /// [`ControlError::Redis`] if Redis cannot be asked.
    pub async fn cursor_secret(
        &self,
        fresh: Option<&[u8; 32]>,
    ) -> Result<Option<[u8; 32]>, ControlError> {
        let (key, mut connection) = (self.keys.meta(), self.connection());
        let mut ask = redis::cmd("HMGET");
        ask.arg(&key).arg(&["schema", FIELD]);
        let (schema, found): (Option<String>, Option<String>) = ask
            .query_async(&mut connection)
            .await
            .map_err(ControlError::redis(WHAT))?;
        if let Some(secret) = found.as_deref().and_then(decoded) {
            return Ok(Some(secret));
        }
        // Without the field `schema` the namespace is new, and the hash must stay absent: a hash
        // without this field would look like one that has lost it.
        let (Some(_), Some(fresh)) = (schema, fresh) else {
            return Ok(None);
        };
        let text: String = fresh.iter().map(|byte| format!("{byte:02x}")).collect();
        let written: Result<(), redis::RedisError> = redis::Cmd::hset(&key, FIELD, text)
            .query_async(&mut connection)
            .await;
        match written {
            Ok(()) => {}
            Err(error)
                if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() =>
            {
                return Err(ControlError::redis(WHAT)(error));
            }
            Err(_) => return Ok(None),
        }
        let found: Option<String> = redis::Cmd::hget(&key, FIELD)
            .query_async(&mut connection)
            .await
            .map_err(ControlError::redis(WHAT))?;
        Ok(found.as_deref().and_then(decoded))
    }
}

fn decoded(hex: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(secret)
}
