//! What a worker process can be told, with units, ranges and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::retry::{RetryPolicy, UsedUp};
use crate::event::type_of;
use crate::keys::Keys;
use crate::wire::values::host_name;
use crate::wire::{EventLog, Suspects, Tag};

/// The most slots a process can run.
pub const CONCURRENCY_MAX: usize = 1024;
/// The most events in a batch.
pub const BATCH_MAX: usize = 1000;
/// The most bytes after which a batch takes no further event.
pub const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The most bytes after which a reply takes no further batch.
pub const REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The settings of a worker process. [`Default`] gives the defaults below;
/// [`WorkerConfig::validate`] checks the ranges.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The name of the process, 1 to 64 of `A-Z a-z 0-9 _ -`. A process that starts under the same
    /// name goes on with what the one before it had in hand. Default: the host's name and 8 random
    /// hex digits.
    pub name: String,
    /// The keys it works on. Default: no namespace.
    pub keys: Keys,
    /// Slots: how many objects are delivered at the same time. 1 to 1024, default 256.
    pub concurrency: usize,
    /// The most events of one object handed to the sink at once. 1 to 1000, default 256.
    pub batch: usize,
    /// A batch takes no further event once it has this many bytes. 1 to [`BATCH_BYTES_MAX`],
    /// default 1 MiB.
    pub batch_bytes: usize,
    /// A reply of Redis takes no further batch once it has this many bytes, and a call no further
    /// results once they are as much work: Redis does nothing else meanwhile. After a call that
    /// failed with its connection the worker asks for half of that, down to 64 KiB, and for more
    /// again after full replies. 1 to [`REPLY_BYTES_MAX`], default 2 MiB.
    pub reply_bytes: usize,
    /// After this many events of one object without a pause, others get a turn. 1 and up,
    /// default 1024.
    pub turn_max: usize,
    /// How long the name stays ours without renewal; it is renewed three times as often. What a
    /// killed process had is taken over by others after this time. 300 ms to 1 hour, default 5 s.
    pub lease: Duration,
    /// How long the worker's loop may stand still, because handlers block the threads of its
    /// runtime, before the process lets its lease go. Others then take over; for the events in hand
    /// that counts as a crash. A delivery that blocks its thread for its timeout and so long beyond
    /// it **ends the process** with exit code 4: nothing else frees the thread. Only
    /// [`Handlers`](crate::handlers::Handlers) have a timeout; for other sinks it is 0. 1 s to 1 hour,
    /// default 60 s.
    pub stall_max: Duration,
    /// The longest wait for the next marker in one command. 10 ms to 1 s, default 1 s.
    pub block: Duration,
    /// How often a process looks for names without a lease. A process notices within this time, or
    /// a third of `lease` if that is shorter, that a step of Redis' clock has ended its lease;
    /// others wait for that. If the time is longer than 3 s, all workers of a namespace should have
    /// similar values. 50 ms to 1 minute, default 1 s.
    pub sweep: Duration,
    /// How long a graceful stop lets the sink finish what is in hand. Up to 1 hour, default 25 s.
    pub grace: Duration,
    /// How long a start waits for a Redis that is loading or cannot be reached. A wrong user or
    /// password, or a missing right, ends it at once. Up to 1 hour, default 30 s.
    pub connect_timeout: Duration,
    /// A connection is given up and made anew after this time without progress: a call waits for
    /// its reply, and no byte moves. A large reply on a slow link takes as long as it needs. An
    /// attempt to connect may take as long in all. 100 ms to 10 minutes, default 5 s.
    pub response_timeout: Duration,
    /// What follows when an event fails. Default: again after 100 ms, doubling to 1 minute with
    /// jitter, for ever.
    pub retry: RetryPolicy,
    /// The same for events of some types: an event's type is its top-level member `type`, where
    /// that is a string. Default: none.
    pub retry_types: BTreeMap<String, RetryPolicy>,
    /// The longest wait between two tries of a sink that is unavailable; the first is a tenth of a
    /// second. 100 ms to 1 hour, default 5 s.
    pub probe_max: Duration,
    /// How long an unavailable sink keeps its batches from other workers: it may be unavailable on
    /// this node alone. After that they are held, due at once, with no attempt more; one batch at a
    /// time is claimed to try the sink, and exchanged as often. 100 ms to 1 hour, default 1 minute.
    pub unavailable_max: Duration,
    /// How many workers may die with one event in hand before it is put aside. 1 to 1000,
    /// default 5. The more crashes an event has, the fewer such events a process has in hand, and the last
    /// one before this limit alone, so that no other event is put aside with it. That needs a limit
    /// of at least 2, and is not so for claims by hand.
    pub crashes_max: u32,
    /// What becomes of an event that is put aside because of its crashes. All workers should have
    /// the same. Default: it waits for an operator.
    pub crashes_then: UsedUp,
    /// How long the last id of an object is kept after its last event was delivered. After that,
    /// its next event has `prev` 0: see [`forget`](mod@crate::control::forget). All workers should
    /// have the same. 1 s to 10 years, default: for ever.
    pub forget_after: Option<Duration>,
    /// Write every event that is finalized to the log, `event.log`, and keep so much of it. All
    /// workers should have the same. Default: only events completed with errors, about the last
    /// 1,000.
    pub event_log: Option<EventLog>,
    /// Take the name at once from a process that is still alive, which then stops. Default: no.
    pub takeover: bool,
    /// The lowest id to give. A namespace without data begins there; if Redis loses its data while
    /// no process is left that remembers the ids, they are given again. 1 to 2^52, or 0, the
    /// default: a namespace without data begins at the server's time in microseconds, beyond all
    /// ids that were ever given.
    pub first_id: u64,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            name: default_name(),
            keys: Keys::new(),
            concurrency: 256,
            batch: 256,
            batch_bytes: 1024 * 1024,
            reply_bytes: 2 * 1024 * 1024,
            turn_max: 1024,
            lease: Duration::from_secs(5),
            stall_max: Duration::from_secs(60),
            block: Duration::from_secs(1),
            sweep: Duration::from_secs(1),
            grace: Duration::from_secs(25),
            connect_timeout: Duration::from_secs(30),
            response_timeout: Duration::from_secs(5),
            retry: RetryPolicy::default(),
            retry_types: BTreeMap::new(),
            probe_max: Duration::from_secs(5),
            unavailable_max: Duration::from_secs(60),
            crashes_max: 5,
            crashes_then: UsedUp::Hold,
            forget_after: None,
            event_log: None,
            takeover: false,
            first_id: 0,
        }
    }
}

