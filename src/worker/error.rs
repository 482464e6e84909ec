//! The errors and the results of a worker.

use std::time::Duration;

use redis::RedisError;

use super::config::ConfigError;
use crate::connection::errors::{advice, describe};
use crate::connection::url::UrlError;
use crate::wire::ScriptError;
use crate::wire::values::Holder;

/// The reason why a worker did not start or did not go on. In every case Redis keeps the worker's
/// batches.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The builder has no sink.
    #[error("a worker needs a sink")]
    NoSink,
    /// The URL is invalid.
    #[error("{}", bad_url(.0))]
    Url(String),
    /// The settings of TLS cannot be used: the process has no rustls provider, or a file is
    /// missing or invalid.
    #[error("TLS to Redis is not possible: {0}")]
    Tls(String),
    /// The map of the addresses that Sentinels announce is invalid.
    #[error("the map of Sentinel addresses cannot be used: {0}")]
    Sentinels(String),
    /// Redis could not be reached when the worker started.
    #[error("cannot connect to Redis at {address}: {}{}", describe(.source), advice(.source))]
    Connect {
        /// The host and port, or the socket.
        address: String,
        /// The error of the last attempt.
        source: RedisError,
    },
    /// The first script on a new connection refused to go on, for example because the data in Redis
    /// has an unknown version. The text has the reason.
    #[error("{0}")]
    Refused(String),
    /// The name belongs to another live process.
    #[error(
        "the name {name:?} is in use by process {pid} on {host}; stop it, choose another name, or take over with --takeover"
    )]
    InUse {
        /// The worker name.
        name: String,
        /// The host of the other process.
        host: String,
        /// The id of the other process.
        pid: u32,
    },
    /// Another process took the name.
    #[error("{}", fenced(name, lease))]
    Fenced {
        /// The worker name.
        name: String,
        /// The present lease, `token host pid start`; empty if there is none.
        lease: String,
    },
    /// A key has a type that the protocol does not allow.
    #[error("the key {key} is a {found}, not a {expected}; move it away, and workers go on")]
    WrongType {
        /// The key.
        key: String,
        /// The type of the key.
        found: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The thread that keeps the lease could not be started.
    #[error(
        "cannot start the thread that keeps the lease: {0}; raise the limit of threads or open files"
    )]
    Thread(std::io::Error),
    /// A script failed, or its reply is invalid.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

impl WorkerError {
    /// Returns whether the user has no right to a command that the scripts use.
    pub(crate) fn is_missing_right(&self) -> bool {
        matches!(self, Self::Script(ScriptError::Denied(_)))
    }

    /// Returns whether a shared key caused the error: it has a wrong type, or the counter is no
    /// number. An operator can correct it.
    pub(crate) fn is_obstacle(&self) -> bool {
        match self {
            Self::WrongType { .. } => true,
            Self::Script(error) => error.is_obstacle(),
            _ => false,
        }
    }
}

fn bad_url(reason: &str) -> String {
    UrlError {
        reason: reason.to_owned(),
    }
    .to_string()
}

fn fenced(name: &str, lease: &str) -> String {
    match Holder::of_lease(lease) {
        Some(by) => format!(
            "fenced: the name {name:?} was taken over by process {} on {}",
            by.pid(),
            by.host_name()
        ),
        None => {
            format!("fenced: another process took the name {name:?}, and its lease has ended since")
        }
    }
}

/// The result of a worker after a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// The kind of stop.
    pub reason: StopReason,
    /// The number of events delivered and committed.
    pub delivered: u64,
    /// The duration of the stop, from the request to the end.
    pub took: Duration,
}

/// The kind of stop, and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The stop was graceful. Every batch in hand was finished, or is held for other workers.
    Graceful {
        /// The number of objects that were still owned at the end of the stop. They are now held,
        /// due at once. There are such objects if the grace was over, or if the sink was
        /// unavailable.
        held: u64,
    },
    /// The stop was requested at once, without a grace.
    AtOnce,
    /// Redis could not be reached during the stop. Other workers take over when the lease ends.
    Unreachable,
}
