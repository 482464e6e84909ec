//! A worker whose sink is an async function. The function prints events, and shows its possible
//! results.
//!
//!     cargo run --example worker                            # in one terminal
//!     cargo run --example emit                              # in another
//!
//! SIGTERM or Ctrl-C stops the worker gracefully. A second signal stops it at once.
//! `SERIATIM_REDIS` is the URL of Redis; without it, the Redis at 127.0.0.1 is used.

use anyhow::Context as _;
use seriatim::event::Event;
use seriatim::sink::{self, Stop};
use seriatim::worker::{EventLog, Shutdown, Worker};

async fn handle(event: Event) -> Result<(), Stop> {
    let text = std::str::from_utf8(&event.payload).map_err(Stop::rejected)?;
    match text.trim() {
        // No retry: the event becomes a dead letter, and the object's next event follows.
        "null" => Err(Stop::rejected("there is nothing in it")),
        // Retry: the object waits for a time before the event is tried again. All other objects go
        // on.
        text if text.contains("\"later\"") => Err(Stop::transient("not today")),
        text => {
            println!(
                "{:>6} after {:>6}  {}  {text}",
                event.id, event.prev, event.object
            );
            Ok(())
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url =
        std::env::var("SERIATIM_REDIS").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // The worker writes the event log, because the example `projection` reads it.
    let worker = Worker::builder(url)
        .name("example")
        .event_log(EventLog::default())
        .sink(sink::each(handle))
        .build()?;
    let stopped = worker
        .run(Shutdown::on_signals()?)
        .await
        .context("the worker ended")?;
    println!(
        "{:?}: {} events delivered",
        stopped.reason, stopped.delivered
    );
    Ok(())
}
