//! The connection of an emitter. It is either the emitter's own connection, which reconnects after
//! a loss, or a connection that the caller provides.
//!
//! All calls share the emitter's own connection: each call uses a clone of it, so any number of
//! emits can be in flight at once. Single emits at the same time share transactions (see `group`).
//! Before its first transaction, each connection shows whether the user may send transactions.
//! A call reconnects only if it has not sent anything yet. No command is sent twice, unless an emit
//! has an idempotency key. If an attempt to connect fails, all calls that waited for this attempt
//! get its error. So if Redis is down, each call waits for one connection timeout, not for one
//! timeout after another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::OnceCell;

use super::awaited::Reader;
use super::draft::Draft;
use super::error::{EmitError, Failed, Replies, failed, read_answer, replies};
use super::group::{self, Gate};
use super::wire::{Wire, all_replies, refusal_of_transactions};
use crate::connection::{PatientConnection, Route, RouteError, Server, Wait, must_accept_writes};

/// Number of bytes that may collect before they are written to the socket. It is enough for many
/// small emits, or for a part of a chunk.
const WRITE_BYTES: usize = 64 * 1024;

/// The connection over which transactions are sent.
pub(super) enum Link {
    Own(Box<Own>),
    Given {
        connection: Mutex<Box<dyn Given>>,
        /// Set when the user may send transactions.
        examined: OnceCell<()>,
    },
}

/// A connection that the caller provides, as a trait object that can be cloned.
pub(super) trait Given: ConnectionLike + Send {
    fn another(&self) -> Box<dyn Given>;
}

impl<C: ConnectionLike + Clone + Send + 'static> Given for C {
    fn another(&self) -> Box<dyn Given> {
        Box::new(self.clone())
    }
}

impl Link {
    /// Returns a link over a connection that the caller provides.
    pub(super) fn given(connection: impl ConnectionLike + Clone + Send + 'static) -> Self {
        Self::Given {
            connection: Mutex::new(Box::new(connection)),
            examined: OnceCell::new(),
        }
    }

    /// Sends one emit once, and returns the result of each of its commands. Over the emitter's own
    /// connection, the emit may share a transaction with others.
    pub(super) async fn emit(
        &self,
        mut draft: Draft,
        markers_key: &Arc<str>,
    ) -> Result<Replies, Failed> {
        if let Self::Own(own) = self
            && group::may_join(&draft)
        {
            let live = own.ready().await?;
            let (_under_way, is_alone) = live.gate.enter();
            if !is_alone {
                match live.gate.emit(draft, Arc::clone(markers_key)).await {
                    Ok(answer) => {
                        own.forget_if_spoilt(&live, &answer);
                        return answer;
                    }
                    Err(unsent) => draft = unsent,
                }
            }
            return self.transact(&draft.into_pipeline(markers_key)).await;
        }
        self.transact(&draft.into_pipeline(markers_key)).await
    }

    /// Sends an atomic pipeline once, and returns the result of each of its commands.
    pub(super) async fn transact(&self, pipe: &Pipeline) -> Result<Replies, Failed> {
        match self {
            Self::Own(own) => {
                let mut live = own.ready().await?;
                let (answer, waited) = live.wire.transact(pipe).await;
                let answer = replies(read_answer(answer, pipe.len()), waited);
                own.forget_if_spoilt(&live, &answer);
                answer
            }
            Self::Given {
                connection,
                examined,
            } => {
                let mut given = lock(connection).another();
                examined
                    .get_or_try_init(async || {
                        let examined = refusal_of_transactions(&mut *given).await;
                        match examined.map_err(|error| failed(error, 0))? {
                            Some(refusal) => Err(Failed::Refused(refusal)),
                            None => Ok(()),
                        }
                    })
                    .await?;
                let (offset, count) = all_replies(pipe);
                let answer = given.req_packed_commands(pipe, offset, count).await;
                replies(read_answer(answer, pipe.len()), Ok(None))
            }
        }
    }

    /// Returns whether each transaction waits for replicas.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Own(own) if own.wait.is_some())
    }

    /// Sends a command that only reads.
    pub(super) async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Own(own) => own.live().await?.wire.ask(cmd).await,
            Self::Given { connection, .. } => {
                let mut given = lock(connection).another();
                given.req_packed_command(cmd).await
            }
        }
    }

    /// Returns a connection for looks at the ends of events. On the emitter's own one, a look may
    /// block for this time.
    pub(super) async fn reader(&self, block: Duration) -> RedisResult<Reader> {
        match self {
            Self::Own(own) => own.reader(block).await.map(Reader::Own),
            Self::Given { connection, .. } => Ok(Reader::Given(lock(connection).another())),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        match self {
            Self::Own(own) => own.usable().is_some(),
            Self::Given { .. } => true,
        }
    }
}

/// The emitter's own connection.
pub(super) struct Own {
    route: Route,
    connection_timeout: Duration,
    response_timeout: Duration,
    wait: Option<Wait>,
    live: Mutex<Option<Live>>,
    /// Lock of the task that connects; only one task connects at a time. The value is the error of
    /// the last attempt, if it failed.
    connecting: tokio::sync::Mutex<Option<RedisError>>,
    /// Number of connection attempts that have ended.
    attempts: AtomicU64,
}

