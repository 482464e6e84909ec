//! The checks that every request must pass before it reaches its route: the host, the user, and the
//! type of the body.
//!
//! A web page from elsewhere can make a browser send requests to this machine. But the page can
//! neither choose the header `Host` freely, nor send the type `application/json` without permission
//! of this server. So the guard requires a known host and this type.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

use super::probes;
use super::problem::Problem;
use super::users::{User, Users};

pub(super) struct Guard {
    hosts: Vec<String>,
    users: Option<Arc<Users>>,
}

impl Guard {
    pub(super) fn new(hosts: &[String], users: Option<Arc<Users>>) -> Self {
        Self { hosts: hosts.iter().map(|host| host.to_ascii_lowercase()).collect(), users }
    }

    /// Returns these routes with the checks before them.
    pub(super) fn around(self, routes: Router) -> Router {
        routes.layer(from_fn_with_state(Arc::new(self), check))
    }

    /// Returns whether the request is for this server: its host must be `localhost`, an IP address,
    /// or a name of `--host`. A web page may use a foreign name that resolves to this machine. Its
    /// requests have this name as host, so they are refused.
    fn is_known(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut named = headers.get_all(HOST).iter();
        let (host, more) = (named.next(), named.next());
        let text = match (host, more, uri.authority()) {
            (Some(host), None, None) => host.to_str().ok(),
            // The target has a host as well, as in requests to a proxy. It must be the same as the
            // header `Host`.
            (Some(host), None, Some(authority)) => host.to_str().ok().filter(|host| *host == authority.as_str()),
            _ => None,
        };
        let Some(text) = text else { return false };
        let name = match text.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !text.ends_with(']') => name,
            _ => text,
        };
        let name = name.to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        name == "localhost" || bare.parse::<IpAddr>().is_ok() || self.hosts.contains(&name)
    }

    /// Returns the user whose token the request has. Without a users file, returns the user for
    /// everybody.
    fn user(&self, headers: &HeaderMap) -> Result<User, Problem> {
        let Some(users) = &self.users else { return Ok(User::everybody()) };
        let refused = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).with_login();
        let value = headers.get(AUTHORIZATION).ok_or_else(|| refused("send the header Authorization: Bearer TOKEN"))?;
        let token = value.to_str().ok().and_then(|text| text.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        token.and_then(|token| users.of(token)).ok_or_else(|| refused("the token is not known"))
    }
}

async fn check(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    if probes::is_one(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    let checked = guard.checked(&request);
    match checked {
        Ok(user) => {
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

impl Guard {
    fn checked(&self, request: &Request<Body>) -> Result<User, Problem> {
        let headers = request.headers();
        if !self.is_known(request.uri(), headers) {
            let detail = "the header Host names another server; --host NAME makes a name known";
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "unknown-host", detail));
        }
        let user = self.user(headers)?;
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let detail = "the only Transfer-Encoding is chunked";
            return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "transfer-encoding", detail));
        }
        if matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH) && !is_json(headers) {
            let detail = "send the header Content-Type: application/json, or application/x-ndjson for lines";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type", detail));
        }
        Ok(user)
    }
}

/// Returns whether the header `Content-Type` says that the body is JSON, or lines of JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let value = value.to_str().unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(media_type.as_str(), "application/json" | "application/x-ndjson")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_known(host: &str) -> bool {
        let guard = Guard::new(&["Events.Example".to_owned()], None);
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().expect("a value"));
        guard.is_known(&Uri::from_static("/"), &headers)
    }

    #[test]
    fn a_host_is_local_an_address_or_named() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "10.1.2.3", "[::1]:80", "[::1]", "events.example:443"] {
            assert!(is_known(host), "{host}");
        }
        for host in ["", "evil.example", "events.example.evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "a b"] {
            assert!(!is_known(host), "{host}");
        }
        let guard = Guard::new(&[], None);
        assert!(!guard.is_known(&Uri::from_static("/"), &HeaderMap::new()));
        let mut twice = HeaderMap::new();
        twice.append(HOST, "localhost".parse().expect("a value"));
        twice.append(HOST, "evil.example".parse().expect("a value"));
        assert!(!guard.is_known(&Uri::from_static("/"), &twice));
    }
}