/// A setting that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}; {range}")]
pub struct ConfigError {
    /// The name of the setting.
    pub setting: &'static str,
    /// What it was.
    pub value: String,
    /// What it may be.
    pub range: &'static str,
}

impl WorkerConfig {
    /// Checks every setting against its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let name_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let name_ok = (1..=64).contains(&self.name.len()) && self.name.bytes().all(name_byte);
        check("name", &self.name, name_ok, "it must be 1 to 64 of the characters A-Z a-z 0-9 _ -")?;
        check_number("concurrency", self.concurrency, 1, CONCURRENCY_MAX, "it must be 1 to 1024 slots")?;
        check_number("batch", self.batch, 1, BATCH_MAX, "it must be 1 to 1000 events")?;
        check_number("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX, "it must be 1 to 2097152 bytes")?;
        check_number("reply_bytes", self.reply_bytes, 1, REPLY_BYTES_MAX, "it must be 1 to 4194304 bytes")?;
        check_number("turn_max", self.turn_max, 1, usize::MAX, "it must be at least 1 event")?;
        check_number("crashes_max", self.crashes_max, 1, 1000, "it must be 1 to 1000 crashes")?;
        check_number("first_id", self.first_id, 0, 1 << 52, "it must be 0 to 4503599627370496")?;
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let hour = s(3600);
        check_time("lease", self.lease, ms(300), hour, "it must be 300 ms to 1 h")?;
        check_time("stall_max", self.stall_max, s(1), hour, "it must be 1 s to 1 h")?;
        check_time("block", self.block, ms(10), s(1), "it must be 10 ms to 1 s")?;
        check_time("sweep", self.sweep, ms(50), s(60), "it must be 50 ms to 1 min")?;
        check_time("grace", self.grace, ms(0), hour, "it must be at most 1 h")?;
        check_time("connect_timeout", self.connect_timeout, ms(0), hour, "it must be at most 1 h")?;
        check_time("response_timeout", self.response_timeout, ms(100), s(600), "it must be 100 ms to 10 min")?;
        check_time("probe_max", self.probe_max, ms(100), hour, "it must be 100 ms to 1 h")?;
        check_time("unavailable_max", self.unavailable_max, ms(100), hour, "it must be 100 ms to 1 h")?;
        let forget_after = self.forget_after.unwrap_or(hour);
        check_time("forget_after", forget_after, s(1), 10 * 366 * 24 * hour, "it must be 1 s to 10 years")?;
        let log = self.event_log.unwrap_or_default();
        check_number("event_log_keep", log.keep, 1, 1_000_000_000_000, "it must be 1 to 1000000000000 rows")?;
        let keep_for = log.keep_for.unwrap_or(hour);
        check_time("event_log_keep_for", keep_for, s(1), 10 * 366 * 24 * hour, "it must be 1 s to 10 years")?;
        let retry = |setting, policy: &RetryPolicy| {
            policy.validate().map_err(|range| ConfigError { setting, value: policy.to_string(), range })
        };
        retry("retry", &self.retry)?;
        self.retry_types.values().try_for_each(|policy| retry("retry_types", policy))
    }

