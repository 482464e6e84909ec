//! Emits inside a transaction of the caller: for each reply, the outcome of each emit.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, RedisResult};
use seriatim::emit::Appended;
use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::{Redis, assert_matches};

/// Sends a transaction with two emits, one for `a` with data and one for `b`. In between it
/// increments `own_key`. Returns the emits and the reply.
async fn transaction(
    emitter: &Emitter,
    connection: &mut MultiplexedConnection,
    own_key: &str,
) -> (Appended, Appended, RedisResult<(u64,)>) {
    let mut pipe = redis::pipe();
    let a = emitter
        .event("a", Json::new("1"))
        .data(Json::new("{}"))
        .append_to(&mut pipe)
        .expect("valid");
    pipe.incr(own_key, 7);
    let b = emitter
        .event("b", Json::new("2"))
        .sub(Json::new("3"))
        .append_to(&mut pipe)
        .expect("valid");
    let reply = pipe.query_async(connection).await;
    (a, b, reply)
}

async fn start(redis: &Redis) -> (Emitter, MultiplexedConnection, String) {
    let connection = redis.connect().await;
    let emitter = Emitter::new(connection.clone()).with_keys(redis.keys().clone());
    (
        emitter,
        connection,
        [redis.keys().prefix(), "orders"].concat(),
    )
}

#[tokio::test]
async fn a_reply_without_errors_means_that_all_is_queued() {
    let redis = Redis::start();
    let (em, mut con, own_key) = start(&redis).await;
    let console = redis.console().await;
    let (a, b, reply) = transaction(&em, &mut con, &own_key).await;
    a.outcome(&reply).expect("queued");
    b.outcome(&reply).expect("queued");
    assert_eq!(reply.expect("a reply"), (7,));
    assert_eq!(console.queue("a").await, ["1"]);
    assert_eq!(console.queue("b").await, ["2", "3"]);
    assert_eq!(console.markers().await, ["a", "b"]);

    let mut pipe = redis::pipe();
    let a = em
        .event("a", Json::new("4"))
        .append_to(&mut pipe)
        .expect("valid");
    a.outcome(&pipe.exec_async(&mut con).await).expect("queued");
    assert_eq!(console.queue("a").await, ["1", "4"]);
}

#[tokio::test]
async fn a_key_of_a_wrong_type_fails_its_emit_only() {
    let redis = Redis::start();
    let (em, mut con, own_key) = start(&redis).await;
    let console = redis.console().await;
    let keys = redis.keys();
    con.set::<_, _, ()>(keys.events("a"), "a string")
        .await
        .expect("SET");
    let (a, b, reply) = transaction(&em, &mut con, &own_key).await;
    reply.as_ref().expect_err("WRONGTYPE");
    let error = a.outcome(&reply).expect_err("not a list");
    assert_matches!(
        error,
        EmitError::WrongType { object, key } if object.as_str() == "a" && *key == keys.events("a")
    );
    b.outcome(&reply).expect("queued");
    assert_eq!(console.queue("b").await, ["2", "3"]);
    assert_eq!(con.get::<_, u64>(&own_key).await.expect("GET"), 7);

    con.del::<_, ()>(&[keys.events("a"), keys.objects_with_events()][..])
        .await
        .expect("DEL");
    con.set::<_, _, ()>(keys.objects_with_events(), "a string")
        .await
        .expect("SET");
    let (a, b, reply) = transaction(&em, &mut con, &own_key).await;
    for error in [
        a.outcome(&reply).expect_err("not a list"),
        b.outcome(&reply).expect_err("not a list"),
    ] {
        assert_matches!(
            error,
            EmitError::WrongType { key, .. } if *key == keys.objects_with_events()
        );
    }
    assert_eq!(console.queue("a").await, ["1"], "the event is queued");
}

/// The caller's own command fails in several ways. Redis does not roll back, so the emits stay
/// queued.
#[tokio::test]
async fn a_failed_command_of_the_callers_leaves_the_emits_queued() {
    let redis = Redis::start();
    let (em, mut con, own_key) = start(&redis).await;
    let console = redis.console().await;
    con.set::<_, _, ()>(&own_key, "no number")
        .await
        .expect("SET");
    let (a, b, reply) = transaction(&em, &mut con, &own_key).await;
    reply.as_ref().expect_err("not a number");
    a.outcome(&reply).expect("queued");
    b.outcome(&reply).expect("queued");

    // A script returns errors that look like the errors of a transaction that did not run.
    for code in ["EXECABORT", "OOM", "NOPERM", "READONLY"] {
        let mut pipe = redis::pipe();
        pipe.cmd("EVAL")
            .arg(format!("return redis.error_reply('{code} of a script')"))
            .arg(0);
        let c = em
            .event("c", Json::new("5"))
            .append_to(&mut pipe)
            .expect("valid");
        let reply = pipe.exec_async(&mut con).await;
        reply.as_ref().expect_err("the script fails");
        c.outcome(&reply)
            .unwrap_or_else(|error| panic!("{code}: {error}"));
    }
    assert_eq!(console.queue("c").await.len(), 4);
}

