//! The body of a request.

use std::ops::Deref;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::poll_immediate;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::App;
use crate::listen::asked::Asked;
use crate::listen::fair::{Fair, Taken};
use crate::listen::problem::Problem;
use crate::listen::users::User;

/// The most bytes that the bodies of emits may have in memory together: 256 MiB.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// The most bytes that the bodies of acts may have in memory together. They have a limit of their
/// own, so that emits cannot stop acts.
const ACTS_BYTES_MAX: usize = 32 << 20;
/// The most bytes of the body of an act: 100 ids and a reason are far fewer.
const ACT_BYTES_MAX: usize = 1 << 20;
/// The longest time until the whole body of a request must have come.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// The memory for bodies: limits of the bytes that the bodies of all requests have together.
pub(super) struct Room {
    emits: Fair,
    acts: Fair,
}

impl Room {
    /// `has_users`: whether there can be several users. Then one user has at most three quarters.
    pub(super) fn new(has_users: bool) -> Self {
        Self {
            emits: Fair::among(BODIES_BYTES_MAX, has_users),
            acts: Fair::among(ACTS_BYTES_MAX, has_users),
        }
    }

    /// Takes this number of bytes for the body of an emit, if they are free.
    pub(super) fn take(&self, user: &User, bytes: usize) -> Result<Taken, Problem> {
        take(&self.emits, user, bytes)
    }
}

fn take(room: &Fair, user: &User, bytes: usize) -> Result<Taken, Problem> {
    room.take(user, bytes).ok_or_else(|| {
        let detail = "the requests under way have too many bytes: nothing was done";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
    })
}

/// A whole body, and its bytes in the [`Room`].
pub(super) struct Whole {
    bytes: Bytes,
    _taken: Option<Taken>,
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

/// Reads the whole body of an emit. The caller keeps the result until the request is done, so that
/// the bytes count in the [`Room`] for this time.
pub(super) async fn read(app: &App, asked: &Asked, body: Body) -> Result<Whole, Problem> {
    read_into(&app.room.emits, app.body_bytes, asked, body).await
}

/// Reads the whole body of an act, as [`read`] does.
pub(super) async fn read_act(app: &App, asked: &Asked, body: Body) -> Result<Whole, Problem> {
    read_into(
        &app.room.acts,
        app.body_bytes.min(ACT_BYTES_MAX),
        asked,
        body,
    )
    .await
}

async fn read_into(
    room: &Fair,
    bytes_max: usize,
    asked: &Asked,
    body: Body,
) -> Result<Whole, Problem> {
    let too_large = || {
        let option = if bytes_max == ACT_BYTES_MAX {
            ""
        } else {
            " (--body-bytes)"
        };
        let detail = format!("the body has more than {bytes_max} bytes{option}");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    };
    let declared = asked
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    let whole = async {
        let (mut parts, mut all) = (body.into_data_stream(), BytesMut::new());
        let mut taken: Option<Taken> = None;
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| {
                Problem::bad_request(format!("the body cannot be read: {error}"))
            })?;
            if all.len() + part.len() > bytes_max {
                return Err(too_large());
            }
            let more = take(room, &asked.user, part.len())?;
            match &mut taken {
                Some(taken) => taken.merge(more),
                None => taken = Some(more),
            }
            all.extend_from_slice(&part);
        }
        Ok(Whole {
            bytes: all.freeze(),
            _taken: taken,
        })
    };
    let mut whole = std::pin::pin!(whole);
    // A small body has usually come with the head. Then it needs no timer.
    if let Some(read) = poll_immediate(whole.as_mut()).await {
        return read;
    }
    match timeout(BODY_TIME_MAX, whole).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the body did not come within 30 s",
        )),
    }
}

/// Parses a body as JSON. The types of bodies refuse unknown members, because these may be
/// misspelled.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::bad_request(format!("the body is not valid: {error}")))
}

/// Parses a body as JSON, into a type that borrows from the body.
pub(super) fn parse_borrowed<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::bad_request(format!("the body is not valid: {error}")))
}