#[derive(Clone)]
struct Live {
    wire: Wire,
    gate: Gate,
    /// The refusal of transactions, if the user lacks the right to send them.
    refusal: Option<RedisError>,
    /// Set when a call has shown that the connection is unusable.
    gone: Arc<AtomicBool>,
}

impl Own {
    /// Reads the settings. Does not connect yet.
    pub(super) fn new(
        server: &Server,
        connection_timeout: Duration,
        response_timeout: Duration,
        wait: Option<Wait>,
    ) -> Result<Self, EmitError> {
        let route = Route::new(server, response_timeout).map_err(|error| match error {
            RouteError::Url(reason) => EmitError::Url { reason },
            RouteError::Tls(reason) => EmitError::Tls { reason },
            RouteError::Sentinels(reason) => EmitError::Sentinels { reason },
        })?;
        Ok(Self {
            route,
            connection_timeout,
            response_timeout,
            wait,
            live: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
        })
    }

    /// Connects, if there is no connection.
    pub(super) async fn connect(&self) -> Result<(), EmitError> {
        match self.live().await {
            Ok(_) => Ok(()),
            Err(source) => Err(EmitError::Connect {
                redis: self.address(),
                source,
            }),
        }
    }

    /// Makes a connection for looks, each of which may block for this time.
    async fn reader(&self, block: Duration) -> RedisResult<PatientConnection> {
        let config = AsyncConnectionConfig::new();
        let mut connection = self
            .route
            .open(config, self.connection_timeout, self.response_timeout)
            .await?;
        connection.set_block(block);
        Ok(connection)
    }

    /// Returns the address of Redis, without user and password.
    fn address(&self) -> String {
        self.route.address()
    }

    fn usable(&self) -> Option<Live> {
        lock(&self.live)
            .as_ref()
            .filter(|live| !live.gone.load(Ordering::Acquire) && !live.wire.is_closed())
            .cloned()
    }

    /// Returns the connection for a transaction.
    async fn ready(&self) -> Result<Live, Failed> {
        let live = self.live().await.map_err(|source| Failed::Connect {
            redis: self.address(),
            source,
        })?;
        let Some(refusal) = live.refusal.clone() else {
            return Ok(live);
        };
        // The next call makes a new connection, because the user may have got the right by then.
        let refused: Result<Live, Failed> = Err(Failed::Refused(refusal));
        self.forget_if_spoilt(&live, &refused);
        refused
    }

    /// Returns the connection. Makes a new one if there is none, or if the last one is gone.
    async fn live(&self) -> RedisResult<Live> {
        if let Some(live) = self.usable() {
            self.route.ask_while_used();
            return Ok(live);
        }
        let seen = self.attempts.load(Ordering::Acquire);
        let mut last_error = self.connecting.lock().await;
        if let Some(live) = self.usable() {
            return Ok(live);
        }
        if self.attempts.load(Ordering::Acquire) != seen
            && let Some(error) = last_error.as_ref()
        {
            return Err(error.clone());
        }
        let attempt = self.attempt().await;
        self.attempts.fetch_add(1, Ordering::AcqRel);
        match attempt {
            Ok(live) => {
                *last_error = None;
                *lock(&self.live) = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                *last_error = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn attempt(&self) -> RedisResult<Live> {
        let gone = Arc::new(AtomicBool::new(false));
        let config = AsyncConnectionConfig::new().set_write_backpressure_boundary(WRITE_BYTES);
        let mut connection = self
            .route
            .open(config, self.connection_timeout, self.response_timeout)
            .await?;
        let mut examined = connection.clone();
        let address = self.route.address();
        let (accepted, refusal) = join(
            must_accept_writes(&mut connection, &address, self.route.scheme()),
            refusal_of_transactions(&mut examined),
        )
        .await;
        accepted?;
        let refusal = refusal?;
        if let Some(wait) = &self.wait {
            wait.check(&mut connection).await?;
        }
        let wire = Wire::new(connection, self.wait);
        let gate = Gate::open(wire.clone(), Arc::clone(&gone), self.wait.is_some());
        Ok(Live {
            wire,
            gate,
            refusal,
            gone,
        })
    }

    /// Drops a connection if this reply shows that it is unusable. Calls that still wait for
    /// replies keep their clones of the connection.
    fn forget_if_spoilt<T>(&self, spoilt: &Live, answer: &Result<T, Failed>) {
        if !answer.as_ref().is_err_and(Failed::spoils_connection) {
            return;
        }
        let mut live = lock(&self.live);
        if live
            .as_ref()
            .is_some_and(|live| Arc::ptr_eq(&live.gone, &spoilt.gone))
        {
            *live = None;
        }
    }
}

/// Locks a mutex. A poisoned lock is used like any other, because a panic leaves no half-changed
/// state behind it.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The settings are not printed with Debug, because they contain the password.
            Self::Own(own) => write!(f, "Own({})", own.address()),
            Self::Given { .. } => f.write_str("Given"),
        }
    }
}
