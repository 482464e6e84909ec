//! `connect`: the counter of ids and the version of the data.

use seriatim::wire::{self, Connect, Connected, EventLog, ScriptError};

use crate::scene::Scene;
use crate::stopped::NOW_US;
use crate::support::Redis;

const CHOSEN: Connect = Connect {
    first_id: 1,
    highest: 0,
    event_log: None,
};

async fn scene() -> Scene {
    Scene::bare(Redis::start()).await
}

async fn try_connect(scene: &Scene, id: &str, seen: Connect) -> Result<Connected, ScriptError> {
    wire::connect(&mut scene.conn().await, &scene.keys, id, seen).await
}

async fn connect(scene: &Scene, id: &str, seen: Connect) -> Connected {
    try_connect(scene, id, seen).await.expect("an answer")
}

/// The ids given before a namespace was emptied are unknown. So a new namespace begins at the time,
/// and only a new one.
#[tokio::test]
async fn a_new_namespace_begins_at_the_time() {
    let scene = scene().await;
    let began_us = scene.now_ms().await * 1000;
    let first = connect(&scene, "replication-1", Connect::default()).await;
    let now_us = (scene.now_ms().await + 1) * 1000;
    assert!(
        !first.changed && (began_us..=now_us).contains(&first.counter),
        "{first:?}"
    );
    assert_eq!(
        scene.number(&scene.keys.next_event_id()).await,
        first.counter
    );
    for first_id in [0, 1] {
        let seen = Connect {
            first_id,
            ..Connect::default()
        };
        let again = connect(&scene, "replication-1", seen).await;
        assert_eq!((again.changed, again.counter), (false, first.counter));
    }
}

/// The pass over the worker names starts again on another server, and only there: a cursor belongs
/// to one server.
#[tokio::test]
async fn the_pass_over_the_names_starts_again_on_another_server() {
    let scene = scene().await;
    connect(&scene, "replication-1", Connect::default()).await;
    let given = "HSET seriatim.meta names.cursor 17 names.indexed 1";
    scene.add(given).await;
    for (id, remain) in [("replication-1", 2), ("", 2), ("replication-2", 0)] {
        connect(&scene, id, Connect::default()).await;
        let fields: Vec<String> = scene.run(&["HKEYS", &scene.keys.meta()]).await;
        let names = fields.iter().filter(|field| field.starts_with("names."));
        assert_eq!(names.count(), remain, "{id}");
    }
}

/// The version of the protocol was lost, but not the id of the server. It is written again. If only the id
/// of the server is not known, the fields beside it stay.
#[tokio::test]
async fn a_lost_version_is_written_again() {
    let scene = scene().await;
    connect(&scene, "replication-1", Connect::default()).await;
    scene.add("HDEL seriatim.meta schema").await;
    connect(&scene, "replication-1", Connect::default()).await;
    let words = ["HMGET", &scene.keys.meta(), "schema", "partitions"];
    assert_eq!(scene.run::<(u64, u64)>(&words).await, (1, 1));
    let given = "HDEL seriatim.meta replication.id; HSET seriatim.meta partitions 7";
    scene.add(given).await;
    connect(&scene, "replication-1", Connect::default()).await;
    assert_eq!(scene.run::<(u64, u64)>(&words).await, (1, 7));
}

/// The namespace's meta key was lost, but not the counter: new ids continue above the counter.
#[tokio::test]
async fn a_new_namespace_does_not_begin_below_the_counter() {
    let scene = scene().await;
    scene.add("SET next.event.id 5000000000000000").await;
    let connected = connect(&scene, "", Connect::default()).await;
    assert!(connected.counter > 5_000_000_000_000_000, "{connected:?}");
}

