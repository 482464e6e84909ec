//! The body of a form.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use tokio::time::timeout;
use url::form_urlencoded;

use crate::listen::parameters;
use crate::listen::problem::Problem;

/// The most bytes of a form with rows. Fits 50 rows with the longest names that have a box, if each
/// byte of a name takes three bytes (`%F0`).
const ROWS_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes of another form, as that of the login.
const BYTES_MAX: usize = 64 * 1024;
/// The longest time until the whole form must have come.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Returns this path of a page of this server, with its query; `/` if it could lead elsewhere.
/// Browsers ignore control characters in URLs, and read a backslash as a slash. So `/`, a tab and
/// `/evil.example` together are the URL of another server.
pub(super) fn own_path(path: Option<String>) -> String {
    let is_own = |path: &String| {
        let plain = path
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        plain && path.starts_with('/') && !path.starts_with("//")
    };
    path.filter(is_own).unwrap_or_else(|| "/".to_owned())
}

/// The fields of a form, in their order.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads a form without rows.
    pub(super) async fn read(body: Body) -> Result<Self, Problem> {
        Self::read_up_to(body, BYTES_MAX).await
    }

    /// Reads a form that may have rows.
    pub(super) async fn read_rows(body: Body) -> Result<Self, Problem> {
        Self::read_up_to(body, ROWS_BYTES_MAX).await
    }

    async fn read_up_to(body: Body, bytes_max: usize) -> Result<Self, Problem> {
        let late = |_| {
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the form did not come within 10 s: nothing was done",
            )
        };
        let bytes = timeout(TIME_MAX, to_bytes(body, bytes_max))
            .await
            .map_err(late)?;
        let bytes = bytes.map_err(|error| {
            let detail = format!(
                "the form cannot be read, or has more than {} KiB ({error}): nothing was done",
                bytes_max / 1024
            );
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
        })?;
        let fields = form_urlencoded::parse(&bytes)
            .map(|(name, value)| (name.into_owned(), value.into_owned()));
        Ok(Self(fields.collect()))
    }

    /// Checks that the form has only these fields, because any other may be misspelled.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self
            .0
            .iter()
            .find(|(name, _)| !known.contains(&name.as_str()))
        {
            None => Ok(()),
            Some((name, _)) => Err(parameters::unknown("field", name, known)),
        }
    }

    /// Returns the value of a field, if it is there. If it is there twice, returns an error.
    pub(super) fn one(&self, name: &str) -> Result<Option<String>, Problem> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Problem::bad_request(format!(
                "the field {name} is there twice: nothing was done"
            ))),
            (value, None) => Ok(value.map(str::to_owned)),
        }
    }

    /// Returns the value of a field that must be there.
    pub(super) fn needed(&self, name: &str) -> Result<String, Problem> {
        let missing =
            || Problem::bad_request(format!("the field {name} is missing: nothing was done"));
        self.one(name)?
            .filter(|value| !value.is_empty())
            .ok_or_else(missing)
    }

    /// Returns whether the form has this field once, with this value.
    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        self.all(name).eq([value])
    }

    /// Returns all fields with their values, in their order.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns all values of a field, in their order.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    #[cfg(test)]
    pub(super) fn of(fields: &[(&str, &str)]) -> Self {
        Self(
            fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }
}
