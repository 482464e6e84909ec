//! The routes for actions of an operator. Each action is recorded with the name of the user and the
//! given reason.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use seriatim::control::held::{Released, Skipped};
use seriatim::control::rules::{Kind, Ruled, Selector};
use seriatim::control::{By, RowId, Settle, Settled};

use super::App;
use super::request::{parse, read_act};
use super::view::json;
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::{action_problem, acts, control_problem, shows};

/// The body of an action that needs only a reason.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Reason {
    #[serde(default)]
    reason: String,
}

/// The body of a skip.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Skip {
    id: Option<u64>,
    #[serde(default)]
    reason: String,
}

/// The body of a rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRule {
    kind: String,
    selector: String,
    /// The time after which the rule ends by itself.
    for_ms: Option<u64>,
    #[serde(default)]
    reason: String,
}

fn conflict(detail: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::CONFLICT, "conflict", detail)
}

/// Reads a body that may be empty.
async fn body_of<T: Default + serde::de::DeserializeOwned>(
    app: &App,
    asked: &Asked,
    body: Body,
) -> Result<T, Problem> {
    let body = read_act(app, asked, body).await?;
    if body.is_empty() {
        Ok(T::default())
    } else {
        parse(&body)
    }
}

pub(super) fn by<'a>(user: &'a User, reason: &'a str) -> By<'a> {
    By {
        who: &user.name,
        why: reason,
    }
}

fn not_held(owner: &str) -> Problem {
    match owner {
        "" => conflict("the object is not held, and has no owner: nothing was done"),
        owner => conflict(format!(
            "the object is not held, worker {owner} has it: nothing was done"
        )),
    }
}

fn ruled() -> Problem {
    conflict("a rule holds the object: nothing was done; lift the rule")
}

fn without_ids(why: &str) -> Problem {
    conflict(format!(
        "the batch of the object has lost its ids ({why}): nothing was done; `seriatim repair` gives its events new ids"
    ))
}

/// `POST /v1/objects/{object}/release`.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    let object = asked.object()?;
    asked.user.may(Right::Operate, &object)?;
    let Reason { reason } = body_of(&app, &asked, body).await?;
    match app
        .control
        .release(by(&asked.user, &reason), &object)
        .await
        .map_err(action_problem)?
    {
        Released::Released(why) => json(&serde_json::json!({ "released": true, "why": why })),
        Released::NotHeld(owner) => Err(not_held(&owner)),
        Released::Paused => Err(ruled()),
        Released::NoIds(why) => Err(without_ids(&why)),
    }
}

/// `POST /v1/objects/{object}/skip`.
pub(super) async fn skip(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    let object = asked.object()?;
    asked.user.may(Right::Operate, &object)?;
    let Skip { id, reason } = body_of(&app, &asked, body).await?;
    match app
        .control
        .skip(by(&asked.user, &reason), &object, id)
        .await
        .map_err(action_problem)?
    {
        Skipped::Skipped { id, dead_id, left } => {
            json(&serde_json::json!({ "id": id, "dead_id": dead_id, "left": left }))
        }
        Skipped::NotHeld(owner) => Err(not_held(&owner)),
        Skipped::Paused => Err(ruled()),
        Skipped::NoIds(why) => Err(without_ids(&why)),
        Skipped::Other(id) => Err(conflict(format!(
            "the first event has the id {id}: nothing was done"
        ))),
        Skipped::NoBatch(why) => Err(conflict(format!(
            "the object has no event that was in hand ({why}): nothing was done; release it"
        ))),
    }
}

/// `POST /v1/dead/{id}/retry`.
pub(super) async fn retry(
    state: State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    settle(state, asked, body, Settle::Retry).await
}

/// `POST /v1/dead/{id}/drop`.
pub(super) async fn drop_letter(
    state: State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    settle(state, asked, body, Settle::Drop).await
}

async fn settle(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
    step: Settle,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::Operate)?;
    let id = RowId::from(asked.segment(3).unwrap_or_default());
    let Reason { reason } = body_of(&app, &asked, body).await?;
    let absent = || Problem::not_found(format!("there is no dead letter {id} (any more)"));
    let letter = app
        .control
        .dead_letter(&id)
        .await
        .map_err(control_problem)?
        .ok_or_else(absent)?;
    if !shows(
        &asked.user,
        &letter.object,
        letter.object_escaped.as_deref(),
    ) {
        return Err(absent());
    }
    let settled = app
        .control
        .settle(by(&asked.user, &reason), step, std::slice::from_ref(&id))
        .await
        .map_err(action_problem)?;
    match settled.first() {
        Some(retried @ (Settled::Retried | Settled::RetriedLate)) => json(
            &serde_json::json!({ "retried": id, "newer_delivered": *retried == Settled::RetriedLate }),
        ),
        Some(Settled::Dropped) => json(&serde_json::json!({ "dropped": id })),
        Some(Settled::Unreadable) => Err(conflict(
            "it has no object or no event: nothing was done; drop it",
        )),
        Some(Settled::WrongType) => Err(conflict(
            "the queue of its object is not a list: nothing was done",
        )),
        _ => Err(absent()),
    }
}

/// `POST /v1/rules`.
pub(super) async fn set_rule(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::Pause)?;
    let wanted: NewRule = parse(&read_act(&app, &asked, body).await?)?;
    let kind = kind_of(&wanted.kind)?;
    let selector = permitted(&asked, kind, &wanted.selector)?;
    let after = wanted.for_ms.map(Duration::from_millis);
    let ruled = app
        .control
        .set_rule(by(&asked.user, &wanted.reason), kind, &selector, after)
        .await;
    let was_set = matches!(ruled.map_err(action_problem)?, Ruled::Again);
    json(&serde_json::json!({ "kind": kind, "selector": selector, "was_set": was_set }))
}

/// `DELETE /v1/rules?kind=…&selector=…&reason=…`.
pub(super) async fn lift_rule(
    State(app): State<Arc<App>>,
    asked: Asked,
) -> Result<Response, Problem> {
    asked.user.may_some(Right::Pause)?;
    let missing =
        |name: &str| Problem::bad_request(format!("the request names no {name}: add {name}=…"));
    let kind = kind_of(&asked.query("kind")?.ok_or_else(|| missing("kind"))?)?;
    let text = asked
        .query("selector")?
        .ok_or_else(|| missing("selector"))?;
    let selector = permitted(&asked, kind, &text)?;
    let reason = asked.query("reason")?.unwrap_or_default();
    match app
        .control
        .lift_rule(by(&asked.user, &reason), kind, &selector)
        .await
        .map_err(action_problem)?
    {
        Ruled::NotSet => Err(Problem::not_found(format!(
            "there is no such rule for {selector}: nothing was done"
        ))),
        _ => json(&serde_json::json!({ "kind": kind, "selector": selector, "lifted": true })),
    }
}

fn kind_of(word: &str) -> Result<Kind, Problem> {
    match word {
        "pause" => Ok(Kind::Pause),
        "block" => Ok(Kind::Block),
        _ => Err(Problem::bad_request(format!(
            "{word:?} is not a kind of rules; the kinds are pause and block"
        ))),
    }
}

/// Returns the selector, if the user may set or lift this rule.
fn permitted(asked: &Asked, kind: Kind, text: &str) -> Result<Selector, Problem> {
    let selector: Selector = text
        .parse()
        .map_err(|error| Problem::bad_request(format!("the selector: {error}")))?;
    acts::may_rule(&asked.user, kind, &selector)?;
    Ok(selector)
}
