//! Reads a live system, and performs the actions of an operator. [`Control`] is the handle for
//! this: connect it, then call its methods.
//!
//! - `handle`: [`Control`], which the command line, a dashboard and an HTTP API share
//! - `connection` (private): the connection of a handle
//! - `error`: [`ControlError`]
//! - [`check`](mod@check): checks the invariants of the design, by number
//! - [`repair`](mod@repair): rebuilds keys that were lost, from the keys that are left
//! - [`stats`](mod@stats): counts workers, markers, held objects and dead letters
//! - [`streams`](mod@streams): reads the sizes of the log, the dead letters and the actions
//! - [`depth`](mod@depth): counts the events of each queue, by a scan
//! - [`inspect`](mod@inspect): shows the places of one object's events and why the events wait
//! - [`ended`](mod@ended): finds the results of an object's last events
//! - [`chain`](mod@chain): lists all finalized events of an object, in pages
//! - [`dead`]: lists, retries and drops dead letters
//! - [`held`](mod@held): lists held objects and why they wait; releases them; skips their first
//!   event
//! - [`rules`](mod@rules): sets, lifts and lists pauses and blocks
//! - [`schedules`]: lists events that are queued when they are due; cancels them
//! - [`cron`]: manages events that are queued again and again
//! - [`limits`]: limits the number of queued events and of markers
//! - [`shares`](mod@shares): sets the weights, priorities and limits of groups, and reads how far they
//!   are used
//! - [`actions`](mod@actions): lists the recorded actions of operators
//! - [`rows`]: the event of a row in these lists
//! - [`log`](mod@log): reads the event log, in the order of finalizing
//! - [`forget`](mod@forget): deletes the last ids of idle objects
//! - [`under_work`](mod@under_work): finds the longest queues of objects that workers have in hand
//! - [`workers`](mod@workers): reads the worker names in pages, and the slots of one name
//! - [`doctor`](mod@doctor): examines whether a Redis server is fit for seriatim
//! - `server` (private): the settings of Redis, for warnings and for `doctor`
//! - `names`, `scan`, `of_object` and `reply` (private): walks over the registered names and the
//!   key space, searches for the rows of one object, and parsers of replies
//!
//! Only these operations write to Redis: retry, drop, release, skip, forget, setting or lifting
//! rules, setting or removing limits and shares, cancelling schedules, changing or running cron
//! jobs, repairs, and pushing marks. They need the rights in `docs/protocol.md`. Each operation of an operator except
//! [`Control::forget`] and [`Control::repair`], which takes many steps, is one atomic script, and is recorded with the operator's name and reason.
//!
//! Every operation works in bounded steps and bounded memory, so it never delays the workers for
//! long. The futures can be dropped at any time. For the reading operations, a Redis user needs
//! only the rights to read and to run scripts.

pub mod actions;
pub mod chain;
pub mod check;
mod connection;
pub mod cron;
mod cursors;
pub mod dead;
pub mod depth;
pub mod doctor;
pub mod ended;
mod error;
pub mod forget;
mod handle;
pub mod held;
pub mod inspect;
pub mod limits;
pub mod log;
mod marks;
pub(crate) mod names;
mod of_object;
pub mod repair;
mod reply;
pub mod rows;
pub mod rules;
mod scan;
pub mod schedules;
mod server;
pub mod shares;
pub mod stats;
pub mod streams;
pub mod under_work;
pub mod workers;

pub use self::actions::{Action, ActionPage};
pub use self::chain::ChainPage;
pub use self::check::CheckReport;
pub use self::cron::{CronDone, CronDraft, CronJob, CronPage};
pub use self::dead::{DeadLetter, DeadPage, Settle, Settled};
pub use self::depth::Depth;
pub use self::doctor::{Finding, Verdict};
pub use self::ended::{Ended, EndedEvent};
pub use self::error::ControlError;
pub use self::forget::Forgot;
pub use self::handle::Control;
pub use self::held::{HeldFilter, HeldObject, HeldPage, Released, Skipped};
pub use self::inspect::Inspection;
pub use self::limits::{LimitDone, QueueLimit};
pub use self::log::{LogEntry, LogPage};
pub use self::repair::{Repair, RepairReport, RepairStep};
pub use self::rows::RowEvent;
pub use self::rules::{Rule, Rules};
pub use self::schedules::{CancelledSchedule, SchedulePage, ScheduledEvent};
pub use self::shares::{Priority, SelectorShare, Share, ShareDone, ShareFigures, ShareWait};
pub use self::stats::Stats;
pub use self::under_work::UnderWork;
pub use self::workers::{WorkerSlots, WorkersPage};
pub use crate::event::EventStatus;
pub use crate::wire::operator::By;
pub use crate::wire::{Cursor, RowId};
