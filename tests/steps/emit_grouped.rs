//! Single emits that share transactions: their order, their errors, and the limits of a group.
//!
//! The tests run on one thread, so it is certain which emits are queued together. The first emit
//! finds no other under way and is sent alone. The others follow in groups.

use std::time::Duration;

use futures_util::future::join_all;
use seriatim::event::Json;
use seriatim::{EmitError, Emitted, Emitter};
use tokio::task::{JoinHandle, yield_now};

use crate::support::console::Console;
use crate::support::{Redis, assert_matches};

/// Returns the number of transactions that Redis has run.
async fn transactions(console: &Console) -> usize {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let exec = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_exec:calls="));
    exec.and_then(|line| line.split(',').next())
        .map_or(0, |calls| calls.parse().expect("a number"))
}

/// Emits one event for each of these objects, all at the same time. The event is the position of
/// its object in the list.
async fn emit_all<O: AsRef<str>>(
    em: &Emitter,
    objects: impl IntoIterator<Item = O>,
) -> Vec<Result<Emitted, EmitError>> {
    join_all(
        objects
            .into_iter()
            .enumerate()
            .map(|(at, object)| async move { em.emit(object, &at).await }),
    )
    .await
}

fn spawn(em: &Emitter, object: &str, event: usize) -> JoinHandle<Result<Emitted, EmitError>> {
    let (em, object) = (em.clone(), object.to_owned());
    tokio::spawn(async move { em.emit(object, &event).await })
}

/// Lets all tasks run until each of them has sent its emit.
async fn settle() {
    for _ in 0..10 {
        yield_now().await;
    }
}

