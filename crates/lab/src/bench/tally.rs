//! Checks the delivered events. Every event must come exactly once, and the events of an object
//! must come in the order of their emits. Otherwise the bench ends with an error and shows no
//! figures.
//!
//! The check costs a few tens of nanoseconds per event. All systems have the same cost.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use seriatim_console::exit::{Exit, Failure};
use tokio_util::sync::CancellationToken;

use super::workload::{Chain, Workload};

/// Longest time without an arriving event. After this time the drain fails.
const STALL: Duration = Duration::from_secs(60);

/// Counts and checks one drain.
pub(super) struct Tally {
    load: Arc<Workload>,
    chain: Arc<Chain>,
    seen: Vec<AtomicU8>,
    /// Arrival time of each event, in nanoseconds since `began`; empty if not requested.
    arrived: Vec<AtomicU64>,
    began: Instant,
    delivered: AtomicUsize,
    wanted: usize,
    wrong: Mutex<Option<String>>,
    /// The token is cancelled when all events have arrived, or at the first error.
    over: CancellationToken,
}

impl Tally {
    /// Returns a tally that expects the first `wanted` events of `load`. `with_times`: whether it
    /// records arrival times.
    pub(super) fn new(
        load: &Arc<Workload>,
        chain: &Arc<Chain>,
        wanted: usize,
        with_times: bool,
    ) -> Arc<Self> {
        let times = if with_times { wanted } else { 0 };
        Arc::new(Self {
            load: Arc::clone(load),
            chain: Arc::clone(chain),
            seen: std::iter::repeat_with(AtomicU8::default)
                .take(wanted)
                .collect(),
            arrived: std::iter::repeat_with(AtomicU64::default)
                .take(times)
                .collect(),
            began: Instant::now(),
            delivered: AtomicUsize::new(0),
            wanted,
            wrong: Mutex::new(None),
            over: CancellationToken::new(),
        })
    }

    /// Checks and records one arriving event. `object`: the object of the event, if the measured
    /// system provides it.
    pub(super) fn take(&self, payload: &[u8], object: Option<&[u8]>) {
        let Some(event) = self
            .load
            .number(payload)
            .filter(|event| *event < self.wanted)
        else {
            let shown: String = String::from_utf8_lossy(payload).chars().take(40).collect();
            return self.fail(format!("an event that was never emitted: {shown:?}"));
        };
        if object.is_some_and(|object| object != self.load.object(event).as_bytes()) {
            return self.fail(format!(
                "event {event} came under another object than {}",
                self.load.object(event)
            ));
        }
        if self
            .chain
            .before(event)
            .is_some_and(|before| self.seen[before].load(Ordering::Acquire) == 0)
        {
            return self.fail(format!(
                "event {event} of {} came before the one that precedes it",
                self.load.object(event)
            ));
        }
        if self.seen[event].swap(1, Ordering::AcqRel) != 0 {
            return self.fail(format!(
                "event {event} of {} came twice",
                self.load.object(event)
            ));
        }
        if let Some(arrived) = self.arrived.get(event) {
            arrived.store(self.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Adds to the number of delivered events.
    pub(super) fn add(&self, events: usize) {
        if self.delivered.fetch_add(events, Ordering::AcqRel) + events >= self.wanted {
            self.over.cancel();
        }
    }

    fn fail(&self, what: String) {
        self.wrong
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(what);
        self.over.cancel();
    }

    /// Waits until every expected event has arrived. Fails at the first error, or if no event
    /// arrives for too long.
    pub(super) async fn until_all(&self, system: &str) -> anyhow::Result<()> {
        let mut before = (self.delivered.load(Ordering::Acquire), Instant::now());
        while tokio::time::timeout(Duration::from_secs(1), self.over.cancelled())
            .await
            .is_err()
        {
            let delivered = self.delivered.load(Ordering::Acquire);
            if delivered != before.0 {
                before = (delivered, Instant::now());
            } else if before.1.elapsed() > STALL {
                let stalled = format!(
                    "{system}: {delivered} of {} events arrived, and none for {STALL:?}",
                    self.wanted
                );
                return Err(Failure::with(Exit::Broken, stalled));
            }
        }
        self.check(system)
    }

    /// Returns the first error, if any. It is called again when the consumers have stopped, because
    /// surplus events may come after the last expected one.
    pub(super) fn check(&self, system: &str) -> anyhow::Result<()> {
        let wrong = self
            .wrong
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        wrong.map_or(Ok(()), |what| {
            Err(Failure::with(
                Exit::Broken,
                format!("{system}: {what}; this is a fault, not a figure"),
            ))
        })
    }

    /// Returns the arrival time of an event.
    pub(super) fn arrived(&self, event: usize) -> Option<Instant> {
        let nanos = self.arrived.get(event)?.load(Ordering::Relaxed);
        Some(self.began + Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::Skew;
    use super::*;

    fn tally(events: &[usize]) -> anyhow::Result<()> {
        let load = Arc::new(Workload::new(4, 1, 0, 64, Skew::Single, 1));
        let chain = Arc::new(load.chain(2));
        let tally = Tally::new(&load, &chain, 4, false);
        for event in events {
            tally.take(&load.payload(*event), Some(b"work:0"));
            tally.add(1);
        }
        tally.check("test")
    }

    #[test]
    fn order_counts_per_producer_and_every_event_once() {
        tally(&[0, 1, 2, 3]).expect("in order");
        tally(&[1, 3, 0, 2]).expect("two producers may overtake each other");
        for (events, why) in [
            (&[0, 3][..], "event 3 of work:0 came before"),
            (&[0, 0], "event 0 of work:0 came twice"),
        ] {
            let error = tally(events).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_not_ours_is_an_error() {
        let load = Arc::new(Workload::new(4, 1, 0, 64, Skew::Single, 1));
        for (payload, object) in [(b"{}".to_vec(), "work:0"), (load.payload(0), "work:1")] {
            let tally = Tally::new(&load, &Arc::new(load.chain(1)), 4, false);
            tally.take(&payload, Some(object.as_bytes()));
            assert!(tally.check("test").is_err());
        }
    }
}
