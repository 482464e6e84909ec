//! Sinks that send events over HTTP.
//!
//! - [`Http`]: sends to one URL
//! - [`EventUrl`]: sends each event to the URL that the event names
//! - [`Options`]: the settings that both sinks have
//! - [`Exclusive`]: sends no request as long as the receiver may work on an earlier one
//! - [`Statuses`]: changes what the statuses of answers mean
//! - [`Secret`]: signs requests, and verifies signatures
//!
//! Each request has the events of one object only. The next request for this object begins after
//! the answer. If the process dies before the answer, the same events come again with the same ids.
//! So a receiver must apply the receiver's rule of [`consume`](crate::consume), or be idempotent.

mod answer;
mod body;
mod clients;
mod error;
mod event_url;
mod exchange;
mod exclusive;
mod fixed;
mod options;
mod receivers;
mod sending;
mod settings;
mod signature;
mod streams;
mod unanswered;

pub use answer::Statuses;
pub use body::Format;
pub use error::HttpError;
pub use event_url::{Allowed, EventUrl, EventUrlBuilder, Prefix};
pub use exclusive::Exclusive;
pub use fixed::{Http, HttpBuilder, Target};
pub use options::Options;
pub use signature::{Secret, SignatureError};

/// Checks that a text is a URL to which a sink can send: it begins with `http://` or `https://`, and has at
/// most 60,000 bytes. Whether a worker allows the URL is its own setting.
///
/// # Errors
/// [`HttpError::Url`] with the reason.
pub fn check_url(text: &str) -> Result<(), HttpError> {
    fixed::parse(text).map(drop)
}
