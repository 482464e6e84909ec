//! Emits whose end their producer awaits: it gets the result of the handler, or the error.
//!
//! An awaited emit is an emit with an idempotency key, which is the name of its event. The step that
//! ends the event writes how it ended to a key of its own, which Redis keeps for some time
//! (`lua/objects/ends.lua`). So the end survives a crash of the worker, and of the producer: any
//! process that knows the object and the name can wait for it, any number of times.
//!
//! - `end`: the end of an event, and the errors of a wait
//! - `watch`: the waits of an emitter, which share one connection

mod end;
mod watch;

use std::time::Duration;

use serde_core::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

pub use self::end::{CallError, EventEnd, WaitError};
pub(super) use self::watch::{Reader, Waits};
use super::error::EmitError;
use super::idempotent::{IdempotentEmit, Keyed};
use super::{Emit, Emitted, Emitter};
use crate::event::{IntoEvent, ObjectName, ScheduleKey};

/// Default time for which the end of an awaited event is kept.
pub const KEEP: Duration = Duration::from_secs(60 * 60);
/// The shortest and the longest time for which an end is kept.
const KEEP_MIN: Duration = Duration::from_secs(60);
const KEEP_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The wait before a call repeats its emit.
const AGAIN: Duration = Duration::from_millis(100);

/// An emit whose end is awaited, under construction. Made by [`Emit::awaited`] and
/// [`IdempotentEmit::awaited`].
#[derive(Debug)]
#[must_use = "nothing is emitted before send() is awaited"]
pub struct AwaitedEmit<'a> {
    emit: IdempotentEmit<'a>,
    keep: Duration,
}

/// An awaited emit that Redis has acknowledged.
#[derive(Debug, Clone)]
pub struct Awaited {
    emitter: Emitter,
    object: ObjectName,
    name: ScheduleKey,
    emitted: Emitted,
}

impl<'a> Emit<'a> {
    /// Lets the producer await the end of the event, under a new name that no other event has. The
    /// emit must have one event and no data.
    ///
    /// Such an emit is one script, so it cannot be part of a transaction of the caller. Its event
    /// is alone in its batch, and costs about as much as that of a schedule. Until its end is
    /// forgotten, it costs Redis about 350 bytes, four times the bytes of object name and key, and
    /// those of the results.
    ///
    /// ```no_run
    /// # async fn run(emitter: &seriatim::Emitter) -> Result<(), Box<dyn std::error::Error>> {
    /// use seriatim::event::Json;
    /// use std::time::Duration;
    ///
    /// let charge = Json::new(r#"{"type":"charge","cents":1200}"#);
    /// let awaited = emitter.event("user:1", charge).awaited().send().await?;
    /// let end = awaited.end(Duration::from_secs(30)).await?;
    /// println!("event {:?} is {}", end.id, end.status);
    /// # Ok(()) }
    /// ```
    pub fn awaited(self) -> AwaitedEmit<'a> {
        self.awaited_as(ScheduleKey::unique())
    }

    fn awaited_as(self, name: ScheduleKey) -> AwaitedEmit<'a> {
        let emit = IdempotentEmit {
            emit: self,
            key: Ok(name),
            window: KEEP,
        };
        AwaitedEmit { emit, keep: KEEP }
    }
}

impl<'a> IdempotentEmit<'a> {
    /// Lets the producer await the end of the event. Its name is the idempotency key, of at most 248
    /// bytes. So a process that repeats the emit waits for the end of the same event. The end is
    /// kept as long as the key, but at most 7 days.
    ///
    /// The emit must have one event and no data.
    pub fn awaited(self) -> AwaitedEmit<'a> {
        let keep = self.window.min(KEEP_MAX);
        AwaitedEmit { emit: self, keep }
    }
}

impl AwaitedEmit<'_> {
    /// Sets the time for which Redis keeps the name of the event, from the emit on, and its end,
    /// from the end on: 1 minute to 7 days; other times are cut to this range. Whole seconds count.
    /// Default: 1 hour, or the window of the idempotency key.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep.clamp(KEEP_MIN, KEEP_MAX);
        self.emit.window = self.keep;
        self
    }

    /// Sends the emit. If its outcome is unknown, sends it again, as [`IdempotentEmit::send`].
    ///
    /// # Errors
    /// As [`IdempotentEmit::send`], and [`EmitError::NotAwaitable`].
    ///
    /// # Cancellation
    /// As with [`IdempotentEmit::send`].
    pub async fn send(self) -> Result<Awaited, EmitError> {
        self.send_until(None).await
    }

    /// Sends the emit. With a time, repeats it until then if it is not acknowledged and Redis may
    /// be back.
    async fn send_until(self, until: Option<Instant>) -> Result<Awaited, EmitError> {
        let IdempotentEmit { emit, key, window } = self.emit;
        let (emitter, draft, name) = (emit.emitter, emit.draft?, key?);
        if draft.events != 1 || draft.data.is_some() {
            return Err(EmitError::NotAwaitable {
                object: draft.object,
            });
        }
        // The event is queued under a longer key.
        ScheduleKey::new(format!("?{} {}", KEEP_MAX.as_secs(), name.as_str()))?;
        let keyed = Keyed {
            key: name.as_str(),
            window,
            awaited: Some((self.keep.as_secs(), emitter.waits.inbox(&emitter.link))),
        };
        let emitted = loop {
            match emitter.send_keyed(&draft, keyed).await {
                Err(EmitError::Unknown { .. } | EmitError::Connect { .. })
                    if until.is_some_and(|until| Instant::now() < until) =>
                {
                    sleep(AGAIN).await;
                }
                sent => break sent?,
            }
        };
        Ok(Awaited {
            emitter: emitter.clone(),
            object: draft.object,
            name,
            emitted,
        })
    }
}

