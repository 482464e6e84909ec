//! `dead`: the limit of one call.

use seriatim::control::By;
use seriatim::control::dead::{Settle, Settled};
use seriatim::wire::operator;

use crate::state::State;
use crate::support::Redis;

const MIB: usize = 1 << 20;

/// A call ends with the event that brings it to 1 MiB, and not one byte earlier.
#[tokio::test]
async fn a_call_settles_a_mebibyte_and_no_more() {
    let redis = Redis::start();
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for (bytes, settled) in [(MIB - 1, 2), (MIB, 1)] {
        state.run("DEL", &[&keys.events_dead()]).await;
        state.dead_letter("1-0", "work:1", &vec![b'x'; bytes]).await;
        state.dead_letter("2-0", "work:1", b"{}").await;
        let (by, dead_ids) = (
            By {
                who: "ada",
                why: "large",
            },
            ["1-0", "2-0"].map(str::to_owned),
        );
        let done = operator::dead(&mut state.conn, &keys, by, Settle::Drop, &dead_ids)
            .await
            .expect("settled");
        assert_eq!(done, vec![Settled::Dropped; settled], "{bytes}");
    }
}
