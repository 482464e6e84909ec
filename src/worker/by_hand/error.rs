//! Why claiming by hand fails.

use std::sync::Arc;

use crate::worker::error::WorkerError;

/// Why an event could not be claimed, or an answer not be taken.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The lease lapsed, another process took the name, or the claims were closed: the event comes
    /// again, here or elsewhere, with the same id.
    #[error("the event is not this worker's any more; it comes again, here or elsewhere")]
    Lost,
    /// The worker cannot go on at all.
    #[error(transparent)]
    Ended(Arc<WorkerError>),
}
