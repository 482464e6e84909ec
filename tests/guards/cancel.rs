//! `cancel`: refusals before the first write, and the row in the event log.

use std::collections::BTreeMap;

use redis::Value;
use seriatim::wire::{self, CancelReply};

use crate::state::State;
use crate::support::Redis;
use crate::support::console::Console;

const OBJECT: &str = "user:1";

/// Makes an object whose event 7 with the key `k` waits for a retry. The event log is on.
async fn waiting(state: &mut State) {
    let keys = state.keys.clone();
    state
        .hold(OBJECT, "9999999999999", &["\"bad\""], "7 0 1 0 retry: no")
        .await;
    state.delivered(OBJECT, 5).await;
    state.run("SET", &[&keys.event_key(OBJECT), "7 k"]).await;
    state.run("HSET", &[&keys.meta(), "event.log", "on"]).await;
}

async fn cancel(state: &mut State) -> Result<CancelReply, redis::RedisError> {
    let cmd = wire::cancel(&state.keys, OBJECT.as_bytes(), "k", "7", true);
    CancelReply::read(&cmd.query_async(&mut state.conn).await?)
}

/// Returns all keys with their contents.
pub(crate) async fn dump(console: &Console) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for key in console.left().await {
        let value = console
            .run(&["DUMP", &format!("{}{key}", console.keys.prefix())])
            .await;
        all.insert(key, value);
    }
    all
}

/// A key that the script reads or writes has a wrong type. The error names the key, and the call
/// changes nothing.
#[tokio::test]
async fn a_key_of_a_wrong_type_is_named_and_nothing_changes() {
    // The test flushes its server, so this server is shared with no other test.
    let redis = Redis::own(&[]);
    let (mut state, console) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.console().await,
    );
    let keys = state.keys.clone();
    let emits = "0 2 12 7 1 other:11s7 1 1 r+5 other:22x";
    for key in [
        keys.objects_held(),
        keys.objects_paused(),
        keys.objects_with_events(),
        keys.events_held(OBJECT),
        keys.event_handled(OBJECT),
        keys.meta(),
        keys.event_log(),
        keys.events("other:1"),
        keys.events_scheduled_of("other:2"),
        keys.events_scheduled(),
        keys.events_scheduled_wake(),
    ] {
        state.run("FLUSHDB", &[]).await;
        waiting(&mut state).await;
        state
            .run(
                "HSET",
                &[&keys.event_handled(OBJECT), "id", "7", "emit:h", emits],
            )
            .await;
        state.run("DEL", &[&key]).await;
        state.run("SET", &[&key, "wrong"]).await;
        let before = dump(&console).await;
        let refused = cancel(&mut state).await.expect_err("a wrong type");
        assert_eq!(refused.code(), Some("WRONGTYPE"), "{key}: {refused}");
        assert_eq!(
            refused.detail(),
            Some(&*format!("{key} is a string")),
            "{refused}"
        );
        assert_eq!(dump(&console).await, before, "{key}");
    }
}

/// The emits of the event's handlers cannot be read, or a held batch begins with another event than
/// the one with the key. The call changes nothing.
#[tokio::test]
async fn an_event_that_cannot_end_here_stays() {
    let redis = Redis::start();
    let (mut state, console) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.console().await,
    );
    let (keys, handled) = (state.keys.clone(), redis.keys().event_handled(OBJECT));
    waiting(&mut state).await;
    state
        .run("HSET", &[&handled, "id", "7", "emit:h", "nonsense"])
        .await;
    let before = dump(&console).await;
    let refused = cancel(&mut state).await.expect_err("no emits");
    assert_eq!(
        refused.detail(),
        Some(&*format!("{handled} is a hash that cannot be read")),
        "{refused}"
    );
    assert_eq!(dump(&console).await, before);
    state
        .run("SET", &[&keys.events_held_id(OBJECT), "8 0 1 0 retry: no"])
        .await;
    let before = dump(&console).await;
    assert_eq!(
        cancel(&mut state).await.expect("a reply"),
        CancelReply::Absent
    );
    assert_eq!(dump(&console).await, before);
}

/// The row of the event has the results of its handlers. Progress that is left from an earlier
/// event does not count.
#[tokio::test]
async fn the_row_of_a_cancelled_event_has_its_results() {
    let redis = Redis::own(&[]);
    let (mut state, console) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.console().await,
    );
    let keys = state.keys.clone();
    let row = "status cancelled id 7 prev 5 object user:1 event \"bad\" error cancelled: retry: no attempts 1";
    for (of, results) in [("7", " results {\"a\":1,\"b\":2}"), ("6", "")] {
        state.run("FLUSHDB", &[]).await;
        waiting(&mut state).await;
        state
            .run(
                "HSET",
                &[
                    &keys.event_handled(OBJECT),
                    "id",
                    of,
                    "result:b",
                    "\"b\":2",
                    "result:a",
                    "\"a\":1",
                ],
            )
            .await;
        assert_eq!(
            cancel(&mut state).await.expect("a reply"),
            CancelReply::Cancelled
        );
        let rows: Vec<(String, Vec<String>)> =
            console.run(&["XRANGE", &keys.event_log(), "-", "+"]).await;
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(_, fields)| fields.join(" "))
            .collect();
        assert_eq!(rows, [format!("{row}{results}")], "progress of event {of}");
        console.check().await;
    }
}

