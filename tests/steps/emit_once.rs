//! Emits with an idempotency key. Each is queued once, even if the call is repeated or a reply is
//! lost.

use std::time::Duration;

use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::proxy::{Lose, Proxy};
use crate::support::{Redis, assert_matches};

async fn emitter(redis: &Redis, url: &str) -> Emitter {
    let builder = Emitter::builder(url)
        .keys(redis.keys().clone())
        .response_timeout(Duration::from_millis(500));
    builder.connect().await.expect("a connection")
}

#[tokio::test]
async fn an_emit_repeated_a_thousand_times_at_once_is_queued_once() {
    let redis = Redis::own(&[]);
    let own = async || {
        Emitter::connect(redis.url())
            .await
            .expect("a connection")
            .with_keys(redis.keys().clone())
    };
    let emitters = [own().await, own().await];
    let emits = (0..1000).map(|n| {
        let emit = emitters[n % 2]
            .event("work:1", Json::new("1"))
            .sub(Json::new("2"))
            .idempotency_key("k");
        async move { emit.send().await.expect("an outcome") }
    });
    let outcomes = futures_util::future::join_all(emits).await;
    assert_eq!(
        outcomes.iter().filter(|emitted| !emitted.repeated).count(),
        1
    );
    assert!(
        outcomes
            .iter()
            .all(|emitted| (emitted.events, emitted.queued) == (2, 2))
    );
    let console = redis.console().await;
    assert_eq!(console.queue("work:1").await, ["1", "2"]);
    assert_eq!(console.markers().await, ["work:1"]);
    console.check().await;
}

#[tokio::test]
async fn a_lost_reply_is_repeated_and_the_emit_is_queued_once() {
    let redis = Redis::own(&[]);
    let proxy = Proxy::before(&redis);
    let emitter = emitter(&redis, &proxy.url()).await;
    // The first emit loads the script into Redis.
    emitter
        .event("work:1", Json::new("0"))
        .idempotency_key("first")
        .send()
        .await
        .expect("queued");
    for (n, lose) in [Lose::Request, Lose::Reply].into_iter().enumerate() {
        proxy.lose_next(&["EVALSHA"], lose, false);
        let key = format!("k{n}");
        let emitted = emitter
            .event("work:1", Json::new(format!("{n}")))
            .idempotency_key(key)
            .send()
            .await
            .expect("queued");
        assert_eq!((emitted.repeated, emitted.queued), (n == 1, n as u64 + 2));
    }
    assert_eq!(proxy.lost(), 2);
    assert_eq!(redis.console().await.queue("work:1").await.len(), 3);
}

#[tokio::test]
async fn a_key_survives_a_restart_of_redis() {
    let mut redis = Redis::own(&["--appendonly", "yes", "--appendfsync", "always"]);
    let emitter = emitter(&redis, redis.url()).await;
    let emit = || {
        emitter
            .event("work:1", Json::new("1"))
            .data(Json::new("7"))
            .idempotency_key("k")
    };
    assert!(!emit().send().await.expect("queued").repeated);
    redis.server().restart();
    assert!(emit().send().await.expect("an outcome").repeated);
    let console = redis.console().await;
    assert_eq!(console.queue("work:1").await, ["1"]);
    assert_eq!(
        console.text(&redis.keys().data("work:1")).await.as_deref(),
        Some("7")
    );
}

#[tokio::test]
async fn a_key_belongs_to_its_object_and_to_its_events() {
    let redis = Redis::own(&[]);
    let emitter = emitter(&redis, redis.url()).await;
    let emit = |object: &str, text: &str| emitter.event(object, Json::new(text.to_owned()));
    emit("work:1", "1")
        .sub(Json::new("2"))
        .idempotency_key("k")
        .send()
        .await
        .expect("queued");
    emit("work:2", "1")
        .idempotency_key("k")
        .send()
        .await
        .expect("queued: another object");
    emit("work:1", "1")
        .idempotency_key("k2")
        .send()
        .await
        .expect("queued: another key");
    for other in [
        emit("work:1", "1"),
        emit("work:1", "2").sub(Json::new("1")),
        emit("work:1", "1").sub(Json::new("2")).data(Json::new("0")),
    ] {
        let error = other
            .idempotency_key("k")
            .send()
            .await
            .expect_err("another emit");
        assert_matches!(error, EmitError::KeyReused { key, .. } if key == "k");
    }
    for bad in ["", "a\nb", &"x".repeat(257)] {
        assert_matches!(
            emit("work:1", "1").idempotency_key(bad).send().await,
            Err(EmitError::Key(_))
        );
    }
    let console = redis.console().await;
    assert_eq!(console.queue("work:1").await, ["1", "2", "1"]);
    console.check().await;
}

