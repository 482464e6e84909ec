//! The worker's ledger, as a sink sees it. The ledger has the handler progress of an event until
//! the event is finalized.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::event::{NameError, ObjectName};
use crate::wire;

/// The stored handler progress of a batch. Another worker may have had the batch before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Id of the event whose progress is stored; 0 if there is no progress. The events before it in
    /// the batch are finished.
    pub(crate) id: u64,
    /// Finished handlers and subtasks of this event, `handler:ID` and `once:SUBTASK`, with the values
    /// of their fields.
    pub(crate) finished: BTreeMap<String, String>,
    /// Number and bytes of the events that the finished handlers have emitted. These events are
    /// pushed when their handlers' event is finalized.
    pub(crate) emitted: (usize, usize),
    /// Number of bytes of the stored results.
    pub(crate) results: usize,
}

impl Progress {
    /// Returns the number of bytes of the values that subtasks have returned.
    pub(crate) fn returned(&self) -> usize {
        self.finished
            .values()
            .filter_map(|value| wire::returned(value))
            .map(str::len)
            .sum()
    }
}

/// Values that are stored together with the success of a handler. Each is a field of the ledger and
/// its value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct With<'a> {
    /// The value that a subtask has returned, as JSON text.
    pub(crate) returned: Option<&'a [u8]>,
    /// The field `emit:ID`, and the emits of the handler.
    pub(crate) emits: Option<(&'a str, &'a [u8])>,
    /// The field `result:ID`, and the result of the handler.
    pub(crate) result: Option<(&'a str, &'a [u8])>,
}

/// The reason why progress could not be written or read.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LedgerError {
    /// Another worker has the batch now, so all further work on it is in vain.
    #[error("this worker has lost the event")]
    Lost,
    /// A failure that does not end with time.
    #[error("{0}")]
    Failed(String),
}

/// The ledger of one batch. If Redis does not reply, the calls wait until it does.
#[async_trait]
pub(crate) trait Ledger: fmt::Debug + Send + Sync {
    async fn read(&self) -> Result<Progress, LedgerError>;

    /// Records that a handler or subtask of the event `id` is finished, together with its values.
    async fn write(&self, id: u64, field: &str, with: With<'_>) -> Result<(), LedgerError>;

    /// Returns whether results are needed when the event is finalized: the event log is on, or the
    /// producer of the event may await them.
    fn keeps_results(&self) -> bool;

    /// Returns whether the lease may have ended, so that another process may have the batch.
    fn may_be_lost(&self) -> bool {
        false
    }

    /// Checks the name of an object for which an event is emitted.
    fn object(&self, name: &str) -> Result<ObjectName, NameError>;
}
