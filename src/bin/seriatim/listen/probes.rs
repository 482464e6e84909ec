//! The routes for probes: `/healthz` and `/readyz`.
//!
//! A probe comes without a token, and with the address of a container as its host. So these routes
//! check neither token nor host, and show no more than a word and a reason.

use std::fmt::Display;

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::metrics::METRICS;
use super::problem::Problem;

/// The route that tells whether the process works.
pub(crate) const HEALTH: &str = "/healthz";
/// The route that tells whether the process takes work.
pub(crate) const READY: &str = "/readyz";

/// Returns whether a request comes from a probe or a scraper.
pub(super) fn is_one(method: &Method, path: &str) -> bool {
    (*method == Method::GET || *method == Method::HEAD) && [HEALTH, READY, METRICS].contains(&path)
}

/// Returns the answer to a probe: 200, or 503 with the reason.
pub(crate) fn answer(state: Result<(), impl Display>) -> Response {
    match state {
        Ok(()) => "ok\n".into_response(),
        Err(why) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", why).into_response(),
    }
}
