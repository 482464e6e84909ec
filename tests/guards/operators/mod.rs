//! The scripts of operators: each test builds a state by hand, makes one call, and compares the
//! reply and all keys.

mod cron;
mod dead;
mod emits;
mod held;
mod in_hand;
mod refusals;
mod rule;
mod scheduled;
mod share;
mod skip;

use seriatim::wire::operator::By;

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

const BY: By<'static> = By {
    who: "ada",
    why: "a test",
};
/// The time in which a test ends, in ms.
const LONGEST_MS: u64 = 600_000;

/// A server that is shared with no other test.
struct Scene {
    /// Stops the server when the test ends.
    redis: Redis,
    state: State,
    console: Console,
    began_ms: u64,
}

impl Scene {
    async fn new() -> Self {
        let redis = Redis::own(&[]).empty();
        let (state, console) = (
            State::new(redis.connect().await, redis.keys().clone()),
            redis.console().await,
        );
        let mut scene = Self {
            redis,
            state,
            console,
            began_ms: 0,
        };
        scene.began_ms = scene.now_ms().await;
        scene
    }

    /// Returns the time of Redis, ms since the epoch.
    async fn now_ms(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.console.run(&["TIME"]).await;
        seconds * 1000 + micros / 1000
    }

    /// Runs a command, whose first argument is a key without the prefix.
    async fn put(&mut self, command: &str, key: &str, arguments: &[&str]) {
        let key = format!("{}{key}", self.state.keys.prefix());
        self.state
            .run(command, &[&[key.as_str()], arguments].concat())
            .await;
    }

    /// Returns the contents of all keys: a line `KEY: ITEM` for each item, with `NOW` for each time
    /// of this test. Leaves out the last id given, which no script of an operator writes.
    async fn shown(&self) -> Vec<String> {
        let mut keys = self.console.left().await;
        keys.retain(|key| key != "next.event.id");
        keys.sort();
        let mut lines = Vec::new();
        for key in keys {
            lines.extend(
                self.items(&key)
                    .await
                    .into_iter()
                    .map(|item| format!("{key}: {item}")),
            );
        }
        lines
    }

    /// Returns the items of one key, in the order of the list, or sorted by field, score or id.
    async fn items(&self, key: &str) -> Vec<String> {
        let key = format!("{}{key}", self.state.keys.prefix());
        let kind: String = self.console.run(&["TYPE", &key]).await;
        let items: Vec<String> = match kind.as_str() {
            "string" => self.console.text(&key).await.into_iter().collect(),
            "list" => self.console.run(&["LRANGE", &key, "0", "-1"]).await,
            "hash" => {
                let mut fields: Vec<(String, String)> = self.console.run(&["HGETALL", &key]).await;
                fields.sort();
                fields
                    .into_iter()
                    .map(|(field, value)| format!("{field} = {value}"))
                    .collect()
            }
            "zset" => {
                let members: Vec<(String, String)> = self
                    .console
                    .run(&["ZRANGE", &key, "0", "-1", "WITHSCORES"])
                    .await;
                members
                    .into_iter()
                    .map(|(member, score)| format!("{member} {score}"))
                    .collect()
            }
            "stream" => {
                let rows: Vec<(String, Vec<String>)> =
                    self.console.run(&["XRANGE", &key, "-", "+"]).await;
                rows.into_iter()
                    .map(|(id, fields)| format!("{id} {}", fields.join(" ")))
                    .collect()
            }
            _ => Vec::new(),
        };
        items.iter().map(|item| self.without_times(item)).collect()
    }

    /// Replaces each time of this test by `NOW`, and each id of a row of this time, too.
    fn without_times(&self, text: &str) -> String {
        let ends = [' ', ',', ':', '}'];
        let mut shown = String::new();
        for part in text.split_inclusive(ends) {
            let word = part.trim_end_matches(ends);
            let ms = word.split_once('-').map_or(word, |(ms, _)| ms);
            let is_now = ms
                .parse()
                .is_ok_and(|ms| (self.began_ms..self.began_ms + LONGEST_MS).contains(&ms));
            shown += if is_now { "NOW" } else { word };
            shown += &part[word.len()..];
        }
        shown
    }
}
