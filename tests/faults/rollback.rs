//! Tests how a worker reacts when Redis has gone back to an earlier state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use seriatim::sink::{self, Stop};
use seriatim::worker::{Shutdown, Worker, WorkerBuilder};
use tokio::sync::mpsc;

use crate::support::{Redis, until};

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns a worker with a short lease, and the ids that it delivers.
fn worker(redis: &Redis) -> (WorkerBuilder, mpsc::UnboundedReceiver<u64>) {
    let (tell, ids) = mpsc::unbounded_channel();
    let sink = sink::each(move |event| {
        let _ = tell.send(event.id);
        async { Ok::<(), Stop>(()) }
    });
    let builder = Worker::builder(redis.url())
        .name("a")
        .keys(redis.keys().clone())
        .lease(Duration::from_millis(300));
    (builder.sink(sink), ids)
}

/// Makes Redis look like another server. Returns its replication id.
async fn becomes_another(conn: &mut MultiplexedConnection) -> String {
    let () = redis::cmd("DEBUG")
        .arg("CHANGE-REPL-ID")
        .query_async(conn)
        .await
        .expect("changed");
    let info: String = redis::cmd("INFO")
        .arg("replication")
        .query_async(conn)
        .await
        .expect("answered");
    info.lines()
        .find_map(|line| line.strip_prefix("master_replid:"))
        .expect("an id")
        .trim()
        .to_owned()
}

fn kill_others(pipe: &mut redis::Pipeline) {
    pipe.cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes")
        .ignore();
}

/// Story: a process attached, and in the same second Redis was killed. Redis lost that second, and
/// with it the registration of the process. Another process connected first and recorded the new
/// replication id. The first process then saw no new replication id, considered itself fenced, and
/// stopped with "fenced: the name is no longer registered". A process must notice by itself that
/// the server is another one, and attach again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_registration_was_lost_attaches_again_even_if_another_one_noticed_first() {
    let redis = Redis::own(&[]);
    let keys = redis.keys().clone();
    let mut conn = redis.connect().await;
    let shutdown = Shutdown::new();
    let worker = worker(&redis).0.build().expect("a worker");
    let running = tokio::spawn(worker.run(shutdown.clone()));
    let token = async |conn: &mut MultiplexedConnection| {
        let value: Option<String> = redis::cmd("HGET")
            .arg(keys.event_workers())
            .arg("a")
            .query_async(conn)
            .await
            .expect("answered");
        value.and_then(|value| value.split(' ').nth(1).map(str::to_owned))
    };
    let first = until("it has attached", PATIENCE, async || {
        token(&mut conn.clone()).await
    })
    .await;

    // Redis goes back to an earlier state: the name has another token and no lease. The replication
    // id is new, and another process has already recorded it.
    let id = becomes_another(&mut conn).await;
    let mut back = redis::pipe();
    back.atomic();
    back.hset(keys.meta(), "replication.id", id).ignore();
    back.hset(
        keys.event_workers(),
        "a",
        "64 00000000-0000-0000-0000-000000000000 1",
    )
    .ignore();
    back.del(keys.worker_lease("a")).ignore();
    kill_others(&mut back);
    let () = back.query_async(&mut conn).await.expect("done");

    let second = until("it has attached again", PATIENCE, async || {
        assert!(!running.is_finished(), "the worker has stopped");
        token(&mut conn.clone())
            .await
            .filter(|token| !token.starts_with("00000000"))
    })
    .await;
    assert_ne!(first, second);
    shutdown.stop();
    let stopped = running.await.expect("no panic");
    assert!(stopped.is_ok(), "{stopped:?}");
}

/// Story: Redis was killed and lost nothing. The id counter jumped by a million, because no process
/// could know that nothing was lost. Another process gave ids from there on, and died. Within the
/// same second Redis was killed again, and lost the jump and those ids. The remaining process had
/// been idle and remembered no id. It jumped by a million from the old counter, and gave the same
/// ids again. Now every jump leads to the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_that_was_lost_is_not_made_to_the_same_place_again() {
    let redis = Redis::own(&[]);
    let keys = redis.keys().clone();
    let mut conn = redis.connect().await;
    let jumped = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros() as u64;
    let () = redis::cmd("SET")
        .arg(keys.next_event_id())
        .arg(jumped)
        .query_async(&mut conn)
        .await
        .expect("set");
    let (builder, mut ids) = worker(&redis);
    let shutdown = Shutdown::new();
    let running = tokio::spawn(builder.build().expect("a worker").run(shutdown.clone()));
    until("it has attached", PATIENCE, async || {
        let registered: bool = redis::cmd("HEXISTS")
            .arg(keys.event_workers())
            .arg("a")
            .query_async(&mut conn.clone())
            .await
            .expect("answered");
        registered.then_some(())
    })
    .await;

    let mut back = redis::pipe();
    back.atomic()
        .cmd("DEBUG")
        .arg("CHANGE-REPL-ID")
        .ignore()
        .set(keys.next_event_id(), 5)
        .ignore();
    back.lpush(keys.events("o"), "1")
        .ignore()
        .lpush(keys.objects_with_events(), "o")
        .ignore();
    kill_others(&mut back);
    let () = back.query_async(&mut conn).await.expect("done");

    let id = tokio::time::timeout(PATIENCE, ids.recv())
        .await
        .expect("delivered")
        .expect("delivered");
    assert!(id > jumped + 1_000, "id {id} may have been given before");
    shutdown.stop();
    assert!(running.await.expect("no panic").is_ok());
}
