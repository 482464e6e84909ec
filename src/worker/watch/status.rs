//! The status of a process. Each process writes its status into Redis once per second, for the
//! command `stats` and for dashboards.
//!
//! The key of the status has the same time to live as the lease. So the key expires soon after its
//! process has ended. The status is advice: no decision depends on it, and a write that fails is
//! not repeated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use redis::aio::ConnectionLike;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::warn;

use crate::connection::errors::{describe, is_outage};
use crate::worker::config::WorkerConfig;
use crate::worker::watch::activity::{Activity, Vitals};
use crate::worker::watch::figures::{Distribution, SlotFigures, WorkerFigures};

/// The time between two writes of the status.
pub(in crate::worker) const EVERY: Duration = Duration::from_secs(1);
/// Some earlier figures are kept to compute the last minute. The first constant is the time between
/// two of them, the second is the most that are kept.
const KEEP_EVERY: Duration = Duration::from_secs(5);
const KEPT_MAX: usize = 12;
/// The most bytes that a text takes in the JSON of a status: first the object's name, then the
/// sink's name and the sink's error. The rest of a status has at most 800 bytes.
const OBJECT_BYTES: usize = 640;
const TEXT_BYTES: usize = 270;
/// The most bytes of the reason why the sink does not know an event.
const UNKNOWN_BYTES: usize = 90;

/// The last status that a worker process wrote. Its key is `event.worker:NAME:status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// Version of the library.
    pub version: String,
    /// Name of the sink without secrets; empty if the sink has no name.
    pub sink: String,
    /// Time since the sink became available, or since the worker began to deliver, ms; none while
    /// the sink is unavailable.
    pub sink_up_ms: Option<u64>,
    /// Time since the sink became unavailable, ms; none while the sink is available.
    pub sink_down_ms: Option<u64>,
    /// The last error of the unavailable sink; empty while the sink is available.
    pub sink_error: String,
    /// Time of the last round trip to Redis that wrote a status, µs; none in the first status.
    pub redis_rtt_us: Option<u64>,
    /// The way in which Redis runs the script that commits and claims: `functions` or `eval`; empty
    /// for a process of an older version.
    pub scripts: String,
    /// Number of slots in each state.
    pub slots: SlotFigures,
    /// Events delivered since the start of the process.
    pub delivered: u64,
    /// Events that became dead letters.
    pub rejected: u64,
    /// Events completed with errors.
    pub completed_with_errors: u64,
    /// Deliveries that ended with a transient failure.
    pub transient: u64,
    /// Deliveries that ended because the sink does not know the event.
    pub unknown: u64,
    /// The reason for the last one of them in the last minute; empty without any.
    pub unknown_error: String,
    /// The last minute.
    pub minute: LastMinute,
    /// The delivery that has been under way for the longest time; none if no delivery is under way.
    pub longest: Option<LongDelivery>,
}

/// Figures of about the last minute, or since the start of the process if that was later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LastMinute {
    /// The time that the figures cover, ms.
    pub ms: u64,
    /// Events delivered in that time.
    pub delivered: u64,
    /// Deliveries in that time that ended because the sink does not know the event. The objects
    /// wait for a worker that knows it.
    pub unknown: u64,
    /// Times of deliveries.
    pub delivery: Quantiles,
    /// Times from the sink's answers to the commits in Redis.
    pub commit: Quantiles,
    /// Times of calls of scripts in Redis: the round trip and the work of the script.
    pub redis: Quantiles,
}

/// Two quantiles of times. Each is given as the upper bound of the range in which it lies. The
/// bounds are 100 µs times powers of 2.5. `None` if there are no values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quantiles {
    /// The median, µs.
    pub p50_us: Option<u64>,
    /// The 99th percentile, µs.
    pub p99_us: Option<u64>,
}

impl Quantiles {
    fn of(times: &Distribution) -> Self {
        let us = |part| {
            times
                .quantile(part)
                .map(|seconds| (seconds * 1e6).round() as u64)
        };
        Self {
            p50_us: us(0.5),
            p99_us: us(0.99),
        }
    }
}

/// A delivery under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LongDelivery {
    /// The object; a long name is cut.
    pub object: String,
    /// The id of the event.
    pub id: u64,
    /// Time since the sink got the batch, ms.
    pub since_ms: u64,
}

