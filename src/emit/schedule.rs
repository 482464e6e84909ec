//! Schedules: events that are queued later.
//!
//! A schedule is one plain transaction, as an emit is: `HSET OBJ:events.scheduled KEY EVENT`, `ZADD
//! events.scheduled TIME OBJ\nKEY`. Worker processes push the event when it is due (`promote`). The
//! same two commands for the same key replace event and time; `HDEL` and `ZREM` cancel. This works
//! until a slot takes the event, which `GET OBJ:event.key` shows. After that, the script `cancel`
//! can end the event, but only while the event waits for a retry or an operator.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use redis::{Cmd, Pipeline, Value};

use super::Emitter;
use super::error::{EmitError, Failed, command_failed, script_failed};
use crate::event::{ID_END, IntoEvent, ObjectName, ScheduleKey, check_after, check_due};
use crate::wire::{self, CancelReply};

/// A schedule that is due within this time wakes a worker, because the workers' next look may come
/// later. The local clock may be wrong by almost this time without harm.
const WAKE: Duration = Duration::from_secs(60);
/// The largest time, in ms since the epoch.
const TIME_MAX: u64 = ID_END - 1;

/// When the event of a schedule with a key is queued, the score of the schedule becomes this number
/// minus the time of queueing, in µs.
const QUEUED: f64 = -1e15;

/// The treatment of an existing schedule with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Replace,
    KeepTime,
    KeepFirst,
}

#[derive(Debug, Clone, Copy)]
enum When {
    At(u64),
    After(Duration),
}

/// A schedule under construction: one event of an object, the time at which it is due, and a key.
/// Made by [`Emitter::schedule`].
#[derive(Debug)]
#[must_use = "nothing is scheduled before send() is awaited"]
pub struct Schedule<'a> {
    emitter: &'a Emitter,
    draft: Result<Draft, EmitError>,
    when: When,
    mode: Mode,
}

#[derive(Debug)]
struct Draft {
    object: ObjectName,
    event: Bytes,
    key: Option<ScheduleKey>,
}

/// The effect of a schedule on an existing one with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The object had no schedule with this key.
    New,
    /// The schedule with this key was replaced; with [`keep_time`](Schedule::keep_time), only its
    /// event. The former event will not be delivered, or not again.
    Replaced,
    /// The object has a schedule with this key, and nothing was changed. This result comes only
    /// with [`keep_first`](Schedule::keep_first).
    Kept,
    /// A worker has an event with this key in flight. That event goes on, and this schedule queues
    /// one more event. With [`keep_first`](Schedule::keep_first), the former event may also be
    /// waiting for a retry.
    Running,
}

/// The effect of [`Emitter::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The event was scheduled, or queued, or waited for a retry or an operator. It will not be
    /// delivered, or not again.
    Cancelled,
    /// A worker has the event in flight, and the event goes on. If the key was scheduled again
    /// meanwhile, the new schedule is cancelled.
    Running,
    /// There is no event with this key: it was never scheduled, or it is over.
    NotFound,
}

/// A schedule that Redis has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// The key: the given one, or a new one that begins with `-`.
    pub key: ScheduleKey,
    /// The time at which the event is due by Redis' clock, in ms since 1970. If the schedule keeps
    /// the time of an event that is queued already: the time at which that event was queued.
    pub due_ms: u64,
    /// The effect on an existing schedule with this key.
    pub change: Change,
}

/// The error of [`Emitter::schedule_many`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("{} schedules are acknowledged, the next ones are not: {error}", scheduled.len())]
pub struct ScheduleManyError {
    /// The acknowledged schedules, in the order of the iterator.
    pub scheduled: Vec<Scheduled>,
    /// The error of the first schedule that is not acknowledged. Later schedules of the same
    /// transaction may have failed, too. No later transaction was sent.
    #[source]
    pub error: EmitError,
}

