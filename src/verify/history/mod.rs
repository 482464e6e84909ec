//! Judges a history: the calls of producers with their replies, and the arrivals at a receiver. All
//! times of a history come from one clock.
//!
//! Each line is a JSON object. `op` is the operation. `t` is its time: nanoseconds of one machine's
//! monotonic clock, or a number from one shared counter. Files may be given in any order, and their
//! lines may be slightly out of order. But the `invoke` of an emit must come before its result.
//!
//! | `op` | members | logged |
//! |---|---|---|
//! | `invoke` | `t emit object events due` | before an emit is sent; `events` are the main event and its subevents, each named once in the whole history; `due` only of a schedule: a time before which its event is not due |
//! | `ok`, `failed`, `unknown` | `t emit due_ms` | after the reply: done, certainly not done, unknown; `due_ms` only of a schedule: its due time by Redis' clock |
//! | `clock_ahead` | `t by` | Redis' clock was set ahead, by nanoseconds |
//! | `receive` | `t object id prev event` | when the receiver gets an event, before it applies its rule |
//! | `dead` | `t object id prev event` | for every dead letter |
//! | `redis_lost` | `from to` | Redis may have lost what was written between the two times |
//!
//! The judge replays the receiver's rule: it applies an event if `prev <= last < id`, drops it if
//! `id <= last`, and keeps it back if `prev > last`. Then it compares the applied events with the
//! emitted ones. Payloads are not stored: an event costs about 200 bytes, and each arrival 60 bytes
//! more.

mod judge;
mod receiver;
mod report;

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use serde::Deserialize;

pub use report::{Faults, HistoryExample, HistoryKind, HistoryReport};

use self::report::Findings;
use super::seen::{FileId, LineAt, Print, place, print};

/// The reason why a line is not a line of a history.
#[derive(Debug, thiserror::Error)]
#[error("not a line of a history: {0}")]
pub struct HistoryLineError(#[source] serde_json::Error);

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Line<'a> {
    Invoke {
        t: u64,
        #[serde(borrow)]
        emit: Cow<'a, str>,
        #[serde(borrow)]
        object: Cow<'a, str>,
        #[serde(borrow)]
        events: Vec<Cow<'a, str>>,
        #[serde(default)]
        due: Option<u64>,
    },
    Ok {
        t: u64,
        #[serde(borrow)]
        emit: Cow<'a, str>,
        #[serde(default)]
        due_ms: Option<u64>,
    },
    ClockAhead {
        t: u64,
        by: u64,
    },
    Failed {
        t: u64,
        #[serde(borrow)]
        emit: Cow<'a, str>,
    },
    Unknown {
        t: u64,
        #[serde(borrow)]
        emit: Cow<'a, str>,
    },
    Receive {
        t: u64,
        #[serde(borrow, flatten)]
        event: EventLine<'a>,
    },
    Dead {
        t: u64,
        #[serde(borrow, flatten)]
        event: EventLine<'a>,
    },
    RedisLost {
        from: u64,
        to: u64,
    },
}

#[derive(Debug, Deserialize)]
struct EventLine<'a> {
    #[serde(borrow)]
    object: Cow<'a, str>,
    id: u64,
    prev: u64,
    #[serde(borrow)]
    event: Cow<'a, str>,
}

/// The outcome of an emit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The history has no result of this emit, because the producer died or the history ends.
    Open,
    Ok,
    Failed,
    Unknown,
}

#[derive(Debug)]
struct Emit {
    object: u32,
    invoked: u64,
    /// Time of the reply; the largest possible time if there was no reply.
    done: u64,
    outcome: Outcome,
    /// A time before which the event is not due; none if it is not the event of a schedule.
    due: Option<u64>,
    /// The due time by Redis' clock, ms; none if it is not the event of a schedule.
    due_ms: Option<u64>,
}

/// One emitted event.
#[derive(Debug, Clone, Copy)]
struct KnownEvent {
    emit: u32,
    /// Position in the emit: 0 for the main event, from 1 on for the subevents. The events of one
    /// emit stand next to each other.
    sub: u32,
    place: LineAt,
}

/// An event that the receiver got, or a dead letter.
#[derive(Debug, Clone, Copy)]
struct Received {
    t: u64,
    id: u64,
    prev: u64,
    event: Print,
    object: u32,
    place: LineAt,
    dead: bool,
}

/// A time span in which Redis may have lost writes.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: u64,
    to: u64,
}

/// Collects the lines of a history from files in any order. [`finish`](Self::finish) judges them.
#[derive(Debug, Default)]
pub struct History {
    lossy: bool,
    never_forgotten: bool,
    files: Vec<String>,
    objects: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    emits_by_name: HashMap<Print, u32>,
    emits: Vec<Emit>,
    events_by_name: HashMap<Print, u32>,
    emitted: Vec<KnownEvent>,
    received: Vec<Received>,
    windows: Vec<Window>,
    /// Steps by which Redis' clock was set ahead: the time of each, and its nanoseconds.
    steps: Vec<(u64, u64)>,
    findings: Findings,
}