    /// The worker id of a slot, `NAME.SLOT`.
    pub(crate) fn worker(&self, slot: usize) -> String {
        format!("{}.{slot}", self.name)
    }

    /// The crashes at which a script holds an event for an operator; 0: whoever gets it settles it.
    pub(crate) fn crashes_held(&self) -> u32 {
        if self.crashes_then == UsedUp::Hold { self.crashes_max } else { 0 }
    }

    /// Room for batches that may kill the process, where it has nothing in hand.
    pub(crate) fn suspects(&self) -> Suspects {
        Suspects::of(self.crashes_max, self.crashes_then != UsedUp::Hold)
    }

    /// What becomes of a batch's first event without a delivery, because it has too many crashes.
    pub(crate) fn crashed(&self, tag: Tag) -> Option<UsedUp> {
        (tag.crashes >= self.crashes_max && self.crashes_then != UsedUp::Hold).then_some(self.crashes_then)
    }

    /// What follows when this event fails.
    pub(crate) fn retry_of(&self, payload: &[u8]) -> RetryPolicy {
        let of_type = || self.retry_types.get(&type_of(payload)?);
        let found = if self.retry_types.is_empty() { None } else { of_type() };
        found.copied().unwrap_or(self.retry)
    }
}

fn check(setting: &'static str, value: &str, ok: bool, range: &'static str) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { Err(ConfigError { setting, value: format!("{value:?}"), range }) }
}

fn check_number<N: PartialOrd + ToString>(
    setting: &'static str,
    n: N,
    min: N,
    max: N,
    range: &'static str,
) -> Result<(), ConfigError> {
    if n >= min && n <= max { Ok(()) } else { Err(ConfigError { setting, value: n.to_string(), range }) }
}

fn check_time(
    setting: &'static str,
    time: Duration,
    min: Duration,
    max: Duration,
    range: &'static str,
) -> Result<(), ConfigError> {
    if time >= min && time <= max { Ok(()) } else { Err(ConfigError { setting, value: format!("{time:?}"), range }) }
}

fn default_name() -> String {
    let host = host_name();
    let host: String = host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).take(55).collect();
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{}-{}", if host.is_empty() { "worker" } else { &host }, &random[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::retry::Backoff;

    #[test]
    fn the_defaults_are_valid() {
        WorkerConfig::default().validate().expect("valid");
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let config = WorkerConfig { name: "a.b".to_owned(), ..WorkerConfig::default() };
        assert_eq!(config.validate().map_err(|e| e.setting), Err("name"));
        let config = WorkerConfig { concurrency: 0, ..WorkerConfig::default() };
        assert_eq!(config.validate().map_err(|e| e.to_string()), Err("concurrency is 0; it must be 1 to 1024 slots".to_owned()));
        let config = WorkerConfig { lease: Duration::from_millis(10), ..WorkerConfig::default() };
        assert_eq!(config.validate().map_err(|e| e.setting), Err("lease"));
    }

    #[test]
    fn a_policy_out_of_its_range_is_named() {
        let mut config = WorkerConfig::default();
        config.retry_types.insert("moved".to_owned(), "fixed:1s".parse().expect("a policy"));
        config.validate().expect("valid");
        config.retry = RetryPolicy { backoff: Backoff::Fixed(Duration::ZERO), limit: None };
        let told = config.validate().map_err(|error| error.to_string());
        assert_eq!(told, Err("retry is fixed:0s; a wait must be 1 ms to 24 h".to_owned()));
        config.retry_types.insert("moved".to_owned(), std::mem::take(&mut config.retry));
        assert_eq!(config.validate().map_err(|error| error.setting), Err("retry_types"));
    }

    #[test]
    fn a_type_may_have_a_policy_of_its_own() {
        let mut config = WorkerConfig::default();
        let moved = br#"{"type":"moved"}"#;
        assert_eq!(config.retry_of(moved), RetryPolicy::default());
        config.retry_types.insert("moved".to_owned(), RetryPolicy::MINUTE);
        assert_eq!((config.retry_of(moved), config.retry_of(b"{}")), (RetryPolicy::MINUTE, RetryPolicy::default()));
    }
}
