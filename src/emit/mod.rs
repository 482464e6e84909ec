//! Emits events. This is the producer's part of the path of an event.
//!
//! An emit is one plain transaction: `MULTI; SET OBJ:data …; LPUSH OBJ:events main sub…; LPUSH
//! objects.with.events OBJ; EXEC`. A producer in any language sends the same commands. This module
//! has the code for that transaction and for the errors of an emit:
//!
//! - [`Emitter`]: emits one event at a time, or into the caller's own transaction
//! - `schedule`: events that are queued later ([`Emitter::schedule`])
//! - `idempotent`: emits by a script, because the emit has an idempotency key, or its object has
//!   limits
//! - `awaited`: emits whose end their producer awaits ([`Emitter::call`])
//! - `limits`: the limits of the queues
//! - `many`: emits many events at once, in few transactions ([`Emitter::emit_many`])
//! - `appended`: the outcome of an emit in the caller's own transaction
//! - `group`: sends single emits of many tasks in few transactions
//! - `draft`: the commands of one emit
//! - `link`: the connection of an emitter
//! - `wire`: sends transactions over the emitter's own connection, and waits for replicas
//! - `error`: the errors of an emit; each says whether the emit took effect
//!
//! If the process dies before the reply comes, the transaction has taken effect as a whole or not
//! at all. In both cases, a worker or a later emit has nothing to clean up.

mod appended;
mod awaited;
mod draft;
mod error;
mod group;
mod idempotent;
mod limits;
mod link;
mod many;
mod schedule;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};

use crate::connection::{Server, Wait};
use crate::event::{EVENT_BYTES_MAX, IntoEvent, ObjectName};
use crate::keys::{Keys, NamespaceError};

pub use appended::Appended;
use awaited::Waits;
pub use awaited::{Awaited, AwaitedEmit, CallError, EventEnd, KEEP, WaitError};
use draft::Draft;
use error::command_failed;
pub use error::{EmitError, Full};
pub use idempotent::{IdempotentEmit, SCRIPT_BYTES_MAX, SCRIPT_EVENTS_MAX, WINDOW};
use limits::Limits;
use link::{Link, Own};
pub use many::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX, EmitManyError, EmittedMany, ObjectFailed};
pub use schedule::{Cancelled, Change, Schedule, ScheduleManyError, Scheduled};

/// Default time limit of an [`Emitter`] with its own connection. It is the limit for connecting,
/// and also for a reply.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Default time limit of a wait for replicas.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Emits events for objects.
///
/// An emitter is cheap to clone, and all clones share one connection. Any number of emits may be in
/// flight at once.
///
/// # Order
///
/// If an emit has returned `Ok`, it is ordered before every emit of the same object that begins
/// later, in any process. Two emits of one object that are in flight at the same time may come in
/// either order. If the order matters, await the first before you begin the second. An emit whose
/// outcome is [unknown](EmitError::Unknown) may still take effect later, after events that were
/// emitted after it.
///
/// # Many at once
///
/// Over its own connection, an emitter sends emits together if they are queued at the same time: up
/// to 64 emits share one transaction. No timer waits for more emits, and a lone emit is sent at
/// once. Each emit has its own outcome: a refused emit does not fail the others. If no reply comes,
/// the outcome of all emits of that transaction is [unknown](EmitError::Unknown). An emit with
/// data, or with more than 4 KiB of events, has its own transaction.
///
/// # Cancellation
///
/// If the future of an emit is dropped, a transaction that was already sent is not undone. Its
/// outcome is unknown, as with [`EmitError::Unknown`]. The connection stays usable, also for other
/// emits in flight.
///
/// # Example
///
/// ```no_run
/// # async fn run() -> Result<(), seriatim::EmitError> {
/// use seriatim::{Emitter, event::Json};
///
/// let emitter = Emitter::connect("redis://127.0.0.1").await?;
/// emitter.emit("work:1", Json::new(r#"{"type":"created"}"#)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Emitter {
    link: Arc<Link>,
    keys: Keys,
    limits: Arc<Limits>,
    waits: Arc<Waits>,
    /// Key of the list of markers. It is formatted once.
    markers: Arc<str>,
    event_bytes_max: usize,
    chunk_events_max: usize,
    chunk_bytes_max: usize,
}

