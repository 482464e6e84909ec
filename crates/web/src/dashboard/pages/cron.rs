//! Cron jobs.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::CronJob;

use super::{ROWS, after, event, listed, parameter};
use crate::dashboard::Dashboard;
use crate::dashboard::html::acts::{ActForm, Forms};
use crate::dashboard::html::format::{link, object, text, time};
use crate::dashboard::html::{Frame, Update};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::Right;

/// `GET /cron`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    forms: Forms,
) -> Result<Response, Problem> {
    let page = app
        .looks
        .crons(&asked.user, after(&asked)?.as_ref(), ROWS)
        .await?;
    let now_ms = page.now_ms.unwrap_or(0);
    let back = link("", "/cron", &[("after", &parameter(&asked, "after")?)]);
    let may = asked.user.may_all(Right::Operate).is_ok();
    let heads = [
        "Job", "Schedule", "Object", "Next", "Last", "Event", "Action",
    ];
    let content = html! {
        h1 { "Cron jobs" }
        (listed(
            (&app, "/cron", &[]),
            ("Cron jobs", if may { &heads } else { &heads[..6] }),
            &page,
            |job| row(&app, &forms, &back, job, now_ms, may),
        ))
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/cron",
        title: "Cron jobs",
        update: Update::No,
        forms: Some(&forms),
    }
    .around(&content))
}

fn row(
    app: &Dashboard,
    forms: &Forms,
    back: &str,
    job: &CronJob,
    now_ms: u64,
    may: bool,
) -> Markup {
    let shown = job.name_escaped.as_deref().unwrap_or(&job.name);
    let Some(detail) = &job.detail else {
        return html! { tr { td data-label="Job" { (text(shown, 80)) } td data-label="Schedule" colspan="6" { "This version cannot read the job." } } };
    };
    let form = |act, label| {
        ActForm {
            forms,
            act,
            label,
            subject: shown,
            fields: &[("name", shown)],
            inputs: &[],
            back,
        }
        .markup()
    };
    html! {
        tr {
            td data-label="Job" { (text(shown, 80)) }
            td data-label="Schedule" { code { (text(&detail.schedule, 80)) } " " (text(&detail.zone, 40)) }
            td data-label="Object" { (object(&app.base, detail.object_escaped.as_deref().unwrap_or(&detail.object))) }
            td data-label="Next" { @if detail.paused { "paused" } @else if let Some(next) = detail.next_ms { (time(next, now_ms)) } @else { "never" } @if let Some(problem) = &detail.problem { br; (text(problem, 500)) } }
            td data-label="Last" { @if let Some(last) = detail.last_ms { (time(last, now_ms)) } @else { "–" } }
            td data-label="Event" { (event(&detail.event)) }
            @if may {
                td data-label="Action" {
                    div.buttons { (form("run-cron", "Run now")) @if detail.paused { (form("resume-cron", "Resume")) } @else { (form("pause-cron", "Pause")) } }
                }
            }
        }
    }
}
