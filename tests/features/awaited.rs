//! Awaited emits: the producer gets the result of the handler, or how the event ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use seriatim::control::By;
use seriatim::emit::{CallError, Cancelled, EventEnd, WaitError};
use seriatim::event::{EventStatus, Json};
use seriatim::handlers::{Failure, HandlerContext, Handlers};
use seriatim::worker::EventLog;
use seriatim::{EmitError, Emitter};
use tokio::sync::Notify;

use crate::support::console::PATIENCE;
use crate::support::proxy::{Lose, Proxy};
use crate::support::running::{Running, retrying, start};
use crate::support::{Redis, assert_matches, patient, until};

const ADA: By<'static> = By {
    who: "ada@host",
    why: "enough",
};
/// A wait that ends without an end.
const SHORT: Duration = Duration::from_millis(300);

/// Starts a worker whose handlers do what the event asks for: `double` sets twice the number as
/// result, `late` does so at its third attempt, `fail` fails, `reject` is unrecoverable.
fn worker(redis: &Redis, name: &str, policy: &str, logs: bool) -> Running {
    let handler = |event: Value, cx: HandlerContext| async move {
        match event["type"].as_str() {
            Some("double") => cx.result(&(event["n"].as_u64().unwrap_or(0) * 2))?,
            Some("late") if cx.attempt() < 3 => return Err(Failure::transient("not yet")),
            Some("late") => cx.result(&cx.attempt())?,
            Some("fail") => {
                cx.result("nothing")?;
                return Err(Failure::transient("no card"));
            }
            Some("reject") => return Err(Failure::unrecoverable("no such user")),
            _ => {}
        }
        Ok(())
    };
    let handlers = Handlers::builder().register_all("pay", handler);
    let handlers = handlers.build().expect("a set");
    start(redis, name, &handlers, |config| {
        retrying(policy)(config);
        config.event_log = logs.then(EventLog::default);
    })
}

fn event(kind: &str) -> Value {
    json!({"type": kind, "n": 21})
}

async fn called(emitter: &Emitter, kind: &str) -> Result<Value, CallError> {
    emitter.call("work:1", &event(kind), PATIENCE).await
}

fn ended(failed: Result<Value, CallError>) -> EventEnd {
    match failed {
        Err(CallError::Ended { object, name, end }) => {
            assert!(
                object.as_str() == "work:1" && name.starts_with('-'),
                "{name}"
            );
            *end
        }
        other => panic!("{other:?}"),
    }
}

