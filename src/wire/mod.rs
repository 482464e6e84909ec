//! The Lua scripts and their typed calls. Only this module knows the arguments and replies of the
//! scripts.
//!
//! A script is one atomic step of the protocol. If the reply of a call is lost, the call may be
//! repeated. The text of a script is assembled once (lua/README.md). If the process dies during a
//! call, the step has happened or has not. The header of each script describes both cases.
//!
//! - `lua`: the text of every script
//! - `advance`, `attach`, `renew`, `detach`, `adopt`, `promote`, `cron`, `connect`, `doctor`, `handled`, `forget`,
//!   `position`: one script each, with its arguments and its reply
//! - [`operator`]: the scripts of operators, one file each
//! - [`values`]: the values that Redis stores as one text, one file each
//! - `suspects`: the number of suspects that a process may take
//! - `load`: the limit on the work of one call of `advance`
//! - `reply`, `error`: code that all calls share

mod adopt;
mod advance;
mod attach;
mod connect;
mod cron;
mod detach;
mod doctor;
mod error;
mod forget;
mod handled;
mod load;
mod lua;
pub mod operator;
pub mod position;
mod promote;
mod renew;
mod reply;
mod suspects;
pub mod values;

pub use adopt::{Adopted, Sweep, adopt};
pub(crate) use advance::pop_and_advance;
pub use advance::{Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, EventLog, Report, advance};
pub use attach::{Attach, Attached, attach};
pub use connect::{Connected, Seen, connect};
pub use cron::{DueJob, Fired, JOBS_MAX as CRON_JOBS_MAX, Ticks, cron};
pub use detach::{Detached, detach};
pub use doctor::missing_right;
pub use error::ScriptError;
pub use forget::{Forgot, OBJECTS_MAX, forget};
pub use handled::{Finished, Handled, SlotBatch, handled};
pub use load::{Load, Room};
pub(crate) use lua::{CHECK, ENDED, INSPECT, LOG, TAKEN};
pub use promote::{EVENTS_MAX as PROMOTED_MAX, Promoted, promote};
pub use renew::{Renewed, renew};
pub use suspects::Suspects;
pub use values::{CronPlan, Emits, Tag, TagError};
