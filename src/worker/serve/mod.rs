//! One session of a worker process, from an attach until the lease is lost or the process stops. A
//! session is a loop of claim, deliver, commit.
//!
//! One task has the slots and makes all decisions. Deliveries, the wait for markers and the lease
//! thread run at the same time, and report to this task. Dropping the session ends every delivery;
//! the batches are still in Redis.
//!
//! - `calls`: the calls of `advance` under way, and their connections
//! - `pacing`: when the next call is due, and which slots it names
//! - `waiting`: the wait for a marker, and the call behind it
//! - `deliveries`: the deliveries under way
//!
//! These modules also serve claims by hand:
//!
//! - `slots`: the states of the slots as the process sees them, and every change of these states
//! - `caller`: the calls of the script `advance`; `allowance`: the most bytes per reply
//! - `wait`: waits for a marker while the process is idle
//! - `deliver`: gives a batch to the sink
//! - `ledger`: the handler progress of a batch; `requests`: the record of exclusive requests
//! - `unknown`: events that this process does not know

pub(in crate::worker) mod allowance;
pub(in crate::worker) mod caller;
mod calls;
pub(in crate::worker) mod deliver;
mod deliveries;
pub(in crate::worker) mod ledger;
mod pacing;
pub(in crate::worker) mod requests;
pub(in crate::worker) mod slots;
pub(in crate::worker) mod unknown;
pub(in crate::worker) mod wait;
mod waiting;

use std::sync::Arc;

use redis::ErrorKind;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use self::calls::{Answer, Calls};
use self::deliveries::{Deliveries, EndedDelivery};
use self::pacing::Pacing;
use self::waiting::Waiting;
use super::config::WorkerConfig;
use super::error::WorkerError;
use super::shutdown::Shutdown;
use crate::escape;
use crate::sink::{Sink, Stop};
use crate::wire::{Advance, Advanced, BatchReply, ScriptError};
use crate::worker::serve::caller::{Caller, Found, OOM_WAIT};
use crate::worker::serve::deliver::Outcome;
use crate::worker::serve::slots::{Policy, Slot, Slots, Step};
use crate::worker::serve::wait::Waited;
use crate::worker::session::connect::{Redis, is_lasting};
use crate::worker::session::keeper::{Keeper, Notice, keeper};
use crate::worker::session::lease::{Held, Lost, Session};
use crate::worker::times::event_time::EventTimes;
use crate::worker::times::pending::until;
use crate::worker::watch::activity::{Activity, TURN_EVERY};
use crate::worker::watch::health::{Change, Health};
use crate::worker::watch::logged;
use crate::worker::watch::reports::ReportWriter;
use crate::worker::watch::status::StatusWriter;

/// The reason why a session ended.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// A graceful stop has finished every batch that could be finished.
    Finished,
    /// The grace of a graceful stop is over.
    GraceOver,
    /// A stop at once was requested.
    AtOnce,
    /// The lease is lost.
    Lost(Lost),
}

pub(crate) struct Serve<'a> {
    redis: &'a Redis,
    config: Arc<WorkerConfig>,
    slots: Slots,
    caller: Caller,
    calls: Calls,
    pacing: Pacing,
    waiting: Waiting,
    deliveries: Deliveries,
    health: Health,
    /// The time until which the lease is held.
    held: Arc<Held>,
    notices: mpsc::Receiver<Notice>,
    /// The handle of the lease thread. The thread ends when the session drops this handle.
    _keeper: Keeper,
    activity: Arc<Activity>,
    times: Option<EventTimes>,
    delivered: &'a mut u64,
    stop_began: &'a mut Option<Instant>,
    stopping: bool,
}

