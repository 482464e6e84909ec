//! Emits that are a script: emits with an idempotency key, and emits of an object with limits.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep};

use super::draft::Draft;
use super::error::{EmitError, Failed, Full, script_failed};
use super::limits::Limit;
use super::{Emit, Emitted, Emitter};
use crate::event::{IntoEvent, ObjectName, ScheduleKey};
use crate::wire::{EmitReply, EmitWith, ScriptedEmit};

/// Default window: the time for which Redis keeps an idempotency key.
pub const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest and the longest window.
const WINDOW_MIN: Duration = Duration::from_secs(60);
const WINDOW_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Maximum number of times that an emit with an idempotency key is sent while its outcome is
/// unknown.
const TRIES: usize = 4;
/// Maximum number of events of an emit with an idempotency key, or of an object with limits. It is
/// bounded because Redis runs no other command while the script queues the events.
pub const SCRIPT_EVENTS_MAX: usize = 1024;
/// Maximum number of bytes, 1 MiB, of the events and the data of an emit with an idempotency key,
/// or of an object with limits.
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;
/// The wait before the second try. Each further wait is twice as long.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// An emit with an idempotency key, under construction. Made by [`Emit::idempotency_key`].
#[derive(Debug)]
#[must_use = "nothing is emitted before send() is awaited"]
pub struct IdempotentEmit<'a> {
    pub(super) emit: Emit<'a>,
    pub(super) key: Result<ScheduleKey, EmitError>,
    pub(super) window: Duration,
}

/// The idempotency key of an emit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyed<'a> {
    pub(super) key: &'a str,
    pub(super) window: Duration,
    /// The seconds for which the end of the event is kept, and the inbox where it is told, if its
    /// producer awaits it.
    pub(super) awaited: Option<(u64, &'a str)>,
}

impl<'a> Emit<'a> {
    /// Gives the emit an idempotency key, which belongs to its object: 1 to 256 bytes of UTF-8
    /// without control characters. If the same emit is repeated within the window, it is not queued
    /// again. This also holds if another process repeats it, after a lost reply, and after a
    /// restart of Redis. If another emit uses this key for the object, it fails with
    /// [`EmitError::KeyReused`].
    ///
    /// An emit with an idempotency key is one script, so it cannot be part of a transaction of the
    /// caller. Until its window is over, a key costs Redis about 210 bytes, and twice the bytes of
    /// object name and key.
    ///
    /// ```no_run
    /// # async fn run(emitter: &seriatim::Emitter) -> Result<(), seriatim::EmitError> {
    /// use seriatim::event::Json;
    ///
    /// let emit = emitter.event("user:1", Json::new(r#"{"type":"paid","amount":20}"#)).idempotency_key("payment 4711");
    /// if emit.send().await?.repeated {
    ///     println!("it was queued before");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn idempotency_key(self, key: impl Into<String>) -> IdempotentEmit<'a> {
        IdempotentEmit {
            emit: self,
            key: ScheduleKey::new(key).map_err(EmitError::from),
            window: WINDOW,
        }
    }
}

impl IdempotentEmit<'_> {
    /// Adds a subevent, as [`Emit::sub`].
    #[allow(clippy::should_implement_trait)] // It is the word for it, and nothing is subtracted.
    pub fn sub(mut self, event: impl IntoEvent) -> Self {
        self.emit = self.emit.sub(event);
        self
    }

    /// Sets the object's state, as [`Emit::data`]. The data is part of the emit: the same events
    /// with other data are another emit.
    pub fn data(mut self, data: impl IntoEvent) -> Self {
        self.emit = self.emit.data(data);
        self
    }

    /// Sets the window: the time for which Redis keeps the key, by Redis' clock. The window has 1
    /// minute to 366 days; other times are cut to this range. Default: 24 hours. Repeating the emit
    /// does not prolong the window.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window.clamp(WINDOW_MIN, WINDOW_MAX);
        self
    }

    /// Sends the emit. If its outcome is unknown, sends it again, up to three times. The repeats
    /// take about a second, and the timeouts.
    ///
    /// # Errors
    /// As [`Emit::send`], and [`EmitError::KeyReused`] and [`EmitError::Key`]. After
    /// [`EmitError::Unknown`] it is safe to send the same emit with the same key again.
    ///
    /// # Cancellation
    /// As with [`Emit::send`]. It is safe to send the same emit with the same key again.
    pub async fn send(self) -> Result<Emitted, EmitError> {
        let (emitter, draft, key) = (self.emit.emitter, self.emit.draft?, self.key?);
        let keyed = Keyed {
            key: key.as_str(),
            window: self.window,
            awaited: None,
        };
        emitter.send_keyed(&draft, keyed).await
    }
}

impl Draft {
    /// Returns an error if the emit is too large for a script.
    pub(super) fn fits_a_script(&self) -> Result<(), EmitError> {
        let bytes = self.bytes + self.data.as_ref().map_or(0, |(_, data)| data.len());
        if self.events <= SCRIPT_EVENTS_MAX && bytes <= SCRIPT_BYTES_MAX {
            return Ok(());
        }
        Err(EmitError::TooLarge {
            object: self.object.clone(),
            events: self.events,
            bytes,
        })
    }
}

