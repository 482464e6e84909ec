//! Looks at a live system, and does what an operator may do. [`Control`] is the handle: connect it,
//! and call its methods.
//!
//! - `handle`: [`Control`], which the command line, a dashboard and an HTTP API share
//! - `connection` (private): its connection
//! - `ids`: [`Cursor`] and [`RowId`], opaque places in lists
//! - `error`: [`ControlError`]
//! - [`check`](mod@check): the invariants, read off by number
//! - [`stats`](mod@stats): workers, markers, held objects, dead letters
//! - [`depth`](mod@depth): the length of every queue, by a scan
//! - [`inspect`](mod@inspect): one object: where its events are and why they wait
//! - [`ended`](mod@ended): the results of an object's last events
//! - [`dead`]: the dead letters: read, retried, dropped
//! - [`held`](mod@held): the held objects: why they wait, released, rid of their head event
//! - [`rules`](mod@rules): pauses and blocks: set, lifted, listed
//! - [`actions`](mod@actions): what operators did
//! - [`log`](mod@log): the log of events, in the order in which they were finalized
//! - [`forget`](mod@forget): deletes what is left of idle objects
//! - `server` (private): settings of Redis that break the promise
//! - `names`, `scan` and `reply` (private): walking the registered names and the key space, and
//!   reading replies
//!
//! Only retrying, dropping, releasing, skipping, forgetting, and setting and lifting rules write to
//! Redis; they need the rights that `docs/protocol.md` lists for them. Each of these but forgetting
//! is one atomic script, and is kept with who did it and why.
//!
//! Everything works in bounded steps, so that a look never holds up the workers, and in bounded
//! memory. The futures can be dropped at any time. Any Redis user who may read and run scripts can
//! make the looks.

pub mod actions;
pub mod check;
mod connection;
pub mod dead;
pub mod depth;
pub mod ended;
mod error;
pub mod forget;
mod handle;
pub mod held;
mod ids;
pub mod inspect;
pub mod log;
pub(crate) mod names;
mod reply;
pub mod rules;
mod scan;
mod server;
pub mod stats;

pub use self::actions::{Action, ActionPage};
pub use self::check::CheckReport;
pub use self::dead::{DeadLetter, DeadPage, Settle, Settled};
pub use self::depth::Depth;
pub use self::ended::Ended;
pub use self::error::ControlError;
pub use self::forget::Forgot;
pub use self::handle::Control;
pub use self::held::{HeldObject, HeldPage, Released, Skipped};
pub use self::ids::{Cursor, RowId};
pub use self::inspect::Inspection;
pub use self::log::{LogEntry, LogPage, LogStatus};
pub use self::rules::{Rule, Rules};
pub use self::stats::Stats;
pub use crate::wire::operator::By;
