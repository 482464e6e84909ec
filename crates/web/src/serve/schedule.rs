//! The routes for schedules and tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use seriatim::emit::{Cancelled, Change, Schedule};
use seriatim::event::Json;
use seriatim_console::task;

use super::emit::{idempotency_key, name};
use super::request::{parse_borrowed, read};
use super::{App, errors};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// The body of a schedule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
    key: Option<String>,
    /// The due time: Unix seconds, as a number or a text, or RFC 3339.
    #[serde(borrow, default)]
    time: Option<&'a RawValue>,
    after_ms: Option<u64>,
    #[serde(default)]
    mode: Mode,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Replace,
    KeepTime,
    KeepFirst,
}

/// `POST /v1/objects/{object}/schedule`.
pub(super) async fn schedule(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    let object = permitted(&app, &asked)?;
    let body = read(&app, &asked, body).await?;
    let wanted: Wanted<'_> = parse_borrowed(&body)?;
    let event = Json::new(Bytes::copy_from_slice(wanted.event.get().as_bytes()));
    let mut schedule = app.emitter.schedule(&object, event);
    schedule = match (wanted.time, wanted.after_ms) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad_request("the body has both time and after_ms"));
        }
        (Some(time), None) => schedule.at(task::time(time).map_err(Problem::bad_request)?),
        (None, Some(ms)) => schedule.after(Duration::from_millis(ms)),
        (None, None) => {
            return Err(Problem::bad_request(
                "the body has neither time nor after_ms",
            ));
        }
    };
    match (wanted.key, idempotency_key(&asked.headers)?) {
        (Some(key), _) => schedule = schedule.key(key),
        (None, None) => {}
        (None, Some(_)) => {
            return Err(Problem::bad_request(
                "a schedule is repeated by its key: send key in place of Idempotency-Key",
            ));
        }
    }
    schedule = match wanted.mode {
        Mode::Replace => schedule,
        Mode::KeepTime => schedule.keep_time(),
        Mode::KeepFirst => schedule.keep_first(),
    };
    send(schedule).await
}

/// `POST /v1/objects/{object}/tasks`: the whole body is the event. The members `id` and `time` of
/// the body are the key and the due time of the schedule; it needs a `url`.
pub(super) async fn post_task(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    let object = permitted(&app, &asked)?;
    let body = read(&app, &asked, body).await?;
    let task = task::parse(&body).map_err(Problem::bad_request)?;
    send(
        app.emitter
            .schedule(&object, Json::new(body.bytes()))
            .at(task.at)
            .key(task.id),
    )
    .await
}

/// `DELETE /v1/objects/{object}/schedule/{key}`, or `DELETE /v1/object/schedule` with object and
/// key in the query.
pub(super) async fn cancel(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let object = permitted(&app, &asked)?;
    let key = match asked.segment(2) {
        Some("objects") => asked.last_segment()?,
        _ => asked
            .query("key")?
            .ok_or_else(|| Problem::bad_request("the request names no key: add &key=KEY"))?,
    };
    match app
        .emitter
        .cancel(&object, key)
        .await
        .map_err(|error| errors::emit(&error))?
    {
        Cancelled::Cancelled => Ok(StatusCode::NO_CONTENT.into_response()),
        Cancelled::Running => {
            let detail = "the event is in flight: a worker has it, and it goes on";
            Err(Problem::new(StatusCode::CONFLICT, "running", detail))
        }
        _ => Err(Problem::not_found(
            "there is no event with this key: it was never scheduled, or it is over",
        )),
    }
}

fn permitted(app: &App, asked: &Asked) -> Result<String, Problem> {
    let object = asked.object()?;
    asked.user.may(Right::Emit, &object)?;
    name(app, &object)
}

async fn send(schedule: Schedule<'_>) -> Result<Response, Problem> {
    let scheduled = schedule
        .send()
        .await
        .map_err(|error| errors::emit(&error))?;
    let change = match scheduled.change {
        Change::New => "new",
        Change::Replaced => "replaced",
        Change::Kept => "kept",
        _ => "running",
    };
    let answer = serde_json::json!({ "key": scheduled.key.as_str(), "due_ms": scheduled.due_ms, "change": change });
    Ok((
        StatusCode::ACCEPTED,
        [(CONTENT_TYPE, "application/json")],
        answer.to_string(),
    )
        .into_response())
}
