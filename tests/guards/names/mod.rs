//! `attach`, `renew`, `detach` and `adopt`: every key that a call leaves, and the bounds of a call.

mod pass;
mod random;
mod rounds;
mod slots;
mod takeover;
mod watched;

use std::time::Duration;

use seriatim::keys::Keys;
use seriatim::wire::{self, Adopted, Sweep};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

/// Lua that returns every key with its value, one per line, in the order of the keys.
const ALL: &str = r"
local read = {
  string = { 'GET' }, list = { 'LRANGE', 0, -1 }, hash = { 'HGETALL' }, zset = { 'ZRANGE', 0, -1, 'WITHSCORES' },
}
local lines = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local words = read[redis.call('TYPE', key).ok]
  local value = redis.call(words[1], key, unpack(words, 2))
  local text = type(value) == 'table' and table.concat(value, ' ') or value
  lines[#lines + 1] = string.sub(key, #ARGV[1] + 1) .. ' = ' .. text
end
table.sort(lines)
return lines";

/// A time without an end for the tests: no name is forgotten.
const AGES: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The reply of a sweep that takes nothing over. It says that a mark is due, because these tests
/// push none.
const NOTHING: Adopted = Adopted {
    more: false,
    moved: 0,
    is_ahead: false,
    mark: true,
    held: 0,
    strays: 0,
    lost: Vec::new(),
    names: Vec::new(),
};

/// The names of some processes, in a namespace of one test.
struct Scene {
    _redis: Redis,
    state: State,
    console: Console,
    keys: Keys,
}

impl Scene {
    async fn new() -> Self {
        let redis = Redis::start();
        let (conn, console, keys) = (
            redis.connect().await,
            redis.console().await,
            redis.keys().clone(),
        );
        Self {
            _redis: redis,
            state: State::new(conn, keys.clone()),
            console,
            keys,
        }
    }

    /// Returns every key with its value, without the id counter.
    async fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .console
            .run(&["EVAL", ALL, "0", self.keys.prefix()])
            .await;
        all.retain(|line| !line.starts_with("next.event.id"));
        all
    }

    async fn now_ms(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.console.run(&["TIME"]).await;
        seconds * 1000 + micros / 1000
    }

    /// Registers a name with this last sign of life.
    async fn register(&mut self, name: &str, slots: u32, at_ms: u64) {
        let key = self.keys.event_workers();
        self.state
            .run("HSET", &[&key, name, &format!("{slots} t {at_ms}")])
            .await;
    }

    /// Makes the name a watched one, with this time of the next look.
    async fn watch(&mut self, name: &str, look_ms: u64) {
        let key = self.keys.event_workers_watched();
        self.state
            .run("ZADD", &[&key, &look_ms.to_string(), name])
            .await;
    }

    /// Makes the name a departed one, with this time of the next look.
    async fn depart(&mut self, name: &str, look_ms: u64) {
        let key = self.keys.event_workers_departed();
        self.state
            .run("ZADD", &[&key, &look_ms.to_string(), name])
            .await;
    }

    async fn push(&mut self, worker: &str, object: &str) {
        let key = self.keys.worker_object(worker);
        self.state.run("LPUSH", &[&key, object]).await;
    }

    /// Sets a field of `seriatim.meta`.
    async fn meta(&mut self, field: &str, value: &str) {
        let key = self.keys.meta();
        self.state.run("HSET", &[&key, field, value]).await;
    }

    /// Sweeps as the process `own`. Returns the reply, and the time of the call, ms.
    async fn sweep(&mut self, look: Duration, forget: Duration) -> (Adopted, u64) {
        let key = self.keys.meta();
        self.state.run("HDEL", &[&key, "clock"]).await;
        let sweep = Sweep {
            own: "own",
            crashes_max: 5,
            look,
            forget,
            since: None,
            notice: look,
        };
        let adopted = wire::adopt(&mut self.state.conn, &self.keys, &sweep)
            .await
            .expect("a reply");
        (adopted, self.console.run(&["HGET", &key, "clock"]).await)
    }
}
