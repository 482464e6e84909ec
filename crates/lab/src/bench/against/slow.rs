//! Handlers in Rust that take time, and note when they begin and end, as those of the programs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use seriatim::sink;
use seriatim::worker::{Shutdown, Worker};
use seriatim_console::failures;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::SLOW_TIME;
use crate::bench::place::PATIENCE;
use crate::bench::seriatim::Seriatim;
use crate::bench::system::{Producer as _, System as _};
use crate::bench::workload::Workload;

/// Emits the first `wanted` events, handles them, and returns the notes of the handlers.
pub(super) async fn notes(
    ours: &Seriatim,
    load: &Arc<Workload>,
    wanted: usize,
) -> anyhow::Result<String> {
    ours.place.clean().await?;
    let mut producer = ours.producer().await?;
    for event in 0..wanted {
        producer.push(load, event).await?;
    }
    let (sender, mut receiver) = unbounded_channel();
    let load = Arc::clone(load);
    let handler = sink::each(move |event| {
        let (sender, number) = (sender.clone(), load.number(&event.payload));
        async move {
            let number = number.unwrap_or(usize::MAX);
            // The receiver lives as long as the worker.
            let _ = sender.send(format!("+{number} {} 0\n", event.object));
            tokio::time::sleep(Duration::from_micros(fastrand::u64(
                ..SLOW_TIME.as_micros() as u64,
            )))
            .await;
            let _ = sender.send(format!("-{number}\n"));
            Ok(())
        }
    });
    let shutdown = Shutdown::new();
    let mut config = ours.config.clone();
    config.name = "bench-0".to_owned();
    let worker = Worker::builder(ours.place.url.as_str())
        .config(config)
        .sink(handler)
        .build()
        .map_err(failures::worker)?;
    let stop = shutdown.clone();
    let (stopped, notes) = tokio::join!(worker.run(shutdown), async {
        let notes = timeout(PATIENCE, all(&mut receiver, wanted)).await;
        stop.stop();
        notes
    });
    stopped.map_err(failures::worker)?;
    notes.with_context(|| format!("not all events arrived within {PATIENCE:?}"))
}

/// Returns the notes when so many handlers have ended.
async fn all(receiver: &mut UnboundedReceiver<String>, wanted: usize) -> String {
    let (mut notes, mut ended) = (String::new(), 0);
    while ended < wanted
        && let Some(note) = receiver.recv().await
    {
        ended += usize::from(note.starts_with('-'));
        notes += &note;
    }
    notes
}
