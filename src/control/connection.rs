//! The connection of a [`Control`](super::Control): one of its own, which is made anew when it is
//! gone, or one of the caller's.
//!
//! No command is sent twice. If the process dies, a command that was sent may still take effect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use tokio::time::timeout;

use super::ControlError;
use crate::connection::url::{connection_info, tcp_settings};

/// The longest wait for a connection, and for one reply.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that can be cloned behind a pointer.
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

    /// A connection that shares what is behind this one.
    pub(super) fn another(&self) -> Self {
        self.0.another()
    }
}

impl ConnectionLike for AnyConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(&'a mut self, pipe: &'a Pipeline, offset: usize, count: usize) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipe, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// A connection of our own, shared by its clones. The first command after it was lost connects
/// again.
#[derive(Clone)]
pub(super) struct Own(Arc<Shared>);

struct Shared {
    client: Client,
    live: Mutex<Option<Live>>,
    /// Held while a connection is being made.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Tells one connection from the next.
    mark: Arc<()>,
}

impl Own {
    /// Reads the URL, and connects.
    pub(super) async fn connect(url: &str) -> Result<Self, ControlError> {
        const WHAT: &str = "the first connection";
        let info = connection_info(url).map_err(|error| ControlError::Url { reason: error.to_string() })?;
        let client = Client::open(info.set_tcp_settings(tcp_settings(PATIENCE))).map_err(ControlError::redis(WHAT))?;
        let own = Self(Arc::new(Shared { client, live: Mutex::default(), connecting: tokio::sync::Mutex::default() }));
        own.live().await.map_err(ControlError::redis(WHAT))?;
        Ok(own)
    }

    /// The connection; a new one if there is none. A call waits for the attempts of others and for
    /// its own [`PATIENCE`] in all.
    async fn live(&self) -> RedisResult<Live> {
        if let Some(live) = &*self.slot() {
            return Ok(live.clone());
        }
        let attempt = async {
            let _connecting = self.0.connecting.lock().await;
            if let Some(live) = &*self.slot() {
                return Ok(live.clone());
            }
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(Some(PATIENCE));
            let connection = self.0.client.get_multiplexed_async_connection_with_config(&config).await?;
            Ok(self.slot().insert(Live { connection, mark: Arc::default() }).clone())
        };
        timeout(PATIENCE, attempt).await.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    /// Lets go of a connection that this error has ended. A reply that takes too long ends it as
    /// well: nobody knows whether its peer is still there.
    fn judge(&self, used: &Live, error: &RedisError) {
        if !(error.is_unrecoverable_error() || error.is_io_error() || error.is_timeout()) {
            return;
        }
        let mut live = self.slot();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(&live.mark, &used.mark)) {
            *live = None;
        }
    }

    /// A panic while the lock is held leaves nothing half done behind it.
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

    fn req_packed_commands<'a>(&'a mut self, pipe: &'a Pipeline, offset: usize, count: usize) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut live = self.live().await?;
            let answer = live.connection.req_packed_commands(pipe, offset, count).await;
            if let Err(error) = &answer {
                self.judge(&live, error);
            }
            answer
        })
    }

    fn get_db(&self) -> i64 {
        self.0.client.get_connection_info().redis_settings().db()
    }
}
