//! A private Redis in its worst state, and the time of one call.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use seriatim::keys::Keys;
use seriatim::wire::{
    self, Advance, Advanced, Attach, BatchReply, BatchResult, Bounds, ClaimFirst, Report,
};
use seriatim::worker::WorkerConfig;

use crate::support;

pub(crate) const NAME: &str = "w";
pub(crate) const TOKEN: &str = "token-1";
/// Number of measurements of a case. The shortest time counts, because every measurement has the
/// worst state, and any further delay is from the machine.
const SAMPLES: usize = 3;
/// Values, and bytes of each, that Redis stores and deletes before the measured call, so that its
/// allocator has memory at hand. Without them, the kernel of a virtual machine cleared new pages for 49 of
/// the 62 ms of a call that stores 1 MiB twice. The values are small, because jemalloc gives freed
/// memory back to the system at once if one piece has 8 MiB or more (`oversize_threshold`).
const WARM_VALUES: usize = 16;
const WARM_BYTES: isize = 1 << 20;

/// The settings of the worker process that calls the script: the default or the largest ones.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) is_largest: bool,
    /// Whether a case has read a setting.
    pub(crate) is_read: Cell<bool>,
}

impl Settings {
    /// Returns whether these are the largest settings, for a case.
    pub(crate) fn largest(&self) -> bool {
        self.is_read.set(true);
        self.is_largest
    }

    pub(crate) fn slots(&self) -> usize {
        if self.largest() {
            seriatim::worker::CONCURRENCY_MAX
        } else {
            WorkerConfig::default().concurrency
        }
    }

    pub(crate) fn batch(&self) -> usize {
        if self.largest() {
            seriatim::worker::BATCH_MAX
        } else {
            WorkerConfig::default().batch
        }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let config = WorkerConfig::default();
        Bounds {
            batch: self.batch(),
            batch_bytes: if self.largest() {
                seriatim::worker::BATCH_BYTES_MAX
            } else {
                config.batch_bytes
            },
            reply_bytes: if self.largest() {
                seriatim::worker::REPLY_BYTES_MAX
            } else {
                config.reply_bytes
            },
            claims: self.slots(),
            markers: 1024,
            forget_after: None,
            group_depth: 0,
            suspects: wire::Suspects::NONE,
        }
    }
}

pub(crate) type Run =
    for<'a> fn(&'a mut World, &'a Settings) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A case: `run` builds the state, calls [`World::begin`], and makes the measured calls.
pub(crate) struct Case {
    pub(crate) script: &'static str,
    pub(crate) state: &'static str,
    /// Time by which the bound is higher in this case, in ms: 3 ms for each MiB of one large event
    /// or of the emits of its handlers.
    pub(crate) more_ms: f64,
    pub(crate) run: Run,
}

pub(crate) fn case(script: &'static str, state: &'static str, run: Run) -> Case {
    Case {
        script,
        state,
        more_ms: 0.0,
        run,
    }
}

pub(crate) struct World {
    _redis: support::Redis,
    pub(crate) conn: MultiplexedConnection,
    pub(crate) keys: Keys,
}