/// The user may read a key that the script writes, but not write to it, or may use a command only
/// on some of the keys. The call is refused, and changes nothing. The right to write to exactly
/// these keys is enough.
#[tokio::test]
async fn without_a_right_to_one_key_nothing_changes() {
    let redis = Redis::own(&[]);
    let (mut state, console) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.console().await,
    );
    let keys = state.keys.clone();
    // Redis itself refuses a call without the right to write to the key of the call.
    let read = [
        keys.objects_held(),
        keys.event_worker(OBJECT),
        keys.last_event_id(OBJECT),
        keys.objects_paused(),
        keys.meta(),
    ];
    let always = [
        keys.objects_with_events(),
        keys.event_log(),
        keys.event_key(OBJECT),
        keys.events_held(OBJECT),
        keys.events_held_id(OBJECT),
        keys.event_handled(OBJECT),
        keys.event_errors(OBJECT),
        keys.events("other:1"),
    ];
    let scheduled = [
        keys.events_scheduled_of("other:2"),
        keys.events_scheduled(),
        keys.events_scheduled_wake(),
    ];
    let queues = format!("{}other:*", keys.prefix());
    let only_on = |command: &str, allowed: &str| {
        [
            "~*",
            "+@all",
            &format!("-{command}"),
            &format!("(~{allowed} +{command})"),
        ]
        .map(str::to_owned)
        .to_vec()
    };
    // Handlers have emitted and scheduled one event each, or have emitted for two objects.
    for (emits, more, mut users) in [
        (
            "0 2 12 7 1 other:11s7 1 1 r+5 other:22x",
            scheduled.to_vec(),
            vec![
                only_on("lpush", &queues),
                only_on("zscore", &keys.objects_paused()),
            ],
        ),
        (
            "0 2 12 7 1 other:117 1 other:33",
            vec![keys.events("other:3")],
            vec![],
        ),
    ] {
        state.run("FLUSHDB", &[]).await;
        waiting(&mut state).await;
        state
            .run(
                "HSET",
                &[&keys.event_handled(OBJECT), "id", "7", "emit:h", emits],
            )
            .await;
        let written: Vec<&String> = always.iter().chain(&more).collect();
        let writes = |except: Option<&String>| -> Vec<String> {
            let others = written
                .iter()
                .copied()
                .chain(&read)
                .filter(|key| Some(*key) != except);
            let readable = except.map(|key| format!("%R~{key}"));
            ["+@all".to_owned()]
                .into_iter()
                .chain(others.map(|key| format!("~{key}")))
                .chain(readable)
                .collect()
        };
        users.extend(written.iter().map(|key| writes(Some(key))));
        let before = dump(&console).await;
        for user in users {
            let refused = cancel(&mut weak(&redis, &mut state, &user).await)
                .await
                .expect_err("no right");
            assert_eq!(refused.code(), Some("NOPERM"), "{user:?}: {refused}");
            assert!(
                refused
                    .detail()
                    .is_some_and(|detail| detail.starts_with("the user may not use ")),
                "{user:?}: {refused}"
            );
            assert_eq!(dump(&console).await, before, "{user:?}");
        }
        let cancelled = cancel(&mut weak(&redis, &mut state, &writes(None)).await).await;
        assert_eq!(
            cancelled.expect("a reply"),
            CancelReply::Cancelled,
            "{emits}"
        );
    }
}

/// Connects as a user with these rights.
async fn weak(redis: &Redis, state: &mut State, user: &[String]) -> State {
    let rights = ["SETUSER", "weak", "reset", "on", ">weak"]
        .into_iter()
        .chain(user.iter().map(String::as_str));
    state.run("ACL", &rights.collect::<Vec<_>>()).await;
    let client =
        redis::Client::open(format!("{}?user=weak&pass=weak", redis.url())).expect("a URL");
    State::new(
        client
            .get_multiplexed_async_connection()
            .await
            .expect("Redis answers"),
        state.keys.clone(),
    )
}

/// `OBJ:last.event.id` is above the id of the held event, so that the value of `OBJ:event.key` has
/// no meaning. The call changes nothing.
#[tokio::test]
async fn an_event_below_the_last_id_is_not_cancelled() {
    let redis = Redis::start();
    let (mut state, console) = (
        State::new(redis.connect().await, redis.keys().clone()),
        redis.console().await,
    );
    waiting(&mut state).await;
    state.delivered(OBJECT, 9).await;
    let before = dump(&console).await;
    assert_eq!(
        cancel(&mut state).await.expect("a reply"),
        CancelReply::Absent
    );
    assert_eq!(dump(&console).await, before);
}