impl Emitter {
    /// Sends an emit with an idempotency key. If its outcome is unknown, sends it again.
    pub(super) async fn send_keyed(
        &self,
        draft: &Draft,
        keyed: Keyed<'_>,
    ) -> Result<Emitted, EmitError> {
        draft.fits_a_script()?;
        let (known, looks) = self.limits().await;
        let limit = known.of(draft.object.as_str()).unwrap_or_default();
        let sending = async {
            let (mut wait, mut tries, began) = (TRY_AGAIN, 1, Instant::now());
            let mut unknown = None;
            loop {
                match self.send_script(draft, Some(keyed), limit).await {
                    Err(error) if error.is_unknown() => unknown = Some(error),
                    Ok(emitted) => return Ok(emitted),
                    Err(error @ EmitError::KeyReused { .. }) => return Err(error),
                    // This try had no effect, but an earlier try may have had one. So the earlier,
                    // unknown outcome counts.
                    Err(error) => unknown = Some(unknown.ok_or(error)?),
                }
                // A repeat is safe only if the key of the first try is still stored. So tries end
                // long before the window is over.
                let is_over = tries >= TRIES || began.elapsed() > keyed.window / 4;
                if let Some(error) = unknown.take_if(|_| is_over) {
                    return Err(error);
                }
                sleep(wait).await;
                (wait, tries) = (wait * 2, tries + 1);
            }
        };
        self.looking(looks, sending).await
    }

    /// Sends an emit by script, once.
    pub(super) async fn send_script(
        &self,
        draft: &Draft,
        keyed: Option<Keyed<'_>>,
        limit: Limit,
    ) -> Result<Emitted, EmitError> {
        let with = match (keyed.and_then(|keyed| keyed.awaited), &draft.data) {
            (Some((seconds, inbox)), _) => EmitWith::Await { seconds, inbox },
            (None, Some((_, data))) => EmitWith::Data(data),
            (None, None) => EmitWith::Nothing,
        };
        for with_text in [false, true] {
            let mut pipe = redis::pipe();
            pipe.atomic()
                .add_command(self.script_of(draft, keyed, limit, with, with_text));
            let replies = self
                .link
                .transact(&pipe)
                .await
                .map_err(|failed| failed.about(&draft.object))?;
            let answer = replies.results.first().unwrap_or(&Value::Nil);
            if let Some(done) = read(
                &draft.object,
                keyed.map(|keyed| keyed.key),
                draft.events as u64,
                answer,
            )? {
                replies.check(&draft.object)?;
                if done.repeated && self.link.waits() {
                    self.mark_again(&draft.object).await?;
                }
                return Ok(Emitted {
                    events: draft.events,
                    queued: done.queued,
                    repeated: done.repeated,
                });
            }
        }
        Err(Failed::no_reply().about(&draft.object))
    }

    /// Waits until replicas have an emit that was done before. A wait covers only the writes of its
    /// own connection, and a repeated emit writes nothing. So this pushes a marker, which does no harm.
    async fn mark_again(&self, object: &ObjectName) -> Result<(), EmitError> {
        let mut pipe = redis::pipe();
        let mut mark = self.mark();
        mark.arg(object.as_str());
        pipe.atomic().add_command(mark);
        match self.link.transact(&pipe).await {
            Ok(replies) => replies.check(object),
            Err(failed) => Err(failed.about(object)),
        }
    }

    /// Returns the script call that makes this emit.
    pub(super) fn script_of(
        &self,
        draft: &Draft,
        keyed: Option<Keyed<'_>>,
        limit: Limit,
        with: EmitWith<'_>,
        with_text: bool,
    ) -> Cmd {
        let Limit {
            queued_max,
            markers_max,
        } = limit;
        let key = keyed.map(|Keyed { key, window, .. }| {
            (key, u64::try_from(window.as_millis()).unwrap_or(u64::MAX))
        });
        let mut cmd = ScriptedEmit {
            object: draft.object.as_str(),
            key,
            queued_max,
            markers_max,
            with,
        }
        .begin(&self.keys, with_text);
        for event in draft.push.args_iter().skip(PUSH_ARGS) {
            if let redis::Arg::Simple(event) = event {
                cmd.arg(event);
            }
        }
        cmd
    }
}

/// Number of words of LPUSH before the first event.
const PUSH_ARGS: usize = 2;

/// The result of an emit that was sent as a script.
pub(super) struct Done {
    /// Number of events queued for the object.
    pub(super) queued: u64,
    /// Whether the same emit was done before.
    pub(super) repeated: bool,
    /// Present if each event is an emit of its own and not all events fit: the number of events
    /// that fit, and the error of the next event.
    pub(super) part: Option<(u64, EmitError)>,
}

/// Reads the reply of the script to an emit of `events` events. Returns `None` if the server does
/// not know the script. Then nothing has happened.
pub(super) fn read(
    object: &ObjectName,
    key: Option<&str>,
    events: u64,
    answer: &Value,
) -> Result<Option<Done>, EmitError> {
    let full = |full: Full| EmitError::Full {
        object: object.clone(),
        full,
    };
    let done = |queued: u64, repeated: bool| {
        Ok(Some(Done {
            queued,
            repeated,
            part: None,
        }))
    };
    match EmitReply::read(answer).map_err(|error| script_failed(object, error))? {
        EmitReply::Emitted(queued) => done(queued, false),
        EmitReply::Repeated(queued) => done(queued, true),
        EmitReply::Part(queued, limit, some) => {
            let error = full(Full::Queue {
                queued,
                events: events.saturating_sub(some),
                limit,
            });
            Ok(Some(Done {
                queued,
                repeated: false,
                part: Some((some, error)),
            }))
        }
        EmitReply::Differs => Err(EmitError::KeyReused {
            object: object.clone(),
            key: key.unwrap_or_default().to_owned(),
        }),
        EmitReply::QueueFull(queued, limit) => Err(full(Full::Queue {
            queued,
            events,
            limit,
        })),
        EmitReply::MarkersFull(markers, limit) => Err(full(Full::Markers { markers, limit })),
        EmitReply::Unknown => Ok(None),
    }
}
