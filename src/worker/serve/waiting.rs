//! The wait for a marker (the pop), and the call of `advance` that follows it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::connection::PatientConnection;
use crate::wire::Advance;
use crate::worker::config::WorkerConfig;
use crate::worker::error::WorkerError;
use crate::worker::serve::caller::{FAILED_MAX, FAILED_MIN};
use crate::worker::serve::wait::{Waited, pop, wait};
use crate::worker::session::connect::Redis;
use crate::worker::times::growing_wait::GrowingWait;
use crate::worker::times::pending::ready;

/// Redis ends a pop only when it has something to do, else up to 100 ms after the block time. So the
/// process nudges Redis this time after the end of the block time. Redis counts whole ms.
const NUDGE_AFTER: Duration = Duration::from_millis(2);

/// A pop under way.
pub(super) struct Pop {
    /// The slot of the pop. The slot is `Asked` until the pop ends.
    pub(super) slot: usize,
    /// Whether the call behind the pop is allowed to take suspects.
    pub(super) had_room: bool,
    /// The time at which Redis is to be nudged; none if a late end of the pop does no harm.
    nudge_at: Option<Instant>,
    done: BoxFuture<'static, Result<Option<Waited>, WorkerError>>,
}

pub(super) struct Waiting {
    pop: Option<Pop>,
    conn: Option<PatientConnection>,
    /// The slot of a pop that was given up. The next call must look at this slot's list, even if
    /// the slot is busy by then.
    pub(super) popped: Option<usize>,
    /// The earliest time at which the next pop may begin. It is later than now after a failed pop,
    /// or while Redis is out of memory.
    after: Instant,
    backoff: GrowingWait,
}

impl Waiting {
    pub(super) fn new() -> Self {
        let (after, backoff) = (Instant::now(), GrowingWait::new(FAILED_MIN, FAILED_MAX));
        Self {
            pop: None,
            conn: None,
            popped: None,
            after,
            backoff,
        }
    }

    /// Returns whether a pop can begin now.
    pub(super) fn can_begin(&self) -> bool {
        self.pop.is_none() && Instant::now() >= self.after
    }

    /// Begins a pop for the slot, with the call behind it.
    pub(super) fn begin(
        &mut self,
        redis: &Redis,
        config: &Arc<WorkerConfig>,
        slot: usize,
        block: Duration,
        call: Advance,
        had_room: bool,
    ) {
        let pop = pop(config, slot, block);
        let done = Box::pin(wait(
            redis.clone(),
            self.conn.take(),
            pop,
            call,
            Arc::clone(config),
        ));
        let nudge_at = (block < config.block).then(|| Instant::now() + block + NUDGE_AFTER);
        self.pop = Some(Pop {
            slot,
            had_room,
            nudge_at,
            done,
        });
    }

    /// Returns the time at which Redis is to be nudged, so that it ends the pop.
    pub(super) fn nudge_at(&self) -> Option<Instant> {
        self.pop.as_ref().and_then(|pop| pop.nudge_at)
    }

    /// Records that Redis was nudged.
    pub(super) fn nudged(&mut self) {
        if let Some(pop) = &mut self.pop {
            pop.nudge_at = None;
        }
    }

    /// Waits for the pop under way; for ever if there is none.
    pub(super) async fn next(&mut self) -> Result<Option<Waited>, WorkerError> {
        ready(self.pop.as_mut().map(|pop| &mut pop.done)).await
    }

    /// Takes the pop, which has ended or is given up.
    pub(super) fn take(&mut self) -> Option<Pop> {
        self.pop.take()
    }

    /// Keeps the connection of a successful pop for the next pop.
    pub(super) fn keep(&mut self, conn: PatientConnection) {
        self.conn = Some(conn);
    }

    /// Records that the call behind the pop succeeded.
    pub(super) fn succeeded(&mut self) {
        self.backoff = GrowingWait::new(FAILED_MIN, FAILED_MAX);
    }

    /// Records that the pop or the call behind it failed. The next pop begins after a wait.
    pub(super) fn failed(&mut self) {
        self.after = Instant::now() + self.backoff.delay();
    }

    /// Makes the next pop wait at least this time. Returns the earliest time at which the next pop
    /// may begin.
    pub(super) fn pause(&mut self, time: Duration) -> Instant {
        self.after = Instant::now() + time;
        self.after
    }
}