impl Emitter {
    /// Begins a schedule: the event is queued when it is due, and gets its id when a worker takes
    /// it. Without [`at`](Schedule::at) or [`after`](Schedule::after) it is due at once.
    ///
    /// [`Schedule::send`] returns the error of an invalid name or event.
    ///
    /// ```no_run
    /// # async fn run(emitter: &seriatim::Emitter) -> Result<(), seriatim::EmitError> {
    /// use seriatim::event::Json;
    /// use std::time::Duration;
    ///
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// emitter.schedule("user:1", Json::new(r#"{"type":"trial ends"}"#)).after(14 * day).key("trial").send().await?;
    /// // The user has paid.
    /// emitter.cancel("user:1", "trial").await?;
    /// # Ok(()) }
    /// ```
    pub fn schedule(&self, object: impl AsRef<str>, event: impl IntoEvent) -> Schedule<'_> {
        let object = self.keys.object(object.as_ref()).map_err(EmitError::from);
        let event = event
            .into_event(self.event_bytes_max)
            .map_err(EmitError::from);
        let draft = object.and_then(|object| {
            event.map(|event| Draft {
                object,
                event,
                key: None,
            })
        });
        Schedule {
            emitter: self,
            draft,
            when: When::At(0),
            mode: Mode::Replace,
        }
    }

    /// Schedules many events, in transactions of up to [1024 events or 1 MiB](Self::with_chunk).
    /// Each transaction takes effect as a whole; the entire call does not. All times
    /// [`after`](Schedule::after) a duration count from the beginning of the call. Each key whose
    /// event waits for a retry costs one more round trip.
    ///
    /// # Errors
    /// [`ScheduleManyError`] at the first failure. A schedule with a key can be sent again safely.
    ///
    /// # Cancellation
    /// If the future is dropped, the transaction in flight takes effect or not. All earlier
    /// transactions have taken effect. No later transaction was sent.
    pub async fn schedule_many<'a>(
        &self,
        schedules: impl IntoIterator<Item = Schedule<'a>>,
    ) -> Result<Vec<Scheduled>, ScheduleManyError> {
        let (mut scheduled, mut now_ms) = (Vec::new(), None);
        let mut chunk = Chunk::default();
        let mut schedules = schedules.into_iter();
        loop {
            let next = schedules.next();
            let is_last = next.is_none();
            if let Some(schedule) = next {
                match self.ready(schedule, &mut now_ms).await {
                    Ok(ready) => chunk.add(self, ready),
                    // The schedules before the invalid one are sent.
                    Err(invalid) => {
                        let error = self
                            .send_chunk(chunk, &mut scheduled)
                            .await
                            .err()
                            .unwrap_or(invalid);
                        return Err(ScheduleManyError { scheduled, error });
                    }
                }
            }
            let is_full =
                chunk.ready.len() >= self.chunk_events_max || chunk.bytes >= self.chunk_bytes_max;
            if (is_last || is_full)
                && let Err(error) = self
                    .send_chunk(std::mem::take(&mut chunk), &mut scheduled)
                    .await
            {
                return Err(ScheduleManyError { scheduled, error });
            }
            if is_last {
                return Ok(scheduled);
            }
        }
    }

    /// Cancels the event with this key. Works until a worker takes the event, and again while the
    /// event waits for a retry or an operator. Emits of its successful handlers are queued.
    ///
    /// The event of a key that begins with `-` can be cancelled only until it is due.
    ///
    /// # Errors
    /// As [`emit`](Self::emit). For an event that waits for a retry, the user needs the rights of a
    /// script; without them the error is [`EmitError::Refused`]. Calling again is safe.
    ///
    /// # Cancellation
    /// If the future is dropped, the event may be cancelled or not.
    pub async fn cancel(
        &self,
        object: impl AsRef<str>,
        key: impl Into<String>,
    ) -> Result<Cancelled, EmitError> {
        let (object, key) = (self.keys.object(object.as_ref())?, ScheduleKey::new(key)?);
        let (hash, set) = (
            self.keys.events_scheduled_of(object.as_str()),
            self.keys.events_scheduled(),
        );
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.cmd("HDEL").arg(&hash).arg(key.as_str()).ignore();
        pipe.cmd("ZREM")
            .arg(&set)
            .arg(key.member(object.as_str()))
            .ignore();
        if key.is_chosen() {
            pipe.add_command(self.taken(&object)).ignore();
        }
        let replies = self
            .link
            .transact(&pipe)
            .await
            .map_err(|failed| failed.about(&object))?;
        let answers = &replies.results;
        let deleted = number(&object, answers.first(), || hash)?;
        let removed = number(&object, answers.get(1), || set)?;
        replies.check(&object)?;
        let was_there = if deleted + removed > 0 {
            Cancelled::Cancelled
        } else {
            Cancelled::NotFound
        };
        match answers.get(2) {
            Some(taken) if let Some(id) = taken_id(taken, &key) => {
                Ok(match self.cancel_taken(&object, &key, id).await? {
                    CancelReply::Cancelled => Cancelled::Cancelled,
                    CancelReply::Running => Cancelled::Running,
                    CancelReply::Absent | CancelReply::Unknown => was_there,
                })
            }
            _ => Ok(was_there),
        }
    }

    /// Returns the command that reads the key of the event that a slot has taken.
    fn taken(&self, object: &ObjectName) -> Cmd {
        let mut cmd = redis::cmd("GET");
        cmd.arg(self.keys.event_key(object.as_str()));
        cmd
    }

    /// Ends the event with this key and this id if it waits for a retry or an operator.
    async fn cancel_taken(
        &self,
        object: &ObjectName,
        key: &ScheduleKey,
        id: &str,
    ) -> Result<CancelReply, EmitError> {
        for with_text in [false, true] {
            let mut pipe = redis::pipe();
            pipe.atomic().add_command(wire::cancel(
                &self.keys,
                object.as_str().as_bytes(),
                key.as_str(),
                id,
                with_text,
            ));
            let replies = self
                .link
                .transact(&pipe)
                .await
                .map_err(|failed| failed.about(object))?;
            let answer = CancelReply::read(replies.results.first().unwrap_or(&Value::Nil));
            match answer.map_err(|error| script_failed(object, error))? {
                CancelReply::Unknown => {}
                known => return replies.check(object).map(|()| known),
            }
        }
        Err(Failed::no_reply().about(object))
    }

    /// Asks Redis for its time, in ms since the epoch, rounded up.
    async fn redis_ms(&self, object: &ObjectName) -> Result<u64, EmitError> {
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("TIME").ignore();
        let replies = self
            .link
            .transact(&pipe)
            .await
            .map_err(|failed| failed.about(object))?;
        let read = || {
            let (seconds, micros): (u64, u64) =
                redis::from_redis_value(replies.results.into_iter().next()?).ok()?;
            Some(seconds * 1000 + micros.div_ceil(1000))
        };
        read().ok_or_else(|| unexpected(object, "TIME did not return a time"))
    }

    /// Checks a schedule, and computes its time. `now_ms`: the time of Redis, once it is known.
    async fn ready(
        &self,
        schedule: Schedule<'_>,
        now_ms: &mut Option<u64>,
    ) -> Result<Ready, EmitError> {
        let draft = schedule.draft?;
        let (due_ms, wakes) = match schedule.when {
            When::At(ms) => {
                check_due(ms)?;
                (
                    ms,
                    ms < local_ms(SystemTime::now()).saturating_add(millis(WAKE)),
                )
            }
            When::After(time) => {
                check_after(time)?;
                let now = match *now_ms {
                    Some(now) => now,
                    None => *now_ms.insert(self.redis_ms(&draft.object).await?),
                };
                (now.saturating_add(millis(time)), time < WAKE)
            }
        };
        let key = draft.key.unwrap_or_else(ScheduleKey::unique);
        Ok(Ready {
            object: draft.object,
            event: draft.event,
            key,
            due_ms: due_ms.min(TIME_MAX),
            wakes,
            mode: schedule.mode,
        })
    }

    async fn send_chunk(
        &self,
        chunk: Chunk,
        scheduled: &mut Vec<Scheduled>,
    ) -> Result<(), EmitError> {
        let Some(first) = chunk.ready.first() else {
            return Ok(());
        };
        let mut pipe = chunk.pipe;
        if chunk.ready.iter().any(|ready| ready.wakes) {
            pipe.cmd("ZADD")
                .arg(self.keys.events_scheduled_wake())
                .arg(0)
                .arg("wake")
                .ignore();
        }
        let first = first.object.clone();
        let replies = self
            .link
            .transact(&pipe)
            .await
            .map_err(|failed: Failed| failed.about(&first))?;
        let mut answers = replies.results.iter();
        let (begin, mut taken, mut unread) = (scheduled.len(), Vec::new(), Ok(()));
        for ready in chunk.ready {
            let (object, mode) = (ready.object.clone(), ready.mode);
            match ready.read(self, &mut answers) {
                Ok((mut done, Some(_))) if mode == Mode::KeepFirst => {
                    done.change = if done.change == Change::New {
                        Change::Running
                    } else {
                        done.change
                    };
                    scheduled.push(done);
                }
                Ok((done, id)) => {
                    taken.extend(id.map(|id| (scheduled.len(), object, id)));
                    scheduled.push(done);
                }
                Err(error) => {
                    unread = Err(error);
                    break;
                }
            }
        }
        if scheduled.len() > begin
            && let Err(error) = replies.check(&first)
        {
            scheduled.truncate(begin);
            return Err(error);
        }
        // These schedules are stored by now. Former events with their keys may still wait for a
        // retry.
        for (at, object, id) in taken {
            match self.cancel_taken(&object, &scheduled[at].key, &id).await {
                Ok(CancelReply::Running) => scheduled[at].change = Change::Running,
                Ok(CancelReply::Cancelled) => scheduled[at].change = Change::Replaced,
                Ok(CancelReply::Absent | CancelReply::Unknown) => {}
                Err(error) => {
                    // To complete the call, the caller sends the schedules from this one on again.
                    scheduled.truncate(at);
                    return Err(error);
                }
            }
        }
        unread
    }
}

