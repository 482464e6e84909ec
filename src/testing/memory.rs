//! A ledger in memory, which replaces the worker's ledger in Redis. It records the progress of
//! handlers for each event of a test. A worker stores the same records in the Redis hash
//! `OBJ:event.handled`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use super::emitted::EmittedEvent;
use crate::event::{NameError, ObjectName};
use crate::keys::Keys;
use crate::sink::{Ledger, LedgerError, Progress, With};
use crate::wire::values::EmitEntry;
use crate::wire::{self, Emits};

/// The identity of an event: its object and its id.
pub(super) type Identity = (ObjectName, u64);

/// The records of all events of a test.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(Arc<Mutex<HashMap<Identity, Kept>>>);

/// The records of one event.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// Finished handlers and subtasks, `handler:ID` and `once:SUBTASK`, with the values of their
    /// fields.
    pub(super) finished: BTreeMap<String, String>,
    /// Emits. The key is the position of the handler and its field in the ledger.
    emits: BTreeMap<(usize, String), Vec<EmittedEvent>>,
    /// Results. The key is the field; the value is a member of a JSON object as text.
    results: BTreeMap<String, Vec<u8>>,
}

impl Kept {
    /// Records the success of a handler or subtask.
    pub(super) fn keep(
        &mut self,
        field: &str,
        With {
            returned,
            emits,
            result,
        }: With<'_>,
    ) -> Result<(), LedgerError> {
        let unreadable =
            || LedgerError::Failed("what the handler has emitted cannot be read".to_owned());
        if let Some((emit_field, value)) = emits {
            let (place, events) = Emits::read(value).ok_or_else(unreadable)?;
            let event = |entry: EmitEntry<'_>| EmittedEvent {
                object: ObjectName::found(&String::from_utf8_lossy(entry.object)),
                payload: Bytes::copy_from_slice(entry.event),
                schedule: entry.later.map(Into::into),
            };
            self.emits.insert(
                (place, emit_field.to_owned()),
                events.into_iter().map(event).collect(),
            );
        }
        self.results
            .extend(result.map(|(field, value)| (field.to_owned(), value.to_vec())));
        let value = returned.map(wire::finished_with);
        let value =
            String::from_utf8_lossy(value.as_deref().unwrap_or(wire::FINISHED)).into_owned();
        self.finished.insert(field.to_owned(), value);
        Ok(())
    }

    /// Returns the events that are pushed when this event is finalized, in the order in which they
    /// are pushed.
    pub(super) fn emitted(&self) -> Vec<EmittedEvent> {
        self.emits.values().flatten().cloned().collect()
    }

    /// Returns the results of those handlers that have one.
    pub(super) fn results(&self) -> BTreeMap<String, Value> {
        let members: Vec<_> = self.results.values().map(Vec::as_slice).collect();
        serde_json::from_slice(&[b"{", &members.join(&b","[..])[..], b"}"].concat())
            .unwrap_or_default()
    }
}

impl Memory {
    pub(super) fn of(&self, place: &Identity) -> Kept {
        self.locked().get(place).cloned().unwrap_or_default()
    }

    pub(super) fn forget(&self) {
        self.locked().clear();
    }

    /// Returns the ledger of an event.
    pub(super) fn ledger(&self, place: Identity) -> Arc<dyn Ledger> {
        Arc::new(OfEvent {
            memory: self.clone(),
            place,
        })
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Identity, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct OfEvent {
    memory: Memory,
    place: Identity,
}

#[async_trait]
impl Ledger for OfEvent {
    async fn read(&self) -> Result<Progress, LedgerError> {
        let Kept {
            finished,
            emits,
            results,
        } = self.memory.of(&self.place);
        let bytes = emits
            .values()
            .flatten()
            .map(|event| event.object.as_str().len() + event.payload.len())
            .sum();
        let emitted = (emits.values().map(Vec::len).sum(), bytes);
        Ok(Progress {
            id: self.place.1,
            finished,
            emitted,
            results: results.values().map(Vec::len).sum(),
        })
    }

    async fn write(&self, _: u64, field: &str, with: With<'_>) -> Result<(), LedgerError> {
        self.memory
            .locked()
            .entry(self.place.clone())
            .or_default()
            .keep(field, with)
    }

    fn keeps_results(&self) -> bool {
        true
    }

    fn object(&self, name: &str) -> Result<ObjectName, NameError> {
        Keys::new().object(name)
    }
}
