//! One session of a worker process, from attach until its lease is lost or it is told to stop:
//! claim, deliver, commit, over and over.
//!
//! One task owns the slots and decides; deliveries, the wait for markers and the lease run beside
//! it and report. Nothing here outlives the session: dropping it ends every delivery, and what was
//! in hand is still in Redis.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::ErrorKind;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::activity::Activity;
use super::allowance::Allowance;
use super::config::WorkerConfig;
use super::connect::{Backoff, Connection, Redis, give_up, is_lasting};
use super::deliver::{Outcome, deliver};
use super::error::WorkerError;
use super::health::{Change, Health};
use super::lease::{Keeper, Notice, Session, failed, keeper};
use super::ledger::{InHand, Link};
use super::shutdown::Shutdown;
use super::slots::{Policy, Slot, Step, tell_put_aside};
use super::wait::{Waited, pop, wait};
use crate::connection::PatientConnection;
use crate::escape;
use crate::event::ObjectName;
use crate::failpoints::around;
use crate::sink::{Context, Post, Sink, Stop};
use crate::wire::{self, Advance, Advanced, BatchReply, Bounds, From, Report, Results, Room, ScriptError};

/// Calls of advance under way at once, for disjoint slots: one for Redis to work on while the
/// answer to the other is worked on here.
const CALLS_MAX: usize = 2;
/// Markers looked at in one call: enough to pass over those a busy object has left, few enough to
/// leave Redis to others.
const MARKERS_MAX: usize = 1024;
/// Free slots named in a call beside those with results, at least: naming more than can be given
/// something costs Redis time for nothing.
const NAMED_MIN: usize = 4;
/// Waits before a connection whose call or pop failed is replaced: the reason may be a lasting one.
const FAILED_MIN: Duration = Duration::from_millis(20);
const FAILED_MAX: Duration = Duration::from_secs(1);
/// While Redis is out of memory and moves no markers for a pop, advance looks itself, this often.
const OOM_WAIT: Duration = Duration::from_millis(100);

/// Why a session ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The process was told to stop, and nothing is in hand that could still be finished.
    Finished,
    /// The process was told to stop, and its grace is over.
    GraceOver,
    /// The process was told to stop at once.
    AtOnce,
    /// The lease is gone, and nobody took the name since.
    Lapsed,
    /// The name has another lease, or none and another registration.
    Fenced(String),
}

/// A call that came back: the slots it named, whether it had the room for suspects, and what it
/// brought.
type Answered = (Vec<usize>, bool, Result<Advanced, ScriptError>);

/// A wait for a marker, and the call that follows it.
type Pop = BoxFuture<'static, Result<Option<Waited>, WorkerError>>;

pub(crate) struct Serve<'a> {
    redis: &'a Redis,
    config: Arc<WorkerConfig>,
    sink: Arc<dyn Sink>,
    session: &'a Session,
    slots: Vec<Slot>,
    delivered: &'a mut u64,
    stop_began: &'a mut Option<Instant>,
    deliveries: JoinSet<(usize, Outcome, Arc<InHand>)>,
    /// For what handlers have finished.
    ledger: Arc<Link>,
    cancelled: CancellationToken,
    /// The connection for advance; none while a new one is being made.
    conn: Option<Connection>,
    connecting: Option<BoxFuture<'static, Result<Connection, WorkerError>>>,
    calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The wait for a marker, the slot it is for, which is asked for meanwhile, and whether the
    /// call behind it has the room for suspects.
    waiting: Option<(usize, bool, Pop)>,
    wait_conn: Option<PatientConnection>,
    notices: mpsc::Receiver<Notice>,
    /// Ends with the session.
    _keeper: Keeper,
    activity: Arc<Activity>,
    /// By slot.
    posts: Vec<Arc<Post>>,
    /// The slot a pop was for. What it moved must be looked for even if the slot is busy by now.
    popped: Option<usize>,
    /// After pops and calls that failed.
    wait_after: Instant,
    wait_backoff: Backoff,
    call_backoff: Backoff,
    /// A call under way has the room for suspects: no other may take any.
    room_given: bool,
    /// A call is due although no slot has a result: something may be there to claim.
    wake: bool,
    wake_at: Instant,
    /// How many free slots a call may name: twice as many after each call that found something for
    /// all of them.
    named_max: usize,
    /// From then on, the next call names all of them, so that a batch the process does not know of
    /// is found: after an attach, a lost reply, and now and then.
    name_all_at: Instant,
    /// Where the next call begins to name slots: where the one before had no room for a result, so
    /// that none waits for ever.
    name_from: usize,
    from: From,
    allowance: Allowance,
    health: Health,
    stopping: bool,
}