fn numbers(range: impl Iterator<Item = usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn emits_at_once_share_transactions_and_keep_their_order() {
    let redis = Redis::own(&[]);
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    // The first emit is sent alone, and then each group has up to 64 emits. Some counts are around
    // two full groups: one less, equal, one more.
    for (count, expected) in [(1, 1), (2, 2), (128, 3), (129, 3), (130, 4), (1000, 17)] {
        let before = transactions(&console).await;
        let all = emit_all(&em, vec!["a"; count]).await;
        for (at, emitted) in all.into_iter().enumerate() {
            let emitted = emitted.expect("emitted");
            assert_eq!((emitted.events, emitted.queued), (1, at as u64 + 1));
        }
        let used = transactions(&console).await - before;
        // If there are more emits than the emitter can queue, a group may be sent before it is
        // full.
        assert!(
            used == expected || count > 256 && used < count / 4,
            "{count} emits in {used}"
        );
        assert_eq!(console.queue("a").await, numbers(0..count));
        let markers = console.markers().await.len();
        assert_eq!(markers, used, "one marker per object and transaction");
        console.add("DEL a:events objects.with.events").await;
    }
}

#[tokio::test]
async fn subevents_follow_their_main_event_and_data_or_size_go_alone() {
    let redis = Redis::own(&[]);
    let (em, console, keys) = (
        redis.built_emitter().await,
        redis.console().await,
        redis.keys(),
    );
    let large = Json::new(format!("\"{}\"", "x".repeat(8000)));
    let other = em.clone().with_namespace("other").expect("a namespace");
    let emits = join_all([
        em.event("a", &1).send(),
        em.event("a", &2).sub(&3).sub(&4).send(),
        em.event("large", large).send(),
        em.event("data", &5).data(&6).send(),
        other.event("a", &7).send(),
        em.event("b", &8).send(),
    ]);
    for emitted in emits.await {
        emitted.expect("emitted");
    }
    assert_eq!(console.queue("a").await, ["1", "2", "3", "4"]);
    assert_eq!(console.queue("large").await.len(), 1);
    assert_eq!(console.queue("b").await, ["8"]);
    let others = Console::new(console.conn(), other.keys().clone());
    assert_eq!(others.queue("a").await, ["7"]);
    assert_eq!(others.markers().await, ["a"]);
    assert_eq!(
        console.run::<String>(&["GET", &keys.data("data")]).await,
        "6"
    );
    let mut marked = console.markers().await;
    marked.sort();
    assert_eq!(marked, ["a", "a", "b", "data", "large"]);
}

#[tokio::test]
async fn a_key_of_a_wrong_type_fails_its_own_emits_only() {
    let redis = Redis::start();
    let (em, console, keys) = (
        redis.built_emitter().await,
        redis.console().await,
        redis.keys(),
    );
    console
        .run::<()>(&["SET", &keys.events("broken"), "a string"])
        .await;
    let objects = ["a", "a", "broken", "b", "broken", "a"];
    for (object, emitted) in objects.into_iter().zip(emit_all(&em, objects).await) {
        match emitted {
            Err(EmitError::WrongType { object: named, key }) if object == "broken" => {
                assert_eq!((named.as_str(), key), ("broken", keys.events("broken")));
            }
            emitted => drop(emitted.unwrap_or_else(|error| panic!("{object}: {error}"))),
        }
    }
    assert_eq!(console.queue("a").await, ["0", "1", "5"]);
    assert_eq!(console.queue("b").await, ["3"]);

    console
        .run::<()>(&["DEL", &keys.objects_with_events()])
        .await;
    console
        .run::<()>(&["SET", &keys.objects_with_events(), "a string"])
        .await;
    for emitted in emit_all(&em, ["c", "c", "d"]).await {
        let error = emitted.expect_err("not a list");
        assert_matches!(
            error,
            EmitError::WrongType { key, .. } if *key == keys.objects_with_events()
        );
    }
    assert_eq!(
        console.queue("c").await,
        ["0", "1"],
        "the events are queued"
    );
}

/// If Redis refuses one command, it discards the whole transaction. The emitter sends the other
/// emits of the group again.
#[tokio::test]
async fn a_refused_emit_does_not_fail_the_others() {
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let may = [
        keys.events("a"),
        keys.events("b"),
        keys.objects_with_events(),
    ]
    .map(|key| format!("~{key}"));
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER")
        .arg("eve")
        .arg(&["on", ">pw", "+@all"][..])
        .arg(&may[..]);
    user.exec_async(&mut console.conn())
        .await
        .expect("ACL SETUSER");
    let builder = Emitter::builder(format!("{}?user=eve&pass=pw", redis.url())).keys(keys.clone());
    let em = builder.connect().await.expect("Redis answers");

    let objects = ["a", "b", "no", "a", "nor", "b", "no", "a"];
    for (object, emitted) in objects.into_iter().zip(emit_all(&em, objects).await) {
        match emitted {
            Err(error @ EmitError::Refused { .. }) if object.starts_with("no") => {
                assert!(
                    error
                        .to_string()
                        .contains(&format!("the call for {object},")),
                    "{error}"
                );
            }
            emitted => drop(emitted.unwrap_or_else(|error| panic!("{object}: {error}"))),
        }
    }
    assert_eq!(console.queue("a").await, ["0", "3", "7"]);
    assert_eq!(console.queue("b").await, ["1", "5"]);
    for emitted in emit_all(&em, ["no"; 5]).await {
        assert_matches!(emitted, Err(EmitError::Refused { .. }));
    }
}

#[tokio::test]
async fn without_memory_no_emit_is_applied() {
    let redis = Redis::own(&["--maxmemory-policy", "noeviction"]);
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    console.config("maxmemory", "1").await;
    for emitted in emit_all(&em, ["a", "a", "b"]).await {
        assert_matches!(emitted, Err(EmitError::OutOfMemory { .. }));
    }
    console.config("maxmemory", "0").await;
    assert_eq!(
        emit_all(&em, ["a", "a", "b"])
            .await
            .into_iter()
            .filter(Result::is_ok)
            .count(),
        3
    );
    assert_eq!(console.queue("a").await, ["0", "1"]);
}

/// Tests that an emit after a connect is sent at once: it waits for no read of the limits.
#[tokio::test]
async fn the_first_emit_after_a_connect_waits_for_nothing() {
    let redis = Redis::own(&[]);
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    // During the pause Redis returns nothing that the emit could wait for.
    console.run::<()>(&["CLIENT", "PAUSE", "200", "ALL"]).await;
    let first = spawn(&em, "a", 0);
    settle().await;
    first.abort();
    em.emit("a", &1).await.expect("emitted");
    assert_eq!(
        console.queue("a").await,
        ["0", "1"],
        "the aborted emit was sent before"
    );
}

/// The connection is lost. Emits that were sent have an unknown outcome. Emits that are still
/// queued go over the next connection.
#[tokio::test]
async fn a_lost_connection_is_unknown_to_those_sent_only() {
    let redis = Redis::own(&[]);
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    console
        .run::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"])
        .await;
    // The first emit is sent alone, and then groups of one emit each, up to the maximum number of
    // groups under way. All further emits stay queued.
    let mut sent = Vec::new();
    for event in 0..65 {
        sent.push(spawn(&em, "sent", event));
        settle().await;
    }
    let unsent: Vec<_> = (0..400).map(|event| spawn(&em, "unsent", event)).collect();
    settle().await;
    console
        .run::<()>(&["CLIENT", "KILL", "TYPE", "normal"])
        .await;
    for emit in sent {
        let error = emit.await.expect("no panic").expect_err("no reply");
        assert!(error.is_unknown(), "{error}");
    }
    console.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    for emit in unsent {
        emit.await
            .expect("no panic")
            .expect("emitted over a new connection");
    }
    assert_eq!(console.queue("sent").await, [""; 0]);
    let mut queued = console.queue("unsent").await;
    queued.sort_by_key(|event| event.parse::<usize>().expect("a number"));
    assert_eq!(queued, numbers(0..400));
}

/// If Redis does not reply in time, the emitter sends no further emit over this connection.
#[tokio::test]
async fn emits_without_a_reply_are_unknown_and_are_not_sent_again() {
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let builder = Emitter::builder(redis.url())
        .keys(keys.clone())
        .response_timeout(Duration::from_millis(100));
    let em = builder.connect().await.expect("Redis answers");
    console
        .run::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"])
        .await;
    for emitted in emit_all(&em, ["a"; 100]).await {
        assert!(emitted.expect_err("no reply").is_unknown());
    }
    console.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    em.emit("b", &1)
        .await
        .expect("emitted over a new connection");
    let queued = console.queue("a").await.into_iter();
    let queued = queued.map(|event| event.parse::<usize>().expect("a number"));
    assert!(
        queued.is_sorted_by(|before, after| before < after),
        "each at most once"
    );
}

/// A caller may drop its emit when it is queued or already sent. The emit may then have happened or
/// not. No other emit of its group is affected.
#[tokio::test]
async fn a_dropped_emit_harms_no_other() {
    let redis = Redis::own(&[]);
    let (em, console, keys) = (
        redis.built_emitter().await,
        redis.console().await,
        redis.keys(),
    );
    for yields in 0..6 {
        let emits: Vec<_> = (0..300).map(|event| spawn(&em, "a", event)).collect();
        for _ in 0..yields {
            yield_now().await;
        }
        for (at, emit) in emits.into_iter().enumerate() {
            if at % 3 == 0 {
                emit.abort();
            } else {
                emit.await.expect("no panic").expect("emitted");
            }
        }
        em.emit("a", &300).await.expect("emitted");
        settle().await;
        let queued = console.queue("a").await.into_iter();
        let queued = queued.map(|event| event.parse::<usize>().expect("a number"));
        let queued: Vec<_> = queued.collect();
        assert!(
            queued.is_sorted_by(|before, after| before < after),
            "{queued:?}"
        );
        assert!(
            (0..300)
                .filter(|event| event % 3 != 0)
                .all(|event| queued.contains(&event)),
            "{queued:?}"
        );
        console.run::<()>(&["DEL", &keys.events("a")]).await;
    }
}

/// On many threads the events of each task are queued in their order, and every event once.
#[tokio::test(flavor = "multi_thread")]
async fn each_task_keeps_its_order_on_many_threads() {
    let redis = Redis::start();
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    let tasks = (0..300).map(|task| {
        let em = em.clone();
        tokio::spawn(async move {
            for n in 0..10 {
                em.emit("a", &(task, n)).await.expect("emitted");
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    let mut seen = vec![0; 300];
    for event in console.queue("a").await {
        let (task, n): (usize, usize) = serde_json::from_str(&event).expect("a pair");
        assert_eq!(seen[task], n, "task {task}");
        seen[task] += 1;
    }
    assert!(seen.iter().all(|count| *count == 10));
}
