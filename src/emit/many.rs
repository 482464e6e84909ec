//! Many events at once: a few large transactions in place of many small ones.
//!
//! Events are gathered into chunks, and a chunk is one transaction with one LPUSH per object and
//! one LPUSH of markers, one marker per object. One chunk is in flight at a time, because what
//! follows an event that failed must not be sent; the next one is gathered meanwhile. So memory is
//! bounded by two chunks and the list of failed objects, however long the iterator is.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use redis::{Cmd, Pipeline, Value};

use super::Emitter;
use super::error::{EmitError, Failed};
use crate::event::{IntoEvent, ObjectName};

/// A chunk of [`Emitter::emit_many`] is sent once it holds this many events, unless set otherwise.
pub const CHUNK_EVENTS_MAX: usize = 1024;
/// A chunk of [`Emitter::emit_many`] is sent once its names and events have this many bytes, unless
/// set otherwise: 1 MiB.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// All events were acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmittedMany {
    /// How many events were queued: all that the iterator had.
    pub events: u64,
    /// In how many transactions.
    pub chunks: u64,
}

/// Some events were not acknowledged. Positions count the iterator's items from 0.
#[derive(Debug)]
#[non_exhaustive]
pub struct EmitManyError {
    /// How many events were acknowledged.
    pub acknowledged: u64,
    /// The objects that have events without acknowledgement, by position of the first such event.
    /// All their events before that position are acknowledged, none after it was sent unless it was
    /// in the same transaction. An object that is not listed has all its events acknowledged, up to
    /// [`stopped`](Self::stopped).
    pub failed: Vec<ObjectFailed>,
    /// Where the whole came to an end early, because the error was not one of a single object:
    /// nothing at this position or after it was sent. The iterator itself may have been read
    /// further, by up to one chunk.
    pub stopped: Option<u64>,
}

/// What became of an object's events in [`Emitter::emit_many`], where not all were acknowledged.
#[derive(Debug)]
#[non_exhaustive]
pub struct ObjectFailed {
    /// The object's name, as it was given.
    pub object: String,
    /// The position of its first event without acknowledgement.
    pub first: u64,
    /// What became of that event, and of all others of the object in the same transaction.
    pub error: EmitError,
}

impl EmitManyError {
    /// Whether it is open for some event whether it was queued.
    pub fn is_unknown(&self) -> bool {
        self.failed.iter().any(|failed| failed.error.is_unknown())
    }
}

impl fmt::Display for EmitManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objects, acknowledged) = (self.failed.len(), self.acknowledged);
        write!(f, "{acknowledged} events are acknowledged, events of {objects} objects are not")?;
        if let Some(stopped) = self.stopped {
            write!(f, ", nothing was sent from position {stopped} on")?;
        }
        match self.failed.first() {
            Some(first) => write!(f, "; the first, at position {}: {}", first.first, first.error),
            None => Ok(()),
        }
    }
}

impl std::error::Error for EmitManyError {}

impl Emitter {
    /// Emits many events, each for the object it comes with, in transactions of up to [1024 events
    /// or 1 MiB](Emitter::with_chunk).
    ///
    /// The events of an object keep the iterator's order. Each transaction takes effect as a whole,
    /// the entirety does not. An event that is refused, or a list of events that is none, fails its
    /// object: its later events are not sent, all other objects go on. An error that concerns all
    /// (the connection, memory, an unknown outcome) ends the whole.
    ///
    /// The iterator is read while a transaction is in flight, without awaiting anything: it should
    /// not block for long.
    ///
    /// # Errors
    ///
    /// If any event is not acknowledged: [`EmitManyError`] says, per object, from which event on,
    /// and why.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the transaction in flight takes effect or not, all before it have,
    /// nothing after it was sent.
    pub async fn emit_many<I, O, E>(&self, events: I) -> Result<EmittedMany, EmitManyError>
    where
        I: IntoIterator<Item = (O, E)>,
        O: AsRef<str>,
        E: IntoEvent,
    {
        let mut events = events.into_iter();
        let mut progress =
            Progress { emitter: self, position: 0, acknowledged: 0, chunks: 0, failed: HashMap::new(), stopped: None };
        let mut chunk = progress.gather(&mut events);
        loop {
            progress.drop_failed(&mut chunk);
            let pipe = chunk.take_pipeline(self);
            let mut sending = pin!(async { if pipe.is_empty() { Ok(Vec::new()) } else { self.link.transact(&pipe).await } });
            // Polled once, the transaction is on its way to the connection's task while the next
            // chunk is gathered here.
            let early = poll_fn(|cx| match sending.as_mut().poll(cx) {
                Poll::Ready(answers) => Poll::Ready(Some(answers)),
                Poll::Pending => Poll::Ready(None),
            });
            let early = early.await;
            let next = if chunk.last { None } else { Some(progress.gather(&mut events)) };
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

/// One transaction being gathered.
struct Chunk {
    groups: Vec<Group>,
    by_object: HashMap<ObjectName, usize>,
    /// The position just after its last event.
    end: u64,
    /// Whether the iterator ended with it.
    last: bool,
}

/// The events of one object in one chunk.
struct Group {
    object: ObjectName,
    push: Cmd,
    first: u64,
    events: u64,
}

impl Chunk {
    /// The transaction, moved out of the groups; empty if there is nothing to send.
    fn take_pipeline(&mut self, emitter: &Emitter) -> Pipeline {
        let mut pipe = Pipeline::with_capacity(self.groups.len() + 1);
        if self.groups.is_empty() {
            return pipe;
        }
        pipe.atomic();
        let mut mark = emitter.mark();
        for group in &mut self.groups {
            pipe.add_command(std::mem::take(&mut group.push));
            mark.arg(group.object.as_str());
        }
        pipe.add_command(mark);
        pipe
    }
}

/// How far an [`Emitter::emit_many`] has come.
struct Progress<'a> {
    emitter: &'a Emitter,
    position: u64,
    acknowledged: u64,
    chunks: u64,
    failed: HashMap<String, (u64, EmitError)>,
    stopped: Option<u64>,
}

impl Progress<'_> {
    /// Takes events from the iterator until a chunk is full. Refused ones count, so that one step
    /// stays bounded.
    fn gather<O: AsRef<str>, E: IntoEvent>(&mut self, events: &mut impl Iterator<Item = (O, E)>) -> Chunk {
        let mut chunk = Chunk { groups: Vec::new(), by_object: HashMap::new(), end: self.position, last: false };
        let mut bytes = 0;
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
            match self.add(&mut chunk, at, object, event) {
                Ok(added) => bytes += added,
                Err(error) => self.fail(object, at, error),
            }
            if bytes >= self.emitter.chunk_bytes_max {
                break;
            }
        }
        chunk.end = self.position;
        chunk
    }