impl Drop for Serve<'_> {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}

impl<'a> Serve<'a> {
    pub(crate) fn new(
        redis: &'a Redis,
        config: &Arc<WorkerConfig>,
        sink: &Arc<dyn Sink>,
        session: &'a Session,
        activity: &Arc<Activity>,
        delivered: &'a mut u64,
        stop_began: &'a mut Option<Instant>,
    ) -> Result<Self, WorkerError> {
        let posts = activity.posts(config.concurrency);
        let (keeper, notices) = keeper(redis, config, session, activity, sink.timeout_max())?;
        Ok(Self {
            redis,
            config: Arc::clone(config),
            sink: Arc::clone(sink),
            session,
            slots: (0..config.concurrency).map(|_| Slot::Free).collect(),
            delivered,
            stop_began,
            deliveries: JoinSet::new(),
            ledger: Arc::new(Link::new(redis.clone(), Arc::clone(config), Arc::clone(&session.token))),
            cancelled: CancellationToken::new(),
            conn: None,
            connecting: None,
            calls: FuturesUnordered::new(),
            waiting: None,
            wait_conn: None,
            popped: None,
            wait_after: Instant::now(),
            wait_backoff: Backoff::new(FAILED_MIN, FAILED_MAX),
            call_backoff: Backoff::new(FAILED_MIN, FAILED_MAX),
            notices,
            _keeper: keeper,
            activity: Arc::clone(activity),
            posts,
            room_given: false,
            wake: true,
            wake_at: Instant::now(),
            named_max: NAMED_MIN,
            name_all_at: Instant::now(),
            name_from: 0,
            from: From::Held,
            allowance: Allowance::new(config.reply_bytes),
            health: Health::Up,
            stopping: false,
        })
    }

    /// Works until the session ends. Every turn does all that can be done at once, then waits for
    /// whatever happens next.
    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> Result<Ended, WorkerError> {
        let mut grace_over = None;
        loop {
            self.activity.turned();
            if shutdown.is_stopping() && !self.stopping {
                self.stopping = true;
                let now = *self.stop_began.get_or_insert_with(Instant::now);
                grace_over = Some(now + self.config.grace);
                // The pop under way is given up with its connection, so that it moves no marker to
                // a process that leaves.
                self.give_up_waiting();
            }
            if self.stopping && self.is_idle() {
                return Ok(Ended::Finished);
            }
            self.connect();
            while self.call() {}
            self.wait();
            let (probe_at, give_back_at) = (self.health.probe_at(), self.health.give_back_at(self.config.unavailable_max));
            let ended = tokio::select! {
                biased;
                () = shutdown.stopped_at_once() => Some(Ended::AtOnce),
                () = shutdown.stopped(), if !self.stopping => None,
                () = until(grace_over) => Some(Ended::GraceOver),
                Some(notice) = self.notices.recv() => self.noticed(notice)?,
                Some(done) = self.deliveries.join_next() => {
                    self.outcome(done);
                    while let Some(done) = self.deliveries.try_join_next() {
                        self.outcome(done);
                    }
                    None
                }
                Some((asked, had_room, reply)) = self.calls.next() => {
                    self.room_given &= !had_room;
                    self.answered(asked, reply).await?
                }
                conn = ready(self.connecting.as_mut()) => {
                    self.connecting = None;
                    self.conn = Some(conn?);
                    None
                }
                waited = ready(self.waiting.as_mut().map(|(_, _, pop)| pop)) => self.waited(waited?).await?,
                () = sleep_until(self.wake_at) => {
                    self.wake_at = Instant::now() + self.config.block;
                    self.wake = true;
                    None
                }
                () = until(give_back_at) => {
                    self.give_back();
                    None
                }
                () = until(probe_at) => {
                    self.probe();
                    None
                }
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Free | Slot::Parked(_)))
    }

    fn connect(&mut self) {
        if self.conn.is_none() && self.connecting.is_none() {
            let redis = self.redis.clone();
            self.connecting = Some(Box::pin(async move { redis.reconnect().await }));
        }
    }

