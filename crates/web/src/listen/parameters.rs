//! The parameters that each route takes in its query. Any other parameter is an error, because it may
//! be misspelled.
//!
//! A route that is not in the table takes no parameter. A handler can read only the parameters of its
//! route, so that the table is complete.

use axum::http::{Method, StatusCode, Uri};
use seriatim_console::nearest;
use url::form_urlencoded;

use super::problem::Problem;

/// The method, the path and the parameters of a route. HEAD counts as GET.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// All routes with parameters: those of `serve` first, then the pages of the dashboard.
const ROUTES: &[Row] = &[
    ("POST", "/v1/objects/{object}/events", &["parts"]),
    ("POST", "/v1/object/events", &["object", "parts"]),
    ("GET", "/v1/objects/{object}/schedule", &["after", "limit"]),
    ("GET", "/v1/object/schedule", &["object", "after", "limit"]),
    ("POST", "/v1/object/schedule", &["object"]),
    ("DELETE", "/v1/object/schedule", &["object", "key"]),
    ("POST", "/v1/object/tasks", &["object"]),
    ("GET", "/v1/object", &["object"]),
    ("POST", "/v1/object/release", &["object"]),
    ("POST", "/v1/object/skip", &["object"]),
    ("GET", "/v1/objects/{object}/chain", &["after", "limit"]),
    ("GET", "/v1/object/chain", &["object", "after", "limit"]),
    ("GET", "/v1/schedule", &["from", "to", "after", "limit"]),
    (
        "GET",
        "/v1/held",
        &["until_released", "due", "prefix", "after", "limit"],
    ),
    ("GET", "/v1/paused", &["prefix", "after", "limit"]),
    ("GET", "/v1/dead", &["object", "newest", "after", "limit"]),
    ("DELETE", "/v1/rules", &["kind", "selector", "reason"]),
    ("DELETE", "/v1/shares", &["selector", "reason"]),
    ("GET", "/v1/actions", &["object", "after", "limit"]),
    ("GET", "/v1/log", &["newest", "after", "limit"]),
    ("GET", "/v1/cron", &["after", "limit"]),
    ("GET", "/v1/workers", &["after", "limit"]),
    ("GET", "/v1/worker", &["name", "after", "limit"]),
    ("GET", "/v1/queues", &["limit"]),
    ("GET", "/v1/depth", &["after", "limit"]),
    ("GET", "/object", &["name", "after"]),
    ("GET", "/held", &["why", "prefix", "after"]),
    ("GET", "/paused", &["prefix", "after"]),
    ("GET", "/dead", &["object", "order", "after"]),
    ("GET", "/workers", &["after"]),
    ("GET", "/worker", &["name", "after"]),
    ("GET", "/schedules", &["after"]),
    ("GET", "/cron", &["after"]),
    ("GET", "/log", &["object", "status", "follow", "after"]),
    ("GET", "/log/stream", &["object", "status", "after"]),
    ("GET", "/actions", &["object", "after"]),
    ("GET", "/job", &["id"]),
    ("GET", "/link", &["token"]),
];

/// Returns the parameters of a route. `path`: its path, with the names of parameters in braces.
pub(super) fn of(method: &Method, path: &str) -> &'static [&'static str] {
    let method = if *method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    let found = ROUTES
        .iter()
        .find(|(of, route, _)| *of == method && *route == path);
    found.map_or(&[], |(.., names)| names)
}

/// Checks that the query has only these parameters.
pub(super) fn check(known: &'static [&'static str], uri: &Uri) -> Result<(), Problem> {
    check_escapes(uri)?;
    let query = uri.query().unwrap_or_default().as_bytes();
    match form_urlencoded::parse(query).find(|(name, _)| !known.contains(&&**name)) {
        None => Ok(()),
        Some((name, _)) => Err(unknown("parameter", &name, known)),
    }
}

/// Refuses a percent sign without two hexadecimal digits. It would count as itself, so a misspelled
/// escape would name another object.
fn check_escapes(uri: &Uri) -> Result<(), Problem> {
    let parts = [uri.path(), uri.query().unwrap_or_default()];
    let is_escape = |rest: &str| {
        rest.as_bytes()
            .get(..2)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let is_sound = |part: &&str| part.split('%').skip(1).all(is_escape);
    match parts.iter().all(is_sound) {
        true => Ok(()),
        false => Err(Problem::bad_request(
            "the URL has a % without two hexadecimal digits; write %25 for a %",
        )),
    }
}

/// Checks the query of a route whose handler does not use [`Asked`](super::asked::Asked).
pub(crate) fn check_route(method: &Method, uri: &Uri) -> Result<(), Problem> {
    check(of(method, uri.path()), uri)
}

/// Returns the problem of an unknown name. `what`: a parameter or a field.
pub(crate) fn unknown(what: &str, name: &str, known: &[&str]) -> Problem {
    let hint = nearest::hint(name, known.iter().copied());
    let takes = match known {
        [] => format!("the route takes no {what}s"),
        known => format!("the {what}s are {}", known.join(", ")),
    };
    Problem::bad_request(format!(
        "{name:?} is not a {what} of this route{hint}: nothing was done; {takes}"
    ))
}

/// Returns the problem of a handler that reads a parameter that its route does not have.
pub(super) fn undeclared(name: &str) -> Problem {
    let detail = format!(
        "the route reads the parameter {name}, which is not in the table of its parameters"
    );
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}
