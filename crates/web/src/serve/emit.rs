//! The route for one emit per request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::HeaderName;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use seriatim::event::Json;
use seriatim::{EmitError, Emitted};

use super::request::{Whole, parse_borrowed, read};
use super::view::json;
use super::{App, errors};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The body of an emit with `?parts=true`: the parts of the emit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
    #[serde(borrow, default)]
    subevents: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// An answer to an emit.
#[derive(Serialize)]
struct Answer {
    events: usize,
    /// An emit with an idempotency key may be repeated, and must then get the same answer. So its
    /// answer has no number of queued events, which changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<u64>,
}

/// `POST /v1/objects/{object}/events`: the body is the event, or with `?parts=true` an event with
/// subevents and data.
pub(super) async fn emit(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    let object = asked.object()?;
    asked.user.may(Right::Emit, &object)?;
    let object = name(&app, &object)?;
    let with_parts = asked.parsed::<bool>("parts")?.unwrap_or(false);
    let key = idempotency_key(&asked.headers)?;
    let has_key = key.is_some();
    let body = read(&app, &asked, body).await?;
    let emitted = send(&app, &object, &body, with_parts, key)
        .await?
        .map_err(|error| errors::emit(&error))?;
    let answer = Answer {
        events: emitted.events,
        queued: (!has_key).then_some(emitted.queued),
    };
    let mut response = (StatusCode::ACCEPTED, json(&answer)?).into_response();
    if emitted.repeated {
        response
            .headers_mut()
            .insert(REPLAYED, axum::http::HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn send(
    app: &App,
    object: &str,
    body: &Whole,
    with_parts: bool,
    key: Option<String>,
) -> Result<Result<Emitted, EmitError>, Problem> {
    let part = |value: &RawValue| Json::new(Bytes::copy_from_slice(value.get().as_bytes()));
    let emit = if with_parts {
        let parts: Parts<'_> = parse_borrowed(body)?;
        let mut emit = app.emitter.event(object, part(parts.event));
        for event in &parts.subevents {
            emit = emit.sub(part(event));
        }
        match parts.data {
            Some(data) => emit.data(part(data)),
            None => emit,
        }
    } else {
        app.emitter.event(object, Json::new(body.bytes()))
    };
    Ok(match key {
        Some(key) => emit.idempotency_key(key).send().await,
        None => emit.send().await,
    })
}

/// Returns the name of an object, if it is valid.
pub(super) fn name(app: &App, object: &[u8]) -> Result<String, Problem> {
    let text = std::str::from_utf8(object)
        .map_err(|_| Problem::bad_request("the name of the object is not UTF-8"))?;
    app.emitter
        .keys()
        .object(text)
        .map_err(|error| Problem::bad_request(format!("the name of the object: {error}")))?;
    Ok(text.to_owned())
}

/// Returns the value of the header `Idempotency-Key`, if any. Removes the quotes around the value,
/// which the draft of this header requires.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let text = std::str::from_utf8(value.as_bytes())
                .map_err(|_| Problem::bad_request("Idempotency-Key is not UTF-8"))?;
            let bare = text
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"'))
                .unwrap_or(text);
            Ok(Some(bare.to_owned()))
        }
        (Some(_), Some(_)) => Err(Problem::bad_request(
            "the header Idempotency-Key is there twice",
        )),
    }
}
