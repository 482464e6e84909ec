//! `connect`: the counter of ids and the version of the data.

use std::time::{SystemTime, UNIX_EPOCH};

use seriatim::wire::{self, Connect, EventLog, ScriptError};

use crate::stopped::{NOW_US, scene};
use crate::support::Redis;

const CHOSEN: Connect = Connect {
    first_id: 1,
    highest: 0,
    event_log: None,
};

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros() as u64
}

/// The ids given before a namespace was emptied are unknown. So a new namespace begins at the time,
/// and only a new one.
#[tokio::test]
async fn a_new_namespace_begins_at_the_time() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let began = now_us();
    let first = wire::connect(&mut conn, keys, "replication-1", Connect::default())
        .await
        .expect("an answer");
    assert!(
        !first.changed && (began..=now_us()).contains(&first.counter),
        "{first:?}"
    );
    assert_eq!(
        redis.console().await.number(&keys.next_event_id()).await,
        first.counter
    );
    for first_id in [0, 1] {
        let seen = Connect {
            first_id,
            ..Connect::default()
        };
        let again = wire::connect(&mut conn, keys, "replication-1", seen)
            .await
            .expect("an answer");
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
    wire::connect(&mut conn, keys, "replication-1", Connect::default())
        .await
        .expect("an answer");
    let _: u64 = console
        .run(&[
            "HSET",
            &keys.meta(),
            "names.cursor",
            "17",
            "names.indexed",
            "1",
        ])
        .await;
    for (id, remain) in [("replication-1", 2), ("", 2), ("replication-2", 0)] {
        wire::connect(&mut conn, keys, id, Connect::default())
            .await
            .expect("an answer");
        let fields: Vec<String> = console.run(&["HKEYS", &keys.meta()]).await;
        assert_eq!(
            fields
                .iter()
                .filter(|field| field.starts_with("names."))
                .count(),
            remain,
            "{id}"
        );
    }
}

/// The namespace's meta key was lost, but not the counter: new ids continue above the counter.
#[tokio::test]
async fn a_new_namespace_does_not_begin_below_the_counter() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    let counter = 5_000_000_000_000_000_u64;
    let () = console
        .run(&["SET", &keys.next_event_id(), &counter.to_string()])
        .await;
    let connected = wire::connect(&mut conn, keys, "", Connect::default())
        .await
        .expect("an answer");
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
    let connected = wire::connect(&mut conn, keys, "", CHOSEN)
        .await
        .expect("an answer");
    assert_eq!((connected.changed, connected.counter), (false, 0));
    assert_eq!(
        console.text(&keys.next_event_id()).await.as_deref(),
        Some("0")
    );
    let _: u64 = console.run(&["DEL", &keys.next_event_id()]).await;
    let began = now_us();
    let connected = wire::connect(&mut conn, keys, "", CHOSEN)
        .await
        .expect("an answer");
    assert!(
        connected.changed && connected.counter >= began,
        "{connected:?}"
    );
}

/// Redis was emptied, and the process has seen an id beyond any jump.
#[tokio::test]
async fn the_counter_jumps_beyond_every_id_seen() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    // An id ahead of the time.
    let seen = Connect {
        highest: 5_000_000_000_000_000,
        ..Connect::default()
    };
    let connected = wire::connect(&mut conn, keys, "replication-1", seen)
        .await
        .expect("an answer");
    assert!(
        connected.changed && connected.counter > seen.highest,
        "{connected:?}"
    );
}

/// The first process to connect records the version of the data.
#[tokio::test]
async fn the_version_is_written_down() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    wire::connect(&mut conn, keys, "replication-1", Connect::default())
        .await
        .expect("an answer");
    let version: String = redis
        .console()
        .await
        .run(&["HGET", &keys.meta(), "schema"])
        .await;
    assert_eq!(version, "1");
}

