//! The finder: claims for all callers, with one connection for calls and one for the wait.
//!
//! One task has the queue of callers. A call of advance claims for several callers at once, and one
//! pop waits for all of them. So a thousand waiting callers cost Redis no more than one. An event
//! goes to the caller that has waited longest. A slot is assigned to a caller only when the slot
//! has an event. The task ends with its session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::claimed::Claimed;
use super::error::ClaimError;
use super::slots::{HandSlots, UsedSlot, settle, unfit};
use crate::connection::PatientConnection;
use crate::wire::BatchReply;
use crate::worker::error::WorkerError;
use crate::worker::serve::caller::{
    CALLS_MAX, FAILED_MAX, FAILED_MIN, Found, NAMED_MIN, OOM_WAIT, SuspectRoom, named_after,
};
use crate::worker::serve::slots::InFlight;
use crate::worker::serve::wait::{Waited, pop, wait};
use crate::worker::times::growing_wait::GrowingWait;
use crate::worker::times::pending::{ready, until};

/// When the queue of callers has at least this length, the finder removes callers that have stopped
/// waiting.
const WAITING_MIN: usize = 64;

/// The channel to the caller of `next` or `try_next`; closed if the caller stopped waiting.
type Asker = oneshot::Sender<Result<Option<Claimed>, ClaimError>>;

/// The request of a caller for an event.
pub(super) struct Ask {
    pub(super) asker: Asker,
    /// Whether the caller waits until there is an event.
    pub(super) patient: bool,
}

/// The result of a call that has ended.
enum Called {
    /// The call claimed events for `claims` callers, and named the slots `used`. `impatient` are
    /// those callers that do not wait. `had_room`: whether the call could take suspects.
    Claimed {
        used: Vec<UsedSlot>,
        claims: usize,
        impatient: Vec<Asker>,
        had_room: bool,
        reply: Result<Found, ClaimError>,
    },
    /// The call reported the result of a batch that cannot be given to any caller.
    Settled(Result<(), ClaimError>),
}

/// The one pop that waits for a marker.
struct Pop {
    slot: UsedSlot,
    /// Whether the call behind the pop may take suspects.
    has_room: bool,
    until: Instant,
    done: BoxFuture<'static, Result<Option<Waited>, WorkerError>>,
}

pub(super) struct Finder {
    slots: Arc<HandSlots>,
    asks: mpsc::Receiver<Ask>,
    /// The callers for whom no call was made yet.
    fresh: VecDeque<Ask>,
    /// The patient callers for whom a call found no event.
    waiting: VecDeque<Asker>,
    waiting_max: usize,
    calls: FuturesUnordered<BoxFuture<'static, Called>>,
    /// The number of claiming calls under way, and the number of callers that they claim for.
    claiming: (usize, usize),
    /// The permission to take suspects. Only one call under way at a time has the permission.
    suspects: SuspectRoom,
    pop: Option<Pop>,
    /// The connection of the pop.
    conn: Option<PatientConnection>,
    /// The slot of a pop that failed. Its list may have a name, which the next call finds.
    lost: Option<UsedSlot>,
    /// Whether there may be an event for a waiting caller.
    wake: bool,
    named_max: usize,
    wait_after: Instant,
    backoff: GrowingWait,
}

impl Finder {
    pub(super) fn new(slots: Arc<HandSlots>, asks: mpsc::Receiver<Ask>) -> Self {
        Self {
            slots,
            asks,
            fresh: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_max: WAITING_MIN,
            calls: FuturesUnordered::new(),
            claiming: (0, 0),
            suspects: SuspectRoom::default(),
            pop: None,
            conn: None,
            lost: None,
            wake: false,
            named_max: NAMED_MIN,
            wait_after: Instant::now(),
            backoff: GrowingWait::new(FAILED_MIN, FAILED_MAX),
        }
    }

