//! Emits many events at once: a few large transactions in place of many small ones.
//!
//! Events are collected in chunks. A chunk is one transaction with one LPUSH per object and one
//! LPUSH of markers, one marker per object. Only one chunk is in flight at a time. If an event
//! fails, the later events of its object must not be sent, so the next chunk waits for the reply.
//! It is already collected meanwhile. So memory is bounded by two chunks and the list of failed
//! objects, however long the iterator is.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use redis::{Cmd, Pipeline, Value};

use super::Emitter;
use super::draft::Draft;
use super::error::{EmitError, Failed, Replies};
use super::idempotent::{Done, read};
use super::limits::Known;
use crate::event::{IntoEvent, ObjectName};
use crate::wire::EmitWith;

/// Default number of events after which [`Emitter::emit_many`] sends a chunk.
pub const CHUNK_EVENTS_MAX: usize = 1024;
/// Default size, in bytes of names and events, after which [`Emitter::emit_many`] sends a chunk: 1
/// MiB.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of objects with limits in a chunk.
const SCRIPTS_PER_CHUNK: usize = 128;

/// The result of [`Emitter::emit_many`] if all events were acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmittedMany {
    /// Number of queued events. These are all events of the iterator.
    pub events: u64,
    /// Number of transactions.
    pub chunks: u64,
}

/// The error of [`Emitter::emit_many`] if some events were not acknowledged. Positions count the
/// iterator's items from 0.
#[derive(Debug)]
#[non_exhaustive]
pub struct EmitManyError {
    /// Number of acknowledged events.
    pub acknowledged: u64,
    /// The objects with unacknowledged events, by the position of their first such event. All
    /// events of the object before that position are acknowledged. Events after that position were
    /// not sent, except those in the same transaction. If an object is not listed, all its events
    /// up to [`stopped`](Self::stopped) are acknowledged.
    pub failed: Vec<ObjectFailed>,
    /// Position at which the whole call stopped, if an error concerned all objects. Neither the
    /// event at this position nor any later event was sent. The iterator may have been read up to
    /// one chunk further.
    pub stopped: Option<u64>,
}

/// The failure of one object in [`Emitter::emit_many`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ObjectFailed {
    /// Name of the object, as given.
    pub object: String,
    /// Position of the first unacknowledged event of this object.
    pub first: u64,
    /// Error of the event at `first`, and of all other events of the object in its transaction.
    pub error: EmitError,
}

impl EmitManyError {
    /// Returns whether the outcome is unknown for at least one event.
    pub fn is_unknown(&self) -> bool {
        self.failed.iter().any(|failed| failed.error.is_unknown())
    }
}

impl fmt::Display for EmitManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objects, acknowledged) = (self.failed.len(), self.acknowledged);
        write!(
            f,
            "{acknowledged} events are acknowledged, events of {objects} objects are not"
        )?;
        if let Some(stopped) = self.stopped {
            write!(f, ", nothing was sent from position {stopped} on")?;
        }
        match self.failed.first() {
            Some(first) => write!(
                f,
                "; the first, at position {}: {}",
                first.first, first.error
            ),
            None => Ok(()),
        }
    }
}

impl std::error::Error for EmitManyError {}

impl Emitter {
    /// Emits many events, each for its given object, in transactions of up to [1024 events or 1
    /// MiB](Emitter::with_chunk).
    ///
    /// The events of an object keep the iterator's order. Each transaction takes effect as a whole;
    /// the entire call does not. A refused event, or an `OBJ:events` key that is not a list, stops
    /// that object only: its later events are not sent. An error that concerns all objects stops
    /// the call, e.g. a lost connection, full memory, or an unknown outcome.
    ///
    /// The iterator is read while a transaction is in flight, so it should not block for long.
    ///
    /// # Errors
    ///
    /// [`EmitManyError`] if any event is not acknowledged. It names each failed object, the
    /// object's first unacknowledged event, and the error.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction in flight takes effect or not. All earlier
    /// transactions have taken effect. No later transaction was sent.
    pub async fn emit_many<I, O, E>(&self, events: I) -> Result<EmittedMany, EmitManyError>
    where
        I: IntoIterator<Item = (O, E)>,
        O: AsRef<str>,
        E: IntoEvent,
    {
        let mut events = events.into_iter();
        let mut progress = Progress {
            emitter: self,
            position: 0,
            acknowledged: 0,
            chunks: 0,
            failed: HashMap::new(),
            stopped: None,
        };
        self.limits().await;
        let mut chunk = progress.gather(&mut events);
        loop {
            progress.drop_failed(&mut chunk);
            let (known, looks) = self.limits().await;
            let pipe = chunk.take_pipeline(self, &known);
            let mut sending = pin!(self.looking(looks, async {
                if pipe.is_empty() {
                    let results = Vec::new();
                    Ok(Replies {
                        results,
                        too_few: None,
                    })
                } else {
                    self.link.transact(&pipe).await
                }
            }));
            // After one poll, the task of the connection has the transaction. So the next chunk can
            // be collected meanwhile.
            let early = poll_fn(|cx| match sending.as_mut().poll(cx) {
                Poll::Ready(answers) => Poll::Ready(Some(answers)),
                Poll::Pending => Poll::Ready(None),
            });
            let early = early.await;
            let next = if chunk.last {
                None
            } else {
                Some(progress.gather(&mut events))
            };
            let answers = match early {
                Some(answers) => answers,
                None => sending.await,
            };
            progress.settle(chunk, answers);
            match next {
                Some(next) if progress.stopped.is_none() => chunk = next,
                _ => return progress.answer(),
            }
        }
    }
}

