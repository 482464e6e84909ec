//! The body of a request.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::App;
use crate::listen::problem::Problem;

/// The most bytes that the bodies of all requests may have in memory together: 256 MiB.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// The longest time until the whole body of a request must have come.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// The memory for bodies: a limit of the bytes that the bodies of all requests have together.
pub(super) struct Room(Arc<Semaphore>);

/// A number of bytes taken from the [`Room`]. When the value is dropped, the bytes are free again.
pub(super) type Taken = OwnedSemaphorePermit;

impl Room {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BODIES_BYTES_MAX)))
    }

    /// Takes this number of bytes, if they are free.
    pub(super) fn take(&self, bytes: usize) -> Result<Taken, Problem> {
        let taken = u32::try_from(bytes).ok().and_then(|bytes| self.0.clone().try_acquire_many_owned(bytes).ok());
        taken.ok_or_else(|| {
            let detail = "the requests under way have too many bytes: nothing was done";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
        })
    }
}

/// A whole body, and its bytes in the [`Room`].
pub(super) struct Whole {
    bytes: Bytes,
    _taken: Taken,
}

impl Whole {
    /// Returns the bytes of the body without copying them.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a whole body. The caller keeps the result until the request is done, so that the bytes
/// count in the [`Room`] for this time.
pub(super) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Whole, Problem> {
    let bytes_max = app.body_bytes;
    let too_large = || {
        let detail = format!("the body has more than {bytes_max} bytes (--body-bytes)");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    };
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    let whole = async {
        let (mut parts, mut all, mut taken) = (body.into_data_stream(), BytesMut::new(), app.room.take(0)?);
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| Problem::bad_request(format!("the body cannot be read: {error}")))?;
            if all.len() + part.len() > bytes_max {
                return Err(too_large());
            }
            taken.merge(app.room.take(part.len())?);
            all.extend_from_slice(&part);
        }
        Ok(Whole { bytes: all.freeze(), _taken: taken })
    };
    match timeout(BODY_TIME_MAX, whole).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come within 30 s")),
    }
}

/// Parses a body as JSON. The types of bodies refuse unknown members, because these may be
/// misspelled.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body is not valid: {error}")))
}

/// Parses a body as JSON, into a type that borrows from the body.
pub(super) fn parse_borrowed<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body is not valid: {error}")))
}
