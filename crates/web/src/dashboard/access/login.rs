//! The pages for the login and the link, and the logout.
//!
//! The one-time link leads to a page with a form that posts the token. So a program that only opens
//! links, such as the preview of a chat, does not use the link up.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use maud::{Markup, html};
use seriatim_console::shown;
use url::form_urlencoded;

use super::sessions::Login;
use crate::dashboard::Dashboard;
use crate::dashboard::form::{Form, own_path};
use crate::dashboard::html::bare_page;
use crate::listen::connections::Peer;
use crate::listen::parameters;
use crate::listen::places::Door;
use crate::listen::problem::Problem;
use crate::listen::users;

pub(super) const LOGIN: &str = "/login";
pub(super) const LINK: &str = "/link";

/// Returns the page for the login. `failed`: the reason why the last login has failed.
pub(super) fn page(
    app: &Dashboard,
    request: &Request,
    status: StatusCode,
    failed: Option<&str>,
) -> Response {
    let next = match request.uri().path() {
        LOGIN | LINK => String::new(),
        // After the login the browser asks with GET, so it cannot go on with a form.
        _ if request.method() != Method::GET => String::new(),
        path => request
            .uri()
            .query()
            .map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")),
    };
    login_page(app, &next, status, failed)
}

fn login_page(app: &Dashboard, next: &str, status: StatusCode, failed: Option<&str>) -> Response {
    let hint = html! {
        @if app.access.has_link() {
            p { "The command " code { "seriatim dashboard" } " has printed a link. Open this link to log in. Each link works once; after its use, the command prints the next one." }
        } @else if !app.access.has_logins() {
            p { "A proxy tells this server who you are. This request has not come through the proxy." }
        } @else {
            p { "Your token is the one that " code { "seriatim token new" } " has printed." }
            (token_form(app, next))
        }
    };
    let body = html! {
        h1 { "Log in" }
        @if let Some(failed) = failed { p.problem role="alert" { (failed) } }
        (hint)
    };
    bare_page(&app.base, "Log in", status, &body)
}

fn token_form(app: &Dashboard, next: &str) -> Markup {
    html! {
        form.stack method="post" action={ (app.base) "/login" } {
            // Password managers keep the token under this name.
            input type="text" name="username" autocomplete="username" value="seriatim" hidden;
            label for="token" { "Token" }
            input #token name="token" type="password" autocomplete="current-password" required;
            input type="hidden" name="next" value=(next);
            button type="submit" { "Log in" }
        }
    }
}

/// `GET /login`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    request: Request,
) -> Result<Response, Problem> {
    parameters::check_route(request.method(), request.uri())?;
    Ok(login_page(&app, "", StatusCode::OK, None))
}

/// `GET /link?token=…`.
pub(in crate::dashboard) async fn link(
    State(app): State<Arc<Dashboard>>,
    request: Request,
) -> Result<Response, Problem> {
    parameters::check_route(request.method(), request.uri())?;
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let token = form_urlencoded::parse(query)
        .find(|(name, _)| name == "token")
        .map(|(_, value)| value);
    let body = html! {
        h1 { "Open the dashboard" }
        p { "This link works once, for this browser." }
        form.stack method="post" action={ (app.base) "/login" } {
            input type="hidden" name="token" value=(token.unwrap_or_default());
            button type="submit" { "Open the dashboard" }
        }
    };
    Ok(bare_page(
        &app.base,
        "Open the dashboard",
        StatusCode::OK,
        &body,
    ))
}

/// `POST /login`: begins a session.
pub(in crate::dashboard) async fn log_in(
    State(app): State<Arc<Dashboard>>,
    Extension(peer): Extension<Peer>,
    Extension(door): Extension<Door>,
    body: Body,
) -> Result<Response, Problem> {
    let form = Form::read(body).await?;
    form.only(&["username", "token", "next"])?;
    let (token, next) = (
        form.one("token")?.unwrap_or_default(),
        form.one("next")?.unwrap_or_default(),
    );
    let token = token.trim();
    let broken =
        |error: anyhow::Error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error);
    let login = match &app.access.users {
        Some(users) => users.of(token).map(|_| Login::Token(users::hash(token))),
        None => app.access.use_link(token).map_err(broken)?.map(|next| {
            // If nobody reads standard output, the next link cannot be shown. A restart shows one.
            let _ = shown::print(&format!(
                "the link was used; the next one is {}\n",
                app.link(&next)
            ));
            Login::Link
        }),
    };
    let Some(login) = login else {
        if app.access.failures.is_too_soon(peer) {
            let detail = "another wrong token came within a second: wait a second, and try again";
            return Err(
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-logins", detail)
                    .retry_after(1),
            );
        }
        let failed = if app.access.has_link() {
            "This link was used already, or is wrong."
        } else {
            "The token is not known."
        };
        return Ok(login_page(
            &app,
            &next,
            StatusCode::UNAUTHORIZED,
            Some(failed),
        ));
    };
    if let Some(user) = app.access.of_login(login) {
        door.admit(&user)?;
    }
    let value = app.access.sessions.begin(login).map_err(broken)?;
    Ok(to(&app, &own_path(Some(next)), app.access.cookie(&value)))
}

/// `POST /logout`: ends the session.
pub(in crate::dashboard) async fn log_out(
    State(app): State<Arc<Dashboard>>,
    headers: HeaderMap,
) -> Response {
    if let Some(hash) = app.access.session_hash(&headers) {
        app.access.sessions.end(&hash);
    }
    to(&app, LOGIN, app.access.expired_cookie())
}

/// Leads the browser to a page, and sets the cookie.
fn to(app: &Dashboard, path: &str, cookie: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("{}{path}", app.base)) {
        response.headers_mut().insert(LOCATION, location);
    }
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}
