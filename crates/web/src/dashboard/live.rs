//! The figures of the overview. One look at Redis per second serves all viewers; without viewers
//! there is no look.
//!
//! A look sends about 30 commands, and a few more for each worker name and each slot. If there are
//! many of them, the looks are farther apart, so that they cost Redis at most about 0.1 % of its time.
//! The charts show the looks of the last 5 minutes. A gap in a chart is a time without viewers, or
//! without Redis.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seriatim::connection::errors::describe;
use seriatim::control::under_work::UnderWork;
use seriatim::control::{Control, ControlError, Depth, Stats};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::operator::Looks;

/// The time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time of a look.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
/// The time that a command of a look costs Redis, rounded up.
const COMMAND: Duration = Duration::from_micros(2);
/// The looks may take one part in this number of Redis' time.
const PART: u32 = 1000;
/// The time between two looks at the longest queues, which cost more.
const QUEUES_EVERY: Duration = Duration::from_secs(5);
/// The number of queues that are shown.
const QUEUES: usize = 10;
/// The part of Redis' time that the count by prefix takes.
const COUNT_SHARE: f64 = 0.01;
/// The pause between two counts.
const COUNT_AGAIN: Duration = Duration::from_secs(60);
/// The time without viewers after which a count ends.
const COUNT_GRACE: Duration = Duration::from_secs(10);
/// The seconds that the charts show.
pub(super) const SECONDS: usize = 300;
/// The largest difference of two ids that counts as a rate. Redis has lost its data, or another
/// server has taken its place, if the difference is larger.
const IDS_MAX: u64 = 1_000_000_000;

/// The figures of one second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Events taken per second.
    pub(super) rate: Option<f64>,
    pub(super) waiting: f64,
    /// The age of the oldest waiting marker, in seconds.
    pub(super) oldest: Option<f64>,
    pub(super) in_flight: f64,
    pub(super) held: f64,
    pub(super) dead: f64,
}

/// The result of one look.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    at: Instant,
    pub(super) stats: Result<Arc<Stats>, String>,
    pub(super) queues: Option<Arc<UnderWork>>,
    /// The last count by prefix, and its age.
    pub(super) depth: Option<(Arc<Depth>, Duration)>,
    /// The figures of the last seconds, oldest first.
    pub(super) samples: Arc<Vec<Option<Sample>>>,
    /// The time until the next look.
    pub(super) every: Duration,
}

#[derive(Default)]
struct History {
    /// The looks of the last minutes, each with its time.
    looks: VecDeque<(Instant, Duration, Sample)>,
    last_id: Option<(Instant, u64)>,
    queues: Option<(Instant, Arc<UnderWork>)>,
    depth: Option<(Instant, Arc<Depth>)>,
}

/// Looks at Redis for all viewers.
pub(super) struct Live {
    control: Control,
    looks: Looks,
    history: Mutex<History>,
    shown: watch::Sender<Option<Arc<Snapshot>>>,
    /// Held during a look, so that only one look is under way.
    looking: AsyncMutex<()>,
    came: Notify,
}

impl Live {
    pub(super) fn new(control: Control, looks: Looks) -> Self {
        let (shown, _) = watch::channel(None);
        Self {
            control,
            looks,
            history: Mutex::default(),
            shown,
            looking: AsyncMutex::default(),
            came: Notify::new(),
        }
    }