/// An emit that Redis has acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Emitted {
    /// Number of events that the emit queued: the main event and its subevents.
    pub events: usize,
    /// Number of events in the object's queue right after the emit, including its own events.
    /// Events that a worker has already taken do not count. If this number keeps growing, the
    /// producer is faster than the workers.
    pub queued: u64,
    /// Whether an emit with the same [idempotency key](Emit::idempotency_key) was done before, by
    /// another call or by an earlier try of this call. If so, the last try queued nothing.
    pub repeated: bool,
}

/// The settings of an [`Emitter`] with its own connection; made by [`Emitter::builder`].
#[derive(Clone)]
#[must_use = "nothing is connected before connect() is awaited"]
pub struct EmitterBuilder {
    server: Server,
    keys: Keys,
    connection_timeout: Duration,
    response_timeout: Duration,
    wait: (u32, Duration),
    wait_local: bool,
}

impl EmitterBuilder {
    /// Sets the time limit of one connection attempt, including name lookup and authentication.
    /// Default: 5 s.
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Sets how long an emit waits for its reply while no byte moves on the connection. After that
    /// time, the outcome of the emit is [unknown](EmitError::Unknown). Default: 5 s. A large emit
    /// on a slow link may take longer than this time, as long as bytes move.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Lets each emit wait, after its transaction, until this number of replicas has the events. If
    /// they do not have them within `timeout` (1 ms to 1 minute; other times are cut to this
    /// range), the emit fails with [`EmitError::Unreplicated`]. Default: 0 replicas, no wait.
    ///
    /// Emits that are sent together share one `WAIT`. If the future of an emit is dropped during
    /// the wait, its events are queued all the same. There is no wait for an emit in a [transaction
    /// of the caller](Emit::append_to), or over a [connection of the caller](Emitter::new).
    pub fn wait(mut self, replicas: u32, timeout: Duration) -> Self {
        self.wait = (replicas, timeout);
        self
    }

    /// Also waits until each transaction is on the disks of the master and of the replicas. This
    /// uses `WAITAOF`, which Redis has from 7.2 on, and needs `appendonly yes` on all of these
    /// servers. Default: no.
    pub fn wait_local(mut self, wait_local: bool) -> Self {
        self.wait_local = wait_local;
        self
    }

    /// Sets the keys to emit to. Default: the keys without a namespace.
    pub fn keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`EmitError::Url`], [`EmitError::Tls`], [`EmitError::Sentinels`] and [`EmitError::Connect`].
    /// None of these errors contains the password.
    pub async fn connect(self) -> Result<Emitter, EmitError> {
        let emitter = self.unconnected()?;
        emitter.reach().await?;
        Ok(emitter)
    }

    /// Returns the emitter without connecting. Its first emit connects.
    ///
    /// # Errors
    /// [`EmitError::Url`], [`EmitError::Tls`] and [`EmitError::Sentinels`].
    pub fn unconnected(self) -> Result<Emitter, EmitError> {
        let wait = Wait::new(self.wait.0, self.wait.1, self.wait_local);
        let own = Own::new(
            &self.server,
            self.connection_timeout,
            self.response_timeout,
            wait,
        )?;
        Ok(Emitter::over(Link::Own(Box::new(own))).with_keys(self.keys))
    }
}

