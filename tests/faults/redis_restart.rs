//! Redis goes away under load, and comes back with all acknowledged writes. Workers reconnect
//! without help, and no event is lost.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::console::PATIENCE;
use crate::support::recorder::{Act, Gate, Recorder};
use crate::support::running::start;
use crate::support::{Redis, until};

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A producer that emits until Redis has acknowledged every event. After a lost reply it repeats
/// the call, which pushes an event only if it is not there yet.
struct Producer {
    url: String,
    keys: seriatim::keys::Keys,
}

impl Producer {
    async fn emit(
        &self,
        object: &str,
        event: u64,
        conn: &mut Option<redis::aio::MultiplexedConnection>,
    ) -> Result<(), redis::RedisError> {
        if conn.is_none() {
            let client = redis::Client::open(self.url.as_str())?;
            *conn = Some(client.get_multiplexed_async_connection().await?);
        }
        let open = conn.as_mut().expect("a connection");
        // `OBJ:data` has the number of the object's last event, so a repeated call pushes no second
        // event. Only producers use this key.
        let script = "if tonumber(redis.call('GET', KEYS[1]) or -1) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) \
                      redis.call('LPUSH', KEYS[2], ARGV[1]) redis.call('LPUSH', KEYS[3], ARGV[2]) end";
        let mut eval = redis::cmd("EVAL");
        eval.arg(script)
            .arg(3)
            .arg(self.keys.data(object))
            .arg(self.keys.events(object))
            .arg(self.keys.objects_with_events());
        eval.arg(event).arg(object).query_async(open).await
    }

    async fn emit_all(&self, objects: u64, events: u64) {
        let mut conn = None;
        for event in 0..events {
            let object = format!("work:{}", event % objects);
            while self.emit(&object, event, &mut conn).await.is_err() {
                conn = None;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

#[tokio::test]
async fn redis_killed_and_restarted_under_load_loses_nothing() {
    const OBJECTS: u64 = 16;
    const EVENTS: u64 = 1200;
    let mut redis = Redis::own(&DURABLE);
    let sink = Recorder::new();
    let workers = ["a", "b"].map(|name| {
        start(&redis, name, &sink, |config| {
            config.batch = 4;
            config.lease = Duration::from_secs(3);
        })
    });
    let producer = Producer {
        url: redis.url().to_owned(),
        keys: redis.keys().clone(),
    };
    let emitting = tokio::spawn(async move { producer.emit_all(OBJECTS, EVENTS).await });
    for kill in 1..=3 {
        sink.until_sent(kill * EVENTS as usize / 5).await;
        redis.server().restart();
        let console = redis.console().await;
        console.check().await;
    }
    emitting.await.expect("everything is acknowledged");
    until("everything is delivered", PATIENCE, async || {
        (sink.applied().values().map(Vec::len).sum::<usize>() == EVENTS as usize).then_some(())
    })
    .await;
    let console = redis.console().await;
    for object in 0..OBJECTS {
        let applied = sink.applied_of(&format!("work:{object}"));
        assert!(
            applied.into_iter().eq((object..EVENTS)
                .step_by(OBJECTS as usize)
                .map(|n| n.to_string())),
            "work:{object}"
        );
        let _: u64 = console
            .run(&["DEL", &console.keys.data(&format!("work:{object}"))])
            .await;
    }
    console.until_at_rest().await;
    for worker in workers {
        worker.finish().await;
    }
    let counter = console.number(&console.keys.next_event_id()).await;
    assert!(
        counter > 3_000_000,
        "every restart made the ids jump: {counter}"
    );
}

/// Redis restarts during the delivery of a batch. The batch is committed after the restart, and
/// delivered once.
#[tokio::test]
async fn a_delivery_outlives_a_restart_of_redis() {
    let mut redis = Redis::own(&DURABLE);
    let console = redis.console().await;
    let gate = Gate::closed();
    let held_up = gate.clone();
    let sink = Recorder::with(move |_| Act::Wait(held_up.clone()));
    let worker = start(&redis, "w", &sink, |_| {});
    console.emit_all("work:1", ["1", "2"]).await;
    gate.until_reached(1).await;
    redis.server().kill();
    gate.open();
    sink.until_sent(2).await;
    redis.server().restart();
    let console = redis.console().await;
    console.until_at_rest().await;
    console.emit("work:1", "3").await;
    sink.until_sent(3).await;
    let third = sink.sent().remove(2);
    worker.finish().await;
    assert_eq!((sink.sent().len(), third.prev), (3, 2));
    assert!(third.id > 1_000_000);
}

/// Redis is paused for longer than the lease and the response timeout. Nothing changes, because no
/// decision depends on the worker's own clock.
#[tokio::test]
async fn a_redis_that_is_paused_for_longer_than_the_lease_changes_nothing() {
    let mut redis = Redis::own(&[]);
    let console = redis.console().await;
    let sink = Recorder::new();
    let workers = ["a", "b"].map(|name| {
        start(&redis, name, &sink, |config| {
            config.batch = 4;
            config.lease = Duration::from_millis(600);
            config.response_timeout = Duration::from_millis(200);
        })
    });
    for n in 0..600 {
        console
            .emit(&format!("work:{}", n % 6), n.to_string())
            .await;
    }
    sink.until_sent(50).await;
    let server = Pid::from_raw(i32::try_from(redis.server().pid()).expect("a pid")).expect("a pid");
    kill_process(server, Signal::STOP).expect("paused");
    // A fixed wait: it must be longer than the lease and than three response timeouts.
    tokio::time::sleep(Duration::from_millis(1000)).await;
    kill_process(server, Signal::CONT).expect("it goes on");
    until("everything is delivered", PATIENCE, async || {
        (sink.applied().values().map(Vec::len).sum::<usize>() == 600).then_some(())
    })
    .await;
    for object in 0..6 {
        assert!(
            sink.applied_of(&format!("work:{object}"))
                .into_iter()
                .eq((object..600).step_by(6).map(|n| n.to_string()))
        );
    }
    let console = redis.console().await;
    console.until_at_rest().await;
    for worker in workers {
        worker.stop().await;
    }
}