#[tokio::test]
async fn after_its_window_a_key_is_free_and_is_removed() {
    let redis = Redis::own(&[]);
    let (emitter, console) = (emitter(&redis, redis.url()).await, redis.console().await);
    let keys = redis.keys();
    for n in 0..20 {
        let emit = emitter
            .event("work:1", Json::new("1"))
            .idempotency_key(format!("k{n}"))
            .window(Duration::from_secs(3600));
        emit.send().await.expect("queued");
    }
    let due: Vec<(String, f64)> = console
        .run(&[
            "ZRANGE",
            &keys.events_emitted_ends(),
            "0",
            "-1",
            "WITHSCORES",
        ])
        .await;
    let (seconds, _): (f64, u64) = console.run(&["TIME"]).await;
    assert!(
        due.iter()
            .all(|(_, ends)| (ends / 1000.0 - seconds - 3600.0).abs() < 60.0),
        "{due:?}"
    );
    for (member, _) in &due {
        console
            .run::<()>(&["ZADD", &keys.events_emitted_ends(), "1", member])
            .await;
    }
    // The window of every key is over. So the emit with `k0` is queued again, and each emit removes
    // up to 8 other keys.
    for (n, left) in [(0, 12), (1, 5), (2, 3)] {
        let key = if n == 0 {
            "k0".to_owned()
        } else {
            format!("new {n}")
        };
        let emitted = emitter
            .event("work:1", Json::new("2"))
            .idempotency_key(key)
            .send()
            .await
            .expect("queued");
        assert!(!emitted.repeated);
        let counts: (u64, u64) = (
            console.run(&["HLEN", &keys.events_emitted()]).await,
            console.run(&["ZCARD", &keys.events_emitted_ends()]).await,
        );
        assert_eq!(counts, (left, left));
    }
    assert!(
        emitter
            .event("work:1", Json::new("2"))
            .idempotency_key("k0")
            .send()
            .await
            .expect("an outcome")
            .repeated
    );
    // A single key is removed, too.
    console
        .run::<()>(&["ZADD", &keys.events_emitted_ends(), "1", "work:1\nk0"])
        .await;
    emitter
        .event("work:1", Json::new("2"))
        .idempotency_key("new 3")
        .send()
        .await
        .expect("queued");
    assert_eq!(
        console.run::<u64>(&["HLEN", &keys.events_emitted()]).await,
        3
    );
    console.check().await;
}

#[tokio::test]
async fn an_emit_that_is_too_large_for_a_script_is_refused() {
    let redis = Redis::own(&[]);
    let emitter = emitter(&redis, redis.url()).await;
    let emit = |events: usize, bytes: usize| {
        let text = format!("\"{}\"", "x".repeat(bytes));
        (1..events).fold(
            emitter.event("work:1", Json::new(text.clone())),
            |emit, _| emit.sub(Json::new(text.clone())),
        )
    };
    for (n, (events, bytes)) in [(1024, 10), (1, 1_000_000)].into_iter().enumerate() {
        emit(events, bytes)
            .idempotency_key(format!("{n}"))
            .send()
            .await
            .expect("queued");
    }
    for (events, bytes) in [(1025, 10), (2, 1_000_000)] {
        let error = emit(events, bytes)
            .idempotency_key("large")
            .send()
            .await
            .expect_err("too large");
        assert_matches!(error, EmitError::TooLarge { events: found, .. } if *found == events);
    }
    let with_data = emit(1, 600_000)
        .data(Json::new(format!("\"{}\"", "x".repeat(600_000))))
        .idempotency_key("data")
        .send()
        .await;
    assert_matches!(with_data, Err(EmitError::TooLarge { events: 1, .. }));
}