impl fmt::Debug for EmitterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmitterBuilder")
            .field("server", &self.server)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl Emitter {
    /// Connects to this [`Server`], e.g. `redis://host`, with the default timeouts of 5 s.
    /// [`builder`](Self::builder) allows other timeouts.
    ///
    /// After a loss of the connection, the next call reconnects before it sends anything. If a call
    /// had already sent its transaction when the connection was lost, it returns
    /// [`EmitError::Unknown`]. The emitter never repeats an emit that may have taken effect, unless
    /// the emit has an idempotency key. It needs Redis 7 or Valkey.
    pub async fn connect(server: impl Into<Server>) -> Result<Self, EmitError> {
        Self::builder(server).connect().await
    }

    /// Returns a builder for an emitter with other settings.
    pub fn builder(server: impl Into<Server>) -> EmitterBuilder {
        EmitterBuilder {
            server: server.into(),
            keys: Keys::new(),
            connection_timeout: TIMEOUT,
            response_timeout: TIMEOUT,
            wait: (0, WAIT_TIMEOUT),
            wait_local: false,
        }
    }

    /// Emits over a connection that the caller provides: a `MultiplexedConnection`, a
    /// `ConnectionManager`, or any other type whose clones share one connection. The emitter clones
    /// it once per call.
    ///
    /// Before the first transaction, the emitter sends an `EXEC` and an empty transaction. They show
    /// whether the user may send transactions. An earlier `WATCH` on this connection ends with them.
    ///
    /// The caller sets the timeouts of the connection, and reconnects it. By default a
    /// `MultiplexedConnection` waits 500 ms for a reply. A client that repeats commands by itself
    /// breaks the promise that no emit is sent twice; for a cluster client, set its retries to 0.
    pub fn new<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + 'static,
    {
        Self::over(Link::given(connection))
    }

    fn over(link: Link) -> Self {
        let keys = Keys::new();
        Self {
            link: Arc::new(link),
            limits: Arc::default(),
            waits: Arc::new(Waits::of(&keys)),
            markers: keys.objects_with_events().into(),
            keys,
            event_bytes_max: EVENT_BYTES_MAX,
            chunk_events_max: CHUNK_EVENTS_MAX,
            chunk_bytes_max: CHUNK_BYTES_MAX,
        }
    }

    /// Emits to these keys. Default: the keys without a namespace.
    #[must_use]
    pub fn with_keys(mut self, keys: Keys) -> Self {
        self.markers = keys.objects_with_events().into();
        self.waits = Arc::new(Waits::of(&keys));
        self.keys = keys;
        self.limits = Arc::default();
        self
    }

    /// Emits to the keys of a namespace. Its name has 1 to 64 of the characters
    /// `A-Z a-z 0-9 _ . -`.
    pub fn with_namespace(self, namespace: &str) -> Result<Self, NamespaceError> {
        Ok(self.with_keys(Keys::with_namespace(namespace)?))
    }

    /// Refuses events, subevents and data of more bytes than this. Default: 1 MiB.
    #[must_use]
    pub fn with_event_bytes_max(mut self, event_bytes_max: usize) -> Self {
        self.event_bytes_max = event_bytes_max;
        self
    }

    /// Sets the size of one transaction of [`emit_many`](Self::emit_many). The transaction is sent
    /// when it has `events_max` events (minimum 1), or `bytes_max` bytes of names and events.
    /// Default: 1024 events, 1 MiB. Redis runs no other command during a transaction.
    #[must_use]
    pub fn with_chunk(mut self, events_max: usize, bytes_max: usize) -> Self {
        self.chunk_events_max = events_max.max(1);
        self.chunk_bytes_max = bytes_max;
        self
    }

    /// Returns the keys to which this emitter emits.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Connects, if there is no connection, and reads the [limits](crate::emit). A connection that
    /// the caller provides counts as connected.
    ///
    /// # Errors
    /// [`EmitError::Connect`].
    pub async fn reach(&self) -> Result<(), EmitError> {
        if let Link::Own(own) = &*self.link {
            own.connect().await?;
        }
        self.look_now().await;
        Ok(())
    }

    /// Returns whether there is a connection, as far as the emitter knows. This is useful for a
    /// health check. The result is always true for a connection that the caller provides.
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Emits one event. Pass `&T` for a value of any serializable type, or
    /// [`Json`](crate::event::Json) for text that is JSON already.
    ///
    /// On `Ok` the event is queued, and its position in the object's order is fixed.
    pub async fn emit(
        &self,
        object: impl AsRef<str>,
        event: impl IntoEvent,
    ) -> Result<Emitted, EmitError> {
        self.event(object, event).send().await
    }

    /// Begins an emit that has subevents or data, or that goes into a transaction of the caller.
    ///
    /// [`Emit::send`] or [`Emit::append_to`] returns the error of an invalid name or event.
    pub fn event(&self, object: impl AsRef<str>, event: impl IntoEvent) -> Emit<'_> {
        let draft = self.draft(object.as_ref());
        Emit {
            emitter: self,
            draft,
        }
        .sub(event)
    }

    fn draft(&self, object: &str) -> Result<Draft, EmitError> {
        let object = self.keys.object(object)?;
        Ok(Draft {
            push: self.push(&object),
            object,
            events: 0,
            bytes: 0,
            data: None,
        })
    }

    /// Returns the command that queues events of an object. The events must still be added.
    fn push(&self, object: &ObjectName) -> Cmd {
        let mut push = redis::cmd("LPUSH");
        push.arg(self.keys.events(object.as_str()));
        push
    }

    /// Returns the command that pushes markers. The markers must still be added.
    fn mark(&self) -> Cmd {
        let mut mark = redis::cmd("LPUSH");
        mark.arg(&*self.markers);
        mark
    }

    /// Reads the reply to one LPUSH: the length of the list, or an error.
    fn pushed(
        &self,
        object: &ObjectName,
        answer: &Value,
        key: impl FnOnce() -> String,
    ) -> Result<u64, EmitError> {
        let error = match answer {
            Value::Int(length) => return Ok(u64::try_from(*length).unwrap_or(0)),
            Value::ServerError(error) => return Err(command_failed(object, error, key)),
            _ => RedisError::from((
                ErrorKind::UnexpectedReturnType,
                "LPUSH did not return a length",
            )),
        };
        Err(EmitError::Unknown {
            object: object.clone(),
            source: error,
        })
    }
}

