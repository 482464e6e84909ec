//! Serializes the events of many producers, per object, through Redis.
//!
//! Emit an event:
//!
//! ```no_run
//! # async fn emit() -> Result<(), Box<dyn std::error::Error>> {
//! let emitter = seriatim::Emitter::connect("redis://127.0.0.1").await?;
//! emitter.emit("work:1", &serde_json::json!({"type": "created"})).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Run a worker (feature `worker`):
//!
//! ```no_run
//! # #[cfg(feature = "worker")]
//! # async fn work() -> Result<(), Box<dyn std::error::Error>> {
//! use seriatim::sink::{self, Stop};
//! use seriatim::worker::{Shutdown, Worker};
//!
//! let sink = sink::each(|event| async move {
//!     println!("{} {} after {}", event.object, event.id, event.prev);
//!     Ok::<(), Stop>(())
//! });
//! let worker = Worker::builder("redis://127.0.0.1").name("catalog-a").sink(sink).build()?;
//! worker.run(Shutdown::on_signals()?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Further reading in the repository:
//!
//! - `README.md`: the guarantees, and how to begin
//! - `docs/guide.md`: from the first event to production
//! - `docs/design.md`: why the guarantees hold
//! - `docs/protocol.md`: how to take part in any language
//! - `docs/handlers.md`: async functions for types of events
//! - `docs/time.md`: events for later
//! - `docs/http.md`: emits over HTTP, and sinks that send events over HTTP
//!
//! # Modules
//!
//! An event takes the path *emit, claim, deliver, commit*. The step *recover* takes over the
//! objects of dead workers. In this list, each module imports only from modules above it:
//!
//! - [`escape`]: escapes names and errors for people
//! - [`event`]: object names, payloads, envelopes
//! - `trace`: trace contexts in events (feature `traces`)
//! - [`keys`]: every Redis key
//! - `cron`: computes the times at which cron jobs are due (feature `worker`)
//! - [`consume`]: envelopes and the receiver's rule, for consumers
//! - `connection` (feature `internals`): connections to Redis, URLs, errors of Redis as text
//! - `wire` (feature `internals`): the Lua scripts, their calls, and the values stored in Redis
//! - [`emit`]: sends events to Redis, for any number of producers
//! - `sink`: the target to which a worker sends events (feature `worker`)
//! - `handlers`: a sink that runs async functions for types of events (feature `worker`)
//! - `worker`: claims, delivers, commits and recovers (feature `worker`)
//! - `control`: a handle for operators, to inspect and change a live system (feature `worker`)
//! - `metrics`: metrics for Prometheus (feature `metrics`)
//! - `projection`: folds over the event log into read models (feature `worker`)
//! - `testing`: runs handlers in tests, without Redis or with one (feature `worker`)
//! - `verify`: checks the outputs of workers (feature `worker`)
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
// A build without some features has code that it does not use. The build with all features warns of
// unused code.
#![cfg_attr(
    not(all(
        feature = "tls",
        feature = "traces",
        feature = "metrics",
        feature = "internals"
    )),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        unreachable_pub,
        clippy::enum_variant_names
    )
)]

#[cfg(not(feature = "internals"))]
mod connection;
#[doc(hidden)]
#[cfg(feature = "internals")]
pub mod connection;
pub mod consume;
#[cfg(feature = "worker")]
pub mod control;
#[cfg(feature = "worker")]
pub mod cron;
pub mod emit;
pub mod escape;
pub mod event;
#[cfg_attr(not(feature = "failpoints"), path = "no_failpoints.rs")]
mod failpoints;
#[cfg(feature = "worker")]
pub mod handlers;
pub mod keys;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "worker")]
pub mod projection;
#[cfg(feature = "worker")]
pub mod sink;
#[cfg(feature = "worker")]
pub mod testing;
#[cfg(feature = "traces")]
pub mod trace;
#[cfg(feature = "worker")]
pub mod verify;
#[cfg(not(feature = "internals"))]
mod wire;
#[doc(hidden)]
#[cfg(feature = "internals")]
pub mod wire;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "worker")]
pub use async_trait::async_trait;
pub use connection::Server;
pub use emit::{EmitError, Emitted, Emitter};
pub use redis;
pub use wire::ScriptError;

/// Makes the examples of the README and of the pages for users part of the doctests.
#[cfg(all(doctest, feature = "worker"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide.md")]
    struct Guide;
    #[doc = include_str!("../docs/emit.md")]
    struct Emit;
    #[doc = include_str!("../docs/time.md")]
    struct Time;
    #[doc = include_str!("../docs/handlers.md")]
    struct Handlers;
}
