//! Tests of handlers, with or without Redis. The handlers run by the same code as in a worker
//! process.
//!
//! - [`HandlerTest`]: runs the handlers of one event, and returns the result and the emits of each
//!   handler
//! - [`drain`]: runs a worker on a Redis until no work is left, and returns the results
//! - `watch` (private): the sink and the ledger of [`drain`], which record every delivery
//! - `memory` (private): a ledger in memory, which replaces the worker's ledger in Redis
//!
//! ```
//! use seriatim::handlers::{Failure, HandlerContext, Handlers};
//! use seriatim::testing::{HandlerTest, TestEvent};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let handlers = Handlers::builder()
//!     .register_type("placed", "payment", |order: Value, cx: HandlerContext| async move {
//!         if cx.attempt() < 2 {
//!             return Err(Failure::transient("the bank is closed"));
//!         }
//!         cx.emit("ledger:1", &json!({"type": "paid", "cents": order["cents"]}))?;
//!         Ok(())
//!     })
//!     .build()?;
//!
//! let test = HandlerTest::new(handlers);
//! let placed = TestEvent::new("order:1", &json!({"type": "placed", "cents": 1200}))?;
//! let first = test.run(placed.clone()).await;
//! first.assert_failed("payment", "the bank is closed");
//! first.assert_nothing_emitted();
//!
//! let second = test.run(placed.attempt(2)).await;
//! second.assert_delivered();
//! second.assert_emitted("ledger:1", json!({"type": "paid", "cents": 1200}));
//! second.assert_emitted("ledger:1", |event: &Value| event["cents"].as_u64() > Some(1000));
//! # Ok(())
//! # }
//! ```
//!
//! The functions named `assert_…` panic if their assertion is false. No other function of this
//! module panics.

mod drain;
mod emitted;
mod handlers;
mod memory;
mod ran;
mod watch;

pub use self::drain::{DrainError, Drained, EVENTS_MAX, LEFT_MAX, Unfinished, drain};
pub use self::emitted::{EmittedEvent, EmittedSchedule, EventPattern};
pub use self::handlers::{HandlerTest, TestEvent, TestEventError};
pub use self::ran::Ran;
pub use self::watch::{DrainedEvent, Fate};
pub use crate::handlers::HandlerOutcome;
