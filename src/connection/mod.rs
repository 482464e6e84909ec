//! Connections to Redis.
//!
//! - `patient`: a connection whose calls end only if no byte moves
//! - `url`: Redis URLs, and the settings of their sockets
//! - `errors`: errors of Redis as text, with advice

pub mod errors;
mod patient;
pub mod url;

pub use patient::PatientConnection;