    /// Commit and claim: one call for slots that have a result, and where there may be something to
    /// claim for free ones too. Answers whether there was one to make.
    fn call(&mut self) -> bool {
        let Some(conn) = &self.conn else { return false };
        let reported = self.slots.iter().any(|slot| matches!(slot, Slot::Reported(_)));
        let free = self.slots.iter().filter(|slot| matches!(slot, Slot::Free)).count();
        let wanted = self.wake && (free > 0 || self.popped.is_some()) && !self.stopping;
        if self.calls.len() >= CALLS_MAX || !(reported || wanted) {
            return false;
        }
        let mut conn: PatientConnection = (**conn).clone();
        let claims = match self.stopping {
            true => 0,
            false if self.health.is_up() => self.slots.len(),
            false => usize::from(self.health.wants_batch() && !self.has_parked()),
        };
        let takes_room = claims > 0 && !self.room_given;
        let mut call = self.new_call(claims, takes_room);
        self.room_given |= takes_room;
        let all = wanted && self.names_all();
        let mut names_left = if all { self.slots.len() } else { self.named_max };
        // Unless all are to be named, half of the slots: Redis has the other half to work on while
        // the answer is worked on here.
        let asked_max = if all { self.slots.len() } else { self.slots.len().div_ceil(CALLS_MAX) };
        let mut asked = Vec::with_capacity(asked_max);
        let mut room = Room::of_call();
        let (later, sooner) = self.slots.split_at_mut(self.name_from);
        let (sooner, later) = (sooner.iter_mut().enumerate(), later.iter_mut().enumerate());
        let from = std::mem::take(&mut self.name_from);
        for (number, slot) in sooner.map(|(at, slot)| (from + at, slot)).chain(later) {
            match slot {
                _ if asked.len() == asked_max => break,
                Slot::Reported(told) if !room.admits(told.load) => {
                    self.name_from = number;
                    break;
                }
                Slot::Reported(told) => {
                    if told.handled {
                        call.handled(number);
                    }
                    call.report_taken(number, &told.report, told.taken.elapsed());
                }
                Slot::Free if wanted && (names_left > 0 || self.popped == Some(number)) => {
                    names_left = names_left.saturating_sub(1);
                    call.free(number);
                }
                Slot::Free | Slot::Asked(_) | Slot::Delivering(_) | Slot::Parked(_) => continue,
            }
            *slot = std::mem::take(slot).next(Step::Ask);
            asked.push(number);
        }
        // What the pop moved is looked for by itself where its slot is busy.
        if let Some(slot) =
            self.popped.take().filter(|slot| !(asked.contains(slot) && matches!(self.slots[*slot], Slot::Asked(None))))
        {
            call.look(slot);
        }
        self.wake &= !wanted;
        let outage = Arc::clone(self.redis.outage());
        self.calls.push(Box::pin(async move {
            let reply = around!("advance", wire::advance(&mut conn, &call)).await;
            if reply.is_ok() {
                outage.answered(conn.made_at());
            }
            (asked, takes_room, reply)
        }));
        true
    }

    fn new_call(&self, claims: usize, takes_room: bool) -> Advance {
        let mut suspects = self.config.suspects();
        if takes_room {
            self.slots.iter().for_each(|slot| suspects.has(slot.crashes()));
        } else {
            suspects = suspects.full();
        }
        let bounds = Bounds {
            batch: self.config.batch,
            batch_bytes: self.config.batch_bytes.min(self.allowance.bytes()),
            reply_bytes: self.allowance.bytes(),
            claims,
            markers: MARKERS_MAX,
            forget_after: self.config.forget_after,
            suspects,
        };
        let (keys, name) = (&self.config.keys, &self.config.name);
        let mut call = Advance::beyond(keys, name, &self.session.token, bounds, self.from, self.redis.highest());
        if let Some(log) = self.config.event_log {
            call.log(log);
        }
        call
    }

