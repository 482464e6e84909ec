//! A term: the slots of claims by hand, from an attach to the end of the lease, and the calls for
//! them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::finder::{Ask, Finder};
use super::{ClaimError, Claimed, give_back, reject};
use crate::escape;
use crate::event::check_json;
use crate::failpoints::around;
use crate::wire::{self, Advance, Advanced, BatchReply, Bounds, From, Report};
use crate::worker::config::WorkerConfig;
use crate::worker::connect::{Backoff, Redis, is_lasting};
use crate::worker::lease::{self, Session};
use crate::worker::ledger::Link;
use crate::worker::slots::{Hand, tell_put_aside};

/// Markers looked at in one call.
const MARKERS_MAX: usize = 1024;
/// The wait where a call failed.
pub(super) const FAILED_MIN: Duration = Duration::from_millis(20);
pub(super) const FAILED_MAX: Duration = Duration::from_secs(1);
/// Asks on their way to the finder, which takes them at once.
const ASKS_MAX: usize = 64;

/// From an attach to its end: the slots, and what they have.
pub(super) struct Term {
    pub(super) redis: Redis,
    pub(super) config: Arc<WorkerConfig>,
    token: Arc<str>,
    link: Link,
    /// To the finder, which ends with the term.
    asks: mpsc::Sender<Ask>,
    /// Free slots; the last one is used next.
    free: Mutex<Vec<usize>>,
    /// The crashes of the batch that each slot has in hand; 0 if it has none.
    crashes: Mutex<Vec<u32>>,
    /// A slot has become free, or `soonest` is sooner.
    pub(super) changed: Notify,
    /// Where to claim first next time: due held objects and markers take turns, over all calls.
    from: Mutex<From>,
    /// When the next held object is due, as the last reply said; at most a block time ahead.
    soonest: Mutex<Instant>,
    /// The runtime that began the term: a claimed event may be dropped outside of any.
    pub(super) runtime: Handle,
    /// Fires when the term is over.
    pub(super) over: CancellationToken,
}

/// A slot in use; free again when it is dropped.
pub(super) struct Place {
    pub(super) term: Arc<Term>,
    pub(super) slot: usize,
}

impl Place {
    /// The slot has this batch in hand from now on.
    pub(super) fn has(&self, hand: &Hand) {
        lock(&self.term.crashes)[self.slot] = hand.tag.crashes;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.term.crashes)[self.slot] = 0;
        lock(&self.term.free).push(self.slot);
        self.term.changed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reply of a call.
pub(super) struct Found {
    /// The call may not have looked at all there is.
    pub(super) more: bool,
    pub(super) batches: Vec<BatchReply>,
}

impl Term {
    /// Begins a term. Batches that the slots had before are given back first, so that they are
    /// claimed as everything else.
    pub(super) async fn begin(redis: &Redis, config: &Arc<WorkerConfig>, session: &Session) -> Arc<Self> {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let term = Arc::new(Self {
            redis: redis.clone(),
            config: Arc::clone(config),
            token: Arc::clone(&session.token),
            link: Link::new(redis.clone(), Arc::clone(config), Arc::clone(&session.token)),
            asks,
            free: Mutex::new((0..config.concurrency).rev().collect()),
            crashes: Mutex::new(vec![0; config.concurrency]),
            changed: Notify::new(),
            from: Mutex::new(From::Held),
            soonest: Mutex::new(Instant::now()),
            runtime: Handle::current(),
            over: CancellationToken::new(),
        });
        term.give_all_back().await;
        tokio::spawn(Finder::new(Arc::clone(&term), asked).run());
        term
    }

    /// Gives back the batches of all slots. An error is left to the first claim, which meets it as
    /// well.
    async fn give_all_back(&self) {
        loop {
            let mut call = self.new_call(0, false);
            (0..self.config.concurrency).for_each(|slot| call.free(slot));
            let Ok(found) = self.advance(&call).await else { return };
            if found.batches.is_empty() {
                return;
            }
            for batch in found.batches {
                let slot = batch.slot;
                if self.settle(slot, give_back(&Hand::new(batch, 0)), false, Instant::now()).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Claims an event. If the future is dropped, the event is given back: nobody has seen it.
    pub(super) async fn claim(&self, patient: bool) -> Result<Option<Claimed>, ClaimError> {
        let (asker, asked) = oneshot::channel();
        let claimed = async {
            self.asks.send(Ask { asker, patient }).await.ok()?;
            asked.await.ok()
        };
        let mut claimed = claimed.await.unwrap_or(Err(ClaimError::Lost))?;
        // Between here and the caller nothing waits: the same poll returns the event.
        if let Some(claimed) = &mut claimed {
            claimed.seen = true;
        }
        Ok(claimed)
    }

    /// Takes a free slot.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let slot = lock(&self.free).pop()?;
        Some(Place { term: Arc::clone(self), slot })
    }

    pub(super) fn soonest(&self) -> Instant {
        *lock(&self.soonest)
    }

    /// Tells what became of the slot's batch, and gives back whatever else is in its hands.
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
            let Some(rest) = self.advance(&call).await?.batches.pop() else { return Ok(()) };
            (report, handled) = (give_back(&Hand::new(rest, 0)), false);
        }
    }

