//! The settings of a worker process, with units, ranges and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::times::retry::{RetryPolicy, UsedUp};
use super::watch::traces::Traces;
use crate::connection::Wait;
use crate::event::{Pointer, type_of};
use crate::keys::Keys;
use crate::wire::values::host_name;
use crate::wire::{EventLog, Scripts, Suspects, Tag};

/// The most slots of a process.
pub const CONCURRENCY_MAX: usize = 1024;
/// The most events in a batch.
pub const BATCH_MAX: usize = 1000;
/// The largest value of [`WorkerConfig::batch_bytes`].
pub const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The largest value of [`WorkerConfig::reply_bytes`].
pub const REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The settings of a worker process. [`Default`] gives the defaults below;
/// [`WorkerConfig::validate`] checks the ranges.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The name of the process, 1 to 64 of `A-Z a-z 0-9 _ -`. A process that starts under the name
    /// of an earlier process continues the batches of that process. Default: the host's name and 8
    /// random hex digits.
    pub name: String,
    /// The keys of the namespace. Default: no namespace.
    pub keys: Keys,
    /// The number of slots: objects delivered at the same time. 1 to 1024, default 256.
    pub concurrency: usize,
    /// The most events of one object that the sink gets at once. 1 to 1000, default 256.
    pub batch: usize,
    /// The bytes after which a batch takes no further event. 1 to [`BATCH_BYTES_MAX`], default 1
    /// MiB.
    pub batch_bytes: usize,
    /// The bytes after which a reply takes no further batch. 1 to [`REPLY_BYTES_MAX`], default 2
    /// MiB. If a call fails together with its connection, the worker halves this number, down to 64
    /// KiB. After full replies the worker doubles the number again.
    pub reply_bytes: usize,
    /// The number of events of one object after which the object yields to others. 1 and up,
    /// default 1024.
    pub turn_max: usize,
    /// The number of parts of an object's name that are its group; parts end at colons. While more
    /// objects wait than workers can claim, the groups take turns. So a group with many objects
    /// does not delay the others. With 0 there are no groups: objects are claimed in the order of
    /// their markers. All workers of a namespace should have the same value. 0 to 8, default 0.
    pub group_depth: usize,
    /// The time for which the lease of the name is valid without a renewal. The worker renews the
    /// lease three times in this time. If a process is killed, other workers take over its objects
    /// after this time. 300 ms to 1 hour, default 5 s.
    pub lease: Duration,
    /// The longest time that the worker's loop may stand still, for example because handlers block
    /// the threads of the worker's runtime. After that the process lets its lease go, and other
    /// workers take over its objects. Each batch in hand then counts a crash.
    ///
    /// A delivery that blocks its thread for this time beyond its timeout **ends the process** with
    /// exit code 4, because nothing else frees the thread. Only
    /// [`Handlers`](crate::handlers::Handlers) have a timeout; for other sinks the timeout is 0. 1
    /// s to 1 hour, default 60 s.
    pub stall_max: Duration,
    /// The longest wait for a marker in one command. 10 ms to 1 s, default 1 s.
    pub block: Duration,
    /// The interval at which a process looks for names without a lease. If a step of Redis' clock
    /// ends a lease, the process of the lease notices this within this time or a third of `lease`,
    /// whichever is shorter. Other processes take its name over only after that time, which each of
    /// them computes from its own settings. So if this time is longer than 3 s, all workers of a
    /// namespace should have similar values. 50 ms to 1 minute, default 1 s.
    pub sweep: Duration,
    /// The time that a graceful stop gives the sink to finish the events in hand. Up to 1 hour,
    /// default 25 s.
    pub grace: Duration,
    /// The time that a start waits for a Redis that is loading or cannot be reached. A wrong user
    /// or password, or a missing right, ends the start at once. Up to 1 hour, or [`Duration::MAX`]
    /// for no limit. Default 30 s.
    pub connect_timeout: Duration,
    /// The longest time that a call waits without any byte being sent or received on its
    /// connection. After that the connection is replaced. So a large reply on a slow link may take
    /// as long as it needs. An attempt to connect may take this time in total. 100 ms to 10
    /// minutes, default 5 s.
    pub response_timeout: Duration,
    /// The retry policy. Default: retry after 100 ms, doubling to 1 minute with jitter, for ever.
    pub retry: RetryPolicy,
    /// The retry policies of some types of events. An event's type is its top-level member `type`,
    /// if that is a string. Default: empty.
    pub retry_types: BTreeMap<String, RetryPolicy>,
    /// The longest wait between two tries of an unavailable sink; the first wait is 100 ms. 100 ms
    /// to 1 hour, default 1 s.
    pub probe_max: Duration,
    /// The place of the time in an event, from which the worker measures the event's age. By
    /// default, no age is measured.
    pub event_time: Option<Pointer>,
    /// The spans of deliveries, in a build with the feature `traces`. By default there are none.
    pub traces: Option<Traces>,
    /// The time for which the process keeps its batches while its sink is unavailable. After that
    /// the batches are held for other workers, due at once, and count no attempt. The process then
    /// claims one batch at a time to try the sink. If the sink is still unavailable after the same
    /// time again, the process gives this batch back and claims another one. 100 ms to 1 hour,
    /// default 1 minute.
    pub unavailable_max: Duration,
    /// The longest time for which an event waits for a process that knows it
    /// ([`Stop::Unknown`](crate::sink::Stop::Unknown)), e.g. one with a handler for its type. After
    /// that it is rejected. The wait begins when a process first meets the event. Up to 30 days,
    /// default 24 h.
    pub unknown_max: Duration,
    /// The number of workers that may die with the same event in hand before `crashes_then`
    /// applies. 1 to 1000, default 5. A process has few events with crashes in hand at a time. It
    /// has at most one event in hand that would reach the limit with one more crash. So no two
    /// events reach the limit by the same death. This needs a limit of at least 2.
    pub crashes_max: u32,
    /// The fate of an event that has reached `crashes_max`. All workers should have the same value.
    /// Default: the event waits for an operator.
    pub crashes_then: UsedUp,
    /// The time for which the last id of an object is kept after the object's last event was
    /// delivered. After that, the object's next event has `prev` 0: see
    /// [`forget`](mod@crate::control::forget). All workers should have the same value. 1 s to 10
    /// years, default: for ever.
    pub forget_after: Option<Duration>,
    /// The limits of the event log, `event.log`. The event log has a row for every finalized event.
    /// All workers should have the same value. Default: only events completed with errors are
    /// logged, about the last 1,000.
    pub event_log: Option<EventLog>,
    /// The number of replicas that must have a batch before the sink gets it: 0 to 100, default 0,
    /// no wait. If this is the number of all replicas, an id that a receiver has seen survives the
    /// loss of the master.
    pub wait: u32,
    /// The time after which a worker logs that replicas are missing, and waits again. 10 ms to 1
    /// minute, default 1 s.
    pub wait_timeout: Duration,
    /// Whether a batch must also be on the disks of the master and of the replicas. Uses `WAITAOF`,
    /// which needs Redis 7.2 or later, and `appendonly yes` on all these servers. Default: no.
    pub wait_local: bool,
    /// The ways in which Redis may run the script that commits and claims: as a function of a
    /// library, or as a script. Default: as a function if Redis accepts the library.
    pub scripts: Scripts,
    /// Whether to take the name at once from a live process, which then stops. Default: no.
    pub takeover: bool,
    /// The first id of a new namespace: 1 to 2^52, or 0 (default). With 0, ids begin at the
    /// server's time in microseconds, above all ids ever given. With another number, ids may be
    /// given again if Redis loses its data and no process is left that remembers the earlier ids.
    pub first_id: u64,
    /// The random name of these settings, whatever `name` is.
    pub(crate) drawn_name: String,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        let name = default_name();
        Self {
            drawn_name: name.clone(),
            name,
            keys: Keys::new(),
            concurrency: 256,
            batch: 256,
            batch_bytes: 1024 * 1024,
            reply_bytes: 2 * 1024 * 1024,
            turn_max: 1024,
            group_depth: 0,
            lease: Duration::from_secs(5),
            stall_max: Duration::from_secs(60),
            block: Duration::from_secs(1),
            sweep: Duration::from_secs(1),
            grace: Duration::from_secs(25),
            connect_timeout: Duration::from_secs(30),
            response_timeout: Duration::from_secs(5),
            retry: RetryPolicy::default(),
            retry_types: BTreeMap::new(),
            probe_max: Duration::from_secs(1),
            event_time: None,
            traces: None,
            unavailable_max: Duration::from_secs(60),
            unknown_max: Duration::from_secs(24 * 60 * 60),
            crashes_max: 5,
            crashes_then: UsedUp::Hold,
            forget_after: None,
            event_log: None,
            wait: 0,
            wait_timeout: Duration::from_secs(1),
            wait_local: false,
            scripts: Scripts::default(),
            takeover: false,
            first_id: 0,
        }
    }
}