impl Schedule<'_> {
    /// Sets the time at which the event is due, by Redis' clock. A time in the past is due at once. A
    /// time more than [`DUE_MAX`](crate::event::DUE_MAX) from now is an error of [`send`](Self::send).
    pub fn at(mut self, time: SystemTime) -> Self {
        self.when = When::At(local_ms(time));
        self
    }

    /// Makes the event due after this time, counted from now by Redis' clock. The emitter asks
    /// Redis for its time first, so `send` takes a second round trip.
    pub fn after(mut self, time: Duration) -> Self {
        self.when = When::After(time);
        self
    }

    /// Sets the key: 1 to 256 bytes of UTF-8 without control characters. A later schedule of the
    /// object with this key replaces this one, and [`Emitter::cancel`] cancels it. Both work until
    /// a worker takes the event, and while the event waits for a retry. Without a key the schedule
    /// gets a unique key that begins with `-`; then both work only until the event is due.
    ///
    /// An event with a key is the only event of its batch: a worker takes one per object at a time.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        if let Ok(draft) = &mut self.draft {
            match ScheduleKey::new(key) {
                Ok(key) => draft.key = Some(key),
                Err(error) => self.draft = Err(error.into()),
            }
        }
        self
    }

    /// If there is a schedule with this key, replaces only its event and keeps its time: an event
    /// that is queued keeps its place. If a worker has already taken the event, the new event is
    /// due at the time of this schedule.
    pub fn keep_time(mut self) -> Self {
        self.mode = Mode::KeepTime;
        self
    }

    /// If there is a schedule with this key, changes nothing. Once a worker has taken its event,
    /// there is no such schedule any more. The event then goes on, even if it waits for a retry,
    /// and this schedule queues one more event ([`Change::Running`]).
    pub fn keep_first(mut self) -> Self {
        self.mode = Mode::KeepFirst;
        self
    }

    /// Sends the schedule. It is stored in one atomic step. An earlier schedule of the object with
    /// the same key is replaced: its event never comes, unless a worker has taken it. If that event
    /// waits for a retry or an operator, a second step ends it; if it is in flight, it goes on
    /// ([`Change::Running`]).
    ///
    /// # Errors
    /// As [`Emitter::emit`], and [`EmitError::Key`]. After an error of the second step the
    /// new schedule is stored, and the former event may come once more. With a chosen
    /// [`key`](Self::key) and a time [`at`](Self::at), it is safe to send the schedule again after
    /// [`EmitError::Unknown`]. Only if the schedule was due meanwhile, its event may come twice.
    ///
    /// # Cancellation
    /// Dropping the future does not undo a transaction already sent.
    pub async fn send(self) -> Result<Scheduled, EmitError> {
        let emitter = self.emitter;
        let ready = emitter.ready(self, &mut None).await?;
        let object = ready.object.clone();
        let (mut chunk, mut scheduled) = (Chunk::default(), Vec::with_capacity(1));
        chunk.add(emitter, ready);
        emitter.send_chunk(chunk, &mut scheduled).await?;
        scheduled
            .pop()
            .ok_or_else(|| unexpected(&object, "there is no reply to the schedule"))
    }
}

