//! The parts that the commands of the program `seriatim`, its servers and its lab share: options, input,
//! output, logs and exit codes.
//!
//! - [`global`]: the options of every command: the Redis, the namespace, the logs
//! - [`actor`]: the options of commands that change something as an operator
//! - [`named`]: names, escaped on the command line and in outputs
//! - [`nearest`]: the known word that is most similar to a wrong one
//! - [`lines`]: lines of JSON, read from files and standard input
//! - [`verify`]: outputs of workers and emitted events, read for a verdict
//! - [`shown`]: results on standard output, messages on standard error
//! - [`logs`]: the log lines of a worker
//! - [`describe`]: errors of Redis, with advice
//! - [`failures`]: errors of emits and of workers, with exit codes
//! - [`shares`]: shares of groups, as text
//! - [`secrets`]: values without their secrets
//! - [`files`]: the limit of open files
//! - [`notify`]: the notices that a service sends to systemd
//! - [`reach`]: the start of a long-running command while Redis is away
//! - [`exit`]: exit codes
//! - [`variables`]: environment variables that are probably misspelled
//! - [`task`]: tasks, as lines and as bodies of requests
//! - [`units`]: durations, times and sizes
//! - [`replicas`]: the options for the wait for replicas
//! - [`watch`]: the option `--watch`, which shows an output again and again
//! - [`stop`]: the signals that end a command
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
// `println!` panics if nobody reads standard output, and `eprintln!` panics if standard error is
// closed. So all output goes through the functions of `shown`, which do not panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod actor;
pub mod describe;
pub mod exit;
pub mod failures;
pub mod files;
pub mod global;
pub mod lines;
pub mod logs;
pub mod named;
pub mod nearest;
pub mod notify;
pub mod reach;
pub mod replicas;
pub mod secrets;
pub mod shares;
pub mod shown;
pub mod stop;
pub mod task;
pub mod units;
pub mod variables;
pub mod verify;
pub mod watch;
