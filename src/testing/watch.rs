//! A sink around that of a worker, which notes what becomes of each event.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use super::emitted::EmittedEvent;
use super::memory::{Kept, Place};
use crate::event::{Event, NameError, ObjectName};
use crate::sink::{Batch, Context, Delivered, Ledger, LedgerError, Progress, Sink, Stop, With};
use crate::worker::{UsedUp, WorkerConfig};

/// The most events that are remembered.
pub const EVENTS_MAX: usize = 100_000;

/// What has become of an event at last.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It was delivered.
    Delivered,
    /// It failed, and is tried again later.
    Retry {
        /// Its error.
        error: String,
    },
    /// It went to the dead letters.
    DeadLetter {
        /// Its error.
        error: String,
    },
    /// Its attempts are used up, and its retry policy says that it is over.
    CompletedWithErrors {
        /// Its error.
        error: String,
    },
    /// Its attempts are used up, and it waits for an operator.
    Held {
        /// Its error.
        error: String,
    },
    /// The sink was not available, or the delivery was cut off.
    Undelivered,
}

/// An event that was given to the sink, or became a dead letter without that.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DrainedEvent {
    /// The event, with its id and `prev`.
    pub event: Event,
    /// How often it was given to the sink.
    pub deliveries: u32,
    /// How often its delivery has failed in that time.
    pub failures: u32,
    /// What has become of it at last.
    pub fate: Fate,
    kept: Kept,
}

impl DrainedEvent {
    /// What handlers have emitted for it in this time, in the order of the push.
    pub fn emitted(&self) -> Vec<EmittedEvent> {
        self.kept.emitted()
    }

    /// The result of a handler that has succeeded in this time; none if it has set no result, or if
    /// nothing keeps results: the event log is off, and no other handler of the event had to run
    /// after it.
    pub fn result(&self, handler: &str) -> Option<Value> {
        self.kept.results().remove(handler)
    }

    /// The event, deserialized; `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.event.payload).unwrap_or_default()
    }
}

/// What was seen, in the order in which events were given to the sink first.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) events: Vec<DrainedEvent>,
    at: HashMap<Place, usize>,
    /// Events beyond [`EVENTS_MAX`].
    pub(super) not_kept: u64,
}

impl Seen {
    pub(super) fn of(&mut self, event: &Event) -> Option<&mut DrainedEvent> {
        let place = (event.object.clone(), event.id);
        let known = self.at.get(&place).copied();
        if known.is_none() && self.events.len() >= EVENTS_MAX {
            self.not_kept += 1;
            return None;
        }
        let at = known.unwrap_or(self.events.len());
        if known.is_none() {
            self.at.insert(place, at);
            let (fate, kept) = (Fate::Undelivered, Kept::default());
            self.events.push(DrainedEvent { event: event.clone(), deliveries: 0, failures: 0, fate, kept });
        }
        self.events.get_mut(at)
    }

    /// The event is a dead letter, whether the sink has seen it or not.
    pub(super) fn dead(&mut self, event: Event, error: String) {
        if let Some(seen) = self.of(&event) {
            seen.fate = Fate::DeadLetter { error };
        }
    }
}

/// Shared by the sink, the ledgers, and [`drain`](super::drain()).
pub(super) type Shared = Arc<Mutex<Seen>>;

pub(super) fn locked(seen: &Shared) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sink, watched.
pub(super) struct Watched {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) config: Arc<WorkerConfig>,
    pub(super) seen: Shared,
}

impl Watched {
    fn note(&self, batch: &Batch, attempts: u32, delivered: &Delivered) {
        let count = delivered.count(batch.len());
        let mut seen = locked(&self.seen);
        for (at, event) in batch.events().enumerate().take(count + usize::from(delivered.stop().is_some())) {
            let attempts = if at == 0 { attempts } else { 0 };
            let fate =
                if at < count { Some(Fate::Delivered) } else { delivered.stop().map(|stop| self.fate(stop, &event, attempts)) };
            let Some(seen) = seen.of(&event) else { continue };
            seen.deliveries += 1;
            seen.failures += u32::from(at == count);
            seen.fate = fate.unwrap_or(Fate::Undelivered);
        }
    }

    /// What the worker makes of it, by the event's retry policy.
    fn fate(&self, stop: &Stop, event: &Event, attempts: u32) -> Fate {
        let error = stop.error().to_owned();
        match stop {
            Stop::Rejected { .. } => Fate::DeadLetter { error },
            Stop::Unavailable { .. } => Fate::Undelivered,
            Stop::Transient { .. } => match self.config.retry_of(&event.payload).used_up(attempts.saturating_add(1)) {
                None => Fate::Retry { error },
                Some(UsedUp::DeadLetter) => Fate::DeadLetter { error },
                Some(UsedUp::CompleteWithErrors) => Fate::CompletedWithErrors { error },
                Some(UsedUp::Hold) => Fate::Held { error },
            },
        }
    }
}

#[async_trait]
impl Sink for Watched {
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let watched = |ledger: &Arc<dyn Ledger>| -> Arc<dyn Ledger> {
            let events = batch.events().map(|event| (event.id, event)).collect();
            Arc::new(WatchedLedger { ledger: Arc::clone(ledger), seen: Arc::clone(&self.seen), events })
        };
        let cx = Context { ledger: cx.ledger.as_ref().map(watched), ..cx.clone() };
        let delivered = self.sink.deliver(batch, &cx).await;
        self.note(batch, cx.attempts, &delivered);
        delivered
    }
}

/// A ledger, watched: what is kept of an event is noted.
struct WatchedLedger {
    ledger: Arc<dyn Ledger>,
    seen: Shared,
    events: HashMap<u64, Event>,
}

impl fmt::Debug for WatchedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)
    }
}

#[async_trait]
impl Ledger for WatchedLedger {
    async fn read(&self) -> Result<Progress, LedgerError> {
        self.ledger.read().await
    }

    async fn write(&self, id: u64, field: &str, with: With<'_>) -> Result<(), LedgerError> {
        self.ledger.write(id, field, with).await?;
        match self.events.get(&id).and_then(|event| locked(&self.seen).of(event).map(|seen| seen.kept.keep(field, with))) {
            Some(kept) => kept,
            None => Ok(()),
        }
    }

    fn logs(&self) -> bool {
        self.ledger.logs()
    }

    fn object(&self, name: &str) -> Result<ObjectName, NameError> {
        self.ledger.object(name)
    }
}

/// An event as a dead letter has it.
pub(super) fn event_of(object: &str, id: u64, prev: u64, payload: Vec<u8>) -> Event {
    Event { id, prev, object: ObjectName::found(object), payload: Bytes::from(payload) }
}
