//! A delivery, and the batch that a program has.

use std::time::Duration;

use seriatim::event::{Event, ObjectName};
use seriatim::handlers::{Effects, Remote, Stored};
use seriatim::sink::{Context, Delivered, Stop};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::program::Program;
use crate::protocol;

/// A delivery that waits for its result.
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) object: ObjectName,
    /// The events to handle, at least one.
    pub(crate) events: Vec<Event>,
    /// The number of events of the whole batch.
    pub(crate) events_of_batch: usize,
    /// The stored progress of the events.
    pub(crate) stored: Stored,
    pub(crate) cx: Context,
    pub(crate) answer: oneshot::Sender<Handed>,
}

/// The result of a delivery.
pub(crate) struct Handed {
    /// The writes of subtasks to Redis that may be under way. The delivery is over only after them.
    pub(crate) stores: Vec<JoinHandle<()>>,
    pub(crate) end: End,
}

pub(crate) enum End {
    Over(Delivered),
    /// So many events are delivered. The one after them has effects, which are to be stored.
    Effects {
        before: usize,
        handler: Remote,
        effects: Effects,
    },
}

impl Call {
    /// An event with a crash is alone in its program, so that no other event counts its next crash.
    pub(super) fn is_suspect(&self) -> bool {
        self.cx.crashes > 0
    }

    /// Returns the result for a program that has delivered `done` events.
    pub(super) fn end(self, done: usize, stop: Option<Stop>, stores: Vec<JoinHandle<()>>) {
        let delivered = match stop {
            Some(stop) => Delivered::stopped(done, stop),
            None => self.stored.delivered(self.events_of_batch),
        };
        let end = End::Over(delivered);
        // The delivery may have been dropped at this moment.
        let _ = self.answer.send(Handed { stores, end });
    }
}

/// A batch that a program has.
pub(super) struct Running {
    /// The delivery; `None` if it was dropped.
    pub(super) call: Option<Box<Call>>,
    pub(super) object: ObjectName,
    pub(super) is_suspect: bool,
    /// The ids of the batch's events.
    pub(super) ids: Vec<u64>,
    /// The handler of the event under way, once the program has reported a subtask of it.
    pub(super) handler: Option<Remote>,
    /// Whether a report of a subtask of the event under way has no reply yet.
    pub(super) is_storing: bool,
    /// The writes of subtasks to Redis that may be under way.
    pub(super) stores: Vec<JoinHandle<()>>,
    /// The number of events that are delivered.
    pub(super) done: usize,
    /// The time at which the program is asked to give up the event or, if it was asked, is killed.
    pub(super) deadline: Instant,
    pub(super) is_cancelled: bool,
}

impl Running {
    /// Asks the program to give up the event that it handles, unless it was asked before.
    pub(super) fn cancel(&mut self, program: &Program, number: u64, within: Duration) {
        if !self.is_cancelled
            && let Some(id) = self.ids.get(self.done)
        {
            self.is_cancelled = true;
            self.deadline = Instant::now() + within;
            program.send(protocol::cancel(number, *id));
        }
    }

    /// Returns the result of the delivery to its sender.
    pub(super) fn over(self, stop: Option<Stop>) {
        if let Some(call) = self.call {
            call.end(self.done, stop, self.stores);
        }
    }

    /// Returns whether the program has reported a subtask of the event under way.
    pub(super) fn has_stored(&self) -> bool {
        self.handler.is_some()
    }

    /// Returns the effects of the event under way to the sender of the delivery.
    pub(super) fn over_with(mut self, effects: Effects) {
        let handler = self.handler();
        let before = self.done;
        if let (Some(call), Some(handler)) = (self.call, handler) {
            let end = End::Effects {
                before,
                handler,
                effects,
            };
            let stores = self.stores;
            let _ = call.answer.send(Handed { stores, end });
        }
    }

    /// Returns the handler of the event under way; `None` if the delivery was dropped.
    pub(super) fn handler(&mut self) -> Option<Remote> {
        let call = self.call.as_ref()?;
        if self.handler.is_none() {
            let event = call.events.get(self.done)?.clone();
            self.handler = Some(call.stored.handler(event, &call.cx));
        }
        self.handler.clone()
    }

    /// Begins with the event after the next `events` ones. Returns its id; `None` if the batch is over.
    pub(super) fn advance(&mut self, events: usize) -> Option<u64> {
        self.done += events;
        (self.handler, self.is_storing) = (None, false);
        self.ids.get(self.done).copied()
    }
}
