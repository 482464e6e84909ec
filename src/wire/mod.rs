//! The Lua scripts and their typed calls: the only place that knows what goes over the wire to them
//! and what comes back.
//!
//! A script is one atomic step of the protocol, and every one may be called again when its reply
//! was lost. Its text is put together once (lua/README.md). If the process dies with a call under
//! way, the step has happened or it has not; what follows from either is told in the header of each
//! script.
//!
//! - `lua`: the text of every script
//! - `advance`, `attach`, `renew`, `detach`, `adopt`, `connect`, `handled`, `forget`, `position`: a
//!   script each, with its arguments and its reply
//! - [`operator`]: the scripts of operators, one file each
//! - [`values`]: what is stored in Redis as one text, one file each
//! - `suspects`: the room that a process has for batches that may kill it
//! - `load`: the work that the results of a call of `advance` are for Redis
//! - `reply`, `error`: what all calls share

mod adopt;
mod advance;
mod attach;
mod connect;
mod detach;
mod error;
mod forget;
mod handled;
mod load;
mod lua;
pub mod operator;
pub mod position;
mod renew;
mod reply;
mod suspects;
pub mod values;

pub use adopt::{Adopted, Sweep, adopt};
pub(crate) use advance::pop_and_advance;
pub use advance::{Advance, Advanced, BatchReply, BatchResult, Bounds, ClaimFirst, EventLog, Report, advance};
pub use attach::{Attach, Attached, attach};
pub use connect::{Connected, Seen, connect};
pub use detach::{Detached, detach};
pub use error::ScriptError;
pub use forget::{Forgot, OBJECTS_MAX, forget};
pub use handled::{Finished, Handled, SlotBatch, handled};
pub use load::{Load, Room};
pub(crate) use lua::{CHECK, ENDED, INSPECT, LOG, TAKEN};
pub use renew::{Renewed, renew};
pub use suspects::Suspects;
pub use values::{Emits, Tag, TagError};
