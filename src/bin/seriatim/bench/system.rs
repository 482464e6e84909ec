//! What can be measured: something that events are put into and taken out of again, in order per
//! object.

use std::sync::Arc;
use std::time::Instant;

use super::tally::Tally;
use super::workload::Workload;

/// One way to hand events on.
pub(super) trait System {
    type Producer: Producer;
    type Consumers: Consumers;

    /// Its name in the report.
    const NAME: &'static str;
    /// Whether it leaves something behind per object once all events are delivered, which is then
    /// measured.
    const KEEPS_OBJECTS: bool = false;

    /// Makes what must be there before the first event, on a Redis without keys of ours.
    async fn prepare(&self) -> anyhow::Result<()>;

    /// Connects a producer.
    async fn producer(&self) -> anyhow::Result<Self::Producer>;

    /// Starts the consumers.
    async fn consume(&self, tally: &Arc<Tally>) -> anyhow::Result<Self::Consumers>;
}

/// Puts events in. Clones share a connection.
pub(super) trait Producer: Clone + Send + 'static {
    /// All events, in order, as fast as one task can.
    async fn push_all(&mut self, load: &Workload) -> anyhow::Result<()>;

    /// One event; done when Redis has acknowledged it.
    fn push(&mut self, load: &Workload, event: usize) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Take events out, until they are dropped or stopped.
pub(super) trait Consumers {
    /// When the first of them was ready to take events.
    fn ready_at(&self) -> Instant;

    /// Ends only if one of them does, and says why.
    async fn failed(&mut self) -> anyhow::Error;

    /// Whether nothing is in flight: all that was delivered is acknowledged or committed.
    async fn is_committed(&mut self) -> anyhow::Result<bool>;

    /// Stops them as they would be stopped in production.
    async fn stop(self) -> anyhow::Result<()>;
}
