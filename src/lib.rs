//! Serializes the events of many producers, per object, through Redis.
//!
//! The path of an event is *emit, claim, deliver, commit*, with *recover* beside it:
//!
//! - [`escape`]: names and errors as they are shown to people
//! - [`event`]: names, payloads, envelopes
//! - [`keys`]: every Redis key
//! - [`consume`]: envelopes and the receiver's rule, for whoever gets the events
//! - `connection` (hidden): connections to Redis, URLs, errors of Redis as text
//! - [`emit`]: events into Redis, from any number of frontends
//! - `wire` (hidden): the Lua scripts, their calls, and the values stored in Redis (feature
//!   `worker`)
//! - `sink`: where a worker sends events (feature `worker`)
//! - `handlers`: async functions for types of events, a sink (feature `worker`)
//! - `worker`: claims, delivers, commits and recovers (feature `worker`)
//! - `control`: a handle that looks at a live system and acts as an operator (feature `worker`)
//! - `projection`: folds over the event log into read models (feature `worker`)
//! - `testing`: runs handlers in tests, without Redis or with one (feature `worker`)
//! - `verify`: judges the outputs of workers (feature `worker`)
//!
//! A module imports only from modules above it in this list.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

#[doc(hidden)]
pub mod connection;
pub mod consume;
#[cfg(feature = "worker")]
pub mod control;
pub mod emit;
pub mod escape;
pub mod event;
#[cfg(feature = "worker")]
mod failpoints;
#[cfg(feature = "worker")]
pub mod handlers;
pub mod keys;
#[cfg(feature = "worker")]
pub mod projection;
#[cfg(feature = "worker")]
pub mod sink;
#[cfg(feature = "worker")]
pub mod testing;
#[cfg(feature = "worker")]
pub mod verify;
#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod wire;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "worker")]
pub use async_trait::async_trait;
pub use emit::{EmitError, Emitted, Emitter};
pub use redis;
#[cfg(feature = "worker")]
pub use wire::ScriptError;

/// The examples of the README compile.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../README.md")]
struct Readme;
