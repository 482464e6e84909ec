//! A sweep over all names, even if their next looks are not due.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{self, Adopted, ScriptError, Sweep};

/// Lua that makes every registered name a watched, due one. Does nothing if the registry has a
/// wrong type.
const ALL_DUE: &str = r"
local names = redis.pcall('HKEYS', KEYS[1])
if names.err then return end
redis.call('DEL', KEYS[3])
for _, name in ipairs(names) do
  redis.call('ZADD', KEYS[2], 0, name)
end";

/// Time between two looks at a watched name.
pub const LOOK: Duration = Duration::from_secs(1);

/// Looks at every registered name, in the order of the names.
pub async fn sweep(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    own: &str,
    crashes_max: u32,
    forget: Duration,
) -> Result<Adopted, ScriptError> {
    let sets = [
        keys.event_workers(),
        keys.event_workers_watched(),
        keys.event_workers_departed(),
    ];
    redis::cmd("EVAL")
        .arg(ALL_DUE)
        .arg(3)
        .arg(&sets)
        .query_async::<()>(conn)
        .await?;
    wire::adopt(
        conn,
        keys,
        &Sweep {
            own,
            crashes_max,
            look: LOOK,
            forget,
            since: None,
            notice: LOOK,
        },
    )
    .await
}
