//! The slots of one session of claiming by hand, and the calls to Redis for these slots. A session
//! lasts from an attach until the lease ends.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::error::ClaimError;
use crate::escape;
use crate::event::check_json;
use crate::wire::values::ReasonCode;
use crate::wire::{Advance, Advanced, BatchResult, ClaimFirst, Report};
use crate::worker::config::WorkerConfig;
use crate::worker::serve::caller::{Caller, FAILED_MAX, FAILED_MIN, Found, send};
use crate::worker::serve::slots::{InFlight, rejected, shortened};
use crate::worker::session::connect::{Redis, SharedConnection, is_lasting};
use crate::worker::session::lease::{self, Held, Session};
use crate::worker::times::growing_wait::GrowingWait;
use crate::worker::times::retry::RetryPolicy;
use crate::worker::watch::logged;

/// The slots of a session, with the crashes of the batches in hand.
pub(super) struct HandSlots {
    pub(super) redis: Redis,
    pub(super) config: Arc<WorkerConfig>,
    caller: Caller,
    conn: SharedConnection,
    /// The numbers of the free slots; the last one is used next.
    free: Mutex<Vec<usize>>,
    /// The crashes of each slot's batch; 0 without a batch.
    crashes: Mutex<Vec<u32>>,
    /// Notified when a slot becomes free or `soonest` becomes earlier.
    pub(super) changed: Notify,
    /// The source to try first in the next call. Due held objects and markers take turns, over all
    /// calls.
    claim_first: Mutex<ClaimFirst>,
    /// The time at which the next held object is due, from the last reply; at most `block` ahead.
    soonest: Mutex<Instant>,
    /// The runtime in which the session began. The slots keep it because the program may drop a
    /// claimed event outside of any runtime.
    pub(super) runtime: Handle,
    /// The time until which the lease is held.
    pub(super) held: Arc<Held>,
    /// Cancelled when the session ends.
    pub(super) over: CancellationToken,
}

/// A slot in use. Dropping it frees the slot.
pub(super) struct UsedSlot {
    pub(super) slots: Arc<HandSlots>,
    pub(super) number: usize,
}

impl UsedSlot {
    /// Records the crashes of the slot's batch.
    pub(super) fn has(&self, in_flight: &InFlight) {
        lock(&self.slots.crashes)[self.number] = in_flight.tag.crashes;
    }
}

