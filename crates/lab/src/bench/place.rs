//! The measured Redis and the keys of this run. Connects to Redis, and deletes all keys of the run
//! at the end.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, RedisError, Value};
use seriatim::connection::url::tcp_settings;
use seriatim::keys::Keys;
use seriatim_console::describe::describe;
use seriatim_console::exit::{Exit, Failure};
use tokio::task::JoinSet;

/// Maximum wait for any reply, including a large pipeline on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Number of bytes of commands that may collect before they are written to the socket. An emitter
/// has the same number.
const WRITE_BYTES: usize = 64 * 1024;
/// Number of keys that Redis reads in one SCAN.
const KEYS_PER_STEP: usize = 1000;
/// Maximum number of walks over all keys. The walks end earlier if a walk finds no key of the run.
const WALKS_MAX: usize = 10;

/// The Redis to measure.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) url: String,
    pub(super) keys: Keys,
    /// Connection for commands that are not measured.
    pub(super) conn: MultiplexedConnection,
    info: ConnectionInfo,
    private: bool,
}

impl Target {
    /// Connects to Redis for this run. If the server is not private, checks that no key of the run
    /// exists yet.
    pub(super) async fn claim(
        url: String,
        info: ConnectionInfo,
        keys: Keys,
        private: bool,
    ) -> anyhow::Result<Self> {
        let info = info.set_tcp_settings(tcp_settings(PATIENCE));
        let conn = connect(&info, None).await?;
        let place = Self {
            url,
            keys,
            conn,
            info,
            private,
        };
        if !place.private
            && let Some(key) = place.any_key().await?
        {
            let key = String::from_utf8_lossy(&key).into_owned();
            let found = format!(
                "the namespace is in use, it has the key {key:?}; the bench deletes what it works on: choose another"
            );
            return Err(Failure::with(Exit::Input, found));
        }
        Ok(place)
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// Returns a connection that collects many small commands before it writes them to the socket.
    pub(super) async fn writing(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.info, Some(WRITE_BYTES)).await
    }

    /// Returns a connection for blocking reads.
    pub(super) async fn reading(&self) -> anyhow::Result<MultiplexedConnection> {
        connect(&self.info, None).await
    }

    /// Returns a key of this run with the prefix `bench.`, which no other part of the program uses.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}bench.{name}", self.keys.prefix())
    }

    fn scan(&self, cursor: u64) -> redis::Cmd {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("{}*", self.keys.prefix()))
            .arg("COUNT")
            .arg(KEYS_PER_STEP);
        scan
    }

    async fn any_key(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let (mut conn, mut cursor) = (self.conn.clone(), 0);
        loop {
            let (next, mut keys): (u64, Vec<Vec<u8>>) = self
                .scan(cursor)
                .query_async(&mut conn)
                .await
                .map_err(lost("SCAN"))?;
            if let Some(key) = keys.pop() {
                return Ok(Some(key));
            }
            cursor = next;
            if cursor == 0 {
                return Ok(None);
            }
        }
    }

    /// Deletes all keys of this run, and waits until their memory is free.
    pub(super) async fn clean(&self) -> anyhow::Result<()> {
        let mut conn = self.conn.clone();
        if self.private {
            redis::cmd("FLUSHALL")
                .arg("SYNC")
                .exec_async(&mut conn)
                .await
                .map_err(lost("FLUSHALL"))?;
            return Ok(());
        }
        for _ in 0..WALKS_MAX {
            let mut found = false;
            let mut cursor = 0;
            loop {
                let (next, keys): (u64, Vec<Vec<u8>>) = self
                    .scan(cursor)
                    .query_async(&mut conn)
                    .await
                    .map_err(lost("SCAN"))?;
                if !keys.is_empty() {
                    found = true;
                    redis::cmd("UNLINK")
                        .arg(&keys)
                        .exec_async(&mut conn)
                        .await
                        .map_err(lost("UNLINK"))?;
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
        Err(anyhow!(
            "keys under {} come again while they are deleted; something else writes there",
            self.keys.prefix()
        ))
    }

    /// Waits until Redis has freed the memory of the unlinked keys, which a thread of Redis does in
    /// the background.
    async fn until_freed(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while super::redis_info::Info::ask(&self.conn)
            .await?
            .number("lazyfree_pending_objects")
            .unwrap_or(0.0)
            > 0.0
        {
            if Instant::now() > deadline {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

async fn connect(
    info: &ConnectionInfo,
    write_bytes: Option<usize>,
) -> anyhow::Result<MultiplexedConnection> {
    let address = info.addr().to_string();
    let failed = |error| {
        Failure::with(
            Exit::Redis,
            format!("cannot connect to Redis at {address}: {}", describe(&error)),
        )
    };
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(PATIENCE));
    if let Some(bytes) = write_bytes {
        config = config.set_write_backpressure_boundary(bytes);
    }
    let client = Client::open(info.clone()).map_err(&failed)?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(failed)
}

/// Returns a function that makes the error for a failed Redis command. `what`: the name of the
/// command.
pub(super) fn lost(what: &'static str) -> impl Fn(RedisError) -> anyhow::Error {
    move |error| {
        Failure::with(
            Exit::Redis,
            format!("Redis did not answer {what}: {}", describe(&error)),
        )
    }
}

/// Sends a pipeline, and returns the reply of each command. If one reply is an error, returns this
/// error.
pub(super) async fn send(
    conn: &mut MultiplexedConnection,
    pipe: &Pipeline,
    what: &'static str,
) -> anyhow::Result<Vec<Value>> {
    let answers = conn
        .send_packed_commands(pipe, 0, pipe.len())
        .await
        .map_err(lost(what))?;
    if let Some(Value::ServerError(error)) = answers
        .iter()
        .find(|answer| matches!(answer, Value::ServerError(_)))
    {
        return Err(lost(what)(error.clone().into()));
    }
    Ok(answers)
}

/// Sends one command for each event through one connection, `depth` commands in a pipeline. The
/// next pipeline is built while the one before it is in flight.
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
