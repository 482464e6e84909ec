//! The Lua scripts and their typed calls. Only this module knows the arguments and replies of the
//! scripts.
//!
//! A script is one atomic step of the protocol. If the reply to a call is lost, the caller may send
//! the same call again. If the process dies during a call, Redis has run the whole step or nothing
//! of it. The header of each script in `lua/` describes both cases. The text of each script is
//! assembled once per process (lua/README.md).
//!
//! - `lua`: the text of every script
//! - `library`: runs the script `advance` as a function or as a script (feature `worker`)
//! - `emit`, `cancel`: the calls of producers
//! - `worker`: all other calls (feature `worker`)
//! - [`values`]: the values that Redis stores as one text, one file each (feature
//!   `worker`)
//! - `ids`: [`Cursor`] and [`RowId`], opaque positions and row ids
//! - `reply`, `error`: code that all calls share

mod cancel;
mod emit;
mod error;
#[cfg(feature = "worker")]
mod ids;
#[cfg(feature = "worker")]
mod library;
mod lua;
mod reply;
#[cfg(feature = "worker")]
pub mod values;
#[cfg(feature = "worker")]
mod worker;

pub use cancel::{CancelReply, cancel};
pub use emit::{EmitReply, ScriptedEmit};
pub use error::ScriptError;
#[cfg(feature = "worker")]
pub use ids::{Cursor, RowId};
#[cfg(feature = "worker")]
pub(crate) use library::{DENIED, Failed, PREFIX as LIBRARIES};
#[cfg(feature = "worker")]
pub use library::{Scripts, ScriptsError, Way, Ways};
#[cfg(feature = "worker")]
pub(crate) use lua::ADVANCE;
#[cfg(feature = "worker")]
pub(crate) use lua::{CHECK, INSPECT, LOG, OF_OBJECT, STREAM, TAKEN};
#[cfg(feature = "worker")]
pub(crate) use reply::Reply;
#[cfg(feature = "worker")]
pub use worker::*;
