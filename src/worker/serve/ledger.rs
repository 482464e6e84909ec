//! The ledger: reads and writes the handler progress of an event in flight (`lua/handled.lua`).
//!
//! All deliveries of a session share one connection. If the process dies, the next worker that gets
//! the batch reads the stored progress. Handlers without stored progress run again. The step that
//! finalizes the event deletes its progress.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use crate::connection::PatientConnection;
use crate::event::{NameError, ObjectName};
use crate::failpoints::around;
use crate::sink::{Ledger, LedgerError, Progress, With};
use crate::wire::{self, Finished, Handled, ScriptError, Tag};
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::serve::slots::InFlight;
use crate::worker::session::connect::{Redis, SharedConnection, is_lasting};
use crate::worker::session::lease::{Held, Session};
use crate::worker::times::growing_wait::GrowingWait;
use crate::worker::watch::figures::Call;

/// The state that the ledgers of all batches of a session share.
pub(crate) struct SessionLedger {
    pub(in crate::worker) redis: Redis,
    pub(in crate::worker) config: Arc<WorkerConfig>,
    token: Arc<str>,
    held: Arc<Held>,
    conn: SharedConnection,
}

impl SessionLedger {
    pub(crate) fn new(redis: &Redis, config: &Arc<WorkerConfig>, session: &Session) -> Self {
        let conn = SharedConnection::new(redis.clone());
        Self {
            redis: redis.clone(),
            config: Arc::clone(config),
            token: Arc::clone(&session.token),
            held: Arc::clone(&session.held),
            conn,
        }
    }

    /// Makes a call. Repeats it until Redis replies.
    pub(in crate::worker) async fn repeated<T, F: Future<Output = Result<T, ScriptError>>>(
        &self,
        kind: Call,
        call: impl Fn(PatientConnection) -> F,
    ) -> Result<T, CallError> {
        let mut backoff = GrowingWait::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            let conn = self.conn.get().await.map_err(CallError::Unconnected)?;
            let made_at = conn.made_at();
            match self.redis.timed(kind, call(conn)).await {
                Ok(reply) => {
                    self.redis.outage().answered(made_at);
                    return Ok(reply);
                }
                // The delivery fails instead of waiting for memory. Other workers may free memory by
                // draining queues, but the events behind this event can be drained only after it.
                Err(error)
                    if is_out_of_memory(&error) || is_lasting(&error) || error.is_wrong_type() =>
                {
                    return Err(CallError::Refused(error));
                }
                Err(error) => {
                    self.redis.outage().failed(made_at, &error.describe());
                    self.conn.give_up().await;
                    backoff.wait().await;
                }
            }
        }
    }
}

/// The reason why a call is not repeated.
pub(in crate::worker) enum CallError {
    Unconnected(WorkerError),
    Refused(ScriptError),
}

impl CallError {
    /// Returns the error text. `refused` returns that of a refused call.
    pub(in crate::worker) fn describe(self, refused: impl FnOnce(ScriptError) -> String) -> String {
        match self {
            Self::Unconnected(error) => error.to_string(),
            Self::Refused(error) => refused(error),
        }
    }
}

/// The ledger of a batch in flight.
pub(crate) struct BatchLedger {
    pub(in crate::worker) session: Arc<SessionLedger>,
    slot: usize,
    object: Bytes,
    tag: Tag,
    /// The id after the last event of the batch.
    end: u64,
    /// Whether the batch may have been in hand before, so that Redis may have progress of its
    /// events.
    again: bool,
    /// The id of the event whose progress is stored; 0: none.
    handled: AtomicU64,
    /// The number of events that the event's handlers have emitted, and the bytes of these events
    /// and of the handlers' results.
    emitted: (AtomicUsize, AtomicUsize),
    finished: Fields,
    /// The name of the requests of this delivery (`requests`), once there is one, and the number of
    /// requests that are over.
    pub(in crate::worker) requests: (OnceLock<Uuid>, AtomicU64),
}

/// The size of the handler progress that Redis stores: the id of the event that the progress
/// belongs to, and the number of its fields. Progress of a later event of the batch replaces both.
#[derive(Debug, Default)]
struct Fields(SyncMutex<(u64, usize)>);

impl Fields {
    fn add(&self, id: u64, fields: usize) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if id > kept.0 {
            *kept = (id, fields);
        } else if id == kept.0 {
            kept.1 = kept.1.saturating_add(fields);
        }
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

impl BatchLedger {
    /// Returns the ledger of a batch. `lapsed`: whether the lease of this process lapsed before, so
    /// that the batch may come again under the same tag.
    pub(crate) fn new(
        session: Arc<SessionLedger>,
        slot: usize,
        in_flight: &InFlight,
        lapsed: bool,
    ) -> Self {
        let (object, tag) = (in_flight.raw.clone(), in_flight.tag);
        let again = lapsed || tag.is_again() || in_flight.handled.is_some();
        // Until the stored progress is read, the batch's first event is assumed to have progress.
        let handled =
            AtomicU64::new(
                in_flight
                    .handled
                    .unwrap_or(if again { tag.first } else { 0 }),
            );
        let end = tag.first + in_flight.batch.len() as u64;
        Self {
            session,
            slot,
            object,
            tag,
            end,
            again,
            handled,
            emitted: Default::default(),
            finished: Fields::default(),
            requests: Default::default(),
        }
    }

    /// Returns the id of the event whose progress is stored, as far as the process knows; `None` if
    /// no progress is stored.
    pub(crate) fn handled(&self) -> Option<u64> {
        Some(self.handled.load(Ordering::Relaxed)).filter(|id| *id > 0)
    }