impl World {
    pub(crate) async fn least(case: &Case, settings: &Settings, enough: Duration) -> Duration {
        let redis = support::Redis::own(&["--slowlog-max-len", "100000"]);
        let (conn, keys) = (redis.connect().await, redis.keys().clone());
        let mut world = Self {
            _redis: redis,
            conn,
            keys,
        };
        let mut times = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            world.cmd(redis::cmd("FLUSHALL").arg("SYNC")).await;
            (case.run)(&mut world, settings).await;
            let time = world.slowest().await;
            times.push(time);
            if time <= enough {
                break;
            }
        }
        times.into_iter().min().unwrap_or_default()
    }

    pub(crate) async fn cmd(&mut self, cmd: &mut redis::Cmd) -> Value {
        cmd.query_async(&mut self.conn).await.expect("a reply")
    }

    pub(crate) async fn pipe(&mut self, pipe: &redis::Pipeline) {
        pipe.exec_async(&mut self.conn).await.expect("replies");
    }

    /// Begins the measurement: from now on the slow log of Redis records every command.
    pub(crate) async fn begin(&mut self) {
        let warm: Vec<String> = (0..WARM_VALUES).map(|n| format!("warm:{n}")).collect();
        let mut pipe = redis::pipe();
        for key in &warm {
            pipe.setrange(key, WARM_BYTES - 1, "x").ignore();
        }
        pipe.del(warm).ignore();
        self.pipe(&pipe).await;
        self.cmd(
            redis::cmd("CONFIG")
                .arg("SET")
                .arg("slowlog-log-slower-than")
                .arg(0),
        )
        .await;
        self.cmd(redis::cmd("SLOWLOG").arg("RESET")).await;
    }

    /// Returns the duration of the slowest command since [`begin`](Self::begin), by the clock of
    /// Redis.
    async fn slowest(&mut self) -> Duration {
        self.cmd(
            redis::cmd("CONFIG")
                .arg("SET")
                .arg("slowlog-log-slower-than")
                .arg(-1),
        )
        .await;
        let entries: Vec<Vec<Value>> = redis::cmd("SLOWLOG")
            .arg("GET")
            .arg(-1)
            .query_async(&mut self.conn)
            .await
            .expect("the slow log");
        let micros = |entry: &Vec<Value>| match entry.get(2) {
            Some(Value::Int(micros)) => u64::try_from(*micros).unwrap_or(0),
            other => panic!("{other:?}"),
        };
        Duration::from_micros(entries.iter().map(micros).max().expect("a call"))
    }

    pub(crate) async fn attach(&mut self, slots: usize) {
        let lease = Duration::from_secs(600);
        let args = Attach {
            name: NAME,
            token: TOKEN,
            holder: "host 1 1",
            lease,
            slots,
            displace: "",
            before: "",
            crashes_max: 5,
            suspects: wire::Suspects::NONE,
        };
        wire::attach(&mut self.conn, &self.keys, &args)
            .await
            .expect("attached");
    }

    /// Pushes `events` events of `bytes` bytes and one marker for each of these objects.
    pub(crate) async fn emit(&mut self, objects: &[String], events: usize, bytes: usize) {
        let event = event(bytes);
        for some in objects.chunks(64) {
            let mut pipe = redis::pipe();
            for object in some {
                let mut left = events;
                while left > 0 {
                    let now = left.min((1 << 22) / bytes + 1);
                    pipe.cmd("LPUSH")
                        .arg(self.keys.events(object))
                        .arg(vec![event.clone(); now])
                        .ignore();
                    left -= now;
                }
                pipe.cmd("LPUSH")
                    .arg(self.keys.objects_with_events())
                    .arg(object)
                    .ignore();
            }
            self.pipe(&pipe).await;
        }
    }

    pub(crate) fn free(&self, settings: &Settings, from: ClaimFirst) -> Advance {
        let mut call = Advance::new(&self.keys, NAME, TOKEN, settings.bounds(), from);
        (0..settings.slots()).for_each(|slot| call.free(slot));
        call
    }

    pub(crate) async fn advance(&mut self, call: &Advance) -> Vec<BatchReply> {
        match wire::advance(&mut self.conn, call).await.expect("a reply") {
            Advanced::Ok { batches, .. } => batches,
            other => panic!("{other:?}"),
        }
    }

    /// Gives each slot a batch of a different object. Returns the batches.
    pub(crate) async fn fill(
        &mut self,
        settings: &Settings,
        events: usize,
        bytes: usize,
    ) -> Vec<BatchReply> {
        let objects = names(settings.slots(), "work");
        self.attach(settings.slots()).await;
        self.emit(&objects, events, bytes).await;
        let mut all: Vec<BatchReply> = Vec::new();
        let mut in_vain = 0;
        while all.len() < settings.slots() {
            let mut call = Advance::new(
                &self.keys,
                NAME,
                TOKEN,
                settings.bounds(),
                ClaimFirst::Markers,
            );
            (0..settings.slots())
                .filter(|slot| all.iter().all(|had| had.slot != *slot))
                .for_each(|slot| call.free(slot));
            let got = self.advance(&call).await;
            // A call may find only markers of held objects. The next call claims these objects.
            in_vain = if got.is_empty() { in_vain + 1 } else { 0 };
            assert!(
                in_vain < IN_VAIN_MAX,
                "{} of {} slots have a batch",
                all.len(),
                settings.slots()
            );
            all.extend(got);
        }
        all
    }
}

/// Number of consecutive calls without a batch after which a case fails.
const IN_VAIN_MAX: usize = 100;

pub(crate) fn done(batch: &BatchReply) -> Report {
    let count = batch.events.len();
    let last = Some(batch.tag.first + count as u64 - 1);
    Report {
        object: batch.object.clone(),
        tag: batch.tag,
        count,
        last,
        then: BatchResult::Done,
    }
}

pub(crate) fn event(bytes: usize) -> String {
    let frame = r#"{"text":""}"#.len();
    format!(
        r#"{{"text":"{}"}}"#,
        "x".repeat(bytes.saturating_sub(frame))
    )
}

pub(crate) fn names(count: usize, prefix: &str) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}:{n}")).collect()
}

/// Returns a valid object name with maximum length and maximum number of colons. It shares no
/// prefix with the names for other numbers `n`.
pub(crate) fn deep(n: usize) -> String {
    let prefix = format!("{n:04}{}", "x".repeat(50));
    format!(
        "{prefix}{}{}",
        ":xxxxxxx".repeat(8),
        ":".repeat(512 - prefix.len() - 64)
    )
}
