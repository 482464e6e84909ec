//! `connect`: the counter of ids and the version of the data.

use std::time::{SystemTime, UNIX_EPOCH};

use seriatim::wire::{self, Seen};

use crate::support::Redis;

const CHOSEN: Seen = Seen { first_id: 1, highest: 0, event_log: None };

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// The ids given before a namespace was emptied are unknown. So a new namespace begins at the time,
/// and only a new one.
#[tokio::test]
async fn a_new_namespace_begins_at_the_time() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let began = now_us();
    let first = wire::connect(&mut conn, keys, "replication-1", Seen::default()).await.expect("an answer");
    assert!(!first.changed && (began..=now_us()).contains(&first.counter), "{first:?}");
    assert_eq!(redis.console().await.number(&keys.next_event_id()).await, first.counter);
    for first_id in [0, 1] {
        let seen = Seen { first_id, ..Seen::default() };
        let again = wire::connect(&mut conn, keys, "replication-1", seen).await.expect("an answer");
        assert_eq!((again.changed, again.counter), (false, first.counter));
    }
}

/// The pass over the worker names starts again on another server, and only there: a cursor belongs
/// to one server.
#[tokio::test]
async fn the_pass_over_the_names_starts_again_on_another_server() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    wire::connect(&mut conn, keys, "replication-1", Seen::default()).await.expect("an answer");
    let _: u64 = console.run(&["HSET", &keys.meta(), "names.cursor", "17", "names.indexed", "1"]).await;
    for (id, remain) in [("replication-1", 2), ("", 2), ("replication-2", 0)] {
        wire::connect(&mut conn, keys, id, Seen::default()).await.expect("an answer");
        let fields: Vec<String> = console.run(&["HKEYS", &keys.meta()]).await;
        assert_eq!(fields.iter().filter(|field| field.starts_with("names.")).count(), remain, "{id}");
    }
}

/// The namespace's meta key was lost, but not the counter: new ids continue above the counter.
#[tokio::test]
async fn a_new_namespace_does_not_begin_below_the_counter() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    let counter = 5_000_000_000_000_000_u64;
    let () = console.run(&["SET", &keys.next_event_id(), &counter.to_string()]).await;
    let connected = wire::connect(&mut conn, keys, "", Seen::default()).await.expect("an answer");
    assert!(connected.counter > counter, "{connected:?}");
}

/// The first connection to a namespace sets the counter. So an absent counter was evicted, and it
/// jumps, even if a first id is chosen.
#[tokio::test]
async fn an_absent_counter_was_evicted() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    let _: u64 = console.run(&["DEL", &keys.next_event_id()]).await;
    let connected = wire::connect(&mut conn, keys, "", CHOSEN).await.expect("an answer");
    assert_eq!((connected.changed, connected.counter), (false, 0));
    assert_eq!(console.text(&keys.next_event_id()).await.as_deref(), Some("0"));
    let _: u64 = console.run(&["DEL", &keys.next_event_id()]).await;
    let began = now_us();
    let connected = wire::connect(&mut conn, keys, "", CHOSEN).await.expect("an answer");
    assert!(connected.changed && connected.counter >= began, "{connected:?}");
}

/// Redis was emptied, and the process has seen an id beyond any jump.
#[tokio::test]
async fn the_counter_jumps_beyond_every_id_seen() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    // An id ahead of the time.
    let seen = Seen { highest: 5_000_000_000_000_000, ..Seen::default() };
    let connected = wire::connect(&mut conn, keys, "replication-1", seen).await.expect("an answer");
    assert!(connected.changed && connected.counter > seen.highest, "{connected:?}");
}

/// The first process to connect records the version of the data.
#[tokio::test]
async fn the_version_is_written_down() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    wire::connect(&mut conn, keys, "replication-1", Seen::default()).await.expect("an answer");
    let version: String = redis.console().await.run(&["HGET", &keys.meta(), "schema"]).await;
    assert_eq!(version, "2");
}

/// An unknown replication id does not count as a different one: the counter stays.
#[tokio::test]
async fn an_unknown_replication_id_changes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for replication_id in ["replication-1", "", "replication-1"] {
        let connected = wire::connect(&mut conn, keys, replication_id, CHOSEN).await.expect("an answer");
        assert_eq!((connected.changed, connected.counter), (false, 0));
    }
}

/// A caller has chosen the lowest first id. A lower counter is raised, so that the next id is this
/// one; a higher counter stays.
#[tokio::test]
async fn no_id_is_below_the_first_id_that_was_chosen() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    for (counter, first_id, raised) in [(0, 1, 0), (0, 2, 1), (1, 900, 899), (899, 900, 899), (900, 900, 900)] {
        let () = console.run(&["SET", &keys.next_event_id(), &counter.to_string()]).await;
        let connected = wire::connect(&mut conn, keys, "", Seen { first_id, ..CHOSEN }).await.expect("an answer");
        assert_eq!((connected.changed, connected.counter), (false, raised), "{counter}, {first_id}");
        assert_eq!(console.number(&keys.next_event_id()).await, raised, "{counter}, {first_id}");
    }
}

/// With no first id chosen and no event log, the counter jumps in a new namespace and on another
/// server, and at no other time. A namespace of a server without a replication id is new only once.
#[tokio::test]
async fn the_counter_jumps_only_in_a_new_namespace_or_on_another_server() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let mut before = 0;
    for (n, id) in ["", "", "replication-1", "replication-1", "replication-2", "", "replication-2"].into_iter().enumerate() {
        let connected = wire::connect(&mut conn, keys, id, Seen::default()).await.expect("an answer");
        assert_eq!((connected.changed, connected.counter > before), (n == 4, n == 0 || n == 4), "call {n}");
        assert!(connected.counter >= before, "call {n}");
        before = connected.counter;
    }
}
