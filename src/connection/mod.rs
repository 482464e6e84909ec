//! Connections to Redis.
//!
//! - `server`: the Redis to use
//! - `route`: makes connections to it, directly or as its Sentinels say
//! - `patient`: a connection whose calls end only if no byte moves
//! - `url`: Redis URLs, and the settings of their sockets
//! - `sentinel`: which server is the master
//! - `role`: the role of a server, and the right URL if it is a replica or a Sentinel
//! - `wait`: the wait until replicas have the writes
//! - `tls`: TLS (feature `tls`)
//! - `errors`: errors of Redis as text, with advice

pub mod errors;
mod patient;
mod role;
mod route;
mod sentinel;
mod server;
#[cfg(feature = "tls")]
mod tls;
pub mod url;
mod wait;

pub use patient::PatientConnection;
pub use role::{elsewhere, must_accept_writes};
pub use route::{Route, RouteError};
pub use server::Server;
#[cfg(feature = "http")]
pub use tls::https;
pub use wait::{TooFew, Wait};
