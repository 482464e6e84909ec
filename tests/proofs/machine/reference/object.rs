//! An object as Redis holds it. A new key of objects needs a field of [`Object`] and an item in
//! [`Object::keys`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::id_of;
use super::state::{Event, Name};

/// What a key holds: absent is the empty value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key<T> {
    Right(T),
    /// A hash, where the protocol wants something else.
    Wrong,
}

impl<T: Default> Default for Key<T> {
    fn default() -> Self {
        Self::Right(T::default())
    }
}

impl<T> Key<T> {
    pub fn right(&self) -> Option<&T> {
        match self {
            Self::Right(value) => Some(value),
            Self::Wrong => None,
        }
    }

    /// The key as Redis must hold it.
    fn held(&self, suffix: &'static str, kind: &'static str, value: impl Fn(&T) -> Vec<Vec<u8>>) -> Held {
        match self {
            Self::Right(right) => (suffix, kind, value(right)),
            Self::Wrong => (suffix, "hash", vec![b"wrong".to_vec(), b"type".to_vec()]),
        }
    }
}

/// A list as Redis has it.
pub fn newest_first(events: &[Event]) -> Vec<Vec<u8>> {
    events.iter().rev().map(|event| event.to_vec()).collect()
}

#[derive(Debug, Clone, Default)]
pub struct Object {
    /// Oldest first, as all events here.
    pub queue: Key<Vec<Event>>,
    pub last: Key<Option<String>>,
    /// The time to live of the last id, ms.
    pub fades: Option<u64>,
    pub owner: Key<Option<String>>,
    pub held: Key<Vec<Event>>,
    pub held_id: Key<Option<Bytes>>,
    /// What handlers have finished of an event, by its id.
    pub handled: Option<Handled>,
    /// How the event at the head of the batch has failed, the newest first.
    pub errors: Key<Vec<Failure>>,
}

/// What handlers have kept of an event until it is over.
#[derive(Debug, Clone, Default)]
pub struct Handled {
    pub id: u64,
    /// `handler:ID`, `once:SUBTASK`.
    pub finished: BTreeSet<String>,
    /// By field, `emit:ID`.
    pub emits: BTreeMap<String, Emits>,
    /// By field, `result:ID`.
    pub results: BTreeMap<String, String>,
}

/// The result of a handler that has finished: one for events with an even id. The field and its
/// value.
pub fn result_of(id: u64, field: &str) -> Option<(String, String)> {
    let handler = field.strip_prefix("handler:").filter(|_| id.is_multiple_of(2))?;
    Some((format!("result:{handler}"), format!("\"{handler}\":{id}")))
}

/// What one handler has emitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emits {
    /// The handler's among those registered.
    pub place: usize,
    pub events: Vec<(Name, Event)>,
}

/// The field `emit:ID`, and its value.
pub type EmitField = (&'static str, Emits);

impl Emits {
    /// `PLACE EVENTS BYTES `, then for each event `NAME_BYTES EVENT_BYTES `, the object's name and
    /// the event.
    pub fn text(&self) -> Vec<u8> {
        let mut text = format!("{} {} {} ", self.place, self.events.len(), self.bytes()).into_bytes();
        for (object, event) in &self.events {
            text.extend([format!("{} {} ", object.len(), event.len()).as_bytes(), object, event].concat());
        }
        text
    }

    pub fn bytes(&self) -> usize {
        self.events.iter().map(|(object, event)| object.len() + event.len()).sum()
    }
}

impl Handled {
    /// The results as the row of this event has them.
    pub fn results_of(&self, id: u64) -> Option<String> {
        let members: Vec<_> = self.results.values().cloned().collect();
        (self.id == id && !members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
    }

    /// All that was emitted, in the order in which it is pushed.
    pub fn events(&self) -> Vec<(Name, Event)> {
        let mut all: Vec<_> = self.emits.values().collect();
        all.sort_by_key(|emits| emits.place);
        all.into_iter().flat_map(|emits| emits.events.clone()).collect()
    }
}

/// When, in which attempt, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub at: u64,
    pub attempt: u32,
    pub error: &'static str,
}

/// So many errors of an event are kept.
pub const ERRORS_MAX: usize = 20;

/// The key with this suffix: its type and its values, as Redis must hold them.
pub type Held = (&'static str, &'static str, Vec<Vec<u8>>);

impl Object {
    /// Every key of the object; one without values is absent.
    pub fn keys(&self) -> [Held; 7] {
        let text = |text: &String| text.clone().into_bytes();
        let string = |value: &Option<String>| value.iter().map(text).collect();
        let handled = self.handled.iter().flat_map(|kept| {
            let done = kept.finished.iter().map(|field| [text(field), b"1".to_vec()]);
            let emits = kept.emits.iter().map(|(field, emits)| [text(field), emits.text()]);
            let results = kept.results.iter().map(|(field, value)| [text(field), text(value)]);
            done.chain(emits).chain(results).chain([[b"id".to_vec(), text(&kept.id.to_string())]])
        });
        let mut handled: Vec<_> = handled.collect();
        handled.sort();
        let errors = |failures: &Vec<Failure>| {
            let line = |failure: &Failure| text(&format!("{} {} {}", failure.at, failure.attempt, failure.error));
            failures.iter().map(line).collect()
        };
        [
            self.queue.held(":events", "list", |events| newest_first(events)),
            self.last.held(":last.event.id", "string", string),
            self.owner.held(":event.worker", "string", string),
            self.held.held(":events.held", "list", |events| newest_first(events)),
            self.held_id.held(":events.held.id", "string", |value| value.iter().map(|text| text.to_vec()).collect()),
            (":event.handled", "hash", handled.concat()),
            self.errors.held(":event.errors", "list", errors),
        ]
    }

    /// The id of the last event delivered, `None` where that is not known.
    pub fn last_id(&self) -> Option<u64> {
        self.last.right().and_then(|last| last.as_ref().map_or(Some(0), |text| id_of(text)))
    }
}
