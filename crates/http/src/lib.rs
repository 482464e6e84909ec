//! Sinks of [`seriatim`] that send events over HTTP.
//!
//! ```no_run
//! # async fn work() -> Result<(), Box<dyn std::error::Error>> {
//! use seriatim::worker::{Shutdown, Worker};
//! use seriatim_http::Http;
//!
//! let sink = Http::to("https://billing.example/events?batch=100".parse()?).open()?;
//! let worker = Worker::builder("redis://127.0.0.1").name("billing-a").sink(sink).build()?;
//! worker.run(Shutdown::on_signals()?).await?;
//! # Ok(())
//! # }
//! ```
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
//! So a receiver must apply the receiver's rule of [`consume`](seriatim::consume), or be idempotent.
//!
//! The feature `traces` gives each request the trace context of its delivery. `docs/http.md` in the
//! repository describes requests, answers and retries.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod answer;
mod body;
mod clients;
mod effects;
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
mod tls;
mod unanswered;

pub use answer::Statuses;
pub use body::Format;
pub use error::HttpError;
pub use event_url::{Allowed, EventUrl, EventUrlBuilder, Prefix};
pub use exclusive::Exclusive;
pub use fixed::{Http, HttpBuilder, Target};
pub use options::Options;
pub use signature::{Secret, SignatureError};
#[doc(hidden)]
pub use tls::https;

/// The target of log lines.
const LOG: &str = "seriatim::sink::http";

/// Checks that a text is a URL to which a sink can send: it begins with `http://` or `https://`, and has at
/// most 60,000 bytes. Whether a worker allows the URL is its own setting.
///
/// # Errors
/// [`HttpError::Url`] with the reason.
pub fn check_url(text: &str) -> Result<(), HttpError> {
    fixed::parse(text).map(drop)
}
