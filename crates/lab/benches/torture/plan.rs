//! The schedule of faults. The seed determines all of it before anything starts.

use std::time::Duration;

use crate::http::Bad;
use crate::random::{Draw as _, Random};
use crate::rules::RuleSet;
use crate::shares::ShareSet;

/// One fault. Workers are identified by number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// SIGKILL to a worker process. The worker is started again after `down`.
    WorkerKilled { worker: usize, down: Duration },
    /// SIGSTOP to a worker process, and SIGCONT after `time`, which is longer than the lease.
    WorkerPaused { worker: usize, time: Duration },
    /// SIGTERM to a worker process. The worker is started again when it has stopped.
    WorkerStopped { worker: usize },
    /// SIGTERM to one worker process after the other. Each worker is started again before the next
    /// one is stopped.
    RollingRestart,
    /// SIGKILL to Redis. Redis is started again after `down`, with `appendfsync always` if
    /// `always`. If `appendfsync` was `everysec`, `cut` may be given. Then the writes of this time
    /// before the kill are removed from the append-only file, as in a power loss.
    RedisKilled {
        down: Duration,
        cut: Option<Duration>,
        always: bool,
    },
    /// SIGKILL to Redis and to all worker processes at once. `down`, `cut` and `always` are as in
    /// `RedisKilled`.
    PowerLost {
        down: Duration,
        cut: Option<Duration>,
        always: bool,
    },
    /// Another process takes over the worker's name. If `paused` is given, the worker is stopped by
    /// SIGSTOP for this time when the other process starts.
    WorkerDisplaced {
        worker: usize,
        paused: Option<Duration>,
    },
    /// DEBUG SLEEP: Redis stands still.
    RedisAsleep { time: Duration },
    /// CLIENT PAUSE: Redis runs no commands if `all`, and otherwise no writes.
    ClientsPaused { time: Duration, all: bool },
    /// SCRIPT FLUSH: Redis forgets all scripts.
    ScriptsFlushed,
    /// `maxmemory` is reached, and raised again after `time`.
    OutOfMemory { time: Duration },
    /// One connection is cut after this many further bytes from its client.
    RequestCut { bytes: usize },
    /// One connection is cut after this many further bytes from Redis.
    ReplyCut { bytes: usize },
    /// All bytes to and from Redis are delayed by `delay`.
    Latency { delay: Duration, time: Duration },
    /// One connection stays open, but the proxy passes no more of its bytes.
    HalfOpen,
    /// A pause or a block. It is lifted after `time`, or ends by itself at that time if `ends`.
    Ruled {
        rule: RuleSet,
        time: Duration,
        ends: bool,
    },
    /// A share. It is removed after `time`.
    Shared { share: ShareSet, time: Duration },
    /// The next delivery of the blocking worker (`blocking`) blocks its thread.
    HandlerBlocked { time: Duration },
    /// All connections share a link of 1 MB/s in each direction.
    LinkSlow { time: Duration },
    /// SIGKILL to Redis. Redis is started again after `down`, without data.
    RedisEmptied { down: Duration },
    /// Redis' clock steps forward or back by an hour, and steps to the right time again after
    /// `time`.
    ClockStepped { back: bool, time: Duration },
    /// A key of the protocol is deleted. `pick` selects it among the keys that exist then. After
    /// `wait`, an operator repairs.
    KeyLost { pick: u64, wait: Duration },
    /// All clients are disconnected, and Redis accepts no clients for `time`.
    ClientsFull { time: Duration },
    /// The registration and the lease of a running worker are deleted.
    WorkerUnregistered { worker: usize },
    /// The HTTP receiver throttles, refuses some objects, or answers some requests too late, for
    /// `time`.
    ReceiverBad { bad: Bad, time: Duration },
}