    /// Returns the number of emitted events, and the bytes of these events and of the handlers'
    /// results, as far as the process knows.
    pub(crate) fn emitted(&self) -> (usize, usize) {
        (
            self.emitted.0.load(Ordering::Relaxed),
            self.emitted.1.load(Ordering::Relaxed),
        )
    }

    /// Returns the number of finished handlers and subtasks of the event whose progress is stored,
    /// as far as the process knows.
    pub(crate) fn finished(&self) -> usize {
        self.finished.count()
    }

    fn has_emitted(&self, (events, bytes): (usize, usize)) {
        self.emitted.0.fetch_add(events, Ordering::Relaxed);
        self.emitted.1.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(in crate::worker) fn slot_batch(&self) -> wire::SlotBatch<'_> {
        let SessionLedger { config, token, .. } = &*self.session;
        wire::SlotBatch {
            name: &config.name,
            token,
            slot: self.slot,
            object: &self.object,
            tag: self.tag,
        }
    }

    /// Calls the script `handled`.
    async fn call(&self, finished: Option<Finished<'_>>) -> Result<Progress, LedgerError> {
        let (keys, batch) = (&self.session.config.keys, &self.slot_batch());
        let called = self.session.repeated(Call::Handled, |mut conn| async move {
            around!("handled", wire::handled(&mut conn, keys, batch, finished)).await
        });
        let failed = |error: ScriptError| {
            if is_out_of_memory(&error) {
                return "Redis is out of memory, so that what is emitted cannot be kept: raise maxmemory, or wait until the workers \
                        have drained the queues"
                    .to_owned();
            }
            format!(
                "{}: {error}",
                keys.event_handled(&String::from_utf8_lossy(&self.object))
            )
        };
        match called
            .await
            .map_err(|error| LedgerError::Failed(error.describe(failed)))?
        {
            Handled::Kept {
                id,
                finished,
                emitted,
                results,
            } => Ok(Progress {
                id,
                finished,
                emitted,
                results,
            }),
            Handled::Unpushed { id } => Err(LedgerError::Failed(format!(
                "the emits of the handlers of event {id} are not pushed yet"
            ))),
            Handled::Other | Handled::Lapsed | Handled::Fenced { .. } => Err(LedgerError::Lost),
        }
    }
}

fn is_out_of_memory(error: &ScriptError) -> bool {
    matches!(error, ScriptError::Redis(error) if error.code() == Some("OOM"))
}

#[async_trait]
impl Ledger for BatchLedger {
    async fn read(&self) -> Result<Progress, LedgerError> {
        if !self.again {
            return Ok(Progress::default());
        }
        let page = self.call(None).await?;
        let fields = page.finished.len();
        // If the stored progress belongs to an event outside the batch, it is a leftover and is
        // ignored.
        let page = if (self.tag.first..self.end).contains(&page.id) {
            page
        } else {
            Progress::default()
        };
        self.handled.fetch_max(page.id, Ordering::Relaxed);
        // A commit also reads the fields of a leftover, unless an event of the batch has replaced
        // them. So the fields of a leftover count here, too.
        self.finished.add(page.id, fields);
        self.has_emitted(page.emitted);
        self.has_emitted((0, page.returned()));
        if self.keeps_results() {
            self.has_emitted((0, page.results));
        }
        Ok(page)
    }

    async fn write(
        &self,
        id: u64,
        field: &str,
        With {
            returned,
            emits,
            result,
        }: With<'_>,
    ) -> Result<(), LedgerError> {
        self.handled.fetch_max(id, Ordering::Relaxed);
        self.finished.add(id, 1);
        if let Some((_, value)) = emits {
            self.has_emitted((wire::Emits::events_in(value), value.len()));
        }
        if let Some(result) = result.filter(|_| self.keeps_results()) {
            self.has_emitted((0, result.1.len()));
        }
        let value = returned.map(wire::finished_with);
        self.has_emitted((0, returned.map_or(0, <[u8]>::len)));
        let value = value.as_deref().unwrap_or(wire::FINISHED);
        self.call(Some(Finished {
            id,
            field,
            value,
            emits,
            result,
        }))
        .await
        .map(drop)
    }

    fn may_be_lost(&self) -> bool {
        self.session.held.may_be_over()
    }

    fn keeps_results(&self) -> bool {
        // The event of a batch may have a key if the tag says so, or if the batch was in hand before.
        // Only the script knows whether the producer awaits it.
        self.session.config.event_log.is_some() || self.tag.is_keyed || self.tag.is_again()
    }

    fn object(&self, name: &str) -> Result<ObjectName, NameError> {
        self.session.config.keys.object(name)
    }
}

impl fmt::Debug for BatchLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in slot {}", self.tag, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the counted fields are those of the hash in Redis. Until an event of the batch
    /// writes progress, these are the fields of the leftover. After that they are the fields of the
    /// latest event.
    #[test]
    fn the_fields_are_those_of_the_latest_event() {
        let fields = Fields::default();
        fields.add(0, 1000);
        assert_eq!(fields.count(), 1000);
        fields.add(7, 1);
        fields.add(7, 1);
        assert_eq!(fields.count(), 2);
        fields.add(8, 1);
        // A task that the handler of an earlier event has spawned may still report progress. It is
        // not counted here, because Redis refuses it.
        fields.add(7, 1);
        assert_eq!(fields.count(), 1);
    }
}
