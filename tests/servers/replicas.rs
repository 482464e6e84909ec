//! The wait for replicas: an emit counts, and a batch reaches the sink, only when the replicas have
//! it.

use std::time::{Duration, Instant};

use seriatim::event::Json;
use seriatim::{EmitError, Emitter};

use crate::support::recorder::Recorder;
use crate::support::running::{start, start_at};
use crate::support::{Redis, Server, free_port, until};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A master with one replica.
struct Pair {
    master: Redis,
    replica: Server,
    port: u16,
}

impl Pair {
    async fn start() -> Self {
        let port = free_port();
        let master = Redis::own(&[
            "--port",
            &port.to_string(),
            "--repl-diskless-sync-delay",
            "0",
        ]);
        let replica = Server::start(&["--replicaof", "127.0.0.1", &port.to_string()]);
        let pair = Self {
            master,
            replica,
            port,
        };
        pair.until_attached(1).await;
        pair
    }

    async fn until_attached(&self, replicas: u64) {
        let console = self.master.console().await;
        until(
            "the replica is attached",
            Duration::from_secs(20),
            async || {
                // WAIT counts the replicas that have received the write before it.
                let _: () = console.run(&["SET", "touched", "1"]).await;
                (console.run::<u64>(&["WAIT", "1", "100"]).await == replicas).then_some(())
            },
        )
        .await;
    }

    fn builder(&self, replicas: u32) -> seriatim::emit::EmitterBuilder {
        Emitter::builder(self.master.url())
            .keys(self.master.keys().clone())
            .wait(replicas, if replicas > 1 { MS(300) } else { MS(20_000) })
    }
}

#[tokio::test]
async fn an_emit_counts_only_if_replicas_have_it() {
    let pair = Pair::start().await;
    let emitter = pair.builder(1).connect().await.expect("connected");
    emitter
        .emit("work:1", Json::new("1"))
        .await
        .expect("replicated");
    let two = pair.builder(2).connect().await.expect("connected");
    let error = two
        .emit("work:1", Json::new("2"))
        .await
        .expect_err("one replica only");
    assert!(
        matches!(error, EmitError::Unreplicated { .. }) && error.is_unknown(),
        "{error}"
    );
    assert!(error.to_string().contains("1 of 2 replicas"), "{error}");
    // The second event is queued all the same.
    let console = pair.master.console().await;
    assert_eq!(
        console.list(&console.keys.events("work:1")).await,
        ["1", "2"]
    );
}

/// Story: a repeated emit writes nothing, and a wait covers only the writes of its own connection. So
/// the repeat was acknowledged although no replica had the event.
#[tokio::test]
async fn a_repeated_emit_waits_for_the_first_one() {
    let pair = Pair::start().await;
    let emit = async |replicas: u32| {
        let builder = Emitter::builder(pair.master.url()).keys(pair.master.keys().clone());
        let emitter = builder.wait(replicas, MS(300)).connect().await;
        let emitter = emitter.expect("connected");
        let emit = emitter.event("work:1", Json::new("1"));
        emit.idempotency_key("k").send().await
    };
    let replica = redis::Client::open(pair.replica.url()).expect("a URL");
    let mut replica = replica
        .get_multiplexed_async_connection()
        .await
        .expect("connected");
    let sleeps = tokio::spawn(async move {
        let sleep = redis::cmd("DEBUG").arg("SLEEP").arg(4).take();
        let _: redis::RedisResult<()> = sleep.query_async(&mut replica).await;
    });
    emit(0).await.expect("queued");
    let error = emit(1).await.expect_err("the replica does not have it");
    assert!(matches!(error, EmitError::Unreplicated { .. }), "{error}");
    sleeps.await.expect("it sleeps");
    let repeated = until("it is replicated", MS(20_000), async || emit(1).await.ok()).await;
    assert!(repeated.repeated);
    let console = pair.master.console().await;
    assert_eq!(console.list(&console.keys.events("work:1")).await, ["1"]);
}

