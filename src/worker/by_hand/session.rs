//! A session of claiming by hand, from an attach until the lease ends.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::claimed::Claimed;
use super::error::ClaimError;
use super::finder::{Ask, Finder};
use super::slots::HandSlots;
use crate::worker::config::WorkerConfig;
use crate::worker::session::connect::Redis;
use crate::worker::session::lease::Session;

/// The capacity of the channel to the finder. The finder takes each request from the channel at
/// once.
const ASKS_MAX: usize = 64;

pub(super) struct ClaimSession {
    slots: Arc<HandSlots>,
    /// The channel to the finder. The finder ends when this channel closes.
    asks: mpsc::Sender<Ask>,
}

impl ClaimSession {
    /// Begins a session. First gives back the batches that the slots had before, so that they are
    /// claimed like all other events.
    pub(super) async fn begin(
        redis: &Redis,
        config: &Arc<WorkerConfig>,
        session: &Session,
    ) -> Arc<Self> {
        let slots = Arc::new(HandSlots::new(redis, config, session));
        slots.give_all_back().await;
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        tokio::spawn(Finder::new(Arc::clone(&slots), asked).run());
        Arc::new(Self { slots, asks })
    }

    /// Claims an event. If the future is dropped, the event is given back, because the program has
    /// not seen it.
    pub(super) async fn claim(&self, patient: bool) -> Result<Option<Claimed>, ClaimError> {
        let (asker, asked) = oneshot::channel();
        let claimed = async {
            self.asks.send(Ask { asker, patient }).await.ok()?;
            asked.await.ok()
        };
        let mut claimed = claimed.await.unwrap_or(Err(ClaimError::Lost))?;
        // From here to the program there is no await, so the same poll returns the event to the
        // program.
        if let Some(claimed) = &mut claimed {
            claimed.seen = true;
        }
        Ok(claimed)
    }

    /// Ends the session.
    pub(super) fn end(&self) {
        self.slots.over.cancel();
    }
}

impl fmt::Debug for ClaimSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slots.fmt(f)
    }
}