/// The script checks all types before its first write, so a refused emit changes nothing.
#[tokio::test]
async fn a_key_of_a_wrong_type_refuses_the_whole_emit() {
    let redis = Redis::own(&[]);
    let (emitter, console) = (emitter(&redis, redis.url()).await, redis.console().await);
    let keys = redis.keys();
    for key in [
        keys.events("work:1"),
        keys.objects_with_events(),
        keys.events_emitted(),
        keys.events_emitted_ends(),
    ] {
        console.run::<()>(&["FLUSHALL"]).await;
        console.run::<()>(&["SET", &key, "x"]).await;
        let error = emitter
            .event("work:1", Json::new("1"))
            .data(Json::new("2"))
            .idempotency_key("k")
            .send()
            .await;
        let error = error.expect_err("a wrong type");
        assert!(
            matches!(error, EmitError::Refused { .. }) && error.to_string().contains(&key),
            "{error}"
        );
        assert_eq!(console.left().await.len(), 1);
    }
}

#[tokio::test]
async fn a_key_costs_what_its_comment_says() {
    let redis = Redis::own(&[]);
    let (emitter, console) = (emitter(&redis, redis.url()).await, redis.console().await);
    for chunk in 0..20 {
        let emits = (0..500).map(|n| {
            emitter
                .event("user:1234567", Json::new("1"))
                .idempotency_key(format!("payment {chunk} {n:08}"))
                .send()
        });
        assert!(
            futures_util::future::join_all(emits)
                .await
                .iter()
                .all(Result::is_ok)
        );
    }
    let bytes: [u64; 2] = [
        console
            .run(&[
                "MEMORY",
                "USAGE",
                &redis.keys().events_emitted(),
                "SAMPLES",
                "0",
            ])
            .await,
        console
            .run(&[
                "MEMORY",
                "USAGE",
                &redis.keys().events_emitted_ends(),
                "SAMPLES",
                "0",
            ])
            .await,
    ];
    let each = (bytes[0] + bytes[1]) / 10_000;
    println!("{each} bytes per key");
    let names = "user:1234567\npayment 10 00000000".len() as u64;
    // Besides the names, Redis 7 needs 210 bytes per key and Valkey 9 needs 130, because its tables
    // are denser.
    assert!((100..=300).contains(&(each - 2 * names)), "{each} bytes");
}

#[tokio::test]
async fn the_rights_of_the_protocol_are_enough() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    redis.set_documented_user("scripted", "scripted").await;
    console
        .add("HSET event.limits limited:* '{\"queued_max\":1}'")
        .await;
    let conn = redis.connect_as("scripted").await;
    let emitter = Emitter::new(conn).with_keys(redis.keys().clone());
    for repeated in [false, true] {
        let emit = emitter
            .event("work:1", Json::new("1"))
            .data(Json::new("2"))
            .idempotency_key("k");
        assert_eq!(emit.send().await.expect("an outcome").repeated, repeated);
    }
    emitter
        .emit("limited:1", Json::new("1"))
        .await
        .expect("queued");
    assert_matches!(
        emitter.emit("limited:1", Json::new("1")).await,
        Err(EmitError::Full { .. })
    );
    for rules in ["-zadd", "clearselectors ~* +@all -zadd"] {
        redis.set_user("scripted", rules).await;
    }
    let error = emitter
        .event("work:1", Json::new("3"))
        .idempotency_key("k3")
        .send()
        .await
        .expect_err("no right");
    assert!(
        matches!(error, EmitError::Refused { .. }) && error.to_string().contains("ZADD"),
        "{error}"
    );
    assert_eq!(console.queue("work:1").await, ["1"]);
}

/// Without one of the rights, the script refuses the emit before its first write, and names the
/// right.
#[tokio::test]
async fn without_one_right_nothing_is_queued() {
    let redis = Redis::own(&[]).empty();
    let console = redis.console().await;
    for right in ["LPUSH", "HSET", "ZADD", "SET"] {
        let rules = ["reset", "on", "nopass", "~*", "+@all", &format!("-{right}")];
        console
            .run::<()>(&[&["ACL", "SETUSER", "producer"][..], &rules].concat())
            .await;
        let mut conn = redis.connect().await;
        redis::cmd("AUTH")
            .arg("producer")
            .arg("x")
            .query_async::<()>(&mut conn)
            .await
            .expect("logged in");
        let emitter = Emitter::new(conn).with_keys(redis.keys().clone());
        let emit = emitter
            .event("work:1", Json::new("1"))
            .data(Json::new("2"))
            .idempotency_key("k");
        let error = emit.send().await.expect_err("no right");
        assert_matches!(error, EmitError::Refused { .. });
        assert!(
            error
                .to_string()
                .contains(&format!("the user may not use {right}")),
            "{error}"
        );
        assert_eq!(console.left().await, [""; 0], "without {right}");
    }
}
