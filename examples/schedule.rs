//! Events for later: a cart that is forgotten gets a reminder, unless the customer comes back.
//!
//!     cargo run --example schedule --features worker [-- redis://127.0.0.1:6379]
//!
//! Three customers put something into their carts. For each cart a reminder is scheduled, two
//! seconds later. The first customer comes back and adds something, so the reminder is moved to a
//! later time. The second customer pays, so the reminder is cancelled. The worker prints the
//! reminders that are delivered.

use std::time::Duration;

use serde_json::json;
use seriatim::Emitter;
use seriatim::emit::{Cancelled, Change};
use seriatim::sink::{self, Stop};
use seriatim::worker::{Shutdown, Worker};

const KEY: &str = "reminder";
const REMIND_AFTER: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("SERIATIM_REDIS").ok());
    let url = url.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let emitter = Emitter::connect(url.as_str()).await?;

    for customer in ["cart:1", "cart:2", "cart:3"] {
        remind(&emitter, customer, 1).await?;
    }
    tokio::time::sleep(REMIND_AFTER / 2).await;
    // A second schedule with the same key replaces the event and the time of the first one in one
    // step.
    let moved = remind(&emitter, "cart:1", 2).await?;
    println!(
        "cart:1: {}",
        if moved == Change::Replaced {
            "moved"
        } else {
            "new"
        }
    );
    let cancelled = emitter.cancel("cart:2", KEY).await?;
    println!(
        "cart:2: {}",
        if cancelled == Cancelled::Cancelled {
            "cancelled"
        } else {
            "too late"
        }
    );

    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    let print = sink::each(move |event| {
        let text = String::from_utf8_lossy(&event.payload).into_owned();
        println!("{}: {text}", event.object);
        if event.object.as_str() == "cart:1" {
            stop.stop();
        }
        async { Ok::<(), Stop>(()) }
    });
    Worker::builder(url.as_str())
        .name("reminders")
        .sink(print)
        .build()?
        .run(shutdown)
        .await?;
    Ok(())
}

/// Schedules the reminder of a cart, or moves it.
async fn remind(emitter: &Emitter, cart: &str, items: u32) -> Result<Change, seriatim::EmitError> {
    let event = json!({"type": "reminder", "items": items});
    let scheduled = emitter
        .schedule(cart, &event)
        .after(REMIND_AFTER)
        .key(KEY)
        .send()
        .await?;
    println!("{cart}: a reminder of {items} is due {REMIND_AFTER:?} from now");
    Ok(scheduled.change)
}