impl Drop for UsedSlot {
    fn drop(&mut self) {
        lock(&self.slots.crashes)[self.number] = 0;
        lock(&self.slots.free).push(self.number);
        self.slots.changed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HandSlots {
    pub(super) fn new(redis: &Redis, config: &Arc<WorkerConfig>, session: &Session) -> Self {
        Self {
            redis: redis.clone(),
            config: Arc::clone(config),
            caller: Caller::new(redis, config, session),
            conn: SharedConnection::new(redis.clone()),
            free: Mutex::new((0..config.concurrency).rev().collect()),
            crashes: Mutex::new(vec![0; config.concurrency]),
            changed: Notify::new(),
            claim_first: Mutex::new(ClaimFirst::Held),
            soonest: Mutex::new(Instant::now()),
            runtime: Handle::current(),
            held: Arc::clone(&session.held),
            over: CancellationToken::new(),
        }
    }

    /// Gives back the batches of all slots. An error is ignored here, because the first claim meets
    /// the same error and returns it.
    pub(super) async fn give_all_back(&self) {
        loop {
            let mut call = self.new_call(0, false);
            (0..self.config.concurrency).for_each(|slot| call.free(slot));
            let Ok(found) = self.advance(&call).await else {
                return;
            };
            if found.batches.is_empty() {
                return;
            }
            for batch in found.batches {
                let slot = batch.slot;
                if self
                    .settle(
                        slot,
                        give_back(&InFlight::new(batch, 0)),
                        false,
                        Instant::now(),
                    )
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
    }

    /// Takes a free slot, if there is one.
    pub(super) fn take(self: &Arc<Self>) -> Option<UsedSlot> {
        let number = lock(&self.free).pop()?;
        Some(UsedSlot {
            slots: Arc::clone(self),
            number,
        })
    }

    pub(super) fn soonest(&self) -> Instant {
        *lock(&self.soonest)
    }

    /// Reports the result of the slot's batch, and gives back every further batch that the slot
    /// then gets.
    pub(super) async fn settle(
        &self,
        slot: usize,
        mut report: Report,
        mut handled: bool,
        taken: Instant,
    ) -> Result<(), ClaimError> {
        loop {
            let mut call = self.new_call(0, false);
            if handled {
                call.handled(slot);
            }
            call.report_taken(slot, &report, taken.elapsed());
            let Some(rest) = self.advance(&call).await?.batches.pop() else {
                return Ok(());
            };
            (report, handled) = (give_back(&InFlight::new(rest, 0)), false);
        }
    }

    /// Returns a call without slots. If `takes_room`, the call may take as many suspects as there
    /// is room for, beside those in hand; otherwise it takes none.
    pub(super) fn new_call(&self, claims: usize, takes_room: bool) -> Advance {
        let in_hand = takes_room.then(|| lock(&self.crashes).clone().into_iter());
        self.caller.new_call(
            claims,
            self.config.reply_bytes,
            *lock(&self.claim_first),
            in_hand,
        )
    }

    /// Sends a call, and repeats it until Redis replies.
    pub(super) async fn advance(&self, call: &Advance) -> Result<Found, ClaimError> {
        let mut backoff = GrowingWait::new(FAILED_MIN, FAILED_MAX);
        let ended = |error| ClaimError::Ended(Arc::new(error));
        loop {
            let mut conn = self.conn.get().await.map_err(ended)?;
            match send(&self.redis, &mut conn, call).await {
                Ok(reply) => return self.read(reply),
                Err(error) if is_lasting(&error) => return Err(ended(error.into())),
                Err(error) => {
                    self.conn.give_up().await;
                    lease::failed(&self.redis, &self.config, conn.made_at(), error).await;
                    backoff.wait().await;
                }
            }
        }
    }

    pub(super) fn read(&self, reply: Advanced) -> Result<Found, ClaimError> {
        let found = self.caller.read(reply).map_err(|_| ClaimError::Lost)?;
        *lock(&self.claim_first) = found.claim_first;
        *lock(&self.soonest) = Instant::now() + self.caller.next_look(found.next_due);
        self.changed.notify_one();
        Ok(found)
    }
}

/// Returns the report that holds the whole batch, due at once.
pub(super) fn give_back(in_flight: &InFlight) -> Report {
    in_flight.report(
        0,
        BatchResult::Hold {
            rest: in_flight.tag,
            delay: Some(Duration::ZERO),
            reason: ReasonCode::Yield.into(),
        },
    )
}

/// Returns the report of a rejected event, and whether the report ends the event.
pub(super) fn reject(in_flight: &InFlight, error: &str, policy: RetryPolicy) -> (Report, bool) {
    let then = rejected(in_flight, 0, shortened(error), policy);
    let over = !matches!(then, BatchResult::Hold { .. });
    (in_flight.report(0, then), over)
}

/// Returns the result of a batch that cannot be given to the program, or `None` if it can. Such a
/// batch has an event that has killed too many workers, an object that must be held for an
/// operator, or an event that becomes a dead letter. The flag says whether the result may end the
/// event whose handler progress is stored.
pub(super) fn unfit(config: &WorkerConfig, in_flight: &InFlight) -> Option<(Report, bool)> {
    if let Some(then) = config.crashed(in_flight.tag) {
        error!(object = %logged::cut(&escape::name(&in_flight.raw)), id = in_flight.batch.first, %then, "claim: the event has killed too many workers");
        return Some((in_flight.report(0, in_flight.crashed(then)), true));
    }
    match (in_flight.unfit(), check_json(&in_flight.batch.payloads[0])) {
        (Some(reason), _) => {
            logged::quarantined(&escape::name(&in_flight.raw), &reason.to_string());
            Some((in_flight.hold_for_operator(reason), false))
        }
        (None, Err(error)) => Some((
            reject(in_flight, &format!("not JSON: {error}"), config.retry).0,
            false,
        )),
        (None, Ok(())) => None,
    }
}

/// Reports the result. The slot becomes free when Redis has the result.
pub(super) async fn settle(
    slot: UsedSlot,
    report: Report,
    handled: bool,
    taken: Instant,
) -> Result<(), ClaimError> {
    tokio::select! {
        () = slot.slots.over.cancelled() => Err(ClaimError::Lost),
        settled = slot.slots.settle(slot.number, report, handled, taken) => settled,
    }
}

impl fmt::Debug for HandSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandSlots")
            .field("name", &self.config.name)
            .finish_non_exhaustive()
    }
}
