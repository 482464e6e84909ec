//! Serializes the events of many producers, per object, through Redis.
//!
//! The path of an event is *emit, claim, deliver, commit*, with *recover* beside it:
//!
//! - [`event`]: names, payloads, envelopes
//! - [`keys`]: every Redis key
//! - [`sink`]: where a worker sends events (feature `worker`)
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod event;
pub mod keys;
#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod scripts;
#[cfg(feature = "worker")]
pub mod sink;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "worker")]
pub use async_trait::async_trait;
pub use redis;
