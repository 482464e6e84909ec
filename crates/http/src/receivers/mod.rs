//! The record of what is known of each receiver. It decides whether a request may be sent to the
//! receiver now, and whether a failure concerns the event or the receiver.
//!
//! - A receiver is *down* if it has an open circuit. While the circuit is open, one delivery per
//!   second may pass, a *probe*. The fault may be in one event. So the objects take turns: a due
//!   probe waits up to 5 s for an object that was refused and had no probe yet.
//! - A refusal such as 404 or 503 may concern one object only. So it opens the circuit only if the
//!   receiver refuses many objects in a row, or an object again without taking another event
//!   meanwhile (`refusals`).
//! - A receiver may *ask* to be left alone for a time. Nothing passes during this time. After it,
//!   the rate grows slowly (`pace`).
//! - A receiver that stalls would occupy all slots. So a receiver is *slow* if it has an old request
//!   under way, or had a timeout in the last minute. A slow receiver may have at most a quarter of
//!   the slots. All probes together also have at most a quarter of the slots. Probes of slow
//!   receivers have at most half of this quarter.

mod pace;
mod receiver;
mod refusals;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seriatim::event::ObjectName;
use tokio::time::Instant;

use pace::Pace;
use receiver::{Asked, Receiver};
use refusals::Refusals;

/// Shortest time between two probes of a receiver.
pub(super) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for which a receiver that is down can ask.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Longest time for which a receiver that throttles is left alone. Then one request shows whether
/// it still throttles.
const ASKED_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of remembered receivers. If there are more, the receiver whose last failure is
/// oldest is forgotten. Its next delivery shows again whether it is down.
const RECEIVERS_MAX: usize = 10_000;
/// Shortest and longest time for which an event that does not pass is postponed.
const POSTPONED: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// The part by which the waits of two events that do not pass differ: the golden ratio, so that the
/// waits of many events are spread evenly.
const SPREAD: f64 = 0.618_033_988_749_895;

/// The receivers. A receiver is identified by scheme, host and port.
#[derive(Debug)]
pub(super) struct Receivers {
    all: Mutex<All>,
    /// Maximum number of requests under way to a slow receiver. Also the maximum number of probes
    /// under way.
    slow_max: usize,
}

#[derive(Debug, Default)]
struct All {
    /// The receivers of which something is known.
    by_origin: HashMap<Arc<str>, Receiver>,
    refusals: Refusals,
    /// Number of probes under way, and the number of those to receivers that were slow.
    probes: usize,
    stalled_probes: usize,
    /// Number that the next permit gets.
    next: u64,
}

/// The permit for a delivery. When it is dropped, the delivery has ended.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    receivers: &'a Receivers,
    origin: Arc<str>,
    object: ObjectName,
    number: u64,
    is_probe: bool,
    /// Whether the receiver was slow when this delivery passed.
    is_stalled: bool,
    /// The time of [`Permit::begin`].
    began: Instant,
    /// The wait before [`Permit::begin`].
    pub(super) wait: Duration,
}

/// The reason why a delivery may not pass to its receiver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// Whether only the number of requests is the reason: the receiver itself is well.
    pub(super) is_busy: bool,
    pub(super) why: String,
    /// The time after which the event may come again.
    pub(super) after: Duration,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// An answer that may concern one object or the whole receiver, such as 404 or 503.
    Refused,
    /// No connection is possible.
    Unreachable,
    /// The connection ended before the answer.
    Broken,
    /// There was no answer in time.
    TimedOut,
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The event or its object: the receiver takes other events.
    Event,
    /// The event or the receiver. The next answers tell which.
    Unknown,
    /// The receiver. Its circuit is open.
    Receiver,
}

