//! The error of opening an HTTP sink.

use std::path::PathBuf;

/// The reason why an HTTP sink cannot be opened, or why one of its settings is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The text is not a URL to send to.
    #[error("this is not a URL to send events to: {why}; write e.g. https://host/path")]
    Url {
        /// The mistake. It repeats no part of the text, because the text may have a password.
        why: String,
    },
    /// The text is not a prefix of allowed URLs.
    #[error(
        "this is not a prefix of URLs: {why}; write e.g. https://host/path/, or https:// for all hosts"
    )]
    Prefix {
        /// The mistake. It repeats no part of the text.
        why: String,
    },
    /// No URL is allowed.
    #[error(
        "the sink event-url needs at least one prefix of allowed URLs (--allow https://host/path/)"
    )]
    NothingAllowed,
    /// The secret is invalid.
    #[error(
        "the secret is invalid: {why}; write whsec_ and the base64 form of 24 to 64 random bytes"
    )]
    Secret {
        /// The mistake.
        why: String,
    },
    /// There are more secrets than a request can have signatures.
    #[error("there are {0} secrets; at most 2 sign a request: the new one and the old one")]
    Secrets(usize),
    /// A header cannot be sent.
    #[error("a header is invalid: {why}")]
    Header {
        /// The mistake. It does not repeat the value of the header.
        why: String,
    },
    /// The meanings of statuses are invalid.
    #[error("the meanings of statuses are invalid: {why}; write e.g. 404=reject,5xx=transient")]
    Status {
        /// The mistake.
        why: String,
    },
    /// A setting is out of its range.
    #[error("{setting} is {value}; {range}")]
    Range {
        /// The setting.
        setting: &'static str,
        /// The value of the setting.
        value: String,
        /// The range in which the value must be.
        range: &'static str,
    },
    /// TLS is not possible, e.g. because there are no certificates of authorities.
    #[error("TLS to the sink is not possible: {0}")]
    Tls(String),
    /// The HTTP client cannot be made.
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
    /// The sink's threads cannot be started.
    #[error("cannot start the sink's threads: {0}; check the limits on threads and memory")]
    Threads(String),
    /// A file cannot be read.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The mistake.
        why: String,
    },
}
