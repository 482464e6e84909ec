//! The program of the README: it emits an event, and runs a worker.
//!
//!     cargo run --example start --features worker [REDIS-URL]

use serde_json::{Value, json};
use seriatim::handlers::{HandlerContext, Handlers};
use seriatim::worker::{Shutdown, Worker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The README has an address here.
    let redis = std::env::args().nth(1);
    let redis = redis.as_deref().unwrap_or("redis://127.0.0.1");
    let em = seriatim::Emitter::connect(redis).await?;
    em.emit("customer:1", &json!({"type": "paid", "cents": 1200}))
        .await?;
    let charge = |event: Value, cx: HandlerContext| async move {
        println!("{} {} {}", cx.object(), cx.id(), event["cents"]);
        Ok(())
    };
    let handlers = Handlers::builder()
        .register_type("paid", "charge", charge)
        .build()?;
    Worker::builder(redis)
        .sink(handlers)
        .build()?
        .run(Shutdown::on_signals()?)
        .await?;
    Ok(())
}
