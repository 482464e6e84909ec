//! The interface of a measured system. A producer emits events into the system, and its consumers
//! get them in order per object.

use std::sync::Arc;
use std::time::Instant;

use super::tally::Tally;
use super::workload::Workload;

/// A system that transports events.
pub(super) trait System {
    type Producer: Producer;
    type Consumers: Consumers;

    /// Name in the report.
    const NAME: &'static str;
    /// Whether the system keeps a key per object after all events are delivered. If so, the memory
    /// of these keys is measured.
    const KEEPS_OBJECTS: bool = false;

    /// Creates the keys that the system needs before the first event. Redis has no keys of this run
    /// before the call.
    async fn prepare(&self) -> anyhow::Result<()>;

    /// Connects a producer.
    async fn producer(&self) -> anyhow::Result<Self::Producer>;

    /// Starts the consumers, which pass each event to the tally.
    async fn consume(&self, tally: &Arc<Tally>) -> anyhow::Result<Self::Consumers>;
}

/// The producer of a system. Clones share a connection.
pub(super) trait Producer: Clone + Send + 'static {
    /// Emits all events in order, as fast as one task can.
    async fn push_all(&mut self, load: &Workload) -> anyhow::Result<()>;

    /// Emits one event; returns when Redis has acknowledged it.
    fn push(
        &mut self,
        load: &Workload,
        event: usize,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The consumers of a system. They take events until they are dropped or stopped.
pub(super) trait Consumers {
    /// Returns the time at which the first consumer was ready to take events.
    fn ready_at(&self) -> Instant;

    /// Waits until a consumer ends, and returns the reason.
    async fn failed(&mut self) -> anyhow::Error;

    /// Returns whether nothing is in flight: all delivered events are acknowledged or committed.
    async fn is_committed(&mut self) -> anyhow::Result<bool>;

    /// Stops the consumers as in production.
    async fn stop(self) -> anyhow::Result<()>;
}
