//! The routes that set and remove shares of groups. A share of some objects changes the turns of all
//! others, so both need the right `operate` for all objects.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use seriatim::control::rules::Selector;
use seriatim::control::shares::{Priority, Share, ShareDone};

use super::App;
use super::operate::by;
use super::request::{parse, read_act};
use super::view::json;
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;
use crate::operator::action_problem;

/// The body of a share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewShare {
    selector: String,
    weight: Option<u64>,
    priority: Option<String>,
    in_flight: Option<u64>,
    /// The most events per second.
    rate: Option<f64>,
    /// The most events above the rate.
    burst: Option<u64>,
    #[serde(default)]
    reason: String,
}

/// `POST /v1/shares`.
pub(super) async fn set(
    State(app): State<Arc<App>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    asked.user.may_all(Right::Operate)?;
    let wanted: NewShare = parse(&read_act(&app, &asked, body).await?)?;
    let selector = selector(&wanted.selector)?;
    let mut share = Share::new();
    if let Some(weight) = wanted.weight {
        share = share.weight(weight);
    }
    if let Some(word) = &wanted.priority {
        share = share.priority(priority(word)?);
    }
    if let Some(objects) = wanted.in_flight {
        share = share.in_flight(objects);
    }
    if let Some(events_per_second) = wanted.rate {
        share = share.rate(events_per_second);
    }
    if let Some(events) = wanted.burst {
        share = share.burst(events);
    }
    let done = app
        .control
        .set_share(by(&asked.user, &wanted.reason), &selector, share)
        .await
        .map_err(action_problem)?;
    json(&serde_json::json!({ "selector": selector, "was_set": done == ShareDone::Again }))
}

/// `DELETE /v1/shares?selector=…&reason=…`.
pub(super) async fn remove(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    asked.user.may_all(Right::Operate)?;
    let missing = || Problem::bad_request("the request names no selector: add selector=…");
    let selector = selector(&asked.query("selector")?.ok_or_else(missing)?)?;
    let reason = asked.query("reason")?.unwrap_or_default();
    match app
        .control
        .remove_share(by(&asked.user, &reason), &selector)
        .await
        .map_err(action_problem)?
    {
        ShareDone::NotSet => Err(Problem::not_found(format!(
            "there is no share for {selector}: nothing was done"
        ))),
        _ => json(&serde_json::json!({ "selector": selector, "removed": true })),
    }
}

fn selector(text: &str) -> Result<Selector, Problem> {
    text.parse()
        .map_err(|error| Problem::bad_request(format!("the selector: {error}")))
}

fn priority(word: &str) -> Result<Priority, Problem> {
    let found = [Priority::High, Priority::Normal, Priority::Low]
        .into_iter()
        .find(|priority| priority.word() == word);
    found.ok_or_else(|| {
        Problem::bad_request(format!(
            "{word:?} is not a priority; the priorities are high, normal and low"
        ))
    })
}
