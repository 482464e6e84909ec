//! A sink of [`seriatim`] that hands events to programs in any language, over pipes.
//!
//! ```no_run
//! # async fn work() -> Result<(), Box<dyn std::error::Error>> {
//! use seriatim::worker::{Shutdown, Worker};
//! use seriatim_exec::{Exec, Options};
//!
//! let sink = Exec::open("python3 handlers.py".parse()?, Options::default())?;
//! let worker = Worker::builder("redis://127.0.0.1").name("billing-a").sink(sink.clone()).build()?;
//! worker.run(Shutdown::on_signals()?).await?;
//! sink.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! The sink starts the program, writes batches of events to its standard input, and reads results
//! from its standard output, one JSON value per line. `docs/handlers-protocol.md` in the repository
//! describes the lines.
//!
//! - **One at a time.** A program never has two batches of one object. If a delivery is given up,
//!   e.g. because the worker has lost its lease, the object waits until the program has answered or
//!   is dead.
//! - **A program that ends** counts a crash ([`Stop::Crashed`]) for each event that it had begun. It
//!   is started again after a growing wait. An event with a crash is then alone in its program.
//! - **A program that cannot start**, or does not begin the protocol, makes the sink unavailable.
//!
//! [`ExecEach`] starts a process for each event, without a protocol.
//! With [`Exec::parent`], the program is the parent of this process.
//!
//! [`Stop::Crashed`]: seriatim::sink::Stop::Crashed
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod command;
mod each;
mod exec;
mod figures;
mod keeper;
mod program;
mod protocol;

pub use command::{Command, CommandError};
pub use each::ExecEach;
pub use exec::{Exec, ExecError, Options};
pub use figures::Figures;
pub use keeper::ParentEnd;

/// The target of log lines.
const LOG: &str = "seriatim::sink::exec";
