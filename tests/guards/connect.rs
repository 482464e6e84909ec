//! `connect`: the counter of ids and the version of the data.

use seriatim::scripts::{self, Seen};

use crate::support::Redis;

/// A Redis that was emptied knows nothing; the process has seen more ids than any jump is long.
#[tokio::test]
async fn the_counter_jumps_beyond_every_id_seen() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    // Ahead of the time.
    let seen = Seen { highest: 5_000_000_000_000_000, ..Seen::default() };
    let connected = scripts::connect(&mut conn, keys, "replication-1", seen).await.expect("an answer");
    assert!(connected.changed && connected.counter > seen.highest, "{connected:?}");
}

/// Whoever comes first says which version the data has.
#[tokio::test]
async fn the_version_is_written_down() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    scripts::connect(&mut conn, keys, "replication-1", Seen::default()).await.expect("an answer");
    let version: String = redis.console().await.run(&["HGET", &keys.meta(), "schema"]).await;
    assert_eq!(version, "1");
}

/// An unknown replication id is no other one: the counter stays where it is.
#[tokio::test]
async fn an_unknown_replication_id_changes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for replication_id in ["replication-1", "", "replication-1"] {
        let connected = scripts::connect(&mut conn, keys, replication_id, Seen::default()).await.expect("an answer");
        assert_eq!((connected.changed, connected.counter), (false, 0));
    }
}
