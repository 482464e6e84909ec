//! The handler of a sink whose handlers run outside of this process: in a program, or behind a URL.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::context::{EventRun, HandlerContext};
use super::effects::Effects;
use super::emits::Emitting;
use super::failure::Failure;
use super::fields::HandlerFields;
use super::known;
use crate::event::Event;
use crate::sink::{Batch, Context, Delivered, Progress, Stop};
use crate::wire;

/// The id of the handler. All sinks of this kind have the same one, so that an event that one of them
/// has begun goes on in another one.
const ID: &str = "answer";

/// The stored progress of a batch whose handler runs outside of this process.
#[derive(Debug)]
pub struct Stored {
    /// The number of events, counted from the front, that the handler has finished.
    over: usize,
    known: Progress,
}

impl Stored {
    /// Reads what is stored. This costs a call of Redis only if the batch was in hand before.
    ///
    /// # Errors
    /// A transient stop if this worker has lost the batch, or Redis refuses the call.
    pub async fn of(batch: &Batch, cx: &Context) -> Result<Self, Stop> {
        let known = known(cx).await?;
        let is_over = |event: &Event| {
            let is_finished = || {
                known
                    .finished
                    .contains_key(&HandlerFields::of(ID, 0).finished)
            };
            event.id < known.id || event.id == known.id && is_finished()
        };
        let over = batch.events().take_while(is_over).count();
        Ok(Self { over, known })
    }

    /// Returns the number of events, counted from the front, that the handler has finished. They must
    /// be committed before any other event of the batch is handled.
    #[must_use]
    pub fn over(&self) -> usize {
        self.over
    }

    /// Returns the number of events that may be handled without a commit between them, of `len` events.
    /// It is 1 if handlers in Rust have left effects of the first event.
    #[must_use]
    pub fn together(&self, len: usize) -> usize {
        let has_effects = self.known.emitted.0 > 0 || self.known.results > 0;
        if has_effects { len.min(1) } else { len }
    }

    /// Returns the result of a delivery in which all of these events are delivered, without effects.
    pub fn delivered(&self, len: usize) -> Delivered {
        match self.together(len) {
            together if together == len => Delivered::all(),
            together => Delivered::so_far(together),
        }
    }

    /// Returns the subtasks that are done of this event, with their values as JSON text.
    pub fn done(&self, id: u64) -> impl Iterator<Item = (&str, &str)> {
        let finished = (id == self.known.id).then_some(&self.known.finished);
        finished.into_iter().flatten().filter_map(|(field, value)| {
            let name = field.strip_prefix("once:")?;
            Some((name, wire::returned(value).unwrap_or("null")))
        })
    }

    /// Returns the handler of an event of the batch.
    #[must_use]
    pub fn handler(&self, event: Event, cx: &Context) -> Remote {
        let nothing = Progress::default();
        let known = if event.id == self.known.id {
            &self.known
        } else {
            &nothing
        };
        Remote(HandlerContext {
            run: Arc::new(EventRun::new(event, None, cx.attempts, cx.clone(), known)),
            cancelled: CancellationToken::new(),
            emitting: Emitting::new(),
        })
    }
}

/// The handler of one event, which runs outside of this process.
#[derive(Debug, Clone)]
pub struct Remote(HandlerContext);

impl Remote {
    /// Stores that a subtask of the event is done, with its value: see
    /// [`HandlerContext::once`]. If it is stored already, changes nothing.
    ///
    /// # Errors
    /// As [`HandlerContext::once`].
    pub async fn once(&self, subtask: &str, value: Box<RawValue>) -> Result<(), Failure> {
        self.0
            .once(subtask, || async { Ok::<_, Failure>(value) })
            .await
            .map(drop)
    }

    /// Stores the effects of the event's success. The step that ends the event carries them out. The
    /// event must be committed before any other event of its batch is handled.
    ///
    /// Cancellation: after the future is dropped, the effects may or may not be stored.
    ///
    /// # Errors
    /// The event is not delivered: an effect is not valid, all effects are too large together, or
    /// Redis cannot store them.
    pub async fn succeed(&self, effects: &Effects) -> Result<(), Stop> {
        let stored = match effects.give(&self.0) {
            Ok(()) => {
                let (done, run) = (self.0.emitting.end(), &self.0.run);
                let leaves =
                    done.emits.events() > 0 || done.result.is_some() && run.keeps_results();
                if !leaves {
                    return Ok(());
                }
                run.keep_finished(&HandlerFields::of(ID, 0), &done)
                    .await
                    .map_err(Failure::from)
            }
            Err(failure) => Err(failure),
        };
        stored.map_err(|failure| match failure {
            Failure::Transient { error, retry_after } => Stop::Transient { error, retry_after },
            Failure::Unrecoverable { error } => Stop::Rejected { error },
        })
    }
}
