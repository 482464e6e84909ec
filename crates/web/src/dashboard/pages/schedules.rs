//! Schedules of all objects, by due time.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::ScheduledEvent;

use super::{ROWS, after, event, listed, may_operate, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::html::acts::{ActForm, Forms};
use crate::dashboard::html::format::{link, object, text, time};
use crate::dashboard::html::{Frame, Update};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;

/// `GET /schedules`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    forms: Forms,
) -> Result<Response, Problem> {
    let page = app
        .looks
        .schedules(&asked.user, (None, None), after(&asked)?.as_ref(), ROWS)
        .await?;
    let now_ms = page.now_ms.unwrap_or(0);
    let back = link("", "/schedules", &[("after", &parameter(&asked, "after")?)]);
    let may = may_operate(&asked.user);
    let heads = ["Object", "Key", "Due", "Event", "Action"];
    let content = html! {
        h1 { "Schedules" }
        p { "These events are queued when they are due." }
        (listed(
            (&app, "/schedules", &[]),
            ("Schedules", if may { &heads } else { &heads[..4] }),
            &page,
            |row| schedule(&app, &forms, &back, row, now_ms, may),
        ))
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/schedules",
        title: "Schedules",
        update: Update::No,
        forms: Some(&forms),
    }
    .around(&content))
}

fn schedule(
    app: &Dashboard,
    forms: &Forms,
    back: &str,
    row: &ScheduledEvent,
    now_ms: u64,
    may: bool,
) -> Markup {
    let escaped = row.object_escaped.as_deref().unwrap_or(&row.object);
    let key = row.key_escaped.as_deref().unwrap_or(&row.key);
    html! {
        tr {
            td data-label="Object" { (object(&app.base, escaped)) }
            td data-label="Key" { (text(key, 80)) }
            td data-label="Due" { @if let Some(due) = row.due_ms { (time(due, now_ms)) } @else if row.at_once { "at once" } @else { "broken" } }
            td data-label="Event" { (event(&row.event)) }
            @if may {
                td data-label="Action" {
                    (ActForm { forms, act: "cancel", label: "Cancel", subject: key, fields: &[("object", escaped), ("key", key)], inputs: &[], back }.markup())
                }
            }
        }
    }
}
