//! The requests that may be open at a receiver: what a sink records so that a receiver never works on
//! two requests of one object at a time.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::Context;

/// The shortest and the longest time limit of a request.
const LIMITS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(3600));

/// The answer to [`Context::open_request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// The request may be sent. It must end before the time limit is over, counted from the call of
    /// [`Context::open_request`].
    Now {
        /// The number of the request, for the receiver. It is above the numbers of all earlier
        /// requests, of all objects. So a store that keeps the highest number can refuse late
        /// writes of earlier requests.
        number: u64,
        /// The time at which the time limit is over, by Redis' clock. A receiver must stop its work
        /// before.
        deadline: SystemTime,
    },
    /// An earlier request of this object may still be open at the receiver, for this time at most. The
    /// sink returns [`Stop::Postponed`](super::Stop::Postponed) with this time.
    Earlier(Duration),
}

/// The reason why a request cannot be recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Another worker has the batch now. The sink must not send it.
    #[error("this worker has lost the event")]
    Lost,
    /// A failure that does not end with time.
    #[error("{0}")]
    Failed(String),
}

/// The record of the requests with events of one batch. If Redis does not reply, the calls wait until
/// it does.
#[async_trait]
pub(crate) trait Requests: fmt::Debug + Send + Sync {
    async fn open(&self, limit: Duration) -> Result<Opened, RequestError>;

    async fn over(&self) -> Result<(), RequestError>;
}

impl Context {
    /// Records in Redis that a request with events of this batch is sent to a receiver now, unless an
    /// earlier request of the object may be open there. Until [`Self::request_over`], or until `limit`
    /// and a margin of 2 s have passed by Redis' clock, no worker process may open a further request
    /// of this object. `limit`: 1 ms to 1 h, in whole milliseconds; others are brought into this
    /// range.
    ///
    /// A delivery has one open request at a time: the next call says that the request before is over.
    /// The margin is for a request that is still on its way when its time limit is over.
    ///
    /// Returns `None` outside of a worker.
    ///
    /// Cancellation: after the future is dropped, a request may count as open until its time is over.
    ///
    /// # Errors
    /// [`RequestError::Lost`] if another worker has the batch now. [`RequestError::Failed`] if a key has
    /// a wrong type, or a right is missing.
    pub async fn open_request(&self, limit: Duration) -> Result<Option<Opened>, RequestError> {
        match &self.requests {
            Some(requests) => requests
                .open(limit.clamp(LIMITS.0, LIMITS.1))
                .await
                .map(Some),
            None => Ok(None),
        }
    }

    /// Records that the last request of this delivery is known to be over: the receiver has answered,
    /// or has not got it. Without this call, the object waits until the time of the request is over.
    ///
    /// Cancellation: after the future is dropped, the request may count as open until its time is over.
    ///
    /// # Errors
    /// [`RequestError::Failed`] if a key has a wrong type, or a right is missing.
    pub async fn request_over(&self) -> Result<(), RequestError> {
        match &self.requests {
            Some(requests) => requests.over().await,
            None => Ok(()),
        }
    }
}
