//! The Lua scripts and their typed calls. Only this module knows the arguments and replies of the
//! scripts.
//!
//! A script is one atomic step of the protocol. If the reply to a call is lost, the caller may send
//! the same call again. If the process dies during a call, Redis has run the whole step or nothing
//! of it. The header of each script in `lua/` describes both cases. The text of each script is
//! assembled once per process (lua/README.md).
//!
//! - `lua`: the text of every script
//! - `emit`, `cancel`: the calls of producers; these two modules do not need the feature `worker`
//! - `advance`, `attach`, `renew`, `detach`, `adopt`, `promote`, `cron`, `connect`, `doctor`,
//!   `handled`, `forget`, `mark`, `position`: each of these modules has the call of one script,
//!   with its arguments and its reply
//! - `foreign`: finds keys of other programs
//! - [`operator`]: the scripts of operators, one file each
//! - [`values`]: the values that Redis stores as one text, one file each
//! - `suspects`: the number of suspects that a process may take (a suspect is a batch that may kill
//!   its worker)
//! - `load`: the limit on the work of one call of `advance`
//! - `reply`, `error`: code that all calls share

#![cfg_attr(not(feature = "worker"), allow(dead_code))]

#[cfg(feature = "worker")]
mod adopt;
#[cfg(feature = "worker")]
mod advance;
#[cfg(feature = "worker")]
mod attach;
mod cancel;
#[cfg(feature = "worker")]
mod connect;
#[cfg(feature = "worker")]
mod cron;
#[cfg(feature = "worker")]
mod detach;
#[cfg(feature = "worker")]
mod doctor;
mod emit;
mod error;
#[cfg(feature = "worker")]
mod foreign;
#[cfg(feature = "worker")]
mod forget;
#[cfg(feature = "worker")]
mod handled;
#[cfg(feature = "worker")]
mod load;
mod lua;
#[cfg(feature = "worker")]
mod mark;
#[cfg(feature = "worker")]
pub mod operator;
#[cfg(feature = "worker")]
pub mod position;
#[cfg(feature = "worker")]
mod promote;
#[cfg(feature = "worker")]
mod renew;
mod reply;
#[cfg(feature = "worker")]
mod sent;
#[cfg(feature = "worker")]
mod suspects;
pub mod values;

#[cfg(feature = "worker")]
pub use adopt::{Adopted, Sweep, adopt};
#[cfg(feature = "worker")]
pub(crate) use advance::pop_and_advance;
#[cfg(feature = "worker")]
pub use advance::{Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, EventLog, Report, advance};
#[cfg(feature = "worker")]
pub use attach::{Attach, Attached, attach};
pub use cancel::{CancelReply, cancel};
#[cfg(feature = "worker")]
pub use connect::{Connected, Seen, connect};
#[cfg(feature = "worker")]
pub use cron::{DueJob, Fired, JOBS_MAX as CRON_JOBS_MAX, Ticks, cron};
#[cfg(feature = "worker")]
pub use detach::{Detached, detach};
#[cfg(feature = "worker")]
pub use doctor::missing_right;
pub use emit::{EmitReply, ScriptedEmit};
pub use error::ScriptError;
#[cfg(feature = "worker")]
pub use foreign::{ForeignKey, foreign_key};
#[cfg(feature = "worker")]
pub use forget::{Forgot, OBJECTS_MAX, forget};
#[cfg(feature = "worker")]
pub use handled::{FINISHED, Finished, Handled, SlotBatch, finished_with, handled, returned};
#[cfg(feature = "worker")]
pub use load::{Load, Room};
#[cfg(feature = "worker")]
pub(crate) use lua::{CHECK, INSPECT, LOG, OF_OBJECT, STREAM, TAKEN};
#[cfg(feature = "worker")]
pub use mark::{Marked, mark};
#[cfg(feature = "worker")]
pub use promote::{EVENTS_MAX as PROMOTED_MAX, Promoted, promote};
#[cfg(feature = "worker")]
pub use renew::{Renewed, renew};
#[cfg(feature = "worker")]
pub use sent::{SENT_MARGIN, Sent, request_over, sent};
#[cfg(feature = "worker")]
pub use suspects::Suspects;
#[cfg(feature = "worker")]
pub use values::{CronPlan, Emits, Tag, TagError};
