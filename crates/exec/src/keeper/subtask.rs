//! The subtasks that a program reports: they are stored in Redis, and the program gets a reply.

use super::{Keeper, Order, UNREAD_MAX};
use crate::program::Program;
use crate::protocol::{self, Once};

/// A subtask that a program has reported.
pub(crate) struct Subtask {
    batch: u64,
    id: u64,
    name: String,
    /// Why it is not stored.
    error: Option<String>,
}

impl Keeper {
    /// Stores that a subtask of the event under way is done. `unread`: the bytes that the program has not
    /// read.
    ///
    /// # Errors
    /// If the line breaks the protocol.
    pub(super) fn store(&mut self, once: Once, unread: usize) -> Result<(), String> {
        let Once {
            batch,
            id,
            name,
            value,
        } = once;
        let Some(running) = self.running.get_mut(&batch) else {
            return Err(format!(
                "it sent `once` for batch {batch}, which it does not have"
            ));
        };
        if running.ids.get(running.done) != Some(&id) {
            return Err(format!(
                "it sent `once` for event {id}, which is not the next one of batch {batch}"
            ));
        } else if unread >= UNREAD_MAX {
            return Err("it does not read its input".to_owned());
        } else if running.is_storing {
            return Err(format!(
                "it sent a further `once` for event {id} before the reply to the one before"
            ));
        }
        running.is_storing = true;
        // The event of a dropped delivery was cancelled, and its program gets no reply.
        if let (Some(handler), Some(own)) = (running.handler(), self.own.upgrade()) {
            running.stores.retain(|store| !store.is_finished());
            running.stores.push(tokio::spawn(async move {
                let stored = handler.once(&name, value).await;
                let error = stored.err().map(|failure| failure.error().to_owned());
                let _ = own.send(Order::Stored(Subtask {
                    batch,
                    id,
                    name,
                    error,
                }));
            }));
        }
        Ok(())
    }

    /// Sends the reply to the report of a subtask, if the program still has the event.
    pub(super) fn stored(&mut self, subtask: &Subtask, program: Option<&Program>) {
        let Subtask {
            batch,
            id,
            name,
            error,
        } = subtask;
        if let Some(running) = self.running.get_mut(batch)
            && running.ids.get(running.done) == Some(id)
            && let Some(program) = program
        {
            running.is_storing = false;
            program.send(protocol::once(*batch, *id, name, error.as_deref()));
        }
    }
}