/// Writes the status of one process.
pub(in crate::worker) struct StatusWriter {
    key: String,
    lease: Duration,
    sink: String,
    vitals: Vitals,
    /// Earlier figures, oldest first, to compute the last minute.
    past: VecDeque<(Instant, WorkerFigures)>,
    /// Time of the last write, µs.
    round_trip_us: Option<u64>,
    has_told: bool,
}

impl StatusWriter {
    pub(in crate::worker) fn new(
        config: &WorkerConfig,
        activity: &Arc<Activity>,
        sink: &str,
    ) -> Self {
        let (key, lease) = (config.keys.worker_status(&config.name), config.lease);
        let (sink, vitals) = (cut(sink, TEXT_BYTES), Vitals(Arc::clone(activity)));
        Self {
            key,
            lease,
            sink,
            vitals,
            past: VecDeque::new(),
            round_trip_us: None,
            has_told: false,
        }
    }

    /// Writes the status. A refusal, e.g. because Redis is out of memory, is logged once and has no
    /// other effect.
    ///
    /// # Errors
    /// Redis is away.
    pub(in crate::worker) async fn write(
        &mut self,
        conn: &mut impl ConnectionLike,
    ) -> Result<(), RedisError> {
        let status = self.status(Instant::now());
        // Serializing plain values cannot fail.
        let Ok(text) = serde_json::to_string(&status) else {
            return Ok(());
        };
        let mut set = redis::cmd("SET");
        set.arg(&self.key)
            .arg(text)
            .arg("PX")
            .arg(u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX));
        let began = Instant::now();
        let written = set.query_async::<()>(conn).await;
        self.round_trip_us = written
            .is_ok()
            .then(|| u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        unless_refused(written, &self.key, &mut self.has_told)
    }

    fn status(&mut self, now: Instant) -> WorkerStatus {
        let figures = self.vitals.figures();
        let minute = self.last_minute(now, &figures);
        if self
            .past
            .back()
            .is_none_or(|(at, _)| now - *at >= KEEP_EVERY)
        {
            self.past.push_back((now, figures.clone()));
            if self.past.len() > KEPT_MAX {
                self.past.pop_front();
            }
        }
        WorkerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sink: self.sink.clone(),
            sink_up_ms: figures.sink.up_for.map(ms),
            sink_down_ms: figures.sink.down_for.map(ms),
            sink_error: cut(&figures.sink.error, TEXT_BYTES),
            redis_rtt_us: self.round_trip_us,
            scripts: figures.way.word().to_owned(),
            slots: figures.slots,
            delivered: figures.delivered,
            rejected: figures.rejected,
            completed_with_errors: figures.completed_with_errors,
            transient: figures.delivery.transient.count(),
            unknown: figures.delivery.unknown.count(),
            unknown_error: if minute.unknown > 0 {
                cut(&figures.unknown_error, UNKNOWN_BYTES)
            } else {
                String::new()
            },
            minute,
            longest: figures.longest.map(|longest| LongDelivery {
                object: cut(&longest.object, OBJECT_BYTES),
                id: longest.id,
                since_ms: ms(longest.since),
            }),
        }
    }

    fn last_minute(&self, now: Instant, figures: &WorkerFigures) -> LastMinute {
        let Some((at, before)) = self.past.front() else {
            return LastMinute::default();
        };
        let since =
            |of: fn(&WorkerFigures) -> Distribution| Quantiles::of(&of(figures).since(&of(before)));
        LastMinute {
            ms: ms(now - *at),
            delivered: figures.delivered.saturating_sub(before.delivered),
            unknown: figures
                .delivery
                .unknown
                .count()
                .saturating_sub(before.delivery.unknown.count()),
            delivery: since(|figures| figures.delivery.all()),
            commit: since(|figures| figures.commit.clone()),
            redis: since(|figures| figures.calls.all()),
        }
    }
}

