//! The error of claiming by hand.

use std::sync::Arc;

use crate::worker::error::WorkerError;

/// The error of a claim or of a result.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The lease lapsed, another process took the name, or the claims were closed. The event comes
    /// again, here or elsewhere, with the same id.
    #[error("this worker has lost the event; it comes again, here or elsewhere")]
    Lost,
    /// The worker cannot go on.
    #[error(transparent)]
    Ended(Arc<WorkerError>),
}
