//! Reads a live system, and performs the actions of an operator. [`Control`] is the handle: connect
//! it, then call its methods.
//!
//! - `handle`: [`Control`], which the command line, a dashboard and an HTTP API share
//! - `connection` (private): its connection
//! - `ids`: [`Cursor`] and [`RowId`], opaque positions and row ids
//! - `error`: [`ControlError`]
//! - [`check`](mod@check): checks the invariants, by number
//! - [`stats`](mod@stats): workers, markers, held objects, dead letters
//! - [`streams`](mod@streams): the sizes of the log, the dead letters and the actions
//! - [`depth`](mod@depth): the length of each queue, by a scan
//! - [`inspect`](mod@inspect): one object: the places of its events and why they wait
//! - [`ended`](mod@ended): the results of an object's last events
//! - [`dead`]: the dead letters: read, retried, dropped
//! - [`held`](mod@held): the held objects: why they wait; releasing them, skipping their first
//!   event
//! - [`rules`](mod@rules): pauses and blocks: set, lifted, listed
//! - [`schedules`]: events that are queued when they are due
//! - [`cron`]: events that are queued again and again
//! - [`limits`]: the most queued events and markers
//! - [`actions`](mod@actions): records of the actions of operators
//! - [`log`](mod@log): the log of events, in the order of finalizing
//! - [`forget`](mod@forget): deletes the last ids of idle objects
//! - [`doctor`](mod@doctor): whether a Redis fits
//! - `server` (private): the settings of Redis, for warnings and for `doctor`
//! - `names`, `scan` and `reply` (private): walks over the registered names and the key space, and
//!   parsers of replies
//!
//! Only these operations write to Redis: retry, drop, release, skip, forget, setting or lifting
//! rules, setting or removing limits, and changing or running cron jobs. They need the rights in
//! `docs/protocol.md`. Each of them except forgetting is one atomic script, and is recorded with
//! the operator's name and reason.
//!
//! Every operation works in bounded steps and bounded memory, so it never delays the workers for
//! long. The futures can be dropped at any time. For the reading operations, a Redis user needs
//! only the rights to read and to run scripts.

pub mod actions;
pub mod check;
mod connection;
pub mod cron;
pub mod dead;
pub mod depth;
pub mod doctor;
pub mod ended;
mod error;
pub mod forget;
mod handle;
pub mod held;
mod ids;
pub mod inspect;
pub mod limits;
pub mod log;
mod marks;
pub(crate) mod names;
mod reply;
pub mod rules;
mod scan;
pub mod schedules;
mod server;
pub mod stats;
pub mod streams;

pub use self::actions::{Action, ActionPage};
pub use self::check::CheckReport;
pub use self::cron::{CronDone, CronDraft, CronJob, CronPage};
pub use self::dead::{DeadLetter, DeadPage, Settle, Settled};
pub use self::depth::Depth;
pub use self::doctor::{Finding, Verdict};
pub use self::ended::Ended;
pub use self::error::ControlError;
pub use self::forget::Forgot;
pub use self::handle::Control;
pub use self::held::{HeldObject, HeldPage, Released, Skipped};
pub use self::ids::{Cursor, RowId};
pub use self::inspect::Inspection;
pub use self::limits::{LimitDone, QueueLimit};
pub use self::log::{LogEntry, LogPage, LogStatus};
pub use self::rules::{Rule, Rules};
pub use self::schedules::{SchedulePage, ScheduledEvent};
pub use self::stats::Stats;
pub use crate::wire::operator::By;
