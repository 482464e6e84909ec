//! The two ways to run the script `advance`: as a function of a library, or as a script. Whatever
//! becomes of the library, every event is delivered.

use std::sync::Arc;
use std::time::Duration;

use seriatim::wire::{self, Advance, Bounds, ClaimFirst, Suspects, Way, Ways};
use seriatim::worker::{Scripts, WorkerError};

use crate::support::Redis;
use crate::support::console::{Console, PATIENCE};
use crate::support::recorder::Recorder;
use crate::support::running::{start, start_at};

/// Returns the number of calls of a command.
async fn calls(console: &Console, command: &str) -> u64 {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next())
        .map_or(0, |number| number.parse().expect("a number"))
}

/// Returns the number of libraries that Redis has refused to load for lack of memory.
async fn refused_loads(console: &Console) -> u64 {
    let stats: String = console.run(&["INFO", "commandstats"]).await;
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_function|load:"));
    line.and_then(|line| line.split("rejected_calls=").nth(1)?.split(',').next())
        .map_or(0, |number| number.parse().expect("a number"))
}

/// Returns the number of libraries.
async fn libraries(console: &Console) -> usize {
    let stats: Vec<redis::Value> = console.run(&["FUNCTION", "LIST"]).await;
    stats.len()
}

/// Emits events of two objects, and waits until the sink has `total` events.
async fn deliver(console: &Console, sink: &Recorder, total: usize) {
    console.emit_all("work:1", ["1", "2", "3"]).await;
    console.emit_all("work:2", ["1", "2", "3"]).await;
    sink.until_sent(total).await;
}

/// Returns the URL of a new user with all rights but these.
async fn user(redis: &Redis, console: &Console, without: &[&str]) -> String {
    let rights = ["ACL", "SETUSER", "worker", "on", ">p", "~*", "+@all"];
    let _: () = console.run(&[&rights[..], without].concat()).await;
    format!("{}?user=worker&pass=p", redis.url())
}

#[tokio::test]
async fn two_processes_call_the_same_function() {
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    let auto = |config: &mut seriatim::worker::WorkerConfig| config.scripts = Scripts::Auto;
    let (v, w) = (
        start(&redis, "v", &sink, auto),
        start(&redis, "w", &sink, auto),
    );
    deliver(&console, &sink, 6).await;
    console.until_at_rest().await;
    assert_eq!(libraries(&console).await, 1);
    assert!(calls(&console, "fcall").await > 0);
    assert_eq!(w.vitals.figures().way, Way::Function);
    v.finish().await;
    w.finish().await;
    sink.applied();
}

#[tokio::test]
async fn a_library_that_disappears_is_loaded_again() {
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    let worker = start(&redis, "w", &sink, |config| config.scripts = Scripts::Auto);
    for round in 1..=5 {
        deliver(&console, &sink, 6 * round).await;
        let _: () = console.run(&["FUNCTION", "FLUSH"]).await;
    }
    deliver(&console, &sink, 36).await;
    assert_eq!(worker.vitals.figures().way, Way::Function);
    worker.finish().await;
    assert_eq!(libraries(&console).await, 1);
    sink.applied();
}

/// A server that restarts without its data has neither the library nor the scripts.
#[tokio::test]
async fn a_server_that_restarts_empty_gets_the_library_again() {
    let mut redis = Redis::own(&["--save", ""]);
    let sink = Recorder::new();
    let worker = start(&redis, "w", &sink, |config| {
        config.scripts = Scripts::Auto;
        // After a loss of writes, a worker waits for one lease.
        config.lease = Duration::from_secs(1);
    });
    deliver(&redis.console().await, &sink, 6).await;
    redis.server().restart();
    let console = redis.console().await;
    deliver(&console, &sink, 12).await;
    assert_eq!(libraries(&console).await, 1);
    worker.finish().await;
}

