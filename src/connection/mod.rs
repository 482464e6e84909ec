//! How this crate reaches Redis.
//!
//! - `patient`: a connection whose calls end only if no byte moves
//! - `url`: Redis URLs, and the sockets that are opened by one
//! - `errors`: errors of Redis as text, and the advice that follows them

pub mod errors;
mod patient;
pub mod url;

pub use patient::PatientConnection;