/// A checked schedule, from which its commands can be made.
#[derive(Debug)]
struct Ready {
    object: ObjectName,
    event: Bytes,
    key: ScheduleKey,
    due_ms: u64,
    /// Whether the schedule must wake a worker, because the workers' next look may be too late.
    wakes: bool,
    mode: Mode,
}

/// The schedules of one transaction.
#[derive(Default)]
struct Chunk {
    pipe: Pipeline,
    ready: Vec<Ready>,
    bytes: usize,
}

impl Chunk {
    fn add(&mut self, emitter: &Emitter, ready: Ready) {
        let (hash, set) = (
            emitter.keys.events_scheduled_of(ready.object.as_str()),
            emitter.keys.events_scheduled(),
        );
        let member = ready.key.member(ready.object.as_str());
        self.pipe.atomic();
        let put = if ready.mode == Mode::KeepFirst {
            "HSETNX"
        } else {
            "HSET"
        };
        self.pipe
            .cmd(put)
            .arg(&hash)
            .arg(ready.key.as_str())
            .arg(&ready.event[..])
            .ignore();
        let add = self.pipe.cmd("ZADD").arg(&set);
        if ready.mode != Mode::Replace {
            add.arg("NX");
        }
        add.arg(ready.due_ms).arg(&member).ignore();
        if ready.mode != Mode::Replace {
            self.pipe.cmd("ZSCORE").arg(&set).arg(&member).ignore();
        }
        if ready.key.is_chosen() {
            self.pipe.add_command(emitter.taken(&ready.object)).ignore();
        }
        self.bytes += ready.event.len() + member.len();
        self.ready.push(ready);
    }
}

