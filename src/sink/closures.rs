//! Sinks made of closures: one call per event, or one call per batch.

use std::fmt;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::{Batch, Context, Delivered, Sink, Stop};
use crate::event::Event;

/// The time after which the sink lets other tasks of its thread run.
const YIELD_AFTER: Duration = Duration::from_millis(100);

/// A sink that calls a closure for each event; made by [`each`].
pub struct Each<H>(H);

/// A sink that calls a closure for each batch; made by [`batches`].
pub struct Batches<H>(H);

/// Returns a sink that calls `handler` for each event of a batch, one after another. The sink stops
/// at the first error. The events before this error count as delivered.
///
/// ```
/// use seriatim::sink::{self, Stop};
///
/// let sink = sink::each(|event| async move {
///     println!("{} {} {}", event.object, event.id, event.payload.len());
///     if event.payload.is_empty() { Err(Stop::rejected("there is nothing in it")) } else { Ok(()) }
/// });
/// # fn is_sink(_: impl sink::Sink) {}
/// # is_sink(sink);
/// ```
pub fn each<H, F>(handler: H) -> Each<H>
where
    H: Fn(Event) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Stop>> + Send,
{
    Each(handler)
}

/// Returns a sink that calls `handler` once for each batch. It suits a backend that takes many
/// events at once.
///
/// ```
/// use seriatim::sink::{self, Delivered};
///
/// let sink = sink::batches(|batch, cx| async move {
///     println!("{} sends {} events of {}", cx.worker, batch.len(), batch.object());
///     Delivered::all()
/// });
/// # fn is_sink(_: impl sink::Sink) {}
/// # is_sink(sink);
/// ```
pub fn batches<H, F>(handler: H) -> Batches<H>
where
    H: Fn(Batch, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Delivered> + Send,
{
    Batches(handler)
}

#[async_trait]
impl<H, F> Sink for Each<H>
where
    H: Fn(Event) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Stop>> + Send,
{
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        let mut went_on = Instant::now();
        for (count, event) in batch.events().enumerate() {
            // Each call of the closure may block for a moment, and all calls together would block
            // the thread for long. So the sink lets other tasks run from time to time.
            if count > 0 && went_on.elapsed() >= YIELD_AFTER {
                tokio::task::yield_now().await;
                went_on = Instant::now();
            }
            cx.begins(event.id);
            if let Err(stop) = (self.0)(event).await {
                return Delivered::stopped(count, stop);
            }
        }
        Delivered::all()
    }
}

#[async_trait]
impl<H, F> Sink for Batches<H>
where
    H: Fn(Batch, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Delivered> + Send,
{
    async fn deliver(&self, batch: &Batch, cx: &Context) -> Delivered {
        (self.0)(batch.clone(), cx.clone()).await
    }
}

impl<H> fmt::Debug for Each<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Each")
    }
}

impl<H> fmt::Debug for Batches<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Batches")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::event::ObjectName;

    fn batch() -> Batch {
        let name = ObjectName::new("work:1").expect("a name");
        Batch::new(name, 5, 3, vec!["1".into(), "2".into(), "3".into()])
    }

    #[tokio::test]
    async fn each_stops_at_the_first_error_with_the_count() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let also = seen.clone();
        let sink: Arc<dyn Sink> = Arc::new(each(move |event: Event| {
            also.lock().expect("no panic").push((event.id, event.prev));
            async move {
                if event.id == 6 {
                    Err(Stop::transient("busy"))
                } else {
                    Ok(())
                }
            }
        }));
        let delivered = sink.deliver(&batch(), &Context::detached()).await;
        assert_eq!(delivered, Delivered::stopped(1, Stop::transient("busy")));
        assert_eq!(*seen.lock().expect("no panic"), [(5, 3), (6, 5)]);
    }

    #[tokio::test]
    async fn batches_hands_the_batch_over_and_answers_what_the_handler_says() {
        let sink: Box<dyn Sink> = Box::new(batches(|batch: Batch, cx: Context| async move {
            assert_eq!((batch.len(), &*cx.worker), (3, "detached.0"));
            Delivered::stopped(2, Stop::rejected("no"))
        }));
        assert_eq!(
            Arc::new(sink).deliver(&batch(), &Context::detached()).await,
            Delivered::stopped(2, Stop::rejected("no"))
        );
    }
}
