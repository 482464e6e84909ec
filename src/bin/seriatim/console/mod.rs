//! The parts that the commands share: options, input, output, logs and exit codes.
//!
//! - [`global`]: the options of every command: the Redis, the namespace, the logs
//! - [`actor`]: the options of commands that change something as an operator
//! - [`named`]: names, escaped on the command line and in outputs
//! - [`nearest`]: the known word that is most similar to a wrong one
//! - [`lines`]: lines of JSON, read from files and standard input
//! - [`pointer`]: JSON pointers into these lines
//! - [`shown`]: results on standard output, messages on standard error
//! - [`logs`]: the log lines of a worker
//! - [`told`]: errors of Redis, with advice
//! - [`notify`]: the notices that a service sends to systemd
//! - [`reach`]: the start of a long-running command while Redis is away
//! - [`exit`]: exit codes
//! - [`variables`]: environment variables that are probably misspelled
//! - [`task`]: tasks, as lines and as bodies of requests
//! - [`units`]: durations, times and sizes
//! - [`replicas`]: the options for the wait for replicas
//! - [`watch`]: the option `--watch`, which shows an output again and again
//! - [`stop`]: the signals that end a command

pub(crate) mod actor;
pub(crate) mod exit;
pub(crate) mod files;
pub(crate) mod global;
pub(crate) mod lines;
pub(crate) mod logs;
pub(crate) mod named;
pub(crate) mod nearest;
pub(crate) mod notify;
pub(crate) mod reach;
pub(crate) mod replicas;
pub(crate) mod secrets;
pub(crate) mod shown;
pub(crate) mod stop;
pub(crate) mod task;
pub(crate) mod told;
pub(crate) mod units;
pub(crate) mod variables;
pub(crate) mod watch;
