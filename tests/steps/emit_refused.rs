//! Emits that Redis refuses: no memory, a replica, and users without rights. Nothing is applied.

use std::time::Duration;

use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::{Redis, assert_matches};

/// At `maxmemory` an emit must fail with a clear error, and push nothing.
#[tokio::test]
async fn without_memory_nothing_is_applied() {
    let redis = Redis::own(&["--maxmemory-policy", "noeviction"]).empty();
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    console.config("maxmemory", "1").await;
    let error = em
        .event("a", Json::new("1"))
        .data(Json::new("2"))
        .send()
        .await
        .expect_err("no memory");
    assert_matches!(error, EmitError::OutOfMemory { .. });
    assert!(error.to_string().contains("out of memory"), "{error}");
    let events = [
        ("a", Json::new("1")),
        ("b", Json::new("2")),
        ("a", Json::new("3")),
    ];
    let error = em
        .clone()
        .with_chunk(2, usize::MAX)
        .emit_many(events)
        .await
        .expect_err("no memory");
    assert!(
        error
            .failed
            .iter()
            .all(|failed| matches!(failed.error, EmitError::OutOfMemory { .. })),
        "{error}"
    );
    assert_eq!(
        (error.failed.len(), error.acknowledged, error.stopped),
        (2, 0, Some(2))
    );
    assert_eq!(console.run::<u64>(&["DBSIZE"]).await, 0);

    console.config("maxmemory", "0").await;
    em.emit("a", Json::new("1")).await.expect("emitted");
    assert_eq!(console.queue("a").await, ["1"]);
}

#[tokio::test]
async fn a_replica_refuses_and_a_later_emit_goes_on() {
    let redis = Redis::own(&[]);
    let (em, console) = (redis.built_emitter().await, redis.console().await);
    console.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = em.emit("a", Json::new("1")).await.expect_err("a replica");
    assert!(
        matches!(error, EmitError::Refused { .. }) && error.to_string().contains("READONLY"),
        "{error}"
    );
    console.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    em.emit("a", Json::new("1")).await.expect("emitted");
}

#[tokio::test]
async fn a_user_without_the_right_is_refused_and_no_error_shows_a_password() {
    let redis = Redis::own(&[]);
    let path = redis
        .url()
        .strip_prefix("unix://")
        .map(str::to_owned)
        .expect("a socket");
    let url = |user: &str, pass: &str| format!("unix://{path}?user={user}&pass={pass}");
    let console = redis.console().await;
    console.config("requirepass", "hush-default").await;
    let rule = "ACL SETUSER eve on >hush-eve ~* +@all -lpush".split(' ');
    console.run::<()>(&rule.collect::<Vec<_>>()).await;

    let em = Emitter::connect(url("eve", "hush-eve"))
        .await
        .expect("Redis answers");
    let error = em.emit("a", Json::new("1")).await.expect_err("no right");
    assert!(
        matches!(error, EmitError::Refused { .. }) && error.to_string().contains("NOPERM"),
        "{error}"
    );
    assert!(!format!("{em:?} {error:?}").contains("hush"));

    for bad in [
        url("eve", "hush-wrong"),
        format!("unix://{path}"),
        "redis://:hush@127.0.0.1:1".to_owned(),
        "redis://:hush@h:x".to_owned(),
    ] {
        let error = Emitter::connect(bad.clone())
            .await
            .expect_err("cannot connect");
        assert_matches!(
            error,
            EmitError::Connect { .. } | EmitError::Url { .. },
            "{bad}: {error}"
        );
        assert!(
            !format!("{error} {error:?} {:?}", Emitter::builder(bad)).contains("hush"),
            "{error:?}"
        );
    }
}

/// Returns the rules of a user who may run every command but this one.
fn all_but(command: &str) -> String {
    format!("reset on >PASSWORD ~* +@all -{command}")
}

/// Story: for a user who may push but has no right to MULTI, Redis refused MULTI and ran the pushes
/// one by one. In a debug build the client panicked. Without the right to EXEC, the connection stayed
/// in a transaction without end.
#[tokio::test]
async fn a_user_who_may_push_but_not_send_transactions_emits_nothing() {
    let redis = Redis::own(&[]);
    let console = redis.console().await;
    let url = format!("{}?user=eve&pass=PASSWORD", redis.url());
    for command in ["multi", "exec"] {
        redis.set_user("eve", &all_but(command)).await;
        let own = Emitter::connect(url.clone()).await.expect("Redis answers");
        let given = Emitter::new(redis.connect_as("eve").await);
        for em in [own, given] {
            let em = em.with_keys(redis.keys().clone());
            let (a, b) = tokio::join!(em.emit("a", Json::new("1")), em.emit("b", Json::new("2")));
            let events = [("a", Json::new("1")), ("b", Json::new("2"))];
            let many = em.emit_many(events).await.expect_err("no right");
            let many = many.failed.into_iter().next().expect("an object");
            let mut errors = vec![
                a.expect_err("no right"),
                b.expect_err("no right"),
                many.error,
                em.event("a", Json::new("1"))
                    .idempotency_key("k")
                    .send()
                    .await
                    .expect_err("no right"),
            ];
            let schedule = em.schedule("a", Json::new("1")).after(Duration::ZERO);
            errors.push(schedule.send().await.expect_err("no right"));
            errors.push(em.cancel("a", "k").await.expect_err("no right"));
            for error in errors {
                assert!(
                    matches!(error, EmitError::Refused { .. })
                        && error.to_string().contains(&format!("'{command}'")),
                    "without {command}: {error}"
                );
            }
            let keys: Vec<String> = console.run(&["KEYS", "*"]).await;
            // The console of the tests sets the counter.
            let is_counter = |key: &String| *key == redis.keys().next_event_id();
            assert!(keys.iter().all(is_counter), "without {command}: {keys:?}");

            redis.set_user("eve", "+@all").await;
            em.emit("a", Json::new("1"))
                .await
                .expect("it has the right");
            assert_eq!(console.queue("a").await, ["1"]);
            console.run::<()>(&["FLUSHALL"]).await;
            redis.set_user("eve", &all_but(command)).await;
        }
    }
}

/// A user loses the right to MULTI while an emitter is connected. The outcome of the emit is unknown,
/// because its commands ran one by one. All later emits are refused.
#[tokio::test]
async fn after_the_loss_of_the_right_to_multi_one_outcome_is_unknown() {
    let redis = Redis::own(&[]);
    redis.set_user("eve", "on >PASSWORD ~* +@all").await;
    let url = format!("{}?user=eve&pass=PASSWORD", redis.url());
    let em = Emitter::connect(url).await.expect("Redis answers");
    let em = em.with_keys(redis.keys().clone());
    em.emit("a", Json::new("1")).await.expect("emitted");
    redis.set_user("eve", "-multi").await;
    let error = em.emit("a", Json::new("2")).await.expect_err("no right");
    assert!(
        error.is_unknown() && error.to_string().contains("'multi'"),
        "{error}"
    );
    for _ in 0..2 {
        let error = em.emit("a", Json::new("3")).await.expect_err("no right");
        assert_matches!(error, EmitError::Refused { .. });
    }
    assert_eq!(redis.console().await.queue("a").await, ["1", "2"]);
}
