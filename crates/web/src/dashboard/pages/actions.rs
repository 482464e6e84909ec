//! The recorded actions of operators, newest first.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::Action;

use super::{after, event, listed, name_of, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::html::format::{moment, number, object, text};
use crate::dashboard::html::{Frame, Update};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;

/// The number of actions of a page.
const ACTIONS: usize = 32;
/// The most steps of 32 actions in which a page looks for those on one object.
const STEPS: usize = 3;

/// `GET /actions?object=…`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    let wanted = parameter(&asked, "object")?;
    let (after, bytes) = (after(&asked)?, name_of(&wanted)?);
    let page = match bytes.is_empty() {
        true => {
            app.looks
                .actions(&asked.user, after.as_ref(), ACTIONS)
                .await?
        }
        false => {
            app.looks
                .actions_of(&asked.user, &bytes, after.as_ref(), ACTIONS, STEPS)
                .await?
        }
    };
    let heads = ["Time", "Action", "Subject", "Who", "Reason", "Details"];
    let content = html! {
        h1 { "Actions of operators" }
        form.filters role="search" aria-label="Filter" action={ (app.base) "/actions" } {
            label { "Object " input name="object" value=(wanted); }
            button type="submit" { "Show" }
        }
        p { "Redis keeps about the last 1,000. " @if !wanted.is_empty() { "Each page looks at up to 96 of them." } }
        (listed(
            (&app, "/actions", &[("object", &wanted)]),
            ("Actions of operators", &heads),
            &page,
            |action| row(&app.base, action),
        ))
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/actions",
        title: "Actions of operators",
        update: Update::No,
        forms: None,
    }
    .around(&content))
}

fn row(base: &str, action: &Action) -> Markup {
    let escaped = action.object_escaped.as_deref().unwrap_or(&action.object);
    html! {
        tr {
            td data-label="Time" { (moment(action.at_ms)) }
            td data-label="Action" { (text(&action.action, 40)) }
            td data-label="Subject" {
                @if let Some(cron) = &action.cron { "cron job " (text(action.cron_escaped.as_deref().unwrap_or(cron), 80)) }
                @else if action.many.is_some() || escaped == "*" || escaped.ends_with(":*") { (text(escaped, 120)) }
                @else { (object(base, escaped)) }
            }
            td data-label="Who" { (text(&action.who, 80)) }
            td data-label="Reason" { (text(&action.why, 500)) }
            td data-label="Details" {
                @if let Some(many) = &action.many {
                    (number(many.count)) " done, from " (text(many.first_escaped.as_deref().unwrap_or(&many.first), 80)) " to " (text(many.last_escaped.as_deref().unwrap_or(&many.last), 80)) ", since " (moment(many.began_ms)) " "
                    @if many.until_released { "(only those that waited for an operator) " }
                    @if let Some(why) = &many.held_why { "(only those held because of " (text(why, 200)) ") " }
                }
                @if let Some(id) = action.id { "event " (id) " " }
                @if let Some(dead_id) = &action.dead_id { "dead letter " (dead_id) " " }
                @if let Some(key) = &action.key { "key " (text(action.key_escaped.as_deref().unwrap_or(key), 80)) " " }
                @if let Some(error) = &action.error { (text(error, 300)) " " }
                @if let Some(dropped) = &action.event { (event(dropped)) }
            }
        }
    }
}
