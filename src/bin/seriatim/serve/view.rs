//! The routes that only read: objects, lists and figures of the system.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use seriatim::control::ended::Ended;
use seriatim::control::inspect::Inspection;
use seriatim::control::{Cursor, RowId};

use super::request::Asked;
use super::{App, errors};
use crate::console::units;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// The number of rows of a page if the request has no `limit`.
const PAGE: usize = 50;
/// The most rows of a page.
const PAGE_MAX: usize = 100;

/// Returns a response whose body is the value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Response, Problem> {
    let failed = |error| Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "internal", error);
    let body = serde_json::to_vec(value).map_err(failed)?;
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// A page of a list.
#[derive(Serialize)]
struct Page<T> {
    rows: Vec<T>,
    /// The value for the parameter `after` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Cursor>,
}

impl Asked {
    fn after(&self) -> Result<Option<Cursor>, Problem> {
        Ok(self.query("after")?.map(Cursor::from))
    }

    fn limit(&self) -> Result<usize, Problem> {
        match self.parsed::<usize>("limit")? {
            None => Ok(PAGE),
            Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
            Some(_) => Err(Problem::bad_request("the parameter limit must be 1 to 100")),
        }
    }

    /// Returns whether the user may see this object of a list. `escaped`: its escaped name, if the
    /// name is not plain text.
    pub(super) fn shows(&self, object: &str, escaped: Option<&str>) -> bool {
        match escaped.map(seriatim::escape::unescaped) {
            Some(Ok(bytes)) => self.user.has(&bytes),
            _ => self.user.has(object.as_bytes()),
        }
    }
}

/// `GET /v1/objects/{object}`.
pub(super) async fn object(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Seen {
        #[serde(flatten)]
        inspection: Inspection,
        ended: Ended,
    }
    let object = asked.object()?;
    asked.user.may(Right::View, &object)?;
    let inspection = app.control.inspect(&object).await.map_err(errors::control)?;
    let ended = app.control.ended(&object).await.map_err(errors::control)?;
    json(&Seen { inspection, ended })
}

/// `GET /v1/stats`.
pub(super) async fn stats(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_all(Right::View)?;
    json(&app.control.stats().await.map_err(errors::control)?)
}

/// `GET /v1/objects/{object}/schedule`.
pub(super) async fn schedules_of(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let object = asked.object()?;
    asked.user.may(Right::View, &object)?;
    let page = app.control.schedules_of(&object, asked.after()?.as_ref(), asked.limit()?).await.map_err(errors::control)?;
    json(&Page { rows: page.schedules, next: page.next })
}

/// `GET /v1/schedule`, with `from` and `to`.
pub(super) async fn schedules(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let time = |name: &str| -> Result<Option<u64>, Problem> {
        let parse =
            |text: String| units::instant(&text).map_err(|why| Problem::bad_request(format!("the parameter {name}: {why}")));
        let at = asked.query(name)?.map(parse).transpose()?;
        Ok(at.and_then(|at| u64::try_from(at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis()).ok()))
    };
    let found = app.control.schedules(time("from")?, time("to")?, asked.after()?.as_ref(), asked.limit()?).await;
    let page = found.map_err(errors::control)?;
    let rows = page.schedules.into_iter().filter(|row| asked.shows(&row.object, row.object_escaped.as_deref()));
    json(&Page { rows: rows.collect(), next: page.next })
}

/// `GET /v1/held`, with `until_released`.
pub(super) async fn held(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let until_released = asked.parsed("until_released")?.unwrap_or(false);
    let page = app.control.held(until_released, asked.after()?.as_ref(), asked.limit()?).await.map_err(errors::control)?;
    let rows = page.objects.into_iter().filter(|row| asked.shows(&row.object, row.object_escaped.as_deref()));
    json(&Page { rows: rows.collect(), next: page.next })
}

/// `GET /v1/paused`.
pub(super) async fn paused(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let page = app.control.paused(asked.after()?.as_ref(), asked.limit()?).await.map_err(errors::control)?;
    let rows = page.objects.into_iter().filter(|row| asked.shows(&row.object, row.object_escaped.as_deref()));
    json(&Page { rows: rows.collect(), next: page.next })
}

/// `GET /v1/dead`, with `object` and `newest`.
pub(super) async fn dead_letters(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let (after, limit) = (asked.after()?, asked.limit()?);
    let newest = asked.parsed("newest")?.unwrap_or(false);
    let page = match asked.query("object")? {
        Some(_) => {
            let object = asked.object()?;
            asked.user.may(Right::View, &object)?;
            app.control.dead_letters_of(&object, newest, after.as_ref(), limit).await
        }
        None if newest => app.control.newest_dead_letters(after.as_ref(), limit).await,
        None => app.control.dead_letters(after.as_ref(), limit).await,
    };
    let page = page.map_err(errors::control)?;
    let rows = page.letters.into_iter().filter(|row| asked.shows(&row.object, row.object_escaped.as_deref()));
    json(&Page { rows: rows.collect(), next: page.next })
}

/// `GET /v1/dead/{id}`.
pub(super) async fn dead_letter(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let id = RowId::from(asked.last_segment()?);
    let found = app.control.dead_letter(&id).await.map_err(errors::control)?;
    // If the user may not see the object, the answer is the same as for a dead letter that does not
    // exist.
    let found = found.filter(|row| asked.shows(&row.object, row.object_escaped.as_deref()));
    json(&found.ok_or_else(|| Problem::not_found(format!("there is no dead letter {id}")))?)
}

/// `GET /v1/rules`.
pub(super) async fn rules(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_some(Right::View)?;
    let mut rules = app.control.rules().await.map_err(errors::control)?;
    rules.rules.retain(|rule| match rule.selector.as_str().strip_suffix('*') {
        Some(beginning) => asked.user.has_some(beginning.as_bytes()),
        None => asked.user.has(rule.selector.as_str().as_bytes()),
    });
    json(&rules)
}

/// `GET /v1/actions`.
pub(super) async fn actions(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_all(Right::View)?;
    let page = app.control.actions(asked.after()?.as_ref(), asked.limit()?).await.map_err(errors::control)?;
    json(&Page { rows: page.actions, next: page.next })
}
