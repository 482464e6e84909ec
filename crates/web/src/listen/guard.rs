//! The checks that every request must pass before it reaches its route: the host, the user, and the
//! type of the body.
//!
//! A web page from elsewhere can make a browser send requests to this machine. But the page can
//! neither choose the header `Host` freely, nor send the type `application/json` without permission
//! of this server. So the guard requires a known host and this type.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

use super::fair::Gate;
use super::hosts::Hosts;
use super::places::Door;
use super::probes;
use super::problem::Problem;
use super::users::{User, Users, bearer};

pub(super) struct Guard {
    hosts: Hosts,
    users: Option<Arc<Users>>,
    looks: Gate,
}

impl Guard {
    pub(super) fn new(hosts: Hosts, users: Option<Arc<Users>>) -> Self {
        Self {
            hosts,
            users,
            looks: Gate::default(),
        }
    }

    /// Returns these routes with the checks before them.
    pub(super) fn around(self, routes: Router) -> Router {
        routes.layer(from_fn_with_state(Arc::new(self), check))
    }

    /// Returns the user whose token the request has. Without a users file, returns the user for
    /// everybody.
    fn user(&self, headers: &HeaderMap) -> Result<User, Problem> {
        let Some(users) = &self.users else {
            return Ok(User::everybody());
        };
        let refused = |detail: &str| {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).with_login()
        };
        let token = bearer(headers)
            .ok_or_else(|| refused("send the header Authorization: Bearer TOKEN"))?;
        users
            .of(token)
            .ok_or_else(|| refused("the token is not known"))
    }
}

async fn check(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    if probes::is_one(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    let checked = guard.checked(&request).and_then(|user| {
        // From now on the connection does not give way to those of strangers.
        request
            .extensions()
            .get::<Door>()
            .map_or(Ok(()), |door| door.admit(&user))
            .map(|()| user)
    });
    match checked {
        Ok(user) => {
            let looking = match *request.method() {
                Method::GET | Method::HEAD => Some(guard.looks.enter(&user).await),
                _ => None,
            };
            if let Some(Err(problem)) = looking {
                return problem.into_response();
            }
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

impl Guard {
    fn checked(&self, request: &Request<Body>) -> Result<User, Problem> {
        let headers = request.headers();
        self.hosts.check(request.uri(), headers)?;
        let user = self.user(headers)?;
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let detail = "the only Transfer-Encoding is chunked";
            return Err(Problem::new(
                StatusCode::NOT_IMPLEMENTED,
                "transfer-encoding",
                detail,
            ));
        }
        if matches!(
            *request.method(),
            Method::POST | Method::PUT | Method::PATCH
        ) && !is_json(headers)
        {
            let detail =
                "send the header Content-Type: application/json, or application/x-ndjson for lines";
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "content-type",
                detail,
            ));
        }
        Ok(user)
    }
}

/// Returns whether the header `Content-Type` says that the body is JSON, or lines of JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let value = value.to_str().unwrap_or_default();
    let media_type = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    matches!(
        media_type.as_str(),
        "application/json" | "application/x-ndjson"
    )
}
