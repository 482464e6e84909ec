//! Connections of a worker process. Each is checked before its first use.
//!
//! A pool makes the connections. Every part that needs its own connection (advance, the wait, the
//! lease) takes one from the pool and keeps it. No connection reconnects by itself: a new
//! connection may lead to a server that has lost writes, so `lua/connect.lua` must run first on
//! every new connection.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult};
use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, Value};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use tracing::warn;

use crate::connection::errors::{describe, is_outage};
use crate::connection::{PatientConnection, Route, RouteError, Server, Wait, elsewhere};
use crate::escape;
use crate::failpoints::around;
use crate::keys::Keys;
use crate::wire::{self, Connect, Failed, ScriptError, Scripts, Ways};
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::session::memory::{RedisMemory, Replication, Warning};
use crate::worker::times::growing_wait::GrowingWait;
use crate::worker::watch::figures::{Call, Figures};
use crate::worker::watch::logged;
use crate::worker::watch::outage::Outage;

/// The number of connections in the pool: one for advance (two with a wait for replicas), one for
/// handler progress, and two spare ones. The wait for a marker takes its connection out of the pool
/// for good, so it is not counted here.
const CONNECTIONS: usize = 5;
/// The size of the pool of the lease thread. The lease and the promotion of schedules use one
/// connection each, and the search for a key of a wrong type uses another one. At the begin of a
/// session, the connections of the session before may still be in use, too. The wait for a wake
/// takes its connection out of the pool for good, so it is not counted here.
const CONNECTIONS_APART: usize = 6;

/// Makes connections to one Redis.
#[derive(Clone)]
pub(crate) struct Redis {
    pool: managed::Pool<Manager>,
    /// The pool of the thread that keeps the lease. A connection works only in the runtime in which
    /// it was made.
    pool_apart: managed::Pool<Manager>,
    route: Route,
    memory: Arc<RedisMemory>,
    outage: Arc<Outage>,
    figures: Arc<Figures>,
    wait: Option<Wait>,
    ways: Arc<Ways>,
}

impl Redis {
    /// Reads the settings. Does not connect yet.
    pub(crate) fn new(
        server: &Server,
        config: &WorkerConfig,
        figures: &Arc<Figures>,
    ) -> Result<Self, WorkerError> {
        let route = Route::new(server, config.response_timeout).map_err(|error| match error {
            RouteError::Url(reason) => WorkerError::Url(reason),
            RouteError::Tls(reason) => WorkerError::Tls(reason),
            RouteError::Sentinels(reason) => WorkerError::Sentinels(reason),
        })?;
        let memory = Arc::new(RedisMemory::default());
        let ways = Arc::new(Ways::new(config.scripts));
        figures.show_ways(&ways);
        let pool = |connections| {
            let manager = Manager {
                route: route.clone(),
                patience: config.response_timeout,
                keys: config.keys.clone(),
                first_id: config.first_id,
                event_log: config.event_log,
                wait: config.wait(),
                ways: Arc::clone(&ways),
                memory: Arc::clone(&memory),
            };
            managed::Pool::builder(manager)
                .max_size(connections)
                .build()
                .map_err(|error| WorkerError::Url(error.to_string()))
        };
        let (pool, pool_apart) = (pool(CONNECTIONS)?, pool(CONNECTIONS_APART)?);
        let (outage, figures) = (Arc::new(Outage::new(route.address())), Arc::clone(figures));
        Ok(Self {
            pool,
            pool_apart,
            outage,
            figures,
            wait: config.wait(),
            route,
            memory,
            ways,
        })
    }

    /// Returns a copy for another runtime. The copy has its own connections, and shares the memory
    /// of ids and servers.
    pub(crate) fn apart(&self) -> Self {
        Self {
            pool: self.pool_apart.clone(),
            ..self.clone()
        }
    }

    /// Takes one connection from the pool.
    pub(crate) async fn connect(&self) -> Result<Connection, WorkerError> {
        match around!("open", async {
            self.pool.get().await.map_err(|error| self.unopened(error))
        })
        .await
        {
            Ok(conn) => Ok(Connection(conn)),
            Err(Unopened::Redis(source)) => Err(self.unreachable(source)),
            Err(Unopened::Refused(error)) => Err(*error),
        }
    }

    fn unopened(&self, error: PoolError<Unopened>) -> Unopened {
        match error {
            PoolError::Backend(unopened) => unopened,
            other => Unopened::Redis(RedisError::from((
                ErrorKind::Client,
                "no connection",
                format!("{other:?}"),
            ))),
        }
    }