/// One transaction under construction.
struct Chunk {
    groups: Vec<Group>,
    by_object: HashMap<ObjectName, usize>,
    /// Number of objects with limits in this chunk. Their emits are scripts, which take longer.
    scripts: usize,
    /// Position just after the last event of this chunk.
    end: u64,
    /// Whether the iterator has no events after this chunk.
    last: bool,
}

/// The events of one object in one chunk.
struct Group {
    object: ObjectName,
    push: Cmd,
    first: u64,
    /// Positions of these events in the iterator.
    positions: Vec<u64>,
    /// Whether the object has limits. If so, its events are sent by script.
    by_script: bool,
}

impl Group {
    /// Returns the number of events in this group.
    fn events(&self) -> u64 {
        self.positions.len() as u64
    }
}

impl Chunk {
    /// Takes the commands out of the groups, as one transaction. Empty if there is nothing to send.
    fn take_pipeline(&mut self, emitter: &Emitter, known: &Known) -> Pipeline {
        let mut pipe = Pipeline::with_capacity(self.groups.len() + 1);
        if self.groups.is_empty() {
            return pipe;
        }
        pipe.atomic();
        let (mut mark, mut has_text, mut has_marks) = (emitter.mark(), false, false);
        for group in &mut self.groups {
            let push = std::mem::take(&mut group.push);
            let limit = known.of(group.object.as_str());
            group.by_script = limit.is_some();
            if let Some(limit) = limit {
                let draft = Draft {
                    object: group.object.clone(),
                    push,
                    events: 0,
                    bytes: 0,
                    data: None,
                };
                // The first script command has the text of the script. So it loads the script, and
                // the other commands can name it by its hash.
                pipe.add_command(emitter.script_of(
                    &draft,
                    None,
                    limit,
                    EmitWith::Parts,
                    !std::mem::replace(&mut has_text, true),
                ));
            } else {
                pipe.add_command(push);
                mark.arg(group.object.as_str());
                has_marks = true;
            }
        }
        if has_marks {
            pipe.add_command(mark);
        }
        pipe
    }
}

/// The progress of one [`Emitter::emit_many`].
struct Progress<'a> {
    emitter: &'a Emitter,
    position: u64,
    acknowledged: u64,
    chunks: u64,
    failed: HashMap<String, (u64, EmitError)>,
    stopped: Option<u64>,
}