/// With the event log and without it, a call returns the result of its handler, also after retries.
/// Events that are not awaited, and schedules, leave no end.
#[tokio::test]
async fn a_call_returns_the_result_of_its_handler() {
    for logs in [false, true] {
        let (redis, console) = Redis::start().with_console().await;
        let emitter = redis.emitter().await;
        console.emit("work:1", r#"{"type":"silent"}"#).await;
        let worker = worker(&redis, "w", "fixed:1ms", logs);
        assert_matches!(called(&emitter, "double").await, Ok(found) if found == 42);
        assert_matches!(called(&emitter, "late").await, Ok(found) if found == 3);
        assert_matches!(called(&emitter, "silent").await, Ok(Value::Null));
        let double = event("double");
        let wrong = emitter.call::<String>("work:1", &double, PATIENCE).await;
        let wrong = wrong.expect_err("it is a number");
        let text = wrong.to_string();
        assert!(
            text.starts_with("event \"-")
                && text.contains(
                    " of work:1 was delivered, but its result cannot be read: invalid type"
                ),
            "{text}"
        );
        let scheduled = emitter.schedule("work:1", &event("double")).key("k");
        scheduled.send().await.expect("scheduled");
        until("the scheduled event is delivered", PATIENCE, async || {
            (console.last_id("work:1").await == 6).then_some(())
        })
        .await;
        worker.finish().await;
        let ends: Vec<String> = console.run(&["KEYS", "*:event.end"]).await;
        assert_eq!(ends.len(), 4, "{ends:?}");
        console.check().await;
    }
}

/// Whatever ends the event, its producer learns it, once per end and with its error.
#[tokio::test]
async fn an_event_that_is_not_delivered_tells_its_end() {
    let (redis, console) = Redis::start().with_console().await;
    let emitter = redis.emitter().await;
    let worker = worker(&redis, "w", "fixed:1ms,attempts=2,then=dead-letter", false);
    let end = ended(called(&emitter, "fail").await);
    assert_eq!(
        (end.status, end.error.as_deref(), end.attempts),
        (EventStatus::Dead, Some("pay: no card"), 2)
    );
    let failed = called(&emitter, "reject").await.expect_err("it is dead");
    let text = failed.to_string();
    assert!(
        text.starts_with("event \"-") && text.ends_with(" of work:1 is dead: pay: no such user"),
        "{text}"
    );
    let end = ended(Err(failed));
    assert_eq!((end.attempts, end.id.is_some()), (0, true));
    worker.finish().await;

    let worker = self::worker(
        &redis,
        "w",
        "fixed:1ms,attempts=1,then=complete-with-errors",
        false,
    );
    let end = ended(called(&emitter, "fail").await);
    assert_eq!(end.status, EventStatus::CompletedWithErrors);
    worker.finish().await;
    console.check().await;
}

/// An operator skips a held event, cancels a held one, and cancels one that is still queued.
#[tokio::test]
async fn what_an_operator_does_ends_the_wait() {
    let (redis, console) = Redis::start().with_console().await;
    let (emitter, control) = (redis.emitter().await, redis.control().await);
    let emit = async |kind: &str, name: &str| {
        let emit = emitter.event("work:1", &event(kind)).idempotency_key(name);
        emit.awaited().send().await.expect("queued")
    };
    let key = |name: &str| format!("?86400 {name}");
    let skipped = emit("fail", "a").await;
    let cancelled = emit("fail", "b").await;
    let queued = emit("double", "c").await;
    let cancel = control.cancel_schedule(ADA, "work:1", &key("c")).await;
    assert!(cancel.is_ok(), "{cancel:?}");
    let end = queued.end(PATIENCE).await.expect("an end");
    assert_eq!((end.id, end.status), (None, EventStatus::Cancelled));

    let worker = worker(&redis, "w", "fixed:1ms,attempts=1,then=hold", true);
    console.until_held("work:1", "attempts: ").await;
    assert_matches!(
        skipped.end(SHORT).await,
        Err(WaitError::TimedOut {
            unreachable: None,
            ..
        })
    );
    control.skip(ADA, "work:1", None).await.expect("skipped");
    let end = skipped.end(PATIENCE).await.expect("an end");
    assert_eq!((end.status, end.attempts), (EventStatus::Dead, 1));
    let error = end.error.expect("an error");
    assert!(error.starts_with("skipped: attempts: "), "{error}");

    console.until_held("work:1", "attempts: ").await;
    let cancel = control.cancel_schedule(ADA, "work:1", &key("b")).await;
    assert!(cancel.is_ok(), "{cancel:?}");
    let end = cancelled.end(PATIENCE).await.expect("an end");
    let error = end.error.expect("an error");
    assert_eq!(end.status, EventStatus::Cancelled);
    assert!(error.starts_with("cancelled: attempts: "), "{error}");
    worker.finish().await;
    console.check().await;
}

/// The same emit under the same name is one event, and each wait has its end: at once, later, in
/// another process, and again.
#[tokio::test]
async fn an_end_can_be_awaited_by_name_any_number_of_times() {
    let (redis, console) = Redis::start().with_console().await;
    let (one, other) = (redis.emitter().await, redis.emitter().await);
    let emit = async |emitter: &Emitter| {
        let emit = emitter.event("work:1", &event("double"));
        let emit = emit.idempotency_key("payment 4711").awaited();
        emit.send().await.expect("queued")
    };
    let (first, second) = (emit(&one).await, emit(&other).await);
    assert_eq!(
        (first.emitted().repeated, second.emitted().repeated),
        (false, true)
    );
    assert_eq!(
        (first.name(), first.object().as_str()),
        ("payment 4711", "work:1")
    );
    let waits = [&first, &second].map(|awaited| awaited.end(PATIENCE));
    let by_name = other.end_of("work:1", "payment 4711", PATIENCE);
    let worker = worker(&redis, "w", "fixed:1ms", false);
    let (ends, named) = tokio::join!(join_all(waits), by_name);
    let named = named.expect("an end");
    assert_eq!(named.result::<u64>().expect("a result"), 42);
    for end in ends {
        assert_eq!(end.expect("an end"), named);
    }
    let third = emit(&one).await;
    assert!(third.emitted().repeated);
    assert_eq!(third.end(PATIENCE).await.expect("an end"), named);
    worker.finish().await;
    console.check().await;
}

/// A worker dies in the middle of the handler. The next one ends the event, and the wait goes on.
#[tokio::test]
async fn a_wait_outlives_the_worker_and_redis() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let emitter = redis.emitter().await;
    let (begun, calls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let handlers = {
        let (begun, calls) = (Arc::clone(&begun), Arc::clone(&calls));
        Handlers::builder()
            .register_all("slow", move |_: Value, cx: HandlerContext| {
                let (begun, calls) = (Arc::clone(&begun), Arc::clone(&calls));
                async move {
                    begun.notify_one();
                    if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                        std::future::pending::<()>().await;
                    }
                    cx.result("second")?;
                    Ok(())
                }
            })
            .build()
            .expect("a set")
    };
    let first = start(&redis, "v", &handlers, |_| {});
    let awaited = emitter.event("work:1", &event("slow")).awaited();
    let awaited = awaited.send().await.expect("queued");
    let name = awaited.name().to_owned();
    let wait = tokio::spawn(async move { awaited.end(PATIENCE).await });
    begun.notified().await;
    first.crash().await;
    redis.server().kill();
    redis.server().restart();
    let console = redis.console().await;
    console.end_lease("v").await;
    let second = start(&redis, "w", &handlers, |_| {});
    let end = wait.await.expect("no panic").expect("an end");
    assert_eq!(end.result::<String>().expect("a result"), "second");
    second.finish().await;

    // The end survives Redis, too.
    redis.server().kill();
    redis.server().restart();
    let again = emitter.end_of("work:1", name, PATIENCE).await;
    assert_eq!(again.expect("an end"), end);
}

