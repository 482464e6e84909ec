//! The calls of workers and operators.
//!
//! - `advance`, `attach`, `renew`, `detach`, `adopt`, `promote`, `cron`, `connect`, `doctor`,
//!   `handled`, `forget`, `mark`, `sent`, [`position`]: each of these modules has the call of one
//!   script, with its arguments and its reply
//! - `call`: calls a script on a server that may not know it yet
//! - `library`: runs the script `advance` as a function or as a script
//! - `ids`: [`Cursor`] and [`RowId`], opaque positions and row ids
//! - `foreign`: finds keys of other programs
//! - [`operator`]: the scripts of operators, one file each
//! - `suspects`: the number of suspects that a process may take (a suspect is a batch that may kill
//!   its worker)
//! - `load`: the limit on the work of one call of `advance`

mod adopt;
mod advance;
mod attach;
mod call;
mod connect;
mod cron;
mod detach;
mod doctor;
mod foreign;
mod forget;
mod handled;
mod ids;
mod library;
mod load;
mod mark;
pub mod operator;
pub mod position;
mod promote;
mod renew;
mod sent;
mod suspects;

pub(crate) use super::lua::ADVANCE;
pub use super::values::{Emits, Tag, TagError};
pub use adopt::{Adopted, Sweep, adopt};
pub(crate) use advance::pop_and_advance;
pub use advance::{
    Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, EventLog, Report, advance,
};
pub use attach::{Attach, Attached, attach};
pub use connect::{Connect, Connected, connect};
pub use cron::{DueJob, Fired, JOBS_MAX as CRON_JOBS_MAX, Ticks, cron};
pub use detach::{Detached, detach};
pub use doctor::{Rights, rights};
pub use foreign::{ForeignKey, foreign_key};
pub use forget::{Forgot, OBJECTS_MAX, forget};
pub use handled::{FINISHED, Finished, Handled, SlotBatch, finished_with, handled, returned};
pub use ids::{Cursor, RowId};
pub(crate) use library::{DENIED, Failed, Library, PREFIX as LIBRARIES};
pub use library::{Scripts, ScriptsError, Way, Ways};
pub use load::{Load, Room};
pub use mark::{Marked, mark};
pub use promote::{EVENTS_MAX as PROMOTED_MAX, Promoted, promote};
pub use renew::{Renewed, renew};
pub use sent::{SENT_MARGIN, Sent, request_over, sent};
pub use suspects::Suspects;