/// Returns the result of a write that nothing depends on. A refusal of Redis is logged once, and
/// counts as a success.
pub(super) fn unless_refused(
    written: Result<(), RedisError>,
    key: &str,
    has_told: &mut bool,
) -> Result<(), RedisError> {
    match written {
        Err(error) if !is_outage(&error) => {
            if !std::mem::replace(has_told, true) {
                warn!(
                    key,
                    error = describe(&error),
                    "recover: the status of this process, or its reports, cannot be written"
                );
            }
            Ok(())
        }
        done => done,
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a text unchanged if it has at most this many bytes in JSON. Otherwise returns the
/// beginning of the text with an ellipsis, together at most this many bytes.
fn cut(text: &str, bytes_max: usize) -> String {
    let in_json = |c: char| match c {
        '"' | '\\' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    };
    let (mut bytes, mut end) = (0, 0);
    for (at, c) in text.char_indices() {
        bytes += in_json(c);
        if bytes > bytes_max {
            return format!("{}…", &text[..end]);
        }
        if bytes + '…'.len_utf8() <= bytes_max {
            end = at + c.len_utf8();
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_its_size_in_json() {
        assert_eq!(cut("work:1", 6), "work:1");
        assert_eq!(cut("work:11", 6), "wor…");
        assert_eq!(cut(&"é".repeat(10), 11), "éééé…");
        for text in [
            "\u{1}".repeat(1000),
            "\"".repeat(1000),
            "é".repeat(1000),
            "a".repeat(1000),
        ] {
            let json = serde_json::to_string(&cut(&text, TEXT_BYTES)).expect("a string");
            assert!(
                json.len() <= TEXT_BYTES + 2 && json.len() > TEXT_BYTES - 10,
                "{}",
                json.len()
            );
        }
    }

    /// Tests the size of the largest status, and that an older or newer version can read it.
    #[test]
    fn a_status_has_at_most_2_kb() {
        let config = WorkerConfig {
            name: "n".repeat(64),
            ..WorkerConfig::default()
        };
        let activity = Arc::<Activity>::default();
        activity.figures.sink_is_down(&"\u{1}".repeat(1000));
        let mut writer = StatusWriter::new(&config, &activity, &"\"".repeat(1000));
        let all = Quantiles {
            p50_us: Some(93_132_257),
            p99_us: Some(93_132_257),
        };
        let mut status = writer.status(Instant::now());
        status.slots = SlotFigures {
            free: 1024,
            asked: 1024,
            delivering: 1024,
            reported: 1024,
            parked: 1024,
        };
        (
            status.delivered,
            status.rejected,
            status.completed_with_errors,
            status.transient,
        ) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        (status.unknown, status.unknown_error) =
            (u64::MAX, cut(&"\u{1}".repeat(1000), UNKNOWN_BYTES));
        status.minute = LastMinute {
            ms: u64::MAX,
            delivered: u64::MAX,
            unknown: u64::MAX,
            delivery: all,
            commit: all,
            redis: all,
        };
        let object = cut(&"\u{1}".repeat(512), OBJECT_BYTES);
        status.longest = Some(LongDelivery {
            object,
            id: u64::MAX,
            since_ms: u64::MAX,
        });
        (status.sink_up_ms, status.sink_down_ms, status.redis_rtt_us) =
            (Some(u64::MAX), Some(u64::MAX), Some(u64::MAX));
        let text = serde_json::to_string(&status).expect("JSON");
        assert!(text.len() <= 2048, "{}: {text}", text.len());
        assert_eq!(
            serde_json::from_str::<WorkerStatus>(&text).expect("a status"),
            status
        );
        assert_eq!(
            serde_json::from_str::<WorkerStatus>(r#"{"new":1}"#).expect("a status"),
            WorkerStatus::default()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_minute_leaves_out_what_was_before() {
        let activity = Arc::<Activity>::default();
        let mut writer = StatusWriter::new(&WorkerConfig::default(), &activity, "null");
        let slow = Duration::from_secs(1);
        activity.figures.delivery_ended(slow, None);
        for second in 0..=120 {
            let minute = writer.status(Instant::now()).minute;
            // The slow delivery was before the first status, so it is in no last minute.
            assert_eq!(
                minute.delivery.p50_us.is_some(),
                (61..=120).contains(&second),
                "{second}: {minute:?}"
            );
            assert!(minute.ms <= 60_000, "{minute:?}");
            if second == 60 {
                activity
                    .figures
                    .delivery_ended(Duration::from_millis(1), None);
            }
            tokio::time::advance(EVERY).await;
        }
    }
}
