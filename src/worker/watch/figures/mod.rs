//! The figures of a worker: counts and times since its start, and its state now.
//!
//! The worker's tasks add to the figures, and other threads read them. An addition is one atomic
//! operation without a lock. A read is not a snapshot of one moment: each number is right, but two
//! numbers may be a few events apart. If the process dies, its figures are gone.
//!
//! - `histogram`: the number of values in each of some ranges

mod histogram;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use self::histogram::Distribution;
use self::histogram::{ATTEMPTS, EVENTS, Histogram, TIMES_US};
use crate::connection::errors::is_broken;
use crate::sink::Stop;
use crate::wire::values::ReasonCode;
use crate::wire::{BatchResult, Report, ScriptError, Way, Ways};
use crate::worker::serve::slots::Slot;

/// A kind of call to Redis, for the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Advance,
    Renew,
    Adopt,
    Handled,
    Promote,
    Sent,
}

/// The number of slots in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SlotFigures {
    /// Slots without a batch.
    pub free: usize,
    /// Slots that are named in a call to Redis that is under way.
    pub asked: usize,
    /// Slots whose batch the sink has.
    pub delivering: usize,
    /// Slots with a result for the next call.
    pub reported: usize,
    /// Slots that keep their batch while the sink is unavailable.
    pub parked: usize,
}

/// The times of deliveries, by outcome, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DeliveryFigures {
    /// Deliveries of whole batches.
    pub delivered: Distribution,
    /// Deliveries that ended with a transient failure.
    pub transient: Distribution,
    /// Deliveries that ended with a rejected event.
    pub rejected: Distribution,
    /// Deliveries that ended because the sink is unavailable.
    pub unavailable: Distribution,
    /// Deliveries that ended because the sink postponed an event.
    pub postponed: Distribution,
    /// Deliveries that ended because the sink does not know an event.
    pub unknown: Distribution,
    /// Deliveries that ended because the program that handled an event has died.
    pub crashed: Distribution,
}

impl DeliveryFigures {
    /// Returns the times of all deliveries.
    #[must_use]
    pub fn all(&self) -> Distribution {
        Distribution::sum([
            &self.delivered,
            &self.transient,
            &self.rejected,
            &self.unavailable,
            &self.postponed,
            &self.unknown,
            &self.crashed,
        ])
    }
}

/// The times of calls to Redis, by script, in seconds. For a call without a reply, the time until
/// the failure was known counts.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CallFigures {
    /// Calls that commit results and claim objects.
    pub advance: Distribution,
    /// Renewals of the lease.
    pub renew: Distribution,
    /// Sweeps, which look at other worker names and take over names without a lease.
    pub adopt: Distribution,
    /// Calls that store or read the progress of handlers.
    pub handled: Distribution,
    /// Promotions of schedules.
    pub promote: Distribution,
    /// Calls that record a request to a receiver, before it is sent and when it is over.
    pub sent: Distribution,
}

impl CallFigures {
    /// Returns the times of all calls.
    #[must_use]
    pub fn all(&self) -> Distribution {
        Distribution::sum([
            &self.advance,
            &self.renew,
            &self.adopt,
            &self.handled,
            &self.promote,
            &self.sent,
        ])
    }
}

/// The number of calls to Redis and connection attempts that failed, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorFigures {
    /// The connection failed, or could not be made.
    pub connection: u64,
    /// Redis did not reply in time.
    pub timeout: u64,
    /// Redis is out of memory.
    pub out_of_memory: u64,
    /// The Redis user lacks a right.
    pub denied: u64,
    /// Any other error.
    pub other: u64,
}

/// The number of times that the worker held an object, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldFigures {
    /// An event failed, or the sink postponed the event. The event will be tried again.
    pub retry: u64,
    /// The attempts of an event are used up.
    pub attempts: u64,
    /// Too many workers died with an event in hand.
    pub crashes: u64,
    /// The sink was unavailable for a long time.
    pub unavailable: u64,
    /// The object has a name that no sink can get, or a key of a wrong type.
    pub quarantine: u64,
    /// The object yielded to other objects.
    pub yielded: u64,
    /// The worker stopped with events of the object in hand.
    pub stop: u64,
    /// The worker does not know an event. The object waits for another worker.
    pub unknown: u64,
    /// An event was rejected, and the retry policy holds such events.
    pub rejected: u64,
}