impl<'a> Serve<'a> {
    pub(crate) fn new(
        redis: &'a Redis,
        config: &Arc<WorkerConfig>,
        sink: &Arc<dyn Sink>,
        session: &Session,
        activity: &Arc<Activity>,
        delivered: &'a mut u64,
        stop_began: &'a mut Option<Instant>,
    ) -> Result<Self, WorkerError> {
        // `Deliveries::new` makes the posts that the keeper watches, so it comes first.
        let deliveries = Deliveries::new(redis, config, sink, session, activity);
        activity.figures.sink_is_up();
        let telling = (
            StatusWriter::new(config, activity, &sink.name()),
            ReportWriter::new(config, activity),
        );
        let (keeper, notices) = keeper(
            redis,
            config,
            session,
            activity,
            sink.timeout_max(),
            Some(telling),
        )?;
        Ok(Self {
            redis,
            config: Arc::clone(config),
            slots: Slots::new(config.concurrency),
            caller: Caller::new(redis, config, session),
            calls: Calls::new(redis),
            pacing: Pacing::new(config),
            waiting: Waiting::new(),
            deliveries,
            health: Health::Up,
            held: Arc::clone(&session.held),
            notices,
            _keeper: keeper,
            activity: Arc::clone(activity),
            times: config
                .event_time
                .as_ref()
                .map(|pointer| EventTimes::new(pointer, config.concurrency)),
            delivered,
            stop_began,
            stopping: false,
        })
    }

