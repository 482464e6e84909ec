//! The connection of a [`Control`](super::Control). It is either the handle's own connection, which
//! reconnects after a loss, or a connection that the caller provides.
//!
//! No command is sent twice. If the process dies, a command that was already sent may still take
//! effect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use tokio::time::timeout;

use super::ControlError;
use crate::connection::url::UrlError;
use crate::connection::{PatientConnection, Route, RouteError, Server};

/// Maximum wait for a connection, and for one reply.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time of one attempt to connect. It is shorter than [`PATIENCE`], so that the error of the
/// attempt, which names the address, comes before the end of the whole wait.
const ATTEMPT: Duration = Duration::from_secs(4);

/// A connection of any type, as a trait object that can be cloned.
trait Given: ConnectionLike + Send {
    fn another(&self) -> AnyConnection;
}

impl<C: ConnectionLike + Clone + Send + 'static> Given for C {
    fn another(&self) -> AnyConnection {
        AnyConnection::new(self.clone())
    }
}

/// A connection of any type.
pub(super) struct AnyConnection(Box<dyn Given>);

impl AnyConnection {
    pub(super) fn new<C: ConnectionLike + Clone + Send + 'static>(connection: C) -> Self {
        Self(Box::new(connection))
    }

    /// Returns a clone that shares the underlying connection.
    pub(super) fn another(&self) -> Self {
        self.0.another()
    }
}

impl ConnectionLike for AnyConnection {
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

/// The handle's own connection, shared by all clones of the handle. After a loss, the next command
/// reconnects.
#[derive(Clone)]
pub(super) struct Own(Arc<Shared>);

struct Shared {
    route: Route,
    live: Mutex<Option<Live>>,
    /// Lock of the task that connects. So only one task connects at a time.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Live {
    connection: PatientConnection,
    /// Identity of this connection. It shows whether a later connection is the same one.
    mark: Arc<()>,
}

impl Own {
    /// Reads the settings and connects.
    pub(super) async fn connect(server: &Server) -> Result<Self, ControlError> {
        let own = Self::unconnected(server)?;
        own.live()
            .await
            .map_err(ControlError::redis("the first connection"))?;
        Ok(own)
    }

    /// Reads the settings. The first command connects.
    pub(super) fn unconnected(server: &Server) -> Result<Self, ControlError> {
        let route = Route::new(server, PATIENCE).map_err(|error| match error {
            RouteError::Url(reason) => ControlError::Url {
                reason: UrlError { reason }.to_string(),
            },
            RouteError::Tls(reason) => ControlError::Tls { reason },
            RouteError::Sentinels(reason) => ControlError::Sentinels { reason },
        })?;
        Ok(Self(Arc::new(Shared {
            route,
            live: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })))
    }

    /// Returns the connection. If there is none, makes one. A caller waits at most [`PATIENCE`],
    /// including the time in which other callers try to connect.
    async fn live(&self) -> RedisResult<Live> {
        if let Some(live) = self.usable() {
            self.0.route.ask_while_used();
            return Ok(live);
        }
        let attempt = async {
            let _connecting = self.0.connecting.lock().await;
            if let Some(live) = self.usable() {
                return Ok(live);
            }
            let config = AsyncConnectionConfig::new();
            let connection = self.0.route.open_to_read(config, ATTEMPT, PATIENCE).await?;
            Ok(self
                .slot()
                .insert(Live {
                    connection,
                    mark: Arc::default(),
                })
                .clone())
        };
        timeout(PATIENCE, attempt)
            .await
            .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    fn usable(&self) -> Option<Live> {
        self.slot()
            .as_ref()
            .filter(|live| !live.connection.is_closed())
            .cloned()
    }

    /// Drops the connection if this error shows that the connection is no longer usable. That
    /// includes a timeout of a reply, because the peer may be gone.
    fn judge(&self, used: &Live, error: &RedisError) {
        // A server that has become a replica refuses writes. The next connection may lead to the
        // new master.
        let is_replica = error.code() == Some("READONLY");
        if !(is_replica
            || error.is_unrecoverable_error()
            || error.is_io_error()
            || error.is_timeout())
        {
            return;
        }
        let mut live = self.slot();
        if live
            .as_ref()
            .is_some_and(|live| Arc::ptr_eq(&live.mark, &used.mark))
        {
            *live = None;
        }
    }

    /// Locks the slot of the connection. A poisoned lock is used like any other, because a panic
    /// leaves no half-changed state in the slot.
    fn slot(&self) -> MutexGuard<'_, Option<Live>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionLike for Own {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut live = self.live().await?;
            let answer = live.connection.req_packed_command(cmd).await;
            if let Err(error) = &answer {
                self.judge(&live, error);
            }
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut live = self.live().await?;
            let answer = live
                .connection
                .req_packed_commands(pipe, offset, count)
                .await;
            if let Err(error) = &answer {
                self.judge(&live, error);
            }
            answer
        })
    }

    fn get_db(&self) -> i64 {
        self.0.route.db()
    }
}