    /// Takes one connection from the pool. Waits without a limit as long as Redis cannot be reached
    /// or refuses the connection, a shared key is wrong, or the user lacks a right. Returns any other
    /// error at once. Cancellation safe.
    pub(crate) async fn reconnect(&self) -> Result<Connection, WorkerError> {
        self.connect_until(None).await
    }

    /// Takes one connection from the pool. With a `deadline`, waits for Redis at most until then.
    /// After that, and at once if waiting does not help (a wrong password), returns the error of
    /// the last attempt. Without a `deadline`, waits without a limit, also for a right that the user
    /// has lost. If a shared key is wrong, waits without a limit in any case, because an operator can
    /// correct that key.
    pub(crate) async fn connect_until(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Connection, WorkerError> {
        let mut backoff = GrowingWait::new(Duration::from_millis(50), Duration::from_secs(1));
        loop {
            let began = Instant::now();
            match self.connect().await {
                Err(WorkerError::Connect { address, source }) => {
                    if deadline
                        .is_some_and(|deadline| Instant::now() >= deadline || !is_outage(&source))
                    {
                        return Err(WorkerError::Connect { address, source });
                    }
                    self.figures.not_connected();
                    self.outage.failed(began, &describe(&source));
                }
                Err(error)
                    if error.is_obstacle() || deadline.is_none() && error.is_missing_right() =>
                {
                    self.outage.obstructed(began, &error.to_string());
                }
                done => return done,
            }
            backoff.wait().await;
        }
    }

    /// Returns the wait for replicas, if there is one.
    pub(crate) fn wait(&self) -> Option<Wait> {
        self.wait
    }

    /// Returns the ways in which Redis may run the script `advance`.
    pub(crate) fn ways(&self) -> &Arc<Ways> {
        &self.ways
    }

    /// Returns whether Sentinels name the master.
    pub(crate) fn has_sentinels(&self) -> bool {
        self.route.has_sentinels()
    }

    /// Asks the Sentinels, if there are any, which server is the master. If the master is another
    /// server than before, closes all connections. If no majority of the Sentinels replies, the
    /// connections stay open.
    pub(crate) async fn ask_for_master(&self) -> Result<(), RedisError> {
        self.route.ask_again().await
    }

    /// Returns the one place where all parts of the process record and log outages.
    pub(crate) fn outage(&self) -> &Arc<Outage> {
        &self.outage
    }

    /// Makes a call, and adds its time and its error to the figures.
    pub(crate) async fn timed<T>(
        &self,
        call: Call,
        made: impl Future<Output = Result<T, ScriptError>>,
    ) -> Result<T, ScriptError> {
        let began = Instant::now();
        let done = made.await;
        self.figures
            .called(call, began.elapsed(), done.as_ref().err());
        done
    }

    /// Returns the figures of the worker.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Raises the highest id seen to this id, if this id is higher.
    pub(crate) fn saw(&self, id: u64) {
        self.memory.saw(id);
    }

    /// Returns the highest id seen.
    pub(crate) fn highest(&self) -> u64 {
        self.memory.highest()
    }

    /// Returns the number of times that the process found a changed history of Redis (a failover, a
    /// restart).
    pub(crate) fn changes(&self) -> u64 {
        self.memory.changes()
    }

    /// Records that a sweep begins now. Returns the time since the previous sweep of this process,
    /// in any of its sessions; `None` for the first sweep.
    pub(crate) fn sweeps(&self) -> Option<Duration> {
        self.memory.sweeps()
    }

    /// Returns the error for a Redis that cannot be reached at the start.
    pub(crate) fn unreachable(&self, source: RedisError) -> WorkerError {
        WorkerError::Connect {
            address: self.route.address(),
            source,
        }
    }
}

/// Makes connections for the pool.
struct Manager {
    route: Route,
    /// The longest time of a connection attempt. For an open connection, the longest wait without a
    /// byte sent or received.
    patience: Duration,
    keys: Keys,
    first_id: u64,
    event_log: Option<wire::EventLog>,
    wait: Option<Wait>,
    ways: Arc<Ways>,
    memory: Arc<RedisMemory>,
}

/// The error of a connection attempt.
#[derive(Debug)]
enum Unopened {
    /// Redis cannot be reached, or refuses the connection.
    Redis(RedisError),
    /// The first script on the connection failed.
    Refused(Box<WorkerError>),
}

impl From<RedisError> for Unopened {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl managed::Manager for Manager {
    type Type = PatientConnection;
    type Error = Unopened;

