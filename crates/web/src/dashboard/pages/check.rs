//! The check of the invariants. It walks over all keys, so it runs only when an operator starts it,
//! once at a time.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use seriatim::control::CheckReport;
use seriatim_console::shown;

use crate::dashboard::form::Form;
use crate::dashboard::html::format::{link, number, text};
use crate::dashboard::html::{Frame, Update, table};
use crate::dashboard::{Dashboard, now_ms};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};

/// The last check, or the one under way.
#[derive(Default)]
pub(in crate::dashboard) struct Checks(Mutex<Progress>);

#[derive(Default, Clone)]
struct Progress {
    is_running: bool,
    began_ms: u64,
    last: Option<Last>,
}

/// The time at which the last check ended, the user who has started it, and its result.
type Last = (u64, Arc<str>, Result<Arc<CheckReport>, String>);

impl Checks {
    fn state(&self) -> Progress {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns whether no check was under way.
    fn begin(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.began_ms = if state.is_running {
            state.began_ms
        } else {
            now_ms()
        };
        !std::mem::replace(&mut state.is_running, true)
    }

    fn end(&self, who: Arc<str>, result: Result<CheckReport, String>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_running = false;
        state.last = Some((now_ms(), who, result.map(Arc::new)));
    }
}

/// `GET /check`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
) -> Result<Response, Problem> {
    asked.user.may_all(Right::View)?;
    let state = app.checks.state();
    let content = html! {
        h1 { "Check of the invariants" }
        p { "The check walks over all keys, and reads each suspicion a second time before it reports it. It takes a few seconds for a million keys." }
        div data-part="check" {
            @if state.is_running { p role="status" { "A check is under way, since " (shown::duration(now_ms().saturating_sub(state.began_ms))) "." } }
            @if let Some((at, who, result)) = &state.last {
                h2 { "Last check" }
                p { "It ended " (shown::duration(now_ms().saturating_sub(*at))) " ago. " (text(who, 64)) " has started it." }
                @match result {
                    Ok(report) => { (found(report)) }
                    Err(error) => { p.problem role="alert" { (text(error, 300)) } }
                }
            }
        }
        @if asked.user.may_all(Right::Operate).is_ok() && !state.is_running {
            form method="post" action={ (app.base) "/check" } { button type="submit" { "Check now" } }
        }
    };
    let update = if state.is_running {
        Update::Every(1)
    } else {
        Update::No
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/check",
        title: "Check of the invariants",
        update,
        forms: None,
    }
    .around(&content))
}

fn found(report: &CheckReport) -> Markup {
    let seen = &report.looked_at;
    html! {
        @if report.violations_total == 0 {
            p.good { "Clean: every invariant holds, as far as Redis can show it." }
        } @else {
            p.problem role="alert" { "Broken: " (number(report.violations_total)) " violations." }
            (table("Violations", &["Invariant", "Subject", "What"], &html! {
                @for violation in &report.violations {
                    tr {
                        td data-label="Invariant" { (violation.invariant.to_string()) }
                        td data-label="Subject" { (text(&violation.subject.to_string(), 200)) }
                        td data-label="What" { (text(&violation.what, 500)) }
                    }
                }
            }))
        }
        p {
            "Looked at " (number(seen.workers)) " workers, " (number(seen.markers)) " markers, "
            @if seen.grouped > 0 { (number(seen.grouped)) " grouped names, " }
            (number(seen.objects_with_events)) " objects with events, "
            (number(seen.objects_held)) " held objects."
        }
    }
}

/// `POST /check`: starts a check, unless one is under way.
pub(in crate::dashboard) async fn run(
    State(app): State<Arc<Dashboard>>,
    Extension(user): Extension<User>,
    body: Body,
) -> Result<Response, Problem> {
    Form::read(body).await?.only(&[])?;
    user.may_all(Right::Operate)?;
    if !app.checks.state().is_running {
        // A program may have begun a check by `/v1/check`.
        let permit = app.looks.may_check(&user)?;
        app.checks.begin();
        let (app, who) = (app.clone(), user.name.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let result = tokio::select! {
                result = app.control.check() => result.map_err(|error| error.to_string()),
                () = app.stop.cancelled() => Err("the server stopped before the end of the check".to_owned()),
            };
            app.checks.end(who, result);
        });
    }
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(location) = HeaderValue::from_str(&link(&app.base, "/check", &[])) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_runs_at_a_time() {
        let checks = Checks::default();
        assert!(checks.begin() && !checks.begin() && checks.state().is_running);
        checks.end("ada".into(), Err("Redis is away".to_owned()));
        assert!(!checks.state().is_running && checks.begin());
        assert!(
            checks.state().last.is_some(),
            "the last result stays while the next check runs"
        );
    }
}
