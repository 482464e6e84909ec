//! The sink `null`: counts every event as delivered and drops it.

use std::sync::Once;

use async_trait::async_trait;

use super::{Batch, Context, Delivered, Sink};

/// Counts every event as delivered and drops it. It serves for measurements. It *consumes* events:
/// they leave Redis for good. The first delivery of a process logs a warning.
#[derive(Debug, Clone, Copy, Default)]
pub struct Null;

static WARNED: Once = Once::new();

#[async_trait]
impl Sink for Null {
    fn name(&self) -> String {
        "null".to_owned()
    }

    async fn deliver(&self, _batch: &Batch, _cx: &Context) -> Delivered {
        WARNED.call_once(|| {
            tracing::warn!("the sink null consumes: events are taken from Redis and dropped")
        });
        Delivered::all()
    }
}
