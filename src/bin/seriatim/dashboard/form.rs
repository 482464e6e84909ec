//! The body of a form.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use tokio::time::timeout;
use url::form_urlencoded;

use crate::listen::problem::Problem;

/// The most bytes of a form. 50 rows with names of 512 bytes fit in it.
const BYTES_MAX: usize = 256 * 1024;
/// The longest time until the whole form must have come.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Returns this path of a page of this server, with its query; `/` if it could lead elsewhere.
/// Browsers ignore control characters in URLs, and read a backslash as a slash. So `/`, a tab and
/// `/evil.example` together are the URL of another server.
pub(super) fn own_path(path: Option<String>) -> String {
    let is_own = |path: &String| {
        let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        plain && path.starts_with('/') && !path.starts_with("//")
    };
    path.filter(is_own).unwrap_or_else(|| "/".to_owned())
}

/// The fields of a form, in their order.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) async fn read(body: Body) -> Result<Self, Problem> {
        let late =
            |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the form did not come within 10 s: nothing was done");
        let bytes = timeout(TIME_MAX, to_bytes(body, BYTES_MAX)).await.map_err(late)?;
        let bytes = bytes.map_err(|error| {
            let detail = format!("the form cannot be read, or has more than 256 KiB ({error}): nothing was done");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
        })?;
        let fields = form_urlencoded::parse(&bytes).map(|(name, value)| (name.into_owned(), value.into_owned()));
        Ok(Self(fields.collect()))
    }

    /// Returns the value of a field, if it is there. If it is there twice, returns an error.
    pub(super) fn one(&self, name: &str) -> Result<Option<String>, Problem> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Problem::bad_request(format!("the field {name} is there twice: nothing was done"))),
            (value, None) => Ok(value.map(str::to_owned)),
        }
    }

    /// Returns the value of a field that must be there.
    pub(super) fn needed(&self, name: &str) -> Result<String, Problem> {
        let missing = || Problem::bad_request(format!("the field {name} is missing: nothing was done"));
        self.one(name)?.filter(|value| !value.is_empty()).ok_or_else(missing)
    }

    /// Returns all values of a field, in their order.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}
