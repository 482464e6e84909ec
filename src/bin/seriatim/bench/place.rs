//! The Redis that is measured, and the keys that this run may use there: how to connect, and how to
//! leave nothing behind.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, RedisError, Value};
use seriatim::connection::url::tcp_settings;
use seriatim::keys::Keys;
use tokio::task::JoinSet;

use crate::console::exit::{Exit, Failure};
use crate::console::told::told;

/// How long Redis may take for anything; a pipeline of ours on a busy machine counts.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// So many bytes may gather before they are written, as in an emitter.
const WRITE_BYTES: usize = 64 * 1024;
/// How many keys Redis looks at in one step.
const KEYS_PER_STEP: usize = 1000;
/// How often the keys are walked over until none is left.
const WALKS_MAX: usize = 10;

/// Where to measure.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) url: String,
    pub(super) keys: Keys,
    /// For questions beside what is measured.
    pub(super) conn: MultiplexedConnection,
    info: ConnectionInfo,
    private: bool,
}

impl Place {
    /// The keys are ours from now on; on a server that is not private, none may exist.
    pub(super) async fn claim(url: String, info: ConnectionInfo, keys: Keys, private: bool) -> anyhow::Result<Self> {
        let info = info.set_tcp_settings(tcp_settings(PATIENCE));
        let conn = connect(&info, None).await?;
        let place = Self { url, keys, conn, info, private };
        if !place.private
            && let Some(key) = place.any_key().await?
        {
            let key = String::from_utf8_lossy(&key).into_owned();
            let found =
                format!("the namespace is in use, it has the key {key:?}; the bench deletes what it works on: choose another");
            return Err(Failure::with(Exit::Input, found));
        }
        Ok(place)
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// A connection for many small writes at once.
    pub(super) async fn writing(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.info, Some(WRITE_BYTES)).await
    }

    /// A connection for questions, of which each may wait.
    pub(super) async fn reading(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.info, None).await
    }

    /// A key of ours that no other part of the program has.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}bench.{name}", self.keys.prefix())
    }

    fn scan(&self, cursor: u64) -> redis::Cmd {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{}*", self.keys.prefix())).arg("COUNT").arg(KEYS_PER_STEP);
        scan
    }

    async fn any_key(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let (mut conn, mut cursor) = (self.conn.clone(), 0);
        loop {
            let (next, mut keys): (u64, Vec<Vec<u8>>) = self.scan(cursor).query_async(&mut conn).await.map_err(lost("SCAN"))?;
            if let Some(key) = keys.pop() {
                return Ok(Some(key));
            }
            cursor = next;
            if cursor == 0 {
                return Ok(None);
            }
        }
    }

    /// Deletes everything that is ours, and waits until its memory is free.
    pub(super) async fn clean(&self) -> anyhow::Result<()> {
        let mut conn = self.conn.clone();
        if self.private {
            redis::cmd("FLUSHALL").arg("SYNC").exec_async(&mut conn).await.map_err(lost("FLUSHALL"))?;
            return Ok(());
        }
        for _ in 0..WALKS_MAX {
            let mut found = false;
            let mut cursor = 0;
            loop {
                let (next, keys): (u64, Vec<Vec<u8>>) = self.scan(cursor).query_async(&mut conn).await.map_err(lost("SCAN"))?;
                if !keys.is_empty() {
                    found = true;
                    redis::cmd("UNLINK").arg(&keys).exec_async(&mut conn).await.map_err(lost("UNLINK"))?;
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
            if !found {
                return self.until_freed().await;
            }
        }
        Err(anyhow!("keys under {} come again while they are deleted; something else writes there", self.keys.prefix()))
    }

    /// Keys are unlinked at once, and freed by a thread of Redis.
    async fn until_freed(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while super::redis_info::Info::ask(&self.conn).await?.number("lazyfree_pending_objects").unwrap_or(0.0) > 0.0 {
            if Instant::now() > deadline {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

async fn connect(info: &ConnectionInfo, write_bytes: Option<usize>) -> anyhow::Result<MultiplexedConnection> {
    let address = info.addr().to_string();
    let failed = |error| Failure::with(Exit::Redis, format!("cannot connect to Redis at {address}: {}", told(&error)));
    let mut config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(Duration::from_secs(5))).set_response_timeout(Some(PATIENCE));
    if let Some(bytes) = write_bytes {
        config = config.set_write_backpressure_boundary(bytes);
    }
    let client = Client::open(info.clone()).map_err(&failed)?;
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
}

/// An error of Redis about a command.
pub(super) fn lost(what: &'static str) -> impl Fn(RedisError) -> anyhow::Error {
    move |error| Failure::with(Exit::Redis, format!("Redis did not answer {what}: {}", told(&error)))
}

/// Sends a pipeline and answers what each of its commands answered; an error among them is an
/// error.
pub(super) async fn send(conn: &mut MultiplexedConnection, pipe: &Pipeline, what: &'static str) -> anyhow::Result<Vec<Value>> {
    let answers = conn.send_packed_commands(pipe, 0, pipe.len()).await.map_err(lost(what))?;
    if let Some(Value::ServerError(error)) = answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
        return Err(lost(what)(error.clone().into()));
    }
    Ok(answers)
}

/// Sends the same kind of command for each of so many events through one connection, `depth` in a
/// pipeline. The next pipeline is put together while the one before it is under way.
pub(super) async fn pipelined(
    conn: &MultiplexedConnection,
    events: usize,
    depth: usize,
    what: &'static str,
    mut add: impl FnMut(&mut Pipeline, usize),
) -> anyhow::Result<()> {
    let mut under_way: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for first in (0..events).step_by(depth) {
        let last = events.min(first + depth);
        let mut pipe = Pipeline::with_capacity(last - first);
        for event in first..last {
            add(&mut pipe, event);
        }
        if let Some(before) = under_way.join_next().await {
            before??;
        }
        let mut conn = conn.clone();
        under_way.spawn(async move { send(&mut conn, &pipe, what).await.map(|_| ()) });
    }
    under_way.join_next().await.map_or(Ok(()), |last| last?)
}
