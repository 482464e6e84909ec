//! Objects that wait for a rule, by name.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::HeldObject;

use super::{ROWS, after, listed, parameter, prefix_of};
use crate::dashboard::Dashboard;
use crate::dashboard::html::format::{link, number, object, text};
use crate::dashboard::html::{Frame, Update};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;

/// `GET /paused?prefix=…`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    let prefix = parameter(&asked, "prefix")?;
    let page = app
        .looks
        .paused(
            &asked.user,
            &prefix_of(&prefix)?,
            after(&asked)?.as_ref(),
            ROWS,
        )
        .await?;
    let heads = ["Object", "Rules", "Event", "In batch", "Was held"];
    let content = html! {
        h1 { "Paused objects" }
        p { "These objects wait until their " a href=(link(&app.base, "/rules", &[])) { "rules" } " are lifted. Sorted by name." }
        form.filters role="search" aria-label="Filter" action={ (app.base) "/paused" } {
            label { "Name begins with " input name="prefix" value=(prefix); }
            button type="submit" { "Show" }
        }
        (listed(
            (&app, "/paused", &[("prefix", &prefix)]),
            ("Paused objects", &heads),
            &page,
            |held| row(&app.base, held),
        ))
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/paused",
        title: "Paused objects",
        update: Update::No,
        forms: None,
    }
    .around(&content))
}

fn row(base: &str, row: &HeldObject) -> Markup {
    html! {
        tr {
            td data-label="Object" { (object(base, row.object_escaped.as_deref().unwrap_or(&row.object))) }
            td data-label="Rules" {
                @if row.rules.is_empty() { "–" }
                @for rule in &row.rules { (text(&rule.to_string(), 120)) " by " (text(&rule.actor, 64)) @if !rule.reason.is_empty() { ": " (text(&rule.reason, 200)) } br; }
            }
            td data-label="Event" { @if let Some(id) = row.id { (id) } @else { "–" } }
            td.number data-label="In batch" { (number(row.events)) }
            td data-label="Was held" { (text(&row.why, 300)) }
        }
    }
}
