//! Handlers that run in the worker process. The example shows which handlers run for an event, the
//! results that they return, and when a handler runs again.
//!
//!     cargo run --example handlers [REDIS-URL]
//!
//! The example emits the events of one order, handles them, and ends.

use std::time::Duration;

use seriatim::Emitter;
use seriatim::event::Json;
use seriatim::handlers::{
    EventType, Failure, Handler, HandlerContext, HandlerResult, Handlers, HandlersError, Unhandled,
};
use seriatim::keys::Keys;
use seriatim::worker::{Shutdown, Worker};

#[derive(serde::Deserialize)]
struct Placed {
    cents: u64,
}

impl EventType for Placed {
    const TYPE: &'static str = "placed";
}

#[derive(serde::Deserialize)]
struct Shipped {
    to: String,
}

impl EventType for Shipped {
    const TYPE: &'static str = "shipped";
}

/// A handler with its own state.
struct Payment {
    limit_cents: u64,
}

#[seriatim::async_trait]
impl Handler<Placed> for Payment {
    async fn handle(&self, event: Placed, cx: HandlerContext) -> HandlerResult {
        if event.cents > self.limit_cents {
            // No retry: the event becomes a dead letter, and the object's next event follows.
            return Err(Failure::unrecoverable(format!(
                "{} cents are too many",
                event.cents
            )));
        }
        // `once` runs this code only until it has succeeded once, even if the handler runs several
        // times. Each run gets the value of the run that has succeeded.
        let receipt = cx
            .once("charge", || async {
                println!("{} charged {} cents", cx.id(), event.cents);
                Ok::<_, Failure>(format!("receipt of attempt {}", cx.attempt()))
            })
            .await?;
        if cx.attempt() < 2 {
            // Retry: this handler runs again for the event, but the event's finished handlers do
            // not. Any error returned with `?` also means a retry.
            return Err(Failure::retry_after(
                "the bank has not confirmed",
                Duration::from_millis(100),
            ));
        }
        println!(
            "{} confirmed at attempt {}: {receipt}",
            cx.id(),
            cx.attempt()
        );
        Ok(())
    }
}

async fn notify(event: Shipped, cx: HandlerContext) -> HandlerResult {
    println!(
        "{} follows {}: on its way to {}",
        cx.id(),
        cx.prev(),
        event.to
    );
    Ok(())
}

/// Emits a follow-up event. The step that ends the handled event pushes the follow-up event,
/// exactly once and not earlier.
async fn close(_: serde_json::Value, cx: HandlerContext) -> HandlerResult {
    println!("{} follows {}: closed", cx.id(), cx.prev());
    cx.emit(
        "archive:1",
        &serde_json::json!({"type": "archived", "order": cx.object().as_str()}),
    )?;
    Ok(())
}

/// Returns the set of handlers. When an order is archived, its handler stops the worker through
/// `shutdown`. tests/features/testing.rs tests these handlers.
pub fn handlers(shutdown: &Shutdown) -> Result<Handlers, HandlersError> {
    let stop = shutdown.clone();
    Handlers::builder()
        .timeout(Duration::from_secs(10))
        .register::<Placed>(
            "payment",
            Payment {
                limit_cents: 100_000,
            },
        )
        .register::<Shipped>("notify", notify)
        .register_type("closed", "close", close)
        .register_type(
            "archived",
            "stop",
            move |event: serde_json::Value, cx: HandlerContext| {
                let stop = stop.clone();
                async move {
                    println!(
                        "{} of {}: {} is archived",
                        cx.id(),
                        cx.object(),
                        event["order"]
                    );
                    stop.stop();
                    Ok(())
                }
            },
        )
        .unhandled(Unhandled::Complete)
        .build()
}

/// Emits and handles the events in its own namespace. Returns the number of deliveries.
pub async fn run(url: &str, namespace: &str) -> anyhow::Result<u64> {
    let keys = Keys::with_namespace(namespace)?;
    let emitter = Emitter::builder(url).keys(keys.clone()).connect().await?;
    for event in [
        r#"{"type":"placed","cents":1200}"#,
        r#"{"type":"shipped","to":"Brno"}"#,
        r#"{"type":"placed","cents":990000}"#,
        r#"{"type":"closed"}"#,
    ] {
        emitter.emit("order:1", Json::new(event)).await?;
    }

    let shutdown = Shutdown::on_signals()?;
    let handlers = handlers(&shutdown)?;
    let stopped = Worker::builder(url)
        .keys(keys)
        .name("handlers")
        .sink(handlers)
        .build()?
        .run(shutdown)
        .await?;
    Ok(stopped.delivered)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let delivered = run(&url, "handlers-example").await?;
    println!("{delivered} events delivered");
    Ok(())
}
