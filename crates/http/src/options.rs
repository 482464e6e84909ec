//! The settings that all HTTP sinks have.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::answer::Statuses;
use super::body::Format;
use super::error::HttpError;
use super::exclusive::Exclusive;
use super::signature::Secret;

/// Maximum number of secrets that sign one request.
const SECRETS_MAX: usize = 2;

/// Headers that the sink or the HTTP connection sets itself.
const OWN: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Prefixes of the names of headers that the sink sets itself.
const OWN_PREFIXES: [&str; 3] = ["ce-", "seriatim-", "webhook-"];

/// The settings that all HTTP sinks have.
///
/// The `Debug` output shows neither secrets nor the values of headers.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The form in which events are sent. Default: envelopes.
    pub format: Format,
    /// Longest time from the moment at which a request is sent to its answer: 10 ms to 1 hour. The
    /// time for which a request waits inside this process, e.g. for a connection, does not count.
    /// Default: 30 s.
    pub timeout: Duration,
    /// Longest time of an attempt to connect, with DNS and TLS: 10 ms to 1 hour. Default: 5 s. If
    /// it is longer than half of `timeout`, half of `timeout` is used. So a failed attempt to
    /// connect can be told from a late answer: only the failed attempt means that the receiver is
    /// unavailable.
    pub connect_timeout: Duration,
    /// Secrets that sign each request: none, one, or, while you replace a secret, two. Default:
    /// none.
    pub secrets: Vec<Secret>,
    /// Largest age of connections: 1 s to 24 hours. Then requests get new connections, and the
    /// receiver's name is looked up again. Default: 2 minutes.
    pub connection_age: Duration,
    /// File with more secrets, one in each line. The sink reads this file, `header_file` and
    /// `ca_file` again when they change, after a 401, and in [`Sink::reopen`](seriatim::sink::Sink::reopen).
    pub secret_file: Option<PathBuf>,
    /// File with more headers, one line `NAME: VALUE` for each.
    pub header_file: Option<PathBuf>,
    /// PEM file with the authorities whose certificates are accepted. Default: the authorities of
    /// the system.
    pub ca_file: Option<PathBuf>,
    /// The requests for which a receiver works on one request of an object at a time. Each costs
    /// one call of Redis more, and each delivery one. Then `timeout` begins before the request is
    /// recorded in Redis. Default: none.
    pub exclusive: Exclusive,
    /// The meanings of statuses that differ from the usual ones. Default: none differ.
    pub statuses: Statuses,
    /// The attribute `source` of CloudEvents: a URI or a relative URI. Default: `/seriatim`.
    pub source: String,
    headers: HeaderMap,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: Format::default(),
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            connection_age: Duration::from_secs(120),
            secrets: Vec::new(),
            secret_file: None,
            header_file: None,
            ca_file: None,
            exclusive: Exclusive::default(),
            statuses: Statuses::default(),
            source: "/seriatim".to_owned(),
            headers: HeaderMap::new(),
        }
    }
}

impl Options {
    /// Adds a header to each request, e.g. `authorization`. The value of the header is not logged.
    ///
    /// # Errors
    /// [`HttpError::Header`] if the name or the value is invalid, or if the sink sets this header
    /// itself.
    pub fn header(&mut self, name: &str, value: &str) -> Result<(), HttpError> {
        let refused = |why: String| HttpError::Header { why };
        // The text is not repeated in the error, because a text that is not a name may be a secret.
        let key = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused("its name is not a name of a header".to_owned()))?;
        if OWN.contains(&key.as_str())
            || OWN_PREFIXES.iter().any(|own| key.as_str().starts_with(own))
        {
            return Err(refused(format!("the sink sets {key} itself")));
        }
        let invalid = |_| {
            refused(format!(
                "the value of {key} has a character that no header may have"
            ))
        };
        let mut value = HeaderValue::from_str(value).map_err(invalid)?;
        value.set_sensitive(true);
        self.headers.append(key, value);
        Ok(())
    }

    /// Adds a header of the form `NAME: VALUE`.
    ///
    /// # Errors
    /// As [`Self::header`].
    pub fn header_line(&mut self, line: &str) -> Result<(), HttpError> {
        // The error does not have the line, because without a colon the whole line may be a secret.
        let no_colon = || HttpError::Header {
            why: "write NAME: VALUE".to_owned(),
        };
        let (name, value) = line.split_once(':').ok_or_else(no_colon)?;
        self.header(name.trim(), value.trim())
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub(super) fn validate(&self) -> Result<(), HttpError> {
        let range = "it must be 10 ms to 1 h";
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let times = [
            ("timeout", self.timeout, ms(10)..=s(3600), range),
            (
                "connect_timeout",
                self.connect_timeout,
                ms(10)..=s(3600),
                range,
            ),
            (
                "connection_age",
                self.connection_age,
                s(1)..=s(86_400),
                "it must be 1 s to 24 h",
            ),
        ];
        for (setting, time, valid, range) in times {
            if !valid.contains(&time) {
                return Err(HttpError::Range {
                    setting,
                    value: format!("{time:?}"),
                    range,
                });
            }
        }
        if self.secrets.len() > SECRETS_MAX {
            return Err(HttpError::Secrets(self.secrets.len()));
        }
        if self.source.is_empty()
            || self
                .source
                .chars()
                .any(|c| c.is_whitespace() || c.is_control())
        {
            let range = "it must be a URI or a part of one";
            return Err(HttpError::Range {
                setting: "source",
                value: format!("{:?}", self.source),
                range,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("connection_age", &self.connection_age)
            .field("secrets", &self.secrets.len())
            .field("secret_file", &self.secret_file)
            .field("header_file", &self.header_file)
            .field("ca_file", &self.ca_file)
            .field("exclusive", &self.exclusive)
            .field("statuses", &self.statuses)
            .field("source", &self.source)
            .field("headers", &self.headers.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_valid_and_not_one_of_the_sink() {
        let mut options = Options::default();
        assert_eq!(options.header("Authorization", "Bearer hunter2"), Ok(()));
        assert!(!format!("{options:?}").contains("hunter2"));
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("x", "a\nb"),
            ("Content-Type", "x"),
            ("Host", "x"),
            ("webhook-id", "x"),
            ("Seriatim-Id", "x"),
            ("ce-id", "x"),
        ] {
            assert!(
                matches!(options.header(name, value), Err(HttpError::Header { .. })),
                "{name}: {value:?}"
            );
        }
    }

    #[test]
    fn settings_have_ranges() {
        let invalid = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.validate().is_err()
        };
        assert!(!invalid(|_| {}));
        assert!(invalid(|options| options.timeout = Duration::ZERO));
        assert!(invalid(
            |options| options.connect_timeout = Duration::from_secs(3601)
        ));
        assert!(invalid(
            |options| options.connection_age = Duration::from_millis(999)
        ));
        assert!(invalid(|options| options.source = String::new()));
        assert!(invalid(|options| options.source = "a b".to_owned()));
        let secret: Secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
            .parse()
            .expect("a secret");
        let mut options = Options {
            secrets: vec![secret.clone(), secret.clone()],
            ..Options::default()
        };
        assert_eq!(options.validate(), Ok(()));
        options.secrets.push(secret);
        assert_eq!(options.validate(), Err(HttpError::Secrets(3)));
    }
}
