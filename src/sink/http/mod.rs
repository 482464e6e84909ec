//! Sinks that send events over HTTP.
//!
//! - [`Http`]: to one URL
//! - [`EventUrl`]: to the URL in each event
//! - [`Options`]: the settings of both
//! - [`Secret`]: signs requests, and verifies signatures
//!
//! Each request has the events of one object only, and the object's next request begins after its
//! answer. If the process dies before the answer, the same events come again with the same ids. So
//! a receiver must apply the receiver's rule of [`consume`](crate::consume), or be idempotent.

mod answer;
mod body;
mod error;
mod event_url;
mod exchange;
mod fixed;
mod options;
mod signature;

pub use body::Format;
pub use error::HttpError;
pub use event_url::{Allowed, EventUrl, EventUrlBuilder, Prefix};
pub use fixed::{Http, HttpBuilder, Target};
pub use options::Options;
pub use signature::{Secret, SignatureError};
