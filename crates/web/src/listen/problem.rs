//! Errors as problem documents (RFC 9457).

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::Value;
use seriatim::escape;

/// The longest time by which `Retry-After` is above the shortest useful one, in seconds.
const RETRY_SPREAD_S: u64 = 4;

/// An error of a request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Problem {
    /// `urn:seriatim:`, followed by a word that programs can compare.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    detail: String,
    /// Further members of the document, for programs.
    #[serde(flatten)]
    members: serde_json::Map<String, Value>,
    #[serde(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// `kind`: a word that programs can compare, e.g. `full`. `detail`: a text that says what has
    /// failed, for which thing, and what the user can do.
    pub(crate) fn new(status: StatusCode, kind: &str, detail: impl std::fmt::Display) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let detail = escape::text(&detail.to_string()).to_string();
        let kind = format!("urn:seriatim:{kind}");
        Self {
            kind,
            title,
            status,
            detail,
            members: serde_json::Map::new(),
            headers: Vec::new(),
        }
    }

    pub(crate) fn bad_request(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    pub(crate) fn not_found(detail: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// Adds the members of this JSON object to the document.
    pub(crate) fn with(mut self, members: Value) -> Self {
        if let Value::Object(members) = members {
            self.members.extend(members);
        }
        self
    }

    /// Adds the header `Retry-After`: the client may try again after this time, or up to
    /// [`RETRY_SPREAD_S`] later. So clients that are refused at one moment come back at different
    /// times.
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        let spread = seconds + fastrand::u64(..=RETRY_SPREAD_S);
        self.headers.push((RETRY_AFTER, HeaderValue::from(spread)));
        self
    }

    /// Adds the header `WWW-Authenticate`: the request needs a bearer token.
    pub(crate) fn with_login(mut self) -> Self {
        self.headers
            .push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        self
    }

    pub(crate) fn title(&self) -> &'static str {
        self.title
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the headers for the answer.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.headers.iter().cloned()
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.extend(self.headers.clone());
        // A server with pages for people shows the error on a page instead.
        response.extensions_mut().insert(self);
        response
    }
}
