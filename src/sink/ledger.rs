//! Where a worker keeps what handlers have finished of an event until that event is committed, as a
//! sink sees it.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;

use crate::event::{NameError, ObjectName};

/// What was finished of the events of a batch when it was in other hands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The event this speaks of; those before it in the batch are finished. 0: none.
    pub(crate) id: u64,
    /// What is finished of it: `handler:ID`, `once:SUBTASK`.
    pub(crate) finished: BTreeSet<String>,
    /// How many events were emitted with that, and their bytes. They are pushed when the event is
    /// over.
    pub(crate) emitted: (usize, usize),
    /// The bytes of the results that are kept with that.
    pub(crate) results: usize,
}

/// What is kept with the success of a handler, each a field and its value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct With<'a> {
    /// `emit:ID`: what it has emitted.
    pub(crate) emits: Option<(&'a str, &'a [u8])>,
    /// `result:ID`: its result.
    pub(crate) result: Option<(&'a str, &'a [u8])>,
}

/// Why it could not be kept.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LedgerError {
    /// The batch is in other hands: whatever is done now is done in vain.
    #[error("the event is not this worker's any more")]
    Lost,
    /// Something stands in the way that waiting does not mend.
    #[error("{0}")]
    Failed(String),
}

/// One batch's. Waits as long as Redis does not answer.
#[async_trait]
pub(crate) trait Ledger: fmt::Debug + Send + Sync {
    async fn read(&self) -> Result<Progress, LedgerError>;

    /// Keeps that this is finished of the event with this id, and with it.
    async fn write(&self, id: u64, field: &str, with: With<'_>) -> Result<(), LedgerError>;

    /// Whether results are written into a row of the event log when the event ends.
    fn logs(&self) -> bool;

    /// Checks the name of an object for which something is emitted.
    fn object(&self, name: &str) -> Result<ObjectName, NameError>;
}
