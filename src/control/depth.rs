//! Counts the queued events of all objects. Walks over all queues.

use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;

use super::scan::{Scan, Seen};
use super::stats::{COMMANDS_PER_CALL, ask};
use super::{Control, ControlError, reply};
use crate::escape;

/// Maximum number of prefixes that [`Control::depth`] lists. The objects of all further prefixes
/// are counted together, under an empty prefix.
pub const PREFIXES_MAX: usize = 10_000;

/// Maximum number of objects that [`Control::depth`] remembers. It remembers them so that no object
/// counts twice while Redis resizes its tables.
const SEEN_MAX: usize = 4 << 20;

/// Longest times that Redis itself is assumed to need: for a step without its queues, and for each
/// queue.
const STEP_MOST: Duration = Duration::from_millis(2);
const QUEUE_MOST: Duration = Duration::from_micros(5);

/// Counts of all objects whose names have the same prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PrefixDepth {
    /// The name up to its first colon, or the whole name if it has none.
    pub prefix: String,
    /// Objects with events.
    pub objects: u64,
    /// Queued events of these objects.
    pub events: u64,
}

/// One object's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObjectDepth {
    /// The object.
    pub object: String,
    /// [Escaped](crate::escape::name) form of `object`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_escaped: Option<String>,
    /// Number of queued events.
    pub events: u64,
}

/// The result of [`Control::depth`]. Counts queued events, not events in flight or held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Depth {
    /// Queued events of all objects.
    pub events_queued: u64,
    /// Objects with queued events.
    pub objects_with_events: u64,
    /// Objects and queued events of each prefix; the prefix with most events first.
    pub by_prefix: Vec<PrefixDepth>,
    /// The objects with the most queued events.
    pub top: Vec<ObjectDepth>,
}

impl Control {
    /// Counts the queued events of every object, by prefix, and finds the `top` longest queues.
    ///
    /// Cost: SCAN over all keys, and one LLEN for each object with events, in bounded steps.
    /// Memory: the prefixes (at most [`PREFIXES_MAX`]), `top` names, and 8 bytes for each object
    /// with events, up to 32 MiB. In a system at rest the result is exact. In a live system each
    /// queue is counted at some moment of the walk. The call only reads. It may be repeated, and
    /// its future may be dropped at any time.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn depth(&self, top: usize) -> Result<Depth, ControlError> {
        self.walk_queues(top, None).await
    }

    /// Like [`depth`](Self::depth), but in the background: takes at most the part `share` of Redis'
    /// time (0.01 means 1 %; at least 0.0001). With a share of 0.01 the count of 1,000,000 keys
    /// takes about 3 min.
    ///
    /// # Errors
    /// [`ControlError`] if Redis cannot be asked.
    pub async fn paced_depth(&self, top: usize, share: f64) -> Result<Depth, ControlError> {
        self.walk_queues(top, Some(share.clamp(0.0001, 1.0))).await
    }

    async fn walk_queues(&self, top: usize, share: Option<f64>) -> Result<Depth, ControlError> {
        let (mut conn, keys) = (self.connection(), &self.keys);
        let suffix = keys.events("");
        let suffix = &suffix[keys.prefix().len()..];
        let mut scan = Scan::new(keys, suffix);
        let mut seen = Seen::new(SEEN_MAX);
        let mut prefixes: HashMap<String, PrefixDepth> = HashMap::new();
        let mut longest = BinaryHeap::new();
        let mut depth = Depth::default();
        loop {
            let began = Instant::now();
            let Some(mut page) = scan.next(&mut conn).await? else { break };
            page.retain(|key| key.ends_with(suffix.as_bytes()) && seen.insert(key));
            for some in page.chunks(COMMANDS_PER_CALL) {
                let mut pipe = redis::pipe();
                for key in some {
                    pipe.cmd("LLEN").arg([keys.prefix().as_bytes(), key].concat());
                }
                for (key, answer) in some.iter().zip(ask(&mut conn, "the queues", &mut pipe).await?) {
                    // The key is gone, or it belongs to another program and is no list.
                    let Some(events) = answer.as_ref().ok().and_then(reply::number).filter(|events| *events > 0) else {
                        continue;
                    };
                    let name = &key[..key.len() - suffix.len()];
                    let object = String::from_utf8_lossy(name).into_owned();
                    depth.events_queued += events;
                    depth.objects_with_events += 1;
                    add(&mut prefixes, &object, events);
                    longest.push((std::cmp::Reverse(events), object, escape::differing(name)));
                    if longest.len() > top {
                        longest.pop();
                    }
                }
            }
            if let Some(share) = share {
                sleep(pause(began.elapsed(), page.len(), share)).await;
            }
        }
        depth.by_prefix = prefixes.into_values().collect();
        depth.by_prefix.sort_by(|a, b| b.events.cmp(&a.events).then_with(|| a.prefix.cmp(&b.prefix)));
        let top = longest.into_sorted_vec().into_iter();
        depth.top =
            top.map(|(events, object, object_escaped)| ObjectDepth { object, object_escaped, events: events.0 }).collect();
        Ok(depth)
    }
}

/// Returns the pause after a step that took `took` and found `found` queues. Over a slow link, most
/// of `took` is not time of Redis. So only a limited part of it counts.
fn pause(took: Duration, found: usize, share: f64) -> Duration {
    let found = u32::try_from(found).unwrap_or(u32::MAX);
    let most = STEP_MOST.saturating_add(QUEUE_MOST.saturating_mul(found));
    took.min(most).mul_f64((1.0 - share) / share)
}

fn add(prefixes: &mut HashMap<String, PrefixDepth>, object: &str, events: u64) {
    let prefix = object.split(':').next().unwrap_or(object);
    let known = prefixes.contains_key(prefix) || prefixes.len() < PREFIXES_MAX;
    let prefix = if known { prefix } else { "" };
    let sum = prefixes.entry(prefix.to_owned()).or_default();
    prefix.clone_into(&mut sum.prefix);
    sum.objects += 1;
    sum.events += events;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_walk_leaves_redis_its_share() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(1), 1000, 0.5), ms(1));
        assert_eq!(pause(ms(1), 1000, 0.01), ms(99));
        assert_eq!(pause(ms(1), 1000, 1.0), ms(0));
        // Over a slow link, a step counts for at most 2 ms, plus 5 µs per queue.
        assert_eq!(pause(ms(300), 1000, 0.5), ms(7));
        assert_eq!(pause(ms(300), 0, 0.5), ms(2));
    }
}