/// A setting that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}; {range}")]
pub struct ConfigError {
    /// The name of the setting.
    pub setting: &'static str,
    /// The given value.
    pub value: String,
    /// The valid range.
    pub range: &'static str,
}

impl WorkerConfig {
    /// Checks the range of every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let name_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let name_ok = (1..=64).contains(&self.name.len()) && self.name.bytes().all(name_byte);
        check(
            "name",
            &self.name,
            name_ok,
            "it must be 1 to 64 of the characters A-Z a-z 0-9 _ -",
        )?;
        check_number(
            "concurrency",
            self.concurrency,
            1,
            CONCURRENCY_MAX,
            "it must be 1 to 1024 slots",
        )?;
        check_number(
            "batch",
            self.batch,
            1,
            BATCH_MAX,
            "it must be 1 to 1000 events",
        )?;
        check_number(
            "batch_bytes",
            self.batch_bytes,
            1,
            BATCH_BYTES_MAX,
            "it must be 1 to 2097152 bytes",
        )?;
        check_number(
            "reply_bytes",
            self.reply_bytes,
            1,
            REPLY_BYTES_MAX,
            "it must be 1 to 4194304 bytes",
        )?;
        check_number(
            "turn_max",
            self.turn_max,
            1,
            usize::MAX,
            "it must be at least 1 event",
        )?;
        check_number(
            "group_depth",
            self.group_depth,
            0,
            8,
            "it must be 0 to 8 parts",
        )?;
        check_number(
            "crashes_max",
            self.crashes_max,
            1,
            1000,
            "it must be 1 to 1000 crashes",
        )?;
        check_number(
            "first_id",
            self.first_id,
            0,
            1 << 52,
            "it must be 0 to 4503599627370496",
        )?;
        check_number("wait", self.wait, 0, 100, "it must be 0 to 100 replicas")?;
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        check_time(
            "wait_timeout",
            self.wait_timeout,
            ms(10),
            s(60),
            "it must be 10 ms to 1 min",
        )?;
        let hour = s(3600);
        check_time(
            "lease",
            self.lease,
            ms(300),
            hour,
            "it must be 300 ms to 1 h",
        )?;
        check_time(
            "stall_max",
            self.stall_max,
            s(1),
            hour,
            "it must be 1 s to 1 h",
        )?;
        check_time("block", self.block, ms(10), s(1), "it must be 10 ms to 1 s")?;
        check_time(
            "sweep",
            self.sweep,
            ms(50),
            s(60),
            "it must be 50 ms to 1 min",
        )?;
        check_time("grace", self.grace, ms(0), hour, "it must be at most 1 h")?;
        if self.connect_timeout != Duration::MAX {
            check_time(
                "connect_timeout",
                self.connect_timeout,
                ms(0),
                hour,
                "it must be at most 1 h",
            )?;
        }
        check_time(
            "response_timeout",
            self.response_timeout,
            ms(100),
            s(600),
            "it must be 100 ms to 10 min",
        )?;
        check_time(
            "probe_max",
            self.probe_max,
            ms(100),
            hour,
            "it must be 100 ms to 1 h",
        )?;
        check_time(
            "unavailable_max",
            self.unavailable_max,
            ms(100),
            hour,
            "it must be 100 ms to 1 h",
        )?;
        check_time(
            "unknown_max",
            self.unknown_max,
            ms(0),
            30 * 24 * hour,
            "it must be at most 30 days",
        )?;
        let forget_after = self.forget_after.unwrap_or(hour);
        check_time(
            "forget_after",
            forget_after,
            s(1),
            10 * 366 * 24 * hour,
            "it must be 1 s to 10 years",
        )?;
        let log = self.event_log.unwrap_or_default();
        check_number(
            "event_log_keep",
            log.keep,
            1,
            1_000_000_000_000,
            "it must be 1 to 1000000000000 rows",
        )?;
        let keep_for = log.keep_for.unwrap_or(hour);
        check_time(
            "event_log_keep_for",
            keep_for,
            s(1),
            10 * 366 * 24 * hour,
            "it must be 1 s to 10 years",
        )?;
        let retry = |setting, policy: &RetryPolicy| {
            policy.validate().map_err(|range| ConfigError {
                setting,
                value: policy.to_string(),
                range,
            })
        };
        retry("retry", &self.retry)?;
        self.retry_types
            .values()
            .try_for_each(|policy| retry("retry_types", policy))
    }

    /// Returns whether the name is random, so that no other process ever has it.
    pub(crate) fn has_random_name(&self) -> bool {
        self.name == self.drawn_name
    }

    /// Returns the worker id of a slot, `NAME.SLOT`.
    pub(crate) fn worker(&self, slot: usize) -> String {
        format!("{}.{slot}", self.name)
    }

    /// Returns the wait for replicas before a delivery.
    pub(crate) fn wait(&self) -> Option<Wait> {
        Wait::new(self.wait, self.wait_timeout, self.wait_local)
    }

    /// Returns the number of crashes at which a script holds an event for an operator. 0: scripts
    /// hold no event because of its crashes. Then the process that gets the event ends it without a
    /// delivery.
    pub(crate) fn crashes_held(&self) -> u32 {
        if self.crashes_then == UsedUp::Hold {
            self.crashes_max
        } else {
            0
        }
    }

    /// Returns the number of suspects that a process with nothing in hand may take.
    pub(crate) fn suspects(&self) -> Suspects {
        Suspects::of(self.crashes_max, self.crashes_then != UsedUp::Hold)
    }

    /// Returns the fate of a batch's first event if the event has too many crashes and this process
    /// must end it without a delivery; otherwise `None`.
    pub(crate) fn crashed(&self, tag: Tag) -> Option<UsedUp> {
        (tag.crashes >= self.crashes_max && self.crashes_then != UsedUp::Hold)
            .then_some(self.crashes_then)
    }

    /// Returns the retry policy of this event.
    pub(crate) fn retry_of(&self, payload: &[u8]) -> RetryPolicy {
        let of_type = || self.retry_types.get(&type_of(payload)?);
        let found = if self.retry_types.is_empty() {
            None
        } else {
            of_type()
        };
        found.copied().unwrap_or(self.retry)
    }
}