impl Permit<'_> {
    /// Returns whether this permit is for a probe: the only request to a receiver that is down.
    pub(super) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Begins the request, after [`Self::wait`]. Returns the reason instead if it may not be sent
    /// any more.
    pub(super) fn begin(&mut self, now: Instant) -> Result<(), Away> {
        let mut all = self.receivers.all();
        let spread = all.spread();
        let Some(receiver) = all.by_origin.get_mut(&self.origin) else {
            return Ok(());
        };
        if let Some(away) = receiver
            .asked(now)
            .or_else(|| receiver.down(self.is_probe.then_some(self.number), now, spread))
        {
            return Err(away);
        }
        if let Some(circuit) = receiver.circuit.as_mut().filter(|_| self.is_probe) {
            circuit.probe_at = now + PROBE_EVERY;
            circuit.probes(&self.object, now);
        }
        receiver.postponed = receiver.postponed.saturating_sub(1);
        receiver.meter.count(now);
        receiver.under_way.push_back((self.number, now));
        self.began = now;
        Ok(())
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut all = self.receivers.all();
        if self.is_probe {
            all.probes = all.probes.saturating_sub(1);
            all.stalled_probes = all
                .stalled_probes
                .saturating_sub(usize::from(self.is_stalled));
        }
        let Some(receiver) = all.by_origin.get_mut(&self.origin) else {
            return;
        };
        // The delivery is usually one of the oldest.
        let under_way = &mut receiver.under_way;
        if let Some(at) = under_way
            .iter()
            .position(|(number, _)| *number == self.number)
        {
            under_way.remove(at);
        }
        if let Some(circuit) = receiver
            .circuit
            .as_mut()
            .filter(|circuit| circuit.probe == Some(self.number))
        {
            circuit.probe = None;
        }
        if receiver.is_forgotten(Instant::now()) {
            all.by_origin.remove(&self.origin);
        }
    }
}