/// The first connection to a namespace sets the counter. So an absent counter was evicted, and it
/// jumps, even if a first id is chosen.
#[tokio::test]
async fn an_absent_counter_was_evicted() {
    let scene = scene().await;
    scene.add("DEL next.event.id").await;
    let connected = connect(&scene, "", CHOSEN).await;
    assert_eq!((connected.changed, connected.counter), (false, 0));
    assert_eq!(scene.at("next.event.id").await, "0");
    scene.add("DEL next.event.id").await;
    let began_us = scene.now_ms().await * 1000;
    let connected = connect(&scene, "", CHOSEN).await;
    assert!(
        connected.changed && connected.counter >= began_us,
        "{connected:?}"
    );
}

/// Redis was emptied, and the process has seen an id beyond any jump.
#[tokio::test]
async fn the_counter_jumps_beyond_every_id_seen() {
    // An id ahead of the time.
    let highest = 5_000_000_000_000_000;
    let seen = Connect {
        highest,
        ..Connect::default()
    };
    let connected = connect(&scene().await, "replication-1", seen).await;
    assert!(
        connected.changed && connected.counter > highest,
        "{connected:?}"
    );
}

/// The first process to connect records the version of the data.
#[tokio::test]
async fn the_version_is_written_down() {
    let scene = scene().await;
    connect(&scene, "replication-1", Connect::default()).await;
    let words = ["HGET", &scene.keys.meta(), "schema"];
    assert_eq!(scene.run::<String>(&words).await, "1");
}

/// An unknown replication id does not count as a different one: the counter stays.
#[tokio::test]
async fn an_unknown_replication_id_changes_nothing() {
    let scene = scene().await;
    for id in ["replication-1", "", "replication-1"] {
        let connected = connect(&scene, id, CHOSEN).await;
        assert_eq!((connected.changed, connected.counter), (false, 0));
    }
}

/// A caller has chosen the lowest first id. A lower counter is raised, so that the next id is this
/// one; a higher counter stays.
#[tokio::test]
async fn no_id_is_below_the_first_id_that_was_chosen() {
    let scene = scene().await;
    for (counter, first_id, raised) in [
        (0, 1, 0),
        (0, 2, 1),
        (1, 900, 899),
        (899, 900, 899),
        (900, 900, 900),
    ] {
        scene.add(&format!("SET next.event.id {counter}")).await;
        let connected = connect(&scene, "", Connect { first_id, ..CHOSEN }).await;
        let found = (connected.changed, connected.counter);
        assert_eq!(found, (false, raised), "{counter}, {first_id}");
        assert_eq!(scene.at("next.event.id").await, raised.to_string());
    }
}

/// With no first id chosen and no event log, the counter jumps in a new namespace and on another
/// server, and at no other time. A namespace of a server without a replication id is new only once.
#[tokio::test]
async fn the_counter_jumps_only_in_a_new_namespace_or_on_another_server() {
    let scene = scene().await;
    let mut before = 0;
    let ids = ["", "", "one", "one", "two", "", "two"];
    for (n, id) in ids.into_iter().enumerate() {
        let connected = connect(&scene, id, Connect::default()).await;
        let found = (connected.changed, connected.counter > before);
        assert_eq!(found, (n == 4, n == 0 || n == 4), "call {n}");
        assert!(connected.counter >= before, "call {n}");
        before = connected.counter;
    }
}

