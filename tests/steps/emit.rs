//! Emit, the library: the keys after each form of emit, and the error after each kind of failure.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use seriatim::emit::EmitManyError;
use seriatim::event::{EventError, Json, NameError};
use seriatim::keys::Keys;
use seriatim::{EmitError, Emitter};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};

use crate::support::{Redis, assert_matches, until};

#[tokio::test]
async fn an_emit_queues_the_event_and_a_marker() {
    let redis = Redis::start();
    let (em, console, keys) = (
        redis.built_emitter().await,
        redis.console().await,
        redis.keys(),
    );

    let event = HashMap::from([("type", "created")]);
    let emitted = em.emit("work:1", &event).await.expect("emitted");
    assert_eq!((emitted.events, emitted.queued), (1, 1));
    let emitted = em
        .emit("work:1", Json::new("{\"n\": 9007199254740993.10}"))
        .await
        .expect("emitted");
    assert_eq!((emitted.events, emitted.queued), (1, 2));

    assert_eq!(
        console.queue("work:1").await,
        ["{\"type\":\"created\"}", "{\"n\": 9007199254740993.10}"]
    );
    assert_eq!(console.markers().await, ["work:1", "work:1"]);
    assert!(!console.run::<bool>(&["EXISTS", &keys.data("work:1")]).await);
}

#[tokio::test]
async fn subevents_follow_their_main_event_and_data_is_set() {
    let redis = Redis::start();
    let (em, console, keys) = (
        redis.built_emitter().await,
        redis.console().await,
        redis.keys(),
    );

    let emit = em
        .event("work:1", Json::new("1"))
        .sub(Json::new("2"))
        .sub(&3)
        .data(Json::new("\"old\""))
        .data("new");
    let emitted = emit.send().await.expect("emitted");
    assert_eq!((emitted.events, emitted.queued), (3, 3));

    assert_eq!(console.queue("work:1").await, ["1", "2", "3"]);
    assert_eq!(console.markers().await, ["work:1"]);
    assert_eq!(
        console.run::<String>(&["GET", &keys.data("work:1")]).await,
        "\"new\""
    );
}

#[tokio::test]
async fn an_emit_joins_the_callers_transaction() {
    let redis = Redis::start();
    let (console, keys) = (redis.console().await, redis.keys());
    let em = Emitter::new(redis.connect().await).with_keys(keys.clone());
    let own_key = [keys.prefix(), "orders"].concat();

    let mut pipe = redis::pipe();
    pipe.incr(&own_key, 7);
    em.event("work:1", Json::new("1"))
        .data(Json::new("{}"))
        .append_to(&mut pipe)
        .expect("valid");
    em.event("work:2", Json::new("2"))
        .append_to(&mut pipe)
        .expect("valid");
    let refused = em.event("work:3", Json::new("{")).append_to(&mut pipe);
    assert_matches!(refused, Err(EmitError::Event(EventError::NotJson(_))));
    assert!(pipe.is_transaction());
    assert_eq!(pipe.len(), 6);
    assert_eq!(
        pipe.query_async::<(i64,)>(&mut console.conn())
            .await
            .expect("EXEC"),
        (7,)
    );

    assert_eq!(console.queue("work:1").await, ["1"]);
    assert_eq!(console.markers().await, ["work:1", "work:2"]);
    assert_eq!(
        console.run::<String>(&["GET", &keys.data("work:1")]).await,
        "{}"
    );

    // If Redis refuses another command of the transaction, the emit is not applied either.
    let mut pipe = redis::pipe();
    pipe.cmd("NO-SUCH-COMMAND");
    em.event("work:1", Json::new("3"))
        .append_to(&mut pipe)
        .expect("valid");
    pipe.exec_async(&mut console.conn())
        .await
        .expect_err("EXECABORT");
    assert_eq!(console.queue("work:1").await, ["1"]);
}