    async fn create(&self) -> Result<PatientConnection, Unopened> {
        let config = AsyncConnectionConfig::new();
        let mut conn = self
            .route
            .open(config, self.patience, self.patience)
            .await?;
        match self.first_script(&mut conn).await {
            Err(Unopened::Redis(error)) => {
                let error =
                    elsewhere(&mut conn, error, &self.route.address(), self.route.scheme()).await;
                Err(Unopened::Redis(error))
            }
            done => done.map(|()| conn),
        }
    }

    async fn recycle(&self, conn: &mut PatientConnection, _: &Metrics) -> RecycleResult<Unopened> {
        let pong: Result<(), RedisError> = redis::cmd("PING").query_async(conn).await;
        pong.map_err(|error| RecycleError::Backend(error.into()))
    }
}

/// A connection from the pool. Dropping this value returns the connection to the pool.
pub(crate) struct Connection(Object<Manager>);

impl Connection {
    /// Takes the connection out of the pool for good.
    pub(crate) fn take(this: Self) -> PatientConnection {
        Object::take(this.0)
    }
}

impl Deref for Connection {
    type Target = PatientConnection;

    fn deref(&self) -> &PatientConnection {
        &self.0
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut PatientConnection {
        &mut self.0
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipe, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// One connection for many tasks, made at its first use.
pub(crate) struct SharedConnection {
    redis: Redis,
    conn: AsyncMutex<Option<Connection>>,
}

impl SharedConnection {
    pub(crate) fn new(redis: Redis) -> Self {
        Self {
            redis,
            conn: AsyncMutex::new(None),
        }
    }

    pub(crate) async fn get(&self) -> Result<PatientConnection, WorkerError> {
        let mut conn = self.conn.lock().await;
        let open = match conn.take() {
            Some(open) => open,
            None => self.redis.reconnect().await?,
        };
        Ok((**conn.insert(open)).clone())
    }

    /// Drops the connection after a failed call. The next call of [`get`](Self::get) makes a new
    /// connection.
    pub(crate) async fn give_up(&self) {
        if let Some(open) = self.conn.lock().await.take() {
            give_up(open);
        }
    }
}

/// Drops a connection instead of returning it to the pool. Commands that were sent may still run,
/// but their replies are not read.
pub(crate) fn give_up(conn: Connection) {
    drop(Connection::take(conn));
}

/// Returns whether the error is lasting: neither a new connection nor time repairs it. For example,
/// the script does not fit the program. A wrong shared key is not a lasting error, because workers
/// wait until an operator has corrected it.
pub(crate) fn is_lasting(error: &ScriptError) -> bool {
    !error.is_obstacle() && !matches!(error, ScriptError::Redis(_))
}

impl Manager {
    async fn first_script(&self, conn: &mut PatientConnection) -> Result<(), Unopened> {
        let (keys, memory) = (&self.keys, &self.memory);
        let seen = Connect {
            highest: memory.highest(),
            first_id: self.first_id,
            event_log: self.event_log,
        };
        let replication = replication(conn, memory).await?;
        if keys.prefix().is_empty() && memory.is_new(Warning::ForeignKeys) {
            warn_of_foreign_keys(conn, keys).await?;
        }
        let differs = memory.met(&replication)?;
        if differs {
            // Other connections may still lead to the old master. A call over such a connection
            // could tell the old master ids of the new master.
            self.route.close_all_but(conn);
        }
        match around!("connect", wire::connect(conn, keys, &replication.id, seen)).await {
            Ok(connected) => {
                if connected.changed && !differs {
                    memory.changed();
                }
                // The counter may include ids that other processes gave. If Redis loses the jump of
                // the counter, this process still knows the number.
                memory.saw(connected.counter);
                self.ways.connected(connected.functions);
                if self.ways.setting() == Scripts::Functions {
                    must_accept_library(conn, connected.functions).await?;
                }
                // This check comes after the script, because a replica or a Sentinel refuses the
                // script with a clearer error.
                if let Some(wait) = &self.wait {
                    wait.check(conn).await?;
                }
                if connected.changed {
                    warn!(
                        counter = connected.counter,
                        "Redis was restarted or replaced: the id counter jumped, so that no id is given twice"
                    );
                    if let Some(wait) = self.wait {
                        conn.set_block(wait.timeout());
                        if let Err(too_few) = wait.run(conn).await? {
                            let text = format!(
                                "too few replicas have the jump of the id counter: {too_few}"
                            );
                            return Err(RedisError::from(io::Error::new(
                                io::ErrorKind::NotConnected,
                                text,
                            ))
                            .into());
                        }
                        conn.set_block(Duration::ZERO);
                    }
                }
                Ok(())
            }
            Err(error) if error.is_wrong_type() => Err(Unopened::Refused(Box::new(
                wrong_type(conn, keys, error).await,
            ))),
            Err(ScriptError::Redis(error)) => Err(error.into()),
            Err(error @ (ScriptError::Counter(_) | ScriptError::Denied(_))) => {
                Err(Unopened::Refused(Box::new(error.into())))
            }
            Err(other) => Err(Unopened::Refused(Box::new(WorkerError::Refused(
                other.to_string(),
            )))),
        }
    }
}

/// Loads the library of functions, for a worker that may run no scripts in place of it.
///
/// # Errors
/// The server refuses the library, or the connection failed.
async fn must_accept_library(
    conn: &mut impl ConnectionLike,
    may_call: bool,
) -> Result<(), Unopened> {
    let reason = if may_call {
        match wire::ADVANCE.load(conn).await {
            Ok(()) => return Ok(()),
            Err(Failed::Other(error)) => return Err(error.into()),
            Err(Failed::Refused(error)) => describe(&error),
        }
    } else {
        wire::DENIED.to_owned()
    };
    let text = format!(
        "Redis refuses function libraries, which this worker must use (--scripts functions): {reason}; use --scripts auto, \
         or see docs/protocol.md, \"Permissions\""
    );
    Err(Unopened::Refused(Box::new(WorkerError::Refused(text))))
}

/// Finds the key whose wrong type made the first script fail, and returns an error that names it. If
/// an operator has moved the key away since then, returns the given error.
async fn wrong_type(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
    error: ScriptError,
) -> WorkerError {
    for (key, expected) in [(keys.meta(), "hash"), (keys.next_event_id(), "string")] {
        let found: Result<String, _> = redis::cmd("TYPE").arg(&key).query_async(conn).await;
        if let Ok(found) = found
            && found != expected
            && found != "none"
        {
            return WorkerError::WrongType {
                key,
                found,
                expected,
            };
        }
    }
    error.into()
}

/// Logs a warning if the worker has no namespace, the database has no data of seriatim yet, and it
/// has keys of other programs. A list `OBJ:events` of another program would be taken for the queue
/// of an object.
///
/// # Errors
/// The connection failed. Errors of Redis, for example for a missing right, are ignored.
async fn warn_of_foreign_keys(
    conn: &mut impl ConnectionLike,
    keys: &Keys,
) -> Result<(), RedisError> {
    match wire::foreign_key(conn, keys).await {
        Ok(Some(found)) if found.is_first_start => {
            warn!(
                key = %logged::cut(&escape::name(&found.key)),
                "this database has keys of other programs, and the worker has no namespace: a list NAME:events of another program is \
                 delivered as events once there is an emit for NAME; use --namespace (Keys::with_namespace), or a database of its own"
            );
            Ok(())
        }
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the replication ids of the server. The ids are empty if the Redis user has no right to
/// read them.
async fn replication(
    conn: &mut impl ConnectionLike,
    memory: &RedisMemory,
) -> Result<Replication, RedisError> {
    const HARM: &str = "a failover cannot be noticed, and ids lost in it could be given again";
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let info: Result<String, _> = around!("info", info.query_async(conn)).await;
    match info {
        Ok(info) => {
            let field = |name: &str| {
                info.lines()
                    .find_map(|line| line.strip_prefix(name))
                    .unwrap_or_default()
                    .trim()
                    .to_owned()
            };
            // An id of only zeros means that there is no such id.
            let before = field("master_replid2:");
            let before = if before.trim_matches('0').is_empty() {
                String::new()
            } else {
                before
            };
            let id = field("master_replid:");
            if id.is_empty() && memory.is_new(Warning::Replication) {
                warn!(
                    "INFO of this Redis has no master_replid: {HARM}; ask the provider of this Redis"
                );
            }
            Ok(Replication { id, before })
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::Server(_)) && error.code() == Some("NOPERM")
                || error.to_string().contains("unknown command") =>
        {
            if memory.is_new(Warning::Replication) {
                warn!("INFO is not allowed on this Redis: {HARM}; grant +info");
            }
            Ok(Replication::default())
        }
        Err(error) => Err(error),
    }
}