/// The reply of the emit is lost, or the request. The repeat is no second event.
#[tokio::test]
async fn a_lost_reply_queues_no_second_event() {
    let redis = Redis::own(&[]);
    let proxy = Proxy::before(&redis);
    let builder = Emitter::builder(proxy.url()).keys(redis.keys().clone());
    let builder = builder.response_timeout(Duration::from_millis(500));
    let emitter = builder.connect().await.expect("a connection");
    let worker = worker(&redis, "w", "fixed:1ms", false);
    assert_matches!(called(&emitter, "double").await, Ok(found) if found == 42);
    for lose in [Lose::Request, Lose::Reply] {
        proxy.lose_next(&["EVALSHA"], lose, false);
        assert_matches!(called(&emitter, "double").await, Ok(found) if found == 42);
    }
    assert_eq!(proxy.lost(), 2);
    worker.finish().await;
    let ids: u64 = redis.console().await.last_id("work:1").await;
    assert_eq!(ids, 3);
}

/// Returns the number of connections that look for ends.
fn looking(clients: &str) -> usize {
    let looks = |line: &&str| line.contains("cmd=blmpop") || line.contains("cmd=mget");
    clients.lines().filter(looks).count()
}

/// More waits than one look has. All of them share one connection besides that of the emits, which is
/// closed after them.
#[tokio::test]
async fn many_waits_share_one_connection_that_ends_with_them() {
    let redis = Redis::own(&[]);
    let (emitter, console) = (redis.emitter().await, redis.console().await);
    let waits: Vec<_> = (0..300)
        .map(|n| {
            let (emitter, event) = (emitter.clone(), json!({"type": "double", "n": n}));
            tokio::spawn(async move {
                let object = format!("work:{}", n % 7);
                emitter.call::<u64>(object, &event, PATIENCE).await
            })
        })
        .collect();
    until("all are queued and awaited", PATIENCE, async || {
        let keys: Vec<String> = console
            .run(&["ZRANGE", &emitter.keys().events_scheduled(), "0", "-1"])
            .await;
        (keys.len() == 300).then_some(())
    })
    .await;
    let clients: String = console.run(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await;
    assert_eq!(looking(&clients), 1, "{clients}");
    let worker = worker(&redis, "w", "fixed:1ms", false);
    for (n, wait) in (0..).zip(waits) {
        assert_eq!(wait.await.expect("no panic").expect("a result"), 2 * n);
    }
    worker.finish().await;
    until("the connection is closed", PATIENCE, async || {
        let clients: String = console.run(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await;
        (looking(&clients) == 0).then_some(())
    })
    .await;
}

/// Over a connection of the caller, no look blocks it.
#[tokio::test]
async fn a_connection_of_the_caller_is_not_blocked() {
    let redis = Redis::own(&[]);
    let client = seriatim::redis::Client::open(redis.url()).expect("a URL");
    let config = patient();
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let connection = connection.await;
    let emitter = Emitter::new(connection.expect("a connection")).with_keys(redis.keys().clone());
    let awaited = emitter.event("work:1", &event("double")).awaited();
    let awaited = awaited.send().await.expect("queued");
    assert_matches!(awaited.end(SHORT).await, Err(WaitError::TimedOut { .. }));
    let console = redis.console().await;
    let stats: String = console.run(&["INFO", "clients"]).await;
    assert!(stats.contains("blocked_clients:0\r\n"), "{stats}");
    let worker = worker(&redis, "w", "fixed:1ms", false);
    let end = awaited.end(PATIENCE).await.expect("an end");
    assert_eq!(end.result::<u64>().expect("a result"), 42);
    worker.finish().await;
}

/// An end lives as long as its emit says, and a later emit under the same name does not see it.
#[tokio::test]
async fn an_end_is_kept_for_its_time_only() {
    let (redis, console) = Redis::start().with_console().await;
    let emitter = redis.emitter().await;
    let worker = worker(&redis, "w", "fixed:1ms", false);
    let emit = async |n: u64| {
        let event = json!({"type": "double", "n": n});
        let emit = emitter.event("work:1", &event).idempotency_key("k");
        let emit = emit.awaited().keep(Duration::from_secs(90));
        emit.send().await
    };
    let awaited = emit(1).await.expect("queued");
    let end = awaited.end(PATIENCE).await.expect("an end");
    let key = redis.keys().event_end("work:1\nk");
    let left: u64 = console.run(&["TTL", &key]).await;
    assert!((80..=90).contains(&left), "{left}");
    // Another event under the same name is refused until the window is over.
    assert_matches!(emit(2).await, Err(EmitError::KeyReused { .. }));
    let ends = redis.keys().events_emitted_ends();
    console.run::<()>(&["ZADD", &ends, "1", "work:1\nk"]).await;
    worker.finish().await;
    let awaited = emit(2).await.expect("queued");
    assert_matches!(awaited.end(SHORT).await, Err(WaitError::TimedOut { .. }));
    // The window is over again, but the event is still queued: a repeat changes nothing, also if the
    // note that it is awaited is lost. Another event is refused.
    for lost in [false, true] {
        console.run::<()>(&["ZADD", &ends, "1", "work:1\nk"]).await;
        if lost {
            console.run::<()>(&["DEL", &key]).await;
            assert_matches!(emit(2).await, Err(EmitError::KeyReused { .. }));
        } else {
            assert!(emit(2).await.expect("queued").emitted().repeated);
        }
        assert_matches!(emit(3).await, Err(EmitError::KeyReused { .. }));
    }
    let worker = self::worker(&redis, "w", "fixed:1ms", false);
    let second = awaited.end(PATIENCE).await.expect("an end");
    assert_eq!(second.result::<u64>().expect("a result"), 4);
    assert!(second.id > end.id);
    worker.finish().await;
    // An event that is cancelled does not stand in the way of the next one under its name.
    for (n, repeated) in [(3, false), (3, true), (5, false)] {
        console.run::<()>(&["ZADD", &ends, "1", "work:1\nk"]).await;
        let awaited = emit(n).await.expect("queued");
        assert_eq!(awaited.emitted().repeated, repeated, "{n}");
        if repeated {
            let cancelled = emitter.cancel("work:1", "?90 k").await;
            assert_matches!(cancelled, Ok(Cancelled::Cancelled));
        }
    }
    console.check().await;
}

/// An emit that cannot be awaited is refused before anything is sent. A refusal of Redis ends a wait.
#[tokio::test]
async fn what_cannot_be_awaited_is_refused() {
    let redis = Redis::own(&[]);
    let (emitter, console) = (redis.emitter().await, redis.console().await);
    let emit = || emitter.event("work:1", Json::new("1"));
    let error = emit().sub(Json::new("2")).awaited().send().await;
    assert_eq!(
        error.expect_err("two events").to_string(),
        "an awaited emit has one event and no data; that of work:1 has more: await an event of its own"
    );
    let error = emit().data(Json::new("2")).awaited().send().await;
    assert_matches!(error, Err(EmitError::NotAwaitable { .. }));
    let long = "k".repeat(249);
    let error = emit().idempotency_key(long).awaited().send().await;
    assert_matches!(error, Err(EmitError::Key(_)));
    assert_eq!(console.queue("work:1").await, [""; 0]);

    let error = emitter.end_of("work:1", "k", SHORT).await;
    assert_eq!(
        error.expect_err("no end").to_string(),
        "no end of event \"k\" of work:1 after 300ms: wait again, or look at the object with `seriatim inspect`"
    );
    // A key of another type is no end, and stops no other wait.
    let awaited = emit().idempotency_key("b").awaited().send().await;
    let awaited = awaited.expect("queued");
    let wrong = redis.keys().event_end("work:1\na");
    console.run::<()>(&["LPUSH", &wrong, "x"]).await;
    let waits = tokio::join!(emitter.end_of("work:1", "a", SHORT), awaited.end(SHORT));
    assert_matches!(waits.0, Err(WaitError::TimedOut { .. }));
    assert_matches!(waits.1, Err(WaitError::TimedOut { .. }));
    let error = emit().idempotency_key("a").awaited().send().await;
    assert_matches!(
        error,
        Err(EmitError::Refused { .. } | EmitError::WrongType { .. })
    );

    let blind = redis.connect_without("mget").await;
    let emitter = Emitter::new(blind).with_keys(redis.keys().clone());
    let refused = emitter.end_of("work:1", "b", PATIENCE).await;
    let refused = refused.expect_err("no right").to_string();
    assert!(
        refused.starts_with("Redis refuses to tell the end of an event: NOPERM"),
        "{refused}"
    );
}

/// A producer that awaits ends needs no more rights than the protocol lists.
#[tokio::test]
async fn the_rights_of_the_protocol_are_enough() {
    let redis = Redis::own(&[]);
    redis.set_documented_user("awaiter", "awaiter").await;
    let worker = worker(&redis, "w", "fixed:1ms", false);
    let connection = redis.connect_as("awaiter").await;
    let given = Emitter::new(connection).with_keys(redis.keys().clone());
    assert_matches!(called(&given, "double").await, Ok(found) if found == 42);
    worker.finish().await;
}

/// The runtime of the first wait ends, and with it the task that looks. The next wait begins another
/// one, and a wait that has joined goes on.
#[test]
fn a_wait_outlives_the_runtime_of_another_one() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let (redis, main) = (Redis::own(&[]), runtime());
    let emitter = main.block_on(redis.emitter());
    let worker = main.block_on(async { worker(&redis, "w", "fixed:1ms", false) });
    let first = runtime();
    let found = first.block_on(called(&emitter, "double"));
    assert_matches!(found, Ok(found) if found == 42);
    // This wait joins the task of the runtime that ends.
    let joined = {
        let emitter = emitter.clone();
        main.spawn(async move { emitter.end_of("work:1", "late", PATIENCE).await })
    };
    drop(first);
    main.block_on(async {
        for _ in 0..3 {
            assert_matches!(called(&emitter, "double").await, Ok(found) if found == 42);
        }
        let late = emitter
            .event("work:1", &event("double"))
            .idempotency_key("late");
        late.awaited().send().await.expect("queued");
        let end = joined.await.expect("no panic").expect("an end");
        assert_eq!(end.result::<u64>().expect("a result"), 42);
        worker.finish().await;
    });
}

/// A producer in another language gives wrong arguments. Nothing is queued.
#[tokio::test]
async fn wrong_arguments_of_the_script_queue_nothing() {
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let script = seriatim::wire::emit_text();
    for (key, text, events) in [
        ("k", "60", 1),
        ("k", "60 in_box", 1),
        ("k", "0 a", 1),
        ("k", "604801 a", 1),
        ("k", "x a", 1),
        ("", "60 a", 1),
        ("k\nl", "60 a", 1),
        ("k", "60 a", 2),
        ("k", "60 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 1),
    ] {
        let markers = keys.objects_with_events();
        let mut words = vec!["EVAL", script, "1", &markers, keys.prefix(), "work:1", key];
        words.extend(["60000", "0", "0", "await", text]);
        words.extend(vec!["1"; events]);
        let error = console.try_run::<redis::Value>(&words).await;
        let error = error.expect_err("refused").to_string();
        assert!(error.contains("an awaited emit has a key"), "{error}");
    }
    assert_eq!(console.queue("work:1").await, [""; 0]);
    assert_eq!(console.markers().await, [""; 0]);
}
