//! Looks for a page that shows the system: events are cut, and each call reads a bounded amount.

mod actions;
mod chain;
mod cut;
mod held;
mod slots;

use crate::state::State;
use crate::support::Redis;

async fn empty() -> (Redis, State) {
    let redis = Redis::start();
    let state = State::new(redis.connect().await, redis.keys().clone());
    (redis, state)
}
