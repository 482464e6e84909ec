//! The finder: claims for all who ask, over one connection for calls and one for the wait.
//!
//! One task owns the asks. A call of advance claims for several asks at once, and one pop waits for
//! all of them, so that a thousand waiting callers cost Redis what one costs. An event goes to the
//! caller that has waited longest; a slot belongs to no caller before it has an event. The task
//! ends with its term.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::term::{FAILED_MAX, FAILED_MIN, Found, Place, Term, settle, unfit};
use super::{ClaimError, Claimed};
use crate::connection::PatientConnection;
use crate::wire::BatchReply;
use crate::worker::connect::Backoff;
use crate::worker::error::WorkerError;
use crate::worker::slots::Hand;
use crate::worker::wait::{Waited, pop, wait};

/// Calls under way at once, for disjoint slots.
const CALLS_MAX: usize = 2;
/// Slots that a call names for callers that have been asked for before, at first. The number
/// doubles while all of them get something.
const NAMED_MIN: usize = 4;
/// Callers that are gone are dropped once there are so many.
const WAITING_MIN: usize = 64;
/// While Redis is out of memory and moves no markers for a pop, it is asked this often.
const OOM_WAIT: Duration = Duration::from_millis(100);

/// The caller of `next` or `try_next`; closed if it does not wait any more.
type Asker = oneshot::Sender<Result<Option<Claimed>, ClaimError>>;

/// A caller that wants an event.
pub(super) struct Ask {
    pub(super) asker: Asker,
    /// It waits until there is one.
    pub(super) patient: bool,
}

/// A call that came back.
enum Called {
    /// It claimed: for which slots, for how many callers, for which impatient ones, and whether it
    /// had the room for suspects.
    Claimed { places: Vec<Place>, claims: usize, impatient: Vec<Asker>, had_room: bool, reply: Result<Found, ClaimError> },
    /// It told the result of a batch that no caller can have.
    Settled(Result<(), ClaimError>),
}

/// The one wait for a marker.
struct Pop {
    place: Place,
    /// The call behind it has the room for suspects.
    has_room: bool,
    until: Instant,
    done: BoxFuture<'static, Result<Option<Waited>, WorkerError>>,
}

pub(super) struct Finder {
    term: Arc<Term>,
    asks: mpsc::Receiver<Ask>,
    /// Callers for whom no call was made yet.
    fresh: VecDeque<Ask>,
    /// Patient callers for whom there was nothing.
    waiting: VecDeque<Asker>,
    waiting_max: usize,
    calls: FuturesUnordered<BoxFuture<'static, Called>>,
    /// Calls under way that claim, and how many callers they claim for.
    claiming: (usize, usize),
    /// A call under way, or the one behind the pop, has the room for suspects: no other may take
    /// any.
    room_given: bool,
    pop: Option<Pop>,
    /// The connection of the wait.
    conn: Option<PatientConnection>,
    /// A slot whose pop failed: it may have an object, which the next call finds.
    lost: Option<Place>,
    /// There may be something for callers that wait.
    wake: bool,
    named_max: usize,
    wait_after: Instant,
    backoff: Backoff,
}

impl Finder {
    pub(super) fn new(term: Arc<Term>, asks: mpsc::Receiver<Ask>) -> Self {
        Self {
            term,
            asks,
            fresh: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_max: WAITING_MIN,
            calls: FuturesUnordered::new(),
            claiming: (0, 0),
            room_given: false,
            pop: None,
            conn: None,
            lost: None,
            wake: false,
            named_max: NAMED_MIN,
            wait_after: Instant::now(),
            backoff: Backoff::new(FAILED_MIN, FAILED_MAX),
        }
    }

    /// Serves all who ask until the term is over.
    pub(super) async fn run(mut self) {
        let over = self.term.over.clone();
        tokio::select! {
            () = over.cancelled() => {}
            () = self.serve() => {}
        }
    }