/// All of seriatim.meta, and the counter, before and after a call.
#[tokio::test]
async fn each_field_is_written_when_it_is_of_use() {
    const JUMP: u64 = NOW_US;
    let none = Connect::default();
    let highest = |highest| Connect { highest, ..none };
    let ninth = Connect {
        first_id: 9,
        ..none
    };
    let log = |keep| {
        let mut log = EventLog::default();
        log.keep = keep;
        Connect {
            event_log: Some(log),
            ..none
        }
    };
    let (schema, new) = ("schema 1", "partitions 1 schema 1");
    let (of_q, of_r) = ("replication.id q schema 1", "replication.id r schema 1");
    let of_new_r = "partitions 1 replication.id r schema 1";
    let (on, odd) = (
        "event.log.keep 7 event.log on schema 1",
        "event.log yes schema 1",
    );
    let on_8 = "event.log.keep 8 event.log on schema 1";
    let odd_8 = "event.log.keep 8 event.log yes schema 1";
    let (late, late_seen) = (1_900_000_000_000_000_u64, highest(1_900_000_000_000_005));
    // Of each case: the fields and the counter before the call (0: absent), the arguments, whether
    // writes may have been lost, and both after the call.
    for (before, counter, id, seen, changed, after, counter_after) in [
        ("", 0, "", none, false, new, JUMP),
        ("", 5, "", none, false, new, JUMP),
        ("", 5, "", CHOSEN, false, new, 5),
        ("", 5, "r", CHOSEN, false, of_new_r, 5),
        ("", 0, "", ninth, false, new, 8),
        ("replication.id r", 5, "r", CHOSEN, false, of_new_r, 5),
        (schema, 5, "", none, false, schema, 5),
        (schema, 5, "", highest(5), false, schema, 5),
        (schema, 5, "", highest(6), true, schema, JUMP),
        (schema, 0, "", CHOSEN, true, schema, JUMP),
        (
            schema,
            late,
            "",
            late_seen,
            true,
            schema,
            1_900_000_682_206_341,
        ),
        (of_q, 5, "r", none, true, of_r, JUMP),
        (of_r, 5, "r", none, false, of_r, 5),
        (of_q, 5, "", none, false, of_q, 5),
        (schema, 5, "r", none, false, of_r, 5),
        (schema, 5, "", log(7), false, on, 5),
        (on, 5, "", log(8), false, on_8, 5),
        (on, 5, "", none, false, "event.log.keep 7 schema 1", 5),
        (odd, 5, "", log(8), false, odd_8, 5),
    ] {
        let scene = Scene::stopped_at(NOW_US).await;
        scene.add("DEL next.event.id").await;
        if !before.is_empty() {
            scene.add(&format!("HSET seriatim.meta {before}")).await;
        }
        if counter > 0 {
            scene.add(&format!("SET next.event.id {counter}")).await;
        }
        let connected = connect(&scene, id, seen).await;
        let case = format!("{before}, {counter}, {id}, {seen:?}");
        let found = (connected.changed, connected.counter);
        assert_eq!(found, (changed, counter_after), "{case}");
        let number = scene.number(&scene.keys.next_event_id()).await;
        assert_eq!(number, counter_after, "{case}");
        let fields = scene.at("seriatim.meta").await;
        assert_eq!(fields.replace([':', ',', '{', '}'], ""), after, "{case}");
    }
}

/// An unknown version, or a counter that is no number, is refused. Nothing is written.
#[tokio::test]
async fn an_unknown_version_and_a_wrong_counter_are_refused() {
    for (version, counter, why) in [
        ("2", "5", "2"),
        ("0", "5", "0"),
        ("1", "many", "many"),
        ("1", "1e3", "1e3"),
    ] {
        let scene = scene().await;
        scene
            .add(&format!("HSET seriatim.meta schema {version}"))
            .await;
        scene.add(&format!("SET next.event.id {counter}")).await;
        match try_connect(&scene, "r", Connect::default()).await {
            Err(ScriptError::Schema(text)) => assert_eq!((text.as_str(), counter), (why, "5")),
            Err(ScriptError::Counter(text)) => assert_eq!((text.as_str(), counter), (why, why)),
            other => panic!("{version} {counter}: {other:?}"),
        }
        scene.changed("").await;
    }
}

/// A user who lacks a right is refused before the first write.
#[tokio::test]
async fn a_user_who_lacks_a_right_is_refused() {
    let scene = Scene::bare(Redis::own(&[])).await;
    scene.login("~* +@all -hdel").await;
    let refused = try_connect(&scene, "r", Connect::default()).await;
    let is_hdel = |command: &String| command.eq_ignore_ascii_case("HDEL");
    assert!(
        matches!(&refused, Err(ScriptError::Denied(command)) if is_hdel(command)),
        "{refused:?}"
    );
    scene.changed("").await;
}
