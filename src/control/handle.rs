//! The handle with all operations.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::ConnectionLike;

use super::ControlError;
use super::connection::{AnyConnection, Own};
use crate::connection::Server;
use crate::keys::{Keys, NamespaceError};

/// A handle to one namespace: reads the live system, and performs the actions of an operator.
///
/// Cheap to clone. All clones share one connection, and any number of operations may run at once.
/// The command line, a dashboard and an HTTP API use the same methods.
///
/// - Looks: [`check`](Self::check), [`warnings`](Self::warnings), [`stats`](Self::stats),
///   [`depth`](Self::depth), [`under_work`](Self::under_work), [`workers`](Self::workers),
///   [`worker`](Self::worker), [`inspect`](Self::inspect),
///   [`paced_inspect`](Self::paced_inspect), [`ended`](Self::ended), [`chain`](Self::chain),
///   [`log`](Self::log)
/// - Dead letters: [`dead_letters`](Self::dead_letters), [`settle`](Self::settle)
/// - Held objects: [`held`](Self::held), [`held_where`](Self::held_where),
///   [`paused`](Self::paused), [`paused_where`](Self::paused_where), [`release`](Self::release),
///   [`skip`](Self::skip)
/// - Pauses and blocks: [`rules`](Self::rules), [`set_rule`](Self::set_rule),
///   [`lift_rule`](Self::lift_rule), [`count_paused`](Self::count_paused)
/// - Schedules: [`schedules`](Self::schedules), [`schedules_of`](Self::schedules_of),
///   [`cancel_schedule`](Self::cancel_schedule)
/// - Cron jobs: [`crons`](Self::crons), [`set_cron`](Self::set_cron),
///   [`remove_cron`](Self::remove_cron), [`pause_cron`](Self::pause_cron),
///   [`resume_cron`](Self::resume_cron), [`run_cron`](Self::run_cron)
/// - Limits: [`limits`](Self::limits), [`set_limit`](Self::set_limit),
///   [`remove_limit`](Self::remove_limit)
/// - Shares: [`shares`](Self::shares), [`share_figures`](Self::share_figures),
///   [`set_share`](Self::set_share), [`remove_share`](Self::remove_share)
/// - Repairs: [`repair`](Self::repair)
/// - Others: [`actions`](Self::actions), [`actions_of`](Self::actions_of),
///   [`forget`](Self::forget), [`forget_as`](Self::forget_as),
///   [`cursor_secret`](Self::cursor_secret)
///
/// # Pages
///
/// A list is read in pages. A page has a [`Cursor`](super::Cursor) to the next page, or none if it
/// is the last page. A page after a cursor may be empty.
///
/// # Cancellation
///
/// Every future may be dropped at any time. The handle stays usable. If a step was already sent to
/// Redis, it may still take effect. Each step is atomic. The description of each operation says
/// whether calling it again is safe.
///
/// # Example
///
/// ```no_run
/// # async fn example() -> Result<(), seriatim::control::ControlError> {
/// use seriatim::control::{By, Control, Settle};
///
/// let control = Control::connect("redis://127.0.0.1").await?;
/// let stats = control.stats().await?;
/// println!("{} markers, {} dead letters", stats.markers, stats.dead_letters);
///
/// let page = control.dead_letters(None, 10).await?;
/// let ids: Vec<_> = page.letters.into_iter().map(|letter| letter.dead_id).collect();
/// control.settle(By { who: "ada@host", why: "the bank is open again" }, Settle::Retry, &ids).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Control {
    /// The connection; each operation uses its own clone of it. The lock is held only while
    /// cloning.
    connection: Arc<Mutex<AnyConnection>>,
    pub(super) keys: Keys,
    /// Maximum number of bytes of each event in lists of events; 0 for whole events.
    pub(super) event_bytes_max: usize,
}

impl Control {
    /// Connects to this [`Server`], e.g. `redis://host`. A connection attempt may take up to 5 s. A
    /// reply may take longer, but fails if no byte moves on the connection for 5 s.
    ///
    /// After a loss of the connection, the operation that used it fails, because no command is sent
    /// twice. The next operation connects again.
    ///
    /// # Errors
    /// [`ControlError::Url`], [`ControlError::Tls`] and [`ControlError::Redis`]. None of these
    /// errors contains the password.
    pub async fn connect(server: impl Into<Server>) -> Result<Self, ControlError> {
        Ok(Self::new(Own::connect(&server.into()).await?))
    }

    /// Returns a handle that connects with its first operation. It serves a program that may start
    /// before its Redis. In all other points it is like the handle of [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`ControlError::Url`] and [`ControlError::Tls`].
    pub fn unconnected(server: impl Into<Server>) -> Result<Self, ControlError> {
        Ok(Self::new(Own::unconnected(&server.into())?))
    }

    /// Uses a connection that the caller provides: a `MultiplexedConnection`, a
    /// `ConnectionManager`, or any other type whose clones share one connection. The handle clones
    /// it once per operation.
    ///
    /// The caller sets the timeouts of the connection, and reconnects it. By default a
    /// `MultiplexedConnection` waits 500 ms for a reply; 5 s are enough for every operation.
    pub fn new<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + 'static,
    {
        Self {
            connection: Arc::new(Mutex::new(AnyConnection::new(connection))),
            keys: Keys::new(),
            event_bytes_max: 0,
        }
    }

    /// Uses these keys. Default: the keys without a namespace.
    #[must_use]
    pub fn with_keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// Uses the keys of a namespace. Its name has 1 to 64 of the characters `A-Z a-z 0-9 _ . -`.
    ///
    /// # Errors
    /// [`NamespaceError`] for an invalid name.
    pub fn with_namespace(self, namespace: &str) -> Result<Self, NamespaceError> {
        Ok(self.with_keys(Keys::with_namespace(namespace)?))
    }

    /// Cuts events: the lists of the log and of the dead letters return at most this number of
    /// bytes of each event. Default, and with 0: whole events.
    ///
    /// The limit is for programs that show events, because an event may have many megabytes. Redis
    /// sends only the first bytes. A cut does not split a letter of UTF-8. A page ends when about 1
    /// MiB was read, so it may have fewer rows than requested although there is a next page.
    #[must_use]
    pub fn with_event_bytes_max(mut self, bytes: usize) -> Self {
        self.event_bytes_max = bytes;
        self
    }

    /// Returns the selected keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the time of Redis, ms since the epoch.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn now_ms(&self) -> Result<u64, ControlError> {
        super::reply::now_ms(&mut self.connection()).await
    }

    /// Returns a connection for one operation.
    pub(super) fn connection(&self) -> AnyConnection {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .another()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The connection is left out, because it may contain a password.
        f.debug_struct("Control")
            .field("keys", &self.keys)
            .field("event_bytes_max", &self.event_bytes_max)
            .finish_non_exhaustive()
    }
}
