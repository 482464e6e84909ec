//! The record of one receiver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use seriatim::event::ObjectName;
use tokio::time::Instant;

use super::pace::{Meter, Pace};
use super::refusals::Refusals;
use super::{Away, Cause, POSTPONED, PROBE_EVERY};

/// Longest time for which a due probe is kept for an object that was refused and had no probe. It is
/// longer than the waits of few events ([`POSTPONED`]). Of many events, some come all the time.
const YIELD_MAX: Duration = Duration::from_secs(5);
/// Maximum number of remembered objects that had probes, for each receiver. Also the maximum number
/// of those that wait for one.
const PROBED_MAX: usize = 256;
/// Age of a request under way from which on its receiver counts as slow.
const SLOW: Duration = Duration::from_secs(1);
/// Time for which a receiver counts as slow after a timeout.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// Number of objects that a receiver must refuse in a row before it counts as down.
const REFUSED_MIN: usize = 32;
/// Number of events for a receiver that is down that come back per second.
const BACK_MAX: u32 = 100;
/// Maximum length of a kept error, in characters.
const ERROR_MAX: usize = 300;

#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The open circuit, if the receiver is down.
    pub(super) circuit: Option<Circuit>,
    /// The request to be left alone, also after its time is over.
    pub(super) asked: Option<Asked>,
    /// The rate that grows after the receiver has asked to be left alone.
    pub(super) pace: Option<Pace>,
    pub(super) meter: Meter,
    /// The requests under way, each with the number of its permit and its time, oldest first.
    pub(super) under_way: VecDeque<(u64, Instant)>,
    /// The time of the last timeout.
    pub(super) timed_out: Option<Instant>,
    /// Number of events that were postponed and have not passed since.
    pub(super) postponed: u32,
    /// The time of the last failure.
    pub(super) failed_at: Option<Instant>,
    /// The time of the last answer that shows that the receiver is well.
    pub(super) good_at: Option<Instant>,
    /// The latest time at which a request with such an answer was sent.
    good_sent: Option<Instant>,
    /// Number of objects that were refused for the first time since the last such answer.
    refused: usize,
}

/// The waits of events for a receiver that is down. About [`BACK_MAX`] of them come back per second,
/// however many there are.
#[derive(Debug)]
struct Waits {
    /// The present wait, and the time at which it began to count.
    wait: Duration,
    began: Instant,
    /// Number of events that came since then.
    came: u32,
}

/// An open circuit.
#[derive(Debug)]
pub(super) struct Circuit {
    waits: Waits,
    /// The time from which the next probe may pass.
    pub(super) probe_at: Instant,
    /// The last failure.
    error: String,
    /// The objects that had probes since all known objects had one, oldest first.
    probed: VecDeque<ObjectName>,
    /// The objects that were refused and are not in `probed`, each with the time of its last
    /// refusal, oldest first.
    others: VecDeque<(ObjectName, Instant)>,
    /// The permit of the next probe, which waits or is under way.
    pub(super) probe: Option<u64>,
}

/// A request to be left alone.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) until: Instant,
    /// The answer with the request.
    pub(super) error: String,
}

impl Waits {
    fn begin(now: Instant) -> Self {
        Self {
            wait: *POSTPONED.start(),
            began: now,
            came: 0,
        }
    }

    /// Returns the longest wait of the next event.
    fn next(&mut self, now: Instant) -> Duration {
        let wait =
            |came: u32| (PROBE_EVERY * came / BACK_MAX).clamp(*POSTPONED.start(), *POSTPONED.end());
        // Each waiting event comes once in this time.
        if now.saturating_duration_since(self.began) >= self.wait {
            *self = Self {
                wait: wait(self.came),
                began: now,
                came: 0,
            };
        }
        self.came = self.came.saturating_add(1);
        self.wait = self.wait.max(wait(self.came));
        self.wait
    }
}

impl Circuit {
    /// Returns whether the next probe may be for this object, at this time. If not, remembers the
    /// object.
    pub(super) fn lets_probe(&mut self, object: &ObjectName, at: Instant) -> bool {
        self.forget_others(at);
        let has_probed = self.probed.contains(object);
        let yields = has_probed && !self.others.is_empty();
        let lets = at >= self.probe_at && self.probe.is_none() && !yields;
        if !lets && !has_probed {
            self.others.retain(|(other, _)| other != object);
            if self.others.len() >= PROBED_MAX {
                self.others.pop_front();
            }
            self.others.push_back((object.clone(), at));
        }
        lets
    }

    /// Records that a probe for this object is sent. If no other object waits for its probe, all
    /// objects get their turns anew.
    pub(super) fn probes(&mut self, object: &ObjectName, now: Instant) {
        self.forget_others(now);
        self.others.retain(|(other, _)| other != object);
        if self.others.is_empty() {
            self.probed.clear();
        } else if self.probed.len() >= PROBED_MAX {
            self.probed.pop_front();
        }
        self.probed.retain(|probed| probed != object);
        self.probed.push_back(object.clone());
    }

    /// Forgets the objects that have not come for a long time.
    fn forget_others(&mut self, now: Instant) {
        while self
            .others
            .front()
            .is_some_and(|(_, at)| now >= *at + YIELD_MAX)
        {
            self.others.pop_front();
        }
    }
}

impl Receiver {
    pub(super) fn is_slow(&self, now: Instant) -> bool {
        let has_old = self
            .under_way
            .front()
            .is_some_and(|(_, since)| now.duration_since(*since) >= SLOW);
        has_old
            || self
                .timed_out
                .is_some_and(|at| now.duration_since(at) < SLOW_FOR)
    }

