//! The circuits: a record of the receivers that are down or slow.
//!
//! A receiver that is down has an open circuit. While the circuit is open, one delivery per second
//! may pass to this receiver, a *probe*. If possible, the next probe is for another object, because
//! the fault may be in one event.
//!
//! A receiver that stalls would occupy all slots. So a receiver is slow if it has an old request
//! under way, or had a timeout in the last minute. A slow receiver may have at most a quarter of
//! the slots. All probes together also have at most a quarter of the slots. Probes of slow
//! receivers have at most half of this quarter.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::ObjectName;

/// Shortest time between two probes of a receiver.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for which a receiver that is down can ask.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Longest time for which a due probe is kept for an object that has not been probed yet.
const YIELD_MAX: Duration = Duration::from_secs(5);
/// Maximum number of remembered objects that had probes, for each receiver.
const PROBED_MAX: usize = 256;
/// Maximum number of remembered receivers. If there are more, the receiver whose last failure is
/// oldest is forgotten. Its next delivery shows again whether it is down.
const RECEIVERS_MAX: usize = 10_000;
/// Age of a request under way from which on its receiver counts as slow.
const SLOW: Duration = Duration::from_secs(1);
/// Time for which a receiver counts as slow after a timeout.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// Shortest and longest time for which an event for a slow receiver is postponed.
const POSTPONED: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// Maximum length of a kept error, in characters.
const ERROR_MAX: usize = 300;

/// The receivers. A receiver is identified by scheme, host and port.
#[derive(Debug)]
pub(super) struct Circuits {
    receivers: Mutex<Receivers>,
    /// Maximum number of requests under way to a slow receiver. Also the maximum number of probes
    /// under way.
    slow_max: usize,
}

#[derive(Debug, Default)]
struct Receivers {
    /// The receivers that have a request under way, an open circuit, or a recent timeout.
    by_origin: HashMap<String, Receiver>,
    /// Number of probes under way, and the number of those to receivers that were slow.
    probes: usize,
    stalled_probes: usize,
    /// Number that the next permit gets.
    next: u64,
}

#[derive(Debug, Default)]
struct Receiver {
    /// The open circuit, if the receiver is down.
    circuit: Option<Circuit>,
    /// The permits under way, each with its time, oldest first.
    under_way: VecDeque<(u64, Instant)>,
    /// The time of the last timeout.
    timed_out: Option<Instant>,
    /// Number of events that were postponed and have not passed since.
    postponed: u32,
    /// The time of the last failure.
    failed_at: Option<Instant>,
}

#[derive(Debug)]
struct Circuit {
    /// The time from which the next probe may pass.
    probe_at: Instant,
    /// The last failure.
    error: String,
    /// The objects of the last probes, oldest first.
    probed: VecDeque<ObjectName>,
    /// Whether, since the last probe, an object that is not in `probed` was refused.
    has_others: bool,
    /// The permit of the probe under way.
    probe: Option<u64>,
}

/// The permit for a delivery. When it is dropped, the delivery has ended.
pub(super) struct Permit<'a> {
    circuits: &'a Circuits,
    origin: String,
    number: u64,
    is_probe: bool,
    /// Whether the receiver was slow when this delivery passed.
    is_stalled: bool,
}

/// The reason why a delivery may not pass to its receiver.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Away {
    /// The receiver is down. The text is for the error.
    Down(String),
    /// The receiver is slow. The event is postponed for this time.
    Slow(String, Duration),
}

impl Permit<'_> {
    /// Returns whether this permit is for a probe: the only request to a receiver that is down.
    pub(super) fn is_probe(&self) -> bool {
        self.is_probe
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut all = self.circuits.receivers();
        if self.is_probe {
            all.probes = all.probes.saturating_sub(1);
            all.stalled_probes = all.stalled_probes.saturating_sub(usize::from(self.is_stalled));
        }
        let Some(receiver) = all.by_origin.get_mut(&self.origin) else { return };
        receiver.under_way.retain(|(number, _)| *number != self.number);
        if let Some(circuit) = receiver.circuit.as_mut().filter(|circuit| circuit.probe == Some(self.number)) {
            circuit.probe = None;
        }
        if receiver.is_forgotten(Instant::now()) {
            all.by_origin.remove(&self.origin);
        }
    }
}

