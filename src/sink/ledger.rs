//! The worker's ledger as a sink sees it: the handler progress of an event until the event is
//! committed.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;

use crate::event::{NameError, ObjectName};

/// The stored progress of a batch that another worker may have had before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The id of the event whose progress is stored; 0: none. The events before it in the batch are
    /// finished.
    pub(crate) id: u64,
    /// The event's finished handlers and subtasks: `handler:ID`, `once:SUBTASK`.
    pub(crate) finished: BTreeSet<String>,
    /// The number and the bytes of the events that these handlers have emitted. They are pushed
    /// when the event is finalized.
    pub(crate) emitted: (usize, usize),
    /// The bytes of the stored results.
    pub(crate) results: usize,
}

/// The values stored with the success of a handler, each a field and its value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct With<'a> {
    /// `emit:ID`: the emits.
    pub(crate) emits: Option<(&'a str, &'a [u8])>,
    /// `result:ID`: the result.
    pub(crate) result: Option<(&'a str, &'a [u8])>,
}

/// The reason why progress could not be written or read.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LedgerError {
    /// Another worker has the batch: all further work is in vain.
    #[error("this worker has lost the event")]
    Lost,
    /// A failure that waiting does not repair.
    #[error("{0}")]
    Failed(String),
}

/// The ledger of one batch. Its calls wait as long as Redis does not reply.
#[async_trait]
pub(crate) trait Ledger: fmt::Debug + Send + Sync {
    async fn read(&self) -> Result<Progress, LedgerError>;

    /// Records that a handler or subtask of the event with this id is finished, with its values.
    async fn write(&self, id: u64, field: &str, with: With<'_>) -> Result<(), LedgerError>;

    /// Returns whether finalizing the event writes results into the event log.
    fn logs(&self) -> bool;

    /// Checks the name of an object for which an event is emitted.
    fn object(&self, name: &str) -> Result<ObjectName, NameError>;
}
