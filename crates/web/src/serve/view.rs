//! The routes that only read: objects, lists and figures of the system.

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use seriatim::control::{Cursor, RowId};

use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::operator::Looks;
use seriatim::control::held::{HeldFilter, WaitsFor};
use seriatim_console::{named, units};

/// The number of rows of a page if the request has no `limit`.
const PAGE: usize = 50;
/// The most rows of a page.
const PAGE_MAX: usize = 100;

/// Returns these routes for any server whose state has [`Looks`].
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S>
where
    Looks: FromRef<S>,
{
    Router::new()
        .route("/v1/objects/{object}", get(object))
        .route("/v1/object", get(object))
        .route("/v1/objects/{object}/schedule", get(schedules_of))
        .route("/v1/object/schedule", get(schedules_of))
        .route("/v1/objects/{object}/chain", get(chain))
        .route("/v1/object/chain", get(chain))
        .route("/v1/stats", get(stats))
        .route("/v1/schedule", get(schedules))
        .route("/v1/held", get(held))
        .route("/v1/paused", get(paused))
        .route("/v1/dead", get(dead_letters))
        .route("/v1/dead/{id}", get(dead_letter))
        .route("/v1/rules", get(rules))
        .route("/v1/shares", get(shares))
        .route("/v1/actions", get(actions))
        .route("/v1/log", get(log))
        .route("/v1/cron", get(cron))
        .route("/v1/workers", get(workers))
        .route("/v1/worker", get(worker))
        .route("/v1/queues", get(queues))
        .route("/v1/depth", get(depth))
        .route("/v1/check", get(check))
}

/// Returns a response whose body is the value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Response, Problem> {
    let failed = |error| {
        Problem::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            error,
        )
    };
    let body = serde_json::to_vec(value).map_err(failed)?;
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

fn after(asked: &Asked) -> Result<Option<Cursor>, Problem> {
    Ok(asked.query("after")?.map(Cursor::from))
}

fn limit(asked: &Asked) -> Result<usize, Problem> {
    match asked.parsed::<usize>("limit")? {
        None => Ok(PAGE),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::bad_request("the parameter limit must be 1 to 100")),
    }
}

/// Returns the prefix of names that the request selects; an absent one is empty.
fn prefix(asked: &Asked) -> Result<String, Problem> {
    let prefix = asked.query("prefix")?.unwrap_or_default();
    let checked = named::check_prefix(prefix.as_bytes());
    checked.map_err(|why| Problem::bad_request(format!("the parameter prefix: {why}")))?;
    Ok(prefix)
}

/// `GET /v1/objects/{object}`.
async fn object(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(&looks.object(&asked.user, &asked.object()?).await?)
}

/// `GET /v1/stats`.
async fn stats(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(&looks.stats(&asked.user).await?)
}

/// `GET /v1/objects/{object}/schedule`.
async fn schedules_of(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(
        &looks
            .schedules_of(
                &asked.user,
                &asked.object()?,
                after(&asked)?.as_ref(),
                limit(&asked)?,
            )
            .await?,
    )
}

/// `GET /v1/schedule`, with `from` and `to`.
async fn schedules(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let time = |name: &str| -> Result<Option<u64>, Problem> {
        let parse = |text: String| {
            units::instant(&text)
                .map_err(|why| Problem::bad_request(format!("the parameter {name}: {why}")))
        };
        let at = asked.query(name)?.map(parse).transpose()?;
        Ok(at.and_then(|at| {
            u64::try_from(
                at.duration_since(std::time::UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_millis(),
            )
            .ok()
        }))
    };
    let range = (time("from")?, time("to")?);
    json(
        &looks
            .schedules(&asked.user, range, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/held`, with `until_released`, `due` and `prefix`.
async fn held(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let prefix = prefix(&asked)?;
    let which = HeldFilter {
        prefix: prefix.as_bytes(),
        waits_for: asked
            .parsed("until_released")?
            .unwrap_or(false)
            .then_some(WaitsFor::Operator),
        due: asked.parsed("due")?.unwrap_or(false),
    };
    json(
        &looks
            .held(&asked.user, &which, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/paused`, with `prefix`.
async fn paused(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let prefix = prefix(&asked)?;
    json(
        &looks
            .paused(
                &asked.user,
                prefix.as_bytes(),
                after(&asked)?.as_ref(),
                limit(&asked)?,
            )
            .await?,
    )
}

/// `GET /v1/dead`, with `object` and `newest`.
async fn dead_letters(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let newest = asked.parsed("newest")?.unwrap_or(false);
    let object = asked.query("object")?.map(|_| asked.object()).transpose()?;
    json(
        &looks
            .dead_letters(
                &asked.user,
                object.as_deref(),
                newest,
                after(&asked)?.as_ref(),
                limit(&asked)?,
            )
            .await?,
    )
}

/// `GET /v1/dead/{id}`.
async fn dead_letter(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(
        &looks
            .dead_letter(&asked.user, &RowId::from(asked.last_segment()?))
            .await?,
    )
}

/// `GET /v1/rules`.
async fn rules(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(&looks.rules(&asked.user).await?)
}

/// `GET /v1/shares`.
async fn shares(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(&serde_json::json!({ "shares": looks.shares(&asked.user).await? }))
}

/// `GET /v1/actions`, with `object`.
async fn actions(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let (after, limit) = (after(&asked)?, limit(&asked)?);
    match asked.query("object")? {
        Some(_) => json(
            &looks
                .actions_of(&asked.user, &asked.object()?, after.as_ref(), limit, 1)
                .await?,
        ),
        None => json(&looks.actions(&asked.user, after.as_ref(), limit).await?),
    }
}

/// `GET /v1/objects/{object}/chain`.
async fn chain(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(
        &looks
            .chain(
                &asked.user,
                &asked.object()?,
                after(&asked)?.as_ref(),
                limit(&asked)?,
            )
            .await?,
    )
}

/// `GET /v1/log`, with `newest`.
async fn log(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let newest = asked.parsed("newest")?.unwrap_or(false);
    json(
        &looks
            .log(&asked.user, newest, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/cron`.
async fn cron(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(
        &looks
            .crons(&asked.user, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/workers`.
async fn workers(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(
        &looks
            .workers(&asked.user, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/worker?name=…`.
async fn worker(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    let name = asked
        .query("name")?
        .ok_or_else(|| Problem::bad_request("the request names no worker: add ?name=NAME"))?;
    json(
        &looks
            .worker(&asked.user, &name, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/queues`.
async fn queues(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(&looks.queues(&asked.user, limit(&asked)?).await?)
}

/// `GET /v1/depth`.
async fn depth(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(
        &looks
            .depth(&asked.user, after(&asked)?.as_ref(), limit(&asked)?)
            .await?,
    )
}

/// `GET /v1/check`.
async fn check(State(looks): State<Looks>, asked: Asked) -> Result<Response, Problem> {
    json(&looks.check(&asked.user).await?)
}