fn check(
    setting: &'static str,
    value: &str,
    ok: bool,
    range: &'static str,
) -> Result<(), ConfigError> {
    if ok {
        Ok(())
    } else {
        Err(ConfigError {
            setting,
            value: format!("{value:?}"),
            range,
        })
    }
}

fn check_number<N: PartialOrd + ToString>(
    setting: &'static str,
    n: N,
    min: N,
    max: N,
    range: &'static str,
) -> Result<(), ConfigError> {
    if n >= min && n <= max {
        Ok(())
    } else {
        Err(ConfigError {
            setting,
            value: n.to_string(),
            range,
        })
    }
}

fn check_time(
    setting: &'static str,
    time: Duration,
    min: Duration,
    max: Duration,
    range: &'static str,
) -> Result<(), ConfigError> {
    if time >= min && time <= max {
        Ok(())
    } else {
        Err(ConfigError {
            setting,
            value: format!("{time:?}"),
            range,
        })
    }
}

fn default_name() -> String {
    let host = host_name();
    let host: String = host
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '-'
            }
        })
        .take(55)
        .collect();
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!(
        "{}-{}",
        if host.is_empty() { "worker" } else { &host },
        &random[..8]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::times::retry::Backoff;

    #[test]
    fn the_defaults_are_valid() {
        WorkerConfig::default().validate().expect("valid");
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let config = WorkerConfig {
            name: "a.b".to_owned(),
            ..WorkerConfig::default()
        };
        assert_eq!(config.validate().map_err(|e| e.setting), Err("name"));
        let config = WorkerConfig {
            concurrency: 0,
            ..WorkerConfig::default()
        };
        assert_eq!(
            config.validate().map_err(|e| e.to_string()),
            Err("concurrency is 0; it must be 1 to 1024 slots".to_owned())
        );
        let config = WorkerConfig {
            lease: Duration::from_millis(10),
            ..WorkerConfig::default()
        };
        assert_eq!(config.validate().map_err(|e| e.setting), Err("lease"));
    }

    #[test]
    fn a_policy_out_of_its_range_is_named() {
        let mut config = WorkerConfig::default();
        config
            .retry_types
            .insert("moved".to_owned(), "fixed:1s".parse().expect("a policy"));
        config.validate().expect("valid");
        config.retry = RetryPolicy {
            backoff: Backoff::Fixed(Duration::ZERO),
            ..RetryPolicy::default()
        };
        let error = config.validate().map_err(|error| error.to_string());
        assert_eq!(
            error,
            Err("retry is fixed:0s; a wait must be 1 ms to 24 h".to_owned())
        );
        config
            .retry_types
            .insert("moved".to_owned(), std::mem::take(&mut config.retry));
        assert_eq!(
            config.validate().map_err(|error| error.setting),
            Err("retry_types")
        );
    }

    #[test]
    fn a_type_may_have_a_policy_of_its_own() {
        let mut config = WorkerConfig::default();
        let moved = br#"{"type":"moved"}"#;
        assert_eq!(config.retry_of(moved), RetryPolicy::default());
        config
            .retry_types
            .insert("moved".to_owned(), RetryPolicy::MINUTE);
        assert_eq!(
            (config.retry_of(moved), config.retry_of(b"{}")),
            (RetryPolicy::MINUTE, RetryPolicy::default())
        );
    }
}