/// An unknown replication id does not count as a different one: the counter stays.
#[tokio::test]
async fn an_unknown_replication_id_changes_nothing() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    for replication_id in ["replication-1", "", "replication-1"] {
        let connected = wire::connect(&mut conn, keys, replication_id, CHOSEN)
            .await
            .expect("an answer");
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
    for (counter, first_id, raised) in [
        (0, 1, 0),
        (0, 2, 1),
        (1, 900, 899),
        (899, 900, 899),
        (900, 900, 900),
    ] {
        let () = console
            .run(&["SET", &keys.next_event_id(), &counter.to_string()])
            .await;
        let connected = wire::connect(&mut conn, keys, "", Connect { first_id, ..CHOSEN })
            .await
            .expect("an answer");
        assert_eq!(
            (connected.changed, connected.counter),
            (false, raised),
            "{counter}, {first_id}"
        );
        assert_eq!(
            console.number(&keys.next_event_id()).await,
            raised,
            "{counter}, {first_id}"
        );
    }
}

/// With no first id chosen and no event log, the counter jumps in a new namespace and on another
/// server, and at no other time. A namespace of a server without a replication id is new only once.
#[tokio::test]
async fn the_counter_jumps_only_in_a_new_namespace_or_on_another_server() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let mut before = 0;
    for (n, id) in [
        "",
        "",
        "replication-1",
        "replication-1",
        "replication-2",
        "",
        "replication-2",
    ]
    .into_iter()
    .enumerate()
    {
        let connected = wire::connect(&mut conn, keys, id, Connect::default())
            .await
            .expect("an answer");
        assert_eq!(
            (connected.changed, connected.counter > before),
            (n == 4, n == 0 || n == 4),
            "call {n}"
        );
        assert!(connected.counter >= before, "call {n}");
        before = connected.counter;
    }
}

/// All of seriatim.meta, and the counter, before and after a call.
#[tokio::test]
async fn each_field_is_written_when_it_is_of_use() {
    const JUMP: u64 = NOW_US;
    let (_clock, redis, mut state) = scene().await;
    let (keys, console) = (state.keys.clone(), redis.console().await);
    let none = Connect::default();
    let highest = |highest| Connect { highest, ..none };
    let log = |keep| {
        let mut log = EventLog::default();
        log.keep = keep;
        Connect {
            event_log: Some(log),
            ..none
        }
    };
    // Of each case: the fields and the counter before the call, the arguments, whether writes may
    // have been lost, and both after the call.
    for (before, counter, id, seen, changed, after, counter_after) in [
        ("", None, "", none, false, "partitions 1 schema 1", JUMP),
        (
            "",
            Some("5"),
            "",
            none,
            false,
            "partitions 1 schema 1",
            JUMP,
        ),
        ("", Some("5"), "", CHOSEN, false, "partitions 1 schema 1", 5),
        (
            "",
            Some("5"),
            "r",
            CHOSEN,
            false,
            "partitions 1 replication.id r schema 1",
            5,
        ),
        (
            "",
            None,
            "",
            Connect {
                first_id: 9,
                ..none
            },
            false,
            "partitions 1 schema 1",
            8,
        ),
        (
            "replication.id r",
            Some("5"),
            "r",
            CHOSEN,
            false,
            "partitions 1 replication.id r schema 1",
            5,
        ),
        ("schema 1", Some("5"), "", none, false, "schema 1", 5),
        ("schema 1", Some("5"), "", highest(5), false, "schema 1", 5),
        (
            "schema 1",
            Some("5"),
            "",
            highest(6),
            true,
            "schema 1",
            JUMP,
        ),
        ("schema 1", None, "", CHOSEN, true, "schema 1", JUMP),
        (
            "schema 1",
            Some("1900000000000000"),
            "",
            highest(1_900_000_000_000_005),
            true,
            "schema 1",
            1_900_000_682_206_341,
        ),
        (
            "replication.id q schema 1",
            Some("5"),
            "r",
            none,
            true,
            "replication.id r schema 1",
            JUMP,
        ),
        (
            "replication.id r schema 1",
            Some("5"),
            "r",
            none,
            false,
            "replication.id r schema 1",
            5,
        ),
        (
            "replication.id q schema 1",
            Some("5"),
            "",
            none,
            false,
            "replication.id q schema 1",
            5,
        ),
        (
            "schema 1",
            Some("5"),
            "r",
            none,
            false,
            "replication.id r schema 1",
            5,
        ),
        (
            "schema 1",
            Some("5"),
            "",
            log(7),
            false,
            "event.log on event.log.keep 7 schema 1",
            5,
        ),
        (
            "event.log on event.log.keep 7 schema 1",
            Some("5"),
            "",
            log(8),
            false,
            "event.log on event.log.keep 8 schema 1",
            5,
        ),
        (
            "event.log on event.log.keep 7 schema 1",
            Some("5"),
            "",
            none,
            false,
            "event.log.keep 7 schema 1",
            5,
        ),
        (
            "event.log yes schema 1",
            Some("5"),
            "",
            log(8),
            false,
            "event.log yes event.log.keep 8 schema 1",
            5,
        ),
    ] {
        state
            .run("DEL", &[&keys.meta(), &keys.next_event_id()])
            .await;
        if !before.is_empty() {
            state
                .run(
                    "HSET",
                    &[
                        &[keys.meta().as_str()],
                        &before.split(' ').collect::<Vec<_>>()[..],
                    ]
                    .concat(),
                )
                .await;
        }
        if let Some(counter) = counter {
            state.run("SET", &[&keys.next_event_id(), counter]).await;
        }
        let connected = wire::connect(&mut state.conn, &keys, id, seen)
            .await
            .expect("an answer");
        let case = format!("{before}, {counter:?}, {id}, {seen:?}");
        assert_eq!(
            (connected.changed, connected.counter),
            (changed, counter_after),
            "{case}"
        );
        assert_eq!(
            console.number(&keys.next_event_id()).await,
            counter_after,
            "{case}"
        );
        let mut fields: Vec<(String, String)> = console.run(&["HGETALL", &keys.meta()]).await;
        fields.sort();
        let fields: Vec<_> = fields
            .into_iter()
            .map(|(field, value)| format!("{field} {value}"))
            .collect();
        assert_eq!(fields.join(" "), after, "{case}");
    }
}