    /// `takes_room`: the call may take as many suspects as there is room for beside those in hand;
    /// otherwise it takes none.
    pub(super) fn new_call(&self, claims: usize, takes_room: bool) -> Advance {
        let mut suspects = self.config.suspects();
        if takes_room {
            lock(&self.crashes).iter().for_each(|crashes| suspects.has(*crashes));
        } else {
            suspects = suspects.full();
        }
        let bounds = Bounds {
            batch: self.config.batch,
            batch_bytes: self.config.batch_bytes,
            reply_bytes: self.config.reply_bytes,
            claims,
            markers: MARKERS_MAX,
            forget_after: self.config.forget_after,
            suspects,
        };
        let (keys, name) = (&self.config.keys, &self.config.name);
        let mut call = Advance::beyond(keys, name, &self.token, bounds, *lock(&self.from), self.redis.highest());
        if let Some(log) = self.config.event_log {
            call.log(log);
        }
        call
    }

    /// Makes the call until Redis answers it.
    pub(super) async fn advance(&self, call: &Advance) -> Result<Found, ClaimError> {
        let mut backoff = Backoff::new(FAILED_MIN, FAILED_MAX);
        let ended = |error| ClaimError::Ended(Arc::new(error));
        loop {
            let mut conn = self.link.connection().await.map_err(ended)?;
            match around!("advance", wire::advance(&mut conn, call)).await {
                Ok(reply) => {
                    self.redis.outage().answered(conn.made_at());
                    return self.read(reply);
                }
                Err(error) if is_lasting(&error) => return Err(ended(error.into())),
                Err(error) => {
                    self.link.give_up().await;
                    lease::failed(&self.redis, &self.config, conn.made_at(), error).await;
                    backoff.wait().await;
                }
            }
        }
    }

    pub(super) fn read(&self, reply: Advanced) -> Result<Found, ClaimError> {
        let Advanced::Ok { next_due, more, from, batches, quarantined } = reply else { return Err(ClaimError::Lost) };
        *lock(&self.from) = from;
        let block = self.config.block;
        *lock(&self.soonest) = Instant::now() + next_due.map_or(block, |due| due.min(block)).max(Duration::from_millis(1));
        self.changed.notify_one();
        for (object, why) in quarantined {
            tell_put_aside(&object, &why);
        }
        for batch in &batches {
            self.redis.saw(batch.tag.first + batch.events.len() as u64 - 1);
        }
        Ok(Found { more, batches })
    }
}

/// The result for a batch that cannot be offered to the program, and whether it ends the event
/// whose handler progress is stored: the event has killed too many workers, its object is held for
/// an operator, or it is a dead letter.
pub(super) fn unfit(config: &WorkerConfig, hand: &Hand) -> Option<(Report, bool)> {
    if let Some(then) = config.crashed(hand.tag) {
        error!(object = %escape::name(&hand.raw), id = hand.batch.first, %then, "claim: the event has killed too many workers");
        return Some((hand.report(0, hand.crashed(then)), true));
    }
    match (hand.unfit(), check_json(&hand.batch.payloads[0])) {
        (Some(reason), _) => {
            tell_put_aside(&escape::name(&hand.raw), &reason.to_string());
            Some((hand.hold_for_operator(reason), false))
        }
        (None, Err(error)) => Some((reject(hand, &format!("not JSON: {error}")), false)),
        (None, Ok(())) => None,
    }
}

/// Tells the result; the slot is free when Redis has it.
pub(super) async fn settle(place: Place, report: Report, handled: bool, taken: Instant) -> Result<(), ClaimError> {
    tokio::select! {
        () = place.term.over.cancelled() => Err(ClaimError::Lost),
        settled = place.term.settle(place.slot, report, handled, taken) => settled,
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("name", &self.config.name).finish_non_exhaustive()
    }
}
