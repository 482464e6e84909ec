//! The actions of an operator: the form that starts an action, and the page with its result.
//!
//! Every action runs as a job. The answer to the form leads to the page of the job, so that a reload
//! of the page does not repeat the action. A short job is over when its page is shown.
//!
//! - `wanted`: reads the form, and checks the rights of the user
//! - `run`: the steps of each action
//! - `search`: the search for the worker that has taken an object
//! - `jobs`: the jobs under way and the results of the last jobs
//! - `sent`: the forms that were sent already
//! - `refused`: the page of a form that was refused
//!
//! If the process dies, an action that has begun may be done in part. The page `Actions` shows the
//! steps that are done.

mod jobs;
mod refused;
mod run;
mod search;
mod sent;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use tokio::time::timeout;

pub(super) use self::jobs::Jobs;
use self::jobs::{Before, Begun, Job, Kind, Line};
pub(super) use self::search::search;
use self::sent::Key;
use self::wanted::Wanted;
use super::Dashboard;
use super::form::{Form, own_path};
use super::html::format::{lines, link, name, number};
use super::html::{Frame, Update, acts, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::User;

/// The most rows of one action.
const ROWS_MAX: usize = 50;
/// The time that the answer to a form waits for the end of the action.
const PATIENCE: Duration = Duration::from_secs(2);

/// `POST /act`: starts an action.
pub(super) async fn start(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    body: Body,
) -> Result<Response, Problem> {
    let form = Form::read_rows(body).await?;
    match begin(&app, &asked.user, &form).await {
        Ok(job) => {
            // Whether or not it has ended, the browser goes to the page of the job.
            let _ = timeout(PATIENCE, job.ended()).await;
            to_job(&app, &job)
        }
        Err(problem) => refused::page(&app, &asked, form, &problem)
            .await
            .ok_or(problem),
    }
}

/// Starts the action of a form, and returns its job. If the form was sent before, returns the job of
/// the first time.
async fn begin(app: &Arc<Dashboard>, user: &User, form: &Form) -> Result<Arc<Job>, Problem> {
    let key = Key::of(&user.name, form)?;
    let before = |before| match before {
        Before::Job(job) => Ok(job),
        Before::Gone(used) => Err(used.problem()),
    };
    if let Some(found) = app.jobs.before(key.as_ref()) {
        return before(found);
    }
    let reason = form.needed("reason")?;
    if reason.trim().is_empty() || reason.chars().count() > acts::REASON_CHARS_MAX {
        return Err(Problem::bad_request(
            "the reason must have 1 to 500 characters: nothing was done",
        ));
    }
    let wanted = match Wanted::read(app, user, form).await {
        Ok(wanted) => wanted,
        // Meanwhile the same form may have begun, so that its subject is gone.
        Err(problem) => return app.jobs.before(key.as_ref()).map_or(Err(problem), before),
    };
    let back = own_path(form.one("back")?);
    let job = match app.jobs.begin(Kind::Act, user, wanted.title(), back, key)? {
        Begun::New(job) => job,
        Begun::Before(found) => return before(found),
    };
    let (acting, running, who) = (app.clone(), job.clone(), user.name.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = run::run(&acting, wanted, &who, &reason, &running) => {}
            () = running.stopped() => {}
        }
        running.end();
    });
    Ok(job)
}

fn to_job(app: &Dashboard, job: &Job) -> Result<Response, Problem> {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let location = HeaderValue::from_str(&link(&app.base, "/job", &[("id", job.id())]));
    let failed = |error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error);
    response
        .headers_mut()
        .insert(LOCATION, location.map_err(failed)?);
    Ok(response)
}

/// Returns the job that the user has begun.
fn job_of(app: &Dashboard, user: &User, id: Option<String>) -> Result<Arc<Job>, Problem> {
    let job = id
        .and_then(|id| app.jobs.of(&id))
        .filter(|job| job.owner() == &*user.name);
    job.ok_or_else(|| {
        Problem::not_found(
            "there is no result of such an action any more; the page Actions shows the steps done",
        )
    })
}

/// `GET /job?id=…`: the result of an action.
pub(super) async fn job(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    let job = job_of(&app, &asked.user, asked.query("id")?)?;
    let state = job.state();
    let update = if state.has_ended {
        Update::No
    } else {
        Update::Every(1)
    };
    let word = match (state.has_ended, state.was_stopped) {
        (false, _) => "under way",
        (true, true) => "stopped",
        (true, false) => "ended",
    };
    let content = html! {
        h1 { (job.title()) }
        div #result data-part="result" {
            @if let Some(progress) = &state.progress {
                p role="status" { "The search has " @if state.has_ended { (word) } @else { "begun and is " (word) } ": " (progress) "." }
            } @else { p role="status" {
                "The action has " @if state.has_ended { (word) } @else { "begun and is " (word) } ": "
                b { (number(state.done)) } " done, " b { (number(state.not_done)) } " not done"
                @if state.not_done > 0 && !state.why_not.is_empty() { " (" (state.why_not) ")" } "."
            } }
            @if let Some(error) = &state.error { p.problem role="alert" { (lines(error)) } }
            @if !state.lines.is_empty() { (results(&state.lines)) }
        }
        // A part with the focus is not updated. So the button is not in the part with the progress.
        div data-part="stop" {
            @if !state.has_ended {
                form method="post" action={ (app.base) "/job/stop" } {
                    input type="hidden" name="id" value=(job.id());
                    button type="submit" { "Stop" }
                }
            }
        }
        p { a href={ (app.base) (job.back()) } { "Back" } " " a href=(link(&app.base, "/actions", &[])) { "Actions" } }
    };
    let frame = Frame {
        app: &app,
        user: &asked.user,
        current: "/actions",
        title: job.title(),
        update,
        forms: None,
    };
    Ok(frame.around(&content))
}

fn results(results: &[Line]) -> Markup {
    let rows = html! {
        @for line in results {
            tr {
                td data-label="Subject" { (name(&line.subject)) }
                td data-label="Result" { span.mark.good[line.is_done].bad[!line.is_done] { @if line.is_done { "done" } @else { "not done" } } " " (lines(&line.text)) }
            }
        }
    };
    table("Result of each row", &["Subject", "Result"], &rows)
}

/// `POST /job/stop`: stops an action after the step under way.
pub(super) async fn stop(
    State(app): State<Arc<Dashboard>>,
    Extension(user): Extension<User>,
    body: Body,
) -> Result<Response, Problem> {
    let form = Form::read(body).await?;
    form.only(&["id"])?;
    let job = job_of(&app, &user, form.one("id")?)?;
    job.stop();
    let _ = timeout(PATIENCE, job.ended()).await;
    to_job(&app, &job)
}
