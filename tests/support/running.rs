//! Worker processes inside the test: started, stopped, or crashed by dropping them.

use std::time::Duration;

use seriatim::sink::Sink;
use seriatim::worker::{
    Backoff, RetryPolicy, Shutdown, StopReason, Stopped, Vitals, Worker, WorkerConfig, WorkerError,
};
use tokio::task::JoinHandle;

use super::Redis;

/// A worker process with its own name, in this test's runtime.
pub struct Running {
    pub shutdown: Shutdown,
    pub vitals: Vitals,
    task: JoinHandle<Result<Stopped, WorkerError>>,
}

/// Returns settings for tests. All times are short except the lease, so that no lease lapses on a
/// busy machine. A test ends a lease itself (`Console::end_lease`), or sets a short one if time is
/// its subject.
pub fn config(redis: &Redis, name: &str) -> WorkerConfig {
    let ms = Duration::from_millis;
    let mut config = WorkerConfig::default();
    config.name = name.to_owned();
    config.keys = redis.keys().clone();
    config.concurrency = 4;
    config.lease = Duration::from_secs(60);
    config.block = ms(50);
    config.sweep = ms(50);
    config.first_id = 1;
    config.grace = Duration::from_secs(30);
    config.retry = RetryPolicy {
        backoff: Backoff::Exponential {
            min: ms(2),
            max: ms(20),
        },
        jitter: 50,
        ..RetryPolicy::default()
    };
    config.probe_max = ms(100);
    config
}

/// Returns a retry policy.
pub fn policy(text: &str) -> RetryPolicy {
    text.parse().expect("a policy")
}

/// Returns a change of the settings to this retry policy.
pub fn retrying(text: &str) -> impl FnOnce(&mut WorkerConfig) + use<> {
    let policy = policy(text);
    move |config| config.retry = policy
}

/// Starts a worker process with the settings changed by `change`.
pub fn start(
    redis: &Redis,
    name: &str,
    sink: &(impl Sink + Clone),
    change: impl FnOnce(&mut WorkerConfig),
) -> Running {
    start_at(redis.url(), redis, name, sink, change)
}

/// Starts a worker process that reaches Redis through `server`, for example through a proxy.
pub fn start_at(
    server: impl Into<seriatim::Server>,
    redis: &Redis,
    name: &str,
    sink: &(impl Sink + Clone),
    change: impl FnOnce(&mut WorkerConfig),
) -> Running {
    // If the test fails, its output has the log.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_test_writer()
        .try_init();
    let mut config = config(redis, name);
    change(&mut config);
    let worker = Worker::builder(server)
        .config(config)
        .sink(sink.clone())
        .build()
        .expect("valid settings");
    let (shutdown, vitals) = (Shutdown::new(), worker.vitals());
    let task = tokio::spawn(worker.run(shutdown.clone()));
    Running {
        shutdown,
        vitals,
        task,
    }
}

impl Running {
    /// Stops the worker process gracefully.
    pub async fn stop(self) -> Stopped {
        self.shutdown.stop();
        self.ended().await.expect("a graceful stop")
    }

    /// Stops the worker process gracefully, and asserts that it held no object at the stop.
    pub async fn finish(self) {
        assert_eq!(self.stop().await.reason, StopReason::Graceful { held: 0 });
    }

    /// Waits until the worker process ends.
    pub async fn ended(self) -> Result<Stopped, WorkerError> {
        tokio::time::timeout(super::console::PATIENCE, self.task)
            .await
            .expect("it ends")
            .expect("no panic")
    }

    /// Returns whether the worker process has ended.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends the worker process at any point, like SIGKILL. Its lease stays.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
