//! The worker process `w` with the token `t`, as which tests call scripts.

use std::time::Duration;

use seriatim::wire::{self, Attach, Suspects};

use crate::state::State;
use crate::support::Redis;

/// Attaches the process, with two slots that own no object.
pub(crate) async fn process(redis: &Redis) -> State {
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let args = Attach {
        name: "w",
        token: "t",
        holder: "h 1 1",
        lease: Duration::from_secs(600),
        slots: 2,
        displace: "",
        before: "",
        crashes_max: 5,
        suspects: Suspects::NONE,
    };
    wire::attach(&mut state.conn, &state.keys, &args)
        .await
        .expect("attached");
    state
}