    /// Returns whether nothing is known of the receiver.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        let is_idle = self.under_way.is_empty() && self.circuit.is_none() && self.pace.is_none();
        is_idle && self.failed_at.is_none() && !self.is_slow(now)
    }

    /// Returns the reason if the receiver has asked to be left alone.
    pub(super) fn asked(&mut self, now: Instant) -> Option<Away> {
        let asked = self.asked.as_ref().filter(|asked| asked.until > now)?;
        let left = asked.until - now;
        let why = format!(
            "it asked to be left alone, for {} more s: {}",
            left.as_secs() + 1,
            asked.error
        );
        let after = left
            + self
                .pace
                .as_ref()
                .map_or(Duration::ZERO, |pace| pace.wait_behind(self.postponed));
        self.postponed = self.postponed.saturating_add(1);
        Some(Away {
            is_busy: false,
            why,
            after,
        })
    }

    /// Returns the reason if the receiver is down. `probe`: the permit that may pass when it is due.
    pub(super) fn down(&mut self, probe: Option<u64>, now: Instant, spread: f64) -> Option<Away> {
        let circuit = self.circuit.as_mut()?;
        if probe.is_some() && circuit.probe == probe && now >= circuit.probe_at {
            return None;
        }
        let wait = circuit
            .waits
            .next(now)
            .mul_f64(1.0 + spread / 2.0)
            .min(*POSTPONED.end());
        let after = wait.max(circuit.probe_at.saturating_duration_since(now));
        let why = format!("it is down, and nothing was sent: {}", circuit.error);
        Some(Away {
            is_busy: false,
            why,
            after,
        })
    }

    /// Takes the next turn, if the rate is limited. Returns the wait until the turn, or the reason if
    /// the turn does not come within `patience`.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        patience: Duration,
    ) -> Option<Result<Duration, Away>> {
        let pace = self.pace.as_mut()?;
        if pace.is_over(now) {
            (self.pace, self.asked, self.postponed) = (None, None, 0);
            return None;
        }
        if let Some(wait) = pace.turn(now, patience) {
            return Some(Ok(wait));
        }
        let after = patience + pace.wait_behind(self.postponed).max(PROBE_EVERY);
        self.postponed = self.postponed.saturating_add(1);
        let error = self.asked.as_ref().map_or("", |asked| &asked.error);
        let why =
            format!("it gets its requests slowly, because it asked to be left alone: {error}");
        Some(Err(Away::busy(why, after)))
    }

    /// Records a refusal of this object, and returns its cause.
    pub(super) fn refused(
        &mut self,
        refusals: &mut Refusals,
        origin: &Arc<str>,
        object: &ObjectName,
        now: Instant,
    ) -> Cause {
        let Some(refusal) = refusals.get(origin, object) else {
            refusals.add(origin, object, now);
            self.refused += 1;
            let is_all = self.refused >= REFUSED_MIN && self.refused > self.under_way.len();
            return if is_all {
                Cause::Receiver
            } else {
                Cause::Unknown
            };
        };
        // A request that was sent after the refusal shows that the receiver was well after it.
        refusal.is_own |= self.good_sent.is_some_and(|sent| sent > refusal.at);
        match refusal.is_own {
            true => Cause::Event,
            false if self.good_at.is_some_and(|at| at > refusal.at) => Cause::Unknown,
            false => Cause::Receiver,
        }
    }

    /// Opens the circuit, or keeps it open. `wait`: the time that the receiver asks for.
    pub(super) fn open(&mut self, error: &str, wait: Option<Duration>, now: Instant) {
        let probe_at = now + wait.unwrap_or_default().max(PROBE_EVERY);
        let error = shortened(error);
        if wait.is_some() {
            let begin = || Pace::begin(probe_at, self.meter.rate(now));
            self.pace = Some(
                self.pace
                    .as_ref()
                    .map_or_else(begin, |pace| pace.again(probe_at)),
            );
        }
        match &mut self.circuit {
            Some(circuit) => {
                circuit.probe_at = circuit.probe_at.max(probe_at);
                circuit.error = error;
            }
            None => {
                let (waits, probed, others) = (Waits::begin(now), VecDeque::new(), VecDeque::new());
                self.circuit = Some(Circuit {
                    waits,
                    probe_at,
                    error,
                    probed,
                    others,
                    probe: None,
                });
            }
        }
    }

    /// Records an answer that shows that the receiver is well. `sent`: the time of its request.
    pub(super) fn is_well(&mut self, sent: Instant, now: Instant) {
        self.circuit = None;
        self.refused = 0;
        self.good_at = Some(now);
        self.good_sent = self.good_sent.max(Some(sent));
    }
}

/// Returns the part of an error that is kept.
pub(super) fn shortened(error: &str) -> String {
    error.chars().take(ERROR_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that events of a receiver that is down come back about 100 per second, and at once if
    /// there are few of them.
    #[test]
    fn waits_grow_with_the_number_of_events() {
        let began = Instant::now();
        for (events, longest) in [(20, 1), (1000, 10), (100_000, 60)] {
            let mut waits = Waits::begin(began);
            let first = (0..events).map(|_| waits.next(began)).last();
            let then = waits.next(began + Duration::from_secs(longest));
            assert_eq!(
                (first, then),
                (
                    Some(Duration::from_secs(longest)),
                    Duration::from_secs(longest)
                )
            );
        }
        let mut waits = Waits::begin(began);
        (0..1000).for_each(|_| _ = waits.next(began));
        assert_eq!(
            waits.next(began + Duration::from_secs(10)),
            Duration::from_secs(10)
        );
        assert_eq!(
            waits.next(began + Duration::from_secs(30)),
            Duration::from_secs(1),
            "most have gone"
        );
    }
}