    fn has_parked(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Parked(_)))
    }

    /// Waits for a marker on behalf of the last free slot; claims begin with the first, so that the
    /// two seldom meet.
    fn wait(&mut self) {
        let idle = !self.wake && self.calls.is_empty() && self.health.is_up() && !self.stopping;
        if !idle || self.waiting.is_some() || self.conn.is_none() || Instant::now() < self.wait_after {
            return;
        }
        let Some(slot) = self.slots.iter().rposition(|slot| matches!(slot, Slot::Free)) else { return };
        // Where no other slot is free, it must be again by the time there is something else to look
        // for.
        let alone = !self.slots[..slot].iter().any(|slot| matches!(slot, Slot::Free));
        let until_wake = self.wake_at.saturating_duration_since(Instant::now());
        let block = if alone { self.config.block.min(until_wake) } else { self.config.block };
        let to = self.config.keys.worker_object(&self.worker(slot));
        let pop = pop(&self.config.keys.objects_with_events(), &to, block);
        // It may be under way for long. Where no other slot is free, it alone can claim the suspect
        // that falls due at its end.
        let takes_room = alone && !self.room_given;
        let mut call = self.new_call(1, takes_room);
        self.room_given |= takes_room;
        call.free(slot);
        self.step(slot, Step::Ask);
        let (redis, config) = (self.redis.clone(), Arc::clone(&self.config));
        self.waiting = Some((slot, takes_room, Box::pin(wait(redis, self.wait_conn.take(), pop, call, config))));
    }

    async fn waited(&mut self, waited: Option<Waited>) -> Result<Option<Ended>, WorkerError> {
        let (out_of_memory, reply) = match waited {
            Some(Waited { conn, out_of_memory, reply }) => {
                self.wait_conn = Some(conn);
                (out_of_memory, reply.ok())
            }
            None => {
                self.ask_for_less();
                (false, None)
            }
        };
        let Some(reply) = reply else {
            // Whatever is the matter, the next call meets it as well.
            self.wait_after = Instant::now() + self.wait_backoff.delay();
            self.give_up_waiting();
            return Ok(None);
        };
        self.wait_backoff = Backoff::new(FAILED_MIN, FAILED_MAX);
        if out_of_memory {
            self.wait_after = Instant::now() + OOM_WAIT;
            self.wake_at = self.wake_at.min(self.wait_after);
        }
        let asked = self.waiting.take().map(|(slot, had_room, _)| {
            self.room_given &= !had_room;
            slot
        });
        let asked = asked.into_iter().collect();
        self.answered(asked, Ok(reply)).await
    }

    /// The pop is over, one way or another: whatever it did, and the call behind it, the next call
    /// finds it.
    fn give_up_waiting(&mut self) {
        if let Some((slot, had_room, _)) = self.waiting.take() {
            self.room_given &= !had_room;
            self.step(slot, Step::Unanswered);
            self.popped = Some(slot);
            self.wake = true;
        }
    }

    fn worker(&self, slot: usize) -> String {
        format!("{}.{slot}", self.config.name)
    }

    async fn answered(&mut self, asked: Vec<usize>, reply: Result<Advanced, ScriptError>) -> Result<Option<Ended>, WorkerError> {
        match reply {
            Ok(Advanced::Ok { next_due, more, from, batches, quarantined }) => {
                for (object, why) in quarantined {
                    tell_put_aside(&object, &why);
                }
                self.call_backoff = Backoff::new(FAILED_MIN, FAILED_MAX);
                self.from = from;
                self.wake |= more;
                if self.allowance.is_reduced() {
                    self.allowance.came(batches.iter().flat_map(|batch| &batch.events).map(|event| event.len()).sum());
                }
                self.named_max = self.names_after(&asked, &batches);
                // While the sink is unavailable, nothing that is due is claimed.
                let next_due = next_due.filter(|_| self.health.is_up());
                let next_due = next_due.map_or(self.config.block, |due| due.min(self.config.block));
                self.wake_at = self.wake_at.min(Instant::now() + next_due.max(Duration::from_millis(1)));
                self.hand_out(asked, batches);
                Ok(None)
            }
            Ok(Advanced::Lapsed) => Ok(Some(Ended::Lapsed)),
            Ok(Advanced::Fenced { lease }) => Ok(Some(Ended::Fenced(lease))),
            Err(error) => {
                self.unanswered(&asked);
                if is_lasting(&error) {
                    return Err(error.into());
                }
                if !matches!(&error, ScriptError::Redis(error) if matches!(error.kind(), ErrorKind::Server(_))) {
                    self.ask_for_less();
                }
                if let Some(conn) = self.conn.take() {
                    let made_at = conn.made_at();
                    give_up(conn);
                    let (redis, config, delay) = (self.redis.clone(), Arc::clone(&self.config), self.call_backoff.delay());
                    self.connecting = Some(Box::pin(async move {
                        failed(&redis, &config, made_at, error).await;
                        sleep(delay).await;
                        redis.reconnect().await
                    }));
                }
                self.wake = true;
                Ok(None)
            }
        }
    }

    /// The link may have been too slow for the reply.
    fn ask_for_less(&mut self) {
        if self.allowance.failed() {
            debug!(bytes = self.allowance.bytes(), "claim: the next replies are smaller");
        }
    }

    /// Whether the call that is made now names all free slots.
    fn names_all(&mut self) -> bool {
        let now = Instant::now();
        let all = now >= self.name_all_at;
        if all {
            self.name_all_at = now + self.config.block;
        }
        all
    }

    /// How many free slots the next call may name, after what this one found for those it named.
    fn names_after(&self, asked: &[usize], batches: &[BatchReply]) -> usize {
        let was_free = |slot: usize| matches!(self.slots.get(slot), Some(Slot::Asked(None)));
        let named = asked.iter().filter(|slot| was_free(**slot)).count();
        let given = batches.iter().filter(|batch| was_free(batch.slot)).count();
        match named {
            0 => self.named_max,
            _ if given == named => (2 * named).max(NAMED_MIN),
            _ => given.max(NAMED_MIN),
        }
    }

    fn unanswered(&mut self, asked: &[usize]) {
        self.name_all_at = Instant::now();
        for &slot in asked {
            self.step(slot, Step::Unanswered);
        }
    }

    /// Commits are taken in, and every slot of the call has what the reply says.
    fn hand_out(&mut self, asked: Vec<usize>, batches: Vec<BatchReply>) {
        for &slot in &asked {
            if let Slot::Asked(Some(told)) = &self.slots[slot] {
                *self.delivered += told.report.count as u64;
            }
        }
        for batch in batches {
            let slot = batch.slot;
            if !matches!(self.slots.get(slot), Some(Slot::Asked(_))) {
                continue;
            }
            debug!(worker = slot, ?batch, "claim");
            self.redis.saw(batch.tag.first + batch.events.len() as u64 - 1);
            self.step(slot, Step::Answer(Some(batch)));
            self.start(slot);
        }
        for slot in asked {
            self.step(slot, Step::Answer(None));
        }
    }

    /// Gives the slot's batch to the sink, unless it must wait because the sink is unavailable.
    fn start(&mut self, slot: usize) {
        let Slot::Delivering(hand) = &self.slots[slot] else { return };
        if let Some(reason) = hand.unfit() {
            tell_put_aside(&escape::name(&hand.raw), &reason.to_string());
            return self.step(slot, Step::Refuse(reason));
        }
        if let Some(then) = self.config.crashed(hand.tag) {
            let object = hand.batch.object().clone();
            self.step(slot, Step::Settle(then));
            if let Slot::Reported(told) = &self.slots[slot] {
                tell(&object, &told.report);
            }
            return;
        }
        if !self.health.admits(slot) {
            return self.step(slot, Step::Park);
        }
        let ledger = Arc::new(InHand::new(Arc::clone(&self.ledger), slot, hand, self.session.again));
        let cx = Context {
            worker: self.worker(slot).into(),
            attempts: hand.tag.attempts,
            crashes: hand.tag.crashes,
            token: Arc::clone(&self.session.token),
            cancelled: self.cancelled.clone(),
            ledger: Some(ledger.clone()),
            post: Some(Arc::clone(&self.posts[slot])),
        };
        let (sink, batch, offered) = (Arc::clone(&self.sink), hand.batch.clone(), hand.offered());
        let post = Arc::clone(&self.posts[slot]);
        self.deliveries.spawn(async move {
            let (object, first) = (batch.object().clone(), batch.first);
            let outcome = post.note(&object, first, deliver(sink, batch, offered, cx)).await;
            (slot, outcome, ledger)
        });
    }

    fn outcome(&mut self, done: Result<(usize, Outcome, Arc<InHand>), tokio::task::JoinError>) {
        // A delivery catches its own panics and is aborted only with the session.
        let Ok((slot, outcome, ledger)) = done else { return };
        let Slot::Delivering(hand) = &mut self.slots[slot] else { return };
        (hand.handled, hand.emitted, hand.finished) = (ledger.handled(), ledger.emitted(), ledger.finished());
        let object = hand.batch.object().clone();
        if let Some(Stop::Unavailable { error }) = &outcome.stop {
            debug!(object = %escape::name(object.as_str()), error, "deliver: the sink is unavailable");
        }
        self.judge_sink(slot, &outcome);
        let config = Arc::clone(&self.config);
        let policy = Policy {
            turn_max: config.turn_max,
            stopping: self.stopping,
            logs: config.event_log.is_some(),
            retry_of: &|payload| config.retry_of(payload),
        };
        self.step(slot, Step::Outcome(outcome, &policy));
        if let Slot::Reported(told) = &self.slots[slot] {
            tell(&object, &told.report);
        }
    }

    /// Takes in whether the sink is available.
    fn judge_sink(&mut self, slot: usize, outcome: &Outcome) {
        let unavailable = match &outcome.stop {
            Some(Stop::Unavailable { error }) => Some(error),
            _ => None,
        };
        match self.health.answered(slot, unavailable.is_none(), self.config.probe_max) {
            Change::None => {}
            Change::WentDown => {
                warn!(error = unavailable, "deliver: the sink is unavailable; nothing more is claimed until it answers");
                self.give_up_waiting();
            }
            Change::CameUp => {
                info!("deliver: the sink is available again");
                self.wake = true;
                for slot in 0..self.slots.len() {
                    if matches!(self.slots[slot], Slot::Parked(_)) {
                        self.step(slot, Step::Resume);
                        self.start(slot);
                    }
                }
            }
        }
    }

    /// Tries the unavailable sink with one slot that kept its batch, or with the next one that gets
    /// one.
    fn probe(&mut self) {
        self.health.begin_probe(self.config.probe_max);
        match self.slots.iter().position(|slot| matches!(slot, Slot::Parked(_))) {
            Some(slot) => {
                self.step(slot, Step::Resume);
                self.start(slot);
            }
            None => self.wake = true,
        }
    }

    /// The sink is unavailable for long, maybe for this process alone: other workers go on with
    /// what it keeps. From then on it claims one batch at a time, to try the sink with, and gives
    /// that back as well.
    fn give_back(&mut self) {
        self.health.gave_back();
        let parked: Vec<usize> = (0..self.slots.len()).filter(|slot| matches!(self.slots[*slot], Slot::Parked(_))).collect();
        if !parked.is_empty() {
            info!(batches = parked.len(), "deliver: the sink is still unavailable; other workers may have what is kept");
        }
        for slot in parked {
            self.step(slot, Step::GiveBack);
        }
    }

    fn noticed(&mut self, notice: Notice) -> Result<Option<Ended>, WorkerError> {
        match notice {
            Notice::Wake => {
                self.wake = true;
                if !self.slots.iter().any(|slot| matches!(slot, Slot::Free)) {
                    self.give_up_waiting();
                }
                Ok(None)
            }
            Notice::Lapsed => Ok(Some(Ended::Lapsed)),
            Notice::Fenced(lease) => Ok(Some(Ended::Fenced(lease))),
            Notice::Failed(error) => Err(error),
        }
    }

    fn step(&mut self, slot: usize, step: Step<'_>) {
        let before = std::mem::take(&mut self.slots[slot]);
        self.slots[slot] = before.next(step);
    }
}

/// Logs what becomes of a batch.
fn tell(object: &ObjectName, report: &Report) {
    let object = escape::name(object.as_str());
    match &report.then {
        Results::Hold { rest, delay: Some(delay), reason } => {
            warn!(%object, id = rest.first, why = %reason, attempts = rest.attempts, ?delay, "deliver: failed, again later");
        }
        Results::Hold { rest, delay: None, reason } => {
            error!(%object, id = rest.first, why = %reason, "deliver: the object is held until an operator releases it or skips the event");
        }
        Results::Reject { id, error, attempts, .. } => warn!(%object, id, error, attempts, "deliver: a dead letter"),
        Results::Complete { id, error, attempts, .. } => warn!(%object, id, error, attempts, "deliver: completed with errors"),
        Results::Done | Results::Yield | Results::Part { .. } => debug!(%object, events = report.count, "deliver"),
    }
}

/// Waits until the time; for ever where there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Waits for the future; for ever where there is none. It stays in its place.
async fn ready<T>(future: Option<&mut BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
