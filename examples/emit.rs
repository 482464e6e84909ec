//! A producer: `cargo run --example emit [REDIS-URL]`.
//!
//! To see the result, run `seriatim inspect work:1`, or start a worker: `seriatim worker --name w
//! --sink stdout`.

use seriatim::{EmitError, Emitter, event::Json};

#[derive(serde::Serialize)]
struct Renamed<'a> {
    r#type: &'a str,
    title: &'a str,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let emitter = Emitter::connect(url).await?;

    // An event is any serializable value, or a text that is already JSON. Such a text is sent byte
    // for byte.
    emitter
        .emit(
            "work:1",
            &Renamed {
                r#type: "renamed",
                title: "Seriatim",
            },
        )
        .await?;
    emitter
        .emit("work:1", Json::new(r#"{"type":"touched"}"#))
        .await?;

    // This emit has a main event, the subevents that directly follow it, and the object's new
    // state. All are written in one step.
    let emit = emitter
        .event("work:1", Json::new(r#"{"type":"split"}"#))
        .sub(Json::new(r#"{"part":1}"#))
        .sub(Json::new(r#"{"part":2}"#));
    let emitted = emit
        .data(Json::new(r#"{"title":"Seriatim","parts":2}"#))
        .send()
        .await?;
    println!(
        "{} events emitted, {} are queued for work:1",
        emitted.events, emitted.queued
    );

    // `emit_many` emits many events in few round trips. The events of each object keep the order of
    // the iterator.
    let many = (0..1000).map(|n| {
        (
            format!("page:{}", n % 10),
            Json::new(format!(r#"{{"n":{n}}}"#)),
        )
    });
    let emitted = emitter.emit_many(many).await?;
    println!(
        "{} events emitted in {} transactions",
        emitted.events, emitted.chunks
    );

    // An emit can be a part of the caller's own transaction, together with other commands.
    let mut pipe = seriatim::redis::pipe();
    pipe.incr("orders", 1);
    emitter
        .event("work:1", Json::new(r#"{"type":"ordered"}"#))
        .append_to(&mut pipe)?;
    println!("the transaction has {} commands", pipe.len());

    // Only after the error `Unknown` the event may or may not be queued, so the caller must decide.
    // After any other error, the event was certainly not queued.
    match emitter.emit("work:1", Json::new("{}")).await {
        Ok(_) => println!("queued"),
        Err(error @ EmitError::Unknown { .. }) => println!("look before emitting again: {error}"),
        Err(error) => println!("not queued: {error}"),
    }
    Ok(())
}