/// The number of times that the worker took its name, by the state that it found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachFigures {
    /// The slots of the name were empty.
    pub fresh: u64,
    /// The slots of the name had batches of an earlier process, and the worker went on with these
    /// batches.
    pub resumed: u64,
    /// The worker's own lease had lapsed.
    pub lapsed: u64,
}

/// The state of the sink, as its results show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkFigures {
    /// The time since the sink became unavailable; `None` while the sink is available.
    pub down_for: Option<Duration>,
    /// The time since the sink became available, or since the worker began to deliver; `None`
    /// before that, and while the sink is unavailable.
    pub up_for: Option<Duration>,
    /// The last error of the unavailable sink; empty while the sink is available.
    pub error: String,
    /// The number of times that the sink became unavailable.
    pub outages: u64,
}

/// The delivery that has been under way for the longest time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongestDelivery {
    /// The object.
    pub object: String,
    /// The id of the event under delivery. If the sink gets the whole batch at once, this is the id
    /// of the first event.
    pub id: u64,
    /// The time since the sink got the batch.
    pub since: Duration,
}

/// The figures of a worker since the worker was made, and its present state. Times of distributions
/// are in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkerFigures {
    /// Number of delivered events, committed in Redis.
    pub delivered: u64,
    /// Number of events that became dead letters.
    pub rejected: u64,
    /// Number of events completed with errors.
    pub completed_with_errors: u64,
    /// Attempts of each finished event.
    pub attempts: Distribution,
    /// Events of each committed batch.
    pub batch: Distribution,
    /// Times of deliveries.
    pub delivery: DeliveryFigures,
    /// Time from the sink's answer to the commit in Redis, of each batch.
    pub commit: Distribution,
    /// Time from each event's own time to its commit; empty without `event_time`.
    pub event_age: Distribution,
    /// Number of committed events without a time of their own; 0 without `event_time`.
    pub without_time: u64,
    /// Times of calls to Redis.
    pub calls: CallFigures,
    /// Failed calls to Redis.
    pub errors: ErrorFigures,
    /// Number of holds, by reason.
    pub holds: HoldFigures,
    /// Number of attaches, by the state that the worker found.
    pub attaches: AttachFigures,
    /// Number of names without a lease whose objects the worker took over.
    pub takeovers: u64,
    /// Number of lost keys that the worker has met: keys that were deleted by hand or evicted.
    pub lost_keys: u64,
    /// Number of slots in each state.
    pub slots: SlotFigures,
    /// The way in which Redis runs the script that commits and claims.
    pub way: Way,
    /// State of the sink.
    pub sink: SinkFigures,
    /// The last reason why the sink did not know an event; empty without any.
    pub unknown_error: String,
    /// Whether the worker has its worker name now.
    pub is_attached: bool,
    /// The delivery that has been under way for the longest time; `None` if no delivery is under
    /// way.
    pub longest: Option<LongestDelivery>,
}

/// The figures that the tasks of a worker share.
#[derive(Debug)]
pub(crate) struct Figures {
    delivered: AtomicU64,
    rejected: AtomicU64,
    completed_with_errors: AtomicU64,
    attempts: Histogram,
    batch: Histogram,
    /// Times of deliveries, in the order of [`DeliveryFigures`].
    delivery: [Histogram; 7],
    commit: Histogram,
    event_age: Histogram,
    without_time: AtomicU64,
    /// Times of calls, in the order of [`Call`].
    calls: [Histogram; 6],
    /// Failed calls, in the order of [`ErrorFigures`].
    errors: [AtomicU64; 5],
    /// Holds, in the order of [`HoldFigures`].
    holds: [AtomicU64; 9],
    /// Attaches, in the order of [`AttachFigures`].
    attaches: [AtomicU64; 3],
    takeovers: AtomicU64,
    lost_keys: AtomicU64,
    /// The number of slots in each state, in the order of [`Slot::number`].
    slots: [AtomicUsize; Slot::NUMBERS],
    sink: Mutex<SinkState>,
    unknown_error: Mutex<String>,
    ways: OnceLock<Arc<Ways>>,
}

#[derive(Debug, Default)]
struct SinkState {
    down: Option<(Instant, String)>,
    up: Option<Instant>,
    outages: u64,
}

