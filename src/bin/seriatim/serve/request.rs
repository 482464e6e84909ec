//! The parts of a request: its user, its object, its parameters and its body.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use url::form_urlencoded;

use super::App;
use crate::listen::problem::Problem;
use crate::listen::users::User;

/// The most bytes that the bodies of all requests may have in memory together: 256 MiB.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// The longest time until the whole body of a request must have come.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// A request without its body: its user, its headers and its target.
pub(super) struct Asked {
    pub(super) user: User,
    pub(super) headers: HeaderMap,
    uri: Uri,
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // The guard has put the user into the extensions of the request.
        let user = parts.extensions.get::<User>().cloned();
        let user = user.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "no user").with_login())?;
        Ok(Self { user, headers: parts.headers.clone(), uri: parts.uri.clone() })
    }
}

impl Asked {
    /// Returns the bytes of the object's name. It is in the path `/v1/objects/NAME`, or else in the
    /// parameter `object` of the query.
    pub(super) fn object(&self) -> Result<Vec<u8>, Problem> {
        let found = match self.segment(3) {
            Some(name) if self.segment(2) == Some("objects") => Some(percent_decode_str(name).collect()),
            _ => {
                // This line only checks that the parameter is not there twice.
                self.query("object")?;
                self.query_bytes("object")
            }
        };
        found
            .filter(|name: &Vec<u8>| !name.is_empty())
            .ok_or_else(|| Problem::bad_request("the request names no object: add ?object=NAME"))
    }

    /// Returns a part of the path, not decoded. In `/v1/objects`, part 1 is `v1`.
    pub(super) fn segment(&self, at: usize) -> Option<&str> {
        self.uri.path().split('/').nth(at)
    }

    /// Returns the decoded part of the path that follows the last slash.
    pub(super) fn last_segment(&self) -> Result<String, Problem> {
        let last = self.uri.path().rsplit('/').next().unwrap_or_default();
        let text = percent_decode_str(last).decode_utf8();
        text.map(std::borrow::Cow::into_owned).map_err(|_| Problem::bad_request("the end of the path is not UTF-8"))
    }

    /// Returns a parameter of the query, if it is there. If it is there twice, returns an error.
    pub(super) fn query(&self, name: &str) -> Result<Option<String>, Problem> {
        let query = self.uri.query().unwrap_or_default().as_bytes();
        let mut found = form_urlencoded::parse(query).filter(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(Problem::bad_request(format!("the parameter {name} is there twice"))),
            (found, None) => Ok(found),
        }
    }

    /// Returns the bytes of a parameter, which need not be UTF-8.
    fn query_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let value = self.uri.query()?.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
        Some(percent_decode_str(&value.replace('+', " ")).collect())
    }

    /// Returns a parameter as a number or another parsed value.
    pub(super) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let parse = |text: String| text.parse().map_err(|error| Problem::bad_request(format!("the parameter {name}: {error}")));
        self.query(name)?.map(parse).transpose()
    }
}

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
