//! Connections to Redis.
//!
//! - `server`: the settings of the Redis to use
//! - `route`: makes connections to this Redis, directly or to the master that its Sentinels name
//! - `patient`: a connection whose calls time out only if no byte moves
//! - `watched`: the stream of such a connection: its progress, and the last words of its peer
//! - `url`: Redis URLs, and the settings of their sockets
//! - `sentinel`: asks Sentinels which server is the master
//! - `role`: checks the role of a server; names the right URL if it is a replica or a Sentinel
//! - `wait`: the wait until replicas have the writes
//! - `tls`: TLS (feature `tls`); without the feature, `no_tls` is in its place
//! - `errors`: errors of Redis as text, with advice

pub mod errors;
mod patient;
mod role;
mod route;
mod sentinel;
mod server;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub mod tls;
pub mod url;
mod wait;
mod watched;

pub use patient::PatientConnection;
pub use role::{elsewhere, must_accept_writes};
pub use route::{Route, RouteError};
pub use server::Server;
pub use wait::{TooFew, Wait};