impl Ready {
    /// Reads the replies to the commands of this schedule. If a slot has taken an event with the
    /// same key, also returns the id of that event.
    fn read<'a>(
        self,
        emitter: &Emitter,
        answers: &mut impl Iterator<Item = &'a Value>,
    ) -> Result<(Scheduled, Option<String>), EmitError> {
        let object = &self.object;
        let (put, added) = (answers.next(), answers.next());
        let score = (self.mode != Mode::Replace)
            .then(|| answers.next())
            .flatten();
        let taken = self.key.is_chosen().then(|| answers.next()).flatten();
        let id = taken
            .and_then(|taken| taken_id(taken, &self.key))
            .map(str::to_owned);
        let is_new = number(object, put, || {
            emitter.keys.events_scheduled_of(object.as_str())
        })? > 0;
        number(object, added, || emitter.keys.events_scheduled())?;
        let due_ms = match score {
            None => self.due_ms,
            Some(score) => {
                let due: Result<f64, _> = redis::from_redis_value(score.clone());
                let due = due.map_err(|_| unexpected(object, "ZSCORE did not return a time"))?;
                if due <= QUEUED {
                    ((QUEUED - due) / 1000.0) as u64
                } else {
                    due.max(0.0) as u64
                }
            }
        };
        let change = match self.mode {
            _ if is_new => Change::New,
            Mode::KeepFirst => Change::Kept,
            Mode::Replace | Mode::KeepTime => Change::Replaced,
        };
        Ok((
            Scheduled {
                key: self.key,
                due_ms,
                change,
            },
            id,
        ))
    }
}

/// Returns the id in the value of `OBJ:event.key`, `ID KEY`, if it names this key.
fn taken_id<'a>(value: &'a Value, key: &ScheduleKey) -> Option<&'a str> {
    let Value::BulkString(text) = value else {
        return None;
    };
    let (id, taken) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    (taken == key.as_str()).then_some(id)
}

/// Reads the reply to a command that returns a number.
fn number(
    object: &ObjectName,
    answer: Option<&Value>,
    key: impl FnOnce() -> String,
) -> Result<i64, EmitError> {
    match answer {
        Some(Value::Int(number)) => Ok(*number),
        Some(Value::ServerError(error)) => Err(command_failed(object, error, key)),
        _ => Err(unexpected(object, "a command did not return a number")),
    }
}

fn unexpected(object: &ObjectName, what: &'static str) -> EmitError {
    EmitError::Unknown {
        object: object.clone(),
        source: (redis::ErrorKind::UnexpectedReturnType, what).into(),
    }
}

/// Returns a duration in ms, rounded up.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(TIME_MAX)
}

/// Returns a time in ms since the epoch, rounded up, so that no event is early.
fn local_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(TIME_MAX)
}