    /// Returns the snapshots for a viewer, until the receiver is dropped.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Snapshot>>> {
        let receiver = self.shown.subscribe();
        self.came.notify_waiters();
        receiver
    }

    /// Returns a snapshot that is not older than the time between two looks.
    pub(super) async fn snapshot(&self) -> Arc<Snapshot> {
        let is_new = |shown: &Option<Arc<Snapshot>>| {
            shown
                .clone()
                .filter(|shown| shown.at.elapsed() < shown.every)
        };
        if let Some(shown) = is_new(&self.shown.borrow()) {
            return shown;
        }
        let _looking = self.looking.lock().await;
        if let Some(shown) = is_new(&self.shown.borrow()) {
            return shown;
        }
        let snapshot = Arc::new(self.look().await);
        self.shown.send_replace(Some(snapshot.clone()));
        snapshot
    }

    /// Looks again and again while there are viewers, until the future is dropped.
    pub(super) async fn run(&self) {
        tokio::join!(self.keep_looking(), self.keep_counting());
    }

    async fn keep_looking(&self) {
        loop {
            until_watched(&self.shown, &self.came).await;
            let snapshot = self.snapshot().await;
            sleep(snapshot.every.saturating_sub(snapshot.at.elapsed())).await;
        }
    }

    async fn keep_counting(&self) {
        loop {
            until_watched(&self.shown, &self.came).await;
            let counted = tokio::select! {
                counted = self.control.paced_depth(QUEUES, COUNT_SHARE) => counted.ok(),
                () = self.until_left() => None,
            };
            if let Some(depth) = counted {
                self.lock().depth = Some((Instant::now(), Arc::new(depth)));
                sleep(COUNT_AGAIN).await;
            } else {
                sleep(EVERY).await;
            }
        }
    }

    /// Returns when there was no viewer for some time.
    async fn until_left(&self) {
        let mut left_at = None;
        loop {
            sleep(EVERY).await;
            match (self.shown.receiver_count(), left_at) {
                (0, None) => left_at = Some(Instant::now()),
                (0, Some(at)) if at.elapsed() >= COUNT_GRACE => return,
                (0, Some(_)) => {}
                _ => left_at = None,
            }
        }
    }

    async fn look(&self) -> Snapshot {
        let stats = match timeout(LOOK_TIME_MAX, self.control.stats()).await {
            Ok(Ok(mut stats)) => {
                self.looks.hide_sinks(&mut stats.workers);
                Ok(Arc::new(stats))
            }
            Ok(Err(ControlError::Redis { source, .. })) => {
                Err(format!("Redis cannot be asked: {}", describe(&source)))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("Redis did not reply within {LOOK_TIME_MAX:?}")),
        };
        let at = Instant::now();
        let every = stats.as_ref().map_or(EVERY, |stats| every(stats));
        if stats.is_ok()
            && self
                .lock()
                .queues
                .as_ref()
                .is_none_or(|(asked, _)| asked.elapsed() >= QUEUES_EVERY.max(every))
        {
            // If this look fails, the next look at the figures shows the reason.
            if let Ok(Ok(queues)) = timeout(LOOK_TIME_MAX, self.control.under_work(QUEUES)).await {
                self.lock().queues = Some((at, Arc::new(queues)));
            }
        }
        let mut history = self.lock();
        if let Ok(stats) = &stats {
            history.add(at, every, stats);
        }
        let depth = history
            .depth
            .as_ref()
            .map(|(counted, depth)| (depth.clone(), at.duration_since(*counted)));
        let queues = history.queues.as_ref().map(|(_, queues)| queues.clone());
        Snapshot {
            at,
            stats,
            queues,
            depth,
            samples: Arc::new(history.samples(at)),
            every,
        }
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns when the channel has a receiver. `came` tells of a new one.
pub(super) async fn until_watched<T>(shown: &watch::Sender<T>, came: &Notify) {
    loop {
        let came = came.notified();
        tokio::pin!(came);
        came.as_mut().enable();
        if shown.receiver_count() > 0 {
            return;
        }
        came.await;
    }
}

/// Returns the time between two looks, so that the looks cost Redis at most 0.1 % of its time.
fn every(stats: &Stats) -> Duration {
    let names = stats.workers.len() as u64;
    let slots: u64 = stats
        .workers
        .iter()
        .map(|name| u64::from(name.slots_read))
        .sum();
    let commands = u32::try_from(40 + 3 * names + slots).unwrap_or(u32::MAX);
    EVERY.max(COMMAND.saturating_mul(commands).saturating_mul(PART))
}

impl History {
    fn add(&mut self, at: Instant, every: Duration, stats: &Stats) {
        let before = self.last_id.replace((at, stats.last_id));
        let rate = before.and_then(|(asked, id)| {
            let (ids, time) = (stats.last_id.checked_sub(id)?, at.duration_since(asked));
            (ids < IDS_MAX && time <= every * 3).then(|| ids as f64 / time.as_secs_f64().max(0.001))
        });
        let sample = Sample {
            rate,
            waiting: stats.markers as f64,
            oldest: stats.oldest_waiting_ms.map(|ms| ms as f64 / 1000.0),
            in_flight: stats.events_in_flight as f64,
            held: stats.held.total as f64,
            dead: stats.dead_letters as f64,
        };
        self.looks.push_back((at, every, sample));
        while self.looks.len() > SECONDS {
            self.looks.pop_front();
        }
    }

    /// Returns a sample for each of the last seconds, oldest first. A look counts until the next one,
    /// but not over a time without viewers.
    fn samples(&self, now: Instant) -> Vec<Option<Sample>> {
        let mut samples = vec![None; SECONDS];
        let nexts = self.looks.iter().skip(1).map(|(at, ..)| *at).chain([now]);
        for ((at, every, sample), next) in self.looks.iter().zip(nexts) {
            let first = now.duration_since(*at).as_secs() as usize;
            let until = now.duration_since(next.min(*at + *every * 2)).as_secs() as usize;
            for place in (until..=first).filter_map(|ago| (SECONDS - 1).checked_sub(ago)) {
                samples[place] = Some(*sample);
            }
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_many_slots_are_rare() {
        let name = |slots| {
            let mut name = seriatim::control::stats::NameStats::default();
            // A look reads only some of the slots, if there are very many.
            (name.slots, name.slots_read) = (65_536, slots);
            name
        };
        let mut stats = Stats::default();
        assert_eq!(every(&stats), EVERY);
        stats.workers = vec![name(256); 3];
        assert_eq!(
            every(&stats),
            Duration::from_micros(2) * (40 + 9 + 768) * 1000
        );
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_differences_of_ids() {
        let (mut history, mut stats) = (History::default(), Stats::default());
        let rates = |history: &History| -> Vec<_> {
            history
                .looks
                .iter()
                .map(|(.., sample)| sample.rate)
                .collect()
        };
        for id in [1000, 1500, 1500, 2_000_000_000, 5] {
            stats.last_id = id;
            history.add(Instant::now(), EVERY, &stats);
            tokio::time::advance(EVERY).await;
        }
        assert_eq!(rates(&history), [None, Some(500.0), Some(0.0), None, None]);
        assert_eq!(history.samples(Instant::now()).iter().flatten().count(), 6);
        // A time without viewers is a gap.
        tokio::time::advance(EVERY * 20).await;
        let samples = history.samples(Instant::now());
        assert_eq!(samples.iter().flatten().count(), 7);
        assert!(samples[SECONDS - 19..].iter().all(Option::is_none));
        for _ in 0..2 * SECONDS {
            history.add(Instant::now(), EVERY, &stats);
            tokio::time::advance(EVERY).await;
        }
        assert_eq!(history.looks.len(), SECONDS);
    }
}