/// An unknown version, or a counter that is no number, is refused. Nothing is written.
#[tokio::test]
async fn an_unknown_version_and_a_wrong_counter_are_refused() {
    let redis = Redis::start();
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    for (version, counter, why) in [
        ("2", "5", "2"),
        ("0", "5", "0"),
        ("1", "many", "many"),
        ("1", "1e3", "1e3"),
    ] {
        let _: u64 = console
            .run(&["HSET", &keys.meta(), "schema", version])
            .await;
        let () = console.run(&["SET", &keys.next_event_id(), counter]).await;
        let refused = wire::connect(&mut conn, keys, "r", Connect::default())
            .await
            .expect_err("refused");
        match refused {
            ScriptError::Schema(told) => assert_eq!((told.as_str(), counter), (why, "5")),
            ScriptError::Counter(told) => assert_eq!((told.as_str(), counter), (why, why)),
            other => panic!("{version} {counter}: {other:?}"),
        }
        let fields: Vec<(String, String)> = console.run(&["HGETALL", &keys.meta()]).await;
        assert_eq!(fields, [("schema".to_owned(), version.to_owned())]);
        assert_eq!(
            console.text(&keys.next_event_id()).await.as_deref(),
            Some(counter)
        );
    }
}

/// A user who lacks a right is refused before the first write.
#[tokio::test]
async fn a_user_who_lacks_a_right_is_refused() {
    let redis = Redis::own(&[]);
    let (mut conn, keys) = (redis.connect().await, redis.keys());
    let console = redis.console().await;
    let user = [
        "ACL", "SETUSER", "worker", "reset", "on", "nopass", "~*", "+@all", "-hdel",
    ];
    let () = console.run(&user).await;
    redis::cmd("AUTH")
        .arg("worker")
        .arg("x")
        .query_async::<()>(&mut conn)
        .await
        .expect("logged in");
    let refused = wire::connect(&mut conn, keys, "r", Connect::default())
        .await
        .expect_err("refused");
    assert!(
        matches!(&refused, ScriptError::Denied(command) if command.eq_ignore_ascii_case("HDEL")),
        "{refused:?}"
    );
    assert_eq!(console.run::<u64>(&["EXISTS", &keys.meta()]).await, 0);
}
