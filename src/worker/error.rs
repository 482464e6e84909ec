//! Why a worker cannot start, or cannot go on.

use std::time::Duration;

use redis::RedisError;

use super::config::ConfigError;
use crate::connection::errors::{advice, told};
use crate::wire::ScriptError;
use crate::wire::values::Holder;

/// Why a worker did not start or did not go on. What it had in hand is kept in Redis in every case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A setting is out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No sink was given.
    #[error("a worker needs a sink")]
    NoSink,
    /// The URL is none.
    #[error("not a Redis URL ({0}); it looks like host[:port], redis://host:6379 or unix:///path")]
    Url(String),
    /// Redis could not be reached when the worker started.
    #[error("cannot connect to Redis at {address}: {}{}", told(.source), advice(.source))]
    Connect {
        /// Host and port, or the socket.
        address: String,
        /// What went wrong.
        source: RedisError,
    },
    /// Redis has data that this program must not touch, and says why.
    #[error("{0}")]
    Refused(String),
    /// The name belongs to another live process.
    #[error("the name {name:?} is in use by process {pid} on {host}; stop it, choose another name, or take over with --takeover")]
    InUse {
        /// The worker name.
        name: String,
        /// The host of the other process.
        host: String,
        /// Its process id.
        pid: u32,
    },
    /// Another process took the name, or the registration is gone.
    #[error("{}", fenced(name, lease))]
    Fenced {
        /// The worker name.
        name: String,
        /// The lease as it is now, `token host pid start`; empty if there is none.
        lease: String,
    },
    /// A key has a type that the protocol does not allow.
    #[error("the key {key} is a {found}, not a {expected}; move it away, and workers go on")]
    WrongType {
        /// The key.
        key: String,
        /// Its type.
        found: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// The thread that keeps the lease could not be started.
    #[error("cannot start the thread that keeps the lease: {0}; raise the limit of threads or open files")]
    Thread(std::io::Error),
    /// A script failed, or answered something unexpected.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

fn fenced(name: &str, lease: &str) -> String {
    match Holder::of_lease(lease) {
        Some(by) => format!("fenced: the name {name:?} was taken over by process {} on {}", by.pid(), by.host_name()),
        None => format!("fenced: the name {name:?} is no longer registered in Redis; was its data deleted?"),
    }
}

/// How a worker that was told to stop ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Why and how.
    pub reason: StopReason,
    /// How many events were delivered and committed in all.
    pub delivered: u64,
    /// How long the stop took, from the moment it was told.
    pub took: Duration,
}

/// Why a worker stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It was told to stop; everything in hand was finished, or is held for others.
    Graceful {
        /// Objects that were still owned and are now held, due at once: the grace was over, or the
        /// sink was unavailable.
        held: u64,
    },
    /// It was told to stop at once.
    AtOnce,
    /// It was told to stop, and Redis could not be reached: what was in hand is taken over when the
    /// lease ends.
    Unreachable,
}