/// One emit under construction: a main event, its subevents, and the object's data. Made by
/// [`Emitter::event`].
#[derive(Debug)]
#[must_use = "nothing is emitted before send() is awaited or append_to() called"]
pub struct Emit<'a> {
    emitter: &'a Emitter,
    draft: Result<Draft, EmitError>,
}

impl Emit<'_> {
    /// Adds a subevent. The subevent gets its own id and follows the main event and earlier
    /// subevents. No event of another emit comes between them.
    #[allow(clippy::should_implement_trait)] // It is the word for it, and nothing is subtracted.
    pub fn sub(mut self, event: impl IntoEvent) -> Self {
        if let Ok(draft) = &mut self.draft {
            match event.into_event(self.emitter.event_bytes_max) {
                Ok(event) => {
                    draft.push.arg(&event[..]);
                    draft.events += 1;
                    draft.bytes += event.len();
                }
                Err(error) => self.draft = Err(error.into()),
            }
        }
        self
    }

    /// Sets the object's state at `OBJ:data`, in the transaction of the emit. If called more than
    /// once, the last call counts.
    pub fn data(mut self, data: impl IntoEvent) -> Self {
        if let Ok(draft) = &mut self.draft {
            match data.into_event(self.emitter.event_bytes_max) {
                Ok(data) => {
                    draft.data = Some((self.emitter.keys.data(draft.object.as_str()), data))
                }
                Err(error) => self.draft = Err(error.into()),
            }
        }
        self
    }

    /// Sends the emit.
    pub async fn send(self) -> Result<Emitted, EmitError> {
        let emitter = self.emitter;
        let draft = self.draft?;
        let (known, looks) = emitter.limits().await;
        if let Some(limit) = known.of(draft.object.as_str()) {
            draft.fits_a_script()?;
            return emitter
                .looking(looks, emitter.send_script(&draft, None, limit))
                .await;
        }
        let (object, events, with_data) =
            (draft.object.clone(), draft.events, draft.data.is_some());
        let sending = emitter.link.emit(draft, &emitter.markers);
        let replies = emitter
            .looking(looks, sending)
            .await
            .map_err(|failed| failed.about(&object))?;
        let answers = &replies.results;
        if let (true, Some(Value::ServerError(error))) = (with_data, answers.first()) {
            return Err(EmitError::Unknown {
                object,
                source: error.clone().into(),
            });
        }
        let at = usize::from(with_data);
        let answer = |at: usize| answers.get(at).unwrap_or(&Value::Nil);
        let queued =
            emitter.pushed(&object, answer(at), || emitter.keys.events(object.as_str()))?;
        emitter.pushed(&object, answer(at + 1), || emitter.markers.to_string())?;
        replies.check(&object)?;
        Ok(Emitted {
            events,
            queued,
            repeated: false,
        })
    }

    /// Appends the commands of the emit to a pipeline of the caller, and makes that pipeline
    /// atomic. So the emit takes effect together with the caller's own commands. The commands are
    /// `SET OBJ:data` if there is data, `LPUSH OBJ:events main sub…`, and `LPUSH
    /// objects.with.events OBJ`. Their results are left out of the reply, but an error among them
    /// still fails the pipeline. The caller sends the pipeline. [`Appended::outcome`] turns its
    /// reply into the outcome of the emit.
    ///
    /// # Errors
    ///
    /// [`EmitError::Name`] and [`EmitError::Event`]. After an error the pipeline is unchanged.
    pub fn append_to(self, pipe: &mut Pipeline) -> Result<Appended, EmitError> {
        let draft = self.draft?;
        let first = pipe.len();
        let appended = Appended {
            first,
            push: first + usize::from(draft.data.is_some()),
            events_key: self.emitter.keys.events(draft.object.as_str()),
            markers_key: Arc::clone(&self.emitter.markers),
            object: draft.object.clone(),
        };
        pipe.atomic();
        draft.append(&self.emitter.markers, pipe);
        Ok(appended)
    }
}