    /// Serves all callers until the session ends.
    pub(super) async fn run(mut self) {
        let over = self.slots.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = self.serve() => {}
        }
    }

    async fn serve(&mut self) {
        loop {
            while self.call() {}
            self.wait();
            let slots = Arc::clone(&self.slots);
            let wake_at = self.wake_at();
            tokio::select! {
                ask = self.asks.recv() => match ask {
                    Some(ask) => self.ask(ask),
                    None => return,
                },
                Some(called) = self.calls.next() => self.called(called),
                waited = ready(self.pop.as_mut().map(|pop| &mut pop.done)) => self.waited(waited).await,
                () = slots.changed.notified() => {}
                () = until(wake_at) => self.wake = true,
            }
        }
    }

    fn ask(&mut self, ask: Ask) {
        self.fresh.push_back(ask);
        if self.fresh.len() + self.waiting.len() >= self.waiting_max {
            self.forget_closed();
        }
    }

    fn forget_closed(&mut self) {
        self.fresh.retain(|ask| !ask.asker.is_closed());
        self.waiting.retain(|asker| !asker.is_closed());
        self.waiting_max = (2 * (self.fresh.len() + self.waiting.len())).max(WAITING_MIN);
    }

    /// Makes a call that claims for new callers and, if there may be events, for waiting callers.
    /// Returns whether a call was made.
    fn call(&mut self) -> bool {
        if self.claiming.0 >= CALLS_MAX {
            return false;
        }
        let covered = self.claiming.1 + usize::from(self.pop.is_some());
        // A held object may become due before the pop ends. So the call claims for at least one
        // waiting caller, although the pop also waits for that caller.
        let uncovered = self
            .waiting
            .len()
            .saturating_sub(covered)
            .max(usize::from(!self.waiting.is_empty()));
        let again = if self.wake {
            uncovered.min(self.named_max)
        } else {
            0
        };
        let wanted = self.fresh.len().max(again);
        let mut used: Vec<UsedSlot> = self.lost.take().into_iter().collect();
        while used.len() < wanted {
            let Some(slot) = self.slots.take() else { break };
            used.push(slot);
        }
        let mut impatient = Vec::new();
        for _ in 0..self.fresh.len().min(used.len()) {
            match self.fresh.pop_front() {
                Some(Ask {
                    asker,
                    patient: true,
                }) => self.waiting.push_back(asker),
                Some(Ask {
                    asker,
                    patient: false,
                }) => impatient.push(asker),
                None => {}
            }
        }
        self.refuse_impatient();
        if used.is_empty() {
            self.wake &= wanted > 0;
            return false;
        }
        self.wake = false;
        let claims = used.len().min(wanted);
        let had_room = self.suspects.take_if(true);
        let mut call = self.slots.new_call(claims, had_room);
        used.iter().for_each(|slot| call.free(slot.number));
        self.claiming = (self.claiming.0 + 1, self.claiming.1 + claims);
        let slots = Arc::clone(&self.slots);
        self.calls.push(Box::pin(async move {
            let reply = slots.advance(&call).await;
            Called::Claimed {
                used,
                claims,
                impatient,
                had_room,
                reply,
            }
        }));
        true
    }

    /// Returns `None` to the callers that do not wait, if no slot is free.
    fn refuse_impatient(&mut self) {
        if self.fresh.iter().any(|ask| !ask.patient) {
            for ask in std::mem::take(&mut self.fresh) {
                match ask.patient {
                    true => self.fresh.push_back(ask),
                    false => drop(ask.asker.send(Ok(None))),
                }
            }
        }
    }

    /// Begins a pop that waits for a marker on behalf of all waiting callers.
    fn wait(&mut self) {
        let idle = !self.wake && self.calls.is_empty() && self.pop.is_none() && self.lost.is_none();
        if !idle || self.waiting.is_empty() || Instant::now() < self.wait_after {
            return;
        }
        self.forget_closed();
        if self.waiting.is_empty() {
            return;
        }
        let Some(slot) = self.slots.take() else {
            return;
        };
        let config = &self.slots.config;
        let until = self.slots.soonest();
        let block = until
            .saturating_duration_since(Instant::now())
            .min(config.block);
        let pop = pop(config, slot.number, block);
        // The call behind the pop may take suspects, unless another call under way has the
        // permission. The call runs at the latest when the next held object is due, and this object
        // may be a suspect.
        let has_room = self.suspects.take_if(true);
        let mut call = self.slots.new_call(1, has_room);
        call.free(slot.number);
        let done = Box::pin(wait(
            self.slots.redis.clone(),
            self.conn.take(),
            pop,
            call,
            Arc::clone(config),
        ));
        self.pop = Some(Pop {
            slot,
            has_room,
            until,
            done,
        });
    }

    /// Returns the time at which the loop must act even if no call or pop ends before. Then a held
    /// object is due, or a failed pop is repeated.
    fn wake_at(&self) -> Option<Instant> {
        if self.wake || self.waiting.is_empty() {
            return None;
        }
        match &self.pop {
            Some(pop) => Some(self.slots.soonest()).filter(|soonest| *soonest < pop.until),
            None => Some(self.wait_after).filter(|after| Instant::now() < *after),
        }
    }

    async fn waited(&mut self, waited: Result<Option<Waited>, WorkerError>) {
        let Some(Pop { slot, has_room, .. }) = self.pop.take() else {
            return;
        };
        self.suspects.over(has_room);
        let waited = match waited {
            Ok(waited) => waited,
            Err(error) => return self.fail(&ClaimError::Ended(Arc::new(error))),
        };
        let reply = waited.and_then(|waited| {
            self.conn = Some(waited.conn);
            if waited.out_of_memory {
                self.wait_after = Instant::now() + OOM_WAIT;
            }
            waited.reply.ok()
        });
        match reply.map(|reply| self.slots.read(reply)) {
            Some(Ok(found)) => {
                self.backoff = GrowingWait::new(FAILED_MIN, FAILED_MAX);
                self.wake |= found.more;
                self.hand_out(vec![slot], found.batches, &mut Vec::new());
            }
            Some(Err(error)) => self.fail(&error),
            None => {
                // The results of the pop and of the call behind it are unknown. The next call finds
                // them.
                self.conn = None;
                self.wait_after = Instant::now() + self.backoff.delay();
                self.lost = Some(slot);
            }
        }
    }

    fn called(&mut self, called: Called) {
        let (used, claims, mut impatient, had_room, reply) = match called {
            Called::Claimed {
                used,
                claims,
                impatient,
                had_room,
                reply,
            } => (used, claims, impatient, had_room, reply),
            Called::Settled(Ok(())) => return,
            Called::Settled(Err(error)) => return self.fail(&error),
        };
        self.claiming = (self.claiming.0 - 1, self.claiming.1 - claims);
        self.suspects.over(had_room);
        let found = match reply {
            Ok(found) => found,
            Err(error) => {
                impatient
                    .into_iter()
                    .for_each(|asker| drop(asker.send(Err(error.clone()))));
                return self.fail(&error);
            }
        };
        let given = found.batches.len();
        self.named_max = named_after(claims, given);
        self.wake |= found.more;
        self.hand_out(used, found.batches, &mut impatient);
        for asker in impatient.into_iter().rev() {
            match found.more {
                true => self.fresh.push_front(Ask {
                    asker,
                    patient: false,
                }),
                false => drop(asker.send(Ok(None))),
            }
        }
    }

    /// Gives the claimed events to the callers. All other slots of the call become free.
    fn hand_out(
        &mut self,
        used: Vec<UsedSlot>,
        batches: Vec<BatchReply>,
        impatient: &mut Vec<Asker>,
    ) {
        let mut used: HashMap<usize, UsedSlot> =
            used.into_iter().map(|slot| (slot.number, slot)).collect();
        for batch in batches {
            let Some(slot) = used.remove(&batch.slot) else {
                continue;
            };
            let in_flight = InFlight::new(batch, 0);
            slot.has(&in_flight);
            match unfit(&self.slots.config, &in_flight) {
                Some((report, handled)) => {
                    let settled = settle(slot, report, handled, in_flight.taken);
                    self.calls
                        .push(Box::pin(async move { Called::Settled(settled.await) }));
                    self.wake = true;
                }
                // The process has stood still after Redis had replied. Another process may have the
                // event by now. Dropping the claim gives it back, if it is still this one's.
                None if self.slots.held.may_be_over() => drop(Claimed::new(slot, in_flight)),
                None => self.give(Claimed::new(slot, in_flight), impatient),
            }
        }
    }

    /// Gives an event to the caller that has waited longest. If there is no caller, `claimed` is
    /// dropped, which gives the event back.
    fn give(&mut self, mut claimed: Claimed, impatient: &mut Vec<Asker>) {
        loop {
            let first = (!impatient.is_empty()).then_some(0);
            let asker = self
                .waiting
                .pop_front()
                .or_else(|| first.map(|first| impatient.remove(first)));
            let Some(asker) = asker.or_else(|| self.fresh.pop_front().map(|ask| ask.asker)) else {
                return;
            };
            match asker.send(Ok(Some(claimed))) {
                Err(Ok(Some(refused))) => claimed = refused,
                _ => return,
            }
        }
    }

    /// Sends the error to all callers.
    fn fail(&mut self, error: &ClaimError) {
        self.wake = false;
        let fresh = std::mem::take(&mut self.fresh)
            .into_iter()
            .map(|ask| ask.asker);
        for asker in std::mem::take(&mut self.waiting).into_iter().chain(fresh) {
            drop(asker.send(Err(error.clone())));
        }
    }
}
