//! Writes the reports on the events under delivery to Redis, once per second, for `inspect`.
//!
//! The key has a time to live of a lease, as the status has. The reports are advice, too: no decision
//! depends on them. A process without a report writes nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use redis::aio::ConnectionLike;

use crate::worker::config::WorkerConfig;
use crate::worker::watch::activity::Activity;
use crate::worker::watch::status::unless_refused;

/// The most reports that a call writes. The next call begins with the slots behind these. A report has
/// at most 22 KiB, so a call has at most 1.4 MiB.
const WRITTEN_MAX: usize = 64;

/// Writes the reports of one session.
pub(in crate::worker) struct ReportWriter {
    key: String,
    lease: Duration,
    activity: Arc<Activity>,
    /// The version of each slot's report in Redis.
    written: HashMap<usize, u64>,
    /// The slot with which the next call begins.
    next: usize,
    /// Whether Redis may have reports of an earlier session, or unknown ones.
    is_unknown: bool,
    has_told: bool,
}

impl ReportWriter {
    pub(in crate::worker) fn new(config: &WorkerConfig, activity: &Arc<Activity>) -> Self {
        Self {
            key: config.keys.worker_reports(&config.name),
            lease: config.lease,
            activity: Arc::clone(activity),
            written: HashMap::new(),
            next: 0,
            is_unknown: true,
            has_told: false,
        }
    }

    /// Writes the reports that have changed, and deletes those whose events are over. A refusal, e.g.
    /// because Redis is out of memory, is logged once and has no other effect.
    ///
    /// # Errors
    /// Redis is away.
    pub(in crate::worker) async fn write(
        &mut self,
        conn: &mut impl ConnectionLike,
    ) -> Result<(), RedisError> {
        let Some(call) = self.call() else {
            return Ok(());
        };
        let written = call.query_async::<()>(conn).await;
        self.is_unknown = written.is_err();
        unless_refused(written, &self.key, &mut self.has_told)
    }

    /// Returns the next call, and records it as done; `None` if there is nothing to write.
    fn call(&mut self) -> Option<redis::Pipeline> {
        if self.is_unknown {
            self.written.clear();
        }
        let written = &self.written;
        let mut found = self.activity.reports(|slot, reported| {
            let is_new = written.get(&slot) != Some(&reported.version);
            (reported.version, is_new.then(|| reported.report.clone()))
        });
        let behind = found.partition_point(|(slot, _)| *slot < self.next);
        found.rotate_left(behind);
        let live: HashMap<_, _> = found
            .iter()
            .map(|(slot, (version, _))| (*slot, *version))
            .collect();
        let over: Vec<_> = written
            .keys()
            .copied()
            .filter(|slot| !live.contains_key(slot))
            .collect();
        let changed: Vec<_> = found
            .into_iter()
            .filter_map(|(slot, (version, report))| {
                let json = serde_json::to_string(&report?).ok()?;
                Some((slot, version, json))
            })
            .take(WRITTEN_MAX)
            .collect();
        if live.is_empty() && over.is_empty() {
            return None;
        }
        let mut call = redis::pipe();
        if self.is_unknown {
            call.cmd("DEL").arg(&self.key).ignore();
        }
        if !over.is_empty() {
            self.written.retain(|slot, _| live.contains_key(slot));
            call.cmd("HDEL").arg(&self.key).arg(over).ignore();
        }
        for (slot, version, json) in changed {
            self.written.insert(slot, version);
            self.next = slot + 1;
            call.cmd("HSET").arg(&self.key).arg(slot).arg(json).ignore();
        }
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        call.cmd("PEXPIRE").arg(&self.key).arg(lease_ms).ignore();
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ObjectName;

    /// Tests that no slot waits for ever if more slots report in each second than a call writes.
    #[tokio::test]
    async fn all_slots_have_their_turns() {
        let activity = Arc::new(Activity::default());
        let posts = activity.posts(3 * WRITTEN_MAX);
        let mut writer = ReportWriter::new(&WorkerConfig::default(), &activity);
        assert!(writer.call().is_none());
        let object = ObjectName::new("a").expect("a name");
        let under_way = posts.iter().map(|post| {
            let reports = async || {
                for _ in 0..3 {
                    post.progress(1, "1");
                    tokio::task::yield_now().await;
                }
            };
            post.note(&object, 1, reports())
        });
        let calls = async {
            for round in 1..=3 {
                assert!(writer.call().is_some());
                writer.is_unknown = false;
                assert_eq!(writer.written.len(), round * WRITTEN_MAX);
                tokio::task::yield_now().await;
            }
        };
        futures_util::future::join(futures_util::future::join_all(under_way), calls).await;
    }
}