/// The names of the kinds of faults. Their order is that of the numbers of [`Fault::kind`].
pub(crate) const KINDS: [&str; 27] = [
    "worker SIGKILL",
    "worker SIGSTOP beyond its lease",
    "worker SIGTERM",
    "rolling restart",
    "Redis SIGKILL",
    "Redis DEBUG SLEEP",
    "Redis CLIENT PAUSE",
    "SCRIPT FLUSH",
    "maxmemory reached",
    "request cut",
    "reply cut",
    "latency",
    "half-open",
    "power lost",
    "worker displaced by --takeover",
    "rule set and lifted",
    "handler blocks its thread",
    "link at 1 MB/s",
    "Redis restarted empty",
    "Redis' clock stepped by 1 h",
    "share set and removed",
    "key lost and repaired",
    "maxclients reached",
    "lease and registration lost",
    "receiver throttles",
    "receiver refuses some objects",
    "receiver answers too late",
];

/// Number of faults of each kind in ten minutes.
const PER_TEN_MINUTES: [u64; KINDS.len()] = [
    480, 60, 40, 5, 50, 20, 20, 60, 20, 200, 200, 60, 40, 15, 40, 120, 60, 30, 3, 12, 120, 30, 20,
    20, 15, 40, 30,
];

/// The kind of fault by which Redis loses data even with `appendfsync always`. A run that must lose
/// nothing has no fault of this kind.
const EMPTIED: usize = 18;

impl Fault {
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::WorkerKilled { .. } => 0,
            Self::WorkerPaused { .. } => 1,
            Self::WorkerStopped { .. } => 2,
            Self::RollingRestart => 3,
            Self::RedisKilled { .. } => 4,
            Self::RedisAsleep { .. } => 5,
            Self::ClientsPaused { .. } => 6,
            Self::ScriptsFlushed => 7,
            Self::OutOfMemory { .. } => 8,
            Self::RequestCut { .. } => 9,
            Self::ReplyCut { .. } => 10,
            Self::Latency { .. } => 11,
            Self::HalfOpen => 12,
            Self::PowerLost { .. } => 13,
            Self::WorkerDisplaced { .. } => 14,
            Self::Ruled { .. } => 15,
            Self::HandlerBlocked { .. } => 16,
            Self::LinkSlow { .. } => 17,
            Self::RedisEmptied { .. } => 18,
            Self::ClockStepped { .. } => 19,
            Self::Shared { .. } => 20,
            Self::KeyLost { .. } => 21,
            Self::ClientsFull { .. } => 22,
            Self::WorkerUnregistered { .. } => 23,
            Self::ReceiverBad {
                bad: Bad::Throttles,
                ..
            } => 24,
            Self::ReceiverBad {
                bad: Bad::Refuses { .. },
                ..
            } => 25,
            Self::ReceiverBad {
                bad: Bad::Stalls { .. },
                ..
            } => 26,
        }
    }

    fn of(kind: usize, random: &mut Random, appendfsync: Appendfsync, workers: usize) -> Self {
        let worker = random.below(workers as u64) as usize;
        match kind {
            0 => {
                // Half of the killed workers are started again at once, and continue their objects.
                // The others stay down for so long that other workers may take over their objects.
                let down = if random.chance(50) {
                    Duration::ZERO
                } else {
                    random.ms(200, 2500)
                };
                Self::WorkerKilled { worker, down }
            }
            1 => Self::WorkerPaused {
                worker,
                time: random.ms(1200, 3000),
            },
            2 => Self::WorkerStopped { worker },
            3 => Self::RollingRestart,
            4 | 13 => {
                let always = match appendfsync {
                    Appendfsync::Always => true,
                    Appendfsync::Everysec => false,
                    Appendfsync::Mixed => random.chance(50),
                };
                let cut = random.chance(60).then(|| random.ms(0, 1000));
                let down = random.ms(0, 400);
                if kind == 4 {
                    Self::RedisKilled { down, cut, always }
                } else {
                    Self::PowerLost { down, cut, always }
                }
            }
            5 => Self::RedisAsleep {
                time: random.ms(200, 2500),
            },
            6 => Self::ClientsPaused {
                time: random.ms(200, 2500),
                all: random.chance(50),
            },
            7 => Self::ScriptsFlushed,
            8 => Self::OutOfMemory {
                time: random.ms(300, 2500),
            },
            9 => Self::RequestCut {
                bytes: Self::some_bytes(random),
            },
            10 => Self::ReplyCut {
                bytes: Self::some_bytes(random),
            },
            11 => Self::Latency {
                delay: random.ms(1, 120),
                time: random.ms(500, 3000),
            },
            12 => Self::HalfOpen,
            15 => {
                let rule = RuleSet::of(random);
                Self::Ruled {
                    rule,
                    time: random.ms(200, if rule.is_for_all() { 1500 } else { 4000 }),
                    ends: random.chance(30),
                }
            }
            // The lease is 1 s, and `stall_max` is 2 s. So after some blocks the worker still has
            // its lease, and after longer ones it has lost the lease.
            16 => Self::HandlerBlocked {
                time: random.ms(200, 4000),
            },
            17 => Self::LinkSlow {
                time: random.ms(500, 4000),
            },
            18 => Self::RedisEmptied {
                down: random.ms(0, 400),
            },
            19 => Self::ClockStepped {
                back: random.chance(50),
                time: random.ms(2000, 6000),
            },
            20 => Self::Shared {
                share: ShareSet::of(random),
                time: random.ms(200, 6000),
            },
            21 => Self::KeyLost {
                pick: random.u64(..),
                wait: random.ms(1000, 5000),
            },
            22 => Self::ClientsFull {
                time: random.ms(300, 4000),
            },
            23 => Self::WorkerUnregistered { worker },
            24 => Self::ReceiverBad {
                bad: Bad::Throttles,
                time: random.ms(300, 2000),
            },
            25 => Self::ReceiverBad {
                bad: Bad::refuses(random),
                time: random.ms(500, 4000),
            },
            26 => Self::ReceiverBad {
                bad: Bad::stalls(random),
                time: random.ms(500, 3000),
            },
            _ => Self::WorkerDisplaced {
                worker,
                paused: random.chance(50).then(|| random.ms(300, 2500)),
            },
        }
    }

    /// Returns a number of bytes. Mostly the cut is then within the next command, sometimes many
    /// commands later.
    fn some_bytes(random: &mut Random) -> usize {
        let limit = [1, 20, 200, 2_000, 20_000][random.below(5) as usize];
        random.below(limit) as usize
    }
}