impl Default for Figures {
    fn default() -> Self {
        let times = || Histogram::new(&TIMES_US);
        Self {
            delivered: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            completed_with_errors: AtomicU64::new(0),
            attempts: Histogram::new(&ATTEMPTS),
            batch: Histogram::new(&EVENTS),
            delivery: std::array::from_fn(|_| times()),
            commit: times(),
            event_age: times(),
            without_time: AtomicU64::new(0),
            calls: std::array::from_fn(|_| times()),
            errors: Default::default(),
            holds: Default::default(),
            attaches: Default::default(),
            takeovers: AtomicU64::new(0),
            lost_keys: AtomicU64::new(0),
            slots: Default::default(),
            sink: Mutex::default(),
            unknown_error: Mutex::default(),
            ways: OnceLock::new(),
        }
    }
}

impl Figures {
    /// Makes the way of the calls part of the figures.
    pub(crate) fn show_ways(&self, ways: &Arc<Ways>) {
        let _ = self.ways.set(Arc::clone(ways));
    }

    /// Adds a delivery that has ended.
    pub(crate) fn delivery_ended(&self, took: Duration, stop: Option<&Stop>) {
        let outcome = match stop {
            None => 0,
            Some(Stop::Transient { .. }) => 1,
            Some(Stop::Rejected { .. }) => 2,
            Some(Stop::Unavailable { .. }) => 3,
            Some(Stop::Postponed { .. }) => 4,
            Some(Stop::Unknown { .. }) => 5,
            Some(Stop::Crashed { .. }) => 6,
        };
        self.delivery[outcome].add_time(took);
        if let Some(Stop::Unknown { error }) = stop {
            error.clone_into(
                &mut self
                    .unknown_error
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Adds a result that was committed. `after` is the time from the sink's answer to the commit.
    pub(crate) fn committed(&self, report: &Report, after: Duration) {
        self.commit.add_time(after);
        let count = report.count as u64;
        if count > 0 {
            add(&self.delivered, count);
            self.batch.add(count, 1);
            // The attempts in a batch's tag are attempts of its first event.
            self.attempts.add(u64::from(report.tag.attempts) + 1, 1);
            self.attempts.add(1, count - 1);
        }
        match &report.then {
            BatchResult::Reject { attempts, .. } => {
                add(&self.rejected, 1);
                self.attempts.add(tries(report, *attempts), 1);
            }
            BatchResult::Complete { attempts, .. } => {
                add(&self.completed_with_errors, 1);
                self.attempts.add(tries(report, *attempts), 1);
            }
            BatchResult::Hold { reason, .. } => {
                let code = match reason.code {
                    ReasonCode::Retry => 0,
                    ReasonCode::Attempts => 1,
                    ReasonCode::Crashes => 2,
                    ReasonCode::Unavailable => 3,
                    ReasonCode::Unknown => 7,
                    ReasonCode::Rejected => 8,
                    _ => 4,
                };
                add(&self.holds[code], 1);
            }
            BatchResult::Yield => add(&self.holds[5], 1),
            _ => {}
        }
    }

    /// Adds a committed event of this age, in seconds.
    pub(crate) fn event_age(&self, seconds: f64) {
        self.event_age
            .add_time(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    }

    /// Adds a committed event without a time of its own.
    pub(crate) fn event_without_time(&self) {
        add(&self.without_time, 1);
    }

    /// Adds a call to Redis that has ended.
    pub(crate) fn called(&self, call: Call, took: Duration, error: Option<&ScriptError>) {
        self.calls[call as usize].add_time(took);
        if let Some(error) = error {
            self.failed(error);
        }
    }

    /// Adds a call to Redis that failed.
    pub(crate) fn failed(&self, error: &ScriptError) {
        let kind = match error {
            ScriptError::Denied(_) => 3,
            ScriptError::Redis(error) if error.is_timeout() => 1,
            ScriptError::Redis(error) if error.code() == Some("OOM") => 2,
            ScriptError::Redis(error) if error.code() == Some("NOPERM") => 3,
            ScriptError::Redis(error) if is_broken(error) => 0,
            _ => 4,
        };
        add(&self.errors[kind], 1);
    }

    /// Adds a connection attempt that failed.
    pub(crate) fn not_connected(&self) {
        add(&self.errors[0], 1);
    }

    /// Adds an attach. `kept`: whether the slots had batches. `lapsed`: whether the process had the
    /// name before, and its lease lapsed.
    pub(crate) fn attached(&self, kept: bool, lapsed: bool) {
        let found = match (lapsed, kept) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        };
        add(&self.attaches[found], 1);
    }

    /// Adds lost keys.
    pub(crate) fn lost_keys(&self, keys: u64) {
        add(&self.lost_keys, keys);
    }

    /// Adds names whose objects the worker took over.
    pub(crate) fn took_over(&self, names: usize) {
        add(&self.takeovers, names as u64);
    }

    /// Adds objects that a graceful stop left held.
    pub(crate) fn stopped(&self, held: u64) {
        add(&self.holds[6], held);
    }

    /// Sets the number of slots in each state.
    pub(crate) fn slots(&self, numbers: &[usize; Slot::NUMBERS]) {
        for (shown, number) in self.slots.iter().zip(numbers) {
            shown.store(*number, Ordering::Relaxed);
        }
    }

    /// Records that the sink is unavailable, with its last error.
    pub(crate) fn sink_is_down(&self, error: &str) {
        let mut sink = self.sink();
        let now = Instant::now();
        let began = sink.down.take().map(|(began, _)| began);
        sink.outages += u64::from(began.is_none());
        sink.down = Some((began.unwrap_or(now), error.to_owned()));
        sink.up = None;
    }

    /// Records that the sink is available.
    pub(crate) fn sink_is_up(&self) {
        let mut sink = self.sink();
        sink.down = None;
        sink.up.get_or_insert_with(Instant::now);
    }

    fn sink(&self) -> MutexGuard<'_, SinkState> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the figures so far, without `is_attached` and `longest`, which only the activity
    /// knows.
    pub(super) fn look(&self) -> WorkerFigures {
        const PER_SECOND: f64 = 1e6;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [free, asked, delivering, reported, parked] = self
            .slots
            .each_ref()
            .map(|slots| slots.load(Ordering::Relaxed));
        let [
            delivered,
            transient,
            rejected,
            unavailable,
            postponed,
            unknown,
            crashed,
        ] = self.delivery.each_ref().map(|times| times.look(PER_SECOND));
        let delivery = DeliveryFigures {
            delivered,
            transient,
            rejected,
            unavailable,
            postponed,
            unknown,
            crashed,
        };
        let [advance, renew, adopt, handled, promote, sent] =
            self.calls.each_ref().map(|times| times.look(PER_SECOND));
        let [connection, timeout, out_of_memory, denied, other] = self.errors.each_ref().map(count);
        let [
            retry,
            attempts,
            crashes,
            unavailable,
            quarantine,
            yielded,
            stop,
            unknown,
            rejected,
        ] = self.holds.each_ref().map(count);
        let [fresh, resumed, lapsed] = self.attaches.each_ref().map(count);
        let sink = self.sink();
        let (down_for, error) = sink
            .down
            .as_ref()
            .map(|(began, error)| (began.elapsed(), error.clone()))
            .unzip();
        let up_for = sink.up.map(|began| began.elapsed());
        WorkerFigures {
            delivered: count(&self.delivered),
            rejected: count(&self.rejected),
            completed_with_errors: count(&self.completed_with_errors),
            attempts: self.attempts.look(1.0),
            batch: self.batch.look(1.0),
            delivery,
            commit: self.commit.look(PER_SECOND),
            event_age: self.event_age.look(PER_SECOND),
            without_time: count(&self.without_time),
            calls: CallFigures {
                advance,
                renew,
                adopt,
                handled,
                promote,
                sent,
            },
            errors: ErrorFigures {
                connection,
                timeout,
                out_of_memory,
                denied,
                other,
            },
            holds: HoldFigures {
                retry,
                attempts,
                crashes,
                unavailable,
                quarantine,
                yielded,
                stop,
                unknown,
                rejected,
            },
            attaches: AttachFigures {
                fresh,
                resumed,
                lapsed,
            },
            takeovers: count(&self.takeovers),
            lost_keys: count(&self.lost_keys),
            slots: SlotFigures {
                free,
                asked,
                delivering,
                reported,
                parked,
            },
            sink: SinkFigures {
                down_for,
                up_for,
                error: error.unwrap_or_default(),
                outages: sink.outages,
            },
            unknown_error: self
                .unknown_error
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            way: self.ways.get().map_or_else(Way::default, |ways| ways.way()),
            is_attached: false,
            longest: None,
        }
    }
}

/// Returns the tries of an event that has ended without success. `attempts`: its failed attempts. A
/// rejection is one more try, but no failed attempt.
fn tries(report: &Report, attempts: u32) -> u64 {
    let failed_before = report.tag.after(report.count, 1).attempts;
    u64::from(attempts) + u64::from(attempts == failed_before)
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