impl Receivers {
    /// `slots`: the number of deliveries that the worker makes at the same time.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            all: Mutex::default(),
            slow_max: (slots / 4).max(1),
        }
    }

    /// Returns the record for a sink with one receiver, which may have all slots.
    pub(super) fn one() -> Self {
        Self {
            all: Mutex::default(),
            slow_max: usize::MAX,
        }
    }

    /// Returns the permit for a delivery of this object to this receiver, if its request may begin
    /// within `patience`. Returns the reason instead if the receiver is down or slow, or has asked
    /// to be left alone. The caller waits for [`Permit::wait`], calls [`Permit::begin`], and records
    /// the result of the request with [`Self::failed`], [`Self::throttled`] or [`Self::answered`].
    pub(super) fn pass(
        &self,
        origin: &Arc<str>,
        object: &ObjectName,
        now: Instant,
        patience: Duration,
    ) -> Result<Permit<'_>, Away> {
        let mut all = self.all();
        let spread = all.spread();
        let (probes, stalled_probes, number) = (all.probes, all.stalled_probes, all.next);
        let receiver = match all.by_origin.get_mut(origin) {
            Some(receiver) => receiver,
            None => all.by_origin.entry(origin.clone()).or_default(),
        };
        let (mut is_probe, is_stalled, mut wait) = (false, receiver.is_slow(now), Duration::ZERO);
        if let Some(away) = receiver.asked(now) {
            return Err(away);
        }
        if let Some(circuit) = &mut receiver.circuit {
            let has_room = probes < self.slow_max
                && (!is_stalled || stalled_probes < self.slow_max.div_ceil(2));
            if !has_room || !circuit.lets_probe(object, now + patience.min(PROBE_EVERY)) {
                return receiver
                    .down(None, now, spread)
                    .map_or_else(|| Err(Away::busy(String::new(), PROBE_EVERY)), Err);
            }
            wait = circuit.probe_at.saturating_duration_since(now);
            circuit.probe = Some(number);
            is_probe = true;
        } else if receiver.under_way.len() >= self.slow_max && is_stalled {
            let under_way = receiver.under_way.len();
            // The more events are postponed, the longer each of them waits. So the number of events
            // that come again per second is about the number that may be under way at the same
            // time.
            let turns = receiver.postponed / u32::try_from(self.slow_max).unwrap_or(u32::MAX);
            receiver.postponed = receiver.postponed.saturating_add(1);
            let after =
                (*POSTPONED.start() * turns.saturating_add(1).min(60)).min(*POSTPONED.end());
            return Err(Away::busy(
                format!("it is slow, and {under_way} requests are under way"),
                after,
            ));
        } else if let Some(turn) = receiver.turn(now, patience) {
            wait = turn?;
        }
        all.next += 1;
        all.probes += usize::from(is_probe);
        all.stalled_probes += usize::from(is_probe && is_stalled);
        let (origin, object) = (origin.clone(), object.clone());
        Ok(Permit {
            receivers: self,
            origin,
            object,
            number,
            is_probe,
            is_stalled,
            began: now,
            wait,
        })
    }

    /// Records a failure, and returns its cause. If the cause is the receiver, it is down now.
    pub(super) fn failed(
        &self,
        permit: &Permit<'_>,
        failure: Failure,
        error: &str,
        retry_after: Option<Duration>,
        now: Instant,
    ) -> Cause {
        let mut all = self.all();
        all.make_room(&permit.origin);
        let All {
            by_origin,
            refusals,
            ..
        } = &mut *all;
        let receiver = by_origin.entry(permit.origin.clone()).or_default();
        receiver.failed_at = Some(now);
        if failure == Failure::TimedOut {
            receiver.timed_out = Some(now);
        }
        let cause = match failure {
            _ if receiver.circuit.is_some() => Cause::Receiver,
            Failure::Unreachable => Cause::Receiver,
            // The receiver has answered other requests while this one was under way.
            Failure::Broken | Failure::TimedOut
                if receiver.good_at.is_some_and(|at| at > permit.began) =>
            {
                Cause::Event
            }
            Failure::Broken | Failure::TimedOut => Cause::Receiver,
            Failure::Refused => receiver.refused(refusals, &permit.origin, &permit.object, now),
        };
        if cause == Cause::Receiver {
            receiver.open(error, retry_after.map(|wait| wait.min(AWAY_MAX)), now);
        }
        cause
    }

    /// Records that the receiver has asked to be left alone for this time. Returns the time after
    /// which the event may come again.
    pub(super) fn throttled(
        &self,
        permit: &Permit<'_>,
        wait: Duration,
        error: &str,
        now: Instant,
    ) -> Duration {
        let mut all = self.all();
        all.make_room(&permit.origin);
        let receiver = all.by_origin.entry(permit.origin.clone()).or_default();
        receiver.failed_at = Some(now);
        receiver.circuit = None;
        let until = now + wait.clamp(PROBE_EVERY, ASKED_MAX);
        match &mut receiver.asked {
            Some(asked) if asked.until > now => {
                asked.until = asked.until.max(until);
                receiver.pace = receiver.pace.as_ref().map(|pace| pace.again(asked.until));
            }
            _ => {
                receiver.asked = Some(Asked {
                    until,
                    error: receiver::shortened(error),
                });
                receiver.pace = Some(Pace::begin(until, receiver.meter.rate(now)));
            }
        }
        receiver.asked(now).map_or(PROBE_EVERY, |away| away.after)
    }

    /// Records that the receiver has taken the event, or refused it with an answer that concerns
    /// only this event.
    pub(super) fn answered(&self, permit: &Permit<'_>, now: Instant) {
        let mut all = self.all();
        let All {
            by_origin,
            refusals,
            ..
        } = &mut *all;
        refusals.remove(&permit.origin, &permit.object);
        if let Some(receiver) = by_origin.get_mut(&permit.origin) {
            receiver.is_well(permit.began, now);
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Away {
    fn busy(why: String, after: Duration) -> Self {
        Self {
            is_busy: true,
            why,
            after,
        }
    }
}

impl All {
    /// Returns a number from 0 to 1, so that waits of many events are spread evenly.
    fn spread(&mut self) -> f64 {
        self.next += 1;
        (self.next as f64 * SPREAD).fract()
    }

    /// If there are too many receivers, forgets one that has no request under way.
    fn make_room(&mut self, origin: &str) {
        let is_new_failure = self
            .by_origin
            .get(origin)
            .is_none_or(|receiver| receiver.failed_at.is_none());
        if self.by_origin.len() <= RECEIVERS_MAX || !is_new_failure {
            return;
        }
        let idle = self
            .by_origin
            .iter()
            .filter(|(_, receiver)| receiver.under_way.is_empty());
        let oldest = idle
            .min_by_key(|(_, receiver)| receiver.failed_at)
            .map(|(origin, _)| origin.clone());
        if let Some(oldest) = oldest {
            self.by_origin.remove(&oldest);
        }
    }
}
