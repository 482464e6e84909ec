//! A sink around the sink of a worker. It records the fate of each event.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use super::emitted::EmittedEvent;
use super::memory::{Identity, Kept};
use crate::event::{Event, NameError, ObjectName};
use crate::sink::{Batch, Context, Delivered, Ledger, LedgerError, Progress, Sink, Stop, With};
use crate::worker::{UsedUp, WorkerConfig};

/// Maximum number of recorded events.
pub const EVENTS_MAX: usize = 100_000;

/// The last known fate of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// The event was delivered.
    Delivered,
    /// The event has failed, and will be tried again later.
    Retry {
        /// Error of the last delivery.
        error: String,
    },
    /// The event became a dead letter.
    DeadLetter {
        /// Error of the last delivery.
        error: String,
    },
    /// The attempts are used up, and the retry policy has completed the event.
    CompletedWithErrors {
        /// Error of the last delivery.
        error: String,
    },
    /// The attempts are used up, and the event waits for an operator.
    Held {
        /// Error of the last delivery.
        error: String,
    },
    /// The event was not delivered: the sink was unavailable, the sink postponed the event, or the
    /// delivery was interrupted, e.g. because a program of the sink died.
    Undelivered,
}

/// An event that was delivered to the sink, or that became a dead letter without a delivery.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DrainedEvent {
    /// The event, with its id and `prev`.
    pub event: Event,
    /// Number of deliveries to the sink.
    pub deliveries: u32,
    /// Number of failed deliveries in this run.
    pub failures: u32,
    /// Last known fate of the event.
    pub fate: Fate,
    kept: Kept,
}

impl DrainedEvent {
    /// Returns the emits of the event's handlers in this run, in the order in which they are
    /// pushed.
    pub fn emitted(&self) -> Vec<EmittedEvent> {
        self.kept.emitted()
    }

    /// Returns the result of a handler that has succeeded in this run. None if the handler has set
    /// no result. Also none if the worker did not need to record the result: the event log is off,
    /// and no other handler of the event ended after this one.
    pub fn result(&self, handler: &str) -> Option<Value> {
        self.kept.results().remove(handler)
    }

    /// Returns the event as JSON; `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.event.payload).unwrap_or_default()
    }
}

/// The recorded events, in the order in which the sink first got them.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) events: Vec<DrainedEvent>,
    at: HashMap<Identity, usize>,
    /// Number of times that an event was seen but not recorded, because [`EVENTS_MAX`] was reached.
    pub(super) not_kept: u64,
}

impl Recorded {
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
            self.events.push(DrainedEvent {
                event: event.clone(),
                deliveries: 0,
                failures: 0,
                fate,
                kept,
            });
        }
        self.events.get_mut(at)
    }

    /// Records a dead letter, whether or not the sink has seen its event.
    pub(super) fn dead(&mut self, event: Event, error: String) {
        if let Some(seen) = self.of(&event) {
            seen.fate = Fate::DeadLetter { error };
        }
    }
}

/// The records. The sink, the ledgers, and [`drain`](super::drain()) share them.
pub(super) type Shared = Arc<Mutex<Recorded>>;

pub(super) fn locked(seen: &Shared) -> MutexGuard<'_, Recorded> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sink whose deliveries are recorded.
pub(super) struct Watched {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) config: Arc<WorkerConfig>,
    pub(super) seen: Shared,
}

impl Watched {
    fn note(&self, batch: &Batch, attempts: u32, delivered: &Delivered) {
        let count = delivered.count(batch.len());
        let mut seen = locked(&self.seen);
        for (at, event) in batch
            .events()
            .enumerate()
            .take(count + usize::from(delivered.stop().is_some()))
        {
            let attempts = if at == 0 { attempts } else { 0 };
            let fate = if at < count {
                Some(Fate::Delivered)
            } else {
                delivered
                    .stop()
                    .map(|stop| self.fate(stop, &event, attempts))
            };
            let Some(seen) = seen.of(&event) else {
                continue;
            };
            seen.deliveries += 1;
            seen.failures += u32::from(at == count);
            seen.fate = fate.unwrap_or(Fate::Undelivered);
        }
    }

    /// Returns the fate that the worker's retry policy gives the event.
    fn fate(&self, stop: &Stop, event: &Event, attempts: u32) -> Fate {
        let error = stop.error().to_owned();
        match stop {
            Stop::Rejected { .. } => ended(self.config.retry_of(&event.payload).rejected, error),
            Stop::Unavailable { .. }
            | Stop::Postponed { .. }
            | Stop::Unknown { .. }
            | Stop::Crashed { .. } => Fate::Undelivered,
            Stop::Transient { .. } => match self
                .config
                .retry_of(&event.payload)
                .used_up(attempts.saturating_add(1))
            {
                None => Fate::Retry { error },
                Some(then) => ended(then, error),
            },
        }
    }
}

fn ended(then: UsedUp, error: String) -> Fate {
    match then {
        UsedUp::DeadLetter => Fate::DeadLetter { error },
        UsedUp::CompleteWithErrors => Fate::CompletedWithErrors { error },
        UsedUp::Hold => Fate::Held { error },
    }
}

#[async_trait]
impl Sink for Watched {
    fn name(&self) -> String {
        self.sink.name()
    }

    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let watched = |ledger: &Arc<dyn Ledger>| -> Arc<dyn Ledger> {
            let events = batch.events().map(|event| (event.id, event)).collect();
            Arc::new(WatchedLedger {
                ledger: Arc::clone(ledger),
                seen: Arc::clone(&self.seen),
                events,
            })
        };
        let cx = Context {
            ledger: cx.ledger.as_ref().map(watched),
            ..cx.clone()
        };
        let delivered = self.sink.deliver(batch, &cx).await;
        self.note(batch, cx.attempts, &delivered);
        delivered
    }
}

/// A ledger whose emits and results are recorded.
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
        match self.events.get(&id).and_then(|event| {
            locked(&self.seen)
                .of(event)
                .map(|seen| seen.kept.keep(field, with))
        }) {
            Some(kept) => kept,
            None => Ok(()),
        }
    }

    fn keeps_results(&self) -> bool {
        self.ledger.keeps_results()
    }

    fn may_be_lost(&self) -> bool {
        self.ledger.may_be_lost()
    }

    fn object(&self, name: &str) -> Result<ObjectName, NameError> {
        self.ledger.object(name)
    }
}

/// Makes an event from a dead letter.
pub(super) fn event_of(object: &str, id: u64, prev: u64, payload: Vec<u8>) -> Event {
    Event {
        id,
        prev,
        object: ObjectName::found(object),
        payload: Bytes::from(payload),
    }
}