#[tokio::test]
async fn bad_names_and_events_are_refused_before_anything_is_sent() {
    let redis = Redis::start().empty();
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    let em = em.with_event_bytes_max(10);

    assert_matches!(
        em.emit("", Json::new("1")).await,
        Err(EmitError::Name(NameError::Empty))
    );
    assert_matches!(
        em.emit("a\nb", Json::new("1")).await,
        Err(EmitError::Name(NameError::Control(10, 1)))
    );
    assert_matches!(
        em.emit("a", Json::new("nope")).await,
        Err(EmitError::Event(EventError::NotJson(_)))
    );
    let large = em.emit("a", Json::new("\"123456789\"")).await;
    assert_matches!(
        large,
        Err(EmitError::Event(EventError::TooLarge {
            bytes: 11,
            bytes_max: 10
        }))
    );
    let event = || em.event("a", Json::new("1"));
    assert!(event().sub(Json::new("{")).send().await.is_err());
    assert!(event().data(Json::new("{")).send().await.is_err());
    let plain = em.clone().with_keys(Keys::new());
    let plain = plain.emit("{a", Json::new("1")).await;
    assert_matches!(plain, Err(EmitError::Name(NameError::Brace(_))));

    let all = format!("{}*", redis.keys().prefix());
    assert_eq!(console.run::<Vec<String>>(&["KEYS", &all]).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn emits_in_flight_share_one_connection_and_each_task_keeps_its_order() {
    let redis = Redis::start();
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let em = em.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    em.emit(format!("task:{}", task % 8), &(task, n))
                        .await
                        .expect("emitted");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    for object in 0..8 {
        let mut seen: HashMap<u64, u64> = HashMap::new();
        for event in console.queue(&format!("task:{object}")).await {
            let (task, n): (u64, u64) = serde_json::from_str(&event).expect("a pair");
            assert_eq!(
                seen.insert(task, n).map_or(0, |before| before + 1),
                n,
                "task {task}"
            );
        }
        assert_eq!(seen.len(), 8);
        assert!(seen.values().all(|last| *last == 19));
    }
}

#[tokio::test]
async fn many_are_chunked_in_order_with_one_marker_per_object_and_chunk() {
    let redis = Redis::start();
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    let events = |count: u64| {
        (0..count).map(|n| (if n % 3 == 0 { "a" } else { "b" }, Json::new(n.to_string())))
    };

    let nothing = em.emit_many(events(0)).await.expect("nothing to do");
    assert_eq!((nothing.events, nothing.chunks), (0, 0));
    // A chunk is full with 4 events, or with 8 bytes: a name of 1 byte and an event of 1 byte, four
    // times. The counts are around full chunks: one less, equal, one more.
    for (count, chunks) in [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3)] {
        for em in [
            em.clone().with_chunk(4, usize::MAX),
            em.clone().with_chunk(1024, 8),
        ] {
            let emitted = em.emit_many(events(count)).await.expect("emitted");
            assert_eq!(
                (emitted.events, emitted.chunks),
                (count, chunks),
                "{count} events"
            );
            let list = |a: bool| {
                (0..count)
                    .filter(|n| (n % 3 == 0) == a)
                    .map(|n| n.to_string())
                    .collect::<Vec<_>>()
            };
            assert_eq!(console.queue("a").await, list(true));
            assert_eq!(console.queue("b").await, list(false));
            let marked = console.markers().await;
            assert!(
                marked.len() as u64 <= 2 * chunks && marked.len() as u64 >= chunks,
                "{marked:?}"
            );
            console
                .add("DEL a:events b:events objects.with.events")
                .await;
        }
    }
}

#[tokio::test]
async fn many_fail_per_object_and_the_others_go_on() {
    let redis = Redis::start();
    let (console, keys) = (redis.console().await, redis.keys());
    let em = redis.built_emitter().await.with_chunk(3, usize::MAX);
    console
        .run::<()>(&["SET", &keys.events("broken"), "a string"])
        .await;
    let events = [
        ("a", "0"),
        ("broken", "1"),
        ("b", "2"),
        ("a", "{"), // refused: no later event of a
        ("broken", "4"),
        ("b", "5"),
        ("", "6"), // refused
        ("a", "7"),
        ("broken", "8"),
        ("b", "9"),
    ];
    let error = em
        .emit_many(events.map(|(o, e)| (o, Json::new(e))))
        .await
        .expect_err("some fail");
    let failed = error.failed.iter();
    let found = failed.map(|failed| (failed.object.as_str(), failed.first));
    assert!(found.eq([("broken", 1), ("a", 3), ("", 6)]), "{error}");
    assert_matches!(
        error.failed[0].error,
        EmitError::WrongType { key, .. } if *key == keys.events("broken")
    );
    assert_matches!(
        error.failed[1].error,
        EmitError::Event(EventError::NotJson(_))
    );
    assert_matches!(error.failed[2].error, EmitError::Name(NameError::Empty));
    assert_eq!(
        (error.acknowledged, error.stopped, error.is_unknown()),
        (4, None, false)
    );
    assert_eq!(console.queue("a").await, ["0"]);
    assert_eq!(console.queue("b").await, ["2", "5", "9"]);
}

/// Emits random events in random chunks. Redis refuses some of the events. Each queue must have the
/// events of its object before the first refused one.
#[tokio::test]
async fn random_many_keep_every_objects_order() {
    let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
    let seed = since.as_nanos() as u64;
    println!("seed {seed}");
    let mut numbers = fastrand::Rng::with_seed(seed);
    let mut random = |below: u64| numbers.u64(..below);
    let redis = Redis::start();
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    for round in 0..30 {
        let em = em
            .clone()
            .with_chunk(1 + random(40) as usize, 1 + random(2000) as usize);
        let name = |n: u64| format!("{round}:{n}");
        let events: Vec<(String, String)> = (0..random(300))
            .map(|n| {
                (
                    name(random(12)),
                    if random(60) == 0 {
                        "}".to_owned()
                    } else {
                        format!("[{n},{}]", random(u32::MAX.into()))
                    },
                )
            })
            .collect();
        let mut expected: HashMap<&str, (Vec<&str>, bool)> = HashMap::new();
        for (object, event) in &events {
            let (queue, ended) = expected.entry(object).or_default();
            *ended |= event == "}";
            if !*ended {
                queue.push(event);
            }
        }
        let answer = em
            .emit_many(events.iter().map(|(o, e)| (o, Json::new(e.clone()))))
            .await;
        let failed = answer.map_or_else(|error| error.failed.len(), |_| 0);
        assert_eq!(
            failed,
            expected.values().filter(|(_, ended)| *ended).count(),
            "seed {seed}"
        );
        for (object, (events, _)) in expected {
            assert_eq!(console.queue(object).await, events, "seed {seed} {object}");
        }
    }
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_named_with_what_took_effect() {
    let redis = Redis::start();
    let (em, console, keys) = (
        redis.built_emitter().await,
        redis.console().await,
        redis.keys(),
    );
    console
        .run::<()>(&["SET", &keys.events("a"), "a string"])
        .await;
    let error = em
        .event("a", Json::new("1"))
        .data(Json::new("2"))
        .send()
        .await
        .expect_err("not a list");
    assert_matches!(error, EmitError::WrongType { key, .. } if *key == keys.events("a"));
    assert!(
        console.run::<bool>(&["EXISTS", &keys.data("a")]).await,
        "Redis does not roll back"
    );

    console
        .run::<()>(&["DEL", &keys.objects_with_events()])
        .await;
    console
        .run::<()>(&["SET", &keys.objects_with_events(), "a string"])
        .await;
    let error = em.emit("b", Json::new("1")).await.expect_err("not a list");
    assert_matches!(error, EmitError::WrongType { key, .. } if *key == keys.objects_with_events());
    assert_eq!(console.queue("b").await, ["1"], "the event is queued");
    let error = em
        .emit_many([("b", Json::new("2"))])
        .await
        .expect_err("not a list");
    assert_eq!(error.stopped, Some(1));
}

/// An emit that times out may still take effect, so its outcome is unknown.
#[tokio::test]
async fn an_emit_without_an_answer_is_unknown_and_is_not_sent_again() {
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let builder = Emitter::builder(redis.url())
        .keys(keys.clone())
        .response_timeout(Duration::from_millis(100));
    let em = builder.connect().await.expect("Redis answers");
    console
        .run::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"])
        .await;

    let error = em.emit("a", Json::new("1")).await.expect_err("no answer");
    assert!(error.is_unknown(), "{error}");
    let error: EmitManyError = em
        .emit_many([("b", Json::new("2"))])
        .await
        .expect_err("no answer");
    assert!(error.is_unknown() && error.stopped == Some(1), "{error}");

    console.run::<()>(&["CLIENT", "UNPAUSE"]).await;
    em.emit("c", Json::new("3"))
        .await
        .expect("emitted over a new connection");
    // Redis has run or dropped the commands that were sent over a closed connection. So each of
    // them has run at most once.
    let queued = [console.queue("a").await, console.queue("b").await];
    assert!(queued.iter().all(|queue| queue.len() <= 1), "{queued:?}");
    assert_eq!(console.queue("c").await, ["3"]);
}

/// A TCP proxy that can lose replies: it passes the request, and closes the connection before the
/// reply.
struct Proxy {
    url: String,
    lose_replies: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(redis: &Redis) -> Self {
        let path = redis
            .url()
            .strip_prefix("unix://")
            .map(str::to_owned)
            .expect("a socket");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let lose_replies = Arc::new(AtomicBool::new(false));
        let lose = Arc::clone(&lose_replies);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (path, lose) = (path.clone(), Arc::clone(&lose));
                tokio::spawn(async move {
                    let Ok(server) = UnixStream::connect(path).await else {
                        return;
                    };
                    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                        (client.into_split(), server.into_split());
                    let requests = tokio::spawn(async move {
                        tokio::io::copy(&mut from_client, &mut to_server).await
                    });
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                        if lose.load(Ordering::SeqCst)
                            || to_client.write_all(&bytes[..count]).await.is_err()
                        {
                            break;
                        }
                    }
                    requests.abort();
                });
            }
        });
        Self { url, lose_replies }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_unknown_and_the_event_is_there_once() {
    let redis = Redis::own(&[]);
    let (console, keys) = (redis.console().await, redis.keys());
    let proxy = Proxy::start(&redis).await;
    let em = Emitter::connect(proxy.url.clone())
        .await
        .expect("Redis answers")
        .with_keys(keys.clone());
    em.emit("a", Json::new("1")).await.expect("emitted");

    proxy.lose_replies.store(true, Ordering::SeqCst);
    let error = em
        .emit("a", Json::new("2"))
        .await
        .expect_err("the reply is lost");
    assert!(error.is_unknown(), "{error}");
    assert_eq!(console.queue("a").await, ["1", "2"]);

    proxy.lose_replies.store(false, Ordering::SeqCst);
    em.emit("a", Json::new("3"))
        .await
        .expect("emitted over a new connection");
    assert_eq!(console.queue("a").await, ["1", "2", "3"]);
    assert_eq!(console.markers().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_redis_is_connected_to_by_the_next_emit() {
    let mut redis = Redis::own(&[]);
    let em = redis.built_emitter().await;
    em.emit("a", Json::new("1")).await.expect("emitted");

    redis.server().kill();
    // When the emitter knows that its connection is broken, it does not send the emit. The error of
    // the emit says so.
    let patience = Duration::from_secs(5);
    until("nothing is sent any more", patience, async || {
        let refused = em.emit("a", Json::new("2")).await;
        matches!(refused, Err(EmitError::Connect { .. })).then_some(())
    })
    .await;
    let started = Instant::now();
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let em = em.clone();
            tokio::spawn(async move { em.emit("a", Json::new("2")).await })
        })
        .collect();
    for emit in waiting {
        let error = emit.await.expect("no panic").expect_err("Redis is down");
        assert_matches!(error, EmitError::Connect { .. });
    }
    assert!(started.elapsed() < Duration::from_secs(5));

    redis.server().restart();
    em.emit("a", Json::new("3")).await.expect("emitted");
    assert_eq!(redis.console().await.queue("a").await, ["3"]);
}

/// If the connection was closed while it was unused, the next emit must still reach Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_closed_while_idle_is_replaced_before_anything_is_sent() {
    let redis = Redis::own(&[]);
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    for round in 0..20 {
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        assert_eq!(console.run::<u64>(&kill).await, 1);
        let patience = Duration::from_secs(5);
        until("the connection is known to be gone", patience, async || {
            (!em.is_connected()).then_some(())
        })
        .await;
        em.emit("a", &round)
            .await
            .expect("emitted over a new connection");
    }
    assert_eq!(console.queue("a").await.len(), 20);
}
