//! The routes for probes: `/healthz` and `/readyz`.
//!
//! The request of a probe has no token, and its host is the address of a container. So these routes
//! check neither token nor host. They return only a word or a reason.

use std::fmt::Display;

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::metrics::METRICS;
use super::problem::Problem;

/// The path of the route that tells whether the process works.
pub const HEALTH: &str = "/healthz";
/// The path of the route that tells whether the process takes work now.
pub const READY: &str = "/readyz";

/// Returns whether the method and the path are those of a probe.
pub(crate) fn is_one(method: &Method, path: &str) -> bool {
    (*method == Method::GET || *method == Method::HEAD) && [HEALTH, READY].contains(&path)
}

/// Returns whether the method and the path are those of a probe or a scraper.
pub(super) fn is_one_or_scrape(method: &Method, path: &str) -> bool {
    is_one(method, path) || (*method == Method::GET || *method == Method::HEAD) && path == METRICS
}

/// Returns the answer to a probe: 200, or 503 with the reason.
pub fn answer(state: Result<(), impl Display>) -> Response {
    match state {
        Ok(()) => "ok\n".into_response(),
        Err(why) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", why).into_response(),
    }
}
