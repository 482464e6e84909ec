//! The Lua scripts and their typed calls. Only this module knows the arguments and replies of the
//! scripts.
//!
//! A script is one atomic step of the protocol. If the reply to a call is lost, the caller may send
//! the same call again. If the process dies during a call, Redis has run the whole step or nothing
//! of it. The header of each script in `lua/` describes both cases. The text of each script is
//! assembled once per process (lua/README.md).
//!
//! - `lua`: the text of every script
//! - `emit`, `cancel`: the calls of producers
//! - `worker`: all other calls (feature `worker`)
//! - [`values`]: the values that Redis stores as one text, one file each (feature
//!   `worker`)
//! - `reply`, `error`: code that all calls share

mod cancel;
mod emit;
mod error;
mod lua;
mod reply;
#[cfg(feature = "worker")]
pub mod values;
#[cfg(feature = "worker")]
mod worker;

pub use cancel::{CancelReply, cancel, cancel_text};
pub use emit::{EmitReply, EmitWith, ScriptedEmit, emit_text};
pub use error::ScriptError;
pub(crate) use lua::{CHECK, INSPECT, LOG, OF_OBJECT, STREAM, TAKEN};
pub(crate) use reply::Reply;
#[cfg(feature = "worker")]
pub use worker::*;