    /// Works until the session ends. Every turn does all that is possible without waiting, then
    /// waits for a report, a request or a time.
    pub(crate) async fn run(mut self, shutdown: &Shutdown) -> Result<SessionEnd, WorkerError> {
        let mut grace_over = None;
        loop {
            self.activity.turned();
            if shutdown.is_stopping() && !self.stopping {
                self.stopping = true;
                let now = *self.stop_began.get_or_insert_with(Instant::now);
                grace_over = Some(now + self.config.grace);
                // A stopping process drops the pop's connection, so that the pop moves no marker to
                // it any more.
                self.give_up_waiting();
            }
            if self.stopping && self.slots.is_idle() {
                return Ok(SessionEnd::Finished);
            }
            // A delivery that ended when it was polled without a task is committed before the
            // process waits for more. All other deliveries are collected in the select below, so
            // that one call commits many.
            if let Some(ended) = self.deliveries.take_polled() {
                self.delivery_ended(ended);
            }
            self.calls.connect();
            while self.call() {}
            self.wait();
            self.activity.figures.slots(self.slots.numbers());
            let (probe_at, give_back_at) = (
                self.health.probe_at(),
                self.health.give_back_at(self.config.unavailable_max),
            );
            let nudge_at = self.waiting.nudge_at();
            let ended = tokio::select! {
                biased;
                () = shutdown.stopped_at_once() => Some(SessionEnd::AtOnce),
                () = shutdown.stopped(), if !self.stopping => None,
                () = until(grace_over) => Some(SessionEnd::GraceOver),
                Some(notice) = self.notices.recv() => self.noticed(notice)?,
                Some(ended) = self.deliveries.next() => {
                    self.delivery_ended(ended);
                    while let Some(ended) = self.deliveries.try_next() {
                        self.delivery_ended(ended);
                    }
                    None
                }
                answer = self.calls.next() => match answer? {
                    Some(answer) => self.answered(answer)?,
                    None => None,
                },
                waited = self.waiting.next() => self.waited(waited?)?,
                () = sleep_until(self.pacing.due_at()) => {
                    self.pacing.time_has_come();
                    None
                }
                () = until(nudge_at) => {
                    self.nudge();
                    None
                }
                () = until(give_back_at) => {
                    self.give_back();
                    None
                }
                // The parked batch may belong to another process by now.
                () = until(probe_at), if !self.held.may_be_over() => {
                    self.probe();
                    None
                }
                // While Redis is away, nothing else may happen for seconds. A loop that does not
                // turn would look like a blocked one.
                () = sleep(TURN_EVERY) => None,
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// Makes one call that commits the results of slots and, if there may be something to claim,
    /// names free slots. Returns whether a call was made.
    fn call(&mut self) -> bool {
        if !self.calls.can_begin() {
            return false;
        }
        let may_claim = self.slots.has_free() || self.waiting.popped.is_some();
        let claims = self.pacing.is_due() && may_claim && !self.stopping;
        // A call without slots only groups markers. Otherwise the first marker
        // of a group would wait until the process has had a free slot for each chunk of markers.
        let sorts = self.pacing.sorts() && self.calls.is_idle() && !self.stopping;
        if !(claims || sorts || self.slots.has_result()) {
            return false;
        }
        let claims_max = match self.stopping {
            true => 0,
            false if self.health.is_up() => self.slots.without_batch(),
            false => usize::from(self.health.wants_batch() && !self.slots.has_parked()),
        };
        let (mut call, has_room) = self.new_call(claims_max, claims_max > 0);
        let asked = self
            .pacing
            .name_slots(&mut self.slots, &mut call, claims, self.waiting.popped);
        // If the slot of the pop that was given up is busy now, the call names this slot only to
        // look at its list.
        if let Some(slot) = self.waiting.popped.take()
            && !(asked.contains(&slot) && matches!(self.slots.get(slot), Some(Slot::Asked(None))))
        {
            call.look(slot);
        }
        self.calls.begin(call, asked, has_room);
        true
    }

    /// Returns a call, and whether it is allowed to take suspects.
    fn new_call(&mut self, claims: usize, wants_room: bool) -> (Advance, bool) {
        let has_room = self.pacing.suspects.take_if(wants_room);
        let in_hand = has_room.then(|| self.slots.crashes());
        let call = self.caller.new_call(
            claims,
            self.pacing.reply_bytes(),
            self.pacing.claim_first,
            in_hand,
        );
        (call, has_room)
    }

    fn answered(
        &mut self,
        Answer {
            asked,
            had_room,
            reply,
        }: Answer,
    ) -> Result<Option<SessionEnd>, WorkerError> {
        self.pacing.suspects.over(had_room);
        let error = match reply {
            Ok(reply) => return Ok(self.replied(asked, reply)),
            Err(error) => error,
        };
        self.pacing.unanswered();
        for slot in asked {
            self.unanswered(slot);
        }
        if is_lasting(&error) {
            return Err(error.into());
        }
        if !matches!(&error, ScriptError::Redis(error) if matches!(error.kind(), ErrorKind::Server(_)))
        {
            self.pacing.ask_for_less();
        }
        self.calls.failed(&self.config, error);
        Ok(None)
    }

    /// Processes the reply to a call: commits, batches, and the time of the next call.
    fn replied(&mut self, asked: Vec<usize>, reply: Advanced) -> Option<SessionEnd> {
        let Found {
            next_due,
            more,
            unsorted,
            claim_first,
            batches,
        } = match self.caller.read(reply) {
            Ok(found) => found,
            Err(lost) => return Some(SessionEnd::Lost(lost)),
        };
        self.calls.succeeded();
        if self.held.may_be_over() {
            // The process has stood still after Redis had replied. Another process may have these
            // batches by now. So this reply counts as lost: the next call is fenced, or it finds the
            // same state again.
            self.pacing.unanswered();
            asked.into_iter().for_each(|slot| self.unanswered(slot));
            return None;
        }
        self.pacing.claim_first = claim_first;
        if more {
            self.pacing.wake();
        }
        self.pacing.sort(unsorted);
        self.pacing.answered(&self.slots, &asked, &batches);
        // While the sink is unavailable, due objects are not claimed, so the time until they are
        // due does not count.
        let next_due = next_due.filter(|_| self.health.is_up());
        self.pacing.look_in(self.caller.next_look(next_due));
        self.hand_out(asked, batches);
        None
    }

    /// Records the commits, and gives every slot of the call its new batch, if the reply has one.
    fn hand_out(&mut self, asked: Vec<usize>, batches: Vec<BatchReply>) {
        for &slot in &asked {
            if let Some(Slot::Asked(Some(pending))) = self.slots.get(slot) {
                *self.delivered += pending.report.count as u64;
                self.activity
                    .figures
                    .committed(&pending.report, pending.ended.elapsed());
                if let Some(times) = &mut self.times {
                    times.committed(slot, &self.activity.figures);
                }
            }
        }
        let alone = batches.len() == 1;
        for batch in batches {
            let slot = batch.slot;
            if self.is_asked(slot) {
                debug!(worker = slot, ?batch, "claim");
                self.slots.step(slot, Step::Answer(Some(batch)));
                self.start(slot, alone);
            }
        }
        for slot in asked {
            if self.is_asked(slot) {
                self.slots.step(slot, Step::Answer(None));
            }
        }
    }

    /// Gives the slot's batch to the sink, or parks it while the sink is unavailable. `alone`: no
    /// other slot gets a batch at this moment.
    fn start(&mut self, slot: usize, alone: bool) {
        let Some(in_flight) = self.slots.delivering(slot) else {
            return;
        };
        if let Some(reason) = in_flight.unfit() {
            logged::quarantined(&escape::name(&in_flight.raw), &reason.to_string());
            self.slots.step(slot, Step::Refuse(reason));
        } else if let Some(then) = self.config.crashed(in_flight.tag) {
            self.change(slot, Step::Settle(then));
        } else if !self.health.admits(slot) {
            self.slots.step(slot, Step::Park);
        } else {
            self.deliveries.start(slot, in_flight, alone);
        }
    }

    fn delivery_ended(&mut self, ended: Result<EndedDelivery, JoinError>) {
        // A delivery catches its own panics, and is aborted only with the session. So it always has
        // a result.
        let Ok(EndedDelivery {
            slot,
            outcome,
            ledger,
            took,
        }) = ended
        else {
            return;
        };
        self.activity
            .figures
            .delivery_ended(took, outcome.stop.as_ref());
        let Some(in_flight) = self.slots.delivering(slot) else {
            return;
        };
        (in_flight.handled, in_flight.emitted, in_flight.finished) =
            (ledger.handled(), ledger.emitted(), ledger.finished());
        if let Some(times) = &mut self.times {
            times.delivered(slot, in_flight, outcome.count);
        }
        if let Some(Stop::Unavailable { error }) = &outcome.stop {
            debug!(object = %logged::cut(&escape::name(in_flight.batch.object().as_str())), error, "deliver: the sink is unavailable");
        }
        let was_probe = self.health.is_probe(slot);
        self.judge_sink(slot, &outcome);
        let config = Arc::clone(&self.config);
        let retry_of = |payload: &[u8]| config.retry_of(payload);
        let policy = Policy::of(&config, self.stopping, &retry_of);
        self.change(slot, Step::Outcome(outcome, &policy));
        // The fault may be in this object. So the next try is with another one.
        if was_probe && matches!(self.slots.get(slot), Some(Slot::Parked(_))) {
            self.slots.step(slot, Step::GiveBack);
        }
    }

    /// Changes a slot that has a batch, and logs the result of the batch.
    fn change(&mut self, slot: usize, step: Step<'_>) {
        let Some(object) = self
            .slots
            .delivering(slot)
            .map(|in_flight| in_flight.batch.object().clone())
        else {
            return;
        };
        self.slots.step(slot, step);
        if let Some(Slot::Reported(pending)) = self.slots.get(slot) {
            logged::result(&object, &pending.report);
        }
    }

    fn is_asked(&self, slot: usize) -> bool {
        matches!(self.slots.get(slot), Some(Slot::Asked(_)))
    }

    /// Records that a call failed and its effect on the slot is unknown. Another call may have
    /// given the slot a batch meanwhile.
    fn unanswered(&mut self, slot: usize) {
        if self.is_asked(slot) {
            self.slots.step(slot, Step::Unanswered);
        }
    }

    /// Begins a pop for the last free slot. Calls name free slots from the first one on, so they
    /// seldom need the slot of the pop.
    ///
    /// The pop does not wait for the replies to the last commits. So Redis gets it while it works
    /// on them, and wakes up once for both.
    fn wait(&mut self) {
        let calls_are_over = self.calls.is_idle() || self.slots.only_commits();
        let idle = !self.pacing.is_due() && calls_are_over && self.health.is_up() && !self.stopping;
        if !idle || !self.waiting.can_begin() || !self.calls.is_connected() {
            return;
        }
        let Some((slot, alone)) = self.slots.last_free() else {
            return;
        };
        // If no other slot is free, the pop must end before the next call is due, because that call
        // needs this slot.
        let until_due = self
            .pacing
            .due_at()
            .saturating_duration_since(Instant::now());
        let block = if alone {
            self.config.block.min(until_due)
        } else {
            self.config.block
        };
        // The pop may take long, and its call would have the permission to take suspects all the
        // time. So it gets the permission only if no other slot is free. Then no other call could
        // claim a suspect that falls due at the end of the pop.
        let (mut call, has_room) = self.new_call(if alone { 1 } else { 2 }, alone);
        call.free(slot);
        self.slots.step(slot, Step::Ask);
        self.waiting
            .begin(self.redis, &self.config, slot, block, call, has_room);
    }

    /// Makes a call without slots, so that Redis ends the pop whose time is over.
    fn nudge(&mut self) {
        self.waiting.nudged();
        if self.calls.can_begin() {
            let (call, has_room) = self.new_call(1, false);
            self.calls.begin(call, Vec::new(), has_room);
        }
    }

    fn waited(&mut self, waited: Option<Waited>) -> Result<Option<SessionEnd>, WorkerError> {
        let (out_of_memory, reply) = match waited {
            Some(Waited {
                conn,
                out_of_memory,
                reply,
            }) => {
                self.waiting.keep(conn);
                (out_of_memory, reply.ok())
            }
            None => {
                self.pacing.ask_for_less();
                (false, None)
            }
        };
        let Some(reply) = reply else {
            // The next call meets the same error, and reports it.
            self.waiting.failed();
            self.give_up_waiting();
            return Ok(None);
        };
        self.waiting.succeeded();
        if out_of_memory {
            self.pacing.wake_by(self.waiting.pause(OOM_WAIT));
        }
        let pop = self.waiting.take();
        let (asked, had_room) =
            pop.map_or((Vec::new(), false), |pop| (vec![pop.slot], pop.had_room));
        let ended = self.answered(Answer {
            asked,
            had_room,
            reply: Ok(reply),
        })?;
        self.pacing.waited(out_of_memory);
        Ok(ended)
    }

    /// Ends the pop under way, if there is one. The next call names all free slots, so it finds the
    /// effects of the pop and of the call behind it.
    fn give_up_waiting(&mut self) {
        if let Some(pop) = self.waiting.take() {
            self.pacing.suspects.over(pop.had_room);
            self.unanswered(pop.slot);
            self.waiting.popped = Some(pop.slot);
            self.pacing.unanswered();
        }
    }

    /// Records whether the sink is available.
    fn judge_sink(&mut self, slot: usize, outcome: &Outcome) {
        let unavailable = match &outcome.stop {
            Some(Stop::Unavailable { error }) => Some(error),
            Some(Stop::Postponed { .. }) if outcome.count == 0 => return self.health.untried(slot),
            _ => None,
        };
        if let Some(error) = unavailable {
            self.activity.figures.sink_is_down(error);
        }
        match self
            .health
            .answered(slot, unavailable.is_none(), self.config.probe_max)
        {
            Change::None => {}
            Change::WentDown => {
                warn!(
                    error = unavailable,
                    "deliver: the sink is unavailable; nothing more is claimed until it is available again"
                );
                self.give_up_waiting();
            }
            Change::CameUp => {
                self.activity.figures.sink_is_up();
                info!("deliver: the sink is available again");
                self.pacing.wake();
                for slot in self.slots.parked() {
                    self.slots.step(slot, Step::Resume);
                    self.start(slot, false);
                }
            }
        }
    }

    /// Tries the unavailable sink with the batch of a parked slot, or else with the next batch.
    fn probe(&mut self) {
        self.health.begin_probe(self.config.probe_max);
        match self.slots.parked().first() {
            Some(&slot) => {
                self.slots.step(slot, Step::Resume);
                self.start(slot, false);
            }
            None => self.pacing.wake(),
        }
    }

    /// Holds the parked batches for other workers, because the sink is unavailable for a long time,
    /// maybe only for this process. From then on the process claims one batch at a time to try the
    /// sink, and gives that batch back, too.
    fn give_back(&mut self) {
        self.health.gave_back();
        let parked = self.slots.parked();
        if !parked.is_empty() {
            info!(
                batches = parked.len(),
                "deliver: the sink is still unavailable; its batches are held for other workers"
            );
        }
        for slot in parked {
            self.slots.step(slot, Step::GiveBack);
        }
    }

    fn noticed(&mut self, notice: Notice) -> Result<Option<SessionEnd>, WorkerError> {
        match notice {
            Notice::Wake => {
                self.pacing.wake();
                if !self.slots.has_free() {
                    self.give_up_waiting();
                }
                Ok(None)
            }
            Notice::Lost(lost) => Ok(Some(SessionEnd::Lost(lost))),
            Notice::Failed(error) => Err(error),
        }
    }
}