impl Progress<'_> {
    /// Takes events from the iterator until a chunk is full. Refused events count too, so that one
    /// call of this function reads a bounded number of events.
    fn gather<O: AsRef<str>, E: IntoEvent>(
        &mut self,
        events: &mut impl Iterator<Item = (O, E)>,
    ) -> Chunk {
        let mut chunk = Chunk {
            groups: Vec::new(),
            by_object: HashMap::new(),
            scripts: 0,
            end: self.position,
            last: false,
        };
        let mut bytes = 0;
        let known = self.emitter.limits.known();
        for _ in 0..self.emitter.chunk_events_max {
            let Some((object, event)) = events.next() else {
                chunk.last = true;
                break;
            };
            let at = self.position;
            self.position += 1;
            let object = object.as_ref();
            if !self.failed.is_empty() && self.failed.contains_key(object) {
                continue;
            }
            match self.add(&mut chunk, &known, at, object, event) {
                Ok(added) => bytes += added,
                Err(error) => self.fail(object, at, error),
            }
            if bytes >= self.emitter.chunk_bytes_max || chunk.scripts >= SCRIPTS_PER_CHUNK {
                break;
            }
        }
        chunk.end = self.position;
        chunk
    }

    /// Adds one event to the chunk. Returns the number of bytes that it adds.
    fn add(
        &self,
        chunk: &mut Chunk,
        known: &Known,
        at: u64,
        object: &str,
        event: impl IntoEvent,
    ) -> Result<usize, EmitError> {
        let index = chunk.by_object.get(object).copied();
        // The name is checked before the event, as in a single emit.
        let name = if index.is_none() {
            Some(self.emitter.keys.object(object)?)
        } else {
            None
        };
        let event = event.into_event(self.emitter.event_bytes_max)?;
        let group = match (index, name) {
            (None, Some(name)) => {
                let push = self.emitter.push(&name);
                chunk.scripts += usize::from(known.of(object).is_some());
                chunk.by_object.insert(name.clone(), chunk.groups.len());
                chunk.groups.push(Group {
                    object: name,
                    push,
                    first: at,
                    positions: Vec::new(),
                    by_script: false,
                });
                chunk.groups.last_mut()
            }
            (index, _) => index.and_then(|index| chunk.groups.get_mut(index)),
        };
        if let Some(group) = group {
            group.push.arg(&event[..]);
            group.positions.push(at);
        }
        Ok(object.len() + event.len())
    }

    /// Records that an object failed. If an object has two errors, the one at the earlier position
    /// counts.
    fn fail(&mut self, object: &str, first: u64, error: EmitError) {
        match self.failed.get(object) {
            Some((earlier, _)) if *earlier <= first => {}
            _ => {
                self.failed.insert(object.to_owned(), (first, error));
            }
        }
    }

    /// Removes from this chunk the objects that failed in the previous chunk. If a refused event of
    /// this chunk caused the failure, the object's earlier events stay in this chunk.
    fn drop_failed(&self, chunk: &mut Chunk) {
        if !self.failed.is_empty() {
            chunk.groups.retain(|group| {
                self.failed
                    .get(group.object.as_str())
                    .is_none_or(|(first, _)| group.first < *first)
            });
        }
    }

    /// Records the outcome of a chunk from the replies to it.
    fn settle(&mut self, chunk: Chunk, answers: Result<Replies, Failed>) {
        if chunk.groups.is_empty() {
            return;
        }
        let replies = match answers {
            Ok(replies) => replies,
            Err(failed) => {
                for group in &chunk.groups {
                    self.fail(
                        group.object.as_str(),
                        group.first,
                        failed.about(&group.object),
                    );
                }
                self.stop(chunk.end);
                return;
            }
        };
        self.chunks += 1;
        let emitter = self.emitter;
        let has_marks = chunk.groups.iter().any(|group| !group.by_script);
        let mark = replies.results.last().unwrap_or(&Value::Nil);
        for (group, answer) in chunk.groups.iter().zip(&replies.results) {
            let object = &group.object;
            if group.by_script {
                let done = read(object, None, group.events(), answer)
                    .and_then(|done| done.ok_or_else(|| Failed::no_reply().about(object)))
                    .and_then(|done| replies.check(object).map(|()| done));
                match done {
                    Ok(Done {
                        part: Some((some, error)),
                        ..
                    }) => {
                        self.acknowledged += some;
                        let next = usize::try_from(some)
                            .ok()
                            .and_then(|some| group.positions.get(some).copied());
                        self.fail(object.as_str(), next.unwrap_or(group.first), error);
                    }
                    Ok(_) => self.acknowledged += group.events(),
                    Err(error) => self.fail(object.as_str(), group.first, error),
                }
                continue;
            }
            let pushed = emitter.pushed(object, answer, || emitter.keys.events(object.as_str()));
            let marked =
                pushed.and_then(|_| emitter.pushed(object, mark, || emitter.markers.to_string()));
            match marked.and_then(|_| replies.check(object)) {
                Ok(_) => self.acknowledged += group.events(),
                Err(error) => self.fail(object.as_str(), group.first, error),
            }
        }
        let lacks_mark = has_marks && !matches!(mark, Value::Int(_));
        if lacks_mark || replies.too_few.is_some() {
            self.stop(chunk.end);
        }
    }

    /// Stops the call at the position `end`. A chunk that was collected ahead may have refused
    /// events. They are after `end`, so they are removed from the failures.
    fn stop(&mut self, end: u64) {
        self.failed.retain(|_, (first, _)| *first < end);
        self.stopped = Some(end);
    }

    fn answer(self) -> Result<EmittedMany, EmitManyError> {
        if self.failed.is_empty() {
            return Ok(EmittedMany {
                events: self.acknowledged,
                chunks: self.chunks,
            });
        }
        let mut failed: Vec<_> = self
            .failed
            .into_iter()
            .map(|(object, (first, error))| ObjectFailed {
                object,
                first,
                error,
            })
            .collect();
        failed.sort_by_key(|failed| failed.first);
        Err(EmitManyError {
            acknowledged: self.acknowledged,
            failed,
            stopped: self.stopped,
        })
    }
}