    /// Puts one event into the chunk and answers how many bytes that adds.
    fn add(&self, chunk: &mut Chunk, at: u64, object: &str, event: impl IntoEvent) -> Result<usize, EmitError> {
        let known = chunk.by_object.get(object).copied();
        // The name is checked first, as in a single emit.
        let name = if known.is_none() { Some(self.emitter.keys.object(object)?) } else { None };
        let event = event.into_event(self.emitter.event_bytes_max)?;
        let group = match (known, name) {
            (None, Some(name)) => {
                let push = self.emitter.push(&name);
                chunk.by_object.insert(name.clone(), chunk.groups.len());
                chunk.groups.push(Group { object: name, push, first: at, events: 0 });
                chunk.groups.last_mut()
            }
            (known, _) => known.and_then(|index| chunk.groups.get_mut(index)),
        };
        if let Some(group) = group {
            group.push.arg(&event[..]);
            group.events += 1;
        }
        Ok(object.len() + event.len())
    }

    /// Notes that an object failed; of two errors of an object the earlier one counts.
    fn fail(&mut self, object: &str, first: u64, error: EmitError) {
        match self.failed.get(object) {
            Some((earlier, _)) if *earlier <= first => {}
            _ => {
                self.failed.insert(object.to_owned(), (first, error));
            }
        }
    }

    /// Takes out of a chunk, gathered while another was in flight, the objects that failed there.
    /// Events before a refused one of the same chunk stay.
    fn drop_failed(&self, chunk: &mut Chunk) {
        if !self.failed.is_empty() {
            chunk.groups.retain(|group| self.failed.get(group.object.as_str()).is_none_or(|(first, _)| group.first < *first));
        }
    }

    /// Notes what became of a chunk.
    fn settle(&mut self, chunk: Chunk, answers: Result<Vec<Value>, Failed>) {
        if chunk.groups.is_empty() {
            return;
        }
        let answers = match answers {
            Ok(answers) => answers,
            Err(failed) => {
                for group in &chunk.groups {
                    self.fail(group.object.as_str(), group.first, failed.about(&group.object));
                }
                self.stop(chunk.end);
                return;
            }
        };
        self.chunks += 1;
        let emitter = self.emitter;
        let mark = answers.last().unwrap_or(&Value::Nil);
        for (group, answer) in chunk.groups.iter().zip(&answers) {
            let object = &group.object;
            let pushed = emitter.pushed(object, answer, || emitter.keys.events(object.as_str()));
            let marked = pushed.and_then(|_| emitter.pushed(object, mark, || emitter.markers.to_string()));
            match marked {
                Ok(_) => self.acknowledged += group.events,
                Err(error) => self.fail(object.as_str(), group.first, error),
            }
        }
        if !matches!(mark, Value::Int(_)) {
            self.stop(chunk.end);
        }
    }

    /// Ends it all: what was refused in a chunk gathered ahead was never reached.
    fn stop(&mut self, end: u64) {
        self.failed.retain(|_, (first, _)| *first < end);
        self.stopped = Some(end);
    }

    fn answer(self) -> Result<EmittedMany, EmitManyError> {
        if self.failed.is_empty() {
            return Ok(EmittedMany { events: self.acknowledged, chunks: self.chunks });
        }
        let mut failed: Vec<_> =
            self.failed.into_iter().map(|(object, (first, error))| ObjectFailed { object, first, error }).collect();
        failed.sort_by_key(|failed| failed.first);
        Err(EmitManyError { acknowledged: self.acknowledged, failed, stopped: self.stopped })
    }
}