/// 256 emits at once share few waits. So even a lost reply delays them for the time of few waits.
#[tokio::test]
async fn emits_together_share_a_wait() {
    let pair = Pair::start().await;
    let emitter = pair.builder(2).connect().await.expect("connected");
    let began = Instant::now();
    let emits = (0..256).map(|n| emitter.emit(format!("work:{n}"), Json::new("1")));
    let emits = futures_util::future::join_all(emits).await;
    assert!(
        emits
            .iter()
            .all(|done| matches!(done, Err(EmitError::Unreplicated { .. }))),
        "{emits:?}"
    );
    assert!(began.elapsed() < MS(300) * 16, "{:?}", began.elapsed());
    let several = pair.builder(1).connect().await.expect("connected");
    let emits = (0..256).map(|n| several.emit(format!("work:{n}"), Json::new("2")));
    futures_util::future::try_join_all(emits)
        .await
        .expect("replicated");
    several
        .emit_many((0..3000).map(|n| (format!("work:{}", n % 9), Json::new(n.to_string()))))
        .await
        .expect("replicated");
}

/// As long as no replica has the ids, the sink gets nothing. Afterwards the sink gets each event
/// once.
#[tokio::test]
async fn a_worker_delivers_only_what_replicas_have() {
    let mut pair = Pair::start().await;
    let console = pair.master.console().await;
    let sink = Recorder::new();
    let worker = start(&pair.master, "a", &sink, |config| {
        (config.wait, config.wait_timeout) = (1, MS(50))
    });
    for n in 0..40 {
        console
            .emit(&format!("work:{}", n % 4), n.to_string())
            .await;
    }
    sink.until_sent(40).await;
    pair.replica.kill();
    until("the replica is gone", Duration::from_secs(20), async || {
        (console.run::<u64>(&["WAIT", "1", "10"]).await == 0).then_some(())
    })
    .await;
    for n in 40..80 {
        console
            .emit(&format!("work:{}", n % 4), n.to_string())
            .await;
    }
    tokio::time::sleep(MS(500)).await;
    assert_eq!(sink.sent().len(), 40, "no replica has their ids");
    assert!(
        console.number(&console.keys.next_event_id()).await >= 41,
        "they are claimed"
    );
    pair.replica.restart();
    sink.until_sent(80).await;
    worker.finish().await;
    sink.applied();
    console.until_at_rest().await;
}

/// A connection breaks between the call and the wait. A wait covers only the writes of its own
/// connection, and the next connection has written nothing yet. So the batch is written again
/// before the wait.
#[tokio::test]
async fn a_batch_given_again_over_another_connection_is_waited_for() {
    let mut pair = Pair::start().await;
    let console = pair.master.console().await;
    let sink = Recorder::new();
    pair.replica.kill();
    until("the replica is gone", Duration::from_secs(20), async || {
        (console.run::<u64>(&["WAIT", "1", "10"]).await == 0).then_some(())
    })
    .await;
    let worker = start(&pair.master, "a", &sink, |config| {
        (config.wait, config.wait_timeout) = (1, MS(50))
    });
    console.emit("work:1", "1").await;
    until("it is claimed", Duration::from_secs(20), async || {
        (console.number(&console.keys.next_event_id()).await >= 1).then_some(())
    })
    .await;
    for _ in 0..20 {
        let _: u64 = console
            .run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        tokio::time::sleep(MS(30)).await;
        assert_eq!(sink.sent().len(), 0, "no replica has its id");
    }
    pair.replica.restart();
    sink.until_sent(1).await;
    worker.finish().await;
}

/// On a server with `WAITAOF`, emits and batches wait for disks. On a server without it, the first
/// connection fails with an error.
#[tokio::test]
async fn disks_are_waited_for_where_the_server_can() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let redis = Redis::own(&options);
    let console = redis.console().await;
    let knows: Vec<redis::Value> = console.run(&["COMMAND", "INFO", "WAITAOF"]).await;
    let builder = || {
        Emitter::builder(redis.url())
            .keys(redis.keys().clone())
            .wait_local(true)
    };
    if matches!(knows.first(), None | Some(redis::Value::Nil)) {
        let message = builder()
            .connect()
            .await
            .expect_err("no WAITAOF")
            .to_string();
        assert!(message.contains("needs Redis 7.2"), "{message}");
        let mut config = crate::support::running::config(&redis, "a");
        config.wait_local = true;
        let worker = seriatim::worker::Worker::builder(redis.url())
            .config(config)
            .sink(Recorder::new())
            .build()
            .expect("settings");
        let message = worker
            .run(seriatim::worker::Shutdown::new())
            .await
            .expect_err("no WAITAOF")
            .to_string();
        assert!(message.contains("needs Redis 7.2"), "{message}");
        return;
    }
    let sink = Recorder::new();
    let worker = start(&redis, "a", &sink, |config| config.wait_local = true);
    builder()
        .connect()
        .await
        .expect("connected")
        .emit("work:1", Json::new("1"))
        .await
        .expect("on the disk");
    sink.until_sent(1).await;
    worker.finish().await;
    let _: String = console.run(&["CONFIG", "SET", "appendonly", "no"]).await;
    let message = builder()
        .connect()
        .await
        .expect_err("no append-only file")
        .to_string();
    assert!(message.contains("appendonly"), "{message}");
}