#[tokio::test]
async fn a_user_without_the_right_calls_the_script() {
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    for (n, without) in [&["-fcall"][..], &["-function"]].into_iter().enumerate() {
        let url = user(&redis, &console, without).await;
        let _: () = console.run(&["ACL", "LOG", "RESET"]).await;
        let worker = start_at(url, &redis, "w", &sink, |config| {
            config.scripts = Scripts::Auto
        });
        deliver(&console, &sink, 6 * (n + 1)).await;
        assert_eq!(worker.vitals.figures().way, Way::Script);
        worker.finish().await;
        assert_eq!(libraries(&console).await, 0);
        let log: Vec<redis::Value> = console.run(&["ACL", "LOG"]).await;
        // A user without FCALL, which is the user of the documents, leaves no trace in the log.
        assert_eq!(log.is_empty(), n == 0, "{log:?}");
    }
    sink.applied();
}

#[tokio::test]
async fn a_right_that_is_taken_away_stops_no_worker() {
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    let url = user(&redis, &console, &[]).await;
    let worker = start_at(url, &redis, "w", &sink, |config| {
        config.scripts = Scripts::Auto
    });
    deliver(&console, &sink, 6).await;
    assert_eq!(worker.vitals.figures().way, Way::Function);
    let _: () = console.run(&["ACL", "SETUSER", "worker", "-fcall"]).await;
    deliver(&console, &sink, 12).await;
    assert_eq!(worker.vitals.figures().way, Way::Script);
    worker.finish().await;
    sink.applied();
}

#[tokio::test]
async fn eval_loads_no_library() {
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    let worker = start(&redis, "w", &sink, |config| config.scripts = Scripts::Eval);
    deliver(&console, &sink, 6).await;
    worker.finish().await;
    assert_eq!(
        (libraries(&console).await, calls(&console, "fcall").await),
        (0, 0)
    );
}

#[tokio::test]
async fn functions_end_the_start_if_redis_refuses_them() {
    let redis = Redis::own(&[]);
    let (console, sink) = (redis.console().await, Recorder::new());
    for (without, reason) in [("-fcall", "FCALL"), ("-function", "'function|load'")] {
        let url = user(&redis, &console, &[without]).await;
        let functions =
            |config: &mut seriatim::worker::WorkerConfig| config.scripts = Scripts::Functions;
        let worker = start_at(url, &redis, "w", &sink, functions);
        let Err(WorkerError::Refused(text)) = worker.ended().await else {
            panic!("a refusal");
        };
        assert!(
            text.contains(reason) && text.contains("--scripts auto"),
            "{text}"
        );
    }
    let worker = start(&redis, "w", &sink, |config| {
        config.scripts = Scripts::Functions
    });
    deliver(&console, &sink, 6).await;
    worker.finish().await;
}

/// At `maxmemory` Redis refuses to load a library, but runs the script. When it has memory again,
/// the library is loaded at the next try.
#[tokio::test]
async fn without_memory_the_script_runs_until_there_is_memory_again() {
    let redis = Redis::own(&["--maxmemory-policy", "noeviction"]);
    let (console, sink) = (redis.console().await, Recorder::new());
    console.emit_all("work:1", ["1", "2", "3"]).await;
    let _: () = console.run(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    let worker = start(&redis, "w", &sink, |config| config.scripts = Scripts::Auto);
    sink.until_sent(3).await;
    assert_eq!(worker.vitals.figures().way, Way::Script);
    assert_eq!(libraries(&console).await, 0);
    worker.finish().await;

    let mut conn = redis.connect().await;
    let ways = Arc::new(Ways::with_interval(
        Scripts::Auto,
        Duration::from_millis(20),
    ));
    let bounds = Bounds {
        batch: 1,
        batch_bytes: 1,
        reply_bytes: 1,
        claims: 0,
        markers: 1,
        forget_after: None,
        group_depth: 0,
        suspects: Suspects::NONE,
    };
    let keys = redis.keys();
    let mut call = async || {
        let call = Advance::beyond(keys, "w", "token", bounds, ClaimFirst::Held, 0, &ways);
        wire::advance(&mut conn, &call).await.expect("a reply");
        ways.way()
    };
    let loads = refused_loads(&console).await;
    tokio::time::timeout(PATIENCE, async {
        // Tries of the library fail as long as there is no memory.
        while refused_loads(&console).await < loads + 2 {
            assert_eq!(call().await, Way::Script);
        }
        let _: () = console.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
        while call().await != Way::Function {}
    })
    .await
    .expect("the function runs again");
    assert_eq!(libraries(&console).await, 1);
}
