//! The route for scrapers: `/metrics`, in the form of OpenMetrics.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use seriatim::metrics::prometheus_client::encoding::text::encode;
use seriatim::metrics::prometheus_client::registry::Registry;

use super::problem::Problem;
use super::process::ProcessMetrics;

/// The path of the route.
pub const METRICS: &str = "/metrics";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns a registry with the figures of this process. `fill` adds further metrics, with the
/// prefix `seriatim` and, if given, a label with the namespace.
pub fn registry(namespace: Option<&str>, fill: impl FnOnce(&mut Registry)) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics));
    let ours = registry.sub_registry_with_prefix("seriatim");
    match namespace {
        Some(namespace) => {
            fill(ours.sub_registry_with_label(("namespace".into(), namespace.to_owned().into())))
        }
        None => fill(ours),
    }
    registry
}

/// Returns the answer to a scrape.
pub fn answer(registry: &Registry) -> Response {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "metrics", error).into_response()
        }
    }
}
