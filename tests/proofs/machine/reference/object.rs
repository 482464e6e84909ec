//! The keys of an object in Redis. A new key of objects needs a field of [`Object`] and an item in
//! [`Object::keys`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::id_of;
use super::state::{Event, Name};

/// The value of a key; an absent key has the empty value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key<T> {
    Right(T),
    /// A hash, although the protocol requires another type.
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

    /// Returns the suffix of the key, with the type and the values that Redis must have.
    fn held(
        &self,
        suffix: &'static str,
        kind: &'static str,
        value: impl Fn(&T) -> Vec<Vec<u8>>,
    ) -> Held {
        match self {
            Self::Right(right) => (suffix, kind, value(right)),
            Self::Wrong => (suffix, "hash", vec![b"wrong".to_vec(), b"type".to_vec()]),
        }
    }
}

/// Returns events in the order of Redis, the newest first.
pub fn newest_first(events: &[Event]) -> Vec<Vec<u8>> {
    events.iter().rev().map(|event| event.to_vec()).collect()
}

#[derive(Debug, Clone, Default)]
pub struct Object {
    /// Queued events, oldest first. All lists of events in the reference have this order.
    pub queue: Key<Vec<Event>>,
    pub last: Key<Option<String>>,
    /// Time to live of the last id, ms.
    pub fades: Option<u64>,
    pub owner: Key<Option<String>>,
    pub held: Key<Vec<Event>>,
    pub held_id: Key<Option<Bytes>>,
    /// Record of finished handlers of an event.
    pub handled: Option<Handled>,
    /// Number and name of the request that may be open.
    pub sent: Option<(u64, &'static str)>,
    /// Id and key of a scheduled event that is in flight or held.
    pub key: Option<(u64, &'static str)>,
    /// Errors of the first event of the batch, the newest error first.
    pub errors: Key<Vec<Failure>>,
}

/// The record of finished handlers of one event. It exists until the event is finalized.
#[derive(Debug, Clone, Default)]
pub struct Handled {
    pub id: u64,
    /// Finished handlers and subtasks: `handler:ID`, `once:SUBTASK`.
    pub finished: BTreeSet<String>,
    /// Emits by field, `emit:ID`.
    pub emits: BTreeMap<String, Emits>,
    /// Results by field, `result:ID`.
    pub results: BTreeMap<String, String>,
}

/// Returns the field and the value of a handler's result. In the test only events with an even id
/// have one.
pub fn result_of(id: u64, field: &str) -> Option<(String, String)> {
    let handler = field
        .strip_prefix("handler:")
        .filter(|_| id.is_multiple_of(2))?;
    Some((format!("result:{handler}"), format!("\"{handler}\":{id}")))
}

/// The emits of one handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emits {
    /// Position of the handler in the order of registration.
    pub place: usize,
    pub events: Vec<(Name, Event)>,
}

/// The field `emit:ID`, and its value.
pub type EmitField = (&'static str, Emits);

impl Emits {
    /// Formats `PLACE EVENTS BYTES `. For each event follow `NAME_BYTES EVENT_BYTES `, the object's
    /// name, and the event.
    pub fn text(&self) -> Vec<u8> {
        let mut text =
            format!("{} {} {} ", self.place, self.events.len(), self.bytes()).into_bytes();
        for (object, event) in &self.events {
            text.extend(
                [
                    format!("{} {} ", object.len(), event.len()).as_bytes(),
                    object,
                    event,
                ]
                .concat(),
            );
        }
        text
    }

    pub fn bytes(&self) -> usize {
        self.events
            .iter()
            .map(|(object, event)| object.len() + event.len())
            .sum()
    }
}

impl Handled {
    /// Returns the results in the form that the log row of event `id` has, or none if the record is
    /// of another event.
    pub fn results_of(&self, id: u64) -> Option<String> {
        let members: Vec<_> = self.results.values().cloned().collect();
        (self.id == id && !members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
    }

    /// Returns all emits in the order in which they are pushed.
    pub fn events(&self) -> Vec<(Name, Event)> {
        let mut all: Vec<_> = self.emits.values().collect();
        all.sort_by_key(|emits| emits.place);
        all.into_iter()
            .flat_map(|emits| emits.events.clone())
            .collect()
    }
}

/// A failed attempt: its time, its number and its error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub at: u64,
    pub attempt: u32,
    pub error: &'static str,
}

/// The time to live of the record of a request, ms. No schedule of steps runs so long.
pub const SENT_MS: u64 = 3_600_000;

/// Maximum number of errors that are stored for an event.
pub const ERRORS_MAX: usize = 20;

/// An expected key: its suffix, its type, and its values in Redis.
pub type Held = (&'static str, &'static str, Vec<Vec<u8>>);

impl Object {
    /// Returns every key of the object. A key without values is absent.
    pub fn keys(&self) -> [Held; 9] {
        let text = |text: &String| text.clone().into_bytes();
        let string = |value: &Option<String>| value.iter().map(text).collect();
        let handled = self.handled.iter().flat_map(|kept| {
            let done = kept
                .finished
                .iter()
                .map(|field| [text(field), b"1".to_vec()]);
            let emits = kept
                .emits
                .iter()
                .map(|(field, emits)| [text(field), emits.text()]);
            let results = kept
                .results
                .iter()
                .map(|(field, value)| [text(field), text(value)]);
            done.chain(emits)
                .chain(results)
                .chain([[b"id".to_vec(), text(&kept.id.to_string())]])
        });
        let mut handled: Vec<_> = handled.collect();
        handled.sort();
        let errors = |failures: &Vec<Failure>| {
            let line = |failure: &Failure| {
                text(&format!(
                    "{} {} {}",
                    failure.at, failure.attempt, failure.error
                ))
            };
            failures.iter().map(line).collect()
        };
        [
            self.queue
                .held(":events", "list", |events| newest_first(events)),
            self.last.held(":last.event.id", "string", string),
            self.owner.held(":event.worker", "string", string),
            self.held
                .held(":events.held", "list", |events| newest_first(events)),
            self.held_id.held(":events.held.id", "string", |value| {
                value.iter().map(|text| text.to_vec()).collect()
            }),
            (":event.handled", "hash", handled.concat()),
            (
                ":event.sent",
                "string",
                self.sent
                    .iter()
                    .map(|sent| text(&format!("{} {SENT_MS} {}", sent.0, sent.1)))
                    .collect(),
            ),
            (
                ":event.key",
                "string",
                self.key
                    .iter()
                    .map(|(id, key)| text(&format!("{id} {key}")))
                    .collect(),
            ),
            self.errors.held(":event.errors", "list", errors),
        ]
    }

    /// Returns the id of the last delivered event, or `None` if it is not a valid id.
    pub fn last_id(&self) -> Option<u64> {
        self.last
            .right()
            .and_then(|last| last.as_ref().map_or(Some(0), |text| id_of(text)))
    }
}
