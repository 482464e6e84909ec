//! Tests of handlers: without Redis, by the code that a worker process runs.
//!
//! - [`HandlerTest`]: runs the handlers of one event, and returns what each did and emitted
//! - `memory` (private): the ledger of these runs, which a worker has in Redis
//!
//! ```
//! use seriatim::sink::{Failure, HandlerContext, Handlers};
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
//! The functions named `assert_…` panic, as `assert!` does. Nothing else here does.

mod emitted;
mod handlers;
mod memory;
mod ran;

pub use self::emitted::{Emitted, EventPattern};
pub use self::handlers::{HandlerTest, TestEvent, TestEventError};
pub use self::ran::Ran;
pub use crate::sink::HandlerOutcome;