impl History {
    /// Makes a judge without data. If `lossy` is true, events that Redis lost in the declared
    /// windows are counted and are not faults. Even then, no id may be given to two events, and no
    /// older event may be applied after a newer one.
    pub fn new(lossy: bool) -> Self {
        Self {
            lossy,
            ..Self::default()
        }
    }

    /// Declares that no object was ever forgotten. After this, an event with `prev` 0 that comes
    /// after other events of its object is a fork, not the begin of a new chain.
    pub fn never_forgotten(&mut self) {
        self.never_forgotten = true;
    }

    /// Adds a file. Its lines are added later. The name is only used in reports.
    pub fn file(&mut self, name: impl Into<String>) -> FileId {
        self.files.push(name.into());
        FileId(u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX))
    }

    /// Adds one line, without its line break. `line` is its number, counted from 1. Empty lines are
    /// skipped.
    ///
    /// # Errors
    ///
    /// The line is invalid. Such a line is ignored.
    pub fn line(&mut self, file: FileId, line: u64, text: &[u8]) -> Result<(), HistoryLineError> {
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        let place = place(file, line);
        match serde_json::from_slice(text).map_err(HistoryLineError)? {
            Line::Invoke {
                t,
                emit,
                object,
                events,
                due,
            } => self.invoke(place, t, &emit, &object, &events, due),
            Line::Ok { t, emit, due_ms } => self.done(place, t, &emit, Outcome::Ok, due_ms),
            Line::Failed { t, emit } => self.done(place, t, &emit, Outcome::Failed, None),
            Line::Unknown { t, emit } => self.done(place, t, &emit, Outcome::Unknown, None),
            Line::Receive { t, event } => self.receive(place, t, &event, false),
            Line::Dead { t, event } => self.receive(place, t, &event, true),
            Line::RedisLost { from, to } => self.windows.push(Window { from, to }),
            Line::ClockAhead { t, by } => self.steps.push((t, by)),
        }
        Ok(())
    }

    fn invoke(
        &mut self,
        place: LineAt,
        t: u64,
        name: &str,
        object: &str,
        events: &[Cow<'_, str>],
        due: Option<u64>,
    ) {
        let object = self.object(object);
        let emit = u32::try_from(self.emits.len()).unwrap_or(u32::MAX);
        match self.emits_by_name.entry(print(name.as_bytes())) {
            Entry::Vacant(free) => free.insert(emit),
            Entry::Occupied(_) => {
                return self.findings.add(HistoryKind::Malformed, place, || {
                    format!("the emit {name} was invoked before")
                });
            }
        };
        self.emits.push(Emit {
            object,
            invoked: t,
            done: u64::MAX,
            outcome: Outcome::Open,
            due,
            due_ms: None,
        });
        let mut sub = 0;
        for event in events {
            let at = u32::try_from(self.emitted.len()).unwrap_or(u32::MAX);
            match self.events_by_name.entry(print(event.as_bytes())) {
                Entry::Vacant(free) => {
                    free.insert(at);
                    self.emitted.push(KnownEvent { emit, sub, place });
                    sub += 1;
                }
                Entry::Occupied(_) => {
                    self.findings.add(HistoryKind::Malformed, place, || {
                        format!("the event {event} was emitted before")
                    });
                }
            }
        }
    }

    fn done(&mut self, place: LineAt, t: u64, name: &str, outcome: Outcome, due_ms: Option<u64>) {
        let emit = self
            .emits_by_name
            .get(&print(name.as_bytes()))
            .map(|at| &mut self.emits[*at as usize]);
        match emit {
            Some(emit) if emit.outcome == Outcome::Open && t >= emit.invoked => {
                emit.outcome = outcome;
                emit.done = t;
                emit.due_ms = due_ms;
            }
            Some(_) => self.findings.add(HistoryKind::Malformed, place, || {
                format!("the emit {name} has two results, or a result before its invoke")
            }),
            None => self.findings.add(HistoryKind::Malformed, place, || {
                format!("the emit {name} was not invoked before")
            }),
        }
    }

    fn receive(&mut self, place: LineAt, t: u64, event: &EventLine<'_>, dead: bool) {
        let EventLine {
            object,
            id,
            prev,
            event,
        } = event;
        if let Err(error) = crate::consume::check_numbers(*id, *prev) {
            return self.findings.add(HistoryKind::Malformed, place, || {
                format!("{object}: {error}")
            });
        }
        let object = self.object(object);
        self.received.push(Received {
            t,
            id: *id,
            prev: *prev,
            event: print(event.as_bytes()),
            object,
            place,
            dead,
        });
    }

    /// Judges all lines.
    pub fn finish(self) -> HistoryReport {
        judge::judge(self)
    }

    fn object(&mut self, name: &str) -> u32 {
        if let Some(&object) = self.objects.get(name) {
            return object;
        }
        let object = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.objects.insert(name, object);
        object
    }
}