impl Awaited {
    /// Returns the name of the event: its idempotency key. With the name, any process can await the
    /// end: [`Emitter::end_of`].
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the object of the event.
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// Returns what Redis has acknowledged.
    pub fn emitted(&self) -> Emitted {
        self.emitted
    }

    /// Waits until the event has ended, at most for this time, and returns how it ended. The event
    /// goes on if nobody waits any more. Each call returns the same end, as long as Redis keeps it.
    ///
    /// # Errors
    /// As [`Emitter::end_of`].
    ///
    /// # Cancellation
    /// If the future is dropped, only the wait ends.
    pub async fn end(&self, within: Duration) -> Result<EventEnd, WaitError> {
        self.emitter
            .wait_for(&self.object, &self.name, within)
            .await
    }
}

impl Emitter {
    /// Emits one event, waits until it has ended, and returns the result that its handler has set
    /// (`cx.result`). Without a result this is `null`. If several handlers had results, this is a
    /// JSON object of all, by handler id. While Redis is away, the emit is repeated until the time is
    /// over, at most for 15 minutes; the event is queued once.
    ///
    /// ```no_run
    /// # async fn run(emitter: &seriatim::Emitter) -> Result<(), Box<dyn std::error::Error>> {
    /// use seriatim::event::Json;
    /// use std::time::Duration;
    ///
    /// let charge = Json::new(r#"{"type":"charge","cents":1200}"#);
    /// let receipt: u64 = emitter.call("user:1", charge, Duration::from_secs(30)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`CallError::Emit`]: the event is not queued, or that is unknown
    /// - [`CallError::Wait`]: the event had not ended in time. It goes on
    /// - [`CallError::Ended`]: the event ended, but was not delivered
    /// - [`CallError::Result`]: the result is none of type `T`
    ///
    /// # Cancellation
    /// If the future is dropped, the event may be queued or not. If it is queued, it goes on.
    pub async fn call<T: DeserializeOwned>(
        &self,
        object: impl AsRef<str>,
        event: impl IntoEvent,
        within: Duration,
    ) -> Result<T, CallError> {
        let began = Instant::now();
        let name = ScheduleKey::unique();
        let emit = self.event(object, event).awaited_as(name.clone());
        let sent = emit.send_until(Some(began + within.min(KEEP / 4))).await;
        let name = name.as_str().to_owned();
        let awaited = match sent {
            Ok(awaited) => awaited,
            Err(error) => return Err(CallError::Emit { name, error }),
        };
        let left = within.saturating_sub(began.elapsed());
        awaited.end(left).await?.into_result(&awaited.object, &name)
    }

    /// Waits until the event with this name has ended, at most for this time, which has at least 100
    /// ms. The name is that of an [awaited](Emit::awaited) emit, also of another process.
    ///
    /// All waits of an emitter share one connection, besides that of its emits. It is closed some
    /// seconds after the last wait. The end of an event
    /// that this emitter has emitted comes at once, any other within 100 ms: the emitter looks ten
    /// times a second. Over a connection that the caller provides, it only looks.
    ///
    /// # Errors
    /// - [`WaitError::Name`], [`WaitError::Key`]: the object's name, or the name, is invalid
    /// - [`WaitError::TimedOut`]: the event has not ended in this time, or its end is forgotten, or
    ///   no emit with this name was awaited
    /// - [`WaitError::Refused`]: Redis refuses to tell the end
    ///
    /// # Cancellation
    /// If the future is dropped, only the wait ends.
    pub async fn end_of(
        &self,
        object: impl AsRef<str>,
        name: impl Into<String>,
        within: Duration,
    ) -> Result<EventEnd, WaitError> {
        let object = self.keys.object(object.as_ref())?;
        self.wait_for(&object, &ScheduleKey::new(name)?, within)
            .await
    }

    async fn wait_for(
        &self,
        object: &ObjectName,
        name: &ScheduleKey,
        within: Duration,
    ) -> Result<EventEnd, WaitError> {
        let key = self.keys.event_end(&name.member(object.as_str()));
        let found = self.waits.wait(&self.link, key, within).await?;
        found.map_err(|unreachable| WaitError::TimedOut {
            object: object.clone(),
            name: name.as_str().to_owned(),
            within,
            unreachable,
        })
    }
}