    async fn serve(&mut self) {
        loop {
            while self.call() {}
            self.wait();
            let term = Arc::clone(&self.term);
            let wake_at = self.wake_at();
            tokio::select! {
                ask = self.asks.recv() => match ask {
                    Some(ask) => self.ask(ask),
                    None => return,
                },
                Some(called) = self.calls.next() => self.called(called),
                waited = ready(self.pop.as_mut()) => self.waited(waited).await,
                () = term.changed.notified() => {}
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

    /// Claims for callers that have just come, and for waiting ones if there may be something.
    /// Returns whether a call was made.
    fn call(&mut self) -> bool {
        if self.claiming.0 >= CALLS_MAX {
            return false;
        }
        let covered = self.claiming.1 + usize::from(self.pop.is_some());
        // An object may be due before the pop ends: then one caller is asked for, though the pop
        // waits for it, too.
        let uncovered = self.waiting.len().saturating_sub(covered).max(usize::from(!self.waiting.is_empty()));
        let again = if self.wake { uncovered.min(self.named_max) } else { 0 };
        let wanted = self.fresh.len().max(again);
        let mut places: Vec<Place> = self.lost.take().into_iter().collect();
        while places.len() < wanted {
            let Some(place) = self.term.place() else { break };
            places.push(place);
        }
        let mut impatient = Vec::new();
        for _ in 0..self.fresh.len().min(places.len()) {
            match self.fresh.pop_front() {
                Some(Ask { asker, patient: true }) => self.waiting.push_back(asker),
                Some(Ask { asker, patient: false }) => impatient.push(asker),
                None => {}
            }
        }
        self.refuse_impatient();
        if places.is_empty() {
            self.wake &= wanted > 0;
            return false;
        }
        self.wake = false;
        let claims = places.len().min(wanted);
        let had_room = !std::mem::replace(&mut self.room_given, true);
        let mut call = self.term.new_call(claims, had_room);
        places.iter().for_each(|place| call.free(place.slot));
        self.claiming = (self.claiming.0 + 1, self.claiming.1 + claims);
        let term = Arc::clone(&self.term);
        self.calls.push(Box::pin(async move {
            let reply = term.advance(&call).await;
            Called::Claimed { places, claims, impatient, had_room, reply }
        }));
        true
    }

    /// Callers that do not wait get nothing if no slot is free.
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

    /// Waits for a marker on behalf of all who wait.
    fn wait(&mut self) {
        let idle = !self.wake && self.calls.is_empty() && self.pop.is_none() && self.lost.is_none();
        if !idle || self.waiting.is_empty() || Instant::now() < self.wait_after {
            return;
        }
        self.forget_closed();
        if self.waiting.is_empty() {
            return;
        }
        let Some(place) = self.term.place() else { return };
        let config = &self.term.config;
        let until = self.term.soonest();
        let block = until.saturating_duration_since(Instant::now()).min(config.block);
        let to = config.keys.worker_object(&format!("{}.{}", config.name, place.slot));
        let pop = pop(&config.keys.objects_with_events(), &to, block);
        // It takes the room if no call has it: it is made when the next object is due, so that a
        // suspect may be what it finds.
        let has_room = !std::mem::replace(&mut self.room_given, true);
        let mut call = self.term.new_call(1, has_room);
        call.free(place.slot);
        let done = Box::pin(wait(self.term.redis.clone(), self.conn.take(), pop, call, Arc::clone(config)));
        self.pop = Some(Pop { place, has_room, until, done });
    }

    /// When something must be done though nothing happens: an object is due before the pop ends, or
    /// a failed pop is made again.
    fn wake_at(&self) -> Option<Instant> {
        if self.wake || self.waiting.is_empty() {
            return None;
        }
        match &self.pop {
            Some(pop) => Some(self.term.soonest()).filter(|soonest| *soonest < pop.until),
            None => Some(self.wait_after).filter(|after| Instant::now() < *after),
        }
    }

    async fn waited(&mut self, waited: Result<Option<Waited>, WorkerError>) {
        let Some(Pop { place, has_room, .. }) = self.pop.take() else { return };
        self.room_given &= !has_room;
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
        match reply.map(|reply| self.term.read(reply)) {
            Some(Ok(found)) => {
                self.backoff = Backoff::new(FAILED_MIN, FAILED_MAX);
                self.wake |= found.more;
                self.hand_out(vec![place], found.batches, &mut Vec::new());
            }
            Some(Err(error)) => self.fail(&error),
            None => {
                // Whatever became of the pop, and of the call behind it: the next call finds it.
                self.conn = None;
                self.wait_after = Instant::now() + self.backoff.delay();
                self.lost = Some(place);
            }
        }
    }

    fn called(&mut self, called: Called) {
        let (places, claims, mut impatient, had_room, reply) = match called {
            Called::Claimed { places, claims, impatient, had_room, reply } => (places, claims, impatient, had_room, reply),
            Called::Settled(Ok(())) => return,
            Called::Settled(Err(error)) => return self.fail(&error),
        };
        self.claiming = (self.claiming.0 - 1, self.claiming.1 - claims);
        self.room_given &= !had_room;
        let found = match reply {
            Ok(found) => found,
            Err(error) => {
                impatient.into_iter().for_each(|asker| drop(asker.send(Err(error.clone()))));
                return self.fail(&error);
            }
        };
        let given = found.batches.len();
        self.named_max = if claims > 0 && given >= claims { (2 * claims).max(NAMED_MIN) } else { given.max(NAMED_MIN) };
        self.wake |= found.more;
        self.hand_out(places, found.batches, &mut impatient);
        for asker in impatient.into_iter().rev() {
            match found.more {
                true => self.fresh.push_front(Ask { asker, patient: false }),
                false => drop(asker.send(Ok(None))),
            }
        }
    }

    /// Gives what was claimed to those who wait. All other slots are free again.
    fn hand_out(&mut self, places: Vec<Place>, batches: Vec<BatchReply>, impatient: &mut Vec<Asker>) {
        let mut places: HashMap<usize, Place> = places.into_iter().map(|place| (place.slot, place)).collect();
        for batch in batches {
            let Some(place) = places.remove(&batch.slot) else { continue };
            let hand = Hand::new(batch, 0);
            place.has(&hand);
            match unfit(&self.term.config, &hand) {
                Some((report, handled)) => {
                    let settled = settle(place, report, handled, hand.taken);
                    self.calls.push(Box::pin(async move { Called::Settled(settled.await) }));
                    self.wake = true;
                }
                None => self.give(Claimed::new(place, hand), impatient),
            }
        }
    }

    /// Gives an event to the caller that has waited longest. If nobody waits, dropping the event
    /// gives it back.
    fn give(&mut self, mut claimed: Claimed, impatient: &mut Vec<Asker>) {
        loop {
            let first = (!impatient.is_empty()).then_some(0);
            let asker = self.waiting.pop_front().or_else(|| first.map(|first| impatient.remove(first)));
            let Some(asker) = asker.or_else(|| self.fresh.pop_front().map(|ask| ask.asker)) else { return };
            match asker.send(Ok(Some(claimed))) {
                Err(Ok(Some(refused))) => claimed = refused,
                _ => return,
            }
        }
    }

    /// Tells all who ask why they get nothing.
    fn fail(&mut self, error: &ClaimError) {
        self.wake = false;
        let fresh = std::mem::take(&mut self.fresh).into_iter().map(|ask| ask.asker);
        for asker in std::mem::take(&mut self.waiting).into_iter().chain(fresh) {
            drop(asker.send(Err(error.clone())));
        }
    }
}

/// Waits until the time; for ever if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Waits for the pop; for ever if there is none.
async fn ready(pop: Option<&mut Pop>) -> Result<Option<Waited>, WorkerError> {
    match pop {
        Some(pop) => (&mut pop.done).await,
        None => pending().await,
    }
}