#[tokio::test]
async fn claims_by_hand_wait_too() {
    let mut pair = Pair::start().await;
    let console = pair.master.console().await;
    let mut config = crate::support::running::config(&pair.master, "a");
    (config.wait, config.wait_timeout) = (1, MS(50));
    let claims = seriatim::worker::Worker::builder(pair.master.url())
        .config(config)
        .claims()
        .await
        .expect("attached");
    console.emit("work:1", "1").await;
    claims
        .next()
        .await
        .expect("claimed")
        .commit()
        .await
        .expect("committed");
    pair.replica.kill();
    console.emit("work:1", "2").await;
    assert!(
        tokio::time::timeout(MS(400), claims.next()).await.is_err(),
        "no replica has its id"
    );
    pair.replica.restart();
    assert_eq!(
        claims.next().await.expect("claimed").event().payload[..],
        *b"2"
    );
    let _ = pair.port;
}

/// A data centre is lost, and its replica elsewhere is made a master by hand. Nothing that was
/// acknowledged is lost, and no id comes twice.
#[tokio::test]
async fn a_replica_may_be_promoted_by_hand() {
    let mut pair = Pair::start().await;
    let keys = pair.master.keys().clone();
    let emitter = pair.builder(1).connect().await.expect("connected");
    let sink = Recorder::new();
    let worker = start(&pair.master, "a", &sink, |config| {
        (config.wait, config.first_id, config.lease) = (1, 0, MS(1000))
    });
    for n in 0..50 {
        emitter
            .emit(format!("work:{}", n % 5), Json::new(n.to_string()))
            .await
            .expect("acknowledged");
    }
    sink.until_sent(30).await;
    worker.crash().await;
    pair.master.server().kill();
    let mut conn = redis::Client::open(pair.replica.url())
        .and_then(|client| client.get_connection())
        .expect("a connection");
    redis::cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .exec(&mut conn)
        .expect("promoted");
    let elsewhere = Emitter::builder(pair.replica.url())
        .keys(keys)
        .connect()
        .await
        .expect("connected");
    for n in 50..60 {
        elsewhere
            .emit(format!("work:{}", n % 5), Json::new(n.to_string()))
            .await
            .expect("acknowledged");
    }
    let successor = start_at(pair.replica.url(), &pair.master, "b", &sink, |config| {
        (config.first_id, config.lease) = (0, MS(1000))
    });
    until(
        "all events are applied",
        Duration::from_secs(30),
        async || {
            let applied = sink
                .sent()
                .into_iter()
                .map(|offer| offer.text())
                .collect::<std::collections::HashSet<_>>();
            (applied.len() == 60).then_some(())
        },
    )
    .await;
    successor.stop().await;
    sink.applied();
}

/// A master with `min-replicas-to-write` and no replica refuses writes. An emit fails with an
/// error, and a worker waits.
#[tokio::test]
async fn a_master_without_its_replicas_refuses_emits_and_workers_wait() {
    let (redis, console) = Redis::own(&[]).with_console().await;
    let sink = Recorder::new();
    let emitter = Emitter::builder(redis.url())
        .keys(redis.keys().clone())
        .connect()
        .await
        .expect("connected");
    let worker = start(&redis, "a", &sink, |_| {});
    emitter
        .emit("work:1", Json::new("1"))
        .await
        .expect("emitted");
    sink.until_sent(1).await;
    let _: String = console
        .run(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    let error = emitter
        .emit("work:1", Json::new("2"))
        .await
        .expect_err("no replica");
    assert!(
        matches!(error, EmitError::Refused { .. }) && error.to_string().contains("NOREPLICAS"),
        "{error}"
    );
    tokio::time::sleep(MS(300)).await;
    assert!(!worker.is_over());
    let _: String = console
        .run(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    emitter
        .emit("work:1", Json::new("3"))
        .await
        .expect("emitted");
    sink.until_sent(2).await;
    worker.finish().await;
}
