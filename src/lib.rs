//! Serializes the events of many producers, per object, through Redis.
//!
//! The path of an event is *emit, claim, deliver, commit*, with *recover* beside it:
//!
//! - [`emit`]: events into Redis, from any number of frontends
//! - [`event`]: names, payloads, envelopes
//! - [`keys`]: every Redis key
//! - [`escape`]: names and errors as they are shown to people
//! - [`consume`]: envelopes and the receiver's rule, for whoever gets the events
//! - `sink`: where a worker sends events (feature `worker`)
//! - `worker`: claims, delivers, commits and recovers (feature `worker`)
//! - `verify`: judges what workers have put out (feature `worker`)
//! - `projection`: folds over the event log into read models (feature `worker`)
//! - `testing`: runs handlers in tests, without Redis or with one (feature `worker`)
//! - `control`: a handle that looks at a live system and acts as an operator (feature `worker`)
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod consume;
#[cfg(feature = "worker")]
pub mod control;
pub mod emit;
pub mod escape;
pub mod event;
#[cfg(feature = "worker")]
mod failpoints;
pub mod keys;
#[cfg(feature = "worker")]
pub mod projection;
#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod scripts;
#[cfg(feature = "worker")]
pub mod sink;
#[cfg(feature = "worker")]
pub mod testing;
#[doc(hidden)]
pub mod told;
#[doc(hidden)]
pub mod url;
#[cfg(feature = "worker")]
pub mod verify;
#[doc(hidden)]
pub mod wire;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "worker")]
pub use async_trait::async_trait;
pub use emit::{EmitError, Emitted, Emitter};
pub use redis;

/// The examples of the README compile.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../README.md")]
struct Readme;
