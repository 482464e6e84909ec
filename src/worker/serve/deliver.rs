//! Deliver: gives a batch to the sink and returns the outcome.
//!
//! Every result of a sink becomes an outcome, even a panic. If the process dies during a delivery,
//! the batch is still in Redis and comes again with the same ids.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::event::check_json;
use crate::failpoints::delivery;
use crate::sink::{Batch, Context, Delivered, Sink, Stop};
use crate::worker::serve::unknown;

/// The outcome of a delivery.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The number of delivered events, from the front of the batch.
    pub(crate) count: usize,
    /// The reason why the next event of the batch is not delivered; `None` if all offered events
    /// are delivered.
    pub(crate) stop: Option<Stop>,
    /// The time for which the event has waited for a process that knows it, if this process does
    /// not know it.
    pub(crate) waited: Duration,
}

/// Delivers the first `offered` events of the batch. An event that is not JSON is rejected, and the
/// sink does not get it.
pub(crate) async fn deliver(
    sink: Arc<dyn Sink>,
    mut batch: Batch,
    offered: usize,
    cx: Context,
) -> Outcome {
    batch.payloads.truncate(offered);
    let (first, stride, unknown_cx) = (batch.first, batch.stride, cx.clone());
    let bad = batch
        .payloads
        .iter()
        .enumerate()
        .find_map(|(at, payload)| Some((at, check_json(payload).err()?)));
    if let Some((at, _)) = bad {
        batch.payloads.truncate(at);
    }
    let sound = batch.len();
    let delivered = if sound == 0 {
        Delivered::all()
    } else {
        ask(&*sink, &batch, &cx).await
    };
    let count = delivered.count(sound);
    let stop = match delivered.stop {
        Some(Stop::Unavailable { error }) => Some(Stop::Unavailable { error }),
        // The sink has delivered all events before the invalid event. So the invalid event is
        // rejected now.
        _ if count == sound => bad.map(|(_, error)| Stop::rejected(format!("not JSON: {error}"))),
        stop => stop,
    };
    let waited = match &stop {
        Some(Stop::Unknown { .. }) => {
            unknown::waited(&unknown_cx, first + count as u64 * stride).await
        }
        _ => Duration::ZERO,
    };
    Outcome {
        count,
        stop,
        waited,
    }
}

async fn ask(sink: &dyn Sink, batch: &Batch, cx: &Context) -> Delivered {
    let delivery = delivery!(sink.deliver(batch, cx), |error, unavailable| {
        Delivered::stopped(
            0,
            if unavailable {
                Stop::unavailable(error)
            } else {
                Stop::transient(error)
            },
        )
    });
    match AssertUnwindSafe(delivery).catch_unwind().await {
        Ok(delivered) => delivered,
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            Delivered::stopped(
                0,
                Stop::transient(format!("the sink panicked: {}", text.unwrap_or_default())),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;

    struct Answers(fn(&Batch) -> Delivered);

    #[async_trait]
    impl Sink for Answers {
        async fn deliver(&self, batch: &Batch, _: &Context) -> Delivered {
            (self.0)(batch)
        }
    }

    fn batch(events: &[&'static str]) -> Batch {
        let object = crate::event::ObjectName::new("o").expect("valid");
        Batch::new(
            object,
            1,
            0,
            events
                .iter()
                .map(|e| Bytes::from_static(e.as_bytes()))
                .collect(),
        )
    }

    async fn outcome(
        events: &[&'static str],
        offered: usize,
        answer: fn(&Batch) -> Delivered,
    ) -> (usize, Option<Stop>) {
        let outcome = deliver(
            Arc::new(Answers(answer)),
            batch(events),
            offered,
            Context::detached(),
        )
        .await;
        (outcome.count, outcome.stop)
    }

    #[tokio::test]
    async fn what_is_not_json_is_rejected_behind_what_is() {
        let (count, stop) = outcome(&["1", "{", "3"], 3, |batch| {
            assert_eq!(batch.len(), 1);
            Delivered::all()
        })
        .await;
        assert_eq!(count, 1);
        assert!(matches!(stop, Some(Stop::Rejected { error }) if error.starts_with("not JSON: ")));
        let (count, stop) = outcome(&["nope"], 1, |_| unreachable!("the sink is not asked")).await;
        assert!(count == 0 && matches!(stop, Some(Stop::Rejected { .. })));
    }

    #[tokio::test]
    async fn only_what_is_offered_is_delivered() {
        let (count, stop) = outcome(&["1", "2"], 1, |batch| {
            assert_eq!(batch.len(), 1);
            Delivered::all()
        })
        .await;
        assert_eq!((count, stop), (1, None));
    }

    #[tokio::test]
    async fn a_panic_is_a_transient_failure() {
        let (count, stop) = outcome(&["1"], 1, |_| panic!("boom")).await;
        assert_eq!(
            (count, stop),
            (0, Some(Stop::transient("the sink panicked: boom")))
        );
    }

    #[tokio::test]
    async fn more_than_there_was_cannot_be_delivered() {
        let (count, stop) = outcome(&["1", "2"], 2, |_| {
            Delivered::stopped(7, Stop::transient("?"))
        })
        .await;
        assert_eq!((count, stop), (2, None));
    }
}