#[tokio::test]
async fn a_refused_command_means_that_nothing_is_applied() {
    let redis = Redis::own(&["--maxmemory-policy", "noeviction"]).empty();
    let (em, mut con, own_key) = start(&redis).await;
    let console = redis.console().await;
    let outcomes = |(a, b, reply): (Appended, Appended, RedisResult<(u64,)>)| {
        [
            a.outcome(&reply).expect_err("not applied"),
            b.outcome(&reply).expect_err("not applied"),
        ]
    };
    console.config("maxmemory", "1").await;
    for error in outcomes(transaction(&em, &mut con, &own_key).await) {
        assert_matches!(error, EmitError::OutOfMemory { .. });
    }
    console.config("maxmemory", "0").await;

    // The first user may not push for `b`, the second may not increment, and the third may do
    // neither. Redis refuses the whole transaction each time.
    let [data, events, markers] = [
        redis.keys().data("a"),
        redis.keys().events("a"),
        redis.keys().objects_with_events(),
    ];
    let [a, data, own] = [
        format!("~{events}"),
        format!("~{data}"),
        format!("~{own_key}"),
    ];
    let (markers, b) = (
        format!("~{markers}"),
        format!("~{}", redis.keys().events("b")),
    );
    for keys in [
        vec![&a, &data, &markers, &own],
        vec![&a, &data, &markers, &b],
        vec![&own],
    ] {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER")
            .arg("eve")
            .arg(&["reset", "on", ">pw", "+@all"][..])
            .arg(&keys[..]);
        user.exec_async(&mut con).await.expect("ACL SETUSER");
        let mut eve = redis.connect().await;
        redis::cmd("AUTH")
            .arg("eve")
            .arg("pw")
            .exec_async(&mut eve)
            .await
            .expect("AUTH");
        for error in outcomes(transaction(&em, &mut eve, &own_key).await) {
            assert!(
                matches!(error, EmitError::Refused { .. }) && error.to_string().contains("NOPERM"),
                "{error}"
            );
        }
    }

    let mut pipe = redis::pipe();
    let a = em
        .event("a", Json::new("1"))
        .append_to(&mut pipe)
        .expect("valid");
    pipe.cmd("NO-SUCH-COMMAND");
    let error = a
        .outcome(&pipe.exec_async(&mut con).await)
        .expect_err("EXECABORT");
    assert!(
        matches!(error, EmitError::Refused { .. }) && error.to_string().contains("NO-SUCH-COMMAND"),
        "{error}"
    );
    let size: u64 = redis::cmd("DBSIZE")
        .query_async(&mut con)
        .await
        .expect("DBSIZE");
    assert_eq!(size, 0);
}

#[tokio::test]
async fn without_a_reply_that_tells_the_outcome_is_unknown() {
    let redis = Redis::own(&[]);
    let (em, mut con, own_key) = start(&redis).await;
    let mut pipe = redis::pipe();
    pipe.incr(&own_key, 7);
    let a = em
        .event("a", Json::new("1"))
        .append_to(&mut pipe)
        .expect("valid");
    let reply: RedisResult<(u64, u64)> = pipe.query_async(&mut con).await;
    assert!(
        a.outcome(&reply)
            .expect_err("one value, not two")
            .is_unknown()
    );

    let mut other = redis.connect().await;
    other.set_response_timeout(Duration::from_millis(100));
    redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(60_000)
        .arg("WRITE")
        .exec_async(&mut con)
        .await
        .expect("CLIENT PAUSE");
    let (a, b, reply) = transaction(&em, &mut other, &own_key).await;
    for error in [
        a.outcome(&reply).expect_err("no reply"),
        b.outcome(&reply).expect_err("no reply"),
    ] {
        assert!(error.is_unknown(), "{error}");
    }
    redis::cmd("CLIENT")
        .arg("UNPAUSE")
        .exec_async(&mut con)
        .await
        .expect("CLIENT UNPAUSE");
}

/// If a watched key has changed, Redis does not run the transaction. Its reply then reads as
/// `None`.
#[tokio::test]
async fn a_watched_key_that_changed_reads_as_none() {
    let redis = Redis::start();
    let (em, mut con, own_key) = start(&redis).await;
    let console = redis.console().await;
    let mut watching = redis.connect().await;
    redis::cmd("WATCH")
        .arg(&own_key)
        .exec_async(&mut watching)
        .await
        .expect("WATCH");
    con.incr::<_, _, ()>(&own_key, 1).await.expect("INCR");
    let mut pipe = redis::pipe();
    pipe.incr(&own_key, 7);
    let a = em
        .event("a", Json::new("1"))
        .append_to(&mut pipe)
        .expect("valid");
    let reply: RedisResult<Option<(u64,)>> = pipe.query_async(&mut watching).await;
    assert_eq!(reply.as_ref().expect("no error"), &None);
    a.outcome(&reply).expect("nothing failed");
    assert_eq!(console.queue("a").await, [""; 0]);
}