/// The setting of `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appendfsync {
    Always,
    Everysec,
    /// `always` or `everysec`: the setting is drawn again for each restart after a kill.
    Mixed,
}

/// Returns all faults, each with its time.
pub(crate) fn schedule(
    seed: u64,
    length: Duration,
    appendfsync: Appendfsync,
    workers: usize,
) -> Vec<(Duration, Fault)> {
    let mut plan = Vec::new();
    for (kind, count) in PER_TEN_MINUTES.into_iter().enumerate() {
        if kind == EMPTIED && appendfsync == Appendfsync::Always {
            continue;
        }
        // Each kind has its own random sequence, so that a changed rate of one kind leaves the
        // others unchanged.
        let mut random =
            Random::with_seed(seed ^ (kind as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95));
        let mean_ms = 600_000 / count;
        let mut at = random.ms(mean_ms / 10, mean_ms);
        while at < length {
            let fault = Fault::of(kind, &mut random, appendfsync, workers);
            plan.push((at, fault));
            // Some kills are followed by a second kill so soon that Redis may not yet have synced.
            if matches!(fault, Fault::RedisKilled { .. } | Fault::PowerLost { .. })
                && random.chance(30)
            {
                plan.push((
                    at + random.ms(300, 1500),
                    Fault::of(kind, &mut random, appendfsync, workers),
                ));
            }
            at += random.ms(mean_ms * 6 / 10, mean_ms * 14 / 10);
        }
    }
    plan.sort_by_key(|(at, fault)| (*at, fault.kind()));
    plan
}