impl Receiver {
    fn is_slow(&self, now: Instant) -> bool {
        let has_old = self.under_way.front().is_some_and(|(_, since)| now.duration_since(*since) >= SLOW);
        has_old || self.timed_out.is_some_and(|at| now.duration_since(at) < SLOW_FOR)
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.under_way.is_empty() && self.circuit.is_none() && !self.is_slow(now)
    }
}

impl Circuits {
    /// `slots` is the number of deliveries that the worker makes at the same time.
    pub(super) fn new(slots: usize) -> Self {
        Self { receivers: Mutex::default(), slow_max: (slots / 4).max(1) }
    }

    /// Returns the permit for a delivery of this object to this receiver. Returns the reason
    /// instead if the receiver is down or slow. The caller records the result of the delivery with
    /// [`Self::failed`], [`Self::timed_out`] or [`Self::answered`].
    pub(super) fn pass(&self, origin: &str, object: &ObjectName, now: Instant) -> Result<Permit<'_>, Away> {
        let mut all = self.receivers();
        let (probes, stalled_probes, number) = (all.probes, all.stalled_probes, all.next);
        let receiver = all.by_origin.entry(origin.to_owned()).or_default();
        let (mut is_probe, is_stalled) = (false, receiver.is_slow(now));
        if let Some(circuit) = &mut receiver.circuit {
            let has_probed = circuit.probed.contains(object);
            let has_room = probes < self.slow_max && (!is_stalled || stalled_probes < self.slow_max.div_ceil(2));
            let is_time = now >= circuit.probe_at && circuit.probe.is_none() && has_room;
            let yields = has_probed && circuit.has_others && now < circuit.probe_at + YIELD_MAX;
            if !is_time || yields {
                circuit.has_others |= !has_probed;
                return Err(Away::Down(format!("it is down, and nothing was sent: {}", circuit.error)));
            }
            circuit.probe_at = now + PROBE_EVERY;
            circuit.has_others = false;
            circuit.probe = Some(number);
            if circuit.probed.len() >= PROBED_MAX {
                circuit.probed.pop_front();
            }
            circuit.probed.retain(|probed| probed != object);
            circuit.probed.push_back(object.clone());
            is_probe = true;
        } else if receiver.under_way.len() >= self.slow_max && is_stalled {
            let under_way = receiver.under_way.len();
            // The more events are postponed, the longer each of them waits. So the number of events
            // that come again per second is about the number that may be under way at the same
            // time.
            let turns = receiver.postponed / u32::try_from(self.slow_max).unwrap_or(u32::MAX);
            receiver.postponed = receiver.postponed.saturating_add(1);
            let after = (*POSTPONED.start() * turns.saturating_add(1).min(60)).min(*POSTPONED.end());
            return Err(Away::Slow(format!("it is slow, and {under_way} requests are under way"), after));
        }
        receiver.postponed = receiver.postponed.saturating_sub(1);
        receiver.under_way.push_back((number, now));
        all.next += 1;
        all.probes += usize::from(is_probe);
        all.stalled_probes += usize::from(is_probe && is_stalled);
        Ok(Permit { circuits: self, origin: origin.to_owned(), number, is_probe, is_stalled })
    }

    /// Records that the receiver is down.
    pub(super) fn failed(&self, permit: &Permit<'_>, error: &str, retry_after: Option<Duration>, now: Instant) {
        let mut all = self.receivers();
        all.make_room(&permit.origin);
        let probe_at = now + retry_after.unwrap_or_default().clamp(PROBE_EVERY, AWAY_MAX);
        let receiver = all.by_origin.entry(permit.origin.clone()).or_default();
        receiver.failed_at = Some(now);
        let error = error.chars().take(ERROR_MAX).collect();
        match &mut receiver.circuit {
            Some(circuit) => {
                circuit.probe_at = circuit.probe_at.max(probe_at);
                circuit.error = error;
            }
            None => {
                receiver.circuit = Some(Circuit { probe_at, error, probed: VecDeque::new(), has_others: false, probe: None });
            }
        }
    }

    /// Records that a request has timed out. The receiver then counts as down, and for a while as
    /// slow.
    pub(super) fn timed_out(&self, permit: &Permit<'_>, error: &str, now: Instant) {
        self.failed(permit, error, None, now);
        if let Some(receiver) = self.receivers().by_origin.get_mut(&permit.origin) {
            receiver.timed_out = Some(now);
        }
    }

    /// Records that the receiver is not down.
    pub(super) fn answered(&self, permit: &Permit<'_>) {
        if let Some(receiver) = self.receivers().by_origin.get_mut(&permit.origin) {
            receiver.circuit = None;
        }
    }

    fn receivers(&self) -> MutexGuard<'_, Receivers> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Receivers {
    /// If there are too many receivers, forgets one that has no request under way.
    fn make_room(&mut self, origin: &str) {
        let is_new_failure = self.by_origin.get(origin).is_none_or(|receiver| receiver.failed_at.is_none());
        if self.by_origin.len() <= RECEIVERS_MAX || !is_new_failure {
            return;
        }
        let idle = self.by_origin.iter().filter(|(_, receiver)| receiver.under_way.is_empty());
        let oldest = idle.min_by_key(|(_, receiver)| receiver.failed_at).map(|(origin, _)| origin.clone());
        if let Some(oldest) = oldest {
            self.by_origin.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 64;

    fn name(object: &str) -> ObjectName {
        ObjectName::new(object).expect("a name")
    }

    /// Lets a delivery pass, and then records that its receiver is down.
    fn fail(circuits: &Circuits, origin: &str, object: &ObjectName, now: Instant) -> bool {
        match circuits.pass(origin, object, now) {
            Ok(permit) => {
                circuits.failed(&permit, "refused", None, now);
                true
            }
            Err(_) => false,
        }
    }

    #[test]
    fn one_probe_passes_per_second_and_a_success_closes() {
        let (circuits, began, a) = (Circuits::new(SLOTS), Instant::now(), name("a"));
        let at = |ms: u64| began + Duration::from_millis(ms);
        assert!(fail(&circuits, "x", &a, at(0)));
        let passed: Vec<u64> = (0..5000).step_by(10).filter(|ms| fail(&circuits, "x", &a, at(*ms))).collect();
        assert_eq!(passed, [1000, 2000, 3000, 4000]);
        let refused = circuits.pass("x", &a, at(4999)).err();
        assert_eq!(refused, Some(Away::Down("it is down, and nothing was sent: refused".to_owned())));
        assert!(circuits.pass("y", &a, at(4999)).is_ok());
        let probe = circuits.pass("x", &a, at(5000)).expect("a probe");
        circuits.failed(&probe, "503", Some(Duration::from_secs(3600)), at(5000));
        drop(probe);
        assert!(circuits.pass("x", &a, at(64_999)).is_err());
        let probe = circuits.pass("x", &a, at(65_000)).expect("a probe");
        circuits.answered(&probe);
        assert!((0..10).all(|_| circuits.pass("x", &a, at(65_000)).is_ok()));
    }

    /// Tests that all objects get their turn for a probe, even if they always come in the same
    /// order.
    #[test]
    fn probes_rotate_over_objects() {
        let (circuits, began) = (Circuits::new(SLOTS), Instant::now());
        fail(&circuits, "x", &name("first"), began);
        let objects: Vec<_> = (0..20).map(|n| name(&n.to_string())).collect();
        let mut probes = vec![0; 20];
        for second in 1..=60 {
            let now = began + Duration::from_secs(second);
            for (at, object) in objects.iter().enumerate() {
                probes[at] += u32::from(fail(&circuits, "x", object, now));
            }
        }
        assert!(probes.iter().all(|count| *count >= 1), "{probes:?}");
        assert!(probes.iter().sum::<u32>() >= 30, "{probes:?}");
    }

    /// Tests that an object that has had a probe gets another one if no other object comes, even
    /// though others were refused earlier.
    #[test]
    fn a_probe_is_not_kept_for_ever() {
        let (circuits, began, a, b) = (Circuits::new(SLOTS), Instant::now(), name("a"), name("b"));
        let at = |second: u64| began + Duration::from_secs(second);
        fail(&circuits, "x", &a, at(0));
        assert!(circuits.pass("x", &a, at(1)).is_ok());
        assert!(circuits.pass("x", &b, at(1)).is_err());
        assert!(circuits.pass("x", &a, at(2)).is_err());
        assert!(circuits.pass("x", &a, at(7)).is_ok());
    }

    /// Tests that a receiver that stalls has one probe at a time, and that a dropped probe makes
    /// room for the next one. A permit that was given before the circuit opened does not make room.
    #[test]
    fn one_probe_is_under_way_at_a_time() {
        let (circuits, began, a, b) = (Circuits::new(SLOTS), Instant::now(), name("a"), name("b"));
        let at = |second: u64| began + Duration::from_secs(second);
        let old = circuits.pass("x", &b, at(0)).expect("a permit");
        let first = circuits.pass("x", &a, at(0)).expect("a permit");
        circuits.timed_out(&first, "timeout", at(0));
        drop(first);
        let probe = circuits.pass("x", &a, at(1));
        drop(old);
        assert!(probe.is_ok() && circuits.pass("x", &b, at(20)).is_err());
        drop(probe);
        assert!(circuits.pass("x", &b, at(20)).is_ok());
    }

    /// Tests that probes of many receivers together occupy at most a quarter of the slots.
    #[test]
    fn probes_together_occupy_a_quarter_of_the_slots() {
        let (circuits, began, a) = (Circuits::new(SLOTS), Instant::now(), name("a"));
        let origins: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        for origin in &origins {
            fail(&circuits, origin, &a, began);
        }
        let later = began + Duration::from_secs(2);
        let probes: Vec<_> = origins.iter().filter_map(|origin| circuits.pass(origin, &a, later).ok()).collect();
        assert_eq!(probes.len(), SLOTS / 4);
        drop(probes);
        assert!(circuits.pass("99", &a, later).is_ok());
    }

    /// Tests that a fast receiver may have all slots. A slow one may have a quarter of them, even
    /// after a quick answer in between.
    #[test]
    fn a_slow_receiver_has_a_quarter_of_the_slots() {
        let (circuits, began, a) = (Circuits::new(SLOTS), Instant::now(), name("a"));
        let at = |ms: u64| began + Duration::from_millis(ms);
        let fast: Vec<_> = (0..SLOTS).filter_map(|_| circuits.pass("x", &a, at(0)).ok()).collect();
        assert_eq!(fast.len(), SLOTS);
        assert!(circuits.pass("x", &a, at(999)).is_ok());
        assert!(circuits.pass("x", &a, at(1000)).is_err() && circuits.pass("y", &a, at(1000)).is_ok());
        circuits.timed_out(&fast[0], "timeout", at(1000));
        drop(fast);
        let probe = circuits.pass("x", &a, at(2000)).expect("a probe");
        circuits.answered(&probe);
        drop(probe);
        let again: Vec<_> = (0..SLOTS).filter_map(|_| circuits.pass("x", &a, at(2100)).ok()).collect();
        assert_eq!(again.len(), SLOTS / 4);
        drop(again);
        assert_eq!((0..SLOTS).filter_map(|_| circuits.pass("x", &a, at(62_000)).ok()).count(), SLOTS);
    }

    #[test]
    fn receivers_are_bounded() {
        let (circuits, began, a) = (Circuits::new(SLOTS), Instant::now(), name("a"));
        for n in 0..RECEIVERS_MAX as u64 + 10 {
            fail(&circuits, &n.to_string(), &a, began + Duration::from_millis(n));
        }
        assert!(circuits.receivers().by_origin.len() <= RECEIVERS_MAX + 1);
        assert!(circuits.pass("0", &a, began).is_ok());
        assert!(circuits.pass("10009", &a, began).is_err());
        // A receiver that is neither down nor slow, and has no request under way, has no entry.
        drop(circuits.pass("fresh", &a, began));
        assert!(!circuits.receivers().by_origin.contains_key("fresh"));
    }
}
